"""A data scientist's notebook: cells, run one after the other by an interpreter that has the SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERPRETER = Path(__file__).with_name("interpreter.py")


class Raised(Exception):
    """A cell raised; the message is its traceback."""


@dataclass(frozen=True, slots=True)
class Output:
    """What stands below a cell. Enums are their names, dataclasses and tuples are JSON."""

    value: Any = None
    printed: str = ""


class Notebook:
    """One interpreter, which has names and modules from the cells run so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def open(cls, python: Path, environment: dict[str, str]) -> AsyncIterator[Notebook]:
        """An interpreter that ends with the block. It knows of this environment, and no other."""
        process = await asyncio.create_subprocess_exec(
            python,
            INTERPRETER,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process)
        finally:
            process.kill()
            await process.communicate()

    async def run(self, cell: str) -> Output:
        """Run a cell to its end; raises `Raised`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(cell).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        assert line, "the interpreter ended"
        return self._output(json.loads(line))

    async def value(self, cell: str) -> Any:  # noqa: ANN401
        """What the last expression of a cell is worth."""
        return (await self.run(cell)).value

    def _output(self, outcome: dict[str, Any]) -> Output:
        if "raised" in outcome:
            raise Raised(outcome["raised"])
        return Output(**outcome)
