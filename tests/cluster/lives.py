"""What befalls a gang from outside, in the tests of its life: crashes, evictions, names that are taken."""

from __future__ import annotations

from typing import Any

from testbed.processes import Process
from tests.cluster.manifests import config_map, job
from tests.cluster.wires import expire_lease
from tests.cluster.world import World

Json = dict[str, Any]


async def crash(world: World, process: Process) -> None:
    """Kill the dispatcher; the next one need not wait for its lease."""
    await world.kill_dispatcher(process)
    await expire_lease(world.database_url)


async def evict(world: World, name: str) -> Json:
    """End a pod as a kubelet does that is short of memory."""
    said = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    return await world.merge_status("Pod", name, said)


async def in_the_way(world: World, name: str) -> None:
    """Have a ConfigMap that is being deleted until it is let go: what wants its name must wait."""
    await world.create(config_map(name, finalizers=["example.com/slow"]))
    await world.delete(name, "ConfigMap")


async def out_of_the_way(world: World, name: str) -> None:
    """Let go of it."""
    await world.merge("ConfigMap", name, {"metadata": {"finalizers": None}})


def breaking_job(name: str, fail_after: str = "500ms") -> Json:
    """A Job whose pod fails, and which its own controller does not try again."""
    made = job(name, fail_after=fail_after)
    made["spec"]["backoffLimit"] = 0
    return made
