"""Declared pools, and which are not trusted now: their nodes did not come for a gang that was dispatched on trust.

Failures are kept in the database, so that a new leader does not trust at once the pool that failed under the last one.
A pool is known by its cluster and its name. Its failures are counted by the namespace of the gang, because an author
can make pods that want none of its nodes. The gangs of that namespace do not trust the pool for a while. No gang trusts
it once enough namespaces had a failure that a scheduler confirmed. A failure while a namespace does not trust a pool
counts nothing: several gangs that waited for the same nodes are one failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct

from dispatcher import log
from dispatcher.api.clusters.potential import OnPotential, PotentialNodes
from dispatcher.core.model.clusters.potential import PoolFailures, Trust, distrusted_until, pools_of, trust_in
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger

_log = log.get("potential")

FailuresByPool = Mapping[tuple[str, str, str], PoolFailures]
"""The failures of pools by cluster, pool and namespace."""


class PoolsFailed(Struct, frozen=True):
    """Pools of a cluster whose nodes did not come for a gang of a namespace.

    The failure is `confirmed` if a scheduler said of a pod of the gang that no node takes it.
    """

    cluster: str
    pools: frozenset[str]
    namespace: str
    confirmed: bool


class FailureStore(Protocol):
    """The failures that outlast a leader."""

    async def note_pool(
        self, cluster: str, pool: str, namespace: str, failures: PoolFailures, now: datetime
    ) -> None:
        """Store the failures of a pool in a namespace in place of those stored before."""

    async def forget_pool(self, cluster: str, pool: str) -> None:
        """Remove all failures of a pool."""


class PotentialTrust:
    """The failures of each pool; `on_failure` is called with cluster and pool for each one that counts.

    A cluster has as many as pools and namespaces failed in the last hours; a cycle reads those of each cluster once.
    """

    def __init__(
        self, store: FailureStore, now: Callable[[], datetime], on_failure: Callable[[str, str], None]
    ) -> None:
        self._store = store
        self._now = now
        self._on_failure = on_failure
        self._failures: dict[str, dict[str, dict[str, PoolFailures]]] = {}

    def load(self, failures: FailuresByPool) -> None:
        """Load the failures that the database has."""
        self._failures = {}
        for (cluster, pool, namespace), each in failures.items():
            self._failures.setdefault(cluster, {}).setdefault(pool, {})[namespace] = each

    def trust_in(self, cluster: str, policy: OnPotential) -> Trust:
        """The trust in the pools of a cluster now."""
        return trust_in(policy, self._failures.get(cluster, {}), self._now())

    async def note_failed(self, failed: PoolsFailed, bind_within: timedelta) -> None:
        """Trust these pools less for a while: their nodes did not come in that time. Raises `StoreError`."""
        for pool in failed.pools:
            await self._note_failed(failed, pool, bind_within)

    async def _note_failed(self, failed: PoolsFailed, pool: str, bind_within: timedelta) -> None:
        now, cluster, namespace = self._now(), failed.cluster, failed.namespace
        known = self._failures.get(cluster, {}).get(pool, {})
        before = known.get(namespace, PoolFailures())
        after = before.after_failure(bind_within, now, confirmed=failed.confirmed)
        if after == before:
            return
        await self._store.note_pool(cluster, pool, namespace, after, now)
        # Read again: the failures in other namespaces may have changed meanwhile.
        known = self._failures.get(cluster, {}).get(pool, {})
        kept = {name: each for name, each in known.items() if each.counts_at(now)} | {namespace: after}
        self._failures.setdefault(cluster, {})[pool] = kept
        if after.count != before.count:
            self._on_failure(cluster, pool)
        end = distrusted_until(kept.values())
        _log.warning(
            "pool_distrusted",
            cluster=cluster,
            pool=pool,
            namespace=namespace,
            failures=after.count,
            confirmed=after.confirmed,
            until=after.until.isoformat(),
            by_all_until=end.isoformat() if end is not None and end > now else "",
        )

    async def note_came(self, cluster: str, pools: Iterable[str]) -> None:
        """The nodes of these pools came: earlier failures count no more. Raises `StoreError`."""
        for pool in pools:
            if self._failures.get(cluster, {}).pop(pool, None) is not None:
                await self._store.forget_pool(cluster, pool)


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
