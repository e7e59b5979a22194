"""The status of gangs in queues: of one that lacks quota, of one that is preempted, and of its preemptor."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.pending_reasons import LACKS_QUOTA
from dispatcher.core.model.records.record import Borrower, Pending, Phase, QuotaSummary, Record
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.status.conditions import Shown, project
from tests.builders import WAITS, at, make_blocked, make_drained, make_evicted, make_preempted, make_record

WHY = "preempted for default/other (queue b, priority 3): its queue uses more than its quota"
OF_QUOTA = "quota limit exceeded", "Insufficient quota and/or resources to dispatch AppWrapper."
OF_ROOM = "AppWrapperNotRunnable.", "Insufficient resources to dispatch AppWrapper."


def condition(record: Record, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    (found,) = (each for each in project(record)["conditions"] if each["type"] == type_)
    return found["status"], found.get("reason", ""), found.get("message", "")


@pytest.mark.parametrize("reason", sorted(LACKS_QUOTA))
def test_condition_of_a_gang_whose_queue_lacks_quota_has_the_message_of_mcad(reason: str) -> None:
    rejections = (Rejection("east", "InsufficientResources", "it is full"),)
    for clusters in ((), rejections):
        record = make_blocked(pending=Pending(reason, "quota of a: cpu: needs 4", "cpu", clusters=clusters))
        assert condition(record, "Backoff") == ("True", *OF_QUOTA)
        assert project(record)["waiting"]["reason"] == reason


@pytest.mark.parametrize(
    "reason", sorted({"AwaitingRelease", "QueueNotFound", "QueueStopped", "PreemptedTooOften"})
)
def test_gang_that_waits_for_anything_else_has_the_words_that_it_had(reason: str) -> None:
    assert condition(make_blocked(pending=Pending(reason, "why")), "Backoff") == ("True", *OF_ROOM)


SHORT = Pending(
    "InsufficientQuota",
    "quota of a: cpu: needs 4",
    "cpu",
    queue="a",
    quota=QuotaSummary("8", "6", "-500m", "12", (Borrower("b", "2"), Borrower("c", "1"))),
)
SHOWN = {
    "reason": "InsufficientQuota",
    "message": "quota of a: cpu: needs 4",
    "resource": "cpu",
    "queue": "a",
    "quota": {
        "nominal": "8",
        "used": "6",
        "available": "-500m",
        "most": "12",
        "borrowers": [{"queue": "b", "amount": "2"}, {"queue": "c", "amount": "1"}],
    },
}


@pytest.mark.parametrize(
    ("pending", "shown"),
    [
        pytest.param(SHORT, SHOWN, id="quota"),
        pytest.param(
            replace(SHORT, quota=QuotaSummary("8", "6")),
            SHOWN | {"quota": {"nominal": "8", "used": "6"}},
            id="quota-without-any-limit",
        ),
        pytest.param(
            Pending("AwaitingRelease", "why", cluster="hub", queue="a", preempting=("red/x", "red/y")),
            {
                "reason": "AwaitingRelease",
                "message": "why",
                "cluster": "hub",
                "queue": "a",
                "preempting": ["red/x", "red/y"],
            },
            id="preemptor",
        ),
    ],
)
def test_waiting_has_the_facts_of_queues(pending: Pending, shown: dict[str, Any]) -> None:
    assert project(make_blocked(pending=pending))["waiting"] == shown


def test_a_change_of_amounts_alone_is_no_news_and_the_first_amounts_stay() -> None:
    told = make_blocked(pending=SHORT)
    other = replace(SHORT, message="quota of a: cpu: needs 4, 1 available", quota=QuotaSummary("8", "7"))
    assert queue_changes.block(told, other, at(3)) is None
    for news in (replace(other, resource="memory"), replace(other, queue="b")):
        change = queue_changes.block(told, news, at(3))
        assert change is not None
        assert change.after.pending == news


def test_a_gang_not_evaluated_for_another_queue_than_before_shows_the_new_queue() -> None:
    behind = Pending("AwaitingHeadOfLine", "behind default/head, which waits", queue="a")
    change = queue_changes.note_not_evaluated(make_record(), behind, at(3))
    assert change is not None
    assert queue_changes.note_not_evaluated(change.after, replace(behind, message="behind"), at(4)) is None
    moved = queue_changes.note_not_evaluated(change.after, replace(behind, queue="b"), at(4))
    assert moved is not None
    assert project(moved.after)["waiting"]["queue"] == "b"


def test_words_follow_the_pending_reason_until_the_dispatch() -> None:
    short_of_quota = make_blocked(pending=Pending("InsufficientQuota", "quota of a", "cpu"))
    short_of_room = make_blocked(short_of_quota, WAITS, seconds=2)
    assert condition(short_of_room, "Backoff") == ("True", *OF_ROOM)
    again = make_blocked(short_of_room, Pending("InsufficientQuota", "quota of a", "cpu"), seconds=3)
    dispatched = queue_changes.dispatch(again, "hub", at(4)).after
    assert condition(dispatched, "Backoff") == ("False", *OF_QUOTA)


def test_preempted_gang_names_its_preemptor_and_the_reason_until_it_runs_again() -> None:
    leaving = make_preempted()
    status = project(leaving)
    assert condition(leaving, "PreemptCandidate") == ("True", "QuotaReclaimed", WHY)
    assert (status["state"], status["queuejobstate"], status["canrun"]) == ("Pending", "Backoff", False)
    assert condition(leaving, "Dispatched")[0] == condition(leaving, "Running")[0] == "False"
    assert (status["cluster"], "waiting" in status) == ("hub", False)

    queued = removal.removed(leaving, at(5)).after
    status = project(queued)
    assert condition(queued, "Backoff") == ("True", "PreemptionTriggered", WHY)
    assert status["waiting"] == {"reason": "PreemptionTriggered", "message": WHY, "cluster": "hub"}
    assert "numberOfRequeueings" not in status

    waits = make_blocked(queued, Pending("InsufficientQuota", "quota of a", "cpu"), seconds=7)
    assert condition(waits, "Backoff") == ("True", "PreemptionTriggered", WHY)
    assert project(waits)["waiting"]["reason"] == "InsufficientQuota"

    again = queue_changes.dispatch(waits, "hub", at(8)).after
    runs = run_changes.mark_running(run_changes.created(again, (), at(9)).after, at(10)).after
    assert condition(runs, "Backoff")[0] == "False"
    assert project(runs)["state"] == "Running"


@pytest.mark.parametrize("phase", [Phase.DISPATCHED, Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION])
@pytest.mark.parametrize("has_components", [False, True])
def test_preempted_gang_is_shown_like_an_evicted_one(phase: Phase, has_components: bool) -> None:
    shown = Shown(has_components=has_components)
    record = make_record(phase)
    preempted = replace(make_preempted(record), conditions=())
    evicted = replace(make_evicted(record), conditions=(), requeuings=0)
    assert project(preempted, shown) == project(evicted, shown)


def test_drained_gang_says_that_its_queue_is_drained() -> None:
    why = "its queue b is stopped and drained"
    leaving = make_drained()
    assert condition(leaving, "PreemptCandidate") == ("True", "QueueStopped", why)
    queued = removal.removed(leaving, at(5)).after
    assert condition(queued, "Backoff") == ("True", "PreemptionTriggered", why)


def test_preemptor_names_its_victims() -> None:
    message = "fits once default/other and 1 more are gone, which it preempts"
    pending = Pending(pending_reasons.AWAITING_RELEASE, message, cluster="hub")
    record = queue_changes.begin_preempting(make_record(), pending, at(1)).after
    assert project(record)["waiting"] == {"reason": "AwaitingRelease", "message": message, "cluster": "hub"}
    assert condition(record, "Backoff") == ("True", *OF_ROOM)
