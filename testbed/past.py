"""A fortnight of two teams on two clusters, in a database: the same whenever and wherever it is written.

This module fixes the submissions, their run times, the queues of one day and the failures of clusters. The dispatcher's
own planning decides when and where gangs are dispatched, why others wait and who is preempted; its lifecycle makes the
steps, and its stores write them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from itertools import count
from typing import Final

import psycopg
from msgspec.structs import replace
from psycopg import sql

from dispatcher.api.annotations import Submitter
from dispatcher.api.names import DEFAULT_QUEUE, WORKLOAD_GROUP
from dispatcher.api.selector import parse_selector
from dispatcher.core.lifecycle import first_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.record import ACTIVE, Change, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.leaf_quota import LeafQuota, leaf_quotas
from dispatcher.core.queues.ordering import is_eligible, rank
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle, QueueFacts
from dispatcher.core.scheduling.cycle.news import outcome_of
from dispatcher.core.scheduling.cycle.outcome_changes import change_of, changes_of
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.status.clusters import ClusterState
from dispatcher.core.status.samples import CapacitySample, Moment, reading_of
from dispatcher.store import migrate
from dispatcher.store.database import Database
from dispatcher.store.history.archive import BEGINNING
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.history.samples import SampleStore
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.clusters import ClusterStore
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import drop_database, url_of

FIRST_DAY: Final = datetime(2026, 3, 18, tzinfo=UTC)
END: Final = datetime(2026, 4, 1, 9, tzinfo=UTC)
"""The present of the story: waiting and running gangs wait and run up to then."""

SAMPLED: Final = (FIRST_DAY + timedelta(days=9), FIRST_DAY + timedelta(days=11))
"""Two days of samples, beside the last sample; a fortnight of them takes longer to write than everything else."""
PERIOD: Final = timedelta(minutes=5)
BOUND: Final = timedelta(minutes=10)
GRACE: Final = timedelta(minutes=30)
"""Time without an answer after which the gangs of east are requeued."""

RAY: Final = ("ray.io/v1", "RayCluster")
FAILED_PODS: Final = EvictionReason(
    "FoundFailedPods", "Found 1 failed, 3 running, and 0 succeeded pods; expected 4 pods"
)
LOST_PODS: Final = EvictionReason(
    "MinPodsNotRunning",
    "Insufficient number of Running and Completed pods, minimum=8, running=5, completed=0.",
)
SILENT: Final = "its API server does not answer: Cannot connect to host east:6443"


class End(Enum):
    """How a run ends, unless its cluster is lost earlier."""

    COMPLETES = "completes"
    FAILS = "fails"
    LOSES_PODS = "loses pods"
    EXCEEDS_QUOTA = "exceeds quota"


Runs = tuple[tuple[float, End], ...]
"""The hours of each attempt and its end; the last entry holds for all later attempts."""


@dataclass(frozen=True, slots=True)
class Job:
    """A submission, and the course of its attempts on any cluster."""

    day: int
    time: str
    team: str
    user: str
    name: str
    gpus: int
    runs: Runs
    priority: int = 0
    selector: str = ""
    queue: str = DEFAULT_QUEUE

    @property
    def at(self) -> datetime:
        """The time of its submission."""
        return clock(self.day, self.time)

    @property
    def uid(self) -> str:
        """The uid of its AppWrapper."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.at.isoformat()} {self.team}/{self.name}"))


def clock(day: int, time: str) -> datetime:
    """A time of a day of the story; days count from 1."""
    hours, minutes = time.split(":")
    return FIRST_DAY + timedelta(days=day - 1, hours=int(hours), minutes=int(minutes))


def completes(hours: float) -> Runs:
    """One run that completes."""
    return ((hours, End.COMPLETES),)


