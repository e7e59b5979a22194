"""Records every committed step: a log line, metrics, and for some steps an Event on the AppWrapper.

Steps of growth have an Event on the wrapped objects that grow as well, in the cluster where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher import log
from dispatcher.api import names
from dispatcher.core.kinds.pod_rules import can_grow
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.record import Change, ObjectRef, Record
from dispatcher.core.status.events import (
    ABOUT_GROWTH,
    UserEvent,
    rest_of_growth_event_of,
    user_event_of,
    warnings_event_of,
)
from dispatcher.kube.events import EventAbout, EventRecorder
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
