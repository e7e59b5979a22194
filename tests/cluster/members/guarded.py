"""A fleet in which the dispatcher is who the manifests make it, with proxies that see what it asks and is refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from dispatcher.api.names import CLUSTER_SELECTOR
from testbed.plane import write_private
from testbed.processes import Process
from testbed.proxy import ApiProxy, Exchange
from tests.cluster.manifests import bent
from tests.cluster.members import identities
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.identities import Right
from tests.cluster.world import World

Json = dict[str, Any]

AT: Final = "at"
"""The label of every MemberCluster that is declared here: its name."""

_VERBS: Final = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/[^/]+(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?P<subresource>/[^/]+)?)?"
)


class Guarded:
    """`proxies` are before the hub and each member, by name."""

    def __init__(self, fleet: Fleet, proxies: dict[str, ApiProxy], folder: Path) -> None:
        self.fleet = fleet
        self.hub = fleet.hub
        self.proxies = proxies
        self._folder = folder

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher as the account of `manifests/base/hub.yaml`."""
        token = await identities.dispatchers_token(self.hub)
        content = identities.kubeconfig(self.hub.plane, token, self.proxies["hub"].url)
        path = write_private(self._folder / "hub.kubeconfig", content.decode())
        return await self.fleet.start_dispatcher(kubeconfig=str(path), **settings)

    async def declare(self, name: str, **spec: object) -> None:
        """Make a member known, to be spoken to as the account of `manifests/overlays/member/member.yaml`."""
        token = await identities.token_in(self.fleet.members[name])
        await self.fleet.declare(name, kubeconfig=self.kubeconfig(name, token), labels={AT: name}, **spec)

    def kubeconfig(self, name: str, token: str, through: ApiProxy | None = None) -> bytes:
        """A kubeconfig of a member for whoever bears the token, through its proxy or another."""
        plane = self.fleet.members[name].plane
        return identities.kubeconfig(plane, token, (through or self.proxies[name]).url)

    def refused(self) -> list[str]:
        """What an API server did not let the dispatcher do."""
        return [
            f"{name}: {each.status} {each.method} {each.path}"
            for name, proxy in self.proxies.items()
            for each in proxy.rules.seen
            if each.status in {401, 403}
        ]

    def asked(self, name: str) -> set[Right]:
        """What the dispatcher asked of the hub or a member."""
        return {right for each in self.proxies[name].rules.seen if (right := right_of(each))}


@asynccontextmanager
async def guarding(fleet: Fleet, folder: Path) -> AsyncIterator[Guarded]:
    """Make the accounts on the hub and on every member, and stand between them and who uses them."""
    worlds: dict[str, World] = {"hub": fleet.hub, **fleet.members}
    for name, world in worlds.items():
        await identities.apply(world.plane, identities.HUB if name == "hub" else identities.MEMBER)
    fleet.namespace = identities.NAMESPACE
    async with AsyncExitStack() as stack:
        proxies = {
            name: await stack.enter_async_context(ApiProxy.of(world.plane)) for name, world in worlds.items()
        }
        yield Guarded(fleet, proxies, folder)
        await fleet.hub.kill_dispatchers()
    for name in fleet.members:
        await identities.revoke(fleet.hub, f"{identities.SECRETS}/cluster-{name}")


def at(where: str, manifest: Json, **annotations: str) -> Json:
    """The same AppWrapper, for one cluster only."""
    return bent(manifest, {CLUSTER_SELECTOR: f"{AT}={where}", **annotations})


def right_of(exchange: Exchange) -> Right | None:
    """What an exchange takes; None if anybody may ask that: what is served, and whether the server is ready."""
    found = _PATH.fullmatch(exchange.path)
    if found is None:
        return None
    reading = "watch" if exchange.is_watch else "get" if found["name"] else "list"
    return (
        _VERBS.get(exchange.method, reading),
        found["group"] or "",
        found["resource"] + (found["subresource"] or ""),
    )


def complaints(process: Process) -> list[str]:
    """What a dispatcher has logged of rights that it lacks."""
    lines = process.log.read_text().splitlines()
    events = {line: json.loads(line).get("event") for line in lines if line.startswith("{")}
    return [line for line in lines if events.get(line) == "list_failed" or "is forbidden: User" in line]
