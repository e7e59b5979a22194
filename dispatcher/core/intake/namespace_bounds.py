"""Bounds of a namespace: the ceilings of priority and slope, and how many of its AppWrappers may be in the queue.

Ceilings are annotations of a namespace, which tenants cannot write. Priority and slope count up to the ceiling and no
further; lower ones count as written. A ceiling of the priority alone would be passed by any slope after a while, so
without one of its own the slope's is 0 then. A malformed number counts as 0: a typing error must not lift a bound.

AppWrappers beyond the bound on the queue are deferred. They are outside the queue: without a row or a record, and in no
cycle. Only the uid and the age of each are in memory; the oldest is taken in first. AppWrappers that wait for a kind
before their authors can be checked have such a status, too.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType, State
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import EXPECTED_RUNTIME, MAX_PRIORITY, MAX_PRIORITY_SLOPE
from dispatcher.core.model.records.record import Phase
from dispatcher.core.status.about import outside_queue
from dispatcher.core.status.components import PHASES
from dispatcher.text import counted

_PRIORITY: Final = re.compile("-?[0-9]{1,9}")
_SLOPE: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_SECONDS: Final = re.compile("[0-9]{1,9}")


class Ceiling(Struct, frozen=True):
    """The highest priority, and the highest slope, that count; None is no bound."""

    priority: int | None = None
    slope: float | None = None

    @property
    def highest_slope(self) -> float | None:
        """The slope that is allowed at most: 0 where only the priority has a bound."""
        return 0.0 if self.slope is None and self.priority is not None else self.slope

    def lower(self, asked: MutableSpec) -> MutableSpec:
        """The fields with priority and slope lowered to the ceiling."""
        priority, slope = self.priority, self.highest_slope
        return replace(
            asked,
            priority=asked.priority if priority is None else min(asked.priority, priority),
            priority_slope=asked.priority_slope if slope is None else min(asked.priority_slope, slope),
        )

    def warning(self, asked: MutableSpec, namespace: str) -> str:
        """A sentence about lowered fields; empty if there are none."""
        lowered = self.lower(asked)
        cut = [
            f"{word} {written:.10g} counts as {counts:.10g}"
            for word, written, counts in (
                ("priority", asked.priority, lowered.priority),
                ("priorityslope", asked.priority_slope, lowered.priority_slope),
            )
            if written != counts
        ]
        return f"{' and '.join(cut)}, the ceiling of namespace {namespace}" if cut else ""


NO_CEILING: Final = Ceiling()


def ceiling_of(annotations: Mapping[str, str], default: Ceiling = NO_CEILING) -> Ceiling:
    """The ceiling that the annotations of a namespace set; what they leave out is as in `default`."""
    priority, slope = annotations.get(MAX_PRIORITY), annotations.get(MAX_PRIORITY_SLOPE)
    return Ceiling(
        default.priority if priority is None else int(priority) if _PRIORITY.fullmatch(priority) else 0,
        default.slope if slope is None else float(slope) if _SLOPE.fullmatch(slope) else 0.0,
    )


def expected_runtime_of(annotations: Mapping[str, str]) -> int:
    """The run time, in seconds, that the annotations of a namespace expect of its AppWrappers; 0 without any."""
    written = annotations.get(EXPECTED_RUNTIME, "")
    return int(written) if _SECONDS.fullmatch(written) else 0


def unreadable(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The annotations that should be numbers, and are none that can be taken."""
    patterns = ((MAX_PRIORITY, _PRIORITY), (MAX_PRIORITY_SLOPE, _SLOPE), (EXPECTED_RUNTIME, _SECONDS))
    return tuple(
        key for key, pattern in patterns if key in annotations and not pattern.fullmatch(annotations[key])
    )


Age: TypeAlias = tuple[datetime, int]
"""When an AppWrapper was created, and the API server's own order within that second."""

_SPARE: Final = 64
"""The surplus of entries of deleted AppWrappers, over the other entries, at which the heap is rebuilt."""


def deferred_status(namespace: str, most: int, *, has_components: bool = False) -> dict[str, Any]:
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
        "about": outside_queue(reason, message),
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


class QueueBound:
    """Bounds how many AppWrappers of one namespace are in the queue; others are deferred, and enter by age.

    `count` is how many of a namespace are in the queue. AppWrappers that a batch takes in count at once, until `settle`
    says that `count` includes them.
    """

    def __init__(self, most: int, count: Callable[[str], int]) -> None:
        self.most = most
        self._count = count
        self._deferred = Deferred()
        self._called: set[str] = set()
        self._were_deferred: set[str] = set()
        """The uids of AppWrappers that were deferred and are not in the queue yet."""
        self._taken: Counter[str] = Counter()
        self._with_room: set[str] = set()

    def __len__(self) -> int:
        return len(self._deferred)

    def admits(self, namespace: str, age: Age, uid: str) -> bool:
        """True if there is room for the AppWrapper; else it is deferred until `call` returns it."""
        was_called = uid in self._called
        self._called.discard(uid)
        in_turn = was_called or not self._deferred.waits_in(namespace)
        if in_turn and self._room(namespace) > 0:
            self._taken[namespace] += 1
            self._with_room.add(uid)
            return True
        self._deferred.put(namespace, age, uid)
        self._were_deferred.add(uid)
        return False

    def was_deferred(self, uid: str) -> bool:
        """True of an AppWrapper that is taken in now and had to wait for room."""
        return uid in self._were_deferred

    def keep_turn(self, namespace: str, uid: str) -> None:
        """Keep the place of an AppWrapper that had room but cannot be taken in yet, before all deferred ones."""
        if uid in self._with_room:
            self._with_room.discard(uid)
            self._taken[namespace] -= 1
            self._called.add(uid)

    def settle(self) -> None:
        """Note that `count` includes everything that was taken in."""
        self._taken.clear()
        self._were_deferred -= self._with_room
        self._with_room.clear()

    def call(self) -> list[str]:
        """The uids of deferred AppWrappers for which there is room now, the oldest of each namespace; each once."""
        called: list[str] = []
        for namespace in self._deferred.namespaces():
            for _ in range(self._room(namespace)):
                uid = self._deferred.pop(namespace)
                if uid is None:
                    break
                called.append(uid)
        self._called.update(called)
        return called

    def is_deferred(self, uid: str) -> bool:
        """True of a deferred AppWrapper."""
        return uid in self._deferred

    def waits_in(self, namespace: str) -> bool:
        """True if the namespace has deferred AppWrappers."""
        return self._deferred.waits_in(namespace)

    def forget(self, uid: str) -> None:
        """Drop an AppWrapper that is gone; safe to repeat."""
        self._deferred.discard(uid)
        self._called.discard(uid)
        self._were_deferred.discard(uid)

    def _room(self, namespace: str) -> int:
        return max(0, self.most - self._count(namespace) - self._taken[namespace])
