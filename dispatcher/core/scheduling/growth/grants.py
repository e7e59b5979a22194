"""Grants: decisions that a running gang may hold more than it does, before its additional pods start.

A growth request is the gated pods of a gang beyond what the gang holds. Each pod is decided by itself, and the hosts of
a slice together, in the order in which a cycle would decide on gangs of these pods (`growth_turns`). It is granted if
its queue has quota for it and the cluster of its gang has room, as for a gang of these pods that preempts no gang. It
waits

- while surplus pods of its gang give way to another gang,
- while its cluster or its queue takes nothing new,
- while a gang that was queued before the pod was created waits for quota of the same queue, or for room in its cluster;
  of another queue, if room is all that it lacks; but not if the queue of the pod says `elastic: First`, and for the
  starvation bound at most: after it only what is kept for such a gang is out of reach, since it may never fit. In a
  queue that is StrictFIFO nothing is kept, and it waits behind the gangs of its own queue without a bound,
- while what is free is promised to another gang, or kept for one past the starvation bound.

The decision is a function of values; nothing is preempted for growth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.growth import (
    admissible,
    count_of,
    growth_of,
    lacking_hosts,
    pods_soon,
    requested,
    taken_soon,
    with_pods,
)
from dispatcher.core.model.clusters import potential
from dispatcher.core.model.clusters.potential import trusted_of
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest, PodsByTemplate, PodShape, slices_of
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.pending_reasons import (
    INSUFFICIENT,
    INSUFFICIENT_QUOTA,
    NAMESPACE_NOT_ALLOWED,
    PREEMPTED_TOO_OFTEN,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_LEAF,
    QUEUE_STOPPED,
    RESERVED,
)
from dispatcher.core.model.records.record import ACTIVE, Change, Record
from dispatcher.core.model.resources import NOTHING, PODS, Resources, sum_of
from dispatcher.core.queues.access import why_not_served
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Elastic, QueueingStrategy, StopPolicy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.growth_rules import Nodes, beside_own
from dispatcher.core.scheduling.cycle.recheck import Rechecked, rechecked
from dispatcher.core.scheduling.cycle.refusals import Refusals
from dispatcher.core.scheduling.cycle.turns import Turns
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import (
    ClusterSnapshot,
    has_members,
    is_unreachable,
    rejection,
    required,
)
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.fit import Shortfall, fits_in_empty, shortfall_in_empty
from dispatcher.core.scheduling.fit.refused import (
    ClusterShortfall,
    rejection_of,
    short_of_room,
    short_when_empty,
)
from dispatcher.core.scheduling.fit.search_budget import SearchShares
from dispatcher.core.scheduling.growth.growth_turns import Hosts, asked_at, growth_turns
from dispatcher.core.scheduling.growth.waiting_gangs import ONE_QUEUE, WaitingGangs
from dispatcher.core.scheduling.sharing.division import Shares, divide_all_in_steps
from dispatcher.core.scheduling.sharing.gangs import (
    ActiveGang,
    RecentUse,
    count_preemptions,
    count_taken,
    gave_way_too_often,
    leaving_by_cluster,
)
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger, now_and_later
from dispatcher.core.scheduling.sharing.quota_reservations import (
    NO_QUOTA_RESERVATIONS,
    QuotaReservations,
    first_place,
    kept_for_others,
)

GROWTH_BEHIND_GANG: Final = "GrowthBehindGang"
"""A gang was queued before the pods were created, and waits: of the same queue for quota or room, or of another one for
room."""

GIVES_WAY: Final = "GivesWay"
"""The gang gives up surplus pods for another gang: until they are gone, it gets no other pods in their place."""


SLICE_INCOMPLETE: Final = "SliceIncomplete"
"""Pods of a slice wait for its other hosts, which nobody has made: a slice asks once all its hosts are there."""


class Growing(Struct, frozen=True):
    """A gang with gated pods, or with an earlier growth request.

    `admitted` are the requests of its admitted pods that count: those on nodes, and others within what it holds;
    `admitted_pods` is their number.
    `gated` are the gated pods, the oldest first, and `beyond` are its admitted pods beyond the base gang. `there` are
    the nodes with its pods, by template; only if its pods have rules about each other.
    """

    record: Record
    admitted: Resources
    gated: Sequence[GatedPod]
    beyond: PodsByTemplate = ()
    there: Nodes = field(default_factory=dict)
    admitted_pods: int = 0

    @classmethod
    def of(cls, record: Record, ledger: CapacityLedger) -> Growing:
        """A gang by the ledger of its cluster."""
        uid = record.uid
        gated = ledger.gated(uid)
        has_rules = any(each.has_rules for each in record.gang.pod_sets) or any(each.apart for each in gated)
        there = ledger.nodes_with(uid) if has_rules else {}
        pods = ledger.taken_pods(uid, record.charged_pods)
        return cls(record, ledger.taken(uid), gated, ledger.beyond(uid) or (), there, pods)

    @property
    def requested(self) -> list[GatedPod]:
        """The growth request: the gated pods beyond what the gang holds and keeps, the oldest first."""
        return requested(self.record.allowed, self.admitted, self.gated, self.record.granted)

    @property
    def has_waiting(self) -> bool:
        """True if gated pods wait for a grant, or for the other hosts of their slices."""
        return len(self.within) < len(self.gated)

    @property
    def within(self) -> list[GatedPod]:
        """The gated pods that need no grant."""
        return admissible(self.record.allowed, self.admitted, self.gated, self.record.granted)


class GrantFacts(Struct, frozen=True):
    """The facts of a pass besides the clusters.

    `active` are all gangs that hold capacity; without declared queues none is needed. `reservations` are the backfill
    reservations of capacity by uid, `quota` those of quota. `usage` is the recent use of each namespace, `namespaces`
    are their labels.
    """

    forest: Forest
    active: Sequence[ActiveGang]
    waiting: WaitingGangs
    now: datetime
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    usage: RecentUse = field(default_factory=dict)
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def rules_of(self, record: Record) -> tuple[timedelta, bool]:
        """The time for which growth of a gang may wait behind others, and whether its queue is StrictFIFO."""
        rules = first_place(record, self.forest) or self.forest.defaults
        return rules.starvation_bound, rules.strategy is QueueingStrategy.STRICT_FIFO


class Grant(Struct, frozen=True):
    """The decision about the growth of one gang: the pods that are granted now, and the request that is left.

    `amounts` is the whole growth of the gang with the grant, `beyond` are the pods of that, and `count` is their number
    for which queues are charged. `request` is None if no growth waits. `trusted` are the potential nodes among the
    places of the pods.
    """

    record: Record
    pods: tuple[GatedPod, ...] = ()
    amounts: Resources = NOTHING
    request: GrowthRequest | None = None
    beyond: PodsByTemplate = ()
    trusted: tuple[str, ...] = ()
    count: int = 0

    @property
    def note(self) -> str:
        """A sentence about the pods that are granted, and the pools that they trust."""
        amounts = _in_words(sum_of(each.requests for each in self.pods))
        said = f"{_count(len(self.pods), 'pod')} may start: {amounts}"
        trusted, attempt = potential.in_words(trusted_of(self.trusted)), self.record.attempt
        return (
            f"{said}; trusts {trusted} in cluster {attempt.cluster} to come" if trusted and attempt else said
        )


class _Refusal(NamedTuple):
    reason: str
    message: str


LEAST_BETWEEN_REASONS: Final = timedelta(seconds=10)
"""The least time between two events of which the reason or the pods differ: two may alternate with every cycle."""

LEAST_BETWEEN_MESSAGES: Final = timedelta(minutes=1)
"""The least time between two events of which only the message differs: amounts change with every other gang."""


def change_of(grant: Grant, now: datetime) -> Change | None:
    """The change that a decision makes; None if the record says the same already, or said much the same just now."""
    record, request = grant.record, grant.request
    if grant.pods:
        return run_changes.grant(
            record, grant.amounts, request, grant.note, now, grant.beyond, grant.trusted, count=grant.count
        )
    pause = _pause_before(record.growth_request, request)
    noted_at = record.last_event_at
    if pause is None or (pause and noted_at is not None and now - noted_at < pause):
        return None
    return run_changes.note_growth_request(record, request, now)


def _pause_before(known: GrowthRequest | None, request: GrowthRequest | None) -> timedelta | None:
    """The least time since the last event at which a request is noted in place of the known one; None if it is equal.

    More pods are noted at once. Fewer wait, because an autoscaler may ask and take back in a loop.
    """
    if known is None or request is None:
        if known is None and request is None:
            return None
        return timedelta(0) if known is None else LEAST_BETWEEN_REASONS
    if request.pods > known.pods:
        return timedelta(0)
    if (known.pods, known.amounts, known.reason) != (request.pods, request.amounts, request.reason):
        return LEAST_BETWEEN_REASONS
    return None if known.message == one_line(request.message) else LEAST_BETWEEN_MESSAGES


def goes_first(record: Record, forest: Forest) -> bool:
    """True if the growth of a gang is decided before the gangs that wait in its queue."""
    place = first_place(record, forest)
    return place is not None and place.elastic is Elastic.FIRST


def decide_in_steps(
    growing: Iterable[Growing], facts: GrantFacts, snapshots: Mapping[str, ClusterSnapshot]
) -> Steps[list[Grant]]:
    """The decisions about all growth of active gangs in clusters that are known; takes grants from `snapshots`.

    A request of a gang without gated pods is over, but not in a cluster whose pods are not listed yet.
    """
    gangs: list[_Growth] = []
    asking: dict[str, tuple[_Growth, Hosts]] = {}
    for each in growing:
        if _is_known(each, snapshots):
            growth = _Growth(each)
            gangs.append(growth)
            asking.update((hosts[0].uid, (growth, hosts)) for hosts in slices_of(growth.waiting))
            yield
    if asking:
        quota = (yield from _quota_in_steps(facts)) if facts.forest.is_declared else None
        grants = _GrantCycle(facts, snapshots, quota)
        yield from grants.find_first(each.record for each in gangs)
        turns = yield from grants.turns_in_steps([(each.record, hosts) for each, hosts in asking.values()])
        while (turn := (yield from turns.next_in_steps())) is not None:
            if grants.decide(*asking[turn.uid]):
                turns.changed(turn.leaves)
            turns.take(turn)
            yield
    decisions = []
    for growth in gangs:
        decisions.append(growth.decision(facts.now))
        yield
    return decisions


def still_fitting(
    grants: Iterable[Grant],
    growing: Iterable[Growing],
    snapshots: Mapping[str, ClusterSnapshot],
    now: datetime,
) -> Rechecked[Grant]:
    """The decisions whose granted pods still fit their clusters, and those that grant none, in order.

    For the check before a commit: clusters change during a pass. `growing` are the gangs that were decided. What is
    kept for other gangs does not count again. Grants are taken from `snapshots`.
    """
    gangs = {each.record.uid: each for each in growing}
    cycle = _GrantCycle(GrantFacts(Forest.undeclared(), (), WaitingGangs(), now), snapshots, None)

    def again(grant: Grant) -> Grant | None:
        is_right = not grant.pods or cycle.takes(grant, _Growth(gangs[grant.record.uid]))
        return grant if is_right else None

    return rechecked(grants, again)


def _is_known(growing: Growing, snapshots: Mapping[str, ClusterSnapshot]) -> bool:
    """True for a gang that may grow and whose gated pods are known."""
    attempt = growing.record.attempt
    snapshot = snapshots.get(attempt.cluster) if attempt and growing.record.phase in ACTIVE else None
    return snapshot is not None and (bool(growing.gated) or not is_unreachable(snapshot.closed))


class _Growth:
    """The growth of one gang while it is decided."""

    def __init__(self, growing: Growing) -> None:
        self._gated = growing.gated
        self.record = growing.record
        self.waiting = growing.requested
        self.granted: list[GatedPod] = []
        self._more = NOTHING
        """The requests of the granted pods."""
        self._trusted = set[str]()
        self.refused: dict[tuple[PodShape, ...], _Refusal] = {}
        """By the shapes of the hosts: a younger pod or slice of the same shapes fares no better in the same pass."""
        self.there = {template: set(nodes) for template, nodes in growing.there.items()}
        """The nodes with its pods, by template, with those of the granted ones."""
        within = growing.within
        record = growing.record
        self._taken = taken_soon(record.allowed, growing.admitted, within)
        self._taken_pods = pods_soon(record, growing.admitted_pods, within)
        self._beyond = with_pods(growing.beyond, within)

    def grant(self, hosts: Hosts, assignment: Assignment) -> None:
        """Note that one more pod, or slice, is granted, and its place."""
        self.granted += hosts
        self._more += _requests_of(hosts)
        self.there.setdefault(hosts[0].template, set()).update(assignment.nodes)
        self._trusted |= {node for node in assignment.nodes if potential.is_potential(node)}

    def held_with(self, hosts: Hosts = ()) -> Resources:
        """The amounts that the gang holds with what is granted, and with one more pod or slice."""
        more = self._more + _requests_of(hosts)
        return self.record.held.highest(self._taken + more) if self.granted or hosts else self.record.held

    def increase(self, hosts: Hosts) -> Resources:
        """The amounts that its queues are charged with beyond the present charge, with one more pod or slice."""
        demand = self.record.gang.demand
        amounts = demand.highest(self.held_with(hosts)) - demand.highest(self.held_with())
        return amounts + {PODS: self._pods_with(hosts) - self._pods_with()}

    def _pods_with(self, hosts: Hosts = ()) -> int:
        """The number of pods that its queues are charged with, as for `held_with`."""
        more = len(self.granted) + len(hosts)
        return max(self.record.charged_pods, self._taken_pods + more) if more else self.record.charged_pods

    def decision(self, now: datetime) -> Grant:
        """The decision, once each pod is granted or refused."""
        amounts = growth_of(self.record.placed_gang.demand, self.held_with())
        beyond = with_pods(self._beyond, self.granted) if self.granted else ()
        count = count_of(self.record, self._pods_with())
        request = self._request(now)
        return Grant(self.record, tuple(self.granted), amounts, request, beyond, self.trusted, count)

    @property
    def trusted(self) -> tuple[str, ...]:
        """The potential nodes that granted pods wait for."""
        return tuple(sorted(self._trusted))

    def _request(self, now: datetime) -> GrowthRequest | None:
        granted = {each.uid for each in self.granted}
        left = [each for each in self.waiting if each.uid not in granted]
        if left:
            return _request_of(left, self.refused[_shapes_of(slices_of(left)[0])], now)
        if lacking := lacking_hosts(self._gated, now):
            return _request_of([pod for hosts in lacking for pod in hosts], _incomplete(lacking[0]), now)
        return None


def _request_of(waiting: Sequence[GatedPod], refusal: _Refusal, now: datetime) -> GrowthRequest:
    amounts = _requests_of(waiting)
    wait = f"{_count(len(waiting), 'more pod')} wait{'s' * (len(waiting) == 1)}"
    message = f"{wait} ({_in_words(amounts)}): {refusal.message}"
    return GrowthRequest(len(waiting), amounts, now, refusal.reason, message)


def _incomplete(hosts: Hosts) -> _Refusal:
    """Why pods of a slice wait that lacks hosts."""
    there = hosts[0].hosts - hosts[0].missing + len(hosts)
    return _Refusal(SLICE_INCOMPLETE, f"its slice has {there} of {hosts[0].hosts} hosts")


class _GrantCycle:
    """One pass: the room of each cluster and the accounts of all queues, less what earlier grants take."""

    def __init__(
        self, facts: GrantFacts, snapshots: Mapping[str, ClusterSnapshot], quota: _Quota | None
    ) -> None:
        self._facts = facts
        self._snapshots = snapshots
        leaving = leaving_by_cluster(facts.active)
        # Growth needs room that is there: no request for capacity covers it.
        self._rooms = {
            name: ClusterRoom(
                replace(each, capacity=each.capacity.provided_by(None)),
                leaving.get(name, ()),
            )
            for name, each in sorted(snapshots.items())
        }
        self._quota = quota
        self._first: dict[str, Record | None] = {}
        """The oldest gang of any queue that waits for room alone, by the cluster that would have room for it."""
        self._keep()
        self._promise()

    def find_first(self, growing: Iterable[Record]) -> Steps[None]:
        """Find the gangs of all queues that growth in these clusters may not pass; to be run before `decide`.

        A gang whose namespace has used up its share of steps is passed.
        """
        shares = SearchShares()
        waiting = sorted(self._facts.waiting.for_room.values(), key=_by_age)
        behind = (each for each in growing if not goes_first(each, self._facts.forest))
        for name in {each.attempt.cluster: None for each in behind if each.attempt}:
            self._first[name] = None
            room = self._rooms[name]
            for record in filter(shares.admits, waiting):
                yield
                with shares.counting(record, room.snapshot):
                    is_first = self._may_take(record, room)
                if is_first:
                    self._first[name] = record
                    break

    def turns_in_steps(self, asking: Sequence[tuple[Record, Hosts]]) -> Steps[Turns]:
        """The turns of what these gangs ask for."""
        facts = self._facts
        if self._quota is None:
            return (yield from growth_turns(asking, QuotaLedger(Forest(), {}), {}, {}, facts.now))
        wanted = facts.waiting.demands.copy()
        wanted.update((record.leaves, _requests_of(hosts) + {PODS: len(hosts)}) for record, hosts in asking)
        shares = yield from self._quota.shares_in_steps(wanted, self._snapshots)
        return (yield from growth_turns(asking, self._quota.later, shares, facts.usage, facts.now))

    def decide(self, growth: _Growth, hosts: Hosts) -> bool:
        """Grant one pod, or one slice, or note why it waits; True if it is granted."""
        shapes = _shapes_of(hosts)
        if shapes in growth.refused:
            return False
        attempt = growth.record.attempt
        if attempt is None:
            raise AssertionError(f"{growth.record.uid} grows without an attempt")
        room = self._rooms[attempt.cluster]
        refusal = _gives_way(growth.record) or self._closed(growth.record, room)
        refusal = refusal or self._behind(growth.record, hosts[0], room)
        increase = NOTHING
        if refusal is None and self._quota is not None:
            increase = growth.increase(hosts)
            refusal = self._quota.refusal(growth.record, increase)
        refusal = refusal or self._take(growth, hosts, room)
        if refusal is not None:
            growth.refused[shapes] = refusal
            return False
        if self._quota is not None:
            self._quota.charge(growth.record, increase)
        return True

    def takes(self, grant: Grant, growth: _Growth) -> bool:
        """Take the room of a grant; False if there is none any more for some of it, which may take the room of others.

        Also false if the pods would now wait for other potential nodes than the grant says.
        """
        attempt = growth.record.attempt
        room = self._rooms.get(attempt.cluster) if attempt is not None else None
        if room is None or room.snapshot.closed is not None:
            return False
        are_placed = all(self._take(growth, hosts, room) is None for hosts in slices_of(grant.pods))
        return are_placed and growth.trusted == grant.trusted

    def _keep(self) -> None:
        """Keep the capacity that starved gangs which wait for room have reservations of, as the cycle does."""
        for record in self._facts.waiting.starved:
            reservation = self._facts.reservations.get(record.uid)
            waits = self._quota is None or (
                record.pending and record.pending.reason in {INSUFFICIENT, RESERVED}
            )
            kept = self._rooms.get(reservation.cluster) if reservation is not None and waits else None
            if reservation is not None and kept is not None and kept.keeper is None:
                kept.keep(record, reservation.assignment)

    def _promise(self) -> None:
        """Take what is promised to gangs that wait for others to leave."""
        for record in self._facts.waiting.promised:
            room = self._rooms.get(record.pending.cluster) if record.pending else None
            if room is None:
                continue
            found = room.fit_later(record.gang)
            if isinstance(found, Assignment):
                room.promise(record.gang, found)

    def _may_take(self, record: Record, room: ClusterRoom) -> bool:
        """True if a cluster accepts a waiting gang and would have room for it if it were empty."""
        if has_members(self._snapshots):
            selector = self._facts.forest.clusters_of(record.leaves)
            if not selector.matches(room.snapshot.labels):
                return False
        return self._accepts(record, room) and fits_in_empty(record.gang, room.snapshot.capacity)

    def _accepts(self, record: Record, room: ClusterRoom) -> bool:
        return rejection(required(record.requirements, self._snapshots), room.snapshot) is None

    def _closed(self, record: Record, room: ClusterRoom) -> _Refusal | None:
        """Why nothing of the gang's cluster or queues is granted now."""
        closed = room.snapshot.closed
        if closed is not None:
            return _Refusal(closed.reason, f"cluster {room.name}: {closed.message}")
        forest = self._facts.forest
        for leaf in record.leaves if forest.is_declared else ():
            place = forest.places.get(leaf)
            if place is None:
                return _Refusal(QUEUE_NOT_FOUND, f"there is no valid queue {leaf}")
            if place.stop_policy is not StopPolicy.NONE:
                return _Refusal(QUEUE_STOPPED, f"queue {place.stopped_by} is stopped: {place.stop_policy}")
            if not place.is_leaf:
                return _Refusal(QUEUE_NOT_LEAF, f"queue {leaf} has children")
            labels = self._facts.namespaces.get(record.namespace, {})
            if why := why_not_served(place, record.namespace, labels):
                return _Refusal(NAMESPACE_NOT_ALLOWED, why)
        return None

    def _behind(self, record: Record, pod: GatedPod, room: ClusterRoom) -> _Refusal | None:
        """The gang that growth may not pass: of its queue, or of another one if it waits for room alone."""
        forest = self._facts.forest
        if goes_first(record, forest):
            return None
        queue = record.queue if forest.is_declared else ONE_QUEUE
        created = asked_at(record, pod, self._facts.now)
        bound, is_strict = self._facts.rules_of(record)
        is_late = self._facts.now - created >= bound
        own = {} if is_late and not is_strict else self._facts.waiting.oldest.get(queue, {})
        first_for_room = None if is_late else self._first.get(room.name)
        before = [
            *(
                each
                for (waits_for_quota, _), each in own.items()
                if each.age_begins_at <= created and (waits_for_quota or self._accepts(each, room))
            ),
            *([first_for_room] if first_for_room and first_for_room.age_begins_at <= created else ()),
        ]
        if not before:
            return None
        first = min(before, key=_by_age)
        where = f" in queue {first.queue}" if forest.is_declared else ""
        return _Refusal(GROWTH_BEHIND_GANG, f"{first.key} was queued before{where}, and waits")

    def _take(self, growth: _Growth, hosts: Hosts, room: ClusterRoom) -> _Refusal | None:
        """Grant a pod or slice, and take its room; why there is none for it, if there is none."""
        placed = self._place(growth, hosts, room)
        if isinstance(placed, _Refusal):
            return placed
        gang, assignment = placed
        room.dispatch(gang, assignment)
        growth.grant(hosts, assignment)
        return None

    def _place(self, growth: _Growth, hosts: Hosts, room: ClusterRoom) -> tuple[Gang, Assignment] | _Refusal:
        """The place of a pod or slice in the cluster: one that takes it whichever template it may be made from."""
        placed: tuple[Gang, Assignment] | None = None
        for alone in gangs_of(growth.record, hosts):
            gang = _beside_own(alone, growth, room.snapshot.capacity)
            found = room.fit(gang)
            if isinstance(found, Shortfall):
                why = rejection_of(gang, _cluster_shortfall(alone, gang, room, found))
                return _Refusal(why.reason, f"cluster {room.name}: {why.message}")
            placed = placed or (gang, found)
        if placed is None:
            raise AssertionError("a pod is made from some template")
        return placed


