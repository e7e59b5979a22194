"""Files that commands read: their bounds, and the file of declared kinds.

A small file cannot fill the memory or end the process. `dispatcher demand` and `kubectl aw demand` test a file of
kinds, and `dispatcher run` refuses it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dispatcher.__main__ import plugin_program
from dispatcher.cli.files import documents
from dispatcher.cli.files.documents import read_kinds
from dispatcher.cli.files.submission import wrapping_of
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.errors import InvalidFile
from tests.commands import Ran, Run, runner

ALIASES = "a: &a [x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
PAIRS = ALIASES.replace("*", "k: *").replace("[k", "!!pairs [k")
MERGES = "a: &a {k: v}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
TOO_MANY = "has more than 1000000 values"
TOO_DEEP = "is nested more than 200 levels deep"
Json = dict[str, Any]
DECLARED = """
kinds:
- group: example.com
  kind: Training
  podSets: [{template: spec.template, count: spec.replicas}]
  succeeded: [Trained]
"""
CONTAINER: Json = {"name": "main", "resources": {"requests": {"cpu": 2}}}
TRAINING: Json = {
    "apiVersion": "example.com/v1",
    "kind": "Training",
    "metadata": {"name": "train"},
    "spec": {"replicas": 4, "template": {"spec": {"containers": [CONTAINER]}}},
}
SHOWN = (
    "OBJECT          POD SET        PODS  REQUESTS PER POD\n"
    "Training/train  spec.template  4     cpu: 2\n"
    "Training/train  total          4     cpu: 8\n"
)
UNKNOWN_MEMORY = (
    "Training/train: spec.template.spec.containers[0]: has no request of memory; "
    "a LimitRange of the namespace may add one\n"
)
WRONG = [
    pytest.param(
        DECLARED.replace("count", "replicas"),
        "kinds[0].podSets[0].replicas: is unknown here; known are template, count, default, optional",
        id="field",
    ),
    pytest.param(
        DECLARED.replace("example.com", "batch").replace("Training", "Job"),
        "kinds[0]: Job of batch is built in, and cannot be declared",
        id="built-in",
    ),
    pytest.param(
        "kinds: [", "line 1, column 9: expected the node content, but found '<stream end>'", id="yaml"
    ),
    pytest.param("", "document: must be an object, not null", id="empty"),
    pytest.param(
        "kinds: []\n---\nkinds: []\n",
        "line 2, column 1: but found another document",
        id="two-documents",
    ),
]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        pytest.param(ALIASES, TOO_MANY, id="aliases"),
        pytest.param(PAIRS, TOO_MANY, id="aliases-in-pairs"),
        pytest.param(MERGES, TOO_MANY, id="merges"),
        pytest.param("&a [*a]", TOO_DEEP, id="alias-of-itself"),
        pytest.param("a: &a {b: *a}", TOO_DEEP, id="alias-of-itself-in-an-object"),
        pytest.param("[" * 202 + "]" * 202, TOO_DEEP, id="deep"),
    ],
)
@pytest.mark.parametrize("command", ["demand", "plan"])
async def test_file_beyond_a_bound_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    written: str,
    problem: str,
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: <stdin>: {problem}\n")


@pytest.mark.parametrize(
    ("command", "place"), [("demand", "<stdin>: line 3"), ("plan", "<stdin>: line 3, column 1")]
)
@pytest.mark.parametrize(
    "written", ["pending:\n- {}\npending: []", '{"a": 1,\n"pending": [], "b":1,\n"pending": []}']
)
async def test_a_key_that_is_there_twice_is_refused_at_its_place(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    place: str,
    written: str,
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: {place}: the key 'pending' is there twice\n")


def test_a_key_beside_the_same_merged_key_is_there_once() -> None:
    written = "a: &a {k: 1, l: 1}\nb: &b {<<: *a, k: 2}\nc: {<<: *b, k: 3}\nd: *b"
    [document] = documents.documents_in(
        "f",
        written.encode(),
        lambda text: [yaml.load(text, Loader=documents.Loader)],  # noqa: S506  # a safe loader
        str,
    )
    b = {"k": 2, "l": 1}
    assert document == {"a": {"k": 1, "l": 1}, "b": b, "c": {"k": 3, "l": 1}, "d": b}


@pytest.mark.parametrize("command", ["demand", "plan"])
async def test_file_that_is_no_text_is_refused_in_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin="a: \x01")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dispatcher: <stdin>: is no text in YAML or JSON: ")
    assert ran.err.endswith(" characters are not allowed, at position 3\n")


async def test_empty_scenario_is_refused_by_the_name_of_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = await runner(monkeypatch, capsys, "plan")("-f", "-", stdin="")
    assert ran == Ran(2, "", "dispatcher: <stdin>: must be an object, not null\n")


@pytest.mark.parametrize("command", ["demand", "plan"])
async def test_file_that_is_too_large_is_refused_unread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    written = "[" + " " * documents.LARGEST_FILE
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: <stdin>: is larger than {documents.LARGEST_FILE} bytes\n")


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A file that declares one kind."""
    file = tmp_path / "kinds.yaml"
    file.write_text(DECLARED)
    return file


