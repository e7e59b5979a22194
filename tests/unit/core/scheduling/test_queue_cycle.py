"""A cycle over queues, beyond what the scenario files show: queues with old gangs, messages, reservations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.model.records.record import Borrower, Pending, QuotaSummary
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.gang_decisions import MOST_NAMED
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Placed, Waiting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from tests.unit.core.scheduling.queue_answers import answer_of

Json = dict[str, Any]


def world_of(text: str) -> World:
    return parse_scenario(yaml.safe_load(text))


def decisions(text: str) -> list[Json]:
    found: list[Json] = answer_of(world_of(text))["decisions"]
    return found


def pending_of(text: str, gang: str) -> Pending:
    _, outcomes = world_of(text).plan_queues()
    (found,) = (each for each in outcomes if not isinstance(each, Drained) and each.record.uid == gang)
    assert not isinstance(found, Placed)
    return found.pending


def message_of(text: str, gang: str) -> str:
    return pending_of(text, gang).message


# --- gangs that preempt no other ---------------------------------------------------------------------------------

POLITE = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 4}}}}]}}]
queues:
- {{name: org, sharing: {sharing}, resources: {{gpu: {{nominalQuota: 4}}}}}}
- {{name: a, parent: org, resources: {{gpu: {{nominalQuota: 2}}}},
   preemption: {{withinQueue: LowerPriority, reclaim: Any}}}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: 2}}}}}}
running:
- {{name: low, queue: {queue}, cluster: hub, ran: 600, demand: {{gpu: 4}}}}
pending:
- {{name: p, queue: a, priority: 9, preemptionPolicy: {policy}, demand: {{gpu: 2}}}}
"""


@pytest.mark.parametrize("sharing", ["Priority", "DominantShare", "Division"])
@pytest.mark.parametrize("queue", ["a", "b"])
def test_gang_of_the_policy_never_waits_where_another_one_preempts(sharing: str, queue: str) -> None:
    usual = decisions(POLITE.format(sharing=sharing, queue=queue, policy="PreemptLowerPriority"))
    assert [each["preempt"] for each in usual if "preempt" in each] == [["low"]]
    polite = POLITE.format(sharing=sharing, queue=queue, policy="Never")
    assert [each for each in decisions(polite) if "preempt" in each] == []
    assert pending_of(polite, "p").reason in {"InsufficientQuota", "InsufficientResources"}


def test_gangs_that_differ_in_their_policy_alone_are_decided_one_by_one() -> None:
    text = POLITE.format(sharing="Priority", queue="b", policy="Never").rstrip()
    both = f"{text}\n- {{name: q, queue: a, priority: 9, demand: {{gpu: 2}}}}"
    assert [(each["preempt"], each["for"]) for each in decisions(both) if "preempt" in each] == [
        (["low"], "q")
    ]


# --- the number of pods ------------------------------------------------------------------------------------------

PODS = """
clusters: [{{name: hub, nodes: [{{name: n, count: 2, allocatable: {{cpu: 64, pods: 110}}}}]}}]
queues:
- {{name: tiny, sharing: {sharing}, resources: {{pods: {{nominalQuota: 3}}}},
   preemption: {{withinQueue: LowerPriority}}}}
- {{name: free, resources: {{cpu: {{nominalQuota: 64}}}}}}
running: {running}
pending:
- {{name: b, queue: tiny, priority: 1, age: 5, pods: [{{count: {count}, requests: {requests}}}]}}
"""
TWO_PODS = "[{name: a, queue: tiny, cluster: hub, ran: 60, priority: 1, pods: [{count: 2}]}]"
OF_ANOTHER_TREE = "[{name: a, queue: free, cluster: hub, ran: 60, pods: [{count: 90, requests: {cpu: 1}}]}]"


