"""Sends one target what its outbox has: lanes in turn, each in order, but for messages that are set aside (`turns`).

A message is taken out of the outbox after its target has taken it, so a crash between the two sends it again: at least
once, with the same id. While the target takes nothing, its messages stay in the outbox, until they are too old or too
many. Other targets have couriers of their own, so they are not delayed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final, Protocol

from dispatcher import log
from dispatcher.core.model import codec
from dispatcher.core.model.notifications import Outgoing
from dispatcher.notify.messages import Message
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.retry import TOO_OLD, Bounds, Failed, GiveUp, Outcome, Sent
from dispatcher.notify.senders import Sender
from dispatcher.notify.turns import Turns

AT_ONCE: Final = 50
"""Messages that are read at once."""

_log = log.get("notify")


class Outbox(Protocol):
    """What a courier reads and writes; `store.notifications` has it."""

    async def now(self) -> datetime: ...  # noqa: D102  # as in the store
    async def outgoing(  # noqa: D102
        self, target: str, resting_lanes: Collection[str], resting: Collection[str], most: int
    ) -> list[Outgoing]: ...
    async def done(self, message: Outgoing) -> None: ...  # noqa: D102


class Courier:
    """Sends one target its messages."""

    def __init__(
        self,
        target: str,
        sender: Sender,
        outbox: Outbox,
        metrics: NotifierMetrics,
        bounds: Bounds,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._sender = sender
        self._outbox = outbox
        self._metrics = metrics
        self._bounds = bounds
        self._chance = chance
        self._sleep = sleep
        self._clock = clock
        self._turns = Turns()

    async def run(self) -> None:
        """Send until cancelled. Raises `StoreError`."""
        while True:
            if not await self.send():
                await self._sleep(self._bounds.every.total_seconds())

    async def send(self) -> bool:
        """Send the next messages, until one fails; false if there is nothing to send now."""
        clock = self._clock()
        if self._turns.is_resting(clock):
            return False
        found = await self._next(clock)
        if not found and self._turns.begin_again():
            found = await self._next(clock)
        for outgoing in found:
            if not await self._deliver(outgoing):
                break
            await self._outbox.done(outgoing)
        return bool(found)

    async def _next(self, clock: float) -> list[Outgoing]:
        """The next messages of the lanes that neither rest nor had their turn."""
        lanes = self._turns.resting_lanes(clock) | self._turns.had_turn
        resting = self._turns.resting_messages(clock)
        return await self._outbox.outgoing(self._target, lanes, resting, AT_ONCE)

    async def _deliver(self, outgoing: Outgoing) -> bool:
        """Try once; true if the target has taken the message, or if it is given up."""
        now = await self._outbox.now()
        if now - outgoing.since > self._bounds.keep:
            self._give_up(outgoing, TOO_OLD, "")
            return True
        outcome = await self._try(outgoing, now)
        if isinstance(outcome, Sent):
            self._turns.took(outgoing)
            self._metrics.sent.labels(self._target).inc()
            return True
        self._metrics.failures.labels(self._target).inc()
        decided = self._turns.failed(outgoing, outcome, now, self._bounds.keep, self._clock(), self._chance())
        if isinstance(decided, GiveUp):
            self._give_up(outgoing, decided, outcome.reason)
            return True
        pause = round(decided.pause.total_seconds(), 1)
        _log.warning(
            "notification_failed",
            target=self._target,
            id=outgoing.id,
            tries=self._turns.tries(outgoing),
            error=outcome.reason,
            pause=pause,
        )
        return False

    async def _try(self, outgoing: Outgoing, now: datetime) -> Outcome:
        """Send a message; what raises is a defect, and a failure like others."""
        try:
            message = codec.load(outgoing.message.encode(), Message)
            outcome = await self._sender.send(message, now)
        except Exception as error:  # noqa: BLE001  # whatever one message raises must not keep others from being sent
            self._metrics.errors.inc()
            _log.exception("notification_error", target=self._target, id=outgoing.id)
            return Failed(f"an unexpected error: {type(error).__name__}")
        if isinstance(outcome, Sent):
            _log.info("notification_sent", target=self._target, id=message.id, kind=message.kind)
        return outcome

    def _give_up(self, outgoing: Outgoing, why: GiveUp, error: str) -> None:
        self._metrics.dropped.labels(self._target, why.reason).inc()
        _log.error(
            "notification_dropped", target=self._target, id=outgoing.id, reason=why.reason, error=error
        )
