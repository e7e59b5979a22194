"""Who holds capacity now: every live attempt of whatever phase, and nobody else."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
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
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.record import HOLDING, Change, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import make_object

# How to come into each phase, step by step.
DISPATCHED = ("dispatch", "created")
RUNNING = (*DISPATCHED, "mark_running")
PATHS: dict[Phase, tuple[str, ...]] = {
    Phase.QUEUED: (),
    Phase.SUSPENDED: ("suspend",),
    Phase.DISPATCHING: ("dispatch",),
    Phase.DISPATCHED: DISPATCHED,
    Phase.RUNNING: RUNNING,
    Phase.RUNNING_HOLD_COMPLETION: (*RUNNING, "note_growth", "complete_some"),
    Phase.COMPLETED: (*RUNNING, "complete"),
    Phase.REQUEUEING: (*RUNNING, "evict"),
    Phase.SUSPENDING: (*RUNNING, "suspend"),
    Phase.FAILING: (*RUNNING, "fail"),
    Phase.FAILED: (*RUNNING, "fail", "removed"),
    Phase.DELETING: (*RUNNING, "delete"),
    Phase.DELETED: (*RUNNING, "delete", "release"),
}
AGAIN = (*RUNNING, "evict", "removed", *RUNNING, "note_health_issue")
MOMENT = timedelta(minutes=1)
STEPS: dict[str, Callable[..., Change]] = {
    each.__name__: each
    for each in (
        queue_changes.dispatch,
        queue_changes.suspend,
        run_changes.created,
        run_changes.mark_running,
        run_changes.note_growth,
        run_changes.note_health_issue,
        run_changes.complete_some,
        run_changes.complete,
        run_changes.fail,
        removal.removed,
        removal.delete,
        removal.release,
    )
}


@dataclass(frozen=True)
class Seen:
    """What a row must say."""

    name: str
    queue: str
    user_name: str
    cluster: str
    attempt: int
    phase: str
    dispatched_at: datetime
    started_at: datetime | None
    cpu: Decimal
    memory_gib: Decimal
    gpu: Decimal
    pods: int
    unhealthy_reason: str | None
    unhealthy_message: str | None
    is_cluster_reachable: bool
    expected_end: datetime | None


def running_now(url: str) -> tuple[datetime, list[DictRow]]:
    """The rows, and the moment of the statement that read them."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        found = connection.execute(
            "SELECT *, statement_timestamp() AS now FROM history.running_now"
        ).fetchall()
    return next(row["now"] for row in found), found


def step(record: Record, name: str, cluster: str, now: datetime) -> Change:
    """The step of that name; its other arguments matter to nobody here."""
    arguments: dict[str, tuple[Any, ...]] = {
        "dispatch": (cluster,),
        "created": ((make_object(),),),
        "complete_some": ({0},),
        "complete": ({0}, now),
        "fail": (EvictionReason("FailedComponent", "it exited with 1"),),
        "note_growth": (Resources({"cpu": 2 * 10**5, "nvidia.com/gpu": 9}),),
        "note_health_issue": ("FoundFailedPods", "a pod failed"),
    }
    if name == "evict":
        return run_changes.evict(record, EvictionReason("FoundFailedPods", "m"), now, 0, now)
    return STEPS[name](record, *arguments.get(name, ()), now)


async def live(queue: QueueStore, name: str, path: tuple[str, ...], chance: random.Random) -> Record:
    """Take one in, a minute after it was created, and let it go this way, a minute for each step."""
    now = datetime.now(UTC) - timedelta(hours=3, seconds=chance.randrange(10**4))
    amounts = {
        "cpu": chance.randrange(10**5),
        "memory": chance.randrange(9) * 2**29,
        "nvidia.com/gpu": chance.randrange(9),
    }
    submission = make_submission(name, uid=str(uuid.uuid4()), expected_seconds=chance.choice([0, 7200]))
    change = first_changes.submit(submission, Gang(Resources(amounts), 3), now)
    user, queued = chance.choice(["", "ada"]), chance.choice(["default", "other"])
    change = replace(change, after=replace(change.after, user=user, queue=queued), spec=submission.spec)
    (record,) = (await queue.commit([change])).accepted
    for each in path:
        now += MOMENT
        (record,) = (
            await queue.commit([step(record, each, chance.choice(["hub", "east", "west"]), now)])
        ).accepted
    return record


def expected(record: Record) -> Seen:
    attempt, held, issue = record.attempt, record.charge, record.unhealthy
    assert attempt is not None
    lasts = timedelta(seconds=record.expected_seconds)
    return Seen(
        record.name,
        record.queue,
        record.user or record.namespace,
        attempt.cluster,
        attempt.number,
        record.phase,
        attempt.decided_at,
        attempt.started_at,
        Decimal(held["cpu"]) / 1000,
        Decimal(held["memory"]) / 2**30,
        Decimal(held["nvidia.com/gpu"]),
        3,
        issue.reason if issue else None,
        issue.message if issue else None,
        attempt.cluster != "east",
        attempt.started_at + lasts if lasts and attempt.started_at else None,
    )


async def test_gangs_that_hold_capacity_are_listed_with_amounts_and_durations(
    queue: QueueStore, database_url: str
) -> None:
    chance = random.Random(5)  # noqa: S311 - repeatable
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO member_cluster (name, cluster_uid, unreachable_since) "
            "VALUES ('east', 'uid-of-east', now()), ('west', 'uid-of-west', NULL)"
        )
    paths = [*PATHS.values(), AGAIN, AGAIN]
    records = [await live(queue, f"aw-{number}", path, chance) for number, path in enumerate(paths)]
    assert {record.phase for record in records} == set(Phase)
    holding = {record.uid: record for record in records if record.phase in HOLDING}
    now, rows = running_now(database_url)
    found = {row["uid"]: Seen(**{name: row[name] for name in Seen.__annotations__}) for row in rows}
    assert found == {uid: expected(record) for uid, record in holding.items()}
    assert {seen.is_cluster_reachable for seen in found.values()} == {True, False}
    for row in rows:
        assert row["namespace"] == "default"
        assert row["held_s"] == pytest.approx((now - row["dispatched_at"]).total_seconds())
        since = row["started_at"] and pytest.approx((now - row["started_at"]).total_seconds())
        assert row["elapsed_s"] == since
