"""DispatchQueues that a benchmark declares, and the labels by which AppWrappers name them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.arena import spread
from benchmarks.gangs import Gang
from dispatcher.api.names import PREFIX, QUEUE_LABEL, QUEUES_PATH
from dispatcher.kube.client import ClusterClient

Json = dict[str, Any]

LEAVES_OF_A_TREE: Final = 10
GENEROUS: Final = "1000000"
"""A nominal quota that no load of a benchmark uses up."""


def dispatch_queue(name: str, **spec: Any) -> Json:  # noqa: ANN401  # any field of a DispatchQueue
    """A DispatchQueue as an operator applies it; without another selector for every namespace."""
    return {
        "apiVersion": f"{PREFIX}/v1alpha1",
        "kind": "DispatchQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": "", **spec},
    }


def leaves(count: int) -> list[str]:
    """The names of the leaves of `generous_trees`."""
    return [f"leaf-{number:03d}" for number in range(count)]


def generous_trees(count: int) -> list[Json]:
    """`count` leaves in trees of ten; the quota of each is enough for everything."""
    roots = [dispatch_queue(_root(number)) for number in range(-(-count // LEAVES_OF_A_TREE))]
    resources = {each: {"nominalQuota": GENEROUS} for each in ("cpu", "nvidia.com/gpu")}
    return roots + [
        dispatch_queue(leaf, parent=_root(number // LEAVES_OF_A_TREE), resources=resources)
        for number, leaf in enumerate(leaves(count))
    ]


def spread_over_queues(gangs: Sequence[Gang], queues: Sequence[str]) -> list[Gang]:
    """Gangs that name these queues in turn; without queues the gangs as they are."""
    if not queues:
        return list(gangs)
    return [_in_queue(gang, queues[number % len(queues)]) for number, gang in enumerate(gangs)]


async def declare(client: ClusterClient, queues: Iterable[Json]) -> None:
    """Creates DispatchQueues, one after the other: the order of the declarations is a part of them."""
    await spread(queues, 1, lambda each: client.create(QUEUES_PATH, each))


def _root(number: int) -> str:
    return f"tree-{number:02d}"


def _in_queue(gang: Gang, queue: str) -> Gang:
    appwrapper = copy.deepcopy(gang.appwrapper)
    appwrapper["metadata"].setdefault("labels", {})[QUEUE_LABEL] = queue
    return replace(gang, appwrapper=appwrapper)
