"""What was recorded before there was history is told as far as it is known."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import LiteralString

import psycopg

from dispatcher.store import migrate
from tests.postgres.changes import forget_replay, rows_of

AS_OF_0003: LiteralString = """
INSERT INTO appwrapper (uid, api_group, namespace, name, queue, phase, phase_since, version, priority, priority_slope,
    created_at, spec_hash, demand, pods, pod_sets, conditions, attempts, attempt, cluster, kinds, reason,
    pending_reason, pending_message, pending_resource, pending_cluster)
VALUES
    ('uid-of-done', 'group', 'red', 'done', 'q', 'Deleted', '2020-02-29T14:00Z', 9, 0, 0, '2020-02-29T10:00Z', 'hash',
     '{"cpu": 1500, "nvidia.com/gpu": 2}', 2, '[]', '[]', 2, 2, 'east', '[["batch/v1", "Job"]]', 'MinPodsNotRunning',
     NULL, NULL, NULL, NULL),
    ('uid-of-waiting', 'group', 'red', 'waiting', 'q', 'Queued', '2020-02-29T09:00Z', 2, 0, 0, '2020-02-29T09:00Z',
     'hash', '{"cpu": 9000}', 1, '[]', '[]', 0, NULL, NULL, '[]', '',
     'InsufficientResources', 'too few cpus', 'cpu', 'east');
INSERT INTO attempt (uid, number, cluster, epoch, decided_at, created_at, started_at, ended_at, outcome, demand)
VALUES
    ('uid-of-done', 1, 'west', 1, '2020-02-29T10:30Z', '2020-02-29T10:31Z', NULL, '2020-02-29T11:00Z', 'preempted',
     '{"cpu": 1500, "nvidia.com/gpu": 2}'),
    ('uid-of-done', 2, 'east', 1, '2020-02-29T11:30Z', '2020-02-29T11:31Z', '2020-02-29T12:00Z', '2020-02-29T13:00Z',
     'completed', '{"cpu": 1500, "nvidia.com/gpu": 2}');
INSERT INTO event (at, uid, namespace, name, queue, cause, from_phase, to_phase, cluster, attempt, epoch)
VALUES
    ('2020-02-29T09:00Z', 'uid-of-waiting', 'red', 'waiting', 'q', 'submitted', NULL, 'Queued', '', 0, 1),
    ('2020-02-29T09:01Z', 'uid-of-waiting', 'red', 'waiting', 'q', 'blocked', 'Queued', 'Queued', '', 0, 1),
    ('2020-02-29T10:05Z', 'uid-of-done', 'red', 'done', 'q', 'submitted', NULL, 'Queued', '', 0, 1),
    ('2020-02-29T10:30Z', 'uid-of-done', 'red', 'done', 'q', 'dispatched', 'Queued', 'Dispatching', 'west', 1, 1),
    ('2020-02-29T11:00Z', 'uid-of-done', 'red', 'done', 'q', 'removed', 'Requeueing', 'Queued', 'west', 1, 1),
    ('2020-02-29T11:30Z', 'uid-of-done', 'red', 'done', 'q', 'dispatched', 'Queued', 'Dispatching', 'east', 2, 1),
    ('2020-02-29T13:00Z', 'uid-of-done', 'red', 'done', 'q', 'completed', 'Running', 'Completed', 'east', 2, 1),
    ('2020-02-29T14:00Z', 'uid-of-done', 'red', 'done', 'q', 'deleted', 'Completed', 'Deleted', '', 0, 1)
