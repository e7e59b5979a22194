"""What a new leader does once with every AppWrapper there is: in slices, for its lease has to be renewed meanwhile."""

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
    """Take in what the database holds; nobody else may change the roster meanwhile."""
    with no_collections():
        await for_each(await store.load_live(), cache.put, slices)


async def for_each(items: Iterable[T], act: Callable[[T], object], slices: Slices) -> None:
    """Do something with each of the items of this moment."""
    for part in in_parts(list(items), 20):
        for item in part:
            act(item)
        await slices.give_way()
