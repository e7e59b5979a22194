"""Advice in worlds with queues: every repair for every waiting gang of the scenarios is applied to the file itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.records.pending_reasons import (
    INSUFFICIENT_QUOTA,
    LARGER_THAN_QUOTA,
    OVER_NOMINAL_QUOTA,
)
from dispatcher.core.model.resources import LARGEST_AMOUNT
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.advice import MOST_REPAIRS, NO_ADVICE, Advice, advise, advise_one
from dispatcher.core.scheduling.explain.repair import in_words
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots
from tests.unit.core.scheduling.scenarios import documents_with_queues, repaired, with_one_less

Json = dict[str, Any]

SCENARIOS = sorted((Path(__file__).parent / "queue_scenarios").glob("*.yaml"))


def load(text: str) -> Json:
    loaded: Json = yaml.safe_load(text)
    return loaded


def dispatched(document: Json) -> set[str]:
    """The gangs that the next cycle dispatches; a document that cannot be read dispatches no gang."""
    try:
        outcomes = parse_scenario(document).plan()
    except SpecError:
        return set()
    return {each.record.name for each in outcomes if isinstance(each, Placed)}


SHORT_OF_QUOTA = {INSUFFICIENT_QUOTA, LARGER_THAN_QUOTA, OVER_NOMINAL_QUOTA}


def check(document: Json) -> None:
    """Applies every repair to the document itself, as anybody can who has the answer and the file."""
    world, known = parse_scenario(document), KnownSnapshots()
    outcomes = world.plan(known)
    found = advise(world, outcomes, known)
    waiting = {
        each.record.name: each.pending.reason
        for each in outcomes
        if not isinstance(each, Placed | Preempting)
    }
    assert found.keys() == waiting.keys()
    assert world.plan(known) == outcomes
    for gang, advice in found.items():
        written = json.loads(json.dumps([each.as_document() for each in advice.repairs]))
        assert len(written) <= MOST_REPAIRS
        for each in written:
            names = ("aa", "zz") if "add_nodes" in each else ("more",)
            assert all(gang in dispatched(repaired(document, each, name)) for name in names), each
            assert not any(gang in dispatched(repaired(document, less)) for less in with_one_less(each)), each
        removed = {"remove": list(advice.holders)}
        if advice.holders:
            assert gang in dispatched(repaired(document, removed))
            assert not any(gang in dispatched(repaired(document, less)) for less in with_one_less(removed))
        if waiting[gang] in SHORT_OF_QUOTA and not written:
            assert "no more quota of one queue" in advice.message
            assert not any(gang in dispatched(repaired(document, more)) for more in quota_to_add(document))


def quota_to_add(document: Json) -> Iterator[Json]:
    """A few amounts for each queue and each resource that it names."""
    for queue in document["queues"]:
        for resource in queue.get("resources", {}):
            for more in ("1", "2", "4", "8"):
                yield {"add_quota": {"queue": queue["name"], "resource": resource, "amount": more}}


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_each_repair_dispatches_the_gang_and_one_less_does_not(file: Path) -> None:
    check(load(file.read_text()))


@settings(max_examples=10)
@given(documents_with_queues())
def test_each_repair_of_a_random_forest_dispatches_the_gang_and_one_less_does_not(document: Json) -> None:
    check(document)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@settings(max_examples=600)
@given(documents_with_queues())
def test_each_repair_of_many_random_forests_dispatches_the_gang_and_one_less_does_not(document: Json) -> None:
    check(document)


def advice_on(text: str) -> Mapping[str, Advice]:
    world = parse_scenario(load(text))
    return advise(world, world.plan())


def quota_repairs(text: str, gang: str = "p") -> list[Json]:
    written = [each.as_document() for each in advice_on(text)[gang].repairs]
    return [each["add_quota"] for each in written if "add_quota" in each]


TEAM = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 64, memory: 64Gi}}]}]
queues:
- {name: org, resources: {cpu: {nominalQuota: 8}}}
- {name: team, parent: org, resources: {cpu: {nominalQuota: 4, borrowingLimit: 1}}}
running: [{name: r, queue: team, cluster: hub, demand: {cpu: 3500m}}]
pending: [{name: p, queue: team, demand: {cpu: 2}}]
"""