@pytest.mark.parametrize("requests", ["{}", "{cpu: 1}"])
@pytest.mark.parametrize(
    ("running", "count", "reason", "message"),
    [
        (TWO_PODS, 1, None, ""),
        (TWO_PODS, 2, "InsufficientQuota", "quota of tiny: pods: needs 2, 1 available; nominal 3, 2 used"),
        (OF_ANOTHER_TREE, 3, None, ""),
        ("[]", 4, "LargerThanQuota", "quota of tiny: pods: needs 4, at most 3 is ever available"),
    ],
)
def test_quota_of_pods_counts_the_pods_of_gangs(
    requests: str, running: str, count: int, reason: str | None, message: str
) -> None:
    text = PODS.format(sharing="Priority", running=running, count=count, requests=requests)
    (decision,) = decisions(text)
    assert decision.get("reason") == reason
    assert reason is None or message_of(text, "b") == message


def test_gang_that_is_larger_than_several_quotas_is_told_of_each() -> None:
    text = PODS.format(sharing="Priority", running="[]", count=4, requests="{cpu: 1}")
    text = text.replace("pods: {nominalQuota: 3}", "cpu: {nominalQuota: 2}, pods: {nominalQuota: 3}")
    assert message_of(text, "b") == (
        "quota of tiny: cpu: needs 4, at most 2 is ever available; pods: needs 4, at most 3 is ever available"
    )


@pytest.mark.parametrize("sharing", ["Priority", "DominantShare", "Division"])
def test_quota_of_pods_is_taken_from_gangs_of_lower_priority(sharing: str) -> None:
    running = TWO_PODS.replace("priority: 1", "priority: 0")
    text = PODS.format(sharing=sharing, running=running, count=2, requests="{cpu: 1}")
    assert [each["preempt"] for each in decisions(text) if "preempt" in each] == [["a"]]


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


# --- a member that does not answer -------------------------------------------------------------------------------

SILENT = """
clusters:
- {{name: east, nodes: [{{name: n, allocatable: {{gpu: 8}}}}]}}
- {{name: west, closed: {closed}, nodes: [{{name: n, allocatable: {{gpu: 8}}}}]}}
queues:
- {{name: org}}
- {{name: a, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, preemption: {{reclaim: Any}}}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, stopPolicy: {stop}}}
running:
- {{name: there, queue: b, cluster: west, ran: 90, ending: {ending}, demand: {{gpu: 6}}}}
pending:
- {{name: p, queue: a, demand: {{gpu: 4}}}}
"""


@SHARINGS
@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        pytest.param(
            {},
            [{"preempt": ["there"], "for": "p", "cluster": "east", "reasons": {"there": "QuotaReclaimed"}}],
            id="victim",
        ),
        pytest.param({"ending": "true"}, [{"waiting": "p", "reason": "AwaitingRelease"}], id="leaving"),
        pytest.param(
            {"stop": "HoldAndDrain"},
            [
                {"preempt": ["there"], "for": "", "reasons": {"there": "QueueStopped"}},
                {"waiting": "p", "reason": "AwaitingRelease"},
            ],
            id="drained",
        ),
    ],
)
def test_gang_of_a_member_that_does_not_answer_stays_charged_and_is_neither_taken_nor_waited_for(
    sharing: str, fields: dict[str, str], answers: list[Json]
) -> None:
    found = {"ending": "false", "stop": "None", **fields}
    text = SILENT.replace("{{name: org}}", f"{{{{name: org, sharing: {sharing}, resources: ALL}}}}")
    text = text.replace("ALL", "{{gpu: {{nominalQuota: 8}}}}")
    assert decisions(text.format(closed="ClusterCordoned", **found)) == answers
    silent = text.format(closed="ClusterUnreachable", **found)
    assert decisions(silent) == [{"waiting": "p", "reason": "InsufficientQuota"}]
    borrowers = () if sharing == "Division" else (Borrower("b", "2"),)
    assert pending_of(silent, "p").quota == QuotaSummary("4", "0", "2", "8", borrowers)


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


