"""One explanation of an AppWrapper, whatever it was made from: why it waits, and what would dispatch it.

`of_status` makes it from the status of the AppWrapper. The dispatcher writes the position, the holders, the least
changes and the estimate into the statuses of the first AppWrappers of each queue, and nothing is planned here. A status
may be read by users of one namespace, so it names neither AppWrappers of other namespaces nor nodes. `of_views` makes
it from the views of the database, for roles that may not read the leader's snapshot. The explanation from that snapshot
is made by `people.explanation_report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import WOULD_BE_DISPATCHED
from dispatcher.api.syntax import most_similar
from dispatcher.cli.screens.appwrapper_status import OUTSIDE, AppWrapperStatus
from dispatcher.cli.screens.output import UNKNOWN, text
from dispatcher.cli.screens.tables import Heading, folded, state_in_words, table
from dispatcher.core.model.clock import time_in
from dispatcher.core.model.records.pending_reasons import (
    AWAITING_APPROVAL,
    IN_NO_QUEUE,
    LACKS_QUOTA,
    QUEUE_NOT_FOUND,
    TOO_LARGE,
)
from dispatcher.store.readers.reports import Description
from dispatcher.text import counted, name_of, one_line, text_of

Json = dict[str, Any]

NEVER_GOES: Final = "no position in the queue: it would not go if nothing else ran"
NO_QUEUE_TAKES_IT: Final = "no position in the queue: its queue does not take it, and does not count it"
NO_POSITION_YET: Final = "no position in the queue: it takes part in no cycle before it has all approvals"
ONLY_IN_SNAPSHOT: Final = (
    "ahead",
    "behind",
    "eligibleAt",
    "nodes",
    "uncordon",
    "accounts",
    "spared",
    "takenAt",
    "ageSeconds",
)
"""Fields of an explanation that need the leader's snapshot."""

_ON_NO_CLUSTER: Final = TOO_LARGE - LACKS_QUOTA
_ABOUT_THE_START: Final = TOO_LARGE | IN_NO_QUEUE | {AWAITING_APPROVAL}
"""Pending reasons of gangs without a position: that line also says why no start is estimated."""
_COPIED: Final = ("cluster", "reason", "resource", "message", "clusters", "queue", "quota", "preempting")
"""Fields of `status.waiting` that an explanation has under the same names."""
_HOLDERS: Final = (Heading("HELD BY", is_namespaced=True), Heading("USER", 1), Heading("SINCE"))
_CLUSTERS: Final = (Heading("CLUSTER"), Heading("REASON"), Heading("MESSAGE", wraps=True))
_AMOUNTS: Final = ("nominal", "used", "available", "most")


class Block(Struct, frozen=True):
    """A table, and lines below it; a block without both is not shown."""

    headings: Sequence[Heading] = ()
    rows: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()

    def lines(self, width: int | None) -> list[str]:
        """The lines in a terminal of `width` characters."""
        shown = table(self.headings, self.rows, width).splitlines() if self.rows else []
        return [*shown, *self.below]


class Document(Struct, frozen=True):
    """An explanation: its JSON document, which docs/explain.md describes, and the same for people."""

    value: Mapping[str, Any]
    heading: str
    facts: Sequence[str] = ()
    """Sentences below the heading; empty ones are not shown."""
    blocks: Sequence[Block] = field(default_factory=tuple)


def render(document: Document, width: int | None) -> str:
    """The explanation for people, in a terminal of `width` characters; None for no limit."""
    return folded("\n".join(map(one_line, _lines(document, width))), width)


def _lines(document: Document, width: int | None) -> Iterator[str]:
    yield document.heading
    yield from (f"  {each}" for each in document.facts if each)
    for block in document.blocks:
        if lines := block.lines(width):
            yield from ("", *lines)


