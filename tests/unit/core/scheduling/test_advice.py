"""Advice for waiting gangs: each repair suffices, one less does not, and the fewest changes come first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
import yaml
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.pending_reasons import DEVICE_CLAIMS_NOT_COUNTED
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.explain import advice as advice_module
from dispatcher.core.scheduling.explain import trials
from dispatcher.core.scheduling.explain.advice import (
    MOST_REPAIRS,
    NO_ADVICE,
    Advice,
    advise,
    own_shapes,
    shapes_of,
)
from dispatcher.core.scheduling.explain.repair import AddNodes
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import NoNode
from tests.unit.core.scheduling.scenarios import documents, repaired, with_one_less

Json = dict[str, Any]

MOST_TRIED = 6
"""Nodes that are added where the advice says that no number of nodes helps."""


def world_of(document: Json, fit: FitMode) -> World:
    return replace(parse_scenario(document), fit=fit)


def advice_on(document: Json, fit: FitMode = FitMode.NODE) -> Mapping[str, Advice]:
    world = world_of(document, fit)
    return advise(world, world.plan())


def goes(document: Json, gang: str, fit: FitMode = FitMode.NODE) -> bool:
    """True if the gang is placed; a document that cannot be read places no gang."""
    try:
        outcomes = world_of(document, fit).plan()
    except SpecError:
        return False
    return any(isinstance(each, Placed) and each.record.name == gang for each in outcomes)


def check(document: Json, fit: FitMode = FitMode.NODE) -> None:
    """Applies every repair to the document itself, as anybody can who has the answer and the file."""
    for gang, advice in advice_on(document, fit).items():
        written = json.loads(json.dumps([each.as_document() for each in advice.repairs]))
        assert len(written) <= MOST_REPAIRS
        for each in written:
            assert all(goes(repaired(document, each, name), gang, fit) for name in ("aa", "more", "zz"))
            assert not any(goes(repaired(document, less), gang, fit) for less in with_one_less(each))
        sizes = [each.changes for each in advice.repairs]
        assert sizes == sorted(sizes)
        check_holders(document, gang, advice, fit)
        if not written:
            check_that_nothing_helps(document, gang, advice, fit)


def check_that_nothing_helps(document: Json, gang: str, advice: Advice, fit: FitMode) -> None:
    """No more nodes help, of a shape of the cluster or of the pods' own size, and no fewer taints."""
    world = parse_scenario(document)
    record = next(each for each in world.pending if each.name == gang)
    accepting = [each for each in world.clusters if world.accepts(each, record)]
    assert bool(advice.message) == bool(accepting)
    for cluster in accepting:
        for shape in (*shapes_of(cluster.nodes), *own_shapes(record.gang)):
            for count in range(1, MOST_TRIED + 1):
                more = AddNodes(cluster.name, count, shape).as_document()
                assert not any(goes(repaired(document, more, name), gang, fit) for name in ("aa", "zz"))
        names = [node.name for node in cluster.nodes if node.taints]
        assert not goes(repaired(document, {"untaint": {"cluster": cluster.name, "nodes": names}}), gang, fit)


def check_holders(document: Json, gang: str, advice: Advice, fit: FitMode) -> None:
    """Holders are the fewest gangs that can be removed: in small documents the smallest set is found."""
    names = [each["name"] for each in document["running"]]
    if advice.holders:
        assert goes(repaired(document, {"remove": list(advice.holders)}), gang, fit)
    world = parse_scenario(document)
    record = next(each for each in world.pending if each.name == gang)
    if any(world.accepts(cluster, record) for cluster in world.clusters):
        smaller = range(1, len(advice.holders) if advice.holders else len(names) + 1)
        fewer = [each for size in smaller for each in combinations(names, size)]
        assert not any(goes(repaired(document, {"remove": each}), gang, fit) for each in fewer)


@settings(max_examples=40)
@given(documents(), st.sampled_from(FitMode))
def test_each_repair_suffices_and_one_less_does_not(document: Json, fit: FitMode) -> None:
    check(document, fit)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize("part", range(10))
def test_each_repair_of_ten_thousand_states_suffices_and_one_less_does_not(part: int, fit: FitMode) -> None:
    @seed(part)
    @settings(max_examples=500)
    @given(documents())
    def check_many(document: Json) -> None:
        check(document, fit)

    check_many()


@settings(max_examples=25)
@given(documents(), st.integers(1, 40))
def test_a_search_that_is_cut_short_returns_nothing_wrong(document: Json, work: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "MOST_PLANS", work)
        found = advice_on(document)
    for gang, advice in found.items():
        for each in advice.repairs:
            assert goes(repaired(document, each.as_document()), gang)
            assert not any(goes(repaired(document, less), gang) for less in with_one_less(each.as_document()))


