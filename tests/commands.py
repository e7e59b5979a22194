"""The command line as people type it, without a process of its own: importing everything costs seconds each time."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
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


def _exit_code() -> object:
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code
