"""Which gang had places on which node: the same before and after it is moved, and forgotten with its month."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, LiteralString

import psycopg
import pytest

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Assignment, Gang, Places, PodSet
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store import migrate
from dispatcher.store.history import archive
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import committed, count_of, move_deleted, rows_of
from tests.postgres.history.conftest import MOVE

GPU: Final = "nvidia.com/gpu"
NOW: Final = datetime(2026, 2, 28, 9, tzinfo=UTC)
TOMORROW: Final = NOW + timedelta(days=1)
KEEP: Final = timedelta(days=400)

HEAD: Final = PodSet(1, Resources({"cpu": 2000}), path="spec.headGroupSpec.template")
WORKERS: Final = PodSet(
    4, Resources({"cpu": 500, "memory": 2**30, GPU: 2}), path="spec.workerGroupSpecs[0].template", item=1
)
GANG: Final = Gang(HEAD.total + WORKERS.total, 5, (HEAD, WORKERS))
PLACES: Final[tuple[Places, ...]] = ((("n1", 1),), (("n1", 1), ("n2", 3)))
ON_NODES: Final = [
    ("0.spec.headGroupSpec.template", "n1", 1, Decimal(2), Decimal(0), Decimal(0)),
    ("1.spec.workerGroupSpecs[0].template", "n1", 1, Decimal("0.5"), Decimal(1), Decimal(2)),
    ("1.spec.workerGroupSpecs[0].template", "n2", 3, Decimal("1.5"), Decimal(3), Decimal(6)),
]
NOWHERE: Final = [(None, None, None, Decimal(4), Decimal(4), Decimal(8))]
"""The one row of an attempt whose nodes are not known: it holds its demand."""

NODES: Final[LiteralString] = (
    "SELECT template, node, pods, cpu, memory_gib, gpu FROM history.node_history "
    "ORDER BY cluster, attempt, template, node"
)
HISTORY: Final[LiteralString] = (
    "SELECT uid, namespace, name, queue, user_name, attempt, cluster, template, node, pods, cpu, memory_gib, gpu, "
    "decided_at, started_at, ended_at, outcome, known_from FROM history.node_history "
    "ORDER BY uid, attempt, template, node"
)


def at(seconds: float, begin: datetime = NOW) -> datetime:
    return begin + timedelta(seconds=seconds)


async def dispatched(
    queue: QueueStore,
    places: tuple[Places, ...] = PLACES,
    *,
    name: str = "aw",
    cluster: str = "hub",
    gang: Gang = GANG,
    begin: datetime = NOW,
) -> Record:
    """A gang that was dispatched, with these places, a second after `begin`."""
    record = await committed(queue, first_changes.submit(make_submission(name), gang, begin))
    change = queue_changes.dispatch(record, cluster, at(1, begin), assignment=Assignment(places))
    return await committed(queue, change)


async def running(queue: QueueStore, record: Record, begin: datetime = NOW) -> Record:
    record = await committed(queue, run_changes.created(record, (), at(2, begin)))
    return await committed(queue, run_changes.mark_running(record, at(3, begin)))


async def gone(queue: QueueStore, record: Record, when: datetime) -> Record:
    """What is left of it once it was deleted."""
    record = await committed(queue, removal.delete(record, when))
    return record if record.phase is Phase.DELETED else await committed(queue, removal.release(record, when))


async def lived(
    queue: QueueStore,
    places: tuple[Places, ...] = PLACES,
    *,
    name: str = "aw",
    cluster: str = "hub",
    begin: datetime = NOW,
    gone_at: datetime | None = None,
) -> Record:
    """A gang that completed ten seconds after `begin`, and was deleted."""
    record = await dispatched(queue, places, name=name, cluster=cluster, begin=begin)
    record = await running(queue, record, begin)
    done = run_changes.complete(record, (), at(20, begin), at(10, begin))
    return await gone(queue, await committed(queue, done), gone_at or at(15, begin))


# --- endings ---------------------------------------------------------------------------------------------

Steps = Sequence[Callable[[Record], Change]]
SHORT: Final = EvictionReason("MinPodsNotRunning", "too few")


def removed(record: Record) -> Change:
    return removal.removed(record, at(60))


ENDINGS_OF_RUNNING: Final[dict[str, Steps]] = {
    "completed": [lambda record: run_changes.complete(record, (), at(90), at(60))],
    "failed": [lambda record: run_changes.fail(record, SHORT, at(50)), removed],
    "evicted": [lambda record: run_changes.evict(record, SHORT, at(90), 60, at(50)), removed],
    "preempted": [
        lambda record: run_changes.preempt(record, Reason.FAIR_SHARE, "for it", at(50), "uid-of-another"),
        removed,
    ],
    "suspended": [lambda record: queue_changes.suspend(record, at(50)), removed],
    "lost": [lambda record: removal.abandon(record, "silent", at(60))],
    "deleted": [
        lambda record: removal.delete(record, at(50)),
        lambda record: removal.release(record, at(60)),
    ],
}
ENDINGS_OF_DISPATCHING: Final[dict[str, Steps]] = {
    "postponed": [lambda record: run_changes.postpone_creation(record, (), "full", at(90), at(50)), removed],
    "withdrawn": [lambda record: run_changes.withdraw(record, "silent", at(90), at(60))],
}


@pytest.mark.parametrize("outcome", [*ENDINGS_OF_RUNNING, *ENDINGS_OF_DISPATCHING])
async def test_ended_attempt_keeps_its_nodes_however_it_ended(
    queue: QueueStore, database_url: str, outcome: str
) -> None:
    record = await dispatched(queue)
    if outcome in ENDINGS_OF_RUNNING:
        record = await running(queue, record)
    for step in {**ENDINGS_OF_RUNNING, **ENDINGS_OF_DISPATCHING}[outcome]:
        record = await committed(queue, step(record))
    if record.phase is not Phase.DELETED:
        await gone(queue, record, at(70))
    whose = (record.uid, record.namespace, record.name, "default", record.namespace, 1, "hub")
    started_at = at(3) if outcome in ENDINGS_OF_RUNNING else None
    when = (at(1), started_at, at(60), outcome, None)
    expected = [(*whose, *on_node, *when) for on_node in ON_NODES]
    assert rows_of(database_url, HISTORY) == expected
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert (count_of(database_url, "attempt"), rows_of(database_url, HISTORY)) == (0, expected)


async def test_gang_that_goes_elsewhere_has_the_nodes_of_each_attempt(
    queue: QueueStore, database_url: str
) -> None:
    record = await running(queue, await dispatched(queue))
    record = await committed(queue, run_changes.evict(record, SHORT, at(90), 60, at(50)))
    record = await committed(queue, removed(record))
    elsewhere = Assignment(((("n7", 1),), (("n8", 4),)))
    record = await committed(queue, queue_changes.dispatch(record, "east", at(95), assignment=elsewhere))
    held: LiteralString = (
        "SELECT attempt, cluster, node, pods, ended_at FROM history.node_history ORDER BY 1, template, 3"
    )
    first = [(1, "hub", node, pods, at(60)) for node, pods in (("n1", 1), ("n1", 1), ("n2", 3))]
    assert rows_of(database_url, held) == [*first, (2, "east", "n7", 1, None), (2, "east", "n8", 4, None)]
    await gone(queue, record, at(99))
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, held) == [*first, (2, "east", "n7", 1, at(99)), (2, "east", "n8", 4, at(99))]


# --- places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        pytest.param(PLACES, ON_NODES, id="of-two-templates"),
        pytest.param((), NOWHERE, id="none-known"),
        pytest.param(((), ()), NOWHERE, id="none-of-either-template"),
        pytest.param(((), (("n2", 3),)), ON_NODES[2:], id="of-one-template"),
        pytest.param(
            ((("potential/l4/0", 1),), ()),
            [(*ON_NODES[0][:1], "potential/l4/0", *ON_NODES[0][2:])],
            id="to-come",
        ),
    ],
)
async def test_places_are_the_same_before_and_after_the_move(
    queue: QueueStore, database_url: str, places: tuple[Places, ...], expected: list[tuple[Any, ...]]
) -> None:
    record = await dispatched(queue, places)
    assert rows_of(database_url, NODES) == expected
    await gone(queue, record, at(10))
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, NODES) == expected
    assert rows_of(database_url, "SELECT DISTINCT known_from FROM history.node_history") == [(None,)]


async def test_names_that_are_known_draw_no_numbers(queue: QueueStore, database_url: str) -> None:
    """A column of type integer has numbers for some thousand moves of all nodes of a large hub."""
    drawn: LiteralString = (
        "SELECT last_value FROM pg_sequences WHERE sequencename ~ '^past_(node|template)_id_seq'"
    )
    for name in ("first", "second", "third"):
        await lived(queue, name=name)
        assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, drawn) == [(2,), (2,)]


@pytest.mark.parametrize(
    ("places", "moved"),
    [
        pytest.param([2, 2, 2], [2, 1], id="as-many-as-are-moved-at-once"),
        pytest.param([0] * 7, [6, 1], id="attempts-count-too"),
        pytest.param([1, 9, 1], [1, 1, 1], id="one-with-more-alone"),
        pytest.param([9, 0, 4], [1, 2], id="one-with-more-first"),
    ],
)
async def test_attempts_and_places_that_are_moved_at_once_are_bounded(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch, places: list[int], moved: list[int]
) -> None:
    monkeypatch.setattr(archive, "MOST_ROWS", 6)
    for number, count in enumerate(places):
        workers = tuple((f"n{node}", 1) for node in range(count))
        await lived(queue, ((), workers), name=f"aw-{number}", begin=at(100 * number))
    assert [await move_deleted(queue, TOMORROW, 500) for _ in range(len(moved) + 1)] == [*moved, 0]
    assert count_of(database_url, "past_attempt") == len(places)


async def test_pods_that_were_made_for_other_places_have_those(queue: QueueStore, database_url: str) -> None:
    record = await dispatched(queue, ((("n7", 1),), (("n8", 4),)))
    record = await committed(queue, run_changes.created(record, (), at(2), assignment=Assignment(PLACES)))
    await gone(queue, record, at(10))
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, NODES) == ON_NODES


async def test_pods_count_as_they_request_in_the_cluster_of_the_attempt(
    queue: QueueStore, database_url: str
) -> None:
    small_head = PodSet(1, Resources({"cpu": 250}), path=HEAD.path)
    small = Gang(small_head.total + WORKERS.total, 5, (small_head, WORKERS))
    gang = GANG.with_smaller({"east": small})
    for cluster in ("east", "west"):
        record = await dispatched(queue, PLACES, name=cluster, cluster=cluster, gang=gang)
        await gone(queue, record, at(10))
    heads: LiteralString = (
        "SELECT cluster, cpu FROM history.node_history WHERE starts_with(template, '0.') ORDER BY 1"
    )
    expected = [("east", Decimal("0.25")), ("west", Decimal(2))]
    assert rows_of(database_url, heads) == expected
    assert await move_deleted(queue, TOMORROW, 500) == 2
    assert rows_of(database_url, heads) == expected


async def test_a_gang_of_many_nodes_is_moved_whole(queue: QueueStore, database_url: str) -> None:
    many = 3000
    workers = PodSet(many, Resources({"cpu": 1}))
    places = tuple((f"worker-{number:04}.example.org", 1) for number in range(many))
    record = await dispatched(queue, (places,), gang=Gang(workers.total, many, (workers,)))
    await gone(queue, record, at(10))
    assert await move_deleted(queue, TOMORROW, 500) == 1
    found = rows_of(database_url, "SELECT node, pods FROM history.node_history ORDER BY node")
    assert found == list(places)


async def test_attempt_that_ended_before_it_began_has_a_time_range(
    queue: QueueStore, database_url: str
) -> None:
    record = await lived(queue)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE attempt SET ended_at = '2020-01-01' WHERE uid = %s", [record.uid])
    lasted: LiteralString = (
        "SELECT DISTINCT isempty(tstzrange(decided_at, ended_at)) FROM history.node_history"
    )
    assert rows_of(database_url, lasted) == [(True,)]
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, lasted) == [(True,)]


# --- nodes that an earlier release lost ------------------------------------------------------------------


async def test_nodes_that_an_earlier_release_lost_are_unknown_and_it_is_said_until_when(
    queue: QueueStore, database_url: str
) -> None:
    for number in range(2):
        await lived(queue, name=f"lost-{number}", begin=at(1000 * number))
    with psycopg.connect(database_url) as connection:
        connection.execute(MOVE)  # as a release did that knew no places
    assert rows_of(database_url, NODES) == 2 * NOWHERE
    await lived(queue, name="kept", begin=at(5000))
    assert await move_deleted(queue, TOMORROW, 500) == 1
    assert rows_of(database_url, f"{NODES} LIMIT 3") == ON_NODES
    known: LiteralString = (
        "SELECT DISTINCT name, node IS NOT NULL, known_from FROM history.node_history ORDER BY 1"
    )
    until = at(1010)
    assert rows_of(database_url, known) == [
        ("kept", True, until),
        ("lost-0", False, until),
        ("lost-1", False, until),
    ]


async def test_migration_of_a_database_with_history_leaves_its_nodes_unknown(
    queue: QueueStore, database_url: str
) -> None:
    await lived(queue)
    assert await move_deleted(queue, TOMORROW, 500) == 1
    migrate.downgrade(database_url, "0002")
    migrate.migrate(database_url)
    assert rows_of(database_url, NODES) == NOWHERE
    assert rows_of(database_url, "SELECT known_from FROM history.node_history") == [(at(10),)]


# --- names -----------------------------------------------------------------------------------------------

NAMES: Final[LiteralString] = "SELECT cluster, name, last_month FROM past_node ORDER BY 1, 2"


async def test_a_name_is_stored_once_for_all_attempts_of_a_cluster(
    queue: QueueStore, database_url: str
) -> None:
    for name, cluster in (("a", "hub"), ("b", "hub"), ("c", "east")):
        await lived(queue, name=name, cluster=cluster)
        assert await move_deleted(queue, TOMORROW, 500) == 1
    month = date(2026, 2, 1)
    assert rows_of(database_url, NAMES) == [
        (cluster, node, month) for cluster in ("east", "hub") for node in ("n1", "n2")
    ]
    assert rows_of(database_url, "SELECT name, requests, last_month FROM past_template ORDER BY 1") == [
        ("0.spec.headGroupSpec.template", {"cpu": 2000}, month),
        ("1.spec.workerGroupSpecs[0].template", {"cpu": 500, "memory": 2**30, GPU: 2}, month),
    ]


async def test_names_of_attempts_are_dropped_with_the_last_month_that_has_them(
    queue: QueueStore, database_url: str
) -> None:
    september, october = datetime(2025, 9, 20, tzinfo=UTC), datetime(2025, 10, 5, tzinfo=UTC)
    await queue.ensure_partitions(september)
    await lived(queue, ((("n1", 1),), (("n2", 4),)), name="early", begin=september)
    await lived(queue, ((("n2", 1),), ()), name="late", begin=october)
    assert await move_deleted(queue, NOW, 1) == 1
    assert await move_deleted(queue, NOW, 1) == 1
    assert [name for _, name, _ in rows_of(database_url, NAMES)] == ["n1", "n2"]
    assert await queue.drop_expired(datetime(2025, 10, 2, tzinfo=UTC) + KEEP, KEEP) != []
    assert rows_of(database_url, NAMES) == [("hub", "n2", date(2025, 10, 1))]
    assert rows_of(database_url, NODES) == [(*ON_NODES[0][:1], "n2", *ON_NODES[0][2:])]
    assert await queue.drop_expired(datetime(2025, 11, 2, tzinfo=UTC) + KEEP, KEEP) != []
    assert [count_of(database_url, table) for table in ("past_attempt", "past_node", "past_template")] == [
        0
    ] * 3


async def test_attempt_that_is_moved_late_makes_no_name_older(queue: QueueStore, database_url: str) -> None:
    september, october = datetime(2025, 9, 20, tzinfo=UTC), datetime(2025, 10, 5, tzinfo=UTC)
    await lived(queue, name="late", begin=october)
    await lived(queue, name="early", begin=september, gone_at=datetime(2025, 12, 1, tzinfo=UTC))
    for _ in range(2):
        assert await move_deleted(queue, NOW, 1) == 1
        assert {month for _, _, month in rows_of(database_url, NAMES)} == {date(2025, 10, 1)}


# --- rights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["past_attempt", "past_node", "past_template"])
async def test_reader_sees_nodes_in_the_view_and_in_no_table(
    queue: QueueStore, database_url: str, table: LiteralString
) -> None:
    await lived(queue)
    assert await move_deleted(queue, TOMORROW, 500) == 1
    with psycopg.connect(database_url) as connection:
        connection.execute("SET ROLE dispatcher_reader")
        assert connection.execute(NODES).fetchall() == ON_NODES
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT * FROM public.{table}")
