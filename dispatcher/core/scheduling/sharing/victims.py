"""The search for victims: the gangs without which a pending gang has quota, and room on one cluster.

A search tries each cluster that accepts the gang. On a cluster it removes candidates one by one, as the sharing of the
tree decides, until it is enough, and then puts back those that are not needed. A cluster is not used if a victim could
take its capacity back from the gang. Of several clusters, the one is chosen where the highest priority of a victim is
lowest.

Growth: a search costs its candidates once for each cluster, with a comparison with the cluster's nodes for each that is
removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dispatcher.core.model.gang import Assignment, Gang
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.resources import is_device
from dispatcher.core.queues.forest import Place
from dispatcher.core.queues.queue import Reclaim, Sharing, WithinQueue
from dispatcher.core.scheduling.capacity import CapacitySnapshot
from dispatcher.core.scheduling.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit import fit
from dispatcher.core.scheduling.sharing import division, dominant_share, priority
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.search import Enough, Search, Trial, uses_any, victim_order

Accepting = Callable[[PendingGang], Iterable[str]]
"""The names of the clusters that accept a gang and would have room for it if they were empty."""


@dataclass(frozen=True, slots=True)
class Victims:
    """The gangs to preempt for a gang on a cluster, with the reason for each, in the order of removal."""

    cluster: str
    gangs: tuple[tuple[ActiveGang, Reason], ...]

    @property
    def order(self) -> tuple[int, int, str]:
        """The order of alternatives: the lowest of the highest priorities, then the fewest gangs, then by cluster."""
        highest = max(gang.record.priority for gang, _ in self.gangs)
        return highest, len(self.gangs), self.cluster


@dataclass(slots=True)
class VictimSearch:
    """Searches for victims in one cycle. `later` is the ledger without the gangs that leave.

    `active` are the gangs that held capacity when the cycle began, by leaf; those in `gone` leave. `shares` are those
    of the trees with the sharing Division, by root.
    """

    later: QuotaLedger
    rooms: Mapping[str, ClusterRoom]
    active: Mapping[str, Sequence[ActiveGang]]
    shares: Mapping[str, Shares]
    now: datetime
    gone: set[str] = field(default_factory=set)

    def find(self, gang: PendingGang, accepting: Iterable[str], accepting_of: Accepting) -> Victims | None:
        """The victims on the best of the accepting clusters; None if there are none that suffice.

        `accepting_of` returns the clusters that accept a victim, should it be queued again.
        """
        if not self._may_preempt(gang):
            return None
        found = [
            victims
            for cluster in accepting
            if (victims := self._find_on(self.rooms[cluster], gang, accepting_of)) is not None
        ]
        return min(found, key=lambda each: each.order, default=None)

    def _may_preempt(self, gang: PendingGang) -> bool:
        """False if no candidate can exist, or if a gang that is not preemptible is over its nominal quota."""
        places = list(self._places(gang.leaves))
        if all(
            place.queue.preemption.within_queue is WithinQueue.NEVER
            and place.queue.preemption.reclaim is Reclaim.NEVER
            for place in places
        ):
            return False
        record = gang.record
        return not any(
            not place.is_preemptible(record.priority)
            and self.later.accounts[place.root].beyond_nominal(place.name, record.gang.demand)
            for place in places
        )

    def _find_on(self, room: ClusterRoom, gang: PendingGang, accepting_of: Accepting) -> Victims | None:
        trial = Trial(gang, room.name, self.later, room.trial())
        try:
            if not self._search(trial, self.active, frozenset()):
                return None
            if self._could_be_undone(trial, accepting_of):
                return None
            return Victims(room.name, tuple(trial.removed.values()))
        finally:
            trial.close()

    def _search(
        self, trial: Trial, active: Mapping[str, Sequence[ActiveGang]], ready: frozenset[str]
    ) -> bool:
        """Remove victims until it is enough in every tree, without those that are not needed.

        Gangs in `ready` count as if they had run long enough.
        """
        gang = trial.gang
        conditions: list[Enough] = []
        asks_room = True
        for place in self._places(gang.leaves):
            lacks_quota, lacks_room = not trial.has_quota(place.name), not trial.has_room()
            if not lacks_quota and not (asks_room and lacks_room):
                continue
            contested = self._contested(trial, place, lacks_room=lacks_room)
            search = self._prepared(trial, place, contested, active, ready, lacks_room=lacks_room)
            search.asks_room = asks_room
            condition = self._run(search)
            if condition is not None:
                conditions.append(condition)
                asks_room = False
        if not trial.removed or not self._is_enough(trial, conditions):
            return False
        _fill_back(trial, lambda: self._is_enough(trial, conditions))
        return True

    def _is_enough(self, trial: Trial, conditions: Sequence[Enough]) -> bool:
        """True if the gang has quota in every tree, room, and what each sharing asks beside."""
        has_quota = all(trial.has_quota(place.name) for place in self._places(trial.gang.leaves))
        return has_quota and all(condition() for condition in conditions) and trial.has_room()

    def _run(self, search: Search) -> Enough | None:
        match search.place.sharing:
            case Sharing.PRIORITY:
                return priority.search(search)
            case Sharing.DOMINANT_SHARE:
                return dominant_share.search(search)
            case Sharing.DIVISION:
                return division.search(search, self.shares[search.place.root])

    def _contested(self, trial: Trial, place: Place, *, lacks_room: bool) -> frozenset[str]:
        """The resources that the gang is short of, in quota or in room."""
        record = trial.gang.record
        demand = record.gang.demand
        found = set(self.later.lacking(place.name, demand, record.priority))
        if lacks_room:
            short = set(demand.shortfall(trial.capacity.free_for(None)))
            found |= short or {name for name in demand if is_device(name)} or set(demand)
        return frozenset(found)

    def _prepared(
        self,
        trial: Trial,
        place: Place,
        contested: frozenset[str],
        active: Mapping[str, Sequence[ActiveGang]],
        ready: frozenset[str],
        *,
        lacks_room: bool,
    ) -> Search:
        """The search in one tree, with its candidates."""
        own: list[ActiveGang] = []
        others: dict[str, list[ActiveGang]] = {}
        for name in self.later.accounts[place.root].quota.tree.names:
            found = [
                each
                for each in active.get(name, ())
                if self._is_candidate(each, trial, place, name, ready)
                and uses_any(each, contested)
                and (not lacks_room or each.cluster == trial.cluster)
            ]
            found.sort(key=lambda each: victim_order(each, place.name))
            if name == place.name:
                own = found
            elif found:
                others[name] = found
        return Search(trial, place.name, contested, own, others, asks_room=True)

    def _is_candidate(
        self, gang: ActiveGang, trial: Trial, place: Place, leaf: str, ready: frozenset[str]
    ) -> bool:
        if gang.uid in self.gone or gang.uid in trial.removed or gang.is_leaving or gang.is_fixed:
            return False
        its = self.later.forest.places[leaf]
        if not all(each.is_preemptible(gang.record.priority) for each in self._places(gang.leaves)):
            return False
        ran = self.now - gang.dispatched_at
        if ran < its.min_runtime and gang.uid not in ready:
            return False
        return may_preempt(trial.gang, place, gang, leaf)

    def _could_be_undone(self, trial: Trial, accepting_of: Accepting) -> bool:
        """True if a victim, queued again, would wait and could then preempt the gang."""
        placed = self._placed(trial)
        victims = [gang for gang, _ in trial.removed.values()]
        suspects = [each for each in victims if self._may_ever_preempt(each, placed)]
        if not suspects:
            return False
        record = placed.record
        self.later.charge(placed.leaves, record.gang.demand, record.priority)
        try:
            return any(self._would_undo(each, placed, trial, accepting_of) for each in suspects)
        finally:
            self.later.charge(placed.leaves, record.gang.demand, record.priority, -1)

    def _placed(self, trial: Trial) -> ActiveGang:
        gang = trial.gang
        return ActiveGang(gang.record, gang.leaves, trial.cluster, self.now)

    def _may_ever_preempt(self, victim: ActiveGang, placed: ActiveGang) -> bool:
        again = _queued_again(victim)
        return any(
            may_preempt(again, place, placed, leaf)
            for place in self._places(victim.leaves)
            for leaf in placed.leaves
            if leaf in self.later.forest.places and self.later.forest.places[leaf].root == place.root
        )

    def _would_undo(
        self, victim: ActiveGang, placed: ActiveGang, trial: Trial, accepting_of: Accepting
    ) -> bool:
        again = _queued_again(victim)
        record = victim.record
        has_quota = self.later.has_quota(victim.leaves, record.gang.demand, record.priority)
        clusters = list(accepting_of(again))
        capacities = {name: self._capacity_with(placed, name, trial) for name in clusters}
        if has_quota and any(_has_room(record.gang, each) for each in capacities.values()):
            return False
        active = self._active_with(placed, trial)
        for name, capacity in capacities.items():
            back = Trial(again, name, self.later, capacity)
            try:
                takes = self._search(back, active, frozenset({placed.uid})) and placed.uid in back.removed
            finally:
                back.close()
            if takes:
                return True
        return False

    def _capacity_with(self, placed: ActiveGang, cluster: str, trial: Trial) -> CapacitySnapshot:
        """The capacity of a cluster later, with the victims gone and the gang in its place."""
        if cluster != trial.cluster:
            return self.rooms[cluster].trial()
        capacity = trial.capacity.copy()
        places = fit(placed.record.gang, capacity)
        if isinstance(places, Assignment):
            capacity.take_as(placed.uid, placed.record.gang, places)
        return capacity

    def _active_with(self, placed: ActiveGang, trial: Trial) -> dict[str, Sequence[ActiveGang]]:
        found: dict[str, Sequence[ActiveGang]] = {
            leaf: [each for each in gangs if each.uid not in trial.removed]
            for leaf, gangs in self.active.items()
        }
        for leaf in placed.leaves:
            found[leaf] = [*found.get(leaf, ()), placed]
        return found

    def _places(self, leaves: Iterable[str]) -> Iterator[Place]:
        return (place for leaf in leaves if (place := self.later.place(leaf)) is not None)


def may_preempt(gang: PendingGang, place: Place, other: ActiveGang, leaf: str) -> bool:
    """True if the leaf of a gang, at `place`, lets it preempt another gang in `leaf`, by priority and age."""
    preemption, mine, theirs = place.queue.preemption, gang.record, other.record
    if leaf == place.name:
        if preemption.within_queue is WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY:
            is_newer = theirs.priority == mine.priority and theirs.created_at > mine.created_at
            return theirs.priority < mine.priority or is_newer
        return preemption.within_queue is WithinQueue.LOWER_PRIORITY and theirs.priority < mine.priority
    if preemption.reclaim is Reclaim.LOWER_PRIORITY:
        return theirs.priority < mine.priority
    return preemption.reclaim is Reclaim.ANY


def _fill_back(trial: Trial, is_enough: Enough) -> None:
    """Put back whoever is not needed, from the last but one to the first that was removed."""
    for gang, reason in list(trial.removed.values())[-2::-1]:
        trial.restore(gang)
        if not is_enough():
            trial.remove(gang, reason)


def _queued_again(gang: ActiveGang) -> PendingGang:
    return PendingGang(gang.record, gang.leaves)


def _has_room(gang: Gang, capacity: CapacitySnapshot) -> bool:
    return isinstance(fit(gang, capacity), Assignment)