def not_pending(known: Json, cluster: object, reason: object, message: object) -> Document:
    """The answer about an AppWrapper that is not in the queue; `known` are its name, its namespace and its state."""
    said = state_in_words(str(known["state"] or OUTSIDE), cluster, reason, message)
    return Document(known, f"{known['namespace']}/{known['name']} is {said}.")


def does_not_go(key: str, reason: str, *, fits_nowhere: bool) -> str:
    """The heading about a gang that the next cycle does not dispatch."""
    return f"{key} {'does not fit any cluster' if fits_nowhere else 'waits'}: {reason}"


def rejections(rows: Iterable[tuple[str, str, str]]) -> Block:
    """A table with the rejection of each cluster: its name, the reason and the message."""
    return Block(_CLUSTERS, tuple(rows))


def would_be_dispatched(changes: Sequence[str]) -> Block:
    """The block that lists changes, each of which alone would dispatch the gang; empty without changes."""
    return Block(below=("It would be dispatched", *(f"  {each}" for each in changes)) if changes else ())


def missing_queue(reason: str, message: str, queue: str) -> str:
    """The queue that a pending reason says is not there; empty for one that was deleted or is not valid."""
    # As `core.queues.forest` writes it.
    return queue if reason == QUEUE_NOT_FOUND and message == f"there is no queue {queue}" else ""


def missing_queue_in(waiting: Json) -> str:
    """The same for a pending reason in a status."""
    return missing_queue(*(text_of(waiting.get(field)) for field in ("reason", "message", "queue")))


def meant_queue(missing: str, known: Iterable[str]) -> str:
    """The end of the sentence about a missing queue, with the most similar one of the `known`; empty without any.

    A node of one of MCAD's trees (TREE/NODE) is compared with the nodes of its tree.
    """
    tree, slash, name = missing.rpartition("/")
    parted = (each.rpartition("/") for each in known)
    similar = most_similar(name, sorted(node for beside, _, node in parted if beside == tree)) if name else ""
    return f"; did you mean {tree}{slash}{similar}?" if similar else ""


def of_status(status: AppWrapperStatus, queues: Iterable[str] = (), *, is_wide: bool = False) -> Document:
    """The explanation of an AppWrapper by its status; tables have exact times in wide output.

    `queues` are the names of queues, one of which may be meant by the name of a missing one.
    """
    waiting, metadata = status.waiting, status.metadata
    known = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "state": status.phase,
    }
    if not status.is_queued:
        if status.phase is None and not waiting:
            return Document(known, f"{status.key} has no status: no dispatcher has seen it yet.")
        told = (
            status.status.get("unhealthy") or status.failure or waiting or status.status.get("growth") or {}
        )
        return not_pending(known, status.status.get("cluster"), told.get("reason"), told.get("message"))
    fits_nowhere = waiting.get("reason") in _ON_NO_CLUSTER
    start = time_in(waiting.get("estimatedStart"))
    value = {
        **known,
        "verdict": ("DoesNotFit" if fits_nowhere else "Waits") if waiting else None,
        "position": waiting.get("position"),
        "queueLength": waiting.get("queueLength"),
        **{field: waiting.get(field) for field in _COPIED},
        "holders": waiting.get("holders") or [],
        "otherHolders": waiting.get("otherHolders") or 0,
        "priority": waiting.get("leastPriority"),
        "repair": [waiting["repair"]] if waiting.get("repair") else [],
        "estimatedStart": start.isoformat() if start else None,
        "estimateUnknown": waiting.get("estimateUnknown"),
        **dict.fromkeys(ONLY_IN_SNAPSHOT),
    }
    if not waiting:
        return Document(value, f"{status.key} is Queued: no scheduling cycle has evaluated it yet.")
    clusters, quota, unknown = rejections_in(waiting), quota_of(waiting), _unknown_fields(status)
    missing = missing_queue_in(waiting)
    preempting = ", ".join(map(name_of, waiting.get("preempting") or ()))
    facts = (
        _place(waiting),
        "" if waiting.get("reason") in _ABOUT_THE_START else f"estimated start {estimate_of(waiting)}",
        "" if clusters.rows else text_of(waiting.get("message")) + meant_queue(missing, queues),
        quota and f"queue {name_of(waiting.get('queue'))}: {quota}",
        unknown and f"warning: {unknown}",
        preempting and f"preempting {preempting}",
    )
    holders = holders_in(waiting, None if is_wide else status.now)
    heading = does_not_go(status.key, name_of(waiting.get("reason")), fits_nowhere=fits_nowhere)
    return Document(value, heading, facts, (clusters, holders, would_be_dispatched(changes_of(waiting))))


