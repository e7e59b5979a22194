"""The advice for pending AppWrappers in the commands: that of the view for the reason, made true for this AppWrapper.

The views know only the reason. The first in its queue gains nothing by a higher priority, and a gang that no cluster
could take because its nodes are cordoned or tainted needs no larger cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_QUEUE, QUEUE_LABEL
from dispatcher.store.reports import Description, Report, Row

FIRST: Final = "Wait: it goes when enough is free; asking for less brings that nearer."
EXCLUDED: Final = (
    "Ask the operator about the excluded nodes ({}), or ask for less; kubectl aw explain names nodes."
)
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
"""As `core.queues.forest` and `core.scheduling.cycle` write them."""
_EXCLUDED: Final = "nodes excluded: "
"""As `core.scheduling.explain` writes it; the reasons follow."""


def advice_of(row: Row) -> object:
    """The advice for a row of the pending queue."""
    message = str(row.get("message") or "")
    match row.get("reason"), row.get("position"):
        case "InsufficientResources", 1:
            return FIRST
        case "LargerThanCluster", _ if _EXCLUDED in message:
            return EXCLUDED.format(message.partition(_EXCLUDED)[2].partition(";")[0].partition(")")[0])
        case "NotDecided", _:
            return NOT_DECIDED
        case "QueueNotFound", _ if _DELETED in message:
            return DELETED
        case "QueueNotFound", _ if message.startswith(_UNNAMED):
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
