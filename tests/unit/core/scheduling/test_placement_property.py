"""Never more than there is, never part of a gang: over clusters, queues and histories nobody thought of."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ANYWHERE
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, Score, score
from dispatcher.core.scheduling.fit.fit import fit, fits
from tests.builders import make_record, make_snapshots
from tests.one_queue import plan
from tests.unit.core.scheduling.capacity_definition import account
from tests.unit.core.scheduling.exact import FreeNode, can_place, free_node, is_placement

TAINTS = [Taint("gpu", "", "NoSchedule"), Taint("spot", "", "PreferNoSchedule")]
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "gpu", "memory"]), st.integers(0, 6)).map(Resources)
TOLERATIONS = st.sampled_from([(), (Toleration("gpu", "Exists"),)])


@dataclass(frozen=True)
class World:
    """One cluster: its nodes, the pods on them, and what active AppWrappers have reserved."""

    nodes: list[Node]
    pods: list[Pod]
    reservations: dict[str, Resources]

    def ledger(self) -> CapacityLedger:
        ledger = CapacityLedger(FitMode.AGGREGATE)
        for node in self.nodes:
            ledger.set_node(node)
        for pod in self.pods:
            ledger.set_pod(pod)
        for uid, demand in self.reservations.items():
            ledger.reserve(uid, Gang(demand))
        return ledger


def gang_of(count: int, each: Resources, tolerations: tuple[Toleration, ...]) -> Gang:
    return Gang(each * count, count, (PodSet(count, each, tolerations),))


def numbered_pods(pods: list[Pod]) -> list[Pod]:
    return [replace(pod, uid=f"pod-{index}") for index, pod in enumerate(pods)]


def numbered_nodes(nodes: list[Node]) -> list[Node]:
    return [replace(node, name=f"n{index}") for index, node in enumerate(nodes)]


NODES = st.lists(
    st.builds(
        Node,
        name=st.just(""),
        allocatable=AMOUNTS,
        usable=st.sampled_from([True, True, True, False]),
        taints=st.lists(st.sampled_from(TAINTS), max_size=2, unique=True).map(tuple),
    ),
    max_size=4,
).map(numbered_nodes)
PODS = st.lists(
    st.builds(
        Pod,
        uid=st.just(""),
        requests=AMOUNTS,
        node=st.sampled_from(["", "n0", "n1", "n2", "gone"]),
        phase=st.sampled_from(PodPhase),
        owner=st.sampled_from([None, "active-1", "active-2"]),
    ),
    max_size=5,
).map(numbered_pods)
WORLDS = st.builds(World, NODES, PODS, st.dictionaries(st.sampled_from(["active-1", "active-2"]), AMOUNTS))
CLUSTERS = st.dictionaries(st.sampled_from(["east", "hub", "west"]), WORLDS, max_size=3)
GANGS = st.builds(gang_of, st.integers(0, 3), AMOUNTS, TOLERATIONS)


@st.composite
def queues(draw: st.DrawFn) -> list[Record]:
    """A queue in which shapes come back, as they do."""
    shapes = draw(st.lists(GANGS, min_size=1, max_size=4))
    gangs = draw(st.lists(st.sampled_from(shapes), max_size=12))
    return [make_record(name=f"aw-{index}", gang=gang) for index, gang in enumerate(gangs)]


def snapshots_of(worlds: Mapping[str, World]) -> dict[str, ClusterSnapshot]:
    return make_snapshots(**{name: world.ledger().snapshot() for name, world in worlds.items()})


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, queues())
def test_dispatched_demand_never_exceeds_capacity_and_a_gang_is_whole_or_absent(
    worlds: dict[str, World], queue: list[Record]
) -> None:
    snapshots = snapshots_of(worlds)
    outcomes = plan(queue, snapshots)

    assert [outcome.record for outcome in outcomes] == queue
    charged = dict.fromkeys(worlds, NOTHING)
    for outcome in outcomes:
        if not isinstance(outcome, Placed):
            continue
        world, gang = worlds[outcome.cluster], outcome.record.gang
        charged[outcome.cluster] += gang.demand
        free = account(world.nodes, world.pods, world.reservations, gang)
        for resource in gang.demand:
            assert charged[outcome.cluster][resource] <= free[resource]
    for name, world in worlds.items():
        free = account(world.nodes, world.pods, world.reservations)
        assert snapshots[name].capacity.free_for(None) == free - charged[name]


@settings(max_examples=40, deadline=None)
@given(CLUSTERS, queues())
def test_gang_that_is_not_placed_fits_no_cluster(worlds: dict[str, World], queue: list[Record]) -> None:
    snapshots = snapshots_of(worlds)
    capacities = [snapshot.capacity for snapshot in snapshots.values()]
    for outcome in plan(queue, snapshots):
        gang = outcome.record.gang
        if isinstance(outcome, Waiting | Impossible):
            assert not any(gang.demand.fits_in(capacity.free_for(gang)) for capacity in capacities)
        fits_one_empty = any(gang.demand.fits_in(capacity.total_for(gang)) for capacity in capacities)
        if isinstance(outcome, Impossible):
            assert not fits_one_empty
        if isinstance(outcome, Waiting):
            assert fits_one_empty or not snapshots


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, queues())
def test_remembered_rejections_change_no_decision(worlds: dict[str, World], queue: list[Record]) -> None:
    def decision(outcome: Outcome) -> tuple[str, str]:
        requirements = outcome.cluster if isinstance(outcome, Placed) else outcome.pending.cluster
        return type(outcome).__name__, requirements

    assert [decision(each) for each in plan(queue, snapshots_of(worlds))] == one_by_one(queue, worlds)


def one_by_one(queue: list[Record], worlds: dict[str, World]) -> list[tuple[str, str]]:
    """The same decisions by somebody who remembers nothing and takes each gang for the first of its shape."""
    snapshots = snapshots_of(worlds)
    free = {name: snapshot.capacity for name, snapshot in snapshots.items()}
    decisions = []
    for gang in (record.gang for record in queue):

        def rated(name: str, gang: Gang = gang) -> Score:
            return score(gang, ANYWHERE, snapshots[name], free[name].free_for(gang))

        fits = [name for name in free if gang.demand.fits_in(free[name].free_for(gang))]
        fits.sort(key=rated)
        hopes = [name for name in sorted(free) if gang.demand.fits_in(free[name].total_for(gang))]
        if fits:
            free[fits[0]].take(gang)
        kind = "Placed" if fits else "Waiting" if hopes or not free else "Impossible"
        decisions.append((kind, next(iter([*fits, *hopes, *sorted(free)]), "")))
    return decisions


class ManyCycles(RuleBasedStateMachine):
    """Cycle after cycle, with pods that come up, run and go: what is charged never exceeds what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.worlds = {
            "east": World([Node("n1", Resources({"cpu": 4, "gpu": 1}))], [], {}),
            "west": World([Node("n1", Resources({"cpu": 3})), Node("n2", Resources({"cpu": 3}))], [], {}),
        }
        self.ledgers = {name: world.ledger() for name, world in self.worlds.items()}
        self.queue: list[Record] = []
        self.active: dict[str, Placed] = {}
        self.pods: dict[str, list[Pod]] = {}
        self.submitted = 0

    @rule(count=st.integers(1, 3), cpu=st.integers(0, 4), gpu=st.integers(0, 1))
    def somebody_submits(self, count: int, cpu: int, gpu: int) -> None:
        gang = gang_of(count, Resources({"cpu": cpu, "gpu": gpu}), ())
        self.queue.append(make_record(name=f"aw-{self.submitted}", gang=gang))
        self.submitted += 1

    @rule()
    def a_cycle_runs(self) -> None:
        outcomes = plan(
            self.queue, make_snapshots(**{name: ledger.snapshot() for name, ledger in self.ledgers.items()})
        )
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                record = outcome.record
                self.ledgers[outcome.cluster].reserve(record.uid, record.gang)
                self.active[record.uid] = outcome
        self.queue = [record for record in self.queue if record.uid not in self.active]

    @rule(data=st.data())
    def a_pod_of_an_active_gang_comes_up(self, data: st.DataObject) -> None:
        short = [
            placed
            for uid, placed in self.active.items()
            if len(self.pods.get(uid, ())) < placed.record.gang.pods
        ]
        if not short:
            return
        placed = data.draw(st.sampled_from(short))
        node = data.draw(st.sampled_from(["", *(each.name for each in self.worlds[placed.cluster].nodes)]))
        uid, (pod_set,) = placed.record.uid, placed.record.gang.pod_sets
        pods = self.pods.setdefault(uid, [])
        pod = Pod(f"{uid}-{len(pods)}", pod_set.requests, node, PodPhase.RUNNING, owner=uid)
        pods.append(pod)
        self.ledgers[placed.cluster].set_pod(pod)

    @rule(data=st.data())
    def a_gang_is_over(self, data: st.DataObject) -> None:
        if not self.active:
            return
        uid = data.draw(st.sampled_from(sorted(self.active)))
        ledger = self.ledgers[self.active.pop(uid).cluster]
        for pod in self.pods.pop(uid, ()):
            ledger.remove_pod(pod.uid)
        ledger.release(uid)

    @invariant()
    def dispatched_demand_never_exceeds_capacity(self) -> None:
        for name, world in self.worlds.items():
            total = sum((node.allocatable for node in world.nodes), start=NOTHING)
            demand = sum(
                (placed.record.gang.demand for placed in self.active.values() if placed.cluster == name),
                start=NOTHING,
            )
            assert demand.fits_in(total)

    @invariant()
    def a_gang_is_queued_or_on_one_cluster(self) -> None:
        assert not {record.uid for record in self.queue} & self.active.keys()


