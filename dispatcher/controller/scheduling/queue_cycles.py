"""Scheduling cycles over the queues: the facts from the leader's caches, and what is kept between cycles.

The core decides (`core.scheduling.cycle`), and makes the changes of records (`cycle.outcome_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct

from dispatcher import log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model import incremental
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.pending_reasons import AWAITING_RELEASE, INSUFFICIENT
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.isolation import (
    BARRED_FOR,
    Holder,
    copies_of,
    plain_of,
    to_blame_in_steps,
)
from dispatcher.core.scheduling.cycle.news import NewOutcome
from dispatcher.core.scheduling.cycle.outcomes import Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, is_unreachable
from dispatcher.core.scheduling.preemption.surplus import (
    Parts,
    Surplus,
    awaited_growth,
    awaited_room,
    by_gang,
    split,
)
from dispatcher.core.scheduling.queued.pending_queue import Changes
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, active_gang, set_aside, with_aside


class QueuePlan(Struct, frozen=True):
    """The news of a cycle: groups of gangs that leave, in order, and all other outcomes that change a record."""

    groups: tuple[Preempting | Drained, ...]
    others: tuple[NewOutcome, ...]
    failures: Sequence[Failure] = ()
    """The exceptions for which the cycle refused a class."""


class _Holders(NamedTuple):
    """The records that hold capacity; `version` differs if they, the clusters that answer or those aside do."""

    version: tuple[int, frozenset[str], frozenset[str]]
    records: Sequence[Record]


class QueueCycles:
    """Plans cycles over the queues, with what is kept between them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._planner = QueuePlanner(cache.backfills)
        self._active: list[ActiveGang] = []
        self._in_parts: tuple[Sequence[ActiveGang], Mapping[str, Surplus], Sequence[ActiveGang]] = (
            [],
            {},
            [],
        )
        self._parts = Parts()
        self._active_of: tuple[int, frozenset[str], frozenset[str]] | None = None
        self._forest: Forest | None = None
        self._bound = timedelta(0)
        """The least starvation bound of any queue of the forest."""
        self._aside: dict[str, tuple[Record, datetime]] = {}
        """The gangs that are set aside, by uid: as long as their records are the same, and until these times."""

    def plan_in_steps(
        self, rules: QueueRules, snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> Steps[QueuePlan]:
        """The news of one cycle, which decides on the queue of this moment; its steps read nothing of the cache.

        To be called at the moment of the snapshots: of a surplus pod that is gone, but not from the snapshot, the room
        would not be free later, and the whole gang would be preempted for it.
        """
        self._aside = {
            uid: (record, until)
            for uid, (record, until) in self._aside.items()
            if now < until and self._cache.get(uid) is record
        }
        changes, surplus = self._cache.pending_queue.changes_for(self._planner, now), self._cache.surplus()
        self._gather_running(rules.forest, snapshots, now)
        # Where no queue is declared, no gang gives way, and room is free once it is released.
        holders = self._holders_of(snapshots) if rules.forest.is_declared else None
        return self._plan(changes, surplus, holders, rules.selected, snapshots, now)

    def _plan(
        self,
        changes: Changes,
        surplus: Mapping[str, Surplus],
        holders: _Holders | None,
        rules: QueueRules,
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
    ) -> Steps[QueuePlan]:
        active: Sequence[ActiveGang] = ()
        if holders is not None:
            yield from self._update_active(holders, snapshots)
            active = yield from self._with_surplus(surplus)
        news = yield from self._planner.news_in_steps(changes, rules, active, snapshots, now)
        return QueuePlan(
            tuple(each for each in news if isinstance(each, Preempting | Drained)),
            tuple(each for each in news if not isinstance(each, Preempting | Drained)),
            self._planner.failures,
        )

    def _gather_running(
        self, forest: Forest, snapshots: Mapping[str, ClusterSnapshot], now: datetime
    ) -> None:
        """Gather the running gangs, whose ends date reservations, if a gang may be past its starvation bound."""
        if forest is not self._forest:
            bounds = (each.starvation_bound for each in forest.places.values())
            self._forest, self._bound = forest, min(bounds, default=forest.defaults.starvation_bound)
        since = self._cache.pending_queue.first_blocked
        may_begin = since is not None and now - since >= self._bound
        self._cache.gather_running(snapshots if may_begin else ())

    def forget(self) -> None:
        """Forget what is kept between cycles: an exception ended one, so it may be half changed."""
        self._planner = QueuePlanner(self._cache.backfills)
        self._parts, self._in_parts, self._active_of = Parts(), ([], {}, []), None

    @property
    def has_left_out(self) -> bool:
        """True if the last cycle left gangs to a following one."""
        return self._planner.has_left_out

    @property
    def aside(self) -> Collection[str]:
        """The uids of the gangs that hold capacity and are set aside, because they caused exceptions."""
        return self._aside.keys()

    def plan_alone(
        self,
        record: Record | None,
        rules: QueueRules,
        active: Sequence[ActiveGang],
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
    ) -> Steps[None]:
        """Plan one queued gang, or none, as if no other waited; changes copies of the snapshots only.

        The `rules` are those that are `selected` for a plan.

        If gangs that hold capacity cause an exception, which is none of this function then, these are set aside from
        then on (logged).
        """
        error = yield from self._error_of(record, rules, active, snapshots, now, frozenset())
        if error is None:
            return

        probe = None if record is None else plain_of(record)

        def raises(aside: frozenset[str]) -> Steps[bool]:
            return (yield from self._error_of(probe, rules, active, snapshots, now, aside)) is not None

        holders = {gang.record.uid: gang.record for gang in active if gang.record.uid not in self._aside}
        blamed = yield from to_blame_in_steps(
            raises, [Holder(uid, each.namespace) for uid, each in holders.items()]
        )
        if not blamed:
            raise error
        log.internal_error("scheduler", error, appwrapper=min(blamed))
        self._aside |= {uid: (holders[uid], now + BARRED_FOR) for uid in blamed}

    def _error_of(
        self,
        record: Record | None,
        rules: QueueRules,
        active: Sequence[ActiveGang],
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
        aside: frozenset[str],
    ) -> Steps[Exception | None]:
        """The exception of a plan of one queued gang, or of none, while these gangs are set aside; None without."""
        planner = QueuePlanner()
        only = Changes({} if record is None else {record.uid: record}, are_all=True)
        try:
            held = with_aside(active, aside.union(self._aside))
            yield from planner.news_in_steps(only, rules, held, copies_of(snapshots), now)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            return error
        return next((each.error for each in planner.failures), None)

    def active_in_steps(self, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[Sequence[ActiveGang]]:
        """Every gang that holds capacity, as queues see it; the oldest dispatch first.

        Its surplus is in parts, which free their room in the snapshots. To be called at the moment of these; the steps
        read nothing of the cache.
        """
        return self._active_now(self._cache.surplus(), self._holders_of(snapshots), snapshots)

    def _active_now(
        self, surplus: Mapping[str, Surplus], holders: _Holders, snapshots: Mapping[str, ClusterSnapshot]
    ) -> Steps[Sequence[ActiveGang]]:
        yield from self._update_active(holders, snapshots)
        active = yield from self._with_surplus(surplus)
        _log_failures((yield from split(by_gang(active), snapshots)))
        return active

    def awaited_growth(self, forest: Forest) -> frozenset[str]:
        """The uids of the AppWrappers with growth that no pod uses, and that a gang waits for since the last cycle."""
        queued = self._cache.queued()
        promised = (each for each in queued if each.pending and each.pending.reason == AWAITING_RELEASE)
        _, _, gangs = self._in_parts
        return awaited_growth(gangs, promised, forest)

    def awaited_room_in_steps(
        self, snapshots_of: Callable[[], Mapping[str, ClusterSnapshot]], now: datetime
    ) -> Steps[frozenset[str]] | None:
        """As `awaited_growth` where no queues are declared: a gang waits for nothing but room there.

        None if no gang has grown, or none waits. The steps read nothing of the cache.
        """
        surplus = self._cache.surplus()
        if not surplus or not any(_waits_for_room(each, now) for each in self._cache.queued()):
            return None
        grown = [record for uid in surplus if (record := self._cache.get(uid)) is not None]
        return _awaited_room(list(self._cache.queued()), grown, surplus, snapshots_of(), now)

    def _with_surplus(self, surplus: Mapping[str, Surplus]) -> Steps[Sequence[ActiveGang]]:
        """The active gangs, those with surplus pods in parts; the same object as long as nothing of it changes."""
        gangs, known, found = self._in_parts
        if gangs is not self._active or known != surplus:
            gangs = self._active
            found = yield from self._parts.in_steps(gangs, surplus)
            _log_failures(self._parts.failures)
            self._parts.failures.clear()
            self._in_parts = gangs, surplus, found
        return found

    def _holders_of(self, snapshots: Mapping[str, ClusterSnapshot]) -> _Holders:
        """The gangs that hold capacity at this moment; without their records if they are those of the last list."""
        answering = frozenset(name for name, each in snapshots.items() if not is_unreachable(each.closed))
        version = self._cache.holders_version, answering, frozenset(self._aside)
        return _Holders(version, () if version == self._active_of else tuple(self._cache.all_holders()))

    def _update_active(self, holders: _Holders, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[None]:
        """Make the list of active gangs anew if one of them, or which clusters answer, has changed."""
        if holders.version == self._active_of:
            return
        active = yield from active_gangs(holders.records, snapshots, self._aside)
        active.sort(key=lambda each: (each.dispatched_at, each.record.uid))
        self._active, self._active_of = active, holders.version


def _awaited_room(
    queued: Sequence[Record],
    grown: Iterable[Record],
    surplus: Mapping[str, Surplus],
    snapshots: Mapping[str, ClusterSnapshot],
    now: datetime,
) -> Steps[frozenset[str]]:
    active = yield from active_gangs(grown, snapshots)
    in_parts = Parts()
    parts = yield from in_parts.in_steps(active, surplus)
    _log_failures([*in_parts.failures, *(yield from split(by_gang(parts), snapshots))])
    waiting = (each for each in queued if _waits_for_room(each, now))
    return (yield from awaited_room(parts, waiting, snapshots))


def _waits_for_room(record: Record, now: datetime) -> bool:
    return record.pending is not None and record.pending.reason == INSUFFICIENT and is_eligible(record, now)


def active_gangs(
    records: Iterable[Record], snapshots: Mapping[str, ClusterSnapshot], aside: Collection[str] = ()
) -> Steps[list[ActiveGang]]:
    """The gangs among these records that hold capacity; those of `aside` (uids), and with an exception, set aside."""
    found: list[ActiveGang] = []
    for part in incremental.in_parts(records):
        for each in part:
            try:
                gang = set_aside(each) if each.uid in aside else _active(each, snapshots)
            except Exception as error:  # noqa: BLE001  # it holds its capacity nevertheless
                _log_failures([Failure.of(each.uid, error)])
                gang = set_aside(each)
            found += [] if gang is None else [gang]
        yield
    return found


def _log_failures(failures: Iterable[Failure]) -> None:
    """Log and count exceptions about gangs that hold capacity."""
    for each in failures:
        log.internal_error("scheduler", each.error, appwrapper=each.uid)


def _active(record: Record, snapshots: Mapping[str, ClusterSnapshot]) -> ActiveGang | None:
    if record.attempt is None:
        return None
    snapshot = snapshots.get(record.attempt.cluster)
    return active_gang(record, is_unreachable=snapshot is None or is_unreachable(snapshot.closed))


def leaving(group: Preempting | Drained) -> Sequence[ActiveGang]:
    """The gangs of a group that leave, and the parts of gangs that are given up."""
    return group.gangs if isinstance(group, Drained) else [victim for victim, _ in group.victims]


def are_current(group: Preempting | Drained, cache: Cache) -> bool:
    """True if no record of a group has changed since the cycle."""
    records: Iterable[Record] = (each.record for each in leaving(group))
    if isinstance(group, Preempting) and not cache.pending_queue.holds(group.record):
        return False
    return all(cache.get(record.uid) is record for record in records)
