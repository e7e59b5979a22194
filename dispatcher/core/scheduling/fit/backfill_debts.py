"""What the reservations of one queue's gangs keep together from its other gangs, and the rests that follow.

A gang of the queue needs quota and room, so a reservation of quota in the rest of a cluster, or one of a cluster in the
rest of the queue's quota, would leave it neither. So each reservation that begins takes over what its queue's
reservations of the other kind owe at that time: for how long they have been kept, or how much is left of their rest.
If it is not complete, the queue owes its own time and what it took over. After a reservation of quota, and after one of
a cluster that took something over, the queue rests for that long: no gang of it begins a reservation, of quota or of
any cluster. It follows under one leader:

- The gangs of one queue keep its quota or one cluster from the queue's other gangs for at most half of the time.
- Reservations of clusters alone owe nothing to each other: they begin on one cluster while another one rests.
- What gangs of a queue do lengthens no rest of another queue, and no rest of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, field

from dispatcher.core.scheduling.fit.backfill_reservation import Reservation, Rest


class Kept(NamedTuple):
    """A reservation that stands: its site, the parts of it, the queues of its gang, and what it took over."""

    site: str
    parts: Sequence[str]
    queues: Sequence[str]
    since: datetime
    taken_over: timedelta

    def is_that_of(self, reservation: Reservation | None) -> bool:
        """True if the reservation is still the same."""
        return reservation is not None and (reservation.cluster, reservation.since) == (self.site, self.since)

    def owed(self, now: datetime) -> timedelta:
        """What its queues owe for it."""
        return now - self.since + self.taken_over


class Debts(Struct):
    """The debts of one leader, in memory only: by uid what is kept, by queue until when it rests.

    `resting_rooms` has by queue the end of the last rest that a cluster has because of one of its gangs.
    """

    quota: dict[str, Kept] = field(default_factory=dict)
    room: dict[str, Kept] = field(default_factory=dict)
    resting: dict[str, datetime] = field(default_factory=dict)
    resting_rooms: dict[str, datetime] = field(default_factory=dict)

    def rests_until(self, queues: Iterable[str], now: datetime) -> datetime | None:
        """Until when no gang of these queues begins a reservation; None if none of them rests."""
        ends = (self.resting.get(queue, now) for queue in queues)
        return max((end for end in ends if end > now), default=None)

    def forget_past(self, now: datetime) -> None:
        """Forget the rests that are over; O(queues that rest)."""
        self.resting = {queue: end for queue, end in self.resting.items() if end > now}
        self.resting_rooms = {queue: end for queue, end in self.resting_rooms.items() if end > now}

    def note_quota(
        self,
        reservations: Mapping[str, Reservation],
        rests: Mapping[str, Rest],
        queues: Mapping[str, Sequence[str]],
        now: datetime,
    ) -> None:
        """Note the reservations of quota of this cycle, and the rests of the leaves; O(reservations of both kinds).

        `queues` are those of the starved gangs, by uid.
        """
        for kept in _ended(self.quota, reservations):
            if _rests(kept, rests, now):
                self._rest(kept, now)
        for uid, reservation in _begun(self.quota, reservations, queues):
            leaves = queues[uid]
            there = [each for each in self.room.values() if not set(leaves).isdisjoint(each.queues)]
            left = [self.resting_rooms.get(leaf, now) - now for leaf in leaves]
            over = max((*(each.owed(now) for each in there), *left, timedelta(0)))
            self.quota[uid] = Kept(reservation.cluster, leaves, leaves, reservation.since, over)

    def note_room(
        self,
        reservations: Mapping[str, Reservation],
        rests: Mapping[str, Rest],
        queues: Mapping[str, Sequence[str]],
        now: datetime,
    ) -> None:
        """Note the reservations of clusters of this cycle, and the rests of these; O(reservations of both kinds)."""
        for kept in _ended(self.room, reservations):
            if not _rests(kept, rests, now):
                continue
            for queue in kept.queues:
                end = self.resting_rooms.get(queue, now)
                self.resting_rooms[queue] = max(end, now + (now - kept.since))
            if kept.taken_over:
                self._rest(kept, now)
        for uid, reservation in _begun(self.room, reservations, queues):
            leaves = queues[uid]
            there = [each for each in self.quota.values() if not set(leaves).isdisjoint(each.queues)]
            over = max((each.owed(now) for each in there), default=timedelta(0))
            self.room[uid] = Kept(
                reservation.cluster, (reservation.cluster,), leaves, reservation.since, over
            )

    def _rest(self, kept: Kept, now: datetime) -> None:
        """Let the queues of a reservation that was not complete rest."""
        for queue in kept.queues:
            self.resting[queue] = max(self.resting.get(queue, now), now + kept.owed(now))


def _ended(known: dict[str, Kept], reservations: Mapping[str, Reservation]) -> list[Kept]:
    """The reservations that stand no longer, which are forgotten."""
    over = [uid for uid, kept in known.items() if not kept.is_that_of(reservations.get(uid))]
    return [known.pop(uid) for uid in over]


def _begun(
    known: Mapping[str, Kept], reservations: Mapping[str, Reservation], queues: Mapping[str, Sequence[str]]
) -> list[tuple[str, Reservation]]:
    """The reservations that are not known yet."""
    return [
        (uid, each)
        for uid, each in reservations.items()
        if not each.is_resting and uid not in known and uid in queues
    ]


def _rests(kept: Kept, rests: Mapping[str, Rest], now: datetime) -> bool:
    """True if a part of its site rests: none does while a reservation stands, so the reservation was not complete."""
    return any(part in rests and rests[part].until > now for part in kept.parts)
