"""Targets, events and gangs with defaults, so that each test says only what matters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from dispatcher.core.model.notifications import Cursor, QueueNow, ToldEvent, WaitingGang
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
    """A gang that is queued since `NOW`, and chooses to be told after an hour."""
    gang = WaitingGang(
        uid=uid,
        namespace="team-a",
        name="train",
        queue="team-a",
        since=NOW,
        message="2 more nvidia.com/gpu needed",
        advice="Wait: it goes when enough is free.",
        notifications="mail=Waiting:1h",
    )
    return replace(gang, **fields)


def make_queue(queue: str = "team-a", **fields: Any) -> QueueNow:  # noqa: ANN401
    """An empty queue."""
    return replace(QueueNow(queue), **fields)


def make_cursor(**fields: Any) -> Cursor:  # noqa: ANN401
    """Nothing was told yet."""
    return replace(Cursor("mail", 0, NOW), **fields)
