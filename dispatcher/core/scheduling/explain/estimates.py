"""When pending gangs start, as far as that follows from what running and pending gangs state about themselves.

The estimate plays the scheduling cycles of the future. The clock moves from one known end to the next. At each, the
gangs that end leave the world, and cycles are planned until none places a gang: with the order, the fit, the quotas and
the backfill reservations of every other cycle. A gang that a cycle places starts then, and holds its capacity up to its
own end. So no two estimates need the same capacity at one time, and none ignores a gang ahead.

The end of a gang is stated by its `dispatchDuration`: its expected end, or its limit if no expected end is stated or it
is over; the earlier one if both are ahead. A gang without either never ends here, and neither does one whose objects
are being removed, because that may take any time. What still waits after the last known end has an unknown start.

An estimate assumes that the durations are right, that no gang arrives, fails or is changed, and that no cluster
changes. It ends at the first preemption or drain: the removed gangs are queued again and change the order. With a queue
that is ordered by recent use nothing is estimated, because use grows until then. Priorities that grow with age are
compared at each known end only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.pending_reasons import ENDS_WITH_OTHERS, LACKS_QUOTA
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Order
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome
from dispatcher.core.scheduling.cycle.outcomes import NotEvaluated, Outcome, Placed, Preempting, Waiting
from dispatcher.core.scheduling.cycle.queue_planner import next_change
from dispatcher.core.scheduling.explain.leader_snapshot import running_gang
from dispatcher.core.scheduling.explain.trials import size_of
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running, State
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.fit.estimated_ends import stated_end

MOST_ESTIMATED: Final = 20
"""The last position in a queue with an estimate."""
MOST_WORK: Final = 100_000
"""Bounds the cycles of one estimate, in nodes (with queues, as `size_of`): two to five seconds where it is reached."""
FARTHEST: Final = timedelta(days=365_000)
"""The longest time that is played. A few gangs of the longest `dispatchDuration`, 68 years, fill the calendar."""


class Why(StrEnum):
    """Why a start is unknown."""

    NO_KNOWN_END = "NoKnownEnd"
    """Gangs that hold what it needs have no known end."""
    BEHIND_HEAD = "BehindHead"
    """Its queue stops at a gang whose start is unknown."""
    TOO_LARGE = "TooLarge"
    """It would not start if nothing else ran."""
    IN_NO_QUEUE = "InNoQueue"
    """Its queue does not take it, whatever runs."""
    STILL_WAITS = "StillWaits"
    """It waits for something other than the ends of gangs."""
    PREEMPTION = "Preemption"
    """Gangs are preempted before it starts."""
    DRAIN = "Drain"
    """A queue is drained before it starts."""
    APPROVALS = "Approvals"
    """It lacks approvals."""
    RECENT_USE = "RecentUse"
    """A queue orders by recent use."""
    TOO_FAR = "TooFar"
    """More cycles come before it than an estimate plays."""


class UnknownStart(Struct, frozen=True):
    """Why the start of a gang is unknown.

    `gangs` are the uids of the gangs without a known end, those that hold most of `resource` first, or of the head at
    which its queue stops. `reason` is its pending reason after all known ends.
    """

    why: Why
    reason: str = ""
    resource: str = ""
    gangs: tuple[str, ...] = ()


Estimate = datetime | UnknownStart


class Estimates(Struct, frozen=True):
    """The estimate of each gang by uid. Without any other change they hold before `until`, or always if it is None.

    `failures` are the exceptions for which a cycle refused a class.
    """

    starts: Mapping[str, Estimate] = field(default_factory=dict)
    until: datetime | None = None
    failures: Sequence[Failure] = ()


def estimated_starts(
    world: World, records: Mapping[str, Record], uids: Collection[str], most_work: int = MOST_WORK
) -> Estimates:
    """The estimated starts of the gangs `uids`; `records` has every running gang of the world by its name.

    A gang that the next cycle dispatches starts at `world.now`. A gang that is not pending has no estimate, and nothing
    is played for it. At most `most_work` is spent.
    """
    lacking = {each.uid for each in world.pending if each.awaits_approval}.intersection(uids)
    uids = {each.uid for each in world.pending if each.uid not in lacking}.intersection(uids)
    unknown: dict[str, Estimate] = dict.fromkeys(lacking, UnknownStart(Why.APPROVALS))
    if any(each.order is Order.USAGE for each in world.queues or ()):
        return Estimates({**unknown, **dict.fromkeys(uids, UnknownStart(Why.RECENT_USE))})
    future = _Future(world, records)
    until = future.next_event()
    future.play(uids, most_work)
    starts = {**unknown, **{uid: future.estimate(uid) for uid in uids}}
    return Estimates(starts, until, future.failures)


class _Future:
    """The world as it becomes while known ends pass."""

    def __init__(self, world: World, records: Mapping[str, Record]) -> None:
        self._world = world
        self._forest = world.forest
        self._known = KnownSnapshots()
        self._holders = {each.name: records[each.name] for each in world.running}
        self._ends = {uid: end for uid, each in self._holders.items() if (end := stated_end(each, world.now))}
        self._starts: dict[str, datetime] = {}
        self._last: dict[str, Outcome] = {}
        self._stopped: Why | None = None
        self._accepting: dict[ClusterRequirements, frozenset[str]] = {}
        self._found_endless: dict[tuple[str, frozenset[str], str], tuple[str, ...]] = {}
        self._work = 0
        bounds = Bounds(world.reservation_bound, world.starvation_bound)
        # A method of its own would keep it alive where no cycles of references are collected.
        me: _Future = weakref.proxy(self)
        self._backfills = Backfills(
            Backfill(
                bounds, Running(lambda cluster: me._in_cluster(cluster)), State(world.reservations or {})
            ),
            Backfill(bounds, state=world.quota.state),
        )

    @property
    def failures(self) -> Sequence[Failure]:
        """The exceptions for which a cycle refused a class, or took a gang for one without an end."""
        self._known.note(self._backfills.room.running.take_failures())
        return tuple(self._known.failures.values())

    def play(self, uids: Collection[str], most_work: int) -> None:
        """Plan cycles until all these gangs have started, no event is left, or the work is done."""
        waiting, last = set(uids), self._world.now + FARTHEST
        while waiting:
            if self._work >= most_work:
                self._stopped = Why.TOO_FAR
                return
            placed = self._plan()
            waiting -= self._starts.keys()
            if self._stopped:
                return
            if placed and self._may_free:
                continue
            event = self.next_event()
            if event is None:
                return
            if event > last:
                self._stopped = Why.TOO_FAR
                return
            self._move_to(event)

    @property
    def _may_free(self) -> bool:
        """True if a cycle that places gangs may also free capacity: a starved gang that is placed keeps none any more.

        Otherwise a second cycle at the same time would place nothing.
        """
        return self._world.has_queues or bool(self._backfills.room.reservations)

    def next_event(self) -> datetime | None:
        """The next time at which a cycle may decide otherwise; None if waiting changes nothing any more."""
        now = self._world.now
        event = min((each for each in self._events() if each > now), default=None)
        if event is None:
            return None
        # The end of a reservation alone promises nothing: gangs without a known end may have ended by then.
        ends = self._backfills.next_change(now)
        return event if ends is None else min(event, ends)

    def estimate(self, uid: str) -> Estimate:
        """The estimated start of a pending gang."""
        if uid in self._starts:
            return self._starts[uid]
        if self._stopped:
            return UnknownStart(self._stopped)
        outcome = self._last.get(uid)
        match outcome:
            case None | Placed():
                return UnknownStart(Why.STILL_WAITS)
            case NotEvaluated(pending=pending):
                return UnknownStart(Why.BEHIND_HEAD, pending.reason, gangs=self._head_of(pending.queue))
        pending = outcome.pending
        if not pending.has_position:
            return UnknownStart(Why.IN_NO_QUEUE if pending.is_in_no_queue else Why.TOO_LARGE, pending.reason)
        gangs = self._endless(outcome) if pending.reason in ENDS_WITH_OTHERS else ()
        why = Why.NO_KNOWN_END if gangs else Why.STILL_WAITS
        return UnknownStart(why, pending.reason, pending.resource, gangs)

    # --- events ------------------------------------------------------------------------------------------------

    def _events(self) -> Iterator[datetime]:
        """The times after which a cycle may decide otherwise; some may have passed."""
        yield from self._ends.values()
        yield from (each.eligible_at for each in self._world.pending if each.eligible_at is not None)
        change = next_change(self._world.queue_facts())
        yield from () if change is None else (change,)

    def _move_to(self, event: datetime) -> None:
        over = {uid for uid, end in self._ends.items() if end <= event}
        for uid in over:
            del self._ends[uid], self._holders[uid]
        self._world = replace(self._world.without_gangs(over), now=event)

    # --- one cycle ---------------------------------------------------------------------------------------------

    def _plan(self) -> bool:
        """Plans a cycle, and moves the world behind it; true if it places a gang."""
        self._work += _cost(self._world)
        _, outcomes = self._world.plan_queues(self._known, backfills=self._backfills)
        removal = next((each for each in outcomes if isinstance(each, Drained | Preempting)), None)
        if removal is not None:
            self._stopped = Why.DRAIN if isinstance(removal, Drained) else Why.PREEMPTION
        placed = list(self._before_removal(outcomes))
        self._last = {each.record.uid: each for each in outcomes if not isinstance(each, Drained)}
        self._note_heads()
        self._dispatch(placed)
        return bool(placed)

    def _before_removal(self, outcomes: Iterable[QueueOutcome]) -> Iterator[Placed]:
        """The gangs that this cycle places, up to its first preemption or drain."""
        for each in outcomes:
            if isinstance(each, Drained | Preempting):
                return
            if isinstance(each, Placed):
                yield each

    def _in_cluster(self, cluster: str) -> list[Record]:
        """The gangs that hold capacity of a cluster."""
        return [self._holders[each.name] for each in self._world.running if each.cluster == cluster]

    def _note_heads(self) -> None:
        """Begins the starvation bound of each gang that is at the head for the first time."""
        heads = {
            uid
            for uid, each in self._last.items()
            if isinstance(each, Waiting | Preempting) and each.is_head and each.record.blocked_since is None
        }
        if heads:
            pending = tuple(
                replace(each, blocked_since=self._world.now) if each.uid in heads else each
                for each in self._world.pending
            )
            self._world = replace(self._world, pending=pending)

    def _dispatch(self, placed: Collection[Placed]) -> None:
        now, unreachable = self._world.now, None if self._world.queues is None else ()
        running = []
        for each in placed:
            asked = each.assignment.provisioning
            attempt = Attempt(
                each.record.attempts + 1,
                each.cluster,
                now,
                assignment=each.assignment,
                provisioning=None if asked is None else Provisioning(asked),
            )
            record = replace(each.record, phase=Phase.RUNNING, attempt=attempt, is_preempting=False)
            self._starts[record.uid] = now
            self._holders[record.uid] = record
            end = stated_end(record, now)
            if end is not None:
                self._ends[record.uid] = end
            running.append(running_gang(record, attempt, (), unreachable))
        rest = self._world.without_pending({each.record.uid for each in placed})
        self._world = replace(rest, running=(*rest.running, *running))

    # --- why a start is unknown ----------------------------------------------------------------------------------

    def _head_of(self, queue: str) -> tuple[str, ...]:
        """The gang at which a queue stops; without queues, the name is empty."""
        heads = (each.record for each in self._last.values() if isinstance(each, Waiting) and each.is_head)
        return tuple(head.uid for head in heads if not queue or queue in head.leaves)[:1]

    def _endless(self, outcome: Outcome) -> tuple[str, ...]:
        """The gangs without a known end that hold the resource which a gang lacks: the largest first, then by name."""
        assert not isinstance(outcome, Placed)  # noqa: S101  # a placed gang lacks nothing
        record, pending = outcome.record, outcome.pending
        if pending.reason in LACKS_QUOTA:
            roots = frozenset(self._roots(record))
            return self._held_by_endless(
                ("trees", roots, pending.resource),
                lambda each: not roots.isdisjoint(self._roots(self._holders[each.name])),
                lambda each: self._holders[each.name].quota_charge,
            )
        requirements = record.requirements
        if requirements not in self._accepting:
            clusters = (each.name for each in self._world.clusters if self._world.accepts(each, record))
            self._accepting[requirements] = frozenset(clusters)
        accepting = self._accepting[requirements]
        return self._held_by_endless(
            ("clusters", accepting, pending.resource),
            lambda each: each.cluster in accepting and not each.awaits_capacity,
            lambda each: each.held,
        )

    def _held_by_endless(
        self,
        key: tuple[str, frozenset[str], str],
        is_there: Callable[[RunningGang], bool],
        held_by: Callable[[RunningGang], Resources],
    ) -> tuple[str, ...]:
        """The gangs without a known end that hold a resource there: those of a key, which ends in the resource.

        They are found once for all pending gangs with the same key, because there may be thousands of both.
        """
        resource = key[-1]
        if key not in self._found_endless:
            endless = (each for each in self._world.running if each.name not in self._ends and is_there(each))
            amount = {each.name: held_by(each).get(resource, 0) for each in endless}
            holding = [uid for uid in amount if amount[uid] or not resource]
            ranked = sorted(holding, key=lambda uid: (-amount[uid], self._holders[uid].key, uid))
            self._found_endless[key] = tuple(ranked)
        return self._found_endless[key]

    def _roots(self, record: Record) -> set[str]:
        """The roots of the trees in which a gang is charged."""
        return {each.root for each in self._forest.places_of(record.leaves)}


def _cost(world: World) -> int:
    """The cost of a cycle: without queues a pending gang costs less than a node, because a class is refused once.

    Running gangs are compared with those of the cycle before, one by one. `_CYCLE` is the cost of any cycle, so that
    small worlds are bounded, too.
    """
    held = _CYCLE + len(world.running) // 4
    if world.has_queues:
        return held + size_of(world)
    return held + sum(len(each.nodes) for each in world.clusters) + len(world.pending) // 4


_CYCLE: Final = 40
