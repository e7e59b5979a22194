"""Backfill reservations: on which cluster capacity is kept for a gang that waited past the starvation bound.

A reservation is kept on one cluster, the same in every cycle, so that what becomes free there adds up. The cluster is
the one where the gang is estimated to fit soonest. An estimate can be wrong, so every reservation has a bound: one that
is not complete by then moves to the next-best cluster that was not tried in this round. Once all were tried the round
ends: others may use the capacity for as long as it was kept, at least for `Bounds.rest`. Then the next round begins,
with twice the bound, up to `MOST_DOUBLINGS` times. From this follows, for n clusters that a gang may go to:

- If no run is longer than the bound, and the gang fits one of the clusters beside what never ends there, it waits at
  most n bounds beyond the starvation bound. Longer runs are outlasted by a later round.
- A gang that can never fit keeps capacity idle at most half of the time. If no estimate promises an end within the
  longest bound, the pauses grow instead of the bounds, so that this share falls.

Many such gangs could take turns. So a cluster rests, too: after a reservation there that ended before its gang was
dispatched, no gang keeps capacity of that cluster for as long as that one did. The gangs that wait for a cluster get
it in the order in which they began to wait; a gang begins anew when its reservation ends. A cluster that is cordoned,
or loses nodes, need not rest: what was kept there was not in vain. From this follows, under one leader:

- Whatever gangs there are, capacity of a cluster is kept in vain at most half of the time.
- k gangs that cannot fit delay one that can, on each of the clusters it tries, by at most k reservations and the rests
  after them: by 2k bounds if they are in their first round, by 2k times the longest bound in any. It is dispatched
  before if it fits. A gang without an estimate waits out longer rests, of at most the longest bound each.

What is estimated: the capacity that is free now, and that of each dispatched AppWrapper from its estimated end on. That
is its expected duration or its limit where it has one that is not over; else it is assumed to run on for as long as it
has run. Pods that are no AppWrapper's have no known end: a cluster that needs theirs is a last resort.

The policy is pure functions of values. `Backfill` remembers the reservations between cycles, in memory only: a new
leader begins them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Final, NamedTuple

from dispatcher.api import names
from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.record import ACTIVE, RESERVATION, Pending, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling import cluster_filters
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot, rejection

MOST_DOUBLINGS: Final = 4
"""How often a bound, or a pause, doubles: by default to four days, longer than all but a few runs."""

LAST_RESORT: Final = datetime.max.replace(tzinfo=UTC)
"""The estimate for a cluster where a gang fits only once pods have ended of which no end is known."""

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

_TRANSIENT: Final = frozenset({cluster_filters.NOT_REPORTED, cluster_filters.UNREACHABLE})
"""Why a cluster is closed that may be open again in a moment; nobody takes what is kept there meanwhile."""

End = tuple[datetime, Resources]
"""When capacity is free again, and how much."""

_RUNS: Final = ACTIVE | {Phase.DISPATCHING}


@dataclass(frozen=True, slots=True)
class Bounds:
    """`kept` is how long a reservation may take to be complete in the first round, `rest` the least pause after one."""

    kept: timedelta = timedelta(hours=24)
    rest: timedelta = timedelta(minutes=10)

    @property
    def longest(self) -> timedelta:
        """The bound that is not exceeded in any round."""
        return _doubled(self.kept, MOST_DOUBLINGS)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity of `cluster` is kept for one gang from `since` to `until`; without a cluster, nothing is: it rests.

    A gang rests after a round, or because it `waits` for its turn within one: other gangs keep the clusters that it
    may go to, or these rest. `tried` are the clusters of this round, in order, and `began` is when the round began,
    less what the gang waited in it. It `is_hopeful` if one of them was estimated to suffice within the longest bound.
    `doublings` counts the hopeful rounds before, each of which doubled the bound, and `fruitless` the others, each of
    which doubled the pause.
    """

    cluster: str
    since: datetime
    until: datetime
    began: datetime
    tried: tuple[str, ...] = ()
    is_hopeful: bool = True
    doublings: int = 0
    fruitless: int = 0
    waits: bool = False

    @property
    def is_resting(self) -> bool:
        """True while others may use what was kept."""
        return not self.cluster

    @property
    def words(self) -> str:
        """What the gang is told of it; the same for as long as the reservation is."""
        until = f"{self.until:%Y-%m-%d %H:%M:%S} UTC"
        if self.waits:
            before = f", after {', '.join(self.tried)} was not complete in time" if self.tried else ""
            return f"can begin after {until}: until then it is the turn of others{before}"
        if self.is_resting:
            clusters = ", ".join(self.tried)
            return f"on {clusters} was not complete within its bound and ended; the next begins after {until}"
        earlier = ", ".join(self.tried[:-1])
        before = f", after {earlier} was not complete in time" if earlier else ""
        return f"keeps capacity for it on {self.cluster} until {until}{before}"


