"""What MCAD's end-to-end suite does: apply, wait for pods, see that none come.

Its waits are conditions here. Where it watched for a minute and a half that no pod appears, we wait until the
AppWrapper was refused and three more cycles have passed over it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from testbed.processes import Process
from tests.cluster.figures import cycles_of
from tests.cluster.manifests import appwrapper, deployment, item
from tests.cluster.world import World

Json = dict[str, Any]

MCAD_NAME_LABEL = "appwrapper.mcad.ibm.com"

OFTEN = {"poll_seconds": "0.1"}
"""Cycles come often, so that they can be counted."""

AS_MCAD = {"fit": "aggregate"}
"""Gangs fit by sums, as in MCAD: some of its cases rely on pods that no node takes."""

TRUSTING = pytest.mark.parametrize("suite", [{"declared_demand": "trusted"}], indirect=True, ids=["trusting"])
"""For cases of MCAD's that declare less than their templates ask for: the dispatcher believes them, as MCAD did."""


class Suite:
    """MCAD's steps, on a dispatcher that runs."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process

    async def apply(self, *manifests: Json) -> None:
        """Create them all, one after the other, so that the first is the oldest."""
        for manifest in manifests:
            await self.world.create(manifest)

    async def apply_at_once(self, *manifests: Json) -> None:
        """Create them all."""
        await asyncio.gather(*map(self.world.create, manifests))

    async def status(self, name: str) -> Json:
        """What an AppWrapper shows now; empty as long as it shows nothing."""
        found = await self.world.get("AppWrapper", name)
        assert found is not None, f"{name} is not there"
        return found.get("status") or {}

    async def pods(self, name: str) -> list[Json]:
        """The pods that bear its name, whatever has become of them."""
        return [
            pod
            for pod in await self.world.every("Pod")
            if pod["metadata"].get("labels", {}).get(MCAD_NAME_LABEL) == name
        ]

    async def until_pods_exist(self, name: str) -> None:
        """MCAD's `waitAWAnyPodsExists`."""

        async def any_pod() -> bool:
            return bool(await self.pods(name))

        await self.world.until(any_pod, f"{name} has pods")

    async def until_ready(self, name: str, count: int) -> None:
        """MCAD's `waitAWPodsReady`: so many of its pods run or have succeeded, neither fewer nor more."""

        async def ready() -> bool:
            phases = [pod["status"]["phase"] for pod in await self.pods(name)]
            return sum(phase in ("Running", "Succeeded") for phase in phases) == count

        await self.world.until(ready, f"{count} pods of {name} are ready")

    async def until_unschedulable(self, name: str, count: int) -> None:
        """MCAD's `waitAWPodsPending`: the scheduler has no room for so many of its pods."""

        async def unschedulable() -> bool:
            return sum(map(is_unschedulable, await self.pods(name))) == count

        await self.world.until(unschedulable, f"{count} pods of {name} are unschedulable")

    async def stays_without_pods(self, name: str) -> Json:
        """Its status, once it was told to wait and three cycles more have not changed its mind."""
        await self.world.until_state(name, "Backoff")
        await self.cycles_pass(3)
        status = await self.status(name)
        assert (status["state"], await self.pods(name)) == ("Pending", [])
        return status

    async def until_shown(self, name: str, state: str) -> Json:
        """Its status, once `state` has become what MCAD's clients wait for."""

        async def look() -> Json | None:
            status = await self.status(name)
            return status if status.get("state") == state else None

        return await self.world.until(look, f"the state of {name} is {state}")

    async def cycles_pass(self, count: int) -> None:
        """Return when so many more cycles were run."""
        wanted = await cycles_of(self.process) + count

        async def enough() -> bool:
            return await cycles_of(self.process) >= wanted

        await self.world.until(enough, f"{count} more cycles")

    async def restart(self) -> None:
        """End the dispatcher as an operator would, and start the next."""
        assert await self.world.stop_dispatcher(self.process) == 0
        self.process = await self.world.start_dispatcher(**OFTEN)

    async def fill(self) -> None:
        """Take 550m of each node, which leaves 425m on each."""
        await self.apply(two_deployed("aw-deployment-2-550cpu", "550m"))
        await self.until_ready("aw-deployment-2-550cpu", 2)


def two_deployed(name: str, cpu: str, **spec: Any) -> Json:  # noqa: ANN401
    """MCAD's favourite: a Deployment of two pods."""
    scheduling = {"minAvailable": 2, **spec.pop("schedulingSpec", {})}
    return appwrapper(name, item(deployment(name, 2, cpu)), schedulingSpec=scheduling, **spec)


def declaring(name: str, replicas: int, declared: str, cpu: str, **scheduling: Any) -> Json:  # noqa: ANN401
    """A Deployment whose pods ask for `cpu` and are said to ask for `declared`."""
    pods = [{"replicas": replicas, "requests": {"cpu": declared}, "limits": {"cpu": declared}}]
    wrapped = item(deployment(name, replicas, cpu), custompodresources=pods)
    return appwrapper(name, wrapped, schedulingSpec={"minAvailable": replicas, **scheduling})


def is_unschedulable(pod: Json) -> bool:
    """The scheduler has said that no node has room for it."""
    return any(
        (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for each in pod["status"].get("conditions") or ()
    )


def conditions(status: Json) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message by type, in order."""
    return {
        each["type"]: (each["status"], each.get("reason", ""), each.get("message", ""))
        for each in status["conditions"]
    }
