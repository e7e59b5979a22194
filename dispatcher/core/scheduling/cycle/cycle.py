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

Such a cycle decides where no queue is declared. A gang that names a queue nevertheless waits for that queue, so that no
gang runs without its quota while its queue is removed and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field

from dispatcher.api.names import DEFAULT_QUEUE, QUEUE_LABEL
from dispatcher.core.model.failures import Failure
from dispatcher.core.model.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.pending_reasons import NOT_EVALUATED, QUEUE_NOT_FOUND
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Pending, Record
from dispatcher.core.model.requirements import ClusterRequirements, Rejection
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Access, QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle.refused import (
    ClusterShortfall,
    Refused,
    cluster_shortfall,
    may_be_uncounted,
    uncounted_claims,
    why_no_other,
    why_no_request,
)
from dispatcher.core.scheduling.cycle.search_budget import SearchBudget, steps_so_far
from dispatcher.core.scheduling.fit.backfill import Backfill
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import (
    ClusterSnapshot,
    has_members,
    rejection,
    required,
    score,
)
from dispatcher.core.scheduling.fit.equivalence_classes import class_of
from dispatcher.core.scheduling.fit.fit import fit
from dispatcher.core.scheduling.sharing.gangs import ActiveGang

SOME_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""The present where none is named; only differences of times matter then."""


class Placed(Struct, frozen=True):
    """The gang fits `cluster`, and no other has a better score. Its demand is taken from the snapshot.

    `message` says why the gang goes to none of the other clusters, if there are any, and that its capacity is not
    requested, if a class is named that does not manage it. `assignment` is where its pods go,
    if gangs are placed on nodes.
    """

    record: Record
    cluster: str
    message: str = ""
    assignment: Assignment = ASSIGNED_NOWHERE


class Waiting(Struct, frozen=True):
    """The gang fits no cluster now, but may later; `is_head` for the first such gang in the queue."""

    record: Record
    pending: Pending
    is_head: bool = False


class Impossible(Struct, frozen=True):
    """No cluster would take the gang even if all of it were free: only a change of the clusters helps."""

    record: Record
    pending: Pending


class NotEvaluated(Struct, frozen=True):
    """The cycle did not evaluate the gang: the queue is strict and the head does not fit."""

    record: Record
    pending: Pending


class Preempting(Struct, frozen=True):
    """The gang waits for the capacity of its `victims`, which are preempted for it on `cluster`.

    `is_head` as for a `Waiting` gang.
    """

    record: Record
    pending: Pending
    cluster: str
    victims: tuple[tuple[ActiveGang, Reason], ...]
    is_head: bool = False


Refusal = Waiting | Impossible
Outcome = Placed | Refusal | NotEvaluated | Preempting


def plan(
    queue: Iterable[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    starved: Collection[str] = (),
    reservations: Mapping[str, Reservation] | None = None,
    now: datetime = SOME_TIME,
    access: Access = Access.SELECTED,
    on_failures: Callable[[Sequence[Failure]], None] = lambda _: None,
) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order; `starved` are the uids past the starvation bound.

    `reservations` are their backfill reservations by uid; without the argument, new ones begin `now`. The demand of
    placed gangs is taken from `snapshots`, which are by name. No queue is declared: under `access` it depends whether a
    gang that names one waits for it. `on_failures` is called with the exceptions for which a class was refused.
    """
    state = CycleState(snapshots, lambda record: class_of(record, snapshots))
    records = list(queue)
    is_strict = policy is QueueingStrategy.STRICT_FIFO
    waiting = [each for each in records if each.uid in starved and not awaits_queue(each, access)]
    holders = [] if is_strict else waiting
    if reservations is None:
        reservations = Backfill().renew(holders, snapshots, now)
    early = state.reserve(holders, reservations)
    head: Record | None = None
    outcomes: list[Outcome] = []
    for record in records:
        if awaits_queue(record, access):
            outcomes.append(none_declared(record))
            continue
        if head is not None and policy is QueueingStrategy.STRICT_FIFO:
            outcomes.append(not_evaluated(record, head))
            continue
        answer = early.get(record.uid) or state.place(record)
        if isinstance(answer, Placed):
            outcomes.append(answer)
            continue
        is_head = head is None and answer.may_be_head
        head = record if is_head else head
        outcomes.append(refusal(record, answer, is_head=is_head))
    on_failures(state.failures)
    return outcomes


def refusal(record: Record, refused: Refused, *, is_head: bool = False) -> Refusal:
    """The outcome for a refused record."""
    if refused.may_fit_later:
        return Waiting(record, refused.pending, is_head)
    return Impossible(record, refused.pending)


def awaits_queue(record: Record, access: Access) -> bool:
    """True if a gang waits for the queue that it names, where none is declared.

    Under the access `open` it does not, as in earlier releases: a label names a queue only once one is declared.
    """
    return access is Access.SELECTED and (record.queue != DEFAULT_QUEUE or bool(record.more_queues))


