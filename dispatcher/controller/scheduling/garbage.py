"""Keeps the garbage collector of Python from holding up the event loop.

It goes through everything that lives whenever a quarter of that is new: with 50,000 AppWrappers, for up to a second.
Nearly all of it is records, which are values without cycles and go by their reference counts. So while a leader's
memory is loaded nothing is collected, and what survives a collection that took long is never looked at again, until
a cluster leaves (of which cycles remain) or the leader steps down. Collections of all that is left come often, for what
each takes grows with all that was made since the one before.

Python counts what is made less what is freed. A computation that replaces 50,000 values by others makes that many new
objects before a collection is due, which then takes 300 ms. So a long computation collects after each of its slices.
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
"""At most some 23,000 new objects are looked at in one collection, which takes about 15 ms; by default, 85,000."""


@contextmanager
def short_collections(monotonic: Callable[[], float]) -> Iterator[None]:
    """Within it no collection looks again at what survived one that took long; `monotonic` is in seconds."""
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
    gc.freeze()  # modules, and what was made on the way here
    gc.collect()  # of next to nothing; the next is due after a quarter of what this one has looked at
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_after(slices: int) -> None:
    """Collect what the last slice of a computation has made; after every tenth, all that is looked at still."""
    if gc.isenabled():
        gc.collect(NEWEST if slices % SLICES_BETWEEN_ALL else OLDEST)


@contextmanager
def no_collections() -> Iterator[None]:
    """Within it nothing is collected; what is there afterwards is not looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def look_at_all_again() -> None:
    """Something in cycles has gone: the next collection finds it, and takes as long as there is memory."""
    gc.unfreeze()
