"""A worker under test, and how many of its errors were counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from dispatcher import log
from dispatcher.controller.scheduling.kind_watch import KindWatch


@asynccontextmanager
async def running(*workers: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Runs workers, which end with the block; yields the task of the first."""
    tasks = [asyncio.create_task(each) for each in workers]
    try:
        yield tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def listing(watch: KindWatch) -> AsyncIterator[Callable[[], bool]]:
    """Runs a watch; yields whether a leader would go on by now."""
    async with running(watch.wait_until_listed(), watch.run()) as listed:
        yield listed.done


def counting() -> Callable[[str], int]:
    """How many errors of a worker were counted since now."""
    before = log.internal_errors()
    return lambda worker: log.internal_errors().get(worker, 0) - before.get(worker, 0)
