"""The watches of wrapped objects on a real API server: what comes, what does not, and what goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from dispatcher import errors
from dispatcher.api import names
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.kinds.manifest import Owner
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube import bounds
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import JSON, MERGE_PATCH, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.object_client import Created, ObjectClient
from dispatcher.kube.objects.object_informers import ObjectInformers
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.manifests import appwrapper, config_map, item, job, pod
from tests.cluster.world import World, example

Json = dict[str, Any]

CONTENT = "what-nobody-but-its-owner-should-read"


class Overhearing(ClusterClient):
    """A client that remembers all it was told."""

    heard: bytes = b""

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        loads: Callable[[bytes], Any] = bounds.loads,
        purpose: Purpose = Purpose.OBJECT,
    ) -> Json:
        answer = await super().get(path, query, accept=accept, loads=loads, purpose=purpose)
        self.heard += orjson.dumps(answer)
        return answer

    async def watch(
        self, path: str, query: Mapping[str, str], idle_timeout: float, *, accept: str = JSON
    ) -> AsyncGenerator[bytes, None]:
        async for line in super().watch(path, query, idle_timeout, accept=accept):
            self.heard += line
            yield line


@pytest.fixture
def world(supervisor: Supervisor, plane: Plane, client: ClusterClient, namespace: str) -> World:
    """The namespace, without a dispatcher and its database."""
    return World(supervisor, plane, client, namespace, "")


@pytest.fixture
async def owner(world: World) -> Owner:
    """An AppWrapper that nobody dispatches but the test."""
    made = await world.create(appwrapper("aw", item(config_map("unused"))))
    return Owner(made["metadata"]["uid"], names.WORKLOAD_GROUP, "v1beta1", world.namespace, "aw", 1, "hub")


@pytest.fixture
def wrapped(client: ClusterClient) -> ObjectClient:
    return ObjectClient(client, Discovery(client))


async def create(wrapped: ObjectClient, template: Json, owner: Owner) -> ObjectRef:
    created = await wrapped.create(WrappedObject(0, template), owner)
    assert isinstance(created, Created)
    return created.ref


@asynccontextmanager
async def watching(
    client: ClusterClient, on_change: Callable[[str], None], *kinds: tuple[str, str]
) -> AsyncIterator[ObjectInformers]:
    watches = ObjectInformers(client, Discovery(client), on_change)
    for api_version, kind in kinds:
        watches.want(api_version, kind)
    task = asyncio.create_task(watches.run())
    try:
        yield watches
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(world: World, holds: Callable[[], object], what: str) -> None:
    async def look() -> object:
        return holds() or None

    await world.until(look, what)


async def test_state_and_deletion_of_a_job_are_seen(
    world: World, client: ClusterClient, wrapped: ObjectClient, owner: Owner
) -> None:
    told: set[str] = set()
    async with watching(client, told.add, ("batch/v1", "Job")) as watches:
        ref = await create(wrapped, job("quick", run_for="1s"), owner)
        await until(world, lambda: watches.state(ref) == ObjectState(), "the Job is known")
        both = frozenset({"Complete", "SuccessCriteriaMet"})
        done = ObjectState(End.SUCCEEDED, both)
        await until(world, lambda: watches.state(ref) == done, "the Job has ended")
        assert watches.is_absent(ref) is False

        await wrapped.remove(ref, owner)
        await until(world, lambda: watches.is_absent(ref), "the Job is gone")
        assert watches.state(ref) is None
    assert told == {owner.uid}


async def test_conditions_of_a_raycluster_are_seen_and_its_pods_are_not_kept(
    world: World, client: ClusterClient, wrapped: ObjectClient, owner: Owner
) -> None:
    template = example("aw-raycluster-glue")["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    template["metadata"].pop("namespace", None)
    async with watching(client, lambda _: None, ("ray.io/v1", "RayCluster"), ("v1", "Pod")) as watches:
        ref = await create(wrapped, template, owner)

        def is_provisioned() -> bool:
            state = watches.state(ref)
            return state is not None and "RayClusterProvisioned" in state.conditions

        await until(world, is_provisioned, "the RayCluster is provisioned")
        pods = await world.every("Pod")
        assert {each["metadata"]["labels"][names.UID_LABEL] for each in pods} == {owner.uid}
        assert {each["metadata"]["labels"][names.ITEM_LABEL] for each in pods} == {"0"}
        bare = await create(wrapped, pod("bare"), owner)
        await until(world, lambda: watches.state(bare) is not None, "a later pod is known")
        refs = [ObjectRef(0, "v1", "Pod", world.namespace, "x", each["metadata"]["uid"]) for each in pods]
        assert all(map(watches.is_absent, refs))


async def test_contents_of_a_kind_that_makes_no_pods_never_arrive(
    world: World, plane: Plane, wrapped: ObjectClient, owner: Owner
) -> None:
    def holding(name: str) -> Json:
        return {**config_map(name), "data": {"key": CONTENT}}

    listed = await create(wrapped, holding("listed"), owner)
    async with await Overhearing.connect(str(plane.kubeconfig)) as client:
        async with watching(client, lambda _: None, ("v1", "ConfigMap")) as watches:
            await until(world, lambda: watches.state(listed) == ObjectState(), "the list has come")
            watched = await create(wrapped, holding("watched"), owner)
            await until(world, lambda: watches.state(watched) == ObjectState(), "the watch has come")
            await wrapped.remove(watched, owner)
            await until(world, lambda: watches.is_absent(watched), "the deletion has come")
        assert b'"listed"' in client.heard
        assert b'"watched"' in client.heard
        assert CONTENT.encode() not in client.heard


async def test_contents_of_an_object_arrive_once_a_condition_needs_them(
    world: World, plane: Plane, wrapped: ObjectClient, owner: Owner
) -> None:
    ref = await create(wrapped, {**config_map("told"), "data": {"key": CONTENT}}, owner)
    async with (
        await Overhearing.connect(str(plane.kubeconfig)) as client,
        watching(client, lambda _: None, ("v1", "ConfigMap")) as watches,
    ):
        await until(world, lambda: watches.state(ref) == ObjectState(), "its metadata has come")
        watches.want("v1", "ConfigMap", contents=True)
        await until(world, lambda: CONTENT.encode() in client.heard, "its contents have come")


async def test_object_that_mcad_made_is_marked_and_then_seen(
    world: World, client: ClusterClient, wrapped: ObjectClient, owner: Owner
) -> None:
    unmarked = config_map("of-mcad", labels={"app": "mine"}, ownerReferences=[owner.reference()])
    made = await world.create(unmarked)
    async with watching(client, lambda _: None, ("v1", "ConfigMap")) as watches:
        ref = await create(wrapped, config_map("of-mcad"), owner)
        await until(world, lambda: watches.state(ref) is not None, "it is seen")
    found = await world.get("ConfigMap", "of-mcad")
    assert found is not None
    assert ref.uid == found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["metadata"]["labels"] == {
        "app": "mine",
        "resourceName": "of-mcad",
        **owner.labels(),
    }


@pytest.mark.parametrize("name", ["a" * 64, "a" * 51 + ".b-" + "c" * 199, "a" * 50 + "--" + "b" * 200])
async def test_appwrapper_of_a_name_too_long_for_a_label_can_have_objects(
    world: World, wrapped: ObjectClient, name: str
) -> None:
    made = await world.create(appwrapper(name, item(config_map("unused"))))
    owner = Owner(made["metadata"]["uid"], names.WORKLOAD_GROUP, "v1beta1", world.namespace, name, 1, "hub")
    assert (await create(wrapped, job("of-a-long-name"), owner)).uid


async def test_patch_that_names_another_uid_is_refused(world: World, client: ClusterClient) -> None:
    await world.create(config_map("successor"))
    patch = {"metadata": {"uid": "of-a-predecessor", "labels": {"a": "b"}}}
    with pytest.raises(errors.Refused):
        await client.patch(world.path("ConfigMap", "successor"), patch, MERGE_PATCH)
    found = await world.get("ConfigMap", "successor")
    assert found is not None
    assert "labels" not in found["metadata"]


async def test_complaint_is_the_warning_event_of_the_controller_of_the_object(
    world: World, wrapped: ObjectClient, owner: Owner
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    await world.create({**quota, "spec": {"hard": {"pods": "0"}}})
    ref = await create(wrapped, job("held"), owner)

    async def complaint() -> str | None:
        return await wrapped.newest_warning(ref) or None

    said = await world.until(complaint, "the Job's controller complains")
    assert said.startswith("FailedCreate: Error creating: pods ")
    assert "exceeded quota: none" in said