def test_victims_of_one_tree_do_not_count_against_the_quota_of_another() -> None:
    """The first tree gives a gang for the room; it is not needed once the second tree gives one for its quota."""
    assert decisions("""
clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 6}}]}]
queues:
- {name: t}
- {name: t1, parent: t, resources: {gpu: {nominalQuota: 8}}, preemption: {reclaim: Any}}
- {name: t2, parent: t, resources: {gpu: {nominalQuota: 1}}}
- {name: u}
- {name: u1, parent: u, resources: {gpu: {nominalQuota: 4, borrowingLimit: 0}},
   preemption: {withinQueue: LowerPriority}}
running:
- {name: spared, queue: t2, cluster: hub, ran: 600, demand: {gpu: 2}}
- {name: low, queue: u1, cluster: hub, ran: 60, demand: {gpu: 3}}
- {name: top, queue: u1, cluster: hub, priority: 5, ran: 60, demand: {gpu: 1}}
pending:
- {name: p, queue: [t1, u1], priority: 1, demand: {gpu: 2}}
""") == [{"preempt": ["low"], "for": "p", "cluster": "hub", "reasons": {"low": "PriorityInQueue"}}]


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


def test_a_debt_of_quota_is_a_negative_amount_in_the_pending_reason() -> None:
    """Of a lowered quota more is used than there is, and all of that is missing."""
    assert message_of(LOWERED, "p") == (
        "quota of a: gpu: needs 4, -3 available; nominal 4, 0 used; b borrows 7"
    )


ACCOUNTS = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 99, cpu: 99, memory: 99Gi}}}}]}}]
queues:
- {{name: org, sharing: {sharing}, resources: {{{total}}}}}
- {{name: a, parent: org, resources: {{gpu: {{nominalQuota: 8, borrowingLimit: 1}}, cpu: {{nominalQuota: 2}},
   memory: {{nominalQuota: 1Gi}}}}, preemptibleBelow: 9}}
