"""A `Record` as rows and back, exactly.

Rows travel to Postgres as one JSON document per statement and are taken apart there (`json_to_recordset`):
one parameter whatever the size of the batch. Amounts stay exact integers on both ways; what JSON or Postgres
cannot hold is refused, never rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from dispatcher.api.conditions import ConditionType
from dispatcher.api.selector import parse_selector
from dispatcher.api.submitter import submitter
from dispatcher.core.model.gang import Gang, PodSet, Toleration
from dispatcher.core.model.record import (
    Ailment,
    Attempt,
    Change,
    Condition,
    ObjectRef,
    Pending,
    Phase,
    Record,
)
from dispatcher.core.model.requirements import ANYWHERE, ClusterRequirements, Kind, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.errors import DataRefused

Row = dict[str, object]

CREATE: Final = "create"
DELETE: Final = "delete"
REMOVING: Final = frozenset({Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING})
"""Phases in which what an attempt created is to be deleted."""

# Types by column, for `json_to_recordset`.
IDENTITY_COLUMNS: Final = {
    "uid": "text",
    "api_group": "text",
    "namespace": "text",
    "name": "text",
    "created_at": "timestamptz",
    "kinds": "jsonb",
    "user_name": "text",
    "user_groups": "jsonb",
}
NAMES: Final = frozenset({"uid", "api_group", "namespace", "name"})
OF_EACH_EVENT: Final = NAMES | {"last_event_at"}
"""Columns that each event has itself."""

STATE_COLUMNS: Final = {
    "version": "integer",
    "queue": "text",
    "phase": "text",
    "phase_since": "timestamptz",
    "last_event_at": "timestamptz",
    "priority": "integer",
    "priority_slope": "double precision",
    "spec_hash": "text",
    "demand": "jsonb",
    "pods": "bigint",
    "pod_sets": "jsonb",
    "conditions": "jsonb",
    "cluster_selector": "text",
    "cluster_preference": "text",
    "ruled_out": "jsonb",
    "reason": "text",
    "message": "text",
    "unhealthy_reason": "text",
    "unhealthy_message": "text",
    "unhealthy_since": "timestamptz",
    "requeuings": "integer",
    "retries": "integer",
    "requeuing_seconds": "integer",
    "expected_seconds": "integer",
    "kept_until": "timestamptz",
    "pending_reason": "text",
    "pending_message": "text",
    "pending_resource": "text",
    "pending_cluster": "text",
    "pending_clusters": "jsonb",
    "eligible_at": "timestamptz",
    "blocked_since": "timestamptz",
    "attempts": "integer",
    "attempt": "integer",
    "cluster": "text",
}
WHERE_COLUMNS: Final = frozenset({"cluster_selector", "cluster_preference", "ruled_out"})
KEPT_IF_NULL: Final = frozenset({"demand", "pod_sets", "conditions", "pending_clusters"}) | WHERE_COLUMNS
"""Large columns that an update leaves as they are where it says null."""

ATTEMPT_COLUMNS: Final = {
    "uid": "text",
    "number": "integer",
    "cluster": "text",
    "decided_at": "timestamptz",
    "created_at": "timestamptz",
    "started_at": "timestamptz",
    "ended_at": "timestamptz",
    "outcome": "text",
    "reason": "text",
    "demand": "jsonb",
}
OBJECT_COLUMNS: Final = {
    "uid": "text",
    "attempt": "integer",
    "item": "integer",
    "api_version": "text",
    "kind": "text",
    "namespace": "text",
    "name": "text",
    "object_uid": "text",
    "done": "boolean",
    "intent": "text",
}
EVENT_COLUMNS: Final = {
    "at": "timestamptz",
    "uid": "text",
    "namespace": "text",
    "name": "text",
    "queue": "text",
    "cause": "text",
    "from_phase": "text",
    "to_phase": "text",
    "reason": "text",
    "message": "text",
    "cluster": "text",
    "attempt": "integer",
    "change": "jsonb",
}

PENDING_COLUMNS: Final = frozenset(
    {"pending_reason", "pending_message", "pending_resource", "pending_cluster", "pending_clusters"}
)
TOGETHER: Final = (PENDING_COLUMNS, frozenset({"priority", "priority_slope"}))
"""Columns of which an event tells all if it tells of one, so that no reader has to look for the others."""

TELLING: Final = frozenset({"failed", "evicted", "postponed", "withdrawn", "lost"})
"""Outcomes of an attempt for which there is a reason."""


def to_json(rows: Sequence[Row]) -> str:
    """The document for one statement; raises `DataRefused` for what JSON in UTF-8 and 64 bits cannot hold."""
    try:
        return orjson.dumps(rows).decode()
    except orjson.JSONEncodeError as error:
        raise DataRefused(str(error)) from error


# --- from values to rows -----------------------------------------------------------------------------


def new_row(record: Record) -> Row:
    """All of a record but its attempt, to be inserted."""
    return {
        "uid": record.uid,
        "api_group": record.group,
        "namespace": record.namespace,
        "name": record.name,
        "created_at": record.created_at,
        "kinds": sorted(record.where.kinds),
        "user_name": record.user,
        "user_groups": record.groups,
        **_state(record),
    }


def changed_row(before: Record, after: Record) -> Row:
    """What may change of a record, with the version it must still have; null for large parts that did not."""
    row = {"uid": after.uid, "believed": before.version, **_state(after)}
    if after.gang == before.gang:
        row |= {"demand": None, "pod_sets": None}
    if after.conditions == before.conditions:
        row["conditions"] = None
    if after.pending == before.pending:
        row["pending_clusters"] = None
    if after.where == before.where:
        row |= dict.fromkeys(WHERE_COLUMNS)
    return row


def attempt_rows(change: Change) -> list[Row]:
    """The attempt, if the change touches it; raises `DataRefused` if a live one would be lost sight of."""
    known = change.before.attempt if change.before else None
    new = change.after.attempt
    if known is not None and known.ended_at is None and (new is None or new.number != known.number):
        raise DataRefused(f"attempt {known.number} is live and cannot be replaced before it has ended")
    if new is None or new == known:
        return []
    return [
        {
            "uid": change.after.uid,
            "number": new.number,
            "cluster": new.cluster,
            "decided_at": new.decided_at,
            "created_at": new.created_at,
            "started_at": new.started_at,
            "ended_at": new.ended_at,
            "outcome": new.outcome,
            "reason": _why_it_ended(change.after),
            "demand": dict(change.after.gang.demand),
        }
    ]


def object_rows(change: Change) -> list[Row]:
    """The attempt's objects that are new, changed, or wanted otherwise; none is ever forgotten."""
    attempt = change.after.attempt
    if attempt is None:
        return []
    known = _objects_by_item(change.before, attempt.number)
    if known.keys() - {each.item for each in attempt.objects}:
        raise DataRefused(f"attempt {attempt.number} would forget objects it may have created")
    intent = _intent(change.after)
    turned = change.before is not None and _intent(change.before) != intent
    return [
        {
            "uid": change.after.uid,
            "attempt": attempt.number,
            "item": each.item,
            "api_version": each.api_version,
            "kind": each.kind,
            "namespace": each.namespace,
            "name": each.name,
            "object_uid": each.uid,
            "done": each.done,
            "intent": intent,
        }
        for each in attempt.objects
        if turned or known.get(each.item) != each
    ]


