"""Unknown fields of wrapped objects: an API server's own warnings reach the user, or its refusal does."""

from __future__ import annotations

from typing import Any

from dispatcher.api import names
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.kinds.manifest import Owner
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.object_client import Created, ObjectClient
from tests.cluster.manifests import appwrapper, changed, config_map, deployment, item
from tests.cluster.outcomes import delete_all, failures
from tests.cluster.world import World

Json = dict[str, Any]

UNKNOWN = 'unknown field "spec.replica"'


def misspelt(name: str) -> Json:
    return changed(deployment(name), "spec.replica", 3)


async def test_unknown_field_of_a_running_gang_makes_one_event(world: World) -> None:
    await world.start_dispatcher()
    status = await world.create_until(
        "Running", appwrapper("typo", item(config_map("fine")), item(misspelt("web")))
    )
    said = f"Deployment web: {UNKNOWN}"
    assert [
        (each["status"], each["reason"], each["message"])
        for each in status["conditions"]
        if each["type"] == "CreatedWithWarnings"
    ] == [("True", "APIServerWarned", said)]
    told = await world.event("typo", "CreatedWithWarnings")
    assert (told["type"], told["message"], told.get("count", 1)) == ("Warning", said, 1)
    assert (await world.messages("typo")).count(said) == 1


async def test_unknown_field_of_a_pending_gang_is_shown_before_its_dispatch(world: World) -> None:
    await world.start_dispatcher()
    waiting = changed(misspelt("web"), "spec.template.spec.containers.0.resources.requests.cpu", "500")
    await world.create(appwrapper("typo", item(config_map("fine")), item(waiting)))

    said = f"Deployment web: {UNKNOWN}"
    told = await world.event("typo", "UnknownFields")
    assert (told["type"], told["message"]) == ("Warning", said)

    async def shown() -> list[tuple[str, str, str]]:
        found = await world.get("AppWrapper", "typo")
        assert found is not None
        return [
            (each["status"], each["reason"], each["message"])
            for each in found["status"]["conditions"]
            if each["type"] == "UnknownFields"
        ]

    assert await world.until(shown, "the condition") == [("True", "APIServerWarned", said)]
    assert [await world.get(kind, name) for kind, name in (("ConfigMap", "fine"), ("Deployment", "web"))] == [
        None,
        None,
    ]


async def test_unknown_field_fails_an_appwrapper_where_the_operator_is_strict(world: World) -> None:
    await world.start_dispatcher(field_validation="Strict")

    said = await failures(
        world, {"typo": appwrapper("typo", item(config_map("rolled-back")), item(misspelt("web")))}
    )

    assert said["typo"].endswith(f"strict decoding error: {UNKNOWN}")
    assert await world.get("ConfigMap", "rolled-back") is None
    await delete_all(world)


async def test_creation_that_is_repeated_is_warned_about_again(
    world: World, client: ClusterClient, namespace: str
) -> None:
    """So no warning is lost with a leader that crashes between the creation and its commit."""
    hub = await world.create(appwrapper("aw", item(config_map("unused"))))
    owner = Owner(hub["metadata"]["uid"], names.WORKLOAD_GROUP, "v1beta1", namespace, "aw", 1, "hub")
    wrapped, objects = WrappedObject(0, misspelt("web")), ObjectClient(client, Discovery(client))

    creations = [await objects.create(wrapped, owner) for _ in range(2)]

    assert [each.warnings for each in creations if isinstance(each, Created)] == [(UNKNOWN,)] * 2
