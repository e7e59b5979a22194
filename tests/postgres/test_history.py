"""What people read: the queue in its order, every event since the first, and the partitions that hold them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.model.records.pending_reasons import IN_NO_QUEUE
from dispatcher.core.model.records.record import Event, Pending, Phase
from dispatcher.core.queues.ordering import effective_priority, in_order
from dispatcher.core.queues.queue import Queue
from dispatcher.store.database import Database
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.leadership import Leadership
from dispatcher.store.readers.reports import Filter, reports
from dispatcher.store.state.queue import QueueStore
from tests.history import History, QueueEntry, TimelineEntry
from tests.postgres.changes import GANG, LATER, NOW, make_block, make_change, make_dispatch, make_submit

PAST = datetime.now(UTC) - timedelta(hours=1)


async def test_the_timeline_tells_every_event_of_a_name_in_order(
    queue: QueueStore, database: Database
) -> None:
    (first,) = (await queue.commit([make_submit("told")])).accepted
    (blocked,) = (await queue.commit([make_block(first)])).accepted
    at_once = (
        Event(LATER, "one", Phase.QUEUED, Phase.QUEUED),
        Event(LATER, "two", Phase.QUEUED, Phase.QUEUED),
    )
    await queue.commit([make_change(blocked, events=at_once), make_submit("other")])
    told = await History(database).timeline("default", "told")
    assert told[:2] == [
        TimelineEntry(
            "default", "told", first.uid, NOW, "submitted", None, "Queued", "", "", "", 0, None, told[0].id
        ),
        TimelineEntry(
            namespace="default",
            name="told",
            uid=first.uid,
            at=LATER,
            cause="blocked",
            from_phase="Queued",
            to_phase="Queued",
            reason="InsufficientResources",
            message="lacks 1 cpu",
            cluster="",
            attempt=0,
            seconds_since_previous=2.0,
            id=told[1].id,
        ),
    ]
    assert [(entry.cause, entry.seconds_since_previous) for entry in told[2:]] == [("one", 0.0), ("two", 0.0)]


async def test_the_timeline_of_a_name_covers_successors_each_with_its_own_times(
    queue: QueueStore, database: Database
) -> None:
    await queue.commit([make_submit("again")])
    await queue.commit([make_submit("again")])
    told = await History(database).timeline("default", "again")
    assert len({entry.uid for entry in told}) == 2
    assert [entry.seconds_since_previous for entry in told] == [None, None]
    assert await History(database).timeline("default", "unknown") == []


async def test_pending_gangs_are_listed_in_the_order_of_the_planner(
    queue: QueueStore, database: Database
) -> None:
    chance = random.Random(0)  # noqa: S311 - a repeatable shuffle
    changes = [
        make_submit(
            f"aw-{number}",
            priority=chance.choice([-5, 0, 0, 10]),
            priority_slope=chance.choice([0.0, 0.0, 0.5, -0.01]),
            created_at=PAST + timedelta(seconds=chance.choice([0, 0, 10, 500])),
        )
        for number in range(60)
    ]
    accepted = (await queue.commit(changes)).accepted
    listed = await History(database).queue_now("default")
    assert [entry.uid for entry in listed] == [record.uid for record in in_order(accepted, datetime.now(UTC))]
    assert [entry.position for entry in listed] == list(range(1, 61))


async def test_a_row_of_the_queue_has_the_demand_and_the_pending_reason(
    queue: QueueStore, database: Database
) -> None:
    (record,) = (await queue.commit([make_submit(created_at=PAST, priority=7)])).accepted
    await queue.commit([make_block(record)])
    (line,) = await History(database).queue_now()
    assert timedelta(hours=1) <= line.waited < timedelta(hours=2)
    assert line == QueueEntry(
        queue="default",
        position=1,
        namespace="default",
        name="aw",
        uid=record.uid,
        priority=7,
        effective_priority=7.0,
        created_at=PAST,
        waited=line.waited,
        demand=dict(GANG.demand),
        pods=2,
        reason="InsufficientResources",
        message="lacks 1 cpu",
        eligible_at=None,
    )


async def test_only_queued_appwrappers_that_may_start_have_a_position(
    queue: QueueStore, database: Database
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    changes = [
        make_submit("later", priority=9, eligible_at=tomorrow),
        make_submit("too-large", priority=9, pending=Pending("LargerThanCluster", "needs 9, 8 in all of it")),
        make_submit("beyond-quota", priority=9, pending=Pending("LargerThanQuota", "needs 9, at most 8")),
        *(
            make_submit(reason, priority=9, pending=Pending(reason, "its queue does not take it"))
            for reason in sorted(IN_NO_QUEUE)
        ),
        make_submit("first"),
        make_submit("second", eligible_at=PAST),
        make_submit("gone"),
        make_submit("elsewhere", queue="other"),
    ]
    accepted = (await queue.commit(changes)).accepted
    await queue.commit([make_dispatch(next(each for each in accepted if each.name == "gone"))])
    listed = [(entry.queue, entry.name, entry.position) for entry in await History(database).queue_now()]
    assert [each for each in listed if each[2] or each[1] == "later"] == [
        ("default", "first", 1),
        ("default", "second", 2),
        ("default", "later", None),
        ("other", "elsewhere", 3),
    ]
    assert {name for _, name, position in listed if position is None} == {
        "later",
        "too-large",
        "beyond-quota",
        *IN_NO_QUEUE,
    }


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param([], [("red", 1), ("blue", 2), ("other", 3)], id="no-queue-one-queue-for-all"),
        pytest.param(
            [[Queue("a"), Queue("default")]], [("red", 1), ("other", 2), ("blue", 1)], id="declared"
        ),
        pytest.param([[Queue("a")], []], [("red", 1), ("blue", 2), ("other", 3)], id="declared-no-more"),
    ],
)
async def test_positions_are_counted_over_all_labels_while_no_queue_is_declared(
    queue: QueueStore,
    database: Database,
    database_url: str,
    leadership: Leadership,
    declared: list[list[Queue]],
    expected: list[tuple[str, int]],
) -> None:
    store = QueueDeclarationStore(database, lambda: leadership.lease)
    for number, each in enumerate(declared):
        await store.declare_specs(each, PAST + timedelta(seconds=number))
    named = ("red", "a", 9), ("blue", "b", 5), ("other", "a", 1)
    await queue.commit([make_submit(name, queue=label, priority=priority) for name, label, priority in named])
    async with reports(database_url, timedelta(seconds=10)) as asked:
        found = [(row["name"], row["position"]) for row in await asked.queue()]
        of_queue = [(row["name"], row["position"]) for row in await asked.queue(Filter(queue="a"))]
    assert found == expected
    assert of_queue == [each for each in expected if each[0] != "blue"]
    assert {(each.name, each.position) for each in await History(database).queue_now()} == set(expected)


def test_effective_priority_is_the_same_number_in_sql_and_in_python(database_url: str) -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable
    record = make_submit().after
    with psycopg.connect(database_url) as connection:
        for _ in range(500):
            record = replace(
                record,
                priority=chance.randint(-(2**31), 2**31 - 1),
                priority_slope=chance.choice([0.0, 1e-9, 1e12, chance.uniform(-10, 10)]),
                created_at=NOW - timedelta(microseconds=chance.randint(-(10**9), 10**14)),
            )
            values = (record.priority, record.priority_slope, record.created_at, NOW)
            found = connection.execute("SELECT effective_priority(%s::int, %s, %s, %s)", values).fetchone()
            assert found == (effective_priority(record, NOW),)


async def test_a_name_with_a_long_history_is_found_by_index(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO event (at, uid, namespace, name, queue, cause, to_phase, epoch) "
            "SELECT %s + n * interval '1 s', 'uid-' || n / 5, 'ns', 'aw', 'q', 'c', 'Queued', 1 "
            "FROM generate_series(1, 20000) n",
            [NOW],
        )
        connection.execute("ANALYZE event")
        plan = connection.execute(
            "EXPLAIN SELECT * FROM history.timeline WHERE uid = ANY(%s)", [["uid-7", "uid-9"]]
        ).fetchall()
    assert "uid_at_idx" in str(plan)
