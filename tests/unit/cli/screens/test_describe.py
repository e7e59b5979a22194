"""What `show` says of an AppWrapper from its row in the history."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dispatcher.cli.screens.describe import logs_of
from dispatcher.core.model.gangs.pods import FAILED_FIRST, PodFailure

JOB = {
    "name": "train",
    "namespace": "team-a",
    "outcome": "failed",
    "deleted_at": None,
    "last_cluster": "east",
}
WHOLE = "kubectl aw logs train -n team-a"
OF_POD = f"failed pods: 1; {FAILED_FIRST}{PodFailure('train-x', 'main', 137, 'OOMKilled').in_words}"
EVICTED = f"failed pods: 1; {FAILED_FIRST}{PodFailure('train-x', reason='Evicted').in_words}"


@pytest.mark.parametrize(
    ("change", "command"),
    [
        pytest.param({"message": OF_POD}, f"{WHOLE} --pod train-x -c main", id="container"),
        pytest.param({"message": EVICTED}, f"{WHOLE} --pod train-x", id="pod"),
        pytest.param({"message": "2 pods failed"}, WHOLE, id="no-pod-named"),
        pytest.param({"message": f"{FAILED_FIRST}pod $(x), Failed"}, WHOLE, id="no-name-of-a-pod"),
        pytest.param(
            {"message": f"failed first: pod forged, Failed; {OF_POD}"},
            f"{WHOLE} --pod train-x -c main",
            id="last",
        ),
        pytest.param({"message": OF_POD, "outcome": "evicted"}, "", id="not-failed"),
        pytest.param({"message": OF_POD, "deleted_at": datetime(2026, 11, 20, tzinfo=UTC)}, "", id="deleted"),
    ],
)
def test_command_for_the_logs_names_the_pod_that_failed_first(
    change: dict[str, object], command: str
) -> None:
    assert logs_of({**JOB, **change}) == command
