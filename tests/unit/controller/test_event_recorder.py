"""What is told of a committed step: one log line, a figure, and of a few an Event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from fractions import Fraction
from math import inf

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import log
from dispatcher.api import conditions as words
from dispatcher.controller.reconcile import event_recorder
from dispatcher.controller.reconcile.event_recorder import LoopReport, StepRecorder
from dispatcher.controller.upkeep.metrics import MOST_AMOUNTS, MOST_QUEUES, Sources, gather, metric_values_of
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.confirmation import end_of_attempt
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import Act, Do
from dispatcher.core.model.gangs.growth import GrowthRequest, Shrinking
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.preemption import PREEMPTIONS_WITHIN, Reason
from dispatcher.core.model.records.record import Change, Phase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.preemption.loops import Preempted
from dispatcher.core.scheduling.sharing.dominant_share import Share
from dispatcher.core.status.events import preemption_loop
from dispatcher.core.status.queue_status import QueueState
from dispatcher.errors import StoreUnavailable
from dispatcher.kube.objects.events import EventAbout, EventRecorder
from dispatcher.probes import Metrics, MetricValues, QueueMetricValues
from tests.builders import (
    WAITS,
    at,
    attempt_of,
    make_blocked,
    make_gang,
    make_record,
    make_ref,
    make_requested,
    make_submission,
)
from tests.unit.controller.world import World
from tests.unit.virtual_time import until
from tests.unit.workers import running


class ListRecorder(EventRecorder):
    """Lists the events that it is offered."""

    def __init__(self) -> None:
        self.offered: list[EventAbout] = []

    def offer(self, event: EventAbout) -> None:
        self.offered.append(event)


def make_steps(recorder: ListRecorder, **members: ListRecorder) -> StepRecorder:
    """A recorder of steps with these connected members."""
    return StepRecorder(Metrics(), recorder, {"hub": recorder, **members}.get)


def blocked() -> Change:
    change = queue_changes.block(make_record(), WAITS, at(1))
    assert change is not None
    return change


def blocked_again() -> Change:
    change = queue_changes.block(make_blocked(), replace(WAITS, resource="memory"), at(2))
    assert change is not None
    return change


NOTICES: list[tuple[str, Callable[[], Change], tuple[str, str, bool] | None]] = [
    ("submitted", lambda: first_changes.submit(make_submission(), make_gang(), at(0)), None),
    (
        "rejected",
        lambda: first_changes.reject(make_submission(), "is wrong", at(0)),
        ("Failed", "is wrong", True),
    ),
    ("blocked", blocked, ("Backoff", WAITS.message, False)),
    ("blocked-again", blocked_again, None),
    ("dispatched", lambda: queue_changes.dispatch(make_record(), "hub", at(1)), None),
    (
        "created",
        lambda: run_changes.created(make_record(Phase.DISPATCHING), (make_ref(),), at(2)),
        ("Dispatched", "every wrapped object (1) was created in cluster hub", False),
    ),
    (
        "running",
        lambda: run_changes.mark_running(make_record(Phase.DISPATCHED), at(3)),
        ("Running", "1 pod runs in cluster hub", False),
    ),
    (
        "failed",
        lambda: removal.removed(make_record(Phase.FAILING), at(3)),
        ("Failed", "it is invalid", True),
    ),
    (
        "requeued",
        lambda: removal.removed(make_record(Phase.REQUEUEING), at(3)),
        ("Requeued", "exceeded quota", True),
    ),
    ("deleted", lambda: removal.delete(make_record(Phase.RUNNING), at(4)), None),
    ("released", lambda: removal.release(make_record(Phase.DELETING), at(5)), None),
]


@pytest.mark.parametrize(("step", "notice"), [pytest.param(*row[1:], id=row[0]) for row in NOTICES])
async def test_few_steps_make_an_event_for_users(
    step: Callable[[], Change], notice: tuple[str, str, bool] | None
) -> None:
    recorder, change = ListRecorder(), step()
    make_steps(recorder).announce(change, change.after)
    told = [(event.uid, event.reason, event.message, event.warning) for event in recorder.offered]
    assert told == ([("uid-of-aw", *notice)] if notice else [])


WAITS_TO_GROW = GrowthRequest(2, Resources({"cpu": 2000}), at(20), "InsufficientQuota", "2 more pods wait")


async def test_growth_makes_events_of_the_appwrapper_and_of_the_growing_objects() -> None:
    recorder = ListRecorder()
    steps, record = make_steps(recorder), make_record(Phase.RUNNING)
    objects = (make_ref(name="ray"), make_ref(1, "Service"))
    record = replace(record, attempt=replace(attempt_of(record), objects=objects))
    first = run_changes.note_growth_request(record, WAITS_TO_GROW, at(20))
    more = run_changes.note_growth_request(first.after, replace(WAITS_TO_GROW, pods=3), at(30))
    granted = run_changes.grant(more.after, Resources({"cpu": 3000}), None, "3 pods may start", at(40))
    given = Shrinking((), Resources({"cpu": 2000}), "uid-of-another")
    shrinks = run_changes.give_up(granted.after, given, Reason.FAIR_SHARE, "1 surplus pod preempted", at(50))
    over = run_changes.note_growth_request(shrinks.after, None, at(60))
    for change in (first, more, granted, shrinks, over):
        steps.announce(change, change.after)
    told = [(each.kind, each.name, each.reason, each.message, each.warning) for each in recorder.offered]
    assert told == [
        ("AppWrapper", "aw", "GrowthWaits", "2 more pods wait", True),
        ("RayCluster", "ray", "GrowthWaits", "2 more pods wait", True),
        ("AppWrapper", "aw", "GrowthGranted", "3 pods may start", False),
        ("RayCluster", "ray", "GrowthGranted", "3 pods may start", False),
        ("AppWrapper", "aw", "SurplusPreempted", "1 surplus pod preempted", True),
        ("RayCluster", "ray", "SurplusPreempted", "1 surplus pod preempted", True),
    ]
    assert {each.api_version for each in recorder.offered} == {"workload.codeflare.dev/v1beta1", "ray.io/v1"}


async def test_partly_granted_growth_makes_an_event_of_the_pending_rest_unless_it_was_pending() -> None:
    recorder = ListRecorder()
    steps, record = make_steps(recorder), make_record(Phase.RUNNING)
    granted = run_changes.grant(record, Resources({"cpu": 1000}), WAITS_TO_GROW, "1 pod may start", at(20))
    more = run_changes.grant(
        granted.after, Resources({"cpu": 2000}), WAITS_TO_GROW, "1 pod may start", at(30)
    )
    for change in (granted, more):
        steps.announce(change, change.after)
    told = [(each.reason, each.message) for each in recorder.offered if each.kind == "AppWrapper"]
    assert told == [
        ("GrowthGranted", "1 pod may start"),
        ("GrowthWaits", "2 more pods wait"),
        ("GrowthGranted", "1 pod may start"),
    ]


@pytest.mark.parametrize("cluster", ["east", "west", "not-connected"])
async def test_growth_makes_an_event_of_the_object_in_its_member_and_of_the_appwrapper_on_the_hub(
    cluster: str,
) -> None:
    hub, east, west = ListRecorder(), ListRecorder(), ListRecorder()
    record = make_record(Phase.RUNNING)
    record = replace(
        record, attempt=replace(attempt_of(record), cluster=cluster, objects=(make_ref(name="ray"),))
    )
    change = run_changes.note_growth_request(record, WAITS_TO_GROW, at(20))
    make_steps(hub, east=east, west=west).announce(change, change.after)
    told = {"hub": hub.offered, "east": east.offered, "west": west.offered}
    assert {name: [(each.kind, each.reason) for each in offered] for name, offered in told.items()} == {
        **{name: [] for name in told},
        **({cluster: [("RayCluster", "GrowthWaits")]} if cluster in told else {}),
        "hub": [("AppWrapper", "GrowthWaits")],
    }


async def test_every_step_is_one_log_line() -> None:
    recorder = make_steps(ListRecorder())
    with capture_logs() as logs:
        for _, step, _ in NOTICES:
            change = step()
            recorder.announce(change, change.after)
    assert len(logs) == len(NOTICES)
    assert logs[2] == {
        "component": "lifecycle",
        "log_level": "info",
        "event": "blocked",
        "appwrapper": "default/aw",
        "uid": "uid-of-aw",
        "phase": "Queued",
        "reason": WAITS.reason,
        "detail": WAITS.message,
    }


@pytest.mark.parametrize("act", [Act.FAIL, Act.REQUEUE])
async def test_termination_message_is_neither_logged_nor_in_an_event_of_kubernetes(act: Act) -> None:
    hub, failure = ListRecorder(), PodFailure("p", "main", 1, "Error", "a secret")
    decision = Do(act, words.FAILED_COMPONENT, "Job a/b failed")
    ends = end_of_attempt(make_record(Phase.RUNNING), decision, LifecyclePolicy(), "", at(9), failure)
    steps = make_steps(hub)
    with capture_logs() as logs:
        for change in (ends, removal.removed(ends.after, at(10))):
            steps.announce(change, change.after)
    assert logs[0]["detail"] == "Job a/b failed; failed first: container main of pod p, exit code 1, Error"
    assert len(hub.offered) == 1
    assert ends.events[-1].termination_message == "a secret"
    assert "secret" not in f"{logs}{[each.message for each in hub.offered]}"


async def test_waiting_and_creating_are_measured() -> None:
    metrics = Metrics()
    recorder = StepRecorder(metrics, ListRecorder(), lambda _: None)
    dispatching = queue_changes.dispatch(make_record(), "hub", at(7))
    for change in (dispatching, run_changes.created(dispatching.after, (), at(7.5))):
        recorder.announce(change, change.after)
    sums = {
        name: metrics.registry.get_sample_value(f"dispatcher_{name}_seconds_sum")
        for name in ("wait", "dispatch")
    }
    assert sums == {"wait": pytest.approx(7.842261), "dispatch": pytest.approx(0.5)}


async def test_answers_to_requests_for_capacity_are_measured() -> None:
    metrics = Metrics()
    recorder = StepRecorder(metrics, ListRecorder(), lambda _: None)
    for change in (
        provisioning.provisioned(make_requested(), "there", at(61)),
        provisioning.fail(make_requested(), "no nodes", has_other_cluster=False, now=at(11)),
        provisioning.fail(make_requested(), "no nodes", has_other_cluster=True, now=at(21)),
    ):
        recorder.announce(change, change.after)
    sums = {
        answer: metrics.registry.get_sample_value("dispatcher_provisioning_seconds_sum", {"answer": answer})
        for answer in ("provisioned", "failed")
    }
    assert sums == {"provisioned": pytest.approx(60), "failed": pytest.approx(30)}


async def test_preemptions_are_counted_by_why_the_gang_gave_way() -> None:
    metrics = Metrics()
    recorder = StepRecorder(metrics, ListRecorder(), lambda _: None)
    for reason in (Reason.FAIR_SHARE, Reason.FAIR_SHARE, Reason.QUOTA_RECLAIMED):
        change = run_changes.preempt(make_record(Phase.RUNNING), reason, "it gives way", at(4), "uid-of-prod")
        recorder.announce(change, change.after)
    found = {
        reason: metrics.registry.get_sample_value("dispatcher_preemptions_total", {"reason": reason})
        for reason in Reason
    }
    assert found == dict.fromkeys(Reason) | {Reason.FAIR_SHARE: 2, Reason.QUOTA_RECLAIMED: 1}


async def test_metrics_of_queues_are_of_their_states_in_the_order_of_declaration() -> None:
    states = [
        QueueState(
            "team",
            pending=3,
            running=2,
            nominal={"cpu": 4000},
            used={"cpu": 5000},
            borrowed={"cpu": 1000},
            available={"cpu": 0},
            share=Share.of(Fraction(250, 3)),
        ),
        QueueState("idle", share=Share.of(Fraction(0), is_infinite=True)),
        QueueState("lost", "ParentNotFound", pending=1),
    ]
    assert metric_values_of(states) == QueueMetricValues(
        nominal={("team", "cpu"): 4000},
        used={("team", "cpu"): 5000},
        borrowed={("team", "cpu"): 1000},
        pending={("team",): 3, ("idle",): 0, ("lost",): 1},
        share={("team",): 84, ("idle",): inf},
    )


async def test_metrics_of_queues_are_bounded() -> None:
    amounts = {f"example.org/{number}": number for number in range(64)}
    states = [QueueState(f"q{number}", nominal=amounts) for number in range(MOST_QUEUES + 5)]
    found = metric_values_of(states)
    assert (len(found.nominal), len(found.pending), found.share) == (MOST_AMOUNTS, MOST_QUEUES, {})
    assert next(iter(found.nominal)) == ("q0", "example.org/0")


async def test_figures_are_those_of_the_moment(world: World) -> None:
    world.cache.put(make_record(name="new", created_at=at(-60)))
    world.cache.put(make_blocked(make_record(name="blocked", created_at=at(0), blocked_since=at(20))))
    world.cache.put(make_record(Phase.RUNNING, name="runs"))
    world.client.writes.dropped_events["Dispatched"] += 3
    watches = [("hub", watch) for watch in world.hub.reflectors]
    sources = Sources(
        world.cache,
        world.clusters,
        lambda: {"hub": True},
        world.hub,
        lambda: watches,
        world.client,
        list,
    )
    assert gather(sources, at(60)) == MetricValues(
        phases={"Queued": 2, "Running": 1},
        waiting={"": 1, WAITS.reason: 1},
        oldest={"": 120.0, WAITS.reason: 60.0},
        head_blocked=40.0,
        free={("hub", "cpu"): 7000},
        total={("hub", "cpu"): 8000},
        reachable={"hub": True},
        left_out={"hub": 0},
        failing={
            ("hub", "appwrappers.workload.codeflare.dev"): False,
            ("hub", "appwrappers.mcad.ibm.com"): False,
        },
        reconnects={
            ("hub", "appwrappers.workload.codeflare.dev"): 0,
            ("hub", "appwrappers.mcad.ibm.com"): 0,
            ("hub", "nodes"): 0,
            ("hub", "pods"): 0,
        },
        writes={},
        events_dropped=3,
        internal_errors=log.internal_errors(),  # of the whole process, so of other tests, too
    )


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
