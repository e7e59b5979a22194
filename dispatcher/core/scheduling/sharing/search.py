"""The part of a search for victims that all sharings have in common.

A `Trial` is the world as it would be later without some gangs. A `Search` asks for one gang in one tree: the module of
the tree's sharing removes candidates one by one until it is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import accumulate

from msgspec import Struct

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.fit import fits
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

VictimOrder = tuple[bool, bool, int, float, str]
"""Surplus pods before gangs; by whether it is in the gang's own leaf, its priority, how recently it was dispatched, and
its name."""


class Trial:
    """The quota and one cluster's capacity later, without the gangs that were removed so far.

    `ledger` is changed and must be given back by `close`. `base` is the capacity before, which is not changed: it is
    copied for the first question after a removal, because many trials end for lack of quota before any question.
    """

    def __init__(
        self,
        gang: PendingGang,
        cluster: str,
        ledger: QuotaLedger,
        base: CapacitySnapshot,
        has_room: bool | None = None,  # on the base, if it is known
    ) -> None:
        self.gang = gang
        self.cluster = cluster
        self.ledger = ledger
        self.removed: dict[str, tuple[ActiveGang, Reason]] = {}
        self.giving: Counter[tuple[str, ...]] = Counter()
        """How many of the removed gangs are in the same leaves; 0 where all were put back."""
        self.freed: Counter[str] = Counter()
        """The amounts that the removed gangs were charged with, by resource."""
        self._capacity = base
        self._is_copy = False
        self._outstanding: dict[str, tuple[ActiveGang, int]] = {}
        self._has_room = has_room
        self.lacked_room = False
        """True once the gang had no room."""

    @property
    def capacity(self) -> CapacitySnapshot:
        """The capacity of the cluster without the removed gangs."""
        if self._outstanding:
            if not self._is_copy:
                self._capacity, self._is_copy = self._capacity.copy(), True
            for gang, sign in self._outstanding.values():
                self._capacity.charge(gang.uid, gang.demand, sign)
            self._outstanding.clear()
        return self._capacity

    def remove(self, gang: ActiveGang, reason: Reason) -> None:
        """Remove a gang that is there."""
        self.removed[gang.uid] = gang, reason
        self.giving[gang.leaves] += 1
        self._charge(gang, -1)

    def restore(self, gang: ActiveGang) -> None:
        """Put back a gang that was removed."""
        del self.removed[gang.uid]
        self.giving[gang.leaves] -= 1
        self._charge(gang, +1)

    def close(self) -> None:
        """Put back all gangs."""
        for gang, _ in list(self.removed.values()):
            self.restore(gang)

    def has_quota(self, leaf: str, *, is_counted: bool = False) -> bool:
        """True if the gang has quota in that leaf, in which it may be counted as used."""
        record = self.gang.record
        return not self.ledger.lacking(leaf, record.gang.charged, record.priority, is_counted=is_counted)

    def has_room(self) -> bool:
        """True if the gang has room on the cluster."""
        if self._has_room is None:
            needs_room = self.gang.asked is None
            self._has_room = not needs_room or fits(self.gang.record.gang, self.capacity)
        self.lacked_room = self.lacked_room or not self._has_room
        return self._has_room

    def _charge(self, gang: ActiveGang, sign: int) -> None:
        record, charge = gang.record, gang.charge
        self.ledger.charge(record.leaves, charge, record.priority, sign)
        for resource, amount in charge.items():
            self.freed[resource] -= sign * amount
        if gang.cluster != self.cluster:
            return
        self._has_room = None
        if self._outstanding.pop(gang.uid, None) is None:
            self._outstanding[gang.uid] = gang, sign


class Search(Struct):
    """One search in one tree. `own` are the candidates of the gang's leaf, `others` those of other leaves, by leaf.

    All lists are in the order of victims. `contested` are the resources that the gang is short of. `missing` are the
    amounts of quota that it lacks in this tree before the trial removes any gang. `asks_room` is true if it is enough
    only once the gang also has room.
    """

    trial: Trial
    leaf: str
    contested: frozenset[str]
    own: list[ActiveGang]
    others: dict[str, list[ActiveGang]]
    missing: Mapping[str, int]
    asks_room: bool
    is_counted: bool = False

    @property
    def candidates(self) -> Iterator[ActiveGang]:
        """All candidates; those of other leaves first."""
        for gangs in self.others.values():
            yield from gangs
        yield from self.own

    def keep_surplus(self) -> None:
        """Keep only the candidates that are surplus pods."""
        self.own = [each for each in self.own if each.is_surplus]
        kept = {leaf: [each for each in gangs if each.is_surplus] for leaf, gangs in self.others.items()}
        self.others = {leaf: gangs for leaf, gangs in kept.items() if gangs}

    @property
    def surplus(self) -> list[ActiveGang]:
        """The candidates that are surplus and still there."""
        return [each for each in self.candidates if each.is_surplus and each.uid not in self.trial.removed]

    @property
    def has_surplus(self) -> bool:
        """True if some candidate is a surplus pod; in each list these come first."""
        return any(gangs and gangs[0].is_surplus for gangs in (self.own, *self.others.values()))

    @property
    def account(self) -> Account:
        """The account of the tree."""
        return self.trial.ledger.account_of(self.leaf)

    @property
    def forest(self) -> Forest:
        """The queues."""
        return self.trial.ledger.forest

    @property
    def place(self) -> Place:
        """The place of the gang's leaf."""
        return self.forest.places[self.leaf]

    @property
    def demand(self) -> Resources:
        """The demand of the gang."""
        return self.trial.gang.record.gang.charged

    @property
    def priority(self) -> int:
        """The priority of the gang."""
        return self.trial.gang.record.priority

    def remove(self, gang: ActiveGang, reason: Reason) -> None:
        """Remove a candidate."""
        self.trial.remove(gang, reason)

    def restore(self, gangs: Iterable[ActiveGang]) -> None:
        """Put back candidates that were removed."""
        for gang in gangs:
            self.trial.restore(gang)

    def count_gang(self, *, is_counted: bool) -> None:
        """Count the gang as used in its leaf from now on, or no more."""
        if is_counted is not self.is_counted:
            self.is_counted = is_counted
            self.account.charge(self.leaf, self.demand, 1 if is_counted else -1)

    def is_enough(self) -> bool:
        """True if the gang has quota in this tree and, if that is asked here, room."""
        freed = self.trial.freed
        for name, amount in self.missing.items():
            if freed[name] < amount:
                return False
        has_quota = self.trial.has_quota(self.leaf, is_counted=self.is_counted)
        return has_quota and (not self.asks_room or self.trial.has_room())

    def may_be_enough(self, gangs: Iterable[ActiveGang]) -> bool:
        """False if the gang would lack quota in this tree even without all of these gangs.

        To free an amount in any leaf makes at most this amount available. Nothing follows from what was freed in other
        trees: so all that the trial has freed is compared with what was missing before.
        """
        if not self.missing:
            return True
        charges, freed = [gang.charge for gang in gangs], self.trial.freed
        return all(
            _reaches((charge[name] for charge in charges), amount - freed[name])
            for name, amount in self.missing.items()
        )

    def victim_order(self, gang: ActiveGang) -> VictimOrder:
        """The order of victims: surplus pods; of other queues, of lower priority, dispatched more recently, by name."""
        return victim_order(gang, self.leaf)


