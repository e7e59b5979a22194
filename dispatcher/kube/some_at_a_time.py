"""Calls to an API server for each of several pods, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from dispatcher import errors

AT_ONCE: Final = 8
"""Pods of one gang that are changed at the same time."""

Each = TypeVar("Each")


async def for_all(several: Sequence[Each], call: Callable[[Each], Awaitable[None]]) -> None:
    """Make the call for each, `AT_ONCE` at a time; raises the first `ClusterError` once all were tried."""
    failed: list[errors.ClusterError] = []
    for first in range(0, len(several), AT_ONCE):
        outcomes = await asyncio.gather(*(_error_of(call(each)) for each in several[first : first + AT_ONCE]))
        failed += filter(None, outcomes)
    if failed:
        raise failed[0]


async def _error_of(call: Awaitable[None]) -> errors.ClusterError | None:
    try:
        await call
    except errors.ClusterError as error:
        return error
    return None
