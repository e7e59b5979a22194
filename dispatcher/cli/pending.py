"""The advice and the estimated start of pending AppWrappers in the commands that read the database.

The advice is that of the view for the reason, made true for this AppWrapper. The views know only the reason: the first
in its queue gains nothing by a higher priority, and a gang that no cluster could take because its nodes are cordoned or
tainted needs no larger cluster. The start is the estimate of the leader's statuses, from its last snapshot. The
snapshot and the functions that estimate take long to import, so they are imported only if an AppWrapper waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_QUEUE, QUEUE_LABEL
from dispatcher.cli.query import TIMEOUT, check_way, run_coroutine
from dispatcher.core.model.records import pending_reasons
from dispatcher.errors import StoreError
from dispatcher.packages import is_installed
from dispatcher.store.readers.reports import Description, Report, Row
from dispatcher.text import one_line

if TYPE_CHECKING:
    from dispatcher.core.scheduling.explain.estimates import Estimate
    from dispatcher.store.snapshot.snapshot_reader import Snapshot

FIRST: Final = "Wait: it goes when enough is free; asking for less brings that nearer."
EXCLUDED: Final = (
    "Ask the operator about the excluded nodes ({}), or ask for less; kubectl aw explain names nodes."
)
GRANT: Final = "Ask the operator to give the dispatcher's account the right that the message names."
NOT_DECIDED: Final = "Use fewer pod sets of different sizes, or fewer rules between them."
DELETED: Final = (
    "Ask the operator to declare the queue again: its gangs go on then. Or name another queue in the label."
)
UNNAMED: Final = (
    f"Label it, or its namespace, with {QUEUE_LABEL} and the name of a queue, "
    "or ask the operator to declare default."
)
_DELETED: Final = " was deleted"
_UNNAMED: Final = f"there is no queue {DEFAULT_QUEUE}:"
"""As `core.queues.forest` and `core.scheduling.cycle.outcomes` write them."""
_FORBIDDEN: Final = "it does not let the dispatcher create "
"""As `core.scheduling.fit.cluster_filters` writes it."""
_EXCLUDED: Final = "nodes excluded: "
"""As `core.scheduling.fit.refused` writes it; the reasons follow."""
START: Final = "estimated_start"
UNKNOWN: Final = "estimate_unknown"
START_OF_VIEW: Final = "est_start"
"""A column that `queue_now` keeps for older readers, and that is always null: Postgres cannot estimate starts."""
NO_SNAPSHOT: Final = "the database has no snapshot of clusters"
NO_LEADER: Final = "no dispatcher leads now"
GONE: Final = "it was in the queue a moment ago, and is not any more"
NO_NUMPY: Final = "numpy is not installed: it comes with the extra plan"


def advice_of(row: Row) -> object:
    """The advice for a row of the pending queue."""
    message = str(row.get("message") or "")
    match row.get("reason"), row.get("position"):
        case pending_reasons.INSUFFICIENT, 1:
            return FIRST
        case pending_reasons.LARGER_THAN_CLUSTER, _ if _EXCLUDED in message:
            return EXCLUDED.format(message.partition(_EXCLUDED)[2].partition(";")[0].partition(")")[0])
        case pending_reasons.KIND_MISSING, _ if _FORBIDDEN in message:
            return GRANT
        case pending_reasons.NOT_DECIDED, _:
            return NOT_DECIDED
        case pending_reasons.QUEUE_NOT_FOUND, _ if _DELETED in message:
            return DELETED
        case pending_reasons.QUEUE_NOT_FOUND, _ if message.startswith(_UNNAMED):
            return UNNAMED
    return row.get("advice")


def with_true_advice(report: Report) -> Report:
    """The pending queue with the advice for each row."""
    at = report.columns.index("advice")
    rows = (
        (*values[:at], advice_of(row), *values[at + 1 :])
        for row, values in zip(report, report.rows, strict=True)
    )
    return replace(report, rows=tuple(rows))


def described(description: Description) -> Description:
    """The description of one AppWrapper with its advice, if it is pending."""
    waiting: Mapping[str, object] | None = description.waiting
    return (
        description
        if waiting is None
        else replace(description, waiting={**waiting, "advice": advice_of(waiting)})
    )


class Start(NamedTuple):
    """The estimated start of an AppWrapper, or the sentence that says why it is unknown."""

    at: datetime | None = None
    unknown: str = ""

    @property
    def columns(self) -> dict[str, object]:
        """The start as columns of a row."""
        return {START: self.at, UNKNOWN: self.unknown or None}


def with_starts(report: Report, database_url: str) -> Report:
    """The pending queue with the estimated start of each row, in place of the view's."""
    kept = tuple(name for name in report.columns if name != START_OF_VIEW)
    starts = _starts_of_first(list(report), database_url) if report.rows else {}
    rows = ({**row, **starts[str(row["uid"])].columns} for row in report)
    columns = (*kept, START, UNKNOWN)
    return replace(report, columns=columns, rows=tuple(tuple(row[name] for name in columns) for row in rows))


