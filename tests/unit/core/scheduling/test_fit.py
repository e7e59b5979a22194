"""Whether a gang fits a cluster on nodes, where its pods go, and why it does not fit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.fit import Shortfall, fit, fits_in_empty, shortfall_in_empty

GPU = "nvidia.com/gpu"
RESERVED = Taint("team", "a", "NoSchedule")
TOLERATED = (Toleration("team", value="a"),)
A100 = NodeRequirements((("gpu", "a100"),))


def node(
    name: str,
    *taints: Taint,
    most_pods: int | None = None,
    labels: dict[str, str] | None = None,
    **amounts: int,
) -> Node:
    return Node(name, amounts_of(amounts), taints=taints, labels=labels or {}, most_pods=most_pods)


def amounts_of(amounts: dict[str, int]) -> Resources:
    return Resources({GPU if name == "gpu" else name: amount for name, amount in amounts.items()})


def pods(count: int, **fields: object) -> PodSet:
    requests = {name: amount for name, amount in fields.items() if isinstance(amount, int)}
    others = {name: value for name, value in fields.items() if name not in requests}
    return PodSet(count, amounts_of(requests), **others)  # type: ignore[arg-type]


def gang(*pod_sets: PodSet, **beyond: int) -> Gang:
    demand = amounts_of(beyond)
    for pod_set in pod_sets:
        demand += pod_set.requests * pod_set.count
    return Gang(demand, sum(pod_set.count for pod_set in pod_sets), pod_sets)


def ledger_of(*nodes: Node, bound: tuple[Pod, ...] = ()) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE)
    for each in nodes:
        ledger.set_node(each)
    for pod in bound:
        ledger.set_pod(pod)
    return ledger


def shortfall_of(asked: Gang, snapshot: CapacitySnapshot) -> tuple[Shortfall, tuple[str, int]]:
    found = fit(asked, snapshot)
    assert isinstance(found, Shortfall)
    return found, found.scarcest(asked)


TWO_EIGHTS = (node("n1", cpu=8), node("n2", cpu=8))


@pytest.mark.parametrize(
    ("nodes", "asked", "places"),
    [
        pytest.param(TWO_EIGHTS, gang(pods(2, cpu=8)), [{"n1": 1, "n2": 1}], id="a-node-for-each-pod"),
        pytest.param(TWO_EIGHTS, gang(pods(1, cpu=9)), None, id="no-pod-spans-nodes"),
        pytest.param(TWO_EIGHTS, gang(pods(3, cpu=5)), None, id="fragments-are-no-place"),
        pytest.param(
            TWO_EIGHTS, gang(pods(8, cpu=1), pods(1, cpu=8)), [{"n2": 8}, {"n1": 1}], id="large-pods-first"
        ),
        pytest.param(
            TWO_EIGHTS, gang(pods(1, cpu=8), cpu=8), [{"n1": 1}], id="demand-beyond-the-pods-has-room"
        ),
        pytest.param(TWO_EIGHTS, gang(pods(1, cpu=8), cpu=9), None, id="demand-beyond-the-pods-has-no-room"),
        pytest.param(
            (node("n1", cpu=8, most_pods=2),), gang(pods(3, cpu=1)), None, id="pods-of-a-node-are-limited"
        ),
        pytest.param(
            (node("n1", cpu=8, most_pods=2),),
            gang(pods(2, cpu=1)),
            [{"n1": 2}],
            id="as-many-pods-as-a-node-takes",
        ),
        pytest.param((node("n1", cpu=8),), gang(pods(1, fpga=1)), None, id="resource-that-no-node-has"),
        pytest.param((node("n1", cpu=8),), gang(pods(3)), [{"n1": 3}], id="pods-without-requests"),
        pytest.param((node("n1", RESERVED, cpu=8),), gang(pods(1, cpu=1)), None, id="taint-not-tolerated"),
        pytest.param(
            (node("n1", RESERVED, cpu=8), node("n2", cpu=4)),
            gang(pods(1, cpu=4), pods(1, cpu=8, tolerations=TOLERATED)),
            [{"n2": 1}, {"n1": 1}],
            id="each-pod-set-by-its-own-tolerations",
        ),
        pytest.param((replace(node("n1", cpu=8), usable=False),), gang(pods(1, cpu=1)), None, id="cordoned"),
        pytest.param(
            (node("n1", cpu=8), node("n2", cpu=8, labels={"gpu": "a100"})),
            gang(pods(1, cpu=1, nodes=A100)),
            [{"n2": 1}],
            id="node-selector",
        ),
        pytest.param(
            (node("n1", cpu=8), node("n2", cpu=8)),
            gang(
                pods(
                    1,
                    cpu=1,
                    nodes=NodeRequirements(
                        terms=(
                            NodeTerm(names=(LabelRequirement("metadata.name", LabelOperator.IN, ("n2",)),)),
                        )
                    ),
                )
            ),
            [{"n2": 1}],
            id="required-affinity-to-a-name",
        ),
        pytest.param(
            (node("n1", cpu=8, gpu=1), node("n2", cpu=8)),
            gang(pods(1, cpu=4)),
            [{"n2": 1}],
            id="pods-without-devices-keep-off-nodes-with-devices",
        ),
        pytest.param(
            (node("n1", cpu=8, gpu=8), node("n2", cpu=8, gpu=2)),
            gang(pods(1, gpu=2)),
            [{"n2": 1}],
            id="few-devices-of-a-node-are-used-up-first",
        ),
    ],
)
def test_fit_gives_every_pod_a_node_or_nothing(
    nodes: tuple[Node, ...], asked: Gang, places: list[dict[str, int]] | None
) -> None:
    found = fit(asked, ledger_of(*nodes).snapshot())
    if places is None:
        assert isinstance(found, Shortfall)
    else:
        assert isinstance(found, Assignment)
        assert [dict(each) for each in found.places] == places


ZONES = tuple(node(f"n{at}", cpu=4, labels={"zone": zone, "host": f"n{at}"}) for at, zone in enumerate("aab"))


@pytest.mark.parametrize(
    ("asked", "is_placed"),
    [
        pytest.param(pods(3, cpu=1, apart=("host",)), True, id="one-pod-on-each-node"),
        pytest.param(pods(4, cpu=1, apart=("host",)), False, id="more-pods-than-nodes"),
        pytest.param(pods(2, cpu=1, apart=("zone",)), True, id="one-pod-in-each-zone"),
        pytest.param(pods(3, cpu=1, apart=("zone",)), False, id="more-pods-than-zones"),
        pytest.param(pods(8, cpu=1, together=("zone",)), True, id="all-pods-in-the-larger-zone"),
        pytest.param(pods(9, cpu=1, together=("zone",)), False, id="no-zone-has-room-for-all"),
        pytest.param(pods(2, cpu=1, together=("rack",)), False, id="no-node-has-the-label"),
        pytest.param(pods(3, cpu=1, together=("zone",), apart=("host",)), False, id="together-and-apart"),
        pytest.param(
            pods(2, cpu=1, together=("zone",), apart=("host",)), True, id="in-one-zone-on-two-nodes"
        ),
    ],
)
def test_pods_that_repel_or_attract_each_other(asked: PodSet, is_placed: bool) -> None:
    assert isinstance(fit(gang(asked), ledger_of(*ZONES).snapshot()), Assignment) is is_placed


def away(label: str, distance: int, count: int, cpu: int = 1) -> PodSet:
    return pods(count, cpu=cpu, away=((label, distance),))


@pytest.mark.parametrize(
    ("asked", "is_placed"),
    [
        pytest.param(gang(away("host", 1, 1), away("host", -1, 8)), True, id="not-on-one-node"),
        pytest.param(gang(away("host", 1, 1), away("host", -1, 9)), False, id="two-nodes-are-left"),
        pytest.param(gang(away("zone", 1, 8), away("zone", -1, 4)), True, id="not-in-one-zone"),
        pytest.param(
            gang(away("zone", 1, 4), away("zone", -1, 8)), True, id="the-smaller-zone-for-the-smaller"
        ),
        pytest.param(gang(away("zone", 1, 5), away("zone", -1, 5)), False, id="one-zone-has-room-for-four"),
        pytest.param(
            gang(away("zone", 2, 2), pods(8, cpu=1), away("zone", -2, 2)), True, id="others-are-free"
        ),
        pytest.param(
            gang(away("rack", 1, 6), away("rack", -1, 6)), True, id="without-the-label-nothing-is-shared"
        ),
    ],
)
def test_pod_sets_that_repel_each_other(asked: Gang, is_placed: bool) -> None:
    found = fit(asked, ledger_of(*ZONES).snapshot())
    assert isinstance(found, Assignment) is is_placed
    if isinstance(found, Assignment):
        values = {each.name: each.labels for each in ZONES}
        for index, pod_set in enumerate(asked.pod_sets):
            for label, distance in pod_set.away:
                others = found.places[index + distance]
                used = {values[name].get(label, name) for name, _ in found.places[index]}
                assert used.isdisjoint(values[name].get(label) for name, _ in others)


def near(label: str, count: int, *distances: int, **fields: object) -> PodSet:
    return pods(count, cpu=1, near=((label, distances),), **fields)


LAST = NodeRequirements((("host", "n2"),))


@pytest.mark.parametrize(
    ("asked", "is_placed"),
    [
        pytest.param(gang(pods(1, cpu=3), near("host", 1, -1)), True, id="on-the-same-node"),
        pytest.param(gang(pods(1, cpu=3), near("host", 2, -1)), False, id="the-node-has-room-for-one"),
        pytest.param(gang(pods(1, cpu=3), near("zone", 5, -1)), True, id="in-the-larger-zone"),
        pytest.param(
            gang(pods(1, cpu=3), near("zone", 6, -1)), False, id="the-larger-zone-has-room-for-five"
        ),
        pytest.param(gang(pods(1, cpu=3, nodes=LAST), near("zone", 1, -1)), True, id="in-the-smaller-zone"),
        pytest.param(gang(pods(1, cpu=3, nodes=LAST), near("zone", 2, -1)), False, id="only-there"),
        pytest.param(gang(near("zone", 12 - 2, 1), pods(2, cpu=1)), True, id="one-for-each-zone"),
        pytest.param(gang(near("zone", 12 - 1, 1), pods(1, cpu=1)), False, id="one-for-two-zones"),
        pytest.param(
            gang(near("zone", 4, 1, 2), pods(1, cpu=1, nodes=LAST), pods(4, cpu=1)),
            True,
            id="one-of-two-sets",
        ),
        pytest.param(gang(pods(1, cpu=1), near("rack", 1, -1)), False, id="no-node-has-the-label"),
        pytest.param(
            gang(near("zone", 2, 1, together=("zone",)), near("zone", 6, -1, together=("zone",))),
            True,
            id="all-in-one-zone",
        ),
        pytest.param(
            gang(near("zone", 3, 1, together=("zone",)), near("zone", 6, -1, together=("zone",))),
            False,
            id="no-zone-has-room-for-all",
        ),
    ],
)
def test_pod_sets_that_must_be_near_others(asked: Gang, is_placed: bool) -> None:
    found = fit(asked, ledger_of(*ZONES).snapshot())
    assert isinstance(found, Assignment) is is_placed
    if isinstance(found, Assignment):
        values = {each.name: each.labels for each in ZONES}
        for index, pod_set in enumerate(asked.pod_sets):
            for label, distances in pod_set.near:
                others = [name for distance in distances for name, _ in found.places[index + distance]]
                there = {values[name][label] for name in others}
                assert {values[name][label] for name, _ in found.places[index]} <= there


def test_all_pods_of_a_large_gang_find_the_zone_that_has_room_for_them() -> None:
    nodes = [node(f"n{at}", cpu=8, labels={"zone": f"z{at % 30}"}) for at in range(300)]
    full = [
        Pod(f"p{at}", Resources({"cpu": 7}), f"n{at}", PodPhase.RUNNING) for at in range(300) if at % 30 != 7
    ]
    one, two = ("zone", (1,)), ("zone", (2,))
    back_one, back_two = ("zone", (-1,)), ("zone", (-2,))
    rules = (one, two), (back_one, one), (back_two, back_one)
    asked = gang(*(pods(20, cpu=1, together=("zone",), near=each) for each in rules))
    found = fit(asked, ledger_of(*nodes, bound=tuple(full)).snapshot())
    assert isinstance(found, Assignment)
    assert {int(name[1:]) % 30 for name in found.nodes} == {7}


def test_unbound_pods_hold_places_near_the_bound_ones_of_another_set() -> None:
    ledger, asked = ledger_of(*ZONES), gang(pods(1, cpu=2), near("host", 2, -1))
    ledger.reserve("a", asked)
    ledger.set_pod(Pod("a-1", Resources({"cpu": 2}), "n2", PodPhase.RUNNING, owner="a"))
    assert isinstance(fit(gang(pods(1, cpu=1, nodes=LAST)), ledger.snapshot()), Shortfall)
    assert isinstance(fit(gang(pods(2, cpu=4)), ledger.snapshot()), Assignment)


def test_unbound_pods_hold_places_away_from_the_bound_ones_of_another_set() -> None:
    ledger, asked = ledger_of(*ZONES[:2]), gang(away("host", 1, 1, cpu=2), away("host", -1, 1))
    ledger.reserve("a", asked)
    ledger.set_pod(Pod("a-1", Resources({"cpu": 2}), "n0", PodPhase.RUNNING, owner="a"))
    assert fit(gang(pods(1, cpu=2)), ledger.snapshot()) == Assignment(((("n0", 1),),))
    assert isinstance(fit(gang(pods(1, cpu=4)), ledger.snapshot()), Shortfall)


@pytest.mark.parametrize(
    ("nodes", "asked", "shortfall"),
    [
        pytest.param(
            TWO_EIGHTS, gang(pods(3, cpu=8)), (Shortfall(Resources({"cpu": 8})), ("cpu", 0)), id="sum"
        ),
        pytest.param(
            TWO_EIGHTS,
            gang(pods(3, cpu=5)),
            (Shortfall(pod_set=0, fitting=2), ("cpu", 8)),
            id="pod-set-alone",
        ),
        pytest.param(
            TWO_EIGHTS,
            gang(pods(2, cpu=5), pods(1, cpu=4)),
            (Shortfall(), ("cpu", 8)),
            id="pod-sets-only-together",
        ),
    ],
)
def test_shortfall_names_the_sum_or_the_nodes(
    nodes: tuple[Node, ...], asked: Gang, shortfall: tuple[Shortfall, tuple[str, int]]
) -> None:
    snapshot = ledger_of(*nodes).snapshot()
    for found in (fit(asked, snapshot), shortfall_in_empty(asked, snapshot)):
        assert isinstance(found, Shortfall)
        assert (found, found.scarcest(asked)) == shortfall


def test_live_pods_take_their_node_and_ending_ones_leave_it_in_the_empty_cluster() -> None:
    busy = Pod("p", Resources({"cpu": 5}), "n1", PodPhase.RUNNING)
    daemon = Pod("d", Resources({"cpu": 1}), "n2", PodPhase.RUNNING, never_ends=True)
    snapshot = ledger_of(*TWO_EIGHTS, bound=(busy, daemon)).snapshot()
    assert fit(gang(pods(1, cpu=7)), snapshot) == Assignment(((("n2", 1),),))
    assert isinstance(fit(gang(pods(1, cpu=8)), snapshot), Shortfall)
    assert fits_in_empty(gang(pods(1, cpu=8)), snapshot)
    assert not fits_in_empty(gang(pods(2, cpu=8)), snapshot)


def test_gang_that_is_placed_takes_its_nodes_from_the_snapshot() -> None:
    snapshot = ledger_of(*TWO_EIGHTS).snapshot()
    asked = gang(pods(1, cpu=5))
    for _ in range(2):
        found = fit(asked, snapshot)
        assert isinstance(found, Assignment)
        snapshot.take(asked, found)
    assert snapshot.free_for(None) == Resources({"cpu": 6})
    assert shortfall_of(asked, snapshot) == (Shortfall(pod_set=0, fitting=0), ("cpu", 3))


def test_reservation_holds_the_assigned_nodes_until_pods_are_bound_there() -> None:
    ledger, asked = ledger_of(*TWO_EIGHTS), gang(pods(2, cpu=3))
    ledger.reserve("a", asked, Assignment(((("n2", 2),),)))
    assert fit(gang(pods(1, cpu=8)), ledger.snapshot()) == Assignment(((("n1", 1),),))
    ledger.set_pod(Pod("a-1", Resources({"cpu": 3}), "n2", PodPhase.RUNNING, owner="a"))
    assert fit(gang(pods(1, cpu=8)), ledger.snapshot()) == Assignment(((("n1", 1),),))
    assert ledger.free() == Resources({"cpu": 10})


def test_pod_that_binds_elsewhere_takes_a_place_of_its_gang() -> None:
    ledger, asked = ledger_of(*TWO_EIGHTS), gang(pods(2, cpu=3))
    ledger.reserve("a", asked, Assignment(((("n2", 2),),)))
    ledger.set_pod(Pod("a-1", Resources({"cpu": 3}), "n1", PodPhase.RUNNING, owner="a"))
    assert fit(gang(pods(2, cpu=5)), ledger.snapshot()) == Assignment(((("n1", 1), ("n2", 1)),))
    assert isinstance(fit(gang(pods(1, cpu=6)), ledger.snapshot()), Shortfall)


def test_places_move_when_their_node_cannot_take_them_any_more() -> None:
    ledger, asked = ledger_of(*TWO_EIGHTS), gang(pods(2, cpu=3))
    ledger.reserve("a", asked, Assignment(((("n2", 2),),)))
    assert ledger.snapshot().free_for(None) == Resources({"cpu": 10})
    ledger.set_node(replace(TWO_EIGHTS[1], usable=False))
    assert fit(gang(pods(1, cpu=2)), ledger.snapshot()) == Assignment(((("n1", 1),),))
    assert isinstance(fit(gang(pods(1, cpu=3)), ledger.snapshot()), Shortfall)
    ledger.remove_node("n1")
    assert ledger.snapshot().free_for(None) == Resources({"cpu": -6})
    ledger.set_node(TWO_EIGHTS[0])
    ledger.set_node(TWO_EIGHTS[1])
    ledger.release("a")
    assert isinstance(fit(gang(pods(2, cpu=8)), ledger.snapshot()), Assignment)


def test_reservation_without_an_assignment_gets_nodes() -> None:
    ledger = ledger_of(*TWO_EIGHTS)
    ledger.reserve("a", gang(pods(1, cpu=5)))
    ledger.reserve("b", gang(pods(1, cpu=5)))
    assert shortfall_of(gang(pods(1, cpu=4)), ledger.snapshot()) == (
        Shortfall(pod_set=0, fitting=0),
        ("cpu", 3),
    )


def test_snapshots_are_equal_while_nothing_that_counts_has_changed() -> None:
    ledger = ledger_of(*TWO_EIGHTS)
    first = ledger.snapshot()
    assert ledger.snapshot() == first
    ledger.set_pod(Pod("p", Resources({"cpu": 5}), "n1", PodPhase.RUNNING))
    busy = ledger.snapshot()
    assert busy != first
    ledger.set_pod(Pod("p", Resources({"cpu": 5}), "n1", PodPhase.UNKNOWN))
    assert ledger.snapshot() == busy
    ledger.remove_pod("p")
    assert fit(gang(pods(2, cpu=8)), ledger.snapshot()) == fit(gang(pods(2, cpu=8)), first)
    assert busy.without(Resources({"cpu": 1})) != busy
    assert busy.without(Resources({"cpu": 1})) == busy.without(Resources({"cpu": 1}))


@pytest.mark.parametrize(
    ("pod_sets", "is_placed"),
    [
        pytest.param((pods(10_000, cpu=1), pods(1, cpu=8)), False, id="ten-thousand-pods"),
        pytest.param((pods(2**31 - 1), pods(1, cpu=8)), False, id="more-pods-than-nodes-take"),
        pytest.param(tuple(pods(1, cpu=cpu % 3 + 2) for cpu in range(60)), False, id="sixty-pod-sets"),
        pytest.param(
            tuple(pods(1, cpu=cpu % 3 + 1) for cpu in range(30)), True, id="thirty-pod-sets-that-fit"
        ),
    ],
)
def test_large_gangs_get_an_answer(pod_sets: tuple[PodSet, ...], is_placed: bool) -> None:
    nodes = [node(f"n{at}", cpu=8, most_pods=110) for at in range(20)]
    asked = replace(gang(*pod_sets), demand=Resources({"cpu": 1}))
    assert isinstance(fit(asked, ledger_of(*nodes).snapshot()), Assignment) is is_placed


def test_largest_amounts_are_compared_without_an_overflow() -> None:
    nodes = [
        replace(node("n1", cpu=8), allocatable=Resources({"cpu": 2**63 - 1, "memory": -5})) for _ in range(3)
    ]
    snapshot = ledger_of(*(replace(each, name=f"n{at}") for at, each in enumerate(nodes))).snapshot()
    assert isinstance(fit(gang(pods(3, cpu=2**52)), snapshot), Assignment)
    assert isinstance(fit(gang(pods(1, cpu=2**62)), snapshot), Shortfall)
    assert isinstance(fit(gang(pods(1, memory=1)), snapshot), Shortfall)


def test_sum_of_large_amounts_of_many_nodes_does_not_overflow() -> None:
    nodes = [
        replace(node(f"n{at}", cpu=8), allocatable=Resources({"memory": 2**52})) for at in range(2**11 + 1)
    ]
    capacity = ledger_of(*nodes).snapshot()
    assert capacity.free_for(gang(pods(1, memory=1))) == Resources({"memory": 2**63 + 2**52})


@pytest.mark.parametrize("counts", [(), (0,), (0, 0)])
def test_gang_without_pods_fits(counts: tuple[int, ...]) -> None:
    asked = Gang(pod_sets=tuple(pods(count, cpu=1) for count in counts))
    assert isinstance(fit(asked, ledger_of(node("n", cpu=8)).snapshot()), Assignment)


def held_by(ledger: CapacityLedger, uid: str) -> dict[str, int]:
    nodes = ledger.snapshot().nodes
    assert nodes is not None
    return {each.node: each.pods for each in nodes.uses[uid].held}


def test_gang_that_loses_one_planned_place_keeps_the_others() -> None:
    ledger = ledger_of(*TWO_EIGHTS)
    ledger.reserve("a", gang(pods(2, cpu=8)), Assignment(((("n1", 1), ("n2", 1)),)))
    ledger.set_pod(Pod("p", Resources({"cpu": 1}), "n1", PodPhase.RUNNING))
    assert held_by(ledger, "a") == {"n2": 1}
    assert ledger.snapshot().free_for(None) == Resources({"cpu": 7 - 8})


def test_gang_without_a_plan_takes_no_place_that_another_has_planned() -> None:
    ledger = ledger_of(*TWO_EIGHTS)
    ledger.reserve("a", gang(pods(1, cpu=5)))
    ledger.reserve("b", gang(pods(1, cpu=5)), Assignment(((("n1", 1),),)))
    assert (held_by(ledger, "a"), held_by(ledger, "b")) == ({"n2": 1}, {"n1": 1})


def test_nodes_that_take_no_more_of_the_pods_come_first_in_an_assignment() -> None:
    nodes = (node("n1", cpu=3), node("n2", cpu=2), node("n3", cpu=2))
    assert fit(gang(pods(5, cpu=1)), ledger_of(*nodes).snapshot()) == Assignment(
        ((("n2", 2), ("n3", 2), ("n1", 1)),)
    )


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(gang(pods(2, cpu=3)), id="one-pod-set"),
        pytest.param(gang(pods(2, cpu=3), pods(1, cpu=4)), id="two-pod-sets"),
        pytest.param(gang(pods(2, cpu=1, apart=("zone",))), id="apart"),
        pytest.param(gang(pods(2, cpu=1, together=("zone",))), id="together"),
    ],
)
def test_placement_does_not_depend_on_the_order_in_which_nodes_joined(asked: Gang) -> None:
    nodes = [node(f"n{at}", cpu=8, labels={"zone": zone}) for at, zone in enumerate("abab")]
    expected = fit(asked, ledger_of(*nodes).snapshot())
    assert isinstance(expected, Assignment)
    assert fit(asked, ledger_of(*reversed(nodes)).snapshot()) == expected
    changed = ledger_of(*nodes)
    for each in nodes[:3]:
        changed.remove_node(each.name)
    changed.snapshot()
    for each in nodes[:3]:
        changed.set_node(each)
    assert fit(asked, changed.snapshot()) == expected
