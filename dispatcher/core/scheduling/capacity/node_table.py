"""Amounts of the nodes of one cluster, in arrays that grow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dispatcher.core.model.nodes import UNLIMITED_PODS
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.placement.node_room import LARGEST, Room


class NodeTable:
    """Amounts by resource and node, and pods by node; grows as nodes and resources come."""

    def __init__(self) -> None:
        self._amounts = np.zeros((8, 64), np.int64)
        self._slots = np.zeros(64, np.int64)

    def write(self, row: int, columns: Mapping[str, int], amounts: Resources, slots: int) -> None:
        """Replace the amounts of one node; a resource that no node lists is left out."""
        self._grow(len(columns), row + 1)
        self._amounts[:, row] = 0
        for name, amount in amounts.items():
            column = columns.get(name)
            if column is not None:
                self._amounts[column, row] = max(-LARGEST, min(LARGEST, amount))
        self._slots[row] = max(-UNLIMITED_PODS, min(UNLIMITED_PODS, slots))

    def drop(self, column: int, last: int) -> None:
        """Forget a column; the last one moves into its place."""
        height = self._amounts.shape[0]
        if column < height:
            self._amounts[column] = self._amounts[last] if last < height else 0
        if last < height:
            self._amounts[last] = 0

    def room(self, columns: Mapping[str, int], nodes: int) -> Room:
        """A copy of the amounts of the first `nodes` nodes."""
        self._grow(len(columns), nodes)
        return Room(dict(columns), self._amounts[: len(columns), :nodes].copy(), self._slots[:nodes].copy())

    def _grow(self, columns: int, nodes: int) -> None:
        had = self._amounts.shape
        if columns <= had[0] and nodes <= had[1]:
            return
        size = max(had[0], 2 * columns * (columns > had[0])), max(had[1], 2 * nodes * (nodes > had[1]))
        amounts, slots = np.zeros(size, np.int64), np.zeros(size[1], np.int64)
        amounts[: had[0], : had[1]] = self._amounts
        slots[: had[1]] = self._slots
        self._amounts, self._slots = amounts, slots
