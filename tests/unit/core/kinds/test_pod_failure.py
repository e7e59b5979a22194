"""Which container of which pod failed first, and what is kept of its words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher.core.kinds.pod_failure import LONGEST_TERMINATION, by_turn, failure_of
from dispatcher.core.model.gangs.pods import PodFailure
from tests.builders import make_pod

Json = dict[str, Any]

AT = "2026-11-20T09:00:07Z"
THEN = datetime(2026, 11, 20, 9, 0, 7, tzinfo=UTC)


def ended(name: str = "main", code: object = 1, **fields: object) -> Json:
    """A container that has ended with this code."""
    return {"name": name, "state": {"terminated": {"exitCode": code, **fields}}}


def restarted(name: str = "main", code: int = 1, **fields: object) -> Json:
    """A container that runs again after an end with this code."""
    return {"name": name, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": code, **fields}}}


def pod(
    *containers: Json, name: str = "p", phase: str = "Failed", init: Json | None = None, **status: object
) -> Json:
    raw = make_pod(name, phase=phase)
    raw["status"] |= {"containerStatuses": [*containers], **status}
    if init:
        raw["status"]["initContainerStatuses"] = [init]
    return raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            pod(ended(code=137, reason="OOMKilled", message="batch 7", finishedAt=AT)),
            PodFailure("p", "main", 137, "OOMKilled", "batch 7", THEN),
            id="out-of-memory",
        ),
        pytest.param(
            pod(ended("late", 1, finishedAt="2026-11-20T09:00:09Z"), ended("early", 2, finishedAt=AT)),
            PodFailure("p", "early", 2, at=THEN),
            id="the-container-that-ended-first",
        ),
        pytest.param(
            pod(restarted("a", 3, finishedAt=AT), ended("b", 4)),
            PodFailure("p", "b", 4),
            id="a-last-run-before-one-that-was-restarted",
        ),
        pytest.param(pod(init=ended("fetch", 5)), PodFailure("p", "fetch", 5), id="an-init-container"),
        pytest.param(
            pod(reason="Evicted", message="The node was low on memory."),
            PodFailure("p", reason="Evicted", message="The node was low on memory."),
            id="the-pod-as-a-whole",
        ),
        pytest.param(
            pod(ended(code=137, reason="Error"), reason="Evicted", message="low on memory"),
            PodFailure("p", "main", 137, "Evicted", "low on memory"),
            id="a-container-that-an-eviction-ended",
        ),
        pytest.param(pod(), PodFailure("p", reason="Failed"), id="without-a-word"),
        pytest.param(
            pod(restarted(code=9), phase="Running"),
            PodFailure("p", "main", 9, has_restarted=True),
            id="a-restarted-container",
        ),
        pytest.param(pod(ended(code=0), phase="Running"), None, id="a-container-that-succeeded"),
        pytest.param(pod({"name": "main", "state": {"running": {}}}, phase="Running"), None, id="a-running-pod"),
        pytest.param(pod(ended(code="1"), ended(code=True), phase="Running"), None, id="codes-that-are-no-numbers"),
        pytest.param(
            {"status": {"phase": "Failed", "containerStatuses": 7}},
            PodFailure("", reason="Failed"),
            id="no-pod",
        ),
    ],
)  # fmt: skip
def test_failure_of_a_pod(raw: Json, expected: PodFailure | None) -> None:
    assert failure_of(raw) == expected


def test_termination_message_is_one_line_and_bounded_at_both_ends() -> None:
    said = "Traceback\n\x1b[31m" + "x" * 5000 + "\nCUDA out of memory"

    found = failure_of(pod(ended(message=said)))

    assert found is not None
    assert len(found.message) == LONGEST_TERMINATION
    assert found.message.startswith("Traceback\\n\\x1b[31mxxx")
    assert found.message.endswith("\\nCUDA out of memory")


def test_failed_pods_come_before_restarted_ones_and_earlier_ones_before_later_ones() -> None:
    pods = (
        pod(restarted(finishedAt="2026-11-20T08:00:00Z"), name="restarts", phase="Running"),
        pod(ended(finishedAt="2026-11-20T09:00:09Z"), name="later"),
        pod(phase="Running", name="fine"),
        pod(ended(finishedAt=AT), name="first"),
        pod(name="unknown-when"),
    )
    assert [failure.pod for failure, _ in by_turn(pods)] == ["first", "later", "unknown-when", "restarts"]


def test_words_and_repr_leave_the_termination_message_out() -> None:
    failure = PodFailure("p", "main", 137, "OOMKilled", "a secret")

    assert failure.in_words == "container main of pod p, exit code 137, OOMKilled"
    assert PodFailure("p", reason="Evicted").in_words == "pod p, Evicted"
    assert "secret" not in repr(failure)
