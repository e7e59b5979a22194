"""Durations and moments as people write them, and what they are told of what is neither."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.cli.command_line import NotWritten, duration, moment

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "length"),
    [
        ("90m", timedelta(minutes=90)),
        ("24h", timedelta(hours=24)),
        ("7d", timedelta(days=7)),
        ("4w", timedelta(weeks=4)),
        ("0.1s", timedelta(milliseconds=100)),
        (" 1.5h ", timedelta(minutes=90)),
        ("36500d", timedelta(days=36500)),
        ("1h30m", timedelta(minutes=90)),
        ("1d12h", timedelta(hours=36)),
    ],
)
def test_a_duration_is_a_number_and_its_unit(written: str, length: timedelta) -> None:
    assert duration(written) == length


@pytest.mark.parametrize(
    "written", ["", "7", "d", "7 d", "-7d", "7D", "7y", "1h30", "1h 30m", "1e3d", "\u0667d", "7d\n7d", "inf"]
)
def test_refusal_of_a_duration_says_which_are_allowed(written: str) -> None:
    with pytest.raises(NotWritten) as caught:
        duration(written)
    assert str(caught.value) == (
        f"{written!r} is no duration: a number and s, m, h, d or w, such as 90m, 1h30m, 7d or 4w"
    )


@pytest.mark.parametrize("written", ["0s", "0.0d", "36501d", "99999999w", "99999999w99999999w", "36500d1s"])
def test_a_duration_is_more_than_none_and_less_than_all_of_history(written: str) -> None:
    with pytest.raises(NotWritten, match="more than 0 and at most 100 years"):
        duration(written)


@pytest.mark.parametrize(
    ("written", "then"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-19", datetime(2026, 11, 19, tzinfo=UTC)),
        ("2026-11-19T08:30", datetime(2026, 11, 19, 8, 30, tzinfo=UTC)),
        ("2026-11-19 08:30:15Z", datetime(2026, 11, 19, 8, 30, 15, tzinfo=UTC)),
        ("2026-11-19T08:30+02:00", datetime(2026, 11, 19, 6, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_so_long_ago_or_a_time_in_utc(written: str, then: datetime) -> None:
    assert moment(written, NOW) == then


@pytest.mark.parametrize("written", ["yesterday", "", "2026-13-01", "20.11.2026", "0001-01-01T00:00+14:00"])
def test_refusal_of_a_time_says_which_are_allowed(written: str) -> None:
    with pytest.raises(NotWritten) as caught:
        moment(written, NOW)
    assert str(caught.value) == (
        f"{written!r} is neither how long ago, such as 24h or 7d, nor a day or time, such as 2026-11-20 or "
        "2026-11-20T08:30Z"
    )
