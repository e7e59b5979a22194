"""The accounts of all trees at one time, and the quota that is held back for gangs that were decided before.

A cycle has two ledgers: now, with every gang that holds capacity, and later, without those that leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, TreeQuota, tree_quotas
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.sharing.gangs import ActiveGang


class Hold(NamedTuple):
    """Quota of a leaf that is held back for a gang: from other queues what the leaf has left, at most its demand.

    For a starved gang its whole demand is also held back from its own queue.
    """

    leaf: str
    demand: Resources
    is_starved: bool


Alike = Mapping[tuple[tuple[str, ...], Resources, int], int]
"""How many gangs are alike in leaves, charge and priority, so that they are charged together."""


def alike(gangs: Iterable[ActiveGang]) -> Alike:
    """These gangs by what they are charged for."""
    return Counter([(gang.record.leaves, gang.charge, gang.record.priority) for gang in gangs])


class QuotaLedger:
    """The accounts of all trees, by root. `forest` is that by which quota is counted, with the held queues.

    The charge of a queue that is not valid any more counts in the nearest valid queue above it, by its last valid path;
    of a queue that never was valid, or whose whole tree is gone, nowhere.
    """

    def __init__(self, forest: Forest, quotas: Mapping[str, TreeQuota]) -> None:
        self.forest = forest.for_quota
        self.accounts = {root: Account(quota) for root, quota in quotas.items()}
        self._left: dict[str, dict[str, Counter[str]]] = {}
        """The charges of gangs whose queue is gone: by the queue that bears them, by their own, by resource."""
        self._holds: dict[str, list[Hold]] = {}

    def account_of(self, leaf: str) -> Account:
        """The account of the tree of a valid queue."""
        return self.accounts[self.forest.places[leaf].root]

    def charge(self, leaves: Iterable[str], demand: Resources, priority: int, sign: int = 1) -> None:
        """Charge a gang in its leaves, or take that back with the sign -1."""
        for leaf in leaves:
            bearer = self.forest.bearer_of(leaf)
            place = self.forest.places.get(bearer)
            if place is not None:
                is_firm = not place.is_preemptible(priority)
                self.accounts[place.root].charge(bearer, demand, sign, is_firm=is_firm)
                if bearer != leaf:
                    left = self._left.setdefault(bearer, {}).setdefault(leaf, Counter())
                    left.update({name: sign * amount for name, amount in demand.items()})

    def left(self, queues: Iterable[str], resource: str) -> dict[str, int]:
        """The charges that these queues bear for gangs of queues that are gone, by the names of those; none of 0."""
        found: Counter[str] = Counter()
        for bearer in queues:
            for name, amounts in self._left.get(bearer, {}).items():
                found[name] += amounts[resource]
        return {name: found[name] for name in sorted(found) if found[name] > 0}

    def charge_all(self, alike: Alike) -> Steps[None]:
        """Charge these gangs."""
        for (leaves, demand, priority), count in alike.items():
            self.charge(leaves, demand * count, priority)
            yield

    def hold(self, hold: Hold) -> None:
        """Hold back quota from now on."""
        self._holds.setdefault(self.forest.places[hold.leaf].root, []).append(hold)

    def holds(self, root: str) -> tuple[Hold, ...]:
        """The quota that is held back in a tree."""
        return tuple(self._holds.get(root, ()))

    def lacking(
        self,
        leaf: str,
        demand: Resources,
        priority: int,
        *,
        but_for_holds: bool = False,
        is_counted: bool = False,
    ) -> list[str]:
        """The limited resources of which a gang lacks quota in one leaf; with or without what is held back.

        If it `is_counted`, its demand is charged in the leaf already.
        """
        place = self.forest.places[leaf]
        account = self.accounts[place.root]
        if not account.quota.limited:
            return []
        if but_for_holds or place.root not in self._holds:
            found = list(_missing(account, place, demand, is_counted=is_counted))
        else:
            with self._holding(account, leaf, self.holds(place.root)):
                found = list(_missing(account, place, demand, is_counted=is_counted))
        if not place.is_preemptible(priority):
            found = sorted({*found, *account.beyond_nominal(leaf, demand)})
        return found

    def missing(self, leaf: str, demand: Resources) -> dict[str, int]:
        """The amounts of quota that a gang lacks in one leaf, with what is held back, whatever its priority."""
        place = self.forest.places[leaf]
        account = self.accounts[place.root]
        with self._holding(account, leaf, self.holds(place.root)):
            return _missing(account, place, demand)

    def has_quota(self, leaves: Iterable[str], demand: Resources, priority: int) -> bool:
        """True if a gang has quota in all of its leaves."""
        return not any(self.lacking(leaf, demand, priority) for leaf in leaves)

    @contextmanager
    def _holding(self, account: Account, leaf: str, holds: Iterable[Hold]) -> Iterator[None]:
        """Charges what is held back from the gangs of a leaf, for as long as it is asked about."""
        charged: list[tuple[str, Resources]] = []
        for hold in holds:
            amounts = hold.demand
            if hold.leaf != leaf:
                amounts = _left_of(account, hold)
            elif not hold.is_starved:
                continue
            account.charge(hold.leaf, amounts)
            charged.append((hold.leaf, amounts))
        try:
            yield
        finally:
            for held, amounts in charged:
                account.charge(held, amounts, -1)


def _missing(
    account: Account, place: Place, demand: Resources, *, is_counted: bool = False
) -> dict[str, int]:
    if place.sharing is Sharing.DIVISION:
        return account.missing_of_limits(place.name, demand, is_counted=is_counted)
    return account.missing(place.name, demand, is_counted=is_counted)


def _left_of(account: Account, hold: Hold) -> Resources:
    own, used = account.quota.queues[hold.leaf].own, account.used[hold.leaf]
    asked = account.quota.asked(hold.demand)
    return Resources({name: max(0, min(amount, own[name] - used[name])) for name, amount in asked})


def now_and_later(forest: Forest, active: Iterable[ActiveGang]) -> Steps[tuple[QuotaLedger, QuotaLedger]]:
    """The ledger with every gang that holds capacity, and the one without the gangs that leave."""
    quotas = tree_quotas(forest)
    yield
    now, later = QuotaLedger(forest, quotas), QuotaLedger(forest, quotas)
    gangs = list(active)
    staying = alike(gang for gang in gangs if not gang.is_leaving)
    yield
    for ledger in (now, later):
        yield from ledger.charge_all(staying)
    yield from now.charge_all(alike(gang for gang in gangs if gang.is_leaving))
    return now, later
