"""What a target is told: one sentence with the reason, as `explain` has it, and the command that shows more.

The id of a message is the same each time that the message is made, and that of no other message: of a database that was
set back and counts its events anew, the time of the event tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct, field

from dispatcher.api.notifications import Occasion
from dispatcher.core.model.notifications import UNDECLARED, QueueNow, ToldEvent, WaitingGang
from dispatcher.core.model.records.termination import both
from dispatcher.text import counted, one_line

LONGEST_SENTENCE: Final = 1000
"""Characters of a sentence: a chat shows no more, and the command shows the rest."""

_OCCASIONS: Final = {
    "pods-running": Occasion.STARTED,
    "completed": Occasion.COMPLETED,
    "found-completed": Occasion.COMPLETED,
    "rejected": Occasion.FAILED,
    "creation-refused": Occasion.FAILED,
    "provisioning-refused": Occasion.FAILED,
    "run-failed": Occasion.FAILED,
    "lost": Occasion.FAILED,
    "found-failed": Occasion.FAILED,
    "preempted": Occasion.PREEMPTED,
    "evicted": Occasion.EVICTED,
    "abandoned": Occasion.EVICTED,
}
"""The occasion of each cause that somebody may be told of."""


class Message(Struct, frozen=True):
    """One message: `text` is one sentence, `command` shows more. `kind` and `facts` are for programs."""

    id: str
    kind: str
    about: str
    """The name of the AppWrapper with its namespace, or of the queue."""
    title: str
    text: str
    command: str
    at: datetime
    facts: Mapping[str, str | int] = field(default_factory=dict)


def occasion_of(event: ToldEvent) -> Occasion | None:
    """What the event is an occasion of; None if nobody is told of it.

    What a new database finds in the status of an AppWrapper happened earlier. A gang that is being removed because it
    failed was told of before, also if its cluster is lost meanwhile. One that was being suspended or deleted when its
    cluster was lost is not queued again.
    """
    match event.cause:
        case "found-completed" | "found-failed" if not event.from_phase:
            return None
        case "lost" if event.from_phase == "Failing":
            return None
        case "abandoned" if event.to_phase != "Queued":
            return None
    return _OCCASIONS.get(event.cause)


def of_event(event: ToldEvent, occasion: Occasion) -> Message:
    """The message of an event."""
    name = f"{event.namespace}/{event.name}"
    return Message(
        id=f"{event.id}-{_micros(event.at)}",
        kind=f"appwrapper.{occasion.lower()}",
        about=name,
        title=f"{name}: {occasion}",
        text=_sentence(f"{name} {_happened(event, occasion)}"),
        command=_command(event, occasion),
        at=event.at,
        facts={
            **_whose(event.uid, event.namespace, event.name, event.queue),
            "event": occasion,
            "cause": event.cause,
            "reason": event.reason,
            "message": event.message,
            "cluster": event.cluster,
            "attempt": event.attempt,
            **({"terminationMessage": event.termination_message} if event.termination_message else {}),
        },
    )


def _happened(event: ToldEvent, occasion: Occasion) -> str:
    there = f" in cluster {event.cluster}" if event.cluster else ""
    ran = f" after {lasting(event.at - event.started_at)}" if event.started_at else ""
    why = _because(event)
    match occasion:
        case Occasion.STARTED:
            return f"runs{there} (queue {event.queue}, attempt {event.attempt})"
        case Occasion.COMPLETED:
            return f"completed{there}{ran}"
        case Occasion.FAILED:
            return f"failed{there}{ran}{why}"
        case Occasion.PREEMPTED:
            return f"was preempted{there}{ran} and is queued again{why}"
        case Occasion.EVICTED:
            return f"was evicted{there}{ran} and is queued again{why}"


def _because(event: ToldEvent) -> str:
    said = both(event.message, event.termination_message)
    return "".join(f": {part}" for part in (event.reason, said) if part)


def _command(event: ToldEvent, occasion: Occasion) -> str:
    verb = "explain" if occasion in (Occasion.PREEMPTED, Occasion.EVICTED) else "show"
    return f"kubectl aw {verb} {event.name} -n {event.namespace}"


def of_wait(gang: WaitingGang) -> Message:
    """The message that a gang has been queued for too long; its text has the reason of now."""
    name, longer_than = f"{gang.namespace}/{gang.name}", gang.longer_than
    why = f": {gang.message.removesuffix('.')}" if gang.message else ""
    advice = f". {gang.advice}" if gang.advice else ""
    return Message(
        id=f"{gang.uid}-waits-{_micros(gang.since)}-{longer_than // timedelta(seconds=1)}",
        kind="appwrapper.waiting",
        about=name,
        title=f"{name}: waits longer than {lasting(longer_than)}",
        text=_sentence(f"{name} has been queued in {gang.queue} for {lasting(longer_than)}{why}{advice}"),
        command=f"kubectl aw explain {gang.name} -n {gang.namespace}",
        at=gang.since + longer_than,
        facts={
            **_whose(gang.uid, gang.namespace, gang.name, gang.queue),
            "event": "Waiting",
            "longerThanSeconds": longer_than // timedelta(seconds=1),
            "message": gang.message,
            "advice": gang.advice,
        },
    )


def of_alarm(queue: QueueNow, alarm: str, limit: str, since: datetime, at: datetime | None) -> Message:
    """The message that an alarm of a queue began at `since`, or is over at `at`."""
    is_over = at is not None
    state = "is over" if is_over else "began"
    waiting = f"{counted(queue.queued, 'gang')} {'is' if queue.queued == 1 else 'are'} queued"
    oldest = f", the oldest since {_moment(queue.oldest_since)}" if queue.oldest_since else ""
    return Message(
        id=f"queue-{queue.queue}-{alarm}-{_micros(since)}-{'end' if is_over else 'begin'}",
        kind=f"queue.{alarm}.{'ended' if is_over else 'began'}",
        about=queue.queue,
        title=f"queue {queue.queue}: {alarm} {state}",
        text=_sentence(f"queue {queue.queue}: the alarm {alarm} ({limit}) {state}; {waiting}{oldest}"),
        command="kubectl aw queue" if queue.queue == UNDECLARED else f"kubectl aw queues show {queue.queue}",
        at=at or since,
        facts={
            "queue": queue.queue,
            "alarm": alarm,
            "limit": limit,
            "queued": queue.queued,
            "stopPolicy": queue.stop_policy,
        },
    )


def of_trial(target: str, now: datetime) -> Message:
    """The message that an operator sends to try a target."""
    return Message(
        id=f"trial-{target}-{_micros(now)}",
        kind="trial",
        about=target,
        title=f"dispatcher: trial of target {target}",
        text=f"this message tries the target {target}; nothing has happened.",
        command="dispatcher notify --help",
        at=now,
    )


def _whose(uid: str, namespace: str, name: str, queue: str) -> dict[str, str | int]:
    return {"uid": uid, "namespace": namespace, "name": name, "queue": queue}


def _sentence(text: str) -> str:
    said = one_line(text, LONGEST_SENTENCE)
    return said if said.endswith((".", "!", "…")) else f"{said}."


def lasting(duration: timedelta) -> str:
    """A duration in its two largest units: 45 s, 12 min, 2 h 3 min, 4 d 1 h."""
    seconds = max(0, duration // timedelta(seconds=1))
    if seconds < 60:
        return f"{seconds} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return _two(hours, "h", minutes % 60, "min")
    return _two(days, "d", hours % 24, "h")


def _two(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small} {smaller}" if small else f"{large} {unit}"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
