"""What the clusters of one cycle answer to its gangs: which take a gang, and whether it has room there now and later.

Each cluster is asked once for all gangs that clusters do not tell apart, as long as its room does not change
(`room_classes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.records.pending_reasons import CLASS_MISSING, NOT_SELECTED, RESERVED
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, has_members, rejection, required
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.fit import Shortfall, shortfall_in_empty
from dispatcher.core.scheduling.fit.refused import (
    ClusterShortfall,
    Refused,
    may_be_uncounted,
    short_of_room,
    short_when_empty,
    uncounted_claims,
)
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.queued.room_classes import Answers, RoomClass, Selectors
from dispatcher.core.scheduling.sharing.gangs import PendingGang


class Acceptance(Struct):
    """The clusters that accept a gang and would have room for it if they were empty, and why the others do not."""

    answers: Answers
    rooms: list[ClusterRoom] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    shortfalls: list[ClusterShortfall] = field(default_factory=list)


class ClusterAnswers:
    """The clusters of one cycle, with their `rooms` by name."""

    def __init__(
        self,
        forest: Forest,
        queued: QueuedGangs,
        snapshots: Mapping[str, ClusterSnapshot],
        rooms: Mapping[str, ClusterRoom],
    ) -> None:
        self.has_members = has_members(snapshots)
        self._forest = forest
        self._queued = queued
        self._snapshots = snapshots
        self._rooms = rooms
        self._rejections: dict[ClusterRequirements, Mapping[str, Rejection | None]] = {}
        self._device_resources = frozenset[str]().union(
            *(each.capacity.device_resources for each in snapshots.values())
        )
        self._has_classes = any(place.provisioning for place in forest.places.values())
        self._acceptances: dict[tuple[RoomClass, Selectors], Acceptance] = {}

    def with_class(self, gang: PendingGang) -> PendingGang:
        """The gang with the class from which its queue requests its capacity, if that class manages it."""
        if not self._has_classes:
            return gang
        asked = self._forest.class_of(gang.leaves, gang.record.gang)
        return gang if asked is None else replace(gang, asked=asked)

    def accepting(self, gang: PendingGang) -> list[str]:
        """The names of the clusters that accept a gang, which is without its class."""
        return [room.name for room in self.to(self.with_class(gang)).rooms]

    def to(self, gang: PendingGang) -> Acceptance:
        """The clusters that accept the gang and would have room for it if they were empty; and why others do not."""
        selectors = self._selectors_of(gang)
        # Whether a cluster that failed to provide capacity counts again follows from the other clusters.
        is_alone = gang.asked is not None or gang.record.requirements.unprovisioned
        room_class = None if is_alone else self._queued.room_class_of(gang.uid)
        if room_class is None:
            return self._ask_clusters(gang, selectors, Answers())
        known = self._acceptances.get((room_class, selectors))
        if known is None:
            known = self._ask_clusters(gang, selectors, room_class.answers_under(selectors))
            self._acceptances[room_class, selectors] = known
        return known

    def is_refused(self, gang: PendingGang) -> bool:
        """True if a gang like this one was asked about in this cycle, and no cluster has room for it as it is."""
        room_class = self._queued.room_class_of(gang.uid)
        if room_class is None:
            return False
        known = self._acceptances.get((room_class, self._selectors_of(gang)))
        return known is not None and (not known.rooms or self.known_refusal(known.answers) is not None)

    def _selectors_of(self, gang: PendingGang) -> Selectors:
        if not self.has_members:
            return ()
        places = self._forest.places_of(gang.leaves)
        return tuple(each for place in places for each in place.cluster_selectors)

    def _ask_clusters(self, gang: PendingGang, selectors: Selectors, answers: Answers) -> Acceptance:
        found = Acceptance(answers)
        asks_for_devices = may_be_uncounted(gang.record.gang, self._device_resources)
        rejections: Mapping[str, Rejection | None] | None = None
        for room in self._rooms.values():
            state, answer = answers.in_empty.get(room.name, (None, None))
            if state is not room.begun:
                if rejections is None:
                    rejections = self._rejections_of(gang.record.requirements)
                answer = rejections[room.name] or _not_selected(room.snapshot, selectors)
                if answer is None and asks_for_devices:
                    answer = uncounted_claims(gang.record.gang, room.name, room.snapshot.capacity)
                answer = answer or _in_empty(gang, room)
                answers.in_empty[room.name] = room.begun, answer
            if answer is None:
                found.rooms.append(room)
            elif isinstance(answer, Rejection):
                found.rejections.append(answer)
            else:
                found.shortfalls.append(answer)
        return found

    def _rejections_of(self, requirements: ClusterRequirements) -> Mapping[str, Rejection | None]:
        """The rejection of requirements by each cluster, None by one that accepts them."""
        known = self._rejections.get(requirements)
        if known is None:
            counting = required(requirements, self._snapshots)
            known = {name: rejection(counting, room.snapshot) for name, room in self._rooms.items()}
            self._rejections[requirements] = known
        return known

    def fit(self, gang: PendingGang, room: ClusterRoom, answers: Answers) -> Assignment | ClusterShortfall:
        """The places of a gang now that are also free later, or why it has none."""
        state, known = answers.now.get(room.name, (None, None))
        if state is room.state and known is not None:
            return known
        found = requested(gang) or room.fit(gang.record.gang)
        if isinstance(found, Assignment):
            if gang.asked is None and _has_lasting_places(gang.record.gang):
                answers.now[room.name] = room.state, found
            return found
        short = _shortfall(gang, room, found)
        answers.now[room.name] = room.state, short
        return short

    def fit_later(self, gang: PendingGang, room: ClusterRoom, answers: Answers) -> Assignment | None:
        """The places of a gang later; None if it has none."""
        if answers.later.get(room.name) is room.state:
            return None
        state, known = answers.now.get(room.name, (None, None))
        is_known = room.is_one and state is room.state  # now and later are one
        if is_known and isinstance(known, Assignment):
            return known
        found = None if is_known else requested(gang) or room.fit_later(gang.record.gang)
        if isinstance(found, Assignment):
            return found
        answers.later[room.name] = room.state
        return None

    def shortfalls(self, gang: PendingGang, accepted: Acceptance) -> list[ClusterShortfall]:
        """Why a gang goes to no cluster of its acceptance now; what it fits now, is promised."""
        found = [self.fit(gang, room, accepted.answers) for room in accepted.rooms]
        return [
            _shortfall(gang, room, None) if isinstance(each, Assignment) else each
            for room, each in zip(accepted.rooms, found, strict=True)
        ]

    def note_refusal(self, answers: Answers, refused: Refused) -> None:
        """Note the refusal of gangs by all clusters, now and later, for the rooms as they are."""
        answers.refused = [room.state for room in self._rooms.values()], refused

    def known_refusal(self, answers: Answers) -> Refused | None:
        """The refusal of gangs by all clusters, now and later, if it is known for the rooms as they are."""
        if answers.refused is None:
            return None
        states, refused = answers.refused
        is_same = all(map(is_, states, (room.state for room in self._rooms.values())))
        return refused if is_same and len(states) == len(self._rooms) else None


def _has_lasting_places(gang: Gang) -> bool:
    """True if gangs alike have the same places in the same room; the steps of a search are counted each time."""
    return not (gang.may_need_search or any(each.depends_on_others for each in gang.pod_sets))


def requested(gang: PendingGang) -> Assignment | None:
    """The assignment of a gang whose capacity is requested; None if it needs room."""
    return None if gang.asked is None else Assignment(provisioning=gang.asked)


def _in_empty(gang: PendingGang, room: ClusterRoom) -> Rejection | ClusterShortfall | None:
    """Why an accepting cluster does not take a gang even if nothing runs there; None if it does."""
    snapshot, pods = room.snapshot, gang.record.gang
    if gang.asked is not None:
        return _lacks_class(gang, snapshot)
    short = shortfall_in_empty(pods, snapshot.capacity)
    return None if short is None else short_when_empty(room.name, pods, snapshot.capacity, short)


def _not_selected(snapshot: ClusterSnapshot, selectors: Selectors) -> Rejection | None:
    for queue, selector in selectors:
        if not selector.matches(snapshot.labels):
            message = f"queue {queue} selects clusters with {selector}"
            return Rejection(snapshot.name, NOT_SELECTED, message)
    return None


def _lacks_class(gang: PendingGang, snapshot: ClusterSnapshot) -> Rejection | None:
    """The rejection by a cluster that declares another class than the gang's queue names; None without one.

    A cluster that declares no class may have any: no API lists the classes that an autoscaler serves.
    """
    declared = snapshot.capacity.provisioning
    if gang.asked is None or declared is None or declared.name == gang.asked.name:
        return None
    message = f"it provides capacity of class {declared.name}, and the queue names {gang.asked.name}"
    return Rejection(snapshot.name, CLASS_MISSING, message)


def _shortfall(gang: PendingGang, room: ClusterRoom, short: Shortfall | None) -> ClusterShortfall:
    """Why the gang does not go to a cluster that it would fit if the cluster were empty."""
    is_for_all = room.is_one and room.keeper is None
    free = short if short is None or is_for_all else room.fit_but_for_others(gang.record.gang)
    if not isinstance(free, Shortfall):
        keeper = room.keeper.key if room.keeper is not None else ""
        return ClusterShortfall(room.name, RESERVED, short or Shortfall(), keeper=keeper)
    return short_of_room(room.name, gang.record.gang, room.snapshot.capacity, free)
