"""How queues were every five minutes, and what happened to clusters, as it was noted."""

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
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import HOLDING, Change, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_submission
from tests.postgres.changes import make_object, rows_of

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


# --- Who holds capacity now: every live attempt of whatever phase, and nobody else -------------------------


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
