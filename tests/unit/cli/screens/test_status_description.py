"""`show` from a kubeconfig alone: the screens, the JSON, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.screens.status_description import COLUMNS_OF_JOB, StatusDescription
from tests.builders import make_appwrapper
from tests.commands import Run, runner
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

TESTS = Path(__file__).parents[3]
NOW = datetime(2026, 11, 20, 12, 58, 6, tzinfo=UTC)
API = "/apis/workload.codeflare.dev/v1beta1"
COLLECTION = f"{API}/namespaces/team-a/appwrappers"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
NOTE = (
    "Attempts and timeline are only in the database: set DISPATCHER_DATABASE_URL or --database-url to a libpq URL, "
    "such as postgresql://dispatcher_reader@host:5432/dispatcher.\n"
)


def condition(type_: str, hour: int, **fields: str) -> Json:
    """A true condition since that hour."""
    return {
        "type": type_,
        "status": "True",
        "lastTransitionTime": f"2026-11-20T{hour:02}:00:00Z",
        **fields,
    }


REQUESTS = {"cpu": "1500m", "memory": "512Mi", "nvidia.com/gpu": "2"}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "parallelism": 2,
        "template": {
            "spec": {"containers": [{"name": "c", "resources": {"requests": REQUESTS, "limits": REQUESTS}}]}
        },
    },
}
WAITING = {
    "reason": "InsufficientQuota",
    "message": "queue vision: nvidia.com/gpu: needs 4, 0 available",
    "position": 3,
    "queueLength": 9,
    "estimatedStart": "2026-11-20T14:00:00Z",
    "quota": {"nominal": "8", "used": "8", "borrowers": [{"queue": "speech", "amount": "2"}]},
    "preempting": ["team-b/probe"],
    "clusters": [{"cluster": "east", "reason": "InsufficientQuota", "message": "none left"}],
    "holders": [{"name": "one", "namespace": "team-a", "user": "ada", "since": "2026-11-20T10:58:06Z"}],
    "otherHolders": 2,
    "repair": {"message": "it would be dispatched without one", "remove": ["one"]},
}
STATUS = {"systempriority": 7, "queue": "vision", "user": "cleo", "gpus": 4}
QUEUED = make_appwrapper(
    "train",
    JOB,
    namespace="team-a",
    status={
        **STATUS,
        "state": "Pending",
        "queuejobstate": "Backoff",
        "canrun": False,
        "sender": "before ScheduleNext - setHOL",
        "waiting": WAITING,
        "conditions": [
            condition("Queueing", 9),
            condition("Backoff", 10, reason="Quota limit exceeded", message="no"),
        ],
    },
)
RUNS = make_appwrapper(
    "train",
    JOB,
    namespace="team-a",
    status={
        **STATUS,
        "state": "Running",
        "queuejobstate": "Running",
        "cluster": "east",
        "running": 1,
        "pending": 1,
        "trusts": [{"pool": "l4", "nodes": 2}],
        "unhealthy": {
            "reason": "ClusterUnreachable",
            "message": "no answer",
            "since": "2026-11-20T10:58:06Z",
        },
        "growth": {
            "pods": 2,
            "reason": "GrowthBehindGang",
            "message": "2 more pods wait (cpu 2): team-a/large was queued before, and waits",
            "since": "2026-11-20T11:58:06Z",
        },
        "componentStatus": [
            {
                "name": "train",
                "kind": "Job",
                "apiVersion": "batch/v1",
                "conditions": [condition("ResourcesDeployed", 9)],
            }
        ],
    },
)
QUEUED_TEXT = """\
team-a/train
  State:       Queued
  Reason:      InsufficientQuota
  Message:     queue vision: nvidia.com/gpu: needs 4, 0 available
  Position:    3 of 9
  Would go:    without one
  Est. start:  2026-11-20T14:00:00Z
  Quota:       nominal 8, used 8, speech borrows 2
  Preempting:  team-b/probe
  Submitted:   2026-11-20T08:58:06Z
  Waited:      4h
  Queue:       vision
  Priority:    7
  Asks for:    3 cpu, 1 GiB, 4 gpu, 2 pods
  Kinds:       Job
  User:        cleo
  UID:         uid-of-train

CLUSTER  REASON             MESSAGE
east     InsufficientQuota  none left

