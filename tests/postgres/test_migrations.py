"""Up, compared with the tables in code, down, and up again; and who may run it when."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import LiteralString

import psycopg
import pytest
from msgspec.structs import replace
from psycopg import sql

from dispatcher.core.lifecycle import approvals, queue_changes
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.record import (
    Attempt,
    Borrower,
    Growth,
    ObjectRef,
    Pending,
    Phase,
    QuotaSummary,
    Record,
)
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue
from dispatcher.core.status.clusters import ClusterState
from dispatcher.errors import DataRefused, SchemaMismatch, StoreUnavailable
from dispatcher.store import migrate, reader, revision
from dispatcher.store.clusters import ClusterStore
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.queue import QueueStore
from dispatcher.store.queue_declarations import QueueDeclarationStore
from testbed.postgres import drop_database, url_of
from tests.builders import attempt_of
from tests.postgres.changes import forget_replay, loaded, make_change, make_dispatch, make_submit, rows_of

CHECKOUT = Path(__file__).parents[2]


async def upgrade(url: str) -> None:
    """Migrate to the newest revision, which then agrees with the tables in code."""
    await asyncio.to_thread(migrate.migrate, url)
    await asyncio.to_thread(migrate.check, url)


def test_every_revision_goes_up_down_and_up_again_and_agrees_with_the_tables_in_code(empty_url: str) -> None:
    migrate.migrate(empty_url)
    migrate.check(empty_url)
    migrate.downgrade(empty_url)
    left = rows_of(empty_url, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
    assert {name for (name,) in left} == {"alembic_version", "alembic_version_pkc"}
    migrate.migrate(empty_url)
    migrate.check(empty_url)


AS_OF_0001: LiteralString = """
INSERT INTO appwrapper (uid, api_group, namespace, name, queue, phase, phase_since, version, priority, priority_slope,
    created_at, enqueue_seq, spec_hash, demand, pods, pod_sets, conditions, attempts, attempt, cluster)
VALUES ('uid-of-aw', 'workload.codeflare.dev', 'default', 'aw', 'default', 'Running', '2026-11-20T12:00:03Z', 4, 7, 0.5,
    '2026-11-20T12:00:00Z', 1, 'a-hash', '{"cpu": 1500}', 2, '[]', '[]', 1, 1, 'hub');
INSERT INTO attempt (uid, number, cluster, epoch, decided_at, created_at, started_at, demand)
VALUES ('uid-of-aw', 1, 'hub', 1, '2026-11-20T12:00:01Z', '2026-11-20T12:00:02Z', '2026-11-20T12:00:03Z',
    '{"cpu": 1500}');
INSERT INTO attempt_object (uid, attempt, item, api_version, kind, namespace, name, object_uid, intent)
VALUES ('uid-of-aw', 1, 0, 'v1', 'Pod', 'default', 'a', 'uid-of-a', 'create')
"""


def second(number: int) -> datetime:
    return datetime(2026, 11, 20, 12, 0, number, tzinfo=UTC)


RUNNING = Record(
    uid="uid-of-aw",
    group="workload.codeflare.dev",
    namespace="default",
    name="aw",
    created_at=second(0),
    phase=Phase.RUNNING,
    phase_since=second(3),
    spec_hash="a-hash",
    version=4,
    enqueue_seq=1,
    priority=7,
    priority_slope=0.5,
    gang=Gang(Resources({"cpu": 1500}), 2),
    attempts=1,
    attempt=Attempt(
        number=1,
        cluster="hub",
        decided_at=second(1),
        created_at=second(2),
        started_at=second(3),
        objects=(ObjectRef(0, "v1", "Pod", "default", "a", "uid-of-a"),),
    ),
)


async def test_running_gangs_survive_a_migration_up_and_down(database_url: str) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0001")
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0001)
    await upgrade(database_url)
    assert await loaded(database_url) == [RUNNING]
    await asyncio.to_thread(migrate.downgrade, database_url, "0001")
    assert rows_of(database_url, "SELECT uid, phase, version FROM appwrapper") == [
        ("uid-of-aw", "Running", 4)
    ]
    await asyncio.to_thread(migrate.migrate, database_url)
    assert await loaded(database_url) == [RUNNING]


SHOWN: LiteralString = """
SELECT c.oid::regclass::text, pg_get_viewdef(c.oid) FROM pg_class AS c
WHERE c.relkind = 'v' AND c.relnamespace IN ('public'::regnamespace, 'history'::regnamespace,
                                             'tenant'::regnamespace, 'scheduling'::regnamespace)
