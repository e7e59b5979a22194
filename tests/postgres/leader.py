"""A leader without a cluster: the pure core and the real store, with whatever a test says that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from msgspec.structs import replace

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.kinds.object_status import End
from dispatcher.core.lifecycle import provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.confirmation import end_of_attempt
from dispatcher.core.lifecycle.decision import decide, finished_items, retry_pause
from dispatcher.core.lifecycle.health import ObservedObjects, keeps_what_ended
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do, ObservedState
from dispatcher.core.lifecycle.transitions import TRANSITIONS, Cause
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pods import Pod, PodCounts, PodPhase
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import ACTIVE, Change, Condition, ObjectRef, Pending, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import CommitResult, QueueStore
from tests.one_queue import Cycles

CLUSTERS = {"hub": Resources({"cpu": 2000}), "east": Resources({"cpu": 1000})}
TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}
BOUND = timedelta(minutes=1)
EACH_POD = Resources({"cpu": 500})


class Luck(StrEnum):
    """What comes of what is done in a cluster."""

    GOOD = "good"
    NOT_YET = "not-yet"
    NOT_NOW = "not-now"
    NEVER = "never"


@dataclass
class Wish:
    """What the user of one AppWrapper wants of it."""

    terms: LifecyclePolicy
    asked: MutableSpec = field(default_factory=MutableSpec)
    wanted: bool = True
    queues: tuple[str, ...] = ()
    awaits: Pending | None = None


@dataclass(frozen=True)
class There:
    """What there is of one AppWrapper in a cluster, whoever knows of it."""

    cluster: str
    pods: tuple[Pod, ...] = ()

    @property
    def taken(self) -> Resources:
        """What its pods take from the nodes."""
        return sum((pod.requests for pod in self.pods if pod.occupies_node), start=NOTHING)


class Leader:
    """Commits what the core decides, and remembers it as the dispatcher does; `now` only goes forward."""

    def __init__(self, database: Database, now: datetime) -> None:
        self.now = now
        self.wishes: dict[str, Wish] = {}
        self.there: dict[str, There] = {}
        self._observed: dict[str, ObservedObjects] = {}
        self._finished: dict[str, tuple[str, frozenset[str]]] = {}
        self._leadership = Leadership(database, "leader", lease=timedelta(minutes=10))
        # Two of them: each has a lock of its own, so that races are the database's to decide.
        self.stores = [QueueStore(database, lambda: self._leadership.lease) for _ in range(2)]
        self.cache, self.ledgers = _empty()

    async def restart(self) -> None:
        """Lead anew, with nothing but what the database has."""
        assert await self._leadership.acquire() is not None
        self.cache, self.ledgers = _empty()
        for uid, there in list(self.there.items()):
            self._put(uid, there)
        self.cache.load(await self.stores[0].load_live())

    def record(self, number: int) -> Record | None:
        """One of those that there are, whatever the number: of those that go on, if any does; None if there is none."""
        # In the order of their arrival: that of their uids would be another one each time.
        records = [record for uid in self.wishes if (record := self.cache.get(uid)) is not None]
        lively = [record for record in records if record.phase not in {Phase.FAILED, Phase.COMPLETED}]
        return (lively or records)[number % len(lively or records)] if records else None

    def later(self, seconds: float = 1) -> datetime:
        """Let time go by: no two steps happen at the same moment."""
        self.now += timedelta(seconds=seconds)
        return self.now

    async def submit(self, change: Change, wish: Wish) -> None:
        """Take in a new AppWrapper."""
        self.wishes[change.after.uid] = wish
        await self.commit([change])

    async def commit(self, changes: Iterable[Change]) -> None:
        """Commit at once what was made of what is remembered: all of it is accepted."""
        changes = list(changes)
        result = await self.stores[0].commit(changes)
        assert [each.uid for each in result.accepted] == [each.after.uid for each in changes]
        self._remember(changes, [result])

    async def race(self, one: Change, other: Change) -> None:
        """Commit two changes of the same record at the same moment: the database accepts one."""
        both = zip(self.stores, (one, other), strict=True)
        results = await asyncio.gather(*(store.commit([change]) for store, change in both))
        assert sorted((len(each.accepted), len(each.stale)) for each in results) == [(0, 1), (1, 0)]
        self._remember(
            [each for each, told in zip((one, other), results, strict=True) if told.accepted], results
        )

    def preemption(self, most: int) -> list[Change]:
        """So many gangs are preempted for one that is queued; empty if no gang runs, or if none is queued."""
        now, known = self.later(), [self.cache.get(uid) for uid in self.wishes]
        preemptor = next((each for each in known if each and each.phase is Phase.QUEUED), None)
        changes: list[Change] = []
        if preemptor is None:
            return changes
        for victim in [each for each in known if each and each.phase in ACTIVE][:most]:
            observed, terms = self._observed.get(victim.uid, ObservedObjects()), self.wishes[victim.uid].terms
            done = finished_items(victim, terms, observed)
            changes.append(
                run_changes.preempt(victim, Reason.FAIR_SHARE, "for another", now, preemptor.uid, done)
            )
            _check_what_is_left(
                changes[-1], ObservedState(victim, wanted=True, now=now, policy=terms, objects=observed)
            )
        if changes:
            pending = Pending(pending_reasons.AWAITING_RELEASE, "fits once others are gone")
            changes.insert(0, queue_changes.begin_preempting(preemptor, pending, now))
        return changes

    async def commit_together(self, changes: Sequence[Change]) -> None:
        """Commit a group at once: all of it is accepted."""
        result = await self.stores[0].commit_together(changes)
        assert [each.uid for each in result.accepted] == [each.after.uid for each in changes]
        self._remember(changes, [result])

    async def race_group(self, group: Sequence[Change], other: Change) -> None:
        """Commit a group, and another change of one of its records at the same moment: all of one is accepted."""
        together, alone = await asyncio.gather(
            self.stores[0].commit_together(group), self.stores[1].commit([other])
        )
        assert (len(together.accepted), len(alone.accepted)) in {(len(group), 0), (0, 1)}
        self._remember(group if together.accepted else [other], [together, alone])

    async def cycle(self, policy: QueueingStrategy) -> None:
        """Decide for everything that is queued."""
        self.later()
        snapshots = {name: ClusterSnapshot(name, ledger.snapshot()) for name, ledger in self.ledgers.items()}
        self.cache.gather_running(snapshots)
        outcomes = Cycles(self.cache.pending_queue, self.cache.backfills).plan(
            snapshots, policy, BOUND, self.now
        )
        changes = (change_of(outcome, self.now) for outcome in outcomes)
        await self.commit(change for change in changes if change is not None)

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """Let the pods of others take all that there is, for a while."""
        for name, allocatable in CLUSTERS.items():
            self.ledgers[name].set_pod(Pod("foreign", allocatable, f"node-of-{name}", PodPhase.RUNNING))
        yield
        for name in CLUSTERS:
            self.ledgers[name].remove_pod("foreign")

    async def look(self, uid: str, observed: ObservedObjects | None, luck: Luck, times: int = 1) -> None:
        """Do for one AppWrapper what is due, and what is due then; without a new one, it looks as it did."""
        observed = self._observed.get(uid, ObservedObjects()) if observed is None else observed
        for _ in range(times):
            record = self.cache.get(uid)
            if record is not None:
                await self._look(record, observed, luck)

    async def look_at_all(self, observed: ObservedObjects | None, luck: Luck = Luck.GOOD) -> None:
        """Do for each what is due, and what is due then."""
        for uid in self.wishes:
            await self.look(uid, observed, luck, times=2)

    async def _look(self, record: Record, observed: ObservedObjects, luck: Luck) -> None:
        wish = self.wishes[record.uid]
        self._show(record, observed)
        there = self.there.get(record.uid)
        observed = replace(observed, taken=there.taken if there else NOTHING)
        seen = ObservedState(
            record,
            wish.wanted,
            self.later(),
            wish.asked,
            wish.terms,
            observed,
            queues=wish.queues,
            awaits=wish.awaits,
        )
        change = self._act(record, wish, decide(seen), luck)
        if change is not None:
            _check_what_is_left(change, seen)
            await self.commit([change])

    def _show(self, record: Record, observed: ObservedObjects) -> None:
        """Let its cluster be as it is seen."""
        self._observed[record.uid] = observed
        if record.phase in ACTIVE and record.attempt is not None:
            self._put(record.uid, There(record.attempt.cluster, _pods(record, observed.pods)))
        elif not record.holds_capacity:
            self._put(record.uid, None)

    def _put(self, uid: str, there: There | None) -> None:
        known = self.there.pop(uid, None)
        if known is not None:
            for pod in known.pods:
                self.ledgers[known.cluster].remove_pod(pod.uid)
        if there is not None:
            self.there[uid] = there
            for pod in there.pods:
                self.ledgers[there.cluster].set_pod(pod)

    def _remember(self, changes: Iterable[Change], results: Iterable[CommitResult]) -> None:
        for result in results:
            for record in result.accepted:
                self.cache.put(record)
        for change in changes:
            check(change, self.now)
            self._account(change)

    def _account(self, change: Change) -> None:
        """What an attempt finished is there for the next one in its cluster, which makes all else itself."""
        record, attempt = change.after, change.after.attempt
        if attempt is None:
            return
        objects = frozenset(ref.uid for ref in attempt.objects if ref.done)
        match change.events[0].cause:
            case Cause.EVICTED | Cause.PREEMPTED | Cause.SUSPENDED:
                self._finished[record.uid] = attempt.cluster, objects
            case Cause.DISPATCHED:
                cluster, finished = self._finished.get(record.uid, ("", frozenset[str]()))
                assert objects == (finished if attempt.cluster == cluster else set())
                assert len(objects) == len(attempt.objects)
            case Cause.CREATED | Cause.CREATION_POSTPONED | Cause.CREATION_REFUSED:
                cluster, finished = self._finished.get(record.uid, ("", frozenset[str]()))
                assert objects == (finished if attempt.cluster == cluster else set())
            case Cause.REMOVED:
                self._put(record.uid, None)

    def _act(self, record: Record, wish: Wish, decision: Decision, luck: Luck) -> Change | None:
        now, terms = self.now, wish.terms
        if isinstance(decision, Commit):
            return decision.change
        match decision.act:
            case Act.NOOP | Act.TAKE_IN | Act.REMOVE_FINALIZER | Act.ADMIT_PODS | Act.DELETE_PODS:
                return None
            case Act.TAKE_BACK_GROWTH:
                raise AssertionError("no growth of these lives is on trust")
            case Act.DELETE:
                return removal.delete(record, now)
            case Act.FOLLOW_APPROVALS:
                if wish.awaits is None:
                    return queue_changes.approve(record, now)
                return queue_changes.await_approvals(record, wish.awaits, now)
            case Act.CREATE:
                return _create(record, terms, luck, now)
            case Act.REQUEST_CAPACITY:
                return provisioning.note(record, "requested", now, f"request-{record.attempts}")
            case Act.REQUEST_ELSEWHERE:
                return provisioning.fail(record, decision.message, luck is Luck.NOT_NOW, now)
            case Act.NOTE_HEALTH_ISSUE:
                return run_changes.note_health_issue(record, decision.reason, decision.message, now)
            case Act.REQUEUE | Act.FAIL:
                return end_of_attempt(record, decision, terms, "", now)
            case Act.COMPLETE | Act.REMOVE | Act.CONFIRM_GONE | Act.EXPIRE:
                return _end(record, terms, decision, now) if luck is Luck.GOOD else None
            case never:
                assert_never(never)


def check(change: Change, now: datetime) -> None:
    """One step of the table, one version, one event; terminal stays terminal, conditions only move forward."""
    before, after, (event,) = change.before, change.after, change.events
    source = before.phase if before else None
    assert (source, event.cause, after.phase) in TABLE
    assert (event.from_phase, event.to_phase, event.at) == (source, after.phase, now)
    assert after.version == (before.version + 1 if before else 1)
    known = {condition.type: condition for condition in before.conditions} if before else {}
    assert [each.type for each in after.conditions][: len(known)] == list(known)
    for condition in after.conditions:
        _check_moved_forward(known.get(condition.type), condition, now)


def _check_moved_forward(known: Condition | None, condition: Condition, now: datetime) -> None:
    if known is None:
        assert (condition.status, condition.since, condition.updated) == (True, now, now)
        return
    assert known.since <= condition.since <= condition.updated <= now
    assert known.updated <= condition.updated
    assert (known.since == condition.since) is (known.status == condition.status)


def _empty() -> tuple[Cache, dict[str, CapacityLedger]]:
    ledgers = {name: CapacityLedger() for name in CLUSTERS}
    for name, allocatable in CLUSTERS.items():
        ledgers[name].set_node(Node(f"node-of-{name}", allocatable))
    return Cache(ledgers), ledgers


def _create(record: Record, terms: LifecyclePolicy, luck: Luck, now: datetime) -> Change | None:
    finished = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
    objects = tuple(finished.get(item) or _object(record, item) for item in range(len(terms.items)))
    first = tuple(ref for ref in objects if ref.item == 0 or ref.item in finished)
    match luck:
        case Luck.GOOD:
            return run_changes.created(record, objects, now)
        case Luck.NOT_NOW:
            later = now + retry_pause(record.attempts)
            return run_changes.postpone_creation(record, first, "exceeded quota", later, now)
        case Luck.NEVER:
            return run_changes.refuse_creation(record, first, "it is invalid", now)
        case Luck.NOT_YET:
            return None


def _pods(record: Record, counts: PodCounts) -> tuple[Pod, ...]:
    """As many of each phase; those that nothing was found for are on no node."""
    cluster = record.attempt.cluster if record.attempt else ""
    phases = {
        PodPhase.RUNNING: counts.running,
        PodPhase.PENDING: counts.pending,
        PodPhase.SUCCEEDED: counts.succeeded,
        PodPhase.FAILED: counts.failed,
    }
    return tuple(
        Pod(
            f"{record.uid}-{phase}-{index}",
            EACH_POD,
            "" if phase is PodPhase.PENDING else f"node-of-{cluster}",
            phase,
            record.uid,
        )
        for phase, count in phases.items()
        for index in range(count)
    )


def _check_what_is_left(change: Change, seen: ObservedState) -> None:
    """Where it leaves the hub to come back, only what ended well by itself is done; in a member nothing is."""
    before, attempt = change.before, change.after.attempt
    leaves = change.events[0].cause in {Cause.EVICTED, Cause.PREEMPTED, Cause.SUSPENDED}
    if before is None or before.phase not in ACTIVE or attempt is None or not leaves:
        return
    ended = {
        ref.item
        for ref, item, state in zip(attempt.objects, seen.policy.items, seen.objects.states, strict=False)
        if state is not None and state.end is End.SUCCEEDED and item.ends
    }
    assert {ref.item for ref in attempt.objects if ref.done} == (ended if attempt.cluster == "hub" else set())


def _object(record: Record, item: int) -> ObjectRef:
    uid = f"{record.uid}-{record.attempts}-{item}"
    return ObjectRef(item, "batch/v1", "Job", record.namespace, f"{record.name}-{item}", uid)


def _end(record: Record, terms: LifecyclePolicy, decision: Do, now: datetime) -> Change:
    match decision.act:
        case Act.COMPLETE:
            return run_changes.complete(record, decision.done, now + terms.kept_completed, now)
        case Act.REMOVE:
            kept_until = now + terms.kept_failed if keeps_what_ended(record) else None
            return removal.removed(record, now, kept_until)
        case Act.EXPIRE:
            return removal.expire(record, now)
        case _:
            return removal.release(record, now)
