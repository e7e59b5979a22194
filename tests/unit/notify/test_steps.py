"""What a target is told next: whose choices count, which waits are due, and which alarms begin or end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.notifications import Occasion
from dispatcher.core.model.notifications import Cursor, QueueNow
from dispatcher.notify.steps import Closed, Step, alarm_steps, began, closed_choices, event_steps, wait_steps
from dispatcher.notify.targets import Names, QueueAlarms, Subscription
from tests.unit.notify.values import (
    EVERYWHERE,
    NOW,
    at,
    make_cursor,
    make_event,
    make_queue,
    make_target,
    make_waiting,
)

HOUR = timedelta(hours=1)


def ids(steps: list[Step]) -> list[str]:
    return [step.message.id.partition("-")[0] for step in steps if step.message]


# --- events ------------------------------------------------------------------------------------------------

SUBSCRIBED = Subscription(Names(("team-a",)), frozenset({Occasion.COMPLETED}))


@pytest.mark.parametrize(
    ("target", "event", "is_told"),
    [
        pytest.param({}, {}, True, id="chosen"),
        pytest.param({}, {"notifications": "mail=Failed"}, False, id="chosen-for-something-else"),
        pytest.param({}, {"notifications": "chat=All"}, False, id="another-target-is-chosen"),
        pytest.param({}, {"notifications": ""}, False, id="nothing-chosen"),
        pytest.param({"namespaces": Names()}, {}, False, id="open-to-nobody"),
        pytest.param({"namespaces": Names(("team-b",))}, {}, False, id="open-to-others"),
        pytest.param({"namespaces": Names(("team-*",))}, {}, True, id="open-by-begin-of-name"),
        pytest.param(
            {"namespaces": Names(), "subscription": SUBSCRIBED}, {"notifications": ""}, True, id="subscribed"
        ),
        pytest.param(
            {"namespaces": Names(), "subscription": SUBSCRIBED},
            {"namespace": "team-b"},
            False,
            id="subscribed-elsewhere",
        ),
        pytest.param(
            {"subscription": SUBSCRIBED}, {"cause": "preempted", "notifications": ""}, False, id="other-event"
        ),
        pytest.param({}, {"cause": "blocked"}, False, id="nobody-is-told-of-it"),
    ],
)
def test_who_is_told_of_an_event(target: dict[str, Any], event: dict[str, Any], is_told: bool) -> None:
    [step] = event_steps(make_target(**target), make_cursor(), [make_event(7, **event)])
    assert (step.message is not None) is is_told
    assert step.cursor == make_cursor(event_id=7)


def test_cursor_stands_at_each_message_and_in_the_end_behind_all_events() -> None:
    events = [make_event(number, "blocked" if number in (1, 4) else "completed") for number in range(1, 5)]
    steps = event_steps(make_target(), make_cursor(dropped=3), events)
    assert [step.cursor for step in steps] == [
        make_cursor(event_id=number, dropped=3) for number in (2, 3, 4)
    ]
    assert ids(steps) == ["2", "3"]
    assert event_steps(make_target(), make_cursor(), []) == []


def test_choices_of_closed_and_of_unknown_targets_are_found() -> None:
    targets = [make_target(), make_target("ops", namespaces=Names(("infra",)))]
    events = [
        make_event(notifications="mail=Failed ops=Failed typo=Failed"),
        make_event(namespace="infra", notifications="ops=All"),
    ]
    assert list(closed_choices(targets, events)) == [
        Closed("ops", "team-a", "train"),
        Closed("typo", "team-a", "train"),
    ]


# --- waits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "now", "is_told"),
    [
        pytest.param(make_cursor(), at(3599), False, id="not-due"),
        pytest.param(make_cursor(), at(3600), True, id="due"),
        pytest.param(make_cursor(), at(90_000), True, id="long-due"),
        pytest.param(make_cursor(waits_until=at(3600), waits_uid="uid-1"), at(9000), False, id="told"),
        pytest.param(make_cursor(waits_until=at(3600), waits_uid="uid-0"), at(9000), True, id="told-another"),
        pytest.param(make_cursor(waits_until=at(3601)), at(9000), False, id="due-before-the-cursor"),
    ],
)
def test_a_wait_is_told_once_when_it_is_due(cursor: Cursor, now: Any, is_told: bool) -> None:  # noqa: ANN401
    steps = wait_steps(make_target(), cursor, [make_waiting()], now)
    told = [replace(cursor, waits_until=at(3600), waits_uid="uid-1")] if is_told else []
    assert [step.cursor for step in steps] == told


def test_waits_are_told_in_the_order_of_their_due_times() -> None:
    waiting = [
        make_waiting("c", notifications="mail=Waiting:2h"),
        make_waiting("b"),
        make_waiting("a"),
        make_waiting("d", since=at(-60)),
        make_waiting("closed", notifications="ops=Waiting:1m"),
    ]
    steps = wait_steps(make_target(), make_cursor(), waiting, at(9000))
    assert [step.cursor.waits_uid for step in steps] == ["d", "a", "b", "c"]


def test_operator_is_told_of_waits_that_nobody_chose() -> None:
    target = make_target(
        namespaces=Names(), subscription=Subscription(Names(("team-a",)), longer_than=2 * HOUR)
    )
    waiting = [make_waiting("a"), make_waiting("b", namespace="team-b")]
    steps = wait_steps(target, make_cursor(), waiting, at(9000))
    assert [(step.cursor.waits_uid, step.cursor.waits_until) for step in steps] == [("a", at(7200))]


# --- alarms ------------------------------------------------------------------------------------------------

ALARMS = QueueAlarms(EVERYWHERE, HOUR, 100, stopped=True)


@pytest.mark.parametrize(
    ("queue", "alarms"),
    [
        (make_queue(), []),
        (make_queue(queued=100, oldest_since=at(-3600)), []),
        (make_queue(queued=101), ["queued-more/team-a"]),
        (make_queue(queued=1, oldest_since=at(-3601)), ["waits-longer/team-a"]),
        (make_queue(stop_policy="Hold"), ["stopped/team-a"]),
        (
            make_queue("tree/gold", queued=101, oldest_since=at(-3601), stop_policy="HoldAndDrain"),
            ["waits-longer/tree/gold", "queued-more/tree/gold", "stopped/tree/gold"],
        ),
    ],
)
def test_alarms_that_begin(queue: QueueNow, alarms: list[str]) -> None:
    steps = alarm_steps(make_target(alarms=ALARMS), make_cursor(), [queue], NOW, {})
    assert list(steps[-1].cursor.alarms.items() if steps else ()) == [(each, NOW) for each in alarms]
    assert [step.message.about for step in steps if step.message] == [queue.queue] * len(alarms)


def test_an_alarm_is_told_at_its_begin_and_at_its_end_and_not_between() -> None:
    target, full = make_target(alarms=ALARMS), make_queue(queued=101)
    [begin] = alarm_steps(target, make_cursor(), [full], NOW, {})
    assert alarm_steps(target, begin.cursor, [full], at(9000), {}) == []
    assert alarm_steps(target, begin.cursor, [make_queue()], at(599), {}) == []
    [end] = alarm_steps(target, begin.cursor, [make_queue()], at(600), {})
    assert end.cursor == make_cursor()
    assert end.message is not None
    assert end.message.kind == "queue.queued-more.ended"


@pytest.mark.parametrize("alarms", [None, QueueAlarms(Names(("other",)), more_than=1)])
def test_an_alarm_that_is_not_declared_any_more_ends(alarms: QueueAlarms | None) -> None:
    cursor = make_cursor(alarms={"queued-more/gone": NOW})
    [end] = alarm_steps(make_target(alarms=alarms), cursor, [], at(600), {})
    assert end.cursor == make_cursor()


def test_alarms_are_of_the_declared_queues_alone() -> None:
    target = make_target(alarms=replace(ALARMS, queues=Names(("team-b",))))
    assert alarm_steps(target, make_cursor(), [make_queue(queued=101)], NOW, {}) == []


def test_each_try_to_tell_of_an_alarm_is_the_same_message() -> None:
    """A receiver knows a message that it has had by its id, and a target that refuses it is not asked for ever."""
    target, full = make_target(alarms=ALARMS), make_queue(queued=101)
    first = began(target, [full], NOW, {})
    later = began(target, [full], at(5), first)
    [one] = alarm_steps(target, make_cursor(), [full], NOW, first)
    [again] = alarm_steps(target, make_cursor(), [full], at(5), later)
    assert (one.message, one.cursor.alarms) == (again.message, again.cursor.alarms)
    assert began(target, [make_queue()], at(9), later) == {}
