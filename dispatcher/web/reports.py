"""The reports of a window as pages: what their addresses may ask for, and their tables.

Every name and message here may be a tenant's. Values are plain text and numbers; the templates escape all text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.cli.command_line import NotWritten
from dispatcher.cli.people.history import HISTORY, USED, WAITS, Outcome
from dispatcher.cli.screens.output import Column, how_long, named, plain, text
from dispatcher.cli.screens.tables import Heading
from dispatcher.store.readers.reports import COLUMN_OF, Filter, GroupBy, Period, Report, Row
from dispatcher.web.past import MOST_ROWS, Past
from dispatcher.web.utilisation import Chart, charts

Choice = TypeVar("Choice", bound=StrEnum)


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
    return ReportPage(heading, table_of(shown, columns, now), nothing, note, at=found.at)


def _one_of(choices: type[Choice], written: str) -> Choice:
    for each in choices:
        if each.value == written:
            return each
    raise NotWritten(f"{written!r} is none of {', '.join(each.value for each in choices)}")


def table_of(report: Report, columns: Sequence[Column], now: datetime | None) -> Table:
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
