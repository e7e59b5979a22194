"""The leader's snapshot in a real database: what is written and when, and who may read it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep.snapshot_keeper import SnapshotKeeper
from dispatcher.core.kinds.pods.pod_defaults import DefaultsSurvey
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import PodRef, Shrinking
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Pending, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster, RunningGang, RunningPods
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.errors import Fenced, SchemaMismatch, StoreError
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.readers import reader
from dispatcher.store.snapshot.snapshot_reader import read_snapshot
from dispatcher.store.snapshot.snapshots import SnapshotStore
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import GANG, LATER, make_created, make_submit, rows_of
from tests.postgres.test_migrations import with_user
from tests.postgres.test_reader import tenant

__all__ = ["tenant"]

TIMEOUT = timedelta(seconds=10)
AT = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
"""The time of the first write; what tests commit is later, because the database has its own clock."""
NEXT = AT + timedelta(minutes=30)
RULES = SchedulingRules(fit=FitMode.NODE, starvation_bound=timedelta(minutes=7))
CPU = Resources({"cpu": 750})


@dataclass
class Clusters:
    """Clusters that a test changes, in place of the fleet."""

    ledgers: dict[str, CapacityLedger] = field(default_factory=dict)
    reserves: dict[str, Resources] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    """Clusters that are not connected."""

    def snapshots(self, _: object) -> dict[str, ClusterSnapshot]:
        known = {
            name: ClusterSnapshot(name, ledger.snapshot().without(self.reserve_of(name)), {"region": name})
            for name, ledger in self.ledgers.items()
        }
        closed = {
            name: ClusterSnapshot(name, CapacityLedger().snapshot(), closed=why)
            for name, why in self.closed.items()
        }
        return {**known, **closed}

    def reserve_of(self, cluster: str) -> Resources:
        return self.reserves.get(cluster, NOTHING)


class Bench:
    """A keeper over two clusters with a node each; `now` is its clock."""

    def __init__(self, database: Database, leadership: Leadership) -> None:
        self.now = AT
        self.clusters = Clusters({name: CapacityLedger(FitMode.NODE) for name in ("east", "west")})
        for ledger in self.clusters.ledgers.values():
            ledger.set_node(Node("n", Resources({"cpu": 4000, "nvidia.com/gpu": 2}), labels={"zone": "a"}))
        self.surveys: dict[str, DefaultsSurvey] = {}
        self.lease = leadership.lease
        self.cache = Cache(self.clusters.ledgers)
        self.queue = QueueStore(database, lambda: leadership.lease)
        self.keeper = self.make_keeper(database)

    def make_keeper(self, database: Database) -> SnapshotKeeper:
        """The keeper of this leader, or of one after it."""
        store = SnapshotStore(database, lambda: self.lease)
        return SnapshotKeeper(
            self.cache,
            self.clusters,
            store,
            lambda: RULES,
            lambda: self.now,
            TIMEOUT,
            lambda: self.surveys,
        )

    async def commit(self, change: Change) -> Record:
        """Commit a change, and remember it as the leader does."""
        (record,) = (await self.queue.commit([change])).accepted
        self.cache.put(record)
        return record

    async def running(self, name: str, cluster: str = "east", *places: tuple[str, int]) -> Record:
        """An AppWrapper that runs, with places for its pods."""
        record = await self.commit(make_submit(name))
        change = queue_changes.dispatch(record, cluster, LATER, assignment=Assignment((places,)))
        record = await self.commit(change)
        record = await self.commit(make_created(record))
        return await self.commit(run_changes.mark_running(record, LATER))

    def bind(self, cluster: str, uid: str, owner: str | None = None, **fields: Any) -> None:  # noqa: ANN401
        """Bind a pod to the node of a cluster."""
        self.clusters.ledgers[cluster].set_pod(Pod(uid, CPU, "n", PodPhase.RUNNING, owner, **fields))


@pytest.fixture
def bench(database: Database, leadership: Leadership) -> Bench:
    """The leader's keeper, and all that it keeps."""
    return Bench(database, leadership)


