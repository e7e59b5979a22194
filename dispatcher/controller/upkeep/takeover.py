"""The work of a new leader on all AppWrappers: in slices, because the lease must be renewed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.garbage import no_collections
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model.incremental import in_parts
from dispatcher.store.queue import QueueStore

T = TypeVar("T")


async def load(cache: Cache, store: QueueStore, slices: Slices) -> None:
    """Load the database's records into the cache; nothing else may change the cache meanwhile."""
    with no_collections():
        await for_each(await store.load_live(), cache.put, slices)


async def for_each(items: Iterable[T], act: Callable[[T], object], slices: Slices) -> None:
    """Call `act` with each of the current items, in slices."""
    for part in in_parts(list(items), 20):
        for item in part:
            act(item)
        await slices.give_way()
