"""The capacity of a cluster from scratch, by the formula of `capacity_ledger`, which the ledger equals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import Pod
from dispatcher.core.model.resources import NOTHING, Resources, sum_of


def account(
    nodes: Iterable[Node],
    pods: Collection[Pod],
    reservations: Mapping[str, Resources],
    gang: Gang | None = None,
    growth: Mapping[str, Resources] = MappingProxyType({}),
) -> Resources:
    """The free capacity for `gang` (None: of every usable node), from scratch; the definition.

    `reservations` is the demand of every active AppWrapper by its uid, `growth` its growth in the record.
    """
    nodes = tuple(nodes)
    names = {node.name for node in nodes}
    open_nodes = _open_to(gang, nodes)
    free = sum_of(
        (
            amounts - sum_of(pod.requests for pod in pods if pod.occupies_node and pod.node == name)
        ).positive_part()
        for name, amounts in open_nodes.items()
    )
    for uid, demand in reservations.items():
        own = [pod for pod in pods if pod.live and uid == (pod.owner or pod.claim)]
        target = demand
        if any(pod.can_be_gated or pod.gate for pod in own):
            there = sum_of(pod.requests for pod in own if pod.node in names and not pod.node_by_author)
            target = (demand + growth.get(uid, NOTHING)).highest(there)
        free -= (target - sum_of(pod.requests for pod in own if pod.node)).positive_part()
    return free


def attainable(nodes: Iterable[Node], pods: Iterable[Pod], gang: Gang | None = None) -> Resources:
    """The capacity for `gang` (None: of every usable node) once all pods that end have ended; the definition."""
    open_nodes = _open_to(gang, nodes)
    return sum_of(open_nodes.values()) - sum_of(
        pod.requests for pod in pods if pod.is_permanent and pod.node in open_nodes
    )


def _open_to(gang: Gang | None, nodes: Iterable[Node]) -> dict[str, Resources]:
    """The allocatable amounts by the name of the node, of usable nodes with taints that `gang` tolerates."""
    return {
        node.name: node.allocatable
        for node in nodes
        if node.usable and (gang is None or gang.tolerates(node.taints))
    }
