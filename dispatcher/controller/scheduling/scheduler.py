"""The scheduler: runs scheduling cycles, and commits the decisions of each in few transactions.

A cycle orders the pending queue, takes a snapshot of each cluster, plans, commits every decision, and hands the keys to
the reconciler. It creates no objects and makes no requests: the caches are current. Whatever may change its outcome
wakes it: a new AppWrapper, a release, a node, a pod that ended. A slow poll covers a lost wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.controller.scheduling import queue_cycles
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import LARGEST_BATCH, Committer
from dispatcher.controller.scheduling.growth_granter import GrowthGranter
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.controller.scheduling.queue_cycles import QueueCycles
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import UNDECIDED_BY_ERROR, Failure
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.isolation import (
    BARRED_FOR,
    copies_of,
    culprits_in_steps,
)
from dispatcher.core.scheduling.cycle.news import NewOutcome, outcome_of
from dispatcher.core.scheduling.cycle.outcome_changes import change_of, changes_of
from dispatcher.core.scheduling.cycle.outcomes import (
    Impossible,
    Placed,
    Preempting,
)
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.cycle.recheck import Rechecked, has_new_room, still_fitting
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.probes import Metrics

MOST_TELLING: Final = 1.0
"""Seconds, at most, in which a cycle still commits pending reasons although a new cycle is due."""
MOST_LOOKUPS: Final = 3
"""Times that a cycle asks the clusters: a gang that arrives while they answer may need what nobody has asked about."""
MOST_REJECTIONS: Final = 2000
"""Rejections by clusters in one batch: their changes are made, and put into rows, within some ms."""
LEAST_BATCH: Final = 50
NONE_DECLARED: Final = QueueRules(Forest.undeclared(Defaults(access=Access.SELECTED)))
"""The queues of a hub that declares none, with the default settings."""


class Rules(Struct, frozen=True):
    """The pace of cycles: at least `least` and at most `most` seconds apart."""

    least: float = 0.05
    most: float = 10.0


class Known(Protocol):
    """Where the scheduler gets its snapshots of clusters."""

    async def get_ready(self, requirements: Iterable[ClusterRequirements]) -> bool:
        """Ask the clusters, with a short timeout, for facts that these requirements need for the first time.

        True if nothing had to be asked; then it has returned at once.
        """

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """A snapshot of each cluster, for a cycle over gangs with these requirements."""


async def _nothing_is_finished(_record: Record) -> Collection[int]:
    return ()


class Lookups(Struct, frozen=True):
    """The questions that the scheduler asks beside those to the cache.

    `is_unchanged` is false if the user has suspended, redirected or deleted the gang since its last commit. `queues`
    returns the queues, with the same forest as long as none of them changes. `finished_items` returns the items that
    the next attempt of a preempted gang does not create again.
    """

    is_unchanged: Callable[[Record], bool]
    queues: Callable[[], QueueRules] = lambda: NONE_DECLARED
    finished_items: Callable[[Record], Awaitable[Collection[int]]] = _nothing_is_finished


class Basis(NamedTuple):
    """The clusters and the queues on which a cycle was planned; the plan takes nothing from these snapshots."""

    snapshots: Mapping[str, ClusterSnapshot]
    forest: Forest


class Scheduler:
    """Runs scheduling cycles; `on_decided` is called with the uid of each record that a cycle committed."""

    def __init__(
        self,
        cache: Cache,
        committer: Committer,
        known: Known,
        lookups: Lookups,
        *,
        on_decided: Callable[[str], None],
        now: Callable[[], datetime],
        metrics: Metrics,
        rules: Rules,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._committer = committer
        self._known = known
        self._lookups = lookups
        self._on_decided = on_decided
        self._now = now
        self._metrics = metrics
        self._rules = rules
        self._monotonic = monotonic
        self._planner = Planner()
        self._queue_cycles = QueueCycles(cache)
        self._growth = GrowthGranter(
            cache,
            committer,
            self._queue_cycles,
            self._planner,
            on_decided,
            metrics,
        )
        self._is_next_due = False
        self._wake = asyncio.Event()
        self._planned_at: datetime | None = None
        self._failures = 0

    def wake(self) -> None:
        """Have a cycle run soon."""
        self._wake.set()

    async def run(self) -> None:
        """Run cycles until cancelled."""
        while True:
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(await self._cycle_safely())

    async def _cycle_safely(self) -> float:
        """Run a cycle; return the seconds before the next, which double with each internal error in a row."""
        try:
            await self.cycle()
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: running gangs still need the leader
            log.internal_error("scheduler", error)
            self._failures += 1
            self._wake.set()
        else:
            self._failures = 0
        return min(self._rules.most, self._rules.least * 2.0 ** min(self._failures, 20))

    def _pause(self) -> float:
        """Seconds until a cycle is due even if nothing wakes it: 0 if a gang became eligible since the last cycle."""
        now = self._now()
        eligible = self._cache.pending_queue.next_eligible(self._planned_at or now)
        seconds = (eligible - now).total_seconds() if eligible else self._rules.most
        return max(0.0, min(self._rules.most, seconds))

    async def cycle(self) -> None:
        """Run one scheduling cycle over the pending queue, with growth before or after it as its queue says."""
        with self._metrics.cycle_seconds.time():
            await self._grant_growth_safely(before_the_cycle=True)
            await self._decide_on_queue()
            await self._grant_growth_safely(before_the_cycle=False)

    async def _grant_growth_safely(self, *, before_the_cycle: bool) -> None:
        """Decide about growth; an internal error there must not delay the gangs that wait (logged)."""
        try:
            await self._grant_growth(before_the_cycle=before_the_cycle)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the edge of the pass
            log.internal_error("growth", error)

    async def _grant_growth(self, *, before_the_cycle: bool) -> None:
        queues = self._lookups.queues()
        slices = Slices(self._monotonic)
        growing = await self._growth.growing(queues.forest, slices, before_the_cycle=before_the_cycle)
        if growing:
            await self._cache.prepare(slices)
            if not await self._growth.decide(growing, queues, self._snapshots, self._now(), slices):
                self.wake()

    async def _decide_on_queue(self) -> None:
        pending = self._cache.pending_queue
        await self._cache.prepare(Slices(self._monotonic))
        for _ in range(MOST_LOOKUPS):
            if await self._known.get_ready(pending.requirements()):
                break
        now = self._now()  # a gang that arrived while the cycle waited must not be dispatched before that
        begun = self._monotonic()
        batches, basis = await self._plan_without_culprits(now)
        self._planned_at = now
        # A cycle that plans for seconds also commits pending reasons for as long, or none would ever be committed.
        enough = self._monotonic() + min(self._monotonic() - begun, MOST_TELLING)
        while batches:
            batch = batches.popleft()
            await self._decide(batch, basis, now)
            is_news = self._wake.is_set() and self._monotonic() >= enough
            if is_news and not any(isinstance(each, Placed) for each in batch):
                break  # a new cycle is due, and commits the pending reasons that are left
        slices = Slices(self._monotonic)
        while batches:  # freeing all batches at once takes long
            batches.popleft()
            await slices.give_way()
        _log_failures(self._cache.backfills.room.running.take_failures())
        await self._release_growth_safely()
        self._is_next_due |= self._queue_cycles.has_left_out or self._cache.has_untried_places
        if self._is_next_due:
            self._is_next_due = False
            self.wake()

    async def _plan_without_culprits(self, now: datetime) -> tuple[deque[list[NewOutcome]], Basis]:
        """The news of a cycle in batches, and what it was planned on.

        If an exception ends the plan, the gangs that cause it are barred, and all others are planned anew.
        """
        while True:
            snapshots, queues = self._snapshots(), self._lookups.queues()
            basis = Basis(copies_of(snapshots), queues.forest)
            try:
                plan = await self._planner.run(self._queue_cycles.plan_in_steps(queues, snapshots, now))
                _log_failures(plan.failures)
                for group in plan.groups:
                    await self._take_back(group, basis, now)
                return await self._batches_of(plan.others, len(snapshots)), basis
            except Exception as error:
                self._queue_cycles.forget()  # also what came for this plan, which would not come again
                if isinstance(error, errors.StoreError | MemoryError):
                    raise
                if not await self._bar_culprits(basis.snapshots, now):
                    raise

    async def _batches_of(self, news: Sequence[NewOutcome], clusters: int) -> deque[list[NewOutcome]]:
        """The news of a cycle in batches: in queue order if one batch holds them all, else placed gangs first.

        All changes of a long queue at once would block the event loop for seconds. The more clusters there are, the
        more rejections each pending gang has, and the smaller is a batch.
        """
        size = max(LEAST_BATCH, min(LARGEST_BATCH, MOST_REJECTIONS // max(1, clusters)))
        if len(news) <= size:
            return deque([[*news]] if news else [])
        return await self._planner.run(_in_batches(news, size))

    async def _bar_culprits(self, snapshots: Mapping[str, ClusterSnapshot], now: datetime) -> bool:
        """Bar the queued gangs that end a plan, and set aside the running ones (logged); false if there are none."""
        queues, pending = self._lookups.queues(), self._cache.pending_queue
        aside = set(self._queue_cycles.aside)
        active: Sequence[ActiveGang] = ()
        if queues.forest.is_declared:
            active = await self._planner.run(self._queue_cycles.active_in_steps(copies_of(snapshots)))
        alone = partial(
            self._queue_cycles.plan_alone,
            rules=queues.selected,
            active=active,
            snapshots=snapshots,
            now=now,
        )
        await self._planner.run(alone(None))
        culprits = await self._planner.run(culprits_in_steps(pending.in_cycles(), alone))
        changes: list[Change | None] = []
        for each in culprits:
            log.internal_error("scheduler", each.failure.error, appwrapper=each.failure.uid)
            changes += (
                _change_safely(Impossible(record, UNDECIDED_BY_ERROR), now) for record in each.records
            )
        for batch in incremental.in_parts(filter(None, changes), LARGEST_BATCH):
            self._note_committed(await self._committer.commit_all(batch))
        for each in culprits:  # only now: a changed record takes part again
            pending.bar((record.uid for record in each.records), now + BARRED_FOR)
        return bool(culprits) or aside != set(self._queue_cycles.aside)

    async def _release_growth_safely(self) -> None:
        """As `_release_growth`; after an internal error there (logged), growth is noted after its pauses."""
        try:
            await self._release_growth()
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the edge: the cycle is done
            log.internal_error("growth", error)
            self._cache.awaited_growth = frozenset()

    async def _release_growth(self) -> None:
        """Have the reconciler note the growth that no pod uses, without a pause, where a gang waits for it."""
        queues = self._lookups.queues()
        if queues.forest.is_declared:
            awaited = self._queue_cycles.awaited_growth(queues.forest)
        else:
            steps = self._queue_cycles.awaited_room_in_steps(self._snapshots, self._now())
            awaited = frozenset[str]() if steps is None else await self._planner.run(steps)
        self._cache.awaited_growth = awaited
        for uid in sorted(awaited):
            self._on_decided(uid)

    def _snapshots(self) -> Mapping[str, ClusterSnapshot]:
        self._cache.follow_terms()
        return self._known.snapshots(self._cache.pending_queue.requirements())

    async def _take_back(self, group: Preempting | Drained, basis: Basis, now: datetime) -> None:
        """Commit a preemption whole or not at all, and a drain gang by gang.

        If a record has changed since the cycle, the next cycle decides again. What the database cannot hold, or raises,
        waits for the next cycle without waking it.
        """
        changes = await self._changes_safely(group, basis, now)
        if isinstance(group, Drained):
            committed = await self._committer.commit_all(changes)
        else:
            committed = await self._committer.commit_together(changes) if changes else []
        self._note_committed(committed)
        gangs = {each.record.uid for each in queue_cycles.leaving(group)}
        if len(committed) < len(gangs) and not self._are_current(group):
            self.wake()

    async def _changes_safely(self, group: Preempting | Drained, basis: Basis, now: datetime) -> list[Change]:
        """The changes of a group; none if it is no longer as planned, or if that raises (logged)."""
        try:
            finished = {
                each.record.uid: await self._lookups.finished_items(each.record)
                for each in queue_cycles.leaving(group)
                if not each.is_surplus and self._cache.get(each.uid) is each.record
            }
            if isinstance(group, Drained):
                return changes_of(self._still_drained(group, basis), now, finished)
            if await self._has_new_room(group, basis) or not self._is_as_planned(group, basis):
                return []
            return changes_of(group, now, finished)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # one group must not end the cycle of the others
            log.internal_error("scheduler", error, appwrapper=queue_cycles.leaving(group)[0].record.uid)
            return []

    def _still_drained(self, group: Drained, basis: Basis) -> Drained:
        """The gangs of a drained queue that must still leave; if the queue was declared otherwise, a cycle is woken.

        Other queues of a gang do not count. The caller must not await anything between this check and the commit.
        """
        before, now = basis.forest, self._lookups.queues().forest

        def is_drained_otherwise(record: Record) -> bool:
            leaves = (each for each in record.leaves if before.is_within(each, group.queue))
            return now.has_changed(before, leaves)

        gangs = tuple(each for each in group.gangs if not is_drained_otherwise(each.record))
        if len(gangs) < len(group.gangs):
            self.wake()
        return replace(group, gangs=gangs)

    async def _has_new_room(self, group: Preempting, basis: Basis) -> bool:
        """True if room came for the preemptor during the plan; then the next cycle is woken.

        It may take long, so it is asked beside the loop, and of the clusters of the moment before.
        """
        steps = has_new_room(group.record, basis.forest, basis.snapshots, self._snapshots())
        if await self._planner.run(steps):
            self.wake()
            return True
        return False

    def _is_as_planned(self, group: Preempting, basis: Basis) -> bool:
        """True if the victims of a preemption must still leave; otherwise a following cycle decides.

        No record of the group and none of their queues may have changed, and the user must still want the preemptor.
        The caller must not await anything between this check and the commit.
        """
        is_current = queue_cycles.are_current(group, self._cache)
        if not is_current or not self._lookups.is_unchanged(group.record):
            return False  # the caller or the reconciler wakes the next cycle
        records = [group.record, *(each.record for each in queue_cycles.leaving(group))]
        if self._have_queues_changed(records, basis):
            self.wake()
            return False
        return True

    def _have_queues_changed(self, records: Iterable[Record], basis: Basis) -> bool:
        """True if a queue of these gangs, or a queue above it, was declared otherwise during the plan.

        Other queues do not count: queues that change all the time would stop every gang.
        """
        leaves = chain.from_iterable(record.leaves for record in records)
        return self._lookups.queues().forest.has_changed(basis.forest, leaves)

    async def _decide(
        self,
        batch: Sequence[NewOutcome],
        basis: Basis,
        now: datetime,
    ) -> None:
        slices = Slices(self._monotonic)
        changes: dict[str, Change | None] = {each.record.uid: None for each in batch}
        for news in batch:
            # Records that changed during the plan are for the next cycle.
            if not isinstance(news, Placed) and self._is_current(news.record):
                changes[news.record.uid] = _change_safely(news, now)
                await slices.give_way()
        planned = deque(each for each in batch if isinstance(each, Placed))
        while planned or changes:
            for placed in self._still_placed(planned, basis, slices):
                changes[placed.record.uid] = _change_safely(placed, now)
            committed = await self._committer.commit_all([each for each in changes.values() if each])
            self._note_committed(committed)
            changes = {}
            await slices.give_way()  # a part may commit nothing, and awaits nothing then

    def _is_current(self, record: Record) -> bool:
        """True if a record is queued and has not changed; false if that raises (logged)."""
        try:
            return self._cache.pending_queue.holds(record)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the cycle of the others
            log.internal_error("scheduler", error, appwrapper=record.uid)
            return False

    def _are_current(self, group: Preempting | Drained) -> bool:
        """True if no record of a group has changed, or if that raises (logged): then nothing is to be done at once."""
        try:
            return queue_cycles.are_current(group, self._cache)
        except Exception as error:  # noqa: BLE001  # one group must not end the cycle of the others
            log.internal_error("scheduler", error, appwrapper=queue_cycles.leaving(group)[0].record.uid)
            return True

    def _note_committed(self, records: Iterable[Record]) -> None:
        """With queues, a dispatch and a preemption may let a class go that was refused before in the same cycle."""
        are_declared = self._lookups.queues().forest.is_declared
        for record in records:
            self._on_decided(record.uid)
            self._is_next_due |= are_declared and record.phase is not Phase.QUEUED

    def _still_placed(self, planned: deque[Placed], basis: Basis, slices: Slices) -> Sequence[Placed]:
        """The next placed gangs that have not changed, whose queues have not either, and that still fit their clusters.

        Takes from the left of `planned` as many as are checked in a short time: all if the clusters are as they were
        before the plan, since nothing is placed again then. A gang that raises is left out (logged).

        The reconciler commits that a gang was suspended, redirected or deleted, and wakes the next cycle. After a
        takeover the watch may show such a change before the reconciler has seen it. The caller must not await anything
        between this check and the commit.
        """
        if not planned:
            return ()
        wanted = list[Placed]()

        def current(placed: Iterable[Placed]) -> Iterator[Placed]:
            for each in placed:
                if self._lookups.is_unchanged(each.record):
                    wanted.append(each)
                    if self._is_current(each.record) and not self._have_queues_changed([each.record], basis):
                        yield each

        snapshots = self._snapshots()
        if snapshots == basis.snapshots:
            right = Rechecked([*current(planned)], [])
            planned.clear()
        else:
            right = still_fitting(current(slices.take_for_check(planned)), snapshots)
        _log_failures(right.failures)
        if len(right.found) < len(wanted):
            self.wake()
        return right.found


def _in_batches(news: Sequence[NewOutcome], size: int) -> Steps[deque[list[NewOutcome]]]:
    """The news in batches of that size; placed gangs come first."""
    batches, placed, others = deque[list[NewOutcome]](), list[NewOutcome](), list[NewOutcome]()
    for part in incremental.in_parts(news):
        for each in part:
            (placed if isinstance(each, Placed) else others).append(each)
        yield
    for batch in incremental.in_parts(chain(placed, others), size):
        batches.append(batch)
        yield
    return batches


def _log_failures(failures: Iterable[Failure]) -> None:
    """Log and count the exceptions for which gangs were refused, or their decisions left out."""
    for each in failures:
        log.internal_error("scheduler", each.error, appwrapper=each.uid)


def _change_safely(news: NewOutcome, now: datetime) -> Change | None:
    """The change of one decision; None if it raises, which must not end the cycle of the others (logged)."""
    try:
        return change_of(outcome_of(news), now)
    except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the cycle of the others
        log.internal_error("scheduler", error, appwrapper=news.record.uid)
        return None
