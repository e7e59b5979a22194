"""Grants growth of running gangs: gathers the facts, lets the core decide, and commits.

A pass costs nothing while no gang has pods that wait for a grant. It decides beside the event loop, on values that were
gathered on the loop; what changed meanwhile is checked before the commit, in parts. The grants of one gang are one
commit. The reconciler removes the gates of granted pods: the granter wakes it for each record that it committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from dispatcher import log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.cycle.isolation import copies_of
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.cycle.recheck import Rechecked
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import change_of, decide_in_steps, goes_first, still_fitting
from dispatcher.core.scheduling.growth.growing import Grant, Growing
from dispatcher.core.scheduling.growth.growth_turns import asked_at
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, with_aside
from dispatcher.core.scheduling.sharing.quota_reservations import QuotaReservations
from dispatcher.probes import Metrics

Snapshots = Mapping[str, ClusterSnapshot]


class ActiveGangs(Protocol):
    """Where a pass gets the gangs that hold capacity."""

    def active_in_steps(self, snapshots: Snapshots) -> Steps[Sequence[ActiveGang]]:
        """Every gang that holds capacity, as queues see it, with its surplus in parts; changes the snapshots.

        The gangs are those of the moment of the call.
        """


class GrowthGranter:
    """Runs passes over the growth requests; `on_decided` is called with the uid of each record that it committed."""

    def __init__(
        self,
        cache: Cache,
        committer: Committer,
        active: ActiveGangs,
        planner: Planner,
        on_decided: Callable[[str], None],
        metrics: Metrics,
    ) -> None:
        self._cache = cache
        self._committer = committer
        self._active = active
        self._planner = planner
        self._on_decided = on_decided
        self._metrics = metrics

    async def growing(self, forest: Forest, slices: Slices, *, before_the_cycle: bool) -> list[Growing]:
        """The gangs that grow: all of them, or `before_the_cycle` those of queues that grant growth first."""

        def is_wanted(record: Record) -> bool:
            return not before_the_cycle or goes_first(record, forest)

        return await self._cache.growing(is_wanted, slices)

    async def decide(
        self,
        growing: Sequence[Growing],
        queues: QueueRules,
        snapshots_of: Callable[[], Snapshots],
        now: datetime,
        slices: Slices,
    ) -> bool:
        """Decide about these gangs, and commit what is new. `snapshots_of` returns the clusters of the moment.

        Returns false if a grant is to be decided again, because its record or its cluster changed meanwhile.
        """
        snapshots = snapshots_of()
        before = copies_of(snapshots)  # the plan takes from the snapshots
        grants = await self._planner.run(self._plan(growing, queues, snapshots, now))
        tried, committed, left = set[str](), set[str](), deque(grants)
        while left:
            right = self._still_right(left, growing, before, snapshots_of, now, slices)
            changes = {each.record.uid: change for each in right if (change := _change_safely(each, now))}
            done = {record.uid for record in await self._committer.commit_all(list(changes.values()))}
            for uid in done:
                self._on_decided(uid)
            tried.update(each.record.uid for each in right)
            committed |= done
            await slices.give_way()  # a part may commit nothing, and awaits nothing then
        self._observe((each for each in grants if each.record.uid in committed), now)
        lost = [each.record for each in grants if each.pods and each.record.uid not in committed]
        return all(each.uid in tried and self._cache.get(each.uid) is each for each in lost)

    def _plan(
        self, growing: Sequence[Growing], queues: QueueRules, snapshots: Snapshots, now: datetime
    ) -> Steps[list[Grant]]:
        """The decisions, on the gangs and queues of this moment; the steps read nothing of the cache."""
        backfills, queued, rules = self._cache.backfills, list(self._cache.queued()), queues.selected
        facts = GrantFacts(
            rules.forest,
            (),
            WaitingGangs(),
            now,
            dict(backfills.room.reservations),
            rules.usage,
            QuotaReservations.of(backfills.quota.state).at(now),
            rules.namespaces,
        )
        active = self._active.active_in_steps(snapshots) if rules.forest.is_declared else None
        return _grants_in_steps(growing, facts, queued, active, snapshots)

    def _still_right(
        self,
        left: deque[Grant],
        growing: Sequence[Growing],
        before: Snapshots,
        snapshots_of: Callable[[], Snapshots],
        now: datetime,
        slices: Slices,
    ) -> Sequence[Grant]:
        """The next decisions about gangs that have not changed since, and whose pods still fit their clusters.

        Takes from the left of `left` as many as are checked in a short time: all if the clusters are as they were
        `before` the plan, since nothing is placed again then. A decision that raises is left out (logged). The caller
        must not await anything between this check and the commit.
        """
        if not any(each.pods for each in left) or (snapshots := snapshots_of()) == before:
            right = Rechecked([*self._current(left)], [])
            left.clear()
        else:
            right = still_fitting(self._current(slices.take_for_check(left)), growing, snapshots, now)
        for each in right.failures:
            log.internal_error("growth", each.error, appwrapper=each.uid)
        return right.found

    def _current(self, grants: Iterable[Grant]) -> Iterator[Grant]:
        """The decisions about gangs that have not changed since."""
        return (each for each in grants if self._cache.get(each.record.uid) is each.record)

    def _observe(self, grants: Iterable[Grant], now: datetime) -> None:
        for grant in grants:
            for pod in grant.pods:
                waited = now - asked_at(grant.record, pod, now)
                self._metrics.growth_grant_seconds.observe(max(0.0, waited.total_seconds()))


def _grants_in_steps(
    growing: Sequence[Growing],
    facts: GrantFacts,
    queued: Sequence[Record],
    active: Steps[Sequence[ActiveGang]] | None,
    snapshots: Snapshots,
) -> Steps[list[Grant]]:
    """The decisions by these facts, to which the gangs that hold capacity and those that wait are added."""
    held = () if active is None else (yield from active)
    waiting = yield from WaitingGangs.of(queued, facts.forest, facts.now, facts.reservations)
    facts = replace(facts, active=held, waiting=waiting)
    return (yield from _decide_without_culprits(growing, facts, snapshots))


def _decide_without_culprits(
    growing: Sequence[Growing], facts: GrantFacts, snapshots: Snapshots
) -> Steps[list[Grant]]:
    """As `decide_in_steps`; if it raises, the decisions about the gangs that do not raise alone (logged).

    Any gang that holds capacity may be the cause, so all of them are set aside then: they are charged at least as much.
    The pass that raised may be half changed: all is decided anew on copies, which cost O(nodes) in each pass.
    """
    before = copies_of(snapshots)
    try:
        return (yield from decide_in_steps(growing, facts, snapshots))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # it is looked for the gang that causes it
        first = error
    uids = {each.record.uid for each in facts.active}
    plain = replace(facts, active=with_aside(facts.active, uids))
    left = []
    for each in growing:
        try:
            yield from decide_in_steps([each], plain, copies_of(before))
            left.append(each)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the pass of the others
            failure = Failure.of(each.record.uid, error)
            log.internal_error("growth", failure.error, appwrapper=failure.uid)
    if len(left) == len(growing):
        log.internal_error("growth", first)
    return (yield from decide_in_steps(left, plain, before))


def _change_safely(grant: Grant, now: datetime) -> Change | None:
    """The change of one decision; None if nothing is new, or if it raises, which must not end the others (logged)."""
    try:
        return change_of(grant, now)
    except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the pass of the others
        log.internal_error("scheduler", error, appwrapper=grant.record.uid)
        return None
