"""Why an AppWrapper waits, as its `status.waiting` has it: the parts that `show` and `explain` share.

A status may be read by users of one namespace, so it names neither AppWrappers of other namespaces nor nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from dispatcher.cli.output import UNKNOWN, text
from dispatcher.cli.tables import Heading, table
from dispatcher.core.model.timestamps import time_in
from dispatcher.text import counted, name_of, text_of

Json = dict[str, Any]

_HOLDERS: Final = (Heading("HELD BY", is_namespaced=True), Heading("USER", 1), Heading("SINCE"))
_CLUSTERS: Final = (Heading("CLUSTER"), Heading("REASON"), Heading("MESSAGE", wraps=True))
_REPAIR: Final = "it would be dispatched "
"""How the message of a repair begins (`core.status.outlook`)."""
NEVER_GOES: Final = "no position in the queue: it would not go if nothing else ran"
IN_NO_QUEUE: Final = "no position in the queue: its queue does not take it, and does not count it"
NO_POSITION_YET: Final = "no position in the queue: it takes part in no cycle before it has all approvals"
_AMOUNTS: Final = ("nominal", "used", "available", "most")


def position_of(waiting: Json) -> str:
    """The position in words: `2 of 14`, or `100+` if it is rounded down; empty if it has none."""
    position, length = waiting.get("position"), waiting.get("queueLength")
    if position is None:
        return ""
    return f"{position}+" if length is None else f"{position} of {length}"


def estimate_of(waiting: Json) -> str:
    """The estimated start, or why it is unknown."""
    start, why = time_in(waiting.get("estimatedStart")), text_of(waiting.get("estimateUnknown"))
    return text(start) or (f"{UNKNOWN}: {why}" if why else UNKNOWN)


def changes_of(waiting: Json) -> list[str]:
    """The least changes that would dispatch it, such as `with priority 9` and `with 1 more node in hub (cpu 8)`."""
    priority = waiting.get("leastPriority")
    repair = text_of((waiting.get("repair") or {}).get("message")).removeprefix(_REPAIR)
    changes = ("" if priority is None else f"with priority {priority}", repair)
    return [each for each in changes if each]


def quota_of(waiting: Json) -> str:
    """The account of its queue in the resource that is short; empty if it is not quota that is short."""
    quota = waiting.get("quota") or {}
    amounts = [f"{word} {name_of(quota[word])}" for word in _AMOUNTS if word in quota]
    borrowers = [
        f"{name_of(each['queue'])} borrows {name_of(each['amount'])}" for each in quota.get("borrowers") or ()
    ]
    return ", ".join([*amounts, *borrowers])


def holders_table(waiting: Json, now: datetime | None, width: int | None) -> Sequence[str]:
    """The lines of a table of the running AppWrappers that hold what it needs; none if none are known.

    Times are relative to `now`, or exact without it.
    """
    holders, others = waiting.get("holders") or (), waiting.get("otherHolders") or 0
    rows = [
        (
            f"{name_of(each.get('namespace'))}/{name_of(each['name'])}",
            text_of(each.get("user")),
            text(time_in(each.get("since")), now),
        )
        for each in holders
    ]
    if not rows:
        return [f"Held by {counted(others, 'AppWrapper')} that a status does not name"] if others else []
    lines = table(_HOLDERS, rows, width).splitlines()
    return (
        [*lines, f"and {counted(others, 'more AppWrapper')} that a status does not name"] if others else lines
    )


def clusters_table(waiting: Json, width: int | None) -> Sequence[str]:
    """The lines of a table with the rejection of each cluster; none without member clusters."""
    rows = [
        (name_of(each.get("cluster")), name_of(each.get("reason")), text_of(each.get("message")))
        for each in waiting.get("clusters") or ()
    ]
    return table(_CLUSTERS, rows, width).splitlines() if rows else []
