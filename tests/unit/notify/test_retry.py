"""When a message is sent again, and when it is given up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.notify.retry import (
    Failed,
    GiveUp,
    Outcome,
    Refused,
    Sent,
    TryAgain,
    after_failure,
    outcome_of_status,
)
from tests.unit.notify.values import NOW, at

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("tries", "chance", "seconds"),
    [
        (1, 1.0, 5),
        (1, 0.0, 2.5),
        (2, 1.0, 10),
        (4, 1.0, 40),
        (7, 1.0, 300),
        (10_000, 1.0, 300),
        (7, 0.5, 225),
    ],
)
def test_pauses_double_to_five_minutes_and_are_spread(tries: int, chance: float, seconds: float) -> None:
    decided = after_failure(Failed("no answer"), tries, 0, NOW, at(1), DAY, chance)
    assert decided == TryAgain(timedelta(seconds=seconds))


@pytest.mark.parametrize(("asked", "seconds"), [(1, 5), (60, 60), (86_400, 1800)])
def test_a_longer_pause_that_the_target_asks_for_counts(asked: int, seconds: int) -> None:
    outcome = Failed("it answered 429", timedelta(seconds=asked))
    assert after_failure(outcome, 1, 0, NOW, NOW, DAY, 1.0) == TryAgain(timedelta(seconds=seconds))


def test_a_message_that_would_be_too_old_is_given_up() -> None:
    failed = Failed("no answer")
    assert after_failure(failed, 9, 2, NOW, at(86_400 - 300), DAY, 1.0) == TryAgain(timedelta(seconds=300))
    assert after_failure(failed, 9, 2, NOW, at(86_400 - 299), DAY, 1.0) == GiveUp("age")


def test_a_refused_message_is_given_up_at_the_third_time() -> None:
    decided = [
        after_failure(Refused("it answered 400"), count, count, NOW, NOW, DAY, 1.0) for count in (1, 2, 3)
    ]
    assert decided == [TryAgain(timedelta(seconds=5)), TryAgain(timedelta(seconds=10)), GiveUp("refused")]


@pytest.mark.parametrize(
    ("status", "retry_after", "outcome"),
    [
        (200, "", Sent()),
        (204, "", Sent()),
        (302, "", Failed("it answered 302: redirections are not followed, declare the new address")),
        (400, "", Refused("it answered 400")),
        (413, "", Refused("it answered 413")),
        (401, "", Failed("it answered 401")),
        (404, "", Failed("it answered 404")),
        (429, "120", Failed("it answered 429", timedelta(seconds=120))),
        (503, "Fri, 27 Nov 2026 12:00:00 GMT", Failed("it answered 503")),
        (503, "-1", Failed("it answered 503")),
        (503, "9" * 400, Failed("it answered 503")),
    ],
)
def test_answers_by_http(status: int, retry_after: str, outcome: Outcome) -> None:
    assert outcome_of_status(status, retry_after) == outcome