def of_views(description: Description) -> Document:
    """The explanation of an AppWrapper by the views of the database: its reason and its position, and no holders."""
    job, waiting = description.job, description.waiting
    known = {name: str(job[name]) for name in ("name", "namespace", "uid", "state")}
    if waiting is None:
        return not_pending(known, job["last_cluster"], job["reason"], job["message"])
    key = f"{job['namespace']}/{job['name']}"
    reason, position = str(waiting["reason"] or ""), waiting["position"]
    fits_nowhere = reason in _ON_NO_CLUSTER
    value = {
        **known,
        "verdict": ("DoesNotFit" if fits_nowhere else "Waits") if reason else None,
        "position": position,
        "queueLength": None,
        **dict.fromkeys(_COPIED),
        **{name: waiting[name] for name in ("reason", "message", "queue")},
        "holders": [],
        "otherHolders": 0,
        "priority": None,
        "repair": [],
        "estimatedStart": None,
        "estimateUnknown": None,
        **dict.fromkeys(ONLY_IN_SNAPSHOT),
        "advice": waiting["advice"],
    }
    if not reason:
        return Document(value, f"{key} is Queued: no scheduling cycle has evaluated it yet.")
    place = f"position {position} in the queue" if position else _place({"reason": reason})
    facts = (place, text_of(waiting["message"]), text_of(waiting["advice"]))
    return Document(value, does_not_go(key, reason, fits_nowhere=fits_nowhere), facts)


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
    repair = text_of((waiting.get("repair") or {}).get("message")).removeprefix(WOULD_BE_DISPATCHED)
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


def holders_in(waiting: Json, now: datetime | None) -> Block:
    """A table of the running AppWrappers that hold what it needs, as far as a status names them.

    Times are relative to `now`, or exact without it.
    """
    others = waiting.get("otherHolders") or 0
    rows = [
        (
            f"{name_of(each.get('namespace'))}/{name_of(each['name'])}",
            text_of(each.get("user")),
            text(time_in(each.get("since")), now),
        )
        for each in waiting.get("holders") or ()
    ]
    said = f"and {counted(others, 'more AppWrapper')}" if rows else f"Held by {counted(others, 'AppWrapper')}"
    return Block(_HOLDERS, rows, (f"{said} that a status does not name",) if others else ())


def rejections_in(waiting: Json) -> Block:
    """A table with the rejection of each cluster; without rows if there are no member clusters."""
    return rejections(
        (name_of(each.get("cluster")), name_of(each.get("reason")), text_of(each.get("message")))
        for each in waiting.get("clusters") or ()
    )


def _place(waiting: Json) -> str:
    if position := position_of(waiting):
        return f"position {position} in the queue"
    if waiting.get("reason") in IN_NO_QUEUE:
        return NO_QUEUE_TAKES_IT
    if waiting.get("reason") in TOO_LARGE:
        return NEVER_GOES
    is_approved = waiting.get("reason") != AWAITING_APPROVAL
    return "no position in the queue now" if is_approved else NO_POSITION_YET


def _unknown_fields(status: AppWrapperStatus) -> str:
    """The fields of wrapped objects that their kinds do not have, in the words of the API server; empty if none."""
    told = (each for each in status.conditions if each.get("type") == ConditionType.UNKNOWN_FIELDS)
    return next((text_of(each.get("message")) for each in told if each.get("status") == "True"), "")
