"""Surplus pods are preempted before gangs, as few as suffice, where the preemptor has room once they are gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import yaml

from dispatcher.core.scheduling.capacity import FitMode
from dispatcher.core.scheduling.cycle import Preempting
from dispatcher.core.scheduling.scenario import parse_scenario
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import GPU, bind, free_amounts, random_document, take_bound
from tests.unit.core.scheduling.queue_worlds import SHARINGS as ALL_SHARINGS

Json = dict[str, Any]

SHARINGS = pytest.mark.parametrize("sharing", ALL_SHARINGS)

TEAMS = """
clusters: [{{name: hub, nodes: [{{name: a, allocatable: {{gpu: 4}}}}, {{name: b, allocatable: {{gpu: 4}}}}]}}]
queues:
- {{name: org, sharing: {sharing}}}
- name: owner
  parent: org
  resources: {{gpu: {{nominalQuota: 6}}}}
  preemption: {{reclaim: Any, withinQueue: {within}}}
- {{name: guest, parent: org, resources: {{gpu: {{nominalQuota: 2}}}}}}
running:
{running}
pending:
- {{name: p, queue: owner, pods: {pods}}}
"""

GROWN = """
- {name: ray, queue: guest, cluster: hub, ran: 900, pods: [{count: 1, requests: {gpu: 2}, nodes: [a]}],
   surplus: [{count: 2, requests: {gpu: 1}, nodes: [b, b]}, {count: 1, requests: {gpu: 1}, nodes: [a]}]}
- {name: plain, queue: guest, cluster: hub, ran: 60, pods: [{count: 1, requests: {gpu: 2}, nodes: [b]}]}
"""


def decided(
    running: str, pods: str, sharing: str, within: str = "Never", fit: FitMode = FitMode.NODE
) -> Json:
    text = TEAMS.format(sharing=sharing, running=running.strip(), pods=pods, within=within)
    world = replace(parse_scenario(yaml.safe_load(text)), fit=fit)
    (found,) = answer_of(world)["decisions"]
    return dict(found)


@SHARINGS
@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize(
    ("pods", "preempt", "surplus"),
    [
        ("[{count: 1, requests: {gpu: 1}}]", None, None),
        ("[{count: 2, requests: {gpu: 1}}]", [], {"ray": 1}),
        ("[{count: 4, requests: {gpu: 1}}]", [], {"ray": 3}),
        ("[{count: 5, requests: {gpu: 1}}]", ["plain"], {"ray": 2}),
    ],
)
def test_as_few_surplus_pods_as_suffice_go_before_a_gang(
    pods: str, preempt: list[str] | None, surplus: dict[str, int] | None, sharing: str, fit: FitMode
) -> None:
    """One GPU of eight is free. The last gang needs four more, and the surplus has three."""
    found = decided(GROWN, pods, sharing, fit=fit)
    assert (found.get("preempt"), found.get("surplus")) == (preempt, surplus), found


def test_a_pod_that_makes_no_room_stays() -> None:
    """The pod on b would go first, but only the one on a leaves two GPUs on one node."""
    running = """
- {name: ray, queue: guest, cluster: hub, ran: 900, pods: [{count: 1, requests: {gpu: 2}, nodes: [a]}],
   surplus: [{count: 1, requests: {gpu: 1}, nodes: [b]}, {count: 1, requests: {gpu: 1}, nodes: [a]}]}
- {name: plain, queue: guest, cluster: hub, ran: 60, pods: [{count: 1, requests: {gpu: 3}, nodes: [b]}]}
"""
    found = decided(running, "[{count: 1, requests: {gpu: 2}}]", "Priority")
    assert (found["preempt"], found["surplus"]) == ([], {"ray": 1})


def test_surplus_of_the_own_queue_goes_before_gangs_of_others() -> None:
    running = """
- {name: ray, queue: owner, cluster: hub, ran: 900, priority: -1, pods: [{count: 1, requests: {gpu: 1}, nodes: [a]}],
   surplus: [{count: 2, requests: {gpu: 1}, nodes: [a, b]}]}
- {name: guests, queue: guest, cluster: hub, ran: 60, pods: [{count: 5, requests: {gpu: 1}, nodes: [a, a, b, b, b]}]}
"""
    found = decided(running, "[{count: 2, requests: {gpu: 1}}]", "Priority", within="LowerPriority")
    assert (found["preempt"], found["surplus"]) == ([], {"ray": 2})


def with_surplus(document: Json, chance: Random) -> Json:
    """The document in which some running gangs have surplus pods, none leaves, and one gang is pending."""
    free = free_amounts(document)
    for each in (*document["running"], *document["queues"]):
        each.pop("ending", None)
        each.pop("stopPolicy", None)
    for gang in document["running"]:
        take_bound(gang, free[gang["cluster"]])
    for gang in document["running"]:
        more = {"pods": [{"count": chance.randint(1, 3), "requests": {GPU: 1}}]}
        if chance.random() < 0.6 and bind(more, free[gang["cluster"]]):
            gang["surplus"] = more["pods"]
    document["pending"] = document["pending"][:1]
    return document


def without(document: Json, preempting: Preempting) -> Json:
    """The document without what is preempted."""
    gangs = {victim.uid for victim, _ in preempting.victims if not victim.is_surplus}
    pods = {victim.part.pod.uid for victim, _ in preempting.victims if victim.part and victim.part.pod}
    left = []
    for gang in document["running"]:
        if gang["name"] in gangs:
            continue
        surplus = []
        for number, entry in enumerate(gang.get("surplus", ()), len(gang["pods"])):
            nodes = [
                node
                for index, node in enumerate(entry["nodes"])
                if f"{gang['name']}/{number}/{index}" not in pods
            ]
            if nodes:
                surplus.append({**entry, "count": len(nodes), "nodes": nodes})
        left.append({**gang, "surplus": surplus})
    return {**document, "running": left}


def test_no_surplus_pod_is_preempted_in_vain() -> None:
    """Without what is preempted the gang goes, whatever the sharing; with it, it does not."""
    counts = Counter[str]()
    for seed in range(400):
        chance = Random(seed)  # noqa: S311 - repeatable
        document = with_surplus(random_document(chance, arrivals=1), chance)
        _, outcomes = parse_scenario(document).plan_queues()
        for outcome in outcomes:
            if isinstance(outcome, Preempting):
                (again,) = answer_of(parse_scenario(without(document, outcome)))["decisions"]
                assert again.get("dispatch") == outcome.record.uid, seed
                kinds = {"surplus" if victim.is_surplus else "gangs" for victim, _ in outcome.victims}
                counts[" and ".join(sorted(kinds))] += 1
    assert all(counts[each] for each in ("surplus", "gangs", "gangs and surplus")), counts
