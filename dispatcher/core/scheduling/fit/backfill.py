"""Backfill reservations from cycle to cycle: which stay, which begin, and which sites rest.

A `Site` is what a gang can get a reservation of: a cluster, or the quota of a gang's queues
(`sharing.quota_reservations`). `backfill_reservation` says where and for how long. `Backfill` keeps the reservations
between cycles, in memory only: a new leader starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.fit.backfill_debts import Debts
from dispatcher.core.scheduling.fit.backfill_reservation import (
    Awaited,
    Before,
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
from dispatcher.core.scheduling.fit.cluster_filters import (
    ClusterSnapshot,
    effective,
    may_open_soon,
    rejection,
)
from dispatcher.core.scheduling.fit.estimated_ends import End, estimated_end, soonest_on
from dispatcher.core.scheduling.fit.fit import assignment_in_empty, fits


class Running(Struct, frozen=True):
    """The dispatched AppWrappers of a cluster, by its name.

    An AppWrapper whose end cannot be estimated because of an exception never ends; these are `failures` until taken.
    """

    in_cluster: Callable[[str], Iterable[Record]] = lambda _: ()
    failures: list[Failure] = field(default_factory=list)

    def ends(self, cluster: str, now: datetime) -> Steps[list[End]]:
        """The estimated end of each AppWrapper in a cluster and the capacity that it frees, the earliest first."""
        ends: list[End] = []
        for part in incremental.in_parts(self.in_cluster(cluster)):
            for each in part:
                try:
                    ends.append(End(estimated_end(each, now), each.charge, each.uid))
                except Exception as error:  # noqa: BLE001  # one gang must not end the estimates for the others
                    self.failures.append(Failure.of(each.uid, error))
            yield
        ends.sort(key=attrgetter("at"))
        return ends

    def take_failures(self) -> list[Failure]:
        """The exceptions about single AppWrappers since the last call."""
        found = self.failures.copy()
        self.failures.clear()
        return found


class State(Struct, frozen=True):
    """The state that one cycle leaves to the next: reservations by uid of the gang, rests by part of a site.

    `fits` has the gangs with a reservation that fit a site in this cycle, by uid: they are dispatched now.
    """

    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    rests: Mapping[str, Rest] = field(default_factory=dict)
    fits: Mapping[str, str] = field(default_factory=dict)


class Site(Protocol):
    """What a gang can get a reservation of."""

    @property
    def name(self) -> str:
        """The name that its reservations have as their cluster."""

    @property
    def parts(self) -> Sequence[str]:
        """Its parts: each has one reservation at a time, and rests after an incomplete one."""

    def may_keep(self, record: Record) -> bool:
        """True if it accepts the gang, which fits there beside what never ends."""

    def fits(self, record: Record) -> bool:
        """True if the gang fits there now."""

    def may_return(self, record: Record) -> bool:
        """True if only a transient closure keeps the gang from it."""

    def has_changed_for(self, record: Record) -> bool:
        """True if it, and not the gang, has changed, given that it may keep the gang no more."""

    def option(self, record: Record, now: datetime) -> Steps[Option]:
        """When the gang is estimated to fit there."""

    def on_present_nodes(self, reservation: Reservation, record: Record) -> Reservation:
        """The reservation of this site with other places if one of its nodes is gone or takes no pods any more."""


class Sites(Struct, frozen=True):
    """The sites of one cycle by name, with all parts there are: those without a site keep their rests, too.

    `own` names the sites that a gang can have; without it, each gang can have all. `rests_until` tells until when a
    gang begins no reservation of any site, and `lacks_nothing_else` whether a gang that fits its site is dispatched.
    """

    by_name: Mapping[str, Site]
    parts: Collection[str]
    own: Callable[[Record], Iterable[Site]] | None = None
    rests_until: Callable[[Record], datetime | None] = lambda _: None
    lacks_nothing_else: Callable[[Record], bool] = lambda _: True

    def of(self, record: Record) -> Iterable[Site]:
        """The sites that the gang can have."""
        return self.by_name.values() if self.own is None else self.own(record)

    @classmethod
    def of_clusters(cls, snapshots: Mapping[str, ClusterSnapshot], running: Running) -> Sites:
        """Each cluster is a site."""
        return cls(
            {name: ClusterSite(each, snapshots, running) for name, each in snapshots.items()}, snapshots
        )


class ClusterSite(Struct):
    """A cluster, one of `clusters`, as a site."""

    snapshot: ClusterSnapshot
    clusters: Collection[str]
    running: Running
    _ends: list[End] | None = None

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self.snapshot.name

    @property
    def parts(self) -> Sequence[str]:
        """The cluster."""
        return (self.snapshot.name,)

    def may_keep(self, record: Record) -> bool:
        """True if the cluster accepts the gang, and it fits there beside the pods that never end."""
        return may_keep(record, self.snapshot, self.clusters)

    def fits(self, record: Record) -> bool:
        """True if the gang fits the cluster now."""
        return self.may_keep(record) and fits(record.gang, self.snapshot.capacity)

    def may_return(self, record: Record) -> bool:
        """True if the gang selects the cluster, and the cluster is closed for a transient reason."""
        may_open = may_open_soon(self.snapshot.closed)
        return may_open and effective(record.requirements, self.clusters).selector.matches(
            self.snapshot.labels
        )

    def has_changed_for(self, record: Record) -> bool:
        """True if only the closure or the size of the cluster keeps the gang from it."""
        requirements = effective(record.requirements, self.clusters)
        return rejection(requirements, replace(self.snapshot, closed=None)) is None

    def option(self, record: Record, now: datetime) -> Steps[Option]:
        """When the gang is estimated to fit the cluster, and where its pods are to go."""
        if self._ends is None:
            self._ends = yield from self.running.ends(self.name, now)
        estimate = soonest_on(record.gang, self.snapshot.capacity, self._ends, now)
        yield
        return Option(estimate.at, self.name, estimate.assignment)

    def on_present_nodes(self, reservation: Reservation, record: Record) -> Reservation:
        """The reservation with other places if one of its nodes is gone or takes no pods any more."""
        capacity = self.snapshot.capacity
        if capacity.nodes is None or all(map(capacity.nodes.traits.is_usable, reservation.assignment.nodes)):
            return reservation
        return replace(reservation, assignment=assignment_in_empty(record.gang, capacity))


def renewed(
    known: State,
    starved: Sequence[Record],
    sites: Sites,
    now: datetime,
    bounds: Bounds,
    waiting: Collection[str] | None = None,
) -> Steps[State]:
    """The state after this cycle, given the last one; `starved` are in queue order.

    Only the gangs of `waiting` (uids; None: all) begin reservations; those of the others stand until their bound.

    A part of a site has at most one reservation. Existing reservations precede new ones, else each new gang would take
    the capacity that a reservation has accumulated. New ones begin in the order in which their gangs began to wait.
    """
    reservations = {
        record.uid: _on_present_nodes(known.reservations[record.uid], record, sites)
        for record in starved
        if record.uid in known.reservations and _stands(known.reservations[record.uid], record, sites, now)
    }
    rests = _rests(known, reservations, starved, sites, now, bounds)
    renewal = _Renewal(sites, now, bounds, rests)
    for each in reservations.values():
        renewal.take(each)
    others = [record for record in starved if record.uid not in reservations]
    others.sort(key=lambda record: _turn(record, known.reservations.get(record.uid), now))
    for record in others:
        may_begin = waiting is None or record.uid in waiting
        begun = yield from renewal.begin(record, known.reservations.get(record.uid), may_begin=may_begin)
        if begun is not None:
            reservations[record.uid] = begun
        yield
    return State(reservations, rests, _fits(reservations, starved, sites))


class _Renewal(Struct):
    """Begins the new reservations of one cycle; `taken` has the end of the reservation on each part with one."""

    sites: Sites
    now: datetime
    bounds: Bounds
    rests: Mapping[str, Rest]
    taken: dict[str, datetime] = field(default_factory=dict)

    def take(self, reservation: Reservation) -> None:
        """Note the parts of which a gang has a reservation."""
        site = self.sites.by_name.get(reservation.cluster)
        if site is not None:
            self.taken |= dict.fromkeys(site.parts, reservation.until)

    def begin(
        self, record: Record, before: Reservation | None, *, may_begin: bool
    ) -> Steps[Reservation | None]:
        """The reservation of a gang after `before`, which is over; None if it gets none."""
        options, closed, is_taken = list[Option](), list[Awaited](), False
        for site in self.sites.of(record) if may_begin else ():
            match (yield from self._consider(record, before, site)):
                case Option() as option:
                    options.append(option)
                case Awaited() as awaited:
                    closed.append(awaited)
                    is_taken = is_taken or not self.taken.keys().isdisjoint(site.parts)
        if before is None and is_taken:
            closed = []  # the gang stays the head while another gang has its turn: one head is enough
        begun = following(before, sorted(options), self.now, self.bounds, closed)
        if begun is not None:
            self.take(begun)
        return begun

    def _consider(
        self, record: Record, before: Reservation | None, site: Site
    ) -> Steps[Option | Awaited | None]:
        """The site as an option, or as a site to wait for; None if the gang does not fit it or is rejected."""
        if before is not None and before.waits and site.may_return(record):
            return Awaited(self.now + self.bounds.rest, site.name, Before.RETURN)  # it may soon answer again
        if not site.may_keep(record):
            return None
        if taken := [self.taken[part] for part in site.parts if part in self.taken]:
            return Awaited(max(taken), site.name)
        rests = [self.rests[part] for part in site.parts if part in self.rests]
        resting = [each.until for each in rests if self.now < each.until]
        if (end := self.sites.rests_until(record)) is not None:
            resting.append(end)
        if resting:
            return Awaited(max(resting), site.name, Before.REST)  # whatever the estimate
        option = yield from site.option(record, self.now)
        without_hope = max((each.until_without_hope for each in rests), default=self.now)
        if self.now >= without_hope or is_hopeful(option, self.now, self.bounds):
            return option
        return Awaited(without_hope, site.name, Before.REST)


def _on_present_nodes(reservation: Reservation, record: Record, sites: Sites) -> Reservation:
    site = sites.by_name.get(reservation.cluster)
    return reservation if site is None else site.on_present_nodes(reservation, record)


def _turn(record: Record, before: Reservation | None, now: datetime) -> datetime:
    """The time at which a gang began to wait for a reservation; for its first one, the time at which it was blocked."""
    return (record.blocked_since or now) if before is None else waits_since(before, now)


def _rests(
    known: State,
    standing: Mapping[str, Reservation],
    starved: Sequence[Record],
    sites: Sites,
    now: datetime,
    bounds: Bounds,
) -> dict[str, Rest]:
    """The rests of the parts, including those of the sites whose reservation has ended since the last cycle.

    A reservation was complete if its gang fits the site now, or did in the last cycle, and lacks nothing else. This
    ends the series of incomplete reservations. A gang that fitted another site was dispatched there, which changes no
    rest here.
    """
    rests = {name: rest for name, rest in known.rests.items() if name in sites.parts}
    records = {record.uid: record for record in starved}
    for uid, reservation in known.reservations.items():
        site, record = sites.by_name.get(reservation.cluster), records.get(uid)
        if site is None or uid in standing:
            continue
        if record is not None and now < reservation.until and site.has_changed_for(record):
            continue  # the site has changed, not the gang: the reservation did not fail
        went_to = _fitting(record, [site], sites) if record is not None else known.fits.get(uid)
        for part in site.parts:
            if went_to == site.name:
                rests.pop(part, None)
            elif went_to is None:
                rests[part] = rest_after(reservation, rests.get(part), now, bounds)
    return rests


def _fits(reservations: Mapping[str, Reservation], starved: Sequence[Record], sites: Sites) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for record in starved:
        reservation = reservations.get(record.uid)
        if reservation is not None and reservation.cluster:
            own = sites.by_name.get(reservation.cluster)
            found[record.uid] = _fitting(record, [*([own] if own else []), *sites.of(record)], sites)
    return {uid: name for uid, name in found.items() if name is not None}


def _fitting(record: Record, those: Iterable[Site], sites: Sites) -> str | None:
    """The first of those sites that the gang fits now; None if it fits none, or is not dispatched there."""
    found = next((site.name for site in those if site.fits(record)), None)
    return found if found is not None and sites.lacks_nothing_else(record) else None


def _stands(reservation: Reservation, record: Record, sites: Sites, now: datetime) -> bool:
    if now >= reservation.until or reservation.waits:
        return False  # an awaited site may open earlier than estimated
    if reservation.is_resting:
        return True
    site = sites.by_name.get(reservation.cluster)
    return site is not None and (site.may_return(record) or site.may_keep(record))


class Backfill(Struct):
    """The reservations of one leader, by the uid of the gang; gangs that are no longer starved are dropped.

    The ends of the gangs that are `running` as a cycle begins count for the reservations that begin in it.
    """

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
        """The reservations of capacity of the cycle at `now`, in one step; `starved` are in queue order."""
        if not (starved or self.reservations):
            return self.reservations
        sites = Sites.of_clusters(snapshots, self.running)
        return incremental.run(self.renew_on_sites(starved, sites, now))

    def renew_on_sites(
        self, starved: Sequence[Record], sites: Sites, now: datetime, waiting: Collection[str] | None = None
    ) -> Steps[Mapping[str, Reservation]]:
        """The reservations of these sites in the cycle at `now`; `starved` are in queue order.

        Only the gangs of `waiting` (uids; None: all) begin new ones.
        """
        self.state = yield from renewed(self.state, starved, sites, now, self.bounds, waiting)
        return self.reservations


class Backfills(Struct):
    """The reservations of one leader: of `room` in clusters, and of `quota` where queues are declared.

    `debts` are what queues owe for the reservations of both: the queues of a `forest`, not all that labels name.
    """

    room: Backfill = field(default_factory=Backfill)
    quota: Backfill = field(default_factory=Backfill)
    debts: Debts = field(default_factory=Debts)

    def renew_quota(
        self, late: Sequence[Record], sites: Sites, forest: Forest, now: datetime, waiting: Collection[str]
    ) -> Steps[None]:
        """Renew the reservations of quota in the cycle at `now`, before those of room."""
        yield from self.quota.renew_on_sites(late, self._with_debts(sites, forest, now), now, waiting)
        state = self.quota.state
        self.debts.note_quota(state.reservations, state.rests, _queues_of(late, forest), now)

    def renew_room(
        self, starved: Sequence[Record], sites: Sites, forest: Forest, now: datetime, waiting: Collection[str]
    ) -> Steps[None]:
        """Renew the reservations of room in the cycle at `now`."""
        yield from self.room.renew_on_sites(starved, self._with_debts(sites, forest, now), now, waiting)
        state = self.room.state
        self.debts.note_room(state.reservations, state.rests, _queues_of(starved, forest), now)

    def _with_debts(self, sites: Sites, forest: Forest, now: datetime) -> Sites:
        def rests_until(record: Record) -> datetime | None:
            return self.debts.rests_until(forest.queues_of(record.leaves), now)

        return replace(sites, rests_until=rests_until)

    def next_change(self, now: datetime) -> datetime | None:
        """When time alone may change what is kept; None if it never does, as long as no gang becomes starved."""
        reservations = chain(self.room.reservations.values(), self.quota.reservations.values())
        rests = (each.until_without_hope for each in self.quota.state.rests.values())
        ends = chain((each.until for each in reservations), rests, self.debts.resting.values())
        return min((each for each in ends if each > now), default=None)


def _queues_of(records: Iterable[Record], forest: Forest) -> dict[str, Sequence[str]]:
    return {record.uid: forest.queues_of(record.leaves) for record in records}
