"""Repairs of a world for a waiting gang: values that can be applied, and written in the terms of a scenario file.

A repair is one change of a `World`: more nodes of one shape, fewer running gangs, nodes without their taints, or more
quota of one queue, of one resource or of several. `advice` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, Taint
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.explain.scenario import write_amounts
from dispatcher.core.scheduling.explain.world import World
from dispatcher.text import counted

ADDED_NODES: Final = "!added"
"""The name of added nodes: it comes before nearly every other."""


class AddNodes(Struct, frozen=True):
    """So many more nodes like `node`, whose name does not count, in a cluster."""

    cluster: str
    count: int
    node: Node

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return self.count

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        nodes: dict[str, Any] = {"cluster": self.cluster, "count": self.count}
        nodes["allocatable"] = write_amounts(self.node.allocatable)
        if self.node.labels:
            nodes["labels"] = dict(self.node.labels)
        if self.node.taints:
            nodes["taints"] = [_taint(each) for each in self.node.taints]
        return {"add_nodes": nodes}


class RemoveGangs(Struct, frozen=True):
    """These running gangs less."""

    gangs: tuple[str, ...]

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return len(self.gangs)

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"remove": list(self.gangs)}


class RemoveTaints(Struct, frozen=True):
    """No taints on these nodes of a cluster."""

    cluster: str
    nodes: tuple[str, ...]

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return len(self.nodes)

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"untaint": {"cluster": self.cluster, "nodes": list(self.nodes)}}


class AddQuota(Struct, frozen=True):
    """So much more nominal quota of a resource, in base units, for a queue that names the resource."""

    queue: str
    resource: str
    amount: int

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return 1

    @property
    def quantity(self) -> str:
        """The exact amount as a quantity."""
        return write_amounts(Resources({self.resource: self.amount}))[self.resource]

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"add_quota": {"queue": self.queue, "resource": self.resource, "amount": self.quantity}}


class AddQuotas(Struct, frozen=True):
    """So much more nominal quota of several resources, for a queue that names them all."""

    parts: tuple[AddQuota, ...]

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return len(self.parts)

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"add_quotas": [each.as_document()["add_quota"] for each in self.parts]}


Repair = AddNodes | RemoveGangs | RemoveTaints | AddQuota | AddQuotas


def apply(world: World, repair: Repair, name: str = ADDED_NODES) -> World:
    """The world after a repair; added nodes are named `name` and a number."""
    match repair:
        case AddNodes(cluster, count, node):
            nodes = [replace(node, name=f"{name}-{number}") for number in range(count)]
            return world.with_nodes(cluster, nodes)
        case RemoveGangs(gangs):
            return world.without_gangs(frozenset(gangs))
        case RemoveTaints(cluster, names):
            return world.without_taints(cluster, frozenset(names))
        case AddQuota(queue, resource, amount):
            return world.with_quota(queue, resource, amount)
        case AddQuotas(parts):
            for each in parts:
                world = world.with_quota(each.queue, each.resource, each.amount)
            return world


def _taint(taint: Taint) -> dict[str, str]:
    written = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    return {field: text for field, text in written.items() if text}


_MOST_NAMES: Final = 10
"""Names of gangs or nodes in one line for people; JSON has them all."""


def in_words(repair: Repair, like: str = "") -> str:
    """The repair, to be read after "it goes"; `like` names a node of the same shape as the nodes to add."""
    match repair:
        case AddNodes(cluster, count, node):
            has = ", ".join(f"{name} {amount}" for name, amount in write_amounts(node.allocatable).items())
            labels = ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
            taints = ",".join(f"{taint}:{taint.effect}" for taint in node.taints)
            extras = [f"labels {labels}"] * bool(labels) + [f"taints {taints}"] * bool(taints)
            shape = "; ".join([has, *extras])
            nodes = f"with {counted(count, 'more node')}"
            if like:
                return f"{nodes} like {like} in {cluster} ({has})"
            return f"{nodes} in {cluster}" + (f" ({shape})" if shape else "")
        case RemoveGangs(gangs):
            return f"without {listed(gangs)}"
        case RemoveTaints(cluster, nodes):
            return f"without the taints of {listed(nodes)} in {cluster}"
        case AddQuota(queue, resource):
            return f"with a nominal quota of queue {queue} that has {repair.quantity} more {resource}"
        case AddQuotas(parts):
            more = [f"{each.quantity} more {each.resource}" for each in parts]
            return f"with a nominal quota of queue {parts[0].queue} that has {', '.join(more[:-1])} and {more[-1]}"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
