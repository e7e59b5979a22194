"""The queued gangs of all queues by equivalence class, kept between cycles.

Gangs of one class wait in the same queues and differ in nothing that decides about them but age. A cycle decides the
first of them, and a refusal holds for all of its class until the cycle ends: no gang overtakes an older one of its
class, and a cycle costs the classes, not the gangs.

In a queue where only clusters decide whether a gang goes, the gangs of all namespaces and priorities to which clusters
answer alike are one class, in order of priority and age, unless they need a search. So such a queue costs the
equivalence classes of clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple, Self

from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pod_terms import NO_TERMS, TermIndex
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.record import Record, Shape
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.pods_there import repelled_by
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.queued.equivalence_classes import Classes, ClassKey, known_repelling
from dispatcher.core.scheduling.queued.gang_class import GangClass
from dispatcher.core.scheduling.queued.room_classes import RoomClass, RoomClasses
from dispatcher.core.scheduling.sharing.gangs import PendingGang, count_preemptions

TAKEN_IN_AT_ONCE: Final = 25
"""Gangs that one step moves from class to class; each move takes some fifty microseconds."""


class QueueClassKey(NamedTuple):
    """The facts that decide about a gang in a cycle over queues, but for its age.

    Where only clusters decide, the equivalence class takes the place of the shape, and nothing else counts but whether
    gangs were preempted for it, which is the order of its queue.
    """

    leaves: tuple[str, ...]
    shape: Shape | ClassKey
    namespace: str
    priority: int
    preemptions: int
    is_preempting: bool
    never_preempts: bool
    pods: tuple[object, ...]
    """The known terms of other pods that select its pods, and what its own terms depend on; empty for most.

    An equivalence class has both already.
    """

    @property
    def is_by_clusters(self) -> bool:
        """True if only clusters decide whether these gangs go."""
        return isinstance(self.shape, ClassKey)


QueueClass = GangClass[QueueClassKey]


class QueuedGangs:
    """The queued gangs that a cycle decides on; by the queues of a `forest`, or as if each queue had rules of its own.

    A gang of a queue where only clusters decide is in a class once a cycle has begun.
    """

    def __init__(self, forest: Forest | None = None) -> None:
        self._records: dict[str, tuple[Record, QueueClass]] = {}
        self._by_key: dict[QueueClassKey, QueueClass] = {}
        self._blocked: dict[str, Record] = {}
        self._preempted: dict[str, Record] = {}
        self._sloped: set[str] = set()
        """The uids of the gangs whose priority grows with age."""
        self._repelling = NO_TERMS
        self.rooms = RoomClasses()
        """The room class of each class, once a cycle has begun."""
        self._unfiled: dict[QueueClass, None] = {}
        """The classes without a room class; in no order."""
        self.touched: set[QueueClass] = set()
        """The classes with gangs that came or went, or with news, since the set was emptied."""
        self._forest = forest
        self._by_clusters: frozenset[str] = frozenset() if forest is None else _decided_by_clusters(forest)
        """The queues in which only clusters decide whether a gang goes."""
        self._classes = Classes[str](self.rooms.clearances)
        """The equivalence classes of the gangs in these, by uid."""
        self._arrived: dict[str, Record] = {}
        """The last states of gangs in these that are to be put into a class."""

    @classmethod
    def of(cls, records: Iterable[Record], now: datetime, forest: Forest | None = None) -> Self:
        """These gangs, which are eligible at that time."""
        found = cls(forest)
        for record in records:
            found.put(record, now)
        return found

    def put(self, record: Record, now: datetime) -> None:
        """Add a gang, or replace its last state."""
        self._forget(record.uid)
        if record.blocked_since is not None:
            self._blocked[record.uid] = record
        if record.preempted_at:
            self._preempted[record.uid] = record
        if record.priority_slope:
            self._sloped.add(record.uid)
        if self._is_decided_by_clusters(self._leaves_of(record)):
            self._arrived[record.uid] = record
        else:
            self._arrived.pop(record.uid, None)
            self._file(record, now)

    def remove(self, uid: str) -> None:
        """Remove a gang; safe to repeat."""
        self._arrived.pop(uid, None)
        self._forget(uid)
        self._leave(uid)

    def _forget(self, uid: str) -> None:
        self._blocked.pop(uid, None)
        self._preempted.pop(uid, None)
        self._sloped.discard(uid)

    def declare(self, forest: Forest, now: datetime) -> Steps[None]:
        """Let the gangs wait in the queues of a forest; O(gangs) if other queues let only clusters decide."""
        if forest is self._forest:
            return
        before, self._forest = self._forest, forest
        by_clusters = _decided_by_clusters(forest)
        is_as_before = before is not None and before.do_labels_count is forest.do_labels_count
        if is_as_before and by_clusters == self._by_clusters:
            return
        records = {uid: record for uid, (record, _) in self._records.items()} | self._arrived
        for part in in_parts(list(records), TAKEN_IN_AT_ONCE):
            for uid in part:
                self._leave(uid)
            yield
        self._arrived.clear()
        self._by_clusters = by_clusters
        for moved in in_parts(records.values(), TAKEN_IN_AT_ONCE):
            for record in moved:
                self.put(record, now)
            yield

    def touch(self, uids: Iterable[str]) -> None:
        """Note news about these gangs: it is in their records only if it can be committed."""
        self.touched.update(self.class_of(uid) for uid in uids)

    def follow(self, snapshots: Mapping[str, ClusterSnapshot], now: datetime) -> Steps[None]:
        """Let a cycle over these clusters begin; O(gangs) if the terms of anti-affinity of other pods are others."""
        moved = yield from self._classes.follow(snapshots, self._gangs_by_clusters())
        self._follow_terms(known_repelling(snapshots), now)
        for uid in moved:
            self._arrived.setdefault(uid, self._records[uid][0])
        arrived, self._arrived = self._arrived, {}
        for part in in_parts(arrived.values(), TAKEN_IN_AT_ONCE):
            for record in part:
                self._file(record, now)
            yield
        yield from self.rooms.follow(snapshots)
        for unfiled in in_parts(self._unfiled):
            for class_ in unfiled:
                self.rooms.add(class_, class_.key.shape, class_.key.pods, self.first_of(class_).gang)
            yield
        self._unfiled.clear()

    def _leaves_of(self, record: Record) -> tuple[str, ...]:
        return record.leaves if self._forest is None else self._forest.queues_of(record.leaves)

    def _is_decided_by_clusters(self, leaves: tuple[str, ...]) -> bool:
        return len(leaves) == 1 and leaves[0] in self._by_clusters

    def _file(self, record: Record, now: datetime) -> None:
        """Put a gang into its class; its last state leaves its own."""
        leaves = self._leaves_of(record)
        is_by_clusters = self._is_decided_by_clusters(leaves)
        before, class_ = self._records.get(record.uid, (None, None))
        if before is not None and class_ is not None and class_.key.is_by_clusters:
            is_alike = is_by_clusters and before.shape == record.shape
            if not is_alike:
                self._classes.remove(record.uid, before.shape)
        key = self._class_key(record, leaves) if is_by_clusters else self._own_key(record, leaves, now)
        if before is not None and class_ is not None and class_.key == key:
            class_.remove(before)  # the class stays, and what is known of it
        else:
            if before is not None and class_ is not None:
                self._remove_from(class_, before)
            class_ = self._by_key.get(key)
        if class_ is None:
            class_ = self._by_key[key] = GangClass(key)
            self._unfiled[class_] = None
        class_.add(record)
        self.touched.add(class_)
        self._records[record.uid] = record, class_

    def _own_key(self, record: Record, leaves: tuple[str, ...], now: datetime) -> QueueClassKey:
        """The key of the gangs that are alike in all that may decide."""
        own = tuple(each.sort for each in record.gang.pod_sets if each.has_terms)
        return QueueClassKey(
            leaves,
            record.shape,
            record.namespace,
            record.priority,
            count_preemptions(record, now),
            record.is_preempting,
            record.never_preempts,
            (*repelled_by(record.gang, self._repelling), *own),
        )

    def _class_key(self, record: Record, leaves: tuple[str, ...]) -> QueueClassKey:
        """The key of the gangs that are alike to clusters.

        The steps of searches are shared out to namespaces, so a gang that may need one has a class of its namespace:
        else a namespace that has spent its share would keep the gangs of others from their turn.
        """
        found = self._classes.add(record.uid, record.shape)
        namespace = record.namespace if record.gang.may_need_search else ""
        return QueueClassKey(
            leaves, found, namespace, 0, 0, record.is_preempting, never_preempts=False, pods=()
        )

    def _leave(self, uid: str) -> None:
        record, class_ = self._records.pop(uid, (None, None))
        if record is None or class_ is None:
            return
        if class_.key.is_by_clusters:
            self._classes.remove(uid, record.shape)
        self._remove_from(class_, record)

    def _remove_from(self, class_: QueueClass, record: Record) -> None:
        class_.remove(record)
        self.touched.add(class_)
        if class_:
            return
        del self._by_key[class_.key]
        if class_ in self._unfiled:
            del self._unfiled[class_]
        else:
            self.rooms.remove(class_)

    def _gangs_by_clusters(self) -> Iterator[tuple[str, Gang]]:
        """The gangs that have an equivalence class, by uid; costs nothing until the first is asked for."""
        for uid, (record, class_) in list(self._records.items()):
            if class_.key.is_by_clusters:
                yield uid, record.gang

    def _follow_terms(self, repelling: TermIndex, now: datetime) -> None:
        """Move the gangs that other terms concern; those with an equivalence class are followed with that."""
        if repelling.terms == self._repelling.terms:
            return
        differing = TermIndex(repelling.terms ^ self._repelling.terms)
        self._repelling = repelling
        for record, class_ in list(self._records.values()):
            if not class_.key.is_by_clusters and repelled_by(record.gang, differing):
                self._file(record, now)

    def move_to(self, now: datetime) -> None:
        """Let preemptions count as of that time: those of more than a day ago count no more."""
        for uid, record in list(self._preempted.items()):
            _, class_ = self._records.get(uid, (None, None))
            if class_ is None or class_.key.is_by_clusters:
                continue  # only clusters decide
            if class_.key.preemptions != count_preemptions(record, now):
                self._file(record, now)

    def record(self, uid: str) -> Record:
        """The last state of a gang."""
        return self._records[uid][0]

    def gang(self, uid: str) -> PendingGang:
        """A gang as queues see it."""
        record, class_ = self._records[uid]
        key = class_.key
        return PendingGang(record, key.preemptions, queues=key.leaves, is_by_clusters=key.is_by_clusters)

    def first_of(self, class_: QueueClass) -> Record:
        """One of the gangs of a class."""
        uid = class_.keys[0][1] if class_.keys else next(iter(class_.sloped))
        return self.record(uid)

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
        return bool(self._sloped)


def _decided_by_clusters(forest: Forest) -> frozenset[str]:
    """The queues that serve every namespace, and take nothing into account but priority, age and clusters."""
    return frozenset(
        place.name
        for place in forest.unlimited
        if place.provisioning is None and not place.namespace_selectors and not place.is_selective
    )
