"""Times as a status has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dispatcher.core.model.clock import micro_timestamp, time_in, timestamp

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
