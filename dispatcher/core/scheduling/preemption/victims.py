"""The search for victims: the gangs without which a pending gang has quota, and room on one cluster.

A search takes surplus pods (`surplus`) before gangs: if they suffice on some cluster, no gang is preempted. If not,
each queue gives its surplus before its gangs, and the sharing decides between the queues. Then each gang is put back
that more surplus can replace, as far as the sharing lets the preemptor take it (`spared`).

It tries each cluster that accepts the gang. On a cluster it removes candidates one by one, as the sharing of the
tree decides, until it is enough, and then puts back those that are not needed. A cluster is not used if a victim could
take its capacity back from the gang. Of several clusters, the one is chosen where the highest priority of a victim is
lowest.

Growth: a search costs its candidates once for each cluster, with a comparison with the cluster's nodes for each that is
removed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

from msgspec import Struct, field

from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.resources import is_device
from dispatcher.core.queues.forest import Place
from dispatcher.core.queues.queue import Reclaim, Sharing, WithinQueue
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.fit import fit, fits
from dispatcher.core.scheduling.preemption.failed_searches import FailedSearches, SearchKind
from dispatcher.core.scheduling.preemption.spared import fill_back, spare_gangs
from dispatcher.core.scheduling.sharing import division, dominant_share, priority
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.search import Enough, Found, Search, Trial, uses_any, victim_order

Accepting = Callable[[PendingGang], Iterable[str]]
"""The names of the clusters that accept a gang and would have room for it if they were empty."""


class Victims(Struct, frozen=True):
    """The gangs and surplus pods that give way to a gang on a cluster, with reasons, in the order of removal."""

    cluster: str
    gangs: tuple[tuple[ActiveGang, Reason], ...]

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The order of alternatives: the lowest of the highest priorities, then the fewest gangs, then by cluster.

        Surplus counts where no gang is preempted, and between as many gangs.
        """
        gangs = [gang for gang, _ in self.gangs if not gang.is_surplus]
        highest = max(gang.record.priority for gang in gangs or (gang for gang, _ in self.gangs))
        return highest, len(gangs), len(self.gangs), self.cluster


class _Change(Struct, frozen=True):
    """The running gangs of a search after a preemption: those of the cycle, with `placed` and `without` some."""

    placed: ActiveGang
    without: frozenset[str]


