"""Lives in any order, through the pure core and a real Postgres: memory, database and history never disagree."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar, assert_never

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from dispatcher.api.appwrapper import Requeuing
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.store.database import Database
from tests.builders import NOW, make_submission
from tests.history import History, TimelineEntry
from tests.postgres.leader import CLUSTERS, Leader, Luck, Wish

T = TypeVar("T")
Outside: TypeAlias = psycopg.Connection[tuple[Any, ...]]

STEPS = 30
MOST_APPWRAPPERS = 9
SOON = timedelta(seconds=30)
ENDS = CompletionRule(ends=True, holds=True, pods=1)
WORDS = CompletionRule(words=("Ready",), holds=True, pods=1)
SAMPLE = [
    LifecyclePolicy(items=(ENDS, ENDS), expects_pods=True, kept_completed=SOON, kept_failed=SOON),
    LifecyclePolicy(items=(WORDS, ENDS), min_available=2, requeuing=Requeuing(wait=SOON, max_requeuings=1)),
    LifecyclePolicy(
        items=(ENDS, ENDS),
        has_components=True,
        expects_pods=True,
        limit=timedelta(minutes=10),
        failure_grace=SOON,
        retry_pause=timedelta(),
        terminal_exit_codes=frozenset({3}),
    ),
]
OPEN, SUCCEEDED = ObjectState(), ObjectState(End.SUCCEEDED, frozenset({"Ready"}))
SHOWS_NOTHING = ObservedObjects()
RUNS = ObservedObjects(PodCounts(running=2), (OPEN, OPEN))
HAS_GROWN = ObservedObjects(PodCounts(running=5), (OPEN, OPEN))
IS_HALF_DONE = ObservedObjects(PodCounts(running=1, succeeded=1), (SUCCEEDED, OPEN))
IS_DONE = ObservedObjects(PodCounts(succeeded=2), (SUCCEEDED, SUCCEEDED))
IS_HALF_GONE = ObservedObjects(PodCounts(), (SUCCEEDED, OPEN))
UNHEALTHY = [
    IS_HALF_GONE,
    ObservedObjects(PodCounts(running=1, pending=1), (OPEN, OPEN)),
    ObservedObjects(PodCounts(running=2, lost=1), (OPEN, OPEN)),
    ObservedObjects(PodCounts(running=2, pending=1, unschedulable=1), (OPEN, None)),
    ObservedObjects(PodCounts(running=1, failed=1, exit_codes=frozenset({3})), (OPEN, OPEN)),
    ObservedObjects(PodCounts(running=1, failed=1), (OPEN, ObjectState(End.EVICTED))),
    ObservedObjects(PodCounts(failed=1), (ObjectState(End.FAILED, message="it exited with 1"), OPEN)),
    ObservedObjects(PodCounts(running=4, pending=1, unschedulable=1), (OPEN, OPEN)),
]
RECOVERABLE = [observed for observed in UNHEALTHY if set(observed.states) <= {OPEN, None}]
WELL = [RUNS, RUNS, IS_HALF_DONE, IS_HALF_DONE, HAS_GROWN]
# The first and the last of a list are drawn most often: what lets a life go on stands there.
OBSERVED = st.sampled_from([*WELL, SHOWS_NOTHING, *UNHEALTHY, IS_DONE, *reversed(WELL)])
LASTS: st.SearchStrategy[ObservedObjects | None] = st.one_of(st.none(), st.none(), OBSERVED)
ARRIVALS = [cause for source, cause in TARGETS if source is None]
TERMS = st.sampled_from(SAMPLE)
PODS = st.sampled_from([2, 4, 9, 4, 2])
TIMES = st.integers(1, 4)
ASKED = st.sampled_from([MutableSpec(), MutableSpec(suspend=True), MutableSpec(priority=1), MutableSpec()])
NUMBERS = st.integers(0, MOST_APPWRAPPERS - 1)
POLICIES = st.sampled_from(QueueingStrategy)
CLUSTER = st.sampled_from(list(CLUSTERS))
OF_MEMBERS = {Cause.ABANDONED, Cause.LOST, Cause.REDIRECTED, Cause.WITHDRAWN}
"""What becomes of one by its cluster's fault, or because its user wants another: tests/cluster/members has these."""
OF_OTHER_PARTS = {Cause.WARNED, Cause.NOTIFICATIONS_CHANGED}
"""What no reconcile here does: tests/cluster/test_field_validation.py and test_notifications.py have these."""
OF_RESTORED = {Cause.FOUND_ENDED, Cause.FOUND_RUNNING}
"""What is only found after the database was restored: tests/cluster/test_restored.py has these."""
OF_PROVISIONING = {
    Cause.PROVISIONING,
    Cause.PROVISIONED,
    Cause.PROVISIONING_FAILED,
    Cause.PROVISIONING_REFUSED,
}
"""What happens to one whose capacity is requested: test_provisioning.py has these."""
OF_GROWTH = {Cause.GRANTED, Cause.GROWTH_WAITS, Cause.SURPLUS_PREEMPTED, Cause.GROWTH_TAKEN_BACK}
"""What is decided about growth: test_round_trip.py and test_surplus_pods.py have these."""
AWAITED = pending_without(["budget"])
LUCK = st.sampled_from([*Luck, Luck.GOOD])


