"""In the cluster of `make dev` each kind that docs/kinds.md names can be wrapped, and lives as its operator has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher.core.kinds.built_in import ROWS
from testbed import build
from testbed.client import Client
from testbed.dev import APPWRAPPERS, SETTING, settle
from testbed.processes import Supervisor
from testbed.stack import Stack
from tests.cluster.demos import fresh_folder
from tests.cluster.every_kind import DECLARED, ENDING, STAYING, WITHOUT_PODS, appwrappers, name_of
from tests.cluster.manifests import appwrapper, changed, item, job

Json = dict[str, Any]

PATIENCE_SECONDS = 120.0
AN_HOUR = 3600
UNANNOTATED = appwrapper("unannotated", item(changed(job("unannotated"), "spec.template.metadata", {})))
"""A Job that does not say how long its pod runs."""
EXPECTED = {
    **dict.fromkeys(map(name_of, ENDING), "Completed"),
    **dict.fromkeys(map(name_of, STAYING), "Running"),
    **dict.fromkeys(map(name_of, DECLARED), "Running"),
    name_of("sparkoperator.k8s.io/v1beta2 SparkApplication"): "Completed",
    name_of("trainer.kubeflow.org/v1alpha1 TrainJob"): "Completed",
    "without-pods-0": "Running",
    "without-pods-1": "Running",
    "unannotated": "Running",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with fresh_folder() as folder:
        yield folder


@pytest.fixture
def hub(folder: Path) -> Iterator[Client]:
    """The administrator's way to the cluster of `make dev`, in which jobs last an hour unless they say less."""
    setting = replace(SETTING, hub=replace(SETTING.hub, work_seconds=AN_HOUR))
    with Supervisor(folder) as supervisor:
        stack = Stack(supervisor, build.ensure(), setting)
        try:
            stack.up(lambda _: None)
            settle(stack)
            yield stack.plane.client
        finally:
            stack.down()


def kinds() -> set[tuple[str, str]]:
    """Group and kind of every example but that of examples/own-kind."""
    examples = (each.split(" ") for each in (*ENDING, *STAYING, *DECLARED, *WITHOUT_PODS))
    named = {(version.rpartition("/")[0], kind) for version, kind in examples}
    return named - {("platform.example.com", "Training")}


def test_every_built_in_kind_has_an_example() -> None:
    assert kinds() == {(row.group, row.kind) for row in ROWS}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
async def test_every_kind_can_be_wrapped_and_runs_and_ends_as_its_operator_has_it(hub: Client) -> None:
    for each in (*appwrappers().values(), UNANNOTATED):
        await asyncio.to_thread(hub.request, "POST", APPWRAPPERS, each)

    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := await asyncio.to_thread(states, hub)) != EXPECTED:
        differ = {name: (state, EXPECTED[name]) for name, state in found.items() if state != EXPECTED[name]}
        assert "Failed" not in found.values(), differ
        assert time.monotonic() < deadline, differ
        await asyncio.sleep(0.2)


def states(hub: Client) -> dict[str, str]:
    """The state of every AppWrapper."""
    return {
        each["metadata"]["name"]: (each.get("status") or {}).get("queuejobstate", "")
        for each in hub.get(APPWRAPPERS)["items"]
    }
