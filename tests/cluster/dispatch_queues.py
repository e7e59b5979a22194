"""DispatchQueues of a test: they are of the whole cluster, so they are deleted after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from dispatcher.api.names import QUEUES_PATH
from dispatcher.kube.client import ClusterClient

Json = dict[str, Any]
Declare = Callable[..., Awaitable[Json]]
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@asynccontextmanager
async def declaring(client: ClusterClient) -> AsyncIterator[Declare]:
    """Creates a DispatchQueue by its name and the fields of its spec; without another selector for every namespace."""
    created: list[Json] = []

    async def declare(name: str, **spec: Any) -> Json:  # noqa: ANN401
        manifest = {
            "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
            "kind": "DispatchQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": "", **spec},
        }
        created.append(await client.create(QUEUES_PATH, manifest))
        return created[-1]

    try:
        yield declare
    finally:
        for each in created:
            metadata = each["metadata"]
            await client.delete(f"{QUEUES_PATH}/{metadata['name']}", metadata["uid"])


async def declare_all(declare: Declare, manifests: Iterable[Json]) -> None:
    """Creates DispatchQueues as files have them."""
    for each in manifests:
        assert each["kind"] == "DispatchQueue"
        await declare(each["metadata"]["name"], **each["spec"])


@asynccontextmanager
async def priority_classes(client: ClusterClient, manifests: Iterable[Json]) -> AsyncIterator[None]:
    """PriorityClasses as files have them; they are of the whole cluster, so they are deleted at the end."""
    created = [await client.create(PRIORITY_CLASSES, each) for each in manifests]
    try:
        yield
    finally:
        for each in created:
            metadata = each["metadata"]
            await client.delete(f"{PRIORITY_CLASSES}/{metadata['name']}", metadata["uid"])
