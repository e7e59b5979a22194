"""`explain` from a kubeconfig alone: the sentences, the JSON, and the questions that need the leader's snapshot."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.screens.appwrapper_status import AppWrapperStatus
from dispatcher.cli.screens.explanation import ONLY_IN_SNAPSHOT, meant_queue, of_status, render
from dispatcher.core.intake import namespace_bounds
from tests.builders import make_appwrapper
from tests.commands import Run, runner
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.cli.screens.test_status_description import COLLECTION, NOW, QUEUED, RUNS, WAITING
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

GROWS = {
    **RUNS,
    "status": {
        **{word: value for word, value in RUNS["status"].items() if word != "unhealthy"},
        "growth": {"pods": 2, "reason": "InsufficientQuota", "message": "2 more pods wait"},
    },
}
"""An AppWrapper that runs, and whose growth waits."""

Json = dict[str, Any]


def pending(**waiting: Any) -> Json:  # noqa: ANN401
    """The AppWrapper team-a/train, queued, with this `status.waiting`."""
    status = {"state": "Pending", "queuejobstate": "Backoff", "waiting": waiting}
    return make_appwrapper("train", namespace="team-a", status=status)


QUOTA = """\
team-a/train waits: InsufficientQuota
  position 3 of 9 in the queue
  estimated start 2026-11-20T14:00:00Z
  queue vision: nominal 8, used 8, speech borrows 2
  preempting team-b/probe

CLUSTER  REASON             MESSAGE
east     InsufficientQuota  none left

HELD BY     USER  SINCE
team-a/one  ada   2h
and 2 more AppWrappers that a status does not name

It would be dispatched
  without one"""
FAR = """\
team-a/train waits: InsufficientResources
  position 100+ in the queue
  estimated start unknown: fewer than 5 waits
  cluster hub: cpu: needs 4, 1 free (nodes excluded: 2 cordoned)"""
OTHERS = """\
team-a/train waits: InsufficientResources
  no position in the queue now
  estimated start unknown
  short

Held by 1 AppWrapper that a status does not name"""
PRIORITY = """\
team-a/train waits: InsufficientResources
  no position in the queue now
  estimated start unknown
  short

It would be dispatched
  with priority 8
  without one"""
HUGE = """\
team-a/train does not fit any cluster: LargerThanCluster
  no position in the queue: it would not go if nothing else ran
  cluster hub: cpu: needs 99, 8 in all"""
GATED = """\
team-a/train waits: AwaitingApproval
  no position in the queue: it takes part in no cycle before it has all approvals
  it lacks the approvals data-staged, budget"""
UNKNOWN_FIELDS = [
    {"type": "UnknownFields", "status": "True", "message": 'Job train: unknown field "spec.replica"'}
]
WARNED = """\
team-a/train waits: InsufficientResources
  no position in the queue now
  estimated start unknown
  short
  warning: Job train: unknown field "spec.replica\""""
OUTSIDE = namespace_bounds.deferred_status("team-a", 3)
IN_QUEUE = {**QUEUED, "status": {**QUEUED["status"], "waiting": {**WAITING, "queue": "vision"}}}


def with_conditions(appwrapper: Json, conditions: list[Json]) -> Json:
    return {**appwrapper, "status": {**appwrapper["status"], "conditions": conditions}}


@pytest.mark.parametrize(
    ("appwrapper", "said"),
    [
        pytest.param(IN_QUEUE, QUOTA, id="all-fields"),
        pytest.param(
            pending(reason="AwaitingApproval", message="it lacks the approvals data-staged, budget"),
            GATED,
            id="approvals",
        ),
        pytest.param(
            pending(
                reason="InsufficientResources",
                message="cluster hub: cpu: needs 4, 1 free (nodes excluded: 2 cordoned)",
                position=100,
                estimateUnknown="fewer than 5 waits",
            ),
            FAR,
            id="far",
        ),
        pytest.param(
            pending(reason="InsufficientResources", message="short", otherHolders=1), OTHERS, id="others"
        ),
        pytest.param(
            pending(
                reason="InsufficientResources",
                message="short",
                leastPriority=8,
                repair={"message": "it would be dispatched without one", "remove": ["one"]},
            ),
            PRIORITY,
            id="priority",
        ),
        pytest.param(
            with_conditions(pending(reason="InsufficientResources", message="short"), UNKNOWN_FIELDS),
            WARNED,
            id="unknown-fields",
        ),
        pytest.param(
            pending(
                reason="LargerThanCluster",
                message="cluster hub: cpu: needs 99, 8 in all",
                estimateUnknown="it would not start if nothing else ran",
            ),
            HUGE,
            id="huge",
        ),
        pytest.param(
            pending(), "team-a/train is Queued: no scheduling cycle has evaluated it yet.", id="not-evaluated"
        ),
        pytest.param(RUNS, "team-a/train is Running on east: ClusterUnreachable: no answer.", id="runs"),
        pytest.param(
            GROWS, "team-a/train is Running on east: InsufficientQuota: 2 more pods wait.", id="grows"
        ),
        pytest.param(
            make_appwrapper("train", namespace="team-a", status=OUTSIDE),
            f"team-a/train is outside the queue: NamespaceQueueFull: {OUTSIDE['waiting']['message']}.",
            id="outside",
        ),
        pytest.param(
            make_appwrapper("train", namespace="team-a"),
            "team-a/train has no status: no dispatcher has seen it yet.",
            id="unseen",
        ),
        pytest.param(
            make_appwrapper(
                "train",
                namespace="team-a",
                status={
                    "state": "Failed",
                    "conditions": [
                        {"type": "Failed", "status": "True", "reason": "Wrong", "message": "no pods"}
                    ],
                },
            ),
            "team-a/train is Failed: Wrong: no pods.",
            id="failed",
        ),
    ],
)
def test_status_explains_why_an_appwrapper_waits(appwrapper: Json, said: str) -> None:
    assert render(of_status(AppWrapperStatus(appwrapper, NOW)), None) == said


