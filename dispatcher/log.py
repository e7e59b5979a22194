"""Structured logging: constant event names with keys and values, one line per decision, never an object or a secret.

Internal errors are logged and counted here, for the whole process, by the worker that continues after them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from typing import Final

import structlog

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str, style: str) -> None:
    """Send structured logs to stderr; `style` is json, console or auto (console on a terminal)."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one module; `name` is its `component` in every line."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger


_internal_errors: Final[Counter[str]] = Counter()
_counting: Final = threading.Lock()
"""Plans count beside the event loop."""


def internal_error(worker: str, error: BaseException, **key: object) -> None:
    """Log and count an exception that one key caused; its worker continues with the other keys.

    `worker` is a constant: it is a label of the metric. `key` says which object the exception is about.
    """
    count_internal_error(worker)
    get(worker).error("internal_error", **key, error=f"{type(error).__name__}: {error}"[:300], exc_info=error)


def count_internal_error(worker: str) -> None:
    """Count an internal error that the caller logs itself."""
    with _counting:
        _internal_errors[worker] += 1


def internal_errors() -> dict[str, int]:
    """Return the number of internal errors since the process began, by worker."""
    return dict(_internal_errors)