@dataclass(frozen=True, slots=True)
class Rest:
    """Nobody keeps capacity of a cluster up to `until`, after a reservation there that was in vain.

    A gang that is not estimated to fit there within the longest bound keeps none up to `until_without_hope`.
    `fruitless` counts the reservations that were in vain and made with so little hope, since one was complete: each
    doubles that time.
    """

    until: datetime
    until_without_hope: datetime
    fruitless: int = 0


def noted(pending: Pending, reservation: Reservation) -> Pending:
    """The same pending reason, with what is to be said of the reservation; about the cluster where one is kept."""
    cluster = reservation.cluster or pending.cluster
    resource = next((each.resource for each in pending.clusters if each.cluster == cluster), pending.resource)
    message = f"{pending.message}{RESERVATION}{reservation.words}"
    return replace(pending, message=message, cluster=cluster, resource=resource)


# --- when, and where ------------------------------------------------------------------------------------------


def estimated_end(record: Record, limit: timedelta | None, now: datetime) -> datetime:
    """When a dispatched AppWrapper will have given its capacity back, as far as can be told; `limit` is its own."""
    if record.phase not in _RUNS or record.attempt is None:
        return now  # it is being removed
    started = record.attempt.decided_at
    durations = [limit] if limit else []
    if record.expected_seconds:
        durations.append(timedelta(seconds=record.expected_seconds))
    ends = [started + duration for duration in durations if started + duration > now]
    return min(ends, default=now + max(now - started, timedelta(0)))


def soonest(demand: Resources, free: Resources, ends: Iterable[End], now: datetime) -> datetime:
    """When `demand` will fit in what is `free` now and what `ends`, in order; LAST_RESORT if that does not suffice."""
    missing = dict(demand.shortfall(free))
    if not missing:
        return now
    for when, ended in ends:
        for name in missing.keys() & ended.keys():
            missing[name] -= ended[name]
            if missing[name] <= 0:
                del missing[name]
        if not missing:
            return when
    return LAST_RESORT


def may_keep(record: Record, snapshot: ClusterSnapshot, has_members: bool) -> bool:
    """True if the gang may go to that cluster, and fits there beside what never ends."""
    is_open = not has_members or rejection(record.requirements, snapshot) is None
    return is_open and record.gang.demand.fits_in(snapshot.capacity.attainable_for(record.gang))


class Option(NamedTuple):
    """A cluster that can be kept, and when the gang is estimated to fit there."""

    fits_at: datetime
    cluster: str


def rest_after(kept: Reservation, before: Rest | None, now: datetime, bounds: Bounds) -> Rest:
    """The rest of a cluster on which a reservation was in vain, given the one before."""
    pause = max(bounds.rest, now - kept.since)
    fruitless = before.fruitless if before else 0
    grown = max(pause, min(_doubled(pause, fruitless), bounds.longest))
    without_hope = max(now + grown, before.until_without_hope if before else LONG_AGO)
    return Rest(now + pause, without_hope, fruitless + (not kept.is_hopeful))


class Awaited(NamedTuple):
    """A cluster of which another gang keeps capacity, or that rests; it opens at `opens_at` at the earliest."""

    opens_at: datetime
    cluster: str


def following(
    before: Reservation | None,
    options: Sequence[Option],
    now: datetime,
    bounds: Bounds,
    closed: Sequence[Awaited] = (),
) -> Reservation | None:
    """The reservation after `before`, which is over; `options` are best first, `closed` the clusters to wait for.

    None if there is none yet and nothing to keep; one that rests and finds nothing to keep goes on resting.
    """
    is_in_round = before is not None and (before.waits or not before.is_resting)
    round_ = (
        before if before and is_in_round else replace(before or _NONE, began=now, tried=(), is_hopeful=False)
    )
    left = [option for option in options if option.cluster not in round_.tried]
    if left:
        return _keep(round_, left[0], now, bounds)
    awaited = [each for each in closed if each.cluster not in round_.tried]
    if awaited:
        since = _waits_since(before, now)
        return _wait(round_ if is_in_round else replace(round_, began=since), min(awaited), since)
    return _rest(round_, now, bounds) if is_in_round and round_.tried else before


def _keep(round_: Reservation, option: Option, now: datetime, bounds: Bounds) -> Reservation:
    return replace(
        round_,
        cluster=option.cluster,
        since=now,
        until=now + _doubled(bounds.kept, round_.doublings),
        began=round_.began + _waited(round_, now),
        tried=(*round_.tried, option.cluster),
        is_hopeful=round_.is_hopeful or _is_hopeful(option, now, bounds),
        waits=False,
    )


