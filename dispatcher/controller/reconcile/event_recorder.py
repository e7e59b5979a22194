"""Records every committed step: a log line, metrics, and for some steps an Event on the AppWrapper.

Steps of growth have an Event on the wrapped objects that grow as well, in the cluster where they are.

`LoopReport` reports circles of preemptions: a log line, a metric, and an Event on the gang whose preemption closes the
circle. Only a committed preemption makes it ask the database, once for all that were committed since the last question.
A circle that closes again for the same gang is counted again, and reported once in the time in which preemptions count.
The report is best effort: what cannot be read is not asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.kinds.pods.pod_rules import can_grow
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.preemption import PREEMPTIONS_WITHIN
from dispatcher.core.model.records.record import Change, ObjectRef, Record
from dispatcher.core.scheduling.preemption.loops import Circle, Preempted, by_victim, closed_circle
from dispatcher.core.status.events import (
    ABOUT_GROWTH,
    UserEvent,
    preemption_loop,
    rest_of_growth_event_of,
    user_event_of,
    warnings_event_of,
)
from dispatcher.kube.objects.events import EventAbout, EventRecorder
from dispatcher.probes import Metrics

_log = log.get("lifecycle")

MOST_TOLD: Final = 3
"""Wrapped objects of one AppWrapper that have an Event about growth."""

_ANSWERS: Final = {
    Cause.PROVISIONED: "provisioned",
    Cause.PROVISIONING_FAILED: "failed",
    Cause.PROVISIONING_REFUSED: "failed",
}
"""The label of the metric about requests for capacity, by the step that an answer leads to."""


class StepRecorder:
    """Called once for each change, after its commit; never waits.

    `recorder` writes to the hub. `recorder_in` gives what writes to the cluster of a name, None if it is not connected.
    """

    def __init__(
        self,
        metrics: Metrics,
        recorder: EventRecorder,
        recorder_in: Callable[[str], EventRecorder | None],
        kinds: Kinds = BUILT_IN,
    ) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._recorder_in = recorder_in
        self._kinds = kinds

    def announce(self, change: Change, record: Record) -> None:
        """Record one step; `record` is as committed."""
        self._count(change, record)
        self._write_log(change, record)
        for event_of in (user_event_of, warnings_event_of, rest_of_growth_event_of):
            notice = event_of(change)
            if notice is None:
                continue
            self._recorder.offer(event_about(record, notice, change.events[-1].at))
            if notice.reason in ABOUT_GROWTH:
                self._tell_wrapped_objects(record, notice, change.events[-1].at)

    def _tell_wrapped_objects(self, record: Record, notice: UserEvent, at: datetime) -> None:
        """Offer the Event about the objects that can grow to their cluster; none if that is not connected."""
        attempt = record.attempt
        recorder = self._recorder_in(attempt.cluster) if attempt else None
        if attempt is None or recorder is None:
            return
        growing = [each for each in attempt.objects if each.uid and self._can_grow(each)]
        for each in growing[:MOST_TOLD]:
            about = event_about(record, notice, at)
            recorder.offer(
                replace(
                    about,
                    api_version=each.api_version,
                    kind=each.kind,
                    namespace=each.namespace,
                    name=each.name,
                    uid=each.uid,
                )
            )

    def _can_grow(self, ref: ObjectRef) -> bool:
        pods = self._kinds.row(ref.api_version.rpartition("/")[0], ref.kind).pods
        return pods is not None and can_grow(pods)

    def _count(self, change: Change, record: Record) -> None:
        event = change.events[-1]
        if event.cause == Cause.DISPATCHED:
            self._metrics.wait_seconds.observe(_seconds(event.at - record.age_begins_at))
        elif event.cause == Cause.CREATED and record.attempt:
            self._metrics.dispatch_seconds.observe(_seconds(event.at - record.attempt.began_at))
        elif event.cause in _ANSWERS and record.attempt:
            answered = self._metrics.provisioning_seconds.labels(_ANSWERS[Cause(event.cause)])
            answered.observe(_seconds(event.at - record.attempt.decided_at))
        elif event.cause == Cause.PREEMPTED:
            self._metrics.preemptions.labels(event.reason).inc()

    def _write_log(self, change: Change, record: Record) -> None:
        event = change.events[-1]
        fields = {"reason": event.reason, "detail": event.message, "cluster": event.cluster}
        _log.info(
            event.cause,
            appwrapper=record.key,
            uid=record.uid,
            phase=event.to_phase.value,
            **{key: value for key, value in fields.items() if value},
        )


def event_about(record: Record, notice: UserEvent, at: datetime) -> EventAbout:
    """The Event on the AppWrapper of a record."""
    return EventAbout(
        api_version=f"{record.group}/{names.APPWRAPPER_VERSION}",
        kind=names.APPWRAPPER_KIND,
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        reason=notice.reason,
        message=notice.message,
        warning=notice.warning,
        at=at,
    )


def _seconds(duration: timedelta) -> float:
    return max(0.0, duration.total_seconds())


MOST_VICTIMS: Final = 500
"""Victims of one question; later ones are left out until it is answered."""
MOST_REPORTED: Final = 10_000
"""Circles that are remembered as reported."""


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
