"""The preemptions of the last time, followed from a gang to the gangs that it was preempted for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import LiteralString

import pytest

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.scheduling.preemption.loops import Preempted
from dispatcher.store.database import Database
from dispatcher.store.history import preemptions
from dispatcher.store.history.preemptions import preemptions_from
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import LATER, committed, make_created, make_dispatch, make_submit, rows_of

HOUR = timedelta(hours=1)


class History:
    """Gangs by name, which are also their uids; each preemption is an hour after the one before, from `LATER` on."""

    def __init__(self, queue: QueueStore) -> None:
        self._queue = queue
        self.gangs: dict[str, Record] = {}
        self.now = LATER

    async def commit(self, change: Change) -> None:
        (record,) = (await self._queue.commit([change])).accepted
        self.gangs[record.name] = record

    async def preempt(self, victim: str, preemptor: str) -> None:
        """Have a gang run and be preempted."""
        await self._run(victim)
        why = Reason.FAIR_SHARE
        await self.commit(run_changes.preempt(self.gangs[victim], why, "why", self.now, preemptor))

    async def drain(self, gang: str) -> None:
        """Have a gang run and be evicted, because its queue is drained."""
        await self._run(gang)
        why = EvictionReason("QueueStopped", "its queue is drained")
        await self.commit(run_changes.evict(self.gangs[gang], why, self.now, 0, self.now))

    async def _run(self, gang: str) -> None:
        self.now += HOUR
        if gang in self.gangs:
            await self.commit(removal.removed(self.gangs[gang], self.now))
        else:
            await self.commit(make_submit(gang, uid=gang, namespace="red"))
        await self.commit(make_dispatch(self.gangs[gang]))
        await self.commit(make_created(self.gangs[gang]))

    async def preempt_all(self, *pairs: str) -> None:
        """`ab`: a is preempted for b."""
        for pair in pairs:
            await self.preempt(pair[0], pair[1])


@pytest.fixture
def history(queue: QueueStore) -> History:
    return History(queue)


def named(found: list[Preempted]) -> list[str]:
    """`ab` for each preemption of a for b; checks the keys."""
    assert [each.key for each in found] == [f"red/{each.victim}" for each in found]
    return [each.victim + each.preemptor for each in found]


FOLLOWED: Mapping[str, tuple[str, list[str]]] = {
    "a circle": ("a", ["ab", "bc", "ca"]),
    "the way to a circle": ("x", ["ab", "bc", "ca", "xa"]),
    "a gang that was never preempted": ("z", []),
    "elsewhere": ("de", ["de", "ed"]),
    "several gangs at once": ("ad", ["ab", "bc", "ca", "de", "ed"]),
}


async def test_preemptions_are_followed_from_gang_to_gang(history: History, database: Database) -> None:
    await history.preempt_all("ab", "bc", "xa", "de", "ca", "ed")
    for case, (victims, expected) in FOLLOWED.items():
        assert named(await preemptions_from(database, victims, LATER)) == expected, case


async def test_only_preemptions_after_a_time_count(history: History, database: Database) -> None:
    await history.preempt_all("ab", "bc", "ca")
    first = LATER + HOUR
    just_before = first - timedelta(microseconds=1)
    assert named(await preemptions_from(database, "c", just_before)) == ["ab", "bc", "ca"]
    assert named(await preemptions_from(database, "c", first)) == ["ca"]


async def test_every_attempt_counts_and_each_pair_once(history: History, database: Database) -> None:
    await history.preempt_all("ab", "ac", "ab")
    await history.drain("c")
    assert named(await preemptions_from(database, "a", LATER)) == ["ab", "ac"]
    assert await preemptions_from(database, "c", LATER) == []


async def test_a_gang_that_is_deleted_meanwhile_still_counts(history: History, database: Database) -> None:
    await history.preempt_all("ab", "ba")
    await history.commit(removal.delete(history.gangs["b"], history.now))
    await history.commit(removal.release(history.gangs["b"], history.now))
    assert named(await preemptions_from(database, "a", LATER)) == ["ab", "ba"]


async def test_no_more_gangs_and_preemptions_are_followed_than_the_bounds(
    history: History, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.preempt_all("ab", "bc", "cd", "de")
    monkeypatch.setattr(preemptions, "MOST_GANGS", 2)
    assert named(await preemptions_from(database, "a", LATER)) == ["ab", "bc"]
    monkeypatch.setattr(preemptions, "MOST_PREEMPTIONS", 1)
    assert named(await preemptions_from(database, "a", LATER)) == ["ab"]


# --- A gang that leaves because its queue is drained is evicted --------------------------------------------


STOPPED = EvictionReason("QueueStopped", "its queue team is stopped and drained")

JOBS: LiteralString = "SELECT name, evictions, requeues, lost_s FROM history.job_history ORDER BY name"
EVICTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.evictions ORDER BY name"
PREEMPTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.preemptions ORDER BY name"
LEFT: LiteralString = "SELECT name, cause FROM history.timeline WHERE to_phase = 'Requeueing' ORDER BY name"


async def running(queue: QueueStore, name: str) -> Record:
    record = await committed(queue, make_submit(name, queue="team"))
    for step in (make_dispatch, make_created):
        record = await committed(queue, step(record))
    return await committed(queue, run_changes.mark_running(record, LATER))


def drain(record: Record) -> Change:
    return run_changes.evict(record, STOPPED, LATER, 0, LATER)


async def test_drain_is_an_eviction_and_no_preemption(queue: QueueStore, database_url: str) -> None:
    leaving = await committed(queue, drain(await running(queue, "drained")))
    await committed(queue, removal.removed(leaving, LATER + HOUR))
    assert rows_of(database_url, LEFT) == [("drained", "evicted")]
    assert rows_of(database_url, EVICTIONS) == [("drained", None, 3600.0, "QueueStopped")]
    assert rows_of(database_url, PREEMPTIONS) == []
    assert rows_of(database_url, JOBS) == [("drained", 1, 1, 3600.0)]
