"""What the queues of a pending gang have and use, and why each gang of its trees is not preempted for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.accounts import tree_quotas
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import Reclaim, Sharing, WithinQueue
from dispatcher.core.scheduling.preemption.victims import may_preempt
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.search import uses_any

NONE_CLOSED: Final[Mapping[str, str]] = {}


class AccountRow(Struct, frozen=True):
    """The account of one queue and resource, in base units, with every gang that holds capacity now.

    `available` is for one more gang of the pending gang's leaf at this queue, `most` if nobody used anything; both are
    None under the sharing Division, where `limit` bounds the use instead (None: no limit). `borrows` is what the queue
    uses beyond its own quota.
    """

    queue: str
    resource: str
    nominal: int
    used: int
    borrows: int
    kept: int
    available: int | None = None
    most: int | None = None
    limit: int | None = None


class Spared(Struct, frozen=True):
    """A gang that is not preempted for the pending one, and why; `queue` is its queue in the tree that they share."""

    gang: ActiveGang
    queue: str
    reason: str


class QueueReport:
    """The queues of one cycle, for explanations. `active` are the gangs that hold capacity."""

    def __init__(self, forest: Forest, active: Iterable[ActiveGang], now: datetime) -> None:
        self._active = sorted(active, key=lambda each: each.record.key)
        self._now = now
        self._ledger = QuotaLedger(forest, tree_quotas(forest))
        self._forest = self._ledger.forest
        for gang in self._active:
            self._ledger.charge(gang.leaves, gang.record.quota_charge, gang.record.priority)

    def accounts(self, record: Record) -> Iterator[AccountRow]:
        """The accounts of a gang's leaves and of all queues above them, of the limited resources that it asks for."""
        for place in self._forest.places_of(record.leaves):
            quota = self._ledger.accounts[place.root].quota
            for resource, _ in quota.asked(record.gang.charged):
                yield from (self._row(self._forest.places[name], resource) for name in place.path)

    def borrowers(self, record: Record) -> Iterator[AccountRow]:
        """The accounts of other leaves of its trees that borrow what the gang asks for, the largest first."""
        for place in self._forest.places_of(record.leaves):
            account = self._ledger.accounts[place.root]
            leaves = [each for each in self._forest.below(place.root) if each.is_leaf and each != place]
            for resource, _ in account.quota.asked(record.gang.charged):
                rows = [self._row(each, resource) for each in leaves if account.borrowed(each.name, resource)]
                yield from sorted(rows, key=lambda row: (-row.borrows, row.queue))

    def spared(self, record: Record, closed: Mapping[str, str] = NONE_CLOSED) -> Iterator[Spared]:
        """The gangs of its trees that hold something the gang asks for, each with why it is not preempted.

        `closed` has the reason of each cluster in which no release lets the gang go; empty for a gang that lacks quota,
        which any cluster can release.
        """
        gang = PendingGang(record)
        for place in self._forest.places_of(record.leaves):
            tree = self._ledger.accounts[place.root].quota.tree.names
            asked = list(record.gang.demand)
            for other in self._active:
                for leaf in self._forest.charged(other.leaves):
                    if leaf in tree and uses_any(other, asked):
                        its = self._forest.places[leaf]
                        yield Spared(other, leaf, self._why_spared(gang, place, other, its, closed))

    def _row(self, place: Place, resource: str) -> AccountRow:
        account = self._ledger.accounts[place.root]
        quota = account.quota.queues[place.name]
        row = AccountRow(
            queue=place.name,
            resource=resource,
            nominal=quota.total[resource],
            used=account.plain[place.name][resource],
            borrows=account.borrowed(place.name, resource),
            kept=quota.kept[resource],
        )
        if place.sharing is Sharing.DIVISION:
            return replace(row, limit=quota.limit[resource])
        return replace(row, available=account.available(place.name, resource), most=quota.most[resource])

    def _why_spared(
        self,
        gang: PendingGang,
        place: Place,
        other: ActiveGang,
        its: Place,
        closed: Mapping[str, str],
    ) -> str:
        ran, priority = self._now - other.dispatched_at, other.record.priority
        if other.is_leaving:
            return "it is leaving"
        if other.is_fixed:
            return "it is being created, or its cluster does not answer"
        if not its.is_preemptible(priority):
            return (
                f"gangs of queue {its.name} with priority {its.preemptible_below} or more are never preempted"
            )
        if other.is_protected(its.min_runtime, self._now):
            least = int(its.min_runtime.total_seconds())
            return f"it has run for {int(ran.total_seconds())} s, and is not preempted before {least} s"
        if gang.record.never_preempts:
            return NEVER_PREEMPTS
        if not may_preempt(gang, place, other, its.name):
            preemption = place.queue.preemption
            if its == place:
                return _NOT_ALLOWED_INSIDE[preemption.within_queue]
            return _NOT_ALLOWED_OUTSIDE[preemption.reclaim]
        if its != place and self._is_within(place, its, gang.record):
            return f"queue {its.name}, or one above it, is within its own quota"
        if other.cluster in closed:
            return (
                f"it runs in cluster {other.cluster}, which does not take this gang: {closed[other.cluster]}"
            )
        return "preempting it would not suffice, or is not needed"

    def _is_within(self, place: Place, its: Place, record: Record) -> bool:
        """True if a queue from the other leaf up to below the common ancestor uses no more than its own quota."""
        account = self._ledger.accounts[place.root]
        asked = [name for name, _ in account.quota.asked(record.gang.charged)]
        between = [name for name in its.path if name not in place.path]
        return any(account.is_within(name, asked) for name in between)


NEVER_PREEMPTS: Final = (
    "this gang preempts no other: its pods or its priority class say Never, or there is no such class"
)

_NOT_ALLOWED_INSIDE: Final = {
    WithinQueue.NEVER: "gangs of this queue do not preempt each other",
    WithinQueue.LOWER_PRIORITY: "its priority is not lower",
    WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY: "its priority is not lower, and it is not newer with the same priority",
}
_NOT_ALLOWED_OUTSIDE: Final = {
    Reclaim.NEVER: "this queue reclaims nothing from other queues",
    Reclaim.LOWER_PRIORITY: "its priority is not lower, and this queue reclaims only from lower priorities",
    Reclaim.ANY: "",
}
