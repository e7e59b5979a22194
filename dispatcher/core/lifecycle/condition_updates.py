"""What a record's conditions come to, step by step: one entry of each type, in order of first transition.

On the way forward all of them stay true. Running goes false when its AppWrapper ends or is removed, not when pods are
lost before that: the record's `unhealthy` says so. The others go false only when their AppWrapper goes back. A
condition that goes false keeps the reason why it was true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.core.model.record import Condition


def blocked(conditions: Iterable[Condition], message: str, now: datetime) -> tuple[Condition, ...]:
    """Evaluated, and it waits. One that was taken from its cluster goes on saying so until it is dispatched again."""
    conditions = with_true(conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    for known in conditions:
        if (
            known.type is ConditionType.BACKOFF
            and known.status
            and known.reason == words.PREEMPTION_TRIGGERED
        ):
            return conditions
    return with_true(conditions, ConditionType.BACKOFF, now, words.APPWRAPPER_NOT_RUNNABLE, message)


def gone_back(conditions: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """What it had come to and no longer is."""
    for type_ in (ConditionType.DISPATCHED, ConditionType.RUNNING_HOLD_COMPLETION):
        conditions = with_false(conditions, type_, now)
    return tuple(conditions)


def held_back(conditions: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """It stands in no queue."""
    for type_ in (ConditionType.QUEUEING, ConditionType.HEAD_OF_LINE, ConditionType.BACKOFF):
        conditions = with_false(conditions, type_, now)
    return with_true(conditions, ConditionType.SUSPENDED, now, words.SUSPENDED_BY_USER)


def new_condition(type_: ConditionType, now: datetime, reason: str = "", message: str = "") -> Condition:
    """One that holds from now on."""
    return Condition(type=type_, status=True, since=now, updated=now, reason=reason, message=message)


def with_true(
    conditions: Iterable[Condition],
    type_: ConditionType,
    now: datetime,
    reason: str,
    message: str = "",
) -> tuple[Condition, ...]:
    """`conditions` with `type_` true: kept in order of first transition, untouched if it says so already."""
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
    """`conditions` with `type_` false, its reason and message kept: they say why it was true."""
    return tuple(
        replace(known, status=False, since=now, updated=now)
        if known.type == type_ and known.status
        else known
        for known in conditions
    )
