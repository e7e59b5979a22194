"""Questions about history are answered by index, or from the months they are about: what they cost does not grow."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from benchmarks import past, plans
from benchmarks.past import Past
from benchmarks.questions import COMMANDS, FILTERED, LONG, UNFILTERED, VIEWS, Question, Subject
from dispatcher.core.model.records.record import Phase
from dispatcher.store.database import Database
from dispatcher.store.history.partitions import NUMBERED, PARTITIONED, drop_expired
from dispatcher.store.leadership import Leadership
from dispatcher.store.readers.reports import NO_FILTER, Reports, Window
from dispatcher.store.readers.reports import reports as reports_of
from testbed.postgres import clone_template, drop_database
from tests.postgres.changes import NOW

pytestmark = pytest.mark.timeout(120)  # to write the past takes as long as the machine is slow

PLANNED_AT = datetime.now(UTC)
PAST = Past(appwrappers=4000, days=60, sample_seconds=7200, until=PLANNED_AT)
WAITING, RUNNING = 1000, 3000
OURS = "team-7"


@pytest.fixture(scope="module")
def past_url(postgres_url: str, database_template: str) -> Iterator[str]:
    """A database with two months of history, and a queue."""
    name = f"aw_test_{uuid.uuid4().hex}"
    url = clone_template(postgres_url, database_template, name)
    past.write_past(url, PAST)
    past.write_present(url, WAITING, RUNNING, PLANNED_AT)
    yield url
    drop_database(postgres_url, name)


@pytest.fixture
def connection(past_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(past_url, options="-c search_path=history,public") as connection:
        yield connection


@pytest.fixture
async def reports(past_url: str) -> AsyncIterator[Reports]:
    async with reports_of(past_url, timedelta(seconds=30)) as found:
        yield found


@pytest.fixture
def subject(connection: psycopg.Connection) -> Subject:
    """One of long ago."""
    found = connection.execute(
        "SELECT namespace, name, uid FROM public.past_appwrapper WHERE attempts = 2 ORDER BY ended_at LIMIT 1"
    ).fetchone()
    assert found is not None
    return Subject(*found)


@pytest.fixture
def tenant(past_url: str) -> Iterator[psycopg.Connection]:
    """A session of a role that was given one of forty namespaces; nothing is left of the role."""
    name = f"aw_tenant_{uuid.uuid4().hex[:8]}"
    role = sql.Identifier(name)
    with psycopg.connect(past_url) as connection, connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE ROLE {} IN ROLE dispatcher_tenant").format(role))
        connection.execute("INSERT INTO history_grant VALUES (%s, %s)", [name, OURS])
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(role))
        yield connection


async def plans_of(connection: psycopg.Connection, asked: Awaitable[object]) -> list[plans.Node]:
    """How all is answered that is sent to answer it; a query that reads no table, as of the time, is left out."""
    with plans.recorded() as sent:
        assert await asked
    found = [plans.explain(connection, *each) for each in plans.queries(sent).items()]
    return [each for each in found if plans.accesses(each)]


def read_whole(*found: plans.Node) -> set[str]:
    return {table for table, access in plans.accesses(*found).items() if access.whole}


def command(name: str) -> Callable[[Reports, Subject], Awaitable[int]]:
    return next(each.ask for each in COMMANDS if each.name == name)


async def test_all_about_one_name_is_found_by_index(
    connection: psycopg.Connection, reports: Reports, subject: Subject
) -> None:
    found = await plans_of(connection, command("show NAME")(reports, subject))
    tables = {"appwrapper", "attempt", "past_appwrapper", "past_attempt", "event"}
    assert (set(plans.accesses(*found)), read_whole(*found)) == (tables, set())


async def test_history_of_some_days_reads_their_months_and_no_others(
    connection: psycopg.Connection, reports: Reports
) -> None:
    window = Window(PLANNED_AT - timedelta(days=7), PLANNED_AT)
    found = await plans_of(connection, reports.jobs(window, NO_FILTER, 50))
    months = {f"past_appwrapper_{moment:%Y_%m}" for moment in (window.since, window.until)}
    read = set[str]().union(*map(plans.relations, found))
    # Of a gang that failed, the termination message is found by its uid, in the months from its submission to its end.
    events = {name for name in read if name.startswith("event_")}
    assert read - events == months | {"past_appwrapper_default", "appwrapper", "attempt"}
    assert "event" not in read_whole(*found)


@pytest.mark.parametrize("name", ["usage --since 7d --per hour", "usage --since 30d", "usage --since 365d"])
async def test_usage_by_the_hour_finds_the_attempts_of_each_hour_by_index(
    connection: psycopg.Connection, reports: Reports, subject: Subject, name: str
) -> None:
    (found,) = await plans_of(connection, command(name)(reports, subject))
    assert "past_attempt" not in read_whole(found)
    assert any(node.get("Index Name", "").endswith("_tstzrange_idx") for node in plans.nodes(found))


def test_attempts_of_others_are_left_out_where_a_tenants_query_reads_them(
    connection: psycopg.Connection, tenant: psycopg.Connection
) -> None:
    counts = "SELECT count(*) FILTER (WHERE namespace = %s), count(*) FROM public.past_attempt"
    ours, of_all = connection.execute(counts, [OURS]).fetchone() or (0, 0)
    assert 0 < 10 * ours < of_all
    asked = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) SELECT namespace, node FROM tenant.node_history"
    found = tenant.execute(asked).fetchone()
    assert found is not None
    read = [
        node["Actual Rows"] * node["Actual Loops"]
        for node in plans.nodes(found[0][0]["Plan"])
        if node.get("Relation Name", "").startswith("past_attempt")
    ]
    assert sum(read) == ours


def test_tenant_who_asks_for_a_moment_reads_the_months_since_then(tenant: psycopg.Connection) -> None:
    moment = PLANNED_AT - timedelta(days=7)
    asked = (
        "SELECT namespace, node FROM tenant.node_history WHERE tstzrange(decided_at, ended_at) @> %(at)s "
        "AND decided_at <= %(at)s AND (ended_at > %(at)s OR ended_at IS NULL)"
    )
    read = plans.relations(plans.explain(tenant, asked, {"at": moment}))
    months = {f"past_attempt_{month:%Y_%m}" for month in (moment, PLANNED_AT)}
    assert {name for name in read if name.startswith("past_attempt")} == months | {"past_attempt_default"}


def test_why_one_waited_is_found_by_its_uid(connection: psycopg.Connection, subject: Subject) -> None:
    (question,) = (each for each in FILTERED if each.name == "pending_reasons of one")
    found = plans.explain(connection, question.query, question.parameters(subject.uid))
    assert (set(plans.accesses(found)), read_whole(found)) == ({"event"}, set())


async def test_the_queue_is_read_by_the_index_of_queued_appwrappers_and_sorts_no_others(
    connection: psycopg.Connection, reports: Reports, subject: Subject
) -> None:
    (found,) = await plans_of(connection, command("queue")(reports, subject))
    assert "ix_appwrapper_queued" in {node.get("Index Name") for node in plans.nodes(found)}
    windows = [node for node in plans.nodes(found) if node["Node Type"] == "WindowAgg"]
    sorts = [node for window in windows for node in window["Plans"] if "Sort" in node["Node Type"]]
    (sort,) = sorts  # for the positions
    assert sort["Plan Rows"] < 2 * WAITING


async def test_ended_appwrappers_are_found_by_an_index(
    connection: psycopg.Connection,
) -> None:
    found = plans.explain(
        connection,
        "SELECT uid FROM public.appwrapper WHERE phase = %(phase)s AND phase_since < %(before)s "
        "ORDER BY phase_since LIMIT 500",
        {"phase": str(Phase.DELETED), "before": datetime.now(UTC) - timedelta(days=1)},
    )
    assert [node.get("Index Name") for node in plans.nodes(found)] == [None, "ix_appwrapper_deleted"]


async def test_old_months_are_dropped_whole_and_none_is_read_for_that(
    connection: psycopg.Connection, database: Database, leadership: Leadership, database_url: str
) -> None:
    ancient = datetime(2020, 2, 1, tzinfo=UTC)
    with psycopg.connect(database_url) as other:
        for table in PARTITIONED:
            past.make_partition(other, table, ancient)
    with plans.recorded() as sent:
        dropped = await drop_expired(database, leadership.lease, datetime.now(UTC), timedelta(days=400))
    assert dropped == [f"{table}_2020_02" for table in PARTITIONED]
    changing = {
        statement: values
        for statement, values in sent.items()
        if statement.startswith(("DELETE", "SELECT min("))
    }
    assert len(changing) == 2 * len(PARTITIONED) + len(NUMBERED)
    read = set[str]().union(*(plans.relations(plans.explain(connection, *each)) for each in changing.items()))
    assert read == {*(f"{table}_default" for table in PARTITIONED), *NUMBERED}
    others = sent.keys() - changing.keys()
    assert all(
        each.startswith(("DROP TABLE", "SET", "SELECT 1 FROM leader", "SELECT c.relname", "UPDATE hub"))
        for each in others
    )


@pytest.mark.parametrize("question", [*FILTERED, *UNFILTERED, *LONG], ids=lambda each: each.name)
def test_the_reader_may_run_the_queries_of_the_benchmark(
    connection: psycopg.Connection, subject: Subject, question: Question
) -> None:
    connection.execute("SET ROLE dispatcher_reader")
    assert plans.explain(connection, question.query, question.parameters(subject.uid))


def test_the_benchmark_reads_every_view_of_the_reader_whole_except_overtakes(
    connection: psycopg.Connection,
) -> None:
    found = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'history'::regnamespace AND relkind = 'v' "
        "AND has_table_privilege('dispatcher_reader', oid, 'SELECT')"
    ).fetchall()
    assert {*VIEWS, "overtakes"} == {name for (name,) in found}


# -----------------------------------------------------------------------------------------------------------
# What is asked for by uid, or for some hours, is looked up by index: history grows, and people wait for
# answers.


# The first to ask for the years has them made.

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
        pytest.param("SELECT * FROM history.node_history WHERE uid = 'uid-7'", {"past_attempt"}, id="nodes"),
        pytest.param(
            "SELECT * FROM history.node_history "
            "WHERE tstzrange(decided_at, ended_at) @> %(now)s::timestamptz - interval '1 d'",
            {"past_attempt"},
            id="nodes-at-a-moment",
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
