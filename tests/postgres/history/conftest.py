"""Histories to look at: each made once, by a walk, and never changed by who looks."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.queue import QueueStore
from testbed.postgres import clone_template, drop_database
from tests.postgres.history.facts import Life
from tests.postgres.history.walk import Walk

REPLAY = (Path(__file__).parent.parent / "replay.sql").read_bytes()

MOVE = """
CREATE TEMPORARY TABLE gone AS SELECT uid FROM appwrapper WHERE phase = 'Deleted';
INSERT INTO past_attempt SELECT l.*, t.queues
FROM attempt_live AS l JOIN attempt AS t ON (t.uid, t.number) = (l.uid, l.attempt)
WHERE l.uid IN (SELECT uid FROM gone);
INSERT INTO past_appwrapper SELECT * FROM job_live WHERE uid IN (SELECT uid FROM gone);
DELETE FROM attempt WHERE uid IN (SELECT uid FROM gone);
DELETE FROM appwrapper WHERE uid IN (SELECT uid FROM gone)
"""
"""What the leader does with what was deleted long ago."""


@dataclass(frozen=True)
class Past:
    """A database with a history in it, and what truly happened."""

    url: str
    lives: dict[str, Life]


@pytest.fixture(
    scope="session",
    params=[
        pytest.param((29, False), id="all-there"),
        pytest.param((48, True), id="what-was-deleted-is-moved"),
    ],
)
def past(request: pytest.FixtureRequest, postgres_url: str, database_template: str) -> Iterator[Past]:
    """Some eighty lives; once with all of their rows where they were made, once as they are days later."""
    seed, is_moved = request.param
    name = f"aw_test_{uuid.uuid4().hex}"
    url = clone_template(postgres_url, database_template, name)
    with psycopg.connect(url) as connection:
        connection.execute(REPLAY)
    lives = asyncio.run(walked(url, seed))
    if is_moved:
        with psycopg.connect(url) as connection:
            connection.execute(MOVE)
    yield Past(url, lives)
    drop_database(postgres_url, name)


async def walked(url: str, seed: int) -> dict[str, Life]:
    """Walk through the real store, from the midnight of three days ago: alike at whatever time of day."""
    database = Database(url)
    try:
        leadership = Leadership(database, "leader", lease=timedelta(minutes=10))
        assert await leadership.acquire() is not None
        queue = QueueStore(database, lambda: leadership.lease)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return await Walk(queue, random.Random(seed), today - timedelta(days=3)).go()  # noqa: S311 - repeatable
    finally:
        await database.close()
