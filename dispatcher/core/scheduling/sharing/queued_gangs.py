"""The queued gangs of all queues by equivalence class, kept between cycles.

Gangs of one class wait in the same queues and differ in nothing that decides about them but age. A cycle decides the
first of them, and a refusal holds for all of its class until the cycle ends: no gang overtakes an older one of its
class, and a cycle costs the classes, not the gangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, Self

from dispatcher.core.model.gang import Gang
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.pod_terms import NO_TERMS, TermIndex
from dispatcher.core.model.record import Record, Shape
from dispatcher.core.scheduling.capacity.pods_there import repelled_by
from dispatcher.core.scheduling.cycle.gang_class import GangClass
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.equivalence_classes import known_repelling
from dispatcher.core.scheduling.sharing.gangs import PendingGang, count_preemptions
from dispatcher.core.scheduling.sharing.room_classes import RoomClass, RoomClasses


class QueueClassKey(NamedTuple):
    """The facts that decide about a gang in a cycle over queues, but for its age."""

    leaves: tuple[str, ...]
    shape: Shape
    namespace: str
    priority: int
    preemptions: int
    is_preempting: bool
    never_preempts: bool
    pods: tuple[object, ...]
    """The known terms of other pods that select its pods, and what its own terms depend on; empty for most."""


QueueClass = GangClass[QueueClassKey]


class QueuedGangs:
    """The queued gangs that a cycle decides on."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[Record, QueueClass]] = {}
        self._by_key: dict[QueueClassKey, QueueClass] = {}
        self._blocked: dict[str, Record] = {}
        self._preempted: dict[str, Record] = {}
        self._repelling = NO_TERMS
        self.rooms = RoomClasses()
        """The room class of each class, once a cycle has begun."""
        self._unfiled: dict[QueueClass, None] = {}
        """The classes without a room class; in no order."""
        self.touched: set[QueueClass] = set()
        """The classes with gangs that came or went, or with news, since the set was emptied."""

    @classmethod
    def of(cls, records: Iterable[Record], now: datetime) -> Self:
        """These gangs, which are eligible at that time."""
        found = cls()
        for record in records:
            found.put(record, now)
        return found

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: Record, now: datetime) -> None:
        """Add a gang, or replace its last state."""
        key = QueueClassKey(
            record.leaves,
            record.shape,
            record.namespace,
            record.priority,
            count_preemptions(record, now),
            record.is_preempting,
            record.never_preempts,
            self._pods(record.gang),
        )
        before, class_ = self._records.get(record.uid, (None, None))
        if before is not None and class_ is not None and class_.key == key:
            class_.remove(before)  # the class stays, and what is known of it
            self._blocked.pop(record.uid, None)
            self._preempted.pop(record.uid, None)
        else:
            self.remove(record.uid)
            class_ = self._by_key.get(key)
        if class_ is None:
            class_ = self._by_key[key] = GangClass(key)
            self._unfiled[class_] = None
        class_.add(record)
        self.touched.add(class_)
        self._records[record.uid] = record, class_
        if record.blocked_since is not None:
            self._blocked[record.uid] = record
        if record.preempted_at:
            self._preempted[record.uid] = record

    def remove(self, uid: str) -> None:
        """Remove a gang; safe to repeat."""
        record, class_ = self._records.pop(uid, (None, None))
        if record is None or class_ is None:
            return
        class_.remove(record)
        self.touched.add(class_)
        if not class_:
            del self._by_key[class_.key]
            if class_ in self._unfiled:
                del self._unfiled[class_]
            else:
                self.rooms.remove(class_)
        self._blocked.pop(uid, None)
        self._preempted.pop(uid, None)

    def touch(self, uids: Iterable[str]) -> None:
        """Note news about these gangs: it is in their records only if it can be committed."""
        self.touched.update(self.class_of(uid) for uid in uids)

    def follow(self, snapshots: Mapping[str, ClusterSnapshot], now: datetime) -> Steps[None]:
        """Let a cycle over these clusters begin; O(gangs) if the terms of anti-affinity of other pods are others."""
        self._follow_terms(known_repelling(snapshots), now)
        yield from self.rooms.follow(snapshots)
        for part in in_parts(self._unfiled):
            for class_ in part:
                self.rooms.add(class_, class_.key.shape, class_.key.pods)
            yield
        self._unfiled.clear()

    def _follow_terms(self, repelling: TermIndex, now: datetime) -> None:
        if repelling.terms == self._repelling.terms:
            return
        differing = TermIndex(repelling.terms ^ self._repelling.terms)
        self._repelling = repelling
        for record, _ in list(self._records.values()):
            if repelled_by(record.gang, differing):
                self.put(record, now)

    def _pods(self, gang: Gang) -> tuple[object, ...]:
        own = tuple(each.sort for each in gang.pod_sets if each.has_terms)
        return (*repelled_by(gang, self._repelling), *own)

    def move_to(self, now: datetime) -> None:
        """Let preemptions count as of that time: those of more than a day ago count no more."""
        for record in list(self._preempted.values()):
            _, class_ = self._records[record.uid]
            if class_.key.preemptions != count_preemptions(record, now):
                self.put(record, now)

    def record(self, uid: str) -> Record:
        """The last state of a gang."""
        return self._records[uid][0]

    def gang(self, uid: str) -> PendingGang:
        """A gang as queues see it."""
        record, class_ = self._records[uid]
        return PendingGang(record, class_.key.preemptions)

    def class_of(self, uid: str) -> QueueClass:
        """The class of a gang."""
        return self._records[uid][1]

    def room_class_of(self, uid: str) -> RoomClass | None:
        """The room class of a gang; None if it is not queued."""
        _, class_ = self._records.get(uid, (None, None))
        return None if class_ is None else self.rooms.of(class_)

    def classes(self) -> Iterator[QueueClass]:
        """The classes, in no order."""
        return iter(self._by_key.values())

    @property
    def blocked(self) -> Mapping[str, Record]:
        """The gangs that have been the head of their queue, by uid."""
        return self._blocked

    @property
    def preempted(self) -> Mapping[str, Record]:
        """The gangs that were preempted before, by uid."""
        return self._preempted

    @property
    def has_slopes(self) -> bool:
        """True if the order of some class changes with time."""
        return any(class_.sloped for class_ in self._by_key.values())
