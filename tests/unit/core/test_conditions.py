"""The status as a projection of the record, held against what MCAD itself wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.conditions import ConditionType, State
from dispatcher.core import lifecycle
from dispatcher.core.capacity import PodCounts
from dispatcher.core.conditions import project
from dispatcher.core.record import Pending, Phase, Record
from tests.builders import NOW, WAITS, at, make_blocked, make_record

TESTS = Path(__file__).parents[2]
GOLDEN = yaml.safe_load((TESTS / "golden" / "mcad-conditions.yaml").read_text())
CRD = yaml.safe_load((TESTS.parent / "crds" / "workload.codeflare.dev_appwrappers.yaml").read_text())
TIMES = {"lastTransitionMicroTime", "lastUpdateMicroTime", "lastTransitionTime"}
OURS = {"cluster", "waiting"}


def without_times(status: dict[str, Any]) -> dict[str, Any]:
    """A status less its times and what only we add."""
    conditions = [
        {key: value for key, value in condition.items() if key not in TIMES}
        for condition in status["conditions"]
    ]
    rest = {key: value for key, value in status.items() if key not in {"controllerfirsttimestamp", *OURS}}
    return {**rest, "conditions": conditions}


def test_dispatched_appwrapper_shows_what_mcad_shows() -> None:
    record = make_record(Phase.DISPATCHED, priority=9)
    assert without_times(project(record)) == without_times(GOLDEN["raycluster-glue"])


def test_waiting_appwrapper_shows_what_mcad_shows() -> None:
    record = make_blocked(make_record(priority=9))
    assert without_times(project(record)) == without_times(GOLDEN["raycluster-glue-1"])


@pytest.mark.parametrize("name", GOLDEN)
def test_times_are_written_as_mcad_writes_them(name: str) -> None:
    record = make_record(Phase.DISPATCHED) if name == "raycluster-glue" else make_blocked()
    status, golden = project(record), GOLDEN[name]

    assert status["controllerfirsttimestamp"] == "2026-11-20T08:58:06.842261Z"
    assert len(status["controllerfirsttimestamp"]) == len(golden["controllerfirsttimestamp"])
    for ours, theirs in zip(status["conditions"], golden["conditions"], strict=True):
        assert ours.keys() - theirs.keys() == {"lastTransitionTime"}
        assert not theirs.keys() - ours.keys()
        for key in TIMES & theirs.keys():
            assert len(ours[key]) == len(theirs[key])


def test_whole_status_of_one_that_was_blocked_and_then_ran() -> None:
    record = make_blocked(make_record(priority=9), seconds=1.5)
    record = lifecycle.dispatch(record, "hub", at(2)).after
    record = lifecycle.created(record, (), at(3)).after
    record = lifecycle.mark_running(record, at(4)).after

    assert project(record, PodCounts(pending=1, running=2, succeeded=3, failed=4)) == {
        "conditions": [
            entry("Init", "06.842261"),
            entry("Queueing", "06.842261", reason="AwaitingHeadOfLine"),
            entry("HeadOfLine", "08.342261", reason="FrontOfQueue."),
            entry(
                "Backoff",
                "08.842261",
                status="False",
                reason="AppWrapperNotRunnable.",
                message="Insufficient resources to dispatch AppWrapper.",
            ),
            entry("Dispatched", "09.842261", reason="AppWrapperRunnable"),
            entry("Running", "10.842261", reason="PodsRunning"),
        ],
        "controllerfirsttimestamp": "2026-11-20T08:58:06.842261Z",
        "canrun": True,
        "cluster": "hub",
        "filterignore": True,
        "queuejobstate": "Running",
        "sender": "before manageQueueJob - afterEtcdDispatching",
        "state": "Running",
        "systempriority": 9,
        "pending": 1,
        "running": 2,
        "Succeeded": 3,
        "failed": 4,
    }


def entry(type_: str, second: str, *, status: str = "True", **said: str) -> dict[str, str]:
    whole = second.split(".")[0]
    return {
        "type": type_,
        "status": status,
        "lastUpdateMicroTime": f"2026-11-20T08:58:{second}Z",
        "lastTransitionMicroTime": f"2026-11-20T08:58:{second}Z",
        "lastTransitionTime": f"2026-11-20T08:58:{whole}Z",
        **said,
    }


SHOWN = [
    pytest.param(make_record(), "Pending", "Queueing", False, id="queued"),
    pytest.param(make_blocked(), "Pending", "Backoff", False, id="blocked"),
    pytest.param(make_record(Phase.DISPATCHING), "Pending", "HeadOfLine", True, id="dispatching"),
    pytest.param(make_record(Phase.DISPATCHED), "Running", "Dispatched", True, id="dispatched"),
    pytest.param(make_record(Phase.RUNNING), "Running", "Running", True, id="running"),
    pytest.param(make_record(Phase.REQUEUEING), "Pending", "Backoff", False, id="requeueing"),
    pytest.param(make_record(Phase.FAILING), "Pending", "HeadOfLine", False, id="failing"),
    pytest.param(make_record(Phase.FAILED), "Failed", "Failed", False, id="failed"),
    pytest.param(make_record(Phase.DELETING), "Deleted", "Running", False, id="deleting"),
    pytest.param(make_record(Phase.DELETED), "Deleted", "Running", False, id="deleted"),
]


@pytest.mark.parametrize(("record", "state", "queue_job_state", "can_run"), SHOWN)
def test_each_phase_is_shown_in_words_of_mcad(
    record: Record, state: str, queue_job_state: str, can_run: bool
) -> None:
    status = project(record)
    assert (status["state"], status["queuejobstate"], status.get("canrun")) == (
        state,
        queue_job_state,
        True if can_run else None,
    )


@pytest.mark.parametrize("phase", Phase)
def test_canrun_never_stands_alone_and_no_word_is_not_mcads(phase: Phase) -> None:
    status = project(make_record(phase))
    assert {"state", "queuejobstate"} <= status.keys()
    assert status["state"] in set(State)
    assert status["queuejobstate"] in set(ConditionType)


@pytest.mark.parametrize("phase", Phase)
def test_same_record_gives_the_same_status_as_json_too(phase: Phase) -> None:
    record = make_record(phase)
    status = project(record, PodCounts(running=1))
    assert project(replace(record), PodCounts(running=1)) == status
    assert json.loads(json.dumps(status)) == status


def test_cluster_is_shown_while_capacity_is_held_there() -> None:
    shown = {phase for phase in Phase if "cluster" in project(make_record(phase))}
    assert shown == {
        Phase.DISPATCHING,
        Phase.DISPATCHED,
        Phase.RUNNING,
        Phase.REQUEUEING,
        Phase.FAILING,
        Phase.DELETING,
    }


@pytest.mark.parametrize(
    ("pending", "waiting"),
    [
        pytest.param(None, None, id="does-not-wait"),
        pytest.param(
            WAITS,
            {
                "reason": "InsufficientResources",
                "message": "cluster hub: cpu: needs 1, 0 free",
                "resource": "cpu",
                "cluster": "hub",
            },
            id="for-a-resource",
        ),
        pytest.param(
            Pending("NoCluster", "no cluster has reported its capacity yet"),
            {"reason": "NoCluster", "message": "no cluster has reported its capacity yet"},
            id="for-a-cluster",
        ),
    ],
)
def test_waiting_says_why_in_words_and_in_codes(
    pending: Pending | None, waiting: dict[str, str] | None
) -> None:
    assert project(make_record(pending=pending)).get("waiting") == waiting


def test_failed_appwrapper_says_why() -> None:
    record = make_record(Phase.FAILED)
    assert without_times(project(record))["conditions"][-1] == {
        "type": "Failed",
        "status": "True",
        "reason": "ItemCreationFailure.",
        "message": "it is invalid",
    }


SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


@pytest.mark.parametrize("phase", Phase)
def test_everything_that_is_shown_is_in_the_schema_else_the_api_server_drops_it(phase: Phase) -> None:
    counts = PodCounts(pending=1, running=1, succeeded=1, failed=1)
    fits(project(make_record(phase, pending=WAITS), counts), SCHEMA, "status")


def fits(value: object, schema: dict[str, Any], path: str) -> None:
    assert isinstance(value, JSON_TYPES[schema["type"]]), path
    assert isinstance(value, bool) is (schema["type"] == "boolean"), path
    if isinstance(value, dict):
        for key, part in value.items():
            assert key in schema["properties"], f"{path}.{key}"
            fits(part, schema["properties"][key], f"{path}.{key}")
    if isinstance(value, list):
        for index, part in enumerate(value):
            fits(part, schema["items"], f"{path}[{index}]")


def test_priority_is_a_whole_number() -> None:
    priority = project(make_record(priority=9, priority_slope=0.5))["systempriority"]
    assert (priority, type(priority)) == (9, int)


def test_times_of_other_zones_are_shown_in_utc() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    record = make_record()
    moved = replace(record, conditions=tuple(replace(each, since=local) for each in record.conditions))
    assert project(moved) == project(record)