def test_the_least_quota_is_added_to_the_queue_of_the_gang() -> None:
    assert quota_repairs(TEAM) == [{"queue": "team", "resource": "cpu", "amount": "500m"}]


def test_quota_is_added_further_up_where_that_is_missing() -> None:
    text = TEAM.replace("nominalQuota: 8", "nominalQuota: 5").replace(", borrowingLimit: 1", "")
    assert quota_repairs(text) == [{"queue": "org", "resource": "cpu", "amount": "500m"}]


def test_no_single_repair_of_quota_helps_where_two_queues_are_short() -> None:
    text = TEAM.replace("nominalQuota: 8", "nominalQuota: 5")
    found = advice_on(text)["p"]
    assert [each.as_document() for each in found.repairs] == [{"remove": ["r"]}]
    alone = advice_on(text.replace("cpu: 3500m", "cpu: 4, memory: 1Gi").replace("cpu: 2}", "cpu: 6}"))["p"]
    assert alone.repairs == ()
    assert alone.message == "no repair was found: no more quota of one queue lets it go"


BOTH = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 64, nvidia.com/gpu: 8, pods: 20}}]}]
queues:
- {name: org}
- {name: team, parent: org, resources: {nvidia.com/gpu: {nominalQuota: 2}, pods: {nominalQuota: 2}}}
- {name: other, parent: org}
pending: [{name: p, queue: team, pods: [{count: 4, requests: {nvidia.com/gpu: 1}}]}]
"""


def test_quota_of_two_resources_of_one_queue_is_added_together_where_both_are_short() -> None:
    (repair,) = advice_on(BOTH)["p"].repairs
    assert repair.as_document() == {
        "add_quotas": [
            {"queue": "team", "resource": "nvidia.com/gpu", "amount": "2"},
            {"queue": "team", "resource": "pods", "amount": "2"},
        ]
    }
    assert in_words(repair) == (
        "with a nominal quota of queue team that has 2 more nvidia.com/gpu and 2 more pods"
    )
    check(load(BOTH))


def test_quota_of_two_resources_is_added_to_a_queue_above_where_both_are_short_there() -> None:
    text = BOTH.replace("nominalQuota: 2", "nominalQuota: 4")
    root = "nvidia.com/gpu: {nominalQuota: 2}, pods: {nominalQuota: 2}"
    text = text.replace("{name: org}", f"{{name: org, resources: {{{root}}}}}")
    (repair,) = advice_on(text)["p"].repairs
    assert [each["queue"] for each in repair.as_document()["add_quotas"]] == ["org", "org"]
    check(load(text))


@pytest.mark.parametrize(
    ("change", "tried"),
    [
        pytest.param(("count: 4,", "count: 40,"), "one resource or of several", id="it-fits-no-node"),
        pytest.param(
            (
                "nvidia.com/gpu: {nominalQuota: 2}, pods: {nominalQuota: 2}}}\n- {name: other, parent: org}",
                "nvidia.com/gpu: {nominalQuota: 2}}}\n- {name: other, parent: org, resources: {pods: {nominalQuota: 2, "
                "lendingLimit: 2}}}",
            ),
            "one resource alone",
            id="two-queues-are-short",
        ),
    ],
)
def test_advice_says_which_quota_was_tried(change: tuple[str, str], tried: str) -> None:
    assert change[0] in BOTH
    advice = advice_on(BOTH.replace(*change))["p"]
    assert advice.repairs == ()
    assert advice.message == f"no repair was found: no more quota of one queue (of {tried}) lets it go"


def test_of_a_resource_that_its_queue_does_not_name_another_queue_of_the_tree_gets_quota_to_lend() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 64}}]}]
queues:
- {name: org}
- {name: a, parent: org}
- {name: b, parent: org, resources: {cpu: {nominalQuota: 1}}}
pending: [{name: p, queue: a, demand: {cpu: 2}}]
"""
    check({"running": [], **load(text)})
    assert quota_repairs(text) == [{"queue": "b", "resource": "cpu", "amount": "1"}]


def test_quota_is_added_for_the_gangs_ahead_as_well() -> None:
    text = TEAM.replace(
        "pending: [", "pending: [{name: a, queue: team, priority: 1, demand: {cpu: 2}}, "
    ).replace("nominalQuota: 8", "nominalQuota: 20")
    assert quota_repairs(text) == [{"queue": "team", "resource": "cpu", "amount": "2500m"}]


