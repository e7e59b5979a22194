"""Surplus pods are preempted before gangs, as few as suffice, where the preemptor has room once they are gone."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.growth import PodRef, Shrinking
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Growth, Pending, Phase
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.cycle.outcome_changes import changes_of
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Preempting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.preemption.surplus import Surplus, awaited_growth, given_up, in_parts
from tests.builders import attempt_of
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import SHARINGS as ALL_SHARINGS
from tests.unit.core.scheduling.queue_worlds import add_surplus, random_document

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


WORLD = TEAMS.format(sharing="Priority", running=GROWN.strip(), pods="[]", within="Never")


def gpus(count: int) -> Resources:
    return Resources({"gpu": count})


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
    for each in (*document["running"], *document["queues"]):
        each.pop("ending", None)
        each.pop("stopPolicy", None)
    add_surplus(document, chance)
    document["pending"] = document["pending"][:1]
    return document


def without(document: Json, preempting: Preempting) -> Json:
    """The document without what is preempted."""
    gangs = {victim.uid for victim, _ in preempting.victims if not victim.is_surplus}
    pods = {pod.uid for victim, _ in preempting.victims if victim.part for pod in victim.part.pods}
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


# --- growth that no pod uses --------------------------------------------------------------------------------------


def without_workers(text: str, gone: int) -> World:
    """The world of TEAMS after Ray removed that many of the surplus workers on b: the gang holds them still."""
    world = parse_scenario(yaml.safe_load(text))
    ray = next(each for each in world.running if each.name == "ray")
    base, on_b, on_a = ray.pods
    left = replace(on_b, pods=replace(on_b.pods, count=2 - gone), nodes=on_b.nodes[gone:])
    surplus = replace(ray.surplus, admitted=gpus(5 - gone), pods=ray.surplus.pods[gone:])
    changed = replace(ray, pods=(base, left, on_a), surplus=surplus)
    return replace(world, running=tuple(changed if each is ray else each for each in world.running))


@SHARINGS
@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize(
    ("pods", "gone", "expected"),
    [
        pytest.param(2, 1, {"waiting": "p", "reason": "AwaitingRelease"}, id="its-room-suffices"),
        pytest.param(3, 1, {"preempt": [], "surplus": {"ray": 1}}, id="a-busy-pod-only-for-the-rest"),
        pytest.param(3, 2, {"waiting": "p", "reason": "AwaitingRelease"}, id="all-are-gone"),
        pytest.param(5, 2, {"preempt": ["plain"]}, id="a-gang-only-for-the-rest"),
        pytest.param(6, 2, {"preempt": ["plain"], "surplus": {"ray": 1}}, id="and-a-busy-pod"),
    ],
)
def test_unused_growth_is_released_before_any_gang_is_preempted(
    pods: int, gone: int, expected: Json, sharing: str, fit: FitMode
) -> None:
    text = TEAMS.format(
        sharing=sharing,
        running=GROWN.strip(),
        pods=f"[{{count: {pods}, requests: {{gpu: 1}}}}]",
        within="Never",
    )
    (found,) = answer_of(replace(without_workers(text, gone), fit=fit))["decisions"]
    assert {key: found.get(key) for key in expected} == expected, found


def test_gang_that_may_not_preempt_gets_the_unused_grown_quota_of_its_queue() -> None:
    document = yaml.safe_load(WORLD)
    document["queues"][1]["resources"] = {"gpu": {"nominalQuota": 0}}
    document["queues"][2]["resources"] = {"gpu": {"nominalQuota": 7}}
    document["pending"] = [{"name": "p", "queue": "guest", "pods": [{"count": 1, "requests": {"gpu": 1}}]}]
    (found,) = answer_of(without_workers(yaml.safe_dump(document), 1))["decisions"]
    assert found == {"waiting": "p", "reason": "AwaitingRelease"}


@pytest.mark.parametrize(
    ("queue", "cluster", "shrinking", "expected"),
    [
        pytest.param("owner", "east", False, {"ray"}, id="of-its-tree"),
        pytest.param("alone", "hub", False, {"ray"}, id="of-its-cluster"),
        pytest.param("alone", "east", False, set(), id="of-neither"),
        pytest.param("owner", "hub", True, set(), id="noted-with-the-pods-that-it-gives-up"),
    ],
)
def test_unused_growth_is_awaited_by_a_gang_to_which_it_is_promised(
    queue: str, cluster: str, shrinking: bool, expected: set[str]
) -> None:
    document = yaml.safe_load(WORLD)
    document["queues"].append({"name": "alone", "resources": {"gpu": {"nominalQuota": 1}}})
    document["pending"] = [{"name": "p", "queue": queue, "pods": [{"count": 1, "requests": {"gpu": 1}}]}]
    world = without_workers(yaml.safe_dump(document), 1)
    ray = next(each for each in world.running if each.name == "ray")
    assert ray.active is not None
    given = Shrinking((), gpus(2), "other") if shrinking else None
    record = replace(ray.active.record, attempt=replace(attempt_of(ray.active.record), shrinking=given))
    parts = in_parts([replace(ray.active, record=record)], {"ray": ray.surplus})
    pending = replace(world.pending[0], pending=Pending("AwaitingRelease", "", cluster=cluster))
    assert awaited_growth(parts, [pending], world.forest) == expected
    assert awaited_growth(parts, [], world.forest) == set()


def test_gang_that_gives_up_pods_keeps_no_growth_that_no_pod_uses() -> None:
    """Else a pod that is made in the place of the deleted one would start in it."""
    ray = next(each for each in without_workers(WORLD, 1).running if each.name == "ray")
    assert ray.active is not None
    _, first, *_ = in_parts([ray.active], {"ray": ray.surplus})
    assert given_up(ray.active.record, [first]).growth == gpus(1)


# --- pods without a node ------------------------------------------------------------------------------------------


def with_unbound(pods: int, sharing: str = "Priority") -> World:
    """The world of TEAMS in which the surplus workers on b have no node yet, and the newer of them still its gate."""
    asked = f"[{{count: {pods}, requests: {{gpu: 1}}}}]"
    text = TEAMS.format(sharing=sharing, running=GROWN.strip(), pods=asked, within="Never")
    world = parse_scenario(yaml.safe_load(text))
    ray = next(each for each in world.running if each.name == "ray")
    base, _, on_a = ray.pods
    older, newer, bound = ray.surplus.pods
    unbound = replace(newer, node="", is_gated=True), replace(older, node="")
    changed = replace(ray, pods=(base, on_a), surplus=replace(ray.surplus, pods=(*unbound, bound)))
    return replace(world, running=tuple(changed if each is ray else each for each in world.running))


@SHARINGS
@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize(
    ("pods", "gated", "unbound", "bound"),
    [
        pytest.param(2, 1, 0, 0, id="one-that-has-not-started"),
        pytest.param(3, 1, 1, 0, id="before-one-that-runs"),
        pytest.param(4, 1, 1, 1, id="before-the-gang"),
    ],
)
def test_surplus_pods_without_a_node_are_preempted_before_running_surplus_pods(
    pods: int, gated: int, unbound: int, bound: int, sharing: str, fit: FitMode
) -> None:
    """Their gang is charged for them from the grant on, and nobody has to lose work for them."""
    _, (outcome,) = replace(with_unbound(pods, sharing), fit=fit).plan_queues()
    assert isinstance(outcome, Preempting)
    assert all(victim.is_surplus for victim, _ in outcome.victims)
    taken = [pod for victim, _ in outcome.victims if victim.part for pod in victim.part.pods]
    counts = Counter("gated" if each.is_gated else each.node or "unbound" for each in taken)
    assert (counts["gated"], counts["unbound"], counts["a"]) == (gated, unbound, bound)


def test_granted_pod_that_is_not_admitted_yet_is_given_up_without_a_deletion() -> None:
    _, (outcome,) = with_unbound(3).plan_queues()
    assert isinstance(outcome, Preempting)
    ray = next(each.after for each in changes_of(outcome, SOME_TIME) if each.after.uid == "ray")
    assert ray.attempt is not None
    assert ray.attempt.shrinking is not None
    assert [each.name for each in ray.attempt.shrinking.pods] == ["ray/1/0"]
    assert ray.attempt.shrinking.growth == gpus(1)


# --- the changes that follow ------------------------------------------------------------------------------------


def changes(pods: str) -> dict[str, Change]:
    """The changes of the preemption for a gang of these pods, by the gang that changes."""
    text = TEAMS.format(sharing="Priority", running=GROWN.strip(), pods=pods, within="Never")
    _, (outcome,) = parse_scenario(yaml.safe_load(text)).plan_queues()
    assert isinstance(outcome, Preempting)
    return {each.after.uid: each for each in changes_of(outcome, SOME_TIME)}


def test_a_gang_gives_up_surplus_and_goes_on() -> None:
    found = changes("[{count: 4, requests: {gpu: 1}}]")
    assert sorted(found) == ["p", "ray"]
    assert found["p"].after.is_preempting
    assert found["p"].after.pending is not None
    assert (
        found["p"].after.pending.message
        == "fits once 3 surplus pods of default/ray are gone, which it preempts"
    )
    ray = found["ray"].after
    assert (ray.phase, ray.preempted_at, ray.charge) == (Phase.RUNNING, (), gpus(5))
    shrinking = ray.attempt.shrinking if ray.attempt else None
    assert shrinking is not None
    assert {pod.name for pod in shrinking.pods} == {"ray/1/0", "ray/1/1", "ray/2/0"}
    assert (shrinking.growth, shrinking.preempted_by) == (NOTHING, "p")
    assert ray.allowed == gpus(2)
    (event,) = found["ray"].events
    assert (event.cause, event.reason) == (Cause.SURPLUS_PREEMPTED, Reason.QUOTA_RECLAIMED)
    assert event.message.startswith("3 surplus pods preempted for default/p (queue owner, priority 0)")


def test_pods_that_a_gang_gives_up_leave_and_more_of_it_may_follow() -> None:
    """The first pod leaves already. The second and third are one gang's surplus, which is given up besides."""
    text = TEAMS.format(
        sharing="Priority", running=GROWN.strip(), pods="[{count: 2, requests: {gpu: 1}}]", within="Never"
    )
    world = parse_scenario(yaml.safe_load(text))
    ray = world.running[0]
    assert ray.active is not None
    record = ray.active.record
    leaving = Shrinking((PodRef("default", "ray/1/0", "ray/1/0"),), gpus(2), "other")
    record = replace(record, attempt=replace(attempt_of(record), shrinking=leaving))
    parts = in_parts([replace(ray.active, record=record)], {"ray": ray.surplus})
    assert [(each.uid, each.is_leaving, each.charge["gpu"]) for each in parts] == [
        ("ray/ray/1/0", True, 1),
        ("ray/ray/1/1", False, 1),
        ("ray/ray/2/0", False, 1),
        ("ray", False, 2),
    ]
    given = given_up(record, parts[1:2])
    assert ([pod.name for pod in given.pods], given.growth) == (["ray/1/0", "ray/1/1"], gpus(1))


