"""What is remembered of the nodes of a cluster: shared by threads, bounded, and never wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Gang, PodSet, Spread
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity import node_snapshot
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import NodeCapacity
from dispatcher.core.scheduling.fit.fit import fit
from dispatcher.core.scheduling.placement import node_traits
from dispatcher.core.scheduling.placement.node_traits import Traits

CPU = Resources({"cpu": 1})


def node(name: str, **labels: str) -> Node:
    return Node(name, CPU, labels=labels)


def selecting(**labels: str) -> PodSet:
    return PodSet(1, CPU, nodes=NodeRequirements(tuple(labels.items())))


def traits_of(ledger: CapacityLedger) -> Traits:
    nodes = ledger.snapshot().nodes
    assert nodes is not None
    return nodes.traits


class Labels(dict[str, str]):
    """Labels that call `on_get` when they are read, as another thread may run then; it is called once."""

    on_get: Callable[[], object] | None = None

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        if self.on_get is not None:
            called, self.on_get = self.on_get, None
            called()
        return super().get(key, default)


class Name(str):
    """A name that calls `on_compare` when it is compared, as another thread may run then; it is called once."""

    __slots__ = ("on_compare",)
    on_compare: Callable[[], object] | None

    def __lt__(self, other: str) -> bool:
        if self.on_compare is not None:
            called, self.on_compare = self.on_compare, None
            called()
        return str(self) < str(other)


def test_nodes_follow_while_a_plan_asks_for_other_pods() -> None:
    traits = Traits((node("a", team="x"),), {"a": 0})
    for team in ("x", "y"):
        traits.usable_by(selecting(team=team))
    labels = Labels(team="y")
    labels.on_get = lambda: traits.usable_by(selecting(team="z"))

    following = traits.changed({1: Node("b", CPU, labels=labels)})

    assert labels.on_get is None
    for team, usable in {"x": [True, False], "y": [False, True], "z": [False, False]}.items():
        assert following.usable_by(selecting(team=team)).tolist() == usable


def test_order_is_whole_for_each_who_asks_while_it_is_found() -> None:
    names = [Name("b"), Name("a")]
    traits = Traits(tuple(node(each) for each in names))
    seen: list[list[int]] = []
    for each in names:
        each.on_compare = None
    names[1].on_compare = lambda: seen.append(traits.order.tolist())

    assert traits.order.tolist() == [1, 0]
    assert seen == [[1, 0]]


@pytest.mark.parametrize("is_removed", [False, True])
def test_change_of_a_node_stays_due_after_an_exception(is_removed: bool) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(node("a", team="x"))
    traits_of(ledger).usable_by(selecting(team="x"))
    labels = Labels(team="x")
    ledger.set_node(Node("b", CPU, labels=labels))
    if is_removed:
        ledger.remove_node("a")

    def fail() -> None:
        raise RuntimeError

    labels.on_get = fail
    with pytest.raises(RuntimeError):
        ledger.free()
    traits = traits_of(ledger)

    there = [each.name for each in traits.nodes if each is not None]
    assert there == (["b"] if is_removed else ["a", "b"])
    assert int(np.sum(traits.usable())) == len(there)


KEYS = st.sampled_from(["a", "b", "never"])
VALUES = st.sampled_from(["x", "y", "7", "-3", "+07", "1_0", str(2**63 - 1), str(2**63)])
NAMES = st.sampled_from(["n0", "n1", "n2", "n9"])
ONE_OR_MORE = st.lists(VALUES, min_size=1, max_size=3).map(tuple)
CONDITIONS = st.one_of(
    st.builds(LabelRequirement, KEYS, st.sampled_from([LabelOperator.IN, LabelOperator.NOT_IN]), ONE_OR_MORE),
    st.builds(LabelRequirement, KEYS, st.sampled_from([LabelOperator.EXISTS, LabelOperator.DOES_NOT_EXIST])),
    st.builds(
        LabelRequirement,
        KEYS,
        st.sampled_from([LabelOperator.GT, LabelOperator.LT]),
        st.sampled_from(["7", "6", "-4", str(-(2**63)), str(2**63 - 1), "none"]).map(lambda each: (each,)),
    ),
)
ON_NAMES = st.builds(
    LabelRequirement,
    st.just("metadata.name"),
    st.sampled_from([LabelOperator.IN, LabelOperator.NOT_IN]),
    NAMES.map(lambda each: (each,)),
)
TERMS = st.builds(
    NodeTerm, st.lists(CONDITIONS, max_size=3).map(tuple), st.lists(ON_NAMES, max_size=2).map(tuple)
)
TAINT = Taint("team", "a", "NoSchedule")
POD_SETS = st.builds(
    PodSet,
    st.integers(1, 3),
    st.just(CPU),
    st.sampled_from([(), (Toleration("team", "Exists"),)]),
    st.builds(
        NodeRequirements,
        st.lists(st.tuples(KEYS, VALUES), max_size=1).map(tuple),
        st.lists(TERMS, max_size=2).map(tuple),
    ),
    spread=st.sampled_from([(), (), (Spread("a"),), (Spread("never"),)]),
)
LABELS = st.dictionaries(st.sampled_from(["a", "b"]), VALUES)
NODES = st.one_of(
    st.none(), st.tuples(LABELS, st.booleans(), st.sampled_from([(), (TAINT,)])), st.tuples(LABELS)
)


def node_at(row: int, drawn: tuple[object, ...] | None) -> Node | None:
    if drawn is None:
        return None
    labels, usable, taints = (*drawn, True, ())[:3] if len(drawn) == 1 else drawn
    return Node(f"n{row}", CPU, bool(usable), taints, labels=labels)  # type: ignore[arg-type]


@given(st.lists(NODES, min_size=1, max_size=5), st.lists(POD_SETS, max_size=6), NODES, st.integers(0, 4))
def test_nodes_of_pods_are_those_that_each_node_alone_says(
    drawn: list[tuple[object, ...] | None],
    asked: list[PodSet],
    changed: tuple[object, ...] | None,
    row: int,
) -> None:
    nodes = [node_at(at, each) for at, each in enumerate(drawn)]
    traits = Traits(tuple(nodes))
    for _ in range(2):
        for pod_set in asked:
            expected = [each is not None and each.usable and pod_set.may_use(each) for each in traits.nodes]
            assert traits.usable_by(pod_set).tolist() == expected
        traits = traits.changed({row: node_at(row, changed)})


@given(st.lists(NODES, min_size=1, max_size=5), st.lists(POD_SETS, max_size=6))
def test_fits_are_the_same_whatever_was_forgotten(
    drawn: list[tuple[object, ...] | None], asked: list[PodSet]
) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    for each in (node_at(at, each) for at, each in enumerate(drawn)):
        if each is not None:
            ledger.set_node(each)
    gangs = [Gang(each.total, each.count, (each,)) for each in asked]

    def answers() -> list[object]:
        snapshot = ledger.snapshot()
        return [
            (
                repr(fit(gang, snapshot)),
                snapshot.free_for(gang),
                snapshot.attainable_for(gang),
                traits_of(ledger).exclusions(gang.pod_sets),
            )
            for gang in (*gangs, *gangs)
        ]

    expected = answers()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_MOST_MASKS", "_MOST_LABELS", "_MOST_SPREADS", "_MOST_EXCLUSIONS"):
            patch.setattr(node_traits, name, 1)
        for name in ("_MOST_SUMS", "_MOST_GROUPS", "_MOST_REFUSALS"):
            patch.setattr(node_snapshot, name, 1)
        assert answers() == expected


def test_of_many_reasons_only_the_named_ones_are_kept() -> None:
    taints = [Taint("team", f"t{number}", "NoSchedule") for number in range(40)]
    traits = Traits(tuple(Node(f"n{at}", CPU, True, (each,)) for at, each in enumerate([*taints, taints[7]])))

    kept = traits.exclusions([PodSet(1, CPU)])

    assert kept.named[0] == ("with taint team=t7 not tolerated", 2)
    assert (len(kept.named), kept.total) == (3, 41)
    assert traits.exclusions([PodSet(1, CPU)]) is kept


def lacking(*labels: str) -> PodSet:
    conditions = tuple(LabelRequirement(each, LabelOperator.DOES_NOT_EXIST) for each in labels)
    return PodSet(1, CPU, nodes=NodeRequirements((), (NodeTerm(conditions),)))


def test_labels_that_no_node_has_share_their_numbers() -> None:
    traits = Traits((node("a", team="x"),))

    assert traits.domains("invented") is traits.domains("also-invented")
    assert traits.domains("invented").tolist() == [-1]
    assert traits.domains("team").tolist() == [0]


def test_constraints_of_many_pods_are_kept_up_to_a_bound() -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(node("a"))
    for at in range(2100):
        pods = lacking(f"k{at}")
        snapshot = ledger.snapshot()
        fit(Gang(pods.total, 1, (pods,)), snapshot)
        snapshot.attainable_for(Gang(pods.total, 1, (pods,)))
        snapshot.surely_takes_once_empty(Gang(pods.total, 1, (pods,)))

    capacity: NodeCapacity = ledger.snapshot().nodes.empty  # type: ignore[union-attr]
    assert 0 < len(capacity.traits._masks) <= node_traits._MOST_MASKS  # noqa: SLF001  # nothing else shows it
    assert 0 < len(capacity._sums) <= node_snapshot._MOST_SUMS  # noqa: SLF001
    assert 0 < len(capacity._groups) <= node_snapshot._MOST_GROUPS  # noqa: SLF001
