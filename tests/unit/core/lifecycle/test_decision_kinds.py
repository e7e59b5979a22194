"""An object that is gone with its kind was not deleted by itself: its gang is queued again, and does not fail."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle.confirmation import end_of_attempt
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.policy import ADMISSION_GRACE
from dispatcher.core.lifecycle.step import NOOP, Act, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import NotedIssue, ObjectRef, Phase, Record
from tests.builders import at, attempt_of, make_objects, make_observation, make_policy, make_record, make_ref
from tests.unit.core.lifecycle.dispatched import Outline, by, outline

RAY, JOB = make_ref(0), make_ref(1, "Job")
DONE = replace(RAY, done=True)
RUNNING = make_record(Phase.RUNNING)
RUNNING = replace(RUNNING, attempt=replace(attempt_of(RUNNING), objects=(RAY, JOB)))
LOST = "cluster hub stopped serving RayCluster of ray.io/v1, and RayCluster default/raycluster-0 went with it"
NAMED = "RayCluster default/raycluster-0"
UNKNOWN = f"cluster hub does not serve RayCluster of ray.io/v1: the state of {NAMED} is not known"
TOLD = Do(Act.NOTE_HEALTH_ISSUE, words.KIND_NOT_INSTALLED, LOST)
AGAIN = Do(Act.REQUEUE, words.KIND_NOT_INSTALLED, LOST)
DELETED = "Only found 1 deployed components, but was expecting 2: {} was deleted"
GRACE = ADMISSION_GRACE.total_seconds()


def noted(message: str = LOST, *, done: Collection[int] = ()) -> Record:
    """The gang, of which it was noted at second 5 that the kind of its RayCluster is not served."""
    objects = tuple(replace(ref, done=ref.item in done) for ref in (RAY, JOB))
    record = replace(RUNNING, attempt=replace(attempt_of(RUNNING), objects=objects))
    return replace(record, unhealthy=NotedIssue(words.KIND_NOT_INSTALLED, message, at(5)))


def decided(
    record: Record = RUNNING,
    *,
    absent: tuple[ObjectRef, ...] = (),
    unserved: tuple[ObjectRef, ...] = (),
    pods: int = 1,
    seconds: float = 10,
    **policy: Any,  # noqa: ANN401
) -> Outline:
    """What is due of the gang at that second."""
    found = make_objects(PodCounts(running=pods), ObjectState(), ObjectState(End.OPEN), absent=absent)
    policies = make_policy(*make_policy().items * 2, **policy)
    objects = replace(found, unserved=unserved)
    return outline(decide(make_observation(record, seconds, objects=objects, policy=policies)))


@pytest.mark.parametrize(
    ("decision", "due"),
    [
        pytest.param(
            decided(absent=(RAY,)),
            Do(Act.FAIL, words.MISSING_COMPONENT, DELETED.format("RayCluster default/raycluster-0")),
            id="its-kind-is-served",
        ),
        pytest.param(
            decided(absent=(JOB,), unserved=(RAY,)),
            Do(Act.FAIL, words.MISSING_COMPONENT, DELETED.format("Job default/job-1")),
            id="another-kind-is-not-served",
        ),
        pytest.param(decided(absent=(RAY,), unserved=(RAY,)), TOLD, id="its-kind-is-not-served"),
        pytest.param(decided(absent=(RAY, JOB), unserved=(RAY,)), TOLD, id="another-object-is-gone-too"),
        pytest.param(decided(absent=(RAY,), unserved=(RAY,), pods=0), TOLD, id="its-pods-are-gone-too"),
        pytest.param(
            decided(noted(), absent=(RAY,), unserved=(RAY,)),
            Do(Act.NOOP, until=at(5 + GRACE)),
            id="it-is-waited-for",
        ),
        pytest.param(
            decided(noted(), absent=(RAY,), unserved=(RAY,), pods=0),
            Do(Act.NOOP, until=at(5 + GRACE)),
            id="its-pods-are-not-missed-meanwhile",
        ),
        pytest.param(
            decided(noted(), absent=(RAY,), admission_grace=timedelta(0)),
            AGAIN,
            id="as-long-as-its-author-says",
        ),
        pytest.param(
            decided(noted(), absent=(RAY,), unserved=(RAY,), seconds=5 + GRACE), AGAIN, id="its-time-is-over"
        ),
        pytest.param(
            decided(noted(), absent=(RAY,), seconds=5 + GRACE), AGAIN, id="its-kind-is-back-and-it-is-not"
        ),
        pytest.param(
            decided(noted(), absent=(RAY,), unserved=(RAY,), seconds=5 + GRACE, retry_limit=0),
            AGAIN,
            id="its-retries-are-used-up",
        ),
        pytest.param(decided(noted()), by(Cause.RECOVERED), id="it-is-back-with-its-kind"),
        pytest.param(
            decided(
                replace(noted(done=[0]), phase=Phase.RUNNING_HOLD_COMPLETION),
                absent=(DONE,),
                unserved=(DONE,),
            ),
            by(Cause.RECOVERED, frozenset({0})),
            id="it-was-done",
        ),
        pytest.param(
            decided(unserved=(RAY,)),
            Do(Act.NOTE_HEALTH_ISSUE, words.KIND_NOT_INSTALLED, UNKNOWN),
            id="it-is-there-and-not-observed",
        ),
        pytest.param(
            decided(noted(UNKNOWN), unserved=(RAY,), seconds=10**7), NOOP, id="it-is-there-and-runs-on"
        ),
    ],
)
def test_decision_of_a_gang_with_an_object_of_a_kind_that_is_not_served(
    decision: Outline, due: Outline
) -> None:
    assert decision == due


def test_gang_that_is_queued_again_for_its_kind_may_be_dispatched_at_once_and_no_retry_is_counted() -> None:
    record = noted()
    change = end_of_attempt(record, AGAIN, make_policy(), "", at(99))
    after = change.after
    assert (after.phase, after.eligible_at) == (Phase.REQUEUEING, at(99))
    assert (after.requeuings, after.retries) == (record.requeuings, record.retries)
