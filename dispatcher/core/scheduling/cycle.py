"""One scheduling cycle, by definition: a pure function of the pending queue and the cluster snapshots.

A cycle places each gang that fits as a whole, in queue order, on the cluster with the best score (`cluster_filters`).
After a gang that does not fit, BestEffortFIFO goes on and StrictFIFO stops. Small gangs could starve a large one, so a
gang that was blocked at the head past the starvation bound gets a backfill reservation on one cluster: other gangs get
the free capacity there less its demand, of the resources it requests. A cluster has at most one such reservation;
`backfill` chooses the cluster and the time.

A gang that would not fit any cluster after everything that ends has ended never is the head and gets no reservation: it
waits for the clusters to change. Gangs of one equivalence class (`equivalence_classes`) are refused once a cycle: free
capacity only shrinks within a cycle, so if one gang of a class does not fit, none does.

The hub alone is a cluster like any other, but messages then name no clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.api import names
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.record import Pending, Record
from dispatcher.core.model.requirements import ANYWHERE, ClusterRequirements, Rejection
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.backfill import LONG_AGO, Backfill, Reservation, noted
from dispatcher.core.scheduling.capacity import Tolerations, tolerations_of
from dispatcher.core.scheduling.cluster_filters import NOT_SELECTED, ClusterSnapshot, rejection, score
from dispatcher.core.scheduling.equivalence_classes import class_of

INSUFFICIENT: Final = "InsufficientResources"
"""It would fit an empty cluster, but not what is free now."""
RESERVED: Final = "ReservedForAnother"
"""It would fit the free capacity, but that is reserved for a gang past the starvation bound."""
LARGER_THAN_CLUSTER: Final = "LargerThanCluster"
"""It would not fit the cluster even if all that ends there had ended."""
NO_CLUSTER: Final = "NoCluster"
"""No cluster has reported its capacity yet."""
NOT_EVALUATED: Final = "AwaitingHeadOfLine"
"""StrictFIFO: the cycle stopped at a gang before it."""

MOST_NAMED: Final = 5
"""Clusters that a message names; the others are counted."""


class Policy(StrEnum):
    """What a cycle does after a gang that does not fit, in Kueue's words."""

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
class NotEvaluated:
    """The cycle did not evaluate the gang: the queue is strict and the head does not fit."""

    record: Record
    pending: Pending


Refusal = Waiting | Impossible
Outcome = Placed | Refusal | NotEvaluated


