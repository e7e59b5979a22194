"""Records as rows, and rows as records, without loss.

The rows of one statement travel as one JSON document, which Postgres takes apart (`json_to_recordset`): one parameter
for a batch of any size. Amounts stay exact integers; a value that JSON or Postgres cannot hold is refused, never
rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec.structs import asdict

from dispatcher.api.annotations import submitter
from dispatcher.api.conditions import ConditionType
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.growth import GrowthRequest, Shrinking
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.core.model.record import (
    Attempt,
    Borrower,
    Change,
    Condition,
    Event,
    Growth,
    NotedIssue,
    ObjectRef,
    Pending,
    Phase,
    QuotaSummary,
    Record,
)
from dispatcher.core.model.requirements import ClusterRequirements, Rejection
from dispatcher.core.queues.declaration import write_provisioning
from dispatcher.errors import DataRefused
from dispatcher.store import tables
from dispatcher.store.gang_rows import (
    assignment_of,
    gang_of,
    growth_of,
    growth_request_of,
    provisioning_of,
    requirements_of,
    shrinking_of,
    sort_row,
    spread_row,
    term_row,
)

if TYPE_CHECKING:
    from msgspec import Struct

Row = dict[str, object]

CREATE: Final = "create"
DELETE: Final = "delete"
REMOVING: Final = frozenset({Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING})
"""Phases in which the objects of an attempt are to be deleted."""

IDENTITY: Final = frozenset(
    {"uid", "api_group", "namespace", "name", "created_at", "kinds", "user_name", "user_groups"}
)
"""Columns of an AppWrapper that no update changes."""

# Types by column, without the columns that the database or the writing statement sets.
NEW_COLUMNS: Final = tables.types(
    tables.appwrapper, "enqueue_seq", "updated_at", "taken_in_at", "first_queued_at", "ended_at", "outcome"
)
STATE_COLUMNS: Final = {name: type_ for name, type_ in NEW_COLUMNS.items() if name not in IDENTITY}
ATTEMPT_COLUMNS: Final = tables.types(tables.attempt, "cluster_uid", "epoch")
OBJECT_COLUMNS: Final = tables.types(tables.attempt_object)
EVENT_COLUMNS: Final = tables.types(tables.event, "id", "recorded_at", "epoch")

OF_EACH_EVENT: Final = frozenset({"uid", "api_group", "namespace", "name", "last_event_at"})
"""Columns of an AppWrapper that every event has as columns of its own."""

_NO_GANG: Final[Row] = dict.fromkeys(("demand", "pod_sets"))
_NO_REQUIREMENTS: Final[Row] = dict.fromkeys(
    ("cluster_selector", "cluster_preference", "ruled_out", "unprovisioned")
)
KEPT_IF_NULL: Final = frozenset(
    {"conditions", "pending_clusters"} | _NO_GANG.keys() | _NO_REQUIREMENTS.keys()
)
"""Large columns that an update keeps where its row has null."""


class Fields:
    """The columns that hold the fields of a struct unchanged; `by_column` gives the field of each column."""

    def __init__(self, by_column: Mapping[str, str]) -> None:
        self.columns = tuple(by_column)
        self._names = tuple(by_column.values())
        self._of_value = attrgetter(*self._names)
        self._of_row = itemgetter(*self.columns)

    def row(self, value: object) -> Row:
        """The columns of a value; all null if the value is None."""
        if value is None:
            return dict.fromkeys(self.columns)
        return dict(zip(self.columns, self._of_value(value), strict=True))

    def arguments(self, row: Mapping[Any, Any]) -> dict[str, Any]:
        """The fields of a row, by name."""
        return dict(zip(self._names, self._of_row(row), strict=True))


def same(columns: Iterable[str], of: type[Struct]) -> dict[str, str]:
    """The columns that have the name of a field."""
    return {column: column for column in columns if column in of.__struct_fields__}


def _prefixed(prefix: str) -> Fields:
    """The columns of an AppWrapper whose names are `prefix` and the name of a field."""
    return Fields({name: name.removeprefix(prefix) for name in STATE_COLUMNS if name.startswith(prefix)})


_RENAMED: Final = {"api_group": "group", "user_name": "user", "user_groups": "groups"}
_NEW: Final = Fields(same(filter(IDENTITY.__contains__, NEW_COLUMNS), Record) | _RENAMED)
_STATE: Final = Fields(same((name for name in STATE_COLUMNS if name != "attempt"), Record))
_OWN_FORM: Final = frozenset({"assignment", "growth", "provisioning", "growth_request", "shrinking"})
"""Columns of an attempt whose values have another form than the fields of the same name."""
_ATTEMPT: Final = Fields(same((name for name in ATTEMPT_COLUMNS if name not in _OWN_FORM), Attempt))
_OBJECT: Final = Fields(
    same((name for name in OBJECT_COLUMNS if name != "uid"), ObjectRef) | {"object_uid": "uid"}
)
_EVENT: Final = Fields(same(EVENT_COLUMNS, Event))
_PENDING: Final = _prefixed("pending_")
_UNHEALTHY: Final = _prefixed("unhealthy_")

TOGETHER: Final = (frozenset(_PENDING.columns), frozenset({"priority", "priority_slope"}))
"""Groups of columns of which an event has all or none, so that a reader finds them in one event."""

TELLING: Final = frozenset({"failed", "evicted", "preempted", "postponed", "withdrawn", "lost"})
"""Outcomes of an attempt that have a reason."""


def to_json(rows: Sequence[Row]) -> str:
    """The document for one statement; raises `DataRefused` for what JSON in UTF-8 and 64 bits cannot hold."""
    try:
        return orjson.dumps(rows, default=asdict).decode()
    except orjson.JSONEncodeError as error:
        raise DataRefused(str(error)) from error


# --- from values to rows -----------------------------------------------------------------------------


def new_row(record: Record) -> Row:
    """The row to insert for a new record, without its attempt."""
    return {
        **_NEW.row(record),
        "kinds": sorted(record.requirements.kinds),
        **_state(record),
    }


def changed_row(before: Record, after: Record) -> Row:
    """The row that updates a record, with the version the stored row must have; null for unchanged large parts."""
    row = {"uid": after.uid, "expected_version": before.version, **_state(after, beside=before)}
    if after.conditions == before.conditions:
        row["conditions"] = None
    if after.pending == before.pending:
        row["pending_clusters"] = None
    return row


def attempt_rows(change: Change) -> list[Row]:
    """The row of the attempt if the change touches it; raises `DataRefused` if a live attempt would be replaced.

    Its `growth` are the growths that the stored attempt lacks, null if there are none.
    """
    old = change.before.attempt if change.before else None
    new = change.after.attempt
    if old is not None and old.ended_at is None and (new is None or new.number != old.number):
        raise DataRefused(f"attempt {old.number} is live and cannot be replaced before it has ended")
    if new is None or new == old:
        return []
    return [
        {
            **_ATTEMPT.row(new),
            "uid": change.after.uid,
            "reason": _why_it_ended(change.after),
            "demand": dict(change.after.placed_gang.demand),
            "assignment": new.assignment.places,
            "queues": change.after.leaves,
            "growth": _new_growth(old, new),
            "provisioning": _provisioning_row(new.provisioning),
            "growth_request": _growth_request_row(new.growth_request),
            "shrinking": _shrinking_row(new.shrinking),
        }
    ]


def _provisioning_row(provisioning: Provisioning | None) -> Row | None:
    """A request for capacity as JSON: `provisioning_of` reads it."""
    if provisioning is None:
        return None
    return {
        "class": write_provisioning(provisioning.asked),
        "request_uid": provisioning.request_uid,
        "message": provisioning.message,
        "noted_at": provisioning.noted_at,
        "provisioned_at": provisioning.provisioned_at,
    }


def _growth_request_row(request: GrowthRequest | None) -> Row | None:
    """The growth that waits for a grant, as JSON: `growth_request_of` reads it."""
    if request is None:
        return None
    return {
        "pods": request.pods,
        "amounts": dict(request.amounts),
        "since": request.since,
        "reason": request.reason,
        "message": request.message,
    }


def _shrinking_row(shrinking: Shrinking | None) -> Row | None:
    """The surplus pods that a gang gives up, as JSON: `shrinking_of` reads it."""
    if shrinking is None:
        return None
    pods = [{"namespace": each.namespace, "name": each.name, "uid": each.uid} for each in shrinking.pods]
    return {"pods": pods, "growth": dict(shrinking.growth), "preempted_by": shrinking.preempted_by}


def _new_growth(old: Attempt | None, new: Attempt) -> list[Row] | None:
    """The growths that follow the known ones, by place: with a clock that stands still, two may be equal."""
    known = old.growth if old is not None and old.number == new.number else ()
    added = next(count for count in range(len(new.growth) + 1) if _follows(new.growth, known, count))
    return [_growth_row(each) for each in new.growth[len(new.growth) - added :]] or None


def _follows(growth: Sequence[Growth], known: Sequence[Growth], added: int) -> bool:
    """True if `growth` is what `known` becomes by so many further growths; the oldest may be dropped for them."""
    kept = len(growth) - added
    return kept == 0 or (kept <= len(known) and growth[:kept] == known[len(known) - kept :])


def _growth_row(growth: Growth) -> Row:
    """A growth as JSON: `growth_of` reads it."""
    taken: Row = {"is_taken": True} if growth.is_taken else {}
    pods: Row = {} if growth.pods is None else {"pods": dict(growth.pods)}
    trust: Row = {}
    if growth.trust is not None:
        trust = {"trust": {"since": growth.trust.since, "nodes": list(growth.trust.nodes)}}
    count: Row = {"count": growth.count} if growth.count else {}
    return {"at": growth.at, "amounts": dict(growth.amounts), **taken, **pods, **trust, **count}


def object_rows(change: Change) -> list[Row]:
    """The rows of the attempt's objects that are new, changed, or have another intent.

    Raises `DataRefused` if the attempt lacks an object that is stored.
    """
    attempt = change.after.attempt
    if attempt is None:
        return []
    stored = _objects_by_item(change.before, attempt.number)
    if stored.keys() - {each.item for each in attempt.objects}:
        raise DataRefused(f"attempt {attempt.number} would forget objects it may have created")
    intent = _intent(change.after)
    has_new_intent = change.before is not None and _intent(change.before) != intent
    return [
        {
            **_OBJECT.row(each),
            "uid": change.after.uid,
            "attempt": attempt.number,
            "intent": intent,
        }
        for each in attempt.objects
        if has_new_intent or stored.get(each.item) != each
    ]


def _why_it_ended(record: Record) -> str:
    if record.attempt is None or record.attempt.outcome not in TELLING:
        return ""
    return record.reason or (record.pending.reason if record.pending else "")


def event_rows(change: Change) -> list[Row]:
    """The rows of a step's events; the last one has the step's changes to the record's row."""
    record = change.after
    whose = {"uid": record.uid, "namespace": record.namespace, "name": record.name, "queue": record.queue}
    rows: list[Row] = [{**_EVENT.row(event), **whose, "change": {}} for event in change.events]
    if rows:
        rows[-1]["change"] = _difference(change.before, record)
    return rows


