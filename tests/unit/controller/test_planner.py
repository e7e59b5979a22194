"""Plans beside the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from structlog.testing import capture_logs

from dispatcher.controller.scheduling import planner
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.core.model.incremental import Steps

FAR_TOO_LONG = 10.0


def counting(to: int) -> Steps[int]:
    """A plan of so many steps, which returns their number."""
    for _ in range(to):
        yield
    return to


async def test_the_result_of_a_plan_is_that_of_its_last_step() -> None:
    assert await Planner().run(counting(1000)) == 1000


async def test_an_exception_of_a_plan_is_the_caller_s() -> None:
    def failing() -> Steps[None]:
        yield
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        await Planner().run(failing())


async def test_the_loop_runs_on_while_a_plan_computes() -> None:
    has_run = threading.Event()

    def waiting() -> Steps[bool]:
        yield
        return has_run.wait(FAR_TOO_LONG)  # one step, in which nothing yields to the loop

    async def beside() -> None:
        has_run.set()

    found, _ = await asyncio.gather(Planner().run(waiting()), beside())
    assert found


async def test_plans_of_one_planner_run_one_after_the_other() -> None:
    at_work: list[str] = []
    most = 0

    def plan(name: str) -> Steps[str]:
        nonlocal most
        at_work.append(name)
        for _ in range(100):
            most = max(most, len(at_work))
            yield
        at_work.remove(name)
        return name

    one = Planner()
    assert await asyncio.gather(*(one.run(plan(name)) for name in "abc")) == ["a", "b", "c"]
    assert most == 1


async def test_a_cancelled_plan_changes_nothing_once_the_cancellation_is_over() -> None:
    begun, steps = threading.Event(), 0

    def endless() -> Steps[None]:
        nonlocal steps
        while True:
            begun.set()
            steps += 1
            yield

    one = Planner()
    task = asyncio.create_task(one.run(endless()))
    await asyncio.to_thread(begun.wait, FAR_TOO_LONG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    at_the_end = steps
    assert await one.run(counting(100)) == 100  # its thread is free again
    assert steps == at_the_end


def test_a_plan_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loop whose clock goes on while a thread is at work."""
    monkeypatch.setattr(planner, "LONG_SECONDS", 0.001)

    def until_told() -> Steps[bool]:
        until = time.monotonic() + FAR_TOO_LONG
        while not logs and time.monotonic() < until:
            yield
        return bool(logs)

    with capture_logs() as logs:
        assert asyncio.run(Planner().run(until_told()))
    assert {each["event"] for each in logs} == {"long_plan"}