def plan(
    queue: Iterable[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    policy: Policy = Policy.BEST_EFFORT_FIFO,
    starved: Collection[str] = (),
    reservations: Mapping[str, Reservation] | None = None,
) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order; `starved` are the uids to be protected.

    What is kept for them is what `reservations` say, by uid; if nothing is handed in, they begin now. The snapshots of
    `snapshots`, which are by name, are used up by what is placed.
    """
    planning = CycleState(snapshots, lambda record: class_of(record, snapshots))
    records = list(queue)
    protected = [] if policy is Policy.STRICT_FIFO else [each for each in records if each.uid in starved]
    if reservations is None:
        reservations = Backfill().renew(protected, snapshots, LONG_AGO)
    early = planning.reserve(protected, reservations)
    head: Record | None = None
    outcomes: list[Outcome] = []
    for record in records:
        if head is not None and policy is Policy.STRICT_FIFO:
            outcomes.append(not_evaluated(record, head))
            continue
        answer = early.get(record.uid) or planning.place(record)
        if isinstance(answer, Placed):
            outcomes.append(answer)
            continue
        is_head = head is None and answer.may_be_head
        head = record if is_head else head
        outcomes.append(answer.of(record, is_head=is_head))
    return outcomes


def not_evaluated(record: Record, head: Record) -> NotEvaluated:
    """The outcome for a record that stands behind `head` in a strict queue."""
    return NotEvaluated(record, Pending(NOT_EVALUATED, f"behind {head.key}, which waits"))


class CycleState:
    """The placements and backfill reservations of one cycle so far.

    `remembered` are the refusals of a pass before that was asked the same: the same sites, of which it placed
    nothing, and the same that are protected. They hold until this one places something. Refusals are shared by
    equivalence class, which `classify` tells of a record.
    """

    def __init__(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        classify: Callable[[Record], Hashable],
        remembered: Mapping[Hashable, Refused] | None = None,
    ) -> None:
        self.has_placed = False
        self.refusals: dict[Hashable, Refused] = {}
        self._snapshots = [snapshots[name] for name in sorted(snapshots)]
        self._by_name = snapshots
        self._classify = classify
        self._has_members = snapshots.keys() != {names.HUB_CLUSTER}
        self._allowed: dict[ClusterRequirements, _Allowed] = {}
        self._reserved_for: dict[str, Record] = {}
        self._remembered = remembered or {}
        self._views: dict[Tolerations, _View] = {}
        self._changed: list[str] = []

    def reserve(
        self, starved: Iterable[Record], reservations: Mapping[str, Reservation]
    ) -> dict[str, Placed | Refused]:
        """Places the starved gangs first, or applies their backfill reservations; the outcomes by uid."""
        outcomes: dict[str, Placed | Refused] = {}
        for record in starved:
            answer, reservation = self.place(record), reservations.get(record.uid)
            if isinstance(answer, Refused) and answer.may_fit_later and reservation is not None:
                answer = answer.reserved(reservation)
                if not reservation.is_resting:
                    self._reserved_for[reservation.cluster] = record
                    self._changed.append(reservation.cluster)
            outcomes[record.uid] = answer
        return outcomes

    def place(self, record: Record) -> Placed | Refused:
        """Places the gang, or returns its refusal; gangs of one class share the refusal."""
        key = self._classify(record)
        known = self.refusals.get(key)
        if known is not None:
            return known
        outcome = (self._remembered.get(key) if self._remembered else None) or self._place(record)
        if isinstance(outcome, Placed):
            self.has_placed, self._remembered = True, {}
        else:
            self.refusals[key] = outcome
        return outcome

    def _place(self, record: Record) -> Placed | Refused:
        gang, allowed, view = record.gang, self._allow(record.requirements), self._view(record.gang)
        fitting = [
            snapshot for snapshot in allowed.snapshots if gang.demand.fits_in(view.available[snapshot.name])
        ]
        if not fitting:
            return Refused(
                gang, allowed, view, has_clusters=bool(self._snapshots), has_members=self._has_members
            )
        best = min(
            fitting,
            key=lambda snapshot: score(gang, record.requirements, snapshot, view.available[snapshot.name]),
        )
        message = _why_no_other(gang, best, fitting, allowed, view)
        best.capacity.take(gang.demand)
        self._changed.append(best.name)
        return Placed(record, best.name, message)

    def _allow(self, requirements: ClusterRequirements) -> _Allowed:
        """Part the sites into those that may be asked for capacity, and those that refuse whoever requires this."""
        known = self._allowed.get(requirements)
        if known is None:
            required = (
                requirements if self._has_members else ANYWHERE
            )  # on the hub alone there is nothing to choose
            answers = [(snapshot, rejection(required, snapshot)) for snapshot in self._snapshots]
            snapshots = tuple(snapshot for snapshot, refused in answers if refused is None)
            rejections = tuple(refused for _, refused in answers if refused is not None)
            known = self._allowed[requirements] = _Allowed(snapshots, rejections)
        return known

    def _view(self, gang: Gang) -> _View:
        """What gangs with these tolerations see of each site at this moment of the pass."""
        tolerations = tolerations_of(gang)
        known = self._views.get(tolerations)
        changed = self._by_name if known is None else self._changed[known.changes :]
        if known is None or changed:
            known = self._views[tolerations] = self._looked_at(gang, known or _NOTHING_SEEN, set(changed))
        return known

    def _looked_at(self, gang: Gang, view: _View, names_: Iterable[str]) -> _View:
        """The view with the sites of these names as they are now; refusals hold on to the one before."""
        free, available, kept = dict(view.free), dict(view.available), dict(view.kept)
        attainable, permanent = dict(view.attainable), dict(view.permanent)
        for name in names_:
            snapshot, keeper = self._by_name[name].capacity, self._reserved_for.get(name)
            attainable[name], permanent[name] = snapshot.attainable_for(gang), snapshot.permanent_for(gang)
            free[name] = available[name] = snapshot.free_for(gang)
            if keeper is not None:
                available[name] -= keeper.gang.demand
                kept[name] = keeper
        return _View(len(self._changed), free, available, attainable, permanent, kept)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The sites that do not reject what an AppWrapper requires, and the rejections of the others; each by name."""

    snapshots: tuple[ClusterSnapshot, ...]
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """What gangs with equal tolerations see of each site, by name, after so many changes within the pass.

    `available` is what is free less what is kept there for somebody, of the resources that one asks for. `attainable`
    is what is free once all that ends has ended, and `permanent` what never ends.
    """

    changes: int
    free: Mapping[str, Resources]
    available: Mapping[str, Resources]
    attainable: Mapping[str, Resources]
    permanent: Mapping[str, Resources]
    kept: Mapping[str, Record] = field(default_factory=dict)


_NOTHING_SEEN: Final = _View(0, {}, {}, {}, {})


class Nearest(NamedTuple):
    """What a refusal is about: the rejection of the cluster that comes nearest to taking the gang."""

    reason: str
    resource: str
    cluster: str


class Refused:
    """No cluster takes a gang now. What it is about is known at once, the words are found when somebody asks.

    Most refusals are no news to anybody, and to put one into words takes longer than to come to it.
    """

    __slots__ = (
        "_allowed",
        "_gang",
        "_has_members",
        "_has_sites",
        "_pending",
        "_view",
        "may_fit_later",
        "nearest",
        "reservation",
    )

    def __init__(
        self, gang: Gang, allowed: _Allowed, view: _View, *, has_clusters: bool, has_members: bool
    ) -> None:
        self._gang = gang
        self._allowed = allowed
        self._view = view
        self._has_sites = has_clusters
        self._has_members = has_members
        self._pending: Pending | None = None
        self.reservation: Reservation | None = None
        """What is kept for it, if that is the refusal of one gang alone."""
        self.may_fit_later = not has_clusters
        """True if there is a site that it would fit once all that ends there has ended: then it waits."""
        self.nearest = self._find_nearest()

    @property
    def may_be_head(self) -> bool:
        """True if it waits, and is not one whose reservation ended without being complete: the next has its turn."""
        return self.may_fit_later and not (self.reservation and self.reservation.is_resting)

    @property
    def pending(self) -> Pending:
        """Why it is refused, in words."""
        if self._pending is None:
            self._pending = self._explain()
        return noted(self._pending, self.reservation) if self.reservation else self._pending

    def reserved(self, reservation: Reservation) -> Refused:
        """The same for the gang with that reservation, and for no other."""
        alone = copy(self)
        alone.reservation = reservation
        return alone

    def of(self, record: Record, *, is_head: bool = False) -> Refusal:
        """The outcome for a record that is refused so."""
        if self.may_fit_later:
            return Waiting(record, self.pending, is_head)
        return Impossible(record, self.pending)

    def _find_nearest(self) -> Nearest:
        if not self._has_sites:
            return Nearest(NO_CLUSTER, "", "")
        found = [(_distance(each.reason), each.cluster, each.reason) for each in self._allowed.rejections]
        for snapshot in self._allowed.snapshots:
            reason = _why_short(self._gang, snapshot.name, self._view)
            self.may_fit_later |= reason != LARGER_THAN_CLUSTER
            found.append((_distance(reason), snapshot.name, reason))
        _, name, reason = min(found)
        resource = ""
        if reason in {INSUFFICIENT, LARGER_THAN_CLUSTER}:
            resource = _scarcest(
                self._gang, (self._view.free if reason == INSUFFICIENT else self._view.attainable)[name]
            )
        return Nearest(reason, resource, name)

    def _explain(self) -> Pending:
        if not self._has_sites:
            return Pending(NO_CLUSTER, "no cluster has reported its capacity yet")
        shortages = [_shortage(self._gang, snapshot.name, self._view) for snapshot in self._allowed.snapshots]
        return _pending([*self._allowed.rejections, *shortages], self._has_members)


def _why_no_other(
    gang: Gang, best: ClusterSnapshot, fitting: Sequence[ClusterSnapshot], allowed: _Allowed, view: _View
) -> str:
    """It fills the others that it fits less well; the rest refuse it, or have too little."""
    full = [_shortage(gang, snapshot.name, view) for snapshot in allowed.snapshots if snapshot not in fitting]
    also = [f"it fits {snapshot.name}, too" for snapshot in fitting if snapshot is not best]
    refused = _in_short(sorted([*allowed.rejections, *full], key=lambda each: each.cluster))
    return "; ".join([*also[:MOST_NAMED], *([refused] if refused else ())])


def _why_short(gang: Gang, cluster: str, view: _View) -> str:
    """The reason why the capacity of a cluster is not enough; that it is not is known."""
    if not gang.demand.fits_in(view.attainable[cluster]):
        return LARGER_THAN_CLUSTER
    return RESERVED if gang.demand.fits_in(view.free[cluster]) else INSUFFICIENT


def _shortage(gang: Gang, cluster: str, view: _View) -> Rejection:
    """Why the capacity of a cluster is not enough, in words."""
    reason = _why_short(gang, cluster, view)
    if reason == LARGER_THAN_CLUSTER:
        return explain(reason, gang, cluster, view.attainable[cluster], view.permanent[cluster])
    if reason == INSUFFICIENT:
        return explain(reason, gang, cluster, view.free[cluster])
    message = f"what is free there is kept for {view.kept[cluster].key}, which has waited too long"
    return Rejection(cluster, RESERVED, message)


def _pending(rejections: Iterable[Rejection], has_members: bool) -> Pending:
    """All of them, and in words those that come nearest; of these the first is what it is about."""
    by_name = sorted(rejections, key=lambda each: each.cluster)
    by_hope = sorted(by_name, key=lambda each: _distance(each.reason))
    nearest = by_hope[0]
    if not has_members:
        message = f"cluster {nearest.cluster}: {nearest.message}"
        return Pending(nearest.reason, message, nearest.resource, nearest.cluster)
    return Pending(
        nearest.reason, _in_short(by_hope), nearest.resource, nearest.cluster, clusters=tuple(by_name)
    )


def _distance(reason: str) -> int:
    """How far it is from being dispatched there: what others free, what operators mend, and what neither can."""
    return _DISTANCES.get(reason, 1)


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


def explain(
    reason: str, gang: Gang, cluster: str, available: Resources, permanent: Resources = NOTHING
) -> Rejection:
    """Why `gang` does not fit `available` of `cluster`, about the resource it is relatively shortest of.

    `permanent` is what never becomes available there, beside it.
    """
    shortfall = gang.demand.shortfall(available)
    what = "free" if reason == INSUFFICIENT else "in all of it"
    parts = [
        f"{name}: needs {in_words(name, gang.demand[name])}, {in_words(name, available[name])} {what}"
        f"{_taken_for_ever(name, available[name], permanent[name])}"
        for name in sorted(shortfall)
    ]
    return Rejection(cluster, reason, "; ".join(parts), _scarcest(gang, available))


def _scarcest(gang: Gang, available: Resources) -> str:
    """The resource that `gang` is relatively shortest of, the first by name if several are."""
    shortfall = gang.demand.shortfall(available)
    return max(sorted(shortfall), key=lambda name: shortfall[name] * 10**6 // gang.demand[name], default="")


def _taken_for_ever(resource: str, available: int, permanent: int) -> str:
    if not permanent:
        return ""
    taken, total = in_words(resource, permanent), in_words(resource, available + permanent)
    return f" (of {total}, {taken} are taken by DaemonSets and static pods)"
