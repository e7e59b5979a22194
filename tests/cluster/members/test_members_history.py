"""What history is told of members: who closed one and why, when it was away, and how full it was meanwhile."""

from __future__ import annotations

from typing import Any

from testbed.stack import crash, recover
from tests.cluster.lives import crash_all
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_loss import until_told
from tests.postgres.changes import rows_of

Rows = list[tuple[Any, ...]]


def events(fleet: Fleet, name: str) -> Rows:
    """What happened to a cluster, in order."""
    query = "SELECT event, reason FROM cluster_event WHERE cluster = %s ORDER BY id"
    return rows_of(fleet.hub.database_url, query, name)


async def until_happened(fleet: Fleet, name: str, event: str) -> None:
    async def look() -> bool:
        return event in {each for each, _ in events(fleet, name)}

    await fleet.hub.until(look, f"history tells that {name} is {event}")


async def until_sampled(fleet: Fleet, expected: Rows) -> None:
    """Return once the newest sample of the processors of `west` is this one."""

    async def look() -> bool:
        query = (
            "SELECT capacity, held, other, free, is_reachable FROM capacity_sample "
            "WHERE cluster = 'west' AND resource = 'cpu' ORDER BY at DESC LIMIT 1"
        )
        return rows_of(fleet.hub.database_url, query) == expected

    await fleet.hub.until(look, f"the newest sample is {expected}")


async def test_each_leader_records_a_member_that_is_cordoned_lost_and_back(fleet: Fleet) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher(sample_seconds="1")
    await fleet.hub.create_until("Running", gang("two", 2))
    await until_sampled(fleet, [(8000, 2000, 0, 6000, True)])
    await fleet.change("west", cordoned=True, cordonReason="new switches")
    await until_happened(fleet, "west", "cordoned")
    west = fleet.members["west"].plane
    await crash(west)
    try:
        await until_happened(fleet, "west", "unreachable")
        await crash_all(fleet.hub)
        await fleet.start_dispatcher(sample_seconds="1")
        await until_sampled(fleet, [(8000, 2000, 0, 6000, False)])
        await fleet.change("west", cordoned=False)
        await until_happened(fleet, "west", "uncordoned")
    finally:
        await recover(west)
    await until_told(fleet, "west", None)
    await until_sampled(fleet, [(8000, 2000, 0, 6000, True)])
    await fleet.remove("west")
    await until_happened(fleet, "west", "removed")

    told = events(fleet, "west")
    # It may be away more than once, and refuse us for a moment when it has only just begun.
    passing = {"unreachable", "reachable", "closed", "opened"}
    assert [each for each in told if each[0] not in passing] == [
        ("connected", ""),
        ("cordoned", "ClusterCordoned"),
        ("uncordoned", ""),
        ("removed", ""),
    ]
    away = [event for event, _ in told if event in {"unreachable", "reachable"}]
    assert away == ["unreachable", "reachable"] * (len(away) // 2)
    said = "SELECT message FROM cluster_event WHERE event = 'cordoned'"
    assert rows_of(fleet.hub.database_url, said) == [("new switches",)]
    running = "SELECT max(running), min(running_cpu) FILTER (WHERE running = 1) FROM queue_sample"
    assert rows_of(fleet.hub.database_url, running) == [(1, 2)]
    twice = "SELECT at FROM queue_sample GROUP BY at HAVING count(*) > 1"
    assert rows_of(fleet.hub.database_url, twice) == []
