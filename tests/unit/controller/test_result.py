"""The pauses between polls, and between the requests of a user."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.controller.reconcile.result import (
    LONGEST_POLL_SECONDS,
    Pacing,
    PollBackoff,
    Withdrawals,
    poll,
)
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.record import Phase
from tests.builders import NOW, at, make_appwrapper, make_record
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


def test_each_key_has_a_turn_once_in_a_while() -> None:
    pacing = Pacing(timedelta(seconds=1))
    waits = []
    for key, moment in [("a", 0), ("b", 0.5), ("a", 0.75), ("a", 1), ("b", 1)]:
        waits.append(pacing.wait(key, at(moment)))
        if not waits[-1]:
            pacing.note(key, at(moment))
    assert waits == [0, 0, 0.25, 0, 0.5]


def test_key_that_had_a_turn_is_known_until_the_next_is_due() -> None:
    pacing = Pacing(timedelta(seconds=1))
    pacing.note("a", at(0))
    asked = [("a", 0), ("a", 0.75), ("b", 0.75), ("a", 1)]
    assert [pacing.had_turn(key, at(moment)) for key, moment in asked] == [True, True, False, False]


def test_key_that_only_asked_has_had_no_turn() -> None:
    pacing = Pacing(timedelta(seconds=1))
    assert pacing.wait("a", at(0)) == 0
    assert not pacing.had_turn("a", at(0))


def test_turns_that_have_passed_are_forgotten() -> None:
    pacing = Pacing(timedelta(seconds=1))
    for number in range(1000):
        pacing.note(str(number), NOW + timedelta(seconds=number))
    assert len(pacing._turns) == 1  # noqa: SLF001  # nothing else shows it


def test_pause_grows_with_the_withdrawals_of_a_key_until_an_hour_after_the_last() -> None:
    withdrawals = Withdrawals()
    waits = []
    for moment in (0, 10, 20, 30):
        withdrawals.note("a", at(moment))
        waits.append(withdrawals.wait("a", at(moment + 0.5)))
    assert waits == [0, 0.5, 1.5, 3.5]
    assert withdrawals.wait("a", at(34)) == 0
    assert withdrawals.wait("b", at(30)) == 0
    withdrawals.note("a", at(30 + 3600))
    assert withdrawals.wait("a", at(30 + 3600)) == 0
