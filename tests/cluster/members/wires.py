"""A hub and its members whose wires a test holds, and the account of what each cluster has of a gang."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dispatcher.api.names import ANCHOR_PREFIX, CLUSTER_SELECTOR, FINALIZER, UID_LABEL
from dispatcher.core.kinds.manifest import controller_of
from dispatcher.kube.client import resource_of
from testbed.processes import Process
from testbed.proxy import DROPPED, ApiProxy, Exchange
from tests.cluster.manifests import bent
from tests.cluster.members.fleet import OFTEN, Fleet
from tests.cluster.members.test_members_loss import until_told
from tests.cluster.mortal import CALM
from tests.cluster.wires import Life, Wires, gang, lives
from tests.cluster.wires import wires_of as wires_of_hub
from tests.cluster.world import World

Json = dict[str, Any]
Matches = Callable[[Exchange], bool]


PATIENT = {"unreachable_seconds": "60", "read_timeout_seconds": "10"}
"""No member is called lost, however slow the machine."""


@dataclass(frozen=True)
class FleetWires(Wires):
    """The proxies of one dispatcher: before the hub, Postgres, and each member by its name."""

    fleet: Fleet
    members: Mapping[str, ApiProxy]
    settings: Mapping[str, str]

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher on these wires."""
        namespace = self.fleet.namespace
        return await super().start_dispatcher(
            **{"namespace": namespace, **OFTEN, **self.settings, **settings}
        )

    async def start(self) -> None:
        """Declare every member, labelled with its own name, run a dispatcher, and return when all are connected."""
        for name in self.members:
            await self.declare(name, labels={"name": name})
        await self.start_dispatcher()
        for name in self.members:
            await until_told(self.fleet, name, None)

    def spare(self) -> None:
        """Let everything pass from now on, to each cluster."""
        super().spare()
        for member in self.members.values():
            member.rules.clear()

    def created(self) -> Counter[str]:
        """How often each object was created in any cluster, as the API servers answered."""
        counts = super().created()
        for member in self.members.values():
            counts += Wires(self.world, member, self.postgres).created()
        return counts

    async def declare(self, name: str, *, labels: dict[str, str] | None = None) -> None:
        """Make a member known to the hub by what leads through its proxy."""
        kubeconfig = self.members[name].kubeconfig(self.fleet.members[name].plane).read_bytes()
        await self.fleet.declare(name, kubeconfig=kubeconfig, labels=labels)


