"""What `manifests/` gives is what the dispatcher needs: it is refused nothing, and leaves no right unused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.annotations import ADMISSION_GRACE, FORCE_DELETION_GRACE, RETRY_LIMIT
from dispatcher.api.names import GROUPS_ANNOTATION, UID_LABEL, USER_ANNOTATION
from dispatcher.api.names import QUEUES_PATH as QUEUES
from testbed.kuberay_operator import KubeRay
from testbed.nodes import NODES, Shape, create, name_of
from testbed.plane import RBAC, Plane
from testbed.processes import Supervisor
from testbed.stand_in import Api
from tests.cluster.definitions import install, optional_definitions, uninstall
from tests.cluster.dispatch_queues import declaring
from tests.cluster.growing import scale
from tests.cluster.manifests import (
    appwrapper,
    autoscaling,
    bent,
    config_map,
    deployment,
    item,
    job,
    pod,
    rayjob,
    rayservice,
    service,
    statefulset,
)
from tests.cluster.mcad.suite import conditions
from tests.cluster.members import identities
from tests.cluster.members.guarded import AT, Guarded, at, complaints
from tests.cluster.members.identities import Right
from tests.cluster.members.test_members_choice import anchors, gang
from tests.cluster.world import World

Json = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def operators_and_a_node(supervisor: Supervisor, planes: dict[str, Plane]) -> Iterator[None]:
    """KubeRay's operator runs on the hub and in west, and the hub has a node as well."""
    hub = planes["members-hub"]
    create(hub.client, Shape(cpu="4", memory="16Gi"), range(1))
    operators = [KubeRay(supervisor, planes[name], name) for name in ("members-hub", "west")]
    for each in operators:
        each.up()
    yield
    for each in operators:
        each.down()
    hub.client.request("DELETE", f"{NODES}/{name_of(0)}")


@pytest.fixture
async def optional_kinds(planes: dict[str, Plane]) -> AsyncIterator[None]:
    """The hub serves all kinds that the dispatcher watches where they are installed."""
    async with Api.connect(planes["members-hub"].kubeconfig) as api:
        for crd in optional_definitions():
            await install(api, crd)
        yield
        for crd in optional_definitions():
            await uninstall(api, crd)


# --- what befalls gangs ------------------------------------------------------------------------------

EVERY_KIND: tuple[Json, ...] = (
    pod("all", {"cpu": "100m"}),
    service("all"),
    config_map("all"),
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "all"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    },
    deployment("all"),
    statefulset("all"),
    job("all"),
    autoscaling("all"),
)
SECRET: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "all"}}
"""Its right is commented out in both manifests: with it the dispatcher could read every Secret of a cluster."""


async def has_every_kind_and_is_suspended(hub: World, there: World, where: str) -> None:
    await loses_labels_and_is_suspended(hub, there, where, "all", EVERY_KIND)
    # By themselves, because the operator makes objects of the names that a RayCluster has.
    await loses_labels_and_is_suspended(hub, there, where, "serving", [rayservice("serving")])
    await loses_labels_and_is_suspended(hub, there, where, "tuning", [rayjob("tuning", run_for="forever")])


async def loses_labels_and_is_suspended(
    hub: World, there: World, where: str, its_name: str, wrapped: Sequence[Json]
) -> None:
    """Its objects lose our labels meanwhile, and are given them again."""
    name = f"{its_name}-{where}"
    await hub.create_until("Running", at(where, appwrapper(name, *map(item, wrapped))))
    kinds = [each["kind"] for each in wrapped]
    for kind in kinds:
        await there.merge(kind, its_name, {"metadata": {"labels": {UID_LABEL: None}}})

    async def labelled() -> bool:
        found = [(await there.get(kind, its_name) or {})["metadata"] for kind in kinds]
        return all(UID_LABEL in (each.get("labels") or {}) for each in found)

    await there.until(labelled, "everything bears our label again")
    await hub.merge("AppWrapper", name, {"spec": {"suspend": True}})
    await hub.until_history(name, "removed")
    assert [await there.get(kind, its_name) for kind in kinds] == [None] * len(kinds)
    await delete(hub, name)


async def grows(hub: World, there: World, where: str) -> None:
    """Who scales a RayCluster reads there that it may."""
    name = f"ray-{where}"
    await hub.create_until("Running", at(where, appwrapper(name, item(autoscaling("ray")))))
    await scale(there, "ray", 2)
    assert (await there.event("ray", "GrowthGranted"))["involvedObject"]["kind"] == "RayCluster"
    await delete(hub, name)