class VictimSearch(Struct):
    """Searches for victims in one cycle. `later` is the ledger without the gangs that leave.

    `active` are the gangs that held capacity when the cycle began, by the queues in which they are charged; those in
    `gone` leave. `shares` are those of the trees with the sharing Division, by root. Without `failed`, each search is
    made anew.
    """

    later: QuotaLedger
    rooms: Mapping[str, ClusterRoom]
    active: Mapping[str, Sequence[ActiveGang]]
    shares: Mapping[str, Shares]
    now: datetime
    failed: FailedSearches | None
    gone: set[str] = field(default_factory=set)
    _has_surplus: bool = False
    _known_room: dict[tuple[str, object, Gang], bool] = field(default_factory=dict)
    _holding: dict[str, list[str]] = field(default_factory=dict)
    _ready: dict[str, list[ActiveGang]] = field(default_factory=dict)
    _using: dict[tuple[str, frozenset[str], str], list[ActiveGang]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._has_surplus = any(gang.is_surplus for gangs in self.active.values() for gang in gangs)

    def find(
        self, gang: PendingGang, accepting: Iterable[str], accepting_of: Accepting
    ) -> Steps[Victims | None]:
        """The victims on the best of the accepting clusters; None if there are none that suffice.

        The gang `may_preempt`. Surplus pods alone go before gangs on any cluster.

        `accepting_of` returns the clusters that accept a victim, should it be queued again.
        """
        clusters = list(accepting)
        for only_surplus in (True, False) if self._has_surplus else (False,):
            found = []
            for cluster in clusters:
                victims = yield from self._find_on(self.rooms[cluster], gang, accepting_of, only_surplus)
                if victims is not None:
                    found.append(victims)
            if found:
                return min(found, key=lambda each: each.order)
        return None

    def may_preempt(self, gang: PendingGang) -> bool:
        """False if no candidate can exist, or if a gang that is not preemptible is over its nominal quota."""
        if gang.record.never_preempts:
            return False
        places = self._places(gang.leaves)
        if all(
            place.queue.preemption.within_queue is WithinQueue.NEVER
            and place.queue.preemption.reclaim is Reclaim.NEVER
            for place in places
        ):
            return False
        record = gang.record
        return not any(
            not place.is_preemptible(record.priority)
            and self.later.accounts[place.root].beyond_nominal(place.name, record.gang.charged)
            for place in places
        )

    def changed(self, leaves: Iterable[str]) -> None:
        """The use of these leaves' trees has changed: searches that failed for lack of quota may succeed now."""
        if self.failed is not None:
            self.failed.changed(place.root for place in self._places(leaves))

    def leave(self, uids: Iterable[str]) -> None:
        """These gangs leave from now on: they are no candidates any more."""
        self.gone.update(uids)
        self._using.clear()

    def _find_on(
        self, room: ClusterRoom, gang: PendingGang, accepting_of: Accepting, only_surplus: bool
    ) -> Steps[Victims | None]:
        known = None if gang.asked else self._known_room.get((room.name, room.state, gang.record.gang))
        trial = Trial(gang, room.name, self.later, room.later, known)
        if known is None and gang.asked is None:
            self._known_room[room.name, room.state, gang.record.gang] = trial.has_room()
        memory, kind = self.failed, self._kind_of(gang)
        if memory is not None and kind is not None and trial.has_room() and memory.has(kind):
            return None
        try:
            if not (yield from self._search(trial, only_surplus=only_surplus)):
                if memory is not None and kind is not None and not trial.lacked_room and not only_surplus:
                    memory.add(kind)
                return None
            if (yield from self._could_be_undone(trial, accepting_of)):
                return None
            return Victims(room.name, tuple(trial.removed.values()))
        finally:
            trial.close()

    def _kind_of(self, gang: PendingGang) -> SearchKind | None:
        """The kind of a search; None if the gang has several leaves, where the changes of several trees would count."""
        places = self._places(gang.leaves)
        if len(places) != 1:
            return None
        (place,) = places
        record, within_queue = gang.record, place.queue.preemption.within_queue
        is_by_age = within_queue is WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        return SearchKind(
            place.root,
            place.name,
            self.later.accounts[place.root].quota.asked(record.gang.charged),
            record.priority,
            record.age_begins_at if is_by_age else None,
            self.later.holds(place.root),
        )

    def _search(
        self, trial: Trial, change: _Change | None = None, *, only_surplus: bool = False
    ) -> Steps[bool]:
        """Remove victims until it is enough in every tree, without those that are not needed.

        The running gangs are those of the cycle, or those after a `change`; with `only_surplus`, their surplus pods.
        """
        places, demand = self._places(trial.gang.leaves), trial.gang.record.gang.charged
        missing = {place.name: self.later.missing(place.name, demand) for place in places}
        found: dict[str, tuple[Search, Found]] = {}
        asks_room = True
        for place in places:
            lacks_quota, lacks_room = not trial.has_quota(place.name), not trial.has_room()
            if not lacks_quota and not (asks_room and lacks_room):
                continue
            contested = self._contested(trial, place, lacks_room=lacks_room)
            search = self._prepared(
                trial, place, contested, missing[place.name], change, lacks_room=lacks_room
            )
            if only_surplus:
                search.keep_surplus()
            search.asks_room = asks_room
            if not search.may_be_enough(search.candidates):
                continue
            yield
            found_there = yield from self._run(search)
            if found_there is not None:
                found[place.name] = search, found_there
                asks_room = False
        conditions = {leaf: each.is_enough for leaf, (_, each) in found.items()}

        def is_enough() -> bool:
            return self._is_enough(trial, conditions)

        if not trial.removed or not is_enough():
            return False
        yield from fill_back(trial, is_enough)
        if self._has_surplus:
            yield from spare_gangs(trial, list(found.values()), is_enough)
        return True

    def _is_enough(self, trial: Trial, conditions: Mapping[str, Enough]) -> bool:
        """True if the gang has room, and in every tree quota and what the sharing asks beside.

        `conditions` are those of some trees, by leaf; each asks for quota, too.
        """
        others = [place.name for place in self._places(trial.gang.leaves) if place.name not in conditions]
        has_quota = all(trial.has_quota(leaf) for leaf in others)
        return has_quota and all(condition() for condition in conditions.values()) and trial.has_room()

    def _run(self, search: Search) -> Steps[Found | None]:
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
        found = set(self.later.lacking(place.name, record.gang.charged, record.priority))
        if lacks_room:
            demand = record.gang.demand
            there = record.gang.in_cluster(trial.cluster).demand
            short = set(there.shortfall(trial.capacity.free_for(None)))
            found |= short or {name for name in demand if is_device(name)} or set(demand)
        return frozenset(found)

    def _prepared(
        self,
        trial: Trial,
        place: Place,
        contested: frozenset[str],
        missing: Mapping[str, int],
        change: _Change | None,
        *,
        lacks_room: bool,
    ) -> Search:
        """The search in one tree, with its candidates."""
        own: list[ActiveGang] = []
        others: dict[str, list[ActiveGang]] = {}
        cluster = trial.cluster if lacks_room else ""
        is_reclaiming = place.queue.preemption.reclaim is not Reclaim.NEVER
        excluded = trial.removed.keys() | (change.without if change else ())
        for name in self._holders(place.root, change) if is_reclaiming else (place.name,):
            found = self._candidates_using(name, contested, cluster)
            if change is not None and name in change.placed.leaves:
                found = self._with_placed(found, change.placed, name, contested, cluster)
            found = _allowed(trial.gang, place, found, name)
            if excluded:
                found = [each for each in found if each.uid not in excluded]
            if name == place.name:
                own = found
            elif found:
                others[name] = found
        return Search(trial, place.name, contested, own, others, missing, asks_room=True)

    def _holders(self, root: str, change: _Change | None) -> list[str]:
        """The queues of a tree in which gangs run, in the order of the tree."""
        names = self.later.accounts[root].quota.tree.names
        if change is not None:
            return [name for name in names if name in self.active or name in change.placed.leaves]
        found = self._holding.get(root)
        if found is None:
            found = self._holding[root] = [name for name in names if name in self.active]
        return found

    def _candidates_using(self, leaf: str, contested: frozenset[str], cluster: str) -> list[ActiveGang]:
        """The candidates of a leaf that use contested resources, on a cluster if one is given; not to be changed."""
        key = leaf, contested, cluster
        found = self._using.get(key)
        if found is None:
            found = self._using[key] = [
                each
                for each in self._candidates(leaf)
                if cluster in {"", each.cluster} and uses_any(each, contested) and each.uid not in self.gone
            ]
        return found

    def _candidates(self, leaf: str) -> list[ActiveGang]:
        """The gangs of a leaf that some gang may preempt, in the order of victims."""
        found = self._ready.get(leaf)
        if found is None:
            place = self.later.forest.places[leaf]
            found = self._ready[leaf] = [
                each
                for each in self.active.get(leaf, ())
                if not each.is_leaving
                and not each.is_fixed
                and not each.is_protected(place.min_runtime, self.now)
                and self._is_preemptible(each)
            ]
            found.sort(key=lambda each: victim_order(each, leaf))
        return found

    def _is_preemptible(self, gang: ActiveGang) -> bool:
        return all(place.is_preemptible(gang.record.priority) for place in self._places(gang.leaves))

    def _with_placed(
        self, gangs: list[ActiveGang], placed: ActiveGang, leaf: str, contested: frozenset[str], cluster: str
    ) -> list[ActiveGang]:
        """The candidates with one that was placed by this cycle, as if it had run long enough."""
        is_there = cluster in {"", placed.cluster} and uses_any(placed, contested)
        if not is_there or not self._is_preemptible(placed):
            return gangs
        return sorted([*gangs, placed], key=lambda each: victim_order(each, leaf))

    def _could_be_undone(self, trial: Trial, accepting_of: Accepting) -> Steps[bool]:
        """True if a victim, queued again, would wait and could then preempt the gang."""
        gang = trial.gang
        placed = ActiveGang(gang.record, trial.cluster, self.now)
        victims = [each for each, _ in trial.removed.values() if not (each.is_surplus or each.is_left)]
        suspects = [each for each in victims if self._may_ever_preempt(each, placed)]
        if not suspects:
            return False
        record = placed.record
        change = _Change(placed, frozenset(trial.removed))
        capacity = self._capacity_with(placed, trial)
        self.later.charge(placed.leaves, record.gang.charged, record.priority)
        try:
            for each in suspects:
                if (yield from self._would_undo(each, change, capacity, accepting_of)):
                    return True
            return False
        finally:
            self.later.charge(placed.leaves, record.gang.charged, record.priority, -1)

    def _may_ever_preempt(self, victim: ActiveGang, placed: ActiveGang) -> bool:
        again = _queued_again(victim)
        return any(
            may_preempt(again, place, placed, leaf)
            for place in self._places(victim.leaves)
            for leaf in placed.leaves
            if leaf in self.later.forest.places and self.later.forest.places[leaf].root == place.root
        )

    def _would_undo(
        self, victim: ActiveGang, change: _Change, capacity: CapacitySnapshot, accepting_of: Accepting
    ) -> Steps[bool]:
        """`capacity` is that of the cluster of the placed gang."""
        again, placed = _queued_again(victim), change.placed
        record = victim.record
        capacities = {
            name: capacity if name == placed.cluster else self.rooms[name].later
            for name in accepting_of(again)
        }
        has_quota = self.later.has_quota(victim.leaves, record.gang.charged, record.priority)
        if has_quota and any(fits(record.gang, each) for each in capacities.values()):
            return False
        for name, each in capacities.items():
            back = Trial(again, name, self.later, each)
            try:
                takes = (yield from self._search(back, change)) and placed.uid in back.removed
            finally:
                back.close()
            if takes:
                return True
        return False

    def _capacity_with(self, placed: ActiveGang, trial: Trial) -> CapacitySnapshot:
        """The capacity of the cluster later, with the victims gone and the gang in its place."""
        capacity = trial.capacity.copy()
        places = fit(placed.record.gang, capacity)
        if isinstance(places, Assignment):
            capacity.take_as(placed.uid, placed.record.gang, places)
        return capacity

    def _places(self, leaves: Iterable[str]) -> list[Place]:
        return self.later.forest.places_of(leaves)


def may_preempt(gang: PendingGang, place: Place, other: ActiveGang, leaf: str) -> bool:
    """True if the leaf of a gang, at `place`, lets it preempt another gang in `leaf`, by priority and age."""
    preemption, mine, theirs = place.queue.preemption, gang.record, other.record
    if mine.never_preempts:
        return False
    if leaf == place.name:
        if preemption.within_queue is WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY:
            is_newer = theirs.priority == mine.priority and theirs.age_begins_at > mine.age_begins_at
            return theirs.priority < mine.priority or is_newer
        return preemption.within_queue is WithinQueue.LOWER_PRIORITY and theirs.priority < mine.priority
    if preemption.reclaim is Reclaim.LOWER_PRIORITY:
        return theirs.priority < mine.priority
    return preemption.reclaim is Reclaim.ANY


def _allowed(gang: PendingGang, place: Place, gangs: list[ActiveGang], leaf: str) -> list[ActiveGang]:
    """Those of the gangs of `leaf`, in the order of victims, that the gang may preempt as in `may_preempt`."""
    preemption = place.queue.preemption
    if leaf != place.name and preemption.reclaim is Reclaim.ANY:
        return gangs
    if leaf == place.name and preemption.within_queue is WithinQueue.NEVER:
        return []
    surplus = list(takewhile(lambda each: each.is_surplus, gangs))
    if surplus:
        surplus = [each for each in surplus if may_preempt(gang, place, each, leaf)]
        gangs = [each for each in gangs if not each.is_surplus]
    below = bisect_left(gangs, gang.record.priority, key=_priority)
    equal = []
    if leaf == place.name and preemption.within_queue is WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY:
        end = bisect_right(gangs, gang.record.priority, key=_priority)
        equal = [each for each in gangs[below:end] if each.record.age_begins_at > gang.record.age_begins_at]
    return [*surplus, *gangs[:below], *equal]


def _priority(gang: ActiveGang) -> int:
    return gang.record.priority


def _queued_again(gang: ActiveGang) -> PendingGang:
    return PendingGang(gang.record)
