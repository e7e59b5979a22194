"""Every phase with everything that can be seen of it: each step is legal, and no AppWrapper hangs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from typing import assert_never

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing, WaitGrowth
from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.selector import parse_selector
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.lifecycle.confirmation import end_of_attempt
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.growth import growth_of, without_unplaced
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do, Loss, ObservedState
from dispatcher.core.lifecycle.transitions import TRANSITIONS, Cause
from dispatcher.core.model.gangs.growth import GatedPod, PodRef, SurplusPod
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import ACTIVE, Change, NotedIssue, Pending, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from tests.builders import (
    at,
    attempt_of,
    make_awaiting,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_gang,
    make_policy,
    make_preempted,
    make_record,
    make_ref,
    make_requested,
    make_submission,
)
from tests.unit.core.lifecycle.dispatched import act_of, step_of
from tests.unit.core.lifecycle.holds import HOLDS, may_rest, reasons_to_hold

TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}

MADE_BY: dict[Act, tuple[Cause, ...]] = {
    Act.NOOP: (),
    Act.REMOVE_FINALIZER: (),
    Act.TAKE_IN: (
        Cause.SUBMITTED,
        Cause.SUBMITTED_SUSPENDED,
        Cause.REJECTED,
        Cause.ADOPTED,
        Cause.FOUND_COMPLETED,
        Cause.FOUND_FAILED,
    ),
    Act.DELETE: (Cause.DELETED,),
    Act.FOLLOW_APPROVALS: (Cause.AWAITING_APPROVAL, Cause.APPROVED),
    Act.CREATE: (Cause.CREATED, Cause.CREATION_REFUSED, Cause.CREATION_POSTPONED, Cause.WITHDRAWN),
    Act.REQUEST_CAPACITY: (Cause.PROVISIONING, Cause.CREATION_REFUSED),
    Act.REQUEST_ELSEWHERE: (Cause.PROVISIONING_FAILED, Cause.PROVISIONING_REFUSED),
    Act.NOTE_HEALTH_ISSUE: (Cause.UNHEALTHY,),
    Act.ADMIT_PODS: (),
    Act.DELETE_PODS: (),
    Act.TAKE_BACK_GROWTH: (Cause.GROWTH_TAKEN_BACK,),
    Act.COMPLETE: (Cause.COMPLETED,),
    Act.REQUEUE: (Cause.EVICTED,),
    Act.FAIL: (Cause.RUN_FAILED,),
    Act.REMOVE: (Cause.REMOVED,),
    Act.CONFIRM_GONE: (Cause.RELEASED,),
    Act.EXPIRE: (Cause.EXPIRED,),
}
"""What the reconciler may commit for each act."""

DECIDED = {
    Cause.REPRIORITISED,
    Cause.REDIRECTED,
    Cause.MOVED,
    Cause.SUSPENDED,
    Cause.RESUMED,
    Cause.PROVISIONING,
    Cause.PROVISIONED,
    Cause.PROVISIONING_FAILED,
    Cause.PODS_RUNNING,
    Cause.RECOVERED,
    Cause.GREW,
    Cause.SHRANK,
    Cause.SOME_COMPLETED,
    Cause.ITEMS_DONE,
    Cause.ABANDONED,
    Cause.LOST,
}
"""The causes of the changes that a decision is."""

FINAL = {Phase.COMPLETED, Phase.FAILED, Phase.DELETED}
MOST_STEPS = 12
"""No life of a gang that is seen the same all the time takes more, from one dispatch to the next or to its end."""

AS_SUBMITTED = MutableSpec()
JOB, SERVER = (
    CompletionRule(ends=True, holds=True, pods=1, asks=1),
    CompletionRule(holds=True, pods=1, asks=1),
)
NAMED = CompletionRule(words=("Done",), holds=True, pods=1, asks=1)
PODS = {
    "none": PodCounts(),
    "starting": PodCounts(pending=2, starting=2),
    "unschedulable": PodCounts(pending=1, running=1, unschedulable=1),
    "too-few": PodCounts(pending=1, running=1),
    "one-more-is-started": PodCounts(pending=1, running=1, starting=1),
    "scaled-down": PodCounts(running=1),
    "enough": PodCounts(running=2),
    "enough-and-unschedulable": PodCounts(pending=1, running=2, unschedulable=1),
    "lost": PodCounts(running=2, lost=1),
    "failed": PodCounts(running=1, failed=1, exit_codes=frozenset({1})),
    "failed-for-good": PodCounts(running=2, failed=1, exit_codes=frozenset({3})),
    "evicted": PodCounts(failed=2, evicted=2),
    "succeeded": PodCounts(succeeded=2),
}
STATES = {
    "unknown": (None, None),
    "open": (ObjectState(), ObjectState()),
    "one-done": (ObjectState(End.SUCCEEDED, frozenset({"Done"})), ObjectState()),
    "one-done-goes-on": (ObjectState(End.OPEN, frozenset({"Done"})), ObjectState()),
    "done-goes-on": (ObjectState(End.OPEN, frozenset({"Done"})),) * 2,
    "done": (ObjectState(End.SUCCEEDED, frozenset({"Done"})),) * 2,
    "failed": (ObjectState(), ObjectState(End.FAILED, frozenset({"Failed"}), "too many")),
    "evicted": (ObjectState(End.EVICTED), ObjectState(End.SUCCEEDED, frozenset({"Done"}))),
}
EXPLICIT = Requeuing(wait=timedelta(seconds=60), growth=WaitGrowth.LINEAR, max_requeuings=2, explicit=True)
TERMS = {
    "default": make_policy(JOB, JOB),
    "server": make_policy(SERVER, SERVER),
    "unknown-kind": make_policy(SERVER, JOB, expects_pods=False),
    "named": make_policy(NAMED, NAMED),
    "min-available": make_policy(NAMED, SERVER, min_available=2),
    "min-available-explicit": make_policy(NAMED, SERVER, min_available=2, requeuing=EXPLICIT),
    "min-available-0": make_policy(JOB, SERVER, min_available=0),
    "min-available-1": make_policy(JOB, SERVER, min_available=1),
    "components": make_policy(JOB, JOB, has_components=True, terminal_exit_codes=frozenset({3})),
    "components-impatient": make_policy(
        SERVER,
        NAMED,
        has_components=True,
        retry_limit=0,
        retryable_exit_codes=frozenset({3}),
        admission_grace=timedelta(0),
        warmup_grace=timedelta(0),
        failure_grace=timedelta(0),
    ),
}
LIMITS = {"no-limit": None, "limit-passed": timedelta(seconds=5), "limit-to-come": timedelta(hours=1)}
LIMITED = {
    (name, limit): replace(policy, limit=LIMITS[limit]) for name, policy in TERMS.items() for limit in LIMITS
}
AILMENTS = {
    "ill": NotedIssue(words.INSUFFICIENT_PODS_READY, "1 of 2 pods run", at(6)),
    "short": NotedIssue(words.MIN_PODS_NOT_RUNNING, "too few", at(6)),
    "drifted": NotedIssue(words.DRIFTED, "Job default/job-0: spec.x was changed", at(6)),
}
DRIFT = "Job default/job-0: spec.y was changed"
GROWN = Resources({"cpu": 5000})
GATED = GatedPod("default", "worker", "uid-of-worker", Resources({"cpu": 1000}), "2026-01-01T00:00:00Z")
UNPLACED = SurplusPod("default", "worker", "uid-of-worker", GATED.requests, "", GATED.created_at)
GIVEN_UP = (PodRef("default", "worker", "uid-of-worker"),)


@dataclass(frozen=True, slots=True)
class World:
    """What stays as it is while an AppWrapper goes through its steps.

    What is absent, and what is of a kind that is not served, are objects by item.
    """

    wanted: bool = True
    asked: MutableSpec | None = AS_SUBMITTED
    policy: LifecyclePolicy = TERMS["default"]
    pods: PodCounts = PODS["enough"]
    states: tuple[ObjectState | None, ...] = STATES["open"]
    absent: tuple[int, ...] = ()
    drift: str = ""
    loss: Loss | None = None
    queues: tuple[str, ...] = ()
    taken: Resources | None = None
    gated: tuple[GatedPod, ...] = ()
    to_delete: tuple[PodRef, ...] = ()
    unplaced: tuple[SurplusPod, ...] = ()
    request: ObjectState | None = None
    request_is_absent: bool = False
    awaits: Pending | None = None
    draining: str = ""
    unserved: tuple[int, ...] = ()

    def show(self, record: Record, now: datetime) -> ObservedState:
        objects = record.attempt.objects if record.attempt else ()
        gone = tuple(ref for ref in objects if ref.item in self.absent)
        observed = ObservedObjects(
            self.pods,
            self.states,
            gone,
            self.drift,
            self.taken,
            self.gated,
            bool(self.to_delete),
            self.to_delete,
            unplaced=self.unplaced,
            unserved=tuple(ref for ref in objects if ref.item in self.unserved),
        )
        unreachable = self.loss.message if self.loss else ""
        return ObservedState(
            record,
            self.wanted,
            now,
            self.asked,
            self.policy,
            observed,
            unreachable,
            loss=self.loss,
            queues=self.queues,
            request=self.request,
            request_is_absent=self.request_is_absent,
            awaits=self.awaits,
            draining=self.draining,
            growth_bind_within=timedelta(seconds=5),
            awaited_pools=frozenset({"l4"}),
        )


def make_running_again() -> Record:
    """One that was taken from its cluster when its first object was done, which is not created again."""
    finished = run_changes.note_done(make_record(Phase.RUNNING), (0,), at(4)).after
    eviction = EvictionReason(words.MIN_PODS_NOT_RUNNING, "too few pods")
    evicted = run_changes.evict(finished, eviction, at(5), 600, at(5), (0,)).after
    dispatching = queue_changes.dispatch(removal.removed(evicted, at(6)).after, "hub", at(7)).after
    dispatched = run_changes.created(dispatching, attempt_of(dispatching).objects, at(8)).after
    return run_changes.mark_running(dispatched, at(9)).after


def make_provisioned() -> Record:
    """One whose requested capacity came, and whose objects were created then."""
    provisioned = provisioning.provisioned(make_requested(), "it is there", at(3)).after
    return run_changes.created(provisioned, (make_ref(),), at(4)).after


REQUESTS = [
    None,
    *(
        ObjectState(End.OPEN, frozenset(conditions), "says the class")
        for conditions in (
            (),
            ("Accepted",),
            ("Accepted", "Provisioned"),
            ("Failed",),
            ("Provisioned", "BookingExpired"),
            ("Provisioned", "CapacityRevoked"),
        )
    ),
]


def of_two(record: Record) -> Record:
    """The same of two pods and two objects."""
    attempt = record.attempt
    if attempt is not None and attempt.created_at is not None:
        done = tuple(ref.item for ref in attempt.objects if ref.done)
        objects = tuple(replace(make_ref(item), done=item in done) for item in (0, 1))
        attempt = replace(attempt, objects=objects)
    return replace(record, gang=make_gang(2), attempt=attempt)


def on_trust(record: Record) -> Record:
    """The same with a growth that trusts in a potential node."""
    amounts = growth_of(record.placed_gang.demand, GROWN)
    return run_changes.grant(record, amounts, None, "more pods", at(10), trusted=("potential/l4/0",)).after


RECORDS: dict[str, Callable[[], Record]] = {
    **{phase.value: lambda phase=phase: make_record(phase) for phase in Phase},  # type: ignore[misc]
    "Evicted": make_evicted,
    "FailingRun": make_failing_run,
    "FailedRun": make_failed_run,
    "Requeued": lambda: removal.removed(make_evicted(), at(5)).after,
    "Preempted": make_preempted,
    "QueuedAfterPreemption": lambda: removal.removed(make_preempted(), at(5)).after,
    "RunningAgain": lambda: make_running_again(),
    "Awaiting": make_awaiting,
    "Requested": make_requested,
    "Provisioned": lambda: make_provisioned(),
}
WATCHED = [name for name, make in RECORDS.items() if make().phase in ACTIVE]
EAST = parse_selector("zone=east", "annotation")
ASKED = [
    None,
    MutableSpec(),
    MutableSpec(7, 0.5),
    MutableSpec(suspend=True),
    MutableSpec(7, 0.5, suspend=True),
    MutableSpec(selector=EAST, prefers=None),
    MutableSpec(selector=None, prefers=EAST),
]


LOSSES = [
    Loss(policy, at(due), "cluster east has not answered") for policy in OnClusterLost for due in (5, 10**6)
]


def inactive_worlds() -> Iterator[World]:
    seen = ("none", "starting", "lost", "enough", "succeeded")
    for wanted, asked, states, pods in product((True, False), ASKED, STATES.values(), seen):
        yield World(wanted, asked, states=states, pods=PODS[pods])
    for asked, queues in product(ASKED, (("default",), ("team", "tree/node"))):
        yield World(asked=asked, pods=PODS["none"], queues=queues)
        yield World(asked=asked, pods=PODS["none"], queues=queues, awaits=pending_without(["budget"]))
    for asked, request in product(ASKED, REQUESTS):
        yield World(asked=asked, pods=PODS["none"], request=request)
    for asked in ASKED:
        yield World(asked=asked, pods=PODS["none"], draining="new switches")


def lost_worlds() -> Iterator[World]:
    """Nothing can be seen in a cluster that does not answer."""
    for wanted, asked, loss in product((True, False), ASKED, LOSSES):
        yield World(wanted, asked, pods=PODS["none"], states=STATES["unknown"], loss=loss)


def active_worlds(policy: str) -> Iterator[World]:
    for limit, pods, states in product(LIMITS, PODS.values(), STATES.values()):
        limited = LIMITED[policy, limit]
        yield World(policy=limited, pods=pods, states=states)
        if limit != "limit-passed":  # it is over, whatever is absent
            yield World(policy=limited, pods=pods, states=states, absent=(1,))
        if limit == "no-limit":
            yield World(policy=limited, pods=pods, states=states, drift=DRIFT)
            yield World(policy=limited, pods=pods, states=states, taken=GROWN)
            yield World(policy=limited, pods=pods, states=states, taken=NOTHING, gated=(GATED,))
            yield World(policy=limited, pods=pods, states=states, taken=GROWN, unplaced=(UNPLACED,))
            yield World(policy=limited, pods=pods, states=states, request=REQUESTS[-1])
    for pods in PODS.values():
        yield World(policy=TERMS[policy], pods=pods, taken=NOTHING, to_delete=GIVEN_UP)
        yield World(policy=TERMS[policy], pods=pods, unserved=(1,))
        yield World(policy=TERMS[policy], pods=pods, absent=(1,), unserved=(1,))


def carry_out(record: Record, seen: ObservedState, decision: Decision) -> list[Change]:
    """Whatever the reconciler may commit for a decision; the first of them if nothing goes wrong."""
    now = seen.now
    if isinstance(decision, Commit):
        return [decision.change]
    match decision.act:
        case Act.NOOP:
            return []
        case Act.DELETE:
            return [removal.delete(record, now)]
        case Act.CREATE:
            objects = tuple(replace(make_ref(item), done=item in decision.done) for item in (0, 1))
            return [
                run_changes.created(record, objects, now),
                run_changes.refuse_creation(record, objects, "invalid", now),
                run_changes.postpone_creation(record, objects, "quota", now + timedelta(seconds=5), now),
                run_changes.rule_out(
                    record, objects, record.requirements.without("hub", "taken"), "taken", now
                ),
                run_changes.withdraw(record, "no answer", now + timedelta(seconds=5), now),
            ]
        case Act.REQUEST_CAPACITY:
            return [
                provisioning.note(record, "requested", now, "request-1"),
                run_changes.refuse_creation(record, (), "too many pod sets", now),
            ]
        case Act.REQUEST_ELSEWHERE:
            return [
                provisioning.fail(record, decision.message, has_other, now) for has_other in (True, False)
            ]
        case Act.NOTE_HEALTH_ISSUE:
            return [
                run_changes.note_health_issue(record, decision.reason, decision.message, now, decision.since)
            ]
        case Act.COMPLETE:
            assert not seen.objects.pods.live
            return [run_changes.complete(record, decision.done, now + seen.policy.kept_completed, now)]
        case Act.FOLLOW_APPROVALS:
            if seen.awaits is None:
                return [queue_changes.approve(record, now)]
            return [queue_changes.await_approvals(record, seen.awaits, now)]
        case Act.REQUEUE | Act.FAIL:
            return [end_of_attempt(record, decision, seen.policy, "", now)]
        case Act.REMOVE:
            return [
                removal.removed(record, now),
                removal.removed(record, now, now + seen.policy.kept_failed),
            ]
        case Act.CONFIRM_GONE:
            return [removal.release(record, now)]
        case Act.EXPIRE:
            return [removal.expire(record, now)]
        case Act.TAKE_BACK_GROWTH:
            given_up = without_unplaced(record.grown, seen.objects.unplaced)
            return [run_changes.take_back_growth(record, given_up, decision.message, now)]
        case Act.ADMIT_PODS | Act.DELETE_PODS:
            return []
        case Act.TAKE_IN | Act.REMOVE_FINALIZER:
            raise AssertionError("an AppWrapper with a record is queued already")
        case _:
            assert_never(decision.act)


def check(record: Record, seen: ObservedState, decision: Decision, changes: list[Change]) -> None:
    """Each change is a row of the table that this step may make; why it was taken back or failed is said."""
    commits_nothing = step_of(decision) in {Act.NOOP, Act.ADMIT_PODS, Act.DELETE_PODS}
    assert bool(changes) is not commits_nothing
    for change in changes:
        (event,) = change.events
        assert event.cause in (DECIDED if isinstance(decision, Commit) else MADE_BY[decision.act])
        assert (record.phase, event.cause, change.after.phase) in TABLE
    if isinstance(decision, Commit):
        return
    if decision.act in {Act.REQUEUE, Act.FAIL, Act.NOTE_HEALTH_ISSUE}:
        assert decision.reason
        assert decision.message
    assert decision.until is None or (commits_nothing and decision.until > seen.now)
    if commits_nothing and record.phase in ACTIVE:
        assert may_rest(seen, decision.until), (seen, decision.until)


def step(record: Record, world: World, now: datetime) -> tuple[Decision, Change | None]:
    """What happens next if nothing goes wrong, all that may being checked."""
    seen = world.show(record, now)
    decision = decide(seen)
    changes = carry_out(record, seen, decision)
    check(record, seen, decision, changes)
    return decision, changes[0] if changes else None


def follow(
    record: Record, world: World, now: datetime, within: Collection[Phase] = tuple(Phase)
) -> tuple[Record, datetime, list[Act | Cause]]:
    """Where it comes to rest with nothing due, or leaves the phases it is followed in. Time goes on when it rests."""
    taken: list[Act | Cause] = []
    for _ in range(MOST_STEPS):
        if record.phase not in within:
            return record, now, taken
        decision, change = step(record, world, now)
        if change is None:
            until = act_of(decision).until
            if until is None:
                return record, now, taken
            now = max(now, until)
            continue
        taken.append(step_of(decision))
        record = change.after
    raise AssertionError(f"it does not come to rest: {taken}")


@pytest.mark.parametrize("name", RECORDS)
def test_from_every_phase_each_step_is_legal_and_leads_to_a_rest(name: str) -> None:
    for world in inactive_worlds():
        record, now, _ = follow(of_two(RECORDS[name]()), world, at(10))
        assert decide(world.show(record, now)) == Do(Act.NOOP)
        assert world.wanted or record.phase is Phase.DELETED


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("policy", TERMS)
def test_nothing_seen_of_a_gang_makes_it_go_in_circles(policy: str, name: str) -> None:
    goes_in_no_circles(of_two(RECORDS[name]()), active_worlds(policy))


@pytest.mark.sweep
@pytest.mark.parametrize("noted", AILMENTS)
@pytest.mark.parametrize("policy", TERMS)
def test_nothing_seen_of_a_gang_that_is_noted_as_ill_makes_it_go_in_circles(policy: str, noted: str) -> None:
    for name in WATCHED:
        start = replace(of_two(RECORDS[name]()), unhealthy=AILMENTS[noted])
        # A limit does not change what becomes of the ailment, nor the ailment what a limit does.
        goes_in_no_circles(start, (world for world in active_worlds(policy) if not world.policy.limit))


def goes_in_no_circles(start: Record, worlds: Iterable[World]) -> None:
    """No step is taken twice while the same pods are seen."""
    for world in worlds:
        _, _, taken = follow(start, world, at(10), within=ACTIVE)
        assert len(taken) == len(set(taken)), world


@pytest.mark.parametrize("policy", TERMS)
def test_gang_that_fares_the_same_at_each_attempt_ends_or_rests_unless_it_is_to_be_tried_for_ever(
    policy: str,
) -> None:
    """A hold is a rest: its pods run, or it waits for what is not done yet."""
    start = of_two(make_record(Phase.DISPATCHED))
    # A cycle dispatches no gang to a cluster that does not serve its kinds.
    for world in (each for each in active_worlds(policy) if not (each.absent and each.unserved)):
        record, now = start, at(10)
        for _ in range(6):
            requeuings = record.requeuings
            record, now, taken = follow(record, world, now)
            if record.phase is not Phase.QUEUED:
                break
            assert record.requeuings == requeuings + 1
            assert record.eligible_at is not None
            now = max(now, record.eligible_at)
            record = queue_changes.dispatch(record, "hub", now).after
        else:
            assert TERMS[policy].min_available
            assert record.reason == ""
            continue
        assert record.phase in {*FINAL, *ACTIVE}
        assert record.phase in ACTIVE or Act.REMOVE in taken or Act.COMPLETE in taken


def test_every_reason_to_hold_a_gang_holds_some_gang() -> None:
    """Else it stands there to excuse what is not done any more."""
    missed = set(HOLDS)
    for name, policy in product(WATCHED, TERMS):
        record = of_two(RECORDS[name]())
        starts = (record, run_changes.complete_some(record, (0, 1), at(10)).after)
        for world, start in product(active_worlds(policy), starts):
            seen = world.show(start, at(10))
            held = reasons_to_hold(seen)
            # A decision is dear, and asked for only where it may show something new.
            if len(held) == 1 and not held.isdisjoint(missed) and decide(seen) == Do(Act.NOOP):
                missed -= held
    assert not missed


def test_every_step_and_every_cause_of_the_reconciler_is_reached() -> None:
    """Else the products above leave something out."""
    reached: set[Act | Cause] = {Act.TAKE_IN, Act.REMOVE_FINALIZER}  # without a record
    for name, make in RECORDS.items():
        record = of_two(make())
        worlds = [*lost_worlds(), *(active_worlds("components") if name in WATCHED else inactive_worlds())]
        starts = [record, replace(record, unhealthy=AILMENTS["ill"])]
        if name in WATCHED:
            starts += [run_changes.note_done(record, (0, 1), at(10)).after, on_trust(record)]
        for world, start, seconds in product(worlds, starts, (10, 10**7)):
            reached.add(step_of(decide(world.show(start, at(seconds)))))
    assert reached == {*Act, *DECIDED}
    assert DECIDED.union(*MADE_BY.values()) == set(Cause) - {
        Cause.NOTIFICATIONS_CHANGED,  # tests/unit/core/lifecycle/test_decision.py
        Cause.BLOCKED,
        Cause.NOT_EVALUATED,
        Cause.BLOCKED_AT_HEAD,
        Cause.PREEMPTING,
        Cause.PREEMPTED,
        Cause.WARNED,
        Cause.DISPATCHED,
        Cause.GRANTED,
        Cause.GROWTH_WAITS,
        Cause.SURPLUS_PREEMPTED,
        Cause.FOUND_ENDED,
        Cause.FOUND_RUNNING,
    }


@pytest.mark.parametrize("cause", MADE_BY[Act.TAKE_IN])
def test_a_new_appwrapper_comes_to_rest_or_is_dispatched(cause: Cause) -> None:
    submission, gang = make_submission(suspended=cause is Cause.SUBMITTED_SUSPENDED), make_gang(2)
    made: dict[Cause, Callable[[], Change]] = {
        Cause.SUBMITTED: lambda: first_changes.submit(submission, gang, at(0)),
        Cause.SUBMITTED_SUSPENDED: lambda: first_changes.submit(submission, gang, at(0)),
        Cause.REJECTED: lambda: first_changes.reject(submission, "cannot be read", at(0)),
        Cause.ADOPTED: lambda: first_changes.adopt(submission, gang, "hub", 3, at(0)),
        Cause.FOUND_COMPLETED: lambda: first_changes.recall_completed(submission, gang, at(0)),
        Cause.FOUND_FAILED: lambda: first_changes.recall_failed(
            submission, gang, words.FAILED_COMPONENT, "it failed", at(0)
        ),
    }
    ends = {
        Cause.SUBMITTED: Phase.QUEUED,
        Cause.SUBMITTED_SUSPENDED: Phase.SUSPENDED,
        Cause.REJECTED: Phase.FAILED,
        Cause.ADOPTED: Phase.RUNNING,
        Cause.FOUND_COMPLETED: Phase.COMPLETED,
        Cause.FOUND_FAILED: Phase.FAILED,
    }
    world = World(asked=MutableSpec(suspend=cause is Cause.SUBMITTED_SUSPENDED))
    change = made[cause]()
    assert change.events[0].cause == cause
    assert follow(change.after, world, at(1))[0].phase is ends[cause]
