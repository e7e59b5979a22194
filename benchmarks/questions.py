"""Questions about history: the queries of the commands, and queries of the views over some days and over everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from dispatcher.store.readers.reports import Filter, GroupBy, Period, Report, Reports, Window

VIEWS: Final = (
    "queue_now",
    "running_now",
    "clusters_now",
    "job_history",
    "attempt_history",
    "state_intervals",
    "wait_stats_daily",
    "usage_hourly",
    "utilisation_hourly",
    "fairness_daily",
    "queue_specs",
    "queue_depth_5m",
    "pending_reasons",
    "evictions",
    "preemptions",
    "capacity_requests",
    "failures_daily",
    "dispatch_latency",
    "node_history",
    "cluster_events",
    "timeline",
)
"""The views that the reader may read whole; `overtakes` has a row for each pair that met in a queue."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The AppWrapper of the questions."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `kubectl aw`, by its calls of the store; returns the number of rows."""

    name: str
    ask: Callable[[Reports, Subject], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Question:
    """One query over the views, about the last `days` days or the AppWrapper of a `uid`, if it has these parameters.

    The names of views are those for a session of the reader. The one row of a count is the number of rows.
    """

    name: str
    query: str
    days: int = 0
    is_count: bool = False

    def parameters(self, uid: str = "") -> Mapping[str, object]:
        """The parameters of the query."""
        return {"days": self.days, "uid": uid}


def last(days: int) -> Window:
    """The window of the last `days` days."""
    now = datetime.now(UTC)
    return Window(now - timedelta(days=days), now)


# --- by the commands ---------------------------------------------------------------------------------


async def _queue(reports: Reports, _: Subject) -> int:
    return _rows(await reports.queue())


async def _show(reports: Reports, subject: Subject) -> int:
    descriptions, _ = await reports.descriptions(subject.name, subject.namespace)
    return sum(1 + _rows(each.attempts) + _rows(each.timeline) for each in descriptions)


def _history(days: int, of: Filter) -> Callable[[Reports, Subject], Awaitable[int]]:
    async def ask(reports: Reports, _: Subject) -> int:
        return _rows(await reports.jobs(last(days), of, 50))

    return ask


def _usage(days: int, per: Period) -> Callable[[Reports, Subject], Awaitable[int]]:
    async def ask(reports: Reports, _: Subject) -> int:
        return _rows(await reports.usage(last(days), [GroupBy.NAMESPACE], per))

    return ask


def _waits(days: int) -> Callable[[Reports, Subject], Awaitable[int]]:
    async def ask(reports: Reports, _: Subject) -> int:
        return _rows(await reports.waits(last(days)))

    return ask


def _rows(report: Report) -> int:
    return len(report.rows)


COMMANDS: Final[Sequence[Command]] = (
    Command("queue", _queue),
    Command("show NAME", _show),
    Command("history --since 7d", _history(7, Filter())),
    Command("history --since 365d --user", _history(365, Filter(user="user-7"))),
    Command("usage --since 7d --per hour", _usage(7, Period.HOUR)),
    Command("usage --since 30d", _usage(30, Period.TOTAL)),
    Command("usage --since 365d", _usage(365, Period.TOTAL)),
    Command("waits --since 7d", _waits(7)),
    Command("waits --since 30d", _waits(30)),
    Command("waits --since 365d", _waits(365)),
)


# --- in SQL ------------------------------------------------------------------------------------------

SINCE: Final = "now() - make_interval(days => %(days)s)"

FILTERED: Final[Sequence[Question]] = (
    Question("pending_reasons of one", "SELECT * FROM pending_reasons WHERE uid = %(uid)s"),
    Question("overtakes of one", "SELECT * FROM overtakes WHERE uid = %(uid)s"),
    Question("overtakes by one", "SELECT * FROM overtakes WHERE overtaken_by = %(uid)s"),
    Question("overtakes, 1 day", f"SELECT why, count(*) FROM overtakes WHERE at >= {SINCE} GROUP BY why", 1),
    Question(
        "state_intervals, 7 days",
        f"SELECT state, sum(seconds) FROM state_intervals WHERE entered_at >= {SINCE} GROUP BY state",
        7,
    ),
    Question("failures_daily, 30 days", f"SELECT * FROM failures_daily WHERE day >= ({SINCE})::date", 30),
    Question("evictions, 30 days", f"SELECT * FROM evictions WHERE at >= {SINCE}", 30),
    Question("preemptions, 30 days", f"SELECT * FROM preemptions WHERE at >= {SINCE}", 30),
    Question(
        "dispatch_latency, 7 days",
        "SELECT cluster, percentile_cont(0.99) WITHIN GROUP (ORDER BY create_s) FROM dispatch_latency "
        f"WHERE at >= {SINCE} GROUP BY cluster",
        7,
    ),
    Question(
        "node_history, 7 days ago",
        f"SELECT node, sum(gpu) FROM node_history WHERE tstzrange(decided_at, ended_at) @> {SINCE} GROUP BY node",
        7,
    ),
    Question("utilisation_hourly, 7 days", f"SELECT * FROM utilisation_hourly WHERE hour >= {SINCE}", 7),
    Question("fairness_daily, 30 days", f"SELECT * FROM fairness_daily WHERE day >= ({SINCE})::date", 30),
    Question("queue_depth_5m, 7 days", f"SELECT * FROM queue_depth_5m WHERE at >= {SINCE}", 7),
    Question("clusters_now", "SELECT * FROM clusters_now"),
    Question("cluster_events, 30 days", f"SELECT * FROM cluster_events WHERE at >= {SINCE}", 30),
)

UNFILTERED: Final[Sequence[Question]] = tuple(
    # The whole row, so that every column is computed.
    Question(f"{view}, all of it", f"SELECT count(every) FROM {view} AS every", is_count=True)
    for view in VIEWS
)

LONG: Final[Sequence[Question]] = (
    Question(
        "waits of a year by hour of day",
        "SELECT extract(hour FROM eligible_at), queue, "
        "percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (ORDER BY wait_s) "
        f"FROM job_history WHERE eligible_at >= {SINCE} GROUP BY 1, 2",
        365,
    ),
    Question(
        "usage of 400 days by namespace and month",
        "SELECT date_trunc('month', hour), namespace, sum(gpu_h) FROM usage_hourly "
        f"WHERE hour >= {SINCE} GROUP BY 1, 2",
        400,
    ),
    Question(
        "time in each state of all there ever were",
        "SELECT state, cluster, queue, sum(seconds), percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) "
        "FROM state_intervals GROUP BY state, cluster, queue",
    ),
)
"""Questions of analysts, which take minutes."""
