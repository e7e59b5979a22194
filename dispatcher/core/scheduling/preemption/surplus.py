"""Surplus: the pods of a running gang that can be taken from it, so that the gang itself is not preempted.

A gang that grows by grants has surplus pods: pods beyond its base gang, from their grants on. A cycle sees such a gang
as parts: one for each surplus pod, and the rest. A search for victims takes parts as it takes gangs. The pods that the
gang gives up already are leaving.

A gang is charged for pods that are gone until its growth is noted, which has pauses. This unused growth is a part as
well, and always leaving: nobody has to be preempted for it. It is noted without a pause while a gang waits for it.

Each part has what its removal frees at least, if the pods go in their order: a demand may be declared larger than the
requests of its pods, and then the last surplus pods free less than they request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.lifecycle.growth import admissible, pods_soon, taken_soon
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.growth import PodRef, Shrinking, SurplusPod, slices_of
from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import NOTHING, PODS, Resources, sum_of
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, rejection, required
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.search_budget import SearchShares
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part, leaving_by_cluster


class Surplus(Struct, frozen=True):
    """The surplus pods of one gang, the first to go first.

    `admitted` are the requests of all pods that it is charged for, and of those that are about to be admitted. Its
    cluster is charged with `held` for it. `admitted_pods` is the number of those pods.
    """

    admitted: Resources
    held: Resources
    pods: tuple[SurplusPod, ...] = ()
    admitted_pods: int = 0


NO_SURPLUS: Final = Surplus(NOTHING, NOTHING)
"""The surplus of a gang of which nothing is known: it is no parts."""


UNUSED: Final = "unused"
"""The name of the part of a gang that no pod uses."""


class GivenUp(NamedTuple):
    """The admitted pods that a gang gives up, and the amounts that it keeps beyond its demand.

    A gated pod needs no deletion: with less growth it waits for a grant again.
    """

    pods: tuple[PodRef, ...]
    growth: Resources


def surplus_of(record: Record, ledger: CapacityLedger) -> Surplus:
    """The surplus of an active gang that has grown, by the ledger of its cluster."""
    uid, shrinking = record.uid, _shrinking(record)
    given_up = {pod.uid for pod in shrinking.pods} if shrinking else frozenset[str]()
    taken, gated = ledger.taken(uid), ledger.gated(uid)
    within = admissible(record.allowed, taken, gated, record.granted)
    return Surplus(
        taken_soon(record.allowed, taken, within),
        ledger.charged(uid),
        tuple(ledger.surplus(uid, given_up)),
        pods_soon(record, ledger.taken_pods(uid, record.charged_pods), within),
    )


def in_parts(gangs: Iterable[ActiveGang], surplus: Mapping[str, Surplus]) -> list[ActiveGang]:
    """These gangs; those with surplus (by uid) in parts, the surplus first, its pods in the order in which they go."""
    return run(Parts().in_steps(gangs, surplus))


class Parts:
    """The parts of gangs with surplus, kept as long as the gang and its surplus are the same.

    A gang whose parts raise an exception stays whole, as one without surplus; these are the `failures` until taken.
    """

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._known: dict[str, tuple[ActiveGang, Surplus, list[ActiveGang]]] = {}

    def in_steps(
        self, gangs: Iterable[ActiveGang], surplus: Mapping[str, Surplus]
    ) -> Steps[list[ActiveGang]]:
        """As `in_parts`, in steps of one gang with surplus; a gang that did not change costs no step."""
        found: list[ActiveGang] = []
        before, self._known = self._known, {}
        for gang in gangs:
            known = surplus.get(gang.record.uid, NO_SURPLUS)
            if gang.is_leaving or gang.is_fixed or known == NO_SURPLUS:
                found.append(gang)
                continue
            last = before.get(gang.record.uid)
            if last is None or last[1] is not known or last[0] != gang:
                try:
                    last = gang, known, _parts(gang, known)
                except Exception as error:  # noqa: BLE001  # one gang must not end the cycle of the others
                    self.failures.append(Failure.of(gang.record.uid, error))
                    last = gang, known, [gang]
                yield
            self._known[gang.record.uid] = last
            found += last[2]
        return found


def _shrinking(record: Record) -> Shrinking | None:
    return record.attempt.shrinking if record.attempt else None


def _parts(gang: ActiveGang, surplus: Surplus) -> list[ActiveGang]:
    leaving = {pod.uid for pod in shrinking.pods} if (shrinking := _shrinking(gang.record)) else frozenset()
    rest = _Rest(gang.record, surplus)
    slices = slices_of(surplus.pods)
    gone = [hosts for hosts in slices if hosts[0].uid in leaving]
    found = [replace(gang, part=rest.without(hosts), is_leaving=True) for hosts in gone]
    if unused := rest.without_unused():
        found.append(replace(gang, part=unused, is_leaving=True))
    others = (rest.without(hosts) for hosts in slices if hosts[0].uid not in leaving)
    found += [replace(gang, part=part) for part in others if part.charge or part.held]
    return [*found, replace(gang, part=Part(rest.charge, rest.held))] if found else [gang]


class _Rest:
    """What is left of a gang while its surplus is taken from it part by part."""

    def __init__(self, record: Record, surplus: Surplus) -> None:
        self._record = record
        # The number of pods is one more amount here: only the queues are charged with it, and no cluster holds it.
        self._demand = record.placed_gang.demand.highest({PODS: record.gang.charged[PODS]})
        self._admitted = surplus.admitted + {PODS: surplus.admitted_pods}
        self._taken = record.held.highest(self._admitted).highest({PODS: record.charged_pods})
        self._unused = NOTHING
        self.charge = record.quota_charge
        # The room of pods that are given up is free once they are gone: the record holds it longer.
        self.held = record.held - (record.held - surplus.held).positive_part()

    def without(self, pods: tuple[SurplusPod, ...]) -> Part:
        """The part of one more pod, or of the hosts of one more slice."""
        requests = sum_of(each.requests for each in pods) + {PODS: len(pods)}
        admitted, self._admitted = self._admitted, self._admitted - requests
        self._taken -= self._demand.highest(admitted) - self._demand.highest(self._admitted)
        held = (self.held - self._demand.highest(self._taken)).positive_part()
        self.held -= held
        return Part(self._charge_freed(self._taken), held, pods[0].uid, pods, self._unused)

    def without_unused(self) -> Part | None:
        """The part that no pod uses; None if there is none. To be called once the pods that leave are taken."""
        self._taken = self._demand.highest(self._admitted)
        self._unused = (self._record.allowed - self._taken).positive_part()
        held = (self.held - self._taken).positive_part()
        self.held -= held
        charge = self._charge_freed(self._taken)
        return Part(charge, held, UNUSED) if charge or held else None

    def _charge_freed(self, held: Resources) -> Resources:
        freed = (self.charge - self._record.gang.charged.highest(held)).positive_part()
        self.charge -= freed
        return freed


def awaited_growth(gangs: Iterable[ActiveGang], promised: Iterable[Record], forest: Forest) -> frozenset[str]:
    """The uids of the AppWrappers with unused growth that a gang waits for, to which what leaves is `promised`.

    That is a gang of the same tree, or of the same cluster. A gang that gives up pods notes its growth with these.
    """
    unused = [gang for gang in gangs if gang.is_unused and _shrinking(gang.record) is None]
    if not unused:
        return frozenset()
    clusters, roots = set[str](), set[str]()
    for record in promised:
        clusters.add(record.pending.cluster if record.pending else "")
        roots.update(place.root for place in forest.places_of(record.leaves))
    return frozenset(
        gang.record.uid
        for gang in unused
        if (gang.demand and gang.cluster in clusters)
        or (gang.charge and not roots.isdisjoint(place.root for place in forest.places_of(gang.leaves)))
    )


def awaited_room(
    gangs: Sequence[ActiveGang], waiting: Iterable[Record], snapshots: Mapping[str, ClusterSnapshot]
) -> Steps[frozenset[str]]:
    """The uids of the AppWrappers with unused growth, all of one cluster, without which a waiting gang has room there.

    For a hub without declared queues, where no gang is promised what leaves. The snapshots are `split` for these gangs;
    it changes them. Gangs whose namespace has used up its share of steps are not asked about.
    """
    leaving = leaving_by_cluster(gang for gang in gangs if gang.is_unused)
    rooms = [ClusterRoom(snapshots[name], unused) for name, unused in leaving.items() if name in snapshots]
    shares = SearchShares()
    by_shape = {record.shape: record for record in waiting} if rooms else {}
    for record in filter(shares.admits, by_shape.values()):
        counting = required(record.requirements, snapshots)
        for room in rooms:
            with shares.counting(record, room.snapshot):
                has_room = rejection(counting, room.snapshot) is None and isinstance(
                    room.fit_later(record.gang), Assignment
                )
            if has_room:
                return frozenset(
                    each.record.uid for each in gangs if each.is_unused and each.cluster == room.name
                )
        yield
    return frozenset()


def by_gang(gangs: Iterable[ActiveGang]) -> dict[str, list[ActiveGang]]:
    """The parts of each gang that is there in parts, by the uid of its AppWrapper."""
    found: dict[str, list[ActiveGang]] = {}
    for gang in gangs:
        if gang.part is not None:
            found.setdefault(gang.record.uid, []).append(gang)
    return found


def split(
    parts_of: Mapping[str, Sequence[ActiveGang]], snapshots: Mapping[str, ClusterSnapshot]
) -> Steps[list[Failure]]:
    """Let the parts of these gangs free their room in the snapshots without the rest of their gangs.

    In steps of one gang; the snapshots are as before until the last one. If that raises an exception for a gang, its
    parts free no room; these are returned.
    """
    failures: list[Failure] = []
    found: dict[str, dict[str, dict[str, tuple[tuple[SurplusPod, ...], Resources]]]] = {}
    for uid, parts in parts_of.items():
        try:
            surplus = {
                each.uid: (each.part.pods, each.part.held) for each in parts if each.part and each.is_surplus
            }
            found.setdefault(parts[0].cluster, {})[uid] = surplus
        except Exception as error:  # noqa: BLE001  # one gang must not end the cycle of the others
            failures.append(Failure.of(uid, error))
        yield
    for cluster, surplus_by_gang in found.items():
        if cluster in snapshots:
            failures += yield from snapshots[cluster].capacity.split(surplus_by_gang)
    return failures


def with_surplus(taken: Iterable[ActiveGang], parts: Mapping[str, Iterable[ActiveGang]]) -> list[ActiveGang]:
    """What is taken, and with each gang its surplus pods that do not leave yet."""
    found = {gang.uid: gang for gang in taken}
    for gang in list(found.values()):
        if not gang.is_surplus:
            more = (each for each in parts.get(gang.record.uid, ()) if not each.is_leaving)
            found |= {each.uid: each for each in more}
    return list(found.values())


def given_up(record: Record, parts: Iterable[ActiveGang]) -> GivenUp:
    """What a gang gives up with these surplus parts, and with those that it gives up already.

    It keeps no unused growth: pods that are made in the place of the deleted ones must not start in it.
    """
    shrinking = _shrinking(record)
    pods, growth = (shrinking.pods, shrinking.growth) if shrinking else ((), record.grown)
    unused = NOTHING
    for gang in parts:
        part = gang.part
        if part is not None and part.pods:
            admitted = (pod for pod in part.pods if not pod.is_gated)
            pods = (*pods, *(PodRef(pod.namespace, pod.name, pod.uid) for pod in admitted))
            growth = (growth - part.held).positive_part()
            unused = part.unused
    return GivenUp(pods, (growth - unused).positive_part())
