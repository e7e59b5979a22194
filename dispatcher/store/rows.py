"""Records as rows, and rows as records, without loss.

A column has the name of its field, and its JSON is in the form of `core.model.codec`. The rows of one statement travel
as one JSON document, which Postgres takes apart (`json_to_recordset`): one parameter for a batch of any size. A row
that is read has its JSON columns as Postgres sent them, in bytes.

Commands read the queue with these functions, too, so this module imports neither SQLAlchemy nor the tables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from dispatcher.api.annotations import submitter
from dispatcher.api.selector import stored_selector
from dispatcher.core.model import codec
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, Places, PodSet
from dispatcher.core.model.gangs.growth import GrowthRequest, Shrinking
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import (
    HOLDING,
    MOST_GROWTHS_KEPT,
    SET_ASIDE,
    Attempt,
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
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements, Kind, Rejection
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.errors import DataRefused

Row = dict[str, object]
_Value = TypeVar("_Value")

CREATE: Final = "create"
DELETE: Final = "delete"
REMOVING: Final = frozenset({Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING})
"""Phases in which the objects of an attempt are to be deleted."""

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

TELLING: Final = frozenset({"failed", "evicted", "preempted", "postponed", "withdrawn", "lost"})
"""Outcomes of an attempt that have a reason."""


class Fields:
    """The columns that hold the fields of a struct; `by_column` gives the field of each column.

    `json` are the types of the columns whose values are JSON.
    """

    def __init__(self, by_column: Mapping[str, str], json: Mapping[str, Any] | None = None) -> None:
        self.columns = tuple(by_column)
        self._names = tuple(by_column.values())
        self._of_value = attrgetter(*self._names)
        self._of_row = itemgetter(*self.columns)
        self._json = {by_column[column]: type_ for column, type_ in (json or {}).items()}

    def row(self, value: object) -> Row:
        """The columns of a value; all null if the value is None."""
        if value is None:
            return dict.fromkeys(self.columns)
        return dict(zip(self.columns, self._of_value(value), strict=True))

    def arguments(self, row: Mapping[Any, Any]) -> dict[str, Any]:
        """The fields of a row, by name."""
        found = dict(zip(self._names, self._of_row(row), strict=True))
        for name, type_ in self._json.items():
            if found[name] is not None:
                found[name] = codec.load(found[name], type_)
        return found


def fields_of(of: type[Struct], *without: str) -> dict[str, str]:
    """Columns with the names of the fields of a struct, but for some that are no columns or have another form there."""
    return _same(*(name for name in of.__struct_fields__ if name not in without))


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_NEW: Final = Fields(
    _same("uid", "namespace", "name", "created_at")
    | {"api_group": "group", "user_name": "user", "user_groups": "groups"},
    {"user_groups": tuple[str, ...]},
)
IDENTITY: Final = frozenset({*_NEW.columns, "kinds"})
"""Columns of an AppWrapper that no update changes."""
_STATE: Final = Fields(
    fields_of(
        Record,
        *("uid", "namespace", "name", "created_at", "group", "user", "groups", "enqueue_seq"),
        *("gang", "requirements", "pending", "unhealthy", "attempt"),
    ),
    {
        "more_queues": tuple[str, ...],
        "conditions": tuple[Condition, ...],
        "preempted_at": tuple[datetime, ...],
    },
)
_PENDING: Final = Fields(
    {f"pending_{name}": name for name in Pending.__struct_fields__},
    {
        "pending_clusters": tuple[Rejection, ...],
        "pending_quota": QuotaSummary,
        "pending_preempting": tuple[str, ...],
        "pending_approvals": tuple[str, ...],
    },
)
_NOT_PENDING: Final[Row] = {
    **_PENDING.row(None),
    "pending_queue": "",
    **dict.fromkeys(("pending_clusters", "pending_preempting", "pending_approvals"), ()),
}
_UNHEALTHY: Final = Fields({f"unhealthy_{name}": name for name in NotedIssue.__struct_fields__})
_NOTES: Final = {"provisioning": Provisioning, "growth_request": GrowthRequest, "shrinking": Shrinking}
_ATTEMPT: Final = Fields(fields_of(Attempt, "objects", "assignment", "growth"), _NOTES)
_OBJECT: Final = Fields(fields_of(ObjectRef, "uid") | {"object_uid": "uid"})
_EVENT: Final = Fields(fields_of(Event))

TOGETHER: Final = (frozenset(_PENDING.columns), frozenset({"priority", "priority_slope"}))
"""Groups of columns of which an event has all or none, so that a reader finds them in one event."""


def to_json(rows: Sequence[object]) -> str:
    """The document for one statement; raises `DataRefused` for what JSON in UTF-8 cannot hold."""
    try:
        return codec.dump(rows).decode()
    except (TypeError, ValueError) as error:
        raise DataRefused(str(error)) from error


# --- gangs and requirements --------------------------------------------------------------------------


class _Smaller(Struct, frozen=True):
    """The demand and the requests of a gang in a cluster where it requests less."""

    cluster: str
    demand: Resources
    requests: tuple[Resources, ...]


class _PodSets(Struct, frozen=True, omit_defaults=True):
    """The pod sets of a gang. Their `repels` are those of their sorts, where they have one."""

    sets: tuple[PodSet, ...]
    smaller: tuple[_Smaller, ...] = ()


def _gang_row(gang: Gang) -> Row:
    smaller = (
        _Smaller(cluster, there.demand, tuple(each.requests for each in there.pod_sets))
        for cluster, there in gang.smaller
    )
    sets = (replace(each, repels=()) if each.repels and each.sort else each for each in gang.pod_sets)
    return {"demand": gang.demand, "pod_sets": _PodSets(tuple(sets), tuple(smaller))}


def gang_of(row: Mapping[Any, Any]) -> Gang:
    """The gang for a row of an AppWrapper."""
    found = codec.load(row["pod_sets"], _PodSets)
    gang = Gang(codec.load(row["demand"], Resources), row["pods"], tuple(map(_whole, found.sets)))
    if not found.smaller:
        return gang
    return replace(gang, smaller=tuple((each.cluster, _smaller_of(gang, each)) for each in found.smaller))


def _whole(stored: PodSet) -> PodSet:
    if stored.sort is None:
        return stored
    sort = stored.sort.shared()
    return replace(stored, sort=sort, repels=sort.repels)


def _smaller_of(gang: Gang, there: _Smaller) -> Gang:
    pairs = zip(gang.pod_sets, there.requests, strict=True)
    return Gang(
        there.demand, gang.pods, tuple(replace(pod_set, requests=requests) for pod_set, requests in pairs)
    )


def _requirements_row(requirements: ClusterRequirements) -> Row:
    return {
        "cluster_selector": str(requirements.selector),
        "cluster_preference": str(requirements.prefers),
        "ruled_out": sorted(requirements.ruled_out),
        "unprovisioned": sorted(requirements.unprovisioned),
    }


def requirements_of(row: Mapping[Any, Any]) -> ClusterRequirements:
    """The requirements of a gang for a row of an AppWrapper."""
    names = ("cluster_selector", "cluster_preference", "namespace", "kinds", "ruled_out", "unprovisioned")
    return _requirements(*map(row.__getitem__, names))


@functools.lru_cache(maxsize=10_000)
def _requirements(
    selector: str, preference: str, namespace: str, kinds: bytes, ruled_out: bytes, unprovisioned: bytes
) -> ClusterRequirements:
    """One shared value for equal requirements: few differ among many AppWrappers."""
    found = codec.load(kinds, frozenset[Kind])
    if not (selector or preference or found):
        return ANYWHERE
    return ClusterRequirements(
        selector=stored_selector(selector),
        prefers=stored_selector(preference),
        namespace=namespace,
        kinds=found,
        ruled_out=codec.load(ruled_out, frozenset[tuple[str, str]]),
        unprovisioned=codec.load(unprovisioned, frozenset[tuple[str, str]]),
    )


# --- from values to rows -----------------------------------------------------------------------------


def new_row(record: Record) -> Row:
    """The row to insert for a new record, without its attempt."""
    return {**_NEW.row(record), "kinds": sorted(record.requirements.kinds), **_state(record)}


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
            "demand": change.after.placed_gang.demand,
            "assignment": new.assignment.places,
            "queues": change.after.leaves,
            "growth": _new_growth(old, new),
        }
    ]


def _new_growth(old: Attempt | None, new: Attempt) -> Sequence[Growth] | None:
    """The growths that follow the known ones, by place: with a clock that stands still, two may be equal."""
    known = old.growth if old is not None and old.number == new.number else ()
    added = next(count for count in range(len(new.growth) + 1) if _follows(new.growth, known, count))
    return new.growth[len(new.growth) - added :] or None


def _follows(growth: Sequence[Growth], known: Sequence[Growth], added: int) -> bool:
    """True if `growth` is what `known` becomes by so many further growths; the oldest may be dropped for them."""
    kept = len(growth) - added
    return kept == 0 or (kept <= len(known) and growth[:kept] == known[len(known) - kept :])


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
    """The columns with a new value; folded over all steps they give the row, with null for those that no step has."""
    if before is None:
        # A fifth of a first event would be nulls, which Postgres parses and keeps for good.
        first = new_row(after).items()
        return {name: value for name, value in first if value is not None and name not in OF_EACH_EVENT}
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
    attempt = record.attempt
    has_gang = beside is not None and beside.gang == record.gang
    has_requirements = beside is not None and beside.requirements == record.requirements
    return {
        **_STATE.row(record),
        "pods": record.gang.pods,
        **(_NO_GANG if has_gang else _gang_row(record.gang)),
        **(_NO_REQUIREMENTS if has_requirements else _requirements_row(record.requirements)),
        **(_PENDING.row(record.pending) if record.pending else _NOT_PENDING),
        **_UNHEALTHY.row(record.unhealthy),
        "attempt": attempt.number if attempt else None,
        "cluster": attempt.cluster if attempt else None,
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
    found = {**_NEW.arguments(row), **_STATE.arguments(row), "phase": Phase(row["phase"])}
    found["groups"] = submitter(found["user"], found["groups"]).groups
    return Record(
        **found,
        enqueue_seq=row["enqueue_seq"],
        gang=gang_of(row),
        pending=_pending_of(row),
        unhealthy=_noted_issue_of(row),
        requirements=requirements_of(row),
        attempt=attempt,
    )


def set_aside_record_of(row: Mapping[Any, Any], attempt: Attempt | None) -> Record:
    """The record in place of a row, also of `scheduling.gangs`, that cannot be read; raises nothing for any row.

    It holds what `attempt` holds, by the columns that can be read. Its phase is one in which nobody dispatches,
    preempts or grows a gang: Dispatching if it holds capacity, Suspended if it is queued. Its version is `SET_ASIDE`.
    """
    is_live = attempt is not None and attempt.ended_at is None
    phase = next((each for each in Phase if each == row["phase"]), None)
    if phase in HOLDING or (phase is None and is_live):
        phase = Phase.DISPATCHING
    elif phase in {Phase.QUEUED, None}:
        phase = Phase.SUSPENDED
    return Record(
        uid=row["uid"],
        group=row["api_group"],
        namespace=row["namespace"],
        name=row["name"],
        created_at=row["created_at"],
        phase=phase,
        phase_since=row["phase_since"],
        version=SET_ASIDE,
        enqueue_seq=row["enqueue_seq"],
        queue=row["queue"],
        more_queues=_read(row["more_queues"], tuple[str, ...]) or (),
        priority=row["priority"],
        gang=Gang(readable_demand_of(row) or NOTHING, row["pods"]),
        requirements=ClusterRequirements(kinds=_read(row["kinds"], frozenset[Kind]) or frozenset()),
        attempts=attempt.number if attempt else 0,
        # Its places are of pod sets that it has no more; all that its pods leave is charged to every view.
        attempt=attempt
        and replace(
            attempt, assignment=ASSIGNED_NOWHERE, provisioning=None, growth_request=None, shrinking=None
        ),
        kept_until=row.get("kept_until"),
    )


def readable_demand_of(row: Mapping[Any, Any]) -> Resources | None:
    """The demand of a row; None if it cannot be read."""
    amounts = _read(row["demand"], dict[str, int])
    return None if amounts is None else Resources(amounts)


def _read(document: bytes, type_: type[_Value]) -> _Value | None:
    try:
        return codec.load(document, type_)
    except ValueError:
        return None


def attempt_of(row: Mapping[Any, Any], objects: Iterable[ObjectRef]) -> Attempt:
    """The attempt for a row, with its objects in the order of their items."""
    return Attempt(
        **_ATTEMPT.arguments(row),
        objects=tuple(sorted(objects, key=lambda each: each.item)),
        assignment=_assignment_of(row),
        growth=_growth_of(row),
    )


def _assignment_of(row: Mapping[Any, Any]) -> Assignment:
    return Assignment(codec.load(row["assignment"], tuple[Places, ...]))


def _growth_of(row: Mapping[Any, Any]) -> tuple[Growth, ...]:
    """The latest growths of an attempt, the latest last; the averages of those before are not exact amounts."""
    if row["growth"] is None:
        return ()
    latest = codec.load(row["growth"], list[Raw])[-MOST_GROWTHS_KEPT:]
    return tuple(codec.load(each, Growth) for each in latest)


def object_of(row: Mapping[Any, Any]) -> ObjectRef:
    """The wrapped object for a row."""
    return ObjectRef(**_OBJECT.arguments(row))


def _pending_of(row: Mapping[Any, Any]) -> Pending | None:
    if row["pending_reason"] is None:
        return None
    found = Pending(**_PENDING.arguments(row))
    return replace(found, clusters=tuple(map(_shared, found.clusters))) if found.clusters else found


@functools.lru_cache(maxsize=100_000)
def _shared(rejection: Rejection) -> Rejection:
    """One shared value for equal rejections: with many clusters they would take most of a queue's memory."""
    return rejection


