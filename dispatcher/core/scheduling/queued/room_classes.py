"""What clusters answer to the gangs of one equivalence class: found once, and known for as long as it holds.

Queues tell gangs apart by namespace, priority and queue, clusters do not: to a cluster all gangs of one equivalence
class (`equivalence_classes`) are alike. So classes of queued gangs share the answers of clusters, within a cycle and
from one cycle to the next.

An answer holds for one `state` of the cluster's room. Equal rooms of two cycles have one state if they come from equal
snapshots by equal changes: a room that a cycle keeps or promises as the last one did has the state of then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dispatcher.api.selector import Selector
from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.record import Shape
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.refused import ClusterShortfall, Refused
from dispatcher.core.scheduling.queued.affected_classes import AffectedClasses
from dispatcher.core.scheduling.queued.equivalence_classes import Classes, ClassKey, Clearances
from dispatcher.core.scheduling.queued.gang_class import GangClass

MOST_RETIRED: Final = 256
"""Room classes without a queued gang that are kept: often a gang of the same class arrives soon."""

Pods = tuple[object, ...]
"""The terms about pods that concern the gangs of a class, by the labels of their pods."""
RoomKey = tuple[ClassKey, Pods]
"""The equivalence class, without the terms that concern the gang by which it was found, and those of its class.

