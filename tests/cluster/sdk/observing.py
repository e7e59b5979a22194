"""What the SDK is not asked: the cluster's own word on what it has."""

from __future__ import annotations

from tests.cluster.world import World

INGRESSES = "apis/networking.k8s.io/v1/{}/ingresses"
SECRETS = "api/v1/{}/secrets"
RAYCLUSTERS = "apis/ray.io/v1/{}/rayclusters"


async def until_ready(world: World, name: str) -> None:
    """Return once KubeRay and the dispatcher agree that a cluster runs."""

    async def is_ready() -> bool:
        found = await world.get("RayCluster", name)
        return ((found or {}).get("status") or {}).get("state") == "ready"

    await world.until(is_ready, f"RayCluster {name} is ready")
    await world.until_state(name, "Running")


async def until_gone(world: World, name: str) -> None:
    """Return once nothing of a cluster is there, its Ingresses included.

    The SDK takes the first Ingress of the namespace for the dashboard's, whatever its name.
    """
    await world.until_gone("AppWrapper", name)
    await world.until_gone("RayCluster", name)

    async def nothing_leads_there() -> bool:
        return not any(ingress.endswith(f"-{name}") for ingress in await names_of(world, INGRESSES))

    await world.until(nothing_leads_there, f"the Ingresses of {name} are gone")


async def names_of(world: World, collection: str) -> list[str]:
    """The names of all objects of a kind in our namespace."""
    listed = await world.client.get("/" + collection.format(f"namespaces/{world.namespace}"))
    return sorted(each["metadata"]["name"] for each in listed["items"])
