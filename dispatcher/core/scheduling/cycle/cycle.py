"""One scheduling cycle over all queues and clusters: a pure function of the gangs, the queues and the snapshots.

The cycle works on two states: now, with every gang that holds capacity, and later, without the gangs that leave. First
it drains stopped queues, then it decides for starved gangs, then for all others in turn (`turns`). A gang is dispatched
if it has quota and room both now and later; it waits if it has both later only; else victims are sought (`victims`),
which leave, and the gang gets their capacity later. So what one gang is promised no other takes, and nobody is
preempted for what is being released anyway.

Without declared queues there is one queue `default` without limits, and no answer names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self, TypeGuard

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import UNDECIDED_BY_ERROR, Failure
from dispatcher.core.model.records.pending_reasons import (
    AWAITING_RELEASE,
    ENDS_WITH_OTHERS,
    INSUFFICIENT_QUOTA,
)
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.access import take
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import QueueingStrategy, Sharing, StopPolicy
from dispatcher.core.scheduling.cycle.gang_decisions import GangDecisions
from dispatcher.core.scheduling.cycle.news import ClassRefused, NewOutcome, Unplaced, is_news, outcome_of
from dispatcher.core.scheduling.cycle.outcomes import (
    Impossible,
    NotEvaluated,
    Outcome,
    Placed,
    Preempting,
    Waiting,
)
from dispatcher.core.scheduling.cycle.refusals import Refusals
from dispatcher.core.scheduling.cycle.reservations import Reservations
from dispatcher.core.scheduling.cycle.standing_refusals import RefusedClasses, StandingRefusals
from dispatcher.core.scheduling.cycle.turns import Turns
from dispatcher.core.scheduling.fit.backfill import Backfills
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation, noted, noted_quota
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.search_budget import STEPS_OF_TRIAL, SearchBudget, steps_so_far
from dispatcher.core.scheduling.preemption.failed_searches import FailedSearches
from dispatcher.core.scheduling.preemption.surplus import by_gang, split
from dispatcher.core.scheduling.preemption.victims import VictimSearch
from dispatcher.core.scheduling.queued.cluster_answers import ClusterAnswers
from dispatcher.core.scheduling.queued.queued_gangs import QueueClass, QueuedGangs
from dispatcher.core.scheduling.queued.room_classes import Leaving
from dispatcher.core.scheduling.sharing import division, dominant_share
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import (
    ActiveGang,
    PendingGang,
    RecentUse,
    charged_in,
    leaving_by_cluster,
    rank,
)
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger, now_and_later
from dispatcher.core.scheduling.sharing.quota_reservations import (
    NO_QUOTA_RESERVATIONS,
    QuotaReservations,
    is_late,
    is_starved,
)


class Drained(Struct, frozen=True):
    """The gangs of a drained queue, which are evicted."""

    queue: str
    gangs: tuple[ActiveGang, ...]


QueueOutcome = Outcome | Drained
QueueNews = NewOutcome | Drained


def outcomes_of(news: Iterable[QueueNews]) -> list[QueueOutcome]:
    """The outcomes with their messages."""
    return [each if isinstance(each, Drained) else outcome_of(each) for each in news]


class QueueFacts(Struct, frozen=True):
    """The facts of a cycle besides the clusters. `namespaces` are the labels of each namespace.

    `reservations` are the backfill reservations of capacity by uid, and `quota` those of quota; without the first, new
    ones begin.
    """

    forest: Forest
    queued: QueuedGangs
    active: Sequence[ActiveGang]
    now: datetime
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    usage: RecentUse = field(default_factory=dict)
    reservations: Mapping[str, Reservation] | None = None
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS


class QueueShare(Struct, frozen=True):
    """The use of one valid queue before any decision, without the gangs that leave.

    `share` is None unless the sharing is DominantShare and the share is finite; `is_infinite` says that it is not.
    """

    used: Mapping[str, int]
    share: int | None = None
    is_infinite: bool = False
    fair: Mapping[str, int] | None = None


class QueueCycle:
    """One cycle. Only one of `run`, `run_in_steps` and `news_in_steps` may be called, once.

    With `failed`, a search for victims is not made again if an equal one failed, which gives the same outcomes. With
    `backfills`, the reservations of the last cycle are renewed, whatever the facts have. A class is refused if the
    decision about it raises an exception before it changes anything; these are the `failures`. With a `budget`, gangs
    beyond it have no outcome.
    """

    def __init__(
        self,
        facts: QueueFacts,
        snapshots: Mapping[str, ClusterSnapshot],
        failed: FailedSearches | None = None,
        beginning: _Beginning | None = None,
        backfills: Backfills | None = None,
        budget: SearchBudget | None = None,
    ) -> None:
        self._budget = budget
        self.failures: list[Failure] = []
        begun = beginning or incremental.run(_begin(facts, snapshots, StandingRefusals()))
        self.failures += begun.failures
        self._facts = facts
        self._forest = facts.forest
        self._snapshots = snapshots
        self._ledger, self._later, self._shares = begun.ledger, begun.later, begun.shares
        self._active: dict[str, list[ActiveGang]] = {}
        for gang in begun.active:
            if not gang.is_leaving:
                for leaf in gang.leaves:
                    self._active.setdefault(leaf, []).append(gang)
        self._standing = begun.standing
        states = begun.standing.states
        self._rooms = {
            name: ClusterRoom(snapshots[name], begun.leaving.get(name, ()), states.begun(name), states.after)
            for name in sorted(snapshots)
        }
        self._kept = begun.kept
        """The refusals of the last cycle that stand, as long as the room is the same when their classes have a turn."""
        self._refused: RefusedClasses = {}
        self._are_rooms_as_begun = True
        self._clusters = ClusterAnswers(facts.forest, facts.queued, snapshots, self._rooms)
        if failed is not None:
            failed.begin(self._later.forest, self._active, self._shares, facts.now)
        self._search = VictimSearch(self._later, self._rooms, self._active, self._shares, facts.now, failed)
        self._turns = Turns(facts.queued, self._later, self._shares, facts.usage, facts.now, begun.kept)
        self._heads: dict[str, Record] = {}
        self._open: set[str] = set()
        """The queues without a head so far that take gangs, of those where only clusters decide."""
        self._has_strict = any(each.strategy is QueueingStrategy.STRICT_FIFO for each in self._forest.leaves)
        self._stopped: set[str] = set()
        """The strict leaves that stop at a gang that the budget leaves out: those behind it are left out, too."""
        self._answers = Refusals(
            facts.forest, self._ledger, facts.namespaces, self._heads, has_members=self._clusters.has_members
        )
        self._decisions = GangDecisions(
            forest=facts.forest,
            rooms=self._rooms,
            clusters=self._clusters,
            refusals=self._answers,
            search=self._search,
            turns=self._turns,
            ledger=self._ledger,
            later=self._later,
            parts=begun.parts,
            shares=self._shares,
        )
        self._outcomes: list[QueueNews | ClassRefused] = []
        self._decided: set[str] = set()
        is_fresh = backfills is None and facts.reservations is None
        self._reservations = Reservations(
            forest=facts.forest,
            snapshots=snapshots,
            rooms=self._rooms,
            clusters=self._clusters,
            refusals=self._answers,
            later=self._later,
            active=self._active,
            now=facts.now,
            backfills=Backfills() if is_fresh else backfills,
            budget=budget,
            of_room=facts.reservations or {},
            quota=facts.quota,
        )

    @classmethod
    def begin_in_steps(
        cls,
        facts: QueueFacts,
        snapshots: Mapping[str, ClusterSnapshot],
        failed: FailedSearches | None = None,
        backfills: Backfills | None = None,
        budget: SearchBudget | None = None,
        standing: StandingRefusals | None = None,
    ) -> Steps[Self]:
        """The cycle of these facts."""
        beginning = yield from _begin(facts, snapshots, standing or StandingRefusals())
        return cls(facts, snapshots, failed, beginning, backfills, budget)

    def run(self) -> list[QueueOutcome]:
        """All steps of `run_in_steps` at once."""
        return incremental.run(self.run_in_steps())

    def run_in_steps(self) -> Steps[list[QueueOutcome]]:
        """The outcomes in the order of the decisions: one for each queued gang, and one for each drained queue."""
        yield from self._decide_all()
        found: list[QueueOutcome] = []
        for outcome in self._outcomes:
            if isinstance(outcome, ClassRefused):
                uids = (uid for _, uid in outcome.class_.in_order(self._facts.now, self._decided))
                found += [outcome_of(outcome.outcome(self._facts.queued.record(uid))) for uid in uids]
                yield
            else:
                found += outcomes_of([outcome])
        return found

    def news_in_steps(self) -> Steps[list[QueueNews]]:
        """The outcomes that change a record, and those of drained queues, in the order of the decisions."""
        yield from self._decide_all()
        found: list[QueueNews] = []
        for outcome in self._outcomes:
            if not isinstance(outcome, ClassRefused):
                found += [outcome] if is_news(outcome) else []
                continue
            for part in incremental.in_parts(outcome.news()):
                undecided = (uid for uid in part if uid not in self._decided)
                found += [outcome.outcome(self._facts.queued.record(uid)) for uid in undecided]
                yield
        return found

    def _decide_all(self) -> Steps[None]:
        self._drain()
        if self._outcomes:
            yield from self._note_other_room()
        queued, now = self._facts.queued, self._facts.now
        late = [queued.gang(uid) for uid, each in queued.blocked.items() if is_late(each, self._forest, now)]
        late.sort(key=lambda each: rank(each, now))
        late = [each for each in late if self._is_asked(each)]
        yield from self._reservations.renew(late)
        starved = [each for each in late if is_starved(each.record, self._forest, now)]
        waiting: list[PendingGang] = []
        for gang in starved:
            if not (self._reservations.has(gang.uid) or self._admits(gang)):
                continue  # those before it cost more than was expected
            outcome = self._add(gang, (yield from self._decide(gang)), is_starved=True)
            self._turns.take(gang)
            is_waiting = isinstance(outcome, Waiting) or (
                isinstance(outcome, Unplaced) and outcome.refused.may_fit_later
            )
            waiting += [gang] if is_waiting else []
            yield
        yield from self._reservations.reserve_for_displaced(waiting)
        if starved:
            yield from self._note_other_room()
        while (gang_in_turn := (yield from self._turns.next_in_steps())) is not None:
            class_ = queued.class_of(gang_in_turn.uid)
            if not self._stopped.isdisjoint(gang_in_turn.leaves) or not self._admits(gang_in_turn):
                self._stop_at(gang_in_turn)
                self._turns.drop(class_)  # nothing is known of its class, so a following cycle decides it
                yield
                continue
            decided = yield from self._decide(gang_in_turn)
            outcome = self._add(gang_in_turn, decided, is_starved=False)
            if self._is_for_class(outcome, class_):
                self._turns.drop(class_)
                refused = ClassRefused.by(outcome, class_)
                if len(class_) > 1:
                    self._outcomes.append(refused)
                if (
                    isinstance(refused.answer, Unplaced)
                    and self._are_rooms_as_begun
                    and self._standing.may_stand(class_)
                ):
                    self._refused[class_] = refused.answer
            else:
                self._turns.take(gang_in_turn)
                self._refuse_behind(outcome, class_)
            if self._decisions.is_changing and self._are_rooms_as_begun:
                yield from self._note_other_room()
            yield
        yield from self._standing.end(self._refused, self._kept, self._snapshots, self._dispatched_to)

    def _refuse_behind(self, outcome: NewOutcome, class_: QueueClass) -> None:
        """Refuse all that are behind the head of a strict queue at once, if no other queue or rule counts for them."""
        is_head = isinstance(outcome, Waiting | Unplaced) and outcome.is_head
        if not (is_head and class_.key.is_by_clusters):
            return
        for place in self._strict_places(class_.key.leaves):
            answer = self._answers.behind(outcome.record, place)
            classes = self._turns.drop_queue(place.name)
            self._outcomes += [ClassRefused(each, answer) for each in classes if answer is not None]

    def _note_other_room(self) -> Steps[None]:
        """There is other room from now on: let classes whose refusals stand have a turn again, if it is not over."""
        self._are_rooms_as_begun = False
        for part in incremental.in_parts(list(self._kept)):
            for class_ in part:
                if self._turns.wake(class_):
                    del self._kept[class_]
            yield

    @property
    def kept(self) -> dict[str, tuple[Record, Assignment]]:
        """The gang for which capacity of each kept cluster is kept, with its places; to be asked after the run."""
        return {
            name: (room.keeper, self._reservations.of_room[room.keeper.uid].assignment)
            for name, room in self._rooms.items()
            if room.keeper is not None
        }

    @property
    def _dispatched_to(self) -> set[str]:
        """The clusters to which the cycle dispatched gangs."""
        return {room.name for room in self._rooms.values() if room.was_dispatched_to}

    # --- the beginning -----------------------------------------------------------------------------------------

    def shares(self) -> dict[str, QueueShare]:
        """The use of each valid queue before any decision; to be asked before `run`."""
        return dict(self._queue_shares())

    def _queue_shares(self) -> Iterable[tuple[str, QueueShare]]:
        for place in self._forest.places.values():
            account = self._later.accounts[place.root]
            used = dict(account.plain[place.name])
            if place.sharing is Sharing.DOMINANT_SHARE:
                share = dominant_share.share(account, self._later.forest, place.name)
                yield place.name, QueueShare(used, share.shown, share.is_infinite)
            elif place.sharing is Sharing.DIVISION:
                yield place.name, QueueShare(used, fair=dict(self._shares[place.root].fair[place.name]))
            else:
                yield place.name, QueueShare(used)

    def _drain(self) -> None:
        # Not only leaves: a queue that got children may have gangs from before.
        for place in self._later.forest.places.values():
            if place.stop_policy is not StopPolicy.HOLD_AND_DRAIN:
                continue
            there = [each for each in self._active.get(place.name, ()) if each.uid not in self._search.gone]
            gangs = tuple(each for each in there if not each.is_fixed and not each.is_surplus)
            if gangs:
                self._decisions.leave(gangs)
                self._outcomes.append(Drained(place.name, gangs))

    # --- one gang ----------------------------------------------------------------------------------------------

    def _is_for_class(
        self, outcome: QueueNews, class_: QueueClass
    ) -> TypeGuard[Waiting | Impossible | NotEvaluated | Unplaced]:
        """True if the outcome is a refusal of all gangs of the class; not the head's of a queue that stops there.

        Where only clusters decide, the gangs of a class are of any priority, so some of them may be behind the head.
        """
        if not isinstance(outcome, Unplaced):  # as most are
            if not isinstance(outcome, Waiting | Impossible | NotEvaluated):
                return False
            if outcome.pending.reason == AWAITING_RELEASE:
                return False
        if self._has_strict:
            is_head = isinstance(outcome, Waiting | Unplaced) and outcome.is_head
            may_stop = is_head or (class_.key.is_by_clusters and not isinstance(outcome, NotEvaluated))
            if may_stop and self._strict_places(class_.key.leaves):
                return False
        return True

    def _admits(self, gang: PendingGang) -> bool:
        """True if the gang is to be decided in this cycle."""
        budget = self._budget
        if budget is None:
            return True
        if gang.is_by_clusters and budget.needs_search(gang.record) and self._clusters.is_refused(gang):
            return True  # by a search for a gang of its class before
        return budget.admits(gang.record)

    def _is_asked(self, gang: PendingGang) -> bool:
        """True if a late gang may get a reservation. A starved one is decided next: it needs a place in the budget.

        One of a strict queue may stay behind the head, which costs nothing.
        """
        is_next = is_starved(gang.record, self._forest, self._facts.now)
        return not is_next or self._reservations.has(gang.uid) or self._admits(gang)

    def _stop_at(self, gang: PendingGang) -> None:
        """Let the strict queues of a gang that is left out stop there, unless they may pass it."""
        if self._budget is not None and not self._budget.may_pass(gang.record):
            self._stopped.update(place.name for place in self._strict_places(gang.leaves))

    def _strict_places(self, leaves: Iterable[str]) -> list[Place]:
        if not self._has_strict:
            return []
        return [
            each for each in self._forest.places_of(leaves) if each.strategy is QueueingStrategy.STRICT_FIFO
        ]

    def _decide(self, gang: PendingGang) -> Steps[NewOutcome]:
        """The outcome for a gang; the steps of its searches are noted in the budget."""
        if self._budget is None:
            return (yield from self._decide_safely(gang))
        # Most gangs cost no steps, and there may be many clusters: their counters are read for no other gang.
        needs_search, trials = self._budget.needs_search(gang.record), self._decisions.trials
        before = steps_so_far(self._snapshots.values()) if needs_search else 0
        outcome = yield from self._decide_safely(gang)
        steps = steps_so_far(self._snapshots.values()) - before if needs_search else 0
        self._budget.settle(gang.record, steps + STEPS_OF_TRIAL * (self._decisions.trials - trials))
        return outcome

    def _decide_safely(self, gang: PendingGang) -> Steps[NewOutcome]:
        self._decisions.is_changing = False
        try:
            refused = self._refused_by_queues(gang)
            outcome: NewOutcome = refused if refused is not None else (yield from self._decisions.of(gang))
        except Exception as error:
            if self._decisions.is_changing:
                raise
            self.failures.append(Failure.of(gang.uid, error))
            outcome = Impossible(gang.record, UNDECIDED_BY_ERROR)
        if not self._forest.is_declared or isinstance(outcome, Placed | Unplaced) or outcome.pending.queue:
            return outcome
        return replace(outcome, pending=replace(outcome.pending, queue=gang.leaves[0]))

    def _refused_by_queues(self, gang: PendingGang) -> Outcome | None:
        """As `Refusals.by_queues`: where only clusters decide, the same for all gangs until the queue has a head."""
        if not gang.is_by_clusters:
            return self._answers.by_queues(gang)
        (leaf,) = gang.leaves
        if leaf in self._open:
            return None
        refused = self._answers.by_queues(gang)
        if refused is None:
            self._open.add(leaf)
        return refused

    # --- heads -------------------------------------------------------------------------------------------------

    def _add(self, gang: PendingGang, outcome: NewOutcome, *, is_starved: bool) -> NewOutcome:
        """Note an outcome, and return it; hold back what a head or a starved gang waits for."""
        if isinstance(outcome, Unplaced):
            if outcome.may_be_head:
                outcome = self._noted_head_without_room(gang, outcome, is_starved=is_starved)
        elif isinstance(outcome, Waiting | Preempting) and outcome.pending.reason in ENDS_WITH_OTHERS:
            outcome = self._noted_head(gang, outcome, is_starved=is_starved)
        self._outcomes.append(outcome)
        self._decided.add(gang.uid)
        return outcome

    def _noted_head_without_room(self, gang: PendingGang, outcome: Unplaced, *, is_starved: bool) -> Unplaced:
        reason = outcome.refused.nearest.reason
        reservation = self._reservations.held_for(gang, reason, is_starved=is_starved)
        if reservation is not None:
            outcome = replace(outcome, refused=outcome.refused.reserved(reservation))
            if reservation.is_resting:
                return outcome  # the next gang can be the head
        return replace(outcome, is_head=True) if self._become_head(gang) else outcome

    def _noted_head(
        self, gang: PendingGang, outcome: Waiting | Preempting, *, is_starved: bool
    ) -> Waiting | Preempting:
        record, reason = gang.record, outcome.pending.reason
        reservation = self._reservations.held_for(gang, reason, is_starved=is_starved)
        if reservation is not None:
            note = noted_quota if reason == INSUFFICIENT_QUOTA else noted
            outcome = replace(outcome, pending=note(outcome.pending, reservation))
            if reservation.is_resting:
                return outcome  # the next gang can be the head
        for place in self._forest.places_of(gang.leaves) if reason == INSUFFICIENT_QUOTA else ():
            is_first = place.name not in self._heads
            hold = self._reservations.quota.hold(place, record, is_first=is_first, is_starved=is_starved)
            if hold is not None:
                self._ledger.hold(hold)
                self._later.hold(hold)
        return replace(outcome, is_head=self._become_head(gang))

    def _become_head(self, gang: PendingGang) -> bool:
        """Let a gang be the head of its queues that have none yet; true if it is the head of any."""
        if gang.is_by_clusters and gang.leaves[0] in self._heads:
            return False
        is_head = False
        for place in self._forest.places_of(gang.leaves):
            is_head = is_head or place.name not in self._heads
            self._heads.setdefault(place.name, gang.record)
            self._open.discard(place.name)
        return is_head


class _Beginning(Struct, frozen=True):
    """What a cycle begins with: the quota now and later, the parts of gangs by uid, and the shares of Division.

    `active` are the gangs that hold capacity, as far as they matter, with the queues in which they are charged;
    `leaving` are those of them that leave, by cluster. `failures` are the exceptions about gangs whose parts free no
    room. `kept` are the refusals that stand.
    """

    active: Sequence[ActiveGang]
    ledger: QuotaLedger
    later: QuotaLedger
    parts: Mapping[str, list[ActiveGang]]
    shares: Mapping[str, Shares]
    failures: Sequence[Failure]
    leaving: Mapping[str, Leaving]
    standing: StandingRefusals
    kept: RefusedClasses


def _begin(
    facts: QueueFacts, snapshots: Mapping[str, ClusterSnapshot], standing: StandingRefusals
) -> Steps[_Beginning]:
    yield from facts.queued.follow(snapshots, facts.now)
    active = facts.active
    if not facts.forest.counts_running:
        # A gang that gives up a part of its room is there in parts, of which all are needed to tell them apart.
        active = [each for each in active if each.is_leaving or each.part is not None]
    active = charged_in(facts.forest.for_quota, active)
    yield
    ledger, later = yield from now_and_later(facts.forest, active)
    parts = by_gang(active)
    failures = yield from split(parts, snapshots)
    shares = yield from division.divide_all_in_steps(
        later.accounts, later.forest, snapshots, _pending(facts, later.forest)
    )
    leaving = leaving_by_cluster(active)
    is_in_order = not facts.queued.has_slopes and not any(
        is_late(each, facts.forest, facts.now) for each in facts.queued.blocked.values()
    )
    kept = yield from standing.begin(
        facts.forest, facts.queued, facts.namespaces, snapshots, leaving, is_in_order=is_in_order
    )
    return _Beginning(active, ledger, later, parts, shares, failures, leaving, standing, kept)


def _pending(facts: QueueFacts, forest: Forest) -> dict[str, list[Resources]]:
    """The demands of the queued gangs that their queues take, by leaf of a tree with the sharing Division.

    A demand that its queue does not take would divert fair shares from other queues to one that cannot use them.
    `forest` is that of the quota. It costs a step for each class, and for those of such trees the check of `access`.
    """
    divided = {root for root, tree in forest.trees.items() if tree.sharing is Sharing.DIVISION}
    found: dict[str, list[Resources]] = {}
    for class_ in facts.queued.classes() if divided else ():
        leaves, namespace = class_.key.leaves, class_.key.namespace
        there = [leaf for leaf in leaves if leaf in forest.places and forest.places[leaf].root in divided]
        if there and take(facts.forest, leaves, namespace, facts.namespaces.get(namespace, {})):
            charged = facts.queued.first_of(class_).gang.charged
            for leaf in there:
                found.setdefault(leaf, []).append(charged * len(class_))
    return found
