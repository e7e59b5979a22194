"""What a target is told next, and how far it was told after each message: the decisions of the notifier.

A target is told of an event if its AppWrapper chooses the target and the target is open to its namespace, or if the
operator has subscribed the target. Both rest on records and on the declaration; an AppWrapper cannot open a target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.notifications import Choice, choices_in
from dispatcher.core.model.notifications import Cursor, QueueNow, ToldEvent, WaitingGang
from dispatcher.notify import messages
from dispatcher.notify.messages import Message, occasion_of
from dispatcher.notify.targets import QueueAlarms, Target

LEAST_ALARM: Final = timedelta(minutes=10)
"""The shortest time from the begin of an alarm to its end, so that a queue at the limit does not fill a channel."""


class Step(Struct, frozen=True):
    """One message, and how far the target was told once it is sent; without a message, only that."""

    cursor: Cursor
    message: Message | None = None


class Closed(Struct, frozen=True):
    """An AppWrapper chooses a target that is not open to its namespace, or that is not declared."""

    target: str
    namespace: str
    name: str


def event_steps(target: Target, cursor: Cursor, events: Sequence[ToldEvent]) -> list[Step]:
    """The steps for the next events; the last step is behind the last event."""
    steps: list[Step] = []
    for event in events:
        cursor = replace(cursor, event_id=event.id)
        message = _told(target, event)
        if message is not None:
            steps.append(Step(cursor, message))
    if events and (not steps or steps[-1].cursor.event_id != cursor.event_id):
        steps.append(Step(cursor))
    return steps


def _told(target: Target, event: ToldEvent) -> Message | None:
    occasion = occasion_of(event)
    if occasion is None:
        return None
    choice, subscription = _choice(target, event), target.subscription
    is_chosen = choice is not None and occasion in choice.occasions
    is_subscribed = (
        subscription is not None
        and occasion in subscription.occasions
        and subscription.namespaces.has(event.namespace)
    )
    return messages.of_event(event, occasion) if is_chosen or is_subscribed else None


def _choice(target: Target, of: ToldEvent | WaitingGang) -> Choice | None:
    """The entry of the target in what an AppWrapper chooses; None if the target is not open to its namespace."""
    if not of.notifications or not target.namespaces.has(of.namespace):
        return None
    return choices_in(of.notifications).of(target.name)


def closed_choices(targets: Collection[Target], events: Iterable[ToldEvent]) -> Iterator[Closed]:
    """The choices of events that nobody is told of, because the target is not open or not declared."""
    by_name = {target.name: target for target in targets}
    for event in events:
        for choice in choices_in(event.notifications).entries:
            target = by_name.get(choice.target)
            if target is None or not target.namespaces.has(event.namespace):
                yield Closed(choice.target, event.namespace, event.name)


def wait_steps(target: Target, cursor: Cursor, waiting: Iterable[WaitingGang], now: datetime) -> list[Step]:
    """The steps for gangs that have been queued for too long since the cursor, in the order of the due times."""
    due = sorted(_due(target, waiting), key=lambda each: each[:2])
    return [
        Step(replace(cursor, waits_until=moment, waits_uid=gang.uid), messages.of_wait(gang, longer_than))
        for moment, uid, gang, longer_than in due
        if (cursor.waits_until, cursor.waits_uid) < (moment, uid) and moment <= now
    ]


def _due(
    target: Target, waiting: Iterable[WaitingGang]
) -> Iterator[tuple[datetime, str, WaitingGang, timedelta]]:
    for gang in waiting:
        for longer_than in _limits(target, gang):
            yield gang.since + longer_than, gang.uid, gang, longer_than


def _limits(target: Target, gang: WaitingGang) -> set[timedelta]:
    """The durations after which the target is told that a gang still waits."""
    choice, subscription = _choice(target, gang), target.subscription
    limits = {choice.longer_than if choice else None}
    if subscription is not None and subscription.namespaces.has(gang.namespace):
        limits.add(subscription.longer_than)
    return {limit for limit in limits if limit is not None}


WAITS_LONGER: Final = "waits-longer"
QUEUED_MORE: Final = "queued-more"
STOPPED: Final = "stopped"


def began(
    target: Target, queues: Iterable[QueueNow], now: datetime, before: Mapping[str, datetime]
) -> dict[str, datetime]:
    """When each alarm that rings now was first seen, by key: each try to tell of it is about the same moment."""
    keys = (key for queue in queues for key, _ in _ringing(target.alarms, queue, now))
    return {key: before.get(key, now) for key in keys}


def alarm_steps(
    target: Target,
    cursor: Cursor,
    queues: Iterable[QueueNow],
    now: datetime,
    since_when: Mapping[str, datetime],
) -> list[Step]:
    """The steps for alarms of queues that begin, or are over, now; `since_when` is when each began."""
    steps: list[Step] = []
    by_name = {queue.queue: queue for queue in queues}
    rings = {key: said for queue in by_name.values() for key, said in _ringing(target.alarms, queue, now)}
    for key, limit in rings.items():
        if key not in cursor.alarms:
            since = since_when.get(key, now)
            cursor = replace(cursor, alarms={**cursor.alarms, key: since})
            steps.append(Step(cursor, _alarm(by_name, key, limit, since, None)))
    for key, since in list(cursor.alarms.items()):
        if key not in rings and now - since >= LEAST_ALARM:
            left = {each: begin for each, begin in cursor.alarms.items() if each != key}
            cursor = replace(cursor, alarms=left)
            steps.append(Step(cursor, _alarm(by_name, key, "it was told when it began", since, now)))
    return steps


def _ringing(alarms: QueueAlarms | None, queue: QueueNow, now: datetime) -> Iterator[tuple[str, str]]:
    """The alarms of a queue that ring now: the key of each, and its limit in words."""
    if alarms is None or not alarms.queues.has(queue.queue):
        return
    oldest, longer_than, more_than = queue.oldest_since, alarms.longer_than, alarms.more_than
    if longer_than is not None and oldest is not None and now - oldest > longer_than:
        yield f"{WAITS_LONGER}/{queue.queue}", f"longer than {messages.lasting(longer_than)}"
    if more_than is not None and queue.queued > more_than:
        yield f"{QUEUED_MORE}/{queue.queue}", f"more than {more_than} queued"
    if alarms.stopped and queue.stop_policy != "None":
        yield f"{STOPPED}/{queue.queue}", f"its stopPolicy is {queue.stop_policy}"


def _alarm(
    queues: dict[str, QueueNow], key: str, limit: str, since: datetime, over_at: datetime | None
) -> Message:
    alarm, _, name = key.partition("/")
    return messages.of_alarm(queues.get(name, QueueNow(name)), alarm, limit, since, over_at)
