"""The changes of records that the outcomes of a cycle make.

A preemption is one group of changes, of the victims and of the preemptor, which is committed whole or not at all. The
drain of a queue is a group as well, of evictions that do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from dispatcher.api import conditions as words
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.growth import Shrinking
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.outcomes import (
    Impossible,
    NotEvaluated,
    Outcome,
    Placed,
    Preempting,
    Waiting,
)
from dispatcher.core.scheduling.preemption.surplus import given_up
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.text import counted

_NOTHING_FINISHED: Final[Mapping[str, Collection[int]]] = {}


def change_of(outcome: Outcome, now: datetime) -> Change | None:
    """The change that an outcome makes; None if the record already says it."""
    match outcome:
        case Placed(record, cluster, message, assignment):
            return queue_changes.dispatch(record, cluster, now, message, assignment)
        case Waiting(record, pending, is_head):
            return queue_changes.block(record, pending, now, is_head=is_head)
        case Impossible(record, pending):
            return queue_changes.block(record, pending, now)
        case NotEvaluated(record, pending):
            return queue_changes.note_not_evaluated(record, pending, now)
        case Preempting():
            raise ValueError("a preemption is committed as a group")


def changes_of(
    group: Preempting | Drained, now: datetime, finished: Mapping[str, Collection[int]] = _NOTHING_FINISHED
) -> list[Change]:
    """The changes of a group.

    The gangs of a drained queue are evicted. The victims of a preemption leave and, first of all, the preemptor is
    marked; a gang gives up its surplus pods alone if only they are victims. `finished` are the items of each gang, by
    the uid of its AppWrapper, that its next attempt does not create again.
    """
    if isinstance(group, Drained):
        return [_evict(gang.record, group.queue, now, _items(finished, gang)) for gang in group.gangs]
    preemptor = group.record
    queues = f"{'queues' if preemptor.more_queues else 'queue'} {', '.join(preemptor.leaves)}"
    who = f"{preemptor.key} ({queues}, priority {preemptor.priority})"
    gangs = {victim.record.uid for victim, _ in group.victims if not victim.is_surplus}
    surplus: dict[str, list[tuple[ActiveGang, Reason]]] = {}
    for victim, reason in group.victims:
        if victim.record.uid not in gangs:
            surplus.setdefault(victim.record.uid, []).append((victim, reason))
    return [
        queue_changes.begin_preempting(preemptor, group.pending, now, is_head=group.is_head),
        *(
            run_changes.preempt(
                victim.record,
                reason,
                f"preempted for {who}: {reason.words}",
                now,
                preemptor.uid,
                _items(finished, victim),
            )
            for victim, reason in group.victims
            if not victim.is_surplus
        ),
        *(_give_up(pods, who, preemptor.uid, now) for pods in surplus.values()),
    ]


def _evict(record: Record, queue: str, now: datetime, finished: Collection[int]) -> Change:
    """The eviction of a gang from a drained queue: it may be dispatched again at once, with the same grace for pods."""
    reason = EvictionReason(words.QUEUE_STOPPED, f"its queue {queue} is stopped and drained")
    return run_changes.evict(record, reason, now, record.requeuing_seconds, now, finished)


def _items(finished: Mapping[str, Collection[int]], gang: ActiveGang) -> Collection[int]:
    return finished.get(gang.record.uid, frozenset())


def _give_up(parts: Sequence[tuple[ActiveGang, Reason]], who: str, preemptor: str, now: datetime) -> Change:
    """The change of a gang that gives up these surplus pods."""
    first, reason = parts[0]
    count = sum(len(gang.part.pods) for gang, _ in parts if gang.part is not None)
    given = given_up(first.record, [gang for gang, _ in parts])
    why = f"{counted(count, 'surplus pod')} preempted for {who}: {reason.words}"
    return run_changes.give_up(first.record, Shrinking(*given, preemptor), reason, why, now)
