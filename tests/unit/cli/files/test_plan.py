"""`dispatcher plan` and `kubectl aw plan`: the answer, and how a wrong file is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from dispatcher.__main__ import kubectl_plugin
from tests.commands import Ran, Run, runner

SCENARIO = """
clusters:
- name: east
  nodes:
  - {name: node, count: 2, allocatable: {cpu: 8, nvidia.com/gpu: 1}, labels: {zone: a}}
  - {name: t, allocatable: {cpu: 16}, taints: [{key: team, value: a, effect: NoSchedule}]}
- {name: west, closed: ClusterCordoned, nodes: []}
running:
- {name: r, cluster: east, pods: [{requests: {cpu: 6}, nodes: [node-0]}]}
pending:
- {name: p, pods: [{count: 2, requests: {cpu: 1}}]}
- {name: s, age: 1, priority: -1, pods: [{count: 2, requests: {cpu: 5}}]}
"""
WAITS = (
    "east (cpu: needs 10, 8 free; 1 of 3 nodes excluded: 1 with taint team=a not tolerated), "
    "west (it is closed: ClusterCordoned)"
)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher plan …`."""
    return runner(monkeypatch, capsys, "plan")


async def test_the_answer_for_programs(plan: Run) -> None:
    ran = await plan("-f", "-", "-o", "json", stdin=SCENARIO)
    assert (ran.code, ran.err) == (0, "")
    shape = {"allocatable": {"cpu": "8", "nvidia.com/gpu": "1"}, "labels": {"zone": "a"}}
    assert json.loads(ran.out) == {
        "decisions": [
            {"dispatch": "p", "cluster": "east", "message": "west (it is closed: ClusterCordoned)"},
            {
                "waiting": "s",
                "reason": "InsufficientResources",
                "message": WAITS,
                "holders": ["r"],
                "repair": [
                    {"untaint": {"cluster": "east", "nodes": ["t"]}},
                    {"add_nodes": {"cluster": "east", "count": 1, **shape}},
                    {"remove": ["r"]},
                ],
            },
        ],
        "queues": {"default": {"used": {}}},
    }


