"""Whose end a broken connection tells: the statement's, or that of whoever waited for it."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import _cancellation_first


async def broken(waiting: asyncio.Event) -> None:
    """A statement that is called off over a connection that breaks meanwhile."""
    with _cancellation_first():
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            raise StoreUnavailable("the connection was lost")


async def test_loop_that_outlives_errors_of_the_database_ends_when_it_is_cancelled() -> None:
    waiting = asyncio.Event()

    async def loop() -> None:
        while True:
            try:
                await broken(waiting)
            except StoreUnavailable:
                continue

    task = asyncio.create_task(loop())
    await waiting.wait()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_connection_that_breaks_by_itself_is_an_error_of_the_database() -> None:
    with pytest.raises(StoreUnavailable), _cancellation_first():
        raise StoreUnavailable("the connection was lost")
