"""Whole lives of AppWrappers as the dispatcher's own core makes them: patterns for a history of any length.

The core and the store make the rows of each step, so generated events have the form and the size of real ones. Of a
pattern, only times, clusters and demands are replaced; `benchmarks.past` does that in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final

from dispatcher.api import conditions as words
from dispatcher.api.names import WORKLOAD_GROUP
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model import codec
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT
from dispatcher.core.model.records.record import Change, ObjectRef, Pending, Record
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.store import rows

FIRST: Final = "CLUSTER-1"
SECOND: Final = "CLUSTER-2"
"""The placeholders for the clusters of the first and the second attempt."""
AT: Final = "@"
"""The placeholder for the time of a step."""

_ISO: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)")
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
_KIND: Final = ("ray.io/v1", "RayCluster")
_REQUESTS: Final = Resources({"cpu": 4000, "memory": 2**34})
_GANG: Final = Gang(_REQUESTS * 2, 2, (PodSet(2, _REQUESTS),))
_SPEC: Final = b"{}"
_OBJECT: Final = ObjectRef(0, *_KIND, "team", "gang", "00000000-0000-4000-8000-000000000001")

Act = Callable[[Record, datetime], Change | None]


class Moment(IntEnum):
    """The moments of an AppWrapper, in order; a life that lacks a moment spends no time on it."""

    SUBMITTED = 1
    BLOCKED = 2
    DISPATCHED = 3
    CREATED = 4
    RAN = 5
    UNHEALTHY = 6
    REQUEUED = 7
    REMOVED = 8
    DISPATCHED_AGAIN = 9
    CREATED_AGAIN = 10
    RAN_AGAIN = 11
    ENDED = 12
    RELEASED = 13
    DELETED = 14


@dataclass(frozen=True, slots=True)
class Life:
    """The steps of one AppWrapper; `share` is the part of all AppWrappers with this life, in hundredths."""

    name: str
    share: int
    steps: tuple[tuple[Moment, Change], ...]

    @property
    def moments(self) -> frozenset[Moment]:
        """The moments of its steps."""
        return frozenset(moment for moment, _ in self.steps)

    @property
    def end(self) -> Record:
        """The record after the last step."""
        return self.steps[-1][1].after


# --- patterns as rows --------------------------------------------------------------------------------


def step_rows(life: Life) -> list[dict[str, Any]]:
    """Every event of a life, with the number of its moment."""
    return [
        {**each, "change": _timeless(each["change"]), "life": life.name, "moment": int(moment)}
        for moment, change in life.steps
        for each in rows.event_rows(change)
    ]


def attempt_rows(life: Life) -> list[dict[str, Any]]:
    """Every attempt of a life after its end, with numbers of moments for times."""
    last: dict[object, rows.Row] = {}
    for _, change in life.steps:
        last |= {each["number"]: each for each in rows.attempt_rows(change)}
    moments = {_time(moment): int(moment) for moment in Moment}
    return [
        {
            **{
                name: moments[value] if isinstance(value, datetime) else value for name, value in each.items()
            },
            "life": life.name,
        }
        for each in last.values()
    ]


def end_row(life: Life) -> dict[str, Any]:
    """The row of an AppWrapper at the end of a life, and the numbers of its moments in the tables."""
    queued = [moment for moment, change in life.steps if change.after.phase == "Queued"]
    ended = [each for each in life.steps if each[1].after.phase in {"Completed", "Failed", "Deleted"}]
    return {
        "life": life.name,
        "pattern": _timeless(rows.new_row(life.end)),
        "moments": sorted(map(int, life.moments)),
        "first_queued": int(queued[0]) if queued else None,
        "ended": int(ended[0][0]) if ended else None,
        "outcome": ended[0][1].after.phase.lower() if ended else "",
    }


def _timeless(value: object) -> str:
    return _ISO.sub(AT, codec.dump(value).decode())


def _time(moment: Moment) -> datetime:
    return _BEGINNING + timedelta(hours=moment)


# --- the steps ---------------------------------------------------------------------------------------


def _live(name: str, share: int, first: Change, acts: Iterable[tuple[Moment, Act]] = ()) -> Life:
    lived = [(Moment.SUBMITTED, first)]
    for moment, act in acts:
        change = act(lived[-1][1].after, _time(moment))
        assert change is not None, f"{name}: nothing happens at {moment.name}"  # noqa: S101 - a pattern of ours
        lived.append((moment, change))
    return Life(name, share, tuple(lived))


def _submission() -> Submission:
    requirements = ClusterRequirements(namespace="team", kinds=frozenset({_KIND}))
    return Submission(
        "", WORKLOAD_GROUP, "team", "gang", _time(Moment.SUBMITTED), _SPEC, "", requirements=requirements
    )


def _submitted() -> Change:
    return first_changes.submit(_submission(), _GANG, _time(Moment.SUBMITTED))


def _rejected() -> Change:
    return first_changes.reject(_submission(), "spec.resources: none", _time(Moment.SUBMITTED))


def _block(record: Record, now: datetime) -> Change | None:
    message = "cpu: needs 8, 3500m free"
    others = tuple(Rejection(each, INSUFFICIENT, message, "cpu") for each in (FIRST, SECOND))
    pending = Pending(INSUFFICIENT, message, "cpu", FIRST, others)
    return queue_changes.block(record, pending, now, is_head=True)


def _dispatch(cluster: str) -> Act:
    return lambda record, now: queue_changes.dispatch(record, cluster, now)


def _create(record: Record, now: datetime) -> Change:
    return run_changes.created(record, (_OBJECT,), now)


def _postpone(record: Record, now: datetime) -> Change:
    return run_changes.postpone_creation(record, (_OBJECT,), "exceeded quota: compute", now, now)


def _become_unhealthy(record: Record, now: datetime) -> Change:
    return run_changes.note_health_issue(record, words.MIN_PODS_NOT_RUNNING, "1 of 2 pods run", now)


def _become_unreachable(record: Record, now: datetime) -> Change:
    return run_changes.note_health_issue(
        record, words.CLUSTER_UNREACHABLE, "the cluster does not answer", now
    )


def _evict(record: Record, now: datetime) -> Change:
    reason = EvictionReason(
        words.MIN_PODS_NOT_RUNNING, "Insufficient number of Running pods, minimum=2, running=1."
    )
    return run_changes.evict(record, reason, now, 300, now)


def _fail(record: Record, now: datetime) -> Change:
    reason = EvictionReason(words.FAILED_COMPONENT, "a component failed: RayCluster gang")
    return run_changes.fail(record, reason, now)


def _abandon(record: Record, now: datetime) -> Change:
    return removal.abandon(record, "the cluster has not answered for 300 s", now)


def _complete(record: Record, now: datetime) -> Change:
    return run_changes.complete(record, (0,), now, now)


_ONCE: Final[Sequence[tuple[Moment, Act]]] = (
    (Moment.DISPATCHED, _dispatch(FIRST)),
    (Moment.CREATED, _create),
    (Moment.RAN, run_changes.mark_running),
)
_AGAIN: Final[Sequence[tuple[Moment, Act]]] = (
    (Moment.DISPATCHED_AGAIN, _dispatch(SECOND)),
    (Moment.CREATED_AGAIN, _create),
    (Moment.RAN_AGAIN, run_changes.mark_running),
)
_COMPLETED: Final = ((Moment.ENDED, _complete), (Moment.DELETED, removal.delete))
_REMOVED: Final = (Moment.REMOVED, removal.removed)
_BLOCKED: Final = (Moment.BLOCKED, _block)

LIVES: Final[Sequence[Life]] = (
    _live("prompt", 34, _submitted(), (*_ONCE, *_COMPLETED)),
    _live("completed", 36, _submitted(), (_BLOCKED, *_ONCE, *_COMPLETED)),
    _live(
        "evicted",
        7,
        _submitted(),
        (
            _BLOCKED,
            *_ONCE,
            (Moment.UNHEALTHY, _become_unhealthy),
            (Moment.REQUEUED, _evict),
            _REMOVED,
            *_AGAIN,
            *_COMPLETED,
        ),
    ),
    _live(
        "failed",
        8,
        _submitted(),
        (
            _BLOCKED,
            *_ONCE,
            (Moment.ENDED, _fail),
            (Moment.RELEASED, removal.removed),
            (Moment.DELETED, removal.delete),
        ),
    ),
    _live(
        "postponed",
        3,
        _submitted(),
        ((Moment.DISPATCHED, _dispatch(FIRST)), (Moment.CREATED, _postpone), _REMOVED, *_AGAIN, *_COMPLETED),
    ),
    _live(
        "lost",
        2,
        _submitted(),
        (
            _BLOCKED,
            *_ONCE,
            (Moment.UNHEALTHY, _become_unreachable),
            (Moment.REQUEUED, _abandon),
            *_AGAIN,
            *_COMPLETED,
        ),
    ),
    _live("given-up", 4, _submitted(), (_BLOCKED, (Moment.DELETED, removal.delete))),
    _live(
        "cancelled",
        5,
        _submitted(),
        (_BLOCKED, *_ONCE, (Moment.ENDED, removal.delete), (Moment.RELEASED, removal.release)),
    ),
    _live("rejected", 1, _rejected(), ((Moment.DELETED, removal.delete),)),
)
"""The lives of finished AppWrappers."""

WAITING: Final = _live("waiting", 100, _submitted(), (_BLOCKED,))
RUNNING: Final = _live("running", 100, _submitted(), (_BLOCKED, *_ONCE))
"""The lives of AppWrappers that wait or run now."""
