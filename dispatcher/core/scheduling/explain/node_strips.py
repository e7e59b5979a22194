"""The nodes of each cluster as a pending gang meets them: what is free, how many pods fit, and what keeps them off.

The picture of an explanation is drawn from it. The snapshot and the reasons are those of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import gpus, is_gpu
from dispatcher.core.scheduling.capacity.node_snapshot import NodeSnapshot, Place, Use
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World

CORES: Final = "cpu"


class NodeSeen(Struct, frozen=True):
    """A node: `allocatable` and `free` amounts of the resource of its strip, in base units; a debt is negative.

    `fits` is the number of pods of the strip's pod set that fit there now, the node alone. `why` says why no pod of the
    gang may use the node; empty if some may. `holders` are the gangs that hold some of the resource there, or that have
    a backfill reservation of it, by uid, each with the amount.
    """

    name: str
    allocatable: int
    free: int
    fits: int
    why: str
    holders: Mapping[str, int]


class Strip(Struct, frozen=True):
    """The nodes of a cluster as the pods of one pod set meet them: first those where most of them fit.

    `requests` is the amount of the resource that each of its `pods` requests. The gang has `others` besides, which are
    not counted.
    """

    cluster: str
    resource: str
    requests: int
    pods: int
    others: int
    nodes: tuple[NodeSeen, ...]

    @property
    def fitting(self) -> int:
        """How many of the pods fit on all nodes together, without the other pods and their rules about each other."""
        return min(self.pods, sum(each.fits for each in self.nodes))


def strips(world: World, record: Record, known: KnownSnapshots | None = None) -> tuple[Strip, ...]:
    """The strip of each cluster whose nodes are known, for the pod set whose pods ask for the most GPUs, else cores.

    A backfill reservation keeps places for a starved gang. A gang that the next cycle decides later cannot have these
    places, so its strips show them as held.
    Costs O(nodes) for each cluster beside the snapshots, and a cycle if places are kept. Raises `NoNode`.
    """
    known = known or KnownSnapshots()
    found, kept = [], world.kept_from(record, known)
    for name, snapshot in known.of(world).items():
        capacity = snapshot.capacity
        if name in kept:
            keeper, places = kept[name]
            capacity = capacity.copy()
            capacity.take_as(keeper.uid, keeper.gang, places)
        gang, nodes = capacity.beside(record.gang), capacity.nodes
        largest = max((each for each in gang.pod_sets if each.count), key=_size, default=None)
        if nodes is not None and largest is not None:
            found.append(_strip(name, gang, largest, nodes))
    return tuple(found)


def _strip(cluster: str, gang: Gang, pod_set: PodSet, nodes: NodeSnapshot) -> Strip:
    resource = next(filter(is_gpu, sorted(pod_set.requests)), CORES)
    why, holders = nodes.traits.why_excluded(gang.pod_sets), _holders(nodes.uses, resource)
    seen = [
        NodeSeen(
            node.name,
            node.allocatable.get(resource, 0),
            free,
            fits,
            why.get(node.name, ""),
            holders.get(node.name, {}),
        )
        for node, free, fits in nodes.free.of_each_node(pod_set, resource)
    ]
    in_order = sorted(seen, key=lambda each: (-each.fits, bool(each.why), -each.free, each.name))
    others = sum(each.count for each in gang.pod_sets) - pod_set.count
    return Strip(cluster, resource, pod_set.requests.get(resource, 0), pod_set.count, others, tuple(in_order))


def _size(pod_set: PodSet) -> tuple[int, int]:
    return gpus(pod_set.requests), pod_set.requests.get(CORES, 0)


def _holders(uses: Mapping[str, Use], resource: str) -> dict[str, Counter[str]]:
    """The amounts that gangs hold on each node, by the name of the node and the uid of the gang."""
    found: dict[str, Counter[str]] = {}
    for uid, place in _places(uses):
        if amount := place.requests.get(resource, 0) * place.pods:
            found.setdefault(place.node, Counter())[uid] += amount
    return found


def _places(uses: Mapping[str, Use]) -> Iterator[tuple[str, Place]]:
    for uid, use in uses.items():
        for place in (*use.bound, *use.held):
            yield uid, place
