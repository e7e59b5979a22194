"""Which pods hold which places on the nodes of one cluster, kept current by events, for gangs placed on nodes.

`CapacityLedger` feeds a `NodeLedger`, which keeps the amounts of the nodes in `node_rows` and takes a `NodeSnapshot` of
itself for each cycle.

The unbound pods of an active AppWrapper hold their places: on the nodes of its assignment as long as they fit there,
else on other nodes; among them are the pods of a granted growth. Demand without a place, because no node takes the pod
or because the AppWrapper declares more than its pods request, is charged to every view of the cluster, like all
reservations are where gangs fit by sums.

Potential nodes (`potential_pools`) have rows beside the nodes, in traits of their own: only a gang on trust has places
there. Once a node of their pool comes, these places move to it.

Growth: beside the costs of `node_rows`, a snapshot costs O(pod sets x nodes) for each AppWrapper whose pods have lost
their places. A tenant can have any number of gangs whose places need a long search. So a round has a number of steps:
once they are used up, pods without a place are charged, and a later round searches for them (`place_turns`).
`place_next` does a part of this for one AppWrapper at a time, so that an event loop can do other work between.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from dispatcher.core.model.clusters import potential
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.clusters.potential import PotentialPool, Trusted, is_potential
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, Places, PodSet
from dispatcher.core.model.gangs.growth import PodShape
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.capacity.growth_rules import apart_from
from dispatcher.core.scheduling.capacity.node_rows import NO_LOAD, Load, NodeRows
from dispatcher.core.scheduling.capacity.node_snapshot import NodeSnapshot, Place, Use
from dispatcher.core.scheduling.capacity.place_share import BoundPods, Held, PlaceShare, Unbound, unbound
from dispatcher.core.scheduling.capacity.place_turns import PlaceTurn, PlaceTurns, Stage
from dispatcher.core.scheduling.capacity.pods_there import FollowedTerms, PodSorts
from dispatcher.core.scheduling.capacity.potential_pools import PotentialPools
from dispatcher.core.scheduling.placement.node_traits import Traits, values_of
from dispatcher.core.scheduling.placement.placement import Rest, Unplaceable, place
from dispatcher.core.scheduling.placement.placement_bounds import MOST_STEPS_IN_ALL, Tally

MOST_STEPS_OF_ROUND: Final = 2048
"""Steps of all searches for places of one round, some tenths of a second; the last one may go beyond it."""


class NodeLedger:
    """The places of pods on nodes, kept current by events; `CapacityLedger` gives the load of each node."""

    def __init__(self) -> None:
        self._rows = NodeRows()
        self._pools = PotentialPools()
        self._pools_changed = False
        self._on_trust: dict[str, None] = {}
        """The active AppWrappers with places planned on potential nodes, or with growth, which may trust in them."""
        self._shares: dict[str, PlaceShare] = {}
        self._numbers = itertools.count(1)
        self._holders: dict[str, dict[str, None]] = {}
        self._uses: dict[str, Use] = {}
        self._beyond = NOTHING
        self._turns = PlaceTurns(MOST_STEPS_OF_ROUND)
        """The turns of the AppWrappers whose use may have changed since the last snapshot."""
        self._rests: dict[str, tuple[Gang, Unbound]] = {}
        """The gangs that hold their planned places, and their pods without one; until they are settled."""
        self._touched: dict[str, None] = {}
        """The nodes that changed since the last snapshot."""
        self._has_changed = True
        """True if a new snapshot is due. Found places make one due, but are no news to searches."""
        self._last: NodeSnapshot | None = None
        self._sorts: PodSorts | None = None
        """The pods and held places by sort; None while no term about pods is known."""
        self._lasting_sorts = PodSorts()
        """The pods that never end, by sort."""
        self._sorts_version = 0, 0
        self._failures: dict[str, Failure] = {}
        """The exceptions of the last placements by the uid of the AppWrapper, until they are taken."""

    # --- events ------------------------------------------------------------------------------------------------

    def set_pools(self, pools: tuple[PotentialPool, ...]) -> None:
        """Declare the pools that may grow, in place of those declared before."""
        if pools == self._pools.pools:
            return
        for name in itertools.chain.from_iterable(self._pools.names().values()):
            self.remove_node(name)
        self._pools.declare(pools, (each.node for each in self._rows.states.values()))
        self._note_pools_changed()

    def set_node(self, node: Node, load: Load) -> None:
        """Add a node or replace its last state; `load` is the load of its pods."""
        if self._pools and not is_potential(node.name):
            known = self._rows.states.get(node.name)
            if self._pools.set_node(node, None if known is None else known.node):
                self._note_pools_changed()
        self._rows.set(node, load)
        self._touch(node.name)

    def remove_node(self, name: str) -> None:
        """Remove a node; the pods that hold a place there get another one."""
        if not self._rows.remove(name):
            return
        if self._pools.remove_node(name):
            self._note_pools_changed()
        self._touched.pop(name, None)
        for uid in self._holders.pop(name, {}):
            share = self._shares[uid]
            for there, _ in share.held:
                if there.node == name:
                    self._count_held_sort(there, -1)
            share.held = [held for held in share.held if held.place.node != name]
            self._unsettle(uid)
        self._note_news()

    def load_node(self, name: str, load: Load) -> None:
        """Replace the load of a node; safe for a node that is not known."""
        if self._rows.load(name, load):
            self._touch(name)

    def count_bound(
        self,
        appwrapper: str,
        requests: Resources,
        node: str,
        sign: int,
        sort: PodSort | None = None,
        template: str = "",
    ) -> None:
        """Count one bound pod of an AppWrapper, or uncount it; `sort` counts while pods are counted by sort."""
        bound = self._shares.setdefault(appwrapper, PlaceShare()).bound
        key = BoundPods(requests, node, sort if self._sorts is not None else None, template)
        bound[key] += sign
        if not bound[key]:
            del bound[key]
        self._unsettle(appwrapper)

    def nodes_with(self, appwrapper: str) -> dict[str, frozenset[str]]:
        """The nodes with pods of an active AppWrapper, or with their places in the last snapshot, by template."""
        share = self._shares.get(appwrapper)
        if share is None or share.gang is None:
            return {}
        if self._turns.is_under_way:
            self.settle()
        found = share.nodes_with_bound()
        for template, nodes in share.held_by_template().items():
            found.setdefault(template, set()).update(nodes)
        return {template: frozenset(nodes) for template, nodes in found.items() if nodes}

    @property
    def counts_sorts(self) -> bool:
        """True if the pods and the held places are counted by sort, because a term about pods is known."""
        return self._sorts is not None

    @property
    def sorts_version(self) -> int:
        """Grows with each change of pods that concerns a known term about pods."""
        return self._sorts.version if self._sorts is not None else 0

    @property
    def known_terms(self) -> FollowedTerms | None:
        """The terms by which pods are counted by sort; None while they are not, because no term is known."""
        return None if self._sorts is None else self._sorts.there.followed

    def begin_to_count_sorts(self) -> None:
        """Count pods by sort from now on. No bound pod is counted after this: the caller counts them all again."""
        self._sorts = PodSorts()
        for uid, share in self._shares.items():
            share.bound.clear()
            for each, _ in share.held:
                self._count_held_sort(each, +1)
            self._unsettle(uid)

    def count_sort(self, sort: PodSort, node: str, sign: int, *, is_permanent: bool) -> None:
        """Count one bound pod of anyone by its sort, or uncount it; nothing while pods are not counted by sort."""
        if self._sorts is not None:
            self._sorts.count(sort, node, sign)
            if is_permanent:
                self._lasting_sorts.count(sort, node, sign)
            self._note_news()

    def follow(self, followed: FollowedTerms) -> None:
        """Follow the terms of these gangs, beside those of the pods, in the next snapshots."""
        if self._sorts is not None:
            for each in (self._sorts, self._lasting_sorts):
                self._has_changed |= each.follow(followed)

    def reserve(self, appwrapper: str, gang: Gang, assignment: Assignment) -> None:
        """Hold places for the unbound pods of an active AppWrapper: its assignment, where that fits, else any."""
        share = self._shares.setdefault(appwrapper, PlaceShare())
        if share.gang is None:
            share.number = next(self._numbers)
        share.gang, share.assignment = gang, assignment
        self._unsettle(appwrapper)
        self._note_trust(appwrapper, share)

    def hold_growth(self, appwrapper: str, growth: Resources, starting: Counter[PodShape]) -> None:
        """Charge an active AppWrapper for this growth beside its demand, and hold places for its `starting` pods.

        Those are unbound pods, by their shapes; the pods of the demand are among them as far as they exist.
        """
        share = self._shares[appwrapper]
        if (share.growth, share.starting) != (growth, starting):
            self._unsettle(appwrapper)
            share.growth, share.starting = growth, starting
            self._note_trust(appwrapper, share)

    def release(self, appwrapper: str) -> None:
        """Hold no places for an AppWrapper any more."""
        share = self._shares.get(appwrapper)
        if share is not None:
            share.gang, share.assignment = None, ASSIGNED_NOWHERE
            share.growth, share.starting = NOTHING, Counter()
            self._turns.end_wait(appwrapper)
            self._unsettle(appwrapper)
            self._on_trust.pop(appwrapper, None)

    def pools_awaited_by(self, appwrapper: str, trusted: Trusted = ()) -> frozenset[str]:
        """The pools whose potential nodes an AppWrapper holds since places were given last.

        If it held none and had pods without a place, the pools that it trusted, those `trusted` by its growth included:
        their nodes took no pod of it. A search that was not made yet is made for it.
        """
        if self._turns.is_untried(appwrapper):
            self._turns.try_now(appwrapper)
            self.settle()
        share = self._shares.get(appwrapper)
        if share is None:
            return frozenset()
        held = {potential.pool_of(each.node) for each, _ in share.held} - {""}
        if held or not self._turns.is_waiting(appwrapper):
            return frozenset(held)
        return frozenset(pool for pool, _ in (*share.assignment.trusted, *trusted))

    def current(self, appwrapper: str) -> Assignment | None:
        """The places of an AppWrapper now, if all pods of its assignment are unbound and have one; else None.

        For each pod set, the nodes come first that take the fewest more of its pods while no place there is bound.
        None also for an assignment that trusts in potential nodes or in requested capacity.
        """
        if self._turns.has_new or self._turns.is_under_way:
            self.settle()
        share = self._shares.get(appwrapper)
        if share is None or share.gang is None or share.assignment.trusted or share.assignment.provisioning:
            return None
        held = share.held_by_template()
        found = tuple(self._ordered(each, held.get(each.template, {})) for each in share.gang.pod_sets)
        planned = [sum(pods for _, pods in places) for places in share.assignment.places]
        placed = [sum(pods for _, pods in places) for places in found]
        return Assignment(found) if placed == planned else None

    def _ordered(self, pod_set: PodSet, places: Mapping[str, int]) -> Places:
        """The places of a pod set; first the nodes that, by their bound pods, take the fewest more of its pods."""

        def spare(node: str) -> int:
            return self._rows.states[node].fitting_beside_bound(pod_set.requests) - places[node]

        return tuple((node, places[node]) for node in sorted(places, key=lambda node: (spare(node), node)))

    def ahead_of(self, appwrapper: str) -> frozenset[str]:
        """The uids of the AppWrappers that go first: their pods are to be bound before those of this one are created.

        They were reserved before this one. They hold places on a node on which this one has places, too, for a template
        with places on several nodes. kube-scheduler does not see places: it would put more pods of that template on the
        node than planned, and the pods of the others would find no room.
        """
        share = self._shares.get(appwrapper)
        if share is None or all(len(places) < 2 for places in share.assignment.places):
            return frozenset()
        if self._turns.has_new or self._turns.is_under_way:
            self.settle()
        nodes = {node for places in share.assignment.places if len(places) > 1 for node, _ in places}
        holders = {uid for node in nodes for uid in self._holders.get(node, ())}
        return frozenset(uid for uid in holders if self._shares[uid].number < share.number)

    # --- the snapshot ------------------------------------------------------------------------------------------

    def snapshot(self) -> NodeSnapshot:
        """The capacity at this moment, of the generation of the last one if nothing differs.

        Where rounds begin, it searches with the steps that are left of the present one, and charges what has no place.
        Elsewhere each snapshot is a round of its own.
        """
        self._turns.begin_snapshot(self._least_steps)
        if self._last is None or self._has_changed or self._turns.has_new:
            self.settle()
            self._last = self._following(self._last)
            self._has_changed = False
        return self._last.copy()

    def settle(self) -> None:
        """Give the unbound pods of each AppWrapper that changed their places, after all events so far."""
        self._begin_to_place()
        self._settle()
        if self._pools_changed:
            self._shrink_pools()
            self._rows.follow_traits()
            self._settle()

    def _begin_to_place(self) -> None:
        if self._pools_changed:
            self._grow_pools()
        self._rows.follow_traits()

    def begin_round(self) -> None:
        """Renew the steps of searches: from now on they are those of all snapshots until the next round."""
        self._turns.begin_round(self._least_steps)

    @property
    def has_untried(self) -> bool:
        """True if a further round has searches to make, even if nothing changes until then."""
        return self._turns.has_untried

    def place_next(self) -> bool:
        """Do a part of what the next snapshot would do about places, for one AppWrapper; False if nothing is left.

        The snapshot does the rest: what came meanwhile, and idle potential nodes.
        """
        self._begin_to_place()
        self._unsettle_crowded()
        return self._settle_next()

    def _following(self, last: NodeSnapshot | None) -> NodeSnapshot:
        nodes = self._rows.capacities()
        generation = object()
        if last is not None:
            # The last ones as long as they are the same, because they remember sums, groups and refusals.
            before = [last.free, last.allocatable, last.empty]
            nodes = [old if old.equals(new) else new for old, new in zip(before, nodes, strict=True)]
            if nodes == before and self._beyond == last.beyond and self._sorts_version == self._versions():
                generation = last.generation
        free, allocatable, empty = nodes
        uses = dict(self._uses)
        rows = {
            pool: tuple(self._rows.rows[name] for name in names)
            for pool, names in self._pools.names().items()
        }
        if rows != (last.potential if last is not None else {}):
            generation = object()
        self._sorts_version = self._versions()
        is_sorted = self._sorts is not None
        return NodeSnapshot(
            free,
            allocatable,
            empty,
            self._beyond,
            uses,
            generation=generation,
            potential=rows,
            there=self._sorts.taken() if self._sorts is not None else None,
            lasting=self._lasting_sorts.taken() if is_sorted else None,
        )

    def _versions(self) -> tuple[int, int]:
        return self.sorts_version, self._lasting_sorts.version

    def take_failures(self) -> list[Failure]:
        """The AppWrappers whose pods have no places because of an exception, each since it happened."""
        failures, self._failures = self._failures, {}
        return list(failures.values())

    # --- potential nodes ---------------------------------------------------------------------------------------

    def _note_trust(self, appwrapper: str, share: PlaceShare) -> None:
        if share.assignment.trusted or share.growth:
            self._on_trust[appwrapper] = None
        else:
            self._on_trust.pop(appwrapper, None)

    def _note_pools_changed(self) -> None:
        self._pools_changed = True
        self._note_news()
        for uid in self._on_trust:
            self._unsettle(uid)

    def _grow_pools(self) -> None:
        for node in self._pools.grow():
            self.set_node(node, NO_LOAD)

    def _shrink_pools(self) -> None:
        self._pools_changed = False
        gone = self._pools.shrink(
            lambda name: self._rows.states[name].node, lambda name: bool(self._holders.get(name))
        )
        for name in gone:
            self.remove_node(name)

    # --- places ------------------------------------------------------------------------------------------------

    def _unsettle(self, appwrapper: str) -> None:
        self._turns.begin(appwrapper)
        self._note_news()
        if self._pools and appwrapper in self._on_trust:
            self._pools_changed = True  # its potential nodes may be idle now

    def _note_news(self) -> None:
        self._has_changed = True
        self._turns.note_news()

    def _least_steps(self, uid: str) -> int:
        gang = self._shares[uid].gang
        return 0 if gang is None else len(gang.pod_sets)

    def _settle(self) -> None:
        """Give the unbound pods their places: planned ones first, then, where these do not fit, any."""
        self._unsettle_crowded()
        while self._settle_next():
            pass

    def _unsettle_crowded(self) -> None:
        """Settle again the AppWrappers with places on crowded nodes, where pods leave less room than is held."""
        for name in self._touched:
            if name in self._holders and self._rows.states[name].is_crowded:
                for uid in self._holders[name]:
                    self._turns.begin(uid)
        self._touched.clear()

    def _settle_next(self) -> bool:
        """Do the next step for one AppWrapper; False if there is none.

        An exception about one AppWrapper leaves its pods without places, which charges them to every view, and takes no
        place from another.
        """
        turn = self._turns.next()
        if turn is None:
            return False
        is_settled = True
        try:
            try:
                is_settled = self._settle_at(turn)
            except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the places of the others
                self._give_up(turn.uid, error)
        except BaseException:  # it is about none of them
            self._turns.begin(turn.uid)
            raise
        if is_settled:
            self._rests.pop(turn.uid, None)
        self._turns.end(turn, is_settled=is_settled)
        return True

    def _give_up(self, uid: str, error: Exception) -> None:
        """Leave an AppWrapper with the places that it has, because of an exception; all that it lacks is charged."""
        self.note_failure(uid, error)
        share = self._shares[uid]
        if share.gang is not None:
            self._turns.wait(uid)
        try:
            self._note_use(uid, share)  # not `_note_use_safely`, which may be what raised
        except Exception as another:  # noqa: BLE001  # it keeps its last known use
            self.note_failure(uid, another)
            self._note_worst_use(uid, share)

    def _settle_at(self, turn: PlaceTurn) -> bool:
        """Do one step for an AppWrapper; true if it is settled, as it also is after an exception."""
        try:
            is_settled = self._take_step(turn)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the places of the others
            is_settled = True
            self.note_failure(turn.uid, error)
            if turn.stage is not Stage.RELEASE:  # else it keeps the places that could not be released
                self._leave_unplaced(turn.uid)
        if is_settled:
            self._note_use_safely(turn.uid)
        return is_settled

    def _leave_unplaced(self, uid: str) -> None:
        try:
            self._release_places(uid)
        except Exception as error:  # noqa: BLE001  # as above
            self.note_failure(uid, error)
        self._turns.wait(uid)

    def _take_step(self, turn: PlaceTurn) -> bool:
        """Do one step for an AppWrapper; true if no other follows."""
        match turn.stage:
            case Stage.RELEASE:
                self._release_places(turn.uid)
                return False
            case Stage.HOLD_PLANNED:
                gang = self._shares[turn.uid].to_place
                if gang is None:
                    return True
                self._rests[turn.uid] = gang, self._hold_planned(turn.uid, gang)
                return False
            case Stage.HOLD_OTHERS:
                return self._settle_without_search(turn.uid)
            case Stage.SEARCH:
                self._search(turn.uid)
                return True

    def _settle_without_search(self, uid: str) -> bool:
        """Hold places for the pods without a planned one; false if a search for them may be needed."""
        gang, rest = self._rests[uid]
        if not any(rest.missing):
            self._turns.end_wait(uid)
        elif gang.may_need_search:
            self._turns.wait(uid)
            return False
        else:
            self._hold_elsewhere(uid, gang, rest)
        return True

    def _search(self, uid: str) -> None:
        """Search for places; once the steps are used up, a gang waits, because its search may be long."""
        if self._turns.has_steps:
            self._hold_elsewhere(uid, *self._rests[uid])
        else:
            self._turns.try_later(uid)

    def _note_use_safely(self, uid: str) -> None:
        try:
            self._note_use(uid, self._shares[uid])
        except Exception as error:  # noqa: BLE001  # it keeps its last known use
            self.note_failure(uid, error)
            self._note_worst_use(uid, self._shares[uid])

    def note_failure(self, uid: str, error: Exception) -> None:
        """Keep an exception about an AppWrapper until it is taken: the first one."""
        self._failures.setdefault(uid, Failure.of(uid, error))

    def _hold_planned(self, uid: str, gang: Gang) -> Unbound:
        """Hold the planned places that are there; return the pods of each pod set that have none."""
        rest = unbound(gang, self._shares[uid])
        if uid in self._on_trust:
            self._hold_on_trust(uid, gang, rest)
            return rest
        for index, (pod_set, plan) in enumerate(zip(gang.pod_sets, rest.planned, strict=True)):
            for node, pods in plan.items():
                found = self._fitting(node, pod_set.requests, pods)
                if found:
                    self._hold(
                        uid, Held(Place(node, pod_set.requests, found, pod_set.sort), pod_set.template)
                    )
                    rest.missing[index] -= found
                    rest.present[index][node] += found
        return rest

    def _hold_on_trust(self, uid: str, gang: Gang, rest: Unbound) -> None:
        """Hold the planned places of a gang on trust; those on a potential node may be on a node that came for it.

        Pods with rules about each other, planned on one potential node, move together, to a node without others of
        their gang.
        """
        has_rules = any(pod_set.has_rules for pod_set in gang.pod_sets)
        parts: dict[str, Counter[int]] = {}
        for index, plan in enumerate(rest.planned):
            for node, pods in plan.items():
                parts.setdefault(node, Counter())[index] += pods
        taken = {node for each in rest.present for node in each} if has_rules else set[str]()
        for node in sorted(parts, key=lambda name: (is_potential(name), name)):
            part, must_be_alone = parts[node], has_rules and is_potential(node)
            for home in self._pools.homes(node):
                if home != node and not self._may_use(home, gang, part):
                    continue
                if must_be_alone and (home in taken or not self._takes_all(home, gang, part)):
                    continue
                self._hold_there(uid, gang, rest, home, part)
                if has_rules:
                    taken.add(home)
                if not part.total():
                    break

    def _hold_there(self, uid: str, gang: Gang, rest: Unbound, node: str, part: Counter[int]) -> None:
        """Hold as many places of a part of a gang (pods by pod set) on one node as fit there."""
        for index, pods in part.items():
            pod_set = gang.pod_sets[index]
            found = self._fitting(node, pod_set.requests, pods)
            if found:
                self._hold(uid, Held(Place(node, pod_set.requests, found, pod_set.sort), pod_set.template))
                part[index] -= found
                rest.missing[index] -= found
                rest.present[index][node] += found

    def _may_use(self, node: str, gang: Gang, part: Mapping[int, int]) -> bool:
        """True if the taints and labels of a node keep no pod of a part of a gang away; `part` is by pod set."""
        row = self._rows.traits.rows.get(node)
        return row is not None and all(
            self._rows.traits.usable_by(gang.pod_sets[index])[row] for index, pods in part.items() if pods
        )

    def _takes_all(self, node: str, gang: Gang, part: Mapping[int, int]) -> bool:
        """True if a node takes a whole part of a gang (pods by pod set)."""
        requests = sum_of(gang.pod_sets[index].requests * pods for index, pods in part.items())
        known = self._rows.states.get(node)
        return (
            known is not None and known.free_slots >= sum(part.values()) and known.fitting(requests, 1) == 1
        )

    def _hold_elsewhere(self, uid: str, gang: Gang, rest: Unbound) -> None:
        """Hold places on any nodes, on trust also on potential ones, for the pods without a planned one, if all fit."""
        self._turns.end_wait(uid)
        pod_sets = self._apart_from_others(uid, gang, rest)
        others = self._anywhere(uid, pod_sets, rest, self._rows.traits)
        if not others and uid in self._on_trust:
            others = self._anywhere(uid, pod_sets, rest, self._rows.all_traits)
        for each in others:
            self._hold(uid, each)
        if others:
            self._turns.end_wait(uid)  # also if a search on fewer nodes was to be made again
        else:
            self._turns.wait(uid)

    def _fitting(self, node: str, requests: Resources, pods: int) -> int:
        """How many of `pods` pods fit on a node beside all that is there and held."""
        known = self._rows.states.get(node)
        return 0 if known is None else known.fitting(requests, pods)

    def _apart_from_others(self, uid: str, gang: Gang, rest: Unbound) -> list[PodSet]:
        """The pod sets of a gang, which are not to be in domains that other pods of the same set close to them."""
        nodes = self._shares[uid].nodes_with_bound() if any(each.apart for each in gang.pod_sets) else {}
        return [
            apart_from(each, {*+present, *nodes.get(each.template, ())}, self._domains_of)
            for each, present in zip(gang.pod_sets, rest.present, strict=True)
        ]

    def _domains_of(self, topology: str, nodes: Iterable[str]) -> frozenset[str]:
        return values_of(
            topology, (self._rows.states[name].node for name in nodes if name in self._rows.states)
        )

    def _anywhere(self, uid: str, pod_sets: Sequence[PodSet], rest: Unbound, traits: Traits) -> list[Held]:
        """Places for the pods that are missing, with their templates; none if they do not all fit."""
        room, rows = self._rows.free_room(), self._rows.rows
        present = [{rows[node]: pods for node, pods in each.items() if node in rows} for each in rest.present]
        share, tally = self._shares[uid], Tally()
        found = place(pod_sets, room, traits, Rest(rest.missing, present), tally, share.steps)
        self._turns.use(tally.steps)
        if isinstance(found, Unplaceable) and found.undecided and share.steps < MOST_STEPS_IN_ALL:
            share.steps = min(2 * share.steps, MOST_STEPS_IN_ALL)
            self._turns.try_later(uid)  # with so many steps
        if isinstance(found, Unplaceable):
            return []
        return [
            Held(Place(node.name, pod_set.requests, int(pods[row]), pod_set.sort), pod_set.template)
            for pod_set, pods in zip(pod_sets, found, strict=True)
            for row in np.flatnonzero(pods)
            if (node := traits.nodes[row]) is not None
        ]

    def _hold(self, uid: str, held: Held) -> None:
        """Hold one more place for an AppWrapper; a place that could not be counted is none."""
        self._count_place(held.place, +1)
        self._shares[uid].held.append(held)
        self._holders.setdefault(held.place.node, {})[uid] = None

    def _release_places(self, uid: str) -> None:
        """Hold no places for an AppWrapper."""
        held = self._shares[uid].held
        while held:
            each, _ = held[-1]
            self._count_place(each, -1)
            self._holders.get(each.node, {}).pop(uid, None)
            held.pop()

    def _count_place(self, each: Place, sign: int) -> None:
        # The node is there, because its places are dropped with it.
        self._rows.hold(each.node, each.requests, each.pods * sign)
        self._count_held_sort(each, sign)
        self._has_changed = True  # but the node is not crowded by that, and it is no news to searches

    def _count_held_sort(self, each: Place, sign: int) -> None:
        if self._sorts is not None and each.sort is not None:
            self._sorts.count(each.sort, each.node, each.pods * sign)

    def _note_use(self, uid: str, share: PlaceShare) -> None:
        """Keep the use of an AppWrapper for snapshots, and its demand that has no place."""
        bound = tuple(Place(each.node, each.requests, pods, each.sort) for each, pods in share.bound.items())
        held = tuple(each for each, _ in share.held)
        beyond = NOTHING
        if share.gang is not None:
            placed = sum_of(each.requests * each.pods for each in (*bound, *held))
            beyond = (share.gang.demand + share.growth - placed).positive_part()
        self._beyond += beyond - share.beyond
        share.beyond = beyond
        if share.gang is None and not bound and not share.held:
            del self._shares[uid]
            self._uses.pop(uid, None)
        else:
            self._uses[uid] = Use(bound, held, share.beyond)

    def _note_worst_use(self, uid: str, share: PlaceShare) -> None:
        """Charge all that an AppWrapper holds to every view, beside its places, if no use of it is known."""
        if share.gang is not None and uid not in self._uses:
            share.beyond = share.gang.demand + share.growth
            self._beyond += share.beyond
            self._uses[uid] = Use((), (), share.beyond)

    def _touch(self, name: str) -> None:
        self._touched[name] = None
        self._note_news()
