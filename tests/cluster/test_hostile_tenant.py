"""A tenant who may create AppWrappers and pods in one namespace tries everything; another tenant notices nothing.

After every hostile act a canary is applied in another namespace. The canary asks for no resource, so that only the
dispatcher itself can hold it up.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from statistics import median
from typing import Any, Final

import pytest

from dispatcher import errors
from dispatcher.kube.client import MERGE_PATCH, METADATA, METADATA_LIST, ClusterClient
from testbed.plane import Plane
from testbed.processes import Process, Supervisor
from tests.cluster.manifests import appwrapper, config_map, item
from tests.cluster.outcomes import epoch
from tests.cluster.world import World
from tests.hostile import Act, acts, against

Json = dict[str, Any]

ACTS: Final = 40
ALL_ACTS: Final = 500
BOUND_SECONDS: Final = 1.0
"""How much longer than the API server itself takes a canary may wait for its dispatch, whatever the tenant does."""
KINDS: Final = ("AppWrapper", "Pod", "Job", "ConfigMap")
RIGHTS: Final = (
    {
        "apiGroups": ["workload.codeflare.dev"],
        "resources": ["appwrappers"],
        "verbs": ["create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch", "delete"]},
)
LARGE_BODIES: Final = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""The tenant's own client sends a megabyte at once."""
REFUSALS: Final = (errors.Invalid, errors.Forbidden, errors.NotFound, errors.Conflict, errors.AlreadyExists)


@pytest.fixture
async def tenant(
    supervisor: Supervisor, plane: Plane, client: ClusterClient, world: World
) -> AsyncIterator[World]:
    """The namespace of the hostile tenant, and no more rights than the issue grants."""
    name = f"{world.namespace}-tenant"
    await plane.create_namespace(name)
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, name, "tenant", RIGHTS)
    async with await ClusterClient.connect(str(kubeconfig)) as rights:
        yield World(supervisor, plane, rights, name, world.database_url)
    house = World(supervisor, plane, client, name, "")
    await clear(house)
    await house.demolish()


async def clear(house: World) -> None:
    """Delete everything that the tenant has made, finalizers or not; it may be too large to be read whole."""
    for kind in KINDS:
        listed = await house.client.get(house.path(kind), accept=METADATA_LIST)
        for found in listed.get("items") or ():
            path = house.path(kind, found["metadata"]["name"])
            with suppress(errors.NotFound, errors.Conflict, errors.TooLarge):
                if found["metadata"].get("finalizers"):
                    patch = {"metadata": {"finalizers": None}}
                    await house.client.patch(path, patch, MERGE_PATCH, accept=METADATA)
                await house.client.delete(path, found["metadata"]["uid"])


async def carry_out(act: Act, tenant: World, victim: str) -> bool:
    """Do what the tenant wants; True if the API server let any of it pass."""
    done = against(act, victim)
    try:
        await tenant.create(done.body, done.kind)
        for patch in done.patches:
            await tenant.client.patch(
                tenant.path(done.kind, done.body["metadata"]["name"]), patch, MERGE_PATCH
            )
    except errors.TooLarge:
        return True  # it was created, and the answer shows the whole of it
    except REFUSALS:
        return False
    return True


async def wait_of_canary(world: World, number: int) -> float:
    """Seconds from its submission until a canary is dispatched, less what the API server took for a write."""
    name = f"canary-{number}"
    began = time.monotonic()
    await world.create(config_map(f"plain-{number}"))
    written = time.monotonic()
    await world.create(appwrapper(name, item(config_map(name), custompodresources=[])))
    submitted = time.monotonic()
    await world.until_shown(name, "Running")
    dispatched = time.monotonic()
    await world.delete(name)
    return dispatched - submitted - (written - began)


async def try_everything(world: World, tenant: World, count: int) -> tuple[list[float], int, Process]:
    """The wait of a canary after each act, how many acts the API server let pass, and the dispatcher."""
    process = await world.start_dispatcher()
    victim = await world.create(appwrapper("victim", item(config_map("victim"), custompodresources=[])))
    await world.until_shown("victim", "Running")
    led = await epoch(world)
    waits, passed = [], 0
    for number, act in enumerate(acts(count)):
        passed += await carry_out(act, tenant, victim["metadata"]["uid"])
        waits.append(await wait_of_canary(world, number))
    assert (process.is_running(), await epoch(world)) == (True, led)
    return waits, passed, process


@LARGE_BODIES
@pytest.mark.timeout(180)
async def test_dispatcher_leads_on_whatever_a_tenant_tries(world: World, tenant: World) -> None:
    _, passed, process = await try_everything(world, tenant, ACTS)
    assert passed > ACTS // 4
    said = process.log.read_text()
    assert [event for event in ('"reconcile_failed"', '"internal_error"') if event in said] == []


@LARGE_BODIES
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
async def test_no_canary_waits_a_second_longer_for_a_hostile_tenant(world: World, tenant: World) -> None:
    waits, passed, _ = await try_everything(world, tenant, ALL_ACTS)
    ordered = sorted(waits)
    for wait, act in sorted(zip(waits, acts(ALL_ACTS), strict=True), key=lambda each: -each[0])[:5]:
        sys.stdout.write(f"{wait:.3f} s after {act.kind} {str(act.body)[:300]}\n")
    sys.stdout.write(
        f"{len(waits)} canaries beside {passed} acts: median {median(waits):.3f} s, "
        f"p99 {ordered[len(ordered) * 99 // 100]:.3f} s, longest {ordered[-1]:.3f} s\n"
    )
    assert passed > ALL_ACTS // 4
    assert ordered[-1] <= BOUND_SECONDS
