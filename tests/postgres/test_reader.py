"""Who only reads gets few connections, no room on the disk and no time without end; tenants see what is theirs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg import sql

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.preemption import Reason
from dispatcher.store import migrate
from dispatcher.store.database import Database
from dispatcher.store.readers import overdue, reader
from dispatcher.store.readers.overdue import end_overdue
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import drop_database, url_of
from tests.postgres.changes import (
    LATER,
    committed,
    make_created,
    make_dispatch,
    make_submit,
    move_deleted,
    rows_of,
)
from tests.postgres.test_migrations import with_user

LONG: Final = timedelta(minutes=5)
PAGE: Final = Path(__file__).parents[2] / "docs" / "history.md"
SQL_BLOCKS: Final = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def own_url(postgres_url: str) -> Iterator[str]:
    """A database that was migrated itself: a clone does not have what a database grants to all."""
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = url_of(postgres_url, name)
    assert migrate.migrate(url) == ()
    yield url
    drop_database(postgres_url, name)


@pytest.fixture
def tenant(postgres_url: str) -> Iterator[str]:
    """A role that may log in and is given nothing but what tenants have."""
    name = f"aw_tenant_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE dispatcher_tenant").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


REFUSED: Final[tuple[tuple[LiteralString, str], ...]] = (
    ("CREATE TEMPORARY TABLE mine (n int)", "permission denied to create temporary tables"),
    ("SELECT lo_create(0)", "permission denied for function lo_create"),
    ("SELECT lo_from_bytea(0, 'x')", "permission denied for function lo_from_bytea"),
    ("SELECT pg_advisory_lock(1)", "permission denied for function pg_advisory_lock"),
    ("SELECT pg_try_advisory_xact_lock_shared(1)", "permission denied for function pg_try_advisory"),
    ("SELECT pg_notify('mine', 'x')", "permission denied for function pg_notify"),
    (
        "SELECT pg_logical_emit_message(false, 'mine', 'x')",
        "permission denied for function pg_logical_emit_message",
    ),
    ("SELECT pg_current_xact_id()", "permission denied for function pg_current_xact_id"),
    ("DO 'BEGIN LOOP NOTIFY mine; END LOOP; END'", "permission denied for language plpgsql"),
    ("SET temp_file_limit = -1", "permission denied to set parameter"),
    ("CREATE TABLE public.mine (n int)", "permission denied for schema public"),
    ("CREATE FUNCTION history.mine() RETURNS int RETURN 1", "permission denied for schema history"),
    ("ALTER ROLE dispatcher_reader CONNECTION LIMIT -1", "permission denied"),
    ("SELECT * FROM public.appwrapper", "permission denied for table appwrapper"),
    ("SELECT * FROM public.history_grant", "permission denied for table history_grant"),
)


@pytest.fixture
def tenant_of_the_page(own_url: str) -> Iterator[str]:
    """A role that was made by the very statements of docs/history.md."""
    with made_as_the_page_says(own_url, "team_a") as name:
        yield name


@pytest.fixture
def reader_of_the_page(own_url: str) -> Iterator[str]:
    """A member of the reader role that was made by the very statements of docs/history.md."""
    with made_as_the_page_says(own_url, "ada") as name:
        yield name


@contextmanager
def made_as_the_page_says(url: str, example: str) -> Iterator[str]:
    """A role with a name of its own in the place of the example's."""
    (block,) = (each for each in SQL_BLOCKS if f"CREATE ROLE {example} " in each)
    name = f"aw_{example}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(re.sub(rf"\b{example}\b", name, block).encode())
        admin.execute("ALTER ROLE dispatcher_reader PASSWORD NULL")
        yield name
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize(("statement", "why"), REFUSED)
def test_neither_reader_nor_tenant_can_fill_the_disk_or_hold_locks(
    own_url: str, tenant_of_the_page: str, statement: LiteralString, why: str
) -> None:
    for name in (reader.READER, tenant_of_the_page):
        with psycopg.connect(with_user(own_url, name), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            with pytest.raises(psycopg.Error, match=why):
                connection.execute(statement)


def test_reader_has_few_connections_and_little_room_for_sorting(own_url: str) -> None:
    limits = rows_of(own_url, "SELECT rolconnlimit FROM pg_roles WHERE rolname = 'dispatcher_reader'")
    assert limits == [(reader.MOST_CONNECTIONS,)]
    assert rows_of(with_user(own_url, reader.READER), "SHOW temp_file_limit") == [(reader.TEMP_FILES,)]


def test_roles_made_as_the_page_says_have_few_connections_and_little_room_for_sorting(
    own_url: str, tenant_of_the_page: str, reader_of_the_page: str
) -> None:
    query = "SELECT rolconnlimit FROM pg_roles WHERE rolname = %s"
    for name in (tenant_of_the_page, reader_of_the_page):
        assert rows_of(own_url, query, name) == [(reader.MEMBERS_CONNECTIONS,)]
        assert rows_of(with_user(own_url, name), "SHOW temp_file_limit") == [(reader.TEMP_FILES,)]
        assert rows_of(with_user(own_url, name), "SHOW idle_session_timeout") == [("10min",)]


def test_migrating_again_limits_roles_that_were_made_without_limits(own_url: str, tenant: str) -> None:
    assert reader.set_up(own_url) == ()

    query = "SELECT rolconnlimit FROM pg_roles WHERE rolname = %s"
    assert rows_of(own_url, query, tenant) == [(reader.MEMBERS_CONNECTIONS,)]
    assert rows_of(with_user(own_url, tenant), "SHOW temp_file_limit") == [(reader.TEMP_FILES,)]


def test_setting_up_the_reader_again_leaves_the_settings_of_an_operator(own_url: str) -> None:
    with psycopg.connect(own_url, autocommit=True) as connection:
        connection.execute("ALTER ROLE dispatcher_reader CONNECTION LIMIT 7")
        try:
            assert reader.set_up(own_url) == ()
            query = "SELECT rolconnlimit FROM pg_roles WHERE rolname = 'dispatcher_reader'"
            assert connection.execute(query).fetchone() == (7,)
        finally:
            connection.execute(f"ALTER ROLE dispatcher_reader CONNECTION LIMIT {reader.MOST_CONNECTIONS}")


def test_set_up_by_an_owner_without_rights_over_roles_lists_the_remaining_statements(
    postgres_url: str, own_url: str
) -> None:
    owner = f"aw_owner_{uuid.uuid4().hex[:8]}"
    database = own_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(owner)))
        admin.execute("GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO PUBLIC")
        admin.execute("DROP FUNCTION history.answer")
        try:
            admin.execute(
                sql.SQL("ALTER DATABASE {} OWNER TO {}").format(
                    sql.Identifier(database), sql.Identifier(owner)
                )
            )
            left = reader.set_up(with_user(own_url, owner))
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO postgres").format(sql.Identifier(database)))
            admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(owner)))
    assert [each.split()[0] for each in left] == ["DO", "GRANT"]