def written(url: str) -> list[tuple[str, datetime]]:
    return [
        (cluster, at)
        for cluster, at in rows_of(url, "SELECT cluster, taken_at FROM cluster_snapshot ORDER BY cluster")
    ]


# --- what is written, and when --------------------------------------------------------------------------------


async def test_a_cluster_is_written_once_until_it_changes(bench: Bench, database_url: str) -> None:
    await bench.keeper.write()
    bench.now = NEXT
    await bench.keeper.write()
    assert written(database_url) == [("east", AT), ("west", AT)]
    bench.bind("west", "foreign")
    await bench.keeper.write()
    assert written(database_url) == [("east", AT), ("west", NEXT)]


@pytest.mark.parametrize("change", ["reserve", "node", "closed", "gang", "defaults"])
async def test_every_change_is_written(bench: Bench, database_url: str, change: str) -> None:
    await bench.keeper.write()
    bench.now = NEXT
    match change:
        case "reserve":
            bench.clusters.reserves["east"] = CPU
        case "node":
            bench.clusters.ledgers["east"].set_node(Node("m", CPU))
        case "closed":
            del bench.clusters.ledgers["east"]
            bench.clusters.closed["east"] = Closed("ClusterUnreachable", "timed out")
        case "gang":
            await bench.running("aw", "east", ("n", 2))
        case "defaults":
            bench.surveys["east"] = DefaultsSurvey({"team": {"cpu": "1"}}, {})
    await bench.keeper.write()
    assert (await read_snapshot(database_url, TIMEOUT)).surveys == {
        "east": bench.surveys.get("east"),
        "west": None,
    }
    assert written(database_url) == [("east", NEXT), ("west", AT)]


async def test_world_knows_which_gangs_lack_approvals(bench: Bench, database_url: str) -> None:
    await bench.commit(make_submit("gated", pending=pending_without(["budget"])))
    await bench.commit(make_submit("free", pending=Pending("InsufficientResources", "short")))
    await bench.keeper.write()
    world = (await read_snapshot(database_url, TIMEOUT)).world
    assert {each.name: each.awaits_approval for each in world.pending} == {"gated": True, "free": False}
    assert [(each.record.name, each.pending.message) for each in world.lacking_approvals()] == [
        ("gated", "it lacks the approval budget")
    ]


async def test_a_cluster_that_is_gone_is_deleted(bench: Bench, database_url: str) -> None:
    await bench.keeper.write()
    bench.now = NEXT
    del bench.clusters.ledgers["west"]
    await bench.keeper.write()
    assert written(database_url) == [("east", AT)]


async def test_the_next_leader_writes_all_snapshots_and_deletes_unknown_ones(
    bench: Bench, database: Database, database_url: str
) -> None:
    await bench.keeper.write()
    bench.now = NEXT
    del bench.clusters.ledgers["west"]
    await bench.make_keeper(database).write()
    assert written(database_url) == [("east", NEXT)]


async def test_former_leader_writes_nothing(bench: Bench, database_url: str) -> None:
    await bench.keeper.write()
    bench.lease = replace(bench.lease, epoch=bench.lease.epoch - 1)
    bench.now = NEXT
    bench.bind("east", "foreign")
    with pytest.raises(Fenced):
        await bench.keeper.write()
    assert written(database_url) == [("east", AT), ("west", AT)]


DECIDING = (
    *(
        "uid",
        "group",
        "namespace",
        "name",
        "created_at",
        "phase",
        "phase_since",
        "user",
        "queue",
        "enqueue_seq",
    ),
    *(
        "priority",
        "priority_slope",
        "gang",
        "requirements",
        "expected_seconds",
        "limit_seconds",
        "eligible_at",
        "blocked_since",
    ),
    *("attempt", "reason", "message"),
)


