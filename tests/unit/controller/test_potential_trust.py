"""Trust in pools: failures are stored, counted once, told, and forgotten once the nodes come."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from dispatcher.api.clusters.potential import OnPotential, parse_potential
from dispatcher.controller.members.potential_trust import PoolsFailed, PotentialTrust, declare_pools
from dispatcher.core.model.clusters.potential import FULL_TRUST, PoolFailures, Trust
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from tests.builders import NOW

SHORT = timedelta(seconds=10)


class Pools:
    """The database, the clock and the metric of one trust."""

    def __init__(self) -> None:
        self.now = NOW
        self.stored: list[tuple[str, str, str, int]] = []
        self.forgotten: list[tuple[str, str]] = []
        self.counted: list[tuple[str, str]] = []
        self.trust = PotentialTrust(self, lambda: self.now, lambda *pool: self.counted.append(pool))

    async def note_pool(
        self, cluster: str, pool: str, namespace: str, failures: PoolFailures, now: datetime
    ) -> None:
        assert now == self.now
        self.stored.append((cluster, pool, namespace, failures.count))

    async def forget_pool(self, cluster: str, pool: str) -> None:
        self.forgotten.append((cluster, pool))

    async def fail(self, *namespaces: str, confirmed: bool = True) -> None:
        """A gang of each of these namespaces had no nodes of the pool l4 in the cluster east."""
        for namespace in namespaces:
            failed = PoolsFailed("east", frozenset({"l4"}), namespace, confirmed=confirmed)
            await self.trust.note_failed(failed, SHORT)

    def trust_in(self, cluster: str) -> Trust:
        return self.trust.trust_in(cluster, OnPotential.DISPATCH)


async def test_pool_that_failed_is_not_trusted_in_its_namespace_for_a_while_that_doubles() -> None:
    pools = Pools()
    await pools.fail("a", "a")  # another gang that waited for the same nodes
    assert pools.trust_in("east") == Trust(in_namespaces=(("a", "l4", NOW + SHORT),))
    assert pools.trust_in("west") == FULL_TRUST
    pools.now += SHORT
    assert pools.trust_in("east") == FULL_TRUST
    await pools.fail("a")
    assert pools.trust_in("east") == Trust(in_namespaces=(("a", "l4", pools.now + 2 * SHORT),))
    assert pools.stored == [("east", "l4", "a", 1), ("east", "l4", "a", 2)]
    assert pools.counted == [("east", "l4")] * 2


async def test_pool_that_failed_in_three_namespaces_is_trusted_by_none() -> None:
    pools = Pools()
    await pools.fail("a", "b")
    assert not pools.trust_in("east").distrusted
    await pools.fail("c")
    assert pools.trust_in("east") == Trust(distrusted=(("l4", NOW + SHORT),))


async def test_pods_that_no_scheduler_looks_at_keep_no_other_namespace_from_a_pool() -> None:
    pools = Pools()
    await pools.fail("a", "b")
    await pools.fail("c", "d", "e", confirmed=False)
    trust = pools.trust_in("east")
    assert not trust.distrusted
    assert [each.has("l4", namespace) for namespace in "abcdef" for each in [trust]] == [False] * 5 + [True]
    await pools.fail("e")  # a scheduler has looked since
    assert pools.trust_in("east").distrusted == (("l4", NOW + SHORT),)
    assert pools.counted == [("east", "l4")] * 5


async def test_failures_outlast_a_leader() -> None:
    pools = Pools()
    pools.trust.load({("east", "l4", "a"): PoolFailures(3, NOW + SHORT)})
    assert pools.trust_in("east") == Trust(in_namespaces=(("a", "l4", NOW + SHORT),))


async def test_nodes_that_come_end_the_count_for_all() -> None:
    pools = Pools()
    await pools.fail("a", "b", "c", "d")
    await pools.trust.note_came("east", ["l4", "cpu"])
    assert pools.trust_in("east") == FULL_TRUST
    assert pools.forgotten == [("east", "l4")]


@pytest.mark.parametrize(("mode", "logged"), [(FitMode.AGGREGATE, ["pools_not_counted"]), (FitMode.NODE, [])])
def test_pools_that_cannot_count_are_logged_once(mode: FitMode, logged: list[str]) -> None:
    node = {"allocatable": {"cpu": "4"}, "labels": {"pool": "l4"}}
    declared = parse_potential(json.dumps({"pools": [{"name": "l4", "max": 1, "node": node}]}))
    ledger = CapacityLedger(mode)
    with capture_logs() as logs:
        declare_pools("hub", ledger, declared)
        declare_pools("hub", ledger, declared)
    assert [each["event"] for each in logs] == logged
    assert [each.name for each in ledger.pools] == ["l4"]
