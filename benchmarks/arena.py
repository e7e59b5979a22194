"""A new control plane for each measurement, because an API server grows with the objects that it has seen.

No operator runs on it, so RayClusters stay as they are created and no pod exists. It has room for every gang. A
benchmark that needs pods of RayClusters starts KubeRay's operator, and has its kinds served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import gangs
from benchmarks.gangs import CHECKOUT, Json
from benchmarks.processor import wait_for_calm
from dispatcher.kube.client import ClusterClient
from testbed import build
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.processes import Supervisor

T = TypeVar("T")
WithKinds = Callable[[Wanted], Wanted]
"""Adds the definitions of kinds to a control plane."""

NODES: Final = 10
RAYCLUSTERS: Final = CHECKOUT / "benchmarks" / "rayclusters.yaml"
ACCOUNT: Final = "dispatcher"
WRITES: Final = "writes-of-the-dispatcher"
EVENTS: Final = "events-of-the-dispatcher"
"""The flow schemas by which the API server counts the dispatcher's requests."""
FLOW_SCHEMAS: Final = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
PAGE: Final = "500"


class Arena:
    """One running control plane."""

    def __init__(self, supervisor: Supervisor, plane: Plane, client: ClusterClient) -> None:
        self.supervisor = supervisor
        self.plane = plane
        self.client = client

    async def metrics(self) -> str:
        """The API server's metrics, as text."""
        answer = await asyncio.to_thread(self.plane.client.get, "/metrics")
        return str(answer["text"])

    async def list(self, path: str) -> list[Json]:
        """Every object at a path."""
        found: list[Json] = []
        query = {"limit": PAGE}
        while True:
            page = await self.client.get(path, query)
            found += page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                return found
            query = {"limit": PAGE, "continue": token}

    async def dispatcher_kubeconfig(self) -> Path:
        """An identity for the dispatcher alone: the API server counts its Events and its other writes separately."""
        anything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        path = await asyncio.to_thread(
            self.plane.service_account_kubeconfig, gangs.NAMESPACE, ACCOUNT, [anything]
        )
        for schema in (_flow_schema(EVENTS, 500, ["events"]), _flow_schema(WRITES, 501, ["*"])):
            where = f"{FLOW_SCHEMAS}/{schema['metadata']['name']}"
            await asyncio.to_thread(self.plane.client.apply, where, schema)
        return path


def with_rayclusters(wanted: Wanted) -> Wanted:
    """The same control plane, which serves RayClusters; their definition is slim, so that it costs no throughput."""
    return replace(wanted, crds=(*wanted.crds, RAYCLUSTERS))


@asynccontextmanager
async def fresh_arena(
    folder: Path,
    room_for: int,
    connections: int,
    say: Callable[[str], None],
    with_kinds: WithKinds = with_rayclusters,
) -> AsyncIterator[Arena]:
    """A control plane at rest, with `connections` connections open to it.

    The folder must be new; all processes of the arena's supervisor end with the arena.
    """
    with Supervisor(folder) as supervisor:
        plane = Plane(supervisor, build.ensure(), "hub", with_kinds(wanted(room_for)))
        await asyncio.to_thread(plane.up)
        await plane.create_namespace(gangs.NAMESPACE)
        async with await ClusterClient.connect(str(plane.kubeconfig), write_timeout=30) as client:
            await wait_for_calm(supervisor, say)
            await spread(range(connections), connections, lambda _: client.check_ready())
            yield Arena(supervisor, plane, client)


def wanted(room_for: int) -> Wanted:
    """The contents of a control plane with room for `room_for` gangs."""
    pods = gangs.PODS * -(-room_for // NODES)
    cpu, memory, gpu = gangs.CPU * pods, gangs.MEMORY_GI * pods, gangs.GPU * pods
    shape = Shape(cpu=str(cpu), memory=f"{memory}Gi", gpu=gpu, pods=pods)
    crds = sorted([*CHECKOUT.glob("crds/*.yaml"), *CHECKOUT.glob("testbed/crds/*.yaml")])
    return Wanted(nodes=NODES, shape=shape, crds=crds)


async def spread(items: Iterable[T], connections: int, work: Callable[[T], Awaitable[object]]) -> None:
    """Does the work for every item, `connections` of them at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(worker())


def _flow_schema(name: str, precedence: int, resources: list[str]) -> Json:
    """Counts the dispatcher's writes of some resources, which are served like those of any service account."""
    account = {"kind": "ServiceAccount", "serviceAccount": {"namespace": gangs.NAMESPACE, "name": ACCOUNT}}
    every_write = {
        "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        "apiGroups": ["*"],
        "resources": resources,
        "namespaces": ["*"],
        "clusterScope": True,
    }
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "matchingPrecedence": precedence,
            "priorityLevelConfiguration": {"name": "workload-low"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [account], "resourceRules": [every_write]}],
        },
    }