def _why_it_ended(record: Record) -> str:
    if record.attempt is None or record.attempt.outcome not in TELLING:
        return ""
    return record.reason or (record.pending.reason if record.pending else "")


def event_rows(change: Change) -> list[Row]:
    """Lines of history about a step, the last of which says what it changed in the row."""
    record, events = change.after, change.events
    told: list[Row] = [
        {
            "at": event.at,
            "uid": record.uid,
            "namespace": record.namespace,
            "name": record.name,
            "queue": record.queue,
            "cause": event.cause,
            "from_phase": event.from_phase,
            "to_phase": event.to_phase,
            "reason": event.reason,
            "message": event.message,
            "cluster": event.cluster,
            "attempt": event.attempt,
            "change": {},
        }
        for event in events
    ]
    if told:
        told[-1]["change"] = _difference(change.before, record)
    return told


def _difference(before: Record | None, after: Record) -> Row:
    """The columns that have another value now; folded over all steps they give the row."""
    if before is None:
        return {name: value for name, value in new_row(after).items() if name not in OF_EACH_EVENT}
    old, new = _state(before), _state(after)
    changed = {name for name, value in new.items() if value != old[name]}
    for group in TOGETHER:
        changed |= group if changed & group else frozenset()
    told = {name: value for name, value in new.items() if name in changed - OF_EACH_EVENT}
    if "conditions" in told:
        told["conditions"] = [each for each in after.conditions if each not in before.conditions]
    return told


