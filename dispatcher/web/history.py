"""The pages about the past as values: tables of a window, and the life of one AppWrapper as lanes.

Every name and message here may be a tenant's. Values are plain text and numbers; the templates escape all text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

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


class Cell(Struct, frozen=True):
    """A cell of a table; `key` is the namespace, the name and the uid of the AppWrapper that it leads to."""

    text: str
    is_number: bool = False
    key: tuple[str, str, str] | None = None


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
    at: datetime | None = None
    """When the database answered."""


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
    return _page("history", found, HISTORY, "No AppWrapper existed then.", found.at)


def usage_page(past: Past, asked: Asked) -> ReportPage:
    """Hours of capacity by one key, and by hour or day if asked."""
    by = _one_of(GroupBy, asked.by or GroupBy.NAMESPACE)
    per = _one_of(Period, asked.per or Period.TOTAL)
    found = past.usage(past.window(asked.since, asked.until), by, per, asked.filter)
    keys = [plain(COLUMN_OF[by].removesuffix("_name").upper(), COLUMN_OF[by])]
    period = [] if per is Period.TOTAL else [plain(per.value.upper(), per.value)]
    return _page("usage", found, [*period, *keys, *USED], "Nothing was used then.")


def waits_page(past: Past, asked: Asked) -> ReportPage:
    """How long AppWrappers waited for their first start."""
    found = past.waits(past.window(asked.since, asked.until), asked.filter)
    return _page("waits", found, WAITS, "Nothing was queued then.")


def interruptions_page(past: Past, asked: Asked) -> ReportPage:
    """Who lost a cluster, to whom, and why."""
    found = past.interruptions(past.window(asked.since, asked.until), asked.filter)
    return _page("interruptions", found, INTERRUPTIONS, "No attempt was interrupted then.")


def utilisation_page(past: Past, asked: Asked) -> ReportPage:
    """What became of each cluster's capacity, hour by hour, in the last day if no window is asked for."""
    window = past.window(asked.since or DAY, asked.until)
    if window.until - window.since > LONGEST_UTILISATION:
        raise NotWritten(
            f"the window is longer than {LONGEST_UTILISATION.days} days, the most that are drawn"
        )
    found = past.utilisation(window, asked.resource)
    page = _page("utilisation", found, UTILISATION, "No capacity was known then.")
    return replace(page, charts=charts(list(found)))


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

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "history": ("since", "until", "namespace", "user", "queue", "outcome"),
    "usage": ("since", "until", "namespace", "user", "queue", "by", "per"),
    "waits": ("since", "until", "namespace", "queue"),
    "interruptions": ("since", "until", "namespace", "queue"),
    "utilisation": ("since", "until", "resource"),
}
"""The parameters that the address of each page may have."""


def asked_of(page: str, query: Mapping[str, str], namespace: str) -> Asked:
    """What the address of a page asks for, by default about `namespace`.

    Raises `NotWritten` for a parameter of another page, which this one would ignore.
    """
    fields, asked = FIELDS[page], Asked.of(query)
    for name in Asked.__struct_fields__:
        if getattr(asked, name) and name not in fields:
            raise NotWritten(f"{page} knows no {name}, but {', '.join(fields)}")
    is_of_default = "namespace" in fields and "namespace" not in query
    return replace(asked, namespace=namespace) if is_of_default else asked


def _page(
    heading: str, found: Report, columns: Sequence[Column], nothing: str, now: datetime | None = None
) -> ReportPage:
    """The first rows of a report as a page, with a sentence if there are more; times are relative to `now`."""
    is_cut = found.is_cut or len(found.rows) > MOST_ROWS
    note = f"The first {MOST_ROWS} rows: narrow the window or the filter for others." if is_cut else ""
    shown = replace(found, rows=found.rows[:MOST_ROWS])
    return ReportPage(heading, _table(shown, columns, now), nothing, note, at=found.at)


def _one_of(choices: type[Choice], written: str) -> Choice:
    for each in choices:
        if each.value == written:
            return each
    raise NotWritten(f"{written!r} is none of {', '.join(each.value for each in choices)}")


def story_of(description: Description) -> Story:
    """The attempts and events of an AppWrapper, also as lanes. O(events)."""
    events, attempts = (_latest(each) for each in (description.timeline, description.attempts))
    kept = replace(description, timeline=events, attempts=attempts)
    return Story(
        tuple(each for each in facts_of(description) if each[1]),
        life_of(kept),
        _table(attempts, ATTEMPTS, attempts.at),
        _table(events, [plain("AT", "at"), *TIMELINE], None),
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


def _table(report: Report, columns: Sequence[Column], now: datetime | None) -> Table:
    """A report as a table; a column with numbers is aligned as such."""
    rows = [[column.of(row) for column in columns] for row in report]
    keys = [(_word(row, "namespace"), _word(row, "name"), _word(row, "uid")) for row in report]
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


def _word(row: Row, name: str) -> str:
    return str(row.get(name) or "")


def _heading(name: str) -> str:
    """A heading of a terminal's table as a page has it; abbreviations stay as they are."""
    return name if any(each in name for each in ("CPU", "GIB", "GPU")) else name.capitalize()


def _is_number(found: object) -> bool:
    return isinstance(found, int | float | Decimal) and not isinstance(found, bool)
