"""A data scientist's notebook: cells, run one after the other by an interpreter that has the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from signal import SIGKILL
from typing import Any

from testbed.forkserver import ForkServer

INTERPRETER = "tests.cluster.sdk.interpreter:main"
"""The entry of the fork servers of notebooks."""


class Raised(Exception):
    """A cell raised; the message is its traceback."""


@dataclass(frozen=True, slots=True)
class Output:
    """What stands below a cell. Enums are their names, dataclasses and tuples are JSON."""

    value: Any = None
    printed: str = ""


class Notebook:
    """One interpreter, which has names and modules from the cells run so far."""

    def __init__(self, outcomes: asyncio.StreamReader, cells: asyncio.StreamWriter) -> None:
        self._outcomes = outcomes
        self._cells = cells

    @classmethod
    @asynccontextmanager
    async def open(cls, interpreters: ForkServer, environment: dict[str, str]) -> AsyncIterator[Notebook]:
        """A new interpreter that ends with the block. It knows of this environment, and no other."""
        ours, theirs = socket.socketpair()
        with theirs:
            fork = await asyncio.to_thread(
                interpreters.fork, ["notebook"], theirs.fileno(), environment, None, None
            )
        fork.release()
        outcomes, cells = await asyncio.open_unix_connection(sock=ours)
        try:
            yield cls(outcomes, cells)
        finally:
            with suppress(ProcessLookupError):
                os.kill(fork.pid, SIGKILL)
            await asyncio.to_thread(fork.wait)
            cells.close()

    async def run(self, cell: str) -> Output:
        """Run a cell to its end; raises `Raised`."""
        self._cells.write(json.dumps(cell).encode() + b"\n")
        await self._cells.drain()
        line = await self._outcomes.readline()
        assert line, "the interpreter ended"
        return self._output(json.loads(line))

    async def value(self, cell: str) -> Any:  # noqa: ANN401
        """What the last expression of a cell is worth."""
        return (await self.run(cell)).value

    def _output(self, outcome: dict[str, Any]) -> Output:
        if "raised" in outcome:
            raise Raised(outcome["raised"])
        return Output(**outcome)
