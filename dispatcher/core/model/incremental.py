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
    """Sort the items: parts at once, and the whole while it is read, which costs a few comparisons for each item.

    What was read is let go of: at the end, a long queue at once would take as long to free as a hundred steps.
    """
    parts = []
    for part in in_parts(items):
        part.sort(key=key)
        parts.append(part)
        yield
    return merged(parts, key)


def merged(parts: Iterable[list[T]], key: Callable[[T], Any]) -> Iterator[T]:
    """The items of lists that are sorted each, in order, while they are read; the lists are used up."""
    drained = list(map(_drained, parts))
    return drained[0] if len(drained) == 1 else heapq.merge(*drained, key=key)


def _drained(part: list[T]) -> Iterator[T]:
    """Hand out the items of a list, which holds on to none that was."""
    part.reverse()
    while part:
        yield part.pop()


def release(items: dict[Any, Any]) -> Steps[None]:
    """Empty a dictionary that nobody needs any more: to free many entries at once takes tens of milliseconds."""
    while items:
        for _ in range(min(PART, len(items))):
            items.popitem()
        yield
