"""The node ledger under events in any order: every unbound pod has a place or is charged, and no node is oversold."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity import node_ledger
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots
from dispatcher.core.scheduling.fit.fit import fit
from dispatcher.core.scheduling.placement import placement
from dispatcher.core.scheduling.placement.node_room import Room
from dispatcher.core.scheduling.placement.node_traits import Traits
from dispatcher.core.scheduling.placement.placement import Placement, Rest, Unplaceable
from dispatcher.core.scheduling.placement.placement_bounds import Tally

NODE_NAMES = st.sampled_from(["n1", "n2", "n3"])
APPWRAPPERS = st.sampled_from(["a", "b", "c"])
TAINT = Taint("gpu", "", "NoSchedule")
NODES = st.builds(
    Node,
    name=NODE_NAMES,
    allocatable=st.builds(
        lambda cpu, gpu: Resources({"cpu": cpu, "gpu": gpu}), st.integers(0, 8), st.integers(0, 2)
    ),
    usable=st.sampled_from([True, True, True, False]),
    taints=st.sampled_from([(), (), (TAINT,)]),
    labels=st.sampled_from([{"zone": "a"}, {"zone": "b"}, {}]),
    most_pods=st.sampled_from([None, None, 3]),
)
POD_SETS = st.builds(
    PodSet,
    st.integers(1, 3),
    st.builds(lambda cpu, gpu: Resources({"cpu": cpu, "gpu": gpu}), st.integers(1, 4), st.integers(0, 1)),
    st.sampled_from([(), (Toleration("gpu", "Exists"),)]),
    spread=st.sampled_from([(), (), (Spread("zone"),), (Spread("zone", 2, 2),)]),
)


def gang_of(pod_sets: list[PodSet]) -> Gang:
    demand = sum((each.requests * each.count for each in pod_sets), start=NOTHING)
    return Gang(demand, sum(each.count for each in pod_sets), tuple(pod_sets))


GANGS = st.lists(POD_SETS, min_size=1, max_size=2, unique_by=lambda each: each.requests).map(gang_of)


class NodesUnderEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CapacityLedger(FitMode.NODE)
        self.is_looked_at = True
        self.nodes: dict[str, Node] = {}
        self.active: dict[str, Gang] = {}
        self.bound: dict[str, Pod] = {}
        self.grown: dict[str, Counter[Resources]] = {}
        self.made = 0

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

    @rule(node=NODES)
    def a_node_is_there(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.ledger.set_node(node)

    @rule(name=NODE_NAMES)
    def a_node_is_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.ledger.remove_node(name)

    @rule(name=NODE_NAMES, cpu=st.integers(0, 4))
    def a_foreign_pod_is_bound(self, name: str, cpu: int) -> None:
        self.bind(Pod(f"p{self.made}", Resources({"cpu": cpu}), name, PodPhase.RUNNING))

    @rule(uid=APPWRAPPERS, gang=GANGS)
    def a_gang_that_fits_is_dispatched(self, uid: str, gang: Gang) -> None:
        found = fit(gang, self.ledger.snapshot())
        if uid not in self.active and isinstance(found, Assignment):
            self.active[uid] = gang
            self.ledger.reserve(uid, gang, found)

    @rule(uid=APPWRAPPERS, gang=GANGS)
    def a_gang_of_an_earlier_release_is_loaded(self, uid: str, gang: Gang) -> None:
        if uid not in self.active:
            self.active[uid] = gang
            self.ledger.reserve(uid, gang)

    @rule(uid=APPWRAPPERS, data=st.data(), is_admitted=st.booleans())
    def a_growth_of_one_pod_is_granted(self, uid: str, data: st.DataObject, is_admitted: bool) -> None:
        """The pod is gated or admitted, and has no node yet."""
        if uid in self.active and uid not in self.grown:
            requests = data.draw(st.sampled_from(self.active[uid].pod_sets)).requests
            self.grown[uid] = Counter([requests])
            gate = None if is_admitted else Gate("team-a", f"g{uid}", "")
            self.ledger.reserve(uid, self.active[uid], grown=requests)
            self.ledger.set_pod(Pod(f"g{uid}", requests, owner=uid, gate=gate, can_be_gated=True))

    @rule(uid=APPWRAPPERS)
    def a_granted_pod_is_gone_and_its_growth_too(self, uid: str) -> None:
        if self.grown.pop(uid, None) is not None:
            self.ledger.remove_pod(f"g{uid}")
            self.ledger.reserve(uid, self.active[uid])

    @rule(uid=APPWRAPPERS, name=NODE_NAMES, data=st.data())
    def a_pod_of_a_gang_is_bound_anywhere(self, uid: str, name: str, data: st.DataObject) -> None:
        if uid in self.active:
            left = self.unbound(uid) - self.grown.get(uid, Counter())
            missing = [each for each in self.active[uid].pod_sets if left[each.requests]]
            if missing:
                requests = data.draw(st.sampled_from(missing)).requests
                self.bind(Pod(f"p{self.made}", requests, name, PodPhase.RUNNING, owner=uid))

    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        if self.bound:
            uid = data.draw(st.sampled_from(sorted(self.bound)))
            del self.bound[uid]
            self.ledger.remove_pod(uid)

    @rule(uid=APPWRAPPERS)
    def a_gang_is_over(self, uid: str) -> None:
        self.a_granted_pod_is_gone_and_its_growth_too(uid)
        self.active.pop(uid, None)
        self.ledger.release(uid)
        for each in [pod for pod in self.bound.values() if pod.owner == uid]:
            del self.bound[each.uid]
            self.ledger.remove_pod(each.uid)

    def bind(self, pod: Pod) -> None:
        self.made += 1
        self.bound[pod.uid] = pod
        self.ledger.set_pod(pod)

    def unbound(self, uid: str) -> Counter[Resources]:
        """The unbound pods of an active AppWrapper by their requests."""
        left = Counter({each.requests: each.count for each in self.active[uid].pod_sets})
        left.subtract(pod.requests for pod in self.bound.values() if pod.owner == uid)
        return left + self.grown.get(uid, Counter())

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def every_unbound_pod_has_a_place_or_is_charged_to_the_cluster(self) -> None:
        uses = self.uses()
        for uid in self.active:
            places, beyond = uses[uid]
            held = Counter[Resources]()
            for _, requests, pods, _ in places:
                held[requests] += pods
            without = self.unbound(uid) - held
            assert held <= self.unbound(uid)
            assert beyond == sum((requests * pods for requests, pods in without.items()), start=NOTHING)

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def places_are_on_usable_nodes_that_have_room_for_them(self) -> None:
        held: dict[str, Resources] = {}
        pods: Counter[str] = Counter()
        for places, _ in self.uses().values():
            for name, requests, count, _ in places:
                held[name] = held.get(name, NOTHING) + requests * count
                pods[name] += count
        for name, amounts in held.items():
            node, there = self.nodes[name], [pod for pod in self.bound.values() if pod.node == name]
            used = sum((pod.requests for pod in there), start=NOTHING)
            assert node.usable
            assert amounts.fits_in(node.allocatable - used)
            assert node.most_pods is None or pods[name] + len(there) <= node.most_pods

    @precondition(lambda self: self.is_looked_at)
    @invariant()
    def without_the_gangs_only_the_pods_of_others_take_capacity(self) -> None:
        mine = self.ledger.snapshot().nodes
        assert mine is not None
        without = mine.without_gangs(self.active)
        others = CapacityLedger(FitMode.NODE)
        for node in self.nodes.values():
            others.set_node(node)
        for pod in self.bound.values():
            if pod.owner is None:
                others.set_pod(pod)
        assert without.free_for(None) == others.snapshot().free_for(None)
        assert self.ledger.snapshot() == self.ledger.snapshot()

    def uses(self) -> dict[str, tuple[tuple[Place, ...], Resources]]:
        snapshot = self.ledger.snapshot().nodes
        assert snapshot is not None
        return {uid: (use.held, use.beyond) for uid, use in snapshot.uses.items() if uid in self.active}


NodesUnderEvents.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestNodesUnderEvents = NodesUnderEvents.TestCase


def test_lowest_amounts_follow_a_change_of_either_capacity() -> None:
    """They are kept for the next gang only as long as nothing changes."""
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(Node("n", Resources({"cpu": 4000})))
    snapshot = ledger.snapshot().nodes
    assert snapshot is not None
    one, other = snapshot.free.copy(), snapshot.free.copy()
    first = one.lowest(other)
    assert one.lowest(other) is first
    for number, changed in enumerate((one, other, one), start=1):
        changed.take("n", Resources({"cpu": 1000}), number)
        least = one.lowest(other).sum_for(None, Resources())
        assert least["cpu"] == 4000 - 1000 * (1, 2, 4)[number - 1]
    assert one.lowest(one.copy()) is not one.lowest(other)


@pytest.mark.parametrize(
    ("earlier", "later", "bound", "expected"),
    [
        pytest.param({"n1": 1}, {"n1": 1, "n2": 1}, [], {"earlier"}, id="on-one-of-several-nodes"),
        pytest.param({"n1": 1}, {"n1": 1}, [], set(), id="on-the-only-node"),
        pytest.param({"n3": 1}, {"n1": 1, "n2": 1}, [], set(), id="on-another-node"),
        pytest.param({"n1": 1}, {"n1": 1, "n2": 1}, ["n1"], set(), id="bound"),
        pytest.param({"n1": 2}, {"n1": 1, "n2": 1}, ["n1"], {"earlier"}, id="bound-in-part"),
        pytest.param({"n1": 1}, {"n1": 1, "n2": 1}, ["n3"], set(), id="bound-elsewhere"),
    ],
)
def test_gang_on_several_nodes_comes_after_gangs_with_unbound_pods_there(
    earlier: dict[str, int], later: dict[str, int], bound: list[str], expected: set[str]
) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    requests = Resources({"cpu": 1000})
    for name in ("n1", "n2", "n3"):
        ledger.set_node(Node(name, requests * 4))
    for uid, places in (("earlier", earlier), ("later", later)):
        pod_set = PodSet(sum(places.values()), requests)
        ledger.reserve(uid, gang_of([pod_set]), Assignment((tuple(places.items()),)))
    for number, name in enumerate(bound):
        ledger.set_pod(Pod(f"p{number}", requests, name, PodPhase.RUNNING, owner="earlier"))
    assert ledger.ahead_of("later") == expected
    assert ledger.ahead_of("earlier") == set()


@pytest.mark.parametrize(
    ("plan", "taken", "expected"),
    [
        pytest.param({"n1": 1, "n2": 1}, {}, {"n1": 1, "n2": 1}, id="planned"),
        pytest.param({"n1": 1, "n2": 1}, {"n1": 4}, {"n2": 2}, id="one-taken-meanwhile"),
        pytest.param({"n1": 1, "n2": 1}, {"n2": 2}, {"n2": 1, "n1": 1}, id="fewest-more-first"),
        pytest.param({"n1": 2, "n2": 2}, {"n1": 4, "n2": 1, "n3": 4}, None, id="not-all-there"),
        pytest.param({"n1": 1, "potential/pool/0": 1}, {}, None, id="trusts-in-potential-nodes"),
    ],
)
def test_current_places_are_those_that_are_held_when_the_pods_are_made(
    plan: dict[str, int], taken: dict[str, int], expected: dict[str, int] | None
) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    requests = Resources({"cpu": 1000})
    for name in ("n1", "n2", "n3"):
        ledger.set_node(Node(name, requests * 4))
    pod_set = PodSet(sum(plan.values()), requests)
    ledger.reserve("a", gang_of([pod_set]), Assignment((tuple(plan.items()),)))
    for name, pods in taken.items():
        ledger.set_pod(Pod(f"on-{name}", requests * pods, name, PodPhase.RUNNING))
    found = ledger.current("a")
    assert (None if found is None else found.places) == (
        None if expected is None else (tuple(expected.items()),)
    )


def test_pods_without_requests_have_current_places_too() -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(Node("n", Resources({"cpu": 1000}), most_pods=3))
    places = Assignment(((("n", 2),),))
    ledger.reserve("a", gang_of([PodSet(2, NOTHING)]), places)
    assert ledger.current("a") == places


# -----------------------------------------------------------------------------------------------------------
# An exception while one AppWrapper gets its places takes no place from another one, and is kept to be
# logged.


TENANT = Resources({"cpu": 3})
HONEST = Resources({"cpu": 4})


def gang_with_places(requests: Resources) -> Gang:
    return Gang(requests, 1, (PodSet(1, requests),))


@pytest.fixture
def ledger() -> CapacityLedger:
    """Three nodes: the tenant's pod has its place on the first, the honest one's on the second."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for name in ("n1", "n2", "n3"):
        ledger.set_node(Node(name, Resources({"cpu": 8})))
    ledger.reserve("tenant", gang_with_places(TENANT), Assignment(((("n1", 1),),)))
    ledger.reserve("honest", gang_with_places(HONEST), Assignment(((("n2", 1),),)))
    ledger.snapshot()
    return ledger


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Any placement of the tenant's pod raises these exceptions in turn, the last one again and again."""
    errors: list[Exception] = [RecursionError("too deep")]

    def place(
        pod_sets: Sequence[PodSet], room: Room, traits: Traits, rest: Rest, tally: Tally, most: int
    ) -> Placement | Unplaceable:
        if errors and any(each.requests == TENANT for each in pod_sets):
            raise errors[0]
        return placement.place(pod_sets, room, traits, rest, tally, most)

    monkeypatch.setattr(node_ledger, "place", place)
    return errors


