"""The sentence that says why the start of a gang is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from dispatcher.core.model.quantity import in_words as amount_in_words
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.scheduling.explain.estimates import MOST_ESTIMATED, UnknownStart, Why

NOT_AMONG_FIRST: Final = f"a start is estimated for the first {MOST_ESTIMATED} of a queue"
TOO_LARGE: Final = "it would not start if nothing else ran"
IN_NO_QUEUE: Final = "it waits for a queue that takes it, not for capacity"
NOT_SEARCHED: Final = "the clusters and queues are too large for an estimate"

_MOST_NAMED: Final = 3
"""Gangs without a known end that are named."""
_REMOVING: Final = frozenset({Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING})


def why_unknown(unknown: UnknownStart, records: Mapping[str, Record], namespace: str = "") -> str:
    """The sentence without its capital and its full stop; `records` has all gangs that `unknown` has.

    With a `namespace`, only its gangs are named, and without it; others are counted. The sentence is for a status then,
    and does not change with the number of many gangs.
    """
    match unknown.why:
        case Why.NO_KNOWN_END:
            return f"no end is known for {_named(unknown, records, namespace)}"
        case Why.BEHIND_HEAD:
            return f"its queue stops at {_head(unknown, records, namespace)}, whose start is unknown"
        case Why.TOO_LARGE:
            return TOO_LARGE
        case Why.IN_NO_QUEUE:
            return IN_NO_QUEUE
        case Why.STILL_WAITS:
            return f"after all known ends it still waits{f': {unknown.reason}' if unknown.reason else ''}"
        case Why.APPROVALS:
            return "it lacks approvals"
        case Why.PREEMPTION:
            return "a preemption comes before it, and the preempted AppWrappers are queued again"
        case Why.DRAIN:
            return "the drain of a queue comes before it, and the evicted AppWrappers are queued again"
        case Why.RECENT_USE:
            return "a queue orders by recent use, which changes before it starts"
        case Why.TOO_FAR:
            return "too many AppWrappers start or end before it"
    assert_never(unknown.why)


def _named(unknown: UnknownStart, records: Mapping[str, Record], namespace: str) -> str:
    gangs = [records[uid] for uid in unknown.gangs]
    visible = [each for each in gangs if namespace in ("", each.namespace)]
    named = [_described(each, unknown.resource, namespace) for each in visible[:_MOST_NAMED]]
    more = len(visible) - len(named)
    hidden = len(gangs) - len(visible)
    parts = [
        *named,
        *([_counted(more, "more", namespace)] if more else []),
        *([_counted(hidden, "of other namespaces", namespace)] if hidden else []),
    ]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _described(record: Record, resource: str, namespace: str) -> str:
    amount = record.quota_charge.get(resource)
    facts = [f"{resource} {amount_in_words(resource, amount)}"] if amount else []
    name = record.name if namespace else record.key
    return f"{name} ({', '.join([*facts, _why_endless(record)])})"


def _why_endless(record: Record) -> str:
    if record.phase in _REMOVING:
        return "being removed"
    if not (record.expected_seconds or record.limit_seconds):
        return "no dispatchDuration"
    return "past its dispatchDuration"


def _head(unknown: UnknownStart, records: Mapping[str, Record], namespace: str) -> str:
    head = records[unknown.gangs[0]]
    if namespace in ("", head.namespace):
        return head.name if namespace else head.key
    return "an AppWrapper of another namespace"


def _counted(number: int, which: str, namespace: str) -> str:
    """The number of AppWrappers. A status would have to be written again and again with the exact number of many."""
    if namespace and number > MOST_ESTIMATED:
        others = "other AppWrappers" if which == "more" else f"AppWrappers {which}"
        return f"more than {MOST_ESTIMATED} {others}"
    return f"{number} AppWrapper{'s' * (number > 1)} {which}"