def _state(record: Record) -> Row:
    pending, attempt, unhealthy = record.pending, record.attempt, record.unhealthy
    return {
        "version": record.version,
        "queue": record.queue,
        "phase": record.phase,
        "phase_since": record.phase_since,
        "last_event_at": record.last_event_at,
        "priority": record.priority,
        "priority_slope": record.priority_slope,
        "spec_hash": record.spec_hash,
        "demand": dict(record.gang.demand),
        "pods": record.gang.pods,
        "pod_sets": [_pod_set_row(each) for each in record.gang.pod_sets],
        "conditions": record.conditions,
        "cluster_selector": str(record.where.selector),
        "cluster_preference": str(record.where.prefers),
        "ruled_out": sorted(record.where.ruled_out),
        "reason": record.reason,
        "message": record.message,
        "unhealthy_reason": unhealthy.reason if unhealthy else None,
        "unhealthy_message": unhealthy.message if unhealthy else None,
        "unhealthy_since": unhealthy.since if unhealthy else None,
        "requeuings": record.requeuings,
        "retries": record.retries,
        "requeuing_seconds": record.requeuing_seconds,
        "expected_seconds": record.expected_seconds,
        "kept_until": record.kept_until,
        "pending_reason": pending.reason if pending else None,
        "pending_message": pending.message if pending else None,
        "pending_resource": pending.resource if pending else None,
        "pending_cluster": pending.cluster if pending else None,
        "pending_clusters": pending.clusters if pending else (),
        "eligible_at": record.eligible_at,
        "blocked_since": record.blocked_since,
        "attempts": record.attempts,
        "attempt": attempt.number if attempt else None,
        "cluster": attempt.cluster if attempt else None,
    }


def _pod_set_row(pod_set: PodSet) -> Row:
    return {
        "count": pod_set.count,
        "requests": dict(pod_set.requests),
        "tolerations": pod_set.tolerations,
    }


def _objects_by_item(record: Record | None, number: int) -> dict[int, ObjectRef]:
    if record is None or record.attempt is None or record.attempt.number != number:
        return {}
    return {each.item: each for each in record.attempt.objects}


def _intent(record: Record) -> str:
    return DELETE if record.phase in REMOVING else CREATE


# --- from rows to values -----------------------------------------------------------------------------


def _where_of(row: Mapping[Any, Any]) -> ClusterRequirements:
    return _where(
        row["cluster_selector"],
        row["cluster_preference"],
        row["namespace"],
        tuple(map(tuple, row["kinds"])),
        tuple(map(tuple, row["ruled_out"])),
    )


@functools.lru_cache(maxsize=10_000)
def _where(
    selector: str,
    preference: str,
    namespace: str,
    kinds: tuple[Kind, ...],
    ruled_out: tuple[tuple[str, str], ...],
) -> ClusterRequirements:
    """The same value for all that require the same: there are few of these among many."""
    if not (selector or preference or kinds):
        return ANYWHERE
    return ClusterRequirements(
        selector=parse_selector(selector, "cluster_selector"),
        prefers=parse_selector(preference, "cluster_preference"),
        namespace=namespace,
        kinds=frozenset(kinds),
        ruled_out=frozenset(ruled_out),
    )


