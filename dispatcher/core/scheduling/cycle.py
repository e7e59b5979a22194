"""One scheduling cycle, by definition: a pure function of the pending queue and the cluster snapshots.

A cycle places each gang that fits as a whole, in queue order, on the cluster with the best score (`cluster_filters`).
After a gang that does not fit, BestEffortFIFO goes on and StrictFIFO stops. Small gangs could starve a large one, so a
gang that was blocked at the head past the starvation bound gets a backfill reservation on one cluster: other gangs get
the free capacity there less its demand, of the resources it requests. A cluster has at most one such reservation;
`backfill` chooses the cluster and the time.

A gang that would fit no cluster even after all pods that end have ended is never the head and gets no reservation: it
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
"""The gang would fit the empty cluster, but does not fit its free capacity."""
RESERVED: Final = "ReservedForAnother"
"""The gang would fit the free capacity, but that is reserved for a gang past the starvation bound."""
LARGER_THAN_CLUSTER: Final = "LargerThanCluster"
"""The gang would not fit the cluster even after all pods that end there have ended."""
NO_CLUSTER: Final = "NoCluster"
"""No cluster has reported its capacity yet."""
NOT_EVALUATED: Final = "AwaitingHeadOfLine"
"""StrictFIFO: the cycle stopped at an earlier gang."""

MOST_NAMED: Final = 5
"""Clusters that a message names; the others are counted."""


class Policy(StrEnum):
    """What a cycle does after a gang that does not fit, in Kueue's words."""

    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


@dataclass(frozen=True, slots=True)
class Placed:
    """The gang fits `cluster`, and no other has a better score. Its demand is taken from the snapshot.

    `message` says why the gang goes to none of the other clusters, if there are any.
    """

    record: Record
    cluster: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The gang fits no cluster now, but may later; `is_head` for the first such gang in the queue."""

    record: Record
    pending: Pending
    is_head: bool = False


@dataclass(frozen=True, slots=True)
class Impossible:
    """No cluster would take the gang even if all of it were free: only a change of the clusters helps."""

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
    """One outcome for each record of `queue`, which is in order; `starved` are the uids past the starvation bound.

    `reservations` are their backfill reservations by uid; without the argument, new ones begin now. The demand of
    placed gangs is taken from `snapshots`, which are by name.
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
    """The outcome for a record behind `head` in a strict queue."""
    return NotEvaluated(record, Pending(NOT_EVALUATED, f"behind {head.key}, which waits"))


class CycleState:
    """The placements and backfill reservations of one cycle so far.

    `remembered` are the refusals of an earlier cycle that placed nothing, with the same clusters and reservations; they
    hold until this cycle places a gang. Gangs of one equivalence class share a refusal; `classify` returns the class of
    a record.
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
        """The clusters that accept the requirements, and the rejections by the others."""
        known = self._allowed.get(requirements)
        if known is None:
            required = requirements if self._has_members else ANYWHERE  # on the hub alone there is no choice
            answers = [(snapshot, rejection(required, snapshot)) for snapshot in self._snapshots]
            snapshots = tuple(snapshot for snapshot, refused in answers if refused is None)
            rejections = tuple(refused for _, refused in answers if refused is not None)
            known = self._allowed[requirements] = _Allowed(snapshots, rejections)
        return known

    def _view(self, gang: Gang) -> _View:
        """The capacity of each cluster for gangs with these tolerations, at this moment of the cycle."""
        tolerations = tolerations_of(gang)
        known = self._views.get(tolerations)
        changed = self._by_name if known is None else self._changed[known.changes :]
        if known is None or changed:
            known = self._views[tolerations] = self._looked_at(gang, known or _NOTHING_SEEN, set(changed))
        return known

    def _looked_at(self, gang: Gang, view: _View, names_: Iterable[str]) -> _View:
        """A copy of the view with the present capacity of the named clusters; refusals refer to the earlier view."""
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
    """The clusters that accept an AppWrapper's requirements, and the rejections by the others; each by name."""

    snapshots: tuple[ClusterSnapshot, ...]
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """The capacity of each cluster, by name, for gangs with equal tolerations, after `changes` changes in the cycle.

    `available` is `free` less the demand of the gang that has the backfill reservation there (`kept`). `attainable` is
    the capacity once all pods that end have ended, and `permanent` the requests of pods that never end.
    """

    changes: int
    free: Mapping[str, Resources]
    available: Mapping[str, Resources]
    attainable: Mapping[str, Resources]
    permanent: Mapping[str, Resources]
    kept: Mapping[str, Record] = field(default_factory=dict)


