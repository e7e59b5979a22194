"""What the notifier reads of the database, and how far it has told each target: values alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field

TOLD: Final = (
    *("pods-running", "completed", "found-completed"),
    *("rejected", "creation-refused", "provisioning-refused", "run-failed", "lost", "found-failed"),
    *("preempted", "evicted", "abandoned"),
)
"""The causes of events that somebody may be told of; the database has an index of these events."""


UNDECLARED: Final = "(undeclared)"
"""Stands for every queue that AppWrappers name and nobody has declared; no queue has such a name."""


class ToldEvent(Struct, frozen=True):
    """An event, with what its AppWrapper chooses to be told; `started_at` is when the pods of its attempt ran."""

    id: int
    at: datetime
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


class WaitingGang(Struct, frozen=True):
    """A queued AppWrapper, since when it is queued, why, and what to do about it."""

    uid: str
    namespace: str
    name: str
    queue: str
    since: datetime
    message: str = ""
    advice: str = ""
    notifications: str = ""


class QueueNow(Struct, frozen=True):
    """A declared queue, `default`, or `UNDECLARED`: its queued AppWrappers, the oldest of them, and its stopPolicy."""

    queue: str
    queued: int = 0
    oldest_since: datetime | None = None
    stop_policy: str = "None"


class Cursor(Struct, frozen=True):
    """How far a target was told: all events up to `event_id`, and all waits that were due up to a moment.

    Of the waits that were due at `waits_until`, those of uids up to `waits_uid` were told. `alarms` are the alarms of
    queues that were told and are not over, each with the time of its begin. `dropped` counts the messages that were
    given up.
    """

    target: str
    event_id: int
    waits_until: datetime
    waits_uid: str = ""
    alarms: Mapping[str, datetime] = field(default_factory=dict)
    dropped: int = 0