class _Quota:
    """The accounts of all queues now, and `later`, once those that leave are gone and promises are kept."""

    def __init__(self, facts: GrantFacts, now: QuotaLedger, later: QuotaLedger) -> None:
        self._forest = forest = now.forest
        self._at = facts.now
        self._now, self.later = now, later
        for record in facts.waiting.promised:
            self.later.charge(record.leaves, record.gang.charged, record.priority)
        self._hold(facts)
        self._answers = Refusals(forest, self._now, {}, {}, has_members=False)

    def shares_in_steps(
        self, wanted: Counter[tuple[tuple[str, ...], Resources]], snapshots: Mapping[str, ClusterSnapshot]
    ) -> Steps[dict[str, Shares]]:
        """The fair shares of the trees with the sharing Division, by root, where gangs want so much by leaves."""
        pending: dict[str, list[Resources]] = {}
        for (leaves, demand), count in wanted.items():
            for leaf in leaves:
                pending.setdefault(leaf, []).append(demand * count)
        return divide_all_in_steps(self.later.accounts, self._forest, snapshots, pending)

    def refusal(self, record: Record, increase: Resources) -> _Refusal | None:
        """Why the queues of a gang have no quota for that much more."""
        lacking = self._answers.lacking_quota(record.leaves, increase, record.priority)
        if lacking is not None:
            return _Refusal(lacking.reason, lacking.message)
        if exhausted := self._exhausted(record, increase):
            return exhausted
        for ledger in (self._now, self.later):
            if not ledger.has_quota(record.leaves, increase, record.priority):
                return _Refusal(RESERVED, kept_for_others(", ".join(record.leaves)))
        return None

    def _exhausted(self, record: Record, increase: Resources) -> _Refusal | None:
        """That a gang which gave way too often would have to borrow for its growth; None if it may, or need not."""
        times = count_preemptions(record, self._at) + count_taken(record, self._at)
        for place in self._forest.places_of(record.leaves):
            if not place.max_preemptions or times < place.max_preemptions:
                continue
            if self.later.accounts[place.root].would_borrow(place.name, increase):
                message = gave_way_too_often("was preempted or gave up surplus", times)
                return _Refusal(PREEMPTED_TOO_OFTEN, message)
        return None

    def charge(self, record: Record, increase: Resources) -> None:
        """Charge a grant."""
        for ledger in (self._now, self.later):
            ledger.charge(record.leaves, increase, record.priority)

    def _hold(self, facts: GrantFacts) -> None:
        """Hold back quota for heads and starved gangs, as the cycle does."""
        starved = {each.uid: each for each in facts.waiting.starved}
        holding = {(name, each.uid): each for name, each in facts.waiting.heads.items()}
        for uid, record in starved.items():
            holding |= {(place.name, uid): record for place in self._forest.places_of(record.leaves)}
        for (name, uid), record in holding.items():
            place = self._forest.places[name]
            if record.pending is None or record.pending.reason != INSUFFICIENT_QUOTA:
                continue
            is_first = facts.waiting.heads.get(name) is record
            hold = facts.quota.hold(place, record, is_first=is_first, is_starved=uid in starved)
            if hold is not None:
                self._now.hold(hold)
                self.later.hold(hold)


