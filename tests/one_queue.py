"""The decisions of a hub without declared queues: of one cycle from scratch, and of a queue with its planner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, QueueingStrategy
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle, QueueFacts, QueueNews
from dispatcher.core.scheduling.cycle.news import outcome_of
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Outcome, Placed
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.search_budget import SearchBudget
from dispatcher.core.scheduling.queued.gang_class import key_of
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs

BOUND = timedelta(minutes=10)


def plan(
    queue: Iterable[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    starved: Collection[str] = (),
    reservations: Mapping[str, Reservation] | None = None,
    now: datetime = SOME_TIME,
    access: Access = Access.SELECTED,
) -> list[Outcome]:
    """One outcome for each record of `queue`, which is in order; `starved` are the uids past the starvation bound.

    Without `reservations`, new ones begin. The demand of placed gangs is taken from the snapshots. The outcomes are in
    the order of the records, and so are the dispatches, those of starved gangs first: fails if they are not.
    """
    records = {each.uid: each for each in queue}
    in_turn = [_in_turn(each, number, now, starved) for number, each in enumerate(records.values())]
    outcomes = cycle_over(in_turn, snapshots, rules(policy, BOUND, access), now, reservations=reservations)
    numbers = {uid: number for number, uid in enumerate(records)}
    first = starved if policy is QueueingStrategy.BEST_EFFORT_FIFO else ()
    placed = [each.record.uid for each in outcomes if isinstance(each, Placed)]
    assert placed == sorted(placed, key=lambda uid: (uid not in first, numbers[uid]))
    outcomes.sort(key=lambda each: numbers[each.record.uid])
    return [replace(each, record=records[each.record.uid]) for each in outcomes]


def _in_turn(record: Record, number: int, now: datetime, starved: Collection[str]) -> Record:
    """The record with such an age and priority that it has this number in the queue."""
    since = min(record.blocked_since or now, now - BOUND) if record.uid in starved else None
    return replace(
        record,
        priority=0,
        priority_slope=0.0,
        created_at=now,
        aged_from=None,
        enqueue_seq=number,
        blocked_since=since,
    )


def rules(
    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    bound: timedelta = BOUND,
    access: Access = Access.SELECTED,
) -> QueueRules:
    """The queues of a hub that declares none."""
    return QueueRules(Forest.undeclared(Defaults(policy, bound, access=access)))


def cycle_over(
    records: Iterable[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    queues: QueueRules,
    now: datetime,
    *,
    backfills: Backfills | None = None,
    reservations: Mapping[str, Reservation] | None = None,
) -> list[Outcome]:
    """The outcomes of one cycle from scratch, in the order of the decisions."""
    queued = QueuedGangs.of(records, now, queues.forest)
    facts = QueueFacts(queues.forest, queued, (), now, reservations=reservations)
    return outcomes_in(QueueCycle(facts, snapshots, backfills=backfills).run())


def outcomes_in(news: Iterable[QueueNews]) -> list[Outcome]:
    """The outcomes with their messages; no queue is drained."""
    return [outcome_of(each) for each in news if not isinstance(each, Drained)]


class Cycles:
    """The cycles over the queued records of such a hub."""

    def __init__(
        self,
        queue: PendingQueue,
        backfills: Backfills | None = None,
        budget: SearchBudget | None = None,
        access: Access = Access.SELECTED,
    ) -> None:
        self.planner = QueuePlanner(backfills, budget)
        self._queue = queue
        self._access = access
        self._rules = rules(access=access)

    def plan(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        policy: QueueingStrategy,
        bound: timedelta,
        now: datetime,
    ) -> list[Outcome]:
        """The outcomes of a cycle that change a record, in queue order."""
        defaults = Defaults(policy, bound, access=self._access)
        if self._rules.forest.defaults != defaults:
            self._rules = QueueRules(Forest.undeclared(defaults))
        changes = self._queue.changes_for(self.planner, now)
        found = outcomes_in(run(self.planner.news_in_steps(changes, self._rules, (), snapshots, now)))
        return sorted(found, key=lambda each: key_of(each.record, now))


class OneQueue(PendingQueue):
    """The queued records of such a hub, with the cycles over them."""

    def __init__(
        self,
        backfill: Backfill | None = None,
        budget: SearchBudget | None = None,
        access: Access = Access.SELECTED,
    ) -> None:
        super().__init__()
        cycles = Cycles(self, Backfills(backfill or Backfill()), budget, access)
        self.planner, self.plan = cycles.planner, cycles.plan


def starved(records: Iterable[Record], now: datetime, bound: timedelta) -> frozenset[str]:
    """The uids of the gangs that have been blocked since they were at the head, for `bound` or longer."""
    return frozenset(
        each.uid for each in records if each.blocked_since is not None and now - each.blocked_since >= bound
    )
