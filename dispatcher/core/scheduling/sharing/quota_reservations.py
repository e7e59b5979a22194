"""Backfill reservations of quota: what the queues of a gang have left stays free for it, for a bounded time.

A gang that has been the head of its queue for the starvation bound, and lacks quota, gets a reservation of the quota of
its queues. It begins, ends and begins again by the rules of `backfill`, with the leaves of the gang as its site: each
leaf has one such reservation at a time, and rests after an incomplete one. So quota that a gang can never have enough
of is kept from others for at most half of the time, however many such gangs there are.

From other queues a reservation keeps what the leaf has left of its own quota, and from the leaf's own gangs the whole
demand. Where other queues' use cannot be reclaimed, quota is held back from them for the head of a queue already before
it is starved; of a leaf that rests, it is not. In a StrictFIFO queue no gang passes the head, so a reservation keeps
quota from other queues alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import QueueingStrategy, Reclaim
from dispatcher.core.scheduling.fit.backfill import Backfills, Sites, State
from dispatcher.core.scheduling.fit.backfill_reservation import Option, Reservation, Rest
from dispatcher.core.scheduling.fit.estimated_ends import LAST_RESORT, estimated_end
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.quota_ledger import Hold, QuotaLedger

_SEPARATOR: Final = ", "


def kept_for_others(where: str) -> str:
    """That nothing is left in these queues, or of a resource there, because a reservation keeps it."""
    return f"quota of {where}: what is left is kept for gangs that go first"


class QuotaReservations(Struct, frozen=True):
    """The reservations of quota of one cycle by uid, and the end of the rest of each leaf that rests."""

    by_uid: Mapping[str, Reservation] = field(default_factory=dict)
    resting: Mapping[str, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> QuotaReservations:
        """The reservations of a state, with rests that may be over."""
        return cls(state.reservations, {name: rest.until_without_hope for name, rest in state.rests.items()})

    def at(self, now: datetime) -> QuotaReservations:
        """The same without the rests that are over."""
        return QuotaReservations(self.by_uid, {name: end for name, end in self.resting.items() if now < end})

    @property
    def state(self) -> State:
        """The state from which cycles go on."""
        return State(self.by_uid, {name: Rest(end, end) for name, end in self.resting.items()})

    def hold(self, place: Place, record: Record, *, is_first: bool, is_starved: bool) -> Hold | None:
        """The quota of one leaf that is held back for a gang that lacks quota; None if none is.

        `is_first` if it is the head of the leaf, `is_starved` if it is past the starvation bound and not in a strict
        queue.
        """
        reservation = self.by_uid.get(record.uid)
        if reservation is not None and reservation.is_resting:
            return None
        if reservation is not None and is_starved:
            return Hold(place.name, record.gang.charged, is_starved=True)
        is_kept = reservation is not None or (is_first and place.name not in self.resting)
        is_kept = is_kept and place.queue.preemption.reclaim is not Reclaim.ANY
        return Hold(place.name, record.gang.charged, is_starved=False) if is_kept else None


NO_QUOTA_RESERVATIONS: Final = QuotaReservations()


def first_place(record: Record, forest: Forest) -> Place | None:
    """The first queue in which a gang waits; None if it is not there."""
    return forest.places.get(forest.queues_of(record.leaves)[0])


def is_late(record: Record, forest: Forest, now: datetime) -> bool:
    """True if the gang has been blocked, since it was the head, for the starvation bound of its first queue."""
    place = first_place(record, forest)
    since = record.blocked_since
    return place is not None and since is not None and now - since >= place.starvation_bound


def is_starved(record: Record, forest: Forest, now: datetime) -> bool:
    """True if the gang is late, and its first queue is not StrictFIFO: then it goes before all others."""
    is_strict = (place := first_place(record, forest)) and place.strategy is QueueingStrategy.STRICT_FIFO
    return not is_strict and is_late(record, forest, now)


def renew_quota(
    backfills: Backfills,
    late: Sequence[Record],
    ledger: QuotaLedger,
    active: Mapping[str, Sequence[ActiveGang]],
    now: datetime,
    has_room: Callable[[Record], bool],
    may_go: Callable[[Record], bool],
) -> Steps[QuotaReservations]:
    """The reservations of quota of the cycle at `now`; O(late gangs), and O(gangs of a tree) for each that begins.

    `late` are the gangs past the starvation bound in order, in valid queues. `ledger` is that of the time without the
    gangs that leave, with nothing held back; it is changed and changed back. `active` are the gangs that do not leave,
    by leaf. `has_room` tells whether a gang with quota is dispatched now, and `may_go` whether an empty cluster would
    take it: quota is kept for no other gang, which would have the reservation of its leaves in place of those behind.
    """
    known = backfills.quota.reservations
    if late or known:
        sites = replace(_sites(late, known.values(), ledger, active), lacks_nothing_else=has_room)
        waiting = {each.uid for each in late if lacks_quota(ledger, each) and may_go(each)}
        yield from backfills.renew_quota(late, sites, ledger.forest, now, waiting)
    return QuotaReservations.of(backfills.quota.state).at(now)


def lacks_quota(ledger: QuotaLedger, record: Record) -> bool:
    """True if a gang waits for quota that may be kept for it.

    For a gang that may not be preempted, and waits for nominal quota, nothing is held back.
    """
    demand, priority = record.gang.charged, record.priority
    lacks = False
    for place in ledger.forest.places_of(record.leaves):
        account = ledger.accounts[place.root]
        if not place.is_preemptible(priority) and account.beyond_nominal(place.name, demand):
            return False
        lacks = lacks or bool(ledger.lacking(place.name, demand, priority, but_for_holds=True))
    return lacks


def _sites(
    late: Iterable[Record],
    known: Iterable[Reservation],
    ledger: QuotaLedger,
    active: Mapping[str, Sequence[ActiveGang]],
) -> Sites:
    """The sites of these gangs, and of these reservations as far as their queues are still there."""
    places = ledger.forest.places
    leaves = {each.leaves for each in late}
    leaves |= {tuple(each.cluster.split(_SEPARATOR)) for each in known if each.cluster}
    sites = [
        _QuotaSite(each, ledger, active) for each in sorted(leaves) if all(leaf in places for leaf in each)
    ]
    by_name = {each.name: each for each in sites}
    return Sites(by_name, places, lambda record: [by_name[_name_of(record.leaves)]])


def _name_of(leaves: Iterable[str]) -> str:
    return _SEPARATOR.join(leaves)


class _QuotaSite(Struct, frozen=True):
    """The quota of the leaves of a gang, one in each of its trees."""

    leaves: tuple[str, ...]
    ledger: QuotaLedger
    active: Mapping[str, Sequence[ActiveGang]]

    @property
    def name(self) -> str:
        """The names of the leaves."""
        return _name_of(self.leaves)

    @property
    def parts(self) -> Sequence[str]:
        """The leaves."""
        return self.leaves

    def may_keep(self, record: Record) -> bool:
        """True if these are the leaves of the gang."""
        return record.leaves == self.leaves

    def fits(self, record: Record) -> bool:
        """True if the gang has quota there, but for what is held back."""
        demand, priority = record.gang.charged, record.priority
        lacking = (self.ledger.lacking(leaf, demand, priority, but_for_holds=True) for leaf in self.leaves)
        return self.may_keep(record) and not any(lacking)

    def may_return(self, _record: Record) -> bool:
        """Quota is not closed for a while: a stopped queue has no late gangs."""
        return False

    def has_changed_for(self, _record: Record) -> bool:
        """Only a gang that moves to another queue leaves its site."""
        return False

    def on_present_nodes(self, reservation: Reservation, _record: Record) -> Reservation:
        """Quota has no nodes."""
        return reservation

    def option(self, record: Record, now: datetime) -> Steps[Option]:
        """When the gang is estimated to have quota: once gangs of its trees have ended, in the order of their ends."""
        if self.fits(record):
            return Option(now, self.name)
        missing: Counter[str] = Counter()
        for leaf in self.leaves:
            missing |= Counter(self.ledger.missing(leaf, record.gang.charged))
        there = self._there()
        ends = sorted((estimated_end(each.record, now), uid) for uid, each in there.items())
        gone: list[ActiveGang] = []
        fits_at = LAST_RESORT
        try:
            for part in in_parts(ends):
                for end, uid in part:
                    gone.append(there[uid])
                    self._charge(there[uid], -1)
                    missing.subtract(there[uid].charge)
                    if not any(amount > 0 for amount in missing.values()) and self.fits(record):
                        fits_at = end
                        break
                if fits_at != LAST_RESORT:
                    break
                yield
        finally:
            for gang in gone:
                self._charge(gang, 1)
        return Option(fits_at, self.name)

    def _there(self) -> dict[str, ActiveGang]:
        """The gangs that hold quota of these trees, by uid."""
        forest = self.ledger.forest
        roots = dict.fromkeys(forest.places[leaf].root for leaf in self.leaves)
        names = (name for root in roots for name in forest.trees[root].names)
        return {each.uid: each for name in names for each in self.active.get(name, ())}

    def _charge(self, gang: ActiveGang, sign: int) -> None:
        self.ledger.charge(gang.record.leaves, gang.charge, gang.record.priority, sign)
