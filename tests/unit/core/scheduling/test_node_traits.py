"""What is remembered of the nodes of a cluster: shared by threads, bounded, and never wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from dispatcher.core.model.clusters.nodes import Node, NodeRequirements
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.placement.node_traits import Traits

CPU = Resources({"cpu": 1})
T = TypeVar("T")


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

    def get(self, key: str, default: T | None = None) -> str | T | None:
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
