"""Histories to look at: each made once, by a walk, and never changed by who looks."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import psycopg
import pytest

from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.store.database import Database
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import clone_template, drop_database
from tests.postgres.history.facts import Life
from tests.postgres.history.walk import Walk

MOVE = """
CREATE TEMPORARY TABLE gone AS SELECT uid FROM appwrapper WHERE phase = 'Deleted';
INSERT INTO past_attempt SELECT l.*, t.queues, t.growth
FROM attempt_live AS l JOIN attempt AS t ON (t.uid, t.number) = (l.uid, l.attempt)
WHERE l.uid IN (SELECT uid FROM gone);
INSERT INTO past_appwrapper SELECT * FROM job_live WHERE uid IN (SELECT uid FROM gone);
DELETE FROM attempt WHERE uid IN (SELECT uid FROM gone);
DELETE FROM appwrapper WHERE uid IN (SELECT uid FROM gone)
"""
"""What the leader does with what was deleted long ago."""


@dataclass(frozen=True)
class Declared:
    """The leaves that are declared from a moment on, until the next one."""

    at: datetime
    quotas: tuple[LeafQuota, ...]


@dataclass(frozen=True)
class Past:
    """A database with a history in it, and what truly happened."""

    url: str
    lives: dict[str, Life]
    declared: list[Declared]


@pytest.fixture(
    scope="session",
    params=[
        pytest.param((55, False), id="all-there"),
        pytest.param((72, True), id="what-was-deleted-is-moved"),
    ],
)
def past(request: pytest.FixtureRequest, postgres_url: str, replaying_template: str) -> Iterator[Past]:
    """Some eighty lives; once with all of their rows where they were made, once as they are days later."""
    seed, is_moved = request.param
    name = f"aw_test_{uuid.uuid4().hex}"
    url = clone_template(postgres_url, replaying_template, name)
    lives, declared = asyncio.run(walked(url, seed))
    if is_moved:
        with psycopg.connect(url) as connection:
            connection.execute(MOVE)
    yield Past(url, lives, declared)
    drop_database(postgres_url, name)


async def walked(url: str, seed: int) -> tuple[dict[str, Life], list[Declared]]:
    """Walk through the real store, from the midnight of three days ago: alike at whatever time of day."""
    database = Database(url)
    try:
        leadership = Leadership(database, "leader", lease=timedelta(minutes=10))
        assert await leadership.acquire() is not None
        queue = QueueStore(database, lambda: leadership.lease)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begin = today - timedelta(days=3)
        lives = await Walk(queue, random.Random(seed), begin).go()  # noqa: S311 - repeatable
        store = QueueDeclarationStore(database, lambda: leadership.lease)
        declared = declarations(random.Random(seed), begin)  # noqa: S311 - repeatable
        for each in declared:
            await store.declare(each.quotas, each.at)
        return lives, declared
    finally:
        await database.close()


def declarations(chance: random.Random, start: datetime) -> list[Declared]:
    """What was declared at some moments: the same again, another quota, another weight, nothing."""
    found, at = list[Declared](), start
    for _ in range(12):
        at += timedelta(seconds=chance.choice([0, 1800, 21_600, chance.uniform(1, 20_000)]))
        quotas = found[-1].quotas if found and chance.random() < 0.2 else random_quotas(chance)
        found.append(Declared(at, quotas))
    return found


def random_quotas(chance: random.Random) -> tuple[LeafQuota, ...]:
    """Some of the queues of the walk, in trees that limit devices, cpu, or neither."""
    some = [name for name in QUEUES if chance.random() < 0.8]
    return tuple(
        LeafQuota(
            name, Fraction(chance.choice([1, 3]), 2), {each: chance.choice([0, 500, 8]) for each in limited}
        )
        for name in some
        for limited in [chance.choice(LIMITED)]
    )


QUEUES = ("default", "q", "r", "team", "tree/gold", "x/y", "unused")
LIMITED = (
    ("nvidia.com/gpu",),
    ("nvidia.com/gpu", "gpu.intel.com/i915", "cpu"),
    ("cpu", "memory"),
    ("memory",),
    (),
)
