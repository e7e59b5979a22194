"""A cycle over queues, beyond what the scenario files show: queues with old gangs, messages, reservations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.backfill import LONG_AGO, Reservation
from dispatcher.core.scheduling.cycle import Waiting
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.world import World
from tests.unit.core.scheduling.queue_answers import answer_of

Json = dict[str, Any]


def world_of(text: str) -> World:
    return parse_scenario(yaml.safe_load(text))


def decisions(text: str) -> list[Json]:
    found: list[Json] = answer_of(world_of(text))["decisions"]
    return found


def message_of(text: str, gang: str) -> str:
    _, outcomes = world_of(text).plan_queues()
    (found,) = (each for each in outcomes if isinstance(each, Waiting) and each.record.uid == gang)
    return found.pending.message


# --- gangs that run in a queue which has got children since -----------------------------------------------------

OLD_GANGS = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 10}}}}]}}]
queues:
- {{name: org, sharing: {sharing}, resources: {{gpu: {{nominalQuota: 10}}}}}}
- {{name: team, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, stopPolicy: {stop}}}
- {{name: a, parent: team, resources: {{gpu: {{nominalQuota: 4}}}}}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, preemption: {{reclaim: Any}}}}
running:
- {{name: old, queue: team, cluster: hub, ran: 50, demand: {{gpu: 7}}}}
- {{name: new, queue: a, cluster: hub, ran: 90, demand: {{gpu: 1}}}}
pending:
- {{name: p, queue: b, demand: {{gpu: 3}}}}
"""


SHARINGS = pytest.mark.parametrize("sharing", ["Priority", "DominantShare", "Division"])


@SHARINGS
def test_gangs_of_a_queue_with_children_are_reclaimed_before_those_of_its_children(sharing: str) -> None:
    assert decisions(OLD_GANGS.format(sharing=sharing, stop="None")) == [
        {"preempt": ["old"], "for": "p", "cluster": "hub", "reasons": {"old": "QuotaReclaimed"}}
    ]


@SHARINGS
def test_gangs_of_a_queue_with_children_may_be_in_the_way_of_these(sharing: str) -> None:
    """They have no quota of their own, so its children reclaim theirs from them."""
    text = OLD_GANGS.format(sharing=sharing, stop="None").replace("queue: b,", "queue: a,")
    (decided,) = decisions(text.replace("- {name: a, ", "- {name: a, preemption: {reclaim: Any}, "))
    assert (decided["preempt"], decided["reasons"]) == (["old"], {"old": "QuotaReclaimed"})


def test_gangs_of_a_queue_with_children_leave_if_it_is_drained() -> None:
    assert decisions(OLD_GANGS.format(sharing="Priority", stop="HoldAndDrain")) == [
        {"preempt": ["old"], "for": "", "reasons": {"old": "QueueStopped"}},
        {"preempt": ["new"], "for": "", "reasons": {"new": "QueueStopped"}},
        {"waiting": "p", "reason": "AwaitingRelease"},
    ]


# --- Division ----------------------------------------------------------------------------------------------------


def test_two_infinite_loads_are_equal_so_that_the_rank_decides() -> None:
    """Both queues have a limit of 0, and the rest of their tree decides nothing."""
    assert decisions("""
clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 9, memory: 9}}]}]
queues:
- {name: org, sharing: Division, resources: {gpu: {nominalQuota: 0}, memory: {nominalQuota: 9}}}
- {name: a, parent: org, resources: {gpu: {nominalQuota: 0}}}
- {name: b, parent: org, resources: {gpu: {nominalQuota: 0}}}
running:
- {name: r, queue: a, cluster: hub, ran: 9, demand: {gpu: 3}}
pending:
- {name: older, queue: a, age: 9, demand: {memory: 1}}
- {name: newer, queue: b, age: 8, demand: {gpu: 1, memory: 1}}
""") == [{"dispatch": "older", "cluster": "hub"}, {"waiting": "newer", "reason": "LargerThanQuota"}]


def test_the_hub_alone_is_divided_whatever_its_labels_are() -> None:
    """On the hub alone a queue's selector does not count for its gangs, so it does not for what they share."""
    world = world_of("""
clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 6}}]}]
queues:
- {name: org, sharing: Division, clusterSelector: gpu=h100}
- {name: a, parent: org, resources: {gpu: {nominalQuota: 1}}}
pending:
- {name: p, queue: a, demand: {gpu: 5}}
""")
    answer = answer_of(world)
    assert answer["queues"]["a"]["fairShare"] == {"gpu": 5}
    assert answer["decisions"] == [{"dispatch": "p", "cluster": "hub"}]