ManyCycles.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestManyCycles = ManyCycles.TestCase


# -----------------------------------------------------------------------------------------------------------
# The placer against a complete search: it never places what does not fit, and refuses little of what does.


INSTANCES = 1500
RACKS: list[dict[str, str]] = [{"rack": "1"}, {"rack": "2"}, {"rack": "3"}, {}]
"""Racks cross zones."""
TAINT = Taint("team", "a", "NoSchedule")


def random_node(chance: random.Random, at: int) -> Node:
    return Node(
        f"n{at}",
        Resources({"cpu": chance.choice([2, 4, 8]), "nvidia.com/gpu": chance.choice([0, 0, 1, 2, 4])}),
        taints=chance.choice([(), (), (), (TAINT,)]),
        labels={"zone": chance.choice("ab"), "host": f"n{at}", **chance.choice(RACKS)},
        most_pods=chance.choice([None, None, 2, 4]),
    )


def random_spread(chance: random.Random) -> tuple[Spread, ...]:
    topologies = chance.choice(
        [[], [], [], [], [], ["host"], ["zone"], ["host", "zone"], ["rack"], ["rack", "zone"]]
    )
    return tuple(
        Spread(
            topology,
            chance.choice([1, 1, 2]),
            chance.choice([1, 1, 2, 3]),
            ignores_requirements=chance.random() < 0.2,
            honors_taints=chance.random() < 0.5,
        )
        for topology in topologies
    )


