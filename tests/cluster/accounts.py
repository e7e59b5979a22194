"""What is free, worked out anew from the API server's lists and design.md's sentence, and from nothing of ours.

free = sum over usable nodes of (allocatable - requests of the live pods bound there, anyone's)
       - sum over active AppWrappers of max(0, demand - requests of its own live bound pods, on any node)

ObjectOwnership a pod is follows from owner references alone, over all objects seen so far: those in between may be gone
while their pods still end. What an AppWrapper demands is what the test that made it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.cluster.world import World

Json = dict[str, Any]
Amounts = Counter[str]

OWNING_KINDS = ("AppWrapper", "RayCluster", "Deployment", "Job")
SUFFIXES = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3)}
SUFFIXES |= {"M": Fraction(10**6), "G": Fraction(10**9)}
SUFFIXES |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGT", start=1)}


@dataclass(frozen=True, slots=True)
class Lists:
    """What the API server has at about one moment."""

    nodes: list[Json]
    pods: list[Json]
    appwrappers: list[Json]

    @property
    def versions(self) -> frozenset[tuple[str, str]]:
        """Tells one state of affairs from another, but for heartbeats of nodes."""
        return frozenset(
            (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
            for each in (*self.pods, *self.appwrappers)
        )


class Accounts:
    """Follows the objects of one world; `demands` are by AppWrapper uid, in base units."""

    def __init__(self, world: World) -> None:
        self.demands: dict[str, Amounts] = {}
        self._world = world
        self._above: dict[str, str] = {}

    async def look(self) -> Lists:
        """The lists of now; learns who controls whom."""
        get = self._world.client.get
        found = await asyncio.gather(
            get("/api/v1/nodes"),
            get("/api/v1/pods"),
            *(get(self._world.path(kind)) for kind in OWNING_KINDS),
            get(f"/apis/apps/v1/namespaces/{self._world.namespace}/replicasets"),
        )
        nodes, pods, appwrappers, *others = (page.get("items") or [] for page in found)
        for each in (*pods, *appwrappers, *(one for page in others for one in page)):
            for reference in each["metadata"].get("ownerReferences") or ():
                if reference.get("controller"):
                    self._above[each["metadata"]["uid"]] = reference["uid"]
        return Lists(nodes, pods, appwrappers)

    def free(self, lists: Lists) -> Amounts:
        """By resource; what is 0 is left out."""
        live = [pod for pod in lists.pods if is_live_and_bound(pod)]
        free: Amounts = Counter()
        usable = {node["metadata"]["name"]: node for node in lists.nodes if is_usable(node)}
        for node in usable.values():
            free.update(amounts(node["status"]["allocatable"]))
        for pod in live:
            if pod["spec"]["nodeName"] in usable:
                free.subtract(requests(pod))
        for uid in self._active(lists):
            outstanding = Counter(self.demands[uid])
            for pod in live:
                if self._root(pod["metadata"]["uid"]) == uid:
                    outstanding.subtract(requests(pod))
            free.subtract(+outstanding)
        return Counter({name: amount for name, amount in free.items() if amount})

    def _active(self, lists: Lists) -> set[str]:
        """Those that were dispatched, and those deleted of which a pod is left that is not over."""
        existing = {each["metadata"]["uid"] for each in lists.appwrappers}
        dispatched = {
            each["metadata"]["uid"]
            for each in lists.appwrappers
            if _is_dispatched(each.get("status") or {}) and "deletionTimestamp" not in each["metadata"]
        }
        ending = {self._root(pod["metadata"]["uid"]) for pod in lists.pods if is_live(pod)}
        return dispatched | ((ending & self.demands.keys()) - existing)

    def _root(self, uid: str) -> str:
        while uid in self._above:
            uid = self._above[uid]
        return uid


def _is_dispatched(status: Json) -> bool:
    """It has a cluster, and has not ended there."""
    return bool(status.get("cluster")) and status.get("state") not in {"Completed", "Failed"}


def is_usable(node: Json) -> bool:
    """Ready and not cordoned."""
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
    return ready and not node["spec"].get("unschedulable")


def is_live(pod: Json) -> bool:
    """Neither Succeeded nor Failed; one that is being deleted is."""
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def is_live_and_bound(pod: Json) -> bool:
    """It takes its requests from a node."""
    return is_live(pod) and bool(pod["spec"].get("nodeName"))


def requests(pod: Json) -> Amounts:
    """The larger of what its containers ask for together and what any init container asks for."""
    total: Amounts = Counter()
    for container in pod["spec"]["containers"]:
        total.update(amounts((container.get("resources") or {}).get("requests") or {}))
    for container in pod["spec"].get("initContainers") or ():
        total |= amounts((container.get("resources") or {}).get("requests") or {})
    return total


def amounts(written: Json) -> Amounts:
    """A ResourceList in base units: thousandths of a cpu, one of everything else."""
    return Counter({name: in_base_units(name, str(value)) for name, value in written.items()})


def in_base_units(resource: str, written: str) -> int:
    """One quantity, rounded up."""
    digits = written.rstrip("mkMGTKi")
    exact = Fraction(digits) * SUFFIXES[written[len(digits) :]] * (1000 if resource == "cpu" else 1)
    return -(-exact.numerator // exact.denominator)
