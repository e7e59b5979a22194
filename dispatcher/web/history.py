"""The pages about the past as values: tables of a window, and the life of one AppWrapper as lanes.

Every name and message here may be a tenant's. Values are plain text and numbers; the templates escape all text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct

from dispatcher.cli.command_line import NotWritten
from dispatcher.cli.people.history import HISTORY, USED, WAITS, Outcome
from dispatcher.cli.screens.describe import ATTEMPTS, TIMELINE, facts_of
from dispatcher.cli.screens.output import Column, how_long, named, plain, text
from dispatcher.cli.screens.tables import Heading, span
from dispatcher.core.model.records.record import Phase
from dispatcher.store.readers.reports import (
    COLUMN_OF,
    Description,
    Filter,
    GroupBy,
    Period,
    Report,
    Row,
)
from dispatcher.web.past import MOST_ROWS, Past
from dispatcher.web.utilisation import Chart, charts

Choice = TypeVar("Choice", bound=StrEnum)

LANE_WIDTH: Final = 1000.0
"""Units of a lane's picture from the first moment to the last."""
LANE_HEIGHT: Final = 26
NARROWEST: Final = 2.0
"""Units of the shortest bar, so that a phase of a second in a week can be seen."""
MOST_TICKS: Final = 200
"""Events that are drawn; the table has all."""
_LOST: Final = frozenset({"evicted", "preempted", "postponed", "withdrawn", "lost", "missed", "failed"})
"""Outcomes of attempts whose work came to nothing."""
_IN_QUEUE: Final = frozenset({Phase.QUEUED, Phase.SUSPENDED})
"""Phases of no attempt, as the view `state_intervals` has it."""
_ENDED: Final = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.DELETED})
"""Phases that are not drawn: they may last for weeks, and nothing happens in them."""


class Cell(Struct, frozen=True):
    """A cell of a table; `key` is the namespace and name of the AppWrapper that it leads to."""

    text: str
    is_number: bool = False
    key: tuple[str, str] | None = None


class Table(Struct, frozen=True):
    """A table with its headings; `is_number` of a heading says that its column holds numbers."""

    headings: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]


class ReportPage(Struct, frozen=True):
    """A report over a window."""

    heading: str
    table: Table
    nothing: str
    note: str = ""
    charts: tuple[Chart, ...] = ()


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


class Asked(Struct, frozen=True):
    """What the address of a page asks for, as it is written there; empty text is the default or any."""

    since: str = ""
    until: str = ""
    namespace: str = ""
    user: str = ""
    queue: str = ""
    outcome: str = ""
    by: str = ""
    per: str = ""
    resource: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """From the parameters of an address; others are left out."""
        return cls(**{name: query.get(name, "").strip() for name in cls.__struct_fields__})

    @property
    def filter(self) -> Filter:
        """The AppWrappers that are asked for."""
        return Filter(self.namespace, self.user, self.queue, outcome=self.outcome)


def history_page(past: Past, asked: Asked) -> ReportPage:
    """AppWrappers of the window, newest first. Raises `NotWritten` for what cannot be read, as all pages here do."""
    if asked.outcome:
        _one_of(Outcome, asked.outcome)
    found = past.jobs(past.window(asked.since, asked.until), asked.filter)
    note = f"The newest {MOST_ROWS}: narrow the window or the filter for others." if found.is_cut else ""
    return ReportPage("history", _table(found, HISTORY, found.at), "No AppWrapper existed then.", note)


def usage_page(past: Past, asked: Asked) -> ReportPage:
    """Hours of capacity by one key, and by hour or day if asked."""
    by = _one_of(GroupBy, asked.by or GroupBy.NAMESPACE)
    per = _one_of(Period, asked.per or Period.TOTAL)
    found = past.usage(past.window(asked.since, asked.until), by, per, asked.filter)
    keys = [plain(COLUMN_OF[by].removesuffix("_name").upper(), COLUMN_OF[by])]
    period = [] if per is Period.TOTAL else [plain(per.value.upper(), per.value)]
    return ReportPage("usage", _table(found, [*period, *keys, *USED], None), "Nothing was used then.")


def waits_page(past: Past, asked: Asked) -> ReportPage:
    """How long AppWrappers waited for their first start."""
    found = past.waits(past.window(asked.since, asked.until), asked.filter)
    return ReportPage("waits", _table(found, WAITS, None), "Nothing was queued then.")


def interruptions_page(past: Past, asked: Asked) -> ReportPage:
    """Who lost a cluster, to whom, and why."""
    found = past.interruptions(past.window(asked.since, asked.until), asked.filter)
    note = f"The newest {MOST_ROWS}: narrow the window or the filter for others." if found.is_cut else ""
    return ReportPage(
        "interruptions", _table(found, INTERRUPTIONS, None), "No attempt was interrupted then.", note
    )