UNION ALL
SELECT c.oid::regclass || '.' || d.objsubid, d.description
FROM pg_description AS d JOIN pg_class AS c ON d.classoid = 'pg_class'::regclass AND d.objoid = c.oid
UNION ALL
SELECT proname, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname = 'waiting_advice'
"""
"""The definitions of the views for people, and what is said of their columns."""


async def changed_by(url: str, revision: str) -> set[str]:
    """The names in `SHOWN` that a revision changed; the database is then at the revision before."""
    await asyncio.to_thread(migrate.downgrade, url, revision)
    known = dict(rows_of(url, SHOWN))
    await asyncio.to_thread(migrate.downgrade, url, "-1")
    before = dict(rows_of(url, SHOWN))
    return {name for name in known if known[name] != before[name]}


AS_OF_0014: LiteralString = """
INSERT INTO appwrapper (uid, api_group, namespace, name, queue, phase, phase_since, version, priority, priority_slope,
    created_at, spec_hash, demand, pods, pod_sets, conditions, attempts, attempt, cluster, reason, taken_in_at)
VALUES ('uid-of-aw', 'workload.codeflare.dev', 'default', 'aw', 'default', 'Queued', '2026-11-20T12:30:03Z', 6, 0, 0,
    '2026-11-20T12:00:00Z', 'a-hash', '{"cpu": 1500}', 2, '[]', '[]', 1, 1, 'hub', 'MinPodsNotRunning',
    '2026-11-20T12:00:00Z');
INSERT INTO attempt (uid, number, cluster, epoch, decided_at, ended_at, outcome, reason, demand)
VALUES ('uid-of-aw', 1, 'hub', 1, '2026-11-20T12:00:01Z', '2026-11-20T12:30:03Z', 'evicted', 'MinPodsNotRunning',
    '{"cpu": 1500}')
"""


async def test_queues_come_to_rows_of_the_revision_before_and_go_again(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0014")
    before = dict(rows_of(database_url, SHOWN))
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0014)
    await upgrade(database_url)
    (record,) = await queue.load_live()
    assert (record.more_queues, record.is_preempting, record.preempted_at) == ((), False, ())
    assert (attempt_of(record).outcome, attempt_of(record).preempted_by) == ("evicted", "")
    assert rows_of(database_url, "SELECT preempted_by FROM history.attempt_history") == [(None,)]
    assert rows_of(database_url, "SELECT * FROM history.preemptions") == []
    lost = "SELECT evictions, requeues, lost_s FROM history.job_history"
    assert rows_of(database_url, lost) == [(1, 1, 1802.0)]

    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE attempt SET outcome = 'preempted', preempted_by = 'uid-of-aw'")
        connection.execute("UPDATE appwrapper SET more_queues = '[\"gold/a\"]', is_preempting = true")
    assert rows_of(database_url, lost) == [(0, 0, 1802.0)]
    await asyncio.to_thread(migrate.downgrade, database_url, "0014")
    assert dict(rows_of(database_url, SHOWN)) == before
    assert rows_of(database_url, "SELECT uid, outcome FROM attempt") == [("uid-of-aw", "preempted")]
    await upgrade(database_url)
    assert [(each.more_queues, each.is_preempting) for each in await queue.load_live()] == [((), False)]


AS_OF_0015: LiteralString = """
INSERT INTO appwrapper (uid, api_group, namespace, name, queue, more_queues, phase, phase_since, version, priority,
    priority_slope, created_at, spec_hash, demand, pods, pod_sets, conditions, attempts, attempt, cluster, taken_in_at)
VALUES ('uid-of-aw', 'workload.codeflare.dev', 'default', 'aw', 'team', '["gold/a"]', 'Queued', '2026-11-20T12:30:03Z',
    6, 0, 0, '2026-11-20T12:00:00Z', 'a-hash', '{"cpu": 1500}', 2, '[]', '[]', 1, 1, 'hub', '2026-11-20T12:00:00Z');
INSERT INTO attempt (uid, number, cluster, epoch, decided_at, ended_at, outcome, demand)
VALUES ('uid-of-aw', 1, 'hub', 1, '2026-11-20T12:00:01Z', '2026-11-20T12:30:03Z', 'evicted', '{"cpu": 1500}');
INSERT INTO past_attempt VALUES ('uid-of-past', 'default', 'past', 'team', 'ann', 1, 'hub', '2026-11-20T12:00:01Z',
    NULL, NULL, '2026-11-20T12:30:03Z', 'completed', NULL, '', 1802, 0, 1.5, 0, 0, 0.75, 0, 0, '{"cpu": 1500}')