# --- timeouts that the role cannot lift ------------------------------------------------------------------


def is_ended(connection: psycopg.Connection) -> bool:
    """Return once the server has ended a session; while it lives, it is asked for longer than any test takes."""
    try:
        connection.execute("SELECT pg_sleep(60)")
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.parametrize("role", ["reader", "tenant"])
async def test_session_that_takes_too_long_is_ended_whatever_it_has_set(
    database: Database, database_url: str, tenant: str, role: str
) -> None:
    name = {"reader": reader.READER, "tenant": tenant}[role]
    with psycopg.connect(with_user(database_url, name), autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        connection.execute("BEGIN")
        connection.execute("SELECT 1")
        assert await end_overdue(database, LONG) == []
        ended = await end_overdue(database, timedelta(0))
        assert ended == [f"{name}: a transaction that takes too long"]
        assert is_ended(connection)


async def test_session_that_is_idle_in_a_transaction_is_ended(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "IDLE_SECONDS", 0)
    with psycopg.connect(with_user(database_url, reader.READER)) as connection:
        connection.execute("SELECT 1")
        assert await end_overdue(database, LONG) == [f"{reader.READER}: idle in a transaction"]
        assert is_ended(connection)


async def test_session_that_holds_an_advisory_lock_is_ended_where_it_could_not_be_refused(
    database: Database, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO PUBLIC")
    with psycopg.connect(with_user(database_url, reader.READER), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        assert await end_overdue(database, LONG) == [f"{reader.READER}: advisory locks"]
        assert is_ended(connection)


async def test_session_that_is_silent_for_long_is_ended(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(with_user(database_url, reader.READER), autocommit=True) as connection:
        connection.execute("SELECT 1")
        assert await end_overdue(database, LONG) == []
        monkeypatch.setattr(overdue, "IDLE_SESSION_SECONDS", 0)
        assert await end_overdue(database, LONG) == [f"{reader.READER}: idle for long"]
        assert is_ended(connection)


async def test_newest_sessions_beyond_the_bound_are_ended_for_each_user(
    database: Database, database_url: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "MOST_CONNECTIONS", 2)
    with ExitStack() as stack:
        mine, other = (
            [stack.enter_context(psycopg.connect(with_user(database_url, name))) for _ in range(count)]
            for name, count in ((tenant, 3), (reader.READER, 2))
        )
        assert await end_overdue(database, LONG) == [f"{tenant}: more connections than a reader may have"]
        assert is_ended(mine[2])
        for connection in (*mine[:2], *other):
            connection.execute("SELECT 1")


async def test_open_transaction_of_a_reader_is_ended_while_notifications_are_many(
    database: Database, database_url: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(with_user(database_url, tenant)) as listener:
        listener.execute("LISTEN mine")
        listener.commit()
        listener.execute("SELECT 1")
        assert await end_overdue(database, LONG) == []
        with psycopg.connect(database_url, autocommit=True) as sender:  # more than one page of them
            sender.execute("SELECT pg_notify('mine', rpad(i::text, 7000, 'x')) FROM generate_series(1, 20) i")
        monkeypatch.setattr(overdue, "MOST_NOTIFICATIONS", 0.0)
        ended = await end_overdue(database, LONG)
        assert ended == [f"{tenant}: an open transaction beside many notifications"]
        assert is_ended(listener)


async def test_sessions_of_others_are_left_alone(database: Database, database_url: str) -> None:
    with (
        psycopg.connect(database_url) as other,
        psycopg.connect(with_user(database_url, reader.READER), autocommit=True) as idle,
    ):
        other.execute("SELECT 1")
        idle.execute("SELECT 1")
        assert await end_overdue(database, timedelta(0)) == []
        other.execute("SELECT 1")
        idle.execute("SELECT 1")


# --- tenants ---------------------------------------------------------------------------------------------


@pytest.fixture
async def two_tenants(queue: QueueStore, database_url: str, tenant: str) -> str:
    """The database, for the tenant of namespace `ours`; there is one of `theirs`, too."""
    for namespace in ("ours", "theirs"):
        (record,) = (await queue.commit([make_submit(f"in-{namespace}", namespace=namespace)])).accepted
        if namespace == "theirs":
            await queue.commit([make_dispatch(record)])
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO history_grant VALUES (%s, 'ours')", [tenant])
    return with_user(database_url, tenant)


def views_of_tenants(url: str) -> list[str]:
    return [
        name
        for (name,) in rows_of(
            url, "SELECT relname FROM pg_class WHERE relnamespace = 'tenant'::regnamespace AND relkind = 'v'"
        )
    ]


def test_tenant_sees_its_namespaces_in_every_view_and_no_other(two_tenants: str, database_url: str) -> None:
    views = views_of_tenants(database_url)
    assert len(views) == 15
    seen = set()
    with psycopg.connect(two_tenants) as connection:
        for view in views:
            query = sql.SQL("SELECT DISTINCT namespace FROM tenant.{}").format(sql.Identifier(view))
            seen |= {(view, namespace) for (namespace,) in connection.execute(query)}
    assert {namespace for _, namespace in seen} == {"ours"}
    assert {"queue_now", "job_history", "timeline"} <= {view for view, _ in seen}


async def test_tenant_sees_only_its_own_preempted_gangs_and_their_preemptors(
    two_tenants: str, queue: QueueStore
) -> None:
    (other,) = (await queue.commit([make_submit("other", namespace="theirs", queue="b")])).accepted
    for namespace in ("ours", "theirs"):
        (record,) = (await queue.commit([make_submit(f"of-{namespace}", namespace=namespace)])).accepted
        (record,) = (await queue.commit([make_dispatch(record)])).accepted
        (record,) = (await queue.commit([make_created(record)])).accepted
        preempt = run_changes.preempt(
            record, Reason.FAIR_SHARE, "preempted for theirs/other", LATER, other.uid
        )
        (record,) = (await queue.commit([preempt])).accepted
        await queue.commit([removal.removed(record, LATER)])
    told = "SELECT namespace, name, by_namespace, by_name, by_queue, reason FROM tenant.preemptions"
    assert rows_of(two_tenants, told) == [("ours", "of-ours", "theirs", "other", "b", "FairShare")]


async def test_tenant_sees_the_nodes_of_its_own_gangs(two_tenants: str, queue: QueueStore) -> None:
    for namespace, node in (("ours", "n1"), ("theirs", "n2")):
        (record,) = (await queue.commit([make_submit(f"of-{namespace}", namespace=namespace)])).accepted
        places = Assignment((((node, 2),),))
        await queue.commit([queue_changes.dispatch(record, "hub", LATER, assignment=places)])
    told = "SELECT namespace, name, node, pods FROM tenant.node_history"
    assert rows_of(two_tenants, told) == [("ours", "of-ours", "n1", 2)]


async def test_tenant_sees_the_nodes_of_its_own_past_gangs_and_no_moment_of_others(
    two_tenants: str, queue: QueueStore, database_url: str
) -> None:
    for namespace, node in (("ours", "n1"), ("theirs", "n2")):
        record = await committed(queue, make_submit(f"of-{namespace}", namespace=namespace))
        places = Assignment((((node, 2),),))
        record = await committed(queue, queue_changes.dispatch(record, "hub", LATER, assignment=places))
        record = await committed(queue, removal.delete(record, LATER))
        await committed(queue, removal.release(record, LATER))
    assert await move_deleted(queue, LATER + timedelta(days=1), 500) == 2
    told: LiteralString = (
        "SELECT namespace, name, node, pods, known_from FROM {}.node_history WHERE outcome <> ''"
    )
    assert rows_of(two_tenants, told.format("tenant")) == [("ours", "of-ours", "n1", 2, None)]
    with psycopg.connect(database_url) as connection:  # as where an earlier release moved it
        connection.execute("UPDATE past_attempt SET places = NULL WHERE namespace = 'theirs'")
    midnight = datetime(2026, 11, 21, tzinfo=UTC)
    assert rows_of(two_tenants, told.format("tenant")) == [("ours", "of-ours", "n1", 2, midnight)]
    assert {row[-1] for row in rows_of(database_url, told.format("history"))} == {LATER}


SECRET: Final = "the password is 1234"
READABLE: Final[LiteralString] = (
    "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind = 'v' "
    "AND relnamespace::regnamespace::text IN ('history', 'scheduling') "
    "AND has_table_privilege('dispatcher_reader', oid, 'SELECT')"
)


@pytest.fixture
async def failures(queue: QueueStore) -> None:
    """A gang of `ours` and one of `theirs` that failed, each with a termination message."""
    for namespace in ("ours", "theirs"):
        record = await committed(queue, make_submit(f"of-{namespace}", namespace=namespace))
        record = await committed(queue, make_dispatch(record))
        record = await committed(queue, make_created(record))
        failure = PodFailure("p", "main", 1, "Error", f"{SECRET} in {namespace}")
        why = EvictionReason("FailedComponent", "it failed", "", failure)
        await committed(queue, run_changes.fail(record, why, LATER))


@pytest.mark.usefixtures("failures")
async def test_tenant_reads_the_termination_messages_of_its_own_gangs_alone(two_tenants: str) -> None:
    told: LiteralString = (
        "SELECT name, at, cause, cluster, attempt, termination_message FROM {}.termination_messages"
    )
    assert rows_of(two_tenants, told.format("tenant")) == [
        ("of-ours", LATER, "run-failed", "hub", 1, f"{SECRET} in ours")
    ]
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema history"):
        rows_of(two_tenants, told.format("history"))


@pytest.mark.usefixtures("failures")
async def test_reader_finds_termination_messages_in_no_view(database_url: str) -> None:
    holding = []
    with psycopg.connect(with_user(database_url, reader.READER)) as connection:
        for view in rows_of(database_url, READABLE):
            query = sql.SQL("SELECT count(*) FROM {} AS read WHERE strpos(read::text, %s) > 0")
            if connection.execute(query.format(sql.Identifier(*view)), [SECRET]).fetchone() != (0,):
                holding.append(view)
    assert holding == []


@pytest.mark.usefixtures("failures")
async def test_reader_reads_termination_messages_once_an_operator_grants_their_view(
    database_url: str,
) -> None:
    told = "SELECT namespace FROM history.termination_messages ORDER BY 1"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="for view termination_messages"):
        rows_of(with_user(database_url, reader.READER), told)
    with psycopg.connect(database_url) as connection, connection.transaction(force_rollback=True):
        connection.execute("GRANT SELECT ON history.termination_messages TO dispatcher_reader")
        connection.execute("SET LOCAL ROLE dispatcher_reader")
        assert connection.execute(told).fetchall() == [("ours",), ("theirs",)]


def test_tenant_views_have_every_column_of_history_with_its_meaning(database_url: str) -> None:
    columns = (
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), col_description(c.oid, a.attnum) "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.relnamespace = to_regnamespace(%s) AND c.relname = ANY(%s) ORDER BY c.relname, a.attnum"
    )
    views = views_of_tenants(database_url)
    assert rows_of(database_url, columns, "tenant", views) == rows_of(database_url, columns, "history", views)


def test_only_views_without_a_namespace_or_about_two_are_not_for_tenants(database_url: str) -> None:
    left = rows_of(
        database_url,
        "SELECT DISTINCT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND attname = 'namespace' "
        "WHERE c.relnamespace = 'history'::regnamespace AND to_regclass('tenant.' || c.relname) IS NULL",
    )
    assert left == [("overtakes",)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM history.queue_now",
        "SELECT * FROM public.appwrapper",
        "SELECT * FROM public.history_grant",
        "INSERT INTO public.history_grant VALUES (current_user, 'theirs')",
        "SELECT * FROM public.job_live",
        "SET ROLE dispatcher_reader",
        "SET SESSION AUTHORIZATION postgres",
        "SELECT history.answer('TABLE queue_now', 1)",
        "ALTER VIEW tenant.queue_now RESET (security_barrier)",
        "GRANT dispatcher_reader TO CURRENT_USER",
    ],
)
def test_tenant_has_no_way_round(two_tenants: str, query: LiteralString) -> None:
    with psycopg.connect(two_tenants) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(query)


def test_no_function_of_a_tenants_query_sees_rows_of_others(two_tenants: str, database_url: str) -> None:
    seen: list[str] = []
    with psycopg.connect(database_url) as connection:  # as where the account may not revoke it
        connection.execute("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")
    with psycopg.connect(two_tenants) as connection:
        connection.add_notice_handler(lambda notice: seen.append(notice.message_primary or ""))
        connection.execute(
            # As leaky as it can be, and cheap, so that the planner would rather ask it first.
            "CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 "
            "AS $$ BEGIN RAISE NOTICE 'saw %', $1; RETURN true; END $$"
        )
        connection.execute("SELECT count(*) FROM tenant.job_history WHERE pg_temp.leak(name)")
        connection.execute("DROP FUNCTION pg_temp.leak")  # a session's end would drop it a moment later
    assert seen == ["saw in-ours"]


def test_tenant_learns_nothing_from_statistics(two_tenants: str, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ANALYZE")
    assert rows_of(two_tenants, "SELECT count(*) FROM pg_stats WHERE schemaname = 'public'") == [(0,)]


def test_group_that_the_dispatchers_tenants_share_sees_nothing_by_itself(two_tenants: str) -> None:
    with psycopg.connect(two_tenants) as connection:
        connection.execute("SET ROLE dispatcher_tenant")
        assert connection.execute("SELECT count(*) FROM tenant.queue_now").fetchone() == (0,)


def test_namespace_that_is_taken_back_is_seen_no_more(two_tenants: str, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM history_grant")
    assert rows_of(two_tenants, "SELECT count(*) FROM tenant.job_history") == [(0,)]
