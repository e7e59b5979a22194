"""The quota that growth of running gangs may take: that of their queues, less what is promised to gangs that wait.

Growth counts in the accounts of the queues as they are now, and as they will be once the gangs that leave are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT_QUOTA, PREEMPTED_TOO_OFTEN, RESERVED
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle.refusals import Refusals
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.growing import GrowthRefusal
from dispatcher.core.scheduling.sharing.division import Shares, divide_all_in_steps
from dispatcher.core.scheduling.sharing.gangs import count_preemptions, count_taken, gave_way_too_often
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger, now_and_later
from dispatcher.core.scheduling.sharing.quota_reservations import kept_for_others


class GrowthQuota:
    """The accounts of all queues now, and `later`, once those that leave are gone and promises are kept."""

    def __init__(self, facts: GrantFacts, now: QuotaLedger, later: QuotaLedger) -> None:
        self._forest = forest = now.forest
        self._at = facts.now
        self._now, self.later = now, later
        for record in facts.waiting.promised:
            self.later.charge(record.leaves, record.gang.charged, record.priority)
        self._hold(facts)
        self._answers = Refusals(forest, self._now, {}, {}, has_members=False)

    def shares_in_steps(
        self, wanted: Counter[tuple[tuple[str, ...], Resources]], snapshots: Mapping[str, ClusterSnapshot]
    ) -> Steps[dict[str, Shares]]:
        """The fair shares of the trees with the sharing Division, by root, where gangs want so much by leaves."""
        pending: dict[str, list[Resources]] = {}
        for (leaves, demand), count in wanted.items():
            for leaf in leaves:
                pending.setdefault(leaf, []).append(demand * count)
        return divide_all_in_steps(self.later.accounts, self._forest, snapshots, pending)

    def refusal(self, record: Record, increase: Resources) -> GrowthRefusal | None:
        """Why the queues of a gang have no quota for that much more."""
        lacking = self._answers.lacking_quota(record.leaves, increase, record.priority)
        if lacking is not None:
            return GrowthRefusal(lacking.reason, lacking.message)
        if exhausted := self._exhausted(record, increase):
            return exhausted
        for ledger in (self._now, self.later):
            if not ledger.has_quota(record.leaves, increase, record.priority):
                return GrowthRefusal(RESERVED, kept_for_others(", ".join(record.leaves)))
        return None

    def _exhausted(self, record: Record, increase: Resources) -> GrowthRefusal | None:
        """That a gang which gave way too often would have to borrow for its growth; None if it may, or need not."""
        times = count_preemptions(record, self._at) + count_taken(record, self._at)
        for place in self._forest.places_of(record.leaves):
            if not place.max_preemptions or times < place.max_preemptions:
                continue
            if self.later.accounts[place.root].would_borrow(place.name, increase):
                message = gave_way_too_often("was preempted or gave up surplus", times)
                return GrowthRefusal(PREEMPTED_TOO_OFTEN, message)
        return None

    def charge(self, record: Record, increase: Resources) -> None:
        """Charge a grant."""
        for ledger in (self._now, self.later):
            ledger.charge(record.leaves, increase, record.priority)

    def _hold(self, facts: GrantFacts) -> None:
        """Hold back quota for heads and starved gangs, as the cycle does."""
        starved = {each.uid: each for each in facts.waiting.starved}
        holding = {(name, each.uid): each for name, each in facts.waiting.heads.items()}
        for uid, record in starved.items():
            holding |= {(place.name, uid): record for place in self._forest.places_of(record.leaves)}
        for (name, uid), record in holding.items():
            place = self._forest.places[name]
            if record.pending is None or record.pending.reason != INSUFFICIENT_QUOTA:
                continue
            is_first = facts.waiting.heads.get(name) is record
            hold = facts.quota.hold(place, record, is_first=is_first, is_starved=uid in starved)
            if hold is not None:
                self._now.hold(hold)
                self.later.hold(hold)


def growth_quota_in_steps(facts: GrantFacts) -> Steps[GrowthQuota]:
    """The quota that a pass may grant, by the gangs that hold capacity now."""
    now, later = yield from now_and_later(facts.forest, facts.active)
    return GrowthQuota(facts, now, later)