async def test_the_answer_for_people(plan: Run, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    ran = await plan("--file", str(file))
    assert ran == Ran(
        0,
        f"""\
GANG  DECISION  CLUSTER  REASON
p     dispatch  east     -
s     waiting   -        InsufficientResources

s waits: {WAITS}
  its capacity is held by r
  it goes without the taints of t in east
  it goes with 1 more node in east (cpu 8, nvidia.com/gpu 1; labels zone=a)
  it goes without r
""",
    )


GATED = """
clusters: [{name: east, nodes: [{name: node, allocatable: {cpu: 4}}]}]
queues: [{name: gate, approvals: [window], queueingStrategy: StrictFIFO, resources: {cpu: {nominalQuota: 4}}}]
pending:
- {name: a, queue: gate, age: 9, approvals: [budget, staged], approved: [staged], pods: [{requests: {cpu: 4}}]}
- {name: b, queue: gate, age: 5, approvals: [budget], approved: [window, budget], pods: [{requests: {cpu: 4}}]}
- {name: c, queue: gate, age: 1, approved: [window], pods: [{requests: {cpu: 4}}]}
"""


@pytest.mark.parametrize("scenario", [GATED, GATED.replace("queueingStrategy: StrictFIFO, ", "")])
async def test_gang_that_lacks_approvals_blocks_no_other(plan: Run, scenario: str) -> None:
    ran = await plan("-f", "-", "-o", "json", "--no-repairs", stdin=scenario)
    first, behind, last = json.loads(ran.out)["decisions"]
    assert (first, behind["waiting"]) == ({"dispatch": "b", "cluster": "east"}, "c")
    message = "it lacks the approvals budget, window"
    assert last == {"waiting": "a", "reason": "AwaitingApproval", "message": message}


async def test_gang_that_trusts_a_pool_is_dispatched_and_another_waits_for_it(plan: Run) -> None:
    text = """
clusters:
- name: hub
  nodes: [{name: node, allocatable: {cpu: 8}}]
  potential: [{name: l4, node: {allocatable: {cpu: 8}, labels: {pool: l4}}, max: 2}]
pending:
- {name: p, pods: [{count: 2, requests: {cpu: 8}}]}
- {name: q, pods: [{count: 2, requests: {cpu: 8}}]}
"""
    ran = await plan("-f", "-", "-o", "json", stdin=text)
    placed, waiting = json.loads(ran.out)["decisions"]
    assert placed["potential"] == {"l4": 1}
    assert (waiting["waiting"], waiting["reason"]) == ("q", "InsufficientResources")
    told = await plan(
        "-f", "-", "-o", "json", stdin=text.replace("max: 2}]", "max: 2}]\n  onPotential: Wait")
    )
    reasons = [each["reason"] for each in json.loads(told.out)["decisions"]]
    assert reasons == ["NeedsPotentialNodes", "NeedsPotentialNodes"]


async def test_without_repairs_there_are_only_decisions(plan: Run) -> None:
    ran = await plan("-f", "-", "-o", "json", "--no-repairs", stdin=SCENARIO)
    assert json.loads(ran.out)["decisions"][1] == {
        "waiting": "s",
        "reason": "InsufficientResources",
        "message": WAITS,
    }


async def test_the_file_of_the_documentation_is_a_scenario(plan: Run) -> None:
    page = (Path(__file__).parents[4] / "docs" / "plan.md").read_text()
    ran = await plan("-f", "-", stdin=page.partition("```yaml\n")[2].partition("```")[0])
    assert (ran.code, ran.err) == (0, "")
    assert "p     waiting   -        ClusterCordoned" in ran.out


async def test_the_worked_example_of_the_documentation_ends_as_the_page_says(plan: Run) -> None:
    page = (Path(__file__).parents[4] / "docs" / "plan.md").read_text()
    example = page.partition("## An example with queues")[2]
    scenario = example.partition("```yaml\n")[2].partition("```")[0]
    shown = example.partition("```text\n")[2].partition("```")[0]
    assert await plan("-f", "-", stdin=scenario) == Ran(0, shown)


async def test_json_is_read_as_well(plan: Run) -> None:
    ran = await plan("-f", "-", stdin=json.dumps({"clusters": [{"name": "hub"}], "pending": []}))
    assert ran == Ran(0, "No gang is pending.\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "clusters: [{name: hub}]\npending: [{name: p, demand: {cpu: -1}}]",
            "pending[0].demand.cpu: -1 is negative; ",
        ),
        (
            "clusters: [{name: hub}]\nqueues: [{name: a, quota: 1}]",
            "queues[0].quota: is unknown here; known are name, recentUsage, parent, resources, ",
        ),
        (
            "clusters: [{name: hub}]\nrunning: [{name: r, queue: a, cluster: hub, demand: {cpu: 1}}]",
            'running[0].queue: there is no queue "a"\n',
        ),
        (
            "clusters: [{name: hub}]\nrunning: [{name: r, cluster: hub, demand: {cpu: 1}}]",
            "running[0].demand: no node of cluster hub takes a pod of this size\n",
        ),
        (
            "clusters: [{name: hub}]\npending: [{name: p, demand: {cpu: 1}, approvals: [Running]}]",
            "pending[0].approvals[0]: names Running, a condition that the dispatcher writes itself\n",
        ),
        ("", "<stdin>: must be an object, not null\n"),
        ("a: [", "<stdin>: line 1, column 5: expected the node content, but found '<stream end>'\n"),
        ("a: 1\n---\nb: 1", "<stdin>: line 2, column 1: but found another document\n"),
        (
            "a: !!python/name:os.system",
            "<stdin>: line 1, column 4: could not determine a constructor for the tag ",
        ),
        ("a: 2026-99-99", "<stdin>: month must be in 1..12\n"),
        ("[" * 5000, "<stdin>: is nested too deeply\n"),
        ("\x00a", "<stdin>: is no text in YAML or JSON: "),
    ],
)
async def test_a_wrong_file_is_refused_in_one_line(plan: Run, text: str, line: str) -> None:
    ran = await plan("-f", "-", stdin=text)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dispatcher: {line}")
    assert ran.err.count("\n") == 1


async def test_a_file_that_is_not_there_is_refused(plan: Run, tmp_path: Path) -> None:
    ran = await plan("-f", str(tmp_path / "nothing"))
    assert ran == Ran(2, "", f"dispatcher: {tmp_path / 'nothing'}: No such file or directory\n")