def utilisation_page(past: Past, asked: Asked) -> ReportPage:
    """What became of each cluster's capacity, hour by hour, in the last day if no window is asked for."""
    window = past.window(asked.since or DAY, asked.until)
    if window.until - window.since > LONGEST_UTILISATION:
        raise NotWritten(
            f"the window is longer than {LONGEST_UTILISATION.days} days, the most that are drawn"
        )
    found = past.utilisation(window, asked.resource)
    drawn = charts(list(found))
    return ReportPage(
        "utilisation", _table(found, UTILISATION, None), "No capacity was known then.", charts=drawn
    )


DAY: Final = "24h"
LONGEST_UTILISATION: Final = timedelta(days=31)
UTILISATION: Final = (
    plain("HOUR", "hour"),
    plain("CLUSTER", "cluster"),
    plain("RESOURCE", "resource"),
    *(
        plain(name.upper(), f"{name}_h")
        for name in ("capacity", "allocated", "reserved", "other", "idle", "down")
    ),
)
INTERRUPTIONS: Final = (
    plain("AT", "at"),
    named(),
    plain("WHAT", "what"),
    plain("REASON", "reason"),
    Column(Heading("FOR"), lambda row: f"{row['by_namespace']}/{row['by_name']}" if row["by_name"] else ""),
    plain("QUEUE", "queue"),
    plain("CLUSTER", "cluster"),
    how_long("RAN", "ran_s"),
    plain("GPU-H LOST", "gpu_h_lost"),
)
PAGES: Final[Mapping[str, Callable[[Past, Asked], ReportPage]]] = {
    "history": history_page,
    "usage": usage_page,
    "waits": waits_page,
    "interruptions": interruptions_page,
    "utilisation": utilisation_page,
}
"""The pages of a window by the last part of their path."""


def _one_of(choices: type[Choice], written: str) -> Choice:
    for each in choices:
        if each.value == written:
            return each
    raise NotWritten(f"{written!r} is none of {', '.join(each.value for each in choices)}")


def story_of(description: Description) -> Story:
    """The attempts and events of an AppWrapper, also as lanes."""
    return Story(
        tuple(each for each in facts_of(description) if each[1]),
        life_of(description),
        _table(description.attempts, ATTEMPTS, description.attempts.at),
        _table(description.timeline, [plain("AT", "at"), *TIMELINE], None),
    )


def life_of(description: Description) -> Life | None:
    """The lanes, from the submission to the last moment that is known; None without an event. O(events)."""
    events = list(description.timeline)
    times = [at for each in events if isinstance(at := each["at"], datetime)]
    if not times:
        return None
    ends = [at + _length(each) for each, at in zip(events, times, strict=True) if _is_drawn(each)]
    scale = _Scale(min(times), max(*times, *ends, min(times) + timedelta(seconds=1)))
    numbers = [0, *sorted({_attempt_of(each) for each in events} - {0})]
    attempts = {int(str(each["attempt"])): each for each in description.attempts}
    lanes = tuple(
        _lane(scale, index, attempts.get(number), [each for each in events if _attempt_of(each) == number])
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


def _lane(scale: _Scale, index: int, attempt: Row | None, events: Sequence[Row]) -> Lane:
    label = "queue" if index == 0 else f"attempt {events[0]['attempt']}"
    where = str(attempt["cluster"] or "") if attempt else ""
    bars = tuple(_bars(scale, events))
    ticks = tuple(Tick(scale.x(at), _said(each)) for each in events[:MOST_TICKS] if (at := _time(each, "at")))
    return Lane(f"{label} {where}".strip(), index * LANE_HEIGHT, bars, ticks, _lost(scale, attempt))


def _bars(scale: _Scale, events: Sequence[Row]) -> Iterator[Bar]:
    for each in events:
        at = _time(each, "at")
        if at is not None and _is_drawn(each):
            length = _length(each)
            state = str(each["to_phase"])
            yield scale.bar(at, length, state, f"{state} for {span(length.total_seconds())}")


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


def _length(event: Row) -> timedelta:
    seconds = event["seconds_in_state"]
    return timedelta(seconds=float(str(seconds))) if seconds is not None else timedelta(0)


def _table(report: Report, columns: Sequence[Column], now: datetime | None) -> Table:
    """A report as a table; a column with numbers is aligned as such."""
    rows = [[column.of(row) for column in columns] for row in report]
    keys = [(str(row.get("namespace")), str(row.get("name"))) for row in report]
    are_numbers = [any(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    leads = [each.heading.is_namespaced for each in columns]
    return Table(
        tuple(
            Cell(_heading(each.heading.name), is_number)
            for each, is_number in zip(columns, are_numbers, strict=True)
        ),
        tuple(
            tuple(
                Cell(text(found, now), is_number, key if is_name else None)
                for found, is_number, is_name in zip(row, are_numbers, leads, strict=True)
            )
            for row, key in zip(rows, keys, strict=True)
        ),
    )


def _heading(name: str) -> str:
    """A heading of a terminal's table as a page has it; abbreviations stay as they are."""
    return name if any(each in name for each in ("CPU", "GIB", "GPU")) else name.capitalize()


def _is_number(found: object) -> bool:
    return isinstance(found, int | float | Decimal) and not isinstance(found, bool)