# --- what is read ----------------------------------------------------------------------------------------------


async def test_the_world_is_that_of_the_leader_and_of_the_queue(bench: Bench, database_url: str) -> None:
    bench.clusters.reserves["east"] = CPU
    bench.clusters.closed["south"] = Closed("ClusterUnreachable", "timed out")
    runs = await bench.running("runs", "east", ("n", 2))
    bench.bind("east", "its", runs.uid)
    bench.bind("east", "foreign")
    bench.bind("west", "daemon", never_ends=True)
    await bench.keeper.write()
    waits = await bench.commit(make_submit("waits", priority=3))

    found = await read_snapshot(with_user(database_url, reader.READER), TIMEOUT)

    node = bench.clusters.ledgers["east"].nodes()
    assert (found.rules, found.taken_at, found.has_leader) == (RULES, AT, True)
    assert found.records.keys() == {runs.uid, waits.uid}
    world = found.world
    assert world.clusters == (
        Cluster("east", tuple(node), {"region": "east"}, reserve=CPU, others=(Place("n", CPU, 1),)),
        Cluster("south", closed=Closed("ClusterUnreachable", "timed out")),
        Cluster("west", tuple(node), {"region": "west"}, permanent=(Place("n", CPU, 1),)),
    )
    assert world.running == (
        RunningGang(
            runs.uid,
            "east",
            GANG.demand,
            tuple(map(RunningPods, GANG.pod_sets)),
            (Place("n", CPU, 1),),
            Assignment(((("n", 2),),)),
        ),
    )
    assert [(each.uid, each.priority, each.gang) for each in world.pending] == [(waits.uid, 3, GANG)]
    assert (world.fit, world.starvation_bound) == (RULES.fit, RULES.starvation_bound)


async def test_a_record_is_read_with_all_that_decisions_depend_on(bench: Bench, database_url: str) -> None:
    selector = parse_selector("region in (eu, us)", "")
    requirements = ClusterRequirements(
        selector,
        parse_selector("!spot", ""),
        "default",
        frozenset({("batch/v1", "Job")}),
        frozenset({("east", "a Job is not ours")}),
    )
    pods = PodSet(
        3,
        CPU,
        (Toleration("gpu", "Exists"),),
        NodeRequirements((("zone", "a"),), (NodeTerm((LabelRequirement("gpu", LabelOperator.EXISTS),)),)),
        ("kubernetes.io/hostname",),
        ("rack",),
        ("spec.resourceClaims",),
    )
    submitted = make_submit(
        "aw",
        gang=Gang(CPU * 4, 3, (pods,)),
        requirements=requirements,
        user="alice",
        queue="night",
        priority=-3,
        priority_slope=0.25,
        expected_seconds=90,
        limit_seconds=120,
    )
    record = await bench.commit(submitted)
    await bench.keeper.write()
    found = (await read_snapshot(database_url, TIMEOUT)).records[record.uid]
    assert {each: getattr(found, each) for each in DECIDING} == {
        each: getattr(record, each) for each in DECIDING
    }


async def test_a_grown_gang_is_planned_with_the_resources_it_holds(bench: Bench, database_url: str) -> None:
    record = await bench.running("ray")
    change = run_changes.note_growth(record, record.gang.demand + {"nvidia.com/gpu": 2}, LATER)
    record = await bench.commit(change)
    await bench.keeper.write()
    found = await read_snapshot(database_url, TIMEOUT)
    (running,) = found.world.running
    assert (running.demand, running.held) == (record.gang.demand, record.charge)
    assert found.records[record.uid].charge == record.charge
    given = Shrinking((PodRef("default", "w-1", "uid-1"),), NOTHING, "uid-of-another")
    await bench.commit(run_changes.give_up(record, given, Reason.QUOTA_RECLAIMED, "for another", LATER))
    assert (await read_snapshot(database_url, TIMEOUT)).records[record.uid].allowed == record.gang.demand