def test_given_up_pods_that_are_gone_leave_until_the_gang_is_charged_anew() -> None:
    """Else the gang that they gave way to would lack quota for a moment, and preempt the rest."""
    (ray, *_) = parse_scenario({**yaml.safe_load(WORLD), "pending": []}).running
    assert ray.active is not None
    record = ray.active.record
    given = Shrinking((PodRef("default", "gone", "gone"),), gpus(2), "other")
    gang = replace(ray.active, record=replace(record, attempt=replace(attempt_of(record), shrinking=given)))
    for admitted, pods in ((2, ()), (4, ray.surplus.pods[1:])):
        parts = in_parts([gang], {"ray": Surplus(gpus(admitted), gpus(4), pods, admitted - 1)})
        leaving = [(each.uid, each.charge, each.demand) for each in parts if each.is_leaving]
        unused = gpus(5 - admitted) + {"pods": 5 - admitted}
        assert leaving == [("ray/unused", unused, gpus(4 - admitted))]
        assert sum_of(each.charge for each in parts) == gang.charge
    left = [(each.uid, each.charge, each.part.held) for each in parts[1:] if each.part]
    assert left == [
        ("ray/ray/1/1", gpus(1) + {"pods": 1}, gpus(1)),
        ("ray/ray/2/0", gpus(1) + {"pods": 1}, gpus(1)),
        ("ray", gpus(2) + {"pods": 1}, gpus(2)),
    ]


def test_declared_demand_beyond_the_pods_is_not_freed_by_surplus() -> None:
    """The gang declares four GPUs and has pods of two: its first three surplus pods free one GPU in all."""
    running = GROWN.replace("ran: 900,", "ran: 900, demand: {gpu: 4},")
    text = TEAMS.format(sharing="Priority", running=running.strip(), pods="[]", within="Never")
    document = yaml.safe_load(text)
    document["pending"] = []
    ray = parse_scenario(document).running[0]
    surplus = Surplus(gpus(5), gpus(5), ray.surplus.pods)
    assert ray.active is not None
    attempt = ray.active.record.attempt
    assert attempt is not None
    growth = (Growth(SOME_TIME, gpus(1)),)
    grown = replace(ray.active, record=replace(ray.active.record, attempt=replace(attempt, growth=growth)))
    assert [each.charge for each in in_parts([grown], {"ray": surplus})] == [
        gpus(1),
        gpus(4) + {"pods": 1},
    ]
