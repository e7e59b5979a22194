"""The pods of a world: each bound to its node, or to the first node that takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dispatcher.core.model.gang import PodSet
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.world_facts import Cluster, NoNode, RunningGang


def others_of(cluster: Cluster) -> Iterator[Pod]:
    """The pods of a cluster that belong to no running gang."""
    for pods, never_ends in ((cluster.others, False), (cluster.permanent, True)):
        for uid, place in _one_by_one(f"!{never_ends}", pods):
            yield Pod(
                uid, place.requests, place.node, PodPhase.RUNNING, never_ends=never_ends, sort=place.sort
            )


def _one_by_one(whose: str, places: Iterable[Place]) -> Iterator[tuple[str, Place]]:
    """Each pod of these places, with a uid."""
    for number, place in enumerate(places):
        for index in range(place.pods):
            yield f"{whose}/{number}/{index}", place


def bound_pods_of(cluster: Cluster, gangs: Sequence[tuple[int, RunningGang]]) -> list[Pod]:
    """The pods of the running gangs of one cluster, on nodes."""
    nodes = _FreeNodes(cluster.nodes)
    pods: list[Pod] = []
    for _, gang in gangs:
        for place in gang.bound or ():
            nodes.take(place.node, place.requests, place.pods)
        for running in gang.pods if gang.bound is None else ():
            for name in running.nodes:
                nodes.take(name, running.pods.requests)
        pods += named_pods(gang)
    for index, gang in gangs:
        for number, running in enumerate(gang.pods if gang.bound is None else ()):
            if not running.nodes:
                found = nodes.first_for(running.pods)
                if found is None:
                    raise NoNode(index, number)
                pods += _pods(gang, number, running.pods, found)
    return pods


def named_pods(gang: RunningGang) -> Iterator[Pod]:
    """The pods of a gang on nodes that the world names."""
    if gang.bound is not None:
        for uid, place in _one_by_one(gang.name, gang.bound):
            yield _pod(gang, uid, place)
        return
    for number, running in enumerate(gang.pods):
        yield from _pods(gang, number, running.pods, running.nodes)


def _pods(gang: RunningGang, number: int, pods: PodSet, nodes: Sequence[str]) -> Iterator[Pod]:
    for index, node in enumerate(nodes):
        place = Place(node, pods.requests, 1, pods.sort)
        yield _pod(gang, f"{gang.name}/{number}/{index}", place)


def _pod(gang: RunningGang, uid: str, place: Place) -> Pod:
    """A pod of a running gang; the growth that its cluster is charged with is that of a gang that grows by grants."""
    return Pod(
        uid,
        place.requests,
        place.node,
        PodPhase.RUNNING,
        owner=gang.name,
        can_be_gated=bool(gang.charged_beyond),
        sort=place.sort,
    )


class _FreeNodes:
    """The free amounts of the nodes of one cluster while pods are bound to them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._free = [node.allocatable for node in nodes]
        self._places = [node.pod_limit for node in nodes]
        # Nodes only fill up, so a node that did not take a pod of a shape never will.
        self._starts: dict[PodSet, int] = {}

    def take(self, node: str, requests: Resources, pods: int = 1) -> None:
        """Binds pods to a node, whether they fit or not; nothing if the node is not there."""
        index = self._index.get(node)
        if index is not None:
            self._take(index, requests, pods)

    def first_for(self, pods: PodSet) -> list[str] | None:
        """Binds each pod to the first node that takes it, and returns the nodes; None if no node takes one."""
        shape = replace(pods, count=1)
        index = self._starts.get(shape, 0)
        found: list[str] = []
        while len(found) < pods.count:
            while index < len(self._nodes) and not self._takes(index, pods):
                index += 1
            if index == len(self._nodes):
                return None
            self._take(index, pods.requests)
            found.append(self._nodes[index].name)
        self._starts[shape] = index
        return found

    def _takes(self, index: int, pods: PodSet) -> bool:
        has_place = self._places[index] > 0 and pods.may_use(self._nodes[index])
        return has_place and pods.requests.fits_in(self._free[index])

    def _take(self, index: int, requests: Resources, pods: int = 1) -> None:
        self._free[index] -= requests * pods
        self._places[index] -= pods
