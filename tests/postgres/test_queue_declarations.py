"""Declared quotas and specs are kept over time: each change once, by whichever leader sees it first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import LiteralString

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.api.selector import LONGEST_SELECTOR, parse_selector
from dispatcher.core.intake.labels import ClassValue
from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.declared_queues import last_valid
from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.core.queues.queue import (
    Order,
    Preemption,
    Queue,
    Quota,
    Reclaim,
    Sharing,
    WhileBorrowing,
    WithinQueue,
)
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import make_submit, rows_of

KEPT: LiteralString = (
    "SELECT queue, weight::text, nominal, valid_from, valid_to FROM queue_declaration "
    "ORDER BY queue, valid_from"
)


@pytest.fixture
def store(database: Database, leadership: Leadership) -> QueueDeclarationStore:
    return QueueDeclarationStore(database, lambda: leadership.lease)


def at(hour: int) -> datetime:
    return datetime(2026, 11, 20, hour, tzinfo=UTC)


def quota(queue: str, gpus: int = 8, weight: str = "1") -> LeafQuota:
    return LeafQuota(queue, Fraction(weight), {"nvidia.com/gpu": gpus})


def row(queue: str, gpus: int, since: int, until: int | None, weight: str = "1") -> tuple[object, ...]:
    end = None if until is None else at(until)
    return queue, weight, {"nvidia.com/gpu": str(gpus)}, at(since), end


async def test_each_change_ends_a_row_and_begins_another(
    store: QueueDeclarationStore, database_url: str
) -> None:
    await store.declare([quota("a"), quota("b"), quota("c")], at(1))
    await store.declare([quota("a"), quota("b", 4), quota("d")], at(2))
    await store.declare([quota("a"), quota("b", 4, "1.25"), quota("c")], at(3))
    assert rows_of(database_url, KEPT) == [
        row("a", 8, 1, None),
        row("b", 8, 1, 2),
        row("b", 4, 2, 3),
        row("b", 4, 3, None, "1.25"),
        row("c", 8, 1, 2),
        row("c", 8, 3, None),
        row("d", 8, 2, 3),
    ]
    await store.declare([], at(4))
    assert [end for *_, end in rows_of(database_url, KEPT)].count(None) == 0


async def test_the_next_leader_writes_nothing_again(
    store: QueueDeclarationStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    await store.declare([quota("a"), quota("b")], at(1))
    before = rows_of(database_url, "SELECT xmin::text, * FROM queue_declaration ORDER BY queue")
    former = leadership.lease
    await leadership.release()
    successor = Leadership(database, "successor")
    assert await successor.acquire() is not None
    await QueueDeclarationStore(database, lambda: successor.lease).declare([quota("b"), quota("a")], at(2))
    assert rows_of(database_url, "SELECT xmin::text, * FROM queue_declaration ORDER BY queue") == before
    with pytest.raises(Fenced):
        await QueueDeclarationStore(database, lambda: former).declare([], at(3))
    assert rows_of(database_url, "SELECT xmin::text, * FROM queue_declaration ORDER BY queue") == before


async def test_a_declaration_of_no_time_leaves_no_row_and_a_clock_that_is_turned_back_no_overlap(
    store: QueueDeclarationStore, database_url: str
) -> None:
    await store.declare([quota("a", 1)], at(1))
    await store.declare([quota("a", 2)], at(5))
    await store.declare([quota("a", 3)], at(5))
    assert rows_of(database_url, KEPT) == [row("a", 1, 1, 5), row("a", 3, 5, None)]
    await store.declare([quota("a", 4)], at(3))
    assert rows_of(database_url, KEPT) == [row("a", 1, 1, 5), row("a", 4, 5, None)]


async def test_declarations_of_dropped_months_are_forgotten(
    store: QueueDeclarationStore, database_url: str
) -> None:
    await store.declare([quota("a", 1)], datetime(2026, 9, 21, tzinfo=UTC))
    await store.declare([quota("a", 2)], datetime(2026, 10, 31, tzinfo=UTC))
    await store.declare([quota("a", 3)], at(3))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET history_dropped_month = '2026_10'")
    await store.declare([quota("a", 4)], at(4))
    assert [kept for _, _, kept, *_ in rows_of(database_url, KEPT)] == [
        {"nvidia.com/gpu": gpus} for gpus in ("2", "3", "4")
    ]


SPECS: LiteralString = (
    "SELECT queue, position, valid_from, valid_to FROM history.queue_specs ORDER BY valid_from, position"
)
OF_DECISION: LiteralString = """
SELECT queue, spec FROM history.queue_specs
WHERE valid_from <= %(decided_at)s AND (valid_to IS NULL OR valid_to > %(decided_at)s) ORDER BY position
"""
FULL = Queue(
    "team",
    "org",
    {"nvidia.com/gpu": Quota(8, 4, 6), "cpu": Quota(1500)},
    weight=Fraction(3, 2),
    order=Order.USAGE,
    preemption=Preemption(WithinQueue.LOWER_PRIORITY, Reclaim.ANY, WhileBorrowing(7)),
)


async def test_a_decision_finds_the_specs_that_it_was_made_with(
    store: QueueDeclarationStore, database_url: str
) -> None:
    sets = [
        [Queue("org"), FULL],
        [Queue("org", sharing=Sharing.DOMINANT_SHARE), FULL],
        [FULL, Queue("org", sharing=Sharing.DOMINANT_SHARE)],
        [],
    ]
    for hour, queues in enumerate(sets, 1):
        await store.declare_specs(queues, at(hour))
        await store.declare_specs(queues, at(hour))
    assert rows_of(database_url, SPECS) == [
        ("org", 0, at(1), at(2)),
        ("team", 1, at(1), at(3)),
        ("org", 0, at(2), at(3)),
        ("team", 0, at(3), at(4)),
        ("org", 1, at(3), at(4)),
    ]
    with psycopg.connect(database_url) as connection:
        for hour, queues in enumerate(sets, 1):
            decided_at = at(hour) + timedelta(minutes=30)
            found = connection.execute(OF_DECISION, {"decided_at": decided_at}).fetchall()
            assert [
                parse_dispatch_queue({"metadata": {"name": name}, "spec": spec}) for name, spec in found
            ] == queues
            entries = [{"name": name, **spec} for name, spec in found]
            document = {"clusters": [{"name": "hub"}], "queues": entries}
            assert [
                each.queue
                for each in parse_scenario(document).forest.places.values()
                if each.name != "default"
            ] == queues


AT_THE_BOUND = parse_selector(",".join(["a!=b"] * (LONGEST_SELECTOR // 5)), "selector")
LONG_SELECTORS = Queue("long", cluster_selector=AT_THE_BOUND, namespace_selector=AT_THE_BOUND)

TIMES = [
    pytest.param(
        [[Queue("org"), Queue("group", "org"), FULL, Queue("part", "team")], []], id="the whole tree is gone"
    ),
    pytest.param([[Queue("org"), Queue("a", "org")], [Queue("org"), Queue("a")], []], id="a root in the end"),
    pytest.param([[Queue("a")], [], [Queue("org"), Queue("a", "org")]], id="below a root in the end"),
    pytest.param(
        [[Queue("org"), FULL], [Queue("org")], [Queue("org"), replace(FULL, parent=None)], []],
        id="gone for a time",
    ),
    pytest.param([[LONG_SELECTORS], []], id="selectors at the bound"),
    pytest.param(
        [[Queue("context/all"), Queue("context/gold", "context/all", {"cpu": Quota(1000)})], []], id="nodes"
    ),
]


@pytest.mark.parametrize("times", TIMES)
async def test_next_leader_knows_the_last_valid_declarations_as_the_one_that_saw_them(
    store: QueueDeclarationStore, database: Database, leadership: Leadership, times: list[list[Queue]]
) -> None:
    """Gangs that run on are charged by them, and quota counts by them, whoever leads then."""
    for hour, queues in enumerate(times, 1):
        await store.declare_specs(queues, at(hour))
    await leadership.release()
    successor = Leadership(database, "successor")
    assert await successor.acquire() is not None
    later = QueueDeclarationStore(database, lambda: successor.lease)
    assert await later.last_valid() == last_valid(times)


async def test_declaration_of_a_later_release_that_cannot_be_read_still_has_its_parent(
    store: QueueDeclarationStore, database_url: str
) -> None:
    await store.declare_specs([Queue("org"), FULL], at(1))
    with psycopg.connect(database_url) as connection:
        connection.execute(
            """UPDATE queue_spec SET spec = spec || '{"order": "Tomorrow"}' WHERE queue = 'team'"""
        )
    assert await store.last_valid() == {"org": Queue("org"), "team": Queue("team", "org")}


async def test_path_of_a_queue_with_gangs_is_known_for_longer_than_history_is_kept(
    store: QueueDeclarationStore, queue: QueueStore, database_url: str
) -> None:
    """Each queue above it may be deleted as well: put back, it is charged again for the gang that still runs."""
    await queue.commit([make_submit(queue="team", more_queues=("context/gold",))])
    pairs = [("group", "org"), ("team", "group"), ("context/gold", "context/all"), ("unused", "org")]
    roots = [Queue("org"), Queue("context/all")]
    declared = [*roots, *(Queue(name, parent) for name, parent in pairs)]
    await store.declare_specs(declared, datetime(2026, 9, 21, tzinfo=UTC))
    await store.declare_specs([], datetime(2026, 9, 22, tzinfo=UTC))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET history_dropped_month = '2026_10'")
    await store.declare_specs([Queue("new")], at(4))
    found = await store.last_valid()
    assert {name: each.parent for name, each in found.items() if each.parent} == dict(pairs[:3])


async def test_declaration_of_a_queue_that_is_there_is_known_for_longer_than_history_is_kept(
    store: QueueDeclarationStore, database_url: str
) -> None:
    """It may be malformed for as long, and counts for quota by it."""
    await store.note_seen({"group", "team"})
    declared = [Queue("org"), Queue("group", "org"), Queue("team", "group"), Queue("gone", "org")]
    await store.declare_specs(declared, datetime(2026, 9, 21, tzinfo=UTC))
    await store.declare_specs([], datetime(2026, 9, 22, tzinfo=UTC))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET history_dropped_month = '2026_10'")
    await store.declare_specs([Queue("new")], at(4))
    assert (await store.last_valid()).keys() == {"org", "group", "team", "new"}


async def test_queues_that_one_leader_saw_are_known_to_the_next(
    store: QueueDeclarationStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    assert await store.seen() == frozenset()
    await store.note_seen({"team", "context/"})
    before = rows_of(database_url, "SELECT xmin::text FROM hub")
    await leadership.release()
    successor = Leadership(database, "successor")
    assert await successor.acquire() is not None
    later = QueueDeclarationStore(database, lambda: successor.lease)
    assert await later.seen() == {"team", "context/"}
    await later.note_seen({"context/", "team"})
    assert rows_of(database_url, "SELECT xmin::text FROM hub") == before
    await later.note_seen(())
    assert await later.seen() == frozenset()


async def test_priority_classes_that_one_leader_saw_are_known_to_the_next(
    store: QueueDeclarationStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    assert await store.classes() is None
    classes = {"pods/train": ClassValue(-5), "workloads/train": ClassValue(2**31, never_preempts=True)}
    await store.note_classes(classes)
    before = rows_of(database_url, "SELECT xmin::text FROM hub")
    await leadership.release()
    successor = Leadership(database, "successor")
    assert await successor.acquire() is not None
    later = QueueDeclarationStore(database, lambda: successor.lease)
    assert await later.classes() == classes
    await later.note_classes(dict(reversed(classes.items())))
    assert rows_of(database_url, "SELECT xmin::text FROM hub") == before
    await later.note_classes({})
    assert await later.classes() == {}
    with pytest.raises(Fenced):
        await store.note_classes(classes)
