"""A gang whose capacity is requested: what each answer of its class leads to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.clusters.provisioning import ProvisioningClass, RetryRule
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.kinds.object_status import End, FoundRequest, ObjectState
from dispatcher.core.kinds.provisioning_request import refs_of
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.confirmation import end_of_attempt
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.provisioning import recovered, requested
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do, ObservedState
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.text import LONGEST_MESSAGE
from tests.builders import (
    QUEUED_CLASS,
    at,
    attempt_of,
    make_awaiting,
    make_gang,
    make_record,
    make_ref,
    make_requested,
    make_submission,
)
from tests.unit.core.lifecycle.dispatched import act_of, step_of


def see(
    record: Record, *conditions: str, seconds: float = 10, absent: bool = False, said: str = "in 5 minutes"
) -> Decision:
    """The decision about a record whose request has these true conditions."""
    state = ObjectState(End.OPEN, frozenset(conditions), said)
    return decide(
        ObservedState(
            record,
            wanted=True,
            now=at(seconds),
            asked=MutableSpec(),
            request=None if absent else state,
            request_is_absent=absent,
        )
    )


def noted_by(decision: Decision) -> str:
    """What a decision notes of the class."""
    assert isinstance(decision, Commit)
    return decision.change.events[0].message


def test_gang_without_a_request_makes_one_and_creates_nothing_before() -> None:
    assert step_of(see(make_awaiting())) is Act.REQUEST_CAPACITY


def test_unanswered_provisioning_request_fails_after_its_bound() -> None:
    requested = make_requested(asked=replace(QUEUED_CLASS, accept_within=timedelta(seconds=90)))
    assert see(requested, seconds=10) == Do(Act.NOOP, until=at(92))
    assert see(requested, seconds=92) == Do(
        Act.REQUEST_ELSEWHERE,
        words.PROVISIONING_FAILED,
        "no autoscaler answered the request for capacity of class queued-provisioning.gke.io in cluster hub "
        "within 90 s",
    )


def test_accepted_and_unseen_provisioning_requests_have_no_bound() -> None:
    noted = provisioning.note(make_requested(), noted_by(see(make_requested(), "Accepted")), at(10)).after
    assert see(noted, "Accepted", seconds=86_400) == Do(Act.NOOP)
    unseen = ObservedState(make_requested(), wanted=True, now=at(86_400), asked=MutableSpec(), request=None)
    assert decide(unseen) == Do(Act.NOOP)


def test_deleted_provisioning_request_is_created_again() -> None:
    assert step_of(see(make_requested(), absent=True)) is Act.REQUEST_CAPACITY


def test_request_that_is_deleted_in_a_loop_is_made_again_once_a_second() -> None:
    assert see(make_requested(), absent=True, seconds=2.5) == Do(Act.NOOP, until=at(3))
    assert step_of(see(make_requested(), absent=True, seconds=3)) is Act.REQUEST_CAPACITY


@pytest.mark.parametrize(
    ("conditions", "step"),
    [
        (("Accepted",), Cause.PROVISIONING),
        (("Accepted", "Provisioned"), Cause.PROVISIONED),
        (("Accepted", "Failed"), Act.REQUEST_ELSEWHERE),
        (("Accepted", "Provisioned", "BookingExpired"), Act.REQUEST_ELSEWHERE),
        (("Accepted", "Provisioned", "CapacityRevoked"), Act.REQUEST_ELSEWHERE),
    ],
)
def test_each_answer_leads_to_its_step(conditions: tuple[str, ...], step: Act | Cause) -> None:
    assert step_of(see(make_requested(), *conditions)) is step


def test_words_of_the_class_are_noted_once_and_at_most_twice_a_minute() -> None:
    accepted = noted_by(see(make_requested(), "Accepted"))
    assert accepted == "the request for capacity is accepted in cluster hub: in 5 minutes"
    noted = provisioning.note(make_requested(), accepted, at(10)).after
    assert step_of(see(noted, "Accepted", seconds=100)) is Act.NOOP
    other = provisioning.note(make_requested(), "accepted: in 6 minutes", at(10)).after
    assert see(other, "Accepted", seconds=20) == Do(Act.NOOP, until=at(40))
    assert step_of(see(other, "Accepted", seconds=40)) is Cause.PROVISIONING


def test_longest_words_of_the_class_are_noted_once() -> None:
    words_of_class = "x" * LONGEST_MESSAGE
    noted = provisioning.note(
        make_requested(), noted_by(see(make_requested(), "Accepted", said=words_of_class)), at(10)
    ).after
    assert step_of(see(noted, "Accepted", seconds=100, said=words_of_class)) is Act.NOOP


def test_gang_that_waits_for_capacity_holds_its_quota_and_says_why_it_waits() -> None:
    record = make_requested()
    assert record.phase is Phase.DISPATCHING
    assert record.holds_capacity
    assert attempt_of(record).awaits_capacity
    assert record.pending is not None
    assert (record.pending.reason, record.pending.cluster) == ("AwaitingProvisioning", "hub")


def test_provisioned_gang_is_created_whatever_its_class_says_afterwards() -> None:
    record = provisioning.provisioned(make_requested(), "there", at(10)).after
    assert record.pending is None
    assert not attempt_of(record).awaits_capacity
    assert attempt_of(record).began_at == at(10)
    for conditions in (("Provisioned",), ("Failed",), ("BookingExpired",), ()):
        assert step_of(see(record, *conditions, seconds=20)) is Act.CREATE


def run_since(
    provisioned: float, record: Record | None = None, asked: ProvisioningClass = QUEUED_CLASS
) -> Record:
    """A gang that runs on capacity that came at that second."""
    requested = make_requested(record, asked)
    there = provisioning.provisioned(requested, "there", at(provisioned)).after
    created = run_changes.created(there, (make_ref(),), at(provisioned)).after
    return run_changes.mark_running(created, at(provisioned)).after


def revoke(record: Record, seconds: float) -> Record:
    """The record once its capacity was revoked at that second, and its objects are gone, if it is evicted."""
    decision = act_of(see(record, "Provisioned", "CapacityRevoked", seconds=seconds, said="maintenance"))
    change = end_of_attempt(record, decision, LifecyclePolicy(), "", at(seconds))
    return removal.removed(change.after, at(seconds)).after


def test_revoked_capacity_evicts_a_running_gang_and_an_expired_booking_does_not() -> None:
    revoked = act_of(see(run_since(3), "Provisioned", "CapacityRevoked"))
    assert (revoked.act, revoked.reason) == (Act.REQUEUE, words.CAPACITY_REVOKED)
    assert act_of(see(run_since(3), "Provisioned", "BookingExpired")).reason != words.CAPACITY_REVOKED


def test_capacity_that_is_revoked_again_and_again_is_requested_with_the_pauses_of_failures() -> None:
    record, pauses = make_record(), []
    for start in (10, 1000, 2000):
        record = revoke(run_since(start, record), start + 5)
        assert record.phase is Phase.QUEUED
        assert record.eligible_at is not None
        pauses.append((record.eligible_at - at(start + 5)).total_seconds())
    assert pauses == [60, 120, 240]
    assert record.pending is not None
    assert (
        record.pending.message
        == "the capacity was revoked in cluster hub: maintenance; retry 3 of 3 in 4 min"
    )
    failed = revoke(run_since(3000, record), 3005)
    assert (failed.phase, failed.reason) == (Phase.FAILED, words.CAPACITY_REVOKED)
    assert failed.message == "the capacity was revoked in cluster hub: maintenance"


@pytest.mark.parametrize(
    ("ran", "failures", "pause"),
    [pytest.param(1799, 3, 240, id="short-of-it"), pytest.param(1800, 0, 1, id="that-long")],
)
def test_gang_that_ran_as_long_as_the_longest_pause_begins_a_new_row_of_failures(
    ran: float, failures: int, pause: float
) -> None:
    record = revoke(run_since(10, replace(make_record(), provisioning_failures=2)), 10 + ran)
    assert record.provisioning_failures == failures
    assert record.eligible_at == at(10 + ran + pause)


def test_gang_that_left_its_capacity_for_another_reason_begins_a_new_row_of_failures() -> None:
    running = run_since(10, replace(make_record(), provisioning_failures=2))
    assert running.provisioning_failures == 2
    drained = Do(Act.REQUEUE, words.CLUSTER_DRAINING, "it is being emptied")
    evicted = end_of_attempt(running, drained, LifecyclePolicy(), "", at(20)).after
    queued = removal.removed(evicted, at(21)).after
    assert make_requested(queued).provisioning_failures == 0


def failed_times(times: int, asked: ProvisioningClass = QUEUED_CLASS) -> list[Record]:
    """The record after each of so many failures in the only cluster, from the first request on."""
    records, record = [], make_record()
    for number in range(times):
        failed = provisioning.fail(make_requested(record, asked), "no nodes", False, at(10 + number))
        records.append(failed.after)
        record = replace(failed.after, phase=Phase.QUEUED)
    return records


def test_failures_give_the_quota_back_with_pauses_that_double_and_then_fail_the_gang() -> None:
    *retried, refused = failed_times(4)
    pauses = [(each.eligible_at or at(0)) - each.phase_since for each in retried]
    assert pauses == [timedelta(seconds=60), timedelta(seconds=120), timedelta(seconds=240)]
    assert {each.phase for each in retried} == {Phase.REQUEUEING}
    assert (refused.phase, refused.reason, refused.message) == (
        Phase.FAILING,
        words.PROVISIONING_FAILED,
        "no nodes",
    )
    assert "retry 1 of 3 in 60 s" in retried[0].message


def test_pause_has_an_upper_bound() -> None:
    rule = RetryRule()
    assert [rule.pause(number).total_seconds() for number in (1, 5, 6, 7, 1000)] == [
        60,
        960,
        1800,
        1800,
        1800,
    ]
    assert RetryRule(base=timedelta(days=1), longest=timedelta(days=1)).pause(10**6) == timedelta(days=1)


def test_limit_of_0_fails_at_once() -> None:
    (refused,) = failed_times(1, replace(QUEUED_CLASS, retry=RetryRule(limit=0)))
    assert refused.phase is Phase.FAILING


def test_other_cluster_is_asked_at_once_and_the_failed_cluster_in_the_next_round() -> None:
    first = provisioning.fail(make_requested(), "no nodes", True, at(10)).after
    assert first.requirements.unprovisioned == {("hub", "no nodes")}
    assert first.provisioning_failures == 0
    assert first.eligible_at == at(10)
    removed = removal.removed(first, at(11)).after
    assert removed.phase is Phase.QUEUED
    assert removed.eligible_at == at(10)
    assert removed.pending is not None
    assert (removed.pending.reason, removed.pending.message) == (words.PROVISIONING_FAILED, "no nodes")
    second = provisioning.fail(make_requested(removed), "none either", False, at(12)).after
    assert second.requirements == ClusterRequirements()
    assert second.provisioning_failures == 1


def test_success_allows_all_clusters_again() -> None:
    record = replace(failed_times(1)[0], phase=Phase.QUEUED)
    provisioned = provisioning.provisioned(make_requested(record), "there", at(100)).after
    assert provisioned.requirements.unprovisioned == frozenset()


@pytest.mark.parametrize("make", [make_awaiting, make_requested])
def test_capacity_is_not_awaited_in_a_cluster_that_is_drained(make: Callable[[], Record]) -> None:
    record, why = make(), "it is being emptied"
    drained = ObservedState(record, wanted=True, now=at(10), asked=MutableSpec(), draining=why)
    assert decide(drained) == Commit(provisioning.leave(record, why, at(10)))


def test_drained_cluster_is_no_failure_of_its_class() -> None:
    asked = replace(QUEUED_CLASS, retry=RetryRule(limit=0))
    left = provisioning.leave(make_requested(asked=asked), "it is being emptied", at(10)).after
    assert (left.phase, left.provisioning_failures) == (Phase.REQUEUEING, 0)
    assert left.requirements.unprovisioned == frozenset()
    assert removal.removed(left, at(11)).after.eligible_at == at(10)


def test_user_who_suspends_ends_the_request() -> None:
    suspended = ObservedState(
        make_requested(), wanted=True, now=at(10), asked=MutableSpec(suspend=True), request=None
    )
    assert step_of(decide(suspended)) is Cause.SUSPENDED
    assert queue_changes.suspend(make_requested(), at(10)).after.pending is None


# --- attempts that the database lacks --------------------------------------------------------------------------

OTHER_CLASS = ProvisioningClass("another.example.com")


def found_request(*conditions: str) -> FoundRequest:
    """The request of the class of these tests that a cluster has, with these true conditions."""
    return FoundRequest("uid-of-request", QUEUED_CLASS.name, ObjectState(conditions=frozenset(conditions)))


@pytest.mark.parametrize(
    ("found", "declared", "has_objects", "expected"),
    [
        pytest.param(None, None, False, None, id="needs-none"),
        pytest.param(None, QUEUED_CLASS, True, None, id="created-before-the-class-was-declared"),
        pytest.param(None, QUEUED_CLASS, False, Provisioning(QUEUED_CLASS), id="not-requested-yet"),
        pytest.param(found_request(), QUEUED_CLASS, False, Provisioning(QUEUED_CLASS), id="not-looked-at"),
        pytest.param(
            found_request("Failed"), QUEUED_CLASS, False, Provisioning(QUEUED_CLASS), id="failed-meanwhile"
        ),
        pytest.param(
            found_request(),
            OTHER_CLASS,
            False,
            Provisioning(ProvisioningClass(QUEUED_CLASS.name)),
            id="of-a-class-that-is-not-declared",
        ),
        pytest.param(
            found_request("Accepted", "Provisioned"),
            QUEUED_CLASS,
            False,
            Provisioning(
                QUEUED_CLASS,
                "uid-of-request",
                "the capacity is provisioned in cluster hub",
                provisioned_at=at(5),
            ),
            id="provisioned",
        ),
        pytest.param(
            found_request("Provisioned", "BookingExpired"),
            None,
            True,
            Provisioning(
                ProvisioningClass(QUEUED_CLASS.name),
                "uid-of-request",
                "the capacity was provisioned and its booking expired in cluster hub",
                provisioned_at=at(5),
            ),
            id="runs-and-its-booking-is-over",
        ),
    ],
)
def test_attempt_that_the_database_lacks_goes_on_with_its_request(
    found: FoundRequest | None,
    declared: ProvisioningClass | None,
    has_objects: bool,
    expected: Provisioning | None,
) -> None:
    assert recovered(found, declared, has_objects, "hub", at(5)) == expected


@pytest.mark.parametrize(
    ("provisioning", "step"),
    [
        pytest.param(Provisioning(QUEUED_CLASS), Act.REQUEST_CAPACITY, id="waits"),
        pytest.param(
            Provisioning(QUEUED_CLASS, "uid-of-request", provisioned_at=at(5)), Act.CREATE, id="provisioned"
        ),
        pytest.param(None, Act.CREATE, id="needs-none"),
    ],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["taken-over", "adopted"])
def test_attempt_that_was_found_creates_nothing_before_its_capacity_is_there(
    is_known: bool, provisioning: Provisioning | None, step: Act | Cause
) -> None:
    change = (
        first_changes.take_over(make_record(), "hub", 2, at(5), provisioning)
        if is_known
        else first_changes.adopt(make_submission(), make_gang(), "hub", 2, at(5), provisioning)
    )
    assert step_of(see(change.after, absent=True, seconds=20)) is step
    (*_, request) = refs_of(change.after) or (None,)
    assert (request.name if request else None) == ("aw-provisioning-2" if provisioning else None)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ((), "capacity is requested in cluster east, and not promised yet"),
        (("zone",), "which the class does not let authors set: zone"),
        (
            ("a" * 255, *"bcdefg"),
            f"which the class does not let authors set: {'a' * 60}, b, c, d, e and 2 more",
        ),
    ],
)
def test_author_is_told_which_parameters_the_request_lacks(refused: tuple[str, ...], said: str) -> None:
    assert requested("east", refused).endswith(said)


def test_what_the_author_set_in_vain_stays_told_until_the_class_answers() -> None:
    told = provisioning.note(make_requested(), requested("hub", ["zone"]), at(5)).after
    assert step_of(see(told)) is Act.NOOP
    assert step_of(see(told, seconds=300)) is Act.NOOP
    assert step_of(see(told, "Accepted", seconds=6)) is Cause.PROVISIONING