# --- several trees -----------------------------------------------------------------------------------------------


def test_victims_for_a_second_tree_are_sought_on_every_cluster_once_there_is_room() -> None:
    """The first tree makes room on the only site; the second tree lacks quota only, which a gang elsewhere has."""
    assert decisions("""
clusters:
- {name: east, nodes: [{name: n, allocatable: {gpu: 4, cpu: 64}}]}
- {name: west, labels: {zone: b}, nodes: [{name: n, allocatable: {gpu: 2, cpu: 64}}]}
queues:
- {name: one, resources: {gpu: {nominalQuota: 9}}}
- {name: a, parent: one, resources: {gpu: {nominalQuota: 4}}, preemption: {reclaim: Any}}
- {name: b, parent: one, resources: {gpu: {nominalQuota: 0}}}
- {name: two, resources: {cpu: {nominalQuota: 4}}}
- {name: x, parent: two, resources: {cpu: {nominalQuota: 4}}, preemption: {reclaim: Any}}
- {name: y, parent: two, resources: {cpu: {nominalQuota: 0}}}
running:
- {name: room, queue: b, cluster: east, ran: 60, demand: {gpu: 4}}
- {name: quota, queue: y, cluster: west, ran: 60, demand: {cpu: 4}}
pending:
- {name: p, queue: [a, x], demand: {gpu: 4, cpu: 4}}
""") == [
        {
            "preempt": ["quota", "room"],
            "for": "p",
            "cluster": "east",
            "reasons": {"quota": "QuotaReclaimed", "room": "QuotaReclaimed"},
        }
    ]


# --- what a gang is told -----------------------------------------------------------------------------------------

LOWERED = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 99}}]}]
queues:
- {name: org}
- {name: a, parent: org, resources: {gpu: {nominalQuota: 4}}}
- {name: b, parent: org, resources: {gpu: {nominalQuota: 2}}}
running:
- {name: r, queue: b, cluster: hub, demand: {gpu: 9}}
pending:
- {name: p, queue: a, demand: {gpu: 4}}
"""


def test_a_debt_of_quota_is_told_as_it_is() -> None:
    """Of a lowered quota more is used than there is, and all of that is missing."""
    assert message_of(LOWERED, "p") == (
        "quota of a: gpu: needs 4, -3 available; nominal 4, 0 used; b borrows 7"
    )


def test_a_hub_without_a_cluster_lets_its_gangs_wait() -> None:
    world = replace(world_of(LOWERED), clusters=(), running=())
    assert [(each.pending.reason, each.is_head) for each in world.plan() if isinstance(each, Waiting)] == [
        ("NoCluster", True)
    ]


# --- starved gangs -----------------------------------------------------------------------------------------------

STARVED = """
clusters:
- {name: east, nodes: [{name: n, allocatable: {cpu: 4}}]}
- {name: west, nodes: [{name: n, allocatable: {cpu: 4}}]}
queues: [{name: a}]
running:
- {name: r, queue: a, cluster: east, demand: {cpu: 1}}
- {name: s, queue: a, cluster: west, demand: {cpu: 2}}
pending:
- {name: large, queue: a, age: 99, blocked: 700, demand: {cpu: 4}}
- {name: next, queue: a, age: 90, demand: {cpu: 4}}
"""


def test_a_starved_gang_is_told_which_cluster_keeps_capacity_for_it() -> None:
    assert message_of(STARVED, "large").endswith("; a backfill reservation keeps capacity for it on east")


def test_a_starved_gang_keeps_the_cluster_of_its_reservation() -> None:
    kept = Reservation("west", LONG_AGO, LONG_AGO, LONG_AGO, ("west",))
    world = replace(world_of(STARVED), reservations={"large": kept})
    large, following = world.plan_queues()[1]
    assert isinstance(large, Waiting)
    assert isinstance(following, Waiting)
    assert (large.pending.cluster, large.is_head) == ("west", True)
    assert large.pending.reservation.startswith("keeps capacity for it on west")
    assert not following.is_head


def test_a_starved_gang_whose_reservation_rests_is_not_the_head() -> None:
    resting = Reservation("", LONG_AGO, LONG_AGO, LONG_AGO, ("west",))
    world = replace(world_of(STARVED), reservations={"large": resting})
    large, following = world.plan_queues()[1]
    assert isinstance(large, Waiting)
    assert isinstance(following, Waiting)
    assert not large.is_head
    assert following.is_head
    strict = replace(world, policy=QueueingStrategy.STRICT_FIFO).plan_queues()[1]
    assert [type(each).__name__ for each in strict] == ["Waiting", "NotEvaluated"]
