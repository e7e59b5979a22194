"""Which queued gangs go where, now: one pure pass over the queue against what is known of every cluster.

A pass admits as many as fit, whole, in queue order, each to the cluster that suits it best (see `choice`). What
happens to those behind one that does not fit is the queue's policy: BestEffortFIFO passes it by, StrictFIFO stops
there. Passing by could starve a large gang under a stream of small ones, so one that has been blocked at the head
for too long is placed virtually first on one cluster that it may go to: there, others get what is free less its
demand, of the resources it asks for. Everything else stays open to them, and one gang a cluster is protected so.

A gang that no cluster would take even if it were empty is told why of each, blocks nobody and is never protected:
it waits for the clusters to change, not for others to finish. Equal gangs that require the same are decided once a
pass: free capacity only shrinks within a pass, so once one of a shape does not fit, none does.

The hub alone is a cluster like any other, except for the words: without members, nothing is said of clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dispatcher.api import names
from dispatcher.core.choice import (
    ANYWHERE,
    NOT_SELECTED,
    Rejection,
    Score,
    Site,
    Where,
    rejection,
    score,
)
from dispatcher.core.gang import Gang
from dispatcher.core.record import Pending, Record, Shape
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

MOST_NAMED: Final = 5
"""How many clusters a message says something of; the others are counted."""


class Policy(StrEnum):
    """What a gang that does not fit means for those behind it; Kueue's words."""

    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


@dataclass(frozen=True, slots=True)
class Placed:
    """It fits `cluster`, the best of those it fits, and what it needs is taken there.

    `message` says of the other clusters, if there are any, why it was none of them.
    """

    record: Record
    cluster: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It fits nowhere now; it may later. `is_head` for the first of the queue of which that is true."""

    record: Record
    pending: Pending
    is_head: bool = False


@dataclass(frozen=True, slots=True)
class Impossible:
    """No cluster would take it even if all of it were free: only a change of the clusters helps."""

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
    sites: Mapping[str, Site],
    policy: Policy = Policy.BEST_EFFORT_FIFO,
    starved: Collection[str] = (),
) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order; `starved` are the uids to be protected.

    The snapshots of `sites`, which are by name, are used up by what is placed.
    """
    planning = Planning(sites)
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

    `remembered` are the refusals of a pass before that was asked the same: the same sites, of which it placed
    nothing, and the same that are protected. They hold until this one places something.
    """

    def __init__(self, sites: Mapping[str, Site], remembered: Mapping[Shape, Refusal] | None = None) -> None:
        self.has_placed = False
        self.refusals: dict[Shape, Refusal] = {}
        self._sites = [sites[name] for name in sorted(sites)]
        self._has_members = sites.keys() != {names.HUB_CLUSTER}
        self._allowed: dict[Where, _Allowed] = {}
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
        """Take what it needs, or say why that cannot be; equal shapes are refused alike."""
        shape = record.shape
        known = self.refusals.get(shape)
        if known is not None:
            return replace(known, record=record)
        remembered = self._remembered.get(shape) if self._remembered else None
        outcome = replace(remembered, record=record) if remembered else self._place(record)
        if isinstance(outcome, Placed):
            self.has_placed, self._remembered = True, {}
        else:
            self.refusals[shape] = outcome
        return outcome

    def _keep_for(self, record: Record) -> None:
        """The first site it would fit if empty: the same in every pass, so that what is kept adds up."""
        for site in self._allow(record.where).sites:
            if site.name not in self._kept and record.gang.demand.fits_in(
                site.snapshot.total_for(record.gang)
            ):
                self._kept[site.name] = record
                return

    def _place(self, record: Record) -> Placed | Refusal:
        gang, allowed = record.gang, self._allow(record.where)
        fitting = [site for site in allowed.sites if gang.demand.fits_in(self._available(site, gang))]
        if fitting:
            best = min(fitting, key=lambda site: self._score(record, site))
            message = self._why_no_other(gang, best, fitting, allowed)
            best.snapshot.take(gang.demand)
            return Placed(record, best.name, message)
        if not self._sites:
            return Waiting(record, Pending(NO_CLUSTER, "no cluster has reported its capacity yet"))
        return self._refuse(record, allowed)

    def _allow(self, where: Where) -> _Allowed:
        """Part the sites into those that may be asked for capacity, and those that refuse whoever requires this."""
        known = self._allowed.get(where)
        if known is None:
            required = where if self._has_members else ANYWHERE  # on the hub alone there is nothing to choose
            answers = [(site, rejection(required, site)) for site in self._sites]
            sites = tuple(site for site, refused in answers if refused is None)
            rejections = tuple(refused for _, refused in answers if refused is not None)
            known = self._allowed[where] = _Allowed(sites, rejections)
        return known

    def _score(self, record: Record, site: Site) -> Score:
        return score(record.gang, record.where, site, self._available(site, record.gang))

    def _available(self, site: Site, gang: Gang) -> Resources:
        """What is free for `gang`, less what is kept there for somebody, of the resources that one asks for."""
        free = site.snapshot.free_for(gang)
        kept = self._kept.get(site.name)
        return free - kept.gang.demand if kept else free

    def _why_no_other(self, gang: Gang, best: Site, fitting: Sequence[Site], allowed: _Allowed) -> str:
        """It fills the others that it fits less well; the rest refuse it, or have too little."""
        full = [self._shortage(gang, site) for site in allowed.sites if site not in fitting]
        also = [f"it fits {site.name}, too" for site in fitting if site is not best]
        refused = _in_short(sorted([*allowed.rejections, *full], key=lambda each: each.cluster))
        return "; ".join([*also[:MOST_NAMED], *([refused] if refused else ())])

    def _refuse(self, record: Record, allowed: _Allowed) -> Refusal:
        """It waits if there is a site that it would fit when empty."""
        shortages = [self._shortage(record.gang, site) for site in allowed.sites]
        pending = _pending([*allowed.rejections, *shortages], self._has_members)
        may_fit_later = any(each.reason != LARGER_THAN_CLUSTER for each in shortages)
        return Waiting(record, pending) if may_fit_later else Impossible(record, pending)

    def _shortage(self, gang: Gang, site: Site) -> Rejection:
        """Why the capacity of a site is not enough; that it is not is known."""
        total = site.snapshot.total_for(gang)
        if not gang.demand.fits_in(total):
            return explain(LARGER_THAN_CLUSTER, gang, site.name, total)
        free = site.snapshot.free_for(gang)
        if not gang.demand.fits_in(free):
            return explain(INSUFFICIENT, gang, site.name, free)
        keeper = self._kept[site.name].key
        message = f"what is free there is kept for {keeper}, which has waited too long"
        return Rejection(site.name, RESERVED, message)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The sites that do not reject what an AppWrapper requires, and the rejections of the others; each by name."""

    sites: tuple[Site, ...]
    rejections: tuple[Rejection, ...]


