"""What a target is told: the decisions of the notifier.

A target is told of an event if its AppWrapper chooses the target and the target is open to its namespace, or if the
operator has subscribed the target. Both rest on records and on the declaration; an AppWrapper cannot open a target.

The termination message in an event is a text of the gang's author. A target that its AppWrapper chooses is told of it.
A target that only the operator has subscribed is told of it if the subscription says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.notifications import Choice, choices_in
from dispatcher.core.model.notifications import Alarm, QueueNow, ToldEvent
from dispatcher.notify import messages
from dispatcher.notify.messages import Message, occasion_of
from dispatcher.notify.targets import QueueAlarms, Target

LEAST_ALARM: Final = timedelta(minutes=10)
"""The shortest time from the begin of an alarm to its end, so that a queue at the limit does not fill a channel."""


class Closed(Struct, frozen=True):
    """An AppWrapper chooses a target that is not open to its namespace, or that is not declared."""

    target: str
    namespace: str
    name: str


def message_about(target: Target, event: ToldEvent) -> Message | None:
    """The message about an event; None if the target is not told of it."""
    occasion = occasion_of(event)
    if occasion is None:
        return None
    choice, subscription = _choice(target, event), target.subscription
    if choice is not None and occasion in choice.occasions:
        return messages.of_event(event, occasion)
    if (
        subscription is None
        or occasion not in subscription.occasions
        or not subscription.namespaces.has(event.namespace)
    ):
        return None
    told = event if subscription.termination_messages else replace(event, termination_message="")
    return messages.of_event(told, occasion)


def _choice(target: Target, event: ToldEvent) -> Choice | None:
    """The entry of the target in what an AppWrapper chooses; None if the target is not open to its namespace."""
    if not event.notifications or not target.namespaces.has(event.namespace):
        return None
    return choices_in(event.notifications).of(target.name)


def closed_choices(targets: Collection[Target], event: ToldEvent) -> Iterator[Closed]:
    """The choices of an event that nobody is told of, because the target is not open or not declared."""
    by_name = {target.name: target for target in targets}
    for choice in choices_in(event.notifications).entries:
        target = by_name.get(choice.target)
        if target is None or not target.namespaces.has(event.namespace):
            yield Closed(choice.target, event.namespace, event.name)


class AlarmStep(Struct, frozen=True):
    """An alarm that begins, or is over, and the message that says so."""

    alarm: Alarm
    message: Message
    is_over: bool = False


WAITS_LONGER: Final = "waits-longer"
QUEUED_MORE: Final = "queued-more"
STOPPED: Final = "stopped"


def alarm_steps(
    target: Target, told: Collection[Alarm], queues: Iterable[QueueNow], now: datetime
) -> Iterator[AlarmStep]:
    """The alarms of queues that begin now, and those of `told` that are over."""
    by_name = {queue.queue: queue for queue in queues}
    known, ringing = {(each.alarm, each.queue) for each in told}, set[tuple[str, str]]()
    for queue in by_name.values():
        for alarm, limit in _ringing(target.alarms, queue, now):
            ringing.add((alarm, queue.queue))
            if (alarm, queue.queue) not in known:
                begun = Alarm(target.name, alarm, queue.queue, now)
                yield AlarmStep(begun, messages.of_alarm(queue, alarm, limit, now, None))
    for each in told:
        if (each.alarm, each.queue) not in ringing and now - each.began_at >= LEAST_ALARM:
            queue = by_name.get(each.queue, QueueNow(each.queue))
            limit = "it was told when it began"
            yield AlarmStep(each, messages.of_alarm(queue, each.alarm, limit, each.began_at, now), True)


def _ringing(alarms: QueueAlarms | None, queue: QueueNow, now: datetime) -> Iterator[tuple[str, str]]:
    """The alarms of a queue that ring now, each with its limit in words."""
    if alarms is None or not alarms.queues.has(queue.queue):
        return
    oldest, longer_than, more_than = queue.oldest_since, alarms.longer_than, alarms.more_than
    if longer_than is not None and oldest is not None and now - oldest > longer_than:
        yield WAITS_LONGER, f"longer than {messages.lasting(longer_than)}"
    if more_than is not None and queue.queued > more_than:
        yield QUEUED_MORE, f"more than {more_than} queued"
    if alarms.stopped and queue.stop_policy != "None":
        yield STOPPED, f"its stopPolicy is {queue.stop_policy}"
