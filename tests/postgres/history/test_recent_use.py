"""What namespaces used of late, added up by the database, against a sum over every attempt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from dispatcher.core.lifecycle import first_changes, queue_changes, removal
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.sharing.recent_use import REMEMBERED, recent_use
from dispatcher.store.database import Database
from dispatcher.store.history.recent_use import RecentUseStore
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import committed
from tests.postgres.history.attempts import charges, tries
from tests.postgres.history.conftest import MOVE, Past
from tests.postgres.history.oracle import Lives

# The first to ask for a history has it made.
pytestmark = pytest.mark.timeout(120)

GPU: Final = "nvidia.com/gpu"
ASKED: Final = {
    "q": (GPU, "gpu.intel.com/i915"),
    "team": (GPU,),
    "tree/gold": ("cpu",),
    "nobody": (GPU,),
}
HOUR: Final = timedelta(hours=1)
WEEK: Final = 168.0
NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def naive(lives: Lives, now: datetime) -> dict[tuple[str, str], float]:
    """Attempt by attempt, in device-hours or core-hours."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for life in lives.values():
        for each in tries(life):
            for held, since, until in charges(life, each, now):
                begin, end = (now - since) / HOUR, (now - until) / HOUR
                weight = WEEK / math.log(2) * (0.5 ** (end / WEEK) - 0.5 ** (begin / WEEK))
                for queue in set(each.queues) & ASKED.keys():
                    amount = sum(
                        held[name] / (1000 if name == "cpu" else 1) for name in ASKED[queue] if name in held
                    )
                    found[queue, life.record.namespace] += amount * weight
    return dict(found)


async def asked(
    url: str, now: datetime, of: Mapping[str, tuple[str, ...]] = ASKED
) -> dict[tuple[str, str], float]:
    database = Database(url)
    try:
        uses = await RecentUseStore(database).weighted_uses(of, now)
    finally:
        await database.close()
    return {key: float(hours) for key, hours in recent_use(uses).items()}


@pytest.mark.parametrize("later", [timedelta(0), timedelta(days=7)])
async def test_use_is_the_sum_over_all_attempts_that_were_charged_in_a_queue(
    past: Past, later: timedelta
) -> None:
    now = datetime.now(UTC) + later
    expected = {key: hours for key, hours in naive(past.lives, now).items() if hours > 0}
    found = {key: hours for key, hours in (await asked(past.url, now)).items() if hours > 0}
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert {queue for queue, _ in found} == {"q", "team", "tree/gold"}


async def test_unused_queue_has_no_recent_use(past: Past) -> None:
    assert await asked(past.url, datetime.now(UTC), {"unused": (GPU, "cpu")}) == {}


# --- by hand ------------------------------------------------------------------------------------------------

EIGHT_GPUS: Final = Gang(Resources({"cpu": 500, GPU: 8}), 1)


async def held(queue: QueueStore, name: str, begin: datetime, end: datetime | None) -> None:
    """8 GPUs in queue `a`, by the namespace `name`; gone if there is an end."""
    submission = Submission(name, "group", name, name, begin, b"{}", "hash")
    record = await committed(queue, first_changes.submit(submission, EIGHT_GPUS, begin))
    record = await committed(queue, queue_changes.move(record, ("a",), begin))
    record = await committed(queue, queue_changes.dispatch(record, "hub", begin))
    if end is not None:
        record = await committed(queue, removal.delete(record, end))
        await committed(queue, removal.release(record, end))


@pytest.mark.parametrize("is_moved", [False, True])
async def test_eight_gpus_for_a_day_and_a_week_later(
    queue: QueueStore, database_url: str, is_moved: bool
) -> None:
    day = timedelta(days=1)
    await held(queue, "today", NOW - day, NOW)
    await held(queue, "running", NOW - day, None)
    await held(queue, "last-week", NOW - 8 * day, NOW - 7 * day)
    await held(queue, "at-the-edge", NOW - REMEMBERED - day, NOW - REMEMBERED + HOUR)
    await held(queue, "forgotten", NOW - REMEMBERED - day, NOW - REMEMBERED)
    await held(queue, "tomorrow", NOW + day, NOW + 2 * day)
    await held(queue, "for-ages", NOW - timedelta(days=40_000), None)
    if is_moved:
        with psycopg.connect(database_url) as connection:
            connection.execute(MOVE)
    found = await asked(database_url, NOW, {"a": (GPU,)})
    assert {name: round(hours, 1) for (_, name), hours in found.items()} == {
        "today": 182.8,
        "running": 182.8,
        "last-week": 91.4,
        "at-the-edge": 0.2,
        "tomorrow": 0,
        "for-ages": 1939,
    }