def random_pod_set(chance: random.Random) -> PodSet:
    requests = {"cpu": chance.choice([0, 1, 1, 2, 3, 4, 8]), "nvidia.com/gpu": chance.choice([0, 0, 0, 1, 2])}
    return PodSet(
        chance.randint(1, 4),
        Resources(requests),
        tolerations=chance.choice([(), (Toleration("team", "Exists"),)]),
        nodes=chance.choice([NodeRequirements(), NodeRequirements(), NodeRequirements((("zone", "a"),))]),
        apart=chance.choice([(), (), (), ("host",), ("zone",)]),
        together=chance.choice([(), (), (), (), ("zone",)]),
        spread=random_spread(chance),
    )


def with_repulsions(chance: random.Random, pod_sets: list[PodSet]) -> tuple[PodSet, ...]:
    """The pod sets, of which neighbours may keep away from each other."""
    for at in range(len(pod_sets) - 1):
        label = chance.choice(["", "", "", "host", "zone", "rack"])
        if label:
            first, second = pod_sets[at], pod_sets[at + 1]
            pod_sets[at] = replace(first, away=(*first.away, (label, 1)))
            pod_sets[at + 1] = replace(second, away=(*second.away, (label, -1)))
    return tuple(pod_sets)


def with_counts(chance: random.Random, pod_sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    """The pod sets, whose spreads may count the pods of others."""
    found = list(pod_sets)
    for at, pod_set in enumerate(found):
        others = [*range(at), *range(at + 1, len(found))]
        counts = tuple(one - at for one in others if chance.random() < 0.7)
        found[at] = replace(pod_set, spread=tuple(replace(each, counts=counts) for each in pod_set.spread))
    return tuple(found)


def with_attractions(chance: random.Random, pod_sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    """The pod sets, of which some must be near to some others."""
    found = list(pod_sets)
    for at, pod_set in enumerate(found):
        label, others = (
            chance.choice(["", "", "host", "zone", "rack"]),
            [*range(at), *range(at + 1, len(found))],
        )
        if label and others:
            chosen = chance.sample(others, chance.randint(1, len(others)))
            found[at] = replace(pod_set, near=((label, tuple(one - at for one in sorted(chosen))),))
    return tuple(found)


def limited(node: Node) -> FreeNode:
    return FreeNode(node, node.allocatable, node.most_pods)


def test_placements_hold_and_at_most_one_in_a_hundred_is_missed() -> None:
    chance = random.Random(15)  # noqa: S311  # repeatable
    possible = missed = 0
    for _ in range(INSTANCES):
        nodes = [random_node(chance, at) for at in range(chance.randint(2, 6))]
        pod_sets = with_repulsions(chance, [random_pod_set(chance) for _ in range(chance.randint(1, 3))])
        if chance.random() < 0.2:
            pod_sets = with_attractions(chance, pod_sets)
        if chance.random() < 0.5:
            pod_sets = with_counts(chance, pod_sets)
        ledger = CapacityLedger(FitMode.NODE)
        for node in nodes:
            ledger.set_node(node)
        demand = sum((each.requests * each.count for each in pod_sets), start=NOTHING)
        gang, changed = Gang(demand, 0, pod_sets), ledger.snapshot()
        found = fit(gang, ledger.snapshot())
        changed.take(Gang(NOTHING, 1, (PodSet(1, NOTHING),)), Assignment((((nodes[0].name, 0),),)))
        for capacity in (ledger.snapshot(), changed):  # before and after a change, of nothing
            assert fits(gang, capacity) is isinstance(found, Assignment)
        free = [free_node(node) if node.most_pods is None else limited(node) for node in nodes]
        if isinstance(found, Assignment):
            placement = [tuple(name for name, pods in places for _ in range(pods)) for places in found.places]
            assert is_placement(free, pod_sets, placement)
            possible += 1
        elif can_place(free, pod_sets):
            possible += 1
            missed += 1
    assert possible > INSTANCES / 6
    assert missed * 100 <= possible
