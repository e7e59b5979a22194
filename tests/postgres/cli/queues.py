"""A queue in front of two clusters, as the leader left them in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.core.kinds.pods.pod_defaults import DefaultsSurvey
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.clusters.nodes import Node, Taint
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, OwnedPods, SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.snapshot.snapshot_document import document_of
from dispatcher.store.snapshot.snapshots import SnapshotStore
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_gang
from tests.postgres.changes import committed, make_object

TRAIN: Final = "00000000-0000-0000-0000-000000000001"
SWEEP: Final = "00000000-0000-0000-0000-000000000002"
LARGE: Final = "00000000-0000-0000-0000-000000000003"
SMALL: Final = "00000000-0000-0000-0000-000000000004"
FAILED: Final = "00000000-0000-0000-0000-000000000005"

EIGHT: Final = Resources({"cpu": 8000, "memory": 16 * 2**30})
EAST: Final = Cluster(
    "east",
    (
        Node("n1", EIGHT, labels={"kubernetes.io/hostname": "n1", "zone": "a"}),
        Node("t1", EIGHT, taints=(Taint("team", "b", "NoSchedule"),)),
    ),
)
WEST: Final = Cluster("west", (Node("n1", EIGHT),), closed=Closed("ClusterCordoned", "new switches"))


RULES: Final = SchedulingRules()
NOTHING_ADDED: Final = DefaultsSurvey({}, {})
"""Clusters without LimitRanges and without overheads."""


@dataclass(frozen=True, slots=True)
class Queues:
    """When things happened: gangs began to run at `started`, and the snapshot was taken at `taken_at`."""

    started: datetime
    taken_at: datetime


async def fill(queue: QueueStore, *nodes: str, limit_of_sweep: timedelta = timedelta(0)) -> Queues:
    """Two running gangs in `east`, two gangs that wait, and one that failed just now.

    `train`, which runs, and `large`, which waits, are also in these nodes of MCAD's trees.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    queues = Queues(now - timedelta(hours=3), now - timedelta(minutes=1))
    fields = {"user": "alice", "expected_seconds": 7200, "limit_seconds": 14400, "more_queues": nodes}
    limit = int(limit_of_sweep.total_seconds())
    train = _submitted(TRAIN, "team-a", "train", queues.started, 5, **fields)
    await _run(queue, train, queues.started, ("n1", 1))
    sweep = _submitted(SWEEP, "team-b", "sweep", queues.started, 2, limit_seconds=limit)
    await _run(queue, sweep, queues.started, ("n1", 1))
    large = _submitted(LARGE, "team-a", "large", queues.started, 6, priority=5, more_queues=nodes)
    await committed(queue, large)
    await committed(queue, _submitted(SMALL, "team-a", "small", queues.started, 2))
    failed = await _run(queue, _submitted(FAILED, "team-b", "failed", queues.started, 1), queues.started)
    failed = await committed(
        queue, run_changes.fail(failed, EvictionReason("FoundFailedPods", "2 pods failed"), now)
    )
    await committed(queue, removal.removed(failed, now))
    return queues


async def snap(
    database: Database,
    leadership: Leadership,
    taken_at: datetime,
    *clusters: Cluster,
    rules: SchedulingRules = RULES,
) -> None:
    """Write the snapshot of these clusters; the pods of the running gangs are on `n1` of `east`."""
    pods = (OwnedPods(TRAIN, Place("n1", _cpu(5), 1)), OwnedPods("", Place("n1", _cpu(1), 1)))
    store = SnapshotStore(database, lambda: leadership.lease)
    documents = {}
    for each in clusters:
        facts = ClusterFacts(
            each, pods if each.name == "east" else (), rules, taken_at=taken_at, defaults=NOTHING_ADDED
        )
        documents[each.name] = document_of(facts)
    await store.write(documents, documents.keys(), taken_at)


def _cpu(cpu: int) -> Resources:
    return Resources({"cpu": 1000 * cpu})


def _submitted(uid: str, namespace: str, name: str, at: datetime, cpu: int, **fields: Any) -> Change:  # noqa: ANN401
    submission = first_changes.Submission(
        uid=uid,
        group="workload.codeflare.dev",
        namespace=namespace,
        name=name,
        created_at=at,
        spec=b'{"resources": {}}',
        spec_hash="hash",
        requirements=ClusterRequirements(namespace=namespace, kinds=frozenset({("v1", "Pod")})),
    )
    change = first_changes.submit(submission, make_gang(cpu=1000 * cpu), at)
    return replace(change, after=replace(change.after, **fields))


async def _run(queue: QueueStore, submitted: Change, at: datetime, *places: tuple[str, int]) -> Record:
    record = await committed(queue, submitted)
    assignment = Assignment((places,) if places else ())
    record = await committed(queue, queue_changes.dispatch(record, "east", at, assignment=assignment))
    record = await committed(queue, run_changes.created(record, (make_object(),), at))
    return await committed(queue, run_changes.mark_running(record, at))
