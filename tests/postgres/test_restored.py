"""A database that was dumped and restored knows that it was, whoever restored it and wherever to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from dispatcher.core.model.seals import Seals
from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state import restore_detection
from dispatcher.store.state.queue import QueueStore
from dispatcher.store.state.restore_detection import Incarnation
from dispatcher.store.state.seal_key import seals_of
from testbed import backup
from tests.postgres.changes import make_block, make_submit, rows_of

FIRST = Incarnation()


@asynccontextmanager
async def leading(url: str) -> AsyncIterator[tuple[Database, Leadership]]:
    """Somebody who leads on that database, as a dispatcher that is started does."""
    database = Database(url)
    try:
        leadership = Leadership(database, holder=f"leader-{uuid.uuid4()}")
        assert await leadership.acquire() is not None
        yield database, leadership
        await leadership.release()
    finally:
        await database.close()


async def recognised(url: str) -> Incarnation:
    """What a dispatcher that is started there finds out."""
    async with leading(url) as (database, leadership):
        return await restore_detection.recognise(database, leadership.lease)


async def seals(url: str) -> Seals:
    """The seals of a dispatcher that is started there."""
    async with leading(url) as (database, leadership):
        return await seals_of(database, leadership.lease)


async def settled(url: str) -> None:
    async with leading(url) as (database, leadership):
        await restore_detection.settle(database, leadership.lease)


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


Restore = Callable[[str, str], str]


@pytest.fixture
def restored(postgres_url: str, tmp_path: Path, make_database: Callable[[], str]) -> Restore:
    """Dumps a database and restores it, by another name or in its own place; its URL then."""

    def restored(url: str, where: str) -> str:
        backup.dump(url, tmp_path / "backup")
        name = name_of(url if where == "in-its-place" else make_database())
        return backup.restore(postgres_url, name, tmp_path / "backup")

    return restored


async def test_database_that_is_led_again_and_again_is_the_same(database_url: str) -> None:
    assert [await recognised(database_url) for _ in range(3)] == [FIRST] * 3


@pytest.mark.parametrize("where", ["by-another-name", "in-its-place"])
async def test_restored_database_is_noticed_once_and_stays_unsettled_until_it_is_settled(
    database_url: str, restored: Restore, where: str
) -> None:
    await recognised(database_url)
    url = await asyncio.to_thread(restored, database_url, where)

    noticed = await recognised(url)
    assert noticed == Incarnation(2, noticed.restored_at, is_settled=False, is_news=True)
    ((just_now,),) = rows_of(url, "SELECT clock_timestamp() - restored_at < '1 minute' FROM hub")
    assert just_now
    assert await recognised(url) == Incarnation(2, noticed.restored_at, is_settled=False)
    await settled(url)
    assert await recognised(url) == Incarnation(2, noticed.restored_at)
    told = rows_of(url, "SELECT cluster, event, message FROM history.cluster_events")
    assert told == [("hub", "restored", "incarnation 2")]


async def test_database_restored_once_more_is_noticed_once_more(database_url: str, restored: Restore) -> None:
    await recognised(database_url)
    url = await asyncio.to_thread(restored, database_url, "by-another-name")
    first = await recognised(url)
    await settled(url)
    second = await recognised(await asyncio.to_thread(restored, url, "by-another-name"))
    assert second == Incarnation(3, second.restored_at, is_settled=False, is_news=True)
    assert first.restored_at is not None
    assert second.restored_at is not None
    assert second.restored_at > first.restored_at


async def test_backup_of_a_database_without_any_leader_has_missed_nothing(
    database_url: str, restored: Restore
) -> None:
    assert await recognised(await asyncio.to_thread(restored, database_url, "by-another-name")) == FIRST


async def test_restore_that_cannot_be_detected_can_be_declared(database_url: str) -> None:
    await recognised(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET fingerprint = 'restored'")
    said = await recognised(database_url)
    assert (said.number, said.is_settled, said.is_news) == (2, False, True)
    assert (await recognised(database_url)).number == 2


async def test_key_of_the_seals_is_made_once_and_is_in_the_backup(
    database_url: str, restored: Restore
) -> None:
    first = await seals(database_url)
    assert len(first.key) == 32
    assert await seals(database_url) == first
    assert await seals(await asyncio.to_thread(restored, database_url, "by-another-name")) == first
    ((just_now,),) = rows_of(database_url, "SELECT clock_timestamp() - sealed_since < '1 minute' FROM hub")
    assert just_now


async def test_no_appwrapper_counts_as_older_than_a_key_that_is_made_where_there_are_some(
    database_url: str,
) -> None:
    async with leading(database_url) as (database, leadership):
        await QueueStore(database, lambda: leadership.lease).commit(
            [make_submit("queued-by-an-earlier-release")]
        )
        assert (await seals_of(database, leadership.lease)).since is None


async def test_key_of_the_seals_is_kept_from_readers(
    database_url: str, make_database: Callable[[], str]
) -> None:
    await seals(database_url)
    assert (await seals(make_database())).key != (await seals(database_url)).key
    shown = rows_of(
        database_url,
        "SELECT count(*) FROM information_schema.view_column_usage WHERE column_name = 'seal_key'",
    )
    assert shown == [(0,)]


PART = {"server": 0, "timeline": 1, "database": 2, "table": 3}


@pytest.mark.parametrize("part", PART)
async def test_another_server_timeline_database_or_table_counts_as_restored(
    database_url: str, part: str
) -> None:
    await recognised(database_url)
    ((noted,),) = rows_of(database_url, "SELECT fingerprint FROM hub")
    parts = noted.split("/")
    assert all(each.strip("-") for each in parts)
    parts[PART[part]] = "99"
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET fingerprint = %s", ["/".join(parts)])
    assert (await recognised(database_url)).number == 2


async def test_only_the_leader_may_record_a_restore(database_url: str) -> None:
    async with leading(database_url) as (database, leadership):
        lease = leadership.lease
        await leadership.release()
        with pytest.raises(Fenced):
            await restore_detection.recognise(database, lease)
        with pytest.raises(Fenced):
            await restore_detection.settle(database, lease)
    assert rows_of(database_url, "SELECT fingerprint, incarnation, settled_at FROM hub") == [("", 1, None)]


@pytest.fixture
def ordinary_url(database_url: str, postgres_url: str) -> Iterator[str]:
    """The database as one sees it who may use its tables, and may not ask what server it is."""
    role = f"ordinary_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database_url) as connection:
        for statement in (
            "CREATE ROLE {} LOGIN PASSWORD 'a'",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {}",
            "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
        ):
            connection.execute(sql.SQL(statement).format(sql.Identifier(role)))
    yield f"{database_url}{'&' if '?' in database_url else '?'}user={role}&password=a"
    with psycopg.connect(database_url) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


async def test_parts_that_the_role_may_not_read_are_not_compared_and_the_rest_is(
    database_url: str, ordinary_url: str
) -> None:
    assert await recognised(ordinary_url) == FIRST
    ((noted,),) = rows_of(database_url, "SELECT fingerprint FROM hub")
    assert noted.startswith("-/")
    assert await recognised(database_url) == FIRST  # who may ask, completes it
    ((whole,),) = rows_of(database_url, "SELECT fingerprint FROM hub")
    assert whole.partition("/")[2] == noted.partition("/")[2]
    assert whole != noted
    assert await recognised(ordinary_url) == FIRST
    assert rows_of(database_url, "SELECT fingerprint FROM hub") == [(whole,)]
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET fingerprint = '-/00000001/1/1'")
    assert (await recognised(ordinary_url)).number == 2


async def test_history_continues_after_the_restored_events(database_url: str, restored: Restore) -> None:
    async with leading(database_url) as (database, leadership):
        queue = QueueStore(database, lambda: leadership.lease)
        (known,) = (await queue.commit([make_submit("known")])).accepted
    url = await asyncio.to_thread(restored, database_url, "by-another-name")
    async with leading(url) as (database, leadership):
        queue = QueueStore(database, lambda: leadership.lease)
        (loaded,) = await queue.load_live()
        assert loaded == known
        (later,) = (await queue.commit([make_submit("later")])).accepted
        await queue.commit([make_block(loaded)])
        assert later.enqueue_seq > known.enqueue_seq
    events = rows_of(url, "SELECT name, cause FROM event ORDER BY id")
    assert events == [("known", "submitted"), ("later", "submitted"), ("known", "blocked")]
