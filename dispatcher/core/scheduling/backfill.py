"""Backfill reservations from cycle to cycle: which stay, which begin, and which clusters rest.

`backfill_reservation` says where and for how long. `Backfill` keeps the reservations between cycles, in memory only: a
new leader starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.record import Record
from dispatcher.core.scheduling.backfill_reservation import (
    Awaited,
    Bounds,
    Option,
    Reservation,
    Rest,
    following,
    is_hopeful,
    may_keep,
    rest_after,
    waits_since,
)
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot, effective, may_open_soon, rejection
from dispatcher.core.scheduling.estimated_ends import End, estimated_end, soonest_on
from dispatcher.core.scheduling.fit import assignment_in_empty, fits


class Running(Struct, frozen=True):
    """The dispatched AppWrappers of a cluster, by its name."""

    in_cluster: Callable[[str], Iterable[Record]] = lambda _: ()

    def ends(self, cluster: str, now: datetime) -> Steps[list[End]]:
        """The estimated end of each AppWrapper in a cluster and the capacity that it frees, the earliest first."""
        ends: list[End] = []
        for part in incremental.in_parts(list(self.in_cluster(cluster))):
            ends += [End(estimated_end(each, now), each.charge, each.uid) for each in part]
            yield
        ends.sort(key=attrgetter("at"))
        return ends


class State(Struct, frozen=True):
    """The state that one cycle leaves to the next: reservations by uid of the gang, rests by name of the cluster.

    `fits` has the gangs with a reservation that fit a cluster in this cycle, by uid: they are dispatched now.
    """

    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    rests: Mapping[str, Rest] = field(default_factory=dict)
    fits: Mapping[str, str] = field(default_factory=dict)


def renewed(
    known: State,
    starved: Sequence[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    running: Running,
    now: datetime,
    bounds: Bounds,
) -> Steps[State]:
    """The state after this cycle, given the last one; `starved` are in queue order.

    A cluster has at most one reservation. Existing reservations precede new ones, else each new gang would take the
    capacity that a reservation has accumulated. New ones begin in the order in which their gangs began to wait.
    """
    reservations = {
        record.uid: _on_present_nodes(known.reservations[record.uid], record, snapshots)
        for record in starved
        if record.uid in known.reservations
        and _stands(known.reservations[record.uid], record, snapshots, now)
    }
    rests = _rests(known, reservations, starved, snapshots, now, bounds)
    taken = {each.cluster: each.until for each in reservations.values() if each.cluster}
    renewal = _Renewal(snapshots, running, now, bounds, rests, taken)
    others = [record for record in starved if record.uid not in reservations]
    others.sort(key=lambda record: _turn(record, known.reservations.get(record.uid), now))
    for record in others:
        begun = yield from renewal.begin(record, known.reservations.get(record.uid))
        if begun is not None:
            reservations[record.uid] = begun
        yield
    return State(reservations, rests, _fits(reservations, starved, snapshots))


class _Renewal(Struct):
    """Begins the new reservations of one cycle; `taken` has the end of the reservation on each cluster with one."""

    snapshots: Mapping[str, ClusterSnapshot]
    running: Running
    now: datetime
    bounds: Bounds
    rests: Mapping[str, Rest]
    taken: dict[str, datetime]
    ends: dict[str, list[End]] = field(default_factory=dict)

    def begin(self, record: Record, before: Reservation | None) -> Steps[Reservation | None]:
        """The reservation of a gang after `before`, which is over; None if it gets none."""
        options, closed = [], []
        for snapshot in self.snapshots.values():
            match (yield from self._consider(record, before, snapshot)):
                case Option() as option:
                    options.append(option)
                case Awaited() as awaited:
                    closed.append(awaited)
        if before is None and any(each.cluster in self.taken for each in closed):
            closed = []  # the gang stays the head while another gang has its turn: one head is enough
        begun = following(before, sorted(options), self.now, self.bounds, closed)
        if begun is not None and begun.cluster:
            self.taken[begun.cluster] = begun.until
        return begun

    def _consider(
        self, record: Record, before: Reservation | None, snapshot: ClusterSnapshot
    ) -> Steps[Option | Awaited | None]:
        """The cluster as an option, or as a cluster to wait for; None if the gang does not fit it or is rejected."""
        cluster, rest = snapshot.name, self.rests.get(snapshot.name)
        if before is not None and before.waits and _is_only_unreachable(record, snapshot, self.snapshots):
            return Awaited(self.now + self.bounds.rest, cluster)  # it may soon answer again
        if not may_keep(record, snapshot, self.snapshots):
            return None
        if cluster in self.taken:
            return Awaited(self.taken[cluster], cluster)
        if rest is not None and self.now < rest.until:
            return Awaited(rest.until, cluster)  # whatever the estimate
        if cluster not in self.ends:
            self.ends[cluster] = yield from self.running.ends(cluster, self.now)
        estimate = soonest_on(record.gang, snapshot.capacity, self.ends[cluster], self.now)
        yield
        option = Option(estimate.at, cluster, estimate.assignment)
        if rest is None or self.now >= rest.until_without_hope or is_hopeful(option, self.now, self.bounds):
            return option
        return Awaited(rest.until_without_hope, cluster)


def _on_present_nodes(
    reservation: Reservation, record: Record, snapshots: Mapping[str, ClusterSnapshot]
) -> Reservation:
    """The reservation with other places if one of its nodes is gone or takes no pods any more."""
    snapshot = snapshots.get(reservation.cluster)
    if snapshot is None or snapshot.capacity.nodes is None:
        return reservation
    if all(map(snapshot.capacity.nodes.traits.is_usable, reservation.assignment.nodes)):
        return reservation
    return replace(reservation, assignment=assignment_in_empty(record.gang, snapshot.capacity))


def _turn(record: Record, before: Reservation | None, now: datetime) -> datetime:
    """The time at which a gang began to wait for a reservation; for its first one, the time at which it was blocked."""
    return (record.blocked_since or now) if before is None else waits_since(before, now)


def _rests(
    known: State,
    standing: Mapping[str, Reservation],
    starved: Sequence[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    now: datetime,
    bounds: Bounds,
) -> dict[str, Rest]:
    """The rests of the clusters, including the clusters whose reservation has ended since the last cycle.

    A reservation was complete if its gang fits the cluster now, or did in the last cycle. This ends the series of
    incomplete reservations. A gang that fitted another cluster was dispatched there, which changes no rest here.
    """
    rests = {name: rest for name, rest in known.rests.items() if name in snapshots}
    records = {record.uid: record for record in starved}
    for uid, reservation in known.reservations.items():
        cluster = reservation.cluster
        if not cluster or uid in standing or cluster not in snapshots:
            continue
        if (
            uid in records
            and now < reservation.until
            and _is_shut(records[uid], snapshots[cluster], snapshots)
        ):
            continue  # the cluster has changed, not the gang: the reservation did not fail
        went_to = _fitting(records[uid], [cluster], snapshots) if uid in records else known.fits.get(uid)
        if went_to == cluster:
            rests.pop(cluster, None)
        elif went_to is None:
            rests[cluster] = rest_after(reservation, rests.get(cluster), now, bounds)
    return rests


def _is_shut(record: Record, snapshot: ClusterSnapshot, clusters: Collection[str]) -> bool:
    """True if only the closure or the size of the cluster, one of `clusters`, keeps the gang from it."""
    return rejection(effective(record.requirements, clusters), replace(snapshot, closed=None)) is None


def _fits(
    reservations: Mapping[str, Reservation],
    starved: Sequence[Record],
    snapshots: Mapping[str, ClusterSnapshot],
) -> dict[str, str]:
    kept = [(each, reservations[each.uid].cluster) for each in starved if each.uid in reservations]
    found = {each.uid: _fitting(each, [cluster, *snapshots], snapshots) for each, cluster in kept if cluster}
    return {uid: cluster for uid, cluster in found.items() if cluster is not None}


def _fitting(record: Record, clusters: Iterable[str], snapshots: Mapping[str, ClusterSnapshot]) -> str | None:
    """The first of these clusters that the gang fits now; None if it fits none."""
    for snapshot in (snapshots[name] for name in clusters if name in snapshots):
        may_fit = may_keep(record, snapshot, snapshots)
        if may_fit and fits(record.gang, snapshot.capacity):
            return snapshot.name
    return None


def _stands(
    reservation: Reservation, record: Record, snapshots: Mapping[str, ClusterSnapshot], now: datetime
) -> bool:
    if now >= reservation.until or reservation.waits:
        return False  # an awaited cluster may open earlier than estimated
    if reservation.is_resting:
        return True
    snapshot = snapshots.get(reservation.cluster)
    if snapshot is None:
        return False
    return _is_only_unreachable(record, snapshot, snapshots) or may_keep(record, snapshot, snapshots)


def _is_only_unreachable(record: Record, snapshot: ClusterSnapshot, clusters: Collection[str]) -> bool:
    """True if the gang selects the cluster, one of `clusters`, and the cluster is closed for a transient reason."""
    may_open = may_open_soon(snapshot.closed)
    return may_open and effective(record.requirements, clusters).selector.matches(snapshot.labels)


class Backfill(Struct):
    """The reservations of one leader, by the uid of the gang; gangs that are no longer starved are dropped."""

    bounds: Bounds = field(default_factory=Bounds)
    running: Running = field(default_factory=Running)
    state: State = field(default_factory=State)

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """The reservations of the last cycle."""
        return self.state.reservations

    def renew(
        self, starved: Sequence[Record], snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> Mapping[str, Reservation]:
        """All steps of `renew_in_steps` at once."""
        return incremental.run(self.renew_in_steps(starved, snapshots, now))

    def renew_in_steps(
        self, starved: Sequence[Record], snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> Steps[Mapping[str, Reservation]]:
        """The reservations of the cycle at `now`; `starved` are in queue order."""
        if starved or self.reservations:
            self.state = yield from renewed(self.state, starved, snapshots, self.running, now, self.bounds)
        return self.reservations
