"""Work over many items in small steps, between which other work can run, and after which it can end.

A function that works in steps is a generator: it yields after a bounded amount of work, and returns its result. The
core has no clock: the caller runs all steps at once, or gives way between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields between steps, each of which takes less than a millisecond or so, and returns a T."""

PART: Final = 200
"""Items of one step, where each costs some microseconds."""


def run(steps: Steps[T]) -> T:
    """Run all steps at once; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def in_parts(items: Iterable[T], size: int = PART) -> Iterator[list[T]]:
    """The items in lists of `size`; they must not change meanwhile."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Steps[Iterator[T]]:
    """The sorted items: each part is sorted in a step, and the parts are merged while they are read.

    Items are released as they are read: to free a long queue at once would take as long as a hundred steps.
    """
    parts = []
    for part in in_parts(items):
        part.sort(key=key)
        parts.append(part)
        yield
    return merged(parts, key)


def merged(parts: Iterable[list[T]], key: Callable[[T], Any]) -> Iterator[T]:
    """The items of sorted lists, in order; reading empties the lists."""
    drained = list(map(_drained, parts))
    return drained[0] if len(drained) == 1 else heapq.merge(*drained, key=key)


def _drained(part: list[T]) -> Iterator[T]:
    """Yields the items of a list and removes each from it."""
    part.reverse()
    while part:
        yield part.pop()


def update(items: dict[Any, Any], others: Mapping[Any, Any]) -> Steps[None]:
    """Adds the others to a dictionary, in steps."""
    for part in in_parts(others.items()):
        items.update(part)
        yield


def release(items: dict[Any, Any]) -> Steps[None]:
    """Empties a dictionary in steps: to free many entries at once takes tens of milliseconds."""
    while items:
        for _ in range(min(PART, len(items))):
            items.popitem()
        yield
