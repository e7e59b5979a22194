"""Measures of a simulation: the waits of gangs, the allocated share of the clusters, and preemptions.

One resource is measured: the GPUs of the clusters, else their commonest device, else cpu. Times are whole microseconds
and amounts are integers, so the sums are the same on any machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources, is_device, is_gpu

SHARES: Final = (100, 130)
"""The requested amounts, in percent of the capacity, at which the allocated share is measured."""
CPU: Final = "cpu"
MILLI: Final = 1000
MICROSECOND: Final = timedelta(microseconds=1)
MICROSECONDS: Final = 10**6
HOUR: Final = 3600 * MICROSECONDS
MOST_SIZES: Final = 40
Key = TypeVar("Key", str, int)
_BOUNDS: Final = tuple(2**power for power in range(MOST_SIZES))


def measured_resource(nodes: Iterable[Node]) -> str:
    """The resource that is measured: of the GPUs of these nodes the commonest, else of their devices, else cpu."""
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.allocatable)
    ranked = sorted(total, key=lambda name: (not is_gpu(name), not is_device(name), -total[name], name))
    return next((name for name in ranked if is_device(name)), CPU)


class Waits(Struct, frozen=True):
    """Waits in seconds; None where no gang started."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, waits: Sequence[int]) -> Waits:
        """The waits of gangs, which are in microseconds. A percentile is the wait of a gang, by the nearest rank."""
        if not waits:
            return cls(None, None, None, None)
        ordered = sorted(waits)
        ranks = (ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 90, 99))
        return cls(_seconds(sum(ordered) / len(ordered)), *map(_seconds, ranks))

    def as_document(self) -> dict[str, float | None]:
        """The waits as JSON."""
        return {"mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99}


class Part(Struct, frozen=True):
    """Some of the gangs: how many there are, how many of them never started, and the waits of the others."""

    gangs: int
    left: int
    wait: Waits

    def as_document(self) -> dict[str, Any]:
        """The part as JSON."""
        return {"gangs": self.gangs, "left": self.left, "wait": self.wait.as_document()}


class Measured(Struct, frozen=True):
    """The measures of one run. Times are in seconds, shares from 0 to 1.

    `allocated` has the share of the capacity that was allocated when gangs first requested that many percent of it;
    None if they never did. `utilisation` is the average share until `makespan`, the last end; both are None if no gang
    ended.
    """

    all: Part
    by_queue: Mapping[str, Part]
    by_size: Mapping[str, Part]
    utilisation: float | None
    makespan: float | None
    preemptions: int
    gpu_hours_lost: float
    allocated: Mapping[int, float | None]

    def as_document(self, name: str) -> dict[str, Any]:
        """The run of this name as JSON."""
        return {
            "name": name,
            **self.all.as_document(),
            "byQueue": {key: part.as_document() for key, part in self.by_queue.items()},
            "bySize": {key: part.as_document() for key, part in self.by_size.items()},
            "utilisation": self.utilisation,
            "makespan": self.makespan,
            "preemptions": self.preemptions,
            "gpuHoursLost": self.gpu_hours_lost,
            "allocated": {str(key): share for key, share in self.allocated.items()},
        }


class _Gang(Struct):
    """A gang that arrived: in microseconds how long it waited, and since when it waits or runs."""

    queue: str
    amount: int
    since: datetime
    waited: int = 0
    has_started: bool = False


class Measures(Struct):
    """Gathers what happens. Events come in the order of time; `capacity` is the total of `resource`."""

    resource: str
    capacity: int
    begun: datetime
    _gangs: dict[str, _Gang] = field(default_factory=dict)
    _allocated: int = 0
    _waiting: int = 0
    _used: int = 0
    """The allocated amounts times microseconds."""
    _now: datetime | None = None
    _ended: datetime | None = None
    _used_by_end: int = 0
    _preemptions: int = 0
    _lost: int = 0
    """The amounts of preempted gangs times microseconds."""
    _shares: dict[int, float | None] = field(default_factory=lambda: dict.fromkeys(SHARES))

    def hold(self, amounts: Resources) -> None:
        """A gang that runs from the beginning holds these amounts."""
        self._allocated += amounts[self.resource]

    def move_to(self, now: datetime) -> None:
        """Time passes until `now`."""
        if self._now is not None:
            self._used += self._allocated * ((now - self._now) // MICROSECOND)
        self._now = now

    def arrive(self, record: Record, now: datetime) -> None:
        """A gang arrives, or is queued again."""
        known = self._gangs.get(record.uid)
        if known is None:
            amount = record.gang.demand[self.resource]
            since = now if record.attempts else record.created_at
            known = self._gangs[record.uid] = _Gang(record.queue, amount, since)
        else:
            known.since = now
        self._waiting += known.amount

    def start(self, record: Record, now: datetime) -> None:
        """A gang is dispatched."""
        gang = self._gangs[record.uid]
        gang.waited += (now - gang.since) // MICROSECOND
        gang.since, gang.has_started = now, True
        self._waiting -= gang.amount
        self._allocated += gang.amount

    def preempt(self, record: Record, now: datetime) -> None:
        """A running gang is to leave; it holds its capacity until it has left."""
        self._preemptions += 1
        if record.attempt is not None:
            ran = (now - record.attempt.began_at) // MICROSECOND
            self._lost += ran * record.gang.demand[self.resource]

    def leave(self, record: Record) -> None:
        """A gang has left."""
        self._allocated -= record.gang.demand[self.resource]

    def end(self, now: datetime) -> None:
        """A gang ends; it leaves as well."""
        self._ended, self._used_by_end = now, self._used

    def decided(self) -> None:
        """All cycles of this moment are over."""
        for share in SHARES:
            requested = self._allocated + self._waiting
            if self._shares[share] is None and self.capacity and requested * 100 >= self.capacity * share:
                self._shares[share] = _share(self._allocated, self.capacity)

    @property
    def started(self) -> int:
        """How many gangs have started at least once; O(gangs)."""
        return sum(each.has_started for each in self._gangs.values())

    def measured(self) -> Measured:
        """The measures of the run up to now."""
        gangs = list(self._gangs.values())
        span = 0 if self._ended is None else (self._ended - self.begun) // MICROSECOND
        is_used = bool(self.capacity and span)
        return Measured(
            all=_part(gangs),
            by_queue=dict(_parts(gangs, lambda each: each.queue)),
            by_size={_size_in_words(size): part for size, part in _parts(gangs, self._size)},
            utilisation=_share(self._used_by_end, self.capacity * span) if is_used else None,
            makespan=None if self._ended is None else _seconds(span),
            preemptions=self._preemptions,
            gpu_hours_lost=round(self._in_units(self._lost) / HOUR, 3),
            allocated=dict(self._shares),
        )

    def _size(self, gang: _Gang) -> int:
        """The class of size: class N has up to 2^N units of the resource, and more than class N - 1."""
        return bisect_left(_BOUNDS, self._in_units(gang.amount)) if gang.amount else -1

    def _in_units(self, amount: int) -> float:
        return amount / MILLI if self.resource == CPU else amount


def _parts(gangs: Iterable[_Gang], of: Callable[[_Gang], Key]) -> Iterator[tuple[Key, Part]]:
    """The gangs in parts, by a property, in its order."""
    found: dict[Key, list[_Gang]] = {}
    for each in gangs:
        found.setdefault(of(each), []).append(each)
    return ((key, _part(found[key])) for key in sorted(found))


def _part(gangs: Sequence[_Gang]) -> Part:
    started = [each.waited for each in gangs if each.has_started]
    return Part(len(gangs), len(gangs) - len(started), Waits.of(started))


def _size_in_words(size: int) -> str:
    """The sizes of a class, such as 1, 2, 3-4 or 5-8."""
    if size < 0:
        return "0"
    most, least = 2**size, 2 ** (size - 1) + 1 if size else 1
    return str(most) if least >= most else f"{int(least)}-{most}"


def _seconds(microseconds: float) -> float:
    return round(microseconds / MICROSECONDS, 3)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4)