ISSUES = {"FoundFailedPods", "InsufficientPodsReady", "MinPodsNotRunning", "PodsFailedScheduling"}
"""All that can be wrong with one that is not beyond help."""


@dataclass
class Seen:
    """What happened in all examples together."""

    causes: set[Cause] = field(default_factory=set)
    issues: set[str] = field(default_factory=set)
    examples: int = field(default=0, compare=False)


class Lives(RuleBasedStateMachine):
    """Several AppWrappers at once, under uids that no other example has used."""

    def __init__(
        self,
        outside: Outside,
        database: Database,
        runner: asyncio.Runner,
        seen: Seen,
    ) -> None:
        super().__init__()
        self.outside, self.database, self.runner, self.seen = outside, database, runner, seen
        self.leader = Leader(database, NOW)
        self.name = f"aw-{uuid.uuid4()}"
        self.ended: dict[str, Phase] = {}
        # Each example begins with another way to arrive: few arrive so often that one example has all ways.
        self.first, seen.examples = seen.examples, seen.examples + 1

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    @property
    def uids(self) -> list[str]:
        return list(self.leader.wishes)

    @initialize(terms=TERMS, pods=st.lists(PODS, min_size=3, max_size=3))
    def leads_and_some_are_submitted(self, terms: LifecyclePolicy, pods: list[int]) -> None:
        self.outside.execute("DELETE FROM appwrapper")  # of an earlier example
        self.run(self.leader.restart())
        for each in pods:
            self.arrives(Cause.SUBMITTED, terms, each)

    @rule(terms=TERMS, pods=PODS)
    def is_seen_for_the_first_time(self, terms: LifecyclePolicy, pods: int) -> None:
        """In each way there is, one after the other: a draw would leave out some."""
        if len(self.uids) < MOST_APPWRAPPERS:
            self.arrives(ARRIVALS[(self.first + len(self.uids)) % len(ARRIVALS)], terms, pods)

    def arrives(self, cause: Cause, terms: LifecyclePolicy, pods: int) -> None:
        change = arrival(cause, self.name, pods, self.leader.later())
        suspended = MutableSpec(suspend=change.after.phase is Phase.SUSPENDED)
        self.run(self.leader.submit(change, Wish(terms, suspended)))

    @rule(policy=POLICIES, observed=OBSERVED, luck=LUCK)
    def a_cycle_decides_and_what_fits_is_created(
        self, policy: QueueingStrategy, observed: ObservedObjects, luck: Luck
    ) -> None:
        self.run(self.leader.cycle(policy))
        self.run(self.leader.look_at_all(observed, luck))

    @rule(number=NUMBERS, observed=OBSERVED, luck=LUCK, times=TIMES)
    def is_looked_at(self, number: int, observed: ObservedObjects, luck: Luck, times: int) -> None:
        record = self.leader.record(number)
        if record is not None:
            self.run(self.leader.look(record.uid, observed, luck, times))

    @rule(seconds=st.sampled_from([10, 60, 60, 600]), policy=POLICIES, observed=LASTS)
    def time_goes_by(self, seconds: int, policy: QueueingStrategy, observed: ObservedObjects | None) -> None:
        self.leader.later(seconds)
        self.run(self.leader.cycle(policy))
        self.run(self.leader.look_at_all(observed))

    @rule(
        number=NUMBERS,
        issues=st.permutations(RECOVERABLE),
        seconds=st.sampled_from([10, 60, 600]),
        later=LASTS,
    )
    def runs_and_is_ill_for_a_while(
        self, number: int, issues: list[ObservedObjects], seconds: int, later: ObservedObjects | None
    ) -> None:
        record = self.leader.record(number)
        if record is not None:
            for observed in (HAS_GROWN, HAS_GROWN, issues[0], HAS_GROWN, issues[1], HAS_GROWN, issues[2]):
                self.run(self.leader.look(record.uid, observed, Luck.GOOD, times=2))
            self.leader.later(seconds)
            self.run(self.leader.look(record.uid, later, Luck.GOOD, times=2))

    @rule(number=NUMBERS, cluster=CLUSTER, ends=st.booleans())
    def cannot_be_created_for_now_and_then_perhaps_never(self, number: int, cluster: str, ends: bool) -> None:
        record = self.leader.record(number)
        if record is not None:
            for luck in (Luck.NOT_NOW, Luck.NEVER if ends else Luck.GOOD):
                self.is_sent_to(cluster, record.uid)
                for each in (luck, Luck.GOOD):
                    self.run(self.leader.look(record.uid, SHOWS_NOTHING, each))

    def is_sent_to(self, cluster: str, uid: str) -> None:
        """Though there may be no room: what is charged is charged all the same."""
        record = self.leader.cache.get(uid)
        if record is not None and record.phase is Phase.QUEUED:
            self.run(self.leader.commit([queue_changes.dispatch(record, cluster, self.leader.later(100))]))

    @rule(number=NUMBERS, luck=LUCK)
    def runs_and_comes_to_its_end(self, number: int, luck: Luck) -> None:
        record = self.leader.record(number)
        if record is not None:
            for each in (RUNS, IS_DONE):
                self.run(self.leader.look(record.uid, each, luck, times=2))

    @rule(number=NUMBERS, cluster=CLUSTER, by_its_user=st.booleans(), observed=OBSERVED)
    def is_half_done_when_it_is_taken_back_and_begins_again(
        self, number: int, cluster: str, by_its_user: bool, observed: ObservedObjects
    ) -> None:
        record = self.leader.record(number)
        if record is None:
            return
        for each in (RUNS, IS_HALF_DONE):
            self.run(self.leader.look(record.uid, each, Luck.GOOD, times=2))
        self.leader.wishes[record.uid].asked = MutableSpec(suspend=by_its_user)
        for seconds in (1, 300):
            self.leader.later(seconds)
            self.run(self.leader.look(record.uid, IS_HALF_GONE, Luck.GOOD, times=2))
        self.leader.wishes[record.uid].asked = MutableSpec()
        self.run(self.leader.look(record.uid, SHOWS_NOTHING, Luck.GOOD))
        self.is_sent_to(cluster, record.uid)
        self.run(self.leader.look(record.uid, observed, Luck.GOOD, times=2))

    @rule()
    def nothing_fits_and_the_head_is_deleted(self) -> None:
        with self.leader.crowded():
            self.run(self.leader.cycle(QueueingStrategy.BEST_EFFORT_FIFO))
            for record in list(self.leader.cache.queued()):
                if record.blocked_since is not None:
                    self.leader.wishes[record.uid].wanted = False
                    self.run(self.leader.look(record.uid, SHOWS_NOTHING, Luck.GOOD))
            self.run(self.leader.cycle(QueueingStrategy.BEST_EFFORT_FIFO))
            self.run(self.leader.cycle(QueueingStrategy.STRICT_FIFO))

    @rule(number=NUMBERS, item=st.integers(0, 1))
    def somebody_deletes_one_of_its_objects(self, number: int, item: int) -> None:
        record = self.leader.record(number)
        if record is not None:
            absent = record.attempt.objects[item : item + 1] if record.attempt else ()
            self.run(self.leader.look(record.uid, replace(RUNS, absent=absent), Luck.GOOD))

    @rule(number=NUMBERS, asked=ASKED, observed=LASTS, is_approved=st.booleans())
    def its_user_asks_for_something_else(
        self, number: int, asked: MutableSpec, observed: ObservedObjects | None, is_approved: bool
    ) -> None:
        """A wish for a priority is one for other queues, too, which name an approval; it comes at once or never."""
        record = self.leader.record(number)
        if record is not None:
            self.leader.wishes[record.uid].asked = asked
            self.leader.wishes[record.uid].queues = ("team", "tree/node") if asked.priority else ("default",)
            self.leader.wishes[record.uid].awaits = AWAITED if asked.priority else None
            self.run(self.leader.look(record.uid, observed, Luck.GOOD, times=2))
            if is_approved and asked.priority:
                self.leader.wishes[record.uid].awaits = None
                self.run(self.leader.look(record.uid, observed, Luck.GOOD))

    @rule(number=NUMBERS)
    def is_deleted_by_its_user(self, number: int) -> None:
        record = self.leader.record(number)
        if record is not None and len(self.uids) > 4:
            self.leader.wishes[record.uid].wanted = False
            self.run(self.leader.look(record.uid, RUNS, Luck.GOOD, times=2))

    @rule(number=NUMBERS)
    def two_leaders_change_it_at_once(self, number: int) -> None:
        record = self.leader.record(number)
        if record is not None:
            self.run(self.leader.race(*rivals(record, self.leader.later())))

    @rule(most=st.integers(1, 3), is_race=st.booleans(), observed=LASTS)
    def some_are_preempted_together_or_one_of_them_is_deleted_at_once(
        self, most: int, is_race: bool, observed: ObservedObjects | None
    ) -> None:
        group = self.leader.preemption(most)
        victim = group[-1].before if group else None
        if is_race and victim is not None and len(self.uids) > 4:
            self.leader.wishes[victim.uid].wanted = False
            self.run(self.leader.race_group(group, removal.delete(victim, self.leader.now)))
        else:
            self.run(self.leader.commit_together(group))
        for change in group:
            self.run(self.leader.look(change.after.uid, observed, Luck.GOOD, times=2))

    @rule()
    def the_leader_is_killed_and_another_one_knows_the_same(self) -> None:
        known = {record.uid: as_written(record) for record in self.leader.cache.records()}
        free = {name: ledger.free() for name, ledger in self.leader.ledgers.items()}
        waiting = sorted(record.uid for record in self.leader.cache.queued())
        self.run(self.leader.restart())
        assert {record.uid: as_written(record) for record in self.leader.cache.records()} == known
        assert {name: ledger.free() for name, ledger in self.leader.ledgers.items()} == free
        assert sorted(record.uid for record in self.leader.cache.queued()) == waiting

    @invariant()
    def capacity_is_charged_once_for_each_be_it_reserved_or_taken_by_pods(self) -> None:
        holding = {record.uid: record for record in self.leader.cache.records() if record.holds_capacity}
        for name, allocatable in CLUSTERS.items():
            taken_there, awaited = NOTHING, NOTHING
            for uid in self.uids:
                record, there = holding.get(uid), self.leader.there.get(uid)
                is_here = record is not None and record.attempt is not None and record.attempt.cluster == name
                reserved = record.gang.demand if record is not None and is_here else NOTHING
                taken = there.taken if there is not None and there.cluster == name else NOTHING
                taken_there += taken
                awaited += larger(reserved, taken) - taken
            # What pods take beyond their node is no debt of the others: it has one node, and that has nothing left.
            left = (allocatable - taken_there).positive_part()
            assert self.leader.ledgers[name].free() == left - awaited

    @invariant()
    def one_attempt_lives_of_each_that_holds_capacity_and_none_of_others(self) -> None:
        query = "SELECT uid, number FROM attempt WHERE ended_at IS NULL AND uid = ANY(%s)"
        holding = [record for record in self.leader.cache.records() if record.holds_capacity]
        expected = sorted((record.uid, record.attempts) for record in holding)
        assert sorted(self.outside.execute(query, [self.uids])) == expected

    @invariant()
    def what_has_ended_never_begins_again(self) -> None:
        for uid in self.uids:
            record = self.leader.cache.get(uid)
            phase = record.phase if record else Phase.DELETED
            known = self.ended.get(uid)
            assert known is None or phase in {known, Phase.DELETED}
            if phase in {Phase.FAILED, Phase.COMPLETED, Phase.DELETED}:
                self.ended[uid] = phase

    def teardown(self) -> None:
        told = self.run(History(self.database).timeline("default", self.name))
        for uid in self.uids:
            events = [event for event in told if event.uid == uid]
            check_history(events, self.leader.cache.get(uid))
            self.seen.causes.update(Cause(event.cause) for event in events)
            ill = (event for event in events if event.cause in {Cause.UNHEALTHY, Cause.EVICTED})
            self.seen.issues.update(event.reason for event in ill)


