"""The policy of a removal, and which anchors are orphans and deleted."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.provisioning_request import refs_of
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.removal import (
    CLOCKS_APART,
    LINGERING,
    AnchorState,
    anchor_state,
    is_small_share,
    may_delete_ended,
    seconds_until_forced,
    stays,
    takes_capacity,
    was_missed,
)
from dispatcher.core.model.records.record import HOLDING, Phase
from tests.builders import at, make_awaiting, make_record, make_ref

OPEN, SUCCEEDED, FAILED = (ObjectState(end) for end in (End.OPEN, End.SUCCEEDED, End.FAILED))


@pytest.mark.parametrize(
    ("kind", "api_version", "done", "state", "expected"),
    [
        ("ConfigMap", "v1", False, None, False),
        ("Job", "batch/v1", False, OPEN, True),
        ("Job", "batch/v1", False, SUCCEEDED, False),
        ("Job", "batch/v1", False, FAILED, False),
        ("Job", "batch/v1", False, None, True),
        ("Job", "batch/v1", True, None, False),
        ("Deployment", "apps/v1", True, OPEN, True),
        ("Thing", "example.com/v1", False, FAILED, False),
        ("Thing", "example.com/v1", False, OPEN, True),
        ("Thing", "example.com/v1", True, OPEN, False),
    ],
)
def test_object_takes_capacity_until_it_has_ended_by_its_kind(
    kind: str, api_version: str, done: bool, state: ObjectState | None, expected: bool
) -> None:
    assert takes_capacity(make_ref(kind=kind, api_version=api_version, done=done), state) is expected


@pytest.mark.parametrize("phase", [Phase.REQUEUEING, Phase.SUSPENDING])
@pytest.mark.parametrize("done", [True, False])
def test_next_attempt_leaves_finished_objects_alone(phase: Phase, done: bool) -> None:
    assert stays(make_ref(done=done), make_record(phase), OPEN) is done


def test_failed_gang_keeps_ended_objects_for_their_logs() -> None:
    issue = EvictionReason("FailedComponent", "it failed")
    failed_by_itself = run_changes.fail(make_record(Phase.RUNNING), issue, at(60)).after
    failing, ref = make_record(Phase.FAILING), make_ref(kind="Job", api_version="batch/v1")
    assert [stays(ref, failed_by_itself, state) for state in (FAILED, OPEN)] == [True, False]
    assert not stays(ref, replace(failing, reason="MinPodsNotRunning"), FAILED)


def test_request_for_the_capacity_of_a_failed_gang_does_not_stay() -> None:
    issue = EvictionReason("FailedComponent", "it failed")
    failing = run_changes.fail(make_record(Phase.RUNNING), issue, at(60)).after
    refs = refs_of(make_awaiting())
    assert refs
    assert not any(stays(ref, failing, OPEN) for ref in refs)


@pytest.mark.parametrize(("after", "expected"), [(timedelta(0), False), (LINGERING, True)])
def test_operators_have_time_to_remove_the_pods_of_ended_objects(after: timedelta, expected: bool) -> None:
    record = make_record(Phase.FAILING)
    assert may_delete_ended(record, record.phase_since + after) is expected


@pytest.mark.parametrize(("waited", "left"), [(0, 600), (599, 1), (600, 0), (700, -100)])
def test_pods_are_forced_once_their_time_is_up(waited: int, left: int) -> None:
    record, policy = make_record(Phase.DELETING), LifecyclePolicy(force_deletion_after=timedelta(minutes=10))
    assert seconds_until_forced(record, policy, record.phase_since + timedelta(seconds=waited)) == left


def test_pods_are_never_forced_without_a_time_for_it() -> None:
    record = make_record(Phase.DELETING)
    assert (
        seconds_until_forced(record, LifecyclePolicy(force_deletion_after=None), record.phase_since) is None
    )


@pytest.mark.parametrize(("may_come", "expected"), [(True, AnchorState.LIVE), (False, AnchorState.UNKNOWN)])
def test_attempt_without_a_record_is_unknown_unless_its_appwrapper_may_come(
    may_come: bool, expected: AnchorState
) -> None:
    assert anchor_state(1, None, may_come=may_come) is expected


@pytest.mark.parametrize("phase", sorted(HOLDING))
@pytest.mark.parametrize(
    ("attempt", "expected"), [(0, AnchorState.ENDED), (1, AnchorState.LIVE), (2, AnchorState.UNKNOWN)]
)
def test_only_the_current_attempt_of_a_gang_that_holds_capacity_is_live(
    phase: Phase, attempt: int, expected: AnchorState
) -> None:
    assert anchor_state(attempt, make_record(phase), may_come=False) is expected


@pytest.mark.parametrize("kept_until", [None, at(60)])
def test_objects_that_are_kept_after_the_end_are_live(kept_until: datetime | None) -> None:
    record = replace(make_record(Phase.FAILED), kept_until=kept_until)
    expected = AnchorState.LIVE if kept_until else AnchorState.ENDED
    assert anchor_state(record.attempts, record, may_come=True) is expected


def test_queued_gang_has_no_live_anchor() -> None:
    assert anchor_state(0, make_record(Phase.QUEUED), may_come=False) is AnchorState.ENDED


@pytest.mark.parametrize(
    ("unknown", "anchors", "expected"),
    [
        (0, 0, True),
        (5, 5, True),
        (6, 6, False),
        (6, 29, False),
        (6, 30, True),
        (20, 100, True),
        (21, 100, False),
    ],
)
def test_unknown_anchors_go_only_if_they_are_few_or_a_fifth(
    unknown: int, anchors: int, expected: bool
) -> None:
    assert is_small_share(unknown, anchors) is expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, True), (CLOCKS_APART.total_seconds(), True), (CLOCKS_APART.total_seconds() + 1, False)],
)
def test_restored_database_may_have_missed_objects_older_than_the_restore(
    seconds: float, expected: bool
) -> None:
    assert was_missed(at(seconds), at(0)) is expected
    assert not was_missed(at(seconds), None)
