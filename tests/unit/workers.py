"""A worker under test, and how many of its errors were counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from dispatcher import log


@asynccontextmanager
async def running(worker: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """The worker's task, which ends with the block."""
    task = asyncio.create_task(worker)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counting() -> Callable[[str], int]:
    """How many errors of a worker were counted since now."""
    before = log.internal_errors()
    return lambda worker: log.internal_errors().get(worker, 0) - before.get(worker, 0)
