"""Keeps Python's garbage collector from blocking the event loop.

The collector scans every live object whenever a quarter of them is new: with 50,000 AppWrappers, for up to a second.
Nearly all of these objects are records: values without cycles, which reference counts free. So a leader collects
nothing while it loads the cache, and objects that survive a long collection are not scanned again until a cluster
leaves (its objects have cycles) or the leader steps down. Full collections of the other objects run often, because the
duration of each grows with the number of objects created since the one before.

Python counts created objects less freed ones. A computation that replaces 50,000 values creates that many objects
before a collection is due, which then takes 300 ms. So a long computation collects after each of its slices.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LONG_SECONDS: Final = 0.01
NEWEST: Final = 0
OLDEST: Final = 2
SLICES_BETWEEN_ALL: Final = 10
THRESHOLDS: Final = (700, 10, 2)
"""One collection scans at most some 23,000 new objects, in about 15 ms; with Python's default, 85,000."""


@contextmanager
def short_collections(monotonic: Callable[[], float]) -> Iterator[None]:
    """A context in which no collection scans again what survived a long one; `monotonic` is in seconds."""
    begun = monotonic()

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if info["generation"] < OLDEST:
            return
        if phase == "start":
            begun = monotonic()
        elif monotonic() - begun > LONG_SECONDS:
            gc.freeze()

    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(watch)
    gc.freeze()  # modules, and all objects created until here
    gc.collect()  # scans next to nothing; the next collection is due after a quarter as many new objects
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_after(slices: int) -> None:
    """Collect the objects that the last slice of a computation created; after every tenth slice, all unfrozen ones."""
    if gc.isenabled():
        gc.collect(NEWEST if slices % SLICES_BETWEEN_ALL else OLDEST)


@contextmanager
def no_collections() -> Iterator[None]:
    """A context without collections; objects that exist at its end are not scanned again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def look_at_all_again() -> None:
    """Have the next collection scan all objects, after objects with cycles were dropped; it takes up to a second."""
    gc.unfreeze()
