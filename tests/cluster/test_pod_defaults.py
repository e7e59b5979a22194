"""Pods request what the API server adds at their creation, and the gang is charged for it before."""

from __future__ import annotations

from typing import Any

from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


async def test_gang_is_charged_for_defaults_of_its_namespace_and_overhead(world: World) -> None:
    runtime_class = await world.client.create(
        RUNTIME_CLASSES,
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": f"heavy-{world.namespace}"},
            "handler": "heavy",
            "overhead": {"podFixed": {"cpu": "500m"}},
        },
    )
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1500m"}}]},
    }
    await world.client.create(f"/api/v1/namespaces/{world.namespace}/limitranges", limit_range)
    name = runtime_class["metadata"]["name"]
    try:
        plain = job("plain", 3)
        template = plain["spec"]["template"]["spec"]
        template["containers"][0]["resources"] = {}
        template["runtimeClassName"] = name
        await world.start_dispatcher()
        await world.create_until("Running", appwrapper("plain", item(plain)))
        (row,) = await rows(world, "SELECT demand FROM appwrapper WHERE name = 'plain'")
        assert row["demand"] == {"cpu": 6000}
        pods = await world.every("Pod")
        assert [_requested(pod) for pod in pods] == [("1500m", "500m")] * 3
    finally:
        await world.client.delete(f"{RUNTIME_CLASSES}/{name}", runtime_class["metadata"]["uid"])


def _requested(pod: Json) -> tuple[str, str]:
    (container,) = pod["spec"]["containers"]
    return container["resources"]["requests"]["cpu"], pod["spec"]["overhead"]["cpu"]