def _quota_in_steps(facts: GrantFacts) -> Steps[_Quota]:
    now, later = yield from now_and_later(facts.forest, facts.active)
    return _Quota(facts, now, later)


def gangs_of(record: Record, hosts: Hosts) -> list[Gang]:
    """A gang of one pod or slice for each template that it may be made from, which differ in the nodes they may use.

    A pod names its template; if the base gang has no pods of that, its own conditions count. A pod that names none is
    made from a template with its requests, and of several from the last, where the ledger of nodes holds its place; if
    none has these, as where a sidecar was injected, it may be any.
    """
    pod, pod_sets = hosts[0], record.placed_gang.pod_sets
    named = [each for each in pod_sets if each.template == pod.template][:1]
    if pod.constraint is not None and not named:
        alike = [pod.shape.pod_set]
    else:
        alike = named or [each for each in pod_sets if each.requests == pod.requests][-1:]
    kinds = {(each.constraint, each.has_rules and each.template): each for each in alike or pod_sets}
    counts = Counter(each.requests for each in hosts)
    made = (
        tuple(replace(each, count=count, requests=requests) for requests, count in counts.items())
        for each in map(_without_rules, kinds.values())
    )
    gang = Gang(_requests_of(hosts), len(hosts), namespace=record.namespace)
    return [replace(gang, pod_sets=each) for each in made] or [gang]


