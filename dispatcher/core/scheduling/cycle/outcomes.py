"""The outcomes of a scheduling cycle for one gang: what was decided about it, and what it waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from dispatcher.api.names import DEFAULT_QUEUE, QUEUE_LABEL
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment
from dispatcher.core.model.records.pending_reasons import NOT_EVALUATED, QUEUE_NOT_FOUND
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.fit.refused import Refused
from dispatcher.core.scheduling.sharing.gangs import ActiveGang

SOME_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""The present where none is named; only differences of times matter then."""


class Placed(Struct, frozen=True):
    """The gang fits `cluster`, and no other has a better score. Its demand is taken from the snapshot.

    `message` says why the gang goes to none of the other clusters, if there are any, and that its capacity is not
    requested, if a class is named that does not manage it. `assignment` is where its pods go,
    if gangs are placed on nodes.
    """

    record: Record
    cluster: str
    message: str = ""
    assignment: Assignment = ASSIGNED_NOWHERE


class Waiting(Struct, frozen=True):
    """The gang fits no cluster now, but may later; `is_head` for the first such gang in the queue."""

    record: Record
    pending: Pending
    is_head: bool = False


class Impossible(Struct, frozen=True):
    """No cluster would take the gang even if all of it were free: only a change of the clusters helps."""

    record: Record
    pending: Pending


class NotEvaluated(Struct, frozen=True):
    """The cycle did not evaluate the gang: the queue is strict and the head does not fit."""

    record: Record
    pending: Pending


class Preempting(Struct, frozen=True):
    """The gang waits for the capacity of its `victims`, which are preempted for it on `cluster`.

    `is_head` as for a `Waiting` gang.
    """

    record: Record
    pending: Pending
    cluster: str
    victims: tuple[tuple[ActiveGang, Reason], ...]
    is_head: bool = False


Refusal = Waiting | Impossible
Outcome = Placed | Refusal | NotEvaluated | Preempting


def refusal(record: Record, refused: Refused, *, is_head: bool = False) -> Refusal:
    """The outcome for a refused record."""
    if refused.may_fit_later:
        return Waiting(record, refused.pending, is_head)
    return Impossible(record, refused.pending)


def not_found(record: Record, queue: str, forest: Forest) -> Impossible:
    """The outcome for a record whose `queue` is not among the valid ones of a forest."""
    why = forest.why_missing(queue)
    if queue == DEFAULT_QUEUE and queue not in forest.problems and queue not in forest.deleted:
        why += f": its label {QUEUE_LABEL}, or that of its namespace, must name a declared queue"
    return Impossible(record, Pending(QUEUE_NOT_FOUND, why, queue=queue))


def not_evaluated(record: Record, head: Record) -> NotEvaluated:
    """The outcome for a record behind `head` in a strict queue."""
    return NotEvaluated(record, Pending(NOT_EVALUATED, f"behind {head.key}, which waits"))
