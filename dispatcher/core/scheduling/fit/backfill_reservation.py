"""Backfill reservations: capacity of one cluster that stays free for a gang past the starvation bound.

Quota of a queue is kept for a gang in the same way, by the same rules: read queues for clusters below.

A reservation stays on one cluster, where the gang is estimated to fit soonest, so that capacity that becomes free there
accumulates. An estimate can be wrong, so every reservation has a bound. A reservation that is not complete by its bound
moves to the next-best cluster that the round has not tried. When all are tried, the round ends: other gangs may use the
capacity for as long as it was kept, at least for `Bounds.rest`. The next round has twice the bound, up to
`MOST_DOUBLINGS` times. It follows for a gang with n possible clusters:

- If no run is longer than the bound, and the gang fits one of the clusters beside the pods that never end, the gang
  waits at most n bounds beyond the starvation bound. A later round outlasts longer runs.
- A gang that can never fit keeps capacity idle for at most half of the time. If no estimate promises an end within the
  longest bound, the pauses double instead of the bounds, so this share falls.

Many such gangs could take turns, so clusters rest, too. If a reservation ends before its gang is dispatched, no gang
gets a reservation on that cluster for as long as it lasted, at least for `Bounds.rest`. Gangs that wait for a cluster
take turns in the order in which their waits began. A wait begins anew when the gang's reservation ends. A cluster that
is cordoned or loses nodes does not rest, because its reservation did not fail. It follows under one leader:

- Whatever the gangs, incomplete reservations keep capacity of a cluster for at most half of the time.
- k gangs that cannot fit delay a gang that can, on each cluster that it tries, by at most k reservations and the rests
  after them: by 2k bounds if the k gangs are in their first round, by 2k times the longest bound in any round. If the
  gang fits earlier, it is dispatched earlier. Without an estimate it waits for longer rests, of at most the longest
  bound each.

To the free capacity, the estimate adds the capacity of each dispatched AppWrapper from its estimated end on: the end of
its expected duration or of its limit, if one is not over, else as long again as it has run. Pods without an AppWrapper
have no known end: a cluster where the gang needs their capacity is a last resort.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment
from dispatcher.core.model.records.record import RESERVATION, Pending, Record
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, effective, rejection
from dispatcher.core.scheduling.fit.fit import fits_in_empty

MOST_DOUBLINGS: Final = 4
"""How often a bound, or a pause, doubles: by default to 16 days, longer than all but a few runs."""


class Bounds(Struct, frozen=True):
    """`kept` bounds each reservation of a first round; `rest` is the shortest pause of a gang or a cluster."""

    kept: timedelta = timedelta(hours=24)
    rest: timedelta = timedelta(minutes=10)

    @property
    def longest(self) -> timedelta:
        """The longest bound of any round."""
        return _doubled(self.kept, MOST_DOUBLINGS)


class Before(StrEnum):
    """What comes before the reservation of a gang that waits for its turn."""

    OTHERS = "Others"
    """Reservations of other gangs."""
    REST = "Rest"
    """The rest after a reservation that was not complete, of this gang or of another one, which may be gone."""
    RETURN = "Return"
    """The return of a cluster that is closed for a transient reason."""


class Reservation(Struct, frozen=True):
    """Capacity of `cluster` kept for one gang from `since` to `until`. Without a cluster, the gang rests.

    Of a reservation of quota, `cluster` and `tried` name the queues of the gang, with a comma between them.

    Where gangs are placed on nodes, `assignment` has the nodes on which places are kept for its pods.

    A gang rests after a round, or within a round while it `waits` for its turn: its possible clusters have reservations
    of other gangs, or rest; `before` says which, of the cluster that opens first. `tried` are the clusters of this
    round, in order. `began` is the start of the round, moved later by the waits within it. `is_hopeful` is true if the
    gang was estimated to fit one of them within the longest bound. `doublings` counts the earlier hopeful rounds; each
    doubled the bound. `fruitless` counts the other rounds since the last hopeful one; each doubled the pause.

    `is_over` is true once `until` is over and the gang, which rests, can get no reservation for now.
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
    assignment: Assignment = ASSIGNED_NOWHERE
    before: Before = Before.OTHERS
    is_over: bool = False

    @property
    def is_resting(self) -> bool:
        """True while other gangs may use the capacity."""
        return not self.cluster

    @property
    def words(self) -> str:
        """The reservation in words, for the pending message; constant for as long as the reservation lasts."""
        return self._words("capacity", "on")

    @property
    def words_of_quota(self) -> str:
        """The same of a reservation of quota."""
        return self._words("quota", "in")

    def _words(self, what: str, where: str) -> str:
        until = f"{self.until:%Y-%m-%d %H:%M:%S} UTC"
        begins = f"once {what} may be kept for it" if self.is_over else f"after {until}"
        if self.waits:
            why = "" if self.is_over else f": {_why(self.before, what)}"
            before = f", after {', '.join(self.tried)} was not complete in time" if self.tried else ""
            return f"can begin {begins}{why}{before}"
        if self.is_resting:
            tried = ", ".join(self.tried)
            return f"{where} {tried} was not complete within its bound and ended; the next begins {begins}"
        earlier = ", ".join(self.tried[:-1])
        before = f", after {earlier} was not complete in time" if earlier else ""
        return f"keeps {what} for it {where} {self.cluster} until {until}{before}"