@pytest.fixture
def training(tmp_path: Path) -> str:
    """A file with an object of that kind."""
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump(TRAINING))
    return str(file)


@pytest.fixture
def demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher demand …`."""
    return runner(monkeypatch, capsys, "demand")


def test_file_is_read_into_the_registry(kinds: Path) -> None:
    training = KindDeclaration(
        "example.com",
        "Training",
        (PodSetDeclaration("spec.template", "spec.replicas", needs_count=True),),
        succeeded=("Trained",),
    )
    assert read_kinds(str(kinds)) == Kinds((training,))
    assert read_kinds("") == BUILT_IN


async def test_demand_of_a_declared_kind_is_shown(demand: Run, kinds: Path, training: str) -> None:
    ran = await demand("-f", training, "--kinds", str(kinds))
    assert (ran.code, ran.out, ran.err) == (0, SHOWN, UNKNOWN_MEMORY)


async def test_setting_of_the_dispatcher_is_the_default(
    demand: Run, kinds: Path, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_KINDS_FILE", str(kinds))
    assert (await demand("-f", training)).out == SHOWN
    monkeypatch.delenv("DISPATCHER_KINDS_FILE")
    ran = await demand("-f", training)
    assert (ran.code, ran.out) == (2, "")
    assert "no template says what the pods ask for" in ran.err


async def test_plan_counts_pods_of_a_declared_kind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kinds: Path,
    training: str,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("DISPATCHER_KINDS_FILE", raising=False)
    monkeypatch.delenv("DISPATCHER_DATABASE_URL", raising=False)
    plan, nodes = runner(monkeypatch, capsys, "plan"), tmp_path / "nodes.yaml"
    status = {"allocatable": {"cpu": "64", "memory": "64Gi", "nvidia.com/gpu": "64", "pods": "110"}}
    nodes.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status})
    )

    refused = await plan(str(nodes), training)
    planned = await plan(str(nodes), training, "--kinds", str(kinds), "-o", "json")

    assert (refused.code, refused.out) == (2, "")
    assert "name the file of kinds with --kinds" in refused.err
    assert json.loads(planned.out)["decisions"] == [{"dispatch": "default/train", "cluster": "hub"}]


def test_kinds_of_the_leader_are_named_by_no_option(training: str) -> None:
    [given] = documents.read_objects([training])
    with pytest.raises(InvalidFile) as refused:
        wrapping_of(given, are_kinds_of_leader=True)
    assert "declares its pods" in str(refused.value)
    assert "--kinds" not in str(refused.value)


def test_kubectl_plugin_has_the_option(kinds: Path, training: str) -> None:
    result = CliRunner().invoke(plugin_program, ["demand", "-f", training, "--kinds", str(kinds)])
    assert (result.exit_code, result.stdout) == (0, SHOWN)


@pytest.mark.parametrize(("content", "problem"), WRONG)
def test_wrong_file_is_refused_with_its_place(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "kinds.yaml"
    file.write_text(content)
    with pytest.raises(InvalidFile) as refused:
        read_kinds(str(file))
    assert str(refused.value) == f"{file}: {problem}"


def test_wrong_file_stops_the_start_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "kinds.yaml"
    file.write_text("kinds: [{group: example.com}]")
    environment = {
        "DISPATCHER_DATABASE_URL": "postgresql:///never-asked?host=/nowhere",
        "DISPATCHER_KINDS_FILE": str(file),
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }
    command = [sys.executable, "-m", "dispatcher", "run"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)  # noqa: S603  # our own
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"dispatcher: {file}: kinds[0].kind: is required\n"


async def test_missing_file_is_refused(demand: Run, training: str, tmp_path: Path) -> None:
    ran = await demand("-f", training, "--kinds", str(tmp_path / "none.yaml"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"dispatcher: {tmp_path / 'none.yaml'}: No such file or directory\n"


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="Is a directory"):
        read_kinds(str(tmp_path))
