"""Quota in one tree of queues: what each queue has by its declaration, and what its gangs use of it.

`TreeQuota` are the amounts that follow from the declarations alone, `Account` the use of them. A gang is charged in one
leaf with its whole demand. All amounts are integers in base units, by the name of the resource. A resource that no
queue of the tree names is not limited, and has no amounts here.

The terms, for a queue and one resource:

- `total`: its nominal quota, or the sum of its children's if it names none.
- `own`: its total less all that the queues below it keep for themselves.
- `kept`: the part of `own` that its lending limit keeps from others.
- `used`: the demand of its gangs; of an inner queue, what its children use beyond what they keep.
- `plain`: the demand of all gangs below, whatever is kept.
- `firm`: the demand of those gangs below that may not be preempted.
- `available`: what one more gang may use, `most` the same if nobody used anything.

Source: https://kueue.sigs.k8s.io/docs/concepts/cohort/ and `TestAvailable` in Kueue's pkg/cache/scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest, Place, Tree
from dispatcher.values import equal_without, shown_without

Amounts = dict[str, int]
"""Amounts by resource."""
Asked = tuple[tuple[str, int], ...]
"""Resources with positive amounts, sorted."""


class QueueQuota(Struct, frozen=True):
    """The amounts of one queue, by resource; None in `borrowing` means no limit.

    `limit` is the bound of the sharing Division for the use of all below; None means no limit.
    """

    total: Mapping[str, int]
    own: Mapping[str, int]
    kept: Mapping[str, int]
    borrowing: Mapping[str, int | None]
    most: Mapping[str, int]
    limit: Mapping[str, int | None]


@equal_without("_asked")
@shown_without("_asked")
class TreeQuota(Struct, frozen=True):
    """The amounts of all queues of a tree; `limited` are the resources that some queue names, sorted."""

    tree: Tree
    limited: tuple[str, ...]
    queues: Mapping[str, QueueQuota]
    paths: Mapping[str, tuple[str, ...]]
    _asked: dict[Resources, Asked] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree, forest: Forest) -> TreeQuota:
        """The amounts that follow from the declarations."""
        places = [forest.places[name] for name in tree.names]
        limited = tuple(sorted({name for place in places for name in place.queue.resources}))
        owned: dict[str, _Owned] = {}
        for place in reversed(places):  # children before parents
            owned[place.name] = _Owned.of(place, limited, [owned[child] for child in place.children])
        queues: dict[str, QueueQuota] = {}
        for place in places:  # parents before children
            above = None if place.parent is None else queues[place.parent]
            queues[place.name] = _queue_quota(place, owned[place.name], above)
        return cls(tree, limited, queues, {place.name: place.path for place in places})

    def asked(self, demand: Resources) -> Asked:
        """The limited resources that a demand asks for, with the amounts."""
        found = self._asked.get(demand)
        if found is None:
            amounts = ((name, demand[name]) for name in self.limited)
            found = self._asked[demand] = tuple((name, amount) for name, amount in amounts if amount > 0)
        return found


class _Owned(Struct, frozen=True):
    """The amounts of a queue that follow from itself and the queues below it; `kept_below` is what all these keep."""

    total: Amounts
    own: Amounts
    kept: Amounts
    kept_below: Amounts

    @classmethod
    def of(cls, place: Place, limited: Sequence[str], children: Sequence[_Owned]) -> _Owned:
        """The amounts of a queue with these children."""
        found = cls({}, {}, {}, {})
        for name in limited:
            quota = place.queue.resources.get(name)
            total = quota.nominal if quota else sum(child.total[name] for child in children)
            kept_below = sum(child.kept_below[name] + child.kept[name] for child in children)
            own = max(0, total - kept_below)
            lending = quota.lending_limit if quota and place.parent is not None else None
            found.total[name], found.own[name], found.kept_below[name] = total, own, kept_below
            found.kept[name] = 0 if lending is None else max(0, own - lending)
        return found


def _queue_quota(place: Place, owned: _Owned, above: QueueQuota | None) -> QueueQuota:
    """The amounts of a queue; `above` are those of its parent."""
    most: Amounts = {}
    borrowing: dict[str, int | None] = {}
    limits: dict[str, int | None] = {}
    for name, own in owned.own.items():
        quota = place.queue.resources.get(name)
        more = borrowing[name] = quota.borrowing_limit if quota else None
        if above is None:
            most[name], limits[name] = own, quota.nominal if quota else None
        else:
            reach = owned.kept[name] + above.most[name]
            most[name] = reach if more is None else min(reach, own + more)
            limits[name] = None if more is None else owned.total[name] + more
    return QueueQuota(owned.total, owned.own, owned.kept, borrowing, most, limits)


def tree_quotas(forest: Forest) -> dict[str, TreeQuota]:
    """The amounts of all trees by root, with those of held queues; they follow from the declarations alone."""
    counted = forest.for_quota
    return {root: TreeQuota.of(tree, counted) for root, tree in counted.trees.items()}


def common_length(path: Sequence[str], other: Sequence[str]) -> int:
    """How many queues two paths of one tree have in common, the root included; O(log depth)."""
    lengths = range(1, min(len(path), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: path[-length] != other[-length])


def below_common_ancestor(path: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """The queues just below the lowest common ancestor of two leaves of one tree, given the paths of both."""
    common = common_length(path, other)
    if common == min(len(path), len(other)):
        return path[0], other[0]
    return path[-common - 1], other[-common - 1]


class Account(Struct):
    """The use of one tree. Charges may be taken back in any order."""

    quota: TreeQuota
    used: dict[str, Amounts] = field(default_factory=dict)
    plain: dict[str, Amounts] = field(default_factory=dict)
    firm: dict[str, Amounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nothing = dict.fromkeys(self.quota.limited, 0)
        self.used, self.plain, self.firm = (
            {name: dict(nothing) for name in self.quota.queues} for _ in range(3)
        )

    def charge(self, leaf: str, demand: Resources, sign: int = 1, *, is_firm: bool = False) -> None:
        """Charge a demand in a leaf, or take it back with the sign -1."""
        # Without a call for each amount: a search for victims charges thousands of gangs.
        path, queues, plain = self.quota.paths[leaf], self.quota.queues, self.plain
        for resource, amount in self.quota.asked(demand):
            change = passed_on = sign * amount
            for name in path:
                plain[name][resource] += change
                if is_firm:
                    self.firm[name][resource] += change
                if passed_on:
                    used = self.used[name]
                    before = used[resource] - queues[name].kept[resource]
                    used[resource] += passed_on
                    after = before + passed_on
                    passed_on = (after if after > 0 else 0) - (before if before > 0 else 0)

    def passed_on(self, queue: str, amounts: Asked) -> Asked:
        """What the parent of a queue would be charged with if the queue was charged with these amounts."""
        used, kept = self.used[queue], self.quota.queues[queue].kept
        return tuple(
            (name, max(0, used[name] + amount - kept[name]) - max(0, used[name] - kept[name]))
            for name, amount in amounts
        )

    def available(self, leaf: str, resource: str) -> int:
        """What one more gang of a leaf may use of a limited resource; negative if more than that is used."""
        path = self.quota.paths[leaf]
        root = path[-1]
        found = self.quota.queues[root].own[resource] - self.used[root][resource]
        for name in reversed(path[:-1]):
            queue, used = self.quota.queues[name], self.used[name][resource]
            kept, borrowing = queue.kept[resource], queue.borrowing[resource]
            if borrowing is not None:
                found = min(found, queue.own[resource] - kept - max(0, used - kept) + borrowing)
            found += max(0, kept - used)
        return found

    def missing(self, leaf: str, demand: Resources, *, is_counted: bool = False) -> Amounts:
        """The amounts of quota that a gang of a leaf lacks, under Priority and DominantShare.

        If it `is_counted`, its demand is charged already. To charge an amount makes exactly as much less available.
        """
        found = {}
        for name, amount in self.quota.asked(demand):
            short = (0 if is_counted else amount) - self.available(leaf, name)
            if short > 0:
                found[name] = short
        return found

    def left_of_limits(self, leaf: str, resource: str) -> int | None:
        """The rest of the tightest limit on the way to the root, under Division; None without any limit."""
        left = (
            limit - self.plain[each][resource]
            for each in self.quota.paths[leaf]
            if (limit := self.quota.queues[each].limit[resource]) is not None
        )
        return min(left, default=None)

    def missing_of_limits(self, leaf: str, demand: Resources, *, is_counted: bool = False) -> Amounts:
        """The same under Division, where the tightest queue on the way to the root decides."""
        found = {}
        for name, amount in self.quota.asked(demand):
            left = self.left_of_limits(leaf, name)
            short = 0 if left is None else (0 if is_counted else amount) - left
            if short > 0:
                found[name] = short
        return found

    def beyond_nominal(self, leaf: str, demand: Resources) -> list[str]:
        """The limited resources of which a nominal quota is too small for the demand and all gangs not preemptible."""
        return [
            name
            for name, amount in self.quota.asked(demand)
            if any(
                self.firm[each][name] + amount > self.quota.queues[each].total[name]
                for each in self.quota.paths[leaf]
            )
        ]

    def would_borrow(self, leaf: str, demand: Resources) -> bool:
        """True if a leaf would use more than its own quota with one more gang, of something that the gang asks for."""
        used, own = self.used[leaf], self.quota.queues[leaf].own
        return any(used[name] + amount > own[name] for name, amount in self.quota.asked(demand))

    def is_within(self, queue: str, resources: Iterable[str]) -> bool:
        """True if a queue uses no more than its own quota of each of these resources; others are never exceeded."""
        used, own = self.used[queue], self.quota.queues[queue].own
        return all(used[name] <= own[name] for name in resources if name in own)

    def borrowed(self, queue: str, resource: str) -> int:
        """What a queue uses beyond its own quota."""
        return max(0, self.used[queue][resource] - self.quota.queues[queue].own[resource])

    def borrows(self, queue: str) -> bool:
        """True if a queue uses more than its own quota of any resource."""
        return not self.is_within(queue, self.quota.limited)

    def left(self, queue: str, amounts: Iterable[tuple[str, int]]) -> bool:
        """True if these amounts fit what a queue's own account has left."""
        used, own = self.used[queue], self.quota.queues[queue].own
        return all(amount <= own[name] - used[name] for name, amount in amounts if amount > 0)

    def unused_kept(self, queue: str, resource: str) -> int:
        """What a queue keeps for itself and does not use."""
        return max(0, self.quota.queues[queue].kept[resource] - self.used[queue][resource])