def crowd(ledger: CapacityLedger) -> None:
    """Foreign pods take both planned places, so that both gangs need other ones."""
    ledger.set_pod(Pod("f1", Resources({"cpu": 6}), "n1", PodPhase.RUNNING))
    ledger.set_pod(Pod("f2", Resources({"cpu": 6}), "n2", PodPhase.RUNNING))


def held(ledger: CapacityLedger, uid: str) -> list[str]:
    nodes = ledger.snapshot().nodes
    assert nodes is not None
    return [each.node for each in nodes.uses[uid].held]


def test_others_keep_their_places_and_the_demand_without_a_place_is_charged(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    before = ledger.free()
    crowd(ledger)
    for _ in range(3):
        assert held(ledger, "honest") == ["n3"]
        assert held(ledger, "tenant") == []
    assert before - ledger.free() == Resources({"cpu": 12})
    assert ledger.take_failures() == [Failure("tenant", raised[0])]
    assert ledger.take_failures() == []


def test_gang_gets_a_place_once_its_placement_raises_no_more(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    crowd(ledger)
    ledger.snapshot()
    raised.clear()
    ledger.set_pod(Pod("f3", Resources({"cpu": 1}), "n3", PodPhase.RUNNING))
    assert held(ledger, "tenant") == ["n3"]


def test_lack_of_memory_is_not_the_fault_of_a_gang_and_the_next_snapshot_settles_again(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    raised[:] = [MemoryError()]
    crowd(ledger)
    with pytest.raises(MemoryError):
        ledger.snapshot()
    raised.clear()
    assert held(ledger, "honest") == ["n3"]
    assert held(ledger, "tenant") == ["n3"]
    assert ledger.take_failures() == []


def test_parts_of_the_places_leave_nothing_to_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    for number in range(3):
        ledger.set_node(Node(f"n{number}", Resources({"cpu": 8})))
    ledger.snapshot()
    for uid in ("a", "b"):
        ledger.reserve(uid, gang_of([PodSet(2, Resources({"cpu": 2}))]), Assignment(((("n0", 2),),)))
    ledger.reserve("c", gang_of([PodSet(1, Resources({"cpu": 3}))]), Assignment(((("n0", 1),),)))
    parts = 0
    while ledger.place_next():
        parts += 1
    assert parts >= 3 * 3
    monkeypatch.setattr(node_ledger, "place", lambda *_: pytest.fail("a place was sought again"))
    assert [held(ledger, uid) for uid in "abc"] == [["n0"], ["n0"], ["n1"]]


def test_one_that_asks_between_two_parts_sees_all_places() -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(Node("n0", Resources({"cpu": 8})))
    gang = gang_of([PodSet(2, Resources({"cpu": 2}))])
    ledger.reserve("a", gang, Assignment(((("n0", 2),),)))
    ledger.snapshot()
    ledger.set_pod(Pod("p", Resources({"cpu": 1}), "n0", PodPhase.RUNNING, owner="a"))
    for _ in range(2):
        assert ledger.place_next()
    assert ledger.nodes_with("a") == {"0.": frozenset({"n0"})}


# -----------------------------------------------------------------------------------------------------------
# Gangs whose places need a long search take a bounded number of steps in each snapshot, in turns.


SIZES = [*[2, 4, 6, 8] * 15, 2]
"""Requests of pods, even amounts, that fill three nodes of an odd amount by their sum and by no placement."""


def crowded_out(gangs: int) -> CapacityLedger:
    """Gangs without places: plain pods have taken their nodes."""
    each = -(-sum(SIZES) // 3) | 1
    gang = gang_of([PodSet(1, Resources({"cpu": cpu}), path=str(n)) for n, cpu in enumerate(SIZES)])
    ledger = CapacityLedger(FitMode.NODE)
    for name in ("n1", "n2", "n3"):
        ledger.set_node(Node(name, Resources({"cpu": 2**20})))
    ledger.snapshot()
    for number in range(gangs):
        found = fit(gang, ledger.snapshot())
        assert isinstance(found, Assignment)
        ledger.reserve(f"gang-{number}", gang, found)
    for name in ("n1", "n2", "n3"):
        ledger.set_pod(Pod(f"plain-{name}", Resources({"cpu": 2**20 - each}), name, PodPhase.RUNNING))
    return ledger


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each search for places of a ledger."""
    found: list[int] = []

    def place(
        pod_sets: Sequence[PodSet], room: Room, traits: Traits, rest: Rest, tally: Tally, most: int
    ) -> Placement | Unplaceable:
        answer = placement.place(pod_sets, room, traits, rest, tally, most)
        found.append(tally.steps)
        return answer

    monkeypatch.setattr(node_ledger, "place", place)
    return found


def test_steps_of_a_snapshot_do_not_grow_with_the_gangs_whose_search_is_long(searched: list[int]) -> None:
    ledger = crowded_out(40)
    for turn in range(4):
        searched.clear()
        ledger.set_pod(Pod(f"other-{turn}", Resources({"memory": 1}), "n1", PodPhase.RUNNING))
        snapshot = ledger.snapshot()
        assert 0 < sum(searched[:-1]) <= node_ledger.MOST_STEPS_OF_ROUND
        assert len(searched) < 40
        assert snapshot.free_for(None)["cpu"] < 0  # what has no place is charged


def test_each_gang_without_places_gets_them_in_its_turn(searched: list[int]) -> None:
    ledger = crowded_out(40)
    ledger.snapshot()
    ledger.set_node(Node("n4", Resources({"cpu": 2**20})))
    turns = 0
    while any(not held(ledger, f"gang-{number}") for number in range(40)):
        assert searched, "a snapshot searched for nothing"
        searched.clear()
        turns += 1
    assert turns <= 40


def crowded_spreads(gangs: int) -> CapacityLedger:
    """Gangs of one pod set with crossing spreads, whose places are gone: their pods fit, but not as they are spread."""
    gang = gang_of([PodSet(200, Resources({"cpu": 1}), spread=(Spread("zone"), Spread("type")))])
    ledger = CapacityLedger(FitMode.NODE)
    cells = [("a", "x", 200), ("a", "y", 1), ("b", "y", 200), ("b", "w", 200), ("a", "w", 0)]
    for number, (zone, type_, _) in enumerate(cells):
        labels = {"zone": zone, "type": type_}
        ledger.set_node(Node(f"old-{number}", Resources({"cpu": 10**6}), labels=labels))
    for number in range(gangs):
        found = fit(gang, ledger.snapshot())
        assert isinstance(found, Assignment)
        ledger.reserve(f"gang-{number}", gang, found)
    for number, (zone, type_, left) in enumerate(cells):
        ledger.remove_node(f"old-{number}")
        labels = {"zone": zone, "type": type_}
        ledger.set_node(Node(f"new-{number}", Resources({"cpu": left}), labels=labels))
    return ledger


def test_steps_of_a_snapshot_are_bounded_for_gangs_of_one_pod_set_with_rules(searched: list[int]) -> None:
    snapshot = crowded_spreads(40).snapshot()
    assert 0 < sum(searched[:-1]) <= node_ledger.MOST_STEPS_OF_ROUND
    assert len(searched) < 40
    assert snapshot.free_for(None)["cpu"] < 0  # what has no place is charged


def test_search_of_a_gang_is_made_though_others_change_all_the_time() -> None:
    others = 8
    ledger = crowded_out(others)
    ledger.set_node(Node("g1", Resources({"gpu": 3})))
    gang = gang_of([PodSet(1, Resources({"gpu": number}), path=str(number)) for number in (1, 2)])
    found = fit(gang, ledger.snapshot())
    assert isinstance(found, Assignment)
    ledger.reserve("victim", gang, found)
    ledger.remove_node("g1")
    held(ledger, "victim")
    ledger.set_node(Node("g2", Resources({"gpu": 3})))
    for turn in range(others + 1):
        for number in range(others):
            ledger.set_pod(
                Pod(f"tiny-{turn}-{number}", NOTHING, "n1", PodPhase.RUNNING, owner=f"gang-{number}")
            )
        if held(ledger, "victim"):
            break
    assert held(ledger, "victim") == ["g2", "g2"]


def test_round_searches_once_and_what_is_read_between_rounds_searches_no_more(searched: list[int]) -> None:
    ledger = crowded_out(40)
    for _ in range(3):
        searched.clear()
        ledger.begin_round()
        while ledger.place_next():
            pass
        assert searched, "places are searched for before the snapshot"
        searched.clear()
        for number in range(3):
            ledger.set_pod(Pod(f"other-{number}", Resources({"memory": 1}), "n1", PodPhase.RUNNING))
            ledger.snapshot()
        assert not searched


def test_gang_under_crossing_spreads_gets_its_places_again_at_once() -> None:
    """Its first search has few steps, and each of its pods counts as one."""
    spread = (Spread("zone"), Spread("type"))
    sets = [PodSet(129, Resources({"cpu": cpu}), spread=spread, path=str(cpu)) for cpu in (1, 2)]
    gang = gang_of(sets)
    ledger = CapacityLedger(FitMode.NODE)

    def add_nodes(name: str) -> None:
        for number, (zone, type_) in enumerate([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]):
            labels = {"zone": zone, "type": type_}
            ledger.set_node(Node(f"{name}-{number}", Resources({"cpu": 10**6}), labels=labels))

    add_nodes("old")
    found = fit(gang, ledger.snapshot())
    assert isinstance(found, Assignment)
    ledger.reserve("gang", gang, found)
    for number in range(4):
        ledger.remove_node(f"old-{number}")
    add_nodes("new")
    assert len(held(ledger, "gang")) > 0


def test_news_reach_each_gang_without_places_however_many_there_are() -> None:
    wide = 128
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(Node("n1", Resources({"cpu": 10**6, "memory": 10**6})))
    never = gang_of([PodSet(1, Resources({"cpu": 1 + number}), path=str(number)) for number in range(wide)])
    good = gang_of([PodSet(1, Resources({"memory": 1 + number}), path=str(number)) for number in range(2)])
    gangs = [never] * (node_ledger.MOST_STEPS_OF_ROUND // wide) + [good]
    for number, gang in enumerate(gangs):
        found = fit(gang, ledger.snapshot())
        assert isinstance(found, Assignment)
        ledger.reserve(f"gang-{number}", gang, found)
    ledger.remove_node("n1")
    ledger.snapshot()

    def play_round() -> None:
        ledger.begin_round()
        while ledger.place_next():
            pass

    rounds = 0
    while rounds == 0 or ledger.has_untried:
        play_round()
        rounds += 1
        assert rounds <= 3, "rounds without news come to an end"
    ledger.set_node(Node("n2", Resources({"memory": 10})))
    rounds = 0
    while not held(ledger, f"gang-{len(gangs) - 1}"):
        play_round()
        rounds += 1
        assert rounds <= 3


def test_ledgers_and_snapshots_die_with_their_last_reference() -> None:
    """The leader collects no cycles of references: what keeps itself alive stays for ever."""
    world = parse_scenario(
        {
            "clusters": [{"name": "east", "nodes": [{"name": "n", "allocatable": {"cpu": 4, "pods": 9}}]}],
            "running": [{"name": "r", "cluster": "east", "pods": [{"requests": {"cpu": 1}, "nodes": ["n"]}]}],
            "pending": [{"name": "p", "demand": {"cpu": 9}}],
        }
    )
    gc.disable()
    try:
        known, ledger = KnownSnapshots(), CapacityLedger(FitMode.NODE)
        known.of(world)
        dead = weakref.ref(known), weakref.ref(ledger), weakref.ref(node_ledger.NodeLedger())
        del known, ledger
        assert [each() for each in dead] == [None, None, None]
    finally:
        gc.enable()
