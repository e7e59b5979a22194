"""Load beside the dispatcher: analysts with long queries in its database, or equally busy strangers.

An analyst stays in one transaction, with one snapshot, all the time. To Postgres this equals a single query of that
length, which keeps it from removing the dispatcher's dead rows. The timeouts of the role are lifted, because its thirty
seconds would end such a query.

Strangers use as much of the processor as the analysts did, by scans of their own memory, and touch no database. Their
cost for the dispatcher is a cost of the machine, not of the database.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg

from benchmarks.gangs import CHECKOUT
from benchmarks.questions import Question
from testbed.processes import Process, Supervisor

READER: Final = "dispatcher_reader"
STRANGER: Final = "stranger"
"""The name of each of their processes, before its number."""
FIRST_SECONDS: Final = 2.0
"""The time that they run before anything is measured."""

_MEMORY: Final = 64 * 2**20
_STRETCH: Final = 8 * 2**20
_LIMITS: Final = ("statement_timeout", "idle_in_transaction_session_timeout")


@dataclass(slots=True)
class Asked:
    """The times of the answers to one question, in seconds."""

    name: str
    seconds: list[float] = field(default_factory=list)


def as_reader(url: str) -> str:
    """The same database for the reader role, if the server requires no password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{READER}@{rest.partition('@')[2]}"


@asynccontextmanager
async def analysts(url: str, questions: Sequence[Question]) -> AsyncIterator[list[Asked]]:
    """One analyst for each question, which it repeats; yields the answers so far."""
    asked = [Asked(each.name) for each in questions]
    async with asyncio.TaskGroup() as tasks:
        there = [
            tasks.create_task(_ask(as_reader(url), each, answers))
            for each, answers in zip(questions, asked, strict=True)
        ]
        await asyncio.sleep(FIRST_SECONDS)
        yield asked
        for task in there:
            task.cancel()


async def _ask(url: str, question: Question, answers: Asked) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for limit in _LIMITS:
            await connection.execute(f"SET {limit} = 0".encode())
        await connection.commit()
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        while True:
            started = time.monotonic()
            found = await connection.execute(question.query.encode(), question.parameters())
            await found.fetchall()
            answers.seconds.append(time.monotonic() - started)


@asynccontextmanager
async def strangers(supervisor: Supervisor, count: int, cores: float) -> AsyncIterator[list[str]]:
    """`count` processes that use `cores` cores together, if the machine permits; yields their names."""
    started: list[Process] = []
    try:
        for number in range(count):
            name = f"{STRANGER}-{number}"
            share = str(cores / count)
            command = [sys.executable, "-m", "benchmarks.company", share]
            path = {"PATH": os.environ.get("PATH", os.defpath)}
            started.append(supervisor.start(name, command, env=path, cwd=CHECKOUT))
        await asyncio.sleep(FIRST_SECONDS)
        yield [each.name for each in started]
        for process in started:
            process.check()
    finally:
        for process in started:
            supervisor.stop(process)


def _be_busy(share: float) -> None:
    """Uses that share of a core for ever; catches up with at most a second of withheld time."""
    memory = memoryview(bytearray(_MEMORY))
    owed, before = 0.0, (time.monotonic(), time.process_time())
    while True:
        for start in range(0, _MEMORY, _STRETCH):
            zlib.crc32(memory[start : start + _STRETCH])
            now = time.monotonic(), time.process_time()
            owed = min(1.0, owed + share * (now[0] - before[0]) - (now[1] - before[1]))
            before = now
            if owed < 0:
                time.sleep(-owed / share)


if __name__ == "__main__":
    _be_busy(float(sys.argv[1]))
