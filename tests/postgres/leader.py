"""A leader without a cluster: the pure core and the real store, with whatever a test says that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from dispatcher.api.asked import Asked
from dispatcher.controller.roster import Roster
from dispatcher.core import lifecycle
from dispatcher.core.capacity import CapacityLedger, Node
from dispatcher.core.decision import Decision, Observation, Step, decide, retry_pause
from dispatcher.core.health import Sight, keeps_what_ended
from dispatcher.core.placement import Behind, Impossible, Outcome, Placed, Policy, Waiting
from dispatcher.core.record import Change, Condition, ObjectRef, Phase, Record
from dispatcher.core.resources import Resources
from dispatcher.core.terms import Terms
from dispatcher.core.transitions import TRANSITIONS
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.queue import CommitResult, QueueStore

CLUSTERS = {"hub": Resources({"cpu": 2000}), "east": Resources({"cpu": 1000})}
TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}
BOUND = timedelta(minutes=1)


class Luck(StrEnum):
    """What comes of what is done in a cluster."""

    GOOD = "good"
    NOT_YET = "not-yet"
    NOT_NOW = "not-now"
    NEVER = "never"


@dataclass
class Wish:
    """What the user of one AppWrapper wants of it."""

    terms: Terms
    asked: Asked = field(default_factory=Asked)
    wanted: bool = True


class Leader:
    """Commits what the core decides, and remembers it as the dispatcher does; `now` only goes forward."""

    def __init__(self, database: Database, now: datetime) -> None:
        self.now = now
        self.wishes: dict[str, Wish] = {}
        self._leadership = Leadership(database, "leader", lease=timedelta(minutes=10))
        # Two of them: each has a lock of its own, so that races are the database's to decide.
        self.stores = [QueueStore(database, lambda: self._leadership.lease) for _ in range(2)]
        self.roster, self.ledgers = _empty()

    async def restart(self) -> None:
        """Lead anew, with nothing but what the database has."""
        assert await self._leadership.acquire() is not None
        self.roster, self.ledgers = _empty()
        self.roster.load(await self.stores[0].load_live())

    def record(self, number: int) -> Record | None:
        """One of those that there are, whatever the number: of those that go on, if any does; None if there is none."""
        records = list(self.roster.records())
        lively = [record for record in records if record.phase not in {Phase.FAILED, Phase.COMPLETED}]
        return (lively or records)[number % len(lively or records)] if records else None

    def later(self, seconds: float = 1) -> datetime:
        """Let time go by: no two steps happen at the same moment."""
        self.now += timedelta(seconds=seconds)
        return self.now

    async def submit(self, change: Change, wish: Wish) -> None:
        """Take in a newcomer."""
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

    async def cycle(self, policy: Policy) -> None:
        """Decide for everything that is queued."""
        self.later()
        snapshots = {name: ledger.snapshot() for name, ledger in self.ledgers.items()}
        outcomes = self.roster.line.plan(snapshots, policy, BOUND, self.now)
        changes = (_change(outcome, self.now) for outcome in outcomes)
        await self.commit(change for change in changes if change is not None)

    async def look(self, uid: str, sight: Sight, luck: Luck, times: int = 1) -> None:
        """Do for one AppWrapper what is due, and what is due then."""
        for _ in range(times):
            record = self.roster.get(uid)
            if record is not None:
                await self._look(record, sight, luck)

    async def look_at_all(self, sight: Sight) -> None:
        """Do for each what is due, and what is due then."""
        for uid in self.roster.uids():
            await self.look(uid, sight, Luck.GOOD, times=2)

    async def _look(self, record: Record, sight: Sight, luck: Luck) -> None:
        wish = self.wishes[record.uid]
        seen = Observation(record, wish.wanted, self.later(), wish.asked, wish.terms, sight)
        change = self._act(record, wish, decide(seen), luck)
        if change is not None:
            await self.commit([change])

    def _remember(self, changes: Iterable[Change], results: Iterable[CommitResult]) -> None:
        for change in changes:
            check(change, self.now)
        for result in results:
            for record in result.accepted:
                self.roster.put(record)

    def _act(self, record: Record, wish: Wish, decision: Decision, luck: Luck) -> Change | None:
        now, terms = self.now, wish.terms
        match decision.step:
            case Step.REST | Step.ADMIT:
                return None
            case Step.FORGET:
                return lifecycle.delete(record, now)
            case Step.REPRIORITISE:
                return lifecycle.reprioritise(record, wish.asked.priority, wish.asked.priority_slope, now)
            case Step.SUSPEND:
                return lifecycle.suspend(record, now)
            case Step.RESUME:
                return lifecycle.resume(record, now)
            case Step.CREATE:
                return _create(record, terms, luck, now)
            case Step.MARK_RUNNING:
                return lifecycle.mark_running(record, now)
            case Step.NOTE_TROUBLE:
                return lifecycle.fall_ill(record, decision.reason, decision.message, now)
            case Step.NOTE_RECOVERY:
                return lifecycle.recover(record, now)
            case Step.NOTE_PROGRESS:
                return lifecycle.complete_some(record, decision.done, now)
            case Step.REQUEUE:
                eligible_at, seconds = now + terms.pause(decision.reason), terms.wait(record.requeuings + 1)
                return lifecycle.preempt(
                    record, decision.reason, decision.message, eligible_at, int(seconds.total_seconds()), now
                )
            case Step.FAIL:
                return lifecycle.fail(record, decision.reason, decision.message, now)
            case Step.COMPLETE | Step.REMOVE | Step.CONFIRM_GONE | Step.EXPIRE:
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


def _empty() -> tuple[Roster, dict[str, CapacityLedger]]:
    ledgers = {name: CapacityLedger() for name in CLUSTERS}
    for name, allocatable in CLUSTERS.items():
        ledgers[name].set_node(Node(f"node-of-{name}", allocatable))
    return Roster(ledgers), ledgers


def _change(outcome: Outcome, now: datetime) -> Change | None:
    match outcome:
        case Placed(record, cluster):
            return lifecycle.dispatch(record, cluster, now)
        case Waiting(record, pending, is_head):
            return lifecycle.block(record, pending, now, is_head=is_head)
        case Impossible(record, pending):
            return lifecycle.block(record, pending, now)
        case Behind(record, pending):
            return lifecycle.line_up(record, pending, now)


def _create(record: Record, terms: Terms, luck: Luck, now: datetime) -> Change | None:
    objects = tuple(_object(record, item) for item in range(len(terms.items)))
    match luck:
        case Luck.GOOD:
            return lifecycle.created(record, objects, now)
        case Luck.NOT_NOW:
            later = now + retry_pause(record.attempts)
            return lifecycle.postpone_creation(record, objects[:1], "exceeded quota", later, now)
        case Luck.NEVER:
            return lifecycle.refuse_creation(record, objects[:1], "it is invalid", now)
        case Luck.NOT_YET:
            return None


def _object(record: Record, item: int) -> ObjectRef:
    uid = f"{record.uid}-{record.attempts}-{item}"
    return ObjectRef(item, "batch/v1", "Job", record.namespace, f"{record.name}-{item}", uid)


def _end(record: Record, terms: Terms, decision: Decision, now: datetime) -> Change:
    match decision.step:
        case Step.COMPLETE:
            return lifecycle.complete(record, decision.done, now + terms.kept_completed, now)
        case Step.REMOVE:
            kept_until = now + terms.kept_failed if keeps_what_ended(record) else None
            return lifecycle.removed(record, now, kept_until)
        case Step.EXPIRE:
            return lifecycle.expire(record, now)
        case _:
            return lifecycle.release(record, now)
