"""Leader election: a lease that expires, and an epoch that grows with every takeover.

The lease and the epoch are two rows, so that frequent renewals of the lease never wait for writers, which share-lock
the epoch. Only the database's clock counts. A takeover first takes the expired lease, which refuses every new
transaction of the old leader. It then changes the epoch, which waits for the old leader's open transactions.

If the database's clock is turned back by more than the longest lease, the lease of a dead leader would block every
candidate until the clock has caught up. A live leader renews, so a lease that ends too far ahead and does not change
for the longest duration of a lease is taken over as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from sqlalchemy import text

from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from dispatcher.store.library import AsyncConnection

LEASE: Final = timedelta(seconds=15)
TAKEOVER_TIMEOUT: Final = timedelta(seconds=5)
"""Longest wait for the old leader's open transactions; after it the takeover is given up and tried again."""
LEASE_NAME: Final = "dispatcher"
RENEWAL_TIMEOUT: Final = timedelta(seconds=3)
LONGEST_LEASE: Final = timedelta(seconds=300)
"""Upper bound of the setting `lease_seconds`."""

_FOREIGN_LEASE: Final = text(
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


def holder_name(process: str, revision: str) -> str:
    """The holder of a lease: a process, and the schema revision of its code."""
    return f"{process}@{revision}"


def revision_of(holder: str) -> str:
    """The schema revision of a holder's code; empty for a release that did not say it."""
    return holder.rpartition("@")[2] if "@" in holder else ""


class Lease(Struct, frozen=True):
    """The right to write, as granted or renewed.

    `database_now` is the database's clock at that moment; the caller sets its own clock by it. The lease runs for
    `duration` from then. A caller counts it from before its request, which is never too long.
    """

    epoch: int
    holder: str
    duration: timedelta
    database_now: datetime


class Leadership:
    """One candidate for one lease; `holder` must differ from that of every other process, past processes included."""

    def __init__(
        self,
        database: Database,
        holder: str,
        lease: timedelta = LEASE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._lease: Lease | None = None
        self._values = {"name": LEASE_NAME, "holder": holder, "lease": lease}
        self._holder = holder
        self._duration = lease
        self._monotonic = monotonic
        self._absurd: tuple[datetime, float] | None = None
        """The end of a lease that is too far ahead for the database's clock, and since when (monotonic) it has not
        changed."""

    @property
    def lease(self) -> Lease:
        """The newest lease, which may have expired; raises `Fenced` if there is none."""
        if self._lease is None:
            raise Fenced("this process does not lead")
        return self._lease

    async def acquire(self) -> Lease | None:
        """Take the lease if no other process leads; None if one does.

        While another process leads this only reads, so a standby may call it often. A running lease of this process,
        left behind by a lost connection, is taken over like an expired one: the new epoch refuses transactions of the
        old one that are still open.
        """
        async with self._database.unfenced(TAKEOVER_TIMEOUT) as connection:
            granted = await self._take_over(connection)
        self._lease = granted or self._lease
        return granted

    async def renew(self) -> Lease:
        """Renew the lease; raises `Fenced` if it has expired, even if no other process leads yet."""
        current = self.lease
        async with self._database.unfenced(RENEWAL_TIMEOUT) as connection:
            now = (await connection.execute(_RENEW, self._values)).scalar_one_or_none()
        if now is None:
            self._lease = None
            raise Fenced(f"epoch {current.epoch} is over: the lease was not renewed in time")
        self._lease = Lease(current.epoch, self._holder, self._duration, now)
        return self._lease

    async def release(self) -> None:
        """Give up the lease, so that another process can lead at once. Call it after the last write; safe to repeat."""
        self._lease = None
        async with self._database.unfenced(RENEWAL_TIMEOUT) as connection:
            await connection.execute(_RELEASE, self._values)

    async def _take_over(self, connection: AsyncConnection) -> Lease | None:
        current = (
            await connection.execute(_FOREIGN_LEASE, {**self._values, "longest": LONGEST_LEASE})
        ).first()
        if current is not None and not self._is_left_behind(current.expires_at, is_absurd=current.is_absurd):
            return None
        values = {**self._values, "absurd": current.expires_at if current else None}
        now = (await connection.execute(_TAKE_LEASE, values)).scalar_one_or_none()
        if now is None:
            return None
        epoch = (await connection.execute(_RAISE_EPOCH, self._values)).scalar_one()
        return Lease(epoch, self._holder, self._duration, now)

    def _is_left_behind(self, expires_at: datetime, *, is_absurd: bool) -> bool:
        """True for a lease that only a clock that was turned back can have left, and that no leader renews."""
        now = self._monotonic()
        if not is_absurd:
            self._absurd = None
            return False
        if self._absurd is None or self._absurd[0] != expires_at:
            self._absurd = expires_at, now
        return now - self._absurd[1] > LONGEST_LEASE.total_seconds()
