"""The afternoon of docs/try-it.md without a cluster: its files are there, and its explanation is that of a plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from testbed.dev import NODE, USERS
from testbed.stack import NODES
from tests.afternoon import CHECKOUT, STATE, Step, steps
from tests.commands import Run, runner

Json = dict[str, Any]

AFTERNOON = CHECKOUT / "examples" / "afternoon"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …`."""
    return runner(monkeypatch, capsys)


async def gang(run: Run, name: str) -> Json:
    """The gang of a file of the afternoon, for a scenario."""
    asked = await run("demand", "-f", str(AFTERNOON / f"{name}.yaml"), "-o", "json")
    (found,) = json.loads(asked.out)
    pods = [{"count": each["count"], "requests": quantities(each["requests"])} for each in found["podSets"]]
    return {"name": name, "pods": pods}


def quantities(requests: dict[str, int]) -> dict[str, str]:
    """Amounts in base units as quantities."""
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in requests.items()}


def test_commands_name_files_and_users_that_exist() -> None:
    lines = "\n".join(step.command for step in steps())
    files = re.findall(r"\bexamples/\S+", lines)
    assert {Path(each).name for each in files} == {each.name for each in AFTERNOON.iterdir()}
    assert set(re.findall(rf"{STATE}/(\w+)\.kubeconfig", lines)) == {*USERS, "admin"}


async def test_explanation_is_that_of_a_plan(run: Run) -> None:
    running = [{**await gang(run, name), "cluster": "hub", "ran": 60} for name in ("sweep", "tune")]
    hub = {"name": "hub", "nodes": [{"name": "node", "count": NODES, "allocatable": NODE.capacity}]}
    scenario = {"clusters": [hub], "running": running, "pending": [await gang(run, "pretrain")]}
    planned = await run("plan", "-f", "-", "-o", "json", stdin=json.dumps(scenario))

    (decision,) = json.loads(planned.out)["decisions"]
    (shown,) = (step.output for step in steps() if "explain" in step.words)
    assert f"team-b/pretrain waits: {decision['reason']}\n" in shown
    assert f"  {decision['message']}\n" in shown
    assert [f"team-a/{each}" for each in decision["holders"]] == re.findall(
        r"^(team-\S+)  ", shown, re.MULTILINE
    )
    add, remove = decision["repair"]
    assert f"with {add['add_nodes']['count']} more node like node-0" in shown
    assert shown.endswith(f"without team-a/{remove['remove'][0]}")


@pytest.mark.parametrize(
    ("command", "shown", "found", "agree"),
    [
        ("queue", "a   3s  8", "a  12m  8", True),
        ("queue", "a   3s  8", "a  12m  9", False),
        ("queue", "a\nb", "b\na", False),
        ("history", "a 2026-01-01T00:00:00Z 0.01\nb 1s", "b 2h\na 2026-02-02T01:01:01Z 0.15", True),
        ("history", "a completed", "a failed", False),
        ("usage", "ada 0.01  42.41", "ada 0.02  50.5", True),
        ("usage", "ada 0.01  42.41", "ben 0.01  42.41", False),
        ("wait a", "a Backoff\na Running on hub", "a Running on hub", True),
        ("wait a", "a Running on hub", "a Failed on hub", False),
    ],
)
def test_output_agrees_with_the_page_up_to_times(command: str, shown: str, found: str, agree: bool) -> None:
    assert Step(f"kubectl aw {command}", shown).is_shown_by(found) is agree