- {{name: b, parent: org}}
- {{name: c, parent: org}}
- {{name: d, parent: org}}
- {{name: e, parent: org}}
running:
- {{name: mine, queue: a, cluster: hub, demand: {{gpu: 6, cpu: 500m}}, priority: 9}}
- {{name: b1, queue: b, cluster: hub, demand: {{gpu: 1}}}}
- {{name: c1, queue: c, cluster: hub, demand: {{cpu: 1}}}}
- {{name: d1, queue: d, cluster: hub, demand: {{gpu: 1}}}}
- {{name: e1, queue: e, cluster: hub, demand: {{gpu: 2}}}}
- {{name: b2, queue: b, cluster: hub, demand: {{memory: "1073741825"}}}}
pending:
- {{name: p, queue: a, demand: {{{demand}}}, priority: {priority}}}
"""
OF_GPU = QuotaSummary("8", "6", "-2", "8", (Borrower("e", "2"), Borrower("b", "1"), Borrower("d", "1")))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"demand": "gpu: 3"},
            ("InsufficientQuota", "gpu", OF_GPU),
            id="insufficient-quota",
        ),
        pytest.param(
            {"demand": "gpu: 4, cpu: 2, memory: 1"},
            (
                "InsufficientQuota",
                "memory",
                QuotaSummary("1Gi", "0", "-1", "1Gi", (Borrower("b", "1073741825"),)),
            ),
            id="the-resource-it-is-shortest-of-in-exact-amounts",
        ),
        pytest.param(
            {"demand": "gpu: 1, cpu: 2"},
            ("InsufficientQuota", "gpu", OF_GPU),
            id="a-debt-is-shorter-than-a-part",
        ),
        pytest.param(
            {"demand": "cpu: 1", "sharing": "DominantShare"},
            ("InsufficientQuota", "cpu", QuotaSummary("2", "500m", "500m", "2", (Borrower("c", "1"),))),
            id="cpu-is-in-cores",
        ),
        pytest.param(
            {"demand": "gpu: 9, cpu: 6"},
            ("LargerThanQuota", "cpu", QuotaSummary("2", "500m", "500m", "2", (Borrower("c", "1"),))),
            id="larger-than-quota-of-the-resource-it-is-largest-of",
        ),
        pytest.param(
            {"demand": "gpu: 3", "priority": 9},
            ("OverNominalQuota", "gpu", OF_GPU),
            id="over-nominal-quota",
        ),
        pytest.param(
            {"demand": "gpu: 4", "sharing": "Division"},
            ("InsufficientQuota", "gpu", QuotaSummary("8", "6", "3", "9")),
            id="division-at-the-tightest-limit",
        ),
        pytest.param(
            {"demand": "gpu: 3", "sharing": "Division", "total": "gpu: {nominalQuota: 11}"},
            ("InsufficientQuota", "gpu", QuotaSummary("8", "6", "1", "9")),
            id="division-at-the-root",
        ),
        pytest.param(
            {"demand": "cpu: 6", "sharing": "Division", "priority": 9},
            ("LargerThanQuota", "cpu", QuotaSummary("2", "500m")),
            id="division-without-a-limit",
        ),
    ],
)
def test_a_gang_without_quota_has_the_account_of_its_queue(
    fields: dict[str, Any], expected: tuple[str, str, QuotaSummary]
) -> None:
    found = pending_of(ACCOUNTS.format(**{"sharing": "Priority", "total": "", "priority": 0} | fields), "p")
    assert (found.reason, found.resource, found.quota) == expected
    assert (found.queue, found.preempting) == ("a", ())


FOREST = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 8}}}}]}}]
queues:
- {{name: a, resources: {{gpu: {{nominalQuota: 9}}}}, queueingStrategy: {strategy}}}
- {{name: org}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: {nominal}}}}}, stopPolicy: {stop}, maxPreemptions: 1}}
- {{name: c, parent: org, resources: {{gpu: {{nominalQuota: 9}}}}}}
running:
- {{name: r, queue: a, cluster: hub, demand: {{gpu: 4}}}}
pending:
- {{name: head, queue: a, age: 9, demand: {{gpu: 5}}}}
- {{name: p, queue: {queues}, preemptions: {preemptions}, demand: {{gpu: 5}}}}
"""


@pytest.mark.parametrize(
    ("fields", "reason", "queue"),
    [
        pytest.param({}, "InsufficientResources", "a", id="the-first-if-no-queue-is-the-reason"),
        pytest.param({"nominal": 1}, "InsufficientResources", "a", id="quota-that-is-enough-is-no-reason"),
        pytest.param({"stop": "Hold"}, "QueueStopped", "b", id="stopped"),
        pytest.param({"queues": "[a, z]"}, "QueueNotFound", "z", id="not-found"),
        pytest.param({"queues": "[a, org]"}, "QueueNotLeaf", "org", id="not-a-leaf"),
        pytest.param({"nominal": 1, "preemptions": 1}, "PreemptedTooOften", "b", id="preempted-too-often"),
        pytest.param(
            {"strategy": "StrictFIFO", "queues": "[b, a]"}, "AwaitingHeadOfLine", "a", id="not-evaluated"
        ),
    ],
)
def test_the_pending_reason_names_the_one_queue_of_several_that_it_concerns(
    fields: dict[str, Any], reason: str, queue: str
) -> None:
    defaults = {
        "strategy": "BestEffortFIFO",
        "nominal": 9,
        "stop": "None",
        "queues": "[a, b]",
        "preemptions": 0,
    }
    found = pending_of(FOREST.format(**defaults | fields), "p")
    assert (found.reason, found.queue, found.quota) == (reason, queue, None)