def _difference(before: Record | None, after: Record) -> Row:
    """The columns with a new value; folded over all steps they give the row."""
    if before is None:
        return {name: value for name, value in new_row(after).items() if name not in OF_EACH_EVENT}
    old, new = _state(before, beside=after), _state(after, beside=before)
    changed = {name for name, value in new.items() if value != old[name]}
    for group in TOGETHER:
        changed |= group if changed & group else frozenset()
    changes = {name: value for name, value in new.items() if name in changed - OF_EACH_EVENT}
    if "conditions" in changes:
        changes["conditions"] = [each for each in after.conditions if each not in before.conditions]
    return changes


def _state(record: Record, beside: Record | None = None) -> Row:
    """The columns that can change; null for the gang and for the requirements that are equal in `beside`."""
    pending, attempt = record.pending, record.attempt
    has_gang = beside is not None and beside.gang == record.gang
    has_requirements = beside is not None and beside.requirements == record.requirements
    return {
        **_STATE.row(record),
        "pods": record.gang.pods,
        **(_NO_GANG if has_gang else _gang_row(record.gang)),
        **(_NO_REQUIREMENTS if has_requirements else _requirements_row(record.requirements)),
        **_PENDING.row(pending),
        "pending_clusters": pending.clusters if pending else (),
        "pending_queue": pending.queue if pending else "",
        "pending_preempting": pending.preempting if pending else (),
        "pending_approvals": pending.approvals if pending else (),
        **_UNHEALTHY.row(record.unhealthy),
        "attempt": attempt.number if attempt else None,
        "cluster": attempt.cluster if attempt else None,
    }