Gangs of one shape may differ in the labels of their pods, and any of them may be the one by which it was found.
"""
Selectors = tuple[tuple[str, Selector], ...]
"""The selectors of clusters by queues, each with the name of its queue."""


class Answers(Struct):
    """The answers of clusters by their names, each with the state of the room for which it holds.

    `in_empty` is why a cluster does not take the gangs even if nothing runs there, None if it does; `now` why they have
    no room there, or the places that they have, and `later` is there if they have none once leaving gangs are gone.
    `refused` is the refusal by all clusters, now and later, with the states of all rooms in their order.
    """

    in_empty: dict[str, tuple[object, Rejection | ClusterShortfall | None]] = field(default_factory=dict)
    now: dict[str, tuple[object, Assignment | ClusterShortfall]] = field(default_factory=dict)
    later: dict[str, object] = field(default_factory=dict)
    refused: tuple[Sequence[object], Refused] | None = None


class RoomClass:
    """Gangs to which clusters answer alike; `answers` are those under the selectors of some queues."""

    __slots__ = ("answers", "gang", "key", "size")

    def __init__(self, key: RoomKey, gang: Gang) -> None:
        self.key = key
        self.gang = gang
        self.size = 0
        self.answers: dict[Selectors, Answers] = {}

    def answers_under(self, selectors: Selectors) -> Answers:
        """The answers to gangs of queues with these selectors."""
        found = self.answers.get(selectors)
        if found is None:
            found = self.answers[selectors] = Answers()
        return found


class RoomClasses:
    """The room class of each class of queued gangs."""

    def __init__(self) -> None:
        self._classes = Classes[GangClass[Any]]()
        self._by_key: dict[RoomKey, RoomClass] = {}
        self._retired: dict[RoomKey, RoomClass] = {}
        """Room classes without a queued gang; the class that lost its last gang most recently is at the end."""
        self._of: dict[GangClass[Any], RoomClass] = {}
        self._shapes: dict[GangClass[Any], tuple[Shape, Pods]] = {}
        """Those of classes of one shape, which this follows to their equivalence classes."""
        self._requests = AffectedClasses[RoomClass]()

    @property
    def clearances(self) -> Clearances:
        """Those of the equivalence classes; only keys with these count for `add`."""
        return self._classes.clearances

    def add(self, class_: GangClass[Any], shape: Shape | ClassKey, pods: Pods, gang: Gang) -> None:
        """Add a class of queued gangs like this one, which these terms about pods concern.

        They are of one shape, or of one equivalence class, which no `follow` changes.
        """
        if isinstance(shape, ClassKey):
            self._enter(class_, shape.repelled, shape, gang)
        else:
            self._shapes[class_] = shape, pods
            self._enter(class_, pods, self._classes.add(class_, shape), gang)

    def remove(self, class_: GangClass[Any]) -> None:
        """Remove a class of queued gangs."""
        self._leave(class_)
        if class_ in self._shapes:
            shape, _ = self._shapes.pop(class_)
            self._classes.remove(class_, shape)

    def of(self, class_: GangClass[Any]) -> RoomClass:
        """The room class of a class of queued gangs."""
        return self._of[class_]

    def follow(self, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[None]:
        """Update the room classes to these clusters."""
        moved = yield from self._classes.follow(snapshots, self._gangs())
        for part in in_parts(moved):
            for class_ in part:
                shape, pods = self._shapes[class_]
                self._leave(class_)
                self._enter(class_, pods, self._classes.key(shape), shape[0])
            yield

    def affected_by(
        self,
        before: Mapping[str, ClusterSnapshot],
        now: Mapping[str, ClusterSnapshot],
        changed: Iterable[str],
    ) -> Steps[set[RoomClass] | None]:
        """The room classes that the changed clusters may refuse in another way than before; None for all.

        `before` are the snapshots of the last cycle; a changed cluster that it lacks affects all.
        """
        found: set[RoomClass] = set()
        for name in changed:
            affected = yield from self._requests.of(before.get(name), now[name])
            if affected is None:
                return None
            found |= affected
        return found

    def is_known_to_hold(self, room_class: RoomClass, refused: Refused, changed: Collection[str]) -> bool:
        """True if a refusal holds in changed clusters that do not affect its room class."""
        return self._requests.knows(room_class) and not (
            len(room_class.key[0].pods) > 1 and refused.depends_on_packing(changed)
        )

    def forget_answers(self) -> None:
        """Forget the answers of all clusters: some of them are gone."""
        self._retired.clear()
        for room_class in self._by_key.values():
            room_class.answers.clear()

    def _gangs(self) -> Iterator[tuple[GangClass[Any], Gang]]:
        """A gang of each class with a shape; costs nothing until the first is asked for."""
        for class_, ((gang, _), _) in list(self._shapes.items()):
            yield class_, gang

    def _enter(self, class_: GangClass[Any], pods: Pods, found: ClassKey, gang: Gang) -> None:
        key = found._replace(repelled=()), pods
        room_class = self._by_key.get(key)
        if room_class is None:
            is_known = key in self._retired
            room_class = self._retired.pop(key) if is_known else RoomClass(key, gang)
            self._by_key[key] = room_class
            if not pods:
                self._requests.add(room_class, gang)
        room_class.size += 1
        self._of[class_] = room_class

    def _leave(self, class_: GangClass[Any]) -> None:
        room_class = self._of.pop(class_)
        room_class.size -= 1
        if not room_class.size:
            del self._by_key[room_class.key]
            self._requests.remove(room_class)
            self._retired[room_class.key] = room_class
            if len(self._retired) > MOST_RETIRED:
                del self._retired[next(iter(self._retired))]


Leaving = Sequence[tuple[str, Resources]]
"""The gangs that leave a cluster, by uid, with the amounts that they give back."""


class RoomStates:
    """The states of rooms, from one cycle to the next."""

    def __init__(self) -> None:
        self.snapshots: dict[str, ClusterSnapshot] = {}
        """The snapshots of the last cycle from which it dispatched no gang."""
        self._begun: dict[str, tuple[Leaving, object]] = {}
        self._after: dict[tuple[object, object], object] = {}
        self._kept: dict[tuple[object, object], object] = {}
        self.changed: set[str] = set()
        """The clusters that the last `begin` found changed; all of them if one came or went."""
        self.leaves_differently = False
        """True if gangs leave one of these, or left it before: its snapshot says not all about its room."""

    def begin(self, snapshots: Mapping[str, ClusterSnapshot], leaving: Mapping[str, Leaving]) -> None:
        """A cycle begins with these rooms. Every cluster has changed if one came or went."""
        before, self._begun = self._begun, {}
        are_same = before.keys() == snapshots.keys()
        self.changed, self.leaves_differently = set(), False
        for name, snapshot in snapshots.items():
            known, gone = before.get(name), leaving.get(name, ())
            if known is None or known[0] != gone or not are_same or self.snapshots.get(name) != snapshot:
                self.changed.add(name)
                self.leaves_differently |= bool(gone or (known and known[0]))
                known = gone, object()
            self._begun[name] = known
        self._kept, self._after = self._after, {}

    def begun(self, name: str) -> object:
        """The state in which the room of a cluster begins."""
        return self._begun[name][1]

    def end(self, snapshots: Mapping[str, ClusterSnapshot], dispatched: Collection[str]) -> None:
        """The cycle has ended; it dispatched gangs to some clusters."""
        self.snapshots = {name: each for name, each in snapshots.items() if name not in dispatched}

    def after(self, state: object, change: object) -> object:
        """The state of a room after a change; the same one as in the last cycle after the same change."""
        key = state, change
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = self._kept.get(key) or object()
        return found
