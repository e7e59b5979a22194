"""What became of each cluster's capacity hour by hour, against a count of every moment of it."""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import committed, make_object

HOUR: Final = timedelta(hours=1)
TICK: Final = timedelta(seconds=20)
"""Things happen at whole ticks here, so that the oracle can look at each of them."""
LONGEST: Final = timedelta(minutes=10)
UNITS: Final = {"cpu": 1000, "memory": 2**30, "nvidia.com/gpu": 1, "example.com/slice": 1}
CLUSTERS: Final = ("east", "hub", "west")

Key = tuple[datetime, str, str]


@dataclass(frozen=True)
class Sample:
    """Amounts in base units, as they were from `at` on."""

    at: datetime
    cluster: str
    resource: str
    capacity: int
    other: int
    is_reachable: bool


@dataclass(frozen=True)
class Hold:
    """What an attempt held in a cluster, and when: until now if it has no end."""

    cluster: str
    demand: dict[str, int]
    decided_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class Hours:
    """A row, but for its key."""

    capacity_h: float
    allocated_h: float
    reserved_h: float
    other_h: float
    idle_h: float
    down_h: float
    percent: float | None
    known_s: float


def ticks(start: datetime, end: datetime) -> Iterator[datetime]:
    """Every one from `start` until before `end`."""
    return (start + number * TICK for number in range((end - start) // TICK))


def oracle(samples: list[Sample], holds: list[Hold], now: datetime) -> dict[Key, Hours]:
    """Each tick is known by one sample or by none; add up what was so then."""
    series: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda each: each.at):
        series[sample.cluster, sample.resource].append(sample)
    sums: dict[Key, Counter[str]] = defaultdict(Counter)
    for (cluster, resource), ordered in series.items():
        held = _held(holds, cluster, resource, now)
        ends = [*(following.at for _, following in pairwise(ordered)), now]
        for sample, until in zip(ordered, ends, strict=True):
            for tick in ticks(sample.at, min(until, now, sample.at + LONGEST)):
                at_hour = tick.replace(minute=0, second=0, microsecond=0)
                sums[at_hour, cluster, resource].update(
                    known=1,
                    capacity=sample.capacity,
                    other=sample.other,
                    down=0 if sample.is_reachable else sample.capacity,
                    allocated=held[True][tick],
                    reserved=held[False][tick],
                )
    return {key: _hours(sums[key], UNITS[key[2]]) for key in sums}


def _held(holds: list[Hold], cluster: str, resource: str, now: datetime) -> dict[bool, Counter[datetime]]:
    """How much is held in each tick, by those that have started and by those that have not."""
    held = {True: Counter[datetime](), False: Counter[datetime]()}
    for hold in holds:
        if hold.cluster == cluster and hold.demand.get(resource):
            end = hold.ended_at or now
            started_at = min(hold.started_at or end, end)
            for tick in ticks(hold.decided_at, end):
                held[tick >= started_at][tick] += hold.demand[resource]
    return held


def _hours(sums: Counter[str], base: int) -> Hours:
    unit = base * (HOUR // TICK)
    capacity, allocated, reserved, other = (
        sums[name] for name in ("capacity", "allocated", "reserved", "other")
    )
    return Hours(
        capacity / unit,
        allocated / unit,
        reserved / unit,
        other / unit,
        max(0, capacity - allocated - reserved - other) / unit,
        sums["down"] / unit,
        100 * allocated / capacity if capacity else None,
        sums["known"] * TICK.total_seconds(),
    )


def random_samples(chance: random.Random, start: datetime, end: datetime) -> list[Sample]:
    """Every 5 minutes or so, with gaps, restarts and a cluster that loses a resource."""
    samples = []
    for cluster in CLUSTERS:
        at = start + chance.randrange(15) * TICK
        while at < end:
            is_reachable = chance.random() < 0.9
            for resource, unit in UNITS.items():
                if chance.random() < 0.95:
                    capacity = chance.choice([0, 8, 64, 64]) * unit
                    samples.append(
                        Sample(at, cluster, resource, capacity, chance.randrange(9) * unit, is_reachable)
                    )
            at += chance.choice([15, 15, 15, 15, 1, 29, 30, 31, 100]) * TICK
    return samples


def store(url: str, samples: list[Sample]) -> None:
    with psycopg.connect(url) as connection:
        connection.cursor().executemany(
            "INSERT INTO capacity_sample (at, cluster, resource, capacity, held, other, free, is_reachable) "
            "VALUES (%s, %s, %s, %s, 0, %s, 0, %s)",
            [
                (each.at, each.cluster, each.resource, each.capacity, each.other, each.is_reachable)
                for each in samples
            ],
        )


async def hold_at_random(
    queue: QueueStore, chance: random.Random, start: datetime, end: datetime
) -> list[Hold]:
    """Let one AppWrapper make some attempts, one after the other, in clusters of chance."""
    demand = {name: chance.randrange(9) * unit for name, unit in UNITS.items() if chance.random() < 0.8}
    now = start + chance.randrange((end - start) // TICK) * TICK
    submission = make_submission(uid=str(uuid.uuid4()))
    change = first_changes.submit(submission, Gang(Resources(demand), 1), now)
    record = await committed(queue, replace(change, spec=submission.spec))
    holds: list[Hold] = []
    while chance.random() < 0.8:
        decided_at = now = now + chance.randrange(150) * TICK
        if now >= end:
            break
        cluster = chance.choice([*CLUSTERS, "unknown"])
        record = await committed(queue, queue_changes.dispatch(record, cluster, now))
        started_at = ended_at = None
        grown: list[tuple[datetime, Resources]] = []
        for step in (_create, _grow, _start, _grow, _end):
            now += chance.randrange(250) * TICK
            if now >= end or chance.random() < 0.1:
                break
            if step in (_start, _grow) and chance.random() < 0.2:
                continue
            record = await committed(queue, step(record, now))
            started_at = now if step is _start else started_at
            ended_at = now if step is _end else ended_at
            if step is _grow and record.attempt is not None:
                grown.append((now, record.attempt.grown))
        holds.append(Hold(cluster, demand, decided_at, started_at, ended_at))
        ends = [*(at for at, _ in grown[1:]), ended_at]
        holds += [
            Hold(cluster, dict(more), at, max(at, started_at) if started_at else None, until)
            for (at, more), until in zip(grown, ends, strict=False)
        ]
        if ended_at is None:
            break
        record = await committed(queue, removal.removed(record, now)) if record.holds_capacity else record
    return holds


def _create(record: Record, now: datetime) -> Change:
    return run_changes.created(record, (make_object(),), now)


def _start(record: Record, now: datetime) -> Change:
    return run_changes.mark_running(record, now)


def _grow(record: Record, now: datetime) -> Change:
    """By more, the later it is; now and then by nothing."""
    amounts = ((name, amount * (1 + now.minute % 3)) for name, amount in record.gang.demand.items())
    return run_changes.note_growth(record, Resources(amounts), now)


def _end(record: Record, now: datetime) -> Change:
    return run_changes.evict(record, EvictionReason("FoundFailedPods", "m"), now, 0, now)


def found(url: str, after: datetime) -> tuple[datetime, dict[Key, Hours]]:
    """The rows of those hours, and the moment of the statement that read them."""
    columns = ", ".join(Hours.__annotations__)
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            f"SELECT statement_timestamp(), hour, cluster, resource, {columns} "
            "FROM history.utilisation_hourly WHERE hour >= %s",
            [after],
        ).fetchall()
        (now,) = connection.execute("SELECT statement_timestamp()").fetchone() or (None,)
    return (rows[0][0] if rows else now), {row[1:4]: Hours(*row[4:]) for row in rows}


def assert_alike(rows: dict[Key, Hours], wanted: dict[Key, Hours]) -> None:
    assert rows.keys() == wanted.keys()
    for key, hours in rows.items():
        named = {name: getattr(hours, name) for name in Hours.__annotations__}
        expected = {name: getattr(wanted[key], name) for name in named}
        assert named == pytest.approx(expected, abs=1e-6), key


async def test_every_moment_that_samples_stand_for_counts_in_its_hour_and_no_other(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(8)  # noqa: S311 - repeatable
    end = datetime.now(UTC).replace(minute=20, second=0, microsecond=0) - 24 * HOUR
    start = end - 9 * HOUR
    samples = random_samples(chance, start, end)
    store(database_url, samples)
    holds = [hold for _ in range(15) for hold in await hold_at_random(queue, chance, start - 2 * HOUR, end)]
    now, rows = found(database_url, start - HOUR)
    wanted = oracle(samples, holds, now.replace(microsecond=0))
    assert_alike(rows, wanted)
    assert any(hours.allocated_h > 0 and hours.reserved_h > 0 and hours.down_h > 0 for hours in rows.values())
    only = start.replace(minute=0) + 3 * HOUR
    assert_alike(found(database_url, only)[1], {key: each for key, each in wanted.items() if key[0] >= only})


async def test_current_state_counts_up_to_now(queue: QueueStore, database_url: str) -> None:
    at = datetime.now(UTC) - timedelta(seconds=90)
    store(database_url, [Sample(at, "hub", "cpu", 4000, 1000, is_reachable=True)])
    submission = make_submission()
    change = first_changes.submit(submission, Gang(Resources({"cpu": 2000}), 1), at)
    record = await committed(queue, replace(change, spec=submission.spec))
    await committed(queue, queue_changes.dispatch(record, "hub", at))
    now, rows = found(database_url, at - 2 * HOUR)
    hours = (now - at).total_seconds() / 3600
    assert sum(each.known_s for each in rows.values()) == pytest.approx(3600 * hours)
    assert sum(each.capacity_h for each in rows.values()) == pytest.approx(4 * hours)
    assert sum(each.reserved_h for each in rows.values()) == pytest.approx(2 * hours)
    assert sum(each.idle_h for each in rows.values()) == pytest.approx(hours)


async def test_utilisation_stays_when_long_deleted_appwrappers_are_archived(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(7)  # noqa: S311 - repeatable
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 24 * HOUR
    start = end - 6 * HOUR
    sliced = "example.com/slice"
    store(database_url, [each for each in random_samples(chance, start, end) if each.resource != sliced])
    holds = [hold for _ in range(10) for hold in await hold_at_random(queue, chance, start, end)]
    assert any(hold.ended_at for hold in holds)
    _, before = found(database_url, start)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO past_attempt SELECT l.*, t.queues, t.growth FROM attempt_live AS l "
            "JOIN attempt AS t ON (t.uid, t.number) = (l.uid, l.attempt) WHERE l.ended_at IS NOT NULL"
        )
        connection.execute("DELETE FROM attempt WHERE ended_at IS NOT NULL")
    assert_alike(found(database_url, start)[1], before)


def test_a_day_is_looked_up_in_the_index_of_the_samples(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO capacity_sample (at, cluster, resource, capacity, held, other, free, is_reachable) "
            "SELECT now() - n * interval '5 minutes', 'c-' || n % 10, 'cpu', 1, 0, 0, 1, true "
            "FROM generate_series(1, 20000) n"
        )
        connection.execute("ANALYZE capacity_sample")
        plan = connection.execute(
            "EXPLAIN SELECT * FROM history.utilisation_hourly WHERE hour >= now() - interval '1 day'"
        ).fetchall()
    assert "Seq Scan on capacity_sample" not in str(plan)
    assert re.search(r"Index Cond: \(\(cluster = \S+\) AND \(resource = \S+\) AND \(at > ", str(plan))