def _gang_row(gang: Gang) -> Row:
    return {"demand": dict(gang.demand), "pod_sets": _pod_set_rows(gang)}


def _requirements_row(requirements: ClusterRequirements) -> Row:
    return {
        "cluster_selector": str(requirements.selector),
        "cluster_preference": str(requirements.prefers),
        "ruled_out": sorted(requirements.ruled_out),
        "unprovisioned": sorted(requirements.unprovisioned),
    }


def _pod_set_rows(gang: Gang) -> list[Row]:
    """The pod sets as JSON; the first has the smaller demand and requests of the gang in other clusters, if any."""
    rows = [_pod_set_row(each) for each in gang.pod_sets]
    if gang.smaller:
        rows[0]["smaller"] = [
            {
                "cluster": cluster,
                "demand": dict(there.demand),
                "requests": [dict(each.requests) for each in there.pod_sets],
            }
            for cluster, there in gang.smaller
        ]
    return rows


def _pod_set_row(pod_set: PodSet) -> Row:
    """A pod set as JSON; fields that most pod sets lack are left out when they are empty."""
    rare = {
        "selector": pod_set.nodes.selector,
        "terms": pod_set.nodes.terms,
        "apart": pod_set.apart,
        "together": pod_set.together,
        "claims": pod_set.claims,
        "path": pod_set.path,
        "item": pod_set.item,
        "spread": [spread_row(each) for each in pod_set.spread],
        "away": pod_set.away,
        "near": pod_set.near,
        "sort": sort_row(pod_set.sort) if pod_set.sort else None,
        "attracts": [term_row(each) for each in pod_set.attracts],
        "is_trusted": pod_set.is_trusted,
    }
    return {
        "count": pod_set.count,
        "requests": dict(pod_set.requests),
        "tolerations": pod_set.tolerations,
        **{name: value for name, value in rare.items() if value},
    }


