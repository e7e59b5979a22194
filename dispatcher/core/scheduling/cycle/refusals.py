"""Why a gang is not dispatched in a cycle over queues: pending reasons, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.quantity import in_words, quantity
from dispatcher.core.model.records.pending_reasons import (
    INSUFFICIENT_QUOTA,
    LARGER_THAN_QUOTA,
    NAMESPACE_NOT_ALLOWED,
    OVER_NOMINAL_QUOTA,
    QUEUE_NOT_LEAF,
    QUEUE_STOPPED,
    RESERVED,
)
from dispatcher.core.model.records.record import Borrower, Pending, QuotaSummary, Record
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.access import why_not_served
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import QueueingStrategy, Sharing, StopPolicy
from dispatcher.core.scheduling.cycle.news import Unplaced
from dispatcher.core.scheduling.cycle.outcomes import (
    Impossible,
    NotEvaluated,
    Outcome,
    Waiting,
    not_evaluated,
    not_found,
)
from dispatcher.core.scheduling.fit.refused import ClusterShortfall, Refused
from dispatcher.core.scheduling.sharing.gangs import PendingGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.quota_reservations import kept_for_others

MOST_BORROWERS: Final = 3
"""Borrowing queues that an answer names."""


class Refusals(Struct, frozen=True):
    """The answers for gangs that a cycle does not dispatch. `ledger` has every gang that holds quota now.

    `namespaces` are the labels of each namespace. `heads` are the waiting heads of the cycle so far, by queue.
    """

    forest: Forest
    ledger: QuotaLedger
    namespaces: Mapping[str, Mapping[str, str]]
    heads: Mapping[str, Record]
    has_members: bool

    def by_queues(self, gang: PendingGang) -> Outcome | None:
        """The answer for a gang that its queues do not take, whatever others use; None if they take it."""
        record = gang.record
        for leaf in gang.leaves:
            place = self.forest.places.get(leaf)
            if place is None:
                return not_found(record, leaf, self.forest)
            if not place.is_leaf:
                why = f"queue {leaf} has children: name one of the queues without any"
                return Impossible(record, Pending(QUEUE_NOT_LEAF, why, queue=leaf))
            labels = self.namespaces.get(record.namespace, {})
            if why := why_not_served(place, record.namespace, labels):
                return Impossible(record, Pending(NAMESPACE_NOT_ALLOWED, why, queue=leaf))
            if place.stop_policy is not StopPolicy.NONE:
                why = f"queue {place.stopped_by} is stopped: {place.stop_policy}"
                return Impossible(record, Pending(QUEUE_STOPPED, why, queue=leaf))
        for place in self.forest.places_of(gang.leaves):
            if behind := self.behind(record, place):
                return behind
        return self._larger_than_quota(gang)

    def behind(self, record: Record, place: Place) -> NotEvaluated | None:
        """The answer for a gang behind the head of a strict queue; None if the queue is not strict or has no head."""
        head = self.heads.get(place.name)
        if head is None or place.strategy is not QueueingStrategy.STRICT_FIFO:
            return None
        outcome = not_evaluated(record, head)
        if not self.forest.is_declared:
            return outcome
        return replace(outcome, pending=replace(outcome.pending, queue=place.name))

    def named(self, gang: PendingGang) -> str:
        """The queue that the answers for a gang name unless they are about another one; empty if they name none."""
        return gang.leaves[0] if self.forest.is_declared else ""

    def _larger_than_quota(self, gang: PendingGang) -> Outcome | None:
        record, demand = gang.record, gang.record.gang.charged
        for place in self.forest.places_of(gang.leaves):
            quota = self.ledger.accounts[place.root].quota
            if not quota.limited:
                continue
            asked = quota.asked(demand)
            exceeded = {
                name: bound
                for name, amount in asked
                if (bound := self._bound(place, name, record.priority)) is not None and amount > bound
            }
            if exceeded:
                parts = (
                    f"{name}: needs {in_words(name, demand[name])}, at most {in_words(name, bound)} is ever available"
                    for name, bound in exceeded.items()
                )
                why, shortest = f"quota of {place.name}: {'; '.join(parts)}", _shortest(demand, exceeded)
                return Impossible(record, self._short_of(LARGER_THAN_QUOTA, why, place, shortest))
        return None

    def _bound(self, place: Place, resource: str, priority: int) -> int | None:
        """The most that a gang of this priority may ever ask for; None if nothing limits it."""
        queues, most = self.ledger.accounts[place.root].quota.queues, self._most(place, resource)
        bounds = [] if most is None else [most]
        if not place.is_preemptible(priority):
            bounds += [queues[each].total[resource] for each in place.path]
        return min(bounds, default=None)

    def _most(self, place: Place, resource: str) -> int | None:
        """The most that a queue could use if no gang used anything; None if nothing limits it."""
        queues = self.ledger.accounts[place.root].quota.queues
        if place.sharing is not Sharing.DIVISION:
            return queues[place.name].most[resource]
        limits = (queues[each].limit[resource] for each in place.path)
        return min((limit for limit in limits if limit is not None), default=None)

    def _available(self, place: Place, resource: str) -> int | None:
        """The amount that a queue may still use now; None if nothing limits it."""
        account = self.ledger.accounts[place.root]
        if place.sharing is Sharing.DIVISION:
            return account.left_of_limits(place.name, resource)
        return account.available(place.name, resource)

    def without_room(
        self, gang: PendingGang, rejections: Sequence[Rejection], shortfalls: Sequence[ClusterShortfall]
    ) -> Waiting | Unplaced:
        """The answer for a gang with quota that some cluster would take if it were empty; none has room for it."""
        record = gang.record
        refused = Refused(record.gang, rejections, shortfalls, has_members=self.has_members)
        kept = None
        if self.forest.is_declared:
            kept = next((each for each in shortfalls if each.reason == RESERVED), None)
        if kept is None:
            return Unplaced(record, refused, self.named(gang))
        pending = refused.pending
        if pending.reason != RESERVED:
            pending = replace(pending, reason=RESERVED, cluster=kept.cluster, resource="")
        if not kept.keeper:
            pending = self._held_back(gang, pending)
        return Waiting(record, pending)

    def lacking_quota(self, leaves: Sequence[str], demand: Resources, priority: int) -> Pending | None:
        """Why the queues have no quota for one more demand; None if they have it, or it is held back for others."""
        for place in self.forest.places_of(leaves):
            account = self.ledger.accounts[place.root]
            if not place.is_preemptible(priority):
                over = account.beyond_nominal(place.name, demand)
                if over:
                    why = f"quota of {place.name}: {over[0]}: gangs that may not be preempted use all of it"
                    return self._short_of(OVER_NOMINAL_QUOTA, why, place, over[0])
        for place in self.forest.places_of(leaves):
            lacking = self.ledger.lacking(place.name, demand, priority, but_for_holds=True)
            if lacking:
                why = self._quota_message(place, lacking, demand)
                free = {name: self._available(place, name) or 0 for name in lacking}
                shortest = _shortest(demand, free)
                return self._short_of(INSUFFICIENT_QUOTA, why, place, shortest)
        return None

    def _held_back(self, gang: PendingGang, pending: Pending) -> Pending:
        """The answer with the quota that is held back from the gang for gangs that go first, if there is any."""
        demand, priority = gang.record.gang.charged, gang.record.priority
        for place in self.forest.places_of(gang.leaves):
            for name in self.ledger.lacking(place.name, demand, priority):
                why = kept_for_others(f"{place.name}: {name}")
                return replace(pending, message=why, queue=place.name)
        return pending

    def _short_of(self, reason: str, message: str, place: Place, resource: str) -> Pending:
        """The pending reason of a gang that lacks quota of a resource in one leaf, with the account of that leaf."""
        account = self.ledger.accounts[place.root]
        available, most = self._available(place, resource), self._most(place, resource)
        summary = QuotaSummary(
            nominal=quantity(resource, account.quota.queues[place.name].total[resource]),
            used=quantity(resource, account.plain[place.name][resource]),
            available="" if available is None else quantity(resource, available),
            most="" if most is None else quantity(resource, most),
            borrowers=tuple(
                Borrower(name, quantity(resource, amount))
                for name, amount in self._borrowers(place, resource)
            ),
        )
        return Pending(reason, message, resource, queue=place.name, quota=summary)

    def _quota_message(self, place: Place, lacking: Sequence[str], demand: Resources) -> str:
        account = self.ledger.accounts[place.root]
        parts = []
        for name in lacking:
            free = self._available(place, name) or 0
            nominal, used = account.quota.queues[place.name].total[name], account.plain[place.name][name]
            needs, available = in_words(name, demand[name]), in_words(name, free)
            parts.append(
                f"{name}: needs {needs}, {available} available; "
                f"nominal {in_words(name, nominal)}, {in_words(name, used)} used"
                f"{self._borrowers_in_words(place, name)}{self._left_in_words(place, name)}"
            )
        return f"quota of {place.name}: {'; '.join(parts)}"

    def _borrowers_in_words(self, place: Place, resource: str) -> str:
        found = self._borrowers(place, resource)
        named = ", ".join(f"{name} borrows {in_words(resource, amount)}" for name, amount in found)
        return f"; {named}" if named else ""

    def _left_in_words(self, place: Place, resource: str) -> str:
        """The use of gangs whose queues are gone, which no queue that is there shows as its own."""
        left = self.ledger.left(place.path, resource)
        if not left:
            return ""
        names, more = ", ".join(list(left)[:MOST_BORROWERS]), len(left) - MOST_BORROWERS
        named = f"{names} and {more} more" if more > 0 else names
        queues = f"queue {named}, which is" if len(left) == 1 else f"queues {named}, which are"
        return f"; gangs of {queues} gone, use {in_words(resource, sum(left.values()))}"

    def _borrowers(self, place: Place, resource: str) -> list[tuple[str, int]]:
        """The other leaves of the tree that borrow most of a resource, with the amounts."""
        if place.sharing is Sharing.DIVISION:
            return []
        account, places = self.ledger.accounts[place.root], self.ledger.forest.places
        used, queues = account.used, account.quota.queues
        # Without a call for each queue: each refused class asks for all queues of its tree.
        borrowed = [
            (name, amount)
            for name in account.quota.tree.names
            if (amount := used[name][resource] - queues[name].own[resource]) > 0
            and name != place.name
            and places[name].is_leaf
        ]
        return sorted(borrowed, key=lambda each: (-each[1], each[0]))[:MOST_BORROWERS]


def _shortest(demand: Resources, allowed: Mapping[str, int]) -> str:
    """The resource of which the largest part of the demand is missing; of equals the first."""
    return max(allowed, key=lambda name: Fraction(demand[name] - allowed[name], demand[name]))
