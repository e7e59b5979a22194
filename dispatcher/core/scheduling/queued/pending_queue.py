"""The store of the queued records between cycles: what has changed, what requirements there are, who takes no part.

The planner (`cycle.queue_planner`) reads the changes. A cycle over a long queue takes seconds, and runs beside the
event loop. Records that are put or removed meanwhile take part in the next cycle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.scheduling.capacity.pods_there import FollowedTerms
from dispatcher.core.scheduling.capacity.queued_terms import QueuedTerms
from dispatcher.core.scheduling.queued.equivalence_classes import DistinctRequirements


class Changes(NamedTuple):
    """The last state of each record that changed, by uid; None for one that is no longer queued.

    If `are_all`, they are all records, and everything kept of the queue is out of date.
    """

    records: Mapping[str, Record | None]
    are_all: bool


class PendingQueue:
    """The queued records. The time in successive calls of `changes_for` never decreases."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._requirements = DistinctRequirements()
        self._postponed: list[tuple[datetime, str]] = []
        self._inbox: dict[str, Record | None] = {}
        self._with_terms: dict[str, Gang] = {}
        self._terms = QueuedTerms()
        self._reader: object = self
        self._barred: set[str] = set()
        self._blocked: dict[str, datetime] = {}

    def __iter__(self) -> Iterator[Record]:
        """The queued records, in no order."""
        return iter(self._records.values())

    def put(self, record: Record) -> None:
        """Adds a queued record, or replaces its last state."""
        self._forget(record.uid)
        self._records[record.uid] = self._inbox[record.uid] = record
        self._requirements.add(record.requirements)
        if record.blocked_since is not None:
            self._blocked[record.uid] = record.blocked_since
        if any(each.depends_on_others for each in record.gang.pod_sets):
            self._note_terms(record.uid, record.gang)
        elif record.uid in self._with_terms:
            self._note_terms(record.uid, None)
        if record.eligible_at:
            insort(self._postponed, (record.eligible_at, record.uid))

    def remove(self, uid: str) -> None:
        """Removes a record that is no longer queued; safe to repeat."""
        if self._forget(uid):
            self._inbox[uid] = None
            self._note_terms(uid, None)

    def holds(self, record: Record) -> bool:
        """True if the record is queued and this is its last state."""
        return self._records.get(record.uid) is record

    def requirements(self) -> Iterable[ClusterRequirements]:
        """Requirements that cover every required namespace and kind, in no order; fewer than the records have."""
        return self._requirements

    @property
    def followed(self) -> FollowedTerms:
        """The terms about pods of the queued gangs; the same value as long as they do not change."""
        return self._terms.followed

    def next_eligible(self, now: datetime) -> datetime | None:
        """The time at which the next postponed record becomes eligible; None if there is none."""
        following = bisect_right(self._postponed, now, key=itemgetter(0))
        return self._postponed[following][0] if following < len(self._postponed) else None

    def bar(self, uids: Iterable[str], until: datetime) -> None:
        """Let these gangs take part in no cycle before that time, or until they change.

        The next cycle reads all records again.
        """
        for uid in uids:
            if uid in self._records:
                self._barred.add(uid)
                insort(self._postponed, (until, uid))
        self._reader = object()

    def in_cycles(self) -> list[Record]:
        """The queued records but for those that are barred, in no order."""
        return [each for uid, each in self._records.items() if uid not in self._barred]

    @property
    def first_blocked(self) -> datetime | None:
        """When the first of the gangs that have been the head of their queue was blocked; O(such gangs)."""
        return min(self._blocked.values(), default=None)

    def changes_for(self, reader: object, now: datetime) -> Changes:
        """The changes since the last call for this reader, with the records that have become eligible by now."""
        self._take_due(now)
        inbox, self._inbox = self._inbox, {}
        are_all = reader is not self._reader
        self._reader = reader
        if are_all:
            return Changes({each.uid: each for each in self.in_cycles()}, are_all=True)
        return Changes(inbox, are_all=False)

    def _forget(self, uid: str) -> bool:
        self._barred.discard(uid)
        self._blocked.pop(uid, None)
        record = self._records.pop(uid, None)
        if record is None:
            return False
        self._requirements.remove(record.requirements)
        if record.eligible_at:
            due = record.eligible_at, uid
            at = bisect_left(self._postponed, due)
            if at < len(self._postponed) and self._postponed[at] == due:
                del self._postponed[at]
        return True

    def _note_terms(self, uid: str, gang: Gang | None) -> None:
        before = self._with_terms.pop(uid, None)
        if gang is not None:
            self._with_terms[uid] = gang
        if gang is None:
            self._terms.remove(uid)
        elif before is not gang:
            self._terms.put(uid, gang.pod_sets)

    def _take_due(self, now: datetime) -> None:
        """Adds the records that have become eligible to the inbox."""
        until = bisect_right(self._postponed, now, key=itemgetter(0))
        for _, uid in self._postponed[:until]:
            self._barred.discard(uid)
            if uid in self._records:
                self._inbox[uid] = self._records[uid]
        del self._postponed[:until]
