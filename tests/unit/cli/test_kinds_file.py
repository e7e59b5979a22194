"""The file of declared kinds: `dispatcher demand` and `kubectl aw demand` test it, and `dispatcher run` refuses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dispatcher.__main__ import plugin_program
from dispatcher.cli.kinds_file import read_kinds
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.errors import InvalidFile
from tests.commands import Run, runner

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
        (PodSetDeclaration("spec.template", "spec.replicas"),),
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


def test_kubectl_plugin_has_the_option(kinds: Path, training: str) -> None:
    result = CliRunner().invoke(plugin_program, ["demand", "-f", training, "--kinds", str(kinds)])
    assert (result.exit_code, result.stdout) == (0, SHOWN)


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
        "PYTHONPATH": str(Path(__file__).parents[3]),
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
