"""Work over many items in small steps, between which the event loop may serve others.

A function that works in steps is a generator: it yields after a bounded amount of work, and returns its result. The
core has no clock and decides nothing about time: whoever runs the steps gives way when it is due, or runs them all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields between steps, each of which takes less than a millisecond or so, and returns a T."""

PART: Final = 200
"""How many items a step is about where each costs some microseconds."""


def run(steps: Steps[T]) -> T:
    """Run all steps at once; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def in_parts(items: Iterable[T], size: int = PART) -> Iterator[list[T]]:
    """The items, so many at a time; they must not change meanwhile."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Steps[Iterator[T]]:
    """Sort the items: parts at once, and the whole while it is read, which costs a few comparisons for each item."""
    parts = []
    for part in in_parts(items):
        part.sort(key=key)
        parts.append(part)
        yield
    return iter(parts[0]) if len(parts) == 1 else heapq.merge(*parts, key=key)
