"""Every view says of random lives what an oracle says that never saw the SQL: the same rows, the same columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from dispatcher.core.lifecycle.transitions import Cause
from tests.postgres.history import oracle
from tests.postgres.history.attempts import tries
from tests.postgres.history.conftest import Past
from tests.postgres.history.oracle import Lives, Row

# The first to ask for a history has it made.
pytestmark = pytest.mark.timeout(120)

VIEWS: dict[str, Callable[[Lives, datetime], Iterable[Row]]] = {
    "job_history": oracle.job_history,
    "attempt_history": oracle.attempt_history,
    "state_intervals": oracle.state_intervals,
    "pending_reasons": oracle.pending_reasons,
    "wait_stats_daily": oracle.wait_stats_daily,
    "usage_hourly": oracle.usage_hourly,
    "evictions": oracle.evictions,
    "preemptions": oracle.preemptions,
    "failures_daily": oracle.failures_daily,
    "dispatch_latency": oracle.dispatch_latency,
    "overtakes": oracle.overtakes,
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_says_what_happened(view: str, past: Past) -> None:
    now, found = asked(past.url, view)
    expected = in_order(VIEWS[view](past.lives, now))
    assert [columns(row) for row in found] == [columns(row) for row in expected]
    assert [exact(row) for row in found] == [exact(row) for row in expected]
    for row, right in zip(found, expected, strict=True):
        assert measured(row) == pytest.approx(measured(right), rel=1e-9, abs=1e-6)


ELSEWHERE = {
    Cause.AWAITING_APPROVAL,
    Cause.APPROVED,
    Cause.PROVISIONING,
    Cause.PROVISIONED,
    Cause.PROVISIONING_FAILED,
    Cause.PROVISIONING_REFUSED,
    Cause.GRANTED,
    Cause.GROWTH_WAITS,
    Cause.SURPLUS_PREEMPTED,
    Cause.GROWTH_TAKEN_BACK,
    Cause.NOTIFICATIONS_CHANGED,
}
"""Files beside this folder have these: test_lives.py, and those of provisioning, growth requests, surplus pods and
notifications."""


def test_the_lives_leave_nothing_out(past: Past) -> None:
    causes = {fact.cause for life in past.lives.values() for fact in life.facts}
    missing = set(Cause) - causes - {Cause.RECOVERED, Cause.ITEMS_DONE} - ELSEWHERE
    assert missing == set(), "give the walk another seed"


def test_overtakes_are_of_every_kind(past: Past) -> None:
    _, found = asked(past.url, "overtakes")
    kinds = Counter(row["why"] for row in found)
    assert set(kinds) == {"priority", "not_eligible", "backfill", "quota", "fits_elsewhere", "unexplained"}


def test_preemptions_are_for_gangs_known_and_forgotten(past: Past) -> None:
    _, found = asked(past.url, "preemptions")
    kinds = {(row["by_uid"] is not None, row["by_name"] is not None) for row in found}
    assert kinds == {(True, True), (True, False)}


def test_gangs_of_drained_queues_are_evicted(past: Past) -> None:
    _, found = asked(past.url, "evictions")
    assert "QueueStopped" in {row["reason"] for row in found}


def test_some_attempts_were_charged_in_other_queues_than_their_appwrapper_is_in(past: Past) -> None:
    made = [(each.queues, life.record.leaves) for life in past.lives.values() for each in tries(life)]
    assert any(charged[0] != now[0] for charged, now in made)
    assert any(len(charged) > 1 for charged, _ in made)


def test_reader_role_may_read_every_view(past: Past) -> None:
    with psycopg.connect(past.url) as connection:
        connection.execute("SET ROLE dispatcher_reader")
        for view in VIEWS:
            query = sql.SQL("SELECT * FROM {}").format(sql.Identifier("history", view))
            assert connection.execute(query).fetchone() is not None


def asked(url: str, view: str) -> tuple[datetime, list[Row]]:
    """What a view says, and when it was asked: whatever is going on still is counted up to then."""
    query = sql.SQL("SELECT statement_timestamp() AS asked_at, {0}.* FROM history.{0}").format(
        sql.Identifier(view)
    )
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(query).fetchall()
    assert rows, "a view that says nothing proves nothing"
    now = rows[0]["asked_at"]
    return now, in_order({name: value for name, value in row.items() if name != "asked_at"} for row in rows)


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(value) for value in exact(row).values()])


def columns(row: Row) -> list[str]:
    return list(row)


def exact(row: Row) -> Row:
    return {name: value for name, value in row.items() if not isinstance(value, float)}


def measured(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, float)}
