"""Which events somebody is told of, and the sentence, the command and the id of each message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.notifications import Occasion
from dispatcher.core.lifecycle.transitions import TRANSITIONS
from dispatcher.core.model.notifications import TOLD, UNDECLARED
from dispatcher.notify import messages
from dispatcher.notify.messages import lasting, occasion_of, of_alarm, of_event, of_trial, of_wait
from tests.unit.notify.values import NOW, at, make_event, make_queue, make_waiting

HOUR = timedelta(hours=1)
TOLD_OF: dict[tuple[str | None, str, str], Occasion] = {
    ("Dispatched", "pods-running", "Running"): Occasion.STARTED,
    (None, "rejected", "Failed"): Occasion.FAILED,
    ("Dispatching", "creation-refused", "Failing"): Occasion.FAILED,
    ("Dispatching", "provisioning-refused", "Failing"): Occasion.FAILED,
    ("Dispatching", "preempted", "Requeueing"): Occasion.PREEMPTED,
    ("Dispatching", "evicted", "Requeueing"): Occasion.EVICTED,
    **{
        (active, cause, target): occasion
        for active in ("Dispatched", "Running", "RunningHoldCompletion")
        for cause, target, occasion in (
            ("completed", "Completed", Occasion.COMPLETED),
            ("run-failed", "Failing", Occasion.FAILED),
            ("preempted", "Requeueing", Occasion.PREEMPTED),
            ("evicted", "Requeueing", Occasion.EVICTED),
        )
    },
    **{
        (source, "abandoned", "Queued"): Occasion.EVICTED
        for source in ("Dispatching", "Dispatched", "Running", "RunningHoldCompletion", "Requeueing")
    },
    **{
        (source, "lost", "Failed"): Occasion.FAILED
        for source in ("Dispatching", "Dispatched", "Running", "RunningHoldCompletion")
    },
    **{
        (source, cause, target): occasion
        for source in (
            *("Queued", "Suspended", "Dispatching", "Dispatched", "Running"),
            *("RunningHoldCompletion", "Requeueing", "Suspending"),
        )
        for cause, target, occasion in (
            ("found-completed", "Completed", Occasion.COMPLETED),
            ("found-failed", "Failed", Occasion.FAILED),
        )
    },
}
"""The transitions that somebody may be told of, and the occasion of each."""


def test_exactly_these_transitions_are_told_of() -> None:
    found = {
        (row.source, row.cause, row.target): occasion_of(
            make_event(cause=row.cause, from_phase=row.source or "", to_phase=row.target)
        )
        for row in TRANSITIONS
    }
    assert {row: occasion for row, occasion in found.items() if occasion is not None} == TOLD_OF


def test_the_index_of_the_database_has_exactly_the_causes_that_are_told_of() -> None:
    assert set(TOLD) == {cause for _, cause, _ in TOLD_OF}


@pytest.mark.parametrize(
    ("occasion", "fields", "text", "command"),
    [
        (
            Occasion.STARTED,
            {},
            "team-a/train runs in cluster west (queue team-a, attempt 1).",
            "kubectl aw show train -n team-a",
        ),
        (
            Occasion.COMPLETED,
            {"started_at": at(-7380)},
            "team-a/train completed in cluster west after 2 h 3 min.",
            "kubectl aw show train -n team-a",
        ),
        (
            Occasion.FAILED,
            {
                "started_at": at(-40),
                "reason": "FailedComponent",
                "message": "Job train: BackoffLimitExceeded",
            },
            "team-a/train failed in cluster west after 40 s: FailedComponent: Job train: BackoffLimitExceeded.",
            "kubectl aw show train -n team-a",
        ),
        (
            Occasion.FAILED,
            {"cluster": "", "message": "team-a/train creation failure: spec.x is unknown"},
            "team-a/train failed: team-a/train creation failure: spec.x is unknown.",
            "kubectl aw show train -n team-a",
        ),
        (
            Occasion.PREEMPTED,
            {"reason": "FairShare", "message": "for team-b/urgent"},
            "team-a/train was preempted in cluster west and is queued again: FairShare: for team-b/urgent.",
            "kubectl aw explain train -n team-a",
        ),
        (
            Occasion.EVICTED,
            {"reason": "ClusterDraining", "message": "west\nis drained"},
            r"team-a/train was evicted in cluster west and is queued again: ClusterDraining: west\nis drained.",
            "kubectl aw explain train -n team-a",
        ),
    ],
)
def test_message_of_an_event(occasion: Occasion, fields: dict[str, Any], text: str, command: str) -> None:
    message = of_event(make_event(7, **fields), occasion)
    assert (message.text, message.command) == (text, command)
    assert (message.id, message.about, message.at) == ("7-1795780800000000", "team-a/train", NOW)
    assert message.title == f"team-a/train: {occasion}"
    assert message.kind == f"appwrapper.{occasion.lower()}"
    assert message.facts["event"] == occasion


def test_a_long_reason_is_cut_in_the_sentence_alone() -> None:
    event = make_event(message="x" * 4000)
    message = of_event(event, Occasion.FAILED)
    assert len(message.text) <= messages.LONGEST_SENTENCE + 1
    assert message.facts["message"] == event.message


def test_message_about_a_wait() -> None:
    message = of_wait(make_waiting())
    assert message.text == (
        "team-a/train has been queued in team-a for 1 h: 2 more nvidia.com/gpu needed. "
        "Wait: it goes when enough is free."
    )
    assert message.command == "kubectl aw explain train -n team-a"
    assert (message.id, message.at) == ("uid-1-waits-1795780800000000-3600", at(3600))


def test_messages_about_an_alarm_tell_begin_and_end_apart() -> None:
    queue = make_queue(queued=101, oldest_since=at(-60))
    begin = of_alarm(queue, "queued-more", "more than 100 queued", NOW, None)
    end = of_alarm(replace(queue, queued=1), "queued-more", "more than 100 queued", NOW, at(900))
    assert begin.text == (
        "queue team-a: the alarm queued-more (more than 100 queued) began; 101 gangs are queued, "
        "the oldest since 2026-11-27 11:59 UTC."
    )
    assert "is over; 1 gang is queued" in end.text
    assert (begin.at, end.at, begin.command) == (NOW, at(900), "kubectl aw queues show team-a")
    assert {begin.id, end.id} == {
        "queue-team-a-queued-more-1795780800000000-begin",
        "queue-team-a-queued-more-1795780800000000-end",
    }


def test_an_alarm_of_undeclared_queues_leads_to_the_list_of_what_waits() -> None:
    message = of_alarm(make_queue(UNDECLARED, queued=5000), "queued-more", "more than 100 queued", NOW, None)
    assert message.command == "kubectl aw queue"
    assert message.text.startswith("queue (undeclared): the alarm queued-more")


def test_ids_are_the_same_each_time_and_differ_between_messages() -> None:
    events = [make_event(1), make_event(2), make_event(1, at=at(1))]
    ids = [of_event(event, Occasion.COMPLETED).id for event in events]
    assert ids == [of_event(event, Occasion.COMPLETED).id for event in events]
    waits = [of_wait(make_waiting(uid, longer_than=hours * HOUR)).id for uid in "ab" for hours in (1, 2)]
    waits.append(of_wait(make_waiting("a", since=at(9))).id)
    trials = [of_trial("mail", NOW).id, of_trial("mail", at(1)).id]
    assert len({*ids, *waits, *trials}) == len([*ids, *waits, *trials])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (90_060, "1 d 1 h"),
        (86_400, "1 d"),
    ],
)
def test_durations(seconds: int, text: str) -> None:
    assert lasting(timedelta(seconds=seconds)) == text
