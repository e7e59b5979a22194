"""The part of the status that v1beta2 has and MCAD has not: phase, conditions, components.

It is projected from the record, and only for AppWrappers with `spec.components`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ComponentsCondition, ComponentsPhase, ConditionType
from dispatcher.core.model.records.record import Attempt, Phase, Record

PHASES: Final = {
    Phase.QUEUED: ComponentsPhase.SUSPENDED,
    Phase.SUSPENDED: ComponentsPhase.SUSPENDED,
    Phase.DISPATCHING: ComponentsPhase.RESUMING,
    Phase.DISPATCHED: ComponentsPhase.RUNNING,
    Phase.RUNNING: ComponentsPhase.RUNNING,
    Phase.RUNNING_HOLD_COMPLETION: ComponentsPhase.RUNNING,
    Phase.COMPLETED: ComponentsPhase.SUCCEEDED,
    Phase.REQUEUEING: ComponentsPhase.RESETTING,
    Phase.SUSPENDING: ComponentsPhase.SUSPENDING,
    Phase.FAILING: ComponentsPhase.FAILED,
    Phase.FAILED: ComponentsPhase.FAILED,
    Phase.DELETING: ComponentsPhase.TERMINATING,
    Phase.DELETED: ComponentsPhase.TERMINATING,
}
"""The phase of v1beta2 for each phase. v1beta2 has no queue: a pending AppWrapper is Suspended."""


class ComponentsFact(Struct, frozen=True):
    """A condition of v1beta2, with the fields of `Condition`; no record has one."""

    type: ComponentsCondition
    status: bool
    since: datetime
    updated: datetime
    reason: str = ""
    message: str = ""


_REMOVING: Final = frozenset({Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING})
_READY: Final = frozenset({Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION})


def conditions(record: Record) -> Iterator[ComponentsFact]:
    """The conditions of v1beta2: each appears once it becomes true, and is False later."""
    attempt = record.attempt
    if attempt is None:
        return
    yield _fact(record, ComponentsCondition.QUOTA_RESERVED, attempt.decided_at, is_true=record.holds_capacity)
    if attempt.created_at is not None:
        deployed = _is_deployed(record)
        yield _fact(record, ComponentsCondition.RESOURCES_DEPLOYED, attempt.created_at, is_true=deployed)
        started_at = attempt.started_at or attempt.created_at
        yield _fact(record, ComponentsCondition.PODS_READY, started_at, is_true=record.phase in _READY)
    yield from _unhealthy(record)
    if record.phase in _REMOVING:
        yield _fact(record, ComponentsCondition.DELETING_RESOURCES, record.phase_since, is_true=True)


def component_status(record: Record) -> list[dict[str, Any]]:
    """One entry for each component that was created; its conditions' times are the caller's to write."""
    objects = record.attempt.objects if record.attempt and _is_deployed(record) else ()
    return [
        {"name": ref.name, "kind": ref.kind, "apiVersion": ref.api_version, "podSets": []} for ref in objects
    ]


def component_condition(attempt: Attempt) -> ComponentsFact:
    """The condition of every component of a created attempt."""
    since = attempt.created_at or attempt.decided_at
    return ComponentsFact(
        ComponentsCondition.RESOURCES_DEPLOYED,
        status=True,
        since=since,
        updated=since,
        reason=words.COMPONENT_CREATED,
    )


def _is_deployed(record: Record) -> bool:
    if record.phase in {Phase.COMPLETED, Phase.FAILED}:
        return record.kept_until is not None
    attempt = record.attempt
    return record.holds_capacity and attempt is not None and attempt.created_at is not None


def _unhealthy(record: Record) -> Iterator[ComponentsFact]:
    if record.unhealthy is not None:
        noted = record.unhealthy
        yield ComponentsFact(
            ComponentsCondition.UNHEALTHY,
            status=True,
            since=noted.since,
            updated=noted.since,
            reason=noted.reason,
            message=noted.message,
        )
        return
    failed = record.condition(ConditionType.FAILED)
    if failed is not None:
        yield ComponentsFact(
            ComponentsCondition.UNHEALTHY,
            status=True,
            since=failed.since,
            updated=failed.updated,
            reason=failed.reason,
            message=failed.message,
        )


def _fact(record: Record, type_: ComponentsCondition, since: datetime, *, is_true: bool) -> ComponentsFact:
    """True since `since`, or False since the record came to its phase; the reason is v1beta2's name of that phase."""
    changed = since if is_true else max(since, record.phase_since)
    reason = words.SUFFICIENT_PODS_READY if is_true and type_ is ComponentsCondition.PODS_READY else None
    if type_ is ComponentsCondition.PODS_READY and not is_true:
        reason = words.INSUFFICIENT_PODS_READY
    return ComponentsFact(
        type_, status=is_true, since=changed, updated=changed, reason=reason or PHASES[record.phase].value
    )
