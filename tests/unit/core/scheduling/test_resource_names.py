"""Names of resources that nodes list: each counts while a node lists it, and their number is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import NOTHING, WELL_KNOWN, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_rows import Load, NodeRows
from dispatcher.core.scheduling.capacity.resource_names import (
    MOST_NAMES_OF_CLUSTER,
    MOST_NAMES_OF_PODS,
    PodNames,
    ResourceNames,
)


def node(name: str, *resources: str, amount: int = 1) -> Node:
    return Node(name, Resources(dict.fromkeys(resources, amount)))


def columns(ledger: CapacityLedger) -> int:
    """The columns of the arrays that a cycle copies."""
    capacity = ledger.snapshot().nodes
    assert capacity is not None
    return len(capacity.free.resource_names)


def test_columns_of_a_cluster_are_bounded_however_many_names_its_nodes_list() -> None:
    ledger = CapacityLedger(FitMode.NODE, "east")
    for number in range(50):
        ledger.set_node(node(f"n{number}", "cpu", *(f"a.b/{number}-{each}" for each in range(64))))
    assert columns(ledger) == ledger.resource_names <= MOST_NAMES_OF_CLUSTER
    assert ledger.left_out == 50 * 65 - (ledger.resource_names - 1) - 50


def test_column_goes_with_the_last_node_that_lists_its_name() -> None:
    ledger = CapacityLedger(FitMode.NODE, "east")
    ledger.set_node(node("stays", "cpu"))
    for round_ in range(40):
        ledger.set_node(node("changes", *(f"a.b/{round_}-{each}" for each in range(30))))
        assert columns(ledger) == 31
    ledger.remove_node("changes")
    assert (columns(ledger), ledger.resource_names, ledger.left_out) == (1, 1, 0)


def test_well_known_resources_count_beyond_the_bound() -> None:
    names = ResourceNames(most=len(WELL_KNOWN) + 1)
    assert names.replace(NOTHING, Resources({"a.b/x": 1})) == Resources({"a.b/x": 1})
    every = Resources(dict.fromkeys(("a.b/y", *WELL_KNOWN), 1))
    assert names.replace(NOTHING, every) == Resources(dict.fromkeys(WELL_KNOWN, 1))


def test_name_that_was_left_out_counts_once_there_is_room_and_its_node_is_seen_again() -> None:
    names = ResourceNames(most=len(WELL_KNOWN) + 1)
    first, second = Resources({"a.b/x": 1}), Resources({"a.b/y": 1})
    names.replace(NOTHING, first)
    assert names.replace(NOTHING, second) == NOTHING
    names.remove(first)
    assert names.replace(NOTHING, second) == second


def test_node_that_was_cut_is_not_changed_by_the_same_event() -> None:
    ledger = CapacityLedger(FitMode.NODE, "east")
    for number in range(8):
        ledger.set_node(node(f"n{number}", *(f"a.b/{number}-{each}" for each in range(64))))
    left_out, before = ledger.left_out, ledger.snapshot().nodes
    ledger.set_node(node("n7", *(f"a.b/7-{each}" for each in range(64))))
    after = ledger.snapshot().nodes
    assert before is not None
    assert after is not None
    assert (ledger.left_out, after.generation) == (left_out, before.generation)


NAMES = ("cpu", "a.b/0", "a.b/1", "a.b/2", "a.b/3")
EVENTS = st.tuples(
    st.sampled_from(("n0", "n1", "n2")),
    st.none() | st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9)),
)


@given(st.lists(EVENTS, max_size=25), st.sets(st.integers(0, 24)))
def test_amounts_are_those_of_the_last_nodes_whichever_columns_came_and_went(
    events: list[tuple[str, dict[str, int] | None]], looks: set[int]
) -> None:
    rows, last = NodeRows(), dict[str, Node]()
    load = Load(Resources({"cpu": 1, "a.b/1": 1}), 1)
    for number, (name, amounts) in enumerate(events):
        if amounts is None:
            rows.remove(name)
            last.pop(name, None)
        else:
            last[name] = Node(name, Resources(amounts))
            rows.set(last[name], load)
        if number in looks:
            rows.free_room()
    rows.follow_traits()
    room = rows.free_room()
    assert set(room.columns) == {key for each in last.values() for key in each.allocatable}
    assert sorted(room.columns.values()) == list(range(len(room.columns)))
    for name, each in last.items():
        free = room.amounts_of(rows.rows[name])
        assert {key: free[key] for key in each.allocatable} == {
            key: amount - load.used[key] for key, amount in each.allocatable.items()
        }
        assert all(free[key] <= 0 for key in free.keys() - each.allocatable.keys())


@pytest.mark.parametrize("fit", FitMode)
def test_sums_of_a_cluster_have_no_name_that_no_node_lists(fit: FitMode) -> None:
    ledger = CapacityLedger(fit, "east")
    for round_ in range(3):
        ledger.set_node(node("n", *(f"a.b/{round_}-{each}" for each in range(30))))
    assert len(ledger.total()) == 30


# --- names that pods request ----------------------------------------------------------------------------------


def pod(uid: str, on: str, *resources: str) -> Pod:
    return Pod(uid, Resources(dict.fromkeys(resources, 1)), on, PodPhase.RUNNING)


def ledger_with_pods(pods: int, fit: FitMode = FitMode.NODE) -> CapacityLedger:
    """A cluster of one node, which lists cpu, with pods of 64 names each."""
    ledger = CapacityLedger(fit, "east")
    ledger.set_node(node("n", "cpu", amount=10_000))
    for number in range(pods):
        ledger.set_pod(pod(f"p{number}", "n", "cpu", *(f"a.b/{number}-{each}" for each in range(63))))
    return ledger


@pytest.mark.parametrize("fit", list(FitMode))
def test_names_of_a_cluster_are_bounded_however_many_its_pods_request(fit: FitMode) -> None:
    ledger = ledger_with_pods(40, fit)
    assert ledger.names_of_pods == MOST_NAMES_OF_PODS
    assert len(ledger.free()) <= MOST_NAMES_OF_PODS
    assert ledger.free()["cpu"] == 10_000 - 40


@pytest.mark.parametrize("fit", list(FitMode))
def test_names_of_pods_that_are_gone_count_no_more(fit: FitMode) -> None:
    ledger = ledger_with_pods(40, fit)
    for number in range(40):
        ledger.remove_pod(f"p{number}")
    assert (ledger.names_of_pods, ledger.free()) == (0, Resources({"cpu": 10_000}))


@pytest.mark.parametrize("fit", list(FitMode))
def test_amounts_that_did_not_count_count_once_a_node_lists_their_name(fit: FitMode) -> None:
    """A device plugin starts after the pods of a tenant that request hundreds of other names."""
    ledger = ledger_with_pods(40, fit)
    ledger.set_pod(pod("honest", "n", "nvidia.com/gpu"))
    ledger.set_node(Node("n", Resources({"cpu": 10_000, "nvidia.com/gpu": 8})))
    assert ledger.free()["nvidia.com/gpu"] == 7
    ledger.set_pod(pod("late", "n", "nvidia.com/gpu"))
    ledger.remove_pod("honest")
    assert ledger.free()["nvidia.com/gpu"] == 7


@pytest.mark.parametrize("fit", list(FitMode))
def test_amounts_of_names_that_nodes_list_always_count(fit: FitMode) -> None:
    ledger = CapacityLedger(fit, "east")
    ledger.set_node(Node("n", Resources({"cpu": 10_000, "nvidia.com/gpu": 8})))
    for number in range(40):
        ledger.set_pod(pod(f"p{number}", "n", *(f"a.b/{number}-{each}" for each in range(64))))
    ledger.set_pod(pod("honest", "n", "nvidia.com/gpu", "cpu"))
    assert (ledger.free()["nvidia.com/gpu"], ledger.free()["cpu"]) == (7, 9999)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.frozensets(st.sampled_from([f"r{at}" for at in range(6)]), max_size=4)
        ),
        max_size=20,
    )
)
def test_counted_names_are_those_of_the_pods_that_are_there(events: list[tuple[str, frozenset[str]]]) -> None:
    names = PodNames(ResourceNames(), most=3)
    there: dict[str, tuple[Resources, Resources]] = {}
    for uid, wanted in events:
        if uid in there:
            names.release(uid, *there.pop(uid))
        requests = Resources(dict.fromkeys(sorted(wanted), 1))
        if requests:
            there[uid] = requests, names.take(uid, requests)
    assert len(names) == len({name for _, counted in there.values() for name in counted}) <= 3
    left_out = {(name, uid) for uid, (all_, counted) in there.items() for name in all_ if name not in counted}
    assert {(name, uid) for name, uids in names.left_out.items() for uid in uids} == left_out
