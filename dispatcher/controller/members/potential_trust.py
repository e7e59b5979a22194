"""Declared pools, and which are not trusted now: their nodes did not come for a gang that was dispatched on trust.

Failures are kept in the database, so that a new leader does not trust at once the pool that failed under the last one.
A pool is known by its cluster and its name. A failure while a pool is not trusted counts nothing: several gangs that
waited for the same nodes are one failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher import log
from dispatcher.api.potential import PotentialNodes
from dispatcher.core.model.potential import PoolFailures, pools_of
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger

_log = log.get("potential")


class FailureStore(Protocol):
    """The failures that outlast a leader."""

    async def note_pool(self, cluster: str, pool: str, failures: PoolFailures) -> None:
        """Store the failures of a pool in place of those stored before."""


class PotentialTrust:
    """The failures of each pool; `on_failure` is called with cluster and pool for each one that counts."""

    def __init__(
        self, store: FailureStore, now: Callable[[], datetime], on_failure: Callable[[str, str], None]
    ) -> None:
        self._store = store
        self._now = now
        self._on_failure = on_failure
        self._failures: dict[tuple[str, str], PoolFailures] = {}

    def load(self, failures: Mapping[tuple[str, str], PoolFailures]) -> None:
        """Load the failures that the database has, by cluster and pool."""
        self._failures = dict(failures)

    def distrusted_in(self, cluster: str) -> tuple[tuple[str, datetime], ...]:
        """The pools of a cluster that are not trusted now, each with the end of that; by name."""
        now = self._now()
        return tuple(
            sorted(
                (pool, each.until)
                for (name, pool), each in self._failures.items()
                if name == cluster and each.until > now
            )
        )

    async def note_failed(self, cluster: str, pools: Iterable[str], bind_within: timedelta) -> None:
        """Trust these pools no more for a while: their nodes did not come in that time. Raises `StoreError`."""
        now = self._now()
        for pool in pools:
            before = self._failures.get((cluster, pool), PoolFailures())
            after = before.after_failure(bind_within, now)
            if after == before:
                continue
            await self._store.note_pool(cluster, pool, after)
            self._failures[cluster, pool] = after
            self._on_failure(cluster, pool)
            _log.warning(
                "pool_distrusted",
                cluster=cluster,
                pool=pool,
                failures=after.count,
                until=after.until.isoformat(),
            )

    async def note_came(self, cluster: str, pools: Iterable[str]) -> None:
        """The nodes of these pools came: earlier failures count no more. Raises `StoreError`."""
        for pool in pools:
            if self._failures.pop((cluster, pool), None) is not None:
                await self._store.note_pool(cluster, pool, PoolFailures())


def declare_pools(cluster: str, ledger: CapacityLedger, declared: PotentialNodes) -> None:
    """Declare the pools of a cluster, in place of those declared before; logs if they cannot count."""
    pools = pools_of(declared)
    if pools and pools != ledger.pools and not ledger.counts_pools:
        _log.warning(
            "pools_not_counted",
            cluster=cluster,
            pools=[each.name for each in pools],
            because="potential nodes count only with DISPATCHER_FIT=node",
        )
    ledger.set_pools(pools)