def test_a_gang_in_two_trees_gets_quota_in_the_tree_that_is_short() -> None:
    text = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 64}}]}]
queues:
- {name: a, resources: {cpu: {nominalQuota: 8}}}
- {name: b, resources: {cpu: {nominalQuota: 1}}}
pending: [{name: p, queue: [a, b], demand: {cpu: 2}}]
"""
    assert quota_repairs(text) == [{"queue": "b", "resource": "cpu", "amount": "1"}]


def test_no_more_quota_is_added_than_a_file_may_have() -> None:
    text = f"""
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{memory: {LARGEST_AMOUNT}}}}}]}}]
queues: [{{name: a, resources: {{memory: {{nominalQuota: {LARGEST_AMOUNT}}}}}}}]
running: [{{name: r, queue: a, cluster: hub, demand: {{memory: {LARGEST_AMOUNT}}}}}]
pending: [{{name: p, queue: a, demand: {{memory: 1}}}}]
"""
    assert [each.as_document() for each in advice_on(text)["p"].repairs] == [{"remove": ["r"]}]


def test_a_gang_for_which_others_are_preempted_gets_no_advice() -> None:
    text = TEAM.replace(
        "borrowingLimit: 1}}", "borrowingLimit: 1}}, preemption: {withinQueue: LowerPriority}"
    )
    world = parse_scenario(load(text.replace("{name: p,", "{name: p, priority: 1,")))
    outcomes = world.plan()
    assert [type(each) for each in outcomes] == [Preempting]
    assert advise(world, outcomes) == {}
    assert advise_one(world, outcomes, "p") == NO_ADVICE


@pytest.mark.parametrize(
    "change",
    [
        ("queue: team, demand", "queue: nobody, demand"),
        ("queue: team, demand", "queue: org, demand"),
        ("{name: org,", "{name: org, stopPolicy: Hold,"),
        ("{name: org,", "{name: org, namespaceSelector: tier=gold,"),
    ],
    ids=["not-found", "not-leaf", "stopped", "namespace"],
)
def test_a_gang_that_its_queue_does_not_take_gets_no_repair_and_its_reason_says_why(
    change: tuple[str, str],
) -> None:
    assert advice_on(TEAM.replace(*change))["p"] == NO_ADVICE


def test_no_repair_is_sought_in_clusters_that_the_queue_does_not_select() -> None:
    text = """
clusters:
- {name: east, nodes: [{name: n, allocatable: {cpu: 1}}]}
- {name: west, labels: {gpu: h100}, nodes: [{name: n, allocatable: {cpu: 1}}]}
queues: [{name: a, clusterSelector: gpu=h100}]
pending: [{name: p, queue: a, demand: {cpu: 2}}]
"""
    added = {"cluster": "west", "count": 1, "allocatable": {"cpu": "2"}}
    assert [each.as_document() for each in advice_on(text)["p"].repairs] == [{"add_nodes": added}]


def test_the_advice_on_one_gang_is_its_advice_among_all() -> None:
    text = TEAM.replace("pending: [", "pending: [{name: q, queue: team, age: 9, demand: {cpu: 3}}, ")
    world = parse_scenario(load(text))
    outcomes = world.plan()
    found = advise(world, outcomes)
    assert found.keys() == {"p", "q"}
    assert {each: advise_one(world, outcomes, each) for each in found} == found


def test_of_many_gangs_of_a_queue_the_fewest_are_removed() -> None:
    running = [
        {
            "name": f"r{index}",
            "queue": "a" if index % 3 else "b",
            "cluster": "hub",
            "demand": {"cpu": 1 + index % 2},
        }
        for index in range(30)
    ]
    document = {
        "clusters": [{"name": "hub", "nodes": [{"name": "n", "count": 90, "allocatable": {"cpu": 2}}]}],
        "queues": [
            {"name": "a", "resources": {"cpu": {"nominalQuota": 30}}},
            {"name": "b"},
        ],
        "running": running,
        "pending": [{"name": "p", "queue": "a", "pods": [{"count": 18, "requests": {"cpu": 1}}]}],
    }
    world = parse_scenario(document)
    holders = advise(world, world.plan())["p"].holders
    assert len(holders) == 9  # the queue uses 30, and half of its gangs hold 2 each
    assert {each["queue"] for each in running if each["name"] in holders} == {"a"}
