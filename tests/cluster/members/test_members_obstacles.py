"""What is in the way on a member, and what people do there: a gang goes elsewhere, waits and says why, or fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dispatcher.api.names import CLUSTER_SELECTOR
from testbed.stand_in import Api
from tests.cluster.definitions import install, uninstall
from tests.cluster.lives import GROWTH, breaking_job, edit, until_drift
from tests.cluster.manifests import appwrapper, bent, config_map, deployment, item, job, service
from tests.cluster.mcad.suite import conditions
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import anchors, gang
from tests.cluster.world import World

Json = dict[str, Any]

# --- a kind that a member does not serve -------------------------------------------------------------

WIDGETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.test.example.com"},
    "spec": {
        "group": "test.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


class Definition:
    """A kind that members serve or do not."""

    def __init__(self, apis: dict[str, Api]) -> None:
        self._apis = apis

    async def install(self, member: str) -> None:
        """Have a member serve it."""
        await install(self._apis[member], WIDGETS)


@pytest.fixture
async def widgets(fleet: Fleet) -> AsyncIterator[Definition]:
    """A kind that no member serves yet, and none at the end."""
    async with AsyncExitStack() as stack:
        apis = {
            name: await stack.enter_async_context(Api.connect(member.plane.kubeconfig))
            for name, member in fleet.members.items()
        }
        yield Definition(apis)
        for name, api in apis.items():
            if await is_installed(fleet.members[name]):
                await uninstall(api, WIDGETS)


async def is_installed(member: World) -> bool:
    found = await member.client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    return any(each["metadata"]["name"] == WIDGETS["metadata"]["name"] for each in found["items"])


def with_a_widget(name: str) -> Json:
    """A gang that suits east better than west."""
    widget = {"apiVersion": "test.example.com/v1", "kind": "Widget", "metadata": {"name": name}}
    no_pods = {"replicas": 0, "requests": {"cpu": "1"}}
    return appwrapper(
        name, item(job(name, parallelism=2, cpu="1")), item(widget, custompodresources=[no_pods])
    )


async def test_gang_of_a_kind_that_one_member_lacks_goes_to_the_other_and_is_found_when_it_is_installed(
    fleet: Fleet, widgets: Definition
) -> None:
    await widgets.install("west")
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()

    await fleet.hub.create(with_a_widget("first"))
    assert (await fleet.hub.until_state("first", "Running"))["cluster"] == "west"
    await fleet.change("west", cordoned=True)
    await fleet.hub.create(with_a_widget("second"))
    assert await told(fleet, "second", "KindNotInstalled") == {
        "east": (
            "KindNotInstalled",
            "it does not serve Widget of test.example.com/v1: install the CustomResourceDefinition there, or correct "
            "apiVersion and kind",
        ),
        "west": ("ClusterCordoned", "it takes nothing new"),
    }

    await widgets.install("east")
    assert (await fleet.hub.until_state("second", "Running"))["cluster"] == "east"
    assert await fleet.objects("Job") == {"east": {"second"}, "west": {"first"}}


# --- what people do on a member ----------------------------------------------------------------------


def mixed(name: str) -> Json:
    return appwrapper(
        name, item(job("lost")), item(deployment("server")), item(config_map("input")), item(service("door"))
    )


async def test_object_deleted_in_a_member_fails_its_gang_and_objects_with_pods_are_removed(
    fleet: Fleet,
) -> None:
    east = await in_east(fleet, mixed("robbed"))

    await east.delete("lost", "Job")

    status = await fleet.hub.until_shown("robbed", "Failed")
    assert conditions(status)["Failed"] == (
        "True",
        "MissingComponent",
        f"Only found 3 deployed components, but was expecting 4: Job {east.namespace}/lost was deleted",
    )
    assert [await east.every(kind) for kind in ("Job", "Deployment", "Pod")] == [[], [], []]
    assert (await east.names("Service"), {"input"} <= await east.names("ConfigMap")) == ({"door"}, True)
    assert (await fleet.hub.causes("robbed")).count("dispatched") == 1
    await fleet.hub.delete("robbed")
    await fleet.hub.until_gone("AppWrapper", "robbed")
    assert (await east.names("Service"), await anchors(fleet)) == (set(), {})


async def test_anchor_deleted_by_a_user_takes_its_gang_with_it(fleet: Fleet) -> None:
    east = await in_east(fleet, mixed("robbed"))
    [anchor] = (await anchors(fleet))["east"]

    await east.delete(anchor, "ConfigMap")

    status = await fleet.hub.until_shown("robbed", "Failed")
    assert conditions(status)["Failed"][:2] == ("True", "MissingComponent")
    kinds = ("Job", "Deployment", "Service", "Pod")
    for kind in kinds:
        await until_none(east, kind)
    assert (await fleet.hub.causes("robbed")).count("dispatched") == 1
    await fleet.hub.delete("robbed")
    await fleet.hub.until_gone("AppWrapper", "robbed")
    assert await anchors(fleet) == {}


async def test_pod_deleted_in_a_member_is_replaced_by_its_controller_only(fleet: Fleet) -> None:
    east = await in_east(fleet, gang("heals", 2))
    before = {each["metadata"]["uid"] for each in await east.every("Pod")}
    victim = (await east.every("Pod"))[0]["metadata"]["name"]

    await east.delete(victim, "Pod")

    async def replaced() -> bool:
        running = {
            each["metadata"]["uid"]
            for each in await east.every("Pod")
            if each["status"]["phase"] == "Running"
        }
        return len(running) == 2 and running != before

    await east.until(replaced, "another pod runs")
    await until_well(fleet, "heals")
    causes = await fleet.hub.causes("heals")
    assert (causes.count("dispatched"), {"evicted", "run-failed"} & set(causes)) == (1, set())


@pytest.mark.parametrize(
    ("work", "ending", "state", "said"),
    [
        pytest.param(job("work", run_for="1s"), "Complete", "Completed", "", id="completes"),
        pytest.param(
            breaking_job("work"),
            "Failed",
            "Failed",
            "Job {}/work failed: BackoffLimitExceeded: Job has reached the specified backoff limit",
            id="fails",
        ),
    ],
)
async def test_end_of_a_gang_in_a_member_is_shown_on_the_hub(
    fleet: Fleet, work: Json, ending: str, state: str, said: str
) -> None:
    await fleet.declare("east")
    await fleet.start_dispatcher()

    await fleet.hub.create(appwrapper("works", item(work)))

    told = conditions(await fleet.hub.until_shown("works", state))[state]
    message, _, failed_first = told[2].partition("; failed first: ")
    assert (told[0], message) == ("True", said.format(fleet.hub.namespace))
    assert failed_first.endswith(", exit code 1, Error") is (state == "Failed")
    ended = conditions((await fleet.members["east"].get("Job", "work") or {})["status"])[ending]
    assert ended[0] == "True"


# --- names that are taken ----------------------------------------------------------------------------


async def test_gang_whose_name_is_taken_on_one_member_goes_to_the_other(fleet: Fleet) -> None:
    """What had been made of it before is removed, and what has the name is not touched."""
    await fleet.declare("east", "west")
    theirs = await fleet.members["east"].create(config_map("input"))
    await fleet.start_dispatcher()

    await fleet.hub.create(needs_a_name("gang"))

    assert (await fleet.hub.until_state("gang", "Running"))["cluster"] == "west"
    assert await fleet.objects("Job") == {"west": {"gang"}}
    assert await fleet.members["east"].get("ConfigMap", "input") == theirs
    assert (await anchors(fleet)).keys() == {"west"}


async def test_gang_whose_name_is_taken_on_every_member_fails_and_says_by_what(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    theirs = {name: await member.create(config_map("input")) for name, member in fleet.members.items()}
    await fleet.start_dispatcher()

    await fleet.hub.create(needs_a_name("gang"))

    status = await fleet.hub.until_shown("gang", "Failed")
    _, reason, message = conditions(status)["Failed"]
    assert reason == "ItemCreationFailure."
    assert f"ConfigMap {fleet.hub.namespace}/input" in message
    assert {name: await member.get("ConfigMap", "input") for name, member in fleet.members.items()} == theirs
    assert (await fleet.objects("Job"), await anchors(fleet)) == ({}, {})


def needs_a_name(name: str) -> Json:
    """A gang that suits east better than west, and makes its ConfigMap last."""
    return appwrapper(name, item(job(name, parallelism=2, cpu="1")), item(config_map("input")))


# --- who waits ---------------------------------------------------------------------------------------


async def test_gang_that_waits_for_a_label_goes_when_a_member_is_given_it(fleet: Fleet) -> None:
    await fleet.declare("east", labels={"zone": "e"})
    await fleet.start_dispatcher()
    await fleet.hub.create(bent(gang("waits", 1), {CLUSTER_SELECTOR: "zone=new"}))
    assert await told(fleet, "waits", "ClusterNotSelected") == {
        "east": ("ClusterNotSelected", "its labels do not match zone in (new)")
    }

    await fleet.relabel("east", {"zone": "new"})

    assert (await fleet.hub.until_state("waits", "Running"))["cluster"] == "east"


# --- what is to be seen ------------------------------------------------------------------------------


async def in_east(fleet: Fleet, manifest: Json) -> World:
    """Have a gang run in east, the only member; east."""
    await fleet.declare("east")
    await fleet.start_dispatcher()
    await fleet.hub.create(manifest)
    await fleet.hub.until_state(manifest["metadata"]["name"], "Running")
    return fleet.members["east"]


async def told(fleet: Fleet, name: str, reason: str) -> dict[str, tuple[str, str]]:
    """Why it waits, by cluster, once that reason is among them."""

    async def look() -> dict[str, tuple[str, str]] | None:
        status = (await fleet.hub.get("AppWrapper", name) or {}).get("status") or {}
        clusters = (status.get("waiting") or {}).get("clusters") or ()
        said = {each["cluster"]: (each["reason"], each["message"]) for each in clusters}
        return said if reason in {why for why, _ in said.values()} else None

    return await fleet.hub.until(look, f"{name} waits: {reason}")


async def until_well(fleet: Fleet, name: str) -> None:
    async def look() -> bool:
        status = (await fleet.hub.get("AppWrapper", name) or {})["status"]
        return "unhealthy" not in status

    await fleet.hub.until(look, f"{name} is well")


async def until_none(world: World, kind: str) -> None:
    async def look() -> bool:
        return not await world.every(kind)

    await world.until(look, f"there is no {kind}")


# --- What somebody changes of a gang's objects in a member cluster is told on the hub ----------------------


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
