"""Pods that a gang lacks: those that its objects do not ask for, and those that a health issue names."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing
from dispatcher.core.kinds.asked import NOT_KNOWN, Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.lifecycle import health, run_changes
from dispatcher.core.lifecycle.confirmation import Evidence, evidence_for
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.missing_pods import (
    NONE_WITHHELD,
    Lack,
    Withheld,
    lack_in,
    says_otherwise,
    withheld_by,
)
from dispatcher.core.lifecycle.policy import RETRY_LIMIT, LifecyclePolicy
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import NotedIssue, ObjectRef, Phase, Record
from tests.builders import (
    at,
    attempt_of,
    make_gang,
    make_objects,
    make_observation,
    make_policy,
    make_record,
)


def ref(item: int = 0) -> ObjectRef:
    return ObjectRef(item, "batch/v1", "Job", "default", f"j{item}", f"uid-{item}")


WAITS = "Job default/j0 waits until Kueue admits it in queue users"
FOR_KUEUE = Asked(0, is_suspended=True, queue_of_kueue="users")


@pytest.mark.parametrize(
    ("asks", "now", "expected"),
    [
        pytest.param(3, Asked(3), NONE_WITHHELD, id="as-many"),
        pytest.param(3, Asked(5), NONE_WITHHELD, id="more"),
        pytest.param(3, NOT_KNOWN, NONE_WITHHELD, id="not-known"),
        pytest.param(
            3,
            Asked(2),
            Withheld(
                1,
                "Job default/j0 asks for fewer than its 3 pods",
                "",
                "Job default/j0 asks for fewer than its 3 pods",
            ),
            id="fewer",
        ),
        pytest.param(3, Asked(2, is_autoscaled=True), Withheld(1), id="fewer-by-its-autoscaler"),
        pytest.param(
            3,
            Asked(0),
            Withheld(
                3,
                "Job default/j0 asks for none of its 3 pods",
                "",
                "Job default/j0 asks for none of its 3 pods",
            ),
            id="none",
        ),
        pytest.param(
            3,
            Asked(0, is_suspended=True),
            Withheld(3, "Job default/j0 is suspended", "", "Job default/j0 is suspended"),
            id="suspended",
        ),
        pytest.param(
            0,
            Asked(0, is_suspended=True),
            Withheld(0, "", "Job default/j0 is suspended", "Job default/j0 is suspended"),
            id="suspended-as-the-appwrapper-says",
        ),
        pytest.param(
            3,
            Asked(3, manager="example.com/other"),
            Withheld(0, "", "", "Job default/j0 is managed by example.com/other"),
            id="another-manager",
        ),
        pytest.param(
            3,
            FOR_KUEUE,
            Withheld(3, why=WAITS, awaiting=WAITS, awaits_all=True),
            id="not-admitted-by-kueue",
        ),
        pytest.param(
            0,
            FOR_KUEUE,
            Withheld(0, why=WAITS, awaiting=WAITS, awaits_all=True),
            id="suspended-by-its-author-for-kueue",
        ),
    ],
)
def test_object_withholds_the_pods_that_it_does_not_ask_for(
    asks: int, now: Asked, expected: Withheld
) -> None:
    assert withheld_by([ref()], [CompletionRule(asks=asks)], [now]) == expected


def test_done_objects_and_objects_of_no_item_withhold_nothing() -> None:
    refs = [replace(ref(), done=True), ref(7)]
    assert (
        withheld_by(refs, [CompletionRule(asks=3)], [Asked(0), Asked(0, is_suspended=True)]) == NONE_WITHHELD
    )


def test_sentences_name_three_objects_and_count_the_others() -> None:
    refs = [ref(item) for item in range(5)]
    found = withheld_by(refs, [CompletionRule(asks=1)] * 5, [Asked(0)] * 5)
    assert (found.pods, found.lowered.count("asks for none"), found.lowered[-10:]) == (5, 3, "and 2 more")


@pytest.mark.parametrize(
    ("other", "asks", "expected"),
    [
        pytest.param(FOR_KUEUE, 1, True, id="both-wait"),
        pytest.param(NOT_KNOWN, 0, True, id="a-configmap"),
        pytest.param(Asked(1), 1, False, id="one-may-run"),
        pytest.param(Asked(0), 1, False, id="one-is-scaled-to-zero"),
        pytest.param(Asked(0, is_suspended=True), 1, False, id="one-is-suspended-by-its-user"),
        pytest.param(NOT_KNOWN, 1, False, id="one-does-not-tell"),
        pytest.param(None, 1, False, id="one-is-not-read"),
    ],
)
def test_gang_waits_for_kueue_as_a_whole_if_no_other_object_makes_pods(
    other: Asked | None, asks: int, expected: bool
) -> None:
    items = [CompletionRule(asks=1), CompletionRule(asks=asks)]
    assert withheld_by([ref(), ref(1)], items, [FOR_KUEUE, other]).awaits_all is expected


UNMADE = "2 of 4 pods run: pods that do not exist: 2"
UNSTARTED = "2 of 4 pods run: pods that do not start: 2"
UNSCHEDULABLE = "2 of 4 pods run: Pods failed scheduling failed=2, running=2."
NONE, GONE = "0 of 4 pods run: there is none", "0 of 4 pods run: there is none any more"


@pytest.mark.parametrize(
    ("message", "lack"),
    [
        (NONE, Lack.NONE),
        ("0 of 1 pods run: Job default/j is suspended", Lack.NONE),
        (GONE, Lack.GONE),
        ("0 of 1 pods run: there is none any more, Job default/j is suspended", Lack.GONE),
        (UNMADE, Lack.UNMADE),
        (f"{UNMADE}; Job default/j: FailedCreate: pods that do not start: 7", Lack.UNMADE),
        (UNSTARTED, Lack.UNSTARTED),
        (UNSCHEDULABLE, Lack.UNSCHEDULABLE),
        ("2 of 4 pods run", Lack.NOT_RUNNING),
        ("2 of 4 pods run, on nodes that do not answer: 2: pods that do not exist: 1", Lack.NOT_RUNNING),
        ("failed pods: 2", None),
        ("Insufficient number of Running and Completed pods, minimum=2, running=0, completed=0.", None),
        ("Job default/j: spec.x was changed; 2 of 4 pods run", None),
        ("", None),
    ],
)
def test_words_of_a_health_issue_say_what_a_gang_lacks(message: str, lack: Lack | None) -> None:
    assert lack_in(message) is lack


@pytest.mark.parametrize(
    ("noted", "message", "expected"),
    [
        pytest.param(UNMADE, UNSTARTED, True, id="other-pods"),
        pytest.param(NONE, "0 of 4 pods run: Job default/j is suspended", True, id="other-words"),
        pytest.param(UNMADE, "3 of 4 pods run: pods that do not exist: 1", False, id="fewer-of-them"),
        pytest.param(f"{UNMADE}; Job default/j: no quota", UNMADE, False, id="with-words-of-a-controller"),
        pytest.param(
            "0 of 1 pods run: Job default/j is managed by a\nb",
            "0 of 1 pods run: Job default/j is managed by a\nb",
            False,
            id="words-that-the-record-escapes",
        ),
        pytest.param("something", UNMADE, False, id="words-of-nobody-we-know"),
        pytest.param(UNMADE, "failed pods: 2", False, id="words-of-another-issue"),
    ],
)
def test_other_numbers_alone_say_nothing_new(noted: str, message: str, expected: bool) -> None:
    assert says_otherwise(noted, message) is expected


JOB = make_policy(CompletionRule(ends=True, holds=True, pods=4, asks=4))
SERVERS = make_policy(CompletionRule(holds=True, pods=4, asks=4))
IN_ORDER = make_policy(CompletionRule(holds=True, pods=4, asks=4, in_order=True))
DISPATCHED = make_record(Phase.DISPATCHED, gang=make_gang(4))
"""Dispatched at second 2."""
RUNNING = make_record(Phase.RUNNING, gang=make_gang(4))
TWO, ALL_FOUR = PodCounts(running=2), PodCounts(running=4)
TWO_DO_START = PodCounts(running=2, pending=2, starting=2)
TWO_DO_NOT_START, TWO_HAVE_NO_NODE = (
    PodCounts(running=2, pending=2),
    PodCounts(running=2, pending=2, unschedulable=2),
)
ABSENT = PodCounts()
MINUTES = 60


# --- before Kueue admits it ------------------------------------------------------------------------------

AWAITING = Withheld(4, why=WAITS, awaiting=WAITS, awaits_all=True)
DAY = 24 * 3600
FOR_A_DAY = f"no pods, for at most {DAY} s: {WAITS}"


def due_while(
    withheld: Withheld,
    record: Record,
    policy: LifecyclePolicy,
    seconds: float,
    pods: PodCounts | None = None,
) -> Decision:
    objects = replace(make_objects(pods or PodCounts(), ObjectState()), withheld=withheld)
    return decide(make_observation(record, seconds=seconds, policy=policy, objects=objects))


def told(record: Record, seconds: float = 32) -> Record:
    """The record once the wait is told, that of a gang that has never run with the dispatch as its begin."""
    since = at(seconds) if record.attempt and record.attempt.started_at else at(2)
    note = run_changes.note_health_issue(record, words.ADMISSION_AWAITED, FOR_A_DAY, at(seconds), since)
    return note.after


@pytest.mark.parametrize("minimum", [pytest.param(None, id="ours"), pytest.param(4, id="of-mcad")])
def test_gang_keeps_its_place_while_kueue_has_not_admitted_it(minimum: int | None) -> None:
    policy = replace(JOB, min_available=minimum)
    assert due_while(AWAITING, DISPATCHED, policy, 10) == Do(Act.NOOP, until=at(32))
    first = due_while(AWAITING, DISPATCHED, policy, 32)
    assert first == Do(Act.NOTE_HEALTH_ISSUE, words.ADMISSION_AWAITED, FOR_A_DAY, since=at(2))
    for seconds in (33, 62, 400, DAY):
        assert due_while(AWAITING, told(DISPATCHED), policy, seconds) == Do(Act.NOOP, until=at(2 + DAY))


@pytest.mark.parametrize("minimum", [pytest.param(None, id="ours"), pytest.param(4, id="of-mcad")])
@pytest.mark.parametrize(
    ("record", "due"),
    [
        pytest.param(told(DISPATCHED), 2 + DAY, id="from-the-dispatch"),
        pytest.param(told(told(DISPATCHED), 5000), 2 + DAY, id="suspended-anew"),
        pytest.param(told(RUNNING, 5000), 5000 + DAY, id="from-the-note-once-it-has-run"),
    ],
)
def test_wait_for_kueue_ends_with_the_time_of_the_operator(
    minimum: int | None, record: Record, due: int
) -> None:
    policy = replace(JOB, min_available=minimum)
    assert due_while(AWAITING, record, policy, due - 1) == Do(Act.NOOP, until=at(due))
    end = due_while(AWAITING, record, policy, due)
    assert end == Do(Act.REQUEUE, words.ADMISSION_AWAITED, FOR_A_DAY)
    often = replace(record, requeuings=3, retries=3)
    last = due_while(AWAITING, often, policy, due)
    assert last == Do(Act.FAIL, words.ADMISSION_AWAITED, FOR_A_DAY, " (requeued so far: 3)")


@pytest.mark.parametrize(
    ("retries", "limit", "end"),
    [
        pytest.param(1, RETRY_LIMIT, Act.REQUEUE, id="second-attempt"),
        pytest.param(2, RETRY_LIMIT, Act.REQUEUE, id="third-attempt"),
        pytest.param(3, RETRY_LIMIT, Act.FAIL, id="fourth-attempt"),
        pytest.param(0, 0, Act.FAIL, id="author-wants-one-attempt"),
        pytest.param(99, None, Act.REQUEUE, id="author-wants-no-bound"),
    ],
)
def test_each_attempt_waits_for_kueue_for_the_whole_time(retries: int, limit: int | None, end: Act) -> None:
    """So a gang that Kueue never admits is charged for four days by default."""
    begun, policy = 5 * DAY, replace(JOB, retry_limit=limit)
    attempt = replace(attempt_of(DISPATCHED), number=retries + 1, created_at=at(begun))
    again = replace(DISPATCHED, requeuings=retries, retries=retries, attempt=attempt)
    issue = words.ADMISSION_AWAITED, FOR_A_DAY
    noted = run_changes.note_health_issue(again, *issue, at(begun + 30), at(begun)).after
    for seconds in (31, DAY - 1):
        decision = due_while(AWAITING, noted, policy, begun + seconds)
        assert decision == Do(Act.NOOP, until=at(begun + DAY))
    last = due_while(AWAITING, noted, policy, begun + DAY)
    assert isinstance(last, Do)
    assert (last.act, last.reason, last.message) == (end, *issue)


def test_wait_for_kueue_counts_from_the_dispatch_also_if_this_leader_is_the_first_to_bound_it() -> None:
    end = due_while(AWAITING, DISPATCHED, JOB, 3 * DAY)
    assert end == Do(Act.REQUEUE, words.ADMISSION_AWAITED, FOR_A_DAY)


def test_gang_that_waits_for_kueue_too_long_is_requeued_as_one_without_pods() -> None:
    assert JOB.pause(words.ADMISSION_AWAITED) == JOB.retry_pause
    assert words.ADMISSION_AWAITED not in words.NOT_BY_THE_GANG
    assert evidence_for(words.ADMISSION_AWAITED) is Evidence.PODS


def test_without_a_time_for_kueue_pods_are_missed_as_any_others() -> None:
    policy = replace(JOB, kueue_wait=timedelta())
    issue = words.INSUFFICIENT_PODS_READY, f"0 of 4 pods run: {WAITS}"
    noted = run_changes.note_health_issue(DISPATCHED, *issue, at(32), at(2)).after
    assert due_while(AWAITING, noted, policy, 2 + MINUTES) == Do(Act.REQUEUE, *issue)


@pytest.mark.parametrize("minimum", [pytest.param(None, id="ours"), pytest.param(4, id="of-mcad")])
@pytest.mark.parametrize(
    "policy", [pytest.param(JOB, id="job"), pytest.param(replace(JOB, has_components=True), id="v1beta2")]
)
def test_failed_pods_of_a_suspended_object_do_not_end_the_wait(
    policy: LifecyclePolicy, minimum: int | None
) -> None:
    evicted, left = told(RUNNING, 40), PodCounts(failed=2)
    decision = due_while(AWAITING, evicted, replace(policy, min_available=minimum), 4000, left)
    assert decision == Do(Act.NOOP, until=at(40 + DAY))


def test_gang_of_which_one_object_waited_has_its_time_once_all_wait() -> None:
    partly = run_changes.note_health_issue(RUNNING, words.ADMISSION_AWAITED, WAITS, at(40)).after
    assert due_while(AWAITING, partly, JOB, 41) == Do(Act.NOOP, until=at(40 + MINUTES))
    anew = due_while(AWAITING, partly, JOB, 2 * DAY)
    assert anew == Do(Act.NOTE_HEALTH_ISSUE, words.ADMISSION_AWAITED, FOR_A_DAY, since=at(2 * DAY))


def test_gang_whose_pods_went_after_the_first_words_is_told_for_how_long_it_waits() -> None:
    first = run_changes.note_health_issue(DISPATCHED, words.ADMISSION_AWAITED, WAITS, at(10)).after
    assert due_while(AWAITING, first, JOB, 11) == Do(Act.NOOP, until=at(10 + MINUTES))
    then = due_while(AWAITING, first, JOB, 10 + MINUTES)
    assert then == Do(Act.NOTE_HEALTH_ISSUE, words.ADMISSION_AWAITED, FOR_A_DAY, since=at(2))
    assert due_while(AWAITING, first, JOB, 2 + DAY) == Do(Act.REQUEUE, words.ADMISSION_AWAITED, FOR_A_DAY)


def test_running_gang_that_kueue_preempts_keeps_its_charge() -> None:
    assert due_while(AWAITING, RUNNING, JOB, 40) == Do(
        Act.NOTE_HEALTH_ISSUE, words.ADMISSION_AWAITED, FOR_A_DAY
    )
    assert due_while(AWAITING, told(RUNNING, 40), JOB, DAY) == Do(Act.NOOP, until=at(40 + DAY))


def test_admitted_gang_whose_pods_start_is_told_of_no_more() -> None:
    decision = due_while(NONE_WITHHELD, told(DISPATCHED), JOB, 33, TWO_DO_START)
    assert isinstance(decision, Commit)
    assert decision.cause is Cause.RECOVERED


@pytest.mark.parametrize(
    ("policy", "reason", "message", "grace"),
    [
        pytest.param(JOB, words.INSUFFICIENT_PODS_READY, NONE, 1, id="ours"),
        pytest.param(
            replace(JOB, min_available=4),
            words.MIN_PODS_NOT_RUNNING,
            words.MIN_PODS_MESSAGE.format(minimum=4, running=0, completed=0),
            5,
            id="of-mcad",
        ),
    ],
)
@pytest.mark.parametrize("seconds", [40, DAY])
def test_time_of_the_pods_of_a_gang_begins_once_kueue_has_admitted_it(
    policy: LifecyclePolicy, reason: str, message: str, grace: int, seconds: int
) -> None:
    admitted = due_while(NONE_WITHHELD, told(DISPATCHED), policy, seconds)
    assert admitted == Do(Act.NOTE_HEALTH_ISSUE, reason, message, since=at(seconds))
    record = run_changes.note_health_issue(told(DISPATCHED), reason, message, at(seconds)).after
    assert due_while(NONE_WITHHELD, record, policy, seconds + 1) == Do(
        Act.NOOP, until=at(seconds + grace * MINUTES)
    )


def test_wait_of_one_object_is_told_while_the_others_run() -> None:
    partly = Withheld(2, why=WAITS, awaiting=WAITS)
    assert due_while(partly, RUNNING, JOB, 40, TWO) == Do(
        Act.NOTE_HEALTH_ISSUE, words.ADMISSION_AWAITED, WAITS
    )


# --- over time -------------------------------------------------------------------------------------------


def life(
    policy: LifecyclePolicy, pods: Iterable[tuple[float, PodCounts]], record: Record = DISPATCHED
) -> tuple[list[tuple[float, str]], float | None]:
    """The words that are noted of a gang, each with its time, and when its attempt ends; None if it does not."""
    noted = list[tuple[float, str]]()
    for seconds, counts in pods:
        while True:
            seen = make_observation(
                record, seconds=seconds, policy=policy, objects=make_objects(counts, ObjectState())
            )
            decision = decide(seen)
            if isinstance(decision, Commit):
                assert decision.cause is Cause.RECOVERED
                record = decision.change.after
            elif decision.act in {Act.REQUEUE, Act.FAIL}:
                return noted, seconds
            elif decision.act is Act.NOTE_HEALTH_ISSUE:
                said = (decision.reason, decision.message, at(seconds), decision.since)
                record = run_changes.note_health_issue(record, *said).after
                noted.append((seconds, decision.message))
            else:
                break
    return noted, None


def steadily(pods: PodCounts, begin: int, end: int) -> list[tuple[float, PodCounts]]:
    """The same pods, looked at each second."""
    return [(seconds, pods) for seconds in range(begin, end)]


@pytest.mark.parametrize(
    ("stuck", "words_then"), [(TWO_DO_NOT_START, UNSTARTED), (TWO_HAVE_NO_NODE, UNSCHEDULABLE)]
)
def test_pods_that_are_made_in_the_last_second_of_the_grace_have_their_own_five_minutes(
    stuck: PodCounts, words_then: str
) -> None:
    noted, end = life(JOB, [*steadily(TWO, 10, 301), *steadily(stuck, 301, 900)])
    assert noted == [(32, UNMADE), (301, words_then)]
    assert end == 301 + 5 * MINUTES


def test_words_follow_what_a_gang_lacks_at_most_once_a_minute() -> None:
    pods = [*steadily(ABSENT, 10, 40), *steadily(TWO, 40, 50), *steadily(TWO_DO_NOT_START, 50, 300)]
    noted, _ = life(JOB, pods)
    assert noted == [(32, NONE), (62, "2 of 4 pods run: pods that do not start: 2")]


def test_words_follow_also_back_to_pods_that_do_not_exist_and_the_time_goes_on() -> None:
    pods = [*steadily(TWO, 10, 100), *steadily(TWO_DO_NOT_START, 100, 200), *steadily(TWO, 200, 900)]
    noted, end = life(JOB, pods)
    assert noted == [(32, UNMADE), (100, UNSTARTED), (200, UNMADE)]
    assert end == 100 + 5 * MINUTES


@pytest.mark.parametrize("policy", [JOB, SERVERS])
@pytest.mark.parametrize("pause", [1, 20, 70, 150])
def test_attempt_of_a_gang_whose_pods_come_and_go_is_bounded(policy: LifecyclePolicy, pause: int) -> None:
    kinds = (TWO, TWO_DO_NOT_START, TWO_HAVE_NO_NODE, ABSENT)
    noted, end = life(policy, [(second, kinds[second // pause % 4]) for second in range(10, 3600)])
    assert end is not None
    assert end <= 2 + 11 * MINUTES
    times = [seconds for seconds, _ in noted]
    assert all(later - earlier >= 30 for earlier, later in pairwise(times))


def test_pods_that_are_made_in_order_have_five_minutes_each() -> None:
    pods = [*steadily(TWO, 10, 330), *steadily(TWO_HAVE_NO_NODE, 330, 900)]
    noted, end = life(IN_ORDER, pods)
    assert noted == [(32, UNMADE), (330, UNSCHEDULABLE)]
    assert end == 330 + 5 * MINUTES


def test_gang_whose_pods_are_all_made_anew_has_as_long_for_them_as_for_the_pods_before() -> None:
    """A moment without any pod is no minute without any pod."""
    lost = PodCounts(running=4, lost=1)
    noted, end = life(SERVERS, [*steadily(lost, 10, 200), (200, ABSENT), (201, ALL_FOUR)], RUNNING)
    assert noted == [(10, "3 of 4 pods run, on nodes that do not answer: 1"), (200, GONE)]
    assert end is None


def test_gang_without_any_pod_any_more_is_requeued_once_its_time_is_over() -> None:
    lost = PodCounts(running=4, lost=1)
    _, end = life(SERVERS, [*steadily(lost, 10, 200), *steadily(ABSENT, 200, 900)], RUNNING)
    assert end == 10 + 5 * MINUTES


def test_gang_that_never_had_a_pod_is_requeued_after_its_minute() -> None:
    noted, end = life(JOB, steadily(ABSENT, 10, 900))
    assert (noted, end) == ([(32, NONE)], 2 + 1 * MINUTES)


LATE = 864_000


@pytest.mark.parametrize(
    ("pods", "told", "grace"),
    [
        pytest.param(
            PodCounts(running=3), "3 of 4 pods run: pods that do not exist: 1", 5, id="one-is-missing"
        ),
        pytest.param(ABSENT, NONE, 1, id="none-is-there"),
    ],
)
def test_gang_that_was_short_of_a_pod_before_this_leader_is_told_and_has_the_whole_grace_from_then_on(
    pods: PodCounts, told: str, grace: int
) -> None:
    noted, end = life(JOB, steadily(pods, LATE, LATE + 900))
    assert (noted, end) == ([(LATE, told)], LATE + grace * MINUTES)


def test_pod_that_is_made_in_place_of_another_one_hours_after_the_dispatch_ends_no_attempt() -> None:
    starts = PodCounts(running=3, pending=1, starting=1)
    noted, end = life(
        JOB, [(LATE, starts), (LATE + 1, PodCounts(running=3)), *steadily(starts, LATE + 2, LATE + 900)]
    )
    assert [seconds for seconds, _ in noted] == [LATE + 1]
    assert end is None


def test_wait_of_a_gang_with_minavailable_ends_whether_it_was_told_or_not() -> None:
    policy = replace(JOB, min_available=4, requeuing=Requeuing(wait=timedelta(minutes=1)))
    assert life(policy, steadily(TWO, LATE, LATE + 900)) == ([], LATE)


def test_gang_on_trust_that_is_told_late_has_the_whole_grace_as_well() -> None:
    record = replace(DISPATCHED, unhealthy=NotedIssue(words.INSUFFICIENT_PODS_READY, UNMADE, at(LATE)))
    issue = health.missing_pods(record, JOB, TWO, bind_within=timedelta(minutes=10))
    assert issue is not None
    assert issue.due == at(LATE + 5 * MINUTES)


def test_words_of_an_earlier_release_count() -> None:
    """It noted the same words, with the time of the dispatch."""
    noted = NotedIssue(words.INSUFFICIENT_PODS_READY, UNMADE, at(2))
    record = replace(DISPATCHED, unhealthy=noted, last_event_at=None)
    _, end = life(JOB, steadily(TWO_DO_NOT_START, 301, 900), record)
    assert end == 301 + 5 * MINUTES


def test_grace_of_pods_that_are_made_late_is_that_of_the_policy() -> None:
    policy = replace(JOB, warmup_grace=timedelta(seconds=200))
    _, end = life(policy, [*steadily(TWO, 10, 201), *steadily(TWO_DO_NOT_START, 201, 900)])
    assert end == 201 + 200
