"""An AppWrapper as the hub has it: the parts of its status that the commands show without a database.

The pending queue from statuses has the columns that `queue` shows of the database, so both sources are shown alike. A
status does not have all of them: the others are None. One more column says whether the position is rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.core.model.clock import time_in
from dispatcher.core.model.records.pending_reasons import IN_NO_QUEUE
from dispatcher.core.model.records.record import Phase
from dispatcher.core.status.phases import phase_in
from dispatcher.store.readers.reports import Filter, Report
from dispatcher.text import name_of, text_of

Json = dict[str, Any]

OUTSIDE: Final = "outside the queue"
"""Shown as the state of an AppWrapper that was seen and has no record, because its namespace has too many."""
COLUMNS: Final = (
    "queue",
    "position",
    "namespace",
    "name",
    "uid",
    "priority",
    "effective_priority",
    "created_at",
    "waited",
    "demand",
    "pods",
    "reason",
    "message",
    "eligible_at",
    "user_name",
    "submitted_at",
    "waited_s",
    "cpu",
    "memory_gib",
    "gpu",
    "advice",
    "blocking_clusters",
    "estimated_start",
    "estimate_unknown",
)
MORE_COLUMNS: Final = ("is_position_rounded",)


class AppWrapperStatus(Struct, frozen=True):
    """An AppWrapper as it was read at a moment."""

    appwrapper: Json
    now: datetime

    @property
    def metadata(self) -> Json:
        """Its metadata."""
        found: Json = self.appwrapper["metadata"]
        return found

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.metadata['namespace']}/{self.metadata['name']}"

    @property
    def status(self) -> Json:
        """Its status; empty before a dispatcher has seen it."""
        return self.appwrapper.get("status") or {}

    @property
    def waiting(self) -> Json:
        """Its pending reason and outlook; empty if it waits for nothing."""
        return self.status.get("waiting") or {}

    @property
    def phase(self) -> Phase | None:
        """Its phase; None if it has no record."""
        return Phase.DELETING if self.metadata.get("deletionTimestamp") else phase_in(self.status)

    @property
    def is_queued(self) -> bool:
        """True if it is in the queue."""
        return self.phase is Phase.QUEUED

    @property
    def conditions(self) -> list[Json]:
        """The conditions of its status."""
        return self.status.get("conditions") or []

    @property
    def failure(self) -> Json:
        """The condition that says why it has failed; empty if it has not."""
        if self.phase is not Phase.FAILED:
            return {}
        return next((each for each in self.conditions if each.get("type") == "Failed"), {})


def pending_report(appwrappers: Iterable[Json], of: Filter, now: datetime) -> Report:
    """The queued AppWrappers of a user and a queue, by queue and position; those that no queue takes come last."""
    rows = [
        pending_row(each, now) for each in appwrappers if phase_in(each.get("status") or {}) is Phase.QUEUED
    ]
    wanted = [row for row in rows if of.user in ("", row["user_name"]) and of.queue in ("", row["queue"])]
    columns = (*COLUMNS, *MORE_COLUMNS)
    ordered = sorted(wanted, key=_rank)
    return Report(columns, tuple(tuple(row.get(column) for column in columns) for row in ordered), at=now)


def pending_row(appwrapper: Json, now: datetime) -> dict[str, Any]:
    """A queued AppWrapper by column; a column that its status does not have is absent or None."""
    metadata, status = appwrapper["metadata"], appwrapper["status"]
    waiting = status.get("waiting") or {}
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    position, start = _number(waiting.get("position")), time_in(waiting.get("estimatedStart"))
    return {
        "queue": name_of(status.get("queue")) or None,
        "position": position,
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "priority": _number(status.get("systempriority")),
        "created_at": created,
        "waited": now - created,
        "reason": name_of(waiting.get("reason")) or None,
        "message": text_of(waiting.get("message")) or None,
        "user_name": text_of(status.get("user")) or metadata["namespace"],
        "submitted_at": created,
        "waited_s": (now - created).total_seconds(),
        "gpu": _number(status.get("gpus", 0)),
        "blocking_clusters": _blocking_clusters(waiting),
        "is_position_rounded": position is not None and "queueLength" not in waiting,
        "estimated_start": start,
        "estimate_unknown": text_of(waiting.get("estimateUnknown")) or None,
    }


def outside(appwrappers: Iterable[Json]) -> int:
    """How many AppWrappers are not in the queue yet: no dispatcher has seen them, or their namespace has too many."""
    return sum(1 for each in appwrappers if phase_in(each.get("status") or {}) is None)


def _rank(row: Mapping[str, Any]) -> tuple[object, ...]:
    position = row["position"]
    return (
        row["reason"] in IN_NO_QUEUE,
        row["queue"] or "",
        position is None,
        position or 0,
        row["is_position_rounded"],
        -(row["priority"] or 0),
        row["created_at"],
        row["uid"],
    )


def _blocking_clusters(waiting: Json) -> dict[str, int] | None:
    """The number of clusters by the reason why each does not take it; None if no cluster is the reason."""
    clusters = waiting.get("clusters") or ()
    reasons = Counter(name_of(each.get("reason")) for each in clusters)
    if not reasons and waiting.get("cluster"):
        reasons[name_of(waiting.get("reason"))] = 1
    return dict(sorted(reasons.items())) or None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