PREEMPTOR = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 12}}}}]}}]
queues: [{{name: a, resources: {{gpu: {{nominalQuota: 12}}}}, preemption: {{withinQueue: LowerPriority}}}}]
running: [{running}]
pending: [{{name: p, queue: a, priority: 5, demand: {{gpu: 12}}}}]
"""


@pytest.mark.parametrize(("count", "named"), [(1, 1), (10, 10), (12, MOST_NAMED)])
def test_a_preemptor_names_its_first_victims(count: int, named: int) -> None:
    running = [
        f"{{name: r{number}, namespace: red, queue: a, cluster: hub, ran: {number + 1}, demand: {{gpu: 1}}}}"
        for number in range(count)
    ]
    found = pending_of(PREEMPTOR.format(running=", ".join(running)), "p")
    assert (found.reason, found.queue) == ("AwaitingRelease", "a")
    assert found.preempting == tuple(f"red/r{number}" for number in range(named))


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


def test_the_pending_reason_of_a_starved_gang_names_the_cluster_of_its_reservation() -> None:
    assert message_of(STARVED, "large").endswith("; a backfill reservation keeps capacity for it on east")


def test_a_starved_gang_keeps_the_cluster_of_its_reservation() -> None:
    kept = Reservation("west", SOME_TIME, SOME_TIME, SOME_TIME, ("west",))
    world = replace(world_of(STARVED), reservations={"large": kept})
    large, following = world.plan_queues()[1]
    assert isinstance(large, Waiting)
    assert isinstance(following, Waiting)
    assert (large.pending.cluster, large.is_head) == ("west", True)
    assert large.pending.reservation.startswith("keeps capacity for it on west")
    assert not following.is_head


def test_a_starved_gang_whose_reservation_rests_is_not_the_head() -> None:
    resting = Reservation("", SOME_TIME, SOME_TIME, SOME_TIME, ("west",))
    world = replace(world_of(STARVED), reservations={"large": resting})
    large, following = world.plan_queues()[1]
    assert isinstance(large, Waiting)
    assert isinstance(following, Waiting)
    assert not large.is_head
    assert following.is_head
    strict = replace(world, policy=QueueingStrategy.STRICT_FIFO).plan_queues()[1]
    assert [type(each).__name__ for each in strict] == ["Waiting", "NotEvaluated"]


# --- pools that may grow -----------------------------------------------------------------------------------------

GROWING = """
clusters:
- name: hub
  nodes: [{{name: n, allocatable: {{cpu: 4}}, labels: {{pool: a}}}}]
  potential: [{{name: a, max: 2, node: {{allocatable: {{cpu: 4}}, labels: {{pool: a}}}}}}]
  onPotential: Wait
queues: [{{name: a, queueingStrategy: {strategy}}}]
running: [{{name: r, queue: a, cluster: hub, pods: [{{count: 1, requests: {{cpu: 1}}}}]}}]
pending:
- {{name: large, queue: a, age: 99, blocked: {blocked}, pods: [{{count: 1, requests: {{cpu: 4}}}}]}}
- {{name: small, queue: a, age: 90, pods: [{{count: 1, requests: {{cpu: 1}}}}]}}
"""


@pytest.mark.parametrize(
    ("strategy", "blocked", "reason"),
    [
        pytest.param("BestEffortFIFO", 700, "ReservedForAnother", id="capacity-is-kept-for-a-starved-gang"),
        pytest.param("StrictFIFO", 1, "AwaitingHeadOfLine", id="the-head-stops-its-queue"),
    ],
)
def test_gang_that_running_gangs_keep_from_its_node_waits_for_them_beside_a_pool(
    strategy: str, blocked: int, reason: str
) -> None:
    text = GROWING.format(strategy=strategy, blocked=blocked)
    large = pending_of(text, "large")
    assert large.reason == "InsufficientResources"
    assert "it would also fit with 1 node of pool a to come; with onPotential: Wait" in large.message
    assert pending_of(text, "small").reason == reason
