"""How a record changes: the one place that makes a change, after the table of `core.lifecycle.transitions`.

A change takes the record as it was and returns a `Change`: the record after it, and the event for history. A change
that the table does not have raises `IllegalTransition`. Changes are functions of values, without clock or I/O: `now` is
an argument. `core.lifecycle.decision` says which change is due.

The conditions of a record have one entry of each type, in order of first transition. They stay true as the AppWrapper
advances. Running becomes false when the AppWrapper ends or is removed, not when pods are lost: `Record.unhealthy` says
that. Other conditions become false only when the AppWrapper is queued again or suspended. A condition that becomes
false keeps the reason why it was true.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records import termination
from dispatcher.core.model.records.record import (
    ACTIVE,
    Attempt,
    Change,
    Condition,
    Event,
    Pending,
    Phase,
    Record,
)
from dispatcher.errors import IllegalTransition


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


def with_failure(conditions: Iterable[Condition], failure: PodFailure | None) -> tuple[Condition, ...]:
    """The conditions with how a pod failed after the dispatch; None from the beginning of the next attempt on."""
    return tuple(
        replace(known, failure=failure) if known.type is ConditionType.DISPATCHED else known
        for known in conditions
    )


P = ParamSpec("P")
Outcome = TypeVar("Outcome")


def at_latest_time(
    change: Callable[Concatenate[Record, P], Outcome],
) -> Callable[Concatenate[Record, P], Outcome]:
    """Decorates a change so that it uses the record's latest time where that is after `now`.

    A new leader's clock may be behind the former leader's. Times of a record must not decrease: an attempt that ends
    before it began cannot be archived.
    """
    place = list(inspect.signature(change).parameters).index("now") - 1
    make = cast("Callable[..., Outcome]", change)

    @functools.wraps(change)
    def change_at_latest_time(record: Record, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        given: list[Any] = list(args)
        named: dict[str, Any] = dict(kwargs)
        holder, key = (given, place) if place < len(given) else (named, "now")
        holder[key] = max(holder[key], latest(record))  # type: ignore[index]  # a list by number, or a dict by name
        return make(record, *given, **named)

    return cast("Callable[Concatenate[Record, P], Outcome]", change_at_latest_time)


def latest(record: Record) -> datetime:
    """The latest time in the record: that of its last event, because every change makes one."""
    return max(record.last_event_at or record.phase_since, record.phase_since)


_PODS_RUN: Final = frozenset({Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION})
"""Phases in which the condition Running may be true. MCAD's other conditions stay true after an end."""


def change_by(
    record: Record,
    cause: Cause,
    now: datetime,
    *,
    event_reason: str = "",
    note: str = "",
    termination_message: str = "",
    **fields: Any,  # noqa: ANN401  # fields are Record's own, by keyword
) -> Change:
    """The change of `record` by `cause`; `event_reason` and `note` are the reason and the message of its event.

    The event has the `termination_message` apart from both. `fields` are the new values of the record's fields. Raises
    `IllegalTransition` if the table has no such row.
    """
    target = TARGETS.get((record.phase, cause))
    if target is None:
        raise IllegalTransition(f"{record.uid}: no transition from {record.phase} by {cause}")
    if target is not record.phase:
        fields["phase_since"] = now
    if target not in _PODS_RUN:
        fields["conditions"] = with_false(
            fields.get("conditions", record.conditions), ConditionType.RUNNING, now
        )
    if target is not Phase.QUEUED:
        fields["is_preempting"] = False
    if record.phase is Phase.DISPATCHING and target is not Phase.DISPATCHING:
        fields.setdefault("pending", None)  # it waits no more for the capacity that it requested
    attempt_after = fields.get("attempt", record.attempt)
    if (
        target not in ACTIVE
        and attempt_after is not None
        and (attempt_after.growth_request or attempt_after.shrinking)
    ):
        fields["attempt"] = replace(attempt_after, growth_request=None, shrinking=None)  # its pods leave
    after = replace(record, phase=target, version=record.version + 1, last_event_at=now, **fields)
    attempt = after.attempt if record.holds_capacity or after.holds_capacity else None
    event = Event(
        at=now,
        cause=cause,
        from_phase=record.phase,
        to_phase=target,
        reason=event_reason,
        message=note,
        cluster=attempt.cluster if attempt else "",
        attempt=attempt.number if attempt else 0,
        termination_message=termination_message,
    )
    return Change(before=record, after=after, events=(event,))


def live_attempt(record: Record) -> Attempt:
    """The attempt of the record; raises `IllegalTransition` if it has none or the attempt has ended."""
    if record.attempt is None or record.attempt.ended_at is not None:
        raise IllegalTransition(f"{record.uid}: {record.phase} without a live attempt")
    return record.attempt


def with_finished(attempt: Attempt, finished: Collection[int]) -> Attempt:
    """The attempt with exactly the `finished` items marked as done."""
    return replace(attempt, objects=tuple(replace(ref, done=ref.item in finished) for ref in attempt.objects))


def evicted(record: Record, eviction: EvictionReason, now: datetime) -> tuple[Condition, ...]:
    """The conditions of the record with MCAD's PreemptCandidate true."""
    message = one_line(eviction.message)
    return with_true(record.conditions, ConditionType.PREEMPT_CANDIDATE, now, eviction.reason, message)


class EvictionReason(Struct, frozen=True):
    """Why an attempt is over: `message` is MCAD's sentence where MCAD has one, `detail` is the rest.

    `failure` is how a pod failed, if that is known; its words are in the detail.
    """

    reason: str
    message: str
    detail: str = ""
    failure: PodFailure | None = None

    @property
    def full_message(self) -> str:
        """The message and the detail, in one line."""
        return one_line(self.message + self.detail)

    @property
    def termination_message(self) -> str:
        """The termination message of the pod that failed first, cut to the length that an event keeps."""
        return termination.kept(self.failure.message) if self.failure else ""
