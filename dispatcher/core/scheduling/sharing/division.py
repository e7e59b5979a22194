"""Sharing by division: what the clusters have is divided among the queues, from the root down, as in KAI.

Each queue first gets its quota, and then, by the priority of the queues and by weight, a part of what is left. A queue
may use anything up to its limit; it gives way if it uses more than its fair share, or more than its quota to a gang
whose side is within its own.

Source: https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs/fairness
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.accounts import Account, Amounts, below_common_ancestor, common_length
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, has_members
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.search import Enough, Found, Search, Taken, children_with

_NOTHING: Final = Resources()


class Load(NamedTuple):
    """The use of a queue as a share of what it is allocated; infinite if it uses something of which it has nothing.

    `units` is the share in units of 2^-32, rounded down, which decides nearly every comparison before the share does.
    """

    is_infinite: bool
    units: int
    share: Fraction


class Shares(Struct, frozen=True):
    """The fair share and the allocated amount of each queue of one tree, by resource, at the beginning of a cycle."""

    fair: Mapping[str, Mapping[str, int]]
    allocated: Mapping[str, Mapping[str, int]]


def capacity_of(root: Place, snapshots: Mapping[str, ClusterSnapshot]) -> Resources:
    """What the clusters have that the root of a tree selects, less their reserve; closed clusters count.

    On the hub alone there is nothing to select.
    """
    selectors = root.cluster_selectors if has_members(snapshots) else ()
    selected = (
        each for each in snapshots.values() if all(selector.matches(each.labels) for _, selector in selectors)
    )
    return sum_of(each.capacity.total_for(None) for each in selected)


def divide(
    account: Account, forest: Forest, capacity: Mapping[str, int], pending: Mapping[str, Resources]
) -> Shares:
    """All steps of `divide_in_steps` at once."""
    return incremental.run(divide_in_steps(account, forest, capacity, pending))


def divide_in_steps(
    account: Account, forest: Forest, capacity: Mapping[str, int], pending: Mapping[str, Resources]
) -> Steps[Shares]:
    """The fair shares of a tree whose clusters have this capacity; `pending` is the pending demand of each leaf."""
    quota = account.quota
    wanted = yield from _wanted(account, pending)
    root = quota.tree.root
    declared = forest.places[root].queue.resources
    fair: dict[str, Amounts] = {
        root: {
            name: quota.queues[root].total[name] if name in declared else capacity.get(name, 0)
            for name in quota.limited
        }
    }
    for name in quota.tree.names:
        children = [forest.places[child] for child in forest.places[name].children]
        for child in children:
            fair[child.name] = {}
        for resource in quota.limited if children else ():
            claims = [
                _Claim(child, quota.queues[child.name].total[resource], wanted[child.name][resource])
                for child in children
            ]
            for claim in _divided(claims, fair[name][resource]):
                fair[claim.place.name][resource] = claim.given
        yield
    allocated = {
        name: {
            resource: _at_most(max(queue.total[resource], fair[name][resource]), queue.limit[resource])
            for resource in quota.limited
        }
        for name, queue in quota.queues.items()
    }
    return Shares(fair, allocated)


def divide_all_in_steps(
    accounts: Mapping[str, Account],
    forest: Forest,
    snapshots: Mapping[str, ClusterSnapshot],
    pending: Mapping[str, Sequence[Resources]],
) -> Steps[dict[str, Shares]]:
    """The fair shares of the trees with the sharing Division, by root; `pending` are the demands in each leaf."""
    found = {}
    for root, tree in forest.trees.items():
        if tree.sharing is Sharing.DIVISION:
            capacity = capacity_of(forest.places[root], snapshots)
            wanted = {leaf: sum_of(pending[leaf]) for leaf in tree.names if leaf in pending}
            found[root] = yield from divide_in_steps(accounts[root], forest, capacity, wanted)
    return found


class _Claim(Struct):
    """One child in a division of one resource. `fraction` is what rounding took from it in the last round."""

    place: Place
    total: int
    wanted: int
    given: int = 0
    fraction: Fraction = Fraction(0)


def _divided(claims: Sequence[_Claim], amount: int) -> Sequence[_Claim]:
    """The claims with their fair shares of an amount."""
    for claim in claims:
        claim.given = min(claim.total, claim.wanted)
    rest = amount - sum(claim.given for claim in claims)
    for priority in sorted({claim.place.queue.priority for claim in claims}, reverse=True):
        if rest > 0:
            rest = _divide_rest([each for each in claims if each.place.queue.priority == priority], rest)
    return claims


def _divide_rest(claims: Sequence[_Claim], rest: int) -> int:
    """Divide a rest among claims of one priority by weight; return what is left of it."""
    is_last = False
    while rest > 0 and not is_last:
        hungry = [claim for claim in claims if claim.given < claim.wanted]
        weights = sum(claim.place.queue.weight for claim in hungry)
        if not weights:
            break
        is_last, divided = True, rest
        for claim in hungry:
            portion = divided * claim.place.queue.weight / weights
            needed = claim.wanted - claim.given
            part = needed if needed <= portion else int(portion)
            claim.fraction = Fraction(0) if needed <= portion else portion - part
            is_last = is_last and needed >= portion
            claim.given += part
            rest -= part
    left = [claim for claim in claims if claim.given < claim.wanted and claim.fraction]
    for claim in sorted(left, key=lambda each: (-each.fraction, each.place.position))[: max(0, rest)]:
        claim.given += 1
        rest -= 1
    return rest


def _wanted(account: Account, pending: Mapping[str, Resources]) -> Steps[dict[str, Amounts]]:
    """What each queue uses and wants, at most its limit."""
    quota = account.quota
    found = {name: dict(account.plain[name]) for name in quota.queues}
    for leaf, demand in pending.items():
        for name in quota.paths[leaf]:
            for resource, amount in quota.asked(demand):
                found[name][resource] += amount
        yield
    for name, amounts in found.items():
        for resource, amount in amounts.items():
            amounts[resource] = _at_most(amount, quota.queues[name].limit[resource])
    return found


def _at_most(amount: int, limit: int | None) -> int:
    return amount if limit is None else min(amount, limit)


# --- the next queue ------------------------------------------------------------------------------------------


class TurnKey(NamedTuple):
    """How a queue compares with its siblings if it dispatches a gang; the lowest goes first."""

    is_beyond_quota: bool
    lower_priority: int
    load: Load


def turn_key(account: Account, forest: Forest, shares: Shares, name: str, demand: Resources) -> TurnKey:
    """The key of a queue with a gang of this demand counted in."""
    used, total = account.plain[name], account.quota.queues[name].total
    return TurnKey(
        any(used[each] + amount > total[each] for each, amount in account.quota.asked(demand)),
        -forest.places[name].queue.priority,
        load(account, shares, name, demand * -1),
    )


def load(account: Account, shares: Shares, name: str, without: Resources = _NOTHING) -> Load:
    """The load of a queue, less the demand `without` of a gang below it; infinite ones are equal."""
    allocated = shares.allocated[name]
    highest, most = 0, 1
    for each, amount in account.plain[name].items():
        used, at_most = amount - without[each], allocated[each]
        if used > 0 and at_most == 0:
            return _INFINITE
        if used * most > highest * at_most:
            highest, most = used, at_most
    return _load_of(highest, most)


_INFINITE: Final = Load(is_infinite=True, units=0, share=Fraction(0))


@lru_cache(maxsize=10_000)  # one search asks for the same loads again and again
def _load_of(used: int, allocated: int) -> Load:
    return Load(is_infinite=False, units=(used << 32) // allocated, share=Fraction(used, allocated))


def would_exceed(account: Account, shares: Shares, leaf: str, demand: Resources) -> bool:
    """True if a leaf would use more than it is allocated with one more gang, of something that the gang asks for."""
    return any(
        account.plain[leaf][name] + amount > shares.allocated[leaf][name]
        for name, amount in account.quota.asked(demand)
    )


# --- victims -------------------------------------------------------------------------------------------------


def search(search: Search, shares: Shares) -> Steps[Found | None]:
    """Remove candidates until it is enough; if it never is, put all back and return None."""
    found = _DivisionSearch(search, shares)
    is_found = yield from found.run()
    return Found(found.is_enough, found.take_surplus) if is_found else None


class _DivisionSearch:
    """One search; loads count what was removed so far as gone."""

    def __init__(self, search: Search, shares: Shares) -> None:
        self._search = search
        self._shares = shares
        self._account = search.account
        self._asked = search.account.quota.asked(search.demand)
        self._before = {name: dict(search.account.plain[name]) for name in search.place.path}
        self._may_grow = all(
            self._account.plain[search.leaf][name] + amount <= shares.fair[search.leaf][name]
            for name, amount in self._asked
        )
        self._left: dict[str, deque[ActiveGang]] = {}
        self._removed: list[ActiveGang] = []
        self._first: dict[str, ActiveGang] = {}
        self._turns_to_give: dict[str, tuple[object, ...]] = {}
        self._children: dict[str, list[str]] = {}

    def run(self) -> Steps[bool]:
        """From other queues, and if that is not enough from the own leaf."""
        if (yield from self._from_others(self._search.others, self.is_enough)):
            return True
        self._restore()
        if (yield from self._from_own(self._search.own, self.is_enough)):
            return True
        self._restore()
        return False

    def take_surplus(self, is_enough: Enough, among: Collection[str]) -> Steps[Taken]:
        """Remove surplus among the named parts until that is enough, of other queues first; else put it back."""
        self._removed = []
        others = {
            leaf: [each for each in gangs if each.uid in among] for leaf, gangs in self._search.others.items()
        }
        if (yield from self._from_others(others, is_enough)):
            return Taken.ENOUGH
        own = [each for each in self._search.own if each.uid in among]
        if (yield from self._from_own(own, is_enough)):
            return Taken.ENOUGH
        taken = Taken.of(self._removed, is_enough=False)
        self._restore()
        return taken

    def _restore(self) -> None:
        """Put back all that were removed."""
        self._search.restore(self._removed)
        self._removed = []

    def _from_own(self, gangs: Iterable[ActiveGang], is_enough: Enough) -> Steps[bool]:
        for gang in gangs:
            self._search.remove(gang, Reason.PRIORITY_IN_QUEUE)
            self._removed.append(gang)
            if is_enough():
                return True
            yield
        return False

    def _from_others(self, others: Mapping[str, Sequence[ActiveGang]], is_enough: Enough) -> Steps[bool]:
        """Remove those that the sharing lets go; none if the gang's leaf would exceed its fair share."""
        if not self._may_grow:
            return False
        self._left = {leaf: deque(gangs) for leaf, gangs in others.items() if gangs}
        self._children = children_with(self._left, self._search.forest, self._account.quota.paths)
        self._first.clear()
        self._turns_to_give.clear()
        for name in reversed(self._children):
            self._set_first(name)
        while self._left:
            yield
            leaf = self._next_leaf()
            gang = self._left[leaf].popleft()
            reason = self._reason(leaf)
            if not self._left[leaf]:
                del self._left[leaf]
            self._find_first(leaf)
            if reason is None:
                continue
            self._search.remove(gang, reason)
            self._removed.append(gang)
            if is_enough():
                return True
        return False

    def _reason(self, leaf: str) -> Reason | None:
        """Why a gang of this leaf gives way; None if it does not."""
        paths = self._account.quota.paths
        mine, theirs = below_common_ancestor(paths[self._search.leaf], paths[leaf])
        used, quotas = self._account.plain[theirs], self._account.quota.queues
        names = [name for name, _ in self._asked]
        is_entitled = all(
            self._before[mine][name] + amount <= quotas[mine].total[name] for name, amount in self._asked
        )
        if (
            leaf in self._before
        ):  # a queue above the gang, which has neither quota nor a share of its own for gangs
            return Reason.QUOTA_RECLAIMED if is_entitled else Reason.FAIR_SHARE
        if is_entitled and any(used[name] > quotas[theirs].total[name] for name in names):
            return Reason.QUOTA_RECLAIMED
        if any(used[name] > self._shares.allocated[theirs][name] for name in names):
            return Reason.QUOTA_RECLAIMED if is_entitled else Reason.FAIR_SHARE
        return None

    def is_enough(self) -> bool:
        """True if it is enough, and fair to the queues that give."""
        return self._search.is_enough() and self._is_fair_to_givers()

    def _is_fair_to_givers(self) -> bool:
        """True if no queue on the gang's way ends above its fair share and above the load of a sibling that gave."""
        path, paths = self._search.place.path, self._account.quota.paths
        leaves = {leaf for each, count in self._search.trial.giving.items() if count for leaf in each}
        sides = set[tuple[str, str]]()
        for other in (paths[leaf] for leaf in leaves if leaf in paths):
            if common_length(path, other) < min(len(path), len(other)):
                sides.add(below_common_ancestor(path, other))
        return all(self._is_fair(mine, theirs) for mine, theirs in sides)

    def _is_fair(self, name: str, sibling: str) -> bool:
        fair = self._shares.fair
        for resource, amount in self._asked:
            mine, theirs = fair[name][resource], fair[sibling][resource]
            used = self._account.plain[name][resource] + amount
            if used <= mine or theirs == 0:
                continue
            if mine == 0 or used * theirs >= self._account.plain[sibling][resource] * mine:
                return False
        return True

    def _find_first(self, leaf: str) -> None:
        """The candidates or the use of a leaf changed: find the first candidate of it and of each queue above it.

        Other queues keep theirs, and their turns to give.
        """
        for name in self._account.quota.paths[leaf]:
            self._turns_to_give.pop(name, None)
            self._set_first(name)

    def _set_first(self, name: str) -> None:
        """Find the first candidate of a queue, whose children's are known."""
        found = [self._first[child] for child in self._children[name] if child in self._first]
        if name in self._left:
            found.append(self._left[name][0])
        if found:
            self._first[name] = max(found, key=_recency) if len(found) > 1 else found[0]
        else:
            self._first.pop(name, None)

    def _next_leaf(self) -> str:
        """The leaf to look at next, from the root down; some leaf has candidates left.

        A queue that got children while gangs ran in it gives these before those of its children.
        """
        at = self._search.place.root
        while at not in self._left:
            names = [name for name in self._children[at] if name in self._first]
            at = names[0] if len(names) == 1 else max(names, key=self._turn_of)
        return at

    def _turn_of(self, name: str) -> tuple[object, ...]:
        found = self._turns_to_give.get(name)
        if found is None:
            place = self._search.forest.places[name]
            found = self._turns_to_give[name] = self._turn_to_give(place, self._first[name])
        return found

    def _turn_to_give(self, place: Place, victim: ActiveGang) -> tuple[object, ...]:
        """The order in which queues are to give the victim; the highest gives first."""
        account, name = self._account, place.name
        used, allocated = account.plain[name], self._shares.allocated[name]
        is_over = any(used[each] > allocated[each] for each in account.quota.limited)
        as_it_is = load(account, self._shares, name)
        without = load(account, self._shares, name, victim.charge)
        return -place.queue.priority, is_over, without, as_it_is, place.position


def _recency(gang: ActiveGang) -> tuple[float, str]:
    return gang.dispatched_at.timestamp(), gang.record.name
