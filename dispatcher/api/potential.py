"""Pools of nodes that the autoscaler of a cluster grows for pending pods, as operators declare them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

MOST_POOLS: Final = 16
"""Pools of one cluster."""
MOST_LABELS: Final = 64
"""Labels of a pool, and its taints."""
BIND_WITHIN: Final = timedelta(seconds=900)
"""Fifteen minutes: clouds bring a node with accelerators in some minutes, or not at all."""


class OnPotential(StrEnum):
    """The decision about a gang that fits only with potential nodes."""

    DISPATCH = "Dispatch"
    """It is dispatched, so that its pending pods make the autoscaler add the nodes."""
    WAIT = "Wait"
    """It waits until somebody adds the nodes."""


class NodePool(Struct, frozen=True):
    """A pool that grows to at most `most` nodes with these amounts, labels and taints (key, value and effect)."""

    name: str
    allocatable: Mapping[str, int | str]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]
    most: int


class PotentialNodes(Struct, frozen=True):
    """The pools of a cluster. Pods of a gang on trust must have nodes `bind_within` after its creation."""

    pools: tuple[NodePool, ...] = ()
    on_potential: OnPotential = OnPotential.DISPATCH
    bind_within: timedelta = BIND_WITHIN


NO_POTENTIAL: Final = PotentialNodes()
