"""DispatchQueues of a test: they are of the whole cluster, so they are deleted after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from dispatcher.kube.client import ClusterClient

Json = dict[str, Any]
Declare = Callable[..., Awaitable[Json]]
PATH = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"


@asynccontextmanager
async def declaring(client: ClusterClient) -> AsyncIterator[Declare]:
    """Creates a DispatchQueue by its name and the fields of its spec."""
    created: list[Json] = []

    async def declare(name: str, **spec: Any) -> Json:  # noqa: ANN401
        manifest = {
            "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
            "kind": "DispatchQueue",
            "metadata": {"name": name},
            "spec": spec,
        }
        created.append(await client.create(PATH, manifest))
        return created[-1]

    try:
        yield declare
    finally:
        for each in created:
            metadata = each["metadata"]
            await client.delete(f"{PATH}/{metadata['name']}", metadata["uid"])


async def declare_all(declare: Declare, manifests: Iterable[Json]) -> None:
    """Creates DispatchQueues as files have them."""
    for each in manifests:
        assert each["kind"] == "DispatchQueue"
        await declare(each["metadata"]["name"], **each["spec"])
