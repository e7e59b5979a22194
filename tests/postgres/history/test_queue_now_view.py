"""Who waits now: with what advice, refused by how many clusters, and for how long others waited."""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import DictRow, dict_row

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Change, Pending, Record
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import make_object, make_submit, rows_of
from tests.unit.test_troubleshooting_page import WAITS_FOR

CLASSES = {0: "0", 1: "1", 2: "2", 3: "3-4", 4: "3-4", 8: "5-8", 16: "9-16", 17: "17+"}
GOES_BY_ITSELF = (
    None,
    "InsufficientResources",
    "ReservedForAnother",
    "AwaitingHeadOfLine",
    "CreationPostponed",
    "InsufficientQuota",
    "OverNominalQuota",
    "AwaitingRelease",
)
MENDS_NOT = ("LargerThanCluster", "ClusterNotSelected", "NameTaken", "ClusterCordoned", "LargerThanQuota")
WEEK = timedelta(days=7)


def queue_now(url: str) -> tuple[datetime, list[DictRow]]:
    """The rows, and the moment of the statement that read them."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT *, statement_timestamp() AS now FROM history.queue_now").fetchall()
    return next(row["now"] for row in rows), rows


def waiting(name: str, pending: Pending | None, **fields: Any) -> Change:  # noqa: ANN401 - Record's own
    return make_submit(name, pending=pending, **fields)


async def test_every_reason_to_wait_has_advice_of_its_own(queue: QueueStore, database_url: str) -> None:
    reasons = [None, *sorted(WAITS_FOR)]
    await queue.commit([waiting(f"for-{each}", Pending(each, "") if each else None) for each in reasons])
    _, rows = queue_now(database_url)
    advice = {row["reason"]: row["advice"] for row in rows}
    assert advice.keys() == set(reasons)
    assert len({sentence for sentence in advice.values() if sentence}) == len(reasons)


def test_there_is_advice_for_no_other_reason(database_url: str) -> None:
    ((definition,),) = rows_of(
        database_url, "SELECT pg_get_functiondef('waiting_advice(text)'::regprocedure)"
    )
    assert set(re.findall(r"WHEN '(\w+)'", definition)) == WAITS_FOR


async def test_a_queue_row_has_its_submitter_its_waiting_time_and_its_demand(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(2)  # noqa: S311 - repeatable
    past = datetime.now(UTC) - timedelta(hours=1)
    expected = {}
    for _ in range(40):
        cpu, memory, gpu = chance.randrange(10**6), chance.randrange(2**45), chance.randrange(20)
        demand = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpu, "nvidia.com/mig-1g.5gb": 7}
        user, created_at = chance.choice(["", "ada"]), past + timedelta(seconds=chance.randint(-9, 9))
        submission = make_submission(uid=str(uuid.uuid4()), created_at=created_at)
        change = first_changes.submit(submission, Gang(Resources(demand), 1), past)
        await queue.commit([replace(change, after=replace(change.after, user=user), spec=submission.spec)])
        expected[change.after.uid] = (
            user or "default",
            min(created_at, past),
            Decimal(cpu) / 1000,
            round(Decimal(memory) / 2**30, 9),
            gpu,
        )
    now, rows = queue_now(database_url)
    found = {
        row["uid"]: (
            row["user_name"],
            row["submitted_at"],
            row["cpu"],
            round(row["memory_gib"], 9),
            row["gpu"],
        )
        for row in rows
    }
    assert found == expected
    waited = {row["uid"]: row["waited_s"] for row in rows}
    assert waited == pytest.approx({uid: (now - each[1]).total_seconds() for uid, each in expected.items()})


async def test_blocking_clusters_counts_the_clusters_by_their_reasons(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(3)  # noqa: S311 - repeatable
    reasons = ("ClusterCordoned", "InsufficientResources", "KindNotInstalled")
    expected = {}
    for number in range(20):
        clusters = tuple(
            Rejection(f"c-{each}", chance.choice(reasons), "m") for each in range(chance.randint(1, 8))
        )
        change = waiting(f"aw-{number}", Pending(clusters[0].reason, "m", clusters=clusters))
        expected[change.after.uid] = dict(Counter(each.reason for each in clusters))
        await queue.commit([change])
    _, rows = queue_now(database_url)
    assert {row["uid"]: row["blocking_clusters"] for row in rows} == expected


@pytest.mark.parametrize(
    ("pending", "clusters"),
    [
        pytest.param(None, None, id="not-looked-at-yet"),
        pytest.param(
            Pending("InsufficientResources", "m", "cpu", "hub"), {"InsufficientResources": 1}, id="hub"
        ),
        pytest.param(Pending("AwaitingHeadOfLine", "behind ns/aw"), None, id="another-is-in-its-way"),
        pytest.param(Pending("NoCluster", "m"), None, id="there-is-none"),
    ],
)
async def test_without_member_clusters_its_one_reason_counts_if_it_is_about_a_cluster(
    queue: QueueStore, database_url: str, pending: Pending | None, clusters: dict[str, int] | None
) -> None:
    await queue.commit([waiting("aw", pending)])
    _, (row,) = queue_now(database_url)
    assert row["blocking_clusters"] == clusters


# --- recent waits ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """One that was released only then, if it was held back at first, and that started then, if it did."""

    queue: str
    gpu: int
    created_at: datetime
    taken_in_at: datetime
    released_at: datetime | None = None
    started_at: datetime | None = None
    reason: str | None = None
    eligible_at: datetime | None = None
    has_gone_back: bool = False

    @property
    def waits_since(self) -> datetime:
        """While nobody took it in it waited; while its user held it back it did not."""
        return self.released_at or min(self.created_at, self.taken_in_at)


def random_life(chance: random.Random, now: datetime, *, waits: bool) -> Life:
    waits_of = [90, 3600] if waits else [90, 3600, 7200, 7201, 10**5, chance.uniform(90, 10**5)]
    wait = timedelta(seconds=chance.choice(waits_of))
    ago = timedelta(seconds=0 if waits else chance.choice([0, 10**5, 6 * 10**5, 7 * 10**5]))
    began = now - ago - wait
    is_suspended = chance.random() < 0.2
    return Life(
        queue=chance.choice(["a", "b"]),
        gpu=chance.choice(list(CLASSES)),
        created_at=began + timedelta(seconds=chance.choice([-1000, 0, 1])),
        taken_in_at=began,
        released_at=began + wait / 2 if is_suspended else None,
        started_at=None if waits else began + wait,
        reason=chance.choice((*GOES_BY_ITSELF, *MENDS_NOT)) if waits else None,
        eligible_at=now + timedelta(seconds=chance.choice([-60, 3600])) if chance.random() < 0.2 else None,
        has_gone_back=not waits and chance.random() < 0.02,
    )


def submitted(life: Life) -> Change:
    submission = make_submission(
        uid=str(uuid.uuid4()), created_at=life.created_at, suspended=life.released_at is not None
    )
    gang = Gang(Resources({"cpu": 1000, "nvidia.com/gpu": life.gpu}), 1)
    change = first_changes.submit(submission, gang, life.taken_in_at)
    return replace(
        change,
        after=replace(change.after, queue=life.queue, eligible_at=life.eligible_at),
        spec=submission.spec,
    )


async def live(queue: QueueStore, lives: list[Life]) -> dict[str, Life]:
    """Let all of them come as far as they do, one step of each at a time; by uid."""
    changes = [submitted(life) for life in lives]
    by_uid = {change.after.uid: life for change, life in zip(changes, lives, strict=True)}
    records = (await queue.commit(changes)).accepted
    for step in (_resumed, _blocked, _dispatched, _created, _started, _evicted, _removed, _blocked_again):
        changes = [change for record in records if (change := step(record, by_uid[record.uid]))]
        moved = {record.uid: record for record in (await queue.commit(changes)).accepted}
        assert len(moved) == len(changes)
        records = tuple(moved.get(record.uid, record) for record in records)
    return by_uid


def _resumed(record: Record, life: Life) -> Change | None:
    return queue_changes.resume(record, life.released_at) if life.released_at else None


def _blocked(record: Record, life: Life) -> Change | None:
    return queue_changes.block(record, Pending(life.reason, "m"), life.waits_since) if life.reason else None


def _dispatched(record: Record, life: Life) -> Change | None:
    return queue_changes.dispatch(record, "hub", life.started_at) if life.started_at else None


def _created(record: Record, life: Life) -> Change | None:
    return run_changes.created(record, (make_object(),), life.started_at) if life.started_at else None


def _started(record: Record, life: Life) -> Change | None:
    return run_changes.mark_running(record, life.started_at) if life.started_at else None


def _evicted(record: Record, life: Life) -> Change | None:
    if life.started_at is None or not life.has_gone_back:
        return None
    return run_changes.evict(
        record, EvictionReason("FoundFailedPods", "m"), life.started_at, 0, life.started_at
    )


def _removed(record: Record, life: Life) -> Change | None:
    return removal.removed(record, life.started_at) if life.started_at and life.has_gone_back else None


def _blocked_again(record: Record, life: Life) -> Change | None:
    if life.started_at is None or not life.has_gone_back:
        return None
    return queue_changes.block(record, Pending("InsufficientResources", "m"), life.started_at)


async def test_view_estimates_no_start(queue: QueueStore, database_url: str) -> None:
    await queue.commit([waiting("aw", Pending("InsufficientResources", ""))])
    _, (row,) = queue_now(database_url)
    assert row["est_start"] is None


async def test_recent_waits_stay_when_long_deleted_appwrappers_are_archived(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(10)  # noqa: S311 - repeatable
    moment = datetime.now(UTC)
    lives = [random_life(chance, moment, waits=number % 3 == 0) for number in range(150)]
    by_uid = await live(queue, lives)
    before = rows_of(database_url, "SELECT * FROM recent_waits ORDER BY queue, gpu_class")
    started = [uid for uid, life in by_uid.items() if life.started_at and not life.has_gone_back]
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO past_appwrapper SELECT * FROM job_live WHERE uid = ANY(%s)", [started]
        )
        connection.execute("UPDATE past_appwrapper SET ended_at = %s", [moment])
        connection.execute("DELETE FROM attempt WHERE uid = ANY(%s)", [started])
        connection.execute("DELETE FROM appwrapper WHERE uid = ANY(%s)", [started])
    assert rows_of(database_url, "SELECT * FROM recent_waits ORDER BY queue, gpu_class") == before
    assert len(before) > 5
