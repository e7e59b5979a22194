"""What befalls a gang from outside, in the tests of its life: crashes, evictions, names that are taken."""

from __future__ import annotations

from typing import Any

from testbed.processes import Process
from tests.cluster.manifests import config_map, job
from tests.cluster.wires import expire_lease
from tests.cluster.world import World

Json = dict[str, Any]

GROWTH = ("grew", "shrank")
"""Causes in history that say how many pods a gang has, and not how it fares."""


async def crash(world: World, process: Process) -> None:
    """Kill the dispatcher; the next one need not wait for its lease."""
    await world.kill_dispatcher(process)
    await expire_lease(world.database_url)


async def crash_all(world: World) -> None:
    """Kill every dispatcher; the next one need not wait for their lease."""
    await world.kill_dispatchers()
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


async def until_drift(world: World, name: str, edited: str | None) -> None:
    """Return once an AppWrapper is told to have drifted in these words, or (None) that nothing is wrong with it."""
    wanted = edited and ("Drifted", f"{edited} changed")

    async def shown() -> bool:
        issue = (((await world.get("AppWrapper", name)) or {}).get("status") or {}).get("unhealthy")
        return (issue and (issue["reason"], issue["message"])) == wanted

    await world.until(shown, f"{name} is shown with {wanted}")


async def edit(world: World, kind: str, name: str, **values: object) -> None:
    """Change what is at these paths of an object, `__` for a slash, as `kubectl edit` does."""
    ops = [
        {"op": "add", "path": "/" + path.replace("__", "/"), "value": value} for path, value in values.items()
    ]
    await world.client.patch(world.path(kind, name), ops)
