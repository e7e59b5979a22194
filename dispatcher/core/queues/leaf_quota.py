"""The entitlement of each leaf by the declarations: its weight, and its nominal quota of each limited resource."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from dispatcher.core.model.resources import is_device
from dispatcher.core.queues.accounts import tree_quotas
from dispatcher.core.queues.forest import Forest


class LeafQuota(Struct, frozen=True):
    """A leaf, its weight, and its nominal quota by resource, in base units.

    `nominal` has every resource that the tree limits: 0 of a resource that only other queues of the tree name.
    """

    queue: str
    weight: Fraction
    nominal: Mapping[str, int]

    @property
    def counted(self) -> tuple[str, ...]:
        """The resources in which the use of the queue is counted: the limited devices, or cpu if there are none."""
        return tuple(sorted(filter(is_device, self.nominal))) or ("cpu",)


def leaf_quotas(forest: Forest) -> tuple[LeafQuota, ...]:
    """The quota of each valid leaf, by name."""
    quotas = tree_quotas(forest)
    found = (
        LeafQuota(place.name, place.queue.weight, quotas[place.root].queues[place.name].total)
        for place in forest.leaves
    )
    return tuple(sorted(found, key=lambda each: each.queue))