def _why(before: Before, what: str) -> str:
    match before:
        case Before.OTHERS:
            return "reservations of other gangs go first"
        case Before.REST:
            return f"a reservation before was not complete, and others may use the {what} until then"
        case Before.RETURN:
            return "a cluster that it may go to is closed for now"
    assert_never(before)


class Rest(Struct, frozen=True):
    """No gang gets a reservation on a cluster until `until`, after an incomplete reservation there.

    A gang that is not estimated to fit there within the longest bound gets none until `until_without_hope`. `fruitless`
    counts the incomplete reservations without such an estimate since the last complete one; each doubles that pause.
    """

    until: datetime
    until_without_hope: datetime
    fruitless: int = 0


def noted(pending: Pending, reservation: Reservation) -> Pending:
    """The pending reason with the reservation in its message; it names the reserved cluster, if there is one."""
    cluster = reservation.cluster or pending.cluster
    resource = next((each.resource for each in pending.clusters if each.cluster == cluster), pending.resource)
    message = f"{pending.message}{RESERVATION}{reservation.words}"
    return replace(pending, message=message, cluster=cluster, resource=resource)


def noted_quota(pending: Pending, reservation: Reservation) -> Pending:
    """The pending reason with the reservation of quota in its message."""
    return replace(pending, message=f"{pending.message}{RESERVATION}{reservation.words_of_quota}")


def may_keep(record: Record, snapshot: ClusterSnapshot, clusters: Collection[str]) -> bool:
    """True if the cluster, one of `clusters`, accepts the gang, and it fits there beside the pods that never end."""
    accepts = rejection(effective(record.requirements, clusters), snapshot) is None
    return accepts and fits_in_empty(record.gang, snapshot.capacity)


class Option(NamedTuple):
    """A cluster on which the gang can get a reservation, and the time at which it is estimated to fit there."""

    fits_at: datetime
    cluster: str
    assignment: Assignment = ASSIGNED_NOWHERE


def rest_after(kept: Reservation, before: Rest | None, now: datetime, bounds: Bounds) -> Rest:
    """The rest of a cluster after an incomplete reservation; `before` is the previous rest."""
    pause = max(bounds.rest, now - kept.since)
    fruitless = before.fruitless if before else 0
    grown = max(pause, min(_doubled(pause, fruitless), bounds.longest))
    without_hope = max(now + grown, before.until_without_hope) if before else now + grown
    return Rest(now + pause, without_hope, fruitless + (not kept.is_hopeful))


class Awaited(NamedTuple):
    """A cluster that rests or has the reservation of another gang; it opens at `opens_at` at the earliest."""

    opens_at: datetime
    cluster: str
    before: Before = Before.OTHERS


def following(
    before: Reservation | None,
    options: Sequence[Option],
    now: datetime,
    bounds: Bounds,
    closed: Sequence[Awaited] = (),
) -> Reservation | None:
    """The reservation after `before`, which is over. `options` are best first; `closed` are the clusters to wait for.

    None if the gang had no reservation and can get none. A resting gang that can get none continues to rest, and names
    no time any more.
    """
    is_in_round = before is not None and (before.waits or not before.is_resting)
    last = replace(before, is_over=False) if before else Reservation("", now, now, now)
    round_ = last if is_in_round else replace(last, began=now, tried=(), is_hopeful=False)
    left = [option for option in options if option.cluster not in round_.tried]
    if left:
        return _keep(round_, left[0], now, bounds)
    awaited = [each for each in closed if each.cluster not in round_.tried]
    if awaited:
        since = waits_since(before, now)
        return _wait(round_ if is_in_round else replace(round_, began=since), min(awaited), since)
    if is_in_round and round_.tried:
        return _rest(round_, now, bounds)
    return replace(before, is_over=now >= before.until) if before else None


def _keep(round_: Reservation, option: Option, now: datetime, bounds: Bounds) -> Reservation:
    return replace(
        round_,
        cluster=option.cluster,
        since=now,
        until=now + _doubled(bounds.kept, round_.doublings),
        began=round_.began + _waited(round_, now),
        tried=(*round_.tried, option.cluster),
        is_hopeful=round_.is_hopeful or is_hopeful(option, now, bounds),
        waits=False,
        assignment=option.assignment,
    )


def _waited(round_: Reservation, now: datetime) -> timedelta:
    """The wait within the round up to now. It is not part of the round's time, because no capacity was kept."""
    return now - round_.since if round_.waits else timedelta(0)


def is_hopeful(option: Option, now: datetime, bounds: Bounds) -> bool:
    """True if the gang is estimated to fit there within the longest bound."""
    return option.fits_at - now <= bounds.longest


def _wait(round_: Reservation, closed: Awaited, since: datetime) -> Reservation:
    """The reservation of a gang that has waited for its turn since `since`."""
    return replace(round_, cluster="", since=since, until=closed.opens_at, waits=True, before=closed.before)


def waits_since(before: Reservation | None, now: datetime) -> datetime:
    """The time at which the gang began to wait for its turn: the end of its rest, if it had one."""
    if before is None or not before.is_resting:
        return now
    return before.since if before.waits else before.until


def _rest(round_: Reservation, now: datetime, bounds: Bounds) -> Reservation:
    """The pause after a round. A hopeful round doubles the next bound, any other round the next pause."""
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