def _objects_by_item(record: Record | None, number: int) -> dict[int, ObjectRef]:
    if record is None or record.attempt is None or record.attempt.number != number:
        return {}
    return {each.item: each for each in record.attempt.objects}


def _intent(record: Record) -> str:
    return DELETE if record.phase in REMOVING else CREATE


# --- from rows to values -----------------------------------------------------------------------------


def record_of(row: Mapping[Any, Any], attempt: Attempt | None) -> Record:
    """The record for a row and its current attempt."""
    converted = {
        "groups": submitter(row["user_name"], tuple(row["user_groups"])).groups,
        "phase": Phase(row["phase"]),
        "conditions": tuple(map(_condition_of, row["conditions"])),
        "more_queues": tuple(row["more_queues"]),
        "preempted_at": tuple(map(datetime.fromisoformat, row["preempted_at"])),
    }
    return Record(
        **{**_NEW.arguments(row), **_STATE.arguments(row), **converted},
        enqueue_seq=row["enqueue_seq"],
        gang=gang_of(row),
        pending=_pending_of(row),
        unhealthy=_noted_issue_of(row),
        requirements=requirements_of(row),
        attempt=attempt,
    )


def attempt_of(row: Mapping[Any, Any], objects: Iterable[ObjectRef]) -> Attempt:
    """The attempt for a row, with its objects in the order of their items."""
    return Attempt(
        **_ATTEMPT.arguments(row),
        objects=tuple(sorted(objects, key=lambda each: each.item)),
        assignment=assignment_of(row["assignment"]),
        growth=growth_of(row["growth"]),
        provisioning=provisioning_of(row["provisioning"]),
        growth_request=growth_request_of(row["growth_request"]),
        shrinking=shrinking_of(row["shrinking"]),
    )


def object_of(row: Mapping[Any, Any]) -> ObjectRef:
    """The wrapped object for a row."""
    return ObjectRef(**_OBJECT.arguments(row))


def _pending_of(row: Mapping[Any, Any]) -> Pending | None:
    if row["pending_reason"] is None:
        return None
    converted = {
        "clusters": tuple(_rejection(**each) for each in row["pending_clusters"]),
        "quota": _quota_of(row["pending_quota"]),
        "preempting": tuple(row["pending_preempting"]),
        "approvals": tuple(row["pending_approvals"]),
    }
    return Pending(**{**_PENDING.arguments(row), **converted})


def _quota_of(value: Mapping[str, Any] | None) -> QuotaSummary | None:
    if value is None:
        return None
    borrowers = tuple(Borrower(**each) for each in value["borrowers"])
    return QuotaSummary(**{**value, "borrowers": borrowers})


@functools.lru_cache(maxsize=100_000)
def _rejection(cluster: str, reason: str, message: str, resource: str) -> Rejection:
    """One shared value for equal rejections: with many clusters they would take most of a queue's memory."""
    return Rejection(cluster, reason, message, resource)


def _noted_issue_of(row: Mapping[Any, Any]) -> NotedIssue | None:
    if row["unhealthy_reason"] is None:
        return None
    return NotedIssue(**_UNHEALTHY.arguments(row))


def _condition_of(value: Mapping[str, Any]) -> Condition:
    converted = {
        "type": ConditionType(value["type"]),
        "since": datetime.fromisoformat(value["since"]),
        "updated": datetime.fromisoformat(value["updated"]),
    }
    return Condition(**{**value, **converted})
