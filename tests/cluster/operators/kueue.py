"""A queue of Kueue in the namespace of a world, and what Kueue does with the objects that name it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from dispatcher.kube.client import MERGE_PATCH
from testbed.kueue_operator import VERSION
from tests.cluster.manifests import changed
from tests.cluster.world import World

Json = dict[str, Any]

API: Final = f"/apis/{VERSION}"
QUEUE: Final = "users"
"""The LocalQueue that the objects name."""
NODE_LABELS: Final = {"kubernetes.io/os": "linux"}
"""Labels of the flavor, and of every node: Kueue writes them into the node selectors of what it admits."""


class KueueQueue:
    """A ClusterQueue of one flavor, which admits by CPUs, and its LocalQueue `users`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.path = f"{API}/clusterqueues/{world.namespace}"

    async def set_quota(self, cpu: str) -> None:
        """Have the queue admit objects of so many CPUs in all."""
        await self._world.client.patch(
            self.path, {"spec": {"resourceGroups": _groups(self._world.namespace, cpu)}}, MERGE_PATCH
        )

    async def stop(self, policy: str) -> None:
        """Set the stop policy: `HoldAndDrain` evicts what was admitted, `None` admits again."""
        await self._world.client.patch(self.path, {"spec": {"stopPolicy": policy}}, MERGE_PATCH)

    async def add_local(self, name: str) -> None:
        """Create a LocalQueue of this queue, which Kueue knows after it."""
        world = self._world
        plural = f"namespaces/{world.namespace}/localqueues"
        await _create(world, "LocalQueue", plural, name, {"clusterQueue": world.namespace})

        async def is_known() -> bool:
            status = (await world.client.get(f"{API}/{plural}/{name}")).get("status") or {}
            return any(each["status"] == "True" for each in status.get("conditions", ()))

        await world.until(is_known, f"Kueue knows the LocalQueue {name}")

    async def until_reserved(self, cpu: str) -> None:
        """Return once the queue has reserved exactly so many CPUs."""

        async def is_reserved() -> bool:
            status = (await self._world.client.get(self.path)).get("status") or {}
            return [
                one["total"] for each in status.get("flavorsReservation", ()) for one in each["resources"]
            ] == [cpu]

        await self._world.until(is_reserved, f"Kueue has reserved {cpu} CPUs")

    async def until_workloads(self, expected: set[tuple[str, str]]) -> None:
        """Return once Kueue looks after exactly the objects of these kinds and names."""

        async def is_so() -> bool:
            return await self._workloads() == expected

        await self._world.until(is_so, f"Kueue looks after {expected}")

    async def _workloads(self) -> set[tuple[str, str]]:
        found = await self._world.client.get(f"{API}/namespaces/{self._world.namespace}/workloads")
        return {
            (owner["kind"], owner["name"])
            for each in found["items"]
            for owner in each["metadata"]["ownerReferences"]
        }


@asynccontextmanager
async def kueue_queue(world: World, cpu: str) -> AsyncIterator[KueueQueue]:
    """A queue for the namespace of a world; it is gone once its objects are."""
    name = world.namespace
    flavor = await _create(world, "ResourceFlavor", "resourceflavors", name, {"nodeLabels": NODE_LABELS})
    spec = {"namespaceSelector": {}, "resourceGroups": _groups(name, cpu)}
    queue = await _create(world, "ClusterQueue", "clusterqueues", name, spec)
    made = KueueQueue(world)
    await made.add_local(QUEUE)
    try:
        yield made
    finally:
        for plural, each in {"clusterqueues": queue, "resourceflavors": flavor}.items():
            await world.client.delete(f"{API}/{plural}/{name}", each["metadata"]["uid"])


def labelled(manifest: Json) -> Json:
    """The same object, which Kueue is to admit."""
    return changed(manifest, "metadata.labels", {KUEUE_QUEUE_LABEL: QUEUE})


async def _create(world: World, kind: str, plural: str, name: str, spec: Json) -> Json:
    manifest = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return await world.client.create(f"{API}/{plural}", manifest)


def _groups(flavor: str, cpu: str) -> list[Json]:
    resources = [{"name": "cpu", "nominalQuota": cpu}]
    return [{"coveredResources": ["cpu"], "flavors": [{"name": flavor, "resources": resources}]}]
