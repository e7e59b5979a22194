"""A tree of queues over two members: what a queue borrowed on both comes back to its owner, and then returns."""

from __future__ import annotations

from typing import Any

from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.outcomes import rows

Json = dict[str, Any]


def gang(name: str, queue: str, pods: int) -> Json:
    """So many pods of 4 cpu each, in a queue."""
    manifest = appwrapper(name, item(job(name, pods, cpu="4")))
    manifest["metadata"]["labels"] = {"dispatcher.codeflare.dev/queue": queue}
    return manifest


async def test_borrowed_capacity_comes_back_to_its_owner(fleet: Fleet, declare: Declare) -> None:
    await declare("company")
    quota = {"nominalQuota": 8}
    await declare("owner", parent="company", resources={"cpu": quota}, preemption={"reclaim": "Any"})
    await declare("guest", parent="company", resources={"cpu": {"nominalQuota": 4}})
    await fleet.declare("east")
    await fleet.declare("west")
    await fleet.start_dispatcher()

    for name, cluster in (("first", "east"), ("second", "west"), ("third", "west")):
        await fleet.hub.create(gang(name, "guest", 1))
        assert (await fleet.hub.until_state(name, "Running"))["cluster"] == cluster

    await fleet.hub.create(gang("large", "owner", 2))
    assert (await fleet.hub.until_state("large", "Running"))["cluster"] == "west"
    assert await fleet.objects("Job") == {"east": {"first"}, "west": {"large"}}
    for name in ("second", "third"):
        victim = await fleet.hub.until_state(name, "Backoff")
        (why,) = (each for each in victim["conditions"] if each["type"] == "PreemptCandidate")
        assert why["reason"] == "QuotaReclaimed"

    await fleet.hub.delete("large")
    for name in ("second", "third"):
        assert (await fleet.hub.until_state(name, "Running"))["cluster"] == "west"
    assert await rows(fleet.hub, BEYOND) == []


# The use of the tree at the time of each dispatch, in milli cpu.
BEYOND = """
SELECT t.name FROM history.attempt_history AS t
WHERE (SELECT sum(o.cpu) FROM history.attempt_history AS o
       WHERE o.decided_at <= t.decided_at AND coalesce(o.ended_at, 'infinity') > t.decided_at) > 12
"""
