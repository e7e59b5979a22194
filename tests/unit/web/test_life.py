"""The life of an AppWrapper as lanes: phases as bars, events as ticks, and what came to nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from dispatcher.store.readers.reports import Description, Report
from dispatcher.web.life import LANE_WIDTH, MOST_TICKS, NARROWEST, life_of

START: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVENT: Final = (
    *("at", "cause", "to_phase", "reason", "message", "termination_message"),
    *("cluster", "attempt", "seconds_in_state"),
)
ATTEMPT: Final = (
    *("attempt", "cluster", "decided_at", "started_at", "ended_at"),
    *("held_s", "outcome", "error_class", "gpu_h"),
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(seconds: float, cause: str, phase: str, attempt: int, lasts: float | None) -> tuple[object, ...]:
    return at(seconds), cause, phase, None, None, None, "east" if attempt else "", attempt, lasts


def description(events: list[tuple[object, ...]], attempts: list[tuple[object, ...]]) -> Description:
    nothing = Report((), ())
    return Description(
        {}, None, None, Report(ATTEMPT, tuple(attempts)), nothing, Report(EVENT, tuple(events))
    )


EVICTED_ONCE: Final = description(
    [
        event(0, "submitted", "Queued", 0, 100),
        event(50, "blocked", "Queued", 0, None),
        event(100, "dispatched", "Dispatching", 1, 100),
        event(200, "pods-running", "Running", 1, 200),
        event(400, "evicted", "Requeueing", 1, 100),
        event(500, "removed", "Queued", 1, 100),
        event(600, "dispatched", "Dispatching", 2, 100),
        event(700, "pods-running", "Running", 2, 300),
        event(1000, "completed", "Completed", 2, 900_000),
    ],
    [
        (1, "east", at(100), at(200), at(500), 400.0, "evicted", "NodeLost", 4),
        (2, "west", at(600), at(700), at(1000), 400.0, "completed", None, 4),
    ],
)


def test_each_attempt_has_a_lane_below_the_one_of_the_queue() -> None:
    life = life_of(EVICTED_ONCE)
    assert life is not None
    drawn = {lane.label: [(bar.state, bar.x, bar.width) for bar in lane.bars] for lane in life.lanes}
    assert drawn == {
        "queue": [("Queued", 0, 100), ("Queued", 500, 100)],
        "attempt 1 east": [("Dispatching", 100, 100), ("Running", 200, 200), ("Requeueing", 400, 100)],
        "attempt 2 west": [("Dispatching", 600, 100), ("Running", 700, 300)],
    }
    assert (life.first, life.last) == ("2026-11-01T12:00:00Z", "2026-11-01T12:16:40Z")
    assert life.states == ("Queued", "Dispatching", "Running", "Requeueing")


def test_attempt_that_came_to_nothing_says_what_was_lost() -> None:
    life = life_of(EVICTED_ONCE)
    assert life is not None
    lost = [lane.lost for lane in life.lanes]
    assert lost[0] is None
    assert lost[2] is None
    assert lost[1] is not None
    assert (lost[1].x, lost[1].width, lost[1].title) == (100, 400, "evicted: 4 GPU-hours lost")


def test_events_are_ticks_at_their_time() -> None:
    life = life_of(EVICTED_ONCE)
    assert life is not None
    assert [tick.x for tick in life.lanes[0].ticks] == [0, 50, 500]
    assert life.lanes[1].ticks[2].title == "2026-11-01T12:06:40Z: evicted"


def test_phase_of_a_second_in_a_week_can_be_seen() -> None:
    week = 7 * 86_400
    life = life_of(
        description(
            [event(0, "submitted", "Queued", 0, week), event(week, "dispatched", "Dispatching", 1, 1)],
            [(1, "east", at(week), None, None, 1.0, None, None, 0)],
        )
    )
    assert life is not None
    (bar,) = life.lanes[1].bars
    assert (bar.width, bar.x + bar.width) == (NARROWEST, LANE_WIDTH)


def test_thousands_of_events_are_drawn_in_part() -> None:
    events = [event(number, "blocked", "Queued", 0, None) for number in range(10_000)]
    life = life_of(description(events, []))
    assert life is not None
    assert len(life.lanes[0].ticks) == MOST_TICKS


def test_appwrapper_without_an_event_has_no_picture() -> None:
    assert life_of(description([], [])) is None