def _noted_issue_of(row: Mapping[Any, Any]) -> NotedIssue | None:
    if row["unhealthy_reason"] is None:
        return None
    return NotedIssue(**_UNHEALTHY.arguments(row))


# --- rows of the view `scheduling.gangs` -------------------------------------------------------------


def queued_or_running_of(row: Mapping[Any, Any]) -> Record:
    """The record for a row of the view `scheduling.gangs`, with what decisions depend on."""
    attempt = None
    if row["number"] is not None:
        attempt = Attempt(
            **_DECIDING_ATTEMPT.arguments(row), assignment=_assignment_of(row), growth=_growth_of(row)
        )
    return Record(
        **{**_DECIDING.arguments(row), "phase": Phase(row["phase"])},
        gang=gang_of(row),
        requirements=requirements_of(row),
        pending=_approvals_awaited(row),
        attempt=attempt,
    )


def _approvals_awaited(row: Mapping[Any, Any]) -> Pending | None:
    """The pending reason of a gang that lacks approvals; None for other gangs, whose reason decides nothing."""
    if row["pending_reason"] != AWAITING_APPROVAL:
        return None
    return Pending(AWAITING_APPROVAL, row["pending_message"])


_DECIDING_ATTEMPT: Final = Fields(_same("number", "cluster", "decided_at", *_NOTES), _NOTES)
_DECIDING: Final = Fields(
    _same(
        *("uid", "namespace", "name", "queue", "phase", "phase_since"),
        *("priority", "priority_slope", "created_at", "aged_from", "enqueue_seq", "eligible_at"),
        *(
            "blocked_since",
            "expected_seconds",
            "limit_seconds",
            "is_preempting",
            "pods_never_preempt",
            "class_never_preempts",
        ),
        *("reason", "message", "more_queues", "preempted_at"),
    )
    | {"api_group": "group", "user_name": "user"},
    {"more_queues": tuple[str, ...], "preempted_at": tuple[datetime, ...]},
)
