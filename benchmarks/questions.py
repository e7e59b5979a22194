"""What people ask of history: as the commands ask it, and as an analyst does who wants it of all there ever was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

VIEWS: Final = (
    "queue_now",
    "running_now",
    "job_history",
    "attempt_history",
    "state_intervals",
    "wait_stats_daily",
    "usage_hourly",
    "utilisation_hourly",
    "queue_depth_5m",
    "pending_reasons",
    "preemptions",
    "failures_daily",
    "dispatch_latency",
    "cluster_events",
    "overtakes",
    "timeline",
)


@dataclass(frozen=True, slots=True)
class Question:
    """One query over the views, about the last so many days, or about whom `values` name."""

    name: str
    query: str
    days: int = 0
    values: Mapping[str, object] = field(default_factory=dict)
    is_count: bool = False
    """The one row is the number of rows."""

    @property
    def parameters(self) -> dict[str, object]:
        """What is bound."""
        return {"days": self.days, **self.values}


SINCE: Final = "now() - make_interval(days => %(days)s)"

FILTERED: Final[Sequence[Question]] = (
    Question("queue", "SELECT * FROM queue_now ORDER BY queue, position NULLS LAST, eligible_at, uid"),
    Question(
        "show: what it was", "SELECT * FROM job_history WHERE namespace = %(namespace)s AND name = %(name)s"
    ),
    Question(
        "show: its attempts", "SELECT * FROM attempt_history WHERE uid = ANY(%(uids)s) ORDER BY decided_at"
    ),
    Question("show: its timeline", "SELECT * FROM timeline WHERE uid = ANY(%(uids)s) ORDER BY at, id"),
    Question(
        "show: its states", "SELECT * FROM state_intervals WHERE uid = ANY(%(uids)s) ORDER BY entered_at"
    ),
    Question("show: why it waited", "SELECT * FROM pending_reasons WHERE uid = ANY(%(uids)s)"),
    Question("show: who overtook it", "SELECT * FROM overtakes WHERE uid = ANY(%(uids)s)"),
    Question(
        "history --since 7d",
        f"SELECT * FROM job_history WHERE (ended_at >= {SINCE} OR ended_at IS NULL) "
        "ORDER BY submitted_at DESC LIMIT 51",
        7,
    ),
    Question(
        "usage --since 30d --by namespace",
        f"SELECT namespace, sum(cpu_h), sum(memory_gib_h), sum(gpu_h) FROM usage_hourly WHERE hour >= {SINCE} "
        "GROUP BY namespace",
        30,
    ),
    Question("waits --since 7d", f"SELECT * FROM wait_stats_daily WHERE day >= ({SINCE})::date", 7),
    Question("waits --since 365d", f"SELECT * FROM wait_stats_daily WHERE day >= ({SINCE})::date", 365),
    Question(
        "states since 7d",
        f"SELECT state, sum(seconds) FROM state_intervals WHERE entered_at >= {SINCE} GROUP BY 1",
        7,
    ),
    Question(
        "overtakes since 1d", f"SELECT why, count(*) FROM overtakes WHERE at >= {SINCE} GROUP BY why", 1
    ),
    Question("failures since 30d", f"SELECT * FROM failures_daily WHERE day >= ({SINCE})::date", 30),
    Question("preemptions since 30d", f"SELECT * FROM preemptions WHERE at >= {SINCE}", 30),
    Question(
        "dispatch latency since 7d",
        "SELECT cluster, percentile_cont(0.99) WITHIN GROUP (ORDER BY create_s) FROM dispatch_latency "
        f"WHERE at >= {SINCE} GROUP BY cluster",
        7,
    ),
    Question("utilisation since 7d", f"SELECT * FROM utilisation_hourly WHERE hour >= {SINCE}", 7),
    Question("depth of queues since 7d", f"SELECT * FROM queue_depth_5m WHERE at >= {SINCE}", 7),
    Question("events of clusters since 30d", f"SELECT * FROM cluster_events WHERE at >= {SINCE}", 30),
)
"""Views are named as whoever logs in as the reader finds them."""

UNFILTERED: Final[Sequence[Question]] = tuple(
    # The whole row, so that no column is left uncounted.
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
"""What analysts ask who stay for minutes."""
