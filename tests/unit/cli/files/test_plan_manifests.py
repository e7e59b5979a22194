"""`dispatcher plan` over Kubernetes objects alone, and how objects of files are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dispatcher.cli.files.documents import File, Objects, objects_in, read_either
from dispatcher.cli.files.plan_manifests import (
    Manifests,
    read_manifests,
    world_of,
)
from dispatcher.errors import InvalidFile
from tests.builders import (
    make_appwrapper,
    make_template,
)
from tests.commands import Run, runner

Json = dict[str, Any]


def pod(cpu: str = "1") -> Json:
    """A Pod that asks for so much cpu."""
    raw = make_template()
    raw["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return raw


def gang(name: str, cpu: str = "1", queue: str = "", namespace: str = "team-a", **spec: object) -> Json:
    labels = {"dispatcher.codeflare.dev/queue": queue} if queue else {}
    raw = make_appwrapper(name, pod(cpu), namespace=namespace, spec=spec)
    return {**raw, "metadata": {"name": name, "namespace": namespace, "labels": labels}}


def node(name: str, cpu: str = "4", **spec: object) -> Json:
    """A Node as `kubectl get node -o yaml` prints it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def queue(name: str, cpu: int, **spec: object) -> Json:
    return {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "DispatchQueue",
        "metadata": {"name": name, "uid": "x"},
        "spec": {"resources": {"cpu": {"nominalQuota": cpu}}, **spec},
        "status": {"state": "Active"},
    }


CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "input"}}


def file(*objects: Json) -> bytes:
    return yaml.safe_dump_all(objects).encode()


def read(*objects: Json) -> Manifests:
    return read_manifests([Objects("f.yaml", objects_in("f.yaml", file(*objects)))])


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher plan …` without a database."""
    monkeypatch.delenv("DISPATCHER_DATABASE_URL", raising=False)
    return runner(monkeypatch, capsys, "plan")


NODE = b'{"apiVersion": "v1", "kind": "Node"}'


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"clusters: []", False),
        (b"# kind: x\nclusters:\n- name: kind\n  kind: a", False),
        (b"apiVersion: v1\nkind: Node", True),
        (b"clusters: []\n---\nkind : List", True),
        (b'{"clusters": [], "x-kind": "a"}', False),
        (b' {"kind": "List", "items": [' + NODE + b"]}", True),
        (b"{clusters: []}", False),
        (NODE + b"\n" + NODE, True),
        (NODE + b"\n---\n" + NODE, True),
        (b"{kind: Node, apiVersion: v1}", True),
        (b'"apiVersion": v1\n"kind": Node', True),
        (b"note: |\n  kind: Node\n", False),
    ],
)
def test_file_of_objects_is_told_from_a_scenario_by_its_kind(content: bytes, found: bool) -> None:
    assert isinstance(read_either(File("f", content)), Objects) is found


def test_json_objects_one_after_the_other_are_all_read() -> None:
    assert objects_in("f", NODE + b"\n\n" + NODE + NODE) == 3 * [{"apiVersion": "v1", "kind": "Node"}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b'{"clusters": []}\n{"pending": []}', "f: line 2, column 1: ", id="two-of-json"),
        pytest.param(b"kind: Node\nspec: [", "f: line 2, column 8: ", id="objects"),
        pytest.param(NODE + b"\n{", "f: line 2, column 1: ", id="json"),
    ],
)
def test_file_that_cannot_be_read_is_refused_with_the_place(content: bytes, problem: str) -> None:
    with pytest.raises(InvalidFile) as refused:
        read_either(File("f", content))
    assert str(refused.value).startswith(problem)


async def test_objects_are_planned_as_they_are(plan: Run) -> None:
    tainted = node("n2", taints=[{"key": "team", "value": "b", "effect": "NoSchedule", "timeAdded": "x"}])
    nodes = {"apiVersion": "v1", "kind": "List", "items": [node("n1"), tainted]}
    objects = (queue("vision", 3), gang("large", "3", "vision"), gang("small", "1", "vision"), nodes)

    ran = await plan("-f", "-", "-o", "json", "--no-repairs", stdin=file(*objects).decode())

    assert (ran.code, ran.err) == (0, "")
    large, small = json.loads(ran.out)["decisions"]
    assert large == {"dispatch": "team-a/large", "cluster": "hub"}
    assert (small["waiting"], small["reason"]) == ("team-a/small", "InsufficientQuota")


async def test_answer_for_people_names_the_gangs_with_their_namespaces(plan: Run) -> None:
    ran = await plan("-f", "-", stdin=file(node("n1"), gang("large", "5")).decode())
    assert ran.out.startswith(
        "GANG          DECISION  CLUSTER  REASON\nteam-a/large  waiting   -        LargerThanCluster\n"
    )


def test_nodes_that_take_no_pods_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    away = node("away")
    away["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    written = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new"},
        "status": {"capacity": {"cpu": 9}},
    }

    found = read(node("n1"), node("cordoned", unschedulable=True), away, written)

    assert [each["name"] for each in found.nodes] == ["n1", "new"]
    assert capsys.readouterr().err.splitlines() == [
        "Node/cordoned is cordoned: it takes no pods, and is left out.",
        "Node/away is not ready: it takes no pods, and is left out.",
    ]


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        ([gang("a")], "f.yaml: has no Node to plan on"),
        ([CONFIG], "f.yaml: no object makes pods"),
        (
            [{**node("n"), "status": {}}],
            "f.yaml: object 1 (Node): status.allocatable: is missing",
        ),
        ([node("n"), {**gang("a"), "spec": {}}], "f.yaml: object 2 (AppWrapper): spec"),
    ],
)
def test_wrong_object_is_refused_with_its_place(objects: list[Json], problem: str) -> None:
    with pytest.raises(InvalidFile) as refused:
        world_of("f.yaml", read(*objects))
    assert str(refused.value).startswith(problem)


async def test_unknown_field_of_a_queue_is_refused(plan: Run) -> None:
    ran = await plan("-f", "-", stdin=file(node("n"), queue("q", 1, quotas={})).decode())
    assert (ran.code, ran.out) == (2, "")
    assert "queues[0].quotas: is unknown here" in ran.err


@pytest.mark.parametrize(
    ("words", "stdin", "problem"),
    [
        (["--live"], "", "--live"),
        (
            ["--cluster", "east"],
            "kind: Namespace\napiVersion: v1\nmetadata: {name: n}",
            "--cluster is one of the",
        ),
    ],
)
async def test_option_that_needs_the_snapshot_is_refused_without_it(
    plan: Run, words: list[str], stdin: str, problem: str
) -> None:
    ran = await plan("-f", "-", *words, stdin=stdin)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err
