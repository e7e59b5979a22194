"""Tells one target what happens, message by message in the order of the events, with a cursor of its own.

The cursor is written after the target has taken a message, so a crash between the two sends that message again: at
least once, with the same id. While the target takes nothing, its events stay in the database, and the oldest are
dropped beyond a bound of age and number. Other targets have couriers of their own, so they are not delayed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import log
from dispatcher.core.model.notifications import Cursor, QueueNow, ToldEvent, WaitingGang
from dispatcher.notify.messages import Message
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.retry import TOO_OLD, GiveUp, Sent, after_failure
from dispatcher.notify.senders import Sender
from dispatcher.notify.steps import Closed, Step, alarm_steps, began, closed_choices, event_steps, wait_steps
from dispatcher.notify.targets import Target

AT_ONCE: Final = 200
"""Events that are read at once."""
WAITS_EVERY: Final = timedelta(seconds=30)
"""Time between two looks at waiting gangs and at queues."""
MOST_CLOSED: Final = 1000
"""Choices of closed targets that are remembered, so that each is logged once."""

_log = log.get("notify")


class Bounds(Struct, frozen=True):
    """How long a message is kept, how many events a target may be behind, and the time between two looks."""

    keep: timedelta = timedelta(hours=24)
    most_behind: int = 10_000
    every: timedelta = timedelta(seconds=2)


class Records(Protocol):
    """What a courier reads and writes; `store.notifications` has it."""

    async def now(self) -> datetime: ...  # noqa: D102  # as in the store
    async def cursor(self, target: str) -> Cursor: ...  # noqa: D102
    async def save(self, cursor: Cursor) -> None: ...  # noqa: D102
    async def events(self, after: int, most: int) -> list[ToldEvent]: ...  # noqa: D102
    async def behind(self, after: int, most: int) -> tuple[int, datetime | None]: ...  # noqa: D102
    async def waiting(self, target: str, own: timedelta | None) -> list[WaitingGang]: ...  # noqa: D102
    async def queues(self) -> list[QueueNow]: ...  # noqa: D102


class Courier:
    """Tells one target. One courier of a process gets all targets as `check`, and notes choices of none of them."""

    def __init__(
        self,
        target: Target,
        sender: Sender,
        records: Records,
        metrics: NotifierMetrics,
        bounds: Bounds,
        check: Sequence[Target] = (),
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._target = target
        self._sender = sender
        self._records = records
        self._metrics = metrics
        self._bounds = bounds
        self._check = check
        self._chance = chance
        self._sleep = sleep
        self._closed: set[Closed] = set()
        self._began: dict[str, datetime] = {}
        """When each alarm that rings was first seen, by key."""
        self._tries: tuple[str, int] = ("", 0)
        """The id of the message that was not sent yet, and the number of tries."""

    async def run(self) -> None:
        """Tell until cancelled. Raises `StoreError`."""
        cursor, looked_at = await self._records.cursor(self._target.name), None
        while True:
            now = await self._records.now()
            cursor = await self._trim(cursor, now)
            steps = await self._event_steps(cursor)
            if not steps and (looked_at is None or not timedelta() <= now - looked_at < WAITS_EVERY):
                steps = await self._other_steps(cursor, now)
                looked_at = None if steps else now
            cursor, pause = await self._carry_out(cursor, steps)
            if not steps or pause:
                await self._sleep((pause or self._bounds.every).total_seconds())

    async def _event_steps(self, cursor: Cursor) -> list[Step]:
        events = await self._records.events(cursor.event_id, AT_ONCE)
        if self._check:
            self._note_closed(closed_choices(self._check, events))
        return event_steps(self._target, cursor, events)

    async def _other_steps(self, cursor: Cursor, now: datetime) -> list[Step]:
        """The steps for gangs that wait for too long; without any, those for queues that need a look."""
        subscription = self._target.subscription
        own = subscription.longer_than if subscription else None
        waiting = await self._records.waiting(self._target.name, own)
        if steps := wait_steps(self._target, cursor, waiting, now):
            return steps
        if self._target.alarms is None and not cursor.alarms:
            return []
        queues = await self._records.queues()
        self._began = began(self._target, queues, now, self._began)
        return alarm_steps(self._target, cursor, queues, now, self._began)

    async def _carry_out(self, cursor: Cursor, steps: Iterable[Step]) -> tuple[Cursor, timedelta | None]:
        """Send the messages of the steps, and write the cursor after each; at a failure, the pause before the next try.

        A step whose message is given up counts as done.
        """
        dropped = cursor.dropped
        for step in steps:
            if step.message is not None:
                failed = await self._send(step.message)
                if isinstance(failed, timedelta):
                    return cursor, failed
                dropped += failed is not None
            cursor = replace(step.cursor, dropped=dropped)
            await self._records.save(cursor)
        return cursor, None

    async def _send(self, message: Message) -> timedelta | GiveUp | None:
        """Try once; None if the target has taken the message, else the pause before the next try, or the end of it."""
        name, now = self._target.name, await self._records.now()
        if now - message.at > self._bounds.keep:
            return self._give_up(message, TOO_OLD, "")
        outcome = await self._sender.send(message, now)
        if isinstance(outcome, Sent):
            self._metrics.sent.labels(name).inc()
            self._tries = ("", 0)
            _log.info("notification_sent", target=name, id=message.id, kind=message.kind)
            return None
        tries = self._tries[1] + 1 if self._tries[0] == message.id else 1
        self._tries = (message.id, tries)
        self._metrics.failures.labels(name).inc()
        decided = after_failure(outcome, tries, message.at, now, self._bounds.keep, self._chance())
        if isinstance(decided, GiveUp):
            return self._give_up(message, decided, outcome.reason)
        pause = round(decided.pause.total_seconds(), 1)
        _log.warning(
            "notification_failed", target=name, id=message.id, tries=tries, error=outcome.reason, pause=pause
        )
        return decided.pause

    def _give_up(self, message: Message, why: GiveUp, error: str) -> GiveUp:
        name = self._target.name
        self._metrics.dropped.labels(name, why.reason).inc()
        _log.error("notification_dropped", target=name, id=message.id, reason=why.reason, error=error)
        return why

    async def _trim(self, cursor: Cursor, now: datetime) -> Cursor:
        """Skip the oldest events beyond the bound; the messages among them are counted as dropped."""
        name, most = self._target.name, self._bounds.most_behind
        while True:
            behind, oldest = await self._records.behind(cursor.event_id, most + AT_ONCE)
            self._metrics.behind.labels(name).set(behind)
            lag = (now - oldest).total_seconds() if oldest else 0.0
            self._metrics.lag.labels(name).set(max(0.0, lag))
            beyond = behind - most
            events = await self._records.events(cursor.event_id, beyond) if beyond > 0 else []
            if not events:
                return cursor
            steps = event_steps(self._target, cursor, events)
            lost = sum(step.message is not None for step in steps)
            cursor = replace(steps[-1].cursor, dropped=cursor.dropped + lost)
            await self._records.save(cursor)
            self._metrics.dropped.labels(name, "backlog").inc(lost)
            _log.error("notifications_skipped", target=name, events=len(events), messages=lost)

    def _note_closed(self, found: Iterable[Closed]) -> None:
        """Count choices of targets that are closed or not declared, and log each once."""
        for each in found:
            self._metrics.closed.inc()
            if each not in self._closed:
                if len(self._closed) >= MOST_CLOSED:
                    self._closed.clear()
                self._closed.add(each)
                _log.warning(
                    "target_closed", target=each.target, namespace=each.namespace, appwrapper=each.name
                )
