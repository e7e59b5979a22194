"""Which queued gangs go where, now: one pure pass over the queue against a snapshot of every cluster.

A pass admits as many as fit, whole, in queue order; what does not fit is passed by (BestEffortFIFO), and
told what it is short of. A gang larger than every empty cluster is told that instead. Equal gangs are
decided once a pass: once one of a shape does not fit, no later one of that shape can, for free capacity
only shrinks within a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dispatcher.core.capacity import CapacitySnapshot
from dispatcher.core.gang import Gang
from dispatcher.core.record import Pending, Record
from dispatcher.core.resources import Resources

INSUFFICIENT: Final = "InsufficientResources"
"""It would fit an empty cluster, but not what is free now."""
LARGER_THAN_CLUSTER: Final = "LargerThanCluster"
"""It would not fit the cluster even if that were empty."""
NO_CLUSTER: Final = "NoCluster"
"""No cluster has reported its capacity yet."""


@dataclass(frozen=True, slots=True)
class Placed:
    """It fits `cluster`, and what it needs is taken there."""

    record: Record
    cluster: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """It fits nowhere now; it may later."""

    record: Record
    pending: Pending


@dataclass(frozen=True, slots=True)
class Impossible:
    """It fits nowhere even when all is free: only a larger cluster helps."""

    record: Record
    pending: Pending


Outcome = Placed | Waiting | Impossible


def plan(queue: Iterable[Record], clusters: Mapping[str, CapacitySnapshot]) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order. The snapshots are used up by what is placed."""
    refusals: dict[Gang, Waiting | Impossible] = {}
    outcomes: list[Outcome] = []
    for record in queue:
        known = refusals.get(record.gang)
        if known is not None:
            outcomes.append(type(known)(record, known.pending))
            continue
        outcome = _place(record, clusters)
        if not isinstance(outcome, Placed):
            refusals[record.gang] = outcome
        outcomes.append(outcome)
    return outcomes


def _place(record: Record, clusters: Mapping[str, CapacitySnapshot]) -> Outcome:
    for name in sorted(clusters):
        if record.gang.demand.fits_in(clusters[name].free_for(record.gang)):
            clusters[name].take(record.gang.demand)
            return Placed(record, name)
    if not clusters:
        return Waiting(record, Pending(NO_CLUSTER, "no cluster has reported its capacity yet"))
    return _refuse(record, clusters)


def _refuse(record: Record, clusters: Mapping[str, CapacitySnapshot]) -> Waiting | Impossible:
    """Name the cluster that comes nearest: one it would fit when empty, if there is any."""
    gang = record.gang
    for name in sorted(clusters):
        if gang.demand.fits_in(clusters[name].total_for(gang)):
            return Waiting(record, explain(INSUFFICIENT, gang, name, clusters[name].free_for(gang)))
    name = min(clusters)
    return Impossible(record, explain(LARGER_THAN_CLUSTER, gang, name, clusters[name].total_for(gang)))


def explain(reason: str, gang: Gang, cluster: str, available: Resources) -> Pending:
    """Why `gang` does not fit `available` of `cluster`, about the resource it is relatively shortest of."""
    shortfall = gang.demand.shortfall(available)
    resource = max(
        sorted(shortfall), key=lambda name: shortfall[name] * 10**6 // gang.demand[name], default=""
    )
    what = "free" if reason == INSUFFICIENT else "in all of it"
    parts = [
        f"{name}: needs {in_words(name, gang.demand[name])}, {in_words(name, available[name])} {what}"
        for name in sorted(shortfall)
    ]
    return Pending(reason, f"cluster {cluster}: {'; '.join(parts)}", resource=resource, cluster=cluster)


def in_words(resource: str, amount: int) -> str:
    """An amount in base units as people write it: `1500m` of cpu, `16Gi` of memory, plain numbers of the rest."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource == "memory" or resource.endswith("storage") or resource.startswith("hugepages-"):
        return _bytes_in_words(amount)
    return str(amount)


def _bytes_in_words(amount: int) -> str:
    for unit, size in (("Gi", 2**30), ("G", 10**9), ("Mi", 2**20), ("M", 10**6), ("Ki", 2**10)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    if abs(amount) >= 2**30:
        return f"{amount / 2**30:.1f}Gi"
    return str(amount)
