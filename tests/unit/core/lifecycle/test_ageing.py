"""The age of a gang leaves out the time in which its author kept it back, and no other time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from dispatcher.api.conditions import CAPACITY_REVOKED, FOUND_FAILED_PODS
from dispatcher.api.selector import parse_selector
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.approvals import lacks_its_own, pending_without
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.records.record import Change, Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import in_order
from dispatcher.core.queues.queue import Queue
from tests.builders import CREATED, NOW, WAITS, at, make_gang, make_record, make_submission

Step = Callable[[Record, float], Change | None]

NOT_FOUND: Final = Pending("QueueNotFound", "there is no queue ghost", queue="ghost")
NOT_EVALUATED: Final = Pending("AwaitingHeadOfLine", "queue team stopped before it", queue="team")


def suspend(record: Record, seconds: float) -> Change:
    return queue_changes.suspend(record, at(seconds))


def resume(record: Record, seconds: float) -> Change:
    return queue_changes.resume(record, at(seconds))


def move(record: Record, seconds: float) -> Change:
    return queue_changes.move(record, (f"queue-{seconds:g}",), at(seconds))


def redirect(record: Record, seconds: float) -> Change:
    selector = parse_selector(f"name=c{seconds:g}", "")
    return queue_changes.redirect(record, ClusterRequirements(selector=selector), at(seconds))


def reprioritise(record: Record, seconds: float) -> Change:
    return queue_changes.reprioritise(record, 5, 1.0, at(seconds))


def dispatch(record: Record, seconds: float) -> Change:
    return queue_changes.dispatch(record, "hub", at(seconds))


def remove(record: Record, seconds: float) -> Change:
    return removal.removed(record, at(seconds))


def fail_for(pause: float, reason: str = FOUND_FAILED_PODS) -> Step:
    """The gang is evicted, by itself unless the reason says otherwise, and a pause of so many seconds follows."""
    because = EvictionReason(reason, "1 pod failed")
    return lambda record, seconds: run_changes.evict(record, because, at(seconds + pause), 0, at(seconds))


def postpone_for(pause: float) -> Step:
    return lambda record, seconds: run_changes.postpone_creation(
        record, (), "its namespace has no quota left", at(seconds + pause), at(seconds)
    )


def approve(record: Record, seconds: float) -> Change:
    return queue_changes.approve(record, at(seconds))


def stop_evaluation(record: Record, seconds: float) -> Change | None:
    return queue_changes.note_not_evaluated(record, NOT_EVALUATED, at(seconds))


def waits_for(pending: Pending) -> Step:
    return lambda record, seconds: queue_changes.block(record, pending, at(seconds))


def lacks(*names: str, is_authors_own: bool) -> Step:
    pending = pending_without(names)
    assert pending is not None
    return lambda record, seconds: queue_changes.await_approvals(
        record, pending, at(seconds), is_authors_own=is_authors_own
    )


NOWHERE: Final = waits_for(NOT_FOUND)
SHORT: Final = waits_for(WAITS)
TOO_LARGE_FOR_IT: Final = waits_for(Pending("LargerThanQuota", "needs 16, at most 12", queue="ghost"))
UNCOUNTED: Final = waits_for(Pending("DeviceClaimsNotCounted", "acme.com/card: not counted", cluster="hub"))
UNSURE: Final = waits_for(Pending("NotDecided", "not decided within 6000 steps"))
ALONE: Final = waits_for(Pending("RequiredPodsMissing", "its pods require a pod with app=server"))
OWN, OF_QUEUE = lacks("staged", is_authors_own=True), lacks("budget", is_authors_own=False)


def lived(record: Record, life: Sequence[tuple[float, Step]]) -> Record:
    """The record after these steps, each so many seconds after `NOW`; a step may have nothing to say."""
    for seconds, step in life:
        change = step(record, seconds)
        record = record if change is None else change.after
    return record


@pytest.mark.parametrize(
    ("life", "left_out"),
    [
        pytest.param([], 0, id="queued"),
        pytest.param([(1, suspend), (601, resume)], 600, id="suspended-by-its-author"),
        pytest.param([(1, suspend), (2, resume), (5, suspend), (9, resume)], 5, id="suspended-twice"),
        pytest.param(
            [(1, suspend), (2, move), (3, redirect), (601, resume)], 600, id="changed-while-suspended"
        ),
        pytest.param(
            [(1, dispatch), (50, suspend), (60, remove), (100, resume)], 50, id="suspended-after-its-dispatch"
        ),
        pytest.param([(1, SHORT), (600, move)], 0, id="moved-while-it-lacked-capacity"),
        pytest.param([(1, SHORT), (600, redirect)], 0, id="redirected-while-it-lacked-capacity"),
        pytest.param([(1, NOWHERE), (600, move)], 599, id="moved-from-a-queue-that-is-not-there"),
        pytest.param([(1, NOWHERE), (600, redirect), (700, move)], 699, id="changed-twice"),
        pytest.param([(1, TOO_LARGE_FOR_IT), (600, move)], 599, id="moved-from-a-queue-without-its-quota"),
        pytest.param([(1, NOWHERE), (5, TOO_LARGE_FOR_IT), (600, move)], 599, id="in-vain-for-two-reasons"),
        pytest.param([(1, NOWHERE), (600, suspend), (700, resume)], 699, id="suspended-in-vain"),
        pytest.param(
            [(1, UNCOUNTED), (600, redirect)], 599, id="redirected-from-devices-that-nothing-counts"
        ),
        pytest.param([(1, UNCOUNTED), (600, SHORT)], 0, id="its-devices-are-counted"),
        pytest.param([(1, NOWHERE), (600, SHORT)], 0, id="its-queue-was-made"),
        pytest.param([(1, NOWHERE), (600, SHORT), (700, move)], 0, id="its-queue-was-made-before-it-left"),
        pytest.param([(1, NOWHERE), (600, stop_evaluation), (700, move)], 699, id="then-behind-another-one"),
        pytest.param([(1, NOWHERE), (600, UNSURE), (700, redirect)], 699, id="then-not-decided"),
        pytest.param([(1, NOWHERE), (9, stop_evaluation), (600, SHORT)], 0, id="its-strict-queue-was-made"),
        pytest.param([(1, stop_evaluation), (600, move)], 0, id="moved-while-it-was-behind-another-one"),
        pytest.param([(1, dispatch), (50, fail_for(300)), (60, remove)], 290, id="paused-after-it-failed"),
        pytest.param(
            [(1, dispatch), (50, fail_for(300, CAPACITY_REVOKED)), (60, remove)], 0, id="paused-for-capacity"
        ),
        pytest.param([(1, dispatch), (50, fail_for(0)), (60, remove)], 0, id="evicted-without-a-pause"),
        pytest.param([(1, dispatch), (9, postpone_for(300)), (10, remove)], 299, id="postponed"),
        pytest.param(
            [(1, dispatch), (50, fail_for(3600)), (60, remove), (70, suspend), (80, resume)],
            80,
            id="suspended-in-the-pause",
        ),
        pytest.param([(1, NOWHERE), (600, reprioritise)], 0, id="reprioritised"),
        pytest.param([(1, OF_QUEUE), (600, approve)], 0, id="approved-for-its-queue"),
        pytest.param([(1, OWN), (600, approve)], 599, id="lacked-an-approval-of-its-author"),
        pytest.param([(1, OWN), (600, OF_QUEUE), (700, approve)], 599, id="then-one-of-its-queue"),
        pytest.param([(1, OF_QUEUE), (600, OWN), (700, approve)], 100, id="then-one-of-its-author"),
        pytest.param([(1, OWN), (600, move), (700, approve)], 699, id="moved-while-it-lacked-one"),
        pytest.param([(1, OWN), (600, suspend), (700, resume)], 699, id="lacked-one-then-suspended"),
        pytest.param([(1, ALONE), (600, SHORT)], 599, id="lacked-a-required-pod"),
        pytest.param([(1, ALONE), (600, dispatch)], 599, id="lacked-one-until-its-dispatch"),
        pytest.param([(1, ALONE), (9, SHORT), (20, ALONE), (600, SHORT)], 588, id="lacked-one-twice"),
        pytest.param([(1, ALONE), (600, stop_evaluation), (700, SHORT)], 599, id="then-behind-others"),
        pytest.param(
            [(1, ALONE), (600, stop_evaluation), (700, move)], 699, id="then-behind-others-and-moved"
        ),
        pytest.param([(1, ALONE), (600, UNSURE), (650, ALONE), (700, dispatch)], 649, id="then-not-decided"),
        pytest.param(
            [(1, NOWHERE), (300, ALONE), (600, SHORT)], 300, id="its-queue-was-made-and-it-lacked-one"
        ),
        pytest.param(
            [(1, ALONE), (300, NOWHERE), (600, SHORT)], 299, id="lacked-one-then-its-queue-was-made"
        ),
        pytest.param([(1, ALONE), (300, NOWHERE), (600, move)], 599, id="lacked-one-then-moved"),
        pytest.param([(1, ALONE), (600, move), (601, SHORT)], 600, id="moved-while-it-lacked-a-required-pod"),
        pytest.param(
            [(1, ALONE), (600, suspend), (700, resume)], 699, id="lacked-a-required-pod-then-suspended"
        ),
        pytest.param(
            [(1, ALONE), (600, OF_QUEUE), (700, approve)], 599, id="lacked-a-required-pod-then-approval"
        ),
        pytest.param([(1, ALONE), (600, OWN), (700, approve)], 699, id="lacked-a-required-pod-then-its-own"),
    ],
)
def test_age_stands_still_while_its_author_keeps_a_gang_back(
    life: Sequence[tuple[float, Step]], left_out: float
) -> None:
    after = lived(make_record(created_at=NOW), life)
    assert after.age_begins_at == at(left_out)
    assert after.created_at == NOW


@pytest.mark.parametrize(
    "life",
    [
        pytest.param([(1, NOWHERE), (2, dispatch)], id="dispatched"),
        pytest.param([(1, suspend), (2, resume)], id="resumed"),
        pytest.param([(1, OWN), (2, approve)], id="approved"),
        pytest.param([(1, NOWHERE), (2, SHORT)], id="lacks-capacity"),
        pytest.param([(1, ALONE), (2, SHORT)], id="lacks-capacity-and-no-pod"),
        pytest.param([(1, ALONE), (2, dispatch)], id="dispatched-once-the-pod-was-there"),
    ],
)
def test_age_goes_on_once_nothing_but_capacity_keeps_a_gang_back(life: Sequence[tuple[float, Step]]) -> None:
    assert lived(make_record(created_at=NOW), life).age_stopped_at is None


@pytest.mark.parametrize(
    ("fields", "begins_at"),
    [
        pytest.param({}, CREATED, id="as-created"),
        pytest.param({"suspended": True}, at(60), id="suspended"),
        pytest.param({"is_edited": True}, at(60), id="changed-before-it-was-read"),
        pytest.param({"was_deferred": True}, at(60), id="deferred"),
        pytest.param({"awaits": pending_without(["budget"])}, CREATED, id="lacks-an-approval-of-its-queue"),
        pytest.param(
            {"awaits": pending_without(["staged"]), "awaits_its_own": True}, at(60), id="lacks-one-of-its-own"
        ),
    ],
)
def test_age_of_a_new_appwrapper_begins_with_its_creation_unless_its_author_may_have_kept_it_back(
    fields: dict[str, Any], begins_at: object
) -> None:
    after = first_changes.submit(replace(make_submission(), **fields), make_gang(), at(60)).after
    assert after.age_begins_at == begins_at


def test_gangs_that_were_suspended_for_a_week_pass_nobody_who_waited() -> None:
    week = 7 * 24 * 3600
    banked = first_changes.submit(make_submission("banked", suspended=True), make_gang(), NOW).after
    sloped = replace(banked, uid="sloped", name="sloped", priority_slope=1.0)
    waits = replace(make_record(name="waits", created_at=at(week - 60)), priority_slope=1.0)
    steep = lived(sloped, [(week, resume)])
    flat = lived(banked, [(week, resume)])
    assert [each.name for each in in_order([steep, waits], at(week + 1))] == ["waits", "sloped"]
    level = replace(waits, priority_slope=0.0)
    assert [each.name for each in in_order([flat, level], at(week + 1))] == ["waits", "banked"]


@pytest.mark.parametrize(
    ("life", "message"),
    [
        (
            [(1, suspend), (601, resume)],
            "its age counts from 2026-11-20 09:08:06 UTC, without the time in which ",
        ),
        (
            [(1, NOWHERE), (601, move)],
            "queue default → queue-601; its age counts from 2026-11-20 09:08:06 UTC, ",
        ),
        ([(1, SHORT), (601, move)], "queue default → queue-601"),
        ([(1, OF_QUEUE), (601, approve)], ""),
    ],
)
def test_history_says_from_when_the_age_counts(life: Sequence[tuple[float, Step]], message: str) -> None:
    *before, (seconds, last) = life
    change = last(lived(make_record(created_at=NOW), before), seconds)
    assert change is not None
    [event] = change.events
    assert event.message.startswith(message)
    assert ("its age" in event.message) is ("its age" in message)


FOREST: Final = Forest.of([Queue("team", approvals=("budget",)), Queue("free")])


@pytest.mark.parametrize(
    ("annotation", "leaf", "granted", "expected"),
    [
        ("", "team", [], False),
        ("budget", "team", [], False),
        ("budget", "free", [], True),
        ("budget", "free", ["budget"], False),
        ("staged,budget", "team", ["budget"], True),
        ("staged,budget", "team", ["staged"], False),
        ("staged", "unknown", [], True),
        ("Running", "free", ["Running"], True),
    ],
)
def test_approval_is_of_the_author_if_no_queue_names_it(
    annotation: str, leaf: str, granted: Sequence[str], expected: bool
) -> None:
    assert lacks_its_own(annotation, [leaf], FOREST, granted) is expected


@pytest.mark.parametrize("phase", [each for each in Phase if each not in {Phase.QUEUED, Phase.SUSPENDED}])
def test_only_a_gang_that_waits_or_is_suspended_has_an_age_that_stands_still(phase: Phase) -> None:
    is_being_suspended = phase is Phase.SUSPENDING
    assert (make_record(phase).age_stopped_at is not None) is is_being_suspended