def _reaches(amounts: Iterable[int], wanted: int) -> bool:
    return any(total >= wanted for total in accumulate(amounts))


Enough = Callable[[], bool]
"""True if, without the gangs removed so far, the gang has quota and room, and its tree's sharing asks no more."""


class Taken(Enum):
    """Whether the surplus that the sharing lets go is enough; `NOTHING` if it lets none go."""

    ENOUGH = auto()
    TOO_LITTLE = auto()
    NOTHING = auto()

    @classmethod
    def of(cls, removed: Collection[ActiveGang], *, is_enough: bool) -> Taken:
        """The answer of a search that removed these parts of the surplus."""
        if is_enough:
            return cls.ENOUGH
        return cls.TOO_LITTLE if removed else cls.NOTHING


class Found(Struct, frozen=True):
    """A search that removed enough, by the condition `is_enough`.

    `take_surplus` removes more surplus among the named parts, as the sharing lets it go, until another condition holds.
    If it never does, it puts that surplus back. It is None if the search took all surplus before the first gang.
    """

    is_enough: Enough
    take_surplus: Callable[[Enough, Collection[str]], Steps[Taken]] | None = None


def victim_order(gang: ActiveGang, leaf: str) -> VictimOrder:
    """The order in which gangs are compared as victims of a gang of `leaf`."""
    record = gang.record
    return (
        not gang.is_surplus,
        leaf in gang.leaves,
        record.priority,
        -gang.dispatched_at.timestamp(),
        record.name,
    )


def children_with(
    leaves: Iterable[str], forest: Forest, paths: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The queues with some of these leaves at or below them, each after its parent, with such children of each."""
    found: dict[str, list[str]] = {}
    for leaf in leaves:
        for name in paths[leaf]:
            if name in found:
                break
            found[name] = []
    for name, children in found.items():
        children += [child for child in forest.places[name].children if child in found]
    return {name: found[name] for name in sorted(found, key=lambda name: len(paths[name]))}


def uses_any(gang: ActiveGang, resources: Collection[str]) -> bool:
    """True if a gang holds some of these resources."""
    charge = gang.charge
    return any(charge[name] > 0 for name in resources)
