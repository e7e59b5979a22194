"""Which steps users are told of by a Kubernetes Event, and in which words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.transitions import TRANSITIONS, Transition
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Phase
from dispatcher.core.status.events import UserEvent, user_event_of, warnings_event_of
from tests.builders import (
    WAITS,
    at,
    make_blocked,
    make_drained,
    make_evicted,
    make_failing_run,
    make_gang,
    make_preempted,
    make_record,
    make_ref,
    make_submission,
)
from tests.unit.core.lifecycle.test_changes import PREEMPTS, start_of, step_from

WHY = "preempted for default/other (queue b, priority 3): its queue uses more than its fair share"

WITH_EVENT = [
    pytest.param(
        queue_changes.block(make_record(), WAITS, at(1)), UserEvent("Backoff", WAITS.message), id="waits"
    ),
    pytest.param(
        run_changes.created(make_record(Phase.DISPATCHING), (make_ref(), make_ref(1)), at(2)),
        UserEvent("Dispatched", "every wrapped object (2) was created in cluster hub"),
        id="created",
    ),
    pytest.param(
        run_changes.mark_running(make_record(Phase.DISPATCHED), at(3)),
        UserEvent("Running", "1 pod runs in cluster hub"),
        id="runs",
    ),
    pytest.param(
        run_changes.complete(make_record(Phase.RUNNING), (), at(9), at(4)),
        UserEvent("Completed", "it is done in cluster hub, and none of its pods lives"),
        id="completed",
    ),
    pytest.param(
        first_changes.reject(make_submission(), "cannot be read", at(0)),
        UserEvent("Failed", "cannot be read", warning=True),
        id="rejected",
    ),
    pytest.param(
        removal.removed(make_record(Phase.FAILING), at(3)),
        UserEvent("Failed", "it is invalid", warning=True),
        id="refused",
    ),
    pytest.param(
        removal.removed(make_failing_run(), at(5)),
        UserEvent("Failed", "it failed", warning=True),
        id="failed",
    ),
    pytest.param(
        removal.removed(make_record(Phase.REQUEUEING), at(3)),
        UserEvent("Requeued", "exceeded quota", warning=True),
        id="postponed",
    ),
    pytest.param(
        removal.removed(make_evicted(), at(5)),
        UserEvent("Requeued", "too few pods", warning=True),
        id="taken-back",
    ),
    pytest.param(
        removal.removed(make_drained(), at(5)),
        UserEvent("Requeued", "its queue b is stopped and drained", warning=True),
        id="drained-with-its-queue",
    ),
    pytest.param(
        run_changes.preempt(make_record(Phase.RUNNING), Reason.FAIR_SHARE, WHY, at(4), "uid-of-other"),
        UserEvent("Preempted", WHY, warning=True),
        id="preempted-for-another",
    ),
    pytest.param(
        queue_changes.begin_preempting(make_record(), PREEMPTS, at(1)),
        UserEvent("Preempting", "fits once default/other is gone, which it preempts"),
        id="others-give-way",
    ),
    pytest.param(
        first_changes.submit(
            make_submission(warnings=("a: is too much", "b: is not created")), make_gang(), at(0)
        ),
        UserEvent("SpecAdjusted", "a: is too much; b: is not created", warning=True),
        id="submitted-with-warnings",
    ),
    pytest.param(
        queue_changes.reprioritise(make_record(), 5, 0, at(1), "priority 9 counts as 5"),
        UserEvent("PriorityCapped", "priority 0 → 5, slope 0 → 0: priority 9 counts as 5", warning=True),
        id="asked-for-too-much",
    ),
    pytest.param(
        queue_changes.suspend(make_record(), at(1)),
        UserEvent("Suspended", "its user holds it back"),
        id="suspended-while-it-waited",
    ),
    pytest.param(
        removal.removed(make_record(Phase.SUSPENDING), at(5)),
        UserEvent("Suspended", "its user holds it back"),
        id="suspended-while-it-ran",
    ),
]
WITHOUT_EVENT = [
    pytest.param(queue_changes.reprioritise(make_record(), 5, 0, at(1)), id="another-priority"),
    pytest.param(first_changes.submit(make_submission(), make_gang(), at(0)), id="submitted"),
    pytest.param(queue_changes.suspend(make_record(Phase.RUNNING), at(4)), id="being-suspended"),
    pytest.param(removal.removed(make_preempted(), at(5)), id="queued-again-after-its-preemption"),
    pytest.param(
        queue_changes.block(
            queue_changes.begin_preempting(make_record(), PREEMPTS, at(1)).after, WAITS, at(6)
        ),
        id="waits-once-more-after-a-preemption-for-it",
    ),
    pytest.param(
        queue_changes.block(removal.removed(make_evicted(), at(5)).after, WAITS, at(6)),
        id="waits-once-more",
    ),
    pytest.param(
        queue_changes.block(make_blocked(), replace(WAITS, resource="memory"), at(3)), id="waits-for-another"
    ),
]
CAUSES_WITH_EVENT = {
    ("Queued", "blocked"),
    ("Queued", "suspended"),
    ("Queued", "preempting"),
    *((phase, "preempted") for phase in ("Dispatching", "Dispatched", "Running", "RunningHoldCompletion")),
    *(
        (phase, cause)
        for phase in ("Dispatched", "Running", "RunningHoldCompletion")
        for cause in ("granted", "growth-waits", "growth-taken-back", "surplus-preempted")
    ),
    ("Dispatching", "created"),
    ("Dispatched", "pods-running"),
    ("Dispatched", "completed"),
    ("Running", "completed"),
    ("RunningHoldCompletion", "completed"),
    ("Requeueing", "removed"),
    ("Suspending", "removed"),
    ("Failing", "removed"),
    ("", "rejected"),
    *(
        (phase, "lost")
        for phase in ("Dispatching", "Dispatched", "Running", "RunningHoldCompletion", "Failing")
    ),
    *(
        (phase, "abandoned")
        for phase in ("Dispatching", "Dispatched", "Running", "RunningHoldCompletion", "Requeueing")
    ),
}


@pytest.mark.parametrize(("change", "notice"), WITH_EVENT)
def test_steps_that_users_wait_for_make_a_user_event(change: Change, notice: UserEvent) -> None:
    assert user_event_of(change) == notice


def test_warnings_of_api_servers_have_an_event_beside_that_of_the_creation() -> None:
    change = run_changes.created(make_record(Phase.DISPATCHING), (make_ref(),), at(2), ["Job a: unknown"])
    assert warnings_event_of(change) == UserEvent("CreatedWithWarnings", "Job a: unknown", warning=True)
    dispatched = user_event_of(change)
    assert dispatched is not None
    assert dispatched.reason == "Dispatched"


def test_unknown_fields_of_a_gang_that_waits_have_an_event() -> None:
    change = queue_changes.warn(make_blocked(), ["Job a: unknown"], at(2))
    assert change is not None
    assert warnings_event_of(change) == UserEvent("UnknownFields", "Job a: unknown", warning=True)
    assert user_event_of(change) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            run_changes.created(make_record(Phase.DISPATCHING), (make_ref(),), at(2)), id="created-without"
        ),
        pytest.param(first_changes.reject(make_submission(), "cannot be read", at(0)), id="another-step"),
    ],
)
def test_steps_without_warnings_have_no_event_of_warnings(change: Change) -> None:
    assert warnings_event_of(change) is None


@pytest.mark.parametrize("change", WITHOUT_EVENT)
def test_other_steps_make_no_user_event(change: Change) -> None:
    assert user_event_of(change) is None


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row.source}-{row.cause}")
def test_no_other_row_of_the_table_writes_to_the_api_server(row: Transition) -> None:
    change = step_from(start_of(row), row.cause)
    assert change is not None
    assert (user_event_of(change) is not None) is ((row.source or "", row.cause) in CAUSES_WITH_EVENT)
