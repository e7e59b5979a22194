"""A gang is charged for what the clusters that it may go to add to its pods, each by its own LimitRanges."""

from __future__ import annotations

from typing import Any

from dispatcher.api.names import CLUSTER_SELECTOR
from tests.cluster.manifests import appwrapper, bent, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]


def without_requests(name: str, annotations: dict[str, str], *, suspend: bool = False) -> Json:
    """Two pods that request nothing."""
    plain = job(name, 2)
    plain["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    return bent(appwrapper(name, item(plain), suspend=suspend), annotations)


async def requests_by_default(world: World, cpu: str) -> None:
    limits = [{"type": "Container", "defaultRequest": {"cpu": cpu}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"}}
    await world.client.create(
        f"/api/v1/namespaces/{world.namespace}/limitranges", {**body, "spec": {"limits": limits}}
    )


async def test_gang_is_charged_for_the_largest_defaults_of_the_members_that_it_selects(fleet: Fleet) -> None:
    await requests_by_default(fleet.hub, "7")  # no gang goes there
    for name, cpu in (("east", "1"), ("west", "1500m")):
        await requests_by_default(fleet.members[name], cpu)
        await fleet.declare(name, labels={"at": name})
    await fleet.start_dispatcher()

    await fleet.hub.create(without_requests("anywhere", {}))
    await fleet.hub.until_state("anywhere", "Running")
    await fleet.hub.create(without_requests("east", {CLUSTER_SELECTOR: "at=east"}, suspend=True))
    await fleet.hub.until_state("east", "Suspended")

    found = await rows(fleet.hub, "SELECT name, demand FROM appwrapper ORDER BY name")
    assert [(row["name"], row["demand"]) for row in found] == [
        ("anywhere", {"cpu": 3000}),
        ("east", {"cpu": 2000}),
    ]
    (attempt,) = await rows(fleet.hub, "SELECT cluster, demand FROM attempt")
    assert attempt["demand"] == {"cpu": {"east": 2000, "west": 3000}[attempt["cluster"]]}