def larger(one: Resources, other: Resources) -> Resources:
    return one + (other - one).positive_part()


def as_written(record: Record) -> Record:
    """TODO: compare records as they are, once the store writes what is told of each cluster."""
    return replace(record, pending=replace(record.pending, clusters=())) if record.pending else record


def check_history(events: list[TimelineEntry], record: Record | None) -> None:
    """A chain from nothing to what is so now: every step once, and none that was not accepted."""
    phase: Phase | None = None
    for event in events:
        assert event.from_phase == phase
        phase = TARGETS[phase, Cause(event.cause)]
        assert event.to_phase == phase
    counted = Counter(event.cause for event in events)
    if record is None:
        assert phase is Phase.DELETED
    else:
        assert (phase, len(events)) == (record.phase, record.version)
        assert record.attempts == counted[Cause.DISPATCHED] + counted[Cause.ADOPTED]
        assert record.requeuings == counted[Cause.EVICTED]
        assert len(record.preempted_at) <= counted[Cause.PREEMPTED]


def arrival(cause: Cause, name: str, pods: int, now: datetime) -> Change:
    submission = make_submission(name, uid=str(uuid.uuid4()), suspended=cause is Cause.SUBMITTED_SUSPENDED)
    each = Resources({"cpu": 500})
    gang = Gang(each * pods, pods, (PodSet(pods, each),))
    match cause:
        case Cause.REJECTED:
            return first_changes.reject(submission, "it is no AppWrapper", now)
        case Cause.ADOPTED:
            return first_changes.adopt(submission, gang, "hub", 1, now)
        case Cause.FOUND_COMPLETED:
            return first_changes.recall_completed(submission, gang, now)
        case Cause.FOUND_FAILED:
            return first_changes.recall_failed(
                submission, gang, "DispatchDeadlineExceeded", "it ran too long", now
            )
        case _:
            return first_changes.submit(submission, gang, now)


