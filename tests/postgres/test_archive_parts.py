"""What was deleted is moved in bounded parts, and no AppWrapper keeps others in the queue's own tables."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from structlog.testing import capture_logs

from dispatcher.controller.upkeep.housekeeping import Housekeeping
from dispatcher.core.lifecycle import first_changes, queue_changes, removal
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.records.record import Record
from dispatcher.store.history import archive
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import GANG, NOW, committed, rows_of

DAY = timedelta(days=1)


async def deleted(queue: QueueStore, name: str, places: int, second: int) -> Record:
    """A gang that was dispatched to so many nodes and deleted so many seconds later: one attempt."""
    record = await committed(queue, first_changes.submit(make_submission(name), GANG, NOW))
    nodes = tuple((f"n{number}", 1) for number in range(places))
    change = queue_changes.dispatch(record, "hub", NOW, assignment=Assignment((nodes,)))
    record = await committed(queue, change)
    record = await committed(queue, removal.delete(record, NOW))
    return await committed(queue, removal.release(record, NOW + timedelta(seconds=second)))


async def keep_house(queue: QueueStore) -> None:
    await Housekeeping(queue, lambda: NOW + 2 * DAY, timedelta(days=400)).run_once()


def moved(url: str) -> list[str]:
    return [name for (name,) in rows_of(url, "SELECT name FROM past_appwrapper ORDER BY name")]


def refuse_slowly(url: str, name: str) -> None:
    """Have the move of one AppWrapper end as a statement does that takes too long."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE FUNCTION too_slow() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE query_canceled USING MESSAGE = 'statement timeout'; END$$"
        )
        connection.execute(
            "CREATE TRIGGER slow BEFORE INSERT ON past_appwrapper FOR EACH ROW "
            f"WHEN (NEW.name = '{name}') EXECUTE FUNCTION too_slow()".encode()
        )


async def test_an_appwrapper_whose_move_takes_too_long_stops_no_other(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_ROWS", 6)
    slow = await deleted(queue, "slow", 9, 1)
    for number in range(3):
        await deleted(queue, f"other-{number}", 2, 2 + number)
    refuse_slowly(database_url, "slow")
    with capture_logs() as logs:
        await keep_house(queue)
    assert moved(database_url) == ["other-0", "other-1", "other-2"]
    told = [each for each in logs if each["event"] == "move_postponed"]
    assert [(each["appwrapper"], "statement timeout" in each["error"]) for each in told] == [(slow.uid, True)]


async def test_an_appwrapper_that_is_too_large_is_told_of_and_stays(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_ROWS", 6)
    monkeypatch.setattr(archive, "MOST_ROWS_OF_ONE", 10)
    huge = await deleted(queue, "huge", 10, 1)
    for name, places in (("large", 9), ("small", 2)):
        await deleted(queue, name, places, 2)
    for _ in range(2):
        with capture_logs() as logs:
            await keep_house(queue)
        told = [each["appwrapper"] for each in logs if each["event"] == "too_large_for_history"]
        assert (told, moved(database_url)) == ([huge.uid], ["large", "small"])
    assert rows_of(database_url, "SELECT name FROM appwrapper") == [("huge",)]


async def test_appwrappers_that_are_too_large_and_fill_a_part_stop_no_other(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_ROWS_OF_ONE", 3)
    huge = [await deleted(queue, f"huge-{number}", 4, 1) for number in range(3)]
    other = await deleted(queue, "other", 2, 1)
    uids, part, after = list[str](), None, archive.BEGINNING
    while (part := await queue.next_deleted(NOW + DAY, after, 2)) is not None:
        assert len(part.too_large) <= 1  # each is counted up to the bound, which takes long
        uids += (*part.uids, *part.too_large)
        after = part.after
    assert sorted(uids) == sorted(each.uid for each in [*huge, other])


async def test_a_part_reads_the_places_of_one_appwrapper_more_than_it_has(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of the others are no arrays, so their count would fail."""
    monkeypatch.setattr(archive, "MOST_ROWS", 6)
    records = [await deleted(queue, f"aw-{number}", 2, number) for number in range(5)]
    with psycopg.connect(database_url) as connection:
        uids = [each.uid for each in records[3:]]
        connection.execute("UPDATE attempt SET assignment = '[7]' WHERE uid = ANY(%s)", [uids])
    part = await queue.next_deleted(NOW + DAY, archive.BEGINNING, 500)
    assert part is not None
    assert part.uids == tuple(each.uid for each in records[:2])


async def test_an_appwrapper_is_moved_once(queue: QueueStore, database_url: str) -> None:
    record = await deleted(queue, "aw", 2, 1)
    assert [await queue.move_deleted([record.uid]) for _ in range(2)] == [1, 0]
    assert moved(database_url) == ["aw"]


async def test_an_appwrapper_that_is_not_deleted_is_never_moved(queue: QueueStore, database_url: str) -> None:
    record = await committed(queue, first_changes.submit(make_submission("aw"), GANG, NOW))
    assert await queue.move_deleted([record.uid]) == 0
    assert moved(database_url) == []
