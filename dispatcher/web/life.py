"""The life of one AppWrapper as lanes: the time in the queue and each attempt, with its events.

Every name and message here may be a tenant's. Values are plain text and numbers; the templates escape all text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.cli.screens.describe import ATTEMPTS, TIMELINE, facts_of
from dispatcher.cli.screens.output import plain, text
from dispatcher.cli.screens.tables import span
from dispatcher.core.model.records.record import Phase
from dispatcher.store.readers.reports import Description, Report, Row
from dispatcher.web.reports import Table, table_of

LANE_WIDTH: Final = 1000.0
"""Units of a lane's picture from the first moment to the last."""
LANE_HEIGHT: Final = 26
NARROWEST: Final = 2.0
"""Units of the shortest bar, so that a phase of a second in a week can be seen."""
MOST_TICKS: Final = 500
"""Events that are drawn, the latest."""
MOST_LANES: Final = 50
"""Attempts that are drawn, the latest."""
MOST_EVENTS: Final = 1_000
"""Events and attempts in a table, the latest."""
_LOST: Final = frozenset({"evicted", "preempted", "postponed", "withdrawn", "lost", "missed", "failed"})
"""Outcomes of attempts whose work came to nothing."""
_IN_QUEUE: Final = frozenset({Phase.QUEUED, Phase.SUSPENDED})
"""Phases of no attempt, as the view `state_intervals` has it."""
_ENDED: Final = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.DELETED})
"""Phases that are not drawn: they may last for weeks, and nothing happens in them."""


class Bar(Struct, frozen=True):
    """A phase in a lane, from `x` on, `width` wide; `state` is the phase's name."""

    x: float
    width: float
    state: str
    title: str


class Tick(Struct, frozen=True):
    """An event in a lane."""

    x: float
    title: str


class Lane(Struct, frozen=True):
    """The time in the queue, or an attempt; `lost` is the part of an attempt whose work came to nothing."""

    label: str
    y: int
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    lost: Bar | None = None


class Life(Struct, frozen=True):
    """The life of an AppWrapper from `first` to `last`: a lane for the queue and one for each attempt."""

    lanes: tuple[Lane, ...]
    first: str
    last: str
    states: tuple[str, ...]
    """The phases that are drawn, for the legend."""

    lane_height: int = LANE_HEIGHT

    @property
    def height(self) -> int:
        """The height of the picture in units."""
        return self.lane_height * len(self.lanes)


class Story(Struct, frozen=True):
    """What the database has of one AppWrapper."""

    facts: tuple[tuple[str, str], ...]
    life: Life | None
    attempts: Table
    timeline: Table
    earlier: int
    """Events that are left out, because there are many later ones."""


def story_of(description: Description) -> Story:
    """The attempts and events of an AppWrapper, also as lanes. O(events)."""
    events, attempts = (_latest(each) for each in (description.timeline, description.attempts))
    kept = replace(description, timeline=events, attempts=attempts)
    return Story(
        tuple(each for each in facts_of(description) if each[1]),
        life_of(kept),
        table_of(attempts, ATTEMPTS, attempts.at),
        table_of(events, [plain("AT", "at"), *TIMELINE], None),
        len(description.timeline.rows) - len(events.rows),
    )


def _latest(report: Report) -> Report:
    return replace(report, rows=report.rows[-MOST_EVENTS:])


def life_of(description: Description) -> Life | None:
    """The lanes, from the submission to the last moment that is known; None without an event. O(events)."""
    events = [each for each in description.timeline if isinstance(each["at"], datetime)]
    if not events:
        return None
    by_lane: dict[int, list[Row]] = {0: []}
    for each in events:
        by_lane.setdefault(_attempt_of(each), []).append(each)
    numbers = [0, *sorted(by_lane.keys() - {0})[-MOST_LANES:]]
    times = [_at(each) for each in events]
    ends = [_at(each) + _length(each) for each in events if _is_drawn(each)]
    scale = _Scale(min(times), max(*times, *ends, min(times) + timedelta(seconds=1)))
    attempts = {int(str(each["attempt"])): each for each in description.attempts}
    first_drawn = times[-MOST_TICKS] if len(times) > MOST_TICKS else min(times)
    lanes = tuple(
        _lane(scale, index, attempts.get(number), by_lane[number], first_drawn)
        for index, number in enumerate(numbers)
    )
    states = dict.fromkeys(bar.state for lane in lanes for bar in lane.bars)
    return Life(lanes, text(scale.first), text(scale.last), tuple(states))


class _Scale(Struct, frozen=True):
    first: datetime
    last: datetime

    def x(self, at: datetime) -> float:
        share = (at - self.first) / (self.last - self.first)
        return round(min(1.0, max(0.0, share)) * LANE_WIDTH, 1)

    def bar(self, since: datetime, length: timedelta, state: str, title: str) -> Bar:
        x = self.x(since)
        width = max(NARROWEST, round(self.x(since + length) - x, 1))
        return Bar(min(x, LANE_WIDTH - width), width, state, title)


def _lane(
    scale: _Scale, index: int, attempt: Row | None, events: Sequence[Row], first_drawn: datetime
) -> Lane:
    label = "queue" if index == 0 else f"attempt {events[0]['attempt']}"
    where = str(attempt["cluster"] or "") if attempt else ""
    bars = tuple(_bars(scale, events))
    ticks = tuple(Tick(scale.x(_at(each)), _said(each)) for each in events if _at(each) >= first_drawn)
    return Lane(f"{label} {where}".strip(), index * LANE_HEIGHT, bars, ticks, _lost(scale, attempt))


def _bars(scale: _Scale, events: Sequence[Row]) -> Iterator[Bar]:
    for each in events:
        if _is_drawn(each):
            length = _length(each)
            state = str(each["to_phase"])
            yield scale.bar(_at(each), length, state, f"{state} for {span(length.total_seconds())}")


def _is_drawn(event: Row) -> bool:
    return event["seconds_in_state"] is not None and event["to_phase"] not in _ENDED


def _lost(scale: _Scale, attempt: Row | None) -> Bar | None:
    if attempt is None or attempt["outcome"] not in _LOST:
        return None
    since, until = _time(attempt, "decided_at"), _time(attempt, "ended_at")
    if since is None or until is None:
        return None
    return scale.bar(
        since, until - since, "lost", f"{attempt['outcome']}: {text(attempt['gpu_h'])} GPU-hours lost"
    )


def _said(event: Row) -> str:
    return ": ".join(text(event[name]) for name in ("at", "cause", "reason", "message") if event[name])


def _attempt_of(event: Row) -> int:
    """The number of the attempt in whose lane an event is; 0 is the queue."""
    return 0 if event["to_phase"] in _IN_QUEUE else int(str(event["attempt"] or 0))


def _time(row: Row, name: str) -> datetime | None:
    at = row[name]
    return at if isinstance(at, datetime) else None


def _at(event: Row) -> datetime:
    at = event["at"]
    return at if isinstance(at, datetime) else datetime.min.replace(tzinfo=UTC)


def _length(event: Row) -> timedelta:
    seconds = event["seconds_in_state"]
    return timedelta(seconds=float(str(seconds))) if seconds is not None else timedelta(0)