@settings(max_examples=40)
@given(documents(), st.data())
def test_a_plan_with_known_snapshots_is_the_plan_without(scenario: Json, data: st.DataObject) -> None:
    world = parse_scenario(scenario)
    known = KnownSnapshots()
    for edited in data.draw(st.lists(_edits(world), max_size=4)):
        try:
            expected = edited.plan()
        except NoNode:
            with pytest.raises(NoNode):
                edited.plan(known)
        else:
            assert edited.plan(known) == expected
    assert world.plan(known) == world.plan()


def _edits(world: World) -> st.SearchStrategy[World]:
    names = st.lists(st.sampled_from([each.name for each in world.running] or [""]), max_size=3)
    clusters = st.sampled_from(world.clusters)
    return st.one_of(
        names.map(lambda gangs: world.without_gangs(frozenset(gangs))),
        st.tuples(clusters, st.integers(0, 2)).map(
            lambda each: world.with_nodes(
                each[0].name, [Node(f"a{index}", Resources({"cpu": 2000})) for index in range(each[1])]
            ).without_gangs(frozenset(["r0"] * (each[1] % 2)))
        ),
        clusters.map(
            lambda each: world.without_taints(each.name, frozenset(node.name for node in each.nodes))
        ),
    )


def document(text: str) -> Json:
    loaded: Json = yaml.safe_load(text)
    return loaded


def repairs_of(text: str, gang: str = "p") -> list[Json]:
    return [each.as_document() for each in advice_on(document(text))[gang].repairs]


BUSY = """
clusters:
- name: hub
  nodes:
  - {name: n, count: 2, allocatable: {cpu: 1500m, memory: 61Gi}, labels: {zone: a}}
  - {name: t, count: 2, allocatable: {cpu: 4}, taints: [{key: gpu, effect: NoSchedule}]}
running: [{name: r, cluster: hub, demand: {cpu: 1}}, {name: s, cluster: hub, demand: {cpu: 1}}]
pending: [{name: p, demand: {cpu: 1500m}}]
"""


def test_repairs_are_in_the_terms_of_the_file_the_fewest_changes_first() -> None:
    assert repairs_of(BUSY) == [
        {"untaint": {"cluster": "hub", "nodes": ["t-0"]}},
        {
            "add_nodes": {
                "cluster": "hub",
                "count": 1,
                "allocatable": {"cpu": "1500m", "memory": "61Gi"},
                "labels": {"zone": "a"},
            }
        },
        {"remove": ["r"]},
    ]


def test_more_nodes_are_added_than_the_gangs_ahead_take() -> None:
    ahead = BUSY.replace(
        "pending: [", "pending: [{name: a, demand: {cpu: 1500m}}, {name: b, demand: {cpu: 1500m}}, "
    )
    added = [each["add_nodes"] for each in repairs_of(ahead) if "add_nodes" in each]
    assert [each["count"] for each in added] == [3]


def test_the_fewest_nodes_are_added_where_some_more_would_not_do() -> None:
    """With four to six nodes the gang ahead goes, and leaves too few."""
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 1}}]}]
running: [{name: r, cluster: hub, demand: {cpu: 1}}]
pending:
- {name: ahead, pods: [{count: 4, requests: {cpu: 1}}]}
- {name: p, pods: [{count: 3, requests: {cpu: 1}}]}
"""
    check(document(text))
    assert repairs_of(text) == [{"add_nodes": {"cluster": "hub", "count": 3, "allocatable": {"cpu": "1"}}}]


def test_a_node_of_the_pods_own_size_is_added_where_no_shape_of_the_cluster_does() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 4}}]}]
pending:
- name: p
  demand: {cpu: 4, memory: 1Gi}
  pods: [{requests: {cpu: 1, nvidia.com/gpu: 8}, nodeSelector: {gpu: h100}}, {requests: {cpu: 2}}]
"""
    (added,) = repairs_of(text)
    assert added == {
        "add_nodes": {
            "cluster": "hub",
            "count": 1,
            "allocatable": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "8"},
            "labels": {"gpu": "h100"},
        }
    }


def test_nodes_for_a_demand_without_pods_are_those_that_its_empty_pod_sets_select() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 8}}]}]
running: []
pending: [{name: p, demand: {cpu: 2}, pods: [{count: 0, requests: {cpu: 1}, nodeSelector: {zone: b}}]}]
"""
    check(document(text))
    (added,) = repairs_of(text)
    assert (added["add_nodes"]["count"], added["add_nodes"]["labels"]) == (1, {"zone": "b"})


def test_which_of_equal_nodes_the_gangs_ahead_take_does_not_depend_on_names() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 2}}]}]
running: []
pending:
- {name: a, pods: [{count: 2, requests: {cpu: 2}}]}
- {name: p, pods: [{count: 1, requests: {cpu: 2}, nodeSelector: {zone: a}}]}
"""
    check(document(text))
    (added,) = repairs_of(text)
    assert (added["add_nodes"]["count"], added["add_nodes"]["labels"]) == (2, {"zone": "a"})


