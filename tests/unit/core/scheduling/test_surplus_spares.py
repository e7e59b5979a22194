"""No gang is preempted that surplus can replace, as far as the sharing lets the preemptor take it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import yaml

from dispatcher.core.scheduling.cycle import Preempting
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.sharing import spared
from dispatcher.core.scheduling.sharing.search import Trial
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import GPU, SHARINGS, bind, free_amounts
from tests.unit.core.scheduling.surplus_oracle import MOST_TRIED, SurplusOracle

Json = dict[str, Any]

THREE = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 9}}}}]}}]
queues:
- {{name: org, sharing: {sharing}}}
- {{name: a, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, preemption: {{reclaim: Any}}}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: 1}}}}}}
- {{name: c, parent: org, resources: {{gpu: {{nominalQuota: 1}}}}}}
- {{name: lender, parent: org, resources: {{gpu: {{nominalQuota: 3}}}}}}
running:
- {{name: one, queue: b, cluster: hub, ran: 90, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: two, queue: b, cluster: hub, ran: 60, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: three, queue: b, cluster: hub, ran: 30, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: ray, queue: c, cluster: hub, ran: 900, pods: [{{count: 1, requests: {{gpu: 1}}, nodes: [n]}}],
   surplus: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
pending:
- {{name: p, queue: a, pods: [{{count: {count}, requests: {{gpu: 1}}}}]}}
"""


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(("count", "preempt"), [(2, []), (3, ["three"]), (4, ["three"])])
def test_surplus_of_another_queue_spares_a_gang_of_the_queue_that_borrows_most(
    count: int, preempt: list[str], sharing: str
) -> None:
    """Queue b borrows five GPUs, and c two for its surplus."""
    document = yaml.safe_load(THREE.format(sharing=sharing, count=count))
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert found["preempt"] == preempt
    assert found["surplus"] == {"ray": count - 2 * len(preempt)}


@pytest.mark.parametrize(("most", "preempt"), [(0, ["three", "two"]), (1, ["three"])])
def test_tries_to_spare_gangs_are_bounded(
    most: int, preempt: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spared, "MOST_COMPARISONS", most)
    document = yaml.safe_load(THREE.format(sharing="Division", count=4))
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert found["preempt"] == preempt


def test_the_cluster_is_chosen_where_fewer_gangs_are_preempted_whatever_surplus() -> None:
    """In the east two gangs hold what is needed, in the west one gang and two surplus pods."""
    document = yaml.safe_load("""
clusters:
- {name: east, nodes: [{name: e, allocatable: {gpu: 4}}]}
- {name: west, nodes: [{name: w, allocatable: {gpu: 5}}]}
queues:
- {name: org}
- {name: a, parent: org, resources: {gpu: {nominalQuota: 4}}, preemption: {reclaim: Any}}
- {name: b, parent: org, resources: {gpu: {nominalQuota: 5}}}
running:
- {name: one, queue: b, cluster: east, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [e, e]}]}
- {name: two, queue: b, cluster: east, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [e, e]}]}
- {name: three, queue: b, cluster: west, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [w, w]}]}
- {name: ray, queue: b, cluster: west, ran: 90, pods: [{count: 1, requests: {gpu: 1}, nodes: [w]}],
   surplus: [{count: 2, requests: {gpu: 1}, nodes: [w, w]}]}
pending:
- {name: p, queue: a, pods: [{count: 4, requests: {gpu: 1}}]}
""")
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert (found["cluster"], found["preempt"], found["surplus"]) == ("west", ["three"], {"ray": 2})


