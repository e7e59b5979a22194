"""Whose turn is it? The next gang to decide, of the first undecided gangs of all queues.

Each tree names one of its heads by a tournament: at each inner queue the children's winners compare by a key that the
sharing of the tree gives, then by rank. Of the trees' winners, the rank decides. A gang for which gangs were preempted
goes before all others.

Growth: a gang that is decided without a change of its tree costs the siblings on the way to its root; a change costs
the heads of its tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.sharing import division, dominant_share, priority
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import PendingGang, Rank, RecentUse, rank, rank_in_queue
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

Keys = Mapping[str, Any]
"""The key of a gang at its leaf and at each queue above it; keys of one queue's children are comparable."""


class _Winner(NamedTuple):
    """The winner at one queue."""

    gang: PendingGang
    rank: Rank
    keys: Keys


class Turns:
    """The undecided gangs. `later` is the ledger that decides whose turn it is."""

    def __init__(
        self,
        gangs: Iterable[PendingGang],
        later: QuotaLedger,
        shares: Mapping[str, Shares],
        usage: RecentUse,
        now: datetime,
    ) -> None:
        self._later = later
        self._shares = shares
        self._now = now
        self._taken: set[str] = set()
        self._ranks: dict[str, Rank] = {}
        self._keys_of: dict[str, dict[tuple[str, Resources], Keys]] = {}
        self._queues: dict[str, deque[PendingGang]] = {}
        by_leaf: dict[str, list[PendingGang]] = {}
        for gang in gangs:
            by_leaf.setdefault(gang.leaves[0], []).append(gang)
        for leaf, there in by_leaf.items():
            place = later.forest.places.get(leaf)
            there.sort(key=lambda each, at=place: rank_in_queue(each, now, at, usage))  # type: ignore[misc]
            self._queues[leaf] = deque(there)
        self._trees: dict[str, dict[str, _Winner]] = {}
        self._roots = {leaf: self._root_of(leaf) for leaf in self._queues}
        # They are first in their queues.
        self._preempting = {leaf for leaf, queue in self._queues.items() if queue[0].record.is_preempting}
        for root in set(self._roots.values()):
            self._rebuild(root)

    def take(self, gang: PendingGang) -> None:
        """The gang is decided out of turn."""
        self._taken.add(gang.uid)
        self._advance(gang.leaves[0])

    def next(self) -> PendingGang | None:
        """Take the gang whose turn it is; None if all are decided."""
        heads = [tree[root] for root, tree in self._trees.items() if root in tree]
        preempting = [
            _Winner(queue[0], self._rank(queue[0]), {})
            for queue in map(self._queues.__getitem__, self._preempting)
        ]
        if not heads:
            return None
        gang = min(preempting or heads, key=lambda each: each.rank).gang
        self.take(gang)
        return gang

    def changed(self, leaves: Iterable[str]) -> None:
        """The use of these leaves' trees has changed."""
        for root in {self._root_of(leaf) for leaf in leaves}:
            if root in self._trees:
                self._rebuild(root)

    def _root_of(self, leaf: str) -> str:
        """The root of a leaf's tree; a queue that takes no gangs is a tree of its own."""
        place = self._later.forest.places.get(leaf)
        return place.root if place is not None and place.is_leaf else f"!{leaf}"

    def _advance(self, leaf: str) -> None:
        queue = self._queues[leaf]
        while queue and queue[0].uid in self._taken:
            self._taken.discard(queue.popleft().uid)
        if not queue or not queue[0].record.is_preempting:
            self._preempting.discard(leaf)
        self._update(leaf)

    def _rebuild(self, root: str) -> None:
        tree = self._trees[root] = {}
        self._keys_of[root] = {}
        leaves = [leaf for leaf, at in self._roots.items() if at == root]
        if root.startswith("!"):
            self._update(leaves[0])
            return
        for leaf in leaves:
            self._set_head(tree, leaf)
        for name in reversed(self._later.accounts[root].quota.tree.names):
            self._set_winner(tree, name)

    def _update(self, leaf: str) -> None:
        """The head of a leaf has changed."""
        root = self._roots[leaf]
        tree = self._trees[root]
        if root.startswith("!"):
            queue = self._queues[leaf]
            tree.pop(root, None)
            if queue:
                tree[root] = _Winner(queue[0], self._rank(queue[0]), {})
            return
        self._set_head(tree, leaf)
        for name in self._later.forest.places[leaf].path[1:]:
            self._set_winner(tree, name)

    def _set_head(self, tree: dict[str, _Winner], leaf: str) -> None:
        queue = self._queues[leaf]
        if queue:
            known, demand = self._keys_of[self._roots[leaf]], queue[0].record.gang.demand
            keys = known.get((leaf, demand))
            if keys is None:
                keys = known[leaf, demand] = self._keys(queue[0], leaf)
            tree[leaf] = _Winner(queue[0], self._rank(queue[0]), keys)
        else:
            tree.pop(leaf, None)

    def _rank(self, gang: PendingGang) -> Rank:
        found = self._ranks.get(gang.uid)
        if found is None:
            found = self._ranks[gang.uid] = rank(gang, self._now)
        return found

    def _set_winner(self, tree: dict[str, _Winner], name: str) -> None:
        """The winner of an inner queue among its children's."""
        children = self._later.forest.places[name].children
        if not children:
            return
        winners = [(child, tree[child]) for child in children if child in tree]
        if winners:
            tree[name] = min(winners, key=lambda each: (each[1].keys[each[0]], each[1].rank))[1]
        else:
            tree.pop(name, None)

    def _keys(self, gang: PendingGang, leaf: str) -> Keys:
        place, account = self._later.forest.places[leaf], self._later.account_of(leaf)
        demand, forest = gang.record.gang.demand, self._later.forest
        match place.sharing:
            case Sharing.PRIORITY:
                return dict.fromkeys(place.path, priority.level(account, leaf, demand))
            case Sharing.DOMINANT_SHARE:
                found: list[Any] = dominant_share.turn_keys(account, forest, leaf, demand)
            case Sharing.DIVISION:
                found = division.turn_keys(account, forest, self._shares[place.root], leaf, demand)
        return dict(zip(place.path, found, strict=False))