def test_json_has_the_fields_of_the_status() -> None:
    found = of_status(AppWrapperStatus(IN_QUEUE, NOW)).value
    assert (found["state"], found["verdict"], found["position"], found["queueLength"]) == (
        "Queued",
        "Waits",
        3,
        9,
    )
    for field in ("reason", "message", "clusters", "queue", "quota", "preempting", "holders", "otherHolders"):
        assert found[field] == {**WAITING, "queue": "vision"}[field]
    assert found["repair"] == [WAITING["repair"]]
    assert of_status(AppWrapperStatus(pending(leastPriority=8), NOW)).value["priority"] == 8
    assert (found["estimatedStart"], found["estimateUnknown"]) == ("2026-11-20T14:00:00+00:00", None)
    assert [found[field] for field in ONLY_IN_SNAPSHOT] == [None] * len(ONLY_IN_SNAPSHOT)
    assert (
        of_status(AppWrapperStatus(pending(reason="LargerThanCluster"), NOW)).value["verdict"] == "DoesNotFit"
    )
    assert of_status(AppWrapperStatus(pending(), NOW)).value["verdict"] is None
    assert [*of_status(AppWrapperStatus(RUNS, NOW)).value] == ["name", "namespace", "uid", "state"]


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with the AppWrapper team-a/train."""
    async with FakeApiServer() as server:
        server.on("GET", f"{COLLECTION}/train", answer(QUEUED))
        server.on("GET", f"{COLLECTION}/gone", refusal(404, "NotFound"))
        server.on("GET", COLLECTION, answer({"metadata": {}, "items": [QUEUED, RUNS]}))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` with a kubeconfig of the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


async def test_explain_finds_appwrappers_by_name_and_labels(ask: Run) -> None:
    ran = await ask("explain", "team-a/train")
    assert (ran.code, ran.out.splitlines()[0], ran.err) == (0, "team-a/train waits: InsufficientQuota", "")
    ran = await ask("explain", "-l", "app=train", "-n", "team-a", "-o", "json")
    assert [each["state"] for each in json.loads(ran.out)] == ["Queued", "Running"]
    assert (await ask("explain", "team-a/gone")).code == 1


@pytest.mark.parametrize(
    "asked",
    [
        ["explain", "train", "--if", "untaint:n1"],
        ["explain", "train", "--if-gone", "other"],
        ["explain", "train", "--priority", "0"],
        ["explain", "train", "--without-cluster", "east"],
        ["would", "-f", "-"],
    ],
    ids=lambda asked: asked[2] if asked[0] == "explain" else asked[0],
)
async def test_plan_of_a_change_needs_the_snapshot_of_the_leader(ask: Run, asked: list[str]) -> None:
    ran = await ask(*asked)
    assert (ran.code, ran.out) == (2, "")
    what = asked[2] if asked[0] == "explain" else "would"
    assert f"{what} needs the leader's snapshot in the database: set DISPATCHER_DATABASE_URL" in ran.err


QUEUES = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"
ABSENT = "there is no queue vison"


@pytest.mark.parametrize(
    ("message", "may_list", "said", "looks"),
    [
        (ABSENT, True, f"{ABSENT}; did you mean vision?", True),
        (ABSENT, False, ABSENT, True),
        (f"{ABSENT}: none is declared, and a gang waits", True, None, False),
        ("queue vison was deleted: declare it again, and its gangs go on", True, None, False),
        ("queue vison is not valid: it has no parent", True, None, False),
    ],
    ids=["misspelt", "may not list queues", "none is declared", "deleted", "not valid"],
)
async def test_explain_names_the_queue_that_is_meant_where_its_user_may_list_queues(
    ask: Run, hub: FakeApiServer, message: str, may_list: bool, said: str | None, looks: bool
) -> None:
    waits = pending(reason="QueueNotFound", message=message, queue="vison")
    waits["metadata"] |= QUEUED["metadata"]
    hub.on("GET", f"{COLLECTION}/train", answer(waits))
    there = answer({"items": [{"metadata": {"name": "vision"}}]})
    hub.on("GET", QUEUES, there if may_list else refusal(403, "Forbidden"))

    ran = await ask("explain", "team-a/train")

    assert (ran.code, ran.out.splitlines()[-1], ran.err) == (0, f"  {said or message}", "")
    assert len(hub.requests("GET", QUEUES)) == looks


async def test_uid_needs_the_database(ask: Run) -> None:
    ran = await ask("explain", "train", "--uid")
    assert (ran.code, "--uid needs the database: set" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("missing", "meant"),
    [
        ("vison", "; did you mean vision?"),
        ("context/vison", ""),
        ("context/sliver", "; did you mean context/silver?"),
        ("context/lost", ""),
        ("", ""),
    ],
)
def test_queue_is_compared_with_those_of_its_tree(missing: str, meant: str) -> None:
    assert meant_queue(missing, ["vision", "context/silver", "context/gold", "other/lost"]) == meant
