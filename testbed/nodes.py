"""Nodes that exist only in the API: what a scheduler sees of a machine, and no machine.

A node is posted with its status, so it is Ready at once; KWOK then renews its lease, and the node lifecycle
controller treats it as any other. What tests change while a cluster lives is async; `create` is for its
start.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from testbed.client import STRATEGIC_PATCH, Client

NODES = "/api/v1/nodes"
# KWOK looks after the nodes that bear this, and no others.
MANAGED = {"kwok.x-k8s.io/node": "fake"}
CONCURRENT_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What one node offers, in Kubernetes quantities; allocatable is all of it."""

    cpu: str = "8"
    memory: str = "32Gi"
    gpu: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    @property
    def capacity(self) -> dict[str, str]:
        """The node's resources by name; one without GPUs does not know the resource."""
        gpus = {"nvidia.com/gpu": str(self.gpu)} if self.gpu else {}
        return {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), **gpus}


def name_of(index: int) -> str:
    """Return the name of the node with this number."""
    return f"node-{index}"


def make_node(name: str, shape: Shape, now: datetime) -> dict[str, Any]:
    """Return a Ready node as it is posted."""
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
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": node_info(),
        },
    }


def conditions(since: str) -> list[dict[str, str]]:
    """Return the conditions of a healthy node."""
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
    """Return the fields of nodeInfo, every one of which the API requires."""
    unknown = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID")
    return {
        **dict.fromkeys((*unknown, "osImage", "systemUUID"), ""),
        "kubeletVersion": "v1.36.3",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def is_usable(node: Mapping[str, Any]) -> bool:
    """Whether the scheduler may place pods on it: Ready, and free of taints the control plane put there."""
    ready = [each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"]
    taints = [each["key"] for each in node["spec"].get("taints", ())]
    return ready == ["True"] and not any(each.startswith("node.kubernetes.io/") for each in taints)


def create(client: Client, shape: Shape, indexes: Sequence[int]) -> None:
    """Post nodes, several at a time."""
    made = [make_node(name_of(each), shape, datetime.now(UTC)) for each in indexes]
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        list(pool.map(lambda node: client.request("POST", NODES, node), made))


async def add(client: Client, shape: Shape, indexes: Sequence[int]) -> None:
    """Add the nodes with these numbers to a running cluster."""
    await asyncio.to_thread(create, client, shape, indexes)


async def remove(client: Client, name: str) -> None:
    """Delete a node, as when a machine is gone for good.

    Its pods stay, Running, until the control plane collects them: that takes it about a minute.
    """
    await asyncio.to_thread(client.request, "DELETE", f"{NODES}/{name}")


async def cordon(client: Client, name: str) -> None:
    """Let nothing new be scheduled there; what runs stays."""
    await _patch(client, f"{NODES}/{name}", {"spec": {"unschedulable": True}})


async def uncordon(client: Client, name: str) -> None:
    """Undo `cordon`."""
    await _patch(client, f"{NODES}/{name}", {"spec": {"unschedulable": None}})


async def resize(client: Client, name: str, resources: Mapping[str, str | None]) -> None:
    """Change what a node offers, by resource name; None takes a resource away. Others stay as they are."""
    status = {"capacity": dict(resources), "allocatable": dict(resources)}
    await _patch(client, f"{NODES}/{name}/status", {"status": status})


async def taint(client: Client, name: str, taints: Sequence[Mapping[str, str]]) -> None:
    """Add taints, each a key, an effect and perhaps a value."""
    node = await asyncio.to_thread(client.get, f"{NODES}/{name}")
    kept = [each for each in node["spec"].get("taints", ()) if each not in taints]
    await _patch(client, f"{NODES}/{name}", {"spec": {"taints": [*kept, *taints]}})


async def silence(client: Client, name: str) -> None:
    """Let a node die: nobody plays its pods any more, and the control plane has given it up.

    What the node lifecycle controller says of a silent node after 50 s is said here for it, to the letter; what
    follows from that (taints, pods that are not ready, their eviction) is its own doing.
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
    """Undo `silence`; the node is usable again a moment later."""
    await _patch(client, f"{NODES}/{name}", {"metadata": {"annotations": MANAGED}})


async def _patch(client: Client, path: str, body: Mapping[str, Any]) -> None:
    await asyncio.to_thread(client.request, "PATCH", path, body, STRATEGIC_PATCH)
