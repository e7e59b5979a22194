"""The hub on virtual time: the leader's memory without a cluster, a database or a clock.

It keeps between cycles what the leader keeps (`controller.scheduling`): the pending queue, a ledger for each cluster,
the planner with its classes and refusals, and the backfill reservations. A cycle is the leader's: the planner decides,
`outcome_changes` makes the changes of records, and each is applied at once, where the leader commits it.

A dispatched gang has its objects at once, and its pods are where the assignment places them. A gang has no growth here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct, field

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.removal import removed
from dispatcher.core.model import incremental
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.queue import StopPolicy
from dispatcher.core.scheduling.capacity.pods_there import FOLLOWS_NONE
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.news import outcome_of
from dispatcher.core.scheduling.cycle.outcome_changes import change_of, changes_of
from dispatcher.core.scheduling.cycle.outcomes import Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.explain.world import FilledCluster, World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, is_unreachable
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, active_gang


class Cycle(Struct):
    """The gangs that one cycle dispatched, and those that it preempted or evicted, as they were before.

    `is_next_due` if the next cycle is to come at once.
    """

    dispatched: list[Record] = field(default_factory=list)
    leaving: list[Record] = field(default_factory=list)
    is_next_due: bool = False


class _Site:
    """One cluster with its ledger; the snapshot is made anew only after a change."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self.cluster = cluster
        self._filled = FilledCluster(world.fit, cluster.name)
        self._filled.snapshot(cluster, world.running_by_cluster()[cluster.name], FOLLOWS_NONE)
        self._of_file = {each.name for each in world.running if each.cluster == cluster.name}
        self._snapshot: ClusterSnapshot | None = None
        self.holders: dict[str, Record] = {}
        """The records that hold capacity, by uid."""

    def snapshot(self) -> ClusterSnapshot:
        """The cluster at this moment."""
        if self._snapshot is None:
            self._snapshot = self.cluster.snapshot(self._filled.ledger.snapshot())
        return self._snapshot

    def forget_snapshot(self) -> None:
        """Make the next snapshot anew: a cycle has taken capacity from the last one."""
        self._snapshot = None

    def reserve(self, record: Record) -> None:
        """A gang holds its places from now on."""
        assert record.attempt is not None  # noqa: S101  # it was dispatched here
        self._filled.ledger.reserve(record.uid, record.gang, record.attempt.assignment)
        self.forget_snapshot()

    def release(self, uid: str) -> None:
        """A gang gives its places back."""
        if uid in self._of_file:
            self._of_file.discard(uid)
            self._filled.remove(uid)
        else:
            self._filled.ledger.release(uid)
        self.forget_snapshot()


