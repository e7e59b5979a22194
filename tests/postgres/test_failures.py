"""Postgres goes away, hangs, refuses or is lied to: what a caller sees, and what stays in the tables."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from dispatcher.errors import SchemaMismatch, StoreError, StoreUnavailable
from dispatcher.store.connections import connection_parameters
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import EmbeddedPostgres, migrated_template, url_of
from tests.postgres.changes import count_of, make_created, make_dispatch, make_submit

TABLES = ("appwrapper", "attempt", "attempt_object", "event", "spec_blob")
SECRET = "s3cret-pa55"


async def end_session_waiting_for(url: str, table: LiteralString, commit: asyncio.Task[object]) -> None:
    """Hold `table` until the commit waits for it, then end the commit's session."""
    with psycopg.connect(url) as blocker, psycopg.connect(url, autocommit=True) as admin:
        await asyncio.to_thread(blocker.execute, sql.SQL("LOCK TABLE {}").format(sql.Identifier(table)))
        ended: list[tuple[object, ...]] = []
        while not ended:
            assert not commit.done()
            await asyncio.sleep(0.01)
            ended = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
            ).fetchall()
        await asyncio.wait([commit])


@pytest.mark.parametrize("table", TABLES)
async def test_a_commit_whose_session_ends_halfway_leaves_nothing_and_can_be_repeated(
    queue: QueueStore, database_url: str, table: LiteralString
) -> None:
    (waiting,) = (await queue.commit([make_submit("waiting", spec=b"1")])).accepted
    (dispatching,) = (await queue.commit([make_dispatch(waiting)])).accepted
    before = {each: count_of(database_url, each) for each in TABLES}
    batch = [make_submit("new", spec=b"2"), make_created(dispatching, count=2)]
    commit = asyncio.ensure_future(_after(0.1, queue.commit(batch)))
    await end_session_waiting_for(database_url, table, commit)
    with pytest.raises(StoreUnavailable):
        commit.result()
    assert {each: count_of(database_url, each) for each in TABLES} == before
    assert len((await queue.commit(batch)).accepted) == 2


async def _after(seconds: float, work: object) -> object:
    await asyncio.sleep(seconds)
    return await work  # type: ignore[misc]  # any awaitable


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(database_url: str) -> None:
    database = Database(database_url, statement_timeout=timedelta(milliseconds=50))
    with pytest.raises(StoreUnavailable, match="statement timeout"):
        async with database.reading() as connection:
            await connection.execute(text("SELECT pg_sleep(5)"))
    await database.close()


async def test_reading_cannot_write(database: Database) -> None:
    with pytest.raises(StoreError, match="read-only"):
        async with database.reading() as connection:
            await connection.execute(text("DELETE FROM appwrapper"))


async def test_an_exception_in_a_transaction_undoes_it(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    lease = leadership.lease

    async def fail_halfway() -> None:
        async with database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(text("INSERT INTO member_cluster VALUES ('a', 'b')"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_halfway()
    assert count_of(database_url, "member_cluster") == 0


async def test_cancellation_undoes_the_transaction_and_gives_the_connection_back(
    database_url: str,
) -> None:
    database = Database(database_url, pool_size=1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), database.reading() as connection:
                await connection.execute(text("SELECT pg_sleep(5)"))
    async with asyncio.timeout(2), database.reading() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar_one() == 1
    await database.close()


async def test_a_pool_that_is_used_up_is_an_unavailable_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.store.database.CONNECT_SECONDS", 0.1)
    database = Database(database_url, pool_size=1)
    async with database.reading():
        with pytest.raises(StoreUnavailable, match="every connection"):
            async with database.reading():
                pass
    await database.close()


async def test_error_about_a_database_without_tables_names_the_command_to_run(postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(SchemaMismatch, match="run: dispatcher migrate"):
        await Leadership(database, "a").acquire()
    await database.close()


# --- a server of one's own, to restart, kill and stop ------------------------------------------------


@pytest.fixture
async def own_server() -> AsyncIterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


async def test_a_restarted_or_killed_server_is_noticed_and_the_next_call_works(
    own_server: EmbeddedPostgres,
) -> None:
    database = Database(url_of(own_server.url, migrated_template(own_server.url)))
    leadership = Leadership(database, "a")
    await leadership.acquire()
    queue = QueueStore(database, lambda: leadership.lease)
    await asyncio.gather(*(queue.hub_id() for _ in range(4)))
    own_server.restart()
    (record,) = (await queue.commit([make_submit()])).accepted
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await queue.commit([make_dispatch(record)])
    own_server.start()
    assert (await queue.commit([make_dispatch(record)])).accepted
    await database.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_server_that_hangs_is_given_up_after_the_deadline(own_server: EmbeddedPostgres) -> None:
    database = Database(own_server.url, deadline=timedelta(seconds=1))
    async with database.reading() as connection:
        backend = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    postmaster = parent_of(backend)
    for pid in (postmaster, backend):
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            async with database.reading() as connection:
                await connection.execute(text("SELECT 1"))
    finally:
        for pid in (postmaster, backend):
            os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < 4
    async with database.reading() as connection:
        await connection.execute(text("SELECT 1"))
    await database.close()


# --- passwords ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"mysql://user:{SECRET}@localhost/db", id="other-scheme"),
        pytest.param(f"postgresql://user:{SECRET}/x@localhost:bad{SECRET}/db", id="unreadable-port"),
        pytest.param(f"postgresql://user:{SECRET}@localhost/db?{SECRET}", id="unreadable-query"),
        pytest.param(f"postgresql://user:%zz{SECRET}@localhost/db", id="unreadable-escape"),
        pytest.param(f"postgresql://user:{SECRET}@127.0.0.1:1/db", id="nobody-listens"),
        pytest.param(f"postgresql://user:{SECRET}@/db?host=/nonexistent", id="no-socket"),
        pytest.param(f"postgresql://user:{SECRET}@no-such-host.invalid/db", id="no-host"),
    ],
)
async def test_no_error_text_holds_the_password(url: str) -> None:

    async def use() -> None:
        async with Database(url).reading():
            pass

    with pytest.raises(StoreError) as caught:
        await use()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value)


async def test_no_error_text_contains_the_values_of_the_statement(
    queue: QueueStore, database: Database
) -> None:
    with pytest.raises(StoreError) as caught:
        async with database.reading() as connection:
            await connection.execute(
                text("SELECT CAST(:value AS text) FROM no_such_table"), {"value": SECRET}
            )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_database_url_keeps_its_own_options_and_gets_our_defaults() -> None:
    given = connection_parameters(
        "postgres://me@db:6000/x?application_name=mine&options=-c%20work_mem%3D8MB", statement_timeout="9ms"
    )
    assert given["application_name"] == "mine"
    assert given["port"] == "6000"
    assert given["connect_timeout"] == "5"
    assert given["options"].endswith("-c statement_timeout=9ms -c work_mem=8MB")


async def test_sessions_carry_our_name_and_limits(database: Database) -> None:
    async with database.reading() as connection:
        found = await connection.execute(
            text(
                "SELECT current_setting('application_name'), current_setting('statement_timeout'), "
                "current_setting('lock_timeout'), current_setting('timezone')"
            )
        )
        assert found.one() == ("appwrapper-dispatcher", "10s", "5s", "UTC")