JOBS: Final = (
    Job(1, "08:00", "vision", "ada", "pretrain-1", 16, completes(60)),
    Job(1, "09:00", "vision", "bob", "resnet-50", 8, completes(12)),
    Job(1, "10:00", "speech", "cleo", "asr-1", 8, completes(18)),
    Job(2, "09:00", "speech", "cleo", "asr-2", 8, completes(18)),
    Job(3, "10:00", "vision", "bob", "detector", 4, ((6, End.FAILS),)),
    Job(4, "11:10", "vision", "bob", "detector", 4, completes(18)),
    Job(4, "12:00", "speech", "cleo", "tts-1", 8, ((5.2, End.LOSES_PODS), (12, End.COMPLETES))),
    Job(6, "09:00", "speech", "cleo", "dev-1", 8, completes(10), queue="speech-labs"),
    Job(6, "09:30", "speech", "cleo", "dev-2", 8, completes(8), queue="speech-labs"),
    Job(6, "12:00", "vision", "ada", "evaluate", 16, completes(6), queue="vision-labs"),
    Job(7, "22:00", "vision", "bob", "resnet-101", 8, completes(28), selector="gpu=a100"),
    Job(8, "08:00", "vision", "ada", "pretrain-2", 16, completes(35)),
    Job(8, "08:05", "vision", "bob", "detector-2", 8, completes(22)),
    Job(8, "12:00", "speech", "cleo", "asr-3", 8, completes(8)),
    Job(8, "18:00", "speech", "cleo", "hotfix", 4, completes(7), priority=10),
    Job(9, "18:00", "speech", "cleo", "tts-2", 8, completes(9)),
    Job(9, "22:00", "speech", "cleo", "asr-4", 8, completes(8)),
    Job(10, "06:00", "speech", "cleo", "asr-5", 8, completes(12), selector="gpu=h100"),
    Job(11, "14:30", "vision", "bob", "detector-3", 4, completes(7), selector="gpu=h100"),
    Job(11, "15:00", "speech", "cleo", "asr-6", 8, completes(8), selector="gpu=a100"),
    Job(11, "15:30", "speech", "cleo", "prepare", 0, completes(2)),
    Job(11, "16:00", "vision", "bob", "resnet-152", 8, completes(14)),
    Job(12, "11:00", "speech", "cleo", "asr-7", 8, ((0, End.EXCEEDS_QUOTA), (24, End.COMPLETES))),
    Job(12, "12:00", "vision", "ada", "sweep", 32, completes(10)),
    Job(14, "12:00", "vision", "bob", "tune", 8, completes(40)),
    Job(14, "18:00", "vision", "ada", "finetune", 16, completes(40)),
    Job(15, "06:30", "speech", "cleo", "asr-8", 8, completes(10)),
    Job(15, "08:00", "vision", "bob", "detector-4", 4, completes(6), selector="gpu=h100"),
)


FOREST: Final = Forest.of(
    [
        Queue("labs"),
        Queue(
            "vision-labs",
            "labs",
            {"nvidia.com/gpu": Quota(16)},
            preemption=Preemption(reclaim=Reclaim.ANY),
        ),
        Queue("speech-labs", "labs", {"nvidia.com/gpu": Quota(8)}),
    ]
)
"""Two teams with a quota each, which may use what the other leaves idle; the queue `default` has no quota."""
UNDECLARED: Final = QueueRules(Forest.undeclared(Defaults(starvation_bound=BOUND)))
"""The queue of the gangs outside of the labs."""


@contextlib.contextmanager
def past_database(server_url: str) -> Iterator[str]:
    """Creates the database, yields its URL, and drops it."""
    name = f"aw_past_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        url = url_of(server_url, name)
        migrate_at(url, END)
        asyncio.run(_live(url))
        yield url
    finally:
        drop_database(server_url, name)


def migrate_at(url: str, now: datetime) -> None:
    """Migrates a database to the newest schema, with views for which it is always `now`.

    The views call Postgres for the time. While they are created, a function of the same name is found first.
    """
    stopped = sql.SQL(
        "CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE RETURN {}::timestamptz"
    )
    with psycopg.connect(url) as connection:
        connection.execute(stopped.format(now.isoformat()))
    migrate.migrate(with_stopped_clock(url))


