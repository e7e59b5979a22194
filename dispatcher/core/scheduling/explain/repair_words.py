"""Repairs in words: how a waiting gang would go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.core.scheduling.explain.repair import (
    AddNodes,
    AddQuota,
    AddQuotas,
    RemoveGangs,
    RemoveTaints,
    Repair,
)
from dispatcher.core.scheduling.explain.scenario import write_amounts
from dispatcher.text import counted

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
