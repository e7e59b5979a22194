"""Records as rows and back: exact, complete, and refusing what would be lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from dispatcher.api.selector import LONGEST_SELECTOR
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import (
    HOLDING,
    MOST_GROWTHS_KEPT,
    Attempt,
    Change,
    Event,
    Growth,
    ObjectRef,
    Phase,
    Record,
)
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.errors import DataRefused
from dispatcher.store import rows
from dispatcher.store.state import queue
from tests.unit.store.records import WRITTEN_REQUIREMENTS, records, selector_of_many

NOW = datetime(2026, 11, 20, tzinfo=UTC)
FIRST = ObjectRef(0, "v1", "Pod", "default", "a")
SECOND = ObjectRef(1, "v1", "Pod", "default", "b")


def make_record(phase: Phase = Phase.DISPATCHING, attempt: Attempt | None = None) -> Record:
    return Record("uid", "group", "default", "aw", NOW, phase, NOW, attempt=attempt)


def make_attempt(*objects: ObjectRef, number: int = 1, ended_at: datetime | None = None) -> Attempt:
    return Attempt(number, "hub", NOW, objects, ended_at=ended_at)


def make_change(before: Record | None, after: Record) -> Change:
    return Change(before, after, ())


def as_postgres_reads(document: str, types: Mapping[str, str]) -> list[dict[str, object]]:
    """What `json_to_recordset` makes of it, as the driver hands it on."""
    return [
        {column: read_from(value, types[column]) for column, value in row.items()}
        for row in json.loads(document)
    ]


def read_from(value: Any, type_: str) -> object:  # noqa: ANN401
    if value is not None and type_ == "TIMESTAMP WITH TIME ZONE":
        return datetime.fromisoformat(value)
    if value is not None and type_ == "JSONB":
        return json.dumps(value).encode()
    return value


@given(records)
def test_any_record_survives_the_way_to_rows_and_back(record: Record) -> None:
    change = make_change(None, record)
    (row,) = as_postgres_reads(rows.to_json([rows.new_row(record)]), queue.NEW_COLUMNS)
    found = None
    objects = as_postgres_reads(rows.to_json(rows.object_rows(change)), queue.OBJECT_COLUMNS)
    for each in as_postgres_reads(rows.to_json(rows.attempt_rows(change)), queue.ATTEMPT_COLUMNS):
        found = rows.attempt_of(each, map(rows.object_of, objects))
    assert rows.record_of({**row, "enqueue_seq": 0}, found) == record


@pytest.mark.parametrize("written", WRITTEN_REQUIREMENTS)
def test_selector_at_the_bound_of_what_users_write_is_read_back(written: str) -> None:
    selector = selector_of_many(written, LONGEST_SELECTOR)
    required = ClusterRequirements(selector, selector, "default", frozenset({("v1", "Pod")}))
    record = replace(make_record(), requirements=required)
    (row,) = as_postgres_reads(rows.to_json([rows.new_row(record)]), queue.NEW_COLUMNS)
    assert rows.requirements_of(row) == required


# --- rows that cannot be read ----------------------------------------------------------------------------------

JSON_COLUMNS = sorted(name for name, type_ in queue.NEW_COLUMNS.items() if type_ == "JSONB")
DAMAGED = {
    **dict.fromkeys(JSON_COLUMNS, b'{"no": ['),
    "cluster_selector": "a in",
    "cluster_preference": "a in",
    "phase": "Unheard",
}


def row_of(record: Record) -> dict[Any, Any]:
    (row,) = as_postgres_reads(rows.to_json([rows.new_row(record)]), queue.NEW_COLUMNS)
    return {**row, "enqueue_seq": 7}


@pytest.mark.parametrize("column", DAMAGED)
def test_gang_whose_row_cannot_be_read_holds_what_it_held(column: str) -> None:
    growth = (Growth(NOW, Resources({"cpu": 50})),)
    attempt = replace(make_attempt(FIRST), growth=growth)
    gang = Gang(Resources({"cpu": 100}), 2)
    record = replace(make_record(Phase.RUNNING, attempt), gang=gang, queue="q", more_queues=("r",))
    aside = rows.set_aside_record_of({**row_of(record), column: DAMAGED[column]}, attempt)
    assert (aside.is_set_aside, aside.phase, aside.attempt) == (True, Phase.DISPATCHING, attempt)
    assert (aside.uid, aside.key, aside.enqueue_seq) == (record.uid, record.key, 7)
    assert aside.held == (Resources({"cpu": 50}) if column == "demand" else record.held)
    assert aside.leaves == (("q",) if column == "more_queues" else record.leaves)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        *((each, Phase.DISPATCHING) for each in sorted(HOLDING)),
        (Phase.QUEUED, Phase.SUSPENDED),
        (Phase.SUSPENDED, Phase.SUSPENDED),
        (Phase.COMPLETED, Phase.COMPLETED),
        (Phase.FAILED, Phase.FAILED),
    ],
)
def test_gang_that_is_set_aside_is_neither_dispatched_nor_preempted(phase: Phase, expected: Phase) -> None:
    attempt = make_attempt(FIRST) if phase in HOLDING else None
    aside = rows.set_aside_record_of(row_of(make_record(phase)), attempt)
    assert aside.phase is expected
    active = active_gang(aside, is_unreachable=False)
    assert active is None or (active.is_fixed and not active.is_leaving)


def test_gang_in_an_unknown_phase_without_a_live_attempt_is_not_dispatched() -> None:
    row = {**row_of(make_record(Phase.QUEUED)), "phase": "Unheard"}
    assert rows.set_aside_record_of(row, None).phase is Phase.SUSPENDED
    assert rows.set_aside_record_of(row, make_attempt(ended_at=NOW)).phase is Phase.SUSPENDED


def test_every_field_of_a_record_has_a_column() -> None:
    of_other_names = {
        "group",
        "gang",
        "pending",
        "unhealthy",
        "enqueue_seq",
        "requirements",
        "user",
        "groups",
    }
    assert set(Record.__struct_fields__) - of_other_names <= queue.NEW_COLUMNS.keys()


def test_every_column_that_is_written_has_a_value() -> None:
    before = make_record(Phase.QUEUED)
    change = Change(
        before, make_record(attempt=make_attempt(FIRST)), (Event(NOW, "dispatched", None, Phase.QUEUED),)
    )
    assert rows.new_row(before).keys() == queue.NEW_COLUMNS.keys()
    assert rows.changed_row(before, change.after).keys() == {
        "uid",
        "expected_version",
        *queue.STATE_COLUMNS,
    }
    assert rows.attempt_rows(change)[0].keys() == queue.ATTEMPT_COLUMNS.keys()
    assert rows.object_rows(change)[0].keys() == queue.OBJECT_COLUMNS.keys()
    assert rows.event_rows(change)[0].keys() == queue.EVENT_COLUMNS.keys()


def test_large_parts_that_did_not_change_are_not_sent() -> None:
    before = make_record()
    row = rows.changed_row(before, replace(before, version=1, message="new"))
    assert (row["demand"], row["pod_sets"], row["conditions"]) == (None, None, None)
    assert (row["expected_version"], row["version"], row["message"]) == (0, 1, "new")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("\ud800", id="half-a-character"),
        pytest.param(object(), id="no-value"),
    ],
)
def test_value_that_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(DataRefused):
        rows.to_json([{"value": value}])


def test_an_attempt_is_written_when_it_is_new_or_changed_only() -> None:
    queued, known = make_record(Phase.QUEUED), make_attempt()
    dispatched = make_record(attempt=known)
    assert len(rows.attempt_rows(make_change(queued, dispatched))) == 1
    assert rows.attempt_rows(make_change(dispatched, replace(dispatched, message="m"))) == []
    ended = replace(dispatched, attempt=replace(known, ended_at=NOW))
    assert len(rows.attempt_rows(make_change(dispatched, ended))) == 1


@pytest.mark.parametrize("successor", [None, make_attempt(number=2)])
def test_a_live_attempt_cannot_be_lost_sight_of(successor: Attempt | None) -> None:
    before = make_record(attempt=make_attempt())
    with pytest.raises(DataRefused, match="attempt 1 is live"):
        rows.attempt_rows(make_change(before, replace(before, attempt=successor)))
    over = make_record(attempt=make_attempt(ended_at=NOW))
    rows.attempt_rows(make_change(over, replace(over, attempt=successor)))


def test_objects_are_written_when_new_or_changed_only() -> None:
    before = make_record(attempt=make_attempt(FIRST, SECOND))
    created = replace(before, attempt=make_attempt(replace(FIRST, uid="1"), replace(SECOND, done=True)))
    written = rows.object_rows(make_change(before, created))
    assert [(row["item"], row["object_uid"], row["done"]) for row in written] == [
        (0, "1", False),
        (1, "", True),
    ]
    assert rows.object_rows(make_change(before, before)) == []


@pytest.mark.parametrize("phase", [Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING])
def test_all_objects_are_written_when_they_are_to_go(phase: Phase) -> None:
    before = make_record(attempt=make_attempt(FIRST, SECOND))
    written = rows.object_rows(make_change(before, replace(before, phase=phase)))
    assert [(row["item"], row["intent"]) for row in written] == [(0, "delete"), (1, "delete")]


def test_an_attempt_does_not_forget_objects() -> None:
    before = make_record(attempt=make_attempt(FIRST, SECOND))
    with pytest.raises(DataRefused, match="forget"):
        rows.object_rows(make_change(before, replace(before, attempt=make_attempt(FIRST))))
    over = make_record(attempt=make_attempt(FIRST, ended_at=NOW))
    rows.object_rows(make_change(over, replace(over, attempt=make_attempt(number=2))))


A, B = Growth(NOW, Resources({"cpu": 1})), Growth(NOW, Resources({"cpu": 2}), count=1)
"""With a clock that stands still, growths have one time."""
FULL = (A, B) * (MOST_GROWTHS_KEPT // 2)


@pytest.mark.parametrize(
    ("known", "growth", "added"),
    [
        pytest.param((), (), (), id="none"),
        pytest.param((), (A,), (A,), id="the-first"),
        pytest.param((A,), (A,), (), id="none-further"),
        pytest.param((A,), (A, B), (B,), id="another"),
        pytest.param((A, B), (A, B, A), (A,), id="equal-to-one-before"),
        pytest.param((A,), (A, A), (A,), id="equal-to-the-last"),
        pytest.param(FULL, FULL, (), id="none-further-of-as-many-as-are-kept"),
        pytest.param(FULL, (*FULL[1:], A), (A,), id="the-oldest-is-dropped"),
        pytest.param(FULL, (*FULL[2:], A, A), (A, A), id="two-oldest-are-dropped"),
    ],
)
def test_growths_are_stored_that_follow_the_known_ones_in_place(
    known: tuple[Growth, ...], growth: tuple[Growth, ...], added: tuple[Growth, ...]
) -> None:
    before = make_record(Phase.RUNNING, replace(make_attempt(), growth=known))
    after = replace(before, attempt=replace(make_attempt(), growth=growth, preempted_by="so-that-it-differs"))
    (row,) = rows.attempt_rows(make_change(before, after))
    whole = rows.attempt_rows(
        make_change(None, replace(after, attempt=replace(make_attempt(), growth=added)))
    )
    assert row["growth"] == whole[0]["growth"]
    assert row["growth"] == (added or None)


def test_the_first_event_leaves_out_empty_columns_and_a_later_one_names_what_becomes_empty() -> None:
    """A fold has null for a column that no event names."""
    waiting = replace(make_record(), eligible_at=NOW)
    event = Event(NOW, "submitted", None, Phase.QUEUED)
    (first,) = rows.event_rows(Change(None, waiting, (event,)))
    kept = {name: value for name, value in rows.new_row(waiting).items() if value is not None}
    assert first["change"] == {name: value for name, value in kept.items() if name not in rows.OF_EACH_EVENT}
    (freed,) = rows.event_rows(Change(waiting, replace(waiting, eligible_at=None), (event,)))
    assert freed["change"] == {"eligible_at": None}