_NOTHING_SEEN: Final = _View(0, {}, {}, {}, {})


class Nearest(NamedTuple):
    """The subject of a refusal: the rejection by the cluster that comes nearest to taking the gang."""

    reason: str
    resource: str
    cluster: str


class Refused:
    """No cluster takes a gang now. `nearest` is computed at once, the message on demand.

    Most refusals change no record, and the message takes longer than the decision.
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
        """The backfill reservation of the gang; None if a class shares the refusal."""
        self.may_fit_later = not has_clusters
        """True if the gang would fit a cluster once all pods that end there have ended, or if there is no cluster."""
        self.nearest = self._find_nearest()

    @property
    def may_be_head(self) -> bool:
        """True if the gang waits; False while its reservation rests, so that the next gang can be the head."""
        return self.may_fit_later and not (self.reservation and self.reservation.is_resting)

    @property
    def pending(self) -> Pending:
        """The pending reason with its message."""
        if self._pending is None:
            self._pending = self._explain()
        return noted(self._pending, self.reservation) if self.reservation else self._pending

    def reserved(self, reservation: Reservation) -> Refused:
        """A copy with this reservation, for one gang only."""
        alone = copy(self)
        alone.reservation = reservation
        return alone

    def of(self, record: Record, *, is_head: bool = False) -> Refusal:
        """The outcome for a record with this refusal."""
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
    """Why no other cluster was chosen: its score is worse, it rejects the gang, or its capacity is too small."""
    full = [_shortage(gang, snapshot.name, view) for snapshot in allowed.snapshots if snapshot not in fitting]
    also = [f"it fits {snapshot.name}, too" for snapshot in fitting if snapshot is not best]
    refused = _in_short(sorted([*allowed.rejections, *full], key=lambda each: each.cluster))
    return "; ".join([*also[:MOST_NAMED], *([refused] if refused else ())])


def _why_short(gang: Gang, cluster: str, view: _View) -> str:
    """The reason why the capacity of a cluster is too small; the caller knows that it is."""
    if not gang.demand.fits_in(view.attainable[cluster]):
        return LARGER_THAN_CLUSTER
    return RESERVED if gang.demand.fits_in(view.free[cluster]) else INSUFFICIENT


def _shortage(gang: Gang, cluster: str, view: _View) -> Rejection:
    """The rejection by a cluster whose capacity is too small, with its message."""
    reason = _why_short(gang, cluster, view)
    if reason == LARGER_THAN_CLUSTER:
        return explain(reason, gang, cluster, view.attainable[cluster], view.permanent[cluster])
    if reason == INSUFFICIENT:
        return explain(reason, gang, cluster, view.free[cluster])
    message = f"what is free there is kept for {view.kept[cluster].key}, which has waited too long"
    return Rejection(cluster, RESERVED, message)


def _pending(rejections: Iterable[Rejection], has_members: bool) -> Pending:
    """The pending reason about the nearest rejection; the message names the nearest rejections first."""
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
    """The distance from a dispatch there: 0 if other gangs must end, 1 if operators must act, more if neither helps."""
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
    """The rejection of `gang` by `cluster`, whose `available` capacity is too small, about its scarcest resource.

    `permanent` is the capacity there that never becomes available, beside `available`.
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
    """The resource with the relatively largest shortfall for `gang`; the first by name if there are several."""
    shortfall = gang.demand.shortfall(available)
    return max(sorted(shortfall), key=lambda name: shortfall[name] * 10**6 // gang.demand[name], default="")


def _taken_for_ever(resource: str, available: int, permanent: int) -> str:
    if not permanent:
        return ""
    taken, total = in_words(resource, permanent), in_words(resource, available + permanent)
    return f" (of {total}, {taken} are taken by DaemonSets and static pods)"
