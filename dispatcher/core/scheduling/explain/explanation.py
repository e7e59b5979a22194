"""The explanation of one pending gang: the decision of the next cycle, its position, and helpful changes.

It is computed from a `World`, so the same function answers for the queue as it is, for a queue after a change, and for
a gang that was not submitted yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, RESERVED
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.queues import ordering
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed, Preempting
from dispatcher.core.scheduling.explain.advice import MOST_WORK, NO_ADVICE, Advice, advise_one
from dispatcher.core.scheduling.explain.least_priority import least_priority
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.preemption.account_report import AccountRow, QueueReport, Spared

MOST_UNCORDONED: Final = 8
"""Cordoned nodes of one cluster that are tried one by one."""
MOST_SPARED: Final = 100
"""Gangs that an explanation lists as not preempted."""


class CordonedNodes(Struct, frozen=True):
    """Cordoned nodes of a cluster: if they were open, the gang would be dispatched."""

    cluster: str
    nodes: tuple[str, ...]


class Explanation(Struct, frozen=True):
    """The decision of the next cycle on one gang.

    `outcome` is None for a gang that may not be dispatched before `eligible_at`, and for a gang that lacks approvals,
    whose pending reason is `awaited`. Such a gang has no position. A gang larger than every cluster has none either,
    and neither has one that its queue does not take.
    `ahead` and `behind` are the gangs with a position before and after it in its queue, in order; both are empty if it
    has none. With queues, `accounts` are those of its queues and of the queues above them, `borrowers` those of others
    that borrow what it asks for, and `spared` are the gangs of its trees that are not preempted for it. Each of
    `cordoned` suffices by itself, and so does the `priority`, the least one; None if no priority does.
    """

    record: Record
    outcome: Outcome | None = None
    ahead: tuple[Record, ...] = ()
    behind: tuple[Record, ...] = ()
    advice: Advice = NO_ADVICE
    accounts: tuple[AccountRow, ...] = ()
    borrowers: tuple[AccountRow, ...] = ()
    spared: tuple[Spared, ...] = ()
    cordoned: tuple[CordonedNodes, ...] = ()
    priority: int | None = None

    @property
    def position(self) -> int | None:
        """The position in the queue, from 1; None if the gang may not be dispatched yet, or not as things are."""
        return None if self.outcome is None or not has_position(self.outcome) else len(self.ahead) + 1

    @property
    def is_in_no_queue(self) -> bool:
        """True if the queue that the gang names does not take it."""
        outcome = self.outcome
        return not (outcome is None or isinstance(outcome, Placed)) and outcome.pending.is_in_no_queue

    @property
    def eligible_at(self) -> datetime | None:
        """The time from which the gang may be dispatched; None if it may be now."""
        return self.record.eligible_at if self.outcome is None and self.awaited is None else None

    @property
    def awaited(self) -> Pending | None:
        """The pending reason of a gang that lacks approvals; None if it has all."""
        return self.record.pending if self.record.awaits_approval else None


def explain(
    world: World,
    uid: str,
    most_work: int = MOST_WORK,
    known: KnownSnapshots | None = None,
    ceiling: int | None = None,
) -> Explanation:
    """The explanation of the pending gang `uid`, which must be in the world. Raises `NoNode`.

    `most_work` bounds the search for advice, as `repair.MOST_WORK` does. `ceiling` is the highest priority of its
    namespace. Explanations of one world share what is
    `known` of its clusters.
    """
    known = known or KnownSnapshots()
    outcomes = world.plan(known)
    outcome = next((each for each in outcomes if each.record.uid == uid), None)
    if outcome is None:
        return Explanation(next(each for each in world.pending if each.uid == uid))
    ahead, behind = _neighbours(world, outcome, outcomes)
    found = Explanation(outcome.record, outcome, ahead, behind)
    if isinstance(outcome, Placed):
        return found
    advice = advise_one(world, outcomes, uid, most_work, known)
    cordoned = () if isinstance(outcome, Preempting) else tuple(_cordoned(world, uid, known))
    found = replace(found, advice=advice, cordoned=cordoned)
    if not isinstance(outcome, Preempting) and has_position(outcome):
        priority = least_priority(world, outcome.record, ceiling, most_work, known)
        found = replace(found, priority=priority)
    return _with_queues(found, world) if world.has_queues else found


def _cordoned(world: World, uid: str, known: KnownSnapshots) -> Iterator[CordonedNodes]:
    """The cordoned nodes of each cluster that would let a gang go: single nodes if one suffices, else all of them."""

    def goes(cluster: str, nodes: Sequence[str]) -> bool:
        outcomes = world.with_open_nodes(cluster, nodes).plan(known)
        return any(isinstance(each, Placed) and each.record.uid == uid for each in outcomes)

    for cluster in world.clusters:
        nodes = [node.name for node in cluster.nodes if node.ready and not node.usable]
        if not nodes or not goes(cluster.name, nodes):
            continue
        single = [name for name in nodes[:MOST_UNCORDONED] if goes(cluster.name, [name])]
        if not single:
            yield CordonedNodes(cluster.name, tuple(nodes))
        for name in single:
            yield CordonedNodes(cluster.name, (name,))


def has_position(outcome: Outcome) -> bool:
    """False if the gang is in no queue, or would not go if nothing else ran."""
    return isinstance(outcome, Placed) or outcome.pending.has_position


def _neighbours(
    world: World, outcome: Outcome, outcomes: Sequence[Outcome]
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """The gangs with a position before and after the explained one; none if it has no position."""
    if not has_position(outcome):
        return (), ()
    uncounted = {each.record.uid for each in outcomes if not has_position(each)}
    queue = [
        each
        for each in ordering.in_order(world.pending, world.now)
        if each.uid not in uncounted and _is_beside(each, outcome, world)
    ]
    index = next(index for index, each in enumerate(queue) if each.uid == outcome.record.uid)
    return tuple(queue[:index]), tuple(queue[index + 1 :])


def _is_beside(record: Record, outcome: Outcome, world: World) -> bool:
    """True if a gang is in the queue of the explained one."""
    return not world.has_queues or record.queue == outcome.record.queue


def _with_queues(found: Explanation, world: World) -> Explanation:
    active = [each.active for each in world.running if each.active is not None]
    report = QueueReport(world.forest, active, world.now)
    spared = (
        ()
        if isinstance(found.outcome, Preempting)
        else tuple(islice(report.spared(found.record, _closed(found.outcome)), MOST_SPARED))
    )
    accounts, borrowers = report.accounts(found.record), report.borrowers(found.record)
    return replace(found, accounts=tuple(accounts), borrowers=tuple(borrowers), spared=spared)


def _closed(outcome: Outcome | None) -> dict[str, str]:
    """The reason of each cluster where a gang has no room whatever is released there; empty if it lacks quota."""
    if outcome is None or isinstance(outcome, Placed):
        return {}
    return {
        each.cluster: each.reason
        for each in outcome.pending.clusters
        if each.reason not in {INSUFFICIENT, RESERVED}
    }
