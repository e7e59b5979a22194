"""Reports circles of preemptions: a log line, a metric, and an Event on the gang whose preemption closes the circle.

Only a committed preemption makes it ask the database, once for all that were committed since the last question. A
circle that closes again for the same gang is counted again, and reported once in the time in which preemptions count.
The report is best effort: what cannot be read is not asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.reconcile.event_recorder import event_about
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.preemption import PREEMPTIONS_WITHIN
from dispatcher.core.model.record import Change, Record
from dispatcher.core.scheduling.sharing.loops import Circle, Preempted, by_victim, closed_circle
from dispatcher.core.status.events import preemption_loop
from dispatcher.kube.events import EventRecorder
from dispatcher.probes import Metrics

MOST_VICTIMS: Final = 500
"""Victims of one question; later ones are left out until it is answered."""
MOST_REPORTED: Final = 10_000
"""Circles that are remembered as reported."""

_log = log.get("preemptions")

_Reported = tuple[str, frozenset[str]]
"""The uid of a victim, and those of all gangs of its circle."""


class LoopReport:
    """Reports circles while `run` runs.

    `preemptions_from` returns the preemptions after a time of these gangs, of the gangs that they were preempted for,
    and so on; it raises `StoreError`.
    """

    def __init__(
        self,
        preemptions_from: Callable[[Collection[str], datetime], Awaitable[list[Preempted]]],
        recorder: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
    ) -> None:
        self._preemptions_from = preemptions_from
        self._recorder = recorder
        self._metrics = metrics
        self._now = now
        self._noted: dict[str, Record] = {}
        self._reported: dict[_Reported, datetime] = {}
        self._wake = asyncio.Event()

    def note(self, change: Change, record: Record) -> None:
        """Note a committed change; only a preemption matters. Never waits."""
        if change.events[-1].cause != Cause.PREEMPTED:
            return
        if len(self._noted) < MOST_VICTIMS:
            self._noted[record.uid] = record
            self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, self._noted = self._noted, {}
            try:
                await self._look(noted)
            except errors.StoreError as error:
                _log.warning("preemption_loops_not_read", preemptions=len(noted), error=str(error))
            except Exception as error:  # noqa: BLE001  # the loop's edge: a report is missing, no more
                log.internal_error("preemption-loops", error)

    async def _look(self, noted: dict[str, Record]) -> None:
        now = self._now()
        preemptions = by_victim(await self._preemptions_from(list(noted), now - PREEMPTIONS_WITHIN))
        for record in noted.values():
            preemptor = record.attempt.preempted_by if record.attempt else ""
            circle = closed_circle(record.uid, preemptor, preemptions)
            if circle:
                self._report(record, circle, now)
            await asyncio.sleep(0)

    def _report(self, record: Record, circle: Circle, now: datetime) -> None:
        self._metrics.preemption_loops.inc()
        if not self._is_news((record.uid, frozenset(each.victim for each in circle)), now):
            return
        keys = [each.key for each in circle]
        notice = preemption_loop(keys)
        _log.warning("preemption_loop", appwrapper=record.key, uid=record.uid, detail=notice.message)
        self._recorder.offer(event_about(record, notice, now))

    def _is_news(self, circle: _Reported, now: datetime) -> bool:
        """True if this leader has not reported the circle in the time in which preemptions count."""
        reported = self._reported.get(circle)
        if reported is not None and now - reported < PREEMPTIONS_WITHIN:
            return False
        self._reported.pop(circle, None)
        self._reported[circle] = now
        if len(self._reported) > MOST_REPORTED:
            del self._reported[next(iter(self._reported))]
        return True
