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
from dispatcher.core import choice, steps
from dispatcher.core.choice import Site, rejection
from dispatcher.core.record import ACTIVE, Pending, Phase, Record
from dispatcher.core.resources import Resources
from dispatcher.core.steps import Steps

MOST_DOUBLINGS: Final = 4
"""How often a bound, or a pause, doubles: by default to four days, longer than all but a few runs."""

LAST_RESORT: Final = datetime.max.replace(tzinfo=UTC)
"""The estimate for a cluster where a gang fits only once pods have ended of which no end is known."""

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

_TRANSIENT: Final = frozenset({choice.NOT_REPORTED, choice.UNREACHABLE})
"""Why a cluster is closed that may be open again in a moment; nobody takes what is kept there meanwhile."""

End = tuple[datetime, Resources]
"""When capacity is free again, and how much."""

_RUNS: Final = ACTIVE | {Phase.DISPATCHING}

_SAYS: Final = "; a backfill reservation "
"""What a message says of a reservation begins so; no name of a cluster, resource or label does."""


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

    `tried` are the clusters of this round, in order, and `began` is when the round began. It `is_hopeful` if one of
    them was estimated to suffice within the longest bound. `doublings` counts the hopeful rounds before, each of which
    doubled the bound, and `fruitless` the others, each of which doubled the pause.
    """

    cluster: str
    since: datetime
    until: datetime
    began: datetime
    tried: tuple[str, ...] = ()
    is_hopeful: bool = True
    doublings: int = 0
    fruitless: int = 0

    @property
    def is_resting(self) -> bool:
        """True while others may use what was kept."""
        return not self.cluster

    @property
    def words(self) -> str:
        """What the gang is told of it; the same for as long as the reservation is."""
        until = f"{self.until:%Y-%m-%d %H:%M:%S} UTC"
        if self.is_resting:
            clusters = ", ".join(self.tried)
            return f"on {clusters} was not complete within its bound and ended; the next begins after {until}"
        earlier = ", ".join(self.tried[:-1])
        before = f", after {earlier} was not complete in time" if earlier else ""
        return f"keeps capacity for it on {self.cluster} until {until}{before}"


def noted(pending: Pending, reservation: Reservation) -> Pending:
    """The same pending reason, with what is to be said of the reservation; about the cluster where one is kept."""
    cluster = reservation.cluster or pending.cluster
    resource = next((each.resource for each in pending.clusters if each.cluster == cluster), pending.resource)
    message = f"{pending.message}{_SAYS}{reservation.words}"
    return replace(pending, message=message, cluster=cluster, resource=resource)


def note_of(pending: Pending) -> str:
    """What the message says of a reservation; empty if nothing."""
    return pending.message.partition(_SAYS)[2]


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


def may_keep(record: Record, site: Site, has_members: bool) -> bool:
    """True if the gang may go to that cluster, and fits there beside what never ends."""
    is_open = not has_members or rejection(record.where, site) is None
    return is_open and record.gang.demand.fits_in(site.snapshot.attainable_for(record.gang))


class Option(NamedTuple):
    """A cluster that can be kept, and when the gang is estimated to fit there."""

    fits_at: datetime
    cluster: str


def following(
    before: Reservation | None, options: Sequence[Option], now: datetime, bounds: Bounds
) -> Reservation | None:
    """The reservation after `before`, which is over; `options` are best first.

    None if there is none yet and nothing to keep; one that rests and finds nothing to keep goes on resting.
    """
    if before is None or before.is_resting:
        fresh = replace(before, tried=(), is_hopeful=False) if before else _NONE
        return _keep(replace(fresh, began=now), options[0], now, bounds) if options else before
    left = [option for option in options if option.cluster not in before.tried]
    return _keep(before, left[0], now, bounds) if left else _rest(before, now, bounds)


def _keep(round_: Reservation, option: Option, now: datetime, bounds: Bounds) -> Reservation:
    return replace(
        round_,
        cluster=option.cluster,
        since=now,
        until=now + _doubled(bounds.kept, round_.doublings),
        tried=(*round_.tried, option.cluster),
        is_hopeful=round_.is_hopeful or option.fits_at - now <= bounds.longest,
    )


def _rest(round_: Reservation, now: datetime, bounds: Bounds) -> Reservation:
    """The pause after a round; the bound or the next pause doubles."""
    pause = _doubled(max(bounds.rest, now - round_.began), round_.fruitless)
    return replace(
        round_,
        cluster="",
        since=now,
        until=now + pause,
        doublings=round_.doublings + round_.is_hopeful,
        fruitless=0 if round_.is_hopeful else round_.fruitless + 1,
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
        for part in steps.in_parts(list(self.in_cluster(cluster))):
            ends += [(estimated_end(each, self.limit_of(each), now), each.gang.demand) for each in part]
            yield
        ends.sort(key=itemgetter(0))
        return ends


def renewed(
    known: Mapping[str, Reservation],
    starved: Sequence[Record],
    sites: Mapping[str, Site],
    running: Running,
    now: datetime,
    bounds: Bounds,
) -> Steps[dict[str, Reservation]]:
    """The reservations of this cycle by uid, given those of the last one; `starved` are in order.

    At most one is kept on a cluster. One that stands goes before one that begins, whatever their order: else a
    reservation would lose what it has gathered to each newcomer.
    """
    reservations = {
        record.uid: known[record.uid]
        for record in starved
        if record.uid in known and _stands(known[record.uid], record, sites, now)
    }
    taken = {each.cluster for each in reservations.values()}
    open_sites = {name: sites[name] for name in sites if name not in taken}
    ends: dict[str, list[End]] = {}
    for record in starved:
        if record.uid in reservations:
            continue
        options = []
        for site in open_sites.values():
            if may_keep(record, site, _has_members(sites)):
                if site.name not in ends:
                    ends[site.name] = yield from running.ends(site.name, now)
                free = site.snapshot.free_for(record.gang)
                fits_at = soonest(record.gang.demand, free, ends[site.name], now)
                options.append(Option(fits_at, site.name))
                yield
        begun = following(known.get(record.uid), sorted(options), now, bounds)
        if begun is not None:
            reservations[record.uid] = begun
            open_sites.pop(begun.cluster, None)
        yield
    return reservations


def _stands(reservation: Reservation, record: Record, sites: Mapping[str, Site], now: datetime) -> bool:
    if now >= reservation.until:
        return False
    if reservation.is_resting:
        return True
    site = sites.get(reservation.cluster)
    if site is None:
        return False
    if site.closed is not None and site.closed.reason in _TRANSIENT:
        return record.where.selector.matches(site.labels)
    return may_keep(record, site, _has_members(sites))


def _has_members(sites: Mapping[str, Site]) -> bool:
    return sites.keys() != {names.HUB_CLUSTER}


@dataclass(slots=True)
class Backfill:
    """The reservations of one leader, by the uid of the gang; those of gangs that are starved no more are forgotten."""

    bounds: Bounds = field(default_factory=Bounds)
    running: Running = field(default_factory=Running)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)

    def renew(
        self, starved: Sequence[Record], sites: Mapping[str, Site], now: datetime
    ) -> Mapping[str, Reservation]:
        """All steps of `renew_in_steps` at once."""
        return steps.run(self.renew_in_steps(starved, sites, now))

    def renew_in_steps(
        self, starved: Sequence[Record], sites: Mapping[str, Site], now: datetime
    ) -> Steps[Mapping[str, Reservation]]:
        """The reservations of the cycle at `now`, for those that are starved, in order."""
        if starved or self.reservations:
            known = self.reservations
            self.reservations = yield from renewed(known, starved, sites, self.running, now, self.bounds)
        return self.reservations
