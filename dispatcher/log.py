"""Logging: constant event names with keys and values, one line a decision, never an object or a secret."""

from __future__ import annotations

import logging
import sys
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
    """The logger of one module; `name` is the word the log line carries as `component`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger
