"""Random lives through the real path: every step that the lifecycle has, in any order, committed by the real store.

Time is the walk's own and long gone by: hours and days, in microseconds, several AppWrappers at the same moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Final

from msgspec.structs import replace

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import KeptObjects, Submission
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import ACTIVE, Change, Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.store.state.queue import QueueStore
from tests.postgres.history.facts import Life, note

Step = Callable[[Record, Random, datetime], Change | None]

CLUSTERS: Final = ("east", "hub", "west")
TICKS: Final = 260
LIVES: Final = 80
REASONS: Final = (
    pending_reasons.INSUFFICIENT,
    pending_reasons.RESERVED,
    pending_reasons.NOT_EVALUATED,
    pending_reasons.NOT_SELECTED,
    pending_reasons.CORDONED,
    "InsufficientQuota",
    "QueueStopped",
    "AwaitingRelease",
)


@dataclass
class Walk:
    """So far, and from `now` on."""

    queue: QueueStore
    chance: Random
    now: datetime
    lives: dict[str, Life] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    async def go(self) -> dict[str, Life]:
        """Walk to the end; what became of each, by uid."""
        for _ in range(TICKS):
            self.now += timedelta(microseconds=int(10 ** self.chance.uniform(3, 9.8)))
            changes = [
                change for uid in self._some() if (change := self._step(self.records[uid])) is not None
            ]
            if len(self.lives) < LIVES and self.chance.random() < 0.6:
                changes.append(arrival(self.chance, self.now))
            await self._commit(changes)
        return self.lives

    def _some(self) -> list[str]:
        return self.chance.sample(sorted(self.records), min(len(self.records), self.chance.randint(1, 9)))

    def _step(self, record: Record) -> Change | None:
        possible = STEPS[record.phase]
        if record.phase in ACTIVE and self.chance.random() < 0.2:
            return self._take(record)
        return self.chance.choice(possible)(record, self.chance, self.now) if possible else None

    def _take(self, record: Record) -> Change:
        """Preempted for another one, or for one that history does not have any more, or evicted with its queue."""
        others = sorted(self.records.keys() - {record.uid})
        preemptor = self.chance.choice([*others, *["forgotten", "", ""] * 9])
        if not preemptor:
            return run_changes.evict(
                record, EvictionReason("QueueStopped", "it is drained"), self.now, 60, self.now
            )
        reason = self.chance.choice(list(Reason))
        return run_changes.preempt(record, reason, "preempted for another", self.now, preemptor)

    async def _commit(self, changes: list[Change]) -> None:
        result = await self.queue.commit(changes)
        assert len(result.accepted) == len(changes)
        for change in changes:
            note(self.lives, change)
        self.records |= {record.uid: record for record in result.accepted}


def arrival(chance: Random, now: datetime) -> Change:
    """A new AppWrapper by any first step; it may have been submitted long ago, or by a clock that is ahead."""
    uid = str(uuid.UUID(int=chance.getrandbits(128)))
    before = timedelta(seconds=chance.choice([-1, 0, 1, 60, 7200]))
    submission = Submission(
        uid=uid,
        group="workload.codeflare.dev",
        namespace=chance.choice(["red", "blue"]),
        name=f"aw-{uid[:4]}",
        created_at=(now - before).replace(microsecond=0),
        spec=b"{}",
        spec_hash="a-hash",
        priority=chance.choice([0, 0, 0, 5]),
        priority_slope=chance.choice([0.0, 0.0, 0.01]),
        suspended=chance.random() < 0.1,
        requirements=ClusterRequirements(kinds=frozenset(chance.sample(KINDS, chance.randint(0, 3)))),
    )
    change = _arrive(submission, make_gang(chance), chance, now)
    user = chance.choice(["", "ann", "bob"])
    after = replace(
        change.after, user=user, groups=(user,) if user else (), queue=chance.choice(["q", "q", "r"])
    )
    return replace(change, after=after)


KINDS: Final = [("ray.io/v1", "RayCluster"), ("v1", "Service"), ("v1beta1", "Service")]


def make_gang(chance: Random) -> Gang:
    """With and without GPUs, of each class of numbers."""
    demand = {"cpu": chance.choice([500, 1500, 8000]), "memory": chance.choice([2**29, 2**34])}
    demand["nvidia.com/gpu"] = chance.choice([0, 0, 1, 2, 4, 8, 32])
    demand["gpu.intel.com/i915"] = chance.choice([0, 0, 0, 1])
    demand["nvidia.com/mig-1g.5gb"] = 1
    return Gang(Resources({name: amount for name, amount in demand.items() if amount}), chance.randint(1, 9))


def _arrive(submission: Submission, gang: Gang, chance: Random, now: datetime) -> Change:
    kept = KeptObjects("east", now)
    match chance.randint(0, 15):
        case 0:
            return first_changes.reject(submission, "it is no AppWrapper", now)
        case 1:
            return first_changes.adopt(submission, gang, "hub", chance.choice([1, 3]), now)
        case 2:
            return first_changes.recall_completed(submission, gang, now, chance.choice([None, kept]))
        case 3:
            return first_changes.recall_failed(
                submission, gang, "TooLong", "too long", now, chance.choice([None, kept])
            )
        case _:
            return first_changes.submit(submission, gang, now)


def _pending(chance: Random) -> Pending:
    told = [Rejection(name, chance.choice(REASONS), f"{name} says no", "cpu") for name in CLUSTERS]
    nearest = chance.choice(told)
    clusters = tuple(told) if chance.random() < 0.5 else ()
    return Pending(
        nearest.reason, f"no {chance.random()}", chance.choice(["", "cpu"]), nearest.cluster, clusters
    )


def _block(record: Record, chance: Random, now: datetime) -> Change | None:
    pending = _pending(chance)
    if record.pending is not None and chance.random() < 0.4:
        pending = replace(record.pending, message=pending.message)
    return queue_changes.block(record, pending, now, is_head=chance.random() < 0.5)


def _begin_preempting(record: Record, chance: Random, now: datetime) -> Change:
    pending = Pending(
        "AwaitingRelease",
        "fits once another is gone",
        cluster=chance.choice(CLUSTERS),
        queue=record.queue,
        preempting=("red/other",),
    )
    return queue_changes.begin_preempting(record, pending, now, is_head=chance.random() < 0.5)


def _line_up(record: Record, chance: Random, now: datetime) -> Change | None:
    return queue_changes.note_not_evaluated(
        record, Pending(pending_reasons.NOT_EVALUATED, "behind another"), now
    )


def _reprioritise(record: Record, chance: Random, now: datetime) -> Change:
    return queue_changes.reprioritise(record, chance.choice([0, 3, 9]), chance.choice([0.0, 0.001]), now)


def _redirect_or_warn(record: Record, chance: Random, now: datetime) -> Change | None:
    drawn = chance.random()
    if drawn < 0.5:
        return queue_changes.warn(record, [f"Job a: unknown field {drawn}"], now)
    return queue_changes.redirect(record, record.requirements.without("west", str(drawn)), now)


def _move(record: Record, chance: Random, now: datetime) -> Change:
    queues = chance.choice([("default",), ("team",), ("team", "tree/gold"), ("team", "tree/gold", "x/y")])
    return queue_changes.move(record, queues, now)


def _dispatch(record: Record, chance: Random, now: datetime) -> Change:
    return queue_changes.dispatch(record, chance.choice(CLUSTERS), now)


def _take_over(record: Record, chance: Random, now: datetime) -> Change:
    return first_changes.take_over(
        record, chance.choice(CLUSTERS), record.attempts + chance.choice([1, 2]), now
    )


def _evict(record: Record, chance: Random, now: datetime) -> Change:
    reason = chance.choice(["MinPodsNotRunning", "ClusterDraining"])
    later = now + timedelta(hours=chance.choice([0, 1, 9]))
    return run_changes.evict(record, EvictionReason(reason, "too few"), later, 60, now)


def _postpone(record: Record, chance: Random, now: datetime) -> Change:
    later = now + timedelta(hours=chance.choice([0, 1, 9]))
    return run_changes.postpone_creation(record, (), "exceeded quota", later, now)


def _ill(record: Record, chance: Random, now: datetime) -> Change:
    return run_changes.note_health_issue(record, "ClusterUnreachable", "no answer", now)


def _grow(record: Record, chance: Random, now: datetime) -> Change:
    bound = {name: int(amount * chance.choice([0, 1, 1.5, 3])) for name, amount in record.gang.demand.items()}
    return run_changes.note_growth(record, Resources(bound) + {"memory": chance.choice([0, 2**35])}, now)


def _simply(step: Callable[[Record, datetime], Change]) -> Step:
    return lambda record, _, now: step(record, now)


_FIND_OVER: Final = _simply(
    lambda record, now: first_changes.end_missed_attempt(record, "nothing is left", now)
)
_RECALL_COMPLETED: Final = _simply(lambda record, now: first_changes.complete_missed(record, now, now))
_RECALL_FAILED: Final = _simply(
    lambda record, now: first_changes.fail_missed(record, "Fail", "bad", None, now)
)
_RECALL: Final = [_RECALL_COMPLETED, _RECALL_FAILED]
_DELETE: Final = _simply(removal.delete)
_SUSPEND: Final = _simply(queue_changes.suspend)
_RESUME: Final = _simply(queue_changes.resume)
_RUNNING: Final = _simply(run_changes.mark_running)
_REMOVED: Final = _simply(removal.removed)
_EXPIRE: Final = _simply(removal.expire)
_RELEASE: Final = _simply(removal.release)
_ABANDON: Final = _simply(lambda record, now: removal.abandon(record, "it is lost", now))
_LOSE: Final = _simply(lambda record, now: removal.lose(record, "it is lost", now))
_CREATED: Final = _simply(lambda record, now: run_changes.created(record, (), now))
_REFUSE: Final = _simply(lambda record, now: run_changes.refuse_creation(record, (), "no", now))
_WITHDRAW: Final = _simply(lambda record, now: run_changes.withdraw(record, "silent", now, now))
_SOME: Final = _simply(lambda record, now: run_changes.complete_some(record, (), now))
_COMPLETE: Final = _simply(lambda record, now: run_changes.complete(record, (), now, now))
_FAIL: Final = _simply(lambda record, now: run_changes.fail(record, EvictionReason("Fail", "bad"), now))

_ENDS: Final = [
    _COMPLETE,
    _COMPLETE,
    *[_evict] * 4,
    _FAIL,
    _FAIL,
    _SUSPEND,
    _DELETE,
    _ABANDON,
    _LOSE,
    _ill,
    _ill,
    _FIND_OVER,
    _RECALL_COMPLETED,
    *[_grow] * 5,
]
STEPS: Final[Mapping[Phase, list[Step]]] = {
    Phase.QUEUED: [
        *[_block] * 4,
        _line_up,
        _begin_preempting,
        _reprioritise,
        _redirect_or_warn,
        _move,
        _SUSPEND,
        *[_dispatch] * 4,
        _DELETE,
        _take_over,
        _RECALL_FAILED,
    ],
    Phase.SUSPENDED: [_RESUME, _RESUME, _DELETE, _reprioritise, _move, _take_over, *_RECALL],
    Phase.DISPATCHING: [
        *[_CREATED] * 8,
        _REFUSE,
        _postpone,
        _postpone,
        _WITHDRAW,
        _SUSPEND,
        _DELETE,
        _ABANDON,
        _LOSE,
    ],
    Phase.DISPATCHED: [*[_RUNNING] * 12, *_ENDS],
    Phase.RUNNING: [_SOME, _SOME, *_ENDS],
    Phase.RUNNING_HOLD_COMPLETION: _ENDS,
    Phase.REQUEUEING: [_REMOVED, _REMOVED, _REMOVED, _DELETE, _ABANDON],
    Phase.SUSPENDING: [_REMOVED, _REMOVED, _DELETE, _ABANDON, _FIND_OVER],
    Phase.FAILING: [_REMOVED, _REMOVED, _DELETE, _LOSE],
    Phase.DELETING: [_RELEASE, _RELEASE, _ABANDON],
    Phase.FAILED: [_EXPIRE, _DELETE],
    Phase.COMPLETED: [_EXPIRE, _DELETE],
    Phase.DELETED: [],
}
"""What may become of one in each phase; what is there twice is chosen twice as often."""
