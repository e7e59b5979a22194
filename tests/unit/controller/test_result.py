"""How long the reconciler waits before it looks again at a step that is not done yet."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from dispatcher.controller.reconcile.result import LONGEST_POLL_SECONDS, PollBackoff, poll
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.record import Phase
from tests.builders import at, make_appwrapper, make_record
from tests.unit.controller.wire import job
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

RECORD = make_record(Phase.SUSPENDING)


def test_poll_pauses_grow_with_the_time_waited_up_to_a_limit() -> None:
    backoff, now, pauses = PollBackoff(), 0.0, []
    for _ in range(14):
        pauses.append(backoff.pause(RECORD, at(now)))
        now += pauses[-1]
    assert [round(pause, 1) for pause in pauses] == [
        *[0.5, 0.5, 0.5, 0.8, 1.1, 1.7, 2.5, 3.8, 5.7, 8.5, 12.8, 19.2, 28.8],
        LONGEST_POLL_SECONDS,
    ]


@pytest.mark.parametrize("looks", [1, 1000])
def test_pause_is_as_long_however_many_looks_came_before(looks: int) -> None:
    backoff = PollBackoff()
    for number in range(looks):
        backoff.pause(RECORD, at(10 * number / looks))
    assert backoff.pause(RECORD, at(10)) == 5


def test_each_appwrapper_and_each_step_of_it_begins_anew() -> None:
    backoff = PollBackoff()
    backoff.pause(RECORD, at(0))
    assert backoff.pause(RECORD, at(60)) == 30
    assert backoff.pause(replace(RECORD, version=RECORD.version + 1), at(60)) == 0.5
    assert backoff.pause(make_record(Phase.SUSPENDING, "another"), at(60)) == 0.5


def test_time_that_goes_back_is_no_long_pause() -> None:
    backoff = PollBackoff()
    backoff.pause(RECORD, at(3600))
    assert backoff.pause(RECORD, at(0)) == 0.5


async def test_next_step_is_looked_at_soon_again(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(), record)
    await asyncio.sleep(100)  # virtual
    record = await world.commit(queue_changes.suspend(record, world.now()))
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(), record)
    assert await world.is_woken_within(0.6)


async def test_look_comes_within_the_time_that_was_said(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    await world.reconciling.results.apply(record.uid, poll(), record)
    await asyncio.sleep(100)  # virtual
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(within=7), record)
    before = monotonic()
    assert await world.is_woken_within(100)
    assert monotonic() - before == pytest.approx(7, abs=0.1)