@pytest.mark.parametrize("sharing", SHARINGS)
def test_surplus_that_no_sharing_lets_go_costs_each_gang_few_comparisons(
    sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of its surplus pods, queue c is within its quota. Any other would do in the place of a gang."""
    gangs, surplus = 30, 20
    running: list[Json] = [
        {"name": f"g{number}", "queue": "b", "cluster": "hub", "pods": [_pod_on(number)]}
        for number in range(gangs)
    ]
    others = [_pod_on(gangs + number) for number in range(surplus + 1)]
    running.append({"name": "ray", "queue": "c", "cluster": "hub", "pods": others[:1], "surplus": others[1:]})
    document = {
        "clusters": [{"name": "hub", "nodes": [{"name": "n", "count": 51, "allocatable": {GPU: 1}}]}],
        "queues": [
            {"name": "org", "sharing": sharing},
            {"name": "a", "parent": "org", **_quota(30), "preemption": {"reclaim": "Any"}},
            {"name": "b", "parent": "org", **_quota(1)},
            {"name": "c", "parent": "org", **_quota(20)},
        ],
        "running": running,
        "pending": [{"name": "p", "queue": "a", "pods": [{"count": 28, "requests": {GPU: 1}}]}],
    }
    compared = 0
    has_room = Trial.has_room

    def counting(trial: Trial) -> bool:
        nonlocal compared
        compared += 1
        return has_room(trial)

    monkeypatch.setattr(Trial, "has_room", counting)
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert (len(found["preempt"]), found["surplus"]) == (27, {"ray": 1})
    assert compared < 8 * gangs


def _pod_on(number: int) -> Json:
    return {"count": 1, "requests": {GPU: 1}, "nodes": [f"n-{number}"]}


def _quota(gpus: int) -> Json:
    return {"resources": {GPU: {"nominalQuota": gpus}}}


def crowded(chance: Random, sharing: str) -> Json:
    """Gangs with and without surplus in the queues of a tree, on few nodes, and a gang that wants several GPUs."""
    departments = {name: "dep" if name in "cd" and chance.random() < 0.5 else "org" for name in "abcd"}
    inner = [{"name": "dep", "parent": "org"}] if "dep" in departments.values() else []
    queues: list[Json] = [{"name": "org", "sharing": sharing}, *inner]
    for name, parent in departments.items():
        within = chance.choice(["Never", "LowerPriority", "LowerPriority"])
        queue: Json = {
            "name": name,
            "parent": parent,
            "resources": {GPU: {"nominalQuota": chance.randint(0, 5)}},
            "preemption": {"withinQueue": within, "reclaim": "Any"},
        }
        if chance.random() < 0.3:
            queue["weight"] = chance.choice([2, 3])
        if chance.random() < 0.2:
            queue["priority"] = 1
        queues.append(queue)
    nodes = {"name": "n", "count": chance.randint(2, 4), "allocatable": {GPU: chance.randint(3, 6)}}
    document: Json = {"clusters": [{"name": "hub", "nodes": [nodes]}], "queues": queues, "running": []}
    free = free_amounts(document)["hub"]
    for number in range(chance.randint(4, 8)):
        gang: Json = {
            "name": f"r{number}",
            "queue": chance.choice("abcd"),
            "cluster": "hub",
            "ran": chance.choice([5, 60, 600]),
            "priority": chance.randint(0, 2),
            "pods": [{"count": chance.randint(1, 2), "requests": {GPU: chance.randint(1, 2)}}],
        }
        more: Json = {"pods": [{"count": chance.randint(1, 2), "requests": {GPU: 1}}]}
        if bind(gang, free):
            document["running"].append(gang)
            if chance.random() < 0.5 and bind(more, free):
                gang["surplus"] = more["pods"]
    wanted = [{"count": chance.randint(1, 4), "requests": {GPU: chance.randint(1, 3)}}]
    document["pending"] = [{"name": "p", "queue": chance.choice("abcd"), "priority": 2, "pods": wanted}]
    return document


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(150), id="few"),
        pytest.param(range(150, 4000), id="many", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_no_set_of_surplus_would_spare_a_preempted_gang(sharing: str, seeds: range) -> None:
    counts = Counter[str]()
    for seed in seeds:
        world = parse_scenario(crowded(Random(seed), sharing))  # noqa: S311 - repeatable
        _, outcomes = world.plan_queues()
        for outcome in outcomes:
            if not isinstance(outcome, Preempting):
                continue
            gangs = [gang for gang, _ in outcome.victims if not gang.is_surplus]
            oracle = SurplusOracle(world, outcome)
            if gangs and 0 < len(oracle.candidates) <= MOST_TRIED:
                counts["with surplus left"] += 1
                sparing = {gang.uid: oracle.spared_by(gang) for gang in gangs}
                assert not any(sparing.values()), (seed, sparing)
            counts["with surplus taken"] += 0 < len(gangs) < len(outcome.victims)
    assert counts["with surplus left"] > len(seeds) / 12
    assert counts["with surplus taken"] > len(seeds) / 20