def has_its_queues(record: Record, forest: Forest | None, access: Access) -> bool:
    """True if all queues of a gang are there, or it awaits none where none is declared: without a `forest`."""
    if forest is None:
        return not awaits_queue(record, access)
    return all(leaf in forest.places for leaf in record.leaves)


def none_declared(record: Record) -> Impossible:
    """The outcome for a record that awaits a queue where none is declared."""
    awaited = next(each for each in record.leaves if each != DEFAULT_QUEUE)
    why = (
        f"there is no queue {awaited}: none is declared, and a gang waits for the queue that its label names"
    )
    return Impossible(record, Pending(QUEUE_NOT_FOUND, why, queue=awaited))


def not_found(record: Record, queue: str, forest: Forest) -> Impossible:
    """The outcome for a record whose `queue` is not among the valid ones of a forest."""
    why = forest.why_missing(queue)
    if queue == DEFAULT_QUEUE and queue not in forest.problems and queue not in forest.deleted:
        why += f": its label {QUEUE_LABEL}, or that of its namespace, must name a declared queue"
    return Impossible(record, Pending(QUEUE_NOT_FOUND, why, queue=queue))


def not_evaluated(record: Record, head: Record) -> NotEvaluated:
    """The outcome for a record behind `head` in a strict queue."""
    return NotEvaluated(record, Pending(NOT_EVALUATED, f"behind {head.key}, which waits"))


class Remembered(Struct):
    """The refusals of an earlier cycle with the same clusters and reservations, by equivalence class.

    They do not hold for the clusters in `changed`, nor those of a class for the clusters under which `outdated` has it:
    these would refuse its gangs again, and say so with other amounts. `keepers` are the starved gangs by the cluster
    with capacity for them, by uid.
    """

    refusals: Mapping[Hashable, Refused] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    keepers: Mapping[str, str] = field(default_factory=dict)
    outdated: Mapping[str, Collection[Hashable]] = field(default_factory=dict)

    def not_holding(self, key: Hashable) -> Collection[str]:
        """The clusters for which the refusal of a class does not hold."""
        outdated = [name for name, keys in self.outdated.items() if key in keys]
        return self.changed.union(outdated) if outdated else self.changed


