"""The deadline of a statement of the notifier does not count the statements before it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.store import notifications
from dispatcher.store.notifications import NotifierStore


class Slow:
    """A connection that runs one statement at a time, each until the test lets it go, and counts looks to cut it."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(0)
        self.cuts = 0
        self.description = None
        self._lock = asyncio.Lock()

    @property
    def closed(self) -> bool:
        self.cuts += 1
        return True

    def cursor(self) -> Slow:
        return self

    async def __aenter__(self) -> Slow:
        return self

    async def __aexit__(self, *_: object) -> None:
        """As psycopg's cursor, it ends with its block."""

    async def execute(self, *_: object) -> None:
        """Wait for the statements before, then for the test."""
        async with self._lock:
            await self.free.acquire()


async def test_deadline_of_a_statement_begins_once_those_before_it_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow: Any = Slow()
    store = NotifierStore(slow)
    first = asyncio.create_task(store.queues())
    await asyncio.sleep(0)
    monkeypatch.setattr(notifications, "DEADLINE", timedelta(0))
    second = asyncio.create_task(store.queues())
    for _ in range(5):
        await asyncio.sleep(0)
    assert slow.cuts == 0
    slow.free.release()
    await first
    for _ in range(5):
        await asyncio.sleep(0)
    assert slow.cuts == 1
    slow.free.release()
    await second