def _pending(rejections: Iterable[Rejection], has_members: bool) -> Pending:
    """All of them, and in words those that come nearest; of these the first is what it is about."""
    by_name = sorted(rejections, key=lambda each: each.cluster)
    by_hope = sorted(by_name, key=_distance)
    nearest = by_hope[0]
    if not has_members:
        message = f"cluster {nearest.cluster}: {nearest.message}"
        return Pending(nearest.reason, message, nearest.resource, nearest.cluster)
    return Pending(
        nearest.reason, _in_short(by_hope), nearest.resource, nearest.cluster, clusters=tuple(by_name)
    )


def _distance(rejected: Rejection) -> int:
    """How far it is from being dispatched there: what others free, what operators mend, and what neither can."""
    return _DISTANCES.get(rejected.reason, 1)


_DISTANCES: Final = {
    INSUFFICIENT: 0,
    RESERVED: 0,
    LARGER_THAN_CLUSTER: 2,
    NOT_SELECTED: 3,
}


def _in_short(rejections: Sequence[Rejection]) -> str:
    named = [f"{each.cluster} ({each.message})" for each in rejections[:MOST_NAMED]]
    more = len(rejections) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def explain(reason: str, gang: Gang, cluster: str, available: Resources) -> Rejection:
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
    return Rejection(cluster, reason, "; ".join(parts), resource)


def in_words(resource: str, amount: int) -> str:
    """An amount in base units as people write it: `1500m` of cpu, `16Gi` of memory, plain numbers of the rest."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource == "memory" or resource.endswith("storage") or resource.startswith("hugepages-"):
        return _bytes_in_words(amount)
    return str(amount)


def _bytes_in_words(amount: int) -> str:
    """Exactly, unless only kibibytes are exact for gibibytes: of these the tenths are enough, and not one too many."""
    for unit, size in (("Gi", 2**30), ("G", 10**9), ("Mi", 2**20), ("M", 10**6)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    if abs(amount) >= 2**30:
        return f"{amount * 10 // 2**30 / 10}Gi"
    return f"{amount // 2**10}Ki" if amount and amount % 2**10 == 0 else str(amount)