@asynccontextmanager
async def wires_of(fleet: Fleet, **settings: str) -> AsyncIterator[FleetWires]:
    """Proxies for one dispatcher; whoever runs on them is killed before they go."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(wires_of_hub(fleet.hub))
        members = {
            name: await stack.enter_async_context(ApiProxy.of(member.plane))
            for name, member in fleet.members.items()
        }
        stack.push_async_callback(fleet.hub.kill_dispatchers)
        yield FleetWires(fleet.hub, hub.api, hub.postgres, fleet, members, {**CALM, **settings})


def pinned(name: str, cluster: str) -> Json:
    """A gang that only goes to that member."""
    return bent(gang(name), {CLUSTER_SELECTOR: f"name={cluster}"})


def cut_off(proxy: ApiProxy) -> None:
    """Let nothing through, in either direction, until its rules are cleared."""
    proxy.rules.on(lambda _: True, DROPPED, times=sys.maxsize)
    proxy.cut_watches()


# --- what to strike at -------------------------------------------------------------------------------


def adds_finalizer(name: str) -> Matches:
    """The patch that gives an AppWrapper our finalizer."""
    return lambda each: (
        point_of(each) == "PATCH appwrappers: add finalizer" and each.path.endswith(f"/{name}")
    )


def removes_finalizer(name: str) -> Matches:
    """The patch that takes our finalizer off."""
    return lambda each: (
        point_of(each) == "PATCH appwrappers: remove finalizer" and each.path.endswith(f"/{name}")
    )


def looks_for_anchor(each: Exchange) -> bool:
    """The first that a member is asked about an attempt: whether it has its anchor."""
    return each.method == "GET" and f"/configmaps/{ANCHOR_PREFIX}" in each.path


def creates_anchor(name: str) -> Matches:
    """The creation of the anchor of an AppWrapper."""
    return lambda each: (
        point_of(each) == "POST configmaps: anchor"
        and each.document["data"]["appwrapper"].endswith(f"/{name}")
    )


def deletes_anchor(uid: str) -> Matches:
    """The deletion of an anchor of the AppWrapper of that uid."""
    return lambda each: point_of(each) == "DELETE configmaps: anchor" and uid in each.path


def makes_namespace(name: str) -> Matches:
    """The creation of a namespace."""
    return lambda each: point_of(each) == "POST namespaces" and each.document["metadata"]["name"] == name


def point_of(each: Exchange) -> str:
    """What an exchange is: its verb, its resource, and, where there are several, which; the same for every gang."""
    detail = _detail(each)
    return f"{each.method} {resource_of(each.path)}" + (f": {detail}" if detail else "")


def _detail(each: Exchange) -> str:
    match each.method, resource_of(each.path):
        case "POST", "events":
            return str(each.document["reason"])
        case "PATCH", "appwrappers":
            return (
                "add" if FINALIZER in each.document["metadata"]["finalizers"] else "remove"
            ) + " finalizer"
        case "PATCH", "appwrappers/status":
            return str(each.document[1]["value"]["queuejobstate"])
        case "POST", "configmaps":
            return "anchor" if each.document["metadata"]["name"].startswith(ANCHOR_PREFIX) else ""
        case "DELETE", "configmaps":
            return "anchor" if each.path.rpartition("/")[2].startswith(ANCHOR_PREFIX) else ""
        case _:
            return ""


# --- the account -------------------------------------------------------------------------------------

Found = tuple[str, str, str, str]
"""Cluster, kind, name, and the name of what controls it; a pod goes by its owner's name."""


def whole(cluster: str, name: str, uid: str, attempt: int = 1) -> list[Found]:
    """One full set of a gang's objects (`tests.cluster.wires.gang`), and its pod."""
    anchor = f"{ANCHOR_PREFIX}{uid}-{attempt}"
    return sorted(
        [
            (cluster, "ConfigMap", anchor, ""),
            (cluster, "ConfigMap", name, anchor),
            (cluster, "Job", name, anchor),
            (cluster, "Pod", name, name),
        ]
    )


async def lives_but_for(database_url: str, *causes: str) -> dict[str, Life]:
    """As `lives`, without the steps of these causes."""
    known = await lives(database_url)
    return {
        name: Life(life.phase, tuple(step for step in life.steps if step not in causes))
        for name, life in known.items()
    }


async def found_of(fleet: Fleet, uid: str) -> list[Found]:
    """All that the hub and the members have of an AppWrapper."""
    clusters = {"hub": fleet.hub, **fleet.members}
    return sorted([each for name, world in clusters.items() for each in await _found_in(name, world, uid)])


async def _found_in(cluster: str, world: World, uid: str) -> list[Found]:
    return [
        (cluster, kind, owner if kind == "Pod" else each["metadata"]["name"], owner)
        for kind in ("ConfigMap", "Job", "Pod")
        for each in await world.every(kind)
        if (each["metadata"].get("labels") or {}).get(UID_LABEL) == uid
        for owner in [(controller_of(each["metadata"]) or {}).get("name", "")]
    ]


async def assert_whole(fleet: Fleet, name: str, attempt: int = 1) -> str:
    """One full set of its objects, all of one attempt, in the one cluster that its status names; which."""
    found = await fleet.hub.get("AppWrapper", name)
    assert found is not None
    cluster: str = found["status"]["cluster"]
    uid = found["metadata"]["uid"]
    assert await found_of(fleet, uid) == whole(cluster, name, uid, attempt)
    assert found["metadata"]["finalizers"] == [FINALIZER]
    return cluster
