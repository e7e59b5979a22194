"""What a target is told: whose choices count, and which alarms begin or end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.notifications import Occasion
from dispatcher.core.model.notifications import QueueNow
from dispatcher.notify.steps import Closed, alarm_steps, closed_choices, message_about
from dispatcher.notify.targets import Names, QueueAlarms, Subscription
from tests.unit.notify.values import (
    EVERYWHERE,
    NOW,
    at,
    make_alarm,
    make_event,
    make_queue,
    make_target,
)

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
    message = message_about(make_target(**target), make_event(7, **event))
    assert (message is not None) is is_told


FAILURES = frozenset({Occasion.FAILED})
WITHOUT = Subscription(EVERYWHERE, FAILURES)
WITH = Subscription(EVERYWHERE, FAILURES, termination_messages=True)


@pytest.mark.parametrize(
    ("target", "notifications", "is_told"),
    [
        pytest.param({}, "mail=Failed", True, id="chosen"),
        pytest.param({"subscription": WITHOUT}, "mail=Failed", True, id="chosen-and-subscribed"),
        pytest.param({"subscription": WITHOUT}, "", False, id="subscribed"),
        pytest.param({"subscription": WITHOUT}, "chat=All", False, id="another-target-is-chosen"),
        pytest.param(
            {"subscription": WITHOUT}, "mail=Completed", False, id="chosen-for-another-event-and-subscribed"
        ),
        pytest.param(
            {"subscription": WITHOUT, "namespaces": Names()}, "mail=Failed", False, id="open-to-nobody"
        ),
        pytest.param({"subscription": WITH}, "", True, id="subscribed-with-termination-messages"),
    ],
)
def test_a_target_that_nobody_chose_is_told_of_a_termination_message_only_if_its_declaration_says_so(
    target: dict[str, Any], notifications: str, is_told: bool
) -> None:
    event = make_event(
        7, "run-failed", message="it failed", termination_message="a secret", notifications=notifications
    )
    message = message_about(make_target(**target), event)
    assert message is not None
    assert message.facts.get("terminationMessage") == ("a secret" if is_told else None)
    assert message.text.endswith(
        ": it failed; termination message: «a secret»." if is_told else ": it failed."
    )
    assert message.facts["message"] == "it failed"


def test_choices_of_closed_and_of_unknown_targets_are_found() -> None:
    targets = [make_target(), make_target("ops", namespaces=Names(("infra",)))]
    events = [
        make_event(notifications="mail=Failed ops=Failed typo=Failed"),
        make_event(namespace="infra", notifications="ops=All"),
    ]
    assert [each for event in events for each in closed_choices(targets, event)] == [
        Closed("ops", "team-a", "train"),
        Closed("typo", "team-a", "train"),
    ]


# --- alarms ------------------------------------------------------------------------------------------------

ALARMS = QueueAlarms(EVERYWHERE, timedelta(hours=1), 100, stopped=True)


@pytest.mark.parametrize(
    ("queue", "alarms"),
    [
        (make_queue(), []),
        (make_queue(queued=100, oldest_since=at(-3600)), []),
        (make_queue(queued=101), ["queued-more"]),
        (make_queue(queued=1, oldest_since=at(-3601)), ["waits-longer"]),
        (make_queue(stop_policy="Hold"), ["stopped"]),
        (
            make_queue("tree/gold", queued=101, oldest_since=at(-3601), stop_policy="HoldAndDrain"),
            ["waits-longer", "queued-more", "stopped"],
        ),
    ],
)
def test_alarms_that_begin(queue: QueueNow, alarms: list[str]) -> None:
    steps = list(alarm_steps(make_target(alarms=ALARMS), [], [queue], NOW))
    assert [step.alarm for step in steps] == [make_alarm(alarm, queue.queue) for alarm in alarms]
    assert [(step.message.about, step.is_over) for step in steps] == [(queue.queue, False)] * len(alarms)


def test_an_alarm_is_told_at_its_begin_and_at_its_end_and_not_between() -> None:
    target, full = make_target(alarms=ALARMS), make_queue(queued=101)
    [begin] = alarm_steps(target, [], [full], NOW)
    assert list(alarm_steps(target, [begin.alarm], [full], at(9000))) == []
    assert list(alarm_steps(target, [begin.alarm], [make_queue()], at(599))) == []
    [end] = alarm_steps(target, [begin.alarm], [make_queue()], at(600))
    assert (end.alarm, end.is_over) == (begin.alarm, True)
    assert end.message.kind == "queue.queued-more.ended"


@pytest.mark.parametrize("alarms", [None, QueueAlarms(Names(("other",)), more_than=1)])
def test_an_alarm_that_is_not_declared_any_more_ends(alarms: QueueAlarms | None) -> None:
    told = [make_alarm(queue="gone")]
    [end] = alarm_steps(make_target(alarms=alarms), told, [], at(600))
    assert (end.alarm, end.is_over) == (told[0], True)


def test_alarms_are_of_the_declared_queues_alone() -> None:
    target = make_target(alarms=replace(ALARMS, queues=Names(("team-b",))))
    assert list(alarm_steps(target, [], [make_queue(queued=101)], NOW)) == []


def test_alarms_are_made_one_at_a_time() -> None:
    """A thousand alarms that begin at once are not in memory at once."""
    queues = [make_queue(f"q-{number}", queued=101) for number in range(1000)]
    steps = alarm_steps(make_target(alarms=ALARMS), [], queues, NOW)
    assert next(steps).alarm.queue == "q-0"
    assert sum(1 for _ in steps) == 999
