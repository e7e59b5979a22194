"""Which outcomes of a cycle over queues are written, and which a record already says."""

from __future__ import annotations

import pytest

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model import pending_reasons
from dispatcher.core.model.record import Pending, Record
from dispatcher.core.scheduling.cycle import Impossible, Waiting
from dispatcher.core.scheduling.sharing.news import ClassRefused, is_news
from dispatcher.core.scheduling.sharing.queued_gangs import QueuedGangs
from tests.builders import NOW, make_record

NO_QUOTA = Pending("InsufficientQuota", "needs 2, 1 available", "cpu", queue="a")
KEPT = Pending("ReservedForAnother", "what is left is kept for gangs that go first", "", "hub", queue="a")
LARGER = Pending("LargerThanQuota", "needs 9, at most 8 is ever available", "cpu", queue="a")


def told(pending: Pending, *, is_head: bool = False) -> Record:
    change = queue_changes.block(make_record(queue="a"), pending, NOW, is_head=is_head)
    assert change is not None
    return change.after


@pytest.mark.parametrize(
    ("before", "after", "is_head", "expected"),
    [
        pytest.param(NO_QUOTA, KEPT, False, False, id="what became free is kept for another"),
        pytest.param(KEPT, NO_QUOTA, False, False, id="what was kept is used"),
        pytest.param(NO_QUOTA, KEPT, True, True, id="a head is told"),
        pytest.param(NO_QUOTA, NO_QUOTA, False, False, id="the same"),
        pytest.param(NO_QUOTA, NO_QUOTA, True, False, id="the same, of a head"),
        pytest.param(LARGER, NO_QUOTA, False, True, id="the quota grew"),
        pytest.param(NO_QUOTA, LARGER, False, True, id="the quota shrank"),
    ],
)
def test_a_gang_that_is_no_head_lacks_quota_in_one_way_or_the_other(
    before: Pending, after: Pending, is_head: bool, expected: bool
) -> None:
    record = told(before, is_head=is_head)
    outcome = Impossible(record, after) if after is LARGER else Waiting(record, after, is_head)
    assert is_news(outcome) is expected
    if not is_head:
        (class_,) = QueuedGangs.of([record], NOW).classes()
        assert list(ClassRefused.by(outcome, class_).news()) == ([record.uid] if expected else [])


def test_another_queue_is_news() -> None:
    moved = Pending(KEPT.reason, KEPT.message, KEPT.resource, KEPT.cluster, queue="b")
    assert is_news(Waiting(told(NO_QUOTA), moved))


def test_a_gang_that_preempts_no_longer_is_written() -> None:
    waiting = Pending(pending_reasons.AWAITING_RELEASE, "fits once r is gone", cluster="hub", queue="a")
    preempting = queue_changes.begin_preempting(make_record(queue="a"), waiting, NOW).after
    assert is_news(Waiting(preempting, NO_QUOTA))


def test_a_first_head_is_written_although_its_reason_is_known() -> None:
    assert is_news(Waiting(told(NO_QUOTA), NO_QUOTA, is_head=True))
