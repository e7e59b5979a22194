"""Who leads: a lease that runs out by itself and an epoch that grows with every takeover.

Two rows, so that the frequent one (the lease) never waits for the writers that share-lock the other (the
epoch). Only the database's clock counts. A takeover first takes the expired lease, which turns away every new
transaction of the old leader, and then waits for those in flight by changing the epoch.

Should that clock have been turned back by more than any lease lasts, the lease of a leader that is gone would keep all
others from leading until the clock is where it was. A leader that is there renews; so a lease that ends so far ahead
and does not change for as long as any lease lasts is taken over, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.errors import Fenced
from dispatcher.store.database import Database

LEASE: Final = timedelta(seconds=15)
TAKEOVER_TIMEOUT: Final = timedelta(seconds=5)
"""Longest wait for the old leader's last transactions; past it the takeover is given up and tried again."""
RENEWAL_TIMEOUT: Final = timedelta(seconds=3)
LONGEST_LEASE: Final = timedelta(seconds=300)
"""The longest that `lease_seconds` may be."""

_HELD: Final = text(
    "SELECT holder, expires_at, expires_at > clock_timestamp() + CAST(:longest AS interval) AS is_absurd "
    "FROM leader_lease WHERE name = :name AND holder <> :holder AND expires_at > clock_timestamp()"
)
_TAKE_LEASE: Final = text(
    "INSERT INTO leader_lease AS l (name, holder, expires_at) "
    "VALUES (:name, :holder, clock_timestamp() + :lease) "
    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = clock_timestamp() + :lease "
    "WHERE l.expires_at <= clock_timestamp() OR l.holder = :holder "
    "OR l.expires_at = CAST(:absurd AS timestamptz) RETURNING clock_timestamp()"
)
_RAISE_EPOCH: Final = text(
    "INSERT INTO leader_epoch AS e (name, epoch) VALUES (:name, 1) "
    "ON CONFLICT (name) DO UPDATE SET epoch = e.epoch + 1 RETURNING epoch"
)
_RENEW: Final = text(
    "UPDATE leader_lease SET expires_at = clock_timestamp() + :lease "
    "WHERE name = :name AND holder = :holder AND expires_at > clock_timestamp() "
    "RETURNING clock_timestamp()"
)
_RELEASE: Final = text(
    "UPDATE leader_lease SET expires_at = clock_timestamp() WHERE name = :name AND holder = :holder "
    "AND expires_at > clock_timestamp()"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write, as granted or renewed.

    `database_now` is the database's clock at that moment, for the caller to keep its own by. The lease runs
    for `duration` from then; count it from before the request was made, which is never too long.
    """

    epoch: int
    holder: str
    duration: timedelta
    database_now: datetime


class Leadership:
    """One candidate for one office; `holder` must be unlike that of any other process, past ones included."""

    def __init__(
        self,
        database: Database,
        holder: str,
        name: str = "dispatcher",
        lease: timedelta = LEASE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._lease: Lease | None = None
        self._values = {"name": name, "holder": holder, "lease": lease}
        self._holder = holder
        self._duration = lease
        self._monotonic = monotonic
        self._absurd: tuple[datetime, float] | None = None
        """When a lease ends that no leader can have taken by the clock as it is, and since when it has not changed."""

    @property
    def lease(self) -> Lease:
        """The newest lease, which may have run out by now; raises `Fenced` if there is none."""
        if self._lease is None:
            raise Fenced("this process does not lead")
        return self._lease

    async def acquire(self) -> Lease | None:
        """Take over if nobody else leads; None if somebody does. A standby may ask often: that only reads.

        A lease of our own that still runs, which the loss of a connection can leave behind, is taken over like
        an expired one: the new epoch turns away what the old one may still have in flight.
        """
        async with self._database.unfenced(TAKEOVER_TIMEOUT) as connection:
            granted = await self._take_over(connection)
        self._lease = granted or self._lease
        return granted

    async def renew(self) -> Lease:
        """Start the lease anew; raises `Fenced` if it had run out, even if nobody else leads yet."""
        held = self.lease
        async with self._database.unfenced(RENEWAL_TIMEOUT) as connection:
            now = (await connection.execute(_RENEW, self._values)).scalar_one_or_none()
        if now is None:
            self._lease = None
            raise Fenced(f"epoch {held.epoch} is over: the lease was not renewed in time")
        self._lease = Lease(held.epoch, self._holder, self._duration, now)
        return self._lease

    async def release(self) -> None:
        """Let another lead at once. To be called after the last write; safe to repeat."""
        self._lease = None
        async with self._database.unfenced(RENEWAL_TIMEOUT) as connection:
            await connection.execute(_RELEASE, self._values)

    async def _take_over(self, connection: AsyncConnection) -> Lease | None:
        held = (await connection.execute(_HELD, {**self._values, "longest": LONGEST_LEASE})).first()
        if held is not None and not self._is_left_behind(held.expires_at, is_absurd=held.is_absurd):
            return None
        values = {**self._values, "absurd": held.expires_at if held else None}
        now = (await connection.execute(_TAKE_LEASE, values)).scalar_one_or_none()
        if now is None:
            return None
        epoch = (await connection.execute(_RAISE_EPOCH, self._values)).scalar_one()
        return Lease(epoch, self._holder, self._duration, now)

    def _is_left_behind(self, expires_at: datetime, *, is_absurd: bool) -> bool:
        """True of a lease that only a clock that was turned back can have left, and that nobody renews."""
        now = self._monotonic()
        if not is_absurd:
            self._absurd = None
            return False
        if self._absurd is None or self._absurd[0] != expires_at:
            self._absurd = expires_at, now
        return now - self._absurd[1] > LONGEST_LEASE.total_seconds()