def with_stopped_clock(url: str) -> str:
    """The URL for sessions that find this function first, as the commands of a page must: a table says how long ago."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20search_path%3Dpublic,pg_catalog"


async def _live(url: str) -> None:
    database = Database(url)
    try:
        leadership = Leadership(database, "leader", lease=timedelta(minutes=10))
        await leadership.acquire()
        await Story(database, leadership).tell()
    finally:
        await database.close()


@dataclass(slots=True)
class Cluster:
    """A cluster: its capacity, and why it takes no gangs now."""

    labels: dict[str, str]
    ledger: CapacityLedger
    seconds_to_create: int
    closed: Closed | None = None

    @property
    def is_reachable(self) -> bool:
        """False while its API server does not answer."""
        return self.closed is None or self.closed.reason != pending_reasons.UNREACHABLE


def make_cluster(nodes: int, gpu: str, seconds_to_create: int) -> Cluster:
    """Nodes of 128 cores, 1 TiB and 8 GPUs each, with a foreign pod on the first."""
    ledger = CapacityLedger(FitMode.NODE)
    each = Resources({"cpu": 128_000, "memory": 2**40, "nvidia.com/gpu": 8})
    for number in range(nodes):
        ledger.set_node(Node(f"node-{number}", each))
    others = Resources({"cpu": 4_000, "memory": 16 * 2**30})
    ledger.set_pod(Pod("monitoring", others, "node-0", PodPhase.RUNNING))
    return Cluster({"gpu": gpu}, ledger, seconds_to_create)


def make_gang(gpus: int) -> Gang:
    """One pod for each GPU; without GPUs, four pods of eight cores."""
    each = {"cpu": 4_000, "memory": 24 * 2**30, "nvidia.com/gpu": 1}
    pods, requests = (gpus, each) if gpus else (4, {"cpu": 8_000, "memory": 32 * 2**30})
    return Gang(Resources(requests) * pods, pods, (PodSet(pods, Resources(requests)),))


Action = Callable[[datetime], Awaitable[None]]


@dataclass
class Story:
    """The dispatcher's own planning and stores with a simulated clock: the next due event sets the time."""

    database: Database
    leadership: Leadership
    clusters: dict[str, Cluster] = field(
        default_factory=lambda: {"east": make_cluster(2, "a100", 4), "west": make_cluster(1, "h100", 9)}
    )

    def __post_init__(self) -> None:
        self._queue = QueueStore(self.database, lambda: self.leadership.lease)
        self._samples = SampleStore(self.database, lambda: self.leadership.lease)
        self._notes = ClusterStore(self.database, lambda: self.leadership.lease)
        self._declarations = QueueDeclarationStore(self.database, lambda: self.leadership.lease)
        self._line, self._planner = PendingQueue(), QueuePlanner()
        self._records: dict[str, Record] = {}
        self._jobs = {job.uid: job for job in JOBS}
        self._due: list[tuple[datetime, int, Action]] = []
        self._order = count()
        self._last: list[CapacitySample] = []

    async def tell(self) -> None:
        """Simulates up to the end, with the leader's housekeeping."""
        await self._queue.ensure_partitions(FIRST_DAY)
        self._script()
        while self._due and self._due[0][0] <= END:
            now, _, action = heapq.heappop(self._due)
            await action(now)
            await self._cycle(now)
        part = await self._queue.next_deleted(END - timedelta(days=1), BEGINNING, 500)
        if part is not None:
            await self._queue.move_deleted(part.uids)

    def _script(self) -> None:
        for name in self.clusters:
            self._at(FIRST_DAY, partial(self._notes.recognise_cluster, name, f"uid-of-{name}"))
        self._at(clock(6, "00:00"), partial(self._declare, leaf_quotas(FOREST)))
        self._at(clock(8, "00:00"), partial(self._declare, ()))
        for job in JOBS:
            self._at(job.at, partial(self._submit, job))
        self._at(clock(10, "02:14"), self._east_falls_silent)
        self._at(clock(10, "02:14") + GRACE, self._east_is_given_up)
        self._at(clock(10, "08:40"), self._east_answers)
        self._at(clock(11, "14:00"), self._west_is_cordoned)
        self._at(clock(11, "17:30"), self._west_is_opened)
        for number in range((SAMPLED[1] - SAMPLED[0]) // PERIOD):
            self._at(SAMPLED[0] + number * PERIOD, self._sample)
        self._at(END, self._sample)

    def _at(self, when: datetime, action: Action) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    async def _cycle(self, now: datetime) -> None:
        changes = self._line.changes_for(self._planner, now)
        news = incremental.run(self._planner.news_in_steps(changes, UNDECLARED, (), self._snapshots(), now))
        planned = [outcome_of(each) for each in news if not isinstance(each, Drained)]
        await self._decide(sorted(planned, key=lambda each: rank(each.record, now)), now)
        pending = [each for each in self._in_labs() if each.phase is Phase.QUEUED and is_eligible(each, now)]
        if pending:
            facts = QueueFacts(
                FOREST,
                QueuedGangs.of(pending, now),
                [_active(each) for each in self._in_labs() if each.holds_capacity],
                now,
            )
            outcomes = QueueCycle(facts, self._snapshots()).run()
            for group in (each for each in outcomes if isinstance(each, Preempting)):
                await self._preempt(group, now)
            await self._decide([each for each in outcomes if not isinstance(each, Preempting | Drained)], now)

    def _snapshots(self) -> dict[str, ClusterSnapshot]:
        return {
            name: ClusterSnapshot(name, each.ledger.snapshot(), each.labels, each.closed)
            for name, each in self.clusters.items()
        }

    def _in_labs(self) -> list[Record]:
        return [each for each in self._records.values() if each.queue != DEFAULT_QUEUE]

    async def _decide(self, outcomes: Iterable[Outcome], now: datetime) -> None:
        for outcome in outcomes:
            change = change_of(outcome, now)
            if change:
                self._follow(await self._commit(change), now)

    async def _preempt(self, group: Preempting, now: datetime) -> None:
        for record in (await self._queue.commit_together(changes_of(group, now))).accepted:
            self._remember(record)
            if record.phase is Phase.REQUEUEING:
                self._at(now + timedelta(seconds=40), self._if_still(record, self._remove))

    def _follow(self, record: Record, now: datetime) -> None:
        """Schedules the consequences of a decision."""
        if record.phase is Phase.DISPATCHING:
            cluster = self.clusters[_cluster_of(record)]
            self._at(now + timedelta(seconds=cluster.seconds_to_create), self._if_still(record, self._create))
        elif record.blocked_since == now:
            self._at(now + BOUND, _nothing)

    def _if_still(self, record: Record, step: Callable[[Record, datetime], Awaitable[None]]) -> Action:
        """The step; nothing once that attempt is over."""

        async def act(now: datetime) -> None:
            there = self._records[record.uid]
            if there.attempts == record.attempts and there.holds_capacity:
                await step(there, now)

        return act

    async def _declare(self, quotas: Sequence[LeafQuota], now: datetime) -> None:
        await self._declarations.declare(quotas, now)

    async def _submit(self, job: Job, now: datetime) -> None:
        submission = Submission(
            uid=job.uid,
            group=WORKLOAD_GROUP,
            namespace=job.team,
            name=job.name,
            created_at=now,
            spec=b"{}",
            spec_hash="story",
            priority=job.priority,
            requirements=ClusterRequirements(
                parse_selector(job.selector, ""), namespace=job.team, kinds=frozenset({RAY})
            ),
            submitter=Submitter(job.user, (f"team-{job.team}",)),
        )
        change = first_changes.submit(submission, make_gang(job.gpus), now)
        await self._commit(replace(change, after=replace(change.after, queue=job.queue)))

    async def _create(self, record: Record, now: datetime) -> None:
        hours, end = _run_of(self._jobs[record.uid], record)
        if end is End.EXCEEDS_QUOTA:
            await self._exceed_quota(record, now)
            return
        record = await self._commit(run_changes.created(record, (), now))
        started = now + timedelta(seconds=30 + 6 * record.gang.pods)
        self._at(started, self._if_still(record, self._start))
        self._at(started + timedelta(hours=hours), self._if_still(record, self._end))

    async def _exceed_quota(self, record: Record, now: datetime) -> None:
        said = f"RayCluster {record.name}: exceeded quota: gpus, requested: 8, used: 4, limited: 8"
        again = now + timedelta(minutes=5)
        await self._commit(run_changes.postpone_creation(record, (), said, again, now))
        self._at(now + timedelta(seconds=2), self._if_still(record, self._remove))
        self._at(again, _nothing)

    async def _start(self, record: Record, now: datetime) -> None:
        await self._commit(run_changes.mark_running(record, now))

    async def _end(self, record: Record, now: datetime) -> None:
        if not self.clusters[_cluster_of(record)].is_reachable:
            return
        match _run_of(self._jobs[record.uid], record):
            case _, End.FAILS:
                await self._commit(run_changes.fail(record, FAILED_PODS, now))
                self._at(now + timedelta(minutes=3), self._if_still(record, self._remove))
            case _, End.LOSES_PODS:
                again = now + timedelta(minutes=5)
                await self._commit(run_changes.evict(record, LOST_PODS, again, 600, now))
                self._at(now + timedelta(seconds=40), self._if_still(record, self._remove))
                self._at(again, _nothing)
            case _:
                await self._commit(run_changes.complete(record, (), now + timedelta(days=7), now))
        self._at(now + timedelta(days=1), partial(self._delete, record.uid))

    async def _remove(self, record: Record, now: datetime) -> None:
        record = await self._commit(removal.removed(record, now))
        if record.eligible_at:
            self._at(record.eligible_at, _nothing)

    async def _delete(self, uid: str, now: datetime) -> None:
        if self._records[uid].phase in {Phase.COMPLETED, Phase.FAILED}:
            await self._commit(removal.delete(self._records[uid], now))

    async def _east_falls_silent(self, now: datetime) -> None:
        self.clusters["east"].closed = Closed(pending_reasons.UNREACHABLE, SILENT)
        await self._notes.note_unreachable("east", now, SILENT)
        for record in self._active_in("east"):
            await self._commit(
                run_changes.note_health_issue(record, pending_reasons.UNREACHABLE, SILENT, now)
            )

    async def _east_is_given_up(self, now: datetime) -> None:
        said = f"east has not answered for {GRACE / timedelta(seconds=1):g} s"
        for record in self._active_in("east"):
            record = await self._commit(removal.abandon(record, said, now))
            self._at(record.eligible_at or now, _nothing)

    async def _east_answers(self, now: datetime) -> None:
        self.clusters["east"].closed = None
        await self._notes.note_reachable("east", now)

    async def _west_is_cordoned(self, now: datetime) -> None:
        self.clusters["west"].closed = Closed(pending_reasons.CORDONED, "new switches")
        await self._notes.note_state("west", ClusterState(is_cordoned=True, said="new switches"), now)

    async def _west_is_opened(self, now: datetime) -> None:
        self.clusters["west"].closed = None
        await self._notes.note_state("west", ClusterState(), now)

    async def _sample(self, now: datetime) -> None:
        here = {name: reading_of(each.ledger) for name, each in self.clusters.items() if each.is_reachable}
        moment = Moment(self._records.values(), here)
        for _ in moment.count():
            pass
        capacities = moment.capacities(each for each in self._last if each.cluster not in here)
        self._last = capacities
        await self._samples.sample(now, capacities, moment.queues())

    def _active_in(self, cluster: str) -> list[Record]:
        return [
            record
            for record in self._records.values()
            if record.phase in ACTIVE and _cluster_of(record) == cluster
        ]

    async def _commit(self, change: Change) -> Record:
        """Writes a step, and updates queue and capacity."""
        (record,) = (await self._queue.commit([change])).accepted
        self._remember(record)
        return record

    def _remember(self, record: Record) -> None:
        self._records[record.uid] = record
        if record.phase is Phase.QUEUED and record.queue == DEFAULT_QUEUE:
            self._line.put(record)
        else:
            self._line.remove(record.uid)
        for each in self.clusters.values():
            each.ledger.release(record.uid)
        if record.holds_capacity:
            self.clusters[_cluster_of(record)].ledger.reserve(record.uid, record.gang)


async def _nothing(now: datetime) -> None:
    """Changes nothing: only a cycle runs then."""


def _active(record: Record) -> ActiveGang:
    assert record.attempt is not None  # noqa: S101  # it holds capacity
    is_running = record.phase in ACTIVE
    return ActiveGang(
        record,
        record.attempt.cluster,
        record.attempt.decided_at,
        is_leaving=not is_running and record.phase is not Phase.DISPATCHING,
        is_fixed=not is_running,
    )


def _run_of(job: Job, record: Record) -> tuple[float, End]:
    return job.runs[min(record.attempts, len(job.runs)) - 1]


def _cluster_of(record: Record) -> str:
    return record.attempt.cluster if record.attempt else ""


__all__ = ["END", "JOBS", "migrate_at", "past_database", "with_stopped_clock"]