class Hub:
    """The records of all gangs that are queued or hold capacity, and the cycles over them.

    The time in successive calls never decreases.
    """

    def __init__(self, world: World) -> None:
        self._sites = {each.name: _Site(each, world) for each in world.clusters}
        self._records: dict[str, Record] = {}
        self._queue = PendingQueue()
        self._forest = world.forest
        places = self._forest.places.values()
        self._has_drains = any(each.stop_policy is StopPolicy.HOLD_AND_DRAIN for each in places)
        rules = QueueRules(self._forest, world.namespaces, world.usage)
        self._rules = rules.selected
        bounds = Bounds(world.reservation_bound, world.starvation_bound)
        running = Running(self._holders)
        self._planner = QueuePlanner(Backfills(Backfill(bounds, running), Backfill(bounds)))
        self._active: Sequence[ActiveGang] = []
        self._are_active_known = True
        self._by_dispatch: dict[str, ActiveGang] = {}
        self._planned_at: datetime | None = None

    @property
    def has_work(self) -> bool:
        """True if a cycle may decide something: a gang is queued, or a queue is drained."""
        return self._has_drains or next(iter(self._queue), None) is not None

    @property
    def is_quiet(self) -> bool:
        """True if the next cycle has no news unless something changes, up to `quiet_until`."""
        return self._planner.is_quiet

    @property
    def quiet_until(self) -> datetime | None:
        """When time alone may bring news; None if it never does."""
        return self._planner.quiet_until

    def next_eligible(self) -> datetime | None:
        """When the next gang that was put off takes part in cycles again."""
        return None if self._planned_at is None else self._queue.next_eligible(self._planned_at)

    def get(self, uid: str) -> Record | None:
        """The record of a gang; None once it has ended."""
        return self._records.get(uid)

    def put(self, record: Record) -> None:
        """Replace the record of a gang, or add it."""
        before = self._records.get(record.uid)
        self._records[record.uid] = record
        if record.phase is Phase.QUEUED:
            self._queue.put(record)
        elif before is not None and before.phase is Phase.QUEUED:
            self._queue.remove(record.uid)
        self._note_holder(before, record)

    def hold(self, record: Record) -> None:
        """Add the record of a gang that ran before the simulation begins: its cluster has charged its capacity."""
        assert record.attempt is not None  # noqa: S101  # it runs
        self._records[record.uid] = record
        self._sites[record.attempt.cluster].holders[record.uid] = record
        self._note_active(record)

    def end(self, uid: str) -> None:
        """End a gang: its cluster gets the capacity back."""
        record = self._records.pop(uid)
        assert record.attempt is not None  # noqa: S101  # it runs
        self._release(record.attempt.cluster, uid)

    def requeue(self, uid: str, now: datetime) -> Record:
        """Queue a gang again that was preempted or evicted, because nothing of it is left in its cluster."""
        after = removed(self._records[uid], now).after
        self.put(after)
        return after

    def cycle(self, now: datetime) -> Cycle:
        """Run one cycle, and apply all its changes. Raises the exception about a gang that a decision raised."""
        changes = self._queue.changes_for(self._planner, now)
        self._planned_at = now
        snapshots = {name: site.snapshot() for name, site in self._sites.items()}
        active = self._active_gangs()
        news = incremental.run(
            self._planner.news_in_steps(changes, self._rules, active, snapshots, now),
        )
        for failure in self._planner.failures:
            raise failure.error
        found = Cycle(is_next_due=self._planner.has_left_out)
        for group in (each for each in news if isinstance(each, Preempting | Drained)):
            self._take_back(group, now, found)
        for outcome in (each for each in news if not isinstance(each, Preempting | Drained)):
            if self._queue.holds(outcome.record):
                change = change_of(outcome_of(outcome), now)
                if change is not None:
                    self._apply(change.after, now, found)
        # As the scheduler: a dispatch and a preemption may let a class go that was refused before in the same cycle.
        found.is_next_due |= self._forest.is_declared and bool(found.dispatched or found.leaving)
        return found

    def _take_back(self, group: Preempting | Drained, now: datetime, found: Cycle) -> None:
        """Apply a preemption or a drain, unless a record of it has changed since the cycle."""
        changes = changes_of(group, now)
        befores = [each.before for each in changes if each.before is not None]
        if any(self._records.get(each.uid) is not each for each in befores):
            found.is_next_due = True
            return
        for change in changes:
            if change.before is not None and change.after.phase is Phase.REQUEUEING:
                found.leaving.append(change.before)
            self.put(change.after)

    def _apply(self, after: Record, now: datetime, found: Cycle) -> None:
        if after.phase is not Phase.DISPATCHING:
            self.put(after)
            return
        assert after.attempt is not None  # noqa: S101  # it was dispatched
        created = run_changes.created(after, after.attempt.objects, now).after
        self.put(created)
        found.dispatched.append(created)

    def _active_gangs(self) -> Sequence[ActiveGang]:
        """The gangs that hold capacity, in the order of their dispatches; the same object as long as none changes.

        Where no queue is declared, no gang gives way.
        """
        if not self._are_active_known:
            found = sorted(self._by_dispatch.values(), key=lambda each: (each.dispatched_at, each.record.uid))
            self._active, self._are_active_known = found, True
        return self._active

    def _note_holder(self, before: Record | None, after: Record) -> None:
        if not after.holds_capacity:
            if before is not None and before.attempt is not None and before.holds_capacity:
                self._release(before.attempt.cluster, before.uid)
            return
        assert after.attempt is not None  # noqa: S101  # it holds capacity
        site = self._sites[after.attempt.cluster]
        if before is None or not before.holds_capacity:
            site.reserve(after)
        site.holders[after.uid] = after
        self._note_active(after)

    def _note_active(self, record: Record) -> None:
        if self._forest.is_declared:
            closed = self._sites[record.attempt.cluster].cluster.closed if record.attempt else None
            gang = active_gang(record, is_unreachable=is_unreachable(closed))
            if gang is not None:
                self._by_dispatch[record.uid] = gang
                self._are_active_known = False

    def _release(self, cluster: str, uid: str) -> None:
        site = self._sites[cluster]
        site.release(uid)
        del site.holders[uid]
        if self._by_dispatch.pop(uid, None) is not None:
            self._are_active_known = False

    def _holders(self, cluster: str) -> Iterable[Record]:
        site = self._sites.get(cluster)
        return () if site is None else site.holders.values()
