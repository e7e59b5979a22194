"""When running gangs are estimated to end, and when enough capacity for another gang is free then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.records.record import ACTIVE, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.fit import Fit, Shortfall, assignment_in_empty, fit

LAST_RESORT: Final = datetime.max.replace(tzinfo=UTC)
"""The estimate for a cluster where the gang fits only after pods without a known end have ended."""


class End(NamedTuple):
    """The time at which an AppWrapper (by uid) is estimated to release its capacity, and the amount."""

    at: datetime
    released: Resources
    appwrapper: str = ""


_RUNS: Final = ACTIVE | {Phase.DISPATCHING}


def stated_end(record: Record, now: datetime) -> datetime | None:
    """The time at which a dispatched AppWrapper ends by its `dispatchDuration`: the expected end or the limit.

    The earlier of those that are not over. None if none is stated, all are over, or its objects are being removed.
    """
    if record.phase not in _RUNS or record.attempt is None:
        return None
    started = record.attempt.began_at
    stated = (each for each in (record.expected_seconds, record.limit_seconds) if each)
    ends = (started + timedelta(seconds=each) for each in stated)
    return min((end for end in ends if end > now), default=None)


def estimated_end(record: Record, now: datetime) -> datetime:
    """The time at which a dispatched AppWrapper is estimated to release its capacity."""
    if record.phase not in _RUNS or record.attempt is None:
        return now  # its objects are being removed
    started = record.attempt.began_at
    return stated_end(record, now) or now + max(now - started, timedelta(0))


def soonest(demand: Resources, free: Resources, ends: Iterable[End], now: datetime) -> datetime:
    """The time at which `demand` fits `free` plus the `ends` so far, which are in order; else LAST_RESORT."""
    missing = dict(demand.shortfall(free))
    if not missing:
        return now
    for when, ended, _ in ends:
        for name in missing.keys() & ended.keys():
            missing[name] -= ended[name]
            if missing[name] <= 0:
                del missing[name]
        if not missing:
            return when
    return LAST_RESORT


class Soonest(NamedTuple):
    """The time at which a gang is estimated to fit a cluster, and the places of its pods then."""

    at: datetime
    assignment: Assignment = ASSIGNED_NOWHERE


def soonest_on(gang: Gang, capacity: CapacitySnapshot, ends: Sequence[End], now: datetime) -> Soonest:
    """The time at which `gang` fits the capacity once AppWrappers end in the order of `ends`; else LAST_RESORT.

    On nodes it is found by bisection: each AppWrapper that ends only adds free capacity.
    """
    gang = gang.in_cluster(capacity.cluster)
    by_sums = soonest(gang.demand, capacity.free_for(gang), ends, now)
    if capacity.nodes is None or not gang.pod_sets:
        return Soonest(by_sums)

    def fit_after(count: int) -> Fit:
        return fit(gang, capacity.without_gangs(end.appwrapper for end in ends[:count]))

    first, last = 0 if by_sums <= now else bisect_left(ends, by_sums, key=lambda end: end.at) + 1, len(ends)
    found = fit_after(last)
    if by_sums == LAST_RESORT or isinstance(found, Shortfall):
        return Soonest(LAST_RESORT, assignment_in_empty(gang, capacity))
    while first < last:
        middle = (first + last) // 2
        then = fit_after(middle)
        if isinstance(then, Shortfall):
            first = middle + 1
        else:
            last, found = middle, then
    return Soonest(ends[last - 1].at if last else now, found)