"""
BY_EARLIER_RELEASE: LiteralString = """
INSERT INTO attempt (uid, number, cluster, epoch, decided_at, ended_at, outcome, demand)
VALUES ('uid-of-aw', 2, 'hub', 1, '2026-11-20T13:00:01Z', '2026-11-20T13:30:03Z', 'evicted', '{"cpu": 1500}');
UPDATE appwrapper SET queue = 'others';
INSERT INTO past_attempt SELECT * FROM attempt_live
"""
"""What a dispatcher of the revision before still writes: an attempt, and later the move to history."""


async def test_attempts_of_the_revision_before_have_the_queues_that_their_appwrapper_had(
    database_url: str,
) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0015")
    before = dict(rows_of(database_url, SHOWN))
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0015)
    await upgrade(database_url)
    kept = (
        "SELECT number, queues FROM attempt UNION ALL SELECT 0, queues FROM past_attempt WHERE uid = 'uid-of-past' "
        "ORDER BY 1"
    )
    assert rows_of(database_url, kept) == [(0, None), (1, ["team", "gold/a"])]
    with psycopg.connect(database_url) as connection:
        connection.execute(BY_EARLIER_RELEASE)
    assert rows_of(database_url, kept) == [(0, None), (1, ["team", "gold/a"]), (2, None)]
    shown = "SELECT name, attempt, queue FROM history.attempt_history ORDER BY 1, 2, 3"
    twice = [("aw", 1, "team"), ("aw", 1, "team"), ("aw", 2, "others"), ("aw", 2, "others")]
    assert rows_of(database_url, shown) == [*twice, ("past", 1, "team")]

    await asyncio.to_thread(migrate.downgrade, database_url, "0015")
    assert dict(rows_of(database_url, SHOWN)) == before
    assert {queue for _, _, queue in rows_of(database_url, shown)} == {"others", "team"}
    await upgrade(database_url)
    assert rows_of(database_url, kept)[1:] == [(1, ["others", "gold/a"]), (2, ["others", "gold/a"])]


AS_OF_0016: LiteralString = """
INSERT INTO appwrapper (uid, api_group, namespace, name, queue, phase, phase_since, version, priority, priority_slope,
    created_at, spec_hash, demand, pods, pod_sets, conditions, attempts, pending_reason, pending_message,
    pending_resource, pending_cluster, taken_in_at)
VALUES ('uid-of-aw', 'workload.codeflare.dev', 'default', 'aw', 'team', 'Queued', '2026-11-20T12:00:00Z', 2, 0, 0,
    '2026-11-20T12:00:00Z', 'a-hash', '{"cpu": 1500}', 2, '[]', '[]', 0, 'InsufficientQuota', 'quota of team',
    'cpu', '', '2026-11-20T12:00:00Z')
