"""What somebody changes of a gang's objects in a member cluster is told on the hub."""

from __future__ import annotations

from tests.cluster.lives import GROWTH, edit, until_drift
from tests.cluster.manifests import appwrapper, deployment, item, job
from tests.cluster.members.fleet import Fleet

IMAGE = "spec__template__spec__containers__0__image"


async def test_edit_in_a_member_is_reported_on_the_hub_and_left_alone(fleet: Fleet) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", appwrapper("gang", item(job("train")), item(deployment("serve"))))
    west = fleet.members["west"]

    await edit(west, "Deployment", "serve", spec__replicas=2, **{IMAGE: "other"})
    image = f"Deployment {west.namespace}/serve: spec.template.spec.containers[0].image"
    await until_drift(fleet.hub, "gang", f"{image} was")
    edited = (await west.get("Deployment", "serve")) or {}
    assert edited["spec"]["template"]["spec"]["containers"][0]["image"] == "other"

    await edit(west, "Deployment", "serve", **{IMAGE: "none"})
    await until_drift(fleet.hub, "gang", None)
    causes = [cause for cause in await fleet.hub.causes("gang") if cause not in GROWTH]
    assert causes[4:] == ["unhealthy", "recovered"]
    assert await fleet.objects("Deployment") == {"west": {"serve"}}


async def test_owner_that_is_taken_from_an_object_in_a_member_is_drift_once_it_is_edited(
    fleet: Fleet,
) -> None:
    """Nothing of it would go with its gang: its anchor owns it no longer."""
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", appwrapper("gang", item(deployment("serve"))))
    west = fleet.members["west"]
    owners = ((await west.get("Deployment", "serve")) or {})["metadata"]["ownerReferences"]

    await edit(west, "Deployment", "serve", metadata__ownerReferences=[], spec__replicas=2)
    await until_drift(fleet.hub, "gang", f"Deployment {west.namespace}/serve: metadata.ownerReferences was")

    await edit(west, "Deployment", "serve", metadata__ownerReferences=owners, spec__replicas=1)
    await until_drift(fleet.hub, "gang", None)
