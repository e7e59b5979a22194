"""What an explanation says about queues: the accounts on the way up, who borrows, and why nobody is preempted."""

from __future__ import annotations

import pytest
import yaml

from dispatcher.core.scheduling.explain.explanation import Explanation, explain
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.preemption.account_report import NEVER_PREEMPTS

WORLD = """
clusters:
- {name: hub, nodes: [{name: node, allocatable: {cpu: 100}}]}
queues:
- {name: org, resources: {cpu: {nominalQuota: 8}}}
- {name: a, parent: org, resources: {cpu: {nominalQuota: 4}}, preemption: PREEMPTION, minRuntimeSeconds: 60}
- {name: b, parent: org, resources: {cpu: {nominalQuota: 2}}, minRuntimeSeconds: 60, preemptibleBelow: 100}
- {name: c, parent: org, resources: {cpu: {nominalQuota: 2}}}
running:
- {name: mine, queue: a, cluster: hub, age: 900, ran: 600, priority: 5, demand: {cpu: 1}}
- {name: theirs, queue: b, cluster: hub, ran: 600, priority: 5, demand: {cpu: 3}}
- {name: fresh, queue: b, cluster: hub, ran: 10, demand: {cpu: 1}}
- {name: firm, queue: b, cluster: hub, ran: 600, priority: 100, demand: {cpu: 1}}
- {name: going, queue: b, cluster: hub, ran: 600, ending: true, demand: {cpu: 1}}
- {name: within, queue: c, cluster: hub, ran: 600, demand: {cpu: 1}}
- {name: other, queue: default, cluster: hub, ran: 600, demand: {cpu: 1}}
pending:
- {name: first, queue: a, priority: 6, age: 9, demand: {cpu: 3}}
- {name: p, queue: a, priority: 5, age: 5, demand: {cpu: 4}}
- {name: elsewhere, queue: c, age: 7, demand: {cpu: 1}}
"""


def explained(preemption: str = "{}", uid: str = "p") -> Explanation:
    return explain(parse_scenario(yaml.safe_load(WORLD.replace("PREEMPTION", preemption))), uid)


def test_the_accounts_are_those_of_its_queue_and_of_all_above() -> None:
    found = explained()
    assert [
        (row.queue, row.nominal, row.used, row.borrows, row.available, row.most) for row in found.accounts
    ] == [
        ("a", 4000, 1000, 0, 0, 8000),
        ("org", 8000, 8000, 0, 0, 8000),
    ]
    assert [(row.queue, row.borrows) for row in found.borrowers] == [("b", 4000)]


def test_its_neighbours_are_those_of_its_queue() -> None:
    found = explained()
    assert ([each.uid for each in found.ahead], found.behind) == (["first"], ())


@pytest.mark.parametrize(
    ("preemption", "expected"),
    [
        pytest.param(
            "{}",
            {
                "mine": "gangs of this queue do not preempt each other",
                "theirs": "this queue reclaims nothing from other queues",
                "within": "this queue reclaims nothing from other queues",
            },
            id="nothing-is-allowed",
        ),
        pytest.param(
            "{withinQueue: LowerPriority, reclaim: LowerPriority}",
            {
                "mine": "its priority is not lower",
                "theirs": "its priority is not lower, and this queue reclaims only from lower priorities",
                "within": "queue c, or one above it, is within its own quota",
            },
            id="lower-priorities",
        ),
        pytest.param(
            "{withinQueue: LowerOrNewerEqualPriority}",
            {
                "mine": "its priority is not lower, and it is not newer with the same priority",
                "theirs": "this queue reclaims nothing from other queues",
                "within": "this queue reclaims nothing from other queues",
            },
            id="newer-ones",
        ),
    ],
)
def test_each_gang_of_its_tree_is_spared_for_a_reason(preemption: str, expected: dict[str, str]) -> None:
    found = {each.gang.uid: each.reason for each in explained(preemption).spared}
    assert found == {
        **expected,
        "fresh": "it has run for 10 s, and is not preempted before 60 s",
        "firm": "gangs of queue b with priority 100 or more are never preempted",
        "going": "it is leaving",
    }


ELSEWHERE = """
clusters:
- {name: east, labels: {gpu: a100}, nodes: [{name: node, allocatable: {cpu: 8}}]}
- {name: west, labels: {gpu: h100}, nodes: [{name: node, allocatable: {cpu: 8}}]}
- {name: edge, labels: {gpu: a100}, nodes: [{name: node, allocatable: {cpu: 4}}]}
queues:
- {name: a, resources: {cpu: {nominalQuota: QUOTA}}, preemption: {withinQueue: LowerPriority}}
running:
- {name: there, queue: a, cluster: west, ran: 9, demand: {cpu: 4}}
- {name: small, queue: a, cluster: edge, ran: 9, demand: {cpu: 1}}
- {name: beside, queue: a, cluster: east, ran: 9, demand: {cpu: 1}}
- {name: firm, queue: a, cluster: east, ran: 9, priority: 9, demand: {cpu: 3}}
pending:
- {name: p, queue: a, priority: 5, clusterSelector: gpu=a100, demand: {cpu: 6}}
"""
NOT_ENOUGH = "preempting it would not suffice, or is not needed"


@pytest.mark.parametrize(
    ("quota", "there", "small"),
    [
        pytest.param(
            "20",
            "it runs in cluster west, which does not take this gang: ClusterNotSelected",
            "it runs in cluster edge, which does not take this gang: LargerThanCluster",
            id="lacks-room",
        ),
        pytest.param("9", NOT_ENOUGH, NOT_ENOUGH, id="lacks-quota-too"),
    ],
)
def test_a_gang_elsewhere_is_spared_because_of_its_cluster_unless_quota_is_short(
    quota: str, there: str, small: str
) -> None:
    found = explain(parse_scenario(yaml.safe_load(ELSEWHERE.replace("QUOTA", quota))), "p")
    assert {each.gang.uid: each.reason for each in found.spared} == {
        "there": there,
        "small": small,
        "beside": NOT_ENOUGH,
        "firm": "its priority is not lower",
    }


def test_a_gang_that_never_preempts_is_told_that_it_spares_all() -> None:
    preempting = "{withinQueue: LowerPriority, reclaim: Any}"
    text = WORLD.replace("PREEMPTION", preempting).replace("{name: p,", "{name: p, preemptionPolicy: Never,")
    found = explain(parse_scenario(yaml.safe_load(text)), "p")
    said = {each.gang.uid: each.reason for each in found.spared}
    assert said["theirs"] == said["mine"] == NEVER_PREEMPTS
    assert said["going"] == "it is leaving"


def test_a_gang_that_preempts_has_no_list_of_gangs_that_are_spared() -> None:
    found = explained("{reclaim: Any}", "first")
    assert found.outcome is not None
    assert found.outcome.pending.reason == "AwaitingRelease"  # type: ignore[union-attr]
    assert found.spared == ()


def test_without_queues_there_is_nothing_about_them() -> None:
    world = parse_scenario(
        {
            "clusters": [{"name": "hub", "nodes": [{"name": "n", "allocatable": {"cpu": 1}}]}],
            "pending": [{"name": "p", "demand": {"cpu": 2}}],
        }
    )
    assert (explain(world, "p").accounts, explain(world, "p").spared) == ((), ())
