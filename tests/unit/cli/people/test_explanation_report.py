"""The first sentence of an explanation says whether a gang waits or fits no cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.conditions import ConditionType
from dispatcher.cli.people.explanation_report import Report, age_of
from dispatcher.cli.screens.explanation import render
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.record import Condition, Phase
from dispatcher.core.queues.queue import Queue, Quota, StopPolicy
from dispatcher.core.scheduling.explain.explanation import CordonedNodes, explain
from dispatcher.core.scheduling.explain.leader_snapshot import (
    ClusterFacts,
    SchedulingRules,
    running_gang,
    world_of,
)
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from tests.builders import NOW, attempt_of, make_core_node, make_gang, make_record

QUEUES = (
    Queue("small", None, {"cpu": Quota(1000)}),
    Queue("stopped", stop_policy=StopPolicy.HOLD),
    Queue("inner"),
    Queue("leaf", "inner"),
    Queue("open"),
)


def cordoned(name: str, cpu: int, *, ready: bool = True) -> Node:
    return replace(make_core_node(name, cpu=cpu), usable=False, ready=ready)


@pytest.mark.parametrize(
    ("nodes", "uncordon", "lines"),
    [
        ([cordoned("b", 8000)], [["b"]], ["  with node b in east uncordoned"]),
        (
            [cordoned("b", 8000), cordoned("c", 9000), cordoned("small", 1000)],
            [["b"], ["c"]],
            ["  with node b in east uncordoned", "  with node c in east uncordoned"],
        ),
        ([cordoned("b", 8000, ready=False)], [], []),
        ([cordoned("small", 1000)], [], []),
    ],
    ids=["one", "each of two", "not ready", "too small"],
)
def test_cordoned_nodes_that_would_let_it_go_are_named(
    nodes: list[Node], uncordon: list[list[str]], lines: list[str]
) -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=6000))
    world = World((Cluster("east", (make_core_node("n", cpu=4000), *nodes)),), pending=(gang,))
    found = Report(explain(world, "q"), world, {"q": gang})

    assert [each["nodes"] for each in found.document().value["uncordon"]] == uncordon
    assert [line for line in render(found.document(), None).splitlines() if "uncordoned" in line] == lines


def test_explanation_of_a_gang_that_needs_all_cordoned_nodes_lists_them_all() -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(2, cpu=6000))
    world = World((Cluster("east", (cordoned("b", 6000), cordoned("c", 6000))),), pending=(gang,))

    assert explain(world, "q").cordoned == (CordonedNodes("east", ("b", "c")),)


@pytest.mark.parametrize(
    ("ceiling", "priority", "lines"),
    [(None, 8, ["  with priority 8 instead of 5"]), (7, None, [])],
    ids=["no ceiling", "ceiling"],
)
def test_least_priority_that_would_let_it_go_is_named(
    ceiling: int | None, priority: int | None, lines: list[str]
) -> None:
    first = make_record(name="p", uid="p", gang=make_gang(cpu=3000), priority=7)
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=2000), priority=5)
    world = World((Cluster("east", (make_core_node("n", cpu=4000),)),), pending=(first, gang))
    found = Report(explain(world, "q", ceiling=ceiling), world, {"p": first, "q": gang})

    assert found.document().value["priority"] == priority
    assert [line for line in render(found.document(), None).splitlines() if "priority" in line] == lines


def test_explanation_of_a_gang_with_requested_capacity_names_the_class() -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=6000))
    asked = ProvisioningClass("queued-provisioning.gke.io")
    world = World((Cluster("east", (), provisioning=asked),), pending=(gang,))
    found = Report(explain(world, "q"), world, {"q": gang})

    assert render(found.document(), None).splitlines()[0] == (
        "default/q goes: the next cycle requests its capacity from class queued-provisioning.gke.io in east."
    )
    shown = found.document().value
    assert (shown["cluster"], shown["nodes"], shown["provisioningClass"]) == (
        "east",
        [],
        "queued-provisioning.gke.io",
    )


def test_holders_of_a_quota_of_pods_are_shown_with_their_pods() -> None:
    holder = make_record(Phase.RUNNING, name="r", uid="r", queue="team", gang=make_gang(2, cpu=1000))
    gang = make_record(name="q", uid="q", queue="team", gang=make_gang(cpu=1000))
    world = World(
        (Cluster("hub", (make_core_node("n", cpu=9000),)),),
        running=(running_gang(holder, attempt_of(holder), (), ()),),
        pending=(gang,),
        queues=(Queue("team", resources={"pods": Quota(2)}),),
    )
    found = Report(explain(world, "q"), world, {"r": holder, "q": gang})

    table = render(found.document(), None).partition("HELD BY")[2].splitlines()
    assert "cpu 2, pods 2" in table[1]


@pytest.mark.parametrize(
    ("seconds", "told"), [(7, "7s"), (-1, "0s"), (7200, "2h")], ids=["seconds", "ahead", "hours"]
)
def test_age_of_the_facts_is_told_after_all_reports(seconds: int, told: str) -> None:
    gangs = {name: make_record(name=name, uid=name, gang=make_gang(cpu=6000)) for name in ("p", "q")}
    world = World(
        (Cluster("east", (make_core_node("n", cpu=4000),)),), pending=tuple(gangs.values()), now=NOW
    )
    taken_at = NOW - timedelta(seconds=seconds)
    reports = [Report(explain(world, uid), world, gangs, taken_at) for uid in gangs]
    assert age_of(reports) == (
        f"As of {told} ago: the leader writes clusters and queues some seconds after they change."
    )
    assert [each.document().value["ageSeconds"] for each in reports] == [max(0, seconds)] * 2
    assert "ageSeconds" not in replace(reports[0], taken_at=None).document().value


def test_unknown_fields_of_wrapped_objects_are_a_warning() -> None:
    warned = Condition(ConditionType.UNKNOWN_FIELDS, True, NOW, NOW, message='unknown field "spec.replica"')
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=6000), conditions=(warned,))
    world = World((Cluster("east", (make_core_node("n", cpu=4000),)),), pending=(gang,))
    found = Report(explain(world, "q"), world, {"q": gang})

    assert '  warning: unknown field "spec.replica"' in render(found.document(), None).splitlines()


def test_explanation_of_a_gang_without_approvals_names_them() -> None:
    gang = make_record(name="q", uid="q", pending=pending_without(["data-staged", "budget"]))
    world = World((Cluster("east", (make_core_node("n", cpu=4000),)),), pending=(gang,))
    found = Report(explain(world, "q"), world, {"q": gang})

    assert render(found.document(), None) == (
        "default/q waits: AwaitingApproval\n"
        "  no position in the queue: it takes part in no cycle before it has all approvals\n"
        "  it lacks the approvals data-staged, budget"
    )
    shown = found.document().value
    assert [shown[key] for key in ("verdict", "reason", "message", "position", "eligibleAt")] == [
        "Waits",
        "AwaitingApproval",
        "it lacks the approvals data-staged, budget",
        None,
        None,
    ]


FIRST = "  position 1 of 1 in the queue"
NO_POSITION = "  no position in the queue: it would not go if nothing else ran"
IN_NO_QUEUE = "  no position in the queue: its queue does not take it, and does not count it"


def report(queue: str, cpu: int) -> Report:
    """About the only gang of a world with one node of 4 cpus."""
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=1000 * cpu), queue=queue)
    world = World((Cluster("east", (make_core_node("n", cpu=4000),)),), pending=(gang,), queues=QUEUES)
    return Report(explain(world, "q"), world, {"q": gang})


@pytest.mark.parametrize(
    ("queue", "cpu", "verdict", "sentence", "place"),
    [
        ("open", 9, "DoesNotFit", "default/q does not fit any cluster: LargerThanCluster", NO_POSITION),
        ("lost", 1, "Waits", "default/q waits: QueueNotFound", IN_NO_QUEUE),
        ("inner", 1, "Waits", "default/q waits: QueueNotLeaf", IN_NO_QUEUE),
        ("stopped", 1, "Waits", "default/q waits: QueueStopped", FIRST),
        ("small", 2, "Waits", "default/q waits: LargerThanQuota", NO_POSITION),
        ("open", 4, "Dispatch", "default/q fits: the next cycle dispatches it to east, on n.", FIRST),
    ],
)
def test_gang_that_its_queue_does_not_take_waits_for_the_queue(
    queue: str, cpu: int, verdict: str, sentence: str, place: str
) -> None:
    found = report(queue, cpu)
    assert (found.document().value["verdict"], *render(found.document(), None).splitlines()[:2]) == (
        verdict,
        sentence,
        place,
    )


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("stoped", "there is no queue stoped; did you mean stopped?"),
        ("lost", "there is no queue lost"),
    ],
)
def test_queue_that_is_probably_meant_is_named(queue: str, said: str) -> None:
    assert render(report(queue, 1).document(), None).splitlines()[2] == f"  {said}"


@pytest.mark.parametrize(
    ("ran", "expected", "limit", "end", "shown"),
    [
        (60, 600, 0, 600, "in 9m"),
        (60, 0, 300, 300, "in 4m"),
        (60, 1200, 900, 900, "in 14m"),
        (700, 600, 900, 900, "in 3m"),
        (1000, 600, 900, 900, "100s ago"),
        (60, 0, 0, None, "unknown"),
    ],
    ids=["expected", "limit", "earlier one", "expected is over", "both are over", "none"],
)
def test_holder_ends_when_estimates_say(
    ran: int, expected: int, limit: int, end: int | None, shown: str
) -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=4000))
    fields = {"gang": make_gang(cpu=4000), "expected_seconds": expected, "limit_seconds": limit}
    holder = make_record(Phase.RUNNING, "h", uid="h", **fields)
    started = attempt_of(holder).decided_at
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", cpu=4000),)), rules=SchedulingRules())
    world = world_of([facts], (holder, gang), (), started + timedelta(seconds=ran))
    found = Report(explain(world, "q"), world, {"q": gang, "h": holder})

    (document,) = found.document().value["holders"]
    assert document["expectedUntil"] == (end and (started + timedelta(seconds=end)).isoformat())
    assert f"  {shown}\n" in render(found.document(), None)
