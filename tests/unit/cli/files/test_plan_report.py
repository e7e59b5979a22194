"""`dispatcher plan` with queues: decisions with victims, the use of the queues, and the tables for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.cli.files.plan_report import PlanReport
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from tests.commands import Ran, Run, runner

Json = dict[str, Any]

SCENARIOS = sorted((Path(__file__).parents[2] / "core" / "scheduling" / "queue_scenarios").glob("*.yaml"))

SCENARIO = """
clusters: [{name: hub, nodes: [{name: n, count: 3, allocatable: {cpu: 8}}]}]
queues:
- {name: org, sharing: DominantShare}
- {name: a, parent: org, resources: {cpu: {nominalQuota: 6}}, preemption: {reclaim: Any}}
- {name: b, parent: org, resources: {cpu: {nominalQuota: 2500m}}, weight: 0}
- {name: old, stopPolicy: HoldAndDrain}
- {name: lost, parent: nowhere}
running:
- {name: r2, queue: b, cluster: hub, ran: 60, demand: {cpu: 2}}
- {name: r1, queue: b, cluster: hub, ran: 30, demand: {cpu: 2}}
- {name: o2, queue: old, cluster: hub, demand: {cpu: 1}}
- {name: o1, queue: old, cluster: hub, demand: {cpu: 1}}
pending:
- {name: p, queue: a, demand: {cpu: 6}}
- {name: q, queue: b, demand: {cpu: 5}}
"""


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher plan …`."""
    return runner(monkeypatch, capsys, "plan")


async def test_the_answer_for_programs_has_victims_and_the_use_of_each_valid_queue(plan: Run) -> None:
    ran = await plan("-f", "-", "-o", "json", stdin=SCENARIO)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "decisions": [
            {"preempt": ["o1", "o2"], "for": "", "reasons": {"o1": "QueueStopped", "o2": "QueueStopped"}},
            {
                "preempt": ["r1"],
                "for": "p",
                "cluster": "hub",
                "reasons": {"r1": "QuotaReclaimed"},
                "message": "fits once default/r1 is gone, which it preempts",
            },
            {
                "waiting": "q",
                "reason": "InsufficientQuota",
                "message": "quota of b: cpu: needs 5, 4500m available; nominal 2500m, 4 used",
                "holders": [],
                "repair": [{"add_quota": {"queue": "b", "resource": "cpu", "amount": "6500m"}}],
            },
        ],
        "queues": {
            "org": {"used": {"cpu": 4000}, "share": 0},
            "a": {"used": {"cpu": 0}, "share": 0},
            "b": {"used": {"cpu": 4000}, "share": None},
            "old": {"used": {}},
            "default": {"used": {}},
        },
    }


async def test_the_answer_for_people_has_victims_with_their_reasons_and_the_trees(plan: Run) -> None:
    ran = await plan("-f", "-", stdin=SCENARIO)
    assert ran == Ran(
        0,
        """\
GANG  DECISION  CLUSTER  REASON
o2    evict     hub      QueueStopped
o1    evict     hub      QueueStopped
p     waiting   hub      AwaitingRelease
r1    preempt   hub      QuotaReclaimed
q     waiting   -        InsufficientQuota

p waits: fits once default/r1 is gone, which it preempts
  r1 is preempted, because its queue uses more than its own quota, which the queue of p takes back

q waits: quota of b: cpu: needs 5, 4500m available; nominal 2500m, 4 used
  it goes with a nominal quota of queue b that has 6500m more cpu

QUEUE  RESOURCE  NOMINAL  USED  SHARE
org    cpu       8500m    4     0
  a    cpu       6        0     0
  b    cpu       2500m    4     infinite
old    -         -        -     -

queue lost is not valid: ParentNotFound
""",
    )


async def test_the_fair_shares_of_a_division_are_shown(plan: Run) -> None:
    text = SCENARIO.replace("DominantShare", "Division")
    queues = json.loads((await plan("-f", "-", "-o", "json", stdin=text)).out)["queues"]
    assert queues["org"]["fairShare"] == {"cpu": 24000}
    assert queues["b"]["used"] == {"cpu": 4000}
    assert "share" not in queues["b"]
    shown = (await plan("-f", "-", "--no-repairs", stdin=text)).out
    assert "org    cpu       8500m    4     24\n" in shown


async def test_the_queue_default_is_shown_above_its_children_without_a_declaration(plan: Run) -> None:
    queues = [{"name": "a", "parent": "default", "resources": {"cpu": {"nominalQuota": 2}}}]
    ran = await plan("-f", "-", stdin=json.dumps({"clusters": [{"name": "hub"}], "queues": queues}))
    shown = [line.split() for line in ran.out.splitlines()]
    assert shown[-2:] == [["default", "cpu", "2", "0", "-"], ["a", "cpu", "2", "0", "-"]]


async def test_a_tree_hundreds_of_queues_deep_is_planned_and_shown(plan: Run) -> None:
    queues = [{"name": "q0", "resources": {"cpu": {"nominalQuota": 1}}}]
    queues += [{"name": f"q{number}", "parent": f"q{number - 1}"} for number in range(1, 600)]
    gangs = [{"name": "p", "queue": "q599", "demand": {"cpu": 2}}]
    scenario = {"clusters": [{"name": "hub"}], "queues": queues, "pending": gangs}
    ran = await plan("-f", "-", stdin=json.dumps(scenario))
    assert ran.code == 0
    assert "it goes with a nominal quota" not in ran.out  # it would need nodes, too
    assert ran.out.splitlines()[-1].split() == ["q599", "cpu", "0", "0", "-"]


def matches(expected: object, found: object) -> bool:
    """True if the answer has every key and value that is expected; lists have the same length."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            key in found and matches(value, found[key]) for key, value in expected.items()
        )
    return expected == found


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_the_document_of_each_scenario_is_the_expected(file: Path) -> None:
    scenario: Json = yaml.safe_load(file.read_text())
    world = parse_scenario(scenario)
    document = json.loads(json.dumps(PlanReport(world, *world.plan_queues()).as_document()))
    assert matches(scenario["expect"].get("queues", {}), document["queues"])
    decisions = document["decisions"]
    about = [each.get("dispatch") or each.get("waiting") or each["for"] for each in decisions]
    assert sorted(filter(None, about)) == sorted(each["name"] for each in scenario.get("pending", ()))
    if "decisions" in scenario["expect"]:
        acts = [each for each in decisions if "waiting" not in each]
        expected = [each for each in scenario["expect"]["decisions"] if "waiting" not in each]
        assert len(acts) == len(expected)
        assert all(map(matches, expected, acts))
        for each in scenario["expect"]["decisions"]:
            assert any(matches(each, one) for one in decisions)
