"""AppWrappers that are not taken in yet, because their namespace has the most that it may have in the queue.

They are outside the queue: without a row or a record, and in no cycle. Only the uid and the age of each are in memory;
the oldest is taken in first. AppWrappers that wait for a kind before their authors can be checked have such a status,
too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType, State
from dispatcher.core.model.record import Phase
from dispatcher.core.status.components import PHASES
from dispatcher.text import counted

Age: TypeAlias = tuple[datetime, int]
"""When an AppWrapper was created, and the API server's own order within that second."""

_SPARE: Final = 64
"""The surplus of entries of deleted AppWrappers, over the other entries, at which the heap is rebuilt."""


def status(namespace: str, most: int, *, has_components: bool = False) -> dict[str, Any]:
    """The status of a deferred AppWrapper; nothing in it changes, so that it is written once."""
    message = (
        f"namespace {namespace} has {counted(most, 'AppWrapper')} in the queue or suspended, and may have no more; "
        "this one is taken in, by its age, when one of those is dispatched or deleted"
    )
    return _outside_queue(words.NAMESPACE_QUEUE_FULL, message, has_components=has_components)


def status_without_kind(not_served: str, *, has_components: bool = False) -> dict[str, Any]:
    """The status of an AppWrapper whose author cannot be checked; `not_served` says why, in a sentence."""
    message = f"{not_served}; it is taken in, by its age, once its author can be checked"
    return _outside_queue(words.KIND_NOT_INSTALLED, message, has_components=has_components)


def _outside_queue(reason: str, message: str, *, has_components: bool) -> dict[str, Any]:
    return {
        "state": State.PENDING.value,
        "queuejobstate": ConditionType.INIT.value,
        "canrun": False,
        "reason": reason,
        "waiting": {"reason": reason, "message": message},
        **({"phase": PHASES[Phase.QUEUED].value} if has_components else {}),
    }


class Deferred:
    """Uids by namespace, the oldest AppWrapper first."""

    def __init__(self) -> None:
        self._namespaces: dict[str, str] = {}
        self._heaps: dict[str, list[tuple[Age, str]]] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, uid: object) -> bool:
        return uid in self._namespaces

    def namespaces(self) -> Iterable[str]:
        """The namespaces with deferred AppWrappers."""
        return tuple(self._counts)

    def waits_in(self, namespace: str) -> bool:
        """True if the namespace has deferred AppWrappers."""
        return namespace in self._counts

    def put(self, namespace: str, age: Age, uid: str) -> None:
        """Defers an AppWrapper; safe to repeat."""
        if uid in self._namespaces:
            return
        self._namespaces[uid] = namespace
        self._counts[namespace] = self._counts.get(namespace, 0) + 1
        heapq.heappush(self._heaps.setdefault(namespace, []), (age, uid))

    def pop(self, namespace: str) -> str | None:
        """Removes and returns the oldest of a namespace; None if there is none."""
        heap = self._heaps.get(namespace, [])
        while heap:
            _, uid = heapq.heappop(heap)
            if uid in self._namespaces:
                self._forget(uid)
                return uid
        return None

    def discard(self, uid: str) -> None:
        """Removes an AppWrapper; safe to repeat."""
        namespace = self._namespaces.get(uid)
        if namespace is None:
            return
        self._forget(uid)
        heap = self._heaps.get(namespace, [])
        if len(heap) > 2 * self._counts.get(namespace, 0) + _SPARE:
            self._heaps[namespace] = [entry for entry in heap if entry[1] in self._namespaces]
            heapq.heapify(self._heaps[namespace])

    def _forget(self, uid: str) -> None:
        namespace = self._namespaces.pop(uid)
        self._counts[namespace] -= 1
        if not self._counts[namespace]:
            del self._counts[namespace]
            del self._heaps[namespace]