"""


def clock(hour: int, minute: int = 0) -> datetime:
    return datetime(2020, 2, 29, hour, minute, tzinfo=UTC)


async def test_history_reaches_back_before_its_migration(database_url: str) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0003")
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0003)
    await asyncio.to_thread(migrate.migrate, database_url)
    jobs = (
        "SELECT name, kinds, user_name, submitted_at, eligible_at, first_dispatched_at, first_started_at, ended_at, "
        "deleted_at, outcome, reason, attempts, evictions, requeues, cpu, gpu, run_s, lost_s, gpu_h "
        "FROM history.job_history ORDER BY name"
    )
    done = (
        clock(10),
        clock(10),
        clock(10, 30),
        clock(12),
        clock(13),
        clock(14),
        "completed",
        "MinPodsNotRunning",
    )
    waiting = clock(9), clock(9), None, None, None, None, "", "InsufficientResources"
    assert rows_of(database_url, jobs) == [
        ("done", "Job", "red", *done, 2, 1, 1, Decimal("1.5"), Decimal(2), 3600.0, 1800.0, 4.0),
        ("waiting", "", "red", *waiting, 0, 0, 0, Decimal(9), Decimal(0), 0.0, 0.0, 0.0),
    ]
    waits = "SELECT wait_s, queue_s, startup_s FROM history.job_history WHERE name = 'done'"
    assert rows_of(database_url, waits) == [(7200.0, 1800.0, 5400.0)]
    reasons = (
        "SELECT name, reason, resource, cluster, message, first_seen, rounds FROM history.pending_reasons"
    )
    assert rows_of(database_url, reasons) == [
        ("waiting", "InsufficientResources", "cpu", "east", "too few cpus", clock(9, 1), 1)
    ]
    passed = "SELECT name, overtaken_by_name, at, cluster, why FROM history.overtakes ORDER BY at"
    assert rows_of(database_url, passed) == [
        ("waiting", "done", clock(10, 30), "west", "backfill"),
        ("waiting", "done", clock(11, 30), "east", "backfill"),
    ]
    usage = "SELECT hour, cluster, gpu_h FROM history.usage_hourly ORDER BY hour, cluster"
    assert rows_of(database_url, usage) == [
        (clock(10), "west", 1.0),
        (clock(11), "east", 1.0),
        (clock(12), "east", 2.0),
    ]


AS_OF_0013: LiteralString = """
CREATE TABLE event_2020_03 PARTITION OF event FOR VALUES FROM ('2020-03-01') TO ('2020-04-01');
INSERT INTO event (at, uid, namespace, name, queue, cause, from_phase, to_phase, cluster, attempt, epoch)
VALUES
    ('2020-02-29T09:00Z', 'uid', 'red', 'gang', 'q', 'submitted', NULL, 'Queued', '', 0, 1),
    ('2020-02-29T09:01Z', 'uid', 'red', 'gang', 'q', 'lined-up', 'Queued', 'Queued', '', 0, 1),
    ('2020-03-01T09:02Z', 'uid', 'red', 'gang', 'q', 'became-head', 'Queued', 'Queued', '', 0, 1),
    ('2020-03-01T09:03Z', 'uid', 'red', 'gang', 'q', 'found-over', 'Running', 'Queued', 'east', 1, 1);
INSERT INTO member_cluster (name, cluster_uid) VALUES ('east', 'uid-of-east'), ('west', 'uid-of-west');
INSERT INTO cluster_event (at, cluster, event, epoch)
VALUES
    ('2020-02-29T08:00Z', 'east', 'joined', 1),
    ('2020-02-29T08:01Z', 'east', 'cordoned', 1),
    ('2020-02-29T08:02Z', 'west', 'joined', 1),
    ('2020-02-29T08:03Z', 'west', 'reachable', 1)
"""


def words_of(url: str) -> list[tuple[object, ...]]:
    """Causes and cluster events in the order of their times, and since when each cluster answers."""
    return [
        tuple(word for (word,) in rows_of(url, "SELECT cause FROM history.timeline ORDER BY at")),
        tuple(word for (word,) in rows_of(url, "SELECT event FROM history.cluster_events ORDER BY at")),
        tuple(rows_of(url, "SELECT cluster, since FROM history.clusters_now ORDER BY cluster")),
    ]


async def test_words_of_earlier_events_are_renamed_up_and_down(database_url: str) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0013")
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0013)
    since = ("east", clock(8)), ("west", clock(8, 3))
    old = [
        ("submitted", "lined-up", "became-head", "found-over"),
        ("joined", "cordoned", "joined", "reachable"),
        since,
    ]
    assert words_of(database_url) == old
    await asyncio.to_thread(migrate.migrate, database_url)
    await asyncio.to_thread(migrate.check, database_url)
    assert words_of(database_url) == [
        ("submitted", "not-evaluated", "blocked-at-head", "found-ended"),
        ("connected", "cordoned", "connected", "reachable"),
        since,
    ]
    await asyncio.to_thread(migrate.downgrade, database_url, "0013")
    assert words_of(database_url) == old


def test_no_view_and_no_comment_has_a_word_from_before_its_migration(database_url: str) -> None:
    shown = (
        "SELECT pg_get_viewdef(c.oid) FROM pg_class AS c WHERE c.relkind = 'v' "
        "AND c.relnamespace IN ('public'::regnamespace, 'history'::regnamespace, 'tenant'::regnamespace) "
        "UNION ALL SELECT description FROM pg_description WHERE classoid = 'pg_class'::regclass"
    )
    texts = [str(text) for (text,) in rows_of(database_url, shown)]
    words = re.compile(r"'joined'|\bjoined,|lined-up|became-head|found-over")
    assert len(texts) > 100
    assert [text for text in texts if words.search(text)] == []
