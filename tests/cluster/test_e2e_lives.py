"""Other lives than the blog's: kinds that are not there yet, quotas, slow pods, foreign pods, changed priorities."""

from __future__ import annotations

from typing import Any

from dispatcher.api.annotations import ADMISSION_GRACE
from testbed.stand_in import Api
from tests.cluster.definitions import install, uninstall
from tests.cluster.manifests import appwrapper, config_map, deployment, item, job, renamed
from tests.cluster.world import World, example

Json = dict[str, Any]

WIDGET = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "widget"}, "spec": {}}
WIDGETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
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


async def test_gang_of_a_kind_that_is_not_installed_waits_and_runs_once_it_is(world: World) -> None:
    await world.start_dispatcher()
    typo = {"apiVersion": "batch/v1", "kind": "Jobb", "metadata": {"name": "typo"}}

    async with Api.connect(world.plane.kubeconfig) as api:
        try:
            await world.create(appwrapper("typo", item(typo, custompodresources=[])))
            half = appwrapper("half", item(config_map("first-half")), item(WIDGET, custompodresources=[]))
            half["metadata"]["annotations"] = {ADMISSION_GRACE: "1s"}
            await world.create(half)
            assert await waits_for(world, "half") == (
                "cluster hub: it does not serve Widget of example.com/v1: "
                "install the CustomResourceDefinition there, or correct apiVersion and kind"
            )
            assert (
                await waits_for(world, "typo")
                == "cluster hub: it does not serve Jobb of batch/v1 (did you mean Job?)"
            )
            assert await world.get("ConfigMap", "first-half") is None
            await install(api, WIDGETS)
            await world.until_state("half", "Running")

            # An upgrade of the operator: the definition is removed, with all objects, while a gang runs.
            await uninstall(api, WIDGETS)
            assert "Widget" in await waits_for(world, "half")
            assert {"unhealthy", "evicted"} <= set(await world.causes("half"))
            await world.create(
                appwrapper(
                    "again",
                    item(config_map("again-half")),
                    item({**WIDGET, "metadata": {"name": "another"}}, custompodresources=[]),
                )
            )
            assert "Widget" in await waits_for(world, "again")
            await install(api, WIDGETS)
            await world.until_state("again", "Running")
            await world.until_state("half", "Running")
        finally:
            for name in ("half", "again", "typo"):
                if await world.get("AppWrapper", name) is not None:
                    await world.delete(name)
                    await world.until_gone("AppWrapper", name)
            await uninstall(api, WIDGETS)


async def waits_for(world: World, name: str) -> str:
    """The message of a gang once it waits for a kind."""

    async def message() -> str | None:
        found = await world.get("AppWrapper", name) or {}
        waiting = found.get("status", {}).get("waiting", {})
        return str(waiting["message"]) if waiting.get("reason") == "KindNotInstalled" else None

    return await world.until(message, f"{name} waits for a kind")


async def test_quota_postpones_whole_and_the_gang_goes_when_it_allows(world: World) -> None:
    await world.start_dispatcher()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"count/jobs.batch": "1"}},
    }
    await world.create(quota)

    async def in_force() -> bool:
        found = await world.get("ResourceQuota", "tight")
        return bool(found and (found.get("status") or {}).get("hard"))

    await world.until(in_force, "the quota is in force")
    await world.create(appwrapper("pair", item(job("one")), item(job("two"))))

    async def postponed() -> bool:
        return "removed" in await world.causes("pair")

    await world.until(postponed, "the pair is rolled back")
    assert await world.every("Job") == []
    await world.merge("ResourceQuota", "tight", {"spec": {"hard": {"count/jobs.batch": "2"}}})

    await world.until_state("pair", "Running")
    names = {each["metadata"]["name"] for each in await world.every("Job")}
    assert names == {"one", "two"}


async def test_generated_name_is_made_by_us_and_made_once(world: World) -> None:
    await world.start_dispatcher()
    generated = config_map("unused")
    generated["metadata"] = {"generateName": "settings-"}

    await world.create_until("Running", appwrapper("generates", item(generated)))
    names = [each["metadata"]["name"] for each in await world.every("ConfigMap")]
    assert len([name for name in names if name.startswith("settings-")]) == 1


async def test_capacity_is_held_until_slowly_terminating_pods_are_gone(world: World) -> None:
    await world.start_dispatcher()
    slow = job("slow", parallelism=3, cpu="8", terminate_after="3s")
    await world.create_until("Running", appwrapper("slow", item(slow)))
    await world.create_until("Backoff", appwrapper("next", item(job("next", parallelism=3, cpu="8"))))

    await world.delete("slow")
    await world.until_gone("Job", "slow")
    assert await world.every("Pod") != []
    assert (await world.causes("next"))[-1] == "blocked"

    await world.until_state("next", "Running")
    owners = {each["metadata"]["labels"]["job-name"] for each in await world.every("Pod")}
    assert owners == {"next"}


async def test_foreign_pods_take_capacity_and_give_it_back(world: World) -> None:
    await world.start_dispatcher()
    foreign = deployment("foreign", replicas=3, cpu="7")
    await world.create(foreign)

    async def bound() -> bool:
        return sum(1 for pod in await world.every("Pod") if pod["spec"].get("nodeName")) == 3

    await world.until(bound, "three foreign pods are bound")
    await world.create_until("Backoff", appwrapper("guest", item(job("guest", parallelism=3, cpu="2"))))

    await world.delete("foreign", "Deployment")

    await world.until_state("guest", "Running")


async def test_priority_can_be_changed_while_it_waits(world: World) -> None:
    await world.start_dispatcher()
    for name in ("holder", "early", "late"):
        await world.create_until(
            "Running" if name == "holder" else "Backoff", renamed(example("aw-raycluster-glue"), name)
        )

    await world.merge("AppWrapper", "late", {"spec": {"priority": 20}})

    async def moved() -> bool:
        return "reprioritised" in await world.causes("late")

    await world.until(moved, "the new priority is known")
    await world.delete("holder")
    status = await world.until_state("late", "Running")
    assert status["systempriority"] == 20
    await world.until_state("early", "Backoff")
