"""The searches for victims that failed for lack of quota, so that an equal search is not made again.

What such a search finds follows from the running gangs of its tree, from what is held back there and from the gang that
it is for. So a failure holds until the tree changes: for the rest of the cycle, and in later cycles for as long as the
same gangs run with the same surplus, which may change without their records. Under the sharing Division the fair shares
must be the same, which follow from the queued gangs, too. A gang that its queue's `minRuntimeSeconds` protects may be a
candidate after it: a failure holds until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import is_
from typing import NamedTuple

from msgspec import Struct, field

from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.accounts import Asked
from dispatcher.core.queues.forest import Forest, Tree
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part
from dispatcher.core.scheduling.sharing.quota_ledger import Hold


class SearchKind(NamedTuple):
    """What decides a search for a gang of one queue that has room on a cluster and lacks only quota.

    `root` names the tree. `asked` is the limited part of the demand. `age_begins_at` is None where age decides nothing.
    `holds` is the quota that is held back in the tree.
    """

    root: str
    leaf: str
    asked: Asked
    priority: int
    age_begins_at: datetime | None
    holds: tuple[Hold, ...]


_Running = tuple[list[Record], list[tuple[bool, Part | None]]]
"""The records of the running gangs, and of each whether it is fixed, and which part of the gang it is."""


class _Failed(Struct):
    """The failures in one tree with these running gangs and shares; `until` then, if it is not None."""

    records: list[Record]
    states: list[tuple[bool, Part | None]]
    shares: Shares | None
    until: datetime | None
    kinds: set[SearchKind] = field(default_factory=set)

    def is_for(self, other: _Failed, now: datetime) -> bool:
        """True if the same gangs run in the other, unchanged, and none is protected no more."""
        is_as_long = len(self.records) == len(other.records)
        is_same = is_as_long and all(map(is_, self.records, other.records)) and self.states == other.states
        return is_same and self.shares == other.shares and (self.until is None or now < self.until)


class FailedSearches:
    """The failures of all trees by root; each cycle begins with `begin`."""

    def __init__(self) -> None:
        self._forest: Forest | None = None
        self._kept: dict[str, _Failed] = {}
        self._current: dict[str, set[SearchKind]] = {}

    def begin(
        self,
        forest: Forest,
        active: Mapping[str, Sequence[ActiveGang]],
        shares: Mapping[str, Shares],
        now: datetime,
    ) -> None:
        """A cycle begins with these gangs, by leaf, which hold capacity and do not leave.

        `shares` are those of the trees with the sharing Division, by root.
        """
        known = self._kept if forest is self._forest else {}
        self._forest, self._kept, self._current = forest, {}, {}
        for root, tree in forest.trees.items():
            found = _Failed(*_running(tree, active), shares.get(root), _until(forest, tree, active, now))
            before = known.get(root)
            self._kept[root] = before if before is not None and before.is_for(found, now) else found
            self._current[root] = self._kept[root].kinds

    def has(self, kind: SearchKind) -> bool:
        """True if a search of this kind failed, and the tree has not changed since."""
        return kind in self._current[kind.root]

    def add(self, kind: SearchKind) -> None:
        """A search of this kind has failed."""
        self._current[kind.root].add(kind)

    def changed(self, roots: Iterable[str]) -> None:
        """The running gangs of these trees differ from now on from those that the cycle began with."""
        for root in roots:
            self._current[root] = set()


def _running(tree: Tree, active: Mapping[str, Sequence[ActiveGang]]) -> _Running:
    gangs = [gang for name in tree.names for gang in active.get(name, ())]
    return [gang.record for gang in gangs], [(gang.is_fixed, gang.part) for gang in gangs]


def _until(
    forest: Forest, tree: Tree, active: Mapping[str, Sequence[ActiveGang]], now: datetime
) -> datetime | None:
    """When the first gang of a tree is protected no more; None if none is protected."""
    shields = {name: shield for name in tree.names if (shield := forest.places[name].min_runtime)}
    ends = (
        gang.dispatched_at + shield
        for name, shield in shields.items()
        for gang in active.get(name, ())
        if gang.is_protected(shield, now)
    )
    return min(ends, default=None)
