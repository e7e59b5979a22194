"""What the demo of the queues is sure of before it says that the story happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.api.appwrapper import parse_spec
from testbed.demo_queues import (
    ASSISTANT,
    DEADLINE,
    DICTATE,
    EVAL,
    EXPECTED,
    PRETRAIN,
    check_preemptions,
)
from testbed.queue_scene import Row, TeamGang
from testbed.story import StoryFailed
from tests.builders import gang_of

NEEDS = "quota of vision: nvidia.com/gpu: needs 6, 0 available; nominal 6, 16 used"
RUNS = Row("pretrain", "vision", 6, "Running", running=6)
WAITS = Row("pretrain", "vision", 6, "Queued", "InsufficientQuota", NEEDS)


@pytest.mark.parametrize("gang", [PRETRAIN, DEADLINE, DICTATE, ASSISTANT, EVAL], ids=lambda gang: gang.name)
def test_appwrapper_of_a_gang_has_its_gpus_its_queue_and_its_priority(gang: TeamGang) -> None:
    appwrapper = gang.appwrapper

    spec = parse_spec(appwrapper["spec"], namespace="default")
    assert gang_of(spec).demand["nvidia.com/gpu"] == gang.gpus
    assert spec.priority == gang.priority
    assert appwrapper["metadata"]["labels"] == {"dispatcher.codeflare.dev/queue": gang.team}


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


def test_history_with_other_preemptions_is_another_story() -> None:
    check_preemptions(EXPECTED)
    with pytest.raises(StoryFailed, match="other preemptions"):
        check_preemptions(EXPECTED[1:])
