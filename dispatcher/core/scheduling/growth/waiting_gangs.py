"""The gangs that wait for room or quota, and from which growth of running gangs may take nothing.

They are found in the records after a cycle, which say what the cycle decided: the gangs that growth may not pass, the
heads for which quota is held back, the gangs to which capacity is promised, and the starved gangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeVar

from msgspec import Struct, field

from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.pending_reasons import (
    AWAITING_RELEASE,
    ENDS_WITH_OTHERS,
    WAITS_FOR_QUOTA,
    codes,
)
from dispatcher.core.model.records.record import Record, Shape
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.access import counted_in
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import is_eligible, rank
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.sharing.quota_reservations import is_starved

_ROOM: Final = codes(lambda each: each.waits_for_room)
_ROOM_ALONE: Final = codes(lambda each: each.room_suffices)
"""What is promised is taken from the room that growth sees, so `AwaitingRelease` is not among them."""

ONE_QUEUE: Final = ""
"""The queue of all gangs of a hub without declared queues."""

_Key = TypeVar("_Key")
_Kind = tuple[bool, ClusterRequirements]
"""Whether a gang waits for quota, and the clusters that it may go to."""


class WaitingGangs(Struct):
    """The waiting gangs of one moment.

    `oldest` has, by queue, the oldest gang of each kind: of those that wait for quota and those that wait for room,
    for each requirements on clusters. `heads` are the first waiting gangs of each queue. `promised` are the gangs that
    wait for the capacity of gangs that leave, `starved` those past the starvation bound; both in queue order.
    With declared queues, `for_room` has the oldest gang of each shape and queue that waits for room alone, and
    `demands` how many gangs count in the same leaves with the same demand, without those that are `promised` theirs.
    """

    oldest: dict[str, dict[_Kind, Record]] = field(default_factory=dict)
    heads: dict[str, Record] = field(default_factory=dict)
    promised: list[Record] = field(default_factory=list)
    starved: list[Record] = field(default_factory=list)
    for_room: dict[tuple[tuple[str, ...], Shape], Record] = field(default_factory=dict)
    demands: Counter[tuple[tuple[str, ...], Resources]] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        forest: Forest,
        now: datetime,
        reservations: Mapping[str, Reservation] | None = None,
    ) -> Steps[WaitingGangs]:
        """The waiting gangs among queued records; without declared queues `reservations` name the starved, by uid."""
        found, kept_for = cls(), reservations or {}
        for part in in_parts(records):
            for record in part:
                if is_eligible(record, now):
                    found._add(record, forest, now)
                if not forest.is_declared and record.uid in kept_for:
                    found.starved.append(record)
            yield
        found.promised.sort(key=lambda each: rank(each, now))
        found.starved.sort(key=lambda each: rank(each, now))
        return found

    def _add(self, record: Record, forest: Forest, now: datetime) -> None:
        reason = record.pending.reason if record.pending else ""
        if reason in WAITS_FOR_QUOTA or reason in _ROOM:
            kind = reason in WAITS_FOR_QUOTA, record.requirements
            for queue in record.leaves if forest.is_declared else (ONE_QUEUE,):
                _keep_oldest(self.oldest.setdefault(queue, {}), kind, record)
        if not forest.is_declared:
            return
        if reason in _ROOM_ALONE:
            _keep_oldest(self.for_room, (record.leaves, record.shape), record)
        if reason in ENDS_WITH_OTHERS:
            for place in forest.places_of(record.leaves):
                head = self.heads.get(place.name)
                if head is None or rank(record, now) < rank(head, now):
                    self.heads[place.name] = record
        if reason == AWAITING_RELEASE:
            self.promised.append(record)
        else:
            self.demands[counted_in(record, forest), record.gang.charged] += 1
        if is_starved(record, forest, now):
            self.starved.append(record)


def _keep_oldest(known: dict[_Key, Record], key: _Key, record: Record) -> None:
    if key not in known or record.age_begins_at < known[key].age_begins_at:
        known[key] = record
