"""Namespaces of a member take gangs if they opted in, and those that are made for gangs are as strict as the hub's."""

from __future__ import annotations

from typing import Final

from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_obstacles import told
from tests.cluster.world import World

SECURITY: Final = {
    "pod-security.kubernetes.io/enforce": "baseline",
    "pod-security.kubernetes.io/warn": "baseline",
}
OPEN: Final = {"dispatcher.codeflare.dev/dispatch": "enabled"}


async def label(client: ClusterClient, namespace: str, labels: dict[str, str]) -> None:
    await client.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}}, MERGE_PATCH)


async def test_gang_waits_for_its_namespace_in_the_member_to_opt_in(fleet: Fleet) -> None:
    await fleet.declare("west", acceptedNamespaces="Labelled")
    await fleet.start_dispatcher()
    await fleet.hub.create(gang("two", 2))

    said = await told(fleet, "two", "NamespaceNotEnabled")
    assert "dispatcher.codeflare.dev/dispatch=enabled" in said["west"][1]

    await label(fleet.members["west"].client, fleet.hub.namespace, OPEN)
    assert (await fleet.hub.until_state("two", "Running"))["cluster"] == "west"


async def test_namespace_that_is_made_in_a_member_takes_gangs_and_has_the_hubs_pod_security(
    fleet: Fleet, elsewhere: World
) -> None:
    await label(fleet.hub.client, elsewhere.namespace, {**SECURITY, "team": "vision"})
    await fleet.declare("west", namespacePolicy="Create", acceptedNamespaces="Labelled")
    await fleet.start_dispatcher()
    for name in ("one", "another"):
        await elsewhere.create(gang(name, 1))
        assert (await elsewhere.until_state(name, "Running"))["cluster"] == "west"

    made = await fleet.members["west"].client.get(f"/api/v1/namespaces/{elsewhere.namespace}")
    own = {"kubernetes.io/metadata.name": elsewhere.namespace}
    assert made["metadata"]["labels"] == {**SECURITY, **OPEN, **own}
