"""A past for the dispatcher: any number of AppWrappers over more than a year, written directly by SQL.

The tables, partitions and indexes are the product's own, and so are the statements that move finished rows out of the
queue's tables. Lives come from `benchmarks.lives`, in fixed shares. All differences between two AppWrappers follow from
their numbers by a hash, so the same call writes the same past.

Waits are like those of a queue: about equal for AppWrappers of the same hour. A tenth of the hours are busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg

from benchmarks import lives
from benchmarks.lives import Life
from dispatcher.controller.upkeep.housekeeping import DELETED_FOR
from dispatcher.core.model import codec
from dispatcher.store import rows
from dispatcher.store.history.partitions import PARTITIONED
from dispatcher.store.state import queue

CHUNK: Final = 25_000
"""AppWrappers of one transaction."""
LONGEST: Final = timedelta(days=1)
"""Longer than every life."""
OF_THE_PRESENT: Final = 1_000_000_000
"""The number of the first AppWrapper that waits or runs now."""
CLUSTERS: Final = ("hub", "east", "north", "west")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Past:
    """The size of a past: AppWrappers, days, and time between samples."""

    appwrappers: int
    days: int = 400
    sample_seconds: int = 300
    until: datetime | None = None
    """The time of the last AppWrapper; None is now."""


def write_past(url: str, past: Past, say: Say = lambda _: None) -> None:
    """Writes it into a migrated database without AppWrappers; all of them are deleted by `until`."""
    until = (past.until or datetime.now(UTC)).replace(microsecond=0)
    begin, started = until - timedelta(days=past.days), time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        _prepare(connection, begin, until, lives.LIVES)
        # The last AppWrapper has ended by then, too.
        every = (until - timedelta(days=1) - begin) / past.appwrappers
        # All rows of the first chunks are due, so their move empties the tables. Of the others some are.
        due = max(0, int((until - DELETED_FOR - LONGEST - begin) / every))
        for numbers in (*_chunks(1, due), *_chunks(due + 1, past.appwrappers)):
            _write_chunk(connection, numbers, begin + every * (numbers[0] - 1), every)
            _move(connection, until - DELETED_FOR)
            rate = numbers[-1] / (time.monotonic() - started)
            say(f"{numbers[-1]} of {past.appwrappers} AppWrappers, {rate:.0f}/s")
        _write_samples(connection, begin, until, past.sample_seconds)
        connection.execute("VACUUM (ANALYZE)")


def write_present(url: str, waiting: int, running: int, now: datetime | None = None) -> None:
    """Adds AppWrappers that wait and run now; no cluster has them, so no dispatcher may start on this database."""
    now, following = (now or datetime.now(UTC)).replace(microsecond=0), OF_THE_PRESENT
    with psycopg.connect(url, autocommit=True) as connection:
        for life, count in ((lives.WAITING, waiting), (lives.RUNNING, running)):
            if count:
                begin = now - timedelta(hours=6 if life is lives.WAITING else 12)
                _prepare(connection, begin, now, (life,))
                numbers = range(following, following + count)
                _write_chunk(connection, numbers, begin, timedelta(hours=6) / count)
                following += count
        connection.execute("VACUUM (ANALYZE)")


# --- partitions and patterns -------------------------------------------------------------------------


def _prepare(
    connection: psycopg.Connection, begin: datetime, until: datetime, patterns: Sequence[Life]
) -> None:
    for table in PARTITIONED:
        for month in _months(begin, until):
            make_partition(connection, table, month)
    connection.execute(_CHANCE)
    connection.execute(_PATTERNS)
    _fill(connection, "life", [lives.end_row(each) for each in patterns])
    _fill(connection, "step", [row for each in patterns for row in lives.step_rows(each)])
    _fill(connection, "pattern_attempt", [row for each in patterns for row in lives.attempt_rows(each)])
    shares = [each.name for each in patterns for _ in range(each.share)]
    _fill(connection, "share", [{"hundredth": at, "life": name} for at, name in enumerate(shares)])
    connection.execute("ANALYZE life, step, pattern_attempt, share")


def make_partition(connection: psycopg.Connection, table: str, month: datetime) -> None:
    """Creates the partition of a month, if it does not exist."""
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {table}_{month:%Y_%m} PARTITION OF {table} "
        f"FOR VALUES FROM ('{month.isoformat()}') TO ('{_next_month(month).isoformat()}')".encode()
    )


def _months(begin: datetime, until: datetime) -> list[datetime]:
    months = [begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)]
    while _next_month(months[-1]) <= until:
        months.append(_next_month(months[-1]))
    return months


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


def _fill(connection: psycopg.Connection, table: str, filling: Sequence[dict[str, object]]) -> None:
    document = codec.dump(filling).decode()
    connection.execute(
        f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, %s::json)".encode(),
        [document],
    )


# --- AppWrappers -------------------------------------------------------------------------------------


def _chunks(first: int, last: int) -> list[range]:
    return [range(each, min(each + CHUNK, last + 1)) for each in range(first, last + 1, CHUNK)]


def _write_chunk(connection: psycopg.Connection, numbers: range, begin: datetime, every: timedelta) -> None:
    values = {
        "first": numbers[0],
        "last": numbers[-1],
        "begin": begin,
        "every": every,
        "before": numbers[0] - 1,
    }
    with connection.transaction():
        connection.execute("DROP TABLE IF EXISTS chunk")
        connection.execute(_CHUNK, values)
        connection.execute("ANALYZE chunk (life)")
        for statement in (_EVENTS, _APPWRAPPERS, _ATTEMPTS, _OBJECTS):
            connection.execute(statement)


def _move(connection: psycopg.Connection, before: datetime) -> None:
    """Moves rows to the past as the leader does; if no row of the chunk remains, the tables have no dead rows."""
    with connection.transaction():
        # The tables were empty a moment ago, and their statistics may still say so.
        connection.execute("ANALYZE appwrapper (uid, phase, phase_since), attempt (uid)")
        connection.execute(_MOVE_APPWRAPPERS, [before])
        connection.execute(_MOVE_ATTEMPTS, [before])
        left = connection.execute(_LEFT, [before]).fetchone()
        connection.execute(_FORGET_ALL if left == (0,) else _FORGET, [before] if left != (0,) else [])


_CHANCE: Final = """
CREATE OR REPLACE FUNCTION pg_temp.chance(number bigint, of_what bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (hashint8extended(number, of_what) & 4294967295) / 4294967296.0
"""

_PATTERNS: Final = b"""
DROP TABLE IF EXISTS life, step, pattern_attempt, share;
CREATE TEMP TABLE life (life text, pattern text, moments int[], first_queued int, ended int, outcome text);
CREATE TEMP TABLE step (life text, moment int, cause text, from_phase text, to_phase text, reason text,
                        message text, cluster text, attempt int, change text);
CREATE TEMP TABLE pattern_attempt (life text, number int, cluster text, decided_at int, created_at int,
                                   started_at int, ended_at int, outcome text, reason text);
CREATE TEMP TABLE share (hundredth int, life text)
"""

# Gaps are seconds before a moment, by its number; 0 for a moment that a life lacks.
_CHUNK: Final = f"""
CREATE TEMP TABLE chunk AS
WITH drawn AS (
    SELECT n, share.life, %(begin)s::timestamptz + %(every)s::interval * (n - %(before)s - pg_temp.chance(n, 1))
               AS submitted_at,
           (pg_temp.chance(n, 2) * 200)::int AS person,
           (ARRAY[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 16, 16, 64])[1 + floor(pg_temp.chance(n, 3) * 20)]
               AS gpu,
           floor(pg_temp.chance(n, 4) * 4)::int AS cluster
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
    JOIN share ON share.hundredth = floor(pg_temp.chance(n, 5) * 100)
), busy AS (
    SELECT *, extract(epoch FROM submitted_at)::bigint / 3600 AS hour FROM drawn
), gaps AS (
    SELECT *, ARRAY[
        0, 0.4,
        (10000 * pg_temp.chance(hour, 6) ^ 8 + 60 * pg_temp.chance(hour, 7)) * (0.9 + 0.2 * pg_temp.chance(n, 8)),
        0.1 + pg_temp.chance(n, 9), 5 + 85 * pg_temp.chance(n, 10), 7200 * pg_temp.chance(n, 11), 300,
        5 + 25 * pg_temp.chance(n, 12), 1 + 10000 * pg_temp.chance(hour, 6) ^ 8, 0.1 + pg_temp.chance(n, 13),
        5 + 85 * pg_temp.chance(n, 14), 60 * exp(6 * pg_temp.chance(n, 15) ^ 2), 10, 14400 * pg_temp.chance(n, 16)
    ] AS gap
    FROM busy
), timed AS (
    SELECT *, (
        SELECT array_agg(submitted_at + make_interval(secs => total) ORDER BY moment)
        FROM (
            SELECT moment, sum(seconds * (moment = ANY(life.moments))::int) OVER (ORDER BY moment) AS total
            FROM unnest(gap) WITH ORDINALITY AS gaps(seconds, moment)
        ) AS totals
    ) AS at
    FROM gaps JOIN life USING (life)
)
SELECT n, life, at, 'team-' || person %% 40 AS namespace, 'job-' || n AS name,
       overlay(overlay(md5('appwrapper ' || n)::uuid::text PLACING '4' FROM 15) PLACING '8' FROM 20) AS uid,
       (ARRAY['{"','".join(CLUSTERS)}'])[1 + cluster] AS cluster_1,
       (ARRAY['{"','".join(CLUSTERS)}'])[1 + (cluster + 1) %% 4] AS cluster_2,
       jsonb_build_object(
           'created_at', date_trunc('second', at[1]), 'queue', (ARRAY['default', 'default', 'batch'])[1 + person %% 3],
           'user_name', 'user-' || person, 'user_groups', jsonb_build_array('team-' || person %% 40),
           'priority', (ARRAY[0, 0, 0, 0, 5, 10])[1 + floor(pg_temp.chance(n, 17) * 6)::int],
           'pods', 1 + gpu, 'spec_hash', md5('spec ' || n) || md5('hash ' || n),
           'demand', demand, 'pod_sets', jsonb_build_object('sets', jsonb_build_array(
               jsonb_build_object('count', 1 + gpu, 'requests', demand)))
       ) AS facts
FROM timed, LATERAL (
    SELECT jsonb_build_object('cpu', (1 + gpu) * 4000, 'memory', (1 + gpu) * 17179869184)
           || CASE WHEN gpu > 0 THEN jsonb_build_object('nvidia.com/gpu', gpu) ELSE '{{}}' END AS demand
) AS asked
"""

_PLACED: Final = "replace(replace({0}, 'CLUSTER-1', chunk.cluster_1), 'CLUSTER-2', chunk.cluster_2)"

_EVENTS: Final = f"""
INSERT INTO event (epoch, at, recorded_at, uid, namespace, name, queue, cause, from_phase, to_phase, reason, message,
                   cluster, attempt, change)
SELECT 1, at[moment], at[moment], chunk.uid, chunk.namespace, chunk.name, facts ->> 'queue', cause, from_phase,
       to_phase, reason, message, {_PLACED.format("cluster")}, attempt,
       replace({_PLACED.format("change")}, '{lives.AT}', to_json(at[moment]) #>> '{{}}')::jsonb
           || CASE WHEN moment = 1 THEN facts ELSE '{{}}' END
FROM chunk JOIN step USING (life)
ORDER BY at[moment]
"""

_NAMES: Final = tuple(name for name in queue.NEW_COLUMNS if name not in rows.OF_EACH_EVENT)
_COLUMNS: Final = ", ".join(_NAMES)
_COLUMNS_OF_THE_END: Final = ", ".join(f"ended.{name}" for name in _NAMES)

_APPWRAPPERS: Final = f"""
INSERT INTO appwrapper (uid, api_group, namespace, name, {_COLUMNS}, updated_at, last_event_at, taken_in_at,
                        first_queued_at, ended_at, outcome)
SELECT chunk.uid, ended.api_group, chunk.namespace, chunk.name, {_COLUMNS_OF_THE_END},
       chunk.at[last], chunk.at[last], chunk.at[1], chunk.at[first_queued], chunk.at[life.ended], life.outcome
FROM chunk JOIN life USING (life), LATERAL (
    SELECT moments[cardinality(moments)] AS last
) AS lasts, LATERAL jsonb_populate_record(
    NULL::appwrapper,
    replace({_PLACED.format("pattern")}, '{lives.AT}', to_json(at[last]) #>> '{{}}')::jsonb || facts
) AS ended
ORDER BY n
"""

_ATTEMPTS: Final = f"""
INSERT INTO attempt (epoch, uid, number, cluster, cluster_uid, decided_at, created_at, started_at, ended_at, outcome,
                     reason, demand, queues)
SELECT 1, chunk.uid, number, {_PLACED.format("cluster")}, md5({_PLACED.format("cluster")})::uuid::text, at[decided_at],
       at[created_at], at[started_at], at[ended_at], outcome, reason, facts -> 'demand',
       jsonb_build_array(facts -> 'queue')
FROM chunk JOIN pattern_attempt USING (life)
ORDER BY n, number
"""

_OBJECTS: Final = """
INSERT INTO attempt_object (uid, attempt, item, api_version, kind, namespace, name, object_uid, intent, done)
SELECT chunk.uid, number, 0, 'ray.io/v1', 'RayCluster', chunk.namespace, chunk.name,
       md5('object ' || n || number)::uuid::text, 'create', true
FROM chunk JOIN pattern_attempt USING (life)
WHERE created_at IS NOT NULL
"""

_DUE: Final = "phase = 'Deleted' AND phase_since < %s"
_MOVE_APPWRAPPERS: Final = (
    f"INSERT INTO past_appwrapper SELECT l.* FROM job_live AS l JOIN appwrapper USING (uid) WHERE {_DUE}"
)
_MOVE_ATTEMPTS: Final = (
    "INSERT INTO past_attempt SELECT l.*, t.queues FROM attempt_live AS l "
    "JOIN attempt AS t ON t.uid = l.uid AND t.number = l.attempt "
    f"JOIN appwrapper ON appwrapper.uid = l.uid WHERE {_DUE}"
)
_LEFT: Final = f"SELECT count(*) FROM appwrapper WHERE NOT ({_DUE})"
_FORGET_ALL: Final = "TRUNCATE appwrapper, attempt, attempt_object"
_FORGET: Final = f"""
WITH due AS (DELETE FROM appwrapper WHERE {_DUE} RETURNING uid),
     attempts AS (DELETE FROM attempt USING due WHERE attempt.uid = due.uid)
DELETE FROM attempt_object USING due WHERE attempt_object.uid = due.uid
"""


# --- clusters and queues -----------------------------------------------------------------------------


def _write_samples(connection: psycopg.Connection, begin: datetime, until: datetime, seconds: int) -> None:
    values = {"begin": begin, "until": until, "every": timedelta(seconds=seconds)}
    for statement in (_CAPACITY, _QUEUES, _CLUSTER_EVENTS):
        connection.execute(statement, values)


_MOMENTS: Final = """
(SELECT at, extract(epoch FROM at)::bigint AS n FROM generate_series(
     date_bin(%(every)s, %(begin)s::timestamptz, 'epoch') + %(every)s, %(until)s, %(every)s::interval) AS at) AS moment
"""

_CAPACITY: Final = f"""
INSERT INTO capacity_sample (at, cluster, resource, capacity, held, other, free, is_reachable)
SELECT at, cluster, resource, capacity, held, capacity / 20, capacity - held - capacity / 20,
       pg_temp.chance(n / 3600, 20 + place) > 0.002
FROM {_MOMENTS},
     unnest(ARRAY['{"','".join(CLUSTERS)}']) WITH ORDINALITY AS clusters(cluster, place),
     (VALUES ('cpu', 6400000), ('memory', 27487790694400), ('nvidia.com/gpu', 800), ('ephemeral-storage', 10^14))
         AS resources(resource, capacity),
     LATERAL (SELECT trunc(capacity * (0.3 + 0.6 * pg_temp.chance(n / 3600, place)::numeric)) AS held) AS taken
ORDER BY at
"""

_QUEUES: Final = f"""
INSERT INTO queue_sample (at, queue, queued, queued_cpu, queued_memory, queued_gpu, running, running_cpu,
                          running_memory, running_gpu)
SELECT at, queue, queued, queued * 12, queued * 48, queued * 2, running, running * 12, running * 48, running * 2
FROM {_MOMENTS}, (VALUES ('default', 30), ('batch', 31)) AS queues(queue, salt),
     LATERAL (SELECT (300 * pg_temp.chance(n / 3600, 6) ^ 8)::int AS queued,
                     (100 + 60 * pg_temp.chance(n / 3600, salt))::int AS running) AS counted
ORDER BY at
"""

_CLUSTER_EVENTS: Final = f"""
INSERT INTO cluster_event (at, recorded_at, cluster, event, reason, message, epoch)
SELECT at, at, cluster, event, '', '', 1
FROM (
    SELECT day + make_interval(secs => 86400 * pg_temp.chance(n, 40 + place)) + after AS at, cluster, event
    FROM generate_series(%(begin)s::timestamptz, %(until)s::timestamptz - interval '2 days', '1 day') AS day,
         unnest(ARRAY['{"','".join(CLUSTERS)}']) WITH ORDINALITY AS clusters(cluster, place),
         LATERAL (SELECT extract(epoch FROM day)::bigint / 86400 AS n) AS days,
         LATERAL (VALUES ('cordoned', interval '0', 0), ('uncordoned', interval '1 hour', 0),
                         ('unreachable', interval '0', 1), ('reachable', interval '7 minutes', 1))
             AS events(event, after, parity)
    WHERE pg_temp.chance(n, 50 + place) < 0.1 AND n %% 2 = parity
) AS happened
ORDER BY at
"""