async def test_the_pods_of_a_gang_that_ended_since_are_left_out(bench: Bench, database_url: str) -> None:
    ended, deleted = await bench.running("ended"), await bench.running("deleted")
    bench.bind("east", "one", ended.uid)
    bench.bind("east", "other", deleted.uid)
    await bench.keeper.write()
    await bench.commit(run_changes.complete(ended, (0,), LATER, LATER))
    deleting = await bench.commit(removal.delete(deleted, LATER))
    await bench.commit(removal.release(deleting, LATER))
    found = await read_snapshot(database_url, TIMEOUT)
    assert (found.world.running, found.world.clusters[0].others) == ((), ())
    assert found.records.keys() == {ended.uid, deleted.uid}


async def test_the_pods_of_a_gang_that_ended_before_count_as_foreign_pods(
    bench: Bench, database_url: str
) -> None:
    ended = await bench.running("ended")
    await bench.commit(run_changes.complete(ended, (0,), LATER, LATER))
    bench.bind("east", "left", ended.uid)
    bench.now = datetime.now(UTC) + timedelta(hours=1)
    await bench.keeper.write()
    found = await read_snapshot(database_url, TIMEOUT)
    assert (found.records, found.world.clusters[0].others) == ({}, (Place("n", CPU, 1),))


async def test_without_a_snapshot_no_cluster_is_known(database_url: str, bench: Bench) -> None:
    record = await bench.commit(make_submit("waits"))
    found = await read_snapshot(database_url, TIMEOUT)
    assert (found.taken_at, found.world.clusters, [*found.records]) == (None, (), [record.uid])


async def test_a_snapshot_without_a_leader_says_so(
    bench: Bench, leadership: Leadership, database_url: str
) -> None:
    await bench.keeper.write()
    await leadership.release()
    assert not (await read_snapshot(database_url, TIMEOUT)).has_leader


async def test_a_snapshot_of_another_release_is_refused(bench: Bench, database_url: str) -> None:
    await bench.keeper.write()
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE cluster_snapshot SET body = %s", [zlib.compress(b'{"version": 99}')])
    with pytest.raises(
        StoreError, match=r"^the snapshot is of version 99, this program reads 1: use the same release$"
    ):
        await read_snapshot(database_url, TIMEOUT)


# --- who may read ---------------------------------------------------------------------------------------------


async def test_database_of_an_older_revision_is_refused_in_a_sentence(
    bench: Bench, database_url: str
) -> None:
    await bench.commit(make_submit("a"))
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER VIEW scheduling.gangs RENAME COLUMN aged_from TO of_an_older_revision")
    with pytest.raises(
        SchemaMismatch, match="'aged_from' of an AppWrapper yet; an operator runs: dispatcher migrate"
    ):
        await read_snapshot(database_url, TIMEOUT)


async def test_the_reader_sees_the_views_and_no_table(bench: Bench, database_url: str) -> None:
    await bench.keeper.write()
    url = with_user(database_url, reader.READER)
    assert rows_of(url, "SELECT cluster FROM scheduling.clusters ORDER BY 1") == [("east",), ("west",)]
    assert rows_of(url, "SELECT * FROM scheduling.gangs") == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows_of(url, "SELECT * FROM public.cluster_snapshot")


@pytest.mark.parametrize("view", ["clusters", "gangs"])
def test_a_tenant_cannot_read_it(database_url: str, tenant: str, view: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema scheduling"):
        rows_of(with_user(database_url, tenant), f"SELECT * FROM scheduling.{view}")


async def test_a_tenant_reads_no_snapshot(bench: Bench, database_url: str, tenant: str) -> None:
    await bench.keeper.write()
    with pytest.raises(StoreError, match="permission denied"):
        await read_snapshot(with_user(database_url, tenant), TIMEOUT)
