"""Quota of trees of queues, computed from scratch for every question, as the definitions say it.

Queues are entries of a scenario file, with amounts as integers. `charged` are the demands by leaf, of all gangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
Charged = Sequence[tuple[str, Mapping[str, int]]]


class NaiveForest:
    """The declared queues, which are all valid."""

    def __init__(self, queues: Iterable[Json]) -> None:
        self.queues = {each["name"]: each for each in queues}

    def children(self, name: str) -> list[str]:
        return [each for each, queue in self.queues.items() if queue.get("parent") == name]

    def path(self, name: str) -> list[str]:
        parent = self.queues[name].get("parent")
        return [name] if parent is None else [name, *self.path(parent)]

    def below(self, name: str) -> list[str]:
        """The queues below a queue, without itself."""
        return [each for each in self.queues if each != name and name in self.path(each)]

    def leaves(self) -> list[str]:
        return [name for name in self.queues if not self.children(name)]

    def setting(self, name: str, key: str, default: Any) -> Any:  # noqa: ANN401
        """An inherited setting."""
        found = (self.queues[each][key] for each in self.path(name) if key in self.queues[each])
        return next(found, default)

    def sharing(self, name: str) -> str:
        found: str = self.queues[self.path(name)[-1]].get("sharing", "Priority")
        return found

    def limited(self, name: str) -> list[str]:
        """The limited resources of the tree of a queue."""
        tree = [each for each in self.queues if self.path(each)[-1] == self.path(name)[-1]]
        return sorted({resource for each in tree for resource in self.queues[each].get("resources", {})})

    def _quota(self, name: str, resource: str) -> Json:
        found: Json = self.queues[name].get("resources", {}).get(resource, {})
        return found

    # --- by the declarations -----------------------------------------------------------------------------------

    def total(self, name: str, resource: str) -> int:
        nominal: int | None = self._quota(name, resource).get("nominalQuota")
        return sum(self.total(each, resource) for each in self.children(name)) if nominal is None else nominal

    def own(self, name: str, resource: str) -> int:
        kept = sum(self.kept(each, resource) for each in self.below(name))
        return max(0, self.total(name, resource) - kept)

    def kept(self, name: str, resource: str) -> int:
        lending: int | None = self._quota(name, resource).get("lendingLimit")
        if lending is None or "parent" not in self.queues[name]:
            return 0
        return max(0, self.own(name, resource) - lending)

    def most(self, name: str, resource: str) -> int:
        parent, borrowing = self.queues[name].get("parent"), self._quota(name, resource).get("borrowingLimit")
        if parent is None:
            return self.own(name, resource)
        reach = self.kept(name, resource) + self.most(parent, resource)
        return reach if borrowing is None else min(reach, self.own(name, resource) + borrowing)

    def limit(self, name: str, resource: str) -> int | None:
        """The bound of the sharing Division."""
        quota = self._quota(name, resource)
        if "parent" not in self.queues[name]:
            nominal: int | None = quota.get("nominalQuota")
            return nominal
        return (
            None
            if quota.get("borrowingLimit") is None
            else self.total(name, resource) + quota["borrowingLimit"]
        )

    # --- by the use --------------------------------------------------------------------------------------------

    def plain(self, name: str, resource: str, charged: Charged) -> int:
        there = {name, *self.below(name)}
        return sum(demand.get(resource, 0) for leaf, demand in charged if leaf in there)

    def used(self, name: str, resource: str, charged: Charged) -> int:
        if not self.children(name):
            return self.plain(name, resource, charged)
        return sum(
            max(0, self.used(each, resource, charged) - self.kept(each, resource))
            for each in self.children(name)
        )

    def available(self, name: str, resource: str, charged: Charged) -> int:
        own, kept = self.own(name, resource), self.kept(name, resource)
        used, borrowing = (
            self.used(name, resource, charged),
            self._quota(name, resource).get("borrowingLimit"),
        )
        if "parent" not in self.queues[name]:
            return own - used
        shared = self.available(self.queues[name]["parent"], resource, charged)
        if borrowing is not None:
            shared = min(shared, own - kept - max(0, used - kept) + borrowing)
        return max(0, kept - used) + shared

    def missing(self, leaf: str, demand: Mapping[str, int], charged: Charged) -> dict[str, int]:
        """The amounts by limited resource that a gang of a leaf lacks of quota, whatever its priority."""
        found = {}
        for resource in self.limited(leaf):
            amount = demand.get(resource, 0)
            if self.sharing(leaf) == "Division":
                limits = [(each, self.limit(each, resource)) for each in self.path(leaf)]
                over = [
                    self.plain(each, resource, charged) + amount - limit
                    for each, limit in limits
                    if limit is not None
                ]
                short = max(over, default=0)
            else:
                short = amount - self.available(leaf, resource, charged)
            if amount > 0 and short > 0:
                found[resource] = short
        return found

    def is_firm(self, leaf: str, priority: int) -> bool:
        """True if a gang of this priority may not be preempted."""
        below = self.setting(leaf, "preemptibleBelow", None)
        return below is not None and priority >= below

    def over_nominal(self, leaf: str, demand: Mapping[str, int], firm: Charged) -> list[str]:
        """The limited resources of which one more gang that may not be preempted, beside `firm` ones, has no quota."""
        return [
            resource
            for resource in self.limited(leaf)
            if demand.get(resource, 0) > 0
            and any(
                self.plain(each, resource, firm) + demand[resource] > self.total(each, resource)
                for each in self.path(leaf)
            )
        ]

    def would_borrow(self, leaf: str, demand: Mapping[str, int], charged: Charged) -> bool:
        return any(
            demand.get(resource, 0) > 0
            and self.used(leaf, resource, charged) + demand[resource] > self.own(leaf, resource)
            for resource in self.limited(leaf)
        )
