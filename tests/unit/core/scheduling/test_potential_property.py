"""Pools that grow, under events in any order: nodes and potential nodes are never promised twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, Taint
from dispatcher.core.model.clusters.potential import PotentialPool, is_potential, pool_of
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.fit import fit

NAMES = st.sampled_from(["n1", "n2", "n3"])
UIDS = st.sampled_from(["a", "b", "c"])
SHAPES = {
    "large": Node("", Resources({"cpu": 8, "gpu": 2}), labels={"pool": "large"}),
    "small": Node("", Resources({"cpu": 4}), labels={"pool": "small"}),
}
POOLS = st.tuples(st.integers(0, 4), st.integers(0, 3)).map(
    lambda most: tuple(
        PotentialPool(name, SHAPES[name], each) for name, each in zip(SHAPES, most, strict=True) if each
    )
)
NODES = st.builds(
    lambda name, pool, usable, taints: Node(
        name,
        SHAPES[pool].allocatable,
        taints=taints,
        labels={**SHAPES[pool].labels, HOSTNAME: name},
        usable=usable,
        ready=usable,
    ),
    NAMES,
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([True, True, False]),
    st.sampled_from([(), (), (Taint("not-set-up", "", "NoSchedule"),)]),
)
POD_SETS = st.builds(
    PodSet,
    st.integers(1, 4),
    st.builds(lambda cpu, gpu: Resources({"cpu": cpu, "gpu": gpu}), st.integers(1, 5), st.integers(0, 2)),
    apart=st.sampled_from([(), (), (HOSTNAME,)]),
    spread=st.sampled_from([(), (), (Spread(HOSTNAME),)]),
)


def gang_of(pod_sets: list[PodSet]) -> Gang:
    demand = sum((each.total for each in pod_sets), start=NOTHING)
    return Gang(demand, sum(each.count for each in pod_sets), tuple(pod_sets))


GANGS = st.lists(POD_SETS, min_size=1, max_size=2, unique_by=lambda each: each.requests).map(gang_of)


class PoolsUnderEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CapacityLedger(FitMode.NODE)
        self.is_looked_at = True
        self.pools: tuple[PotentialPool, ...] = ()
        self.nodes: dict[str, Node] = {}
        self.active: dict[str, tuple[Gang, Assignment]] = {}
        self.pods: dict[str, Pod] = {}

    @rule()
    def nobody_looks_for_a_while(self) -> None:
        """Events then come between the parts in which places are given."""
        self.is_looked_at = False

    @rule()
    def somebody_looks(self) -> None:
        self.is_looked_at = True

    @rule(parts=st.integers(1, 6))
    def some_parts_of_the_places_are_given(self, parts: int) -> None:
        for _ in range(parts):
            self.ledger.place_next()

    @rule(pools=POOLS)
    def pools_are_declared(self, pools: tuple[PotentialPool, ...]) -> None:
        self.pools = pools
        self.ledger.set_pools(pools)

    @rule(node=NODES)
    def a_node_comes(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.ledger.set_node(node)

    @rule(name=NAMES)
    def a_node_is_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.ledger.remove_node(name)

    @rule(uid=UIDS, gang=GANGS)
    def a_gang_that_fits_is_dispatched(self, uid: str, gang: Gang) -> None:
        found = fit(gang, self.ledger.snapshot())
        if uid not in self.active and isinstance(found, Assignment):
            assert Counter(pods for each in found.places for _, pods in each).total()
            self.active[uid] = gang, found
            self.ledger.reserve(uid, gang, found)

    @rule(uid=UIDS, name=NAMES, data=st.data())
    def a_pod_is_bound(self, uid: str, name: str, data: st.DataObject) -> None:
        if uid in self.active and name in self.nodes:
            pod_set = data.draw(st.sampled_from(self.active[uid][0].pod_sets))
            pod = Pod(f"p{len(self.pods)}", pod_set.requests, name, PodPhase.RUNNING, owner=uid)
            self.pods[pod.uid] = pod
            self.ledger.set_pod(pod)

    @rule(uid=UIDS)
    def a_gang_is_over(self, uid: str) -> None:
        self.active.pop(uid, None)
        self.ledger.release(uid)
        for each in [pod for pod in self.pods.values() if pod.owner == uid]:
            self.ledger.remove_pod(each.uid)
            self.pods[each.uid] = Pod(each.uid, each.requests)

    @rule(data=st.data())
    def a_new_leader_takes_over(self, data: st.DataObject) -> None:
        self.ledger = CapacityLedger(FitMode.NODE)
        for event in data.draw(st.permutations(["pools", "nodes", "pods", "gangs"])):
            match event:
                case "pools":
                    self.ledger.set_pools(self.pools)
                case "nodes":
                    for node in self.nodes.values():
                        self.ledger.set_node(node)
                case "pods":
                    for pod in self.pods.values():
                        self.ledger.set_pod(pod)
                case "gangs":
                    for uid, (gang, assignment) in self.active.items():
                        self.ledger.reserve(uid, gang, assignment)
            if data.draw(st.booleans()):
                self.ledger.snapshot()

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def a_pool_never_has_more_nodes_than_its_maximum(self) -> None:
        nodes = self.ledger.snapshot().nodes
        assert nodes is not None
        for pool in self.pools:
            there = [each for each in self.nodes.values() if pool.has(each)]
            count = len(nodes.potential[pool.name])
            ready = sum(each.usable and not each.taints for each in there)
            assert pool.count(len(there)) <= count <= pool.count(ready)
            held = {
                each.node
                for use in nodes.uses.values()
                for each in use.held
                if pool_of(each.node) == pool.name
            }
            assert count <= max(pool.count(len(there)), len(held))

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def places_are_there_and_only_gangs_on_trust_have_potential_ones(self) -> None:
        nodes = self.ledger.snapshot().nodes
        assert nodes is not None
        held: dict[str, Resources] = {}
        for uid, use in nodes.uses.items():
            for each in use.held:
                held[each.node] = held.get(each.node, NOTHING) + each.requests * each.pods
                assert not is_potential(each.node) or self.active[uid][1].trusted
        shapes = {pool.name: pool.shape for pool in self.pools}
        for name, amounts in held.items():
            if is_potential(name):
                assert amounts.fits_in(shapes[pool_of(name)].allocatable)
            else:
                bound = [pod.requests for pod in self.pods.values() if pod.node == name]
                assert self.nodes[name].usable
                assert amounts.fits_in(self.nodes[name].allocatable - sum(bound, start=NOTHING))

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def a_new_fit_takes_only_what_no_gang_holds(self) -> None:
        there = self.ledger.snapshot()
        one = gang_of([PodSet(1, Resources({"cpu": 1, "gpu": 1}))])
        taken = 0
        while isinstance(found := fit(one, there), Assignment):
            there.take(one, found)
            taken += 1
        mine = self.ledger.snapshot().nodes
        assert mine is not None
        all_nodes = [each for each in self.nodes.values() if each.usable]
        most = sum(each.allocatable["gpu"] for each in all_nodes)
        most += sum(len(mine.potential[pool.name]) * pool.shape.allocatable["gpu"] for pool in self.pools)
        used = sum(each.requests["gpu"] * each.pods for use in mine.uses.values() for each in use.held)
        assert taken <= most - used


PoolsUnderEvents.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestPoolsUnderEvents = PoolsUnderEvents.TestCase
