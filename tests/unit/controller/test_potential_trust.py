"""Trust in pools: failures are stored, counted once, told, and forgotten once the nodes come."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from dispatcher.api.potential_schema import parse_potential
from dispatcher.controller.members.potential_trust import PotentialTrust, declare_pools
from dispatcher.core.model.potential import PoolFailures
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from tests.builders import NOW

SHORT = timedelta(seconds=10)


class Pools:
    """The database, the clock and the metric of one trust."""

    def __init__(self) -> None:
        self.now = NOW
        self.stored: list[tuple[str, str, int]] = []
        self.counted: list[tuple[str, str]] = []
        self.trust = PotentialTrust(self, lambda: self.now, lambda *pool: self.counted.append(pool))

    async def note_pool(self, cluster: str, pool: str, failures: PoolFailures) -> None:
        self.stored.append((cluster, pool, failures.count))


async def test_pool_that_failed_is_not_trusted_for_a_while_that_doubles() -> None:
    pools = Pools()
    await pools.trust.note_failed("east", ["l4"], SHORT)
    await pools.trust.note_failed("east", ["l4"], SHORT)  # another gang that waited for the same nodes
    assert pools.trust.distrusted_in("east") == (("l4", NOW + SHORT),)
    assert pools.trust.distrusted_in("west") == ()
    pools.now += SHORT
    assert pools.trust.distrusted_in("east") == ()
    await pools.trust.note_failed("east", ["l4"], SHORT)
    assert pools.trust.distrusted_in("east") == (("l4", pools.now + 2 * SHORT),)
    assert pools.stored == [("east", "l4", 1), ("east", "l4", 2)]
    assert pools.counted == [("east", "l4")] * 2


async def test_nodes_that_come_end_the_count() -> None:
    pools = Pools()
    pools.trust.load({("east", "l4"): PoolFailures(3, NOW + SHORT)})
    assert pools.trust.distrusted_in("east") == (("l4", NOW + SHORT),)
    await pools.trust.note_came("east", ["l4", "cpu"])
    assert pools.trust.distrusted_in("east") == ()
    assert pools.stored == [("east", "l4", 0)]


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