def _waited(round_: Reservation, now: datetime) -> timedelta:
    """What it has waited within the round, which does not count as its time: nothing was kept."""
    return now - round_.since if round_.waits else timedelta(0)


def _is_hopeful(option: Option, now: datetime, bounds: Bounds) -> bool:
    return option.fits_at - now <= bounds.longest


def _wait(round_: Reservation, closed: Awaited, since: datetime) -> Reservation:
    """A turn that is waited for, since the gang began to wait."""
    return replace(round_, cluster="", since=since, until=closed.opens_at, waits=True)


def _waits_since(before: Reservation | None, now: datetime) -> datetime:
    """When a gang began to wait for its turn: after its rest, if it had one."""
    if before is None or not before.is_resting:
        return now
    return before.since if before.waits else before.until


def _rest(round_: Reservation, now: datetime, bounds: Bounds) -> Reservation:
    """The pause after a round; the bound or the next pause doubles."""
    kept_for = now - round_.began - _waited(round_, now)
    pause = _doubled(max(bounds.rest, kept_for), round_.fruitless)
    return replace(
        round_,
        cluster="",
        since=now,
        until=now + pause,
        doublings=round_.doublings + round_.is_hopeful,
        fruitless=0 if round_.is_hopeful else round_.fruitless + 1,
        waits=False,
    )


def _doubled(duration: timedelta, times: int) -> timedelta:
    return duration * (1 << min(times, MOST_DOUBLINGS))


_NONE: Final = Reservation("", LONG_AGO, LONG_AGO, LONG_AGO, is_hopeful=False)


# --- from one cycle to the next -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """What is known of dispatched AppWrappers: those of a cluster, by its name, and how long each may run."""

    in_cluster: Callable[[str], Iterable[Record]] = lambda _: ()
    limit_of: Callable[[Record], timedelta | None] = lambda _: None

    def ends(self, cluster: str, now: datetime) -> Steps[list[End]]:
        """When each of a cluster is estimated to end, and what that frees; the first to end first."""
        ends: list[End] = []
        for part in incremental.in_parts(list(self.in_cluster(cluster))):
            ends += [(estimated_end(each, self.limit_of(each), now), each.gang.demand) for each in part]
            yield
        ends.sort(key=itemgetter(0))
        return ends


