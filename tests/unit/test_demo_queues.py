"""What the demo of the queues makes of what it reads: its table, its news, and its check of the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatcher.api.appwrapper import parse_spec
from testbed.demo_queues import (
    ASSISTANT,
    DEADLINE,
    DICTATE,
    EVAL,
    EXPECTED,
    PRETRAIN,
    QUEUES,
    check_preemptions,
    preemptions_of,
    quotas_of,
)
from testbed.queue_scene import QueueScene, Row, TeamGang, news_of, row_of, table_of
from testbed.story import StoryFailed
from tests.builders import gang_of
from tests.unit.test_demo import printed

Json = dict[str, Any]

QUOTAS = {"vision": 6, "speech": 4, "serving": 6}
NEEDS = "quota of vision: nvidia.com/gpu: needs 6, 0 available; nominal 6, 16 used"
WHY = "preempted for default/assistant (queue serving, priority 0): its queue uses more than its quota"
RUNS = Row("pretrain", "vision", 6, "Running", running=6)
WAITS = Row("pretrain", "vision", 6, "Queued", "InsufficientQuota", NEEDS)


def make_appwrapper(gang: TeamGang, **status: object) -> Json:
    return {"metadata": {"name": gang.name}, "status": status}


def make_pod(gang: TeamGang, number: int) -> Json:
    container = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"ray.io/cluster": gang.name}},
        "spec": {"nodeName": "node-0", "containers": [container]},
        "status": {"phase": "Running"},
    }


def make_pods(gang: TeamGang, count: int) -> list[Json]:
    return [make_pod(gang, number) for number in range(count)]


@pytest.mark.parametrize("gang", [PRETRAIN, DEADLINE, DICTATE, ASSISTANT, EVAL], ids=lambda gang: gang.name)
def test_appwrapper_of_a_gang_has_its_gpus_its_queue_and_its_priority(gang: TeamGang) -> None:
    appwrapper = gang.appwrapper

    spec = parse_spec(appwrapper["spec"], namespace="default")
    assert gang_of(spec).demand["nvidia.com/gpu"] == gang.gpus
    assert spec.priority == gang.priority
    assert appwrapper["metadata"]["labels"] == {"dispatcher.codeflare.dev/queue": gang.team}


def test_quotas_are_those_of_the_file() -> None:
    assert quotas_of(QUEUES) == QUOTAS


@pytest.mark.parametrize(
    ("found", "pods", "row"),
    [
        pytest.param(make_appwrapper(PRETRAIN, lifecyclePhase="Running"), 6, RUNS, id="runs"),
        pytest.param(
            make_appwrapper(
                PRETRAIN,
                lifecyclePhase="Queued",
                waiting={"reason": "InsufficientQuota", "message": NEEDS},
                conditions=[{"type": "PreemptCandidate", "reason": "QuotaReclaimed", "message": WHY}],
            ),
            0,
            WAITS,
            id="waits-after-it-was-preempted",
        ),
        pytest.param(
            make_appwrapper(
                PRETRAIN,
                lifecyclePhase="Requeueing",
                conditions=[{"type": "PreemptCandidate", "reason": "QuotaReclaimed", "message": WHY}],
            ),
            4,
            replace(WAITS, state="Requeueing", reason="QuotaReclaimed", message=WHY, running=4),
            id="is-being-removed",
        ),
        pytest.param(None, 0, replace(RUNS, state="deleted", running=0), id="deleted"),
        pytest.param({"metadata": {"name": "pretrain"}}, 0, replace(RUNS, state="-", running=0), id="new"),
    ],
)
def test_row_has_what_the_status_says(found: Json | None, pods: int, row: Row) -> None:
    assert row_of(PRETRAIN, found, make_pods(PRETRAIN, pods)) == row


@pytest.mark.parametrize(
    ("row", "runs", "waits"),
    [
        pytest.param(RUNS, True, False, id="all-pods-run"),
        pytest.param(replace(RUNS, running=5), False, False, id="a-pod-starts"),
        pytest.param(WAITS, False, True, id="nothing-exists"),
        pytest.param(replace(WAITS, running=1), False, False, id="a-pod-ends"),
        pytest.param(replace(WAITS, reason="AwaitingRelease"), False, False, id="for-a-release"),
    ],
)
def test_gang_runs_with_all_pods_and_waits_without_any(row: Row, runs: bool, waits: bool) -> None:
    assert (row.runs, row.waits_for("InsufficientQuota")) == (runs, waits)


def test_table_has_a_line_for_each_gang_and_the_use_of_each_team() -> None:
    table = table_of(QueueScene((RUNS, replace(WAITS, gang="sweep")), {"vision": 4, "speech": 4}))

    assert printed(table) == [
        ["team", "gang", "GPUs", "state", "what the dispatcher says"],
        ["vision", "pretrain", "6", "Running", ""],
        ["vision", "sweep", "6", "Queued", NEEDS],
    ]
    assert table.caption == "vision 6 of 4, borrows 2   speech 0 of 4"


def test_news_is_what_a_gang_says_anew() -> None:
    before = QueueScene((RUNS, replace(WAITS, gang="sweep")), QUOTAS)
    now = QueueScene((replace(WAITS, gang="pretrain"), replace(WAITS, gang="sweep")), QUOTAS)

    assert news_of(None, before) == [
        "vision   pretrain   6  Running",
        f"vision   sweep      6  Queued       {NEEDS}",
    ]
    assert news_of(before, now) == [f"vision   pretrain   6  Queued       {NEEDS}"]
    assert news_of(now, now) == []


def test_history_with_other_preemptions_is_another_story() -> None:
    check_preemptions(EXPECTED)
    with pytest.raises(StoryFailed, match="other preemptions"):
        check_preemptions(EXPECTED[1:])


def test_history_has_a_line_for_each_preemption() -> None:
    assert printed(preemptions_of(EXPECTED[:1])) == [
        ["preempted", "reason", "for"],
        ["sweep", "QuotaReclaimed", "assistant"],
    ]
