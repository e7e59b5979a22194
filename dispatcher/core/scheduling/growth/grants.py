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

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest, slices_of
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.pending_reasons import (
    INSUFFICIENT,
    NAMESPACE_NOT_ALLOWED,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_LEAF,
    QUEUE_STOPPED,
    RESERVED,
)
from dispatcher.core.model.records.record import ACTIVE, Change, Record
from dispatcher.core.model.resources import NOTHING, PODS
from dispatcher.core.queues.access import why_not_served
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Elastic, StopPolicy
from dispatcher.core.scheduling.cycle.recheck import Rechecked, rechecked
from dispatcher.core.scheduling.cycle.turns import Turns
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
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.growing import (
    GangGrowth,
    Grant,
    Growing,
    GrowthRefusal,
    beside_own_pods,
    gangs_of,
    requests_of,
    shapes_of,
)
from dispatcher.core.scheduling.growth.growth_quota import GrowthQuota, growth_quota_in_steps
from dispatcher.core.scheduling.growth.growth_turns import Hosts, asked_at, growth_turns
from dispatcher.core.scheduling.growth.waiting_gangs import ONE_QUEUE, WaitingGangs
from dispatcher.core.scheduling.sharing.gangs import leaving_by_cluster
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.quota_reservations import first_place

GROWTH_BEHIND_GANG: Final = "GrowthBehindGang"
"""A gang was queued before the pods were created, and waits: of the same queue for quota or room, or of another one for
room."""

GIVES_WAY: Final = "GivesWay"
"""The gang gives up surplus pods for another gang: until they are gone, it gets no other pods in their place."""

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
    gangs: list[GangGrowth] = []
    asking: dict[str, tuple[GangGrowth, Hosts]] = {}
    for each in growing:
        if _is_known(each, snapshots):
            growth = GangGrowth(each)
            gangs.append(growth)
            asking.update((hosts[0].uid, (growth, hosts)) for hosts in slices_of(growth.waiting))
            yield
    if asking:
        quota = (yield from growth_quota_in_steps(facts)) if facts.forest.is_declared else None
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
        is_right = not grant.pods or cycle.takes(grant, GangGrowth(gangs[grant.record.uid]))
        return grant if is_right else None

    return rechecked(grants, again)


def _is_known(growing: Growing, snapshots: Mapping[str, ClusterSnapshot]) -> bool:
    """True for a gang that may grow and whose gated pods are known."""
    attempt = growing.record.attempt
    snapshot = snapshots.get(attempt.cluster) if attempt and growing.record.phase in ACTIVE else None
    return snapshot is not None and (bool(growing.gated) or not is_unreachable(snapshot.closed))


class _GrantCycle:
    """One pass: the room of each cluster and the accounts of all queues, less what earlier grants take."""

    def __init__(
        self, facts: GrantFacts, snapshots: Mapping[str, ClusterSnapshot], quota: GrowthQuota | None
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
        wanted.update((record.leaves, requests_of(hosts) + {PODS: len(hosts)}) for record, hosts in asking)
        shares = yield from self._quota.shares_in_steps(wanted, self._snapshots)
        return (yield from growth_turns(asking, self._quota.later, shares, facts.usage, facts.now))

    def decide(self, growth: GangGrowth, hosts: Hosts) -> bool:
        """Grant one pod, or one slice, or note why it waits; True if it is granted."""
        shapes = shapes_of(hosts)
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

    def takes(self, grant: Grant, growth: GangGrowth) -> bool:
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

    def _closed(self, record: Record, room: ClusterRoom) -> GrowthRefusal | None:
        """Why nothing of the gang's cluster or queues is granted now."""
        closed = room.snapshot.closed
        if closed is not None:
            return GrowthRefusal(closed.reason, f"cluster {room.name}: {closed.message}")
        forest = self._facts.forest
        for leaf in record.leaves if forest.is_declared else ():
            place = forest.places.get(leaf)
            if place is None:
                return GrowthRefusal(QUEUE_NOT_FOUND, f"there is no valid queue {leaf}")
            if place.stop_policy is not StopPolicy.NONE:
                return GrowthRefusal(
                    QUEUE_STOPPED, f"queue {place.stopped_by} is stopped: {place.stop_policy}"
                )
            if not place.is_leaf:
                return GrowthRefusal(QUEUE_NOT_LEAF, f"queue {leaf} has children")
            labels = self._facts.namespaces.get(record.namespace, {})
            if why := why_not_served(place, record.namespace, labels):
                return GrowthRefusal(NAMESPACE_NOT_ALLOWED, why)
        return None

    def _behind(self, record: Record, pod: GatedPod, room: ClusterRoom) -> GrowthRefusal | None:
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
        return GrowthRefusal(GROWTH_BEHIND_GANG, f"{first.key} was queued before{where}, and waits")

    def _take(self, growth: GangGrowth, hosts: Hosts, room: ClusterRoom) -> GrowthRefusal | None:
        """Grant a pod or slice, and take its room; why there is none for it, if there is none."""
        placed = self._place(growth, hosts, room)
        if isinstance(placed, GrowthRefusal):
            return placed
        gang, assignment = placed
        room.dispatch(gang, assignment)
        growth.grant(hosts, assignment)
        return None

    def _place(
        self, growth: GangGrowth, hosts: Hosts, room: ClusterRoom
    ) -> tuple[Gang, Assignment] | GrowthRefusal:
        """The place of a pod or slice in the cluster: one that takes it whichever template it may be made from."""
        placed: tuple[Gang, Assignment] | None = None
        for alone in gangs_of(growth.record, hosts):
            gang = beside_own_pods(alone, growth, room.snapshot.capacity)
            found = room.fit(gang)
            if isinstance(found, Shortfall):
                why = rejection_of(gang, _cluster_shortfall(alone, gang, room, found))
                return GrowthRefusal(why.reason, f"cluster {room.name}: {why.message}")
            placed = placed or (gang, found)
        if placed is None:
            raise AssertionError("a pod is made from some template")
        return placed


def _by_age(record: Record) -> tuple[datetime, int]:
    return record.age_begins_at, record.enqueue_seq


def _gives_way(record: Record) -> GrowthRefusal | None:
    """That surplus pods of a gang give way; None if none do."""
    if record.attempt is None or record.attempt.shrinking is None:
        return None
    if not record.attempt.shrinking.preempted_by:
        return GrowthRefusal(GIVES_WAY, "its pods for which no nodes came are being deleted")
    return GrowthRefusal(GIVES_WAY, "its surplus pods give way to another gang")


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
