"""The conditions of a record after each step: one entry of each type, in order of first transition.

Conditions stay true as the AppWrapper advances. Running becomes false when the AppWrapper ends or is removed, not when
pods are lost: `Record.unhealthy` says that. Other conditions become false only when the AppWrapper is queued again or
suspended. A condition that becomes false keeps the reason why it was true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.model.record import Condition, Pending, Record


def after_block(conditions: Iterable[Condition], pending: Pending, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a gang that a cycle could not place; a removal from its cluster stays the reason of Backoff."""
    conditions = with_true(conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    for known in conditions:
        if (
            known.type is ConditionType.BACKOFF
            and known.status
            and known.reason == words.PREEMPTION_TRIGGERED
        ):
            return conditions
    return with_true(conditions, ConditionType.BACKOFF, now, pending.mcad_reason, pending.mcad_message)


def after_requeue(conditions: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """The conditions of a gang that leaves its cluster."""
    for type_ in (ConditionType.DISPATCHED, ConditionType.RUNNING_HOLD_COMPLETION):
        conditions = with_false(conditions, type_, now)
    return tuple(conditions)


def after_suspend(conditions: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """The conditions of a suspended gang."""
    for type_ in (ConditionType.QUEUEING, ConditionType.HEAD_OF_LINE, ConditionType.BACKOFF):
        conditions = with_false(conditions, type_, now)
    return with_true(conditions, ConditionType.SUSPENDED, now, words.SUSPENDED_BY_USER)


def with_unknown_class(conditions: Iterable[Condition], message: str, now: datetime) -> tuple[Condition, ...]:
    """The conditions with the warning that a priority class does not exist; without one if `message` is empty.

    The warning stands right after Init, because clients take MCAD's last condition for the latest.
    """
    kept = tuple(conditions)
    if not message:
        return with_false(kept, ConditionType.PRIORITY_CLASS_UNKNOWN, now)
    if any(known.type is ConditionType.PRIORITY_CLASS_UNKNOWN for known in kept):
        return with_true(
            kept, ConditionType.PRIORITY_CLASS_UNKNOWN, now, words.PRIORITY_CLASS_NOT_FOUND, message
        )
    return (*kept[:1], unknown_class(message, now), *kept[1:])


def unknown_class(message: str, now: datetime) -> Condition:
    """The warning that a priority class does not exist."""
    return new_condition(ConditionType.PRIORITY_CLASS_UNKNOWN, now, words.PRIORITY_CLASS_NOT_FOUND, message)


MOST_WARNINGS: Final = 10
"""Warnings of API servers that a condition and an Event have room for."""


def in_short(warnings: Sequence[str]) -> str:
    """The message of a condition with these warnings of an API server, in one line; empty without any."""
    more = [f"{len(warnings) - MOST_WARNINGS} more"] if len(warnings) > MOST_WARNINGS else []
    return one_line("; ".join([*warnings[:MOST_WARNINGS], *more]))


def noted_warning(record: Record, type_: ConditionType) -> str:
    """The message of a condition that is a warning, such as `PriorityClassUnknown`; empty while it is not true."""
    found = record.condition(type_)
    return found.message if found is not None and found.status else ""


def after_creation(conditions: Iterable[Condition], warnings: str, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a gang after the creation of its objects.

    `warnings` is the API server's message about the objects; it is empty if the server gave none. Its condition stands
    before Dispatched, because clients take MCAD's last condition for the latest. Unknown fields are among these
    warnings, so the condition from before the creation is over.
    """
    conditions = with_false(conditions, ConditionType.UNKNOWN_FIELDS, now)
    warned = ConditionType.CREATED_WITH_WARNINGS
    if warnings:
        conditions = with_true(conditions, warned, now, words.API_SERVER_WARNED, warnings)
    else:
        conditions = with_false(conditions, warned, now)
    return with_true(conditions, ConditionType.DISPATCHED, now, words.APPWRAPPER_RUNNABLE)


def new_condition(type_: ConditionType, now: datetime, reason: str = "", message: str = "") -> Condition:
    """A condition that is true from now on."""
    return Condition(type=type_, status=True, since=now, updated=now, reason=reason, message=message)


def with_true(
    conditions: Iterable[Condition],
    type_: ConditionType,
    now: datetime,
    reason: str,
    message: str = "",
) -> tuple[Condition, ...]:
    """`conditions` with `type_` true, in order of first transition; unchanged if it says so already."""
    kept = tuple(conditions)
    for index, known in enumerate(kept):
        if known.type != type_:
            continue
        if (known.status, known.reason, known.message) == (True, reason, message):
            return kept
        since = known.since if known.status else now
        changed = Condition(type_, status=True, since=since, updated=now, reason=reason, message=message)
        return (*kept[:index], changed, *kept[index + 1 :])
    return (*kept, new_condition(type_, now, reason, message))


def with_false(conditions: Iterable[Condition], type_: ConditionType, now: datetime) -> tuple[Condition, ...]:
    """`conditions` with `type_` false; its reason and message stay, and say why it was true."""
    return tuple(
        replace(known, status=False, since=now, updated=now)
        if known.type == type_ and known.status
        else known
        for known in conditions
    )
