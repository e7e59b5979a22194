"""Who is busy beside the dispatcher: analysts who ask long questions of its database, or just as busy strangers.

An analyst stays in one transaction, with its one snapshot, for as long as it is there: that is how Postgres sees a
single query of that length, which keeps it from clearing up what the dispatcher leaves behind. The limits of the role
are lifted for that: its thirty seconds would end such a query.

Strangers use as much of the processor as the analysts did, scanning memory of their own, and touch no database.
What they cost the dispatcher, the machine costs it.
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
"""What each of their processes is called, before its number."""
FIRST_SECONDS: Final = 2.0
"""For so long they are there before anything is measured."""

_MEMORY: Final = 64 * 2**20
_STRETCH: Final = 8 * 2**20
_LIMITS: Final = ("statement_timeout", "idle_in_transaction_session_timeout")


@dataclass(slots=True)
class Asked:
    """How long each answer to one question took, in seconds."""

    name: str
    seconds: list[float] = field(default_factory=list)


def as_reader(url: str) -> str:
    """The same database for the role of people who only read, as a server lets it in that asks for no password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{READER}@{rest.partition('@')[2]}"


@asynccontextmanager
async def analysts(url: str, questions: Sequence[Question]) -> AsyncIterator[list[Asked]]:
    """One analyst for each question, who asks it again and again; yields what was answered so far."""
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
    """So many processes that use so many cores together, if the machine lets them; yields what they are called."""
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
    """Use that part of a core for ever; what the machine withheld is made up for within a second, or let go."""
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
