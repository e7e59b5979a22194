"""The pages as values, from what a reading has seen: the templates only write them down.

Every name, message and label here may be a tenant's. Values are plain text; the templates escape all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.cli.screens.appwrapper_status import AppWrapperStatus, outside, pending_report
from dispatcher.cli.screens.explanation import Document, estimate_of, of_status
from dispatcher.cli.screens.status_description import StatusDescription
from dispatcher.cli.screens.tables import age
from dispatcher.store.readers.reports import Filter
from dispatcher.text import text_of
from dispatcher.web.reading import Seen

PENDING: Final = frozenset({None, "Queued"})
"""Phases of an AppWrapper that waits, or that no dispatcher has seen."""
MOST_ROWS: Final = 1000
"""Rows of the queue that one page has; a search finds the others."""


class QueueRow(Struct, frozen=True):
    """A pending AppWrapper: its place, what it asks for, and why it waits."""

    namespace: str
    name: str
    queue: str
    position: str
    ahead: str
    gpus: str
    user: str
    waited: str
    reason: str
    message: str
    repair: str
    start: str


class QueuePage(Struct, frozen=True):
    """The pending queue; `of_all` counts the rows that the search does not leave out, shown or not."""

    rows: tuple[QueueRow, ...]
    of_all: int
    namespace: str
    not_seen: int
    """AppWrappers that are not in the queue yet."""
    unreadable: int


class AppWrapperPage(Struct, frozen=True):
    """One AppWrapper: why it waits or what it does, and all that its status has."""

    state: str
    explanation: Document
    details: str


def queue_page(seen: Seen, search: str) -> QueuePage:
    """The queue by queue and position; `search` is found in names, namespaces, users, queues and reasons.

    Costs O(n log n) for n AppWrappers.
    """
    appwrappers = seen.appwrappers.values()
    rows = _with_gpus_ahead(pending_report(appwrappers, Filter(), seen.at))
    found = [row for row in rows if _is_found(row, search)]
    shown = tuple(_queue_row(row, seen) for row in found[:MOST_ROWS])
    return QueuePage(shown, len(found), seen.namespace, outside(appwrappers), seen.unreadable)


def appwrapper_page(seen: Seen, status: AppWrapperStatus) -> AppWrapperPage:
    """The page of one AppWrapper."""
    details = StatusDescription(status.appwrapper, seen.at).as_text(None)
    return AppWrapperPage(str(status.phase or "not seen"), of_status(status), details)


def uid_of(status: AppWrapperStatus) -> str:
    """The uid of an AppWrapper, which no later one of its name has."""
    return str(status.appwrapper["metadata"]["uid"])


def similar(seen: Seen, name: str) -> list[tuple[str, str]]:
    """The AppWrappers that have the name in other namespaces."""
    return sorted(key for key in seen.appwrappers if key[1] == name)


def _with_gpus_ahead(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows with the GPUs that those before them in their queue ask for, where all of these have been read."""
    queue, before, places = None, 0, 0
    for row in rows:
        if row["queue"] != queue:
            queue, before, places = row["queue"], 0, 0
        places += 1
        is_known = row["position"] == places and not row["is_position_rounded"]
        yield {**row, "ahead": before if is_known else None}
        before += row["gpu"] or 0


def _is_found(row: Mapping[str, Any], search: str) -> bool:
    words = (row[column] or "" for column in ("namespace", "name", "user_name", "queue", "reason", "uid"))
    return not search or any(search.casefold() in str(word).casefold() for word in words)


def _queue_row(row: Mapping[str, Any], seen: Seen) -> QueueRow:
    status = seen.status(row["namespace"], row["name"])
    waiting = status.waiting if status else {}
    repair = text_of((waiting.get("repair") or {}).get("message"))
    created: datetime = row["created_at"]
    position = "" if row["position"] is None else f"{'about ' * row['is_position_rounded']}{row['position']}"
    return QueueRow(
        row["namespace"],
        row["name"],
        row["queue"] or "",
        position,
        "" if row["ahead"] is None else str(row["ahead"]),
        "" if row["gpu"] is None else str(row["gpu"]),
        row["user_name"],
        age(created, seen.at),
        row["reason"] or "",
        row["message"] or "",
        repair,
        estimate_of(waiting) if waiting else "",
    )
