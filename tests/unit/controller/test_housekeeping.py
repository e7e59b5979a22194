"""Housekeeping is done once an hour; a failure only postpones it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from dispatcher import errors
from dispatcher.controller.upkeep.housekeeping import AT_ONCE, READERS_EVERY_SECONDS, Housekeeping
from tests.builders import NOW
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

KEEP = timedelta(days=400)
DAY = timedelta(days=1)


class Database:
    """Records its calls; the calls in `fails` fail."""

    def __init__(self, deleted: int = 0, fails: dict[str, errors.StoreError] | None = None) -> None:
        self.deleted = deleted
        self.fails = fails or {}
        self.asked: list[tuple[object, ...]] = []

    async def ensure_partitions(self, now: datetime) -> list[str]:
        self._note("make", now)
        return []

    async def move_deleted(self, before: datetime, most: int) -> int:
        self._note("move", before, most)
        moved = min(most, self.deleted)
        self.deleted -= moved
        return moved

    async def drop_expired(self, now: datetime, keep: timedelta) -> list[str]:
        self._note("drop", now, keep)
        return []

    async def end_overdue_readers(self, longest: timedelta) -> list[str]:
        self._note("end", longest)
        return ["ada: advisory locks"]

    def _note(self, what: str, *how: object) -> None:
        self.asked.append((what, *how))
        if what in self.fails:
            raise self.fails[what]


async def kept(database: Database) -> list[tuple[object, ...]]:
    await Housekeeping(database, lambda: NOW, KEEP).run_once()
    return database.asked


async def test_months_are_created_and_dropped_and_deleted_appwrappers_moved() -> None:
    asked = await kept(Database())
    assert asked == [("make", NOW), ("move", NOW - DAY, AT_ONCE), ("drop", NOW, KEEP)]


async def test_many_deleted_appwrappers_are_moved_in_batches() -> None:
    database = Database(deleted=2 * AT_ONCE + 1)
    asked = await kept(database)
    assert [what for what, *_ in asked] == ["make", "move", "move", "move", "move", "drop"]
    assert database.deleted == 0


@pytest.mark.parametrize("what", ["make", "move", "drop"])
async def test_failed_work_is_left_to_the_next_hour_and_delays_no_other_work(what: str) -> None:
    asked = await kept(Database(fails={what: errors.StoreUnavailable("lock timeout")}))
    assert [each for each, *_ in asked] == ["make", "move", "drop"]


@pytest.mark.parametrize("what", ["make", "move", "drop"])
async def test_fenced_leader_does_no_housekeeping(what: str) -> None:
    with pytest.raises(errors.Fenced):
        await kept(Database(fails={what: errors.Fenced("epoch 1 is over")}))


async def test_readers_are_checked_periodically_also_after_a_failure() -> None:
    database = Database(fails={"end": errors.StoreUnavailable("gone")})
    async with workers.running(
        Housekeeping(database, lambda: NOW, KEEP, timedelta(seconds=40)).run_readers()
    ):
        await until(lambda: len(database.asked) == 2)
        database.fails = {}
        await until(lambda: len(database.asked) == 4)
    assert set(database.asked) == {("end", timedelta(seconds=40))}
    assert monotonic() >= 3 * READERS_EVERY_SECONDS
