"""How long is waited before a step that is not done yet is looked at again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.controller.reconcile.parts import LONGEST_CONFIRM_SECONDS, Patience
from dispatcher.core.lifecycle import steps
from dispatcher.core.model.record import Phase
from tests.builders import at, make_appwrapper, make_record
from tests.unit.controller.wire import job
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

RECORD = make_record(Phase.SUSPENDING)


def test_pauses_grow_with_what_was_waited_already_up_to_a_limit() -> None:
    patience, now, pauses = Patience(), 0.0, []
    for _ in range(14):
        pauses.append(patience.pause(RECORD, at(now)))
        now += pauses[-1]
    assert [round(pause, 1) for pause in pauses] == [
        *[0.5, 0.5, 0.5, 0.8, 1.1, 1.7, 2.5, 3.8, 5.7, 8.5, 12.8, 19.2, 28.8],
        LONGEST_CONFIRM_SECONDS,
    ]


@pytest.mark.parametrize("looks", [1, 1000])
def test_pause_is_as_long_however_many_looks_came_before(looks: int) -> None:
    patience = Patience()
    for number in range(looks):
        patience.pause(RECORD, at(10 * number / looks))
    assert patience.pause(RECORD, at(10)) == 5


def test_each_appwrapper_and_each_step_of_it_begins_anew() -> None:
    patience = Patience()
    patience.pause(RECORD, at(0))
    assert patience.pause(RECORD, at(60)) == 30
    assert patience.pause(replace(RECORD, version=RECORD.version + 1), at(60)) == 0.5
    assert patience.pause(make_record(Phase.SUSPENDING, "another"), at(60)) == 0.5


def test_time_that_goes_back_is_no_long_pause() -> None:
    patience = Patience()
    patience.pause(RECORD, at(3600))
    assert patience.pause(RECORD, at(0)) == 0.5


async def test_next_step_is_looked_at_soon_again(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    await world.forget_wakes()
    world.parts.look_again(record)
    await asyncio.sleep(100)  # virtual
    record = await world.commit(steps.suspend(record, world.now()))
    await world.forget_wakes()
    world.parts.look_again(record)
    assert await world.is_woken_within(0.6)


async def test_look_comes_within_the_time_that_was_said(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    world.parts.look_again(record)
    await asyncio.sleep(100)  # virtual
    await world.forget_wakes()
    world.parts.look_again(record, within=7)
    before = monotonic()
    assert await world.is_woken_within(100)
    assert monotonic() - before == pytest.approx(7, abs=0.1)
