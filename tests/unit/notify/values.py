"""Targets, events and gangs with defaults, so that each test says only what matters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from dispatcher.core.model.notifications import Alarm, Outgoing, QueueNow, ToldEvent, WaitingGang
from dispatcher.notify.targets import Names, Target, Webhook

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
EVERYWHERE = Names(("*",))


def at(seconds: float) -> datetime:
    """So many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def make_target(name: str = "mail", **fields: Any) -> Target:  # noqa: ANN401
    """A webhook that is open to every namespace."""
    target = Target(name, Webhook("https://hooks.example/in", "a-key-of-16-bytes"), EVERYWHERE)
    return replace(target, **fields)


def make_event(number: int = 1, cause: str = "completed", **fields: Any) -> ToldEvent:  # noqa: ANN401
    """An event of team-a/train, which chooses all of `mail`."""
    event = ToldEvent(
        id=number,
        at=NOW,
        recorded_at=NOW,
        uid="uid-1",
        namespace="team-a",
        name="train",
        queue="team-a",
        cause=cause,
        from_phase="Running",
        to_phase="Completed",
        cluster="west",
        attempt=1,
        notifications="mail=All",
    )
    return replace(event, **fields)


def make_waiting(uid: str = "uid-1", **fields: Any) -> WaitingGang:  # noqa: ANN401
    """A gang that is queued since `NOW`, of which a target is to be told after an hour."""
    gang = WaitingGang(
        uid=uid,
        namespace="team-a",
        name="train",
        queue="team-a",
        since=NOW,
        longer_than=timedelta(hours=1),
        message="2 more nvidia.com/gpu needed",
        advice="Wait: it goes when enough is free.",
    )
    return replace(gang, **fields)


def make_queue(queue: str = "team-a", **fields: Any) -> QueueNow:  # noqa: ANN401
    """An empty queue."""
    return replace(QueueNow(queue), **fields)


def make_alarm(alarm: str = "queued-more", queue: str = "team-a", **fields: Any) -> Alarm:  # noqa: ANN401
    """An alarm that `mail` was told of at `NOW`."""
    return replace(Alarm("mail", alarm, queue, NOW), **fields)


def make_outgoing(id_: str = "1", lane: str = "team-a", **fields: Any) -> Outgoing:  # noqa: ANN401
    """A message for `mail`, due at `NOW`."""
    return replace(Outgoing("mail", id_, lane, NOW, "{}"), **fields)
