"""The commands of people run where the packages of the extras are not installed, as the wheel alone has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dispatcher.__main__ import MODULES, PLUGIN
from dispatcher.cli.files.plan import EXAMPLE
from dispatcher.packages import EXTRAS, is_installed, missing

CHECKOUT = Path(__file__).parents[3]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
NOWHERE = "postgresql://nobody@localhost:1/nothing"
HUB = ("--kubeconfig", "/dev/null")
SCENARIO = "the example of kubectl aw plan --help"
COMMANDS = [name for module in PLUGIN for name in MODULES[module]]
RUN = """
import io, json, sys
sys.modules.update(dict.fromkeys({absent}))
from contextlib import redirect_stderr, redirect_stdout
from dispatcher.__main__ import {entry} as entry
ran = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["dispatcher", *words]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            entry()
        except SystemExit as ended:
            code = ended.code
    ran.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ran))
"""
"""Runs commands one after the other in a process in which none of these packages can be imported."""


def run_all(commands: list[list[str]], entry: str = "main") -> list[tuple[object, str, str]]:
    """The exit code, output and errors of each command."""
    statement = RUN.format(absent=sorted(EXTRAS), entry=entry)
    done = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", statement, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def test_each_command_of_the_plugin_explains_itself() -> None:
    ran = run_all([[name, "--help"] for name in COMMANDS], "kubectl_plugin")
    assert [(name, code) for name, (code, *_) in zip(COMMANDS, ran, strict=True)] == [
        (name, 0) for name in COMMANDS
    ]


POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}"


def test_commands_that_plan_nothing_get_as_far_as_their_server(tmp_path: Path) -> None:
    """Each ends because there is no hub or no database, and none because a package is missing."""
    file, kubeconfig = tmp_path / "pod.yaml", tmp_path / "east.kubeconfig"
    file.write_text(POD)
    kubeconfig.write_text(yaml.safe_dump(member_kubeconfig()))
    database = ("--database-url", NOWHERE)
    asked = [
        *([name, *database] for name in ("queue", "history", "usage", "waits", "clusters")),
        ["show", "train", *database],
        ["sql", "SELECT 1", *database],
        *([name, *HUB, "--database-url", ""] for name in ("queue", "queues")),
        *([name, "train", *HUB, "--database-url", ""] for name in ("show", "explain")),
        *([name, "train", *HUB] for name in ("hold", "release", "cancel", "logs")),
        ["priority", "1", "train", *HUB],
        ["wait", "train", "--for", "done", *HUB],
        ["submit", str(file), *HUB],
        ["running", "-A", *HUB],
        ["nodes", *HUB],
        ["clusters", "list", *HUB],
        ["clusters", "cordon", "east", *HUB],
        ["clusters", "add", "east", "--member-kubeconfig", str(kubeconfig), *HUB],
        ["queues", "hold", "team", *HUB],
    ]
    for words, (code, _, said) in zip(asked, run_all(asked), strict=True):
        assert code in (1, 2, 3), words
        assert said, words
        assert "not installed" not in said, words


def member_kubeconfig() -> dict[str, object]:
    """A kubeconfig that a hub would use."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "east",
        "contexts": [{"name": "east", "context": {"cluster": "east", "user": "hub"}}],
        "clusters": [{"name": "east", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "hub", "user": {"token": "t"}}],
    }


def test_demand_needs_no_server_at_all(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    [(code, out, _)] = run_all([["demand", "-f", str(file)]])
    assert (code, "Pod/a" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["plan", "-f", SCENARIO], "numpy"),
        (["simulate", "-f", SCENARIO], "numpy"),
        (["explain", "train", "--if-gone", "other", "--database-url", NOWHERE], "numpy"),
        (["run", "--database-url", NOWHERE], "pydantic"),
        (["migrate", "--database-url", NOWHERE], "alembic"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else each,
)
def test_command_that_needs_an_extra_names_it(words: list[str], package: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("\n".join(EXAMPLE))
    [(code, out, said)] = run_all([[str(scenario) if each == SCENARIO else each for each in words]])
    assert (code, out) == (1, "")
    assert missing(package) in " ".join(said.split())


def modules_of(requirements: list[str]) -> set[str]:
    """The names of the modules of these requirements."""
    names = (re.split(r"[\[>=]", each)[0] for each in requirements)
    return {{"pyyaml": "yaml"}.get(name, name.replace("-", "_")) for name in names}


def test_extras_are_those_of_the_project() -> None:
    declared = PROJECT["optional-dependencies"]
    assert set(EXTRAS) == modules_of(declared["server"]) | modules_of(declared["web"])
    for own in ("plan", "web"):
        assert {name for name, extra in EXTRAS.items() if extra == own} <= modules_of(declared[own])
    assert set(EXTRAS.values()) == {"plan", "server", "web"}
    assert modules_of(PROJECT["dependencies"]).isdisjoint(EXTRAS)
    assert f"{PROJECT['name']}[server,web]" in declared["dev"]


def test_missing_package_is_told_from_one_that_is_there() -> None:
    assert [is_installed(name) for name in ("numpy", "no_such_package")] == [True, False]
