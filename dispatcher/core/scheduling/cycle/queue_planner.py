"""Cycles over queues, with what is kept between them: queued gangs by class, failed searches, input without news.

`QueueCycle` is the definition, from scratch. A `QueuePlanner` makes the same decisions, but sorts only the gangs that
changed, searches for victims only in trees that changed since an equal search failed, and plans nothing if nothing
changed since a cycle that changed no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.preemption import PREEMPTIONS_WITHIN
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle, QueueFacts, QueueNews
from dispatcher.core.scheduling.cycle.standing_refusals import StandingRefusals
from dispatcher.core.scheduling.fit.backfill import Backfills
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.search_budget import SearchBudget
from dispatcher.core.scheduling.preemption.failed_searches import FailedSearches
from dispatcher.core.scheduling.queued.pending_queue import Changes
from dispatcher.core.scheduling.queued.queued_gangs import TAKEN_IN_AT_ONCE, QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, RecentUse, charged_in
from dispatcher.core.scheduling.sharing.quota_reservations import first_place


class QueueRules(Struct, frozen=True):
    """The queues, the labels of namespaces, which queues select, and the recent use of each namespace."""

    forest: Forest
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    usage: RecentUse = field(default_factory=dict)

    @property
    def selected(self) -> QueueRules:
        """The rules of this moment for a plan: with a copy of the labels as far as they decide something.

        There are none if every queue serves all namespaces.
        """
        places = self.forest.places.values()
        are_asked = any(place.namespace_selectors or place.is_selective for place in places)
        return QueueRules(self.forest, dict(self.namespaces) if are_asked else {}, self.usage)


class _Quiet(Struct, frozen=True):
    """The input of a cycle without news. Its outcomes hold `until` then, if nothing changes."""

    rules: QueueRules
    active: Sequence[ActiveGang]
    snapshots: Mapping[str, ClusterSnapshot]
    until: datetime | None


class QueuePlanner:
    """Plans cycles over the queued gangs of a hub. The time in successive calls never decreases."""

    def __init__(self, backfills: Backfills | None = None, budget: SearchBudget | None = None) -> None:
        self.failures: Sequence[Failure] = ()
        """The exceptions for which the last cycle refused a class."""
        self._backfills = backfills or Backfills()
        self._queued = QueuedGangs()
        self._failed = FailedSearches()
        self._standing = StandingRefusals()
        self._quiet: _Quiet | None = None
        self._budget = budget or SearchBudget()

    @property
    def has_left_out(self) -> bool:
        """True if the last cycle left gangs to a following one, because its searches were over their budget."""
        return self._budget.has_left_out

    @property
    def is_quiet(self) -> bool:
        """True if a cycle of the same input would have no news, up to `quiet_until`."""
        return self._quiet is not None

    @property
    def quiet_until(self) -> datetime | None:
        """When time alone may bring news; None if it never does, or if the last cycle was not quiet."""
        return None if self._quiet is None else self._quiet.until

    def news_in_steps(
        self,
        changes: Changes,
        rules: QueueRules,
        active: Sequence[ActiveGang],
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
    ) -> Steps[list[QueueNews]]:
        """The outcomes of a cycle that change a record, and those of drained queues, in the order of the decisions.

        `changes` are those of the pending queue since the last call. `active` must be the same object as in the last
        call if no gang in it has changed. The labels in `rules` must not change later (`selected`). All steps must
        run, one cycle at a time.
        """
        self.failures = ()
        yield from self._take_in(changes, rules.forest, now)
        if not changes.records and self._is_as_before(rules, active, snapshots, now):
            return []
        self._quiet = None
        self._budget.begin()
        facts = QueueFacts(rules.forest, self._queued, active, now, rules.namespaces, rules.usage)
        cycle = yield from QueueCycle.begin_in_steps(
            facts, snapshots, self._failed, self._backfills, self._budget, self._standing
        )
        news = yield from cycle.news_in_steps()
        self.failures = cycle.failures
        for part in in_parts(news):
            self._queued.touch(each.record.uid for each in part if not isinstance(each, Drained))
            yield
        if not news and not self._queued.has_slopes and not self._budget.has_left_out:
            changes_at = next_change(facts), self._backfills.next_change(now)
            until = min((each for each in changes_at if each is not None), default=None)
            self._quiet = _Quiet(rules, active, snapshots, until)
        return news

    def _take_in(self, changes: Changes, forest: Forest, now: datetime) -> Steps[None]:
        if changes.are_all:
            self._queued, self._quiet, self._standing = QueuedGangs(forest), None, StandingRefusals()
        yield from self._queued.declare(forest, now)
        for part in in_parts(changes.records.items(), TAKEN_IN_AT_ONCE):
            for uid, record in part:
                if record is not None and is_eligible(record, now):
                    self._queued.put(record, now)
                else:
                    self._queued.remove(uid)
            yield
        self._queued.move_to(now)

    def _is_as_before(
        self,
        rules: QueueRules,
        active: Sequence[ActiveGang],
        snapshots: Mapping[str, ClusterSnapshot],
        now: datetime,
    ) -> bool:
        quiet = self._quiet
        return (
            quiet is not None
            and (quiet.until is None or now < quiet.until)
            and quiet.active is active
            and quiet.rules.forest is rules.forest
            and quiet.rules.usage is rules.usage
            and quiet.rules.namespaces == rules.namespaces
            and quiet.snapshots == snapshots
        )


def next_change(facts: QueueFacts) -> datetime | None:
    """When time alone may change an outcome; None if it never does, as long as no queued gang has a slope.

    A blocked gang starves, a running gang has run for its queue's `minRuntimeSeconds`, or a preemption counts no more.
    """
    return min((each for each in _changes(facts) if each > facts.now), default=None)


def _changes(facts: QueueFacts) -> Iterable[datetime]:
    for record in facts.queued.blocked.values():
        place = first_place(record, facts.forest)
        if record.blocked_since and place:
            yield record.blocked_since + place.starvation_bound
    shields = {place.name: place.min_runtime for place in facts.forest.places.values() if place.min_runtime}
    for gang in charged_in(facts.forest.for_quota, facts.active) if shields else ():
        yield from (gang.dispatched_at + shields[leaf] for leaf in gang.leaves if leaf in shields)
    for record in facts.queued.preempted.values():
        yield from (each + PREEMPTIONS_WITHIN for each in record.preempted_at)
