"""Which queued gangs go where, now: one pure pass over the queue against a snapshot of every cluster.

A pass admits as many as fit, whole, in queue order. What happens to those behind one that does not fit is the
queue's policy: BestEffortFIFO passes it by, StrictFIFO stops there. Passing by could starve a large gang under
a stream of small ones, so one that has been blocked at the head for too long is placed virtually first on one
cluster: there, others get what is free less its demand, of the resources it asks for. Everything else stays
open to them, and one gang a cluster is protected so.

A gang larger than every empty cluster is told that, blocks nobody and is never protected. Equal gangs are
decided once a pass: free capacity only shrinks within a pass, so once one of a shape does not fit, none does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dispatcher.core.capacity import CapacitySnapshot
from dispatcher.core.gang import Gang
from dispatcher.core.record import Pending, Record
from dispatcher.core.resources import Resources

INSUFFICIENT: Final = "InsufficientResources"
"""It would fit an empty cluster, but not what is free now."""
RESERVED: Final = "ReservedForAnother"
"""It would fit what is free, but that is being kept for a gang that has waited at the head for too long."""
LARGER_THAN_CLUSTER: Final = "LargerThanCluster"
"""It would not fit the cluster even if that were empty."""
NO_CLUSTER: Final = "NoCluster"
"""No cluster has reported its capacity yet."""
BEHIND_HEAD: Final = "AwaitingHeadOfLine"
"""StrictFIFO: somebody before it waits, so it has not been looked at."""


class Policy(StrEnum):
    """What a gang that does not fit means for those behind it; Kueue's words."""

    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


@dataclass(frozen=True, slots=True)
class Placed:
    """It fits `cluster`, and what it needs is taken there."""

    record: Record
    cluster: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """It fits nowhere now; it may later. `is_head` for the first of the queue of which that is true."""

    record: Record
    pending: Pending
    is_head: bool = False


@dataclass(frozen=True, slots=True)
class Impossible:
    """It fits nowhere even when all is free: only a larger cluster helps."""

    record: Record
    pending: Pending


@dataclass(frozen=True, slots=True)
class Behind:
    """It was not looked at, because the queue is strict and the head waits."""

    record: Record
    pending: Pending


Refusal = Waiting | Impossible
Outcome = Placed | Refusal | Behind


def plan(
    queue: Iterable[Record],
    clusters: Mapping[str, CapacitySnapshot],
    policy: Policy = Policy.BEST_EFFORT_FIFO,
    starved: Collection[str] = (),
) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order; `starved` are the uids to be protected.

    The snapshots are used up by what is placed.
    """
    planning = Planning(clusters)
    records = list(queue)
    early = {} if policy is Policy.STRICT_FIFO else planning.protect(records, starved)
    head: Record | None = None
    outcomes: list[Outcome] = []
    for record in records:
        if head is not None and policy is Policy.STRICT_FIFO:
            outcomes.append(behind(record, head))
            continue
        outcome = early.get(record.uid) or planning.place(record)
        if head is None and isinstance(outcome, Waiting):
            head, outcome = record, replace(outcome, is_head=True)
        outcomes.append(outcome)
    return outcomes


def behind(record: Record, head: Record) -> Behind:
    """The outcome for a record that stands behind `head` in a strict queue."""
    return Behind(record, Pending(BEHIND_HEAD, f"behind {head.key}, which waits"))


class Planning:
    """What one pass has given away and keeps back so far.

    `remembered` are the refusals of a pass before that was asked the same: the same capacity, of which it
    placed nothing, and the same that are protected. They hold until this one places something.
    """

    def __init__(
        self, clusters: Mapping[str, CapacitySnapshot], remembered: Mapping[Gang, Refusal] | None = None
    ) -> None:
        self.has_placed = False
        self.refusals: dict[Gang, Refusal] = {}
        self._clusters = clusters
        self._names = sorted(clusters)
        self._kept: dict[str, Record] = {}
        self._remembered = remembered or {}

    def protect(self, records: Iterable[Record], starved: Collection[str]) -> dict[str, Placed | Refusal]:
        """Place the starved first, or keep one cluster's capacity for each; the outcomes by uid."""
        outcomes: dict[str, Placed | Refusal] = {}
        for record in records if starved else ():
            if record.uid not in starved:
                continue
            outcome = outcomes[record.uid] = self.place(record)
            if isinstance(outcome, Waiting):
                self._keep_for(record)
        return outcomes

    def place(self, record: Record) -> Placed | Refusal:
        """Take what it needs, or say why that cannot be; equal gangs are refused alike."""
        known = self.refusals.get(record.gang)
        if known is not None:
            return replace(known, record=record)
        remembered = self._remembered.get(record.gang) if self._remembered else None
        outcome = replace(remembered, record=record) if remembered else self._place(record)
        if isinstance(outcome, Placed):
            self.has_placed, self._remembered = True, {}
        else:
            self.refusals[record.gang] = outcome
        return outcome

    def _keep_for(self, record: Record) -> None:
        """The first cluster it would fit if empty: the same in every pass, so that what is kept adds up."""
        for name in self._names:
            if name not in self._kept and record.gang.demand.fits_in(
                self._clusters[name].total_for(record.gang)
            ):
                self._kept[name] = record
                return

    def _place(self, record: Record) -> Placed | Refusal:
        gang = record.gang
        for name in self._names:
            if gang.demand.fits_in(self._available(name, gang)):
                self._clusters[name].take(gang.demand)
                return Placed(record, name)
        if not self._names:
            return Waiting(record, Pending(NO_CLUSTER, "no cluster has reported its capacity yet"))
        return self._refuse(record)

    def _available(self, name: str, gang: Gang) -> Resources:
        """What is free for `gang`, less what is kept there for somebody, of the resources that one asks for."""
        free = self._clusters[name].free_for(gang)
        kept = self._kept.get(name)
        return free - kept.gang.demand if kept else free

    def _refuse(self, record: Record) -> Refusal:
        """Name the cluster that comes nearest: one it would fit when empty, if there is any."""
        gang = record.gang
        for name in self._names:
            if not gang.demand.fits_in(self._clusters[name].total_for(gang)):
                continue
            free = self._clusters[name].free_for(gang)
            if gang.demand.fits_in(free):
                keeper = self._kept[name].key
                message = (
                    f"cluster {name}: what is free there is kept for {keeper}, which has waited too long"
                )
                return Waiting(record, Pending(RESERVED, message, cluster=name))
            return Waiting(record, explain(INSUFFICIENT, gang, name, free))
        name = self._names[0]
        return Impossible(
            record, explain(LARGER_THAN_CLUSTER, gang, name, self._clusters[name].total_for(gang))
        )


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
