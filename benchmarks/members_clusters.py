"""A hub and its members, each with its own control plane on this machine, and the acts of their operator.

They serve many trials, one after the other. Between two trials everything is deleted through the API servers, so that a
dispatcher with an empty database finds nothing.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import figures, gangs
from benchmarks.arena import EVENTS, WRITES, Arena, WithKinds, spread, wanted, with_rayclusters
from benchmarks.gangs import APPWRAPPERS, RAYCLUSTERS, Json
from benchmarks.processor import wait_for_calm
from dispatcher import errors
from dispatcher.api.names import HUB_CLUSTER, MEMBERS_PATH
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from testbed import build
from testbed.plane import Plane, up_all
from testbed.processes import Supervisor
from testbed.proxy import ApiProxy, Fault, Gate

MEMBERS: Final = ("east", "west", "north", "south")
LABEL: Final = "cluster"
"""The label by which gangs select their member."""
SECRETS: Final = "/api/v1/namespaces/default/secrets"
ANCHORS: Final = f"/api/v1/namespaces/{gangs.NAMESPACE}/configmaps"
GIVEN: Final = {"kube-root-ca.crt"}
"""Objects that every namespace has."""
CALM_CORES: Final = 0.3
"""Twice the processor use of five control planes at rest."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Written:
    """The dispatcher's writes to one cluster: by its identity, without Events; and all clients' writes by resource."""

    writes: int
    events: int
    by_resource: Mapping[str, int]

    def since(self, earlier: Written) -> Written:
        """The writes since then."""
        return Written(
            self.writes - earlier.writes,
            self.events - earlier.events,
            figures.difference(self.by_resource, earlier.by_resource),
        )


class Clusters:
    """The running clusters; `kubeconfigs` are the dispatcher's, by cluster."""

    def __init__(
        self, supervisor: Supervisor, arenas: Mapping[str, Arena], kubeconfigs: Mapping[str, Path]
    ) -> None:
        self.supervisor = supervisor
        self.hub = arenas[HUB_CLUSTER]
        self.kubeconfigs = kubeconfigs
        self._arenas = arenas

    def member(self, name: str) -> Arena:
        """A member by its name."""
        return self._arenas[name]

    async def declare(self, name: str, server: str = "") -> None:
        """Declares a member on the hub, with another address if there is a proxy before it."""
        plane, kubeconfig = self._arenas[name].plane, self.kubeconfigs[name].read_text()
        written = kubeconfig.replace(plane.url, server or plane.url).encode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"cluster-{name}"},
            "data": {"kubeconfig": base64.b64encode(written).decode()},
        }
        member = {
            "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
            "kind": "MemberCluster",
            "metadata": {"name": name, "labels": {LABEL: name}},
            "spec": {"kubeconfigSecretRef": {"name": f"cluster-{name}"}, "acceptedNamespaces": "All"},
        }
        await self.hub.client.create(SECRETS, secret)
        await self.hub.client.create(MEMBERS_PATH, member)

    async def written(self) -> dict[str, Written]:
        """The writes to each cluster up to now."""
        metrics_by_name = {name: await arena.metrics() for name, arena in self._arenas.items()}
        return {name: _written(metrics) for name, metrics in metrics_by_name.items()}

    async def gangs_made(self) -> dict[str, set[str]]:
        """The names of the RayClusters in each."""
        found = {name: await arena.list(RAYCLUSTERS) for name, arena in self._arenas.items()}
        return {name: {each["metadata"]["name"] for each in there} for name, there in found.items()}

    @asynccontextmanager
    async def behind_proxy(self, name: str) -> AsyncIterator[ApiProxy]:
        """A proxy before one of them; at its end held requests are cut and never reach the cluster."""
        async with ApiProxy.of(self._arenas[name].plane) as proxy:
            yield proxy

    async def wipe(self, connections: int) -> None:
        """Deletes everything that a trial left; no process that would create it again may run."""
        for arena, path in self._left_behind():
            found = [each["metadata"] for each in await arena.list(path)]
            ours = [each for each in found if each["name"] not in GIVEN]
            await spread(ours, connections, partial(_take_away, arena.client, path))

    def _left_behind(self) -> Iterator[tuple[Arena, str]]:
        """The paths with objects of a trial, in order: first the objects from which others would be created again."""
        for path in (MEMBERS_PATH, SECRETS, APPWRAPPERS):
            yield self.hub, path
        for arena in self._arenas.values():
            yield arena, RAYCLUSTERS
            yield arena, ANCHORS

    async def rest(self, say: Say) -> None:
        """Returns when all of them are at rest."""
        await wait_for_calm(self.supervisor, say, CALM_CORES)


def fall_silent(proxy: ApiProxy) -> None:
    """Makes the proxy take every request and answer none; watches stay open without events."""
    proxy.rules.on(lambda _: True, Fault(before=Gate()), times=sys.maxsize)


@asynccontextmanager
async def fresh_clusters(
    folder: Path,
    members: Sequence[str],
    room_for: int,
    connections: int,
    say: Say,
    with_kinds: WithKinds = with_rayclusters,
) -> AsyncIterator[Clusters]:
    """A hub and members at rest, each with room for `room_for` gangs; the folder must be new."""
    with Supervisor(folder) as supervisor:
        binaries = build.ensure()
        names = (HUB_CLUSTER, *members)
        planes = [Plane(supervisor, binaries, name, with_kinds(wanted(room_for))) for name in names]
        await asyncio.to_thread(up_all, planes)
        async with AsyncExitStack() as stack:
            arenas = {}
            for plane in planes:
                await plane.create_namespace(gangs.NAMESPACE)
                connecting = ClusterClient.connect(str(plane.kubeconfig), write_timeout=30)
                client = await stack.enter_async_context(await connecting)
                arenas[plane.name] = Arena(supervisor, plane, client)
            kubeconfigs = {name: await arena.dispatcher_kubeconfig() for name, arena in arenas.items()}
            clusters = Clusters(supervisor, arenas, kubeconfigs)
            await spread(range(connections), connections, lambda _: clusters.hub.client.check_ready())
            await clusters.rest(say)
            yield clusters


async def _take_away(client: ClusterClient, path: str, metadata: Json) -> None:
    """Deletes an object and its finalizers."""
    where = f"{path}/{metadata['name']}"
    with suppress(errors.NotFound, errors.Conflict):  # it was deleted with its owner
        if metadata.get("finalizers"):
            await client.patch(where, {"metadata": {"finalizers": None}}, MERGE_PATCH)
        await client.delete(where, metadata["uid"])


def _written(metrics: str) -> Written:
    return Written(
        figures.requests_of_flow(metrics, WRITES),
        figures.requests_of_flow(metrics, EVENTS),
        figures.writes(metrics),
    )
