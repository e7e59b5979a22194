"""A database that is filled once, for all tests that only read it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import clone_template, drop_database

T = TypeVar("T")
Fill = Callable[[Database, Leadership, QueueStore], Awaitable[T]]
"""Fills the database as its leader."""


@contextmanager
def filled_database(server_url: str, template: str, fill: Fill[T]) -> Iterator[tuple[str, T]]:
    """A new database, dropped at the end: its URL, and the result of `fill`."""
    name = f"aw_test_{uuid.uuid4().hex}"
    url = clone_template(server_url, template, name)
    try:
        yield url, asyncio.run(_filled(url, fill))
    finally:
        drop_database(server_url, name)


async def _filled(url: str, fill: Fill[T]) -> T:
    database = Database(url)
    try:
        leadership = Leadership(database, holder="leader", lease=timedelta(hours=1))
        assert await leadership.acquire() is not None
        return await fill(database, leadership, QueueStore(database, lambda: leadership.lease))
    finally:
        await database.close()
