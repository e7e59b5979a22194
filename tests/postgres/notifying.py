"""The notifier in parts, with a clock and a target that a test sets: what it collects, and what it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.notifications import Outgoing
from dispatcher.core.model.records.record import Record
from dispatcher.notify.collector import Collector
from dispatcher.notify.courier import Courier
from dispatcher.notify.messages import Message
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.retry import Bounds, Outcome, Sent
from dispatcher.notify.targets import Target
from dispatcher.store.notifications import NotifierStore
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import LATER, committed, make_created, make_dispatch, make_submit
from tests.unit.notify.values import make_target

FOR_LONG: Final = Bounds(keep=timedelta(days=3650), every=timedelta(milliseconds=50))
"""Bounds by which no message of a test is too old."""
DAY: Final = timedelta(days=1)


async def begin(queue: QueueStore, name: str, notifications: str = "mail=All", **fields: Any) -> Record:  # noqa: ANN401
    """An AppWrapper whose objects were created."""
    record = await committed(queue, make_submit(name, notifications=notifications, **fields))
    record = await committed(queue, make_dispatch(record))
    return await committed(queue, make_created(record))


async def run(queue: QueueStore, name: str, notifications: str = "mail=All", **fields: Any) -> Record:  # noqa: ANN401
    """An AppWrapper whose pods run: one event to tell of."""
    record = await begin(queue, name, notifications, **fields)
    return await committed(queue, run_changes.mark_running(record, LATER))


async def complete(queue: QueueStore, record: Record) -> Record:
    return await committed(queue, run_changes.complete(record, (0,), LATER + DAY, LATER))


class Scripted:
    """A target that answers as a test says, and keeps what it was sent; at last it takes everything."""

    def __init__(self, *answers: Outcome, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.sent: list[Message] = []
        self._answers = list(answers)
        self._before = before

    async def send(self, message: Message, _now: datetime) -> Outcome:
        """Take one message."""
        self.sent.append(message)
        if self._before is not None:
            await self._before()
        return self._answers.pop(0) if self._answers else Sent()

    @property
    def told(self) -> list[str]:
        """What was told of whom."""
        return [
            f"{message.facts.get('event', message.kind)} {message.about.rpartition('/')[2]}"
            for message in self.sent
        ]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Parts:
    """What a notifier does for its targets, of which one, the first, has a courier."""

    store: NotifierStore
    sender: Scripted = field(default_factory=Scripted)
    targets: tuple[Target, ...] = (make_target(),)
    bounds: Bounds = FOR_LONG
    clock: Clock = field(default_factory=Clock)
    metrics: NotifierMetrics = field(default_factory=NotifierMetrics)

    def __post_init__(self) -> None:
        self.collector = Collector(self.targets, self.store, self.metrics, self.bounds, clock=self.clock)
        self.courier = Courier(
            self.targets[0].name,
            self.sender,
            self.store,
            self.metrics,
            self.bounds,
            chance=lambda: 1.0,
            clock=self.clock,
        )

    async def collect(self) -> None:
        """Read all that is to be read now."""
        while await self.collector.collect():
            pass

    async def send(self, seconds: int = 0) -> list[str]:
        """Send all that is due within so many seconds, in steps of five; returns all that was told."""
        until = self.clock.seconds + seconds
        while await self.courier.send() or self.clock.seconds < until:
            if self.clock.seconds < until:
                self.clock.seconds += 5
        return self.sender.told

    async def outbox(self) -> list[Outgoing]:
        """What the first target has not taken, in turn."""
        return await self.store.outgoing(self.targets[0].name, [], [], 1000)

    def dropped(self, reason: str) -> float:
        """How many messages were dropped for that reason."""
        value: float = self.metrics.dropped.labels(self.targets[0].name, reason)._value.get()  # noqa: SLF001  # it has no reader
        return value


def gauge(metrics: NotifierMetrics, name: str, target: str = "mail") -> float | None:
    """The value of a gauge of a target; None if it has none."""
    return metrics.registry.get_sample_value(f"dispatcher_notify_{name}", {"target": target})
