"""What a pass over the growth of running gangs knows besides the clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, RecentUse
from dispatcher.core.scheduling.sharing.quota_reservations import (
    NO_QUOTA_RESERVATIONS,
    QuotaReservations,
    first_place,
)


class GrantFacts(Struct, frozen=True):
    """The facts of a pass besides the clusters.

    `active` are all gangs that hold capacity; without declared queues none is needed. `reservations` are the backfill
    reservations of capacity by uid, `quota` those of quota. `usage` is the recent use of each namespace, `namespaces`
    are their labels.
    """

    forest: Forest
    active: Sequence[ActiveGang]
    waiting: WaitingGangs
    now: datetime
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    usage: RecentUse = field(default_factory=dict)
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def rules_of(self, record: Record) -> tuple[timedelta, bool]:
        """The time for which growth of a gang may wait behind others, and whether its queue is StrictFIFO."""
        rules = first_place(record, self.forest) or self.forest.defaults
        return rules.starvation_bound, rules.strategy is QueueingStrategy.STRICT_FIFO
