"""Whom the reconciler asks before an attempt ends, and what it commits then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.confirmation import (
    Complaint,
    Evidence,
    complaint_about,
    end_of_attempt,
    evidence_for,
    is_confirmed,
    may_have_failed_pods,
    why_without_nodes,
)
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import Act, Do, ObservedState
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.pods import PodCounts, PodFailure
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Phase, Record
from tests.builders import QUEUED_CLASS, at, make_gang, make_policy, make_record

RUNNING = make_record(Phase.RUNNING)
DISPATCHED = make_record(Phase.DISPATCHED, gang=make_gang(2))
TOO_FEW = Do(Act.REQUEUE, words.MIN_PODS_NOT_RUNNING, "too few pods", done=frozenset({1}))


@pytest.mark.parametrize(
    ("reason", "evidence"),
    [
        (words.MISSING_COMPONENT, Evidence.OBJECTS),
        (words.FAILED_COMPONENT, Evidence.NOTHING),
        (words.DISPATCH_DEADLINE_EXCEEDED, Evidence.NOTHING),
        (words.MIN_PODS_NOT_RUNNING, Evidence.PODS),
        (words.INSUFFICIENT_PODS_READY, Evidence.PODS),
        (words.FOUND_FAILED_PODS, Evidence.PODS),
    ],
)
def test_each_reason_needs_its_own_evidence(reason: str, evidence: Evidence) -> None:
    assert evidence_for(reason) is evidence


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (TOO_FEW, True),
        (Do(Act.REQUEUE, words.MIN_PODS_NOT_RUNNING, "one pod is left", done=frozenset()), True),
        (Do(Act.FAIL, words.MIN_PODS_NOT_RUNNING, "too few pods"), False),
        (Do(Act.REQUEUE, words.FOUND_FAILED_PODS, "too few pods"), False),
        (Do(Act.NOOP), False),
        (Do(Act.REQUEUE, words.MIN_PODS_NOT_RUNNING, "too few pods", is_in_doubt=True), False),
    ],
)
def test_act_and_reason_confirm_a_suspicion(decision: Do, expected: bool) -> None:
    assert is_confirmed(TOO_FEW, decision) is expected


@pytest.mark.parametrize(
    ("reason", "pods", "expected"),
    [
        (words.MIN_PODS_NOT_RUNNING, PodCounts(), Complaint.CONTROLLERS),
        (words.INSUFFICIENT_PODS_READY, PodCounts(), Complaint.CONTROLLERS),
        (words.INSUFFICIENT_PODS_READY, PodCounts(running=1), Complaint.CONTROLLERS),
        (words.INSUFFICIENT_PODS_READY, PodCounts(pending=2, starting=1), Complaint.NODES),
        (words.MIN_PODS_NOT_RUNNING, PodCounts(running=1, failed=1), Complaint.NOBODY),
        (words.FAILED_COMPONENT, PodCounts(), Complaint.NOBODY),
    ],
)
def test_words_of_others_are_asked_for_where_pods_are_missing_or_do_not_start(
    reason: str, pods: PodCounts, expected: Complaint
) -> None:
    policy = make_policy(CompletionRule(holds=True, asks=2))
    observed = ObservedState(DISPATCHED, True, at(60), policy=policy, objects=ObservedObjects(pods))
    assert complaint_about(Do(Act.REQUEUE, reason), DISPATCHED, observed) is expected


def test_evicted_gang_pauses_by_its_policy_and_keeps_its_finished_objects() -> None:
    policy = LifecyclePolicy()
    change = end_of_attempt(RUNNING, TOO_FEW, policy, "", at(60))
    assert change.after.phase is Phase.REQUEUEING
    assert change.after.eligible_at == at(60) + policy.pause(words.MIN_PODS_NOT_RUNNING)


@pytest.mark.parametrize(("complaint", "detail"), [("", ""), ("Job a/b: no quota", "; Job a/b: no quota")])
def test_failed_gang_repeats_the_complaint_of_the_operator(complaint: str, detail: str) -> None:
    decision = Do(Act.FAIL, words.MIN_PODS_NOT_RUNNING, "too few pods", " (requeued so far: 3)")
    change = end_of_attempt(RUNNING, decision, LifecyclePolicy(), complaint, at(60))
    assert change.after.phase is Phase.FAILING
    assert f"too few pods (requeued so far: 3){detail}" in change.after.message


FULL = "0/3 nodes are available: 3 Insufficient cpu."
TAINTED = "0/3 nodes are available: 3 node(s) had untolerated taints."
NO_VICTIMS = "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."


@pytest.mark.parametrize(
    ("reason", "unscheduled", "said"),
    [
        (words.MIN_PODS_NOT_RUNNING, {}, ""),
        (words.MIN_PODS_NOT_RUNNING, {"a": ""}, ""),
        (words.MIN_PODS_NOT_RUNNING, {"a": FULL}, f"no node for pod a: {FULL[:-1]}"),
        (words.PODS_FAILED_SCHEDULING, {"a": f"{FULL} {NO_VICTIMS}"}, f"no node for pod a: {FULL[:-1]}"),
        (
            words.MIN_PODS_NOT_RUNNING,
            {"a": f"0/1 nodes: 1 full, {NO_VICTIMS}"},
            "no node for pod a: 0/1 nodes: 1 full",
        ),
        (
            words.INSUFFICIENT_PODS_READY,
            {"c": FULL, "a": TAINTED, "b": FULL, "d": FULL},
            f"no node for pod b and 2 more: {FULL[:-1]}",
        ),
        (words.INSUFFICIENT_PODS_READY, {"b": FULL, "a": TAINTED}, f"no node for pod a: {TAINTED[:-1]}"),
        (words.FOUND_FAILED_PODS, {"a": FULL}, ""),
        (words.DISPATCH_DEADLINE_EXCEEDED, {"a": FULL}, ""),
    ],
)
def test_gang_that_ends_for_lack_of_pods_repeats_the_message_of_kube_scheduler(
    reason: str, unscheduled: dict[str, str], said: str
) -> None:
    assert why_without_nodes(Do(Act.REQUEUE, reason), unscheduled) == said


def test_pause_of_an_eviction_is_not_negative() -> None:
    change = end_of_attempt(RUNNING, TOO_FEW, LifecyclePolicy(), "", at(60))
    assert change.after.eligible_at is not None
    assert change.after.eligible_at - at(60) >= timedelta(0)


OUT_OF_MEMORY = PodFailure("train-0", "main", 137, "OOMKilled", "a secret")
FAILED_FIRST = "failed first: container main of pod train-0, exit code 137, OOMKilled"
BARE = "Pod a/train-0 failed: container main exited with code 137"
OUT_OF_MEMORY_EVICTED = end_of_attempt(
    RUNNING,
    Do(Act.REQUEUE, words.FOUND_FAILED_PODS, "failed pods: 1"),
    LifecyclePolicy(),
    "",
    at(60),
    OUT_OF_MEMORY,
).after


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (words.FAILED_COMPONENT, True),
        (words.FOUND_FAILED_PODS, True),
        (words.INSUFFICIENT_PODS_READY, True),
        (words.MIN_PODS_NOT_RUNNING, True),
        (words.MISSING_COMPONENT, False),
        (words.DISPATCH_DEADLINE_EXCEEDED, False),
        (words.CLUSTER_DRAINING, False),
    ],
)
def test_failed_pod_is_looked_for_where_a_pod_may_be_the_cause(reason: str, expected: bool) -> None:
    assert may_have_failed_pods(reason) is expected


@pytest.mark.parametrize(
    ("act", "message", "told"),
    [
        (Act.FAIL, "Job a/b failed", f"Job a/b failed; no quota; {FAILED_FIRST}"),
        (Act.REQUEUE, "failed pods: 1", f"failed pods: 1; no quota; {FAILED_FIRST}"),
        (Act.FAIL, BARE, f"{BARE}; no quota"),
    ],
    ids=["failed", "requeued", "the-message-says-it"],
)
def test_failed_pod_is_named_and_its_termination_message_is_in_no_message(
    act: Act, message: str, told: str
) -> None:
    decision = Do(act, words.FAILED_COMPONENT, message)

    change = end_of_attempt(RUNNING, decision, LifecyclePolicy(), "no quota", at(60), OUT_OF_MEMORY)

    event = change.events[-1]
    assert (change.after.message, event.message, event.termination_message) == (told, told, "a secret")
    assert "secret" not in repr(change)
    assert change.after.failure == OUT_OF_MEMORY
    assert not any("secret" in each.message for each in change.after.conditions)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("pods: 1", "pods: 1", id="what-the-message-says"),
        pytest.param("a\nb", r"a\nb", id="two-lines"),
        pytest.param(f"first{'x' * 2000}last", f"first{'x' * 378}…{'x' * 124}last", id="long"),
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda why: run_changes.fail(RUNNING, why, at(60)), id="failed"),
        pytest.param(lambda why: run_changes.evict(RUNNING, why, at(70), 60, at(60)), id="evicted"),
    ],
)
def test_event_of_history_has_the_termination_message_in_one_line_and_bounded(
    end: Callable[[EvictionReason], Change], said: str, expected: str
) -> None:
    reason = EvictionReason(words.FOUND_FAILED_PODS, "failed pods: 1", "", PodFailure("p", message=said))
    event = end(reason).events[-1]
    assert (event.message, event.termination_message) == ("failed pods: 1", expected)


def test_next_attempt_forgets_how_a_pod_of_the_last_one_failed() -> None:
    queued = removal.removed(OUT_OF_MEMORY_EVICTED, at(61)).after
    assert queued.failure == OUT_OF_MEMORY
    assert queue_changes.dispatch(queued, "hub", at(99)).after.failure is None
    assert first_changes.take_over(queued, "hub", 7, at(99)).after.failure is None


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda record: run_changes.refuse_creation(record, (), "no", at(100)), id="refused"),
        pytest.param(
            lambda record: run_changes.postpone_creation(record, (), "quota", at(150), at(100)),
            id="postponed",
        ),
        pytest.param(lambda record: removal.lose(record, "east is away", at(100)), id="cluster-lost"),
        pytest.param(
            lambda record: provisioning.fail(
                replace(record, provisioning_failures=3), "no nodes", has_other_cluster=False, now=at(100)
            ),
            id="no-capacity",
        ),
        pytest.param(
            lambda record: run_changes.preempt(record, Reason.QUOTA_RECLAIMED, "for another", at(100), "uid"),
            id="preempted",
        ),
    ],
)
def test_attempt_that_ends_before_its_creation_shows_no_failed_pod_of_an_earlier_one(
    end: Callable[[Record], Change],
) -> None:
    queued = removal.removed(OUT_OF_MEMORY_EVICTED, at(61)).after
    waits = queue_changes.dispatch(queued, "hub", at(99), assignment=Assignment(provisioning=QUEUED_CLASS))
    assert end(waits.after).after.failure is None


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda record: first_changes.complete_missed(record, None, at(100)), id="completed"),
        pytest.param(lambda record: first_changes.fail_missed(record, "r", "m", None, at(100)), id="failed"),
        pytest.param(lambda record: first_changes.end_missed_attempt(record, "m", at(100)), id="ended"),
    ],
)
def test_restored_record_of_an_attempt_that_ended_otherwise_shows_no_failed_pod(
    step: Callable[[Record], Change],
) -> None:
    assert step(OUT_OF_MEMORY_EVICTED).after.failure is None
