"""The reservations of the gangs past their starvation bound in one cycle, and what clusters are asked for them.

The reservations of the last cycle are renewed before any decision: those of quota (`sharing.quota_reservations`), then
those of room (`fit.backfill`). Whether a gang waits for quota or room is asked before the gang itself is decided. So
the steps of such a question count in the budget of searches, and a gang beyond it begins no reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.selector import Selector
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, INSUFFICIENT_QUOTA, RESERVED
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.cycle.refusals import Refusals
from dispatcher.core.scheduling.fit.backfill import Backfills, Sites
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.search_budget import SearchBudget, steps_so_far
from dispatcher.core.scheduling.queued.cluster_answers import ClusterAnswers
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.quota_reservations import QuotaReservations, is_starved, renew_quota


class Reservations(Struct):
    """The reservations of the cycle at `now`: `of_room` by the uids of their gangs, and `quota`.

    `later` is the ledger without the gangs that leave; `active` are the other gangs that hold capacity, by leaf.
    Without `backfills` nothing is renewed, and without a `budget` every question is asked.
    """

    forest: Forest
    snapshots: Mapping[str, ClusterSnapshot]
    rooms: Mapping[str, ClusterRoom]
    clusters: ClusterAnswers
    refusals: Refusals
    later: QuotaLedger
    active: Mapping[str, Sequence[ActiveGang]]
    now: datetime
    backfills: Backfills | None
    budget: SearchBudget | None
    of_room: Mapping[str, Reservation]
    quota: QuotaReservations
    _without_room: set[str] = field(default_factory=set)
    """The starved gangs that were refused for lack of room."""

    def has(self, uid: str) -> bool:
        """True if a gang has a reservation, of room or of quota."""
        backfills = self.backfills
        return backfills is not None and (
            uid in backfills.room.reservations or uid in backfills.quota.reservations
        )

    def renew(self, late: Sequence[PendingGang]) -> Steps[None]:
        """Renew the reservations for the gangs past the starvation bound, which are in order."""
        backfills, now = self.backfills, self.now
        if backfills is None:
            return
        backfills.debts.forget_past(now)
        taken = [each.record for each in late if self.refusals.by_queues(each) is None]
        for_quota = taken if self.forest.is_declared else []
        rooms = Sites.of_clusters(self.snapshots, backfills.room.running)
        self.quota = yield from renew_quota(
            backfills,
            for_quota,
            self.later,
            self.active,
            now,
            lambda record: self._has_room(record, rooms),
            self._may_go,
        )
        yield from self._renew_room(backfills, [each for each in taken if is_starved(each, self.forest, now)])

    def _renew_room(self, backfills: Backfills, starved: Sequence[Record]) -> Steps[None]:
        """Renew the reservations of capacity for the starved gangs; only a gang that waits for room begins one."""
        starved = [each for each in starved if self._needs_room(each)]
        if starved or backfills.room.reservations:
            records = [self._on_own_clusters(each) for each in starved]
            sites = Sites.of_clusters(self.snapshots, backfills.room.running)
            sites = replace(sites, lacks_nothing_else=self._has_quota)
            waiting = {each.uid for each in records if self._awaits_room(each, sites)}
            yield from backfills.renew_room(records, sites, self.forest, self.now, waiting)
        self.of_room = backfills.room.reservations

    def reserve_for_displaced(self, waiting: Sequence[PendingGang]) -> Steps[None]:
        """Begin reservations for the starved gangs that fitted a cluster until another one was placed there."""
        displaced = [each for each in waiting if each.uid in self._without_room - self.of_room.keys()]
        if self.backfills is None or not displaced:
            return
        yield from self._renew_room(self.backfills, [each.record for each in waiting])
        for gang in displaced:
            self._keep(gang)

    def held_for(self, gang: PendingGang, reason: str, *, is_starved: bool) -> Reservation | None:
        """The reservation of what a starved gang waits for, if it has one; that of capacity is kept from now on."""
        if is_starved and reason == INSUFFICIENT_QUOTA:
            return self.quota.by_uid.get(gang.uid)
        if is_starved and reason in {INSUFFICIENT, RESERVED}:
            self._without_room.add(gang.uid)
            return self._keep(gang)
        return None

    def _keep(self, gang: PendingGang) -> Reservation | None:
        """Keep the capacity that a gang has a reservation of; the reservation, if it has one."""
        reservation = self.of_room.get(gang.uid)
        if reservation is not None and not reservation.is_resting:
            room = self.rooms.get(reservation.cluster)
            if room is not None and room.keeper is None:
                room.keep(gang.record, reservation.assignment)
        return reservation

    def _may_go(self, record: Record) -> bool:
        """True if some cluster of its queues accepts the gang, and would have room for it if it were empty."""
        return self._asked(record, lambda: bool(self.clusters.accepting(PendingGang(record))))

    def _awaits_room(self, record: Record, sites: Sites) -> bool:
        """True if a gang has quota later, but for what is held back, and fits no cluster now."""
        if not self._has_quota(record):
            return False
        return self._asked(record, lambda: not any(site.fits(record) for site in sites.of(record)))

    def _asked(self, record: Record, question: Callable[[], bool]) -> bool:
        """The answer about a gang before its decision, with the steps noted in the budget; False beyond the budget."""
        budget = self.budget
        if budget is None or not budget.needs_search(record):
            return question()
        has_place = self.has(record.uid) or budget.is_open(record)
        if not (has_place or budget.admits(record)):
            return False
        before = steps_so_far(self.snapshots.values())
        answer = question()
        budget.note(record, steps_so_far(self.snapshots.values()) - before)
        if not has_place:
            budget.close(record)
        return answer

    def _has_quota(self, record: Record) -> bool:
        """True if a gang has quota later, but for what is held back."""
        demand, priority, leaves = record.gang.charged, record.priority, self.forest.queues_of(record.leaves)
        return not any(self.later.lacking(leaf, demand, priority, but_for_holds=True) for leaf in leaves)

    def _needs_room(self, record: Record) -> bool:
        """False if the capacity of a gang is requested."""
        return self.forest.class_of(record.leaves, record.gang) is None

    def _has_room(self, record: Record, rooms: Sites) -> bool:
        """True if a gang fits a cluster of its queues now, or needs none."""
        if not self._needs_room(record):
            return True
        own = self._on_own_clusters(record)
        return self._asked(own, lambda: any(site.fits(own) for site in rooms.of(own)))

    def _on_own_clusters(self, record: Record) -> Record:
        """The record with the clusters that its queues select as its own requirement."""
        selected = self.forest.clusters_of(record.leaves)
        if not selected.requirements:
            return record
        selector = Selector((*record.requirements.selector.requirements, *selected.requirements))
        return replace(record, requirements=replace(record.requirements, selector=selector))