def _without_rules(pods: PodSet) -> PodSet:
    """The pod set without the rules about others, but those among its own pods, which the hosts of a slice keep."""
    return replace(pods, away=(), near=(), spread=())


def _beside_own(gang: Gang, growth: _Growth, capacity: CapacitySnapshot) -> Gang:
    """The gang of a pod or slice with the conditions on its nodes by the pods that its gang has."""
    if not growth.there:
        return gang
    known = growth.record.placed_gang.pod_sets
    made = (beside_own(each, known, growth.there, capacity.domains_of) for each in gang.pod_sets)
    return replace(gang, pod_sets=tuple(made))


def _requests_of(pods: Iterable[GatedPod]) -> Resources:
    return sum_of(each.requests for each in pods)


def _shapes_of(pods: Iterable[GatedPod]) -> tuple[PodShape, ...]:
    return tuple(each.shape for each in pods)


def _by_age(record: Record) -> tuple[datetime, int]:
    return record.age_begins_at, record.enqueue_seq


def _gives_way(record: Record) -> _Refusal | None:
    """That surplus pods of a gang give way; None if none do."""
    if record.attempt is None or record.attempt.shrinking is None:
        return None
    if not record.attempt.shrinking.preempted_by:
        return _Refusal(GIVES_WAY, "its pods for which no nodes came are being deleted")
    return _Refusal(GIVES_WAY, "its surplus pods give way to another gang")


def _cluster_shortfall(alone: Gang, gang: Gang, room: ClusterRoom, short: Shortfall) -> ClusterShortfall:
    """Why a pod does not fit a cluster: its size, its free capacity, or that what is free is not for it.

    `alone` is the same gang without the conditions by the pods that it has.
    """
    capacity = room.snapshot.capacity
    in_empty = shortfall_in_empty(alone, capacity)
    if in_empty is not None:
        return short_when_empty(room.name, alone, capacity, in_empty)
    free = room.fit_but_for_others(gang)
    if not isinstance(free, Shortfall):
        return ClusterShortfall(room.name, RESERVED, short, keeper=room.keeper.key if room.keeper else "")
    return short_of_room(room.name, gang, capacity, free)


def _in_words(amounts: Resources) -> str:
    return ", ".join(f"{name} {in_words(name, amounts[name])}" for name in sorted(amounts))


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