async def completes(hub: World, there: World, where: str) -> None:
    name = f"short-{where}"
    await hub.create_until("Completed", at(where, appwrapper(name, item(job("short", run_for="200ms")))))
    await delete(hub, name)


async def will_not_go(hub: World, there: World, where: str) -> None:
    """Its pods do not end when they are asked to."""
    name, slow = f"slow-{where}", job("slow", terminate_after="1h")
    slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    await hub.create_until("Running", at(where, appwrapper(name, item(slow)), **{FORCE_DELETION_GRACE: "1s"}))
    await delete(hub, name)

    async def forced() -> bool:
        return not any(each.startswith("slow-") for each in await there.names("Pod"))

    await there.until(forced, "its pods are gone")


async def is_denied_its_pods(hub: World, there: World, where: str) -> None:
    """Who makes them says why, and that is told."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    await there.create({**quota, "spec": {"hard": {"pods": "0"}}})

    async def in_force() -> bool:
        found = await there.get("ResourceQuota", "none")
        return bool(found and (found.get("status") or {}).get("hard"))

    await there.until(in_force, "the quota is in force")
    name, terms = f"denied-{where}", {RETRY_LIMIT: "0", ADMISSION_GRACE: "1s"}
    await hub.create(at(where, appwrapper(name, item(job("denied"))), **terms))
    status = await hub.until_shown(name, "Failed")
    assert "exceeded quota: none" in conditions(status)["Failed"][2]
    await delete(hub, name)


async def names_a_runtime_class(hub: World) -> None:
    """Every cluster is asked for its overhead when the AppWrapper is taken in, also if that is suspended."""
    named = job("named")
    named["spec"]["template"]["spec"]["runtimeClassName"] = "none"
    await hub.create_until("Suspended", appwrapper("named", item(named), suspend=True))
    await delete(hub, "named")


async def sees_the_status_of_a_queue(hub: World) -> None:
    async with declaring(hub.client) as declare:
        await declare("idle")

        async def written() -> bool:
            return bool((await hub.client.get(f"{QUEUES}/idle")).get("status"))

        await hub.until(written, "the queue has a status")


async def delete(hub: World, name: str, kind: str = "AppWrapper") -> None:
    await hub.delete(name, kind)
    await hub.until_gone(kind, name)


async def live_through_everything(hub: World, there: World, where: str) -> None:
    lives = (has_every_kind_and_is_suspended, grows, completes, will_not_go, is_denied_its_pods)
    for befalls in lives:
        await befalls(hub, there, where)


# --- what it takes -----------------------------------------------------------------------------------


@pytest.mark.timeout(240)
async def test_manifests_grant_the_needed_rights_and_no_more(guarded: Guarded, optional_kinds: None) -> None:
    hub, west = guarded.hub, guarded.fleet.members["west"]
    await guarded.fleet.declare_hub(labels={AT: "hub"})
    await guarded.declare("west")
    process = await guarded.start_dispatcher()
    legacy = {**at("west", gang("legacy", 1)), "apiVersion": "mcad.ibm.com/v1beta1"}
    await hub.create(legacy, "McadAppWrapper")
    await hub.until_state("legacy", "Running", "McadAppWrapper")
    await delete(hub, "legacy", "McadAppWrapper")
    await names_a_runtime_class(hub)

    await asyncio.gather(live_through_everything(hub, hub, "hub"), live_through_everything(hub, west, "west"))
    await sees_the_status_of_a_queue(hub)  # last: who names no queue waits until its absence has lasted

    assert (guarded.refused(), complaints(process)) == ([], [])
    assert unused(guarded) == {"hub": set(), "west": set()}
    assert await anchors(guarded.fleet) == {}


def unused(guarded: Guarded) -> dict[str, set[Right]]:
    """What the manifests give and nobody asked for."""
    given = {"hub": identities.HUB, "west": identities.MEMBER}
    return {name: identities.rights(each) - guarded.asked(name) for name, each in given.items()}


async def test_hub_that_takes_no_gangs_need_not_give_the_rights_for_them(guarded: Guarded) -> None:
    hub = guarded.hub
    await without_rights_for_gangs(hub)
    await guarded.declare("west")
    first = await guarded.start_dispatcher()
    await hub.create_until("Running", gang("stays", 2))
    await hub.stop_dispatcher(first)

    second = await guarded.start_dispatcher()
    await hub.create_until("Completed", at("west", appwrapper("short", item(job("short", run_for="200ms")))))
    await delete(hub, "stays")

    assert (guarded.refused(), complaints(first), complaints(second)) == ([], [], [])
    assert (await hub.causes("stays")).count("dispatched") == 1


async def test_gang_of_a_lost_database_is_taken_in_without_rights_for_gangs_on_the_hub(
    guarded: Guarded, make_database: Callable[[], str]
) -> None:
    """The hub itself cannot have objects of it: who may not look there need not."""
    hub = guarded.hub
    await without_rights_for_gangs(hub)
    await guarded.declare("west")
    process = await guarded.start_dispatcher()
    await hub.create_until("Running", gang("stays", 2))
    await hub.stop_dispatcher(process)

    hub.database_url = make_database()
    await guarded.start_dispatcher()

    await hub.until_history("stays", "pods-running")
    assert await guarded.fleet.objects("Job") == {"west": {"stays"}}


async def without_rights_for_gangs(hub: World) -> None:
    """Leave out of `manifests/base/hub.yaml` what it says can be left out."""
    await identities.revoke(hub, f"{RBAC}/clusterrolebindings/appwrapper-dispatcher-gangs")


async def test_namespaces_are_made_with_the_right_that_the_manifest_has_ready(
    guarded: Guarded, elsewhere: World, tmp_path: Path
) -> None:
    ready = '# - {apiGroups: [""], resources: [namespaces], verbs: [create]}'
    written = identities.MEMBER.read_text()
    assert written.count(ready) == 1
    manifest = tmp_path / "member.yaml"
    manifest.write_text(written.replace(ready, ready.removeprefix("# ")))
    await identities.apply(guarded.fleet.members["west"].plane, manifest)
    await guarded.declare("west", namespacePolicy="Create")
    await guarded.start_dispatcher()

    await elsewhere.create(gang("two", 2))

    assert (await elsewhere.until_state("two", "Running"))["cluster"] == "west"
    assert guarded.refused() == []


async def test_secrets_are_wrapped_with_the_right_that_the_manifest_has_ready(
    guarded: Guarded, tmp_path: Path
) -> None:
    ready = '# - {apiGroups: [""], resources: [secrets], verbs: [create, get, list, watch, patch, delete]}'
    written = identities.MEMBER.read_text()
    assert written.count(ready) == 1
    manifest = tmp_path / "member.yaml"
    manifest.write_text(written.replace(ready, ready.removeprefix("# ")))
    await identities.apply(guarded.fleet.members["west"].plane, manifest)
    await guarded.declare("west")
    await guarded.start_dispatcher()

    await guarded.hub.create(appwrapper("sealed", item(SECRET), item(job("sealed", run_for="200ms"))))

    assert (await guarded.hub.until_state("sealed", "Completed"))["cluster"] == "west"
    assert guarded.refused() == []


async def test_authors_are_reviewed_with_the_right_that_the_manifest_has_ready(
    guarded: Guarded, tmp_path: Path
) -> None:
    ready = "# - {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}"
    written = identities.HUB.read_text()
    assert written.count(ready) == 1
    manifest = tmp_path / "hub.yaml"
    manifest.write_text(written.replace(ready, ready.removeprefix("# ")))
    await identities.apply(guarded.hub.plane, manifest)
    await guarded.declare("west")
    process = await guarded.start_dispatcher(submitter="annotation", author_check="review")

    may, may_not = {USER_ANNOTATION: "root", GROUPS_ANNOTATION: "system:masters"}, {USER_ANNOTATION: "bob"}
    await guarded.hub.create(bent(gang("may", 1), may))
    await guarded.hub.create(bent(gang("may-not", 1), may_not))

    await guarded.hub.until_state("may", "Running")
    told = conditions(await guarded.hub.until_shown("may-not", "Failed"))["Failed"]
    assert "bob may not create jobs.batch in namespace" in told[2]
    assert (guarded.refused(), complaints(process)) == ([], [])


async def test_status_of_a_gang_says_that_its_namespace_may_not_be_created(
    guarded: Guarded, elsewhere: World
) -> None:
    await guarded.declare("west", namespacePolicy="Create")
    await guarded.start_dispatcher()

    await elsewhere.create(gang("two", 2))

    async def told() -> bool:
        status = (await elsewhere.get("AppWrapper", "two") or {}).get("status")
        said = conditions(status).values() if status else ()
        return any('cannot create resource "namespaces"' in message for _, _, message in said)

    await elsewhere.until(told, "it is told in the API server's words")
