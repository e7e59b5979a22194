"""The places of an attempt: those of its dispatch, until its pods are made for others."""

from __future__ import annotations

import pytest

from dispatcher.core.lifecycle import first_changes, queue_changes, run_changes
from dispatcher.core.model.gang import Assignment
from dispatcher.core.model.record import Phase
from dispatcher.store.queue import QueueStore
from tests.builders import at, attempt_of, make_record, make_ref, make_submission

PLANNED, MOVED = Assignment(((("n1", 1), ("n2", 1)),)), Assignment(((("n2", 2),),))


@pytest.mark.parametrize(
    ("made_for", "expected"),
    [pytest.param(None, PLANNED, id="as-planned"), pytest.param(MOVED, MOVED, id="moved")],
)
async def test_next_leader_knows_the_places_that_the_pods_were_made_for(
    queue: QueueStore, made_for: Assignment | None, expected: Assignment
) -> None:
    change = first_changes.submit(make_submission(), make_record(Phase.QUEUED).gang, at(0))
    (record,) = (await queue.commit([change])).accepted
    change = queue_changes.dispatch(record, "hub", at(1), assignment=PLANNED)
    (record,) = (await queue.commit([change])).accepted
    change = run_changes.created(record, (make_ref(0),), at(2), assignment=made_for)
    (record,) = (await queue.commit([change])).accepted
    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]
    assert attempt_of(loaded).assignment == expected
