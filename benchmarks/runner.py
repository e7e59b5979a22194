"""Runs a benchmark from its command line: every process is ended in order, whatever ends the benchmark."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from benchmarks.failure import BenchmarkFailed
from dispatcher.errors import ClusterError, StoreError, innermost
from testbed.build import BuildFailed
from testbed.plane import NotReady
from testbed.postgres import NoPostgres
from testbed.processes import ProcessDied

EXPECTED: Final = (BenchmarkFailed, ClusterError, BuildFailed, NotReady, NoPostgres, ProcessDied, StoreError)
"""Errors that are no defect of the benchmark: the runner prints one line instead of a traceback."""
INTERRUPTED: Final = 130

Figures = TypeVar("Figures")


def measured(measure: Callable[[Path], Coroutine[Any, Any, Figures]]) -> Figures:
    """The figures of a measurement in a temporary folder.

    Raises `SystemExit` with 1 for one of `EXPECTED`, also inside groups of exceptions, and with 130 after SIGINT,
    SIGTERM or SIGHUP.
    """
    # A shell that starts a benchmark in the background has SIGINT ignored, which children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with tempfile.TemporaryDirectory(prefix="aw-bench-") as folder:
            return asyncio.run(measure(Path(folder)))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (*EXPECTED, ExceptionGroup) as error:
        first = innermost(error)
        if not isinstance(first, EXPECTED):
            raise
        print(f"benchmark: {first}", file=sys.stderr)
        raise SystemExit(1) from error


def write(path: str | None, figures: object) -> None:
    """Writes figures as JSON to the file of `--output`, if there is one."""
    if path:
        Path(path).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def progress() -> Callable[[str], None]:
    """A function that prints a line to stderr after the seconds since now."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", file=sys.stderr, flush=True)

    return say
