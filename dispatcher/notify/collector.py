"""Fills the outboxes of all targets: with events in the order of the commits, long waits, and alarms of queues.

It waits for no target, so what a target does not take delays neither others nor the looks at waits and alarms, which
are due by the clock. The cursors move in the statement that puts messages in the outbox, a few hundred at a time: the
work grows with events times targets, and no statement does. What is no message for a target needs no place there. An
event, wait or alarm that raises is a defect: it is logged, counted and passed over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final, Protocol

from msgspec.structs import replace

from dispatcher import log
from dispatcher.core.model import codec
from dispatcher.core.model.notifications import (
    Alarm,
    Backlog,
    Cursor,
    Outgoing,
    QueueNow,
    ToldEvent,
    WaitingGang,
)
from dispatcher.errors import StoreError
from dispatcher.notify import messages
from dispatcher.notify.messages import Message
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.retry import Bounds
from dispatcher.notify.steps import Closed, alarm_steps, closed_choices, message_about
from dispatcher.notify.targets import Names, Target

AT_ONCE: Final = 200
"""Events, or waits, that are read at once."""
MOST_MESSAGES: Final = 500
"""Messages about events that one statement puts in the outbox, whatever the number of targets is.

They are about a megabyte, and far from the time that a statement may take: one that timed out would be repeated.
"""
LOOK_SECONDS: Final = 30.0
"""Time between two looks at waiting gangs and at queues."""
PRUNE_SECONDS: Final = 600.0
"""Time between two looks for what is kept in vain."""
MOST_CLOSED: Final = 1000
"""Choices of closed targets that are remembered, so that each is logged once."""
OF_QUEUES: Final = ""
"""The lane of messages about queues; no namespace has that name."""

_log = log.get("notify")


class Records(Protocol):
    """What the collector reads and writes; `store.notifications` has it."""

    async def now(self) -> datetime: ...  # noqa: D102  # as in the store
    async def begin(self, targets: Sequence[str]) -> list[Cursor]: ...  # noqa: D102
    async def events(self, after: int, most: int) -> list[ToldEvent]: ...  # noqa: D102
    async def take_in(  # noqa: D102
        self, targets: Sequence[str], event_id: int, messages: Sequence[Outgoing]
    ) -> None: ...
    async def waits(  # noqa: D102
        self,
        cursor: Cursor,
        open_to: Sequence[str],
        subscribed: Sequence[str],
        longer_than: timedelta | None,
        most: int,
    ) -> list[WaitingGang]: ...
    async def note_waits(  # noqa: D102
        self, target: str, waits: Sequence[WaitingGang], messages: Sequence[Outgoing]
    ) -> None: ...
    async def queues(self) -> list[QueueNow]: ...  # noqa: D102
    async def alarms(self, target: str) -> list[Alarm]: ...  # noqa: D102
    async def begin_alarm(self, alarm: Alarm, message: Outgoing) -> None: ...  # noqa: D102
    async def end_alarm(self, alarm: Alarm, message: Outgoing) -> None: ...  # noqa: D102
    async def backlogs(self) -> dict[str, Backlog]: ...  # noqa: D102
    async def unread(self, after: int, most: int) -> Backlog: ...  # noqa: D102
    async def trim(self, target: str, beyond: int) -> int: ...  # noqa: D102
    async def prune(self, targets: Sequence[str], keep: timedelta) -> None: ...  # noqa: D102


class Collector:
    """Fills the outboxes of the declared targets."""

    def __init__(
        self,
        targets: Sequence[Target],
        records: Records,
        metrics: NotifierMetrics,
        bounds: Bounds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._targets = targets
        self._names = [target.name for target in targets]
        self._records = records
        self._metrics = metrics
        self._bounds = bounds
        self._sleep = sleep
        self._clock = clock
        self._cursors: dict[str, Cursor] = {}
        self._look_at = self._prune_at = clock()
        self._closed: set[Closed] = set()

    async def run(self) -> None:
        """Collect until cancelled. Raises `StoreError`."""
        while True:
            if not await self.collect():
                await self._sleep(self._bounds.every.total_seconds())

    async def collect(self) -> bool:
        """Look once at the next events, and at all else that is due; true if there is more to read at once."""
        if not self._cursors:
            self._cursors = {each.target: each for each in await self._records.begin(self._names)}
            await self._bound()  # what follows may fail each time, and nothing else would show it
        has_more = await self._take_in()
        clock = self._clock()
        if clock >= self._look_at:
            waits_are_left = await self._look()
            self._look_at = clock if waits_are_left else clock + LOOK_SECONDS
            has_more = has_more or waits_are_left
        if clock >= self._prune_at:
            await self._records.prune(self._names, self._bounds.keep)
            self._prune_at = clock + PRUNE_SECONDS
        await self._bound()
        return has_more

    async def _take_in(self) -> bool:
        """Take in the next events, so many for each place where cursors are; true if there may be more of them.

        All cursors are at one place, but for those of targets that were not declared for a while.
        """
        places = sorted({cursor.event_id for cursor in self._cursors.values()})
        return any([await self._take_in_from(place, place == places[-1]) for place in places])

    async def _take_in_from(self, event_id: int, is_newest: bool) -> bool:
        targets = [each for each in self._targets if self._cursors[each.name].event_id == event_id]
        events = await self._records.events(event_id, AT_ONCE)
        if not events:
            return False
        names = [target.name for target in targets]
        for part, found in self._in_parts(targets, events):
            await self._records.take_in(names, part[-1].id, found)
            for name in names:
                self._cursors[name] = replace(self._cursors[name], event_id=part[-1].id)
            if is_newest:
                self._note_closed(part)
        return len(events) == AT_ONCE

    def _in_parts(
        self, targets: Sequence[Target], events: Sequence[ToldEvent]
    ) -> Iterator[tuple[list[ToldEvent], list[Outgoing]]]:
        """The events in order and in parts, each with its messages: at most `MOST_MESSAGES`, or those of one event."""
        part, found = list[ToldEvent](), list[Outgoing]()
        for event in events:
            about = [each for target in targets for each in self._about(target, event)]
            if part and len(found) + len(about) > MOST_MESSAGES:
                yield part, found
                part, found = [], []
            part.append(event)
            found += about
        yield part, found

    def _about(self, target: Target, event: ToldEvent) -> Iterator[Outgoing]:
        """The message about an event, if the target is told of it."""
        with self._passing_over(target=target.name, event_id=event.id):
            message = message_about(target, event)
            if message is not None:
                yield _outgoing(target, message, event.namespace, event.recorded_at)

    async def _look(self) -> bool:
        """Look at waiting gangs and at queues; true if not all waits were read."""
        has_more, queues = False, await self._records.queues()
        for target in self._targets:
            has_more |= await self._look_at_waits(target)
            await self._look_at_queues(target, queues)
        return has_more

    async def _look_at_waits(self, target: Target) -> bool:
        subscription = target.subscription
        longer_than = subscription.longer_than if subscription else None
        if not target.namespaces.patterns and longer_than is None:
            return False  # nobody may choose it, and it is not subscribed
        waits = await self._records.waits(
            self._cursors[target.name],
            target.namespaces.patterns,
            (subscription.namespaces if subscription else Names()).patterns,
            longer_than,
            AT_ONCE,
        )
        now, found = await self._records.now(), list[Outgoing]()
        for gang in waits:
            with self._passing_over(target=target.name, appwrapper=gang.uid):
                found.append(_outgoing(target, messages.of_wait(gang), gang.namespace, now))
        if waits:
            await self._records.note_waits(target.name, waits, found)
        return len(waits) == AT_ONCE

    async def _look_at_queues(self, target: Target, queues: Sequence[QueueNow]) -> None:
        told, now = await self._records.alarms(target.name), await self._records.now()
        with self._passing_over(target=target.name):
            for step in alarm_steps(target, told, queues, now):
                message = _outgoing(target, step.message, OF_QUEUES, now)
                if step.is_over:
                    await self._records.end_alarm(step.alarm, message)
                else:
                    await self._records.begin_alarm(step.alarm, message)

    async def _bound(self) -> None:
        """Show how far each target is behind, and drop what is beyond the bound."""
        backlogs, most = await self._records.backlogs(), self._bounds.most_behind
        places = {cursor.event_id for cursor in self._cursors.values()}
        unread = {place: await self._records.unread(place, most) for place in places}
        for name in self._names:
            backlog, later = backlogs.get(name, Backlog()), unread[self._cursors[name].event_id]
            self._metrics.behind.labels(name).set(min(backlog.count, most) + later.count)
            self._metrics.lag.labels(name).set(max(backlog.age, later.age).total_seconds())
            if backlog.count > most:
                lost = await self._records.trim(name, backlog.count - most)
                self._metrics.dropped.labels(name, "backlog").inc(lost)
                _log.error("notifications_skipped", target=name, messages=lost)

    def _note_closed(self, events: Iterable[ToldEvent]) -> None:
        """Count choices of targets that are closed or not declared, and log each once."""
        for each in (each for event in events for each in closed_choices(self._targets, event)):
            self._metrics.closed.inc()
            if each not in self._closed:
                if len(self._closed) >= MOST_CLOSED:
                    self._closed.clear()
                self._closed.add(each)
                _log.warning(
                    "target_closed", target=each.target, namespace=each.namespace, appwrapper=each.name
                )

    @contextmanager
    def _passing_over(self, **what: object) -> Iterator[None]:
        """Log and count what the block raises, but for errors of the database."""
        try:
            yield
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # whatever one message raises must not keep all others from being sent
            self._metrics.errors.inc()
            _log.exception("notification_error", **what)


def _outgoing(target: Target, message: Message, lane: str, since: datetime) -> Outgoing:
    return Outgoing(target.name, message.id, lane, since, codec.dump(message).decode())
