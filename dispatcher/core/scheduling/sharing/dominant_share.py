"""Sharing by dominant share: who borrows the smaller share of what could be lent goes first and gives way last.

It is Kueue's fair sharing with both of its preemption strategies. All shares are exact fractions.

Source: https://kueue.sigs.k8s.io/docs/concepts/fair_sharing/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, Asked, below_common_ancestor
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.search import (
    Enough,
    Found,
    Search,
    Taken,
    VictimOrder,
    children_with,
)

THOUSAND = 1000
"""The unit of shares: thousandths of what the parent could lend at most."""


class Share(NamedTuple):
    """The share of a queue; of two infinite ones `amount` decides, which is then not divided by the weight.

    `units` is the amount in units of 2^-32, rounded down. It decides nearly every comparison, at a tenth of the time
    that fractions take, and always as they would.
    """

    is_infinite: bool
    units: int
    amount: Fraction

    @classmethod
    def of(cls, amount: Fraction, *, is_infinite: bool = False) -> Share:
        """The share of that amount."""
        return cls(is_infinite, (amount.numerator << 32) // amount.denominator, amount)

    @property
    def shown(self) -> int | None:
        """The share rounded up, so that a queue that borrows never shows 0; None if it is infinite."""
        return None if self.is_infinite else ceil(self.amount)


_NOTHING = Share.of(Fraction(0))


def share(account: Account, forest: Forest, name: str, more: Asked = ()) -> Share:
    """The share of a queue, by what it borrows, with these amounts more used; 0 for a root."""
    place = forest.places[name]
    if place.parent is None:
        return _NOTHING
    used, own = account.used[name], account.quota.queues[name].own
    most, added = account.quota.queues[place.parent].most, dict(more)
    borrowed = tuple(
        [
            (amount, most[each])
            for each in account.quota.limited
            if (amount := used[each] + added.get(each, 0) - own[each]) > 0
        ]
    )
    if not borrowed:
        return _NOTHING
    weight = place.queue.weight
    return _share_of(borrowed, weight.numerator, weight.denominator)


@lru_cache(maxsize=10_000)  # one search asks for the same shares again and again
def _share_of(borrowed: tuple[tuple[int, int], ...], numerator: int, denominator: int) -> Share:
    """The share of a queue by what it borrows of each resource, each with the most that the parent could lend.

    `numerator` and `denominator` are those of its weight: a fraction takes long to hash.
    """
    highest = max(
        Share.of(Fraction(amount * THOUSAND, most or 1), is_infinite=most == 0) for amount, most in borrowed
    )
    if highest.is_infinite or not numerator:
        return Share.of(highest.amount, is_infinite=True)
    return Share.of(highest.amount * denominator / numerator)


class TurnKey(NamedTuple):
    """How a queue compares with its siblings if it dispatches a gang; the lowest goes first."""

    would_borrow: bool
    share: Share


def turn_key(account: Account, forest: Forest, name: str, arriving: Asked) -> TurnKey:
    """The key of a queue that is charged with these amounts of a gang."""
    used, own = account.used[name], account.quota.queues[name].own
    would_borrow = any(used[each] + amount > own[each] for each, amount in arriving)
    return TurnKey(would_borrow, share(account, forest, name, arriving))


def search(search: Search) -> Steps[Found | None]:
    """Remove candidates until it is enough; if it never is, put all back and return None."""
    found = _FairSearch(search)
    is_found = yield from found.run()
    return Found(search.is_enough, found.take_surplus) if is_found else None


class _FairSearch:
    """One search; the gang counts as used while it goes on."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._account = search.account
        self._leaf = search.leaf
        self._own_path = frozenset(search.place.path)
        self._candidates: dict[str, list[ActiveGang]] = {
            leaf: gangs
            for leaf, gangs in search.others.items()
            # A queue above the gang has nothing of its own for gangs: they borrow what the queues below it own.
            if leaf in self._own_path or not self._account.is_within(leaf, search.contested)
        }
        if search.own:
            self._candidates[self._leaf] = search.own
        self._is_within = False
        """True if the gang's leaf, with the gang and before any removal, is within its own quota."""
        self._is_enough: Enough = search.is_enough
        self._left: dict[str, list[ActiveGang]] = {}
        self._aside: dict[str, list[ActiveGang]] = {}
        self._removed: list[ActiveGang] = []
        # Shares, and what borrows, hold until a gang below the queue is removed.
        self._shares: dict[str, Share] = {}
        self._borrows: dict[str, bool] = {}
        self._first: dict[str, VictimOrder] = {}
        """The order of the best victim that each queue can yield, of the lists of the present round."""
        self._children: dict[str, list[str]] = {}
        """The children of each inner queue that had gangs in these lists when the round began."""

    def run(self) -> Steps[bool]:
        """Remove candidates until it is enough; True if it is."""
        search = self._search
        search.count_gang(is_counted=True)
        self._is_within = self._account.is_within(self._leaf, search.contested)
        return (yield from self._walk({leaf: list(gangs) for leaf, gangs in self._candidates.items()}))

    def take_surplus(self, is_enough: Enough, among: Collection[str]) -> Steps[Taken]:
        """Remove surplus among the named parts until that is enough; if it never is, put it back."""
        self._is_enough = is_enough
        self._shares.clear()
        self._borrows.clear()
        found = {
            leaf: [each for each in gangs if each.uid in among] for leaf, gangs in self._candidates.items()
        }
        is_found = yield from self._walk({leaf: gangs for leaf, gangs in found.items() if gangs})
        return Taken.of(self._removed, is_enough=is_found)

    def _walk(self, lists: dict[str, list[ActiveGang]]) -> Steps[bool]:
        """Both rounds with these candidates; True if it is enough, else what they removed is put back."""
        self._left, self._aside, self._removed = lists, {}, []
        self._search.count_gang(is_counted=True)
        self._find_all_first(self._left)
        try:
            found = (yield from self._first_round()) or (yield from self._second_round())
        finally:
            self._search.count_gang(is_counted=False)
        if not found:
            self._search.restore(self._removed)
        return found

    def _first_round(self) -> Steps[bool]:
        while (leaf := self._next_leaf(self._left)) is not None:
            yield
            if leaf == self._leaf:
                self._remove(self._left, leaf, Reason.PRIORITY_IN_QUEUE)
            elif self._is_within:
                self._remove(self._left, leaf, Reason.QUOTA_RECLAIMED)
            elif not (yield from self._remove_fairly(leaf)):
                continue
            if self._is_enough():
                return True
        return False

    def _second_round(self) -> Steps[bool]:
        self._find_all_first(self._aside)
        while (leaf := self._next_leaf(self._aside)) is not None:
            yield
            mine, theirs = self._sides(leaf)
            if self._share(mine) < self._share(theirs):
                self._remove(self._aside, leaf, Reason.FAIR_SHARE)
                if self._is_enough():
                    return True
            self._aside.pop(leaf, None)
            self._list_changed(self._aside, leaf)
        return False

    def _remove(self, lists: dict[str, list[ActiveGang]], leaf: str, reason: Reason) -> None:
        gang = lists[leaf].pop(0)
        if not lists[leaf]:
            del lists[leaf]
        self._take(lists, gang, reason)

    def _take(self, lists: dict[str, list[ActiveGang]], gang: ActiveGang, reason: Reason) -> None:
        self._search.remove(gang, reason)
        self._removed.append(gang)
        for leaf in gang.leaves:
            for name in self._account.quota.paths.get(leaf, ()):
                self._shares.pop(name, None)
                self._borrows.pop(name, None)
                self._set_first(lists, name)

    def _remove_fairly(self, leaf: str) -> Steps[bool]:
        """Remove the first gang of a leaf without which its side still has no lower share; put the others aside."""
        mine, theirs = self._sides(leaf)
        gangs = self._left.pop(leaf)
        limit = self._share(mine)
        known: dict[Resources, bool] = {}
        for number, gang in enumerate(gangs):
            charge = gang.charge
            is_fair = known.get(charge)
            if is_fair is None:
                self._account.charge(leaf, charge, -1)
                is_fair = known[charge] = limit <= share(self._account, self._search.forest, theirs)
                self._account.charge(leaf, charge)
                yield
            if is_fair:
                if before := gangs[:number]:
                    self._aside.setdefault(leaf, []).extend(before)
                if rest := gangs[number + 1 :]:
                    self._left[leaf] = rest
                self._take(self._left, gang, Reason.FAIR_SHARE)
                return True
        self._aside.setdefault(leaf, []).extend(gangs)
        self._list_changed(self._left, leaf)
        return False

    def _share(self, name: str) -> Share:
        known = self._shares.get(name)
        if known is None:
            known = self._shares[name] = share(self._account, self._search.forest, name)
        return known

    def _is_borrowing(self, name: str) -> bool:
        known = self._borrows.get(name)
        if known is None:
            known = self._borrows[name] = self._account.borrows(name)
        return known

    def _sides(self, leaf: str) -> tuple[str, str]:
        """The two queues below the lowest common ancestor of the gang's leaf and another one."""
        paths = self._account.quota.paths
        return below_common_ancestor(paths[self._leaf], paths[leaf])

    def _next_leaf(self, lists: Mapping[str, list[ActiveGang]]) -> str | None:
        """The leaf to take the next gang from: from the root down, to the child with the highest share.

        A queue that got children while gangs ran in it gives these before those of its children.
        """
        places, first = self._search.forest.places, self._first
        at = self._search.place.root
        if at not in first:
            return None
        while at not in lists:
            names = [name for name in self._children[at] if name in first]
            if len(names) == 1:
                (at,) = names
                continue
            highest, tied = None, list[str]()
            for name in names:
                found = self._shares.get(name) or self._share(name)
                if highest is None or found > highest:
                    highest, tied = found, [name]
                elif found == highest:
                    tied.append(name)
            at = (
                tied[0] if len(tied) == 1 else min(tied, key=lambda each: (places[each].is_leaf, first[each]))
            )
        return at

    def _find_all_first(self, lists: Mapping[str, list[ActiveGang]]) -> None:
        """Find the best victim of every queue among these lists; the queues of all others yield none."""
        self._first.clear()
        self._children = children_with(lists, self._search.forest, self._account.quota.paths)
        for name in reversed(self._children):
            self._set_first(lists, name)

    def _list_changed(self, lists: Mapping[str, list[ActiveGang]], leaf: str) -> None:
        """The list of a leaf has changed: find the best victim of it and of each queue above it."""
        for name in self._account.quota.paths[leaf]:
            if not self._set_first(lists, name):
                return

    def _set_first(self, lists: Mapping[str, list[ActiveGang]], name: str) -> bool:
        """Find the best victim of a queue, whose children's are known; True if it is another one.

        A queue yields gangs if it borrows, or is above the gang's own leaf.
        """
        first = self._first
        before = first.get(name)
        found = [first[child] for child in self._children[name] if child in first]
        if name in lists:
            found.append(self._search.victim_order(lists[name][0]))
        if found and (name in self._own_path or self._is_borrowing(name)):
            first[name] = min(found) if len(found) > 1 else found[0]
        else:
            first.pop(name, None)
        return first.get(name) != before