def record_of(row: Mapping[Any, Any], attempt: Attempt | None) -> Record:
    """A record from its row and its current attempt."""
    return Record(
        uid=row["uid"],
        group=row["api_group"],
        namespace=row["namespace"],
        name=row["name"],
        created_at=row["created_at"],
        phase=Phase(row["phase"]),
        phase_since=row["phase_since"],
        last_event_at=row["last_event_at"],
        user=row["user_name"],
        groups=submitter(row["user_name"], tuple(row["user_groups"])).groups,
        spec_hash=row["spec_hash"],
        version=row["version"],
        enqueue_seq=row["enqueue_seq"],
        queue=row["queue"],
        priority=row["priority"],
        priority_slope=row["priority_slope"],
        gang=Gang(
            demand=Resources(row["demand"]),
            pods=row["pods"],
            pod_sets=tuple(_pod_set_of(each) for each in row["pod_sets"]),
        ),
        conditions=tuple(_condition_of(each) for each in row["conditions"]),
        reason=row["reason"],
        message=row["message"],
        pending=_pending_of(row),
        unhealthy=_ailment_of(row),
        requeuings=row["requeuings"],
        retries=row["retries"],
        requeuing_seconds=row["requeuing_seconds"],
        expected_seconds=row["expected_seconds"],
        kept_until=row["kept_until"],
        where=_where_of(row),
        eligible_at=row["eligible_at"],
        blocked_since=row["blocked_since"],
        attempts=row["attempts"],
        attempt=attempt,
    )


def attempt_of(row: Mapping[Any, Any], objects: Iterable[ObjectRef]) -> Attempt:
    """An attempt from its row and its objects, which are put in order of their items."""
    return Attempt(
        number=row["number"],
        cluster=row["cluster"],
        decided_at=row["decided_at"],
        objects=tuple(sorted(objects, key=lambda each: each.item)),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
    )


def object_of(row: Mapping[Any, Any]) -> ObjectRef:
    """A wrapped object from its row."""
    return ObjectRef(
        item=row["item"],
        api_version=row["api_version"],
        kind=row["kind"],
        namespace=row["namespace"],
        name=row["name"],
        uid=row["object_uid"],
        done=row["done"],
    )


def _pending_of(row: Mapping[Any, Any]) -> Pending | None:
    if row["pending_reason"] is None:
        return None
    return Pending(
        reason=row["pending_reason"],
        message=row["pending_message"],
        resource=row["pending_resource"],
        cluster=row["pending_cluster"],
        clusters=tuple(
            _rejection(each["cluster"], each["reason"], each["message"], each["resource"])
            for each in row["pending_clusters"]
        ),
    )


@functools.lru_cache(maxsize=100_000)
def _rejection(cluster: str, reason: str, message: str, resource: str) -> Rejection:
    """The same value for all that are told the same: with many clusters, most of a queue's memory would be these."""
    return Rejection(cluster, reason, message, resource)


def _ailment_of(row: Mapping[Any, Any]) -> Ailment | None:
    if row["unhealthy_reason"] is None:
        return None
    return Ailment(row["unhealthy_reason"], row["unhealthy_message"], row["unhealthy_since"])


def _pod_set_of(value: Mapping[str, Any]) -> PodSet:
    tolerations = tuple(Toleration(**each) for each in value["tolerations"])
    return PodSet(count=value["count"], requests=Resources(value["requests"]), tolerations=tolerations)


def _condition_of(value: Mapping[str, Any]) -> Condition:
    return Condition(
        type=ConditionType(value["type"]),
        status=value["status"],
        since=datetime.fromisoformat(value["since"]),
        updated=datetime.fromisoformat(value["updated"]),
        reason=value["reason"],
        message=value["message"],
    )
