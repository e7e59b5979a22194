"""How queues were every five minutes, and what happened to clusters, as it was noted."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

from tests.postgres.changes import rows_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def amounts(chance: random.Random) -> tuple[int, Decimal, Decimal, int]:
    """How many, and their cpu, memory and GPUs."""
    return chance.randrange(99), Decimal(chance.randrange(99)) / 4, Decimal(chance.randrange(99)) / 8, 3


def test_the_depth_of_a_queue_equals_its_samples(database_url: str) -> None:
    chance = random.Random(8)  # noqa: S311 - repeatable
    samples = [
        (NOW + number * timedelta(minutes=5), queue, *amounts(chance), *amounts(chance))
        for number in range(50)
        for queue in ("a", "b")
    ]
    with psycopg.connect(database_url) as connection:
        connection.cursor().executemany(
            "INSERT INTO queue_sample VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", samples
        )
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT * FROM history.queue_depth_5m ORDER BY at, queue")
        columns = [column.name for column in found.description or ()]
        assert found.fetchall() == samples
    assert columns == [
        *("at", "queue", "queued", "queued_cpu", "queued_memory_gib", "queued_gpu"),
        *("running", "running_cpu", "running_memory_gib", "running_gpu"),
    ]


def with_seconds(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each event, and how long after it the next one of its cluster was; those of one moment as they were noted."""
    told = []
    ordered = sorted(events, key=lambda event: event[0])
    for number, event in enumerate(ordered):
        later = [each for each in ordered[number + 1 :] if each[1] == event[1]]
        told.append((*event, (later[0][0] - event[0]).total_seconds() if later else None))
    return told


def test_an_event_of_a_cluster_lasts_until_its_next_one(database_url: str) -> None:
    chance = random.Random(9)  # noqa: S311 - repeatable
    words = ("connected", "unreachable", "reachable", "cordoned", "uncordoned")
    events = [
        (
            NOW + timedelta(seconds=chance.choice([0, 0, 1]) + chance.randrange(300)),
            chance.choice(["hub", "east", "west"]),
            chance.choice(words),
            "Reason",
            f"message {number}",
            chance.choice(["", "ada"]),
        )
        for number in range(120)
    ]
    with psycopg.connect(database_url) as connection:
        connection.cursor().executemany(
            "INSERT INTO cluster_event (at, cluster, event, reason, message, actor, epoch) "
            "VALUES (%s, %s, %s, %s, %s, %s, 1)",
            events,
        )
    found = rows_of(database_url, "SELECT * FROM history.cluster_events")
    assert sorted(found, key=str) == sorted(with_seconds(events), key=str)
    assert sum(row[-1] == 0 for row in found) > 0
    assert sum(row[-1] is None for row in found) == 3
