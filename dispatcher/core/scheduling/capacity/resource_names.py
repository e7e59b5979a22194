"""Which names of extended resources count in one cluster: those that its nodes list, up to a bound.

Each name takes a column of the arrays of all nodes, and an entry of each sum. A member cluster writes the names of its
nodes, so without a bound a few megabytes of nodes would take gigabytes of the hub. A name counts from the first node
that lists it until the last one is gone; past the bound, names that come later do not count. A node whose name was
left out is asked again at its next change, which a kubelet writes every five minutes at least.

The pods on nodes request names that perhaps no node lists, and each is an entry of the sums of a pool. Names that nodes
list always count, because the pods use them up; of the others a bounded number does. A pod whose name was left out is
counted again as soon as a node lists that name.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct, field

from dispatcher.core.model.resources import NOTHING, WELL_KNOWN, Resources

MOST_NAMES_OF_PODS: Final = 256
"""Names of resources that count in one cluster because pods on its nodes request them, beside those of its nodes."""
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

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

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


class PodNames(Struct):
    """The names that the pods on nodes request, and that count, with the number of these pods; `of_nodes` always count.

    An event costs O(names of the pod). `left_out` are the uids of the pods by the names that do not count.
    """

    of_nodes: ResourceNames
    most: int = MOST_NAMES_OF_PODS
    left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    _pods: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._pods)

    def take(self, pod: str, requests: Resources) -> Resources:
        """The requests of a pod (by uid) that count from now on."""
        kept = {}
        for name, amount in requests.items():
            if self._counts(name):
                self._pods[name] += 1
                kept[name] = amount
            else:
                self.left_out.setdefault(name, {})[pod] = None
        return requests if len(kept) == len(requests) else Resources(kept)

    def release(self, pod: str, requests: Resources, counted: Resources) -> None:
        """A pod with these requests, of which some counted, counts no more."""
        for name in counted:
            self._pods[name] -= 1
            if not self._pods[name]:
                del self._pods[name]
        for name in requests:
            if name not in counted:
                pods = self.left_out.get(name, {})
                pods.pop(pod, None)
                if not pods:
                    self.left_out.pop(name, None)

    def _counts(self, name: str) -> bool:
        is_known = name in self._pods or name in self.of_nodes or name in WELL_KNOWN
        return is_known or len(self._pods) < self.most