HELD BY     USER  SINCE
team-a/one  ada   2h
and 2 more AppWrappers that a status does not name

CONDITION  STATUS  SINCE  REASON                MESSAGE
Queueing   True    3h     -                     -
Backoff    True    2h     Quota limit exceeded  no

For MCAD's clients
  state:          Pending
  queuejobstate:  Backoff
  canrun:         false
  sender:         before ScheduleNext - setHOL"""
RUNS_TEXT = """\
team-a/train
  State:      Running
  Cluster:    east
  Pods:       1 pending, 1 running
  Trusts:     2 nodes of pool l4 to come
  Unhealthy:  ClusterUnreachable: no answer, for 2h
  Growth:     GrowthBehindGang: 2 more pods wait (cpu 2): team-a/large was queued before, and waits, for 60m
  Submitted:  2026-11-20T08:58:06Z
  Queue:      vision
  Priority:   7
  Asks for:   3 cpu, 1 GiB, 4 gpu, 2 pods
  Kinds:      Job
  User:       cleo
  UID:        uid-of-train

COMPONENT  STATUS             SINCE
Job/train  ResourcesDeployed  3h

For MCAD's clients
  state:          Running
  queuejobstate:  Running"""
UNSEEN_TEXT = """\
team-a/odd
  State:      no dispatcher has seen it yet
  Submitted:  2026-11-20T08:58:06Z
  Asks for:   unknown
  User:       team-a
  UID:        uid-of-odd"""


@pytest.mark.parametrize(
    ("appwrapper", "shown"),
    [
        pytest.param(QUEUED, QUEUED_TEXT, id="queued"),
        pytest.param(RUNS, RUNS_TEXT, id="running"),
        pytest.param(
            make_appwrapper("odd", namespace="team-a", spec={"resources": None}), UNSEEN_TEXT, id="unseen"
        ),
    ],
)
def test_appwrapper_is_described_from_itself(appwrapper: Json, shown: str) -> None:
    assert StatusDescription(appwrapper, NOW).as_text(None) == shown


def test_wide_output_has_exact_times() -> None:
    shown = StatusDescription(QUEUED, NOW).as_text(None, is_wide=True)
    assert "Backoff    True    2026-11-20T10:00:00Z  Quota limit exceeded  no\n" in shown
    assert "team-a/one  ada   2026-11-20T10:58:06Z\n" in shown


def test_failed_gang_shows_which_container_failed_first_what_it_said_and_the_command_for_its_log() -> None:
    failure = {
        "pod": "train-x",
        "container": "main",
        "exitCode": 137,
        "reason": "OOMKilled",
        "message": "batch 7",
        "logs": "kubectl aw logs train -n team-a --pod train-x -c main",
    }
    status = {**STATUS, "state": "Failed", "queuejobstate": "Failed", "failure": failure}
    failed = make_appwrapper("train", JOB, namespace="team-a", status=status)

    assert StatusDescription(failed, NOW).as_text(None).splitlines()[2:5] == [
        "  Failed first:  container main of pod train-x, exit code 137, OOMKilled",
        "  It said:       batch 7",
        "  Its log:       kubectl aw logs train -n team-a --pod train-x -c main",
    ]


def test_keys_are_those_of_the_database() -> None:
    golden = (TESTS / "golden" / "history-columns.txt").read_text().splitlines()
    assert tuple(line.split()[1] for line in golden if line.startswith("job_history ")) == COLUMNS_OF_JOB


def test_json_has_null_where_only_the_database_knows() -> None:
    found = StatusDescription(QUEUED, NOW).as_value()
    assert (found["state"], found["queue"], found["cpu"], found["gpu"]) == ("Queued", "vision", 3, 4)
    assert (found["waiting"]["position"], found["waiting"]["estimated_start"]) == (
        3,
        "2026-11-20T14:00:00+00:00",
    )
    assert [found[key] for key in ("timeline", "attempt_history", "states", "run_s")] == [None] * 4
    assert found["status"] == QUEUED["status"]
    assert StatusDescription(RUNS, NOW).as_value()["waiting"] is None


def test_deleted_appwrapper_is_being_deleted() -> None:
    deleted = {**RUNS, "metadata": {**RUNS["metadata"], "deletionTimestamp": "2026-11-20T12:00:00Z"}}
    assert StatusDescription(deleted, NOW).as_value()["state"] == "Deleting"


def test_gang_that_grew_holds_more_than_it_asks_for() -> None:
    held = {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": "6"}
    grown = StatusDescription({**RUNS, "status": {**RUNS["status"], "gpus": 6, "held": held}}, NOW)
    assert "  Asks for:   3 cpu, 1 GiB, 4 gpu, 2 pods\n  Holds:      4 cpu, 2 GiB, 6 gpu\n" in grown.as_text(
        None
    )
    assert (grown.as_value()["gpu"], grown.as_value()["holding"]) == (
        4,
        {"cpu": 4, "memory_gib": 2, "gpu": 6},
    )
    found = StatusDescription(RUNS, NOW).as_value()
    assert found["holding"] == {"cpu": 3, "memory_gib": 1, "gpu": 4}
    assert StatusDescription(QUEUED, NOW).as_value()["holding"] is None


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with the AppWrapper train in the namespace team-a."""
    async with FakeApiServer() as server:
        server.on("GET", f"{COLLECTION}/train", answer(QUEUED))
        server.on("GET", f"{COLLECTION}/gone", refusal(404, "NotFound"))
        older = make_appwrapper("train", namespace="team-b", creationTimestamp="2026-11-19T08:58:06Z")
        server.on("GET", f"{API}/appwrappers", answer({"metadata": {}, "items": [older, QUEUED]}))
        server.on("GET", COLLECTION, answer({"metadata": {}, "items": []}))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher show …` with a kubeconfig of the hub, in the namespace team-b."""
    use_kubeconfig(plain_kubeconfig(hub.url, "team-b"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys, "show")


@pytest.mark.parametrize("asked", [["team-a/train"], ["train", "-n", "team-a"]], ids=str)
async def test_show_finds_an_appwrapper_by_name(ask: Run, asked: list[str]) -> None:
    ran = await ask(*asked)
    assert (ran.code, ran.out.splitlines()[1]) == (0, "  State:       Queued")
    assert ran.err == NOTE


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        (["train", "-A"], {"fieldSelector": "metadata.name=train"}),
        (["-l", "app=train", "-A"], {"labelSelector": "app=train"}),
    ],
    ids=str,
)
async def test_show_finds_several_the_newest_first(
    ask: Run, hub: FakeApiServer, asked: list[str], query: Json
) -> None:
    ran = await ask(*asked, "-o", "json")
    assert [each["namespace"] for each in json.loads(ran.out)] == ["team-a", "team-b"]
    [sent] = hub.requests("GET", f"{API}/appwrappers")
    assert dict(sent.query) == {**query, "limit": "500"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["team-a/gone"], "there is no AppWrapper gone in namespace team-a"),
        (
            ["-l", "app=none", "-n", "team-a"],
            "there is no AppWrapper with labels app=none in namespace team-a",
        ),
    ],
    ids=str,
)
async def test_show_of_an_unknown_name_fails(ask: Run, asked: list[str], why: str) -> None:
    ran = await ask(*asked)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"dispatcher: {why}")


async def test_show_of_a_name_that_no_appwrapper_can_have_is_wrong_usage(ask: Run) -> None:
    ran = await ask("a/b/c")
    assert (ran.code, ran.out) == (2, "")
    assert "'a/b/c' is no name of an AppWrapper: write NAME or NAMESPACE/NAME" in ran.err


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["train", "--uid"], "--uid needs the database: set DISPATCHER_DATABASE_URL"),
        (["train", "--all"], "--all needs the database: set DISPATCHER_DATABASE_URL"),
        (
            ["train", "-o", "csv"],
            "csv, which is the timeline, needs the database: set DISPATCHER_DATABASE_URL",
        ),
        ([], "give the NAME of an AppWrapper, or select some by labels with -l"),
        (["train", "-l", "app=train"], "give NAME or -l, not both"),
        (["--database-url", NOWHERE], "give the NAME of an AppWrapper"),
        (["train", "--database-url", NOWHERE, "-l", "a=b"], "-l/--selector is about a kubeconfig"),
    ],
    ids=str,
)
async def test_show_refuses_options_that_its_source_does_not_support(
    ask: Run, asked: list[str], why: str
) -> None:
    ran = await ask(*asked)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
