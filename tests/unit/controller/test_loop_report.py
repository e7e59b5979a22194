"""Circles of preemptions are reported once, counted each time, and asked for only after a preemption."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.controller.reconcile import event_recorder
from dispatcher.controller.reconcile.event_recorder import LoopReport
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.preemption import PREEMPTIONS_WITHIN, Reason
from dispatcher.core.model.record import Change, Phase
from dispatcher.core.scheduling.sharing.loops import Preempted
from dispatcher.core.status.events import preemption_loop
from dispatcher.errors import StoreUnavailable
from dispatcher.kube.objects.events import EventAbout
from dispatcher.probes import Metrics
from tests.builders import at, make_record
from tests.unit.controller.test_event_recorder import ListRecorder
from tests.unit.virtual_time import until
from tests.unit.workers import running

CIRCLE = [
    Preempted("uid-of-a", "uid-of-b", "red/a"),
    Preempted("uid-of-b", "uid-of-c", "blue/b"),
    Preempted("uid-of-c", "uid-of-a", "red/c"),
]
SAID = (
    "its preemption closes a circle of gangs that were each preempted for the next within 24 h. To break it, lower the "
    "priority of one of them, or raise the nominal quota of its queue; else maxPreemptions of the queues, where it is "
    "not 0, ends it. The circle: red/a → blue/b → red/c → red/a"
)


def preemption(victim: str, preemptor: str) -> Change:
    record = replace(make_record(Phase.RUNNING, victim), uid=f"uid-of-{victim}", namespace="red")
    return run_changes.preempt(record, Reason.FAIR_SHARE, "why", at(4), f"uid-of-{preemptor}")


class Bench:
    """A report over a history that answers with `answers` in turn, the last of them again and again."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], datetime]] = []
        self.answers: list[list[Preempted] | Exception] = [CIRCLE]
        self.recorder, self.metrics = ListRecorder(), Metrics()
        self.time = at(0)
        self.report = LoopReport(self._preemptions_from, self.recorder, self.metrics, lambda: self.time)

    async def _preemptions_from(self, victims: Collection[str], since: datetime) -> list[Preempted]:
        self.asked.append((list(victims), since))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def note(self, *changes: Change) -> None:
        """Note committed changes and wait for the question about them."""
        asked = len(self.asked)
        for change in changes:
            self.report.note(change, change.after)
        await until(lambda: len(self.asked) > asked)
        await asyncio.sleep(1)

    @property
    def closed(self) -> float | None:
        return self.metrics.registry.get_sample_value("dispatcher_preemption_loops_total")

    @property
    def told(self) -> list[str]:
        return [each.uid for each in self.recorder.offered]


async def test_preemption_that_closes_a_circle_is_an_event_a_log_line_and_a_count() -> None:
    bench = Bench()
    with capture_logs() as lines:
        async with running(bench.report.run()):
            await bench.note(preemption("a", "b"))
    assert bench.asked == [(["uid-of-a"], at(0) - timedelta(hours=24))]
    assert bench.recorder.offered == [
        EventAbout(
            "workload.codeflare.dev/v1beta1",
            "AppWrapper",
            "red",
            "a",
            "uid-of-a",
            "PreemptionLoop",
            SAID,
            warning=True,
            at=at(0),
        )
    ]
    assert [(each["event"], each["appwrapper"], each["detail"]) for each in lines] == [
        ("preemption_loop", "red/a", SAID)
    ]
    assert bench.closed == 1


async def test_repeated_preemption_circle_is_counted_and_gives_each_gang_one_event_in_24_hours() -> None:
    bench = Bench()
    async with running(bench.report.run()):
        await bench.note(preemption("a", "b"))
        await bench.note(preemption("b", "c"), preemption("c", "a"))
        bench.time += PREEMPTIONS_WITHIN - timedelta(seconds=1)
        await bench.note(preemption("a", "b"))
        assert (bench.told, bench.closed) == (["uid-of-a", "uid-of-b", "uid-of-c"], 4)
        bench.time += timedelta(seconds=1)
        await bench.note(preemption("a", "b"))
        assert (bench.told[3:], bench.closed) == (["uid-of-a"], 5)


async def test_preemption_that_closes_no_circle_is_not_reported() -> None:
    bench = Bench()
    bench.answers = [[*CIRCLE[:2], Preempted("uid-of-a", "uid-of-x", "red/a")]]
    async with running(bench.report.run()):
        await bench.note(preemption("a", "b"), preemption("b", "c"))
    assert (bench.told, bench.closed) == ([], 0)


async def test_nothing_is_asked_without_a_preemption() -> None:
    bench = Bench()
    drain = EvictionReason("QueueStopped", "its queue is drained")
    async with running(bench.report.run()):
        for change in (
            run_changes.evict(make_record(Phase.RUNNING), drain, at(4), 0, at(4)),
            queue_changes.dispatch(make_record(), "hub", at(1)),
        ):
            bench.report.note(change, change.after)
        await asyncio.sleep(60)
    assert bench.asked == []


@pytest.mark.parametrize("failure", [StoreUnavailable("it is gone"), ValueError("nobody thought of it")])
async def test_failed_question_is_logged_and_the_next_preemption_asks_again(failure: Exception) -> None:
    bench = Bench()
    bench.answers = [failure, CIRCLE]
    with capture_logs() as lines:
        async with running(bench.report.run()):
            await bench.note(preemption("a", "b"))
            assert bench.told == []
            await bench.note(preemption("b", "c"))
    assert bench.told == ["uid-of-b"]
    logged = {StoreUnavailable: "preemption_loops_not_read", ValueError: "internal_error"}
    assert lines[0]["event"] == logged[type(failure)]


async def test_more_victims_than_fit_a_question_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "MOST_VICTIMS", 2)
    bench = Bench()
    async with running(bench.report.run()):
        await bench.note(preemption("a", "b"), preemption("b", "c"), preemption("c", "a"))
    assert [victims for victims, _ in bench.asked] == [["uid-of-a", "uid-of-b"]]


async def test_oldest_reports_are_forgotten_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "MOST_REPORTED", 1)
    bench = Bench()
    async with running(bench.report.run()):
        for victim, preemptor in ("ab", "bc", "bc", "ab"):
            await bench.note(preemption(victim, preemptor))
    assert bench.told == ["uid-of-a", "uid-of-b", "uid-of-a"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(1, "0 → 0"), (10, "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → 9 → 0"), (12, "9 → 2 more → 0")],
)
def test_event_names_the_first_gangs_of_a_circle(count: int, shown: str) -> None:
    assert preemption_loop([str(number) for number in range(count)]).message.endswith(shown)
