"""At most one leader writes: leases, epochs and the fence, each race on connections of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import text

from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership, Lease
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import count_of, make_submit

SHORT = timedelta(seconds=0.2)
LONG = timedelta(seconds=60)


@pytest.fixture
async def other_database(database_url: str) -> AsyncIterator[Database]:
    """Another process's connections to the same database."""
    database = Database(database_url, pool_size=20)
    yield database
    await database.close()


async def until(attempt: Callable[[], Awaitable[Lease | None]]) -> Lease:
    async with asyncio.timeout(5):
        while (lease := await attempt()) is None:  # noqa: ASYNC110 - nothing tells us when
            await asyncio.sleep(0.02)
    return lease


async def test_a_second_candidate_does_not_get_a_lease_that_runs(
    database: Database, other_database: Database
) -> None:
    first = await Leadership(database, "a", lease=LONG).acquire()
    assert first is not None
    assert (first.epoch, first.holder, first.duration) == (1, "a", LONG)
    assert await Leadership(other_database, "b").acquire() is None


async def test_of_many_first_candidates_one_wins(database: Database) -> None:
    candidates = [Leadership(database, f"candidate-{number}") for number in range(8)]
    leases = await asyncio.gather(*(each.acquire() for each in candidates))
    assert [lease.epoch for lease in leases if lease is not None] == [1]


async def test_takeover_after_the_lease_ran_out_starts_a_new_epoch_and_stops_the_old_leader(
    database: Database, other_database: Database, database_url: str
) -> None:
    old = Leadership(database, "a", lease=SHORT)
    assert await old.acquire() is not None
    new = Leadership(other_database, "b", lease=LONG)
    lease = await until(new.acquire)
    assert (lease.epoch, lease.holder) == (2, "b")
    held = old.lease
    with pytest.raises(Fenced):
        await QueueStore(database, lambda: held).commit([make_submit()])
    with pytest.raises(Fenced):
        await old.renew()
    with pytest.raises(Fenced):
        _ = old.lease
    assert count_of(database_url, "appwrapper") == 0


async def test_lease_from_a_clock_turned_back_is_taken_over_once_it_is_not_renewed(
    database: Database, other_database: Database, database_url: str
) -> None:
    gone = Leadership(database, "gone", lease=LONG)
    await gone.acquire()
    seconds = [0.0]
    candidate = Leadership(other_database, "b", lease=LONG, monotonic=lambda: seconds[0])

    def turn_back(by: str) -> None:
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE leader_lease SET expires_at = expires_at + %s::interval", [by])

    turn_back("30 days")
    for moment in (0, 299, 300):
        seconds[0] = moment
        assert await candidate.acquire() is None
    turn_back("15 seconds")  # as a leader does that is there, and renews
    for moment in (301, 601):
        seconds[0] = moment
        assert await candidate.acquire() is None
    seconds[0] = 602
    lease = await candidate.acquire()
    assert lease is not None
    assert (lease.epoch, lease.holder) == (2, "b")
    with pytest.raises(Fenced):
        await gone.renew()


async def test_lease_that_runs_is_not_taken_however_long_one_waits(
    database: Database, other_database: Database
) -> None:
    await Leadership(database, "a", lease=LONG).acquire()
    seconds = [0.0]
    candidate = Leadership(other_database, "b", monotonic=lambda: seconds[0])
    for moment in (0, 1e6):
        seconds[0] = moment
        assert await candidate.acquire() is None


async def test_an_expired_lease_commits_nothing_even_without_a_takeover(
    database: Database, database_url: str
) -> None:
    leadership = Leadership(database, "a", lease=SHORT)
    queue = QueueStore(database, lambda: leadership.lease)
    await leadership.acquire()
    await queue.commit([make_submit()])
    await asyncio.sleep(0.3)
    with pytest.raises(Fenced):
        await queue.commit([make_submit()])
    with pytest.raises(Fenced):
        await leadership.renew()
    assert count_of(database_url, "appwrapper") == 1


async def test_the_same_process_may_lead_again_in_a_new_epoch(database: Database) -> None:
    leadership = Leadership(database, "a", lease=SHORT)
    await leadership.acquire()
    lease = await until(leadership.acquire)
    assert lease.epoch == 2
    assert leadership.lease == lease