def rivals(record: Record, now: datetime) -> tuple[Change, Change]:
    """Two steps from the same record, of which only one can be."""
    match record.phase:
        case Phase.QUEUED:
            return queue_changes.dispatch(record, "hub", now), queue_changes.suspend(record, now)
        case Phase.SUSPENDED:
            return queue_changes.resume(record, now), queue_changes.reprioritise(record, 9, 0.0, now)
        case Phase.DISPATCHING:
            return queue_changes.suspend(record, now), removal.delete(record, now)
        case Phase.REQUEUEING | Phase.SUSPENDING | Phase.FAILING:
            return removal.removed(record, now), removal.delete(record, now)
        case Phase.FAILED | Phase.COMPLETED:
            return removal.expire(record, now), removal.delete(record, now)
        case Phase.DELETING | Phase.DELETED:
            return removal.release(record, now), removal.release(record, now)
        case Phase.DISPATCHED | Phase.RUNNING | Phase.RUNNING_HOLD_COMPLETION:
            back = run_changes.evict(record, EvictionReason("MinPodsNotRunning", "too few"), now, 60, now)
            return back, run_changes.complete(record, (), now, now)
        case never:
            assert_never(never)


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(40, marks=pytest.mark.timeout(120)),
        # As long for each example: some 0.3 s of processor time, on a machine that does much else.
        pytest.param(130, marks=[pytest.mark.exhaustive, pytest.mark.timeout(390)]),
    ],
)
def test_lives_in_any_order_are_the_same_in_memory_database_and_history(
    make_database: Callable[[], str], examples: int
) -> None:
    url, seen = make_database(), Seen()
    with asyncio.Runner() as runner, psycopg.connect(url, autocommit=True) as outside:
        database = Database(url)
        try:
            run_state_machine_as_test(
                lambda: Lives(outside, database, runner, seen),  # type: ignore[arg-type]  # any callable will do
                settings=settings(max_examples=examples, stateful_step_count=STEPS),
            )
        finally:
            runner.run(database.close())
    if settings.default is not None and settings.default.derandomize:  # what is drawn by chance may miss some
        assert seen == Seen(
            set(Cause) - OF_MEMBERS - OF_OTHER_PARTS - OF_RESTORED - OF_PROVISIONING - OF_GROWTH, ISSUES
        ), "these lives leave something out"
