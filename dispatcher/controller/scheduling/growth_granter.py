"""Grants growth of running gangs: gathers the facts, lets the core decide, and commits.

A pass costs nothing while no gang has pods that wait for a grant. The grants of one gang are one commit. The reconciler
removes the gates of granted pods: the granter wakes it for each record that it committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from dispatcher import log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model import incremental
from dispatcher.core.model.failures import Failure
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.record import Change
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cycle.isolation import copies_of
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.grants import (
    Grant,
    GrantFacts,
    Growing,
    change_of,
    decide_in_steps,
    goes_first,
)
from dispatcher.core.scheduling.growth.growth_turns import asked_at
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, with_aside
from dispatcher.core.scheduling.sharing.queue_planner import QueueRules
from dispatcher.core.scheduling.sharing.quota_reservations import QuotaReservations
from dispatcher.probes import Metrics


class ActiveGangs(Protocol):
    """Where a pass gets the gangs that hold capacity."""

    def active_in_steps(self, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[Sequence[ActiveGang]]:
        """Every gang that holds capacity, as queues see it, with its surplus in parts; changes the snapshots."""


class GrowthGranter:
    """Runs passes over the growth requests; `on_decided` is called with the uid of each record that it committed."""

    def __init__(
        self,
        cache: Cache,
        committer: Committer,
        active: ActiveGangs,
        on_decided: Callable[[str], None],
        metrics: Metrics,
        starvation_bound: timedelta,
        strategy: QueueingStrategy,
    ) -> None:
        self._cache = cache
        self._committer = committer
        self._active = active
        self._on_decided = on_decided
        self._metrics = metrics
        self._without_queues = starvation_bound, strategy

    def growing_in_steps(self, forest: Forest | None, *, before_the_cycle: bool) -> Steps[list[Growing]]:
        """The gangs that grow: all of them, or `before_the_cycle` those of queues that grant growth first."""
        return self._cache.growing_in_steps(lambda record: not before_the_cycle or goes_first(record, forest))

    async def decide(
        self,
        growing: Sequence[Growing],
        queues: QueueRules | None,
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
        slices: Slices,
    ) -> bool:
        """Decide about these gangs, and commit what is new. Grants are taken from the snapshots.

        `queues` is None if none is declared. Returns false if a grant is to be decided again, because its record
        changed meanwhile.
        """
        pending, backfills = self._cache.pending_queue, self._cache.backfills
        forest, usage = (None, {}) if queues is None else (queues.forest, queues.usage)
        active: Sequence[ActiveGang] = ()
        reservations = dict(backfills.room.reservations)
        quota = QuotaReservations.of(backfills.quota.state).at(now)
        if forest is not None:
            active = await slices.run(self._active.active_in_steps(snapshots))
        waiting = await slices.run(WaitingGangs.of(list(pending), forest, now, reservations))
        namespaces = {} if queues is None else queues.namespaces
        facts = GrantFacts(
            forest, active, waiting, now, reservations, usage, quota, namespaces, *self._without_queues
        )
        grants = await slices.run(_decide_without_culprits(growing, facts, snapshots))
        changes = {each.record.uid: change for each in grants if (change := _change_safely(each, now))}
        committed = {record.uid for record in await self._committer.commit_all(list(changes.values()))}
        for uid in committed:
            self._on_decided(uid)
        self._observe((each for each in grants if each.record.uid in committed), now)
        lost = [each.record for each in grants if each.pods and each.record.uid not in committed]
        return all(self._cache.get(record.uid) is record for record in lost)

    def _observe(self, grants: Iterable[Grant], now: datetime) -> None:
        for grant in grants:
            for pod in grant.pods:
                waited = now - asked_at(grant.record, pod, now)
                self._metrics.growth_grant_seconds.observe(max(0.0, waited.total_seconds()))


def _decide_without_culprits(
    growing: Sequence[Growing], facts: GrantFacts, snapshots: Mapping[str, ClusterSnapshot]
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
            incremental.run(decide_in_steps([each], plain, copies_of(before)))
            left.append(each)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the pass of the others
            failure = Failure.of(each.record.uid, error)
            log.internal_error("growth", failure.error, appwrapper=failure.uid)
        yield
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