@dataclass(frozen=True, slots=True)
class State:
    """What one cycle leaves to the next: reservations by the uid of the gang, and the rests of clusters by name.

    `fits` are the gangs with a reservation that fit a cluster in this cycle, by uid: so they are dispatched now.
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
    """The reservations of this cycle, given those of the last one; `starved` are in order.

    At most one is kept on a cluster. One that stands goes before one that begins, whatever their order: else a
    reservation would lose what it has gathered to each newcomer. Others begin in the order in which they began to wait.
    """
    reservations = {
        record.uid: known.reservations[record.uid]
        for record in starved
        if record.uid in known.reservations
        and _stands(known.reservations[record.uid], record, snapshots, now)
    }
    rests = _rests(known, reservations, starved, snapshots, now, bounds)
    taken = {each.cluster: each.until for each in reservations.values() if each.cluster}
    others = [record for record in starved if record.uid not in reservations]
    others.sort(key=lambda record: _turn(record, known.reservations.get(record.uid), now))
    ends: dict[str, list[End]] = {}
    for record in others:
        before = known.reservations.get(record.uid)
        options, closed = [], []
        for snapshot in snapshots.values():
            rest = rests.get(snapshot.name)
            if before is not None and before.waits and _is_silent(record, snapshot):
                closed.append(
                    Awaited(now + bounds.rest, snapshot.name)
                )  # it may be back before its turn is over
                continue
            if not may_keep(record, snapshot, _has_members(snapshots)):
                continue
            if snapshot.name in taken:
                closed.append(Awaited(taken[snapshot.name], snapshot.name))
                continue
            if rest is not None and now < rest.until:
                closed.append(Awaited(rest.until, snapshot.name))  # with or without an estimate
                continue
            if snapshot.name not in ends:
                ends[snapshot.name] = yield from running.ends(snapshot.name, now)
            free = snapshot.capacity.free_for(record.gang)
            option = Option(soonest(record.gang.demand, free, ends[snapshot.name], now), snapshot.name)
            if rest is None or now >= rest.until_without_hope or _is_hopeful(option, now, bounds):
                options.append(option)
            else:
                closed.append(Awaited(rest.until_without_hope, snapshot.name))
            yield
        if before is None and any(each.cluster in taken for each in closed):
            closed = []  # it is the head as long as another gang has its turn: one is enough
        begun = following(before, sorted(options), now, bounds, closed)
        if begun is not None:
            reservations[record.uid] = begun
            if begun.cluster:
                taken[begun.cluster] = begun.until
        yield
    return State(reservations, rests, _fits(reservations, starved, snapshots))


def _turn(record: Record, before: Reservation | None, now: datetime) -> datetime:
    """Since when a gang has waited for a reservation; one that had none yet, since it was blocked."""
    return (record.blocked_since or now) if before is None else _waits_since(before, now)


def _rests(
    known: State,
    standing: Mapping[str, Reservation],
    starved: Sequence[Record],
    snapshots: Mapping[str, ClusterSnapshot],
    now: datetime,
    bounds: Bounds,
) -> dict[str, Rest]:
    """The rests of the clusters, also of those on which a reservation has ended since the last cycle.

    It was complete if its gang fits there now, or did when it was last seen: that ends the series of those in vain.
    One that fitted another cluster then was dispatched there, which says nothing of this one.
    """
    rests = {name: rest for name, rest in known.rests.items() if name in snapshots}
    records = {record.uid: record for record in starved}
    for uid, reservation in known.reservations.items():
        cluster = reservation.cluster
        if not cluster or uid in standing or cluster not in snapshots:
            continue
        if uid in records and now < reservation.until and _is_shut(records[uid], snapshots[cluster]):
            continue  # the cluster has changed, not the gang: there was nothing in vain
        went_to = _fitting(records[uid], [cluster], snapshots) if uid in records else known.fits.get(uid)
        if went_to == cluster:
            rests.pop(cluster, None)
        elif went_to is None:
            rests[cluster] = rest_after(reservation, rests.get(cluster), now, bounds)
    return rests


def _is_shut(record: Record, snapshot: ClusterSnapshot) -> bool:
    """True if the cluster is closed, or too small by now, and nothing else keeps the gang from it."""
    return rejection(record.requirements, replace(snapshot, closed=None)) is None


def _fits(
    reservations: Mapping[str, Reservation],
    starved: Sequence[Record],
    snapshots: Mapping[str, ClusterSnapshot],
) -> dict[str, str]:
    kept = [(each, reservations[each.uid].cluster) for each in starved if each.uid in reservations]
    found = {each.uid: _fitting(each, [cluster, *snapshots], snapshots) for each, cluster in kept if cluster}
    return {uid: cluster for uid, cluster in found.items() if cluster is not None}


def _fitting(record: Record, clusters: Iterable[str], snapshots: Mapping[str, ClusterSnapshot]) -> str | None:
    """The first of these clusters that the gang fits now; None if there is none."""
    for snapshot in (snapshots[name] for name in clusters if name in snapshots):
        if may_keep(record, snapshot, _has_members(snapshots)) and record.gang.demand.fits_in(
            snapshot.capacity.free_for(record.gang)
        ):
            return snapshot.name
    return None


def _stands(
    reservation: Reservation, record: Record, snapshots: Mapping[str, ClusterSnapshot], now: datetime
) -> bool:
    if now >= reservation.until or reservation.waits:
        return False  # what is waited for may be open before
    if reservation.is_resting:
        return True
    snapshot = snapshots.get(reservation.cluster)
    if snapshot is None:
        return False
    return _is_silent(record, snapshot) or may_keep(record, snapshot, _has_members(snapshots))


def _is_silent(record: Record, snapshot: ClusterSnapshot) -> bool:
    """True if the cluster cannot be asked for a moment, and is one that the gang selects."""
    is_transient = snapshot.closed is not None and snapshot.closed.reason in _TRANSIENT
    return is_transient and record.requirements.selector.matches(snapshot.labels)


def _has_members(snapshots: Mapping[str, ClusterSnapshot]) -> bool:
    return snapshots.keys() != {names.HUB_CLUSTER}


@dataclass(slots=True)
class Backfill:
    """The reservations of one leader, by the uid of the gang; those of gangs that are starved no more are forgotten."""

    bounds: Bounds = field(default_factory=Bounds)
    running: Running = field(default_factory=Running)
    state: State = field(default_factory=State)

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """Those of the last cycle."""
        return self.state.reservations

    def renew(
        self, starved: Sequence[Record], snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> Mapping[str, Reservation]:
        """All steps of `renew_in_steps` at once."""
        return incremental.run(self.renew_in_steps(starved, snapshots, now))

    def renew_in_steps(
        self, starved: Sequence[Record], snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> Steps[Mapping[str, Reservation]]:
        """The reservations of the cycle at `now`, for those that are starved, in order."""
        if starved or self.reservations:
            self.state = yield from renewed(self.state, starved, snapshots, self.running, now, self.bounds)
        return self.reservations
