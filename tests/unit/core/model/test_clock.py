"""The clock follows the database's, unless that would turn time back or leap ahead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dispatcher.core.model.clock import (
    AGREED_AFTER_SECONDS,
    SETTLED_AFTER_SECONDS,
    Clock,
    micro_timestamp,
    time_in,
    timestamp,
)
from dispatcher.errors import StoreUnavailable
from tests.builders import NOW, at

MONTH = 30 * 86400.0


class Monotonic:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def monotonic() -> Monotonic:
    """A clock that a test moves."""
    return Monotonic()


def test_clock_continues_from_the_time_of_the_database(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    assert clock.now() == NOW
    monotonic.seconds += 2.5
    assert clock.now() == at(2.5)


def test_clock_takes_the_word_of_the_database_when_that_is_ahead(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    monotonic.seconds += 1
    clock.set(at(5))
    assert clock.now() == at(5)
    monotonic.seconds += 1
    assert clock.now() == at(6)


def test_clock_never_goes_back(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    seen = [clock.now()]
    for database_now in (at(10), at(3), at(-3600), at(12)):
        monotonic.seconds += 1
        clock.set(database_now)
        seen.append(clock.now())
    assert seen == [NOW, at(10), at(11), at(12), at(13)]


def test_clock_that_was_never_set_tells_no_time(monotonic: Monotonic) -> None:
    with pytest.raises(StoreUnavailable):
        Clock(monotonic).now()


def readings(clock: Clock, monotonic: Monotonic, ahead: float, seconds: float) -> list[float]:
    """Renew every 3 s for that long from a database that is ahead by so much; how far the clock was ahead itself."""
    seen = []
    end = monotonic.seconds + seconds
    while monotonic.seconds < end:
        monotonic.seconds += 3
        clock.set(at(monotonic.seconds - 100 + ahead))
        seen.append((clock.now() - at(monotonic.seconds - 100)).total_seconds())
    return seen


def test_single_bad_clock_reading_is_reported_and_not_followed(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    assert readings(clock, monotonic, MONTH, 3) == [0]
    assert clock.off == timedelta(seconds=MONTH)
    assert clock.problem.startswith("the database's clock leapt ahead by 2592000 s and is not followed")
    assert readings(clock, monotonic, 0, 3) == [0]
    assert (clock.off, clock.problem) == (timedelta(0), "")


def test_steps_that_a_good_clock_makes_are_followed_at_once(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    assert readings(clock, monotonic, 60, 3) == [60]
    assert clock.problem == ""


def test_leap_that_lasts_is_followed_in_the_end_as_the_former_reading_may_have_been_wrong(
    monotonic: Monotonic,
) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    assert set(readings(clock, monotonic, MONTH, SETTLED_AFTER_SECONDS)) == {0}
    assert readings(clock, monotonic, MONTH, 3) == [MONTH]
    assert clock.problem == ""


def test_leap_that_does_not_go_on_saying_the_same_is_never_followed(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    for ahead in (MONTH, 2 * MONTH, MONTH):
        assert set(readings(clock, monotonic, ahead, SETTLED_AFTER_SECONDS - 6)) == {0}


def test_leap_that_the_hosts_clock_agrees_with_is_followed_soon_as_after_a_suspended_host(
    monotonic: Monotonic,
) -> None:
    clock = Clock(monotonic, lambda: at(monotonic.seconds - 100 + MONTH))
    clock.set(NOW)
    assert set(readings(clock, monotonic, MONTH, AGREED_AFTER_SECONDS)) == {0}
    assert readings(clock, monotonic, MONTH, 3) == [MONTH]


@pytest.mark.parametrize(
    ("wall", "began"),
    [
        pytest.param(0.0, 0.0, id="agree"),
        pytest.param(-59.0, 0.0, id="host-a-little-behind"),
        pytest.param(-MONTH, -MONTH, id="database-far-ahead-of-the-host"),
        pytest.param(MONTH, 0.0, id="host-far-ahead"),
    ],
)
def test_of_two_clocks_that_differ_much_the_earlier_begins(
    monotonic: Monotonic, wall: float, began: float
) -> None:
    clock = Clock(monotonic, lambda: at(wall))
    clock.set(NOW)
    assert clock.now() == at(began)
    assert clock.off == timedelta(seconds=-began)


def test_database_clock_that_is_far_behind_is_reported_and_time_goes_on(monotonic: Monotonic) -> None:
    clock = Clock(monotonic)
    clock.set(NOW)
    assert readings(clock, monotonic, -MONTH, 6) == [0, 0]
    assert clock.problem.startswith("the database's clock is behind by 2592000 s")


# --- Times as a status has them ----------------------------------------------------------------------------


NINE = datetime(2026, 11, 20, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "seconds", "micros"),
    [
        (NINE, "2026-11-20T09:00:00Z", "2026-11-20T09:00:00.000000Z"),
        (NINE + timedelta(microseconds=999_999), "2026-11-20T09:00:00Z", "2026-11-20T09:00:00.999999Z"),
        (
            NINE.astimezone(timezone(timedelta(hours=-5))),
            "2026-11-20T09:00:00Z",
            "2026-11-20T09:00:00.000000Z",
        ),
    ],
    ids=["whole", "parts of a second", "another zone"],
)
def test_written(moment: datetime, seconds: str, micros: str) -> None:
    assert (timestamp(moment), micro_timestamp(moment)) == (seconds, micros)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-11-20T09:00:00Z", NINE),
        ("2026-11-20T10:00:00.000000+01:00", NINE),
        ("2026-11-20T09:00:00", NINE),
        ("soon", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_read(written: object, read: datetime | None) -> None:
    assert time_in(written) == read
