"""Rows that a new leader cannot read are set aside, and keep it from nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest
from structlog.testing import capture_logs

from dispatcher import log
from dispatcher.api.selector import LONGEST_SELECTOR
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.lifecycle import removal
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.store.snapshot.snapshot_reader import read_snapshot
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import (
    GANG,
    LATER,
    committed,
    forget_replay,
    loaded,
    make_dispatch,
    make_submit,
    rows_of,
    take,
)
from tests.unit.store.records import selector_of_many

NODE = Node("n", Resources({"cpu": 4000, "nvidia.com/gpu": 2}))
TIMEOUT = timedelta(seconds=30)

DAMAGES: list[LiteralString] = [
    "UPDATE appwrapper SET cluster_selector = 'a in' WHERE uid = %s",
    """UPDATE appwrapper SET pod_sets = '{"sets": 3}' WHERE uid = %s""",
    """UPDATE appwrapper SET conditions = '[{"type": "Unheard"}]' WHERE uid = %s""",
    "UPDATE appwrapper SET phase = 'Unheard' WHERE uid = %s",
    "UPDATE attempt SET provisioning = '3' WHERE uid = %s",
    "UPDATE attempt SET assignment = '3' WHERE uid = %s",
]
OF_DEMAND: LiteralString = "UPDATE appwrapper SET demand = '3' WHERE uid = %s"


@pytest.mark.parametrize("written", ["a!=b", "a in(b,c)"])
async def test_selectors_at_the_bound_are_read_by_the_next_leader(
    queue: QueueStore, database_url: str, written: str
) -> None:
    selector = selector_of_many(written, LONGEST_SELECTOR)
    assert len(str(selector)) > LONGEST_SELECTOR
    required = ClusterRequirements(selector, selector, "default", frozenset({("v1", "Pod")}))
    await take(queue, database_url, make_submit(requirements=required))


async def damaged(queue: QueueStore, url: str, damage: LiteralString) -> tuple[Record, Record, Record]:
    """A dispatched and a queued AppWrapper whose rows are damaged, and a queued one whose row is not."""
    forget_replay(url)
    submitted = (await queue.commit([make_submit(f"aw-{n}") for n in range(3)])).accepted
    dispatched = await committed(queue, make_dispatch(submitted[0]))
    with psycopg.connect(url) as connection:
        for each in submitted[:2]:
            connection.execute(damage, (each.uid,))
    return dispatched, submitted[1], submitted[2]


def free_with(records: list[Record]) -> Resources:
    """The free capacity of the hub, as a new leader with these records has it."""
    free = list[Resources]()
    for mode in FitMode:
        ledger = CapacityLedger(mode)
        ledger.set_node(NODE)
        Cache({"hub": ledger}).load(records)
        free.append(ledger.free())
        assert ledger.take_failures() == []
    assert len(set(free)) == 1
    return free[0]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_row_that_cannot_be_read_is_set_aside_with_the_capacity_that_it_holds(
    queue: QueueStore, database_url: str, damage: LiteralString
) -> None:
    held, queued, other = await damaged(queue, database_url, damage)
    before = log.internal_errors().get("takeover", 0)
    with capture_logs() as logs:
        records = {each.uid: each for each in await loaded(database_url)}

    assert records[other.uid] == other
    assert (records[held.uid].is_set_aside, records[held.uid].phase) == (True, Phase.DISPATCHING)
    if "UPDATE appwrapper" in damage:
        assert (records[queued.uid].is_set_aside, records[queued.uid].phase) == (True, Phase.SUSPENDED)
    assert free_with(list(records.values())) == NODE.allocatable - GANG.demand
    [line] = [each for each in logs if each.get("appwrapper") == held.uid]
    assert (line["event"], line["cluster"], line["holds"]) == ("internal_error", "hub", str(GANG.demand))
    aside = [each for each in records.values() if each.is_set_aside]
    assert log.internal_errors()["takeover"] - before == len(logs) == len(aside)


async def test_log_says_that_the_capacity_of_a_row_is_unknown(queue: QueueStore, database_url: str) -> None:
    held, queued, _ = await damaged(queue, database_url, OF_DEMAND)
    with capture_logs() as logs:
        await loaded(database_url)
    said = {each["appwrapper"]: each["holds"] for each in logs}
    assert said == {held.uid: "unknown", queued.uid: "nothing"}


async def test_change_of_a_record_that_is_set_aside_is_not_written(
    queue: QueueStore, database_url: str
) -> None:
    held, queued, _ = await damaged(queue, database_url, DAMAGES[0])
    stored: LiteralString = "SELECT * FROM appwrapper ORDER BY uid"
    before = rows_of(database_url, stored)
    aside = [each for each in await loaded(database_url) if each.is_set_aside]
    result = await queue.commit([removal.delete(each, LATER) for each in aside])
    assert (set(result.stale), result.accepted, result.refused) == ({held.uid, queued.uid}, (), ())
    assert rows_of(database_url, stored) == before


@pytest.mark.parametrize("damage", DAMAGES)
async def test_snapshot_has_the_others_beside_a_row_that_cannot_be_read(
    queue: QueueStore, database_url: str, damage: LiteralString
) -> None:
    held, _, other = await damaged(queue, database_url, damage)
    found = (await read_snapshot(database_url, TIMEOUT)).records
    assert found[other.uid].gang == other.gang
    assert (found[held.uid].phase, found[held.uid].held) == (Phase.DISPATCHING, GANG.demand)