class CycleState:
    """The placements and backfill reservations of one cycle so far.

    A gang is compared with the clusters for which no refusal is `remembered`. That is every cluster that has changed,
    and every cluster that this cycle takes capacity from. Gangs of one equivalence class share a refusal; `classify`
    returns the class of a record. `placed_on` are the clusters that this cycle placed gangs on. A class is refused if
    the decision about it raises an exception before it changes anything; these exceptions are the `failures`.
    """

    def __init__(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        classify: Callable[[Record], Hashable],
        remembered: Remembered | None = None,
    ) -> None:
        self.placed_on: set[str] = set()
        self.failures: list[Failure] = []
        self.refusals: dict[Hashable, Refused] = {}
        self._snapshots = [snapshots[name] for name in sorted(snapshots)]
        self._by_name = snapshots
        self._classify = classify
        self._has_members = has_members(snapshots)
        self._allowed: dict[ClusterRequirements, _Allowed] = {}
        self._remembered = Remembered() if remembered is None else remembered
        # The free capacity without the part that is kept for a starved gang, and this gang, by cluster.
        self._beside: dict[str, CapacitySnapshot] = {}
        self._keepers: dict[str, Record] = {}

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
                    self._keep(record, reservation)
            if reservation is not None:
                self._compare_keeper(reservation.cluster)
            outcomes[record.uid] = answer
        return outcomes

    @property
    def keepers(self) -> dict[str, str]:
        """The starved gangs by the cluster with capacity for them, by uid."""
        return {cluster: record.uid for cluster, record in self._keepers.items()}

    def steps_so_far(self, record: Record, budget: SearchBudget) -> int | None:
        """The steps of all searches so far; None if a decision about the gang needs none."""
        return steps_so_far(self._snapshots) if budget.needs_search(record) else None

    def settle(self, record: Record, before: int | None, budget: SearchBudget) -> None:
        """Note in the budget the steps of the decision about a gang, `before` which there were so many."""
        if before is not None:
            budget.settle(record, steps_so_far(self._snapshots) - before)

    def knows(self, record: Record) -> bool:
        """True if the refusal of the gang's class is known for all clusters as they are."""
        key = self._classify(record)
        if key in self.refusals:
            return True
        return key in self._remembered.refusals and not self._remembered.not_holding(key)

    def place(self, record: Record) -> Placed | Refused:
        """Places the gang, or returns its refusal; gangs of one class share the refusal."""
        key = self._classify(record)
        known = self.refusals.get(key)
        if known is not None:
            return known
        try:
            outcome = self._decide(record, key)
        except Exception as error:  # noqa: BLE001  # one class must not end the cycle of the others
            self.failures.append(Failure.of(record.uid, error))
            outcome = Refused.by_error(record.gang)
        if isinstance(outcome, Placed):
            self._take(outcome)
        else:
            self.refusals[key] = outcome
        return outcome

    def _decide(self, record: Record, key: Hashable) -> Placed | Refused:
        """The decision about a gang of a class, which changes nothing yet."""
        remembered = self._remembered.refusals.get(key)
        if remembered is None:
            return self._place(record, {})
        if not_holding := self._remembered.not_holding(key):
            kept = {name: each for name, each in remembered.shortfalls.items() if name not in not_holding}
            return self._place(record, kept)
        return remembered

    def _take(self, placed: Placed) -> None:
        """Take the capacity of a placed gang. After an exception here the plan is to be dropped."""
        gang, cluster = placed.record.gang, placed.cluster
        self._by_name[cluster].capacity.take(gang, placed.assignment)
        if cluster in self._beside:
            self._beside[cluster].take(gang, placed.assignment)
        self.placed_on.add(cluster)
        self._remembered.changed.add(cluster)

    def _place(self, record: Record, remembered: Mapping[str, ClusterShortfall]) -> Placed | Refused:
        gang, allowed = record.gang, self._allow(record.requirements)
        allowed = _without_uncounted(gang, allowed)
        fitting, shortfalls = dict[str, Assignment](), list[ClusterShortfall]()
        for snapshot in allowed.snapshots:
            found = remembered.get(snapshot.name) or self._compare(gang, snapshot)
            if isinstance(found, Assignment):
                fitting[snapshot.name] = found
            else:
                shortfalls.append(found)
        if not fitting:
            return Refused(gang, allowed.rejections, shortfalls, has_members=self._has_members)
        best = min(
            (snapshot for snapshot in allowed.snapshots if snapshot.name in fitting),
            key=lambda snapshot: score(
                gang,
                record.requirements,
                snapshot,
                self._available(snapshot).free_for(gang),
                fitting[snapshot.name],
            ),
        )
        why = (
            why_no_request(gang, best.capacity.provisioning),
            why_no_other(gang, best.name, fitting, allowed.rejections, shortfalls),
        )
        return Placed(record, best.name, "; ".join(filter(None, why)), fitting[best.name])

    def _available(self, snapshot: ClusterSnapshot) -> CapacitySnapshot:
        """The free capacity of a cluster without the part that is kept for a starved gang."""
        return self._beside.get(snapshot.name, snapshot.capacity)

    def _keep(self, record: Record, reservation: Reservation) -> None:
        """Keeps the demand of a starved gang from the gangs after it."""
        cluster = reservation.cluster
        self._keepers[cluster] = record
        self._beside[cluster] = self._by_name[cluster].capacity.copy()
        self._beside[cluster].take(record.gang, reservation.assignment)

    def _compare_keeper(self, cluster: str) -> None:
        """Forgets the refusals by a cluster that keeps capacity for another gang than it did, or for none any more."""
        keeper = self._keepers.get(cluster)
        if self._remembered.keepers.get(cluster) != (None if keeper is None else keeper.uid):
            self._remembered.changed.add(cluster)

    def _compare(self, gang: Gang, snapshot: ClusterSnapshot) -> Assignment | ClusterShortfall:
        """The places of a gang on a cluster, or why it does not fit."""
        found = fit(gang, self._available(snapshot))
        if isinstance(found, Assignment):
            return found
        return cluster_shortfall(
            snapshot.name, gang, snapshot.capacity, self._keepers.get(snapshot.name), found
        )

    def _allow(self, requirements: ClusterRequirements) -> _Allowed:
        """The clusters that accept the requirements, and the rejections by the others."""
        known = self._allowed.get(requirements)
        if known is None:
            counting = required(requirements, self._by_name)
            answers = [(snapshot, rejection(counting, snapshot)) for snapshot in self._snapshots]
            snapshots = tuple(snapshot for snapshot, refused in answers if refused is None)
            rejections = tuple(refused for _, refused in answers if refused is not None)
            devices = frozenset[str]().union(*(each.capacity.device_resources for each in snapshots))
            known = self._allowed[requirements] = _Allowed(snapshots, rejections, devices)
        return known


def _without_uncounted(gang: Gang, allowed: _Allowed) -> _Allowed:
    """The allowed clusters without those where nothing counts devices of the gang."""
    if not may_be_uncounted(gang, allowed.device_resources):
        return allowed
    found = [(each, uncounted_claims(gang, each.name, each.capacity)) for each in allowed.snapshots]
    uncounted = tuple(refused for _, refused in found if refused is not None)
    if not uncounted:
        return allowed
    counting = tuple(each for each, refused in found if refused is None)
    return _Allowed(counting, (*allowed.rejections, *uncounted), allowed.device_resources)


class _Allowed(Struct, frozen=True):
    """The clusters that accept an AppWrapper's requirements, and the rejections by the others; each by name.

    `device_resources` are the extended resources that DeviceClasses of any of these clusters name.
    """

    snapshots: tuple[ClusterSnapshot, ...]
    rejections: tuple[Rejection, ...]
    device_resources: frozenset[str]
