"""The candidates that a search for victims puts back: those that are not needed, and gangs that surplus spares.

The sharing decides between queues, so a search may remove a gang of one queue before the surplus of another one. Once
the search has removed enough, each removed gang is compared with the surplus that the sharing lets the preemptor take.
If that surplus suffices instead of the gang, the surplus is removed and the gang is put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.search import Enough, Found, Search, Taken, Trial, victim_order

MOST_COMPARISONS: Final = 5_000
"""After so many comparisons with the cluster, no further gang is tried: they take about a second of one search."""


def fill_back(trial: Trial, is_enough: Enough) -> Steps[None]:
    """Put back each gang that is not needed, from the last but one to the first that was removed; then surplus pods."""
    taken = list(trial.removed.values())[-2::-1]
    for gang, reason in sorted(taken, key=lambda each: each[0].is_surplus):
        trial.restore(gang)
        if not is_enough():
            trial.remove(gang, reason)
        yield


def spare_gangs(trial: Trial, found: Sequence[tuple[Search, Found]], is_enough: Enough) -> Steps[None]:
    """Put back each gang that surplus can replace; the last gang in the order of victims is tried first.

    `found` are the searches that removed the gangs. Costs two comparisons with the cluster for each gang, and one for
    each part of the surplus where the sharing lets some of it go, and all of it would suffice. Gangs that are left
    after `MOST_COMPARISONS` stay removed untried.
    """
    sparing = _Sparing(trial, [each for each in found if each[1].take_surplus is not None], is_enough)
    gangs = _gangs_of(trial) if sparing.found else []
    while gangs and sparing.compared < MOST_COMPARISONS:
        gang, reason = gangs.pop()
        trial.restore(gang)
        if (yield from sparing.take_surplus()):
            yield from fill_back(trial, is_enough)
            # The sharing may let other surplus go now, which replaces a gang that was tried before.
            gangs = _gangs_of(trial)
        else:
            trial.remove(gang, reason)
        yield


class _Sparing(Struct):
    """The tries to take surplus in the place of gangs; `compared` counts the comparisons with the cluster."""

    trial: Trial
    found: Sequence[tuple[Search, Found]]
    is_enough: Enough
    compared: int = 0

    def take_surplus(self) -> Steps[bool]:
        """Remove surplus, as the sharing lets it go, until it is enough; nothing, and False, if it never is.

        The sharing may let only some of it go. So where all of it would suffice, a few parts that suffice are also
        tried alone: others may be on nodes where they do not help.
        """
        surplus = list({each.uid: each for search, _ in self.found for each in search.surplus}.values())
        for order in (None, surplus[::-1], surplus) if surplus else ():
            among = yield from self._sufficing(surplus, order)
            if not among:
                return False
            taken = yield from self._take_among(among)
            if taken is not Taken.TOO_LITTLE:
                return taken is Taken.ENOUGH
        return False

    def _take_among(self, among: Collection[str]) -> Steps[Taken]:
        """Remove surplus among these parts by the first search that finds enough."""
        most = Taken.NOTHING
        for _, each in self.found:
            if each.take_surplus is None:
                continue
            taken = yield from each.take_surplus(self.is_enough, among)
            if taken is Taken.ENOUGH:
                return taken
            most = taken if taken is Taken.TOO_LITTLE else most
        return most

    def _sufficing(
        self, surplus: Sequence[ActiveGang], order: Iterable[ActiveGang] | None
    ) -> Steps[frozenset[str]]:
        """Surplus without which the gang has quota and room, whether the sharing lets it go or not, by uid.

        That is all of it, or with an `order` what is left once each part in turn that is not needed was put back. It
        is empty if all of it does not suffice. Nothing is removed for good.
        """
        removed = {each.uid: each for each in surplus}
        for each in surplus:
            self.trial.remove(each, Reason.PRIORITY_IN_QUEUE)
        is_possible = self._suffices()
        for each in order or () if is_possible else ():
            yield
            self.trial.restore(each)
            del removed[each.uid]
            if not self._suffices():
                self.trial.remove(each, Reason.PRIORITY_IN_QUEUE)
                removed[each.uid] = each
        for each in removed.values():
            self.trial.restore(each)
        return frozenset(removed) if is_possible else frozenset()

    def _suffices(self) -> bool:
        """True if the gang has quota and room."""
        self.compared += 1
        trial = self.trial
        places = trial.ledger.forest.places_of(trial.gang.leaves)
        return all(trial.has_quota(place.name) for place in places) and trial.has_room()


def _gangs_of(trial: Trial) -> list[tuple[ActiveGang, Reason]]:
    """The gangs that were removed, without surplus, in the order of victims."""
    found = [each for each in trial.removed.values() if not each[0].is_surplus]
    return sorted(found, key=lambda each: victim_order(each[0], trial.gang.leaves[0]))