def _starts_of_first(rows: Sequence[Row], database_url: str) -> dict[str, Start]:
    """The start of each row by uid; it is unknown for positions beyond the last one that is estimated."""
    if not is_installed("numpy"):
        return dict.fromkeys((str(row["uid"]) for row in rows), Start(unknown=NO_NUMPY))
    from dispatcher.core.scheduling.explain.estimate_words import NOT_AMONG_FIRST
    from dispatcher.core.scheduling.explain.estimates import MOST_ESTIMATED

    later = Start(unknown=NOT_AMONG_FIRST)
    first = [str(row["uid"]) for row in rows if int(str(row["position"] or 0)) <= MOST_ESTIMATED]
    found = starts_of(first, database_url) if first else {}
    return {str(row["uid"]): found.get(str(row["uid"]), later) for row in rows}


def described_with_start(description: Description, database_url: str) -> Description:
    """The description of one AppWrapper with its estimated start, if it is pending."""
    if description.waiting is None:
        return description
    uid = str(description.waiting["uid"])
    waiting: Row = {name: each for name, each in description.waiting.items() if name != START_OF_VIEW}
    return replace(description, waiting={**waiting, **starts_of([uid], database_url)[uid].columns})


def starts_of(uids: Collection[str], database_url: str) -> Mapping[str, Start]:
    """The start of each pending AppWrapper by uid, from the leader's last snapshot."""
    if not is_installed("numpy"):
        return dict.fromkeys(uids, Start(unknown=NO_NUMPY))
    from dispatcher.core.scheduling.explain.estimate_words import NOT_SEARCHED
    from dispatcher.core.scheduling.explain.estimates import estimated_starts
    from dispatcher.core.scheduling.explain.trials import is_too_large
    from dispatcher.store.snapshot.snapshot_reader import read_snapshot

    check_way(database_url)
    try:
        snapshot = run_coroutine(read_snapshot(database_url, TIMEOUT))
    except StoreError as error:
        reason = f"the leader's snapshot cannot be read: {one_line(str(error))}"
        return dict.fromkeys(uids, Start(unknown=reason))
    if snapshot.taken_at is None or not snapshot.has_leader:
        return dict.fromkeys(uids, Start(unknown=NO_LEADER if snapshot.taken_at else NO_SNAPSHOT))
    pending = {each.uid for each in snapshot.world.pending}
    there = [uid for uid in uids if uid in pending]
    if is_too_large(snapshot.world):
        return {uid: Start(unknown=NOT_SEARCHED if uid in pending else GONE) for uid in uids}
    estimates = estimated_starts(snapshot.world, snapshot.records, there).starts
    in_words = _words(snapshot)
    return {uid: in_words(estimates[uid]) if uid in pending else Start(unknown=GONE) for uid in uids}


def _words(snapshot: Snapshot) -> Callable[[Estimate], Start]:
    from dispatcher.core.scheduling.explain.estimate_words import why_unknown

    def in_words(estimate: Estimate) -> Start:
        if isinstance(estimate, datetime):
            return Start(estimate)
        return Start(unknown=why_unknown(estimate, snapshot.records))

    return in_words
