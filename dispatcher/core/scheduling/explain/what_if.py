"""Changes of a world as people write them: `nodes+2:cpu=8`, `east/nodes+1:like=n3`, `untaint:n3,n4`, `vision:cpu=8`."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.explain.repair import AddNodes, RemoveTaints, Repair
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.text import one_line

MOST_ADDED: Final = 10_000
"""Nodes of one change."""

FORMS: Final = (
    "[CLUSTER/]nodes+COUNT:RESOURCE=AMOUNT,…, [CLUSTER/]nodes+COUNT:like=NODE, or [CLUSTER/]untaint:NODE,…"
)


class ChangeError(ValueError):
    """A change that cannot be read, or that names something the world does not have; the message says what to write."""


def parse_change(written: str, world: World) -> Repair:
    """The change of a world that a text describes. Raises `ChangeError`.

    Without a cluster in the text the change is about the only cluster, or about the only one that has the named node.
    """
    found = _CHANGE.fullmatch(written)
    if found is None:
        raise ChangeError(f"{_shown(written)} is no change: write {FORMS}")
    names = found["nodes"].split(",")
    if found["kind"] == "untaint":
        cluster = _cluster(world, found["cluster"], names[0])
        for name in names:
            _node(cluster, name)
        return RemoveTaints(cluster.name, tuple(names))
    count = int(found["count"])
    if not 1 <= count <= MOST_ADDED:
        raise ChangeError(f"{_shown(written)}: from 1 to {MOST_ADDED} nodes can be added")
    if found["nodes"].startswith(_LIKE):
        like = found["nodes"].removeprefix(_LIKE)
        cluster = _cluster(world, found["cluster"], like)
        node = _node(cluster, like)
        return AddNodes(cluster.name, count, replace(node.shape, most_pods=node.most_pods))
    cluster = _cluster(world, found["cluster"], "")
    return AddNodes(cluster.name, count, Node("", _amounts(written, names)))


_LIKE: Final = "like="
_LONGEST: Final = 100
"""Characters of a text that a message repeats."""
_CHANGE: Final = re.compile(
    r"(?:(?P<cluster>[^/:+,=]+)/)?(?:(?P<kind>untaint)|nodes\+(?P<count>[0-9]{1,6})):(?P<nodes>.+)"
)


def check_cluster(world: World, name: str) -> None:
    """Raises `ChangeError` unless the world has a cluster of this name."""
    _cluster(world, name, "")


def with_quota(written: str, world: World) -> World:
    """The world in which queues have the nominal quotas of a text such as `vision:cpu=8,nvidia.com/gpu=4`.

    The quotas of other resources stay as they are. Raises `ChangeError`, also if a queue has no quota of a resource
    that the text names.
    """
    name, colon, pairs = written.partition(":")
    if not colon:
        raise ChangeError(f"{_shown(written)} is no quota: write QUEUE:RESOURCE=AMOUNT,…")
    queue = next((each for each in world.queues or () if each.name == name), None)
    if queue is None:
        known = ", ".join(each.name for each in world.queues or ())
        raise ChangeError(
            f"there is no queue {_shown(name)}: {f'the queues are {known}' if known else 'none is declared'}"
        )
    amounts = _amounts(written, pairs.split(","))
    for resource in (each.partition("=")[0] for each in pairs.split(",")):  # an amount may be 0
        if resource not in queue.resources:
            raise ChangeError(f"{_shown(written)}: queue {name} has no quota of {resource}")
        more = amounts[resource] - queue.resources[resource].nominal
        world = world.with_quota(name, resource, more)
    return world


def _amounts(written: str, pairs: list[str]) -> Resources:
    amounts: dict[str, str] = {}
    for pair in pairs:
        name, equals, amount = pair.partition("=")
        if not equals or not name or name in amounts:
            raise ChangeError(f"{_shown(written)}: write each resource once, such as cpu=8")
        amounts[name] = amount
    try:
        return Resources(resource_amounts(amounts))
    except QuantityError as error:
        raise ChangeError(f"{_shown(written)}: {error}") from error


def _cluster(world: World, name: str | None, node: str) -> Cluster:
    """The cluster of this name; without one the only cluster, or the only cluster with this node."""
    if name is not None:
        for each in world.clusters:
            if each.name == name:
                return each
        raise ChangeError(f"there is no cluster {_shown(name)}: {_known(world)}")
    having = [each for each in world.clusters if not node or any(one.name == node for one in each.nodes)]
    if len(having) == 1:
        return having[0]
    if not having:
        raise ChangeError(f"no cluster has a node {_shown(node)}" if world.clusters else _known(world))
    raise ChangeError(f"say in which cluster, such as {having[0].name}/…: {_known(world)}")


def _shown(text: str) -> str:
    """A text of the user, escaped and short."""
    return one_line(repr(text), _LONGEST)


def _known(world: World) -> str:
    names = ", ".join(each.name for each in world.clusters)
    return f"the clusters are {names}" if names else "no cluster is known"


def _node(cluster: Cluster, name: str) -> Node:
    for node in cluster.nodes:
        if node.name == name:
            return node
    raise ChangeError(f"cluster {cluster.name} has no node {_shown(name)}")
