"""The gangs that a cycle may evaluate next, in queue order: of each class only the first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.scheduling.cycle.gang_class import GangClass, Key
from dispatcher.core.scheduling.fit.equivalence_classes import ClassKey


class Stream:
    """The following gangs of one class: in order, or to be sorted once the first of them is placed."""

    __slots__ = ("keys", "unsorted")

    def __init__(self, keys: Iterator[Key], unsorted: list[Key] | None = None) -> None:
        self.keys = keys
        self.unsorted = unsorted


Candidate = tuple[Key, Stream]
"""A gang that may be evaluated next, and the following gangs of its class."""


class Frontier:
    """Candidates in order; `go_on` adds the next gang of a class after one was evaluated."""

    def __init__(self, heads: Iterator[Candidate]) -> None:
        self._heads = heads
        self._head = next(heads, None)
        self._following: list[tuple[Key, int, Stream]] = []

    def pop(self) -> Candidate | None:
        """The next candidate in order; None at the end."""
        head = self._head
        if self._following and (head is None or self._following[0][0] < head[0]):
            key, _, stream = heapq.heappop(self._following)
            return key, stream
        self._head = next(self._heads, None)
        return head

    def add(self, classes: Iterable[GangClass[ClassKey]]) -> Steps[None]:
        """Adds the first gangs of these classes to the candidates."""
        for part in incremental.in_parts(classes):
            for class_ in part:
                keys = iter(class_.keys)
                stream = Stream(keys)
                heapq.heappush(self._following, (next(keys), id(stream), stream))
            yield

    def go_on(self, stream: Stream) -> Steps[None]:
        """Adds the next gang of the stream to the candidates, if there is one."""
        if stream.unsorted is not None:
            stream.keys, stream.unsorted = (
                (yield from incremental.in_order(stream.unsorted, key=itself)),
                None,
            )
            next(stream.keys)  # the first was evaluated already
        following = next(stream.keys, None)
        if following is not None:
            heapq.heappush(self._following, (following, id(stream), stream))
        yield


def itself(key: Key) -> Key:
    """The key by which keys are sorted."""
    return key