async def test_own_lease_that_still_runs_is_taken_over_at_once_and_its_epoch_ends(database: Database) -> None:
    leadership = Leadership(database, "a", lease=LONG)
    first = await leadership.acquire()
    assert first is not None

    again = await leadership.acquire()

    assert again is not None
    assert again.epoch == first.epoch + 1
    with pytest.raises(Fenced):
        async with database.fenced(first.epoch, "a"):
            pass


async def test_renewal_keeps_the_epoch_and_moves_the_end(database: Database) -> None:
    leadership = Leadership(database, "a", lease=timedelta(seconds=1))
    first = await leadership.acquire()
    assert first is not None
    for _ in range(4):
        await asyncio.sleep(0.3)
        lease = await leadership.renew()
    assert lease.epoch == first.epoch
    assert lease.database_now > first.database_now + timedelta(seconds=1)
    assert abs(lease.database_now - datetime.now(UTC)) < timedelta(seconds=5)


async def test_a_released_lease_is_free_at_once_and_ends_the_right_to_write(
    database: Database, other_database: Database
) -> None:
    leadership = Leadership(database, "a", lease=LONG)
    held = await leadership.acquire()
    assert held is not None
    await leadership.release()
    await leadership.release()
    with pytest.raises(Fenced):
        _ = leadership.lease
    with pytest.raises(Fenced):
        await QueueStore(database, lambda: held).commit([make_submit()])
    lease = await Leadership(other_database, "b").acquire()
    assert lease is not None
    assert lease.epoch == 2


async def test_releasing_late_does_not_end_the_successors_lease(
    database: Database, other_database: Database
) -> None:
    old = Leadership(database, "a", lease=SHORT)
    await old.acquire()
    new = Leadership(other_database, "b", lease=LONG)
    await until(new.acquire)
    await old.release()
    assert (await new.renew()).epoch == 2


async def test_takeover_waits_for_a_transaction_in_flight_and_sees_its_writes(
    database: Database, other_database: Database, database_url: str
) -> None:
    old = Leadership(database, "a", lease=SHORT)
    lease = await old.acquire()
    assert lease is not None
    new = Leadership(other_database, "b")
    async with database.fenced(lease.epoch, lease.holder) as connection:
        await connection.execute(text("INSERT INTO member_cluster VALUES ('late', 'uid')"))
        await asyncio.sleep(0.3)
        takeover = asyncio.create_task(new.acquire())
        await asyncio.sleep(0.3)
        assert not takeover.done()
    granted = await takeover
    assert granted is not None
    assert granted.epoch == 2
    assert count_of(database_url, "member_cluster") == 1


async def test_a_fence_asked_for_during_a_takeover_is_refused(
    database: Database, other_database: Database
) -> None:
    old = Leadership(database, "a", lease=SHORT)
    lease = await old.acquire()
    assert lease is not None
    async with database.fenced(lease.epoch, lease.holder):
        await asyncio.sleep(0.3)
        takeover = asyncio.create_task(Leadership(other_database, "b").acquire())
        await asyncio.sleep(0.2)
        with pytest.raises(Fenced):
            async with database.fenced(lease.epoch, lease.holder):
                pass
    assert await takeover is not None


async def test_an_epoch_is_good_in_the_hands_of_its_holder_only(database: Database) -> None:
    lease = await Leadership(database, "a").acquire()
    assert lease is not None
    with pytest.raises(Fenced):
        async with database.fenced(lease.epoch, "b"):
            pass


async def test_renewal_does_not_wait_for_writers(database: Database) -> None:
    leadership = Leadership(database, "a")
    lease = await leadership.acquire()
    assert lease is not None
    async with database.fenced(lease.epoch, lease.holder), asyncio.timeout(2):
        await leadership.renew()


async def test_sixteen_busy_writers_do_not_starve_a_takeover(
    database: Database, other_database: Database
) -> None:
    # Long enough for every writer to begin, whatever else the machine does.
    old = Leadership(other_database, "a", lease=timedelta(seconds=2))
    lease = await old.acquire()
    assert lease is not None
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            try:
                async with other_database.fenced(lease.epoch, lease.holder) as connection:
                    await connection.execute(text("SELECT pg_sleep(0.01)"))
                    written += 1
            except Fenced:
                await asyncio.sleep(0)

    writers = [asyncio.create_task(write()) for _ in range(16)]
    try:
        granted = await until(Leadership(database, "b").acquire)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    assert granted.epoch == 2
    assert written > 16
