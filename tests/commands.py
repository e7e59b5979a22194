"""The command line as people type it, without a process of its own: importing everything costs seconds each time."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from dispatcher.__main__ import main


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind: its exit code, and what it said on stdout and stderr."""

    code: object
    out: str
    err: str = ""


Run = Callable[..., Awaitable[Ran]]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *command: str) -> Run:
    """Return what runs this command of `dispatcher` with more arguments, in a thread with a loop of its own."""

    async def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["dispatcher", *command, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = await asyncio.to_thread(_exit_code)
        return Ran(code, *capsys.readouterr())

    return run


def run_here(*arguments: str, stdin: str = "", **environment: str) -> Ran:
    """Run a command of `dispatcher` with these variables, for fixtures and tests that have no loop."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, write_through=True) for each in written)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["dispatcher", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = _exit_code()
    return Ran(code, *(each.getvalue().decode() for each in written))


def _exit_code() -> object:
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code