def test_a_cluster_without_nodes_gets_nodes_of_the_pods_own_size() -> None:
    text = "{clusters: [{name: hub}], pending: [{name: p, pods: [{count: 3, requests: {cpu: 2}}]}]}"
    assert repairs_of(text) == [{"add_nodes": {"cluster": "hub", "count": 3, "allocatable": {"cpu": "2"}}}]


@pytest.mark.parametrize(("places", "count"), [(2, 2), (3, 1), (0, None)])
def test_added_nodes_take_as_many_pods_as_the_nodes_of_their_shape(places: int, count: int | None) -> None:
    text = f"""
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{cpu: 8, pods: {places}}}}}]}}]
running: []
pending: [{{name: p, pods: [{{count: 5, requests: {{cpu: 1}}}}]}}]
"""
    check(document(text))
    added = [each["add_nodes"] for each in repairs_of(text)]
    like_there = [each["count"] for each in added if each["allocatable"]["cpu"] == "8"]
    assert like_there == ([] if count is None else [count])


def test_a_host_name_is_no_part_of_a_shape() -> None:
    labels = "labels: {kubernetes.io/hostname: n, zone: a}"
    text = f"""
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{cpu: 1}}, {labels}}}]}}]
running: [{{name: r, cluster: hub, demand: {{cpu: 1}}, pods: []}}]
pending: [{{name: p, demand: {{cpu: 1}}}}]
"""
    added, _ = repairs_of(text)
    assert added["add_nodes"]["labels"] == {"zone": "a"}


CLOSED = """
clusters:
- {name: east, closed: ClusterCordoned, nodes: [{name: n, allocatable: {cpu: 4}}]}
- {name: west, labels: {gpu: h100}, nodes: [{name: n, allocatable: {cpu: 4}}]}
running: [{name: r, cluster: east, demand: {cpu: 4}}, {name: s, cluster: west, demand: {cpu: 4}}]
pending: [{name: p, clusterSelector: gpu!=h100, demand: {cpu: 1}}, {name: q, demand: {cpu: 4}}]
"""


def test_no_repair_is_sought_in_clusters_that_refuse_the_gang() -> None:
    found = advice_on(document(CLOSED))
    assert found["p"] == Advice()
    assert [each.as_document() for each in found["q"].repairs] == [
        {"add_nodes": {"cluster": "west", "count": 1, "allocatable": {"cpu": "4"}}},
        {"remove": ["s"]},
    ]
    assert found["q"].holders == ("s",)


def test_no_repair_is_sought_for_devices_that_nothing_counts() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 4}}]}]
pending: [{name: p, pods: [{requests: {deviceclass.resource.kubernetes.io/gpu: 1}}]}]
"""
    (outcome,) = parse_scenario(document(text)).plan()
    assert not isinstance(outcome, Placed)
    assert outcome.pending.reason == DEVICE_CLAIMS_NOT_COUNTED
    assert advice_on(document(text)) == {"p": NO_ADVICE}


def test_where_nothing_helps_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "MOST", 100)
    text = """
clusters: [{name: hub, reserve: {cpu: 200}, nodes: [{name: n, allocatable: {cpu: 1}}]}]
pending: [{name: p, demand: {cpu: 1}}]
"""
    assert advice_on(document(text)) == {
        "p": Advice(
            message="no repair was found: no more nodes of one shape, no fewer taints and no fewer gangs let it go"
        )
    }


def many(count: int, cpu: int) -> Json:
    """One cluster full of small gangs, too many to try every set of them, and one that wants `cpu`."""
    nodes = [{"name": "n", "count": count, "allocatable": {"cpu": 2}}]
    running = [
        {"name": f"r{index}", "cluster": "hub", "demand": {"cpu": 1 + index % 2}} for index in range(count)
    ]
    pods = [{"count": cpu, "requests": {"cpu": 1}}]
    return {
        "clusters": [{"name": "hub", "nodes": nodes}],
        "running": running,
        "pending": [{"name": "p", "pods": pods}],
    }


def test_of_many_gangs_the_fewest_are_removed() -> None:
    scenario = many(24, 22)
    holders = advice_on(scenario)["p"].holders
    assert len(holders) == 5  # 10 cpu are missing, and half of the gangs hold 2 each
    assert goes(repaired(scenario, {"remove": list(holders)}), "p")
    assert not any(goes(repaired(scenario, less), "p") for less in with_one_less({"remove": list(holders)}))


def test_a_search_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "MOST_WORK", 100)
    assert advice_on(many(40, 30))["p"] == Advice(
        message="the search for repairs was cut short, because the scenario is large"
    )
