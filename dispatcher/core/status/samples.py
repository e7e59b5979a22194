"""Samples for history: the fill of every cluster and the length of every queue at one moment.

For each resource of a cluster, over its usable nodes:

    capacity  their allocatable
    free      capacity for further gangs; negative if more is requested than there is
    held      the demand of the AppWrappers that were dispatched there, and what they hold beyond it
    other     requests of the live pods on these nodes that belong to none of these AppWrappers

From `capacity.account` follows exactly

    capacity = free + other + sum over these AppWrappers of
               (requests of its live pods on usable nodes + max(0, demand - requests of its live bound pods on any))

That is free + other + held, with two exceptions: the growth of an AppWrapper is committed some seconds after its pods
have nodes, and requests on unusable nodes take no capacity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.core.model.gangs.pods import Pod
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger

AT_ONCE: Final = 500
"""Records, or pods, that one step counts: about two milliseconds."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Each = TypeVar("_Each")


class CapacitySample(Struct, frozen=True):
    """One resource of one cluster, in base units; if not `is_reachable`, only `held` is of this moment."""

    cluster: str
    resource: str
    capacity: int
    held: int
    other: int
    free: int
    is_reachable: bool = True


class QueueSample(Struct, frozen=True):
    """One queue: the gangs that wait and the gangs that hold capacity, with their demands and what they hold."""

    queue: str
    queued: int = 0
    queued_demand: Resources = NOTHING
    running: int = 0
    running_demand: Resources = NOTHING


class LedgerReading(Struct, frozen=True):
    """The capacity of a cluster at one moment: names and amounts of its usable nodes, and every pod."""

    total: Resources
    free: Resources
    usable: frozenset[str] = frozenset()
    pods: Sequence[Pod] = ()
    is_reachable: bool = True


def reading_of(ledger: CapacityLedger, *, is_reachable: bool = True) -> LedgerReading:
    """The contents of a ledger at this moment, as a value."""
    return LedgerReading(ledger.total(), ledger.free(), ledger.usable_nodes(), ledger.pods(), is_reachable)


def moment_of(now: datetime, period: timedelta) -> datetime:
    """The last time at which a sample was due, the same for every leader."""
    return EPOCH + (now - EPOCH) // period * period


class Moment:
    """All samples of one moment; `count` must run to its end before they are read."""

    def __init__(self, records: Iterable[Record], readings: Mapping[str, LedgerReading]) -> None:
        self._records = list(records)
        self._readings = dict(readings)
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._holders: defaultdict[str, set[str]] = defaultdict(set)
        self._others: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(self) -> Iterator[None]:
        """Counts a part in each step, so that other tasks run in between."""
        for records in _parts(self._records):
            for record in records:
                self._count_record(record)
            yield
        for cluster, reading in self._readings.items():
            for pods in _parts(reading.pods):
                self._count_others(cluster, reading, pods)
                yield

    def capacities(self, known: Iterable[CapacitySample] = ()) -> list[CapacitySample]:
        """The samples of every cluster, each resource by name.

        `known` are the last samples of clusters without a reading; only their `held` is of this moment.
        """
        here = [each for name, reading in self._readings.items() for each in self._samples_of(name, reading)]
        return here + [self._while_away(each) for each in known]

    def queues(self) -> list[QueueSample]:
        """The samples of every queue that a record is in, and always of the default queue."""
        return [self._queues[name].sample(name) for name in sorted({DEFAULT_QUEUE, *self._queues})]

    def _count_record(self, record: Record) -> None:
        queue, charge = self._queues[record.queue], record.charge
        if record.phase is Phase.QUEUED:
            queue.queued += 1
            _add(queue.queued_demand, charge)
        elif record.holds_capacity and record.attempt is not None:
            queue.running += 1
            _add(queue.running_demand, charge)
            if not record.attempt.awaits_capacity:
                _add(self._held[record.attempt.cluster], record.held)
            self._holders[record.attempt.cluster].add(record.uid)

    def _count_others(self, cluster: str, reading: LedgerReading, pods: Iterable[Pod]) -> None:
        holders, others = self._holders[cluster], self._others[cluster]
        for pod in pods:
            is_theirs = pod.owner in holders or pod.claim in holders
            if pod.node in reading.usable and pod.live and not is_theirs:
                _add(others, pod.requests)

    def _samples_of(self, cluster: str, reading: LedgerReading) -> list[CapacitySample]:
        held, other = self._held[cluster], self._others[cluster]
        names = sorted({*reading.total, *reading.free, *held, *other})
        return [
            CapacitySample(
                cluster,
                name,
                reading.total[name],
                held[name],
                other[name],
                reading.free[name],
                reading.is_reachable,
            )
            for name in names
        ]

    def _while_away(self, known: CapacitySample) -> CapacitySample:
        return replace(known, held=self._held[known.cluster][known.resource], is_reachable=False)


class _Queue(Struct):
    queued: int = 0
    queued_demand: Counter[str] = field(default_factory=Counter)
    running: int = 0
    running_demand: Counter[str] = field(default_factory=Counter)

    def sample(self, name: str) -> QueueSample:
        queued, running = Resources(self.queued_demand), Resources(self.running_demand)
        return QueueSample(name, self.queued, queued, self.running, running)


def _add(to: Counter[str], amounts: Resources) -> None:
    for name, amount in amounts.items():
        to[name] += amount


def _parts(every: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    return (every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE))
