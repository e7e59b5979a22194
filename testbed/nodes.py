"""Nodes that exist only in the API: the scheduler sees a machine, and there is none.

A node is posted with its status, so it is Ready at once; KWOK then renews its lease, and the node lifecycle controller
treats it as any other. Functions for tests of a running cluster are async; `create` serves its start.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from testbed.client import STRATEGIC_PATCH, Client

NODES = "/api/v1/nodes"
# KWOK manages only nodes with this annotation.
MANAGED = {"kwok.x-k8s.io/node": "fake"}
CONCURRENT_REQUESTS = 8
KUBELET = "127.0.0.1"
"""Where KWOK answers as the kubelet of a node, on a plane whose containers have logs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources of one node, in Kubernetes quantities; all of it is allocatable."""

    cpu: str = "8"
    memory: str = "32Gi"
    gpu: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    address: str = ""

    @property
    def capacity(self) -> dict[str, str]:
        """The node's resources by name; without GPUs, that resource is absent."""
        gpus = {"nvidia.com/gpu": str(self.gpu)} if self.gpu else {}
        return {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), **gpus}


def name_of(index: int) -> str:
    """The name of the node with this number."""
    return f"node-{index}"


def make_node(name: str, shape: Shape, now: datetime) -> dict[str, Any]:
    """A Ready node, as it is posted."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": MANAGED,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **shape.labels,
            },
        },
        "spec": {"taints": list(shape.taints)},
        "status": {
            "capacity": shape.capacity,
            "allocatable": shape.capacity,
            "conditions": conditions(now.strftime("%Y-%m-%dT%H:%M:%SZ")),
            "phase": "Running",
            "addresses": [
                {"type": "Hostname", "address": name},
                *([{"type": "InternalIP", "address": shape.address}] if shape.address else ()),
            ],
            "nodeInfo": node_info(),
        },
    }


def conditions(since: str) -> list[dict[str, str]]:
    """The conditions of a healthy node."""
    kinds = {
        "Ready": ("True", "KubeletReady"),
        "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID"),
        "NetworkUnavailable": ("False", "RouteCreated"),
    }
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "a node of the testbed",
            "lastHeartbeatTime": since,
            "lastTransitionTime": since,
        }
        for kind, (status, reason) in kinds.items()
    ]


def node_info() -> dict[str, str]:
    """The fields of nodeInfo, all of which the API requires."""
    unknown = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID")
    return {
        **dict.fromkeys((*unknown, "osImage", "systemUUID"), ""),
        "kubeletVersion": "v1.36.3",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def is_usable(node: Mapping[str, Any]) -> bool:
    """True if the scheduler may place pods on it: Ready, and without taints of the control plane."""
    ready = [each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"]
    taints = [each["key"] for each in node["spec"].get("taints", ())]
    return ready == ["True"] and not any(each.startswith("node.kubernetes.io/") for each in taints)


def create(client: Client, shape: Shape, indexes: Sequence[int]) -> None:
    """Posts nodes, several at a time."""
    made = [make_node(name_of(each), shape, datetime.now(UTC)) for each in indexes]
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        list(pool.map(lambda node: client.request("POST", NODES, node), made))


async def add(client: Client, shape: Shape, indexes: Sequence[int]) -> None:
    """Adds the nodes with these numbers to a running cluster."""
    await asyncio.to_thread(create, client, shape, indexes)


async def remove(client: Client, name: str) -> None:
    """Deletes a node, like a machine that is gone for good.

    Its pods stay, Running, until the control plane collects them after about a minute.
    """
    await asyncio.to_thread(client.request, "DELETE", f"{NODES}/{name}")


async def cordon(client: Client, name: str) -> None:
    """Makes the node unschedulable; running pods stay."""
    await _patch(client, f"{NODES}/{name}", {"spec": {"unschedulable": True}})


async def uncordon(client: Client, name: str) -> None:
    """Undoes `cordon`."""
    await _patch(client, f"{NODES}/{name}", {"spec": {"unschedulable": None}})


@asynccontextmanager
async def cordoned(client: Client, name: str) -> AsyncIterator[None]:
    """Nothing new may be scheduled on a node for a while."""
    await cordon(client, name)
    try:
        yield
    finally:
        await uncordon(client, name)


async def resize(client: Client, name: str, resources: Mapping[str, str | None]) -> None:
    """Changes the resources of a node by name; None removes a resource. The others stay."""
    status = {"capacity": dict(resources), "allocatable": dict(resources)}
    await _patch(client, f"{NODES}/{name}/status", {"status": status})


async def taint(client: Client, name: str, taints: Sequence[Mapping[str, str]]) -> None:
    """Adds taints, each a key, an effect and perhaps a value."""
    node = await asyncio.to_thread(client.get, f"{NODES}/{name}")
    kept = [each for each in node["spec"].get("taints", ()) if each not in taints]
    await _patch(client, f"{NODES}/{name}", {"spec": {"taints": [*kept, *taints]}})


async def silence(client: Client, name: str) -> None:
    """Simulates the death of a node: KWOK no longer manages its pods, and its conditions are Unknown.

    The conditions are written as the node lifecycle controller writes them after 50 s without a lease. The consequences
    (taints, pods that are not ready, their eviction) are the controller's own.
    """
    await _patch(client, f"{NODES}/{name}", {"metadata": {"annotations": dict.fromkeys(MANAGED)}})
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unknown = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": now,
    }
    await _patch(client, f"{NODES}/{name}/status", {"status": {"conditions": [unknown]}})


async def revive(client: Client, name: str) -> None:
    """Undoes `silence`; the node is usable again a moment later."""
    await _patch(client, f"{NODES}/{name}", {"metadata": {"annotations": MANAGED}})


async def _patch(client: Client, path: str, body: Mapping[str, Any]) -> None:
    await asyncio.to_thread(client.request, "PATCH", path, body, STRATEGIC_PATCH)