def test_kubectl_plans_the_example_of_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["kubectl-aw", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            kubectl_plugin()
        assert ended.value.code == 0
        return capsys.readouterr().out

    shown = run("--help")
    assert "Examples:\n    kubectl aw plan" in shown
    example = shown.partition("A scenario:\n")[2].partition("\n\n")[0]
    file = tmp_path / "scenario.yaml"
    file.write_text(example)
    decisions = json.loads(run("-f", str(file), "-o", "json"))["decisions"]
    assert [decisions[0]["preempt"], decisions[0]["for"], decisions[1]["waiting"]] == [["s"], "p", "q"]
    assert [list(each) for each in decisions[1]["repair"]] == [["add_quota"], ["remove"]]


# --- Kubernetes objects beside a scenario ------------------------------------------------------------------


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  template: {spec: {containers: [{name: c, resources: {requests: {cpu: 2}}}]}}
"""
SETTINGS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: scratch}\n"


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    """The path of the scenario."""
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return str(file)


async def test_objects_of_other_files_are_pending_gangs(plan: Run, scenario: str) -> None:
    objects = "---\n".join((SETTINGS, JOB, CLAIM))
    for given in (("-f", scenario, "-f", "-"), (scenario, "-"), ("-", "-f", scenario)):
        ran = await plan(*given, "-o", "json", "--no-repairs", stdin=objects)
        decided = json.loads(ran.out)["decisions"]
        assert [each.get("dispatch") or each.get("waiting") for each in decided] == ["p", "train", "s"]
        assert decided[1]["cluster"] == "east"
        assert ran.err == (
            "PersistentVolumeClaim/scratch is a claim of a volume, and its data would be deleted with each attempt of "
            "the gang: nothing is planned for it.\n"
        )


async def test_suspended_appwrapper_is_no_pending_gang(plan: Run, scenario: str) -> None:
    held = (
        "apiVersion: workload.codeflare.dev/v1beta2\nkind: AppWrapper\nmetadata: {name: held}\n"
        f"spec: {{suspend: true, components: [{{template: {json.dumps(yaml.safe_load(JOB))}}}]}}\n"
    )
    ran = await plan(scenario, "-", "-o", "json", "--no-repairs", stdin=held)
    assert len(json.loads(ran.out)["decisions"]) == 2
    assert ran.err == "default/held is suspended: it would not be queued before it is resumed.\n"


@pytest.mark.parametrize(
    ("objects", "line"),
    [
        (JOB.replace("name: train", "name: p"), "<stdin>: another gang is named p\n"),
        (
            f"{JOB}---{JOB}",
            '<stdin>: the gang of Job/train, Job/train: spec.resources.GenericItems[1]: the Job "train" is also',
        ),
        (JOB.replace("cpu: 2", "cpu: many"), "<stdin>: object 1 (Job): spec.template.spec.containers[0]"),
        (SETTINGS, "<stdin>: no object makes pods\n"),
        (SCENARIO, "<stdin>: is a second scenario\n"),
    ],
    ids=["name-of-another", "object-twice", "malformed", "no-pods", "two-scenarios"],
)
async def test_wrong_objects_are_refused_in_one_line(
    plan: Run, scenario: str, objects: str, line: str
) -> None:
    ran = await plan(scenario, "-", stdin=objects)
    assert (ran.code, ran.out, ran.err[: len(line) + 12]) == (2, "", f"dispatcher: {line}")


async def test_objects_alone_need_a_node(plan: Run) -> None:
    ran = await plan("-", stdin=JOB)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dispatcher: <stdin>: has no Node to plan on: add Nodes")


async def test_nodes_and_queues_of_other_files_change_the_scenario(plan: Run, scenario: str) -> None:
    """The Job asks for 4 cpu at once, more than the scenario's node has left."""
    large = JOB.replace("parallelism: 2", "parallelism: 40")
    node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: new}\nstatus: {allocatable: {cpu: 100, pods: 110}}\n"
    asked = (scenario, "-", "-o", "json", "--no-repairs", "--cluster", "east")
    alone, beside = await plan(*asked, stdin=large), await plan(*asked, stdin=large + node)
    assert [decided(ran, "train") for ran in (alone, beside)] == ["waiting", "dispatch"]


def decided(ran: Ran, name: str) -> str:
    """What was decided about a gang."""
    [found] = [
        key for each in json.loads(ran.out)["decisions"] for key, value in each.items() if value == name
    ]
    return str(found)
