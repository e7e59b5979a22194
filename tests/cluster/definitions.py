"""Custom resource definitions on a real API server: installing them, and variants of ours beside ours."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed.stand_in import Api, RefusedError
from tests.crds import load_crds

Json = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OPTIONAL = Path(__file__).parents[2] / "testbed" / "optional_crds"
WORKLOAD_V1BETA1 = "workload.codeflare.dev/v1beta1"
WORKLOAD_V1BETA2 = "workload.codeflare.dev/v1beta2"
MCAD_V1BETA1 = "mcad.ibm.com/v1beta1"
DOORS = (WORKLOAD_V1BETA1, WORKLOAD_V1BETA2, MCAD_V1BETA1)
"""Every group and version through which an AppWrapper can be written."""


async def install(api: Api, crd: Json) -> None:
    """Create or replace a definition and wait until its objects are served."""
    path = f"{DEFINITIONS}/{crd['metadata']['name']}"
    try:
        await api.request("POST", DEFINITIONS, crd)
    except RefusedError as refusal:
        if refusal.status != 409:
            raise
        found = await api.request("GET", path)
        metadata = {**crd["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        await api.request("PUT", path, {**crd, "metadata": metadata})

    async def established() -> bool:
        return is_established(await api.request("GET", path))

    await wait_for(established)


def optional_definitions() -> list[Json]:
    """The definitions that are the dispatcher's to read where somebody installed them: of MCAD's trees, and Kueue's."""
    return [yaml.safe_load(path.read_text()) for path in sorted(OPTIONAL.glob("*.yaml"))]


async def uninstall(api: Api, crd: Json) -> None:
    """Delete a definition, and all objects of it; return when it is gone, since the next test may install it again."""

    async def gone() -> bool:
        try:
            await api.request("DELETE", f"{DEFINITIONS}/{crd['metadata']['name']}")
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
            return True
        return False

    await wait_for(gone)


@asynccontextmanager
async def optional_kinds_of(kubeconfig: Path) -> AsyncIterator[Api]:
    """MCAD's QuotaSubtrees and Kueue's WorkloadPriorityClasses can be created; after it they are gone."""
    async with Api.connect(kubeconfig) as api:
        found = optional_definitions()
        try:
            await asyncio.gather(*(install(api, crd) for crd in found))
            yield api
        finally:
            await asyncio.gather(*(uninstall(api, crd) for crd in found))


def is_established(crd: Json) -> bool:
    conditions = crd["status"]["conditions"] or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def copied(group: str) -> Json:
    """Our definition under another group, so that a test may change it without touching the shipped one."""
    crd = copy.deepcopy(next(one for one in load_crds() if one["spec"]["group"] == "workload.codeflare.dev"))
    crd["metadata"]["name"] = f"appwrappers.{group}"
    crd["spec"]["group"] = group
    crd["spec"]["names"] |= {"shortNames": [], "categories": []}
    return crd


def collection(namespace: str, group_version: str = WORKLOAD_V1BETA1) -> str:
    plural = "mcadappwrappers" if group_version.startswith("mcad") else "appwrappers"
    return f"/apis/{group_version}/namespaces/{namespace}/{plural}"


def appwrapper(spec: object, group_version: str = WORKLOAD_V1BETA1, name: str = "t") -> Json:
    return {"apiVersion": group_version, "kind": "AppWrapper", "metadata": {"name": name}, "spec": spec}


async def create_once_served(api: Api, path: str, body: Json) -> None:
    """Create an object of a definition just established; its handler may be a moment behind."""

    async def served() -> bool:
        try:
            await api.request("POST", path, body)
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
            return False
        return True

    await wait_for(served)


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; the test's own time limit ends what never does."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.05)
