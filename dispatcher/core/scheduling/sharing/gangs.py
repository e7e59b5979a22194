"""The gangs of a cycle over queues: pending gangs with their leaves, and gangs that hold capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.core.model.record import Record
from dispatcher.core.queues.forest import Place
from dispatcher.core.queues.queue import Order
from dispatcher.core.scheduling import ordering

RecentUse = Mapping[tuple[str, str], Fraction]
"""The recent use of each namespace in each leaf, by leaf and namespace."""


class Claim(NamedTuple):
    """What a pending gang asks of the queues; the fields are those of `PendingGang`."""

    leaves: tuple[str, ...] = (DEFAULT_QUEUE,)
    is_preempting: bool = False
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A gang that waits in one leaf of each of its trees; its turn is that of the first.

    `is_preempting` is true from the time when gangs were preempted for it until it is dispatched or waits for something
    else. `preemptions` is how often it was preempted itself within the last 24 hours.
    """

    record: Record
    leaves: tuple[str, ...]
    is_preempting: bool = False
    preemptions: int = 0

    @property
    def uid(self) -> str:
        """The uid of its AppWrapper."""
        return self.record.uid


@dataclass(frozen=True, slots=True)
class ActiveGang:
    """A gang that holds capacity of a cluster, and quota in its leaves.

    `is_leaving` is true while it is deleted, suspended, requeued or preempted, unless its cluster does not answer.
    `is_fixed` is true for a gang that nobody may preempt now: it is being created, or its cluster does not answer.
    """

    record: Record
    leaves: tuple[str, ...]
    cluster: str
    dispatched_at: datetime
    is_leaving: bool = False
    is_fixed: bool = False

    @property
    def uid(self) -> str:
        """The uid of its AppWrapper."""
        return self.record.uid


class Rank(NamedTuple):
    """The order of two gangs wherever a tie is left; the lowest is first."""

    is_not_preempting: bool
    recent_use: Fraction
    in_queue: ordering.Rank


_NONE = Fraction(0)


def rank(gang: PendingGang, now: datetime) -> Rank:
    """The rank of a gang among those of all queues."""
    return Rank(not gang.is_preempting, _NONE, ordering.rank(gang.record, now))


def rank_in_queue(gang: PendingGang, now: datetime, place: Place | None, usage: RecentUse) -> Rank:
    """The rank of a gang among those of its queue, which may order by recent use."""
    found = rank(gang, now)
    if place is None or place.queue.order is not Order.USAGE:
        return found
    return found._replace(recent_use=usage.get((place.name, gang.record.namespace), _NONE))
