"""The values that the notifier reads from the database, and those that it keeps there for each target."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dispatcher.values import shown_without

TOLD: Final = (
    *("pods-running", "completed", "found-completed"),
    *("rejected", "creation-refused", "provisioning-refused", "run-failed", "lost", "found-failed"),
    *("preempted", "evicted", "abandoned"),
)
"""The causes of events that somebody may be told of; the database has an index of these events."""


UNDECLARED: Final = "(undeclared)"
"""Stands for every queue that AppWrappers name and nobody has declared; no queue has such a name."""


@shown_without("termination_message")
class ToldEvent(Struct, frozen=True):
    """An event, with what its AppWrapper chooses to be told; `started_at` is when the pods of its attempt ran.

    The gang's author writes the `termination_message`. Some targets are sent the event without it (`notify.steps`).

    `at` is by the leader's clock, `recorded_at` by the database's, from which ages are counted.
    """

    id: int
    at: datetime
    recorded_at: datetime
    uid: str
    namespace: str
    name: str
    queue: str
    cause: str
    from_phase: str
    to_phase: str
    reason: str = ""
    message: str = ""
    cluster: str = ""
    attempt: int = 0
    started_at: datetime | None = None
    notifications: str = ""
    termination_message: str = ""


class WaitingGang(Struct, frozen=True):
    """An AppWrapper that has been queued for longer than a target is to be told; why, and what to do about it."""

    uid: str
    namespace: str
    name: str
    queue: str
    since: datetime
    longer_than: timedelta
    message: str = ""
    advice: str = ""


class QueueNow(Struct, frozen=True):
    """A declared queue, `default`, or `UNDECLARED`: its queued AppWrappers, the oldest of them, and its stopPolicy."""

    queue: str
    queued: int = 0
    oldest_since: datetime | None = None
    stop_policy: str = "None"


class Alarm(Struct, frozen=True):
    """An alarm of a queue that has begun: its target was told of the begin, and not yet of the end."""

    target: str
    alarm: str
    queue: str
    began_at: datetime


class Cursor(Struct, frozen=True):
    """A target, declared `since`: the messages of all events up to `event_id` are, or were, in its outbox."""

    target: str
    event_id: int
    since: datetime


class Outgoing(Struct, frozen=True):
    """A message in the outbox, which its target has not taken yet.

    `lane` is what takes turns with others: the namespace that the message is about, or nothing for queues. The age of
    the message counts from `since`, by the database's clock. `message` is the document of `notify.messages.Message`.
    """

    target: str
    id: str
    lane: str
    since: datetime
    message: str


class Backlog(Struct, frozen=True):
    """The messages that a target has not taken yet, or the events that are not read yet; and the age of the oldest."""

    count: int = 0
    age: timedelta = timedelta()
