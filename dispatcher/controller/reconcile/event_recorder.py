"""Records every committed step: a log line, metrics, and for some steps an Event on the AppWrapper."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from dispatcher import log
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.record import Change, Record
from dispatcher.core.status.events import UserEvent, user_event_of, warnings_event_of
from dispatcher.kube.events import EventAbout, EventRecorder
from dispatcher.probes import Metrics

_log = log.get("lifecycle")

_ANSWERS: Final = {
    Cause.PROVISIONED: "provisioned",
    Cause.PROVISIONING_FAILED: "failed",
    Cause.PROVISIONING_REFUSED: "failed",
}
"""The label of the metric about requests for capacity, by the step that an answer leads to."""


class StepRecorder:
    """Called once for each change, after its commit; never waits."""

    def __init__(self, metrics: Metrics, recorder: EventRecorder) -> None:
        self._metrics = metrics
        self._recorder = recorder

    def announce(self, change: Change, record: Record) -> None:
        """Record one step; `record` is as committed."""
        self._count(change, record)
        self._write_log(change, record)
        for notice in filter(None, (user_event_of(change), warnings_event_of(change))):
            self._recorder.offer(event_about(record, notice, change.events[-1].at))

    def _count(self, change: Change, record: Record) -> None:
        event = change.events[-1]
        if event.cause == Cause.DISPATCHED:
            self._metrics.wait_seconds.observe(_seconds(event.at - record.created_at))
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
        group=record.group,
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
