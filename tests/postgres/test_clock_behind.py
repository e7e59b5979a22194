"""Reports about an AppWrapper after the clock of a new leader was behind: many of its events have one time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import pytest

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.record import Record
from dispatcher.store.readers.reports import NO_FILTER, Reports, Window
from dispatcher.store.readers.reports import reports as reports_of
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import NOW, committed, make_object, make_submit

BEHIND: Final = NOW - timedelta(days=40)
"""The time by the later leader's clock, of another month."""
ALL: Final = Window(BEHIND - timedelta(days=365), NOW + timedelta(days=1))


@pytest.fixture
async def reports(database_url: str) -> AsyncIterator[Reports]:
    async with reports_of(database_url, timedelta(seconds=30)) as found:
        yield found


async def dispatched(queue: QueueStore, record: Record) -> Record:
    """The record after a dispatch by the later leader."""
    return await committed(queue, queue_changes.dispatch(record, "hub", BEHIND))


async def test_failure_has_its_termination_message(queue: QueueStore, reports: Reports) -> None:
    record = await dispatched(queue, await committed(queue, make_submit()))
    record = await committed(queue, run_changes.created(record, (make_object(),), BEHIND))
    why = EvictionReason("FoundFailedPods", "it failed", "", PodFailure("p", "main", 1, "Error", "batch 7"))
    record = await committed(queue, run_changes.fail(record, why, BEHIND))
    await committed(queue, removal.removed(record, BEHIND))

    (job,) = await reports.jobs(ALL, NO_FILTER, 10)

    assert (job["outcome"], job["ended_at"], job["termination_message"]) == ("failed", NOW, "batch 7")


async def test_each_event_is_shown_once_with_the_time_in_its_own_state(
    queue: QueueStore, reports: Reports
) -> None:
    record = await committed(queue, make_submit())
    for _ in range(2):
        record = await dispatched(queue, record)
        record = await committed(queue, run_changes.withdraw(record, "no answer", BEHIND, BEHIND))
    end = NOW + timedelta(minutes=5)
    await committed(queue, removal.delete(record, end))

    ((found,), _) = await reports.descriptions("aw")

    assert [(each["cause"], each["seconds_in_state"]) for each in found.timeline] == [
        ("submitted", 0.0),
        ("dispatched", 0.0),
        ("withdrawn", 0.0),
        ("dispatched", 0.0),
        ("withdrawn", 300.0),
        ("deleted", None),
    ]
