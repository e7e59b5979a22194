"""Which names of extended resources count in one cluster: those that its nodes list, up to a bound.

Each name takes a column of the arrays of all nodes, and an entry of each sum. A member cluster writes the names of its
nodes, so without a bound a few megabytes of nodes would take gigabytes of the hub. A name counts from the first node
that lists it until the last one is gone; past the bound, names that come later do not count. A node whose name was
left out is asked again at its next change, which a kubelet writes every five minutes at least.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct, field

from dispatcher.core.model.resources import NOTHING, WELL_KNOWN, Resources

MOST_NAMES_OF_CLUSTER: Final = 256
"""Names of resources that count in one cluster. The ones that every kubelet lists (`WELL_KNOWN`) always do."""


class ResourceNames(Struct):
    """The names that nodes list at this moment, with the number of these nodes; an event costs O(names of the node)."""

    most: int = MOST_NAMES_OF_CLUSTER
    _nodes: Counter[str] = field(default_factory=Counter)
    _others: int = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def replace(self, before: Resources, now: Resources) -> Resources:
        """The amounts of a node that count, in place of those that counted before; the names that it keeps go first."""
        for name in before:
            if name not in now:
                self._drop(name)
        kept = {name: amount for name, amount in now.items() if name in before or self._takes(name)}
        return now if len(kept) == len(now) else Resources(kept)

    def remove(self, before: Resources) -> None:
        """A node with these amounts is gone."""
        self.replace(before, NOTHING)

    def _takes(self, name: str) -> bool:
        if name not in self._nodes and name not in WELL_KNOWN:
            if self._others >= self.most - len(WELL_KNOWN):
                return False
            self._others += 1
        self._nodes[name] += 1
        return True

    def _drop(self, name: str) -> None:
        self._nodes[name] -= 1
        if not self._nodes[name]:
            del self._nodes[name]
            self._others -= name not in WELL_KNOWN