"""


async def test_facts_of_queues_come_to_rows_of_the_revision_before_and_go_again(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0016")
    with psycopg.connect(database_url) as connection:
        connection.execute(AS_OF_0016)
    await upgrade(database_url)
    (record,) = await queue.load_live()
    known = Pending("InsufficientQuota", "quota of team", "cpu")
    assert record.pending == known

    summary = QuotaSummary("8", "7", "1", "12", (Borrower("other", "3"),))
    told = replace(known, queue="team", quota=summary, preempting=("red/one",))
    change = queue_changes.block(record, told, record.phase_since)
    assert change is not None
    assert (await queue.commit([change])).accepted
    assert [each.pending for each in await queue.load_live()] == [told]
    await asyncio.to_thread(migrate.downgrade, database_url, "0016")
    kept = "SELECT pending_reason, pending_message, pending_resource FROM appwrapper"
    assert rows_of(database_url, kept) == [("InsufficientQuota", "quota of team", "cpu")]
    await upgrade(database_url)
    assert [each.pending for each in await queue.load_live()] == [known]


async def test_specs_of_queues_come_to_the_revision_before_and_go_again(
    database_url: str, database: Database, leadership: Leadership
) -> None:
    forget_replay(database_url)
    store = QueueDeclarationStore(database, lambda: leadership.lease)
    began = datetime(2026, 11, 20, 12, tzinfo=UTC)
    await asyncio.to_thread(migrate.downgrade, database_url, "0017")
    await upgrade(database_url)
    await store.declare_specs([Queue("team")], began)
    shown: LiteralString = "SELECT queue, spec ->> 'order', valid_from, valid_to FROM history.queue_specs"
    assert rows_of(database_url, shown) == [("team", "Priority", began, None)]
    await asyncio.to_thread(migrate.downgrade, database_url, "0017")
    await upgrade(database_url)
    assert rows_of(database_url, shown) == []


async def test_gang_too_large_for_its_cluster_has_a_position_again_in_the_revision_before(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    too_large = Pending("LargerThanCluster", "cpu: needs 9, 8 in all of it", "cpu", "hub")
    await queue.commit([make_submit("large", pending=too_large), make_submit("small")])
    shown: LiteralString = "SELECT name, position FROM tenant.queue_now ORDER BY name"
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO history_grant (role_name, namespace) VALUES (current_user, 'default')"
        )
    newest = dict(rows_of(database_url, SHOWN))
    assert rows_of(database_url, shown) == [("large", None), ("small", 1)]
    assert await changed_by(database_url, "0019") == {
        "history.queue_now",
        *(f"{schema}.queue_now.{column}" for schema in ("history", "tenant") for column in (2, 23)),
    }
    assert rows_of(database_url, shown) == [("large", 1), ("small", 2)]
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest
    assert rows_of(database_url, shown) == [("large", None), ("small", 1)]


async def test_limit_of_a_gang_is_lost_in_the_revision_before(database_url: str, queue: QueueStore) -> None:
    forget_replay(database_url)
    newest = dict(rows_of(database_url, SHOWN))
    submit = make_submit("limited", limit_seconds=60)
    assert (await queue.commit([submit])).accepted
    shown: LiteralString = "SELECT limit_seconds FROM scheduling.gangs"
    assert rows_of(database_url, shown) == [(60,)]
    await asyncio.to_thread(migrate.downgrade, database_url, "0019")
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest
    assert rows_of(database_url, shown) == [(0,)]


async def test_growth_is_lost_in_the_revision_before_and_usage_is_that_of_the_demand_again(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    (record,) = (await queue.commit([make_submit()])).accepted
    (record,) = (await queue.commit([make_dispatch(record)])).accepted
    attempt = record.attempt
    assert attempt is not None
    growth = Growth(attempt.decided_at, Resources({"cpu": 500}))
    change = make_change(record, attempt=replace(attempt, growth=(growth,)))
    (record,) = (await queue.commit([change])).accepted
    assert await loaded(database_url) == [record]
    newest = dict(rows_of(database_url, SHOWN))
    assert await changed_by(database_url, "0021") == {
        "attempt_live",
        "history.fairness_daily",
        "history.running_now",
        "history.usage_hourly",
        "history.utilisation_hourly",
        "scheduling.gangs",
        *(
            f"{schema}.attempt_history.{column}"
            for schema in ("history", "tenant")
            for column in (17, 18, 19, 20)
        ),
    }
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest
    assert await loaded(database_url) == [replace(record, attempt=attempt)]


async def test_positions_are_counted_for_each_label_again_in_the_revision_before(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    await queue.commit([make_submit("first"), make_submit("second", queue="other")])
    shown: LiteralString = "SELECT name, position FROM history.queue_now ORDER BY name"
    newest = dict(rows_of(database_url, SHOWN))
    assert rows_of(database_url, shown) == [("first", 1), ("second", 2)]
    assert await changed_by(database_url, "0022") == {
        "history.queue_now",
        *(f"{schema}.queue_now.2" for schema in ("history", "tenant")),
    }
    assert rows_of(database_url, shown) == [("first", 1), ("second", 1)]
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest
    assert rows_of(database_url, shown) == [("first", 1), ("second", 2)]


async def test_gang_that_lacks_approvals_has_a_position_in_the_revision_before(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    awaits = approvals.pending_without(["budget"])
    (record, _) = (await queue.commit([make_submit("awaits", pending=awaits), make_submit("free")])).accepted
    shown: LiteralString = "SELECT name, position FROM history.queue_now ORDER BY name"
    newest = dict(rows_of(database_url, SHOWN))
    assert rows_of(database_url, shown) == [("awaits", None), ("free", 1)]
    assert (await loaded(database_url))[0] == record
    assert await changed_by(database_url, "0023") == {
        "waiting_advice",
        "history.overtakes",
        "history.queue_now",
        *(f"{schema}.queue_now.2" for schema in ("history", "tenant")),
    }
    assert rows_of(database_url, shown) == [("awaits", 1), ("free", 2)]
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest
    assert awaits is not None
    assert (await loaded(database_url))[0] == replace(record, pending=replace(awaits, approvals=()))


async def test_gang_that_its_queue_does_not_take_has_a_position_in_the_revision_before(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    refused = Pending("NamespaceNotAllowed", "queue gold serves others", queue="gold")
    await queue.commit([make_submit("stranger", pending=refused), make_submit("welcome")])
    shown: LiteralString = "SELECT name, position FROM history.queue_now ORDER BY name"
    newest = dict(rows_of(database_url, SHOWN))
    assert rows_of(database_url, shown) == [("stranger", None), ("welcome", 1)]
    assert await changed_by(database_url, "0038") == {
        "history.queue_now",
        *(f"{schema}.queue_now.2" for schema in ("history", "tenant")),
    }
    assert rows_of(database_url, shown) == [("stranger", 1), ("welcome", 2)]
    await upgrade(database_url)
    assert dict(rows_of(database_url, SHOWN)) == newest


async def test_gang_without_its_required_pods_has_no_advice_in_the_revision_before(
    database_url: str,
) -> None:
    advised: LiteralString = "SELECT waiting_advice('RequiredPodsMissing'), waiting_advice('NameTaken')"
    newest = rows_of(database_url, advised)
    assert await changed_by(database_url, "0039") == {"waiting_advice", "history.overtakes"}
    ((own, others),) = rows_of(database_url, advised)
    assert (own, others) == (None, newest[0][1])
    await upgrade(database_url)
    assert rows_of(database_url, advised) == newest
    assert "affinity" in newest[0][0]


async def test_members_of_the_revision_before_are_those_that_were_seen(
    database_url: str, database: Database, leadership: Leadership
) -> None:
    clusters = ClusterStore(database, lambda: leadership.lease)
    for name in ("hub", "east", "west"):
        await clusters.recognise_cluster(name, f"uid-of-{name}", second(0))
    await clusters.note_state("west", ClusterState(is_declared=False), second(1))
    await clusters.note_seen({"south"})
    assert await changed_by(database_url, "0034") == {"waiting_advice", "history.overtakes"}
    await upgrade(database_url)
    assert await clusters.seen_members() == {"east"}


async def test_attempts_that_ended_before_they_began_are_mended_up_and_down(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    (record,) = (await queue.commit([make_submit()])).accepted
    await queue.commit([make_dispatch(record)])
    await asyncio.to_thread(migrate.downgrade, database_url, "0008")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE attempt SET ended_at = '2026-01-01', outcome = 'failed'")
        connection.execute(
            "UPDATE appwrapper SET ended_at = '2026-01-01', outcome = 'failed', phase = 'Failed'"
        )
    await upgrade(database_url)
    ranges = (
        "SELECT ended_at >= decided_at FROM attempt UNION ALL SELECT ended_at >= created_at FROM appwrapper"
    )
    assert rows_of(database_url, ranges) == [(True,), (True,)]
    assert rows_of(database_url, "SELECT history_dropped_month, history_dropped_at FROM hub") == [("", None)]
    await asyncio.to_thread(migrate.downgrade, database_url, "0008")
    assert rows_of(database_url, "SELECT count(*) FROM attempt") == [(1,)]
    await upgrade(database_url)


async def test_there_is_no_way_back_past_a_phase_that_the_older_code_cannot_load(
    database_url: str, queue: QueueStore
) -> None:
    forget_replay(database_url)
    phases = [Phase.COMPLETED, Phase.SUSPENDED, Phase.SUSPENDING, Phase.RUNNING_HOLD_COMPLETION]
    known = [Phase.RUNNING, Phase.FAILED, Phase.DELETED]
    await queue.commit([make_submit(phase=phase) for phase in (*phases, *known, Phase.COMPLETED)])
    told = "no such phases: 2 Completed, 1 RunningHoldCompletion, 1 Suspended, 1 Suspending: delete these"
    with pytest.raises(DataRefused, match=told):
        await asyncio.to_thread(migrate.downgrade, database_url, "0001")
    assert revision.current_revision(database_url) == revision.NEWEST
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE appwrapper SET phase = 'Deleted' WHERE phase = ANY (%s)", [phases])
    await asyncio.to_thread(migrate.downgrade, database_url, "0001")
    assert revision.current_revision(database_url) == "0001"


def test_a_difference_between_database_and_code_is_found(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE attempt ADD COLUMN surprise text")
    with pytest.raises(Exception, match="surprise"):
        migrate.check(database_url)


def test_partitions_made_as_time_goes_by_are_no_difference(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "CREATE TABLE event_2026_11 PARTITION OF event FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')"
        )
    migrate.check(database_url)


def test_an_empty_database_names_the_command_that_makes_its_tables(empty_url: str) -> None:
    assert revision.current_revision(empty_url) is None
    with pytest.raises(SchemaMismatch, match="run: dispatcher migrate"):
        revision.check_revision(empty_url)
    migrate.migrate(empty_url)
    revision.check_revision(empty_url)


def test_a_database_that_does_not_store_utf8_is_refused_before_anything_is_made(postgres_url: str) -> None:
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name)
            )
        )
    url = url_of(postgres_url, name)
    try:
        with pytest.raises(DataRefused, match="stores text as SQL_ASCII, not UTF8: create it with ENCODING"):
            migrate.migrate(url)
        assert rows_of(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    finally:
        drop_database(postgres_url, name)


def test_newest_revision_is_that_of_the_last_migration() -> None:
    scripts = sorted((CHECKOUT / "migrations" / "versions").glob("[0-9]*.py"))
    assert scripts[-1].name[:4] == revision.NEWEST
    assert f'revision = "{revision.NEWEST}"' in scripts[-1].read_text()


def test_a_database_of_an_older_dispatcher_is_to_be_migrated(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(
        SchemaMismatch, match=f"at revision 0001, not {revision.NEWEST}; run: dispatcher migrate"
    ):
        revision.check_revision(database_url)


NEWER: LiteralString = "UPDATE alembic_version SET version_num = '9999'"


@pytest.mark.parametrize(
    "said", ["NULL", f"'{revision.OLDEST_CODE}9998'", "'by somebody else'"], ids=["nothing", "newer", "other"]
)
def test_schema_of_a_newer_dispatcher_that_took_something_away_is_refused(
    database_url: str, said: LiteralString
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(NEWER)
        connection.execute(f"COMMENT ON TABLE alembic_version IS {said}")
    with pytest.raises(SchemaMismatch, match="on which this version does not run"):
        revision.check_revision(database_url)
    with pytest.raises(SchemaMismatch, match="on which this version does not run"):
        migrate.migrate(database_url)


def test_schema_that_a_newer_dispatcher_only_expanded_is_run_on(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(NEWER)
    assert revision.check_revision(database_url) == "9999"
    assert migrate.migrate(database_url) == ()
    assert revision.current_revision(database_url) == "9999"


def test_migrating_twice_keeps_the_identity_of_the_hub(database_url: str) -> None:
    before = rows_of(database_url, "SELECT id FROM hub")
    migrate.migrate(database_url)
    assert rows_of(database_url, "SELECT id FROM hub") == before


def test_there_is_one_hub_in_a_database(database_url: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute("INSERT INTO hub (singleton) VALUES (false)")
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute("INSERT INTO hub DEFAULT VALUES")


def test_migrations_started_at_once_run_one_after_the_other(empty_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate.migrate(empty_url)
        except BaseException as error:  # noqa: BLE001 - reported by the assertion
            failures.append(error)

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    revision.check_revision(empty_url)


def test_a_migration_gives_up_on_another_that_does_not_end(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LOCK_TIMEOUT", "100ms")
    with psycopg.connect(empty_url) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [migrate.LOCK])
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            migrate.migrate(empty_url)
    assert revision.current_revision(empty_url) is None


def test_every_column_of_the_views_for_people_has_a_comment(database_url: str) -> None:
    silent = rows_of(
        database_url,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.relnamespace = 'history'::regnamespace AND col_description(c.oid, a.attnum) IS NULL",
    )
    assert silent == []


def test_an_owner_who_may_not_make_roles_migrates_all_the_same(postgres_url: str, empty_url: str) -> None:
    owner = f"aw_owner_{uuid.uuid4().hex[:8]}"
    database = empty_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = sql.Identifier(owner)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database), name))
        try:
            migrate.migrate(with_user(empty_url, owner))
            revision.check_revision(empty_url)
            assert rows_of(empty_url, "SELECT count(*) FROM history.job_history") == [(0,)]
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
            admin.execute(sql.SQL("DROP ROLE {}").format(name))


def with_user(url: str, user: str) -> str:
    """The same database for somebody else."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}@{rest.partition('@')[2]}"
