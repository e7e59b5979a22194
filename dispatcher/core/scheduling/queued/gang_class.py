"""The queued gangs of one equivalence class, kept in order and by what their records say about why they wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Generic, TypeVar

from dispatcher.core.lifecycle.queue_changes import PendingKey, pending_key
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.ordering import Rank, rank

Key = tuple[Rank, str]
"""The place of a record in its queue; the uid makes it unique."""

ClassKeyT = TypeVar("ClassKeyT")


def key_of(record: Record, now: datetime) -> Key:
    """The place of a record in its queue."""
    return rank(record, now), record.uid


class GangClass(Generic[ClassKeyT]):
    """The records of one class: `keys` in order, and `sloped` those with a slope, whose order changes with time."""

    __slots__ = ("by_pending_key", "key", "keys", "sloped")

    def __init__(self, key: ClassKeyT) -> None:
        self.key = key
        self.keys: list[Key] = []
        self.sloped: dict[str, Record] = {}
        self.by_pending_key: dict[PendingKey, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.keys) + len(self.sloped)

    def add(self, record: Record) -> None:
        """Add a record of the class."""
        if record.priority_slope:
            self.sloped[record.uid] = record
        else:
            insort(self.keys, _static_key(record))
        self.by_pending_key.setdefault(pending_key(record), {})[record.uid] = None

    def remove(self, record: Record) -> None:
        """Remove a record that was added."""
        if record.priority_slope:
            del self.sloped[record.uid]
        else:
            del self.keys[bisect_left(self.keys, _static_key(record))]
        known = pending_key(record)
        del self.by_pending_key[known][record.uid]
        if not self.by_pending_key[known]:
            del self.by_pending_key[known]

    def in_order(self, now: datetime, but: Collection[str] = ()) -> Iterator[Key]:
        """The keys of the class in order, without those of some uids."""
        keys = self.keys
        if self.sloped:
            keys = sorted([*keys, *(key_of(record, now) for record in self.sloped.values())])
        return (key for key in keys if key[1] not in but)


def _static_key(record: Record) -> Key:
    """The key of a record without a slope, the same at any time."""
    return key_of(record, record.age_begins_at)
