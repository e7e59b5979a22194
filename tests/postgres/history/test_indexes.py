"""What is asked for by uid, or for some hours, is looked up by index: history grows, and people wait for answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from testbed.postgres import clone_template, drop_database
from tests.postgres.changes import NOW

# The first to ask for the years has them made.
pytestmark = pytest.mark.timeout(120)

FILL: tuple[LiteralString, ...] = (
    """
    INSERT INTO past_appwrapper
    SELECT 'uid-' || n, 'g', 'ns', 'aw-' || n, 'Job', 'q', 'ann', '[]', 0, at, at, at, at, at + interval '2 h',
           at + interval '3 h', 'Deleted', 'completed', '', '', 'hub', 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 7200, 0, 2, 2, 2
    FROM (SELECT n, %(now)s::timestamptz - n * interval '10 min' AS at FROM generate_series(1, 20000) AS n) AS many
    """,
    """
    INSERT INTO past_attempt
    SELECT uid, namespace, name, queue, user_name, 1, 'hub', submitted_at, submitted_at, submitted_at, ended_at,
           'completed', NULL, '', 7200, 7200, 1, 1, 1, 2, 2, 2, '{}'
    FROM past_appwrapper
    """,
    """
    INSERT INTO event (at, uid, namespace, name, queue, cause, from_phase, to_phase, epoch, change)
    SELECT %(now)s::timestamptz - n / 5 * interval '10 min' + n %% 5 * interval '1 s', 'uid-' || n / 5, 'ns', 'aw', 'q',
           CASE n %% 5 WHEN 4 THEN 'dispatched' ELSE 'blocked' END, CASE WHEN n %% 5 > 0 THEN 'Queued' END,
           CASE n %% 5 WHEN 4 THEN 'Dispatching' ELSE 'Queued' END, 1, '{"pending_reason": "because"}'
    FROM generate_series(5, 100000) AS n
    """,
)


@pytest.fixture(scope="module")
def years(postgres_url: str, database_template: str) -> Iterator[psycopg.Connection]:
    """What is left of twenty thousand AppWrappers."""
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(
        clone_template(postgres_url, database_template, name), autocommit=True
    ) as connection:
        for statement in FILL:
            connection.execute(statement, {"now": NOW})
        connection.execute("VACUUM ANALYZE past_appwrapper, past_attempt, event")
        yield connection
    drop_database(postgres_url, name)


@pytest.mark.parametrize(
    ("query", "indexes"),
    [
        pytest.param("SELECT * FROM history.job_history WHERE uid = 'uid-7'", {"past_appwrapper"}, id="job"),
        pytest.param(
            "SELECT * FROM history.job_history WHERE namespace = 'ns' AND name = 'aw-7'",
            {"past_appwrapper"},
            id="job-by-name",
        ),
        pytest.param(
            "SELECT * FROM history.job_history WHERE name = 'aw-7'",
            {"past_appwrapper"},
            id="job-by-name-wherever",
        ),
        pytest.param(
            "SELECT * FROM history.attempt_history WHERE uid = 'uid-7'", {"past_attempt"}, id="attempts"
        ),
        pytest.param("SELECT * FROM history.state_intervals WHERE uid = 'uid-7'", {"event"}, id="states"),
        pytest.param("SELECT * FROM history.pending_reasons WHERE uid = 'uid-7'", {"event"}, id="reasons"),
        pytest.param("SELECT * FROM history.evictions WHERE uid = 'uid-7'", {"past_attempt"}, id="evictions"),
        pytest.param(
            "SELECT * FROM history.preemptions WHERE uid = 'uid-7'", {"past_attempt"}, id="preemptions"
        ),
        pytest.param(
            "SELECT * FROM history.dispatch_latency WHERE at > %(now)s::timestamptz - interval '1 d'",
            {"past_attempt"},
            id="dispatches-of-a-day",
        ),
        pytest.param(
            "SELECT * FROM history.usage_hourly WHERE hour > %(now)s::timestamptz - interval '1 d'",
            {"past_attempt"},
            id="usage-of-a-day",
        ),
        pytest.param(
            "SELECT * FROM history.fairness_daily WHERE day > %(now)s::timestamptz - interval '1 d'",
            {"past_attempt"},
            id="fairness-of-a-day",
        ),
        pytest.param(
            "SELECT * FROM history.overtakes WHERE uid = 'uid-7'",
            {"past_appwrapper", "event"},
            id="overtaken",
        ),
        pytest.param(
            "SELECT * FROM history.overtakes WHERE overtaken_by = 'uid-7'",
            {"past_appwrapper", "event"},
            id="overtaking",
        ),
        pytest.param(
            "SELECT * FROM history.overtakes WHERE at > %(now)s::timestamptz - interval '1 h'",
            {"past_appwrapper", "event"},
            id="overtakes-of-an-hour",
        ),
    ],
)
def test_it_is_found_by_index(query: LiteralString, indexes: set[str], years: psycopg.Connection) -> None:
    plan = years.execute(f"EXPLAIN {query}", {"now": NOW}).fetchall()
    lines = [line for (line,) in plan]
    assert {name for name in indexes if not any(f"{name}_default_" in line for line in lines)} == set(), lines
    assert [line for line in lines if "Seq Scan on past_" in line or "Seq Scan on event" in line] == []
