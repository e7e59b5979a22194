"""The room of one cluster while a cycle decides: now, and later, once the leaving gangs are gone.

Later differs from now by the gangs that leave, by the victims of this cycle, and by the gangs that wait for their
capacity, to which it is promised. A gang is dispatched only if it fits both with the same node for each pod: then it
takes nothing that is promised. A starved gang may keep the cluster: then other gangs get what is free less its demand,
now and later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.fit import Fit, assignment_in_empty, fit, fit_in_both

Held = Iterable[tuple[str, Resources]]
"""Gangs that hold capacity, by uid, with their demands."""


class Change:
    """A gang to which room is promised, or for which it `is_kept`. Equal changes are of the same `Gang` object."""

    __slots__ = ("assignment", "gang", "is_kept")

    def __init__(self, gang: Gang, assignment: Assignment, *, is_kept: bool) -> None:
        self.gang = gang
        self.assignment = assignment
        self.is_kept = is_kept

    def __eq__(self, other: object) -> bool:
        """True for the same places of the same object: equal gangs may differ in the labels of their pods."""
        if not isinstance(other, Change):
            return NotImplemented
        return self.gang is other.gang and self._rest == other._rest

    def __hash__(self) -> int:
        """The hash of the places, and of the object."""
        return hash((id(self.gang), self._rest))

    @property
    def _rest(self) -> tuple[Assignment, bool]:
        return self.assignment, self.is_kept


class ClusterRoom:
    """The free capacity of one cluster, which dispatches and promises of the cycle take.

    `keeper` is the starved gang that keeps the cluster. `state` is another object after every change. The room begins
    in the state `begun`. `after` returns the state after a change that the room of another cycle may have, too.
    """

    __slots__ = (
        "_after",
        "_later",
        "_later_beside",
        "_now",
        "_now_beside",
        "begun",
        "keeper",
        "name",
        "snapshot",
        "state",
        "was_dispatched_to",
    )

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        leaving: Held = (),
        begun: object = None,
        after: Callable[[object, Change], object] = lambda _state, change: change,
    ) -> None:
        self.snapshot = snapshot
        self.name = snapshot.name
        self.keeper: Record | None = None
        self.was_dispatched_to = False
        self._after = after
        self._now = self._now_beside = snapshot.capacity
        self._later = self._later_beside = snapshot.capacity
        if gone := list(leaving):
            self.free_later(gone)
        self.begun = self.state = object() if begun is None else begun

    def fit(self, gang: Gang) -> Fit:
        """The places of a gang now that are also free later, or its shortfall."""
        if self.is_one:
            return fit(gang, self._now_beside)
        return fit_in_both(gang, self._now_beside, self._later_beside)

    def fit_later(self, gang: Gang) -> Fit:
        """The places of a gang later, or its shortfall then."""
        return fit(gang, self._later_beside)

    def fit_but_for_others(self, gang: Gang) -> Fit:
        """The places of a gang in what is free now, whether it is kept or promised or not; or its shortfall."""
        return fit(gang, self._now)

    def available(self, gang: Gang | None) -> Resources:
        """The free capacity now for a gang (None: of every usable node), less what is kept."""
        return self._now_beside.free_for(gang)

    def available_later(self, gang: Gang | None) -> Resources:
        """The free capacity later for a gang (None: of every usable node), less what is kept."""
        return self._later_beside.free_for(gang)

    @property
    def is_one(self) -> bool:
        """True while a gang that does not fit now does not fit later either, because both are the same."""
        return self._later_beside is self._now_beside

    def dispatch(self, gang: Gang, assignment: Assignment) -> None:
        """Take the places of a gang from now on."""
        self.was_dispatched_to = True
        self.state = object()
        for capacity in _distinct(self._now, self._now_beside, self._later, self._later_beside):
            capacity.take(gang, assignment)

    def promise(self, gang: Gang, assignment: Assignment) -> None:
        """Take the places of a gang later."""
        self.state = self._after(self.state, Change(gang, assignment, is_kept=False))
        self._part()
        for capacity in _distinct(self._later, self._later_beside):
            capacity.take(gang, assignment)

    def free_later(self, gangs: Held) -> None:
        """Charge these gangs, which hold capacity now, no more later."""
        self.state = object()
        self._part()
        for uid, demand in gangs:
            for capacity in _distinct(self._later, self._later_beside):
                capacity.charge(uid, demand, -1)

    def keep(self, record: Record, assignment: Assignment | None = None) -> None:
        """Keep the demand of a starved gang from the gangs after it; without places, on those in the empty cluster."""
        places = assignment or assignment_in_empty(record.gang, self.snapshot.capacity)
        is_one = self._later is self._now
        self.state = self._after(self.state, Change(record.gang, places, is_kept=True))
        self.keeper = record
        self._now_beside = self._now.copy()
        self._now_beside.take(record.gang, places)
        if is_one:
            self._later_beside = self._now_beside
        else:
            self._later_beside = self._later.copy()
            self._later_beside.take(record.gang, places)

    @property
    def later(self) -> CapacitySnapshot:
        """The capacity later, less what is kept; to be copied before it is changed."""
        return self._later_beside

    def _part(self) -> None:
        """Let now and later differ from now on."""
        if self._later is not self._now:
            return
        is_kept = self._now_beside is not self._now
        self._later = self._now.copy()
        self._later_beside = self._now_beside.copy() if is_kept else self._later


def _distinct(*capacities: CapacitySnapshot) -> list[CapacitySnapshot]:
    return list({id(each): each for each in capacities}.values())
