"""The records of all AppWrappers, as last committed: the scheduler reads the cache instead of the database.

The cache is loaded once at takeover. Afterwards only the leader's own commits change it. A record that holds capacity
is reserved in its cluster's ledger in the same call, so capacity and queue never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Final, NamedTuple

from dispatcher import log
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.gangs.growth import PodsByTemplate
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import ACTIVE, HOLDING, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.growth.growing import Growing
from dispatcher.core.scheduling.preemption.surplus import NO_SURPLUS, Surplus, surplus_of
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue

_UNDISPATCHED: Final = frozenset({Phase.QUEUED, Phase.SUSPENDED})
"""Phases in which an AppWrapper counts against its namespace's bound, although it holds no capacity."""


class _KnownSurplus(NamedTuple):
    """The surplus of a gang as of one record and one version of its pods."""

    record: Record
    ledger: CapacityLedger
    version: tuple[object, object]
    surplus: Surplus

    def is_of(self, record: Record, ledger: CapacityLedger) -> bool:
        """True if it is still the surplus of the gang."""
        is_same = self.record is record and self.ledger is ledger
        return is_same and all(map(is_, self.version, ledger.surplus_version(record.uid)))


class Cache:
    """Records by uid, the queued ones in `pending_queue`, and the reservations that follow from them.

    `holders_version` grows with each change of a gang that holds capacity, and `dispatches` with each dispatch.

    `awaited_growth` are the uids of AppWrappers with growth that no pod uses, and that a gang waited for in the last
    cycle.

    `on_left` is called with the namespace of each AppWrapper that is no longer queued or suspended. `backfills` are the
    backfill reservations, within `bounds`.
    """

    def __init__(
        self,
        ledgers: Mapping[str, CapacityLedger],
        on_left: Callable[[str], None] = lambda _namespace: None,
        bounds: Bounds | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self.backfills = Backfills(Backfill(bounds), Backfill(bounds))
        self.pending_queue = PendingQueue()
        self._ledgers = ledgers
        self._records: dict[str, Record] = {}
        self._charged: dict[str, tuple[str, Resources, PodsByTemplate | None, Assignment]] = {}
        self._unsent: dict[str, int] = {}
        self._withheld: frozenset[str] = frozenset()
        self._holders: dict[str, dict[str, Record]] = {}
        self._gathered: dict[str, tuple[Record, ...]] = {}
        """The records that hold capacity, by cluster; a cluster is left out once one of its records has changed."""
        self.holders_version = 0
        self.dispatches = 0
        self._undispatched: dict[str, dict[str, None]] = {}
        self._on_left = on_left
        self._by_cluster: dict[str, dict[str, None]] = {}
        self._requesting: set[str] = set()
        self._grown: set[str] = set()
        self._surplus: dict[str, _KnownSurplus] = {}
        self._without_surplus: dict[str, Record] = {}
        self.awaited_growth: frozenset[str] = frozenset()

    def load(self, records: Iterable[Record]) -> None:
        """Put the records that the database held at takeover."""
        for record in records:
            self.put(record)

    def put(self, record: Record) -> None:
        """Replace the record of one AppWrapper by the one that was just committed."""
        before = self._records.get(record.uid)
        self._note_dispatch(before, record)
        self._note_holder(before, record)
        self._file(before, None if record.phase is Phase.DELETED else record)
        self._enqueue(record)
        self._charge(record)
        self._note_undispatched(before, record)
        (self._requesting.discard if record.growth_request is None else self._requesting.add)(record.uid)
        has_grown = (
            record.phase in ACTIVE and record.attempt is not None and bool(record.attempt.growth_charge)
        )
        (self._grown.add if has_grown else self._grown.discard)(record.uid)

    async def withhold(self, uids: Collection[str], slices: Slices) -> None:
        """Keep these AppWrappers, and no others, out of the pending queue: they may run already in an unknown cluster.

        Records that are put meanwhile are queued correctly; the others are at the end.
        """
        before, self._withheld = self._withheld, frozenset(uids)
        await slices.for_each(before ^ self._withheld, self._enqueue_anew)

    def follow_terms(self) -> None:
        """Have the ledgers compare the queued gangs with pods, before snapshots of them are taken."""
        followed = self.pending_queue.followed
        for ledger in self._ledgers.values():
            ledger.follow(followed)

    def get(self, uid: str) -> Record | None:
        """The record of one AppWrapper; None if there is none."""
        return self._records.get(uid)

    def is_unsent(self, record: Record) -> bool:
        """True if this leader dispatched the gang, and has sent nothing of the attempt to its cluster."""
        return self._unsent.get(record.uid) == record.attempts

    def note_sent(self, uid: str) -> None:
        """Note that the cluster may have objects of the current attempt from now on."""
        self._unsent.pop(uid, None)

    async def growing(self, is_wanted: Callable[[Record], bool], slices: Slices) -> list[Growing]:
        """The gangs with pods that wait behind the gate, or with a growth request in the record; O(their number).

        They may change between slices: a decision about what a gang was is not committed.
        """
        found: list[Growing] = []

        def look(uid: str) -> None:
            record = self._records.get(uid)
            if record is not None and record.phase in ACTIVE:
                found.extend(self._growing_of(record, is_wanted))

        with_gated = (uid for ledger in self._ledgers.values() for uid in ledger.with_gated())
        await slices.for_each(sorted({*self._requesting, *with_gated}), look)
        return found

    def _growing_of(self, record: Record, is_wanted: Callable[[Record], bool]) -> list[Growing]:
        """The growth of an active gang; none if it has none or is not wanted, or if that raises (logged)."""
        ledger = self._ledgers.get(record.attempt.cluster) if record.attempt else None
        if ledger is None:
            return []
        try:
            if not is_wanted(record):
                return []
            growing = Growing.of(record, ledger)
            return [growing] if record.growth_request is not None or growing.has_waiting else []
        except Exception as error:  # noqa: BLE001  # one gang must not end the pass of the others
            failure = Failure.of(record.uid, error)
            log.internal_error("growth", failure.error, appwrapper=record.uid)
            return []

    def surplus(self) -> dict[str, Surplus]:
        """The surplus of active gangs that grew, by the uid of the AppWrapper.

        Costs O(gangs that grew), and the pods of those that changed since the last call: a gang that did not change has
        the same value. `prepare` before it leaves few of them.
        """
        found = {}
        for uid in sorted(self._grown):
            if (surplus := self._surplus_of(uid)) is not None:
                found[uid] = surplus
        self._surplus = {uid: self._surplus[uid] for uid in found if uid in self._surplus}
        self._without_surplus = {
            uid: self._without_surplus[uid] for uid in found if uid in self._without_surplus
        }
        return found

    async def prepare(self, slices: Slices) -> None:
        """Find the surplus of each gang that changed, and the places of its pods, as far as none changes meanwhile.

        `surplus` and the snapshots of the ledgers find them done.
        """
        await slices.for_each(sorted(self._grown), self._prepare_surplus_of)
        for ledger in list(self._ledgers.values()):
            ledger.begin_round()
            while ledger.place_next():
                await slices.give_way()

    @property
    def has_untried_places(self) -> bool:
        """True if places of running gangs are to be sought in a following cycle, even if nothing changes until then."""
        return any(ledger.has_untried for ledger in self._ledgers.values())

    def _prepare_surplus_of(self, uid: str) -> None:
        if uid in self._grown:
            self._surplus_of(uid)

    def _is_known(self, uid: str) -> bool:
        known, record = self._surplus.get(uid), self._records[uid]
        ledger = self._ledgers.get(record.attempt.cluster) if record.attempt else None
        return known is not None and ledger is not None and known.is_of(record, ledger)

    def _surplus_of(self, uid: str) -> Surplus | None:
        """The surplus of a gang; none until its record changes if that raises an exception (logged)."""
        record = self._records[uid]
        ledger = self._ledgers.get(record.attempt.cluster) if record.attempt else None
        if ledger is None:
            return None
        if self._without_surplus.get(uid) is record:
            return NO_SURPLUS
        try:
            if not self._is_known(uid):
                version = ledger.surplus_version(uid)
                self._surplus[uid] = _KnownSurplus(record, ledger, version, surplus_of(record, ledger))
            return self._surplus[uid].surplus
        except Exception as error:  # noqa: BLE001  # one gang must not end the cycle of the others
            failure = Failure.of(uid, error)
            log.internal_error("scheduler", failure.error, appwrapper=uid)
            self._surplus.pop(uid, None)
            self._without_surplus[uid] = record
            return NO_SURPLUS

    def cluster_of(self, uid: str) -> str:
        """The name of the cluster that has, or will have, objects of an AppWrapper; the hub's if no cluster does."""
        record = self._records.get(uid)
        if record is None or record.attempt is None:
            return HUB_CLUSTER
        return record.attempt.cluster if record.has_objects else HUB_CLUSTER

    def uids(self) -> list[str]:
        """The uids of all records."""
        return list(self._records)

    def queued(self) -> Iterable[Record]:
        """The records in the pending queue, in no order."""
        return self.pending_queue

    def records(self) -> Iterable[Record]:
        """Every record, in no order."""
        return self._records.values()

    def records_in(self, cluster: str) -> list[Record]:
        """The records whose last attempt was in a cluster, in no order; O(their number)."""
        return [self._records[uid] for uid in self._by_cluster.get(cluster, ())]

    def count_holders(self, cluster: str) -> int:
        """How many AppWrappers hold capacity of a cluster, connected or not."""
        return len(self._holders.get(cluster, ()))

    def holders(self, cluster: str) -> tuple[Record, ...]:
        """The records that hold capacity of a cluster, connected or not, in no order.

        It is the same object as long as none of them changes.
        """
        known = self._gathered.get(cluster)
        if known is None:
            known = self._gathered[cluster] = tuple(self._holders.get(cluster, {}).values())
        return known

    def gather_running(self, clusters: Iterable[str]) -> None:
        """Let the next reservations be estimated by the gangs that hold capacity of these clusters at this moment."""
        held = {name: self.holders(name) for name in clusters}
        self.backfills.room.running = Running(lambda name: held.get(name, ()))

    def all_holders(self) -> Iterable[Record]:
        """The records that hold capacity, in no order."""
        return chain.from_iterable(each.values() for each in self._holders.values())

    def count_undispatched(self, namespace: str) -> int:
        """How many AppWrappers of a namespace are queued or suspended."""
        return len(self._undispatched.get(namespace, ()))

    def undispatched(self, namespace: str) -> list[str]:
        """The uids of the queued and suspended AppWrappers of a namespace; O(their number)."""
        return list(self._undispatched.get(namespace, ()))

    def all_undispatched(self) -> list[str]:
        """The uids of all queued and suspended AppWrappers; O(their number)."""
        return [uid for uids in self._undispatched.values() for uid in uids]

    def occupied(self) -> set[str]:
        """The names of the clusters that have, or will have, objects of AppWrappers, and the hub's."""
        return set(map(self.cluster_of, self._records))

    async def charge_anew(self, cluster: str, slices: Slices) -> None:
        """Reserve the demand of the gangs in a cluster again, after its ledger was replaced or dropped.

        Until the end the ledger lacks some reservations; those of records that are put meanwhile are right.
        """
        await slices.for_each([record.uid for record in self.records_in(cluster)], self._charge_anew)

    def _charge_anew(self, uid: str) -> None:
        self._charged.pop(uid, None)
        if uid in self._records:
            self._charge(self._records[uid])

    def _enqueue_anew(self, uid: str) -> None:
        if uid in self._records:
            self._enqueue(self._records[uid])

    def _file(self, before: Record | None, after: Record | None) -> None:
        if before is not None and before.attempt is not None:
            del self._by_cluster[before.attempt.cluster][before.uid]
        if before is not None and after is None:
            del self._records[before.uid]
        if after is not None:
            self._records[after.uid] = after
            if after.attempt is not None:
                self._by_cluster.setdefault(after.attempt.cluster, {})[after.uid] = None

    def _enqueue(self, record: Record) -> None:
        if record.phase is Phase.QUEUED and record.uid not in self._withheld:
            self.pending_queue.put(record)
        else:
            self.pending_queue.remove(record.uid)

    def _note_dispatch(self, before: Record | None, after: Record) -> None:
        if before is not None and before.phase is Phase.QUEUED and after.phase is Phase.DISPATCHING:
            self._unsent[after.uid] = after.attempts
            self.dispatches += 1
        elif after.phase is not Phase.DISPATCHING:
            self.note_sent(after.uid)

    def _note_undispatched(self, before: Record | None, after: Record) -> None:
        was_undispatched = before is not None and before.phase in _UNDISPATCHED
        is_undispatched = after.phase in _UNDISPATCHED
        if is_undispatched and not was_undispatched:
            self._undispatched.setdefault(after.namespace, {})[after.uid] = None
        elif was_undispatched and not is_undispatched:
            del self._undispatched[after.namespace][after.uid]
            if not self._undispatched[after.namespace]:
                del self._undispatched[after.namespace]
            self._on_left(after.namespace)

    def _note_holder(self, before: Record | None, after: Record) -> None:
        self.holders_version += after.holds_capacity or (before is not None and before.holds_capacity)
        if before is not None and before.attempt:
            self._holders.get(before.attempt.cluster, {}).pop(before.uid, None)
            self._gathered.pop(before.attempt.cluster, None)
        if after.attempt and after.holds_capacity:
            self._holders.setdefault(after.attempt.cluster, {})[after.uid] = after
            self._gathered.pop(after.attempt.cluster, None)

    def _charge(self, record: Record) -> None:
        """Charge a gang in the ledger of its cluster; with the worst case if that raises an exception (logged).

        A leader that could not load one record could not begin.
        """
        try:
            self._charge_exactly(record)
        except Exception as error:  # noqa: BLE001  # the records of the others have to be charged
            failure = Failure.of(record.uid, error)
            log.internal_error("scheduler", failure.error, appwrapper=record.uid)
            self._charge_worst(record)

    def _charge_worst(self, record: Record) -> None:
        """Charge the demand and all growth of a record in a phase that holds capacity, as one amount without pods."""
        charged = self._charged.pop(record.uid, None)
        attempt = record.attempt if record.phase in HOLDING else None
        if (
            charged is not None
            and charged[0] in self._ledgers
            and (attempt is None or attempt.cluster != charged[0])
        ):
            self._ledgers[charged[0]].release(record.uid)
        if attempt is not None and attempt.cluster in self._ledgers:
            amounts = record.gang.demand + (attempt.growth[-1].amounts if attempt.growth else NOTHING)
            self._ledgers[attempt.cluster].reserve(record.uid, Gang(amounts))
            self._charged[record.uid] = attempt.cluster, NOTHING, None, ASSIGNED_NOWHERE

    def _charge_exactly(self, record: Record) -> None:
        attempt = record.attempt if record.holds_capacity else None
        cluster = attempt.cluster if attempt and not attempt.awaits_capacity else None
        charged = self._charged.get(record.uid)
        # The room of pods that are given up is free once they are gone.
        grown = attempt.shrinking.growth if attempt and attempt.shrinking else record.grown
        assignment = attempt.assignment if attempt else ASSIGNED_NOWHERE
        charge = (cluster, grown, record.granted, assignment) if cluster is not None else None
        if charged == charge:
            return
        if charged is not None:
            if charged[0] != cluster and charged[0] in self._ledgers:
                self._ledgers[charged[0]].release(record.uid)
            del self._charged[record.uid]
        if charge is not None and charge[0] in self._ledgers:
            ledger = self._ledgers[charge[0]]
            ledger.reserve(record.uid, record.gang, assignment, grown, record.granted)
            self._charged[record.uid] = charge
