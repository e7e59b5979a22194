"""What people ask of the queue and its history: questions over the views of schema `history`.

Reading is unfenced and read-only, and needs no more than the role `dispatcher_reader`. What a person gives is always
bound; what columns there are is chosen from here. A report has the columns of its view, which are an interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from dispatcher.store.connections import Connection, connected

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Rows under the names of their columns, no two of a name; `is_cut` if there are more than were asked for."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    is_cut: bool = False

    def __iter__(self) -> Iterator[Row]:
        """Each row by the names of its columns."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Description:
    """All that is known of one AppWrapper; `waiting` is its row of the queue, if it waits now."""

    job: Row
    waiting: Row | None
    attempts: Report
    states: Report
    timeline: Report


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose AppWrappers are asked for, and which; what is empty is any."""

    namespace: str = ""
    user: str = ""
    queue: str = ""
    state: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A time that is asked about, its end not included."""

    since: datetime
    until: datetime


class GroupBy(StrEnum):
    """What use is told apart by."""

    NAMESPACE = "namespace"
    USER = "user"
    QUEUE = "queue"
    CLUSTER = "cluster"


class Period(StrEnum):
    """For how long a time use is added up."""

    HOUR = "hour"
    DAY = "day"
    TOTAL = "total"


NO_FILTER: Final = Filter()
COLUMN_OF: Final = {
    GroupBy.NAMESPACE: "namespace",
    GroupBy.USER: "user_name",
    GroupBy.QUEUE: "queue",
    GroupBy.CLUSTER: "cluster",
}


@asynccontextmanager
async def reports(url: str, timeout: timedelta) -> AsyncIterator[Reports]:
    """Reports over a connection of their own; no query may take longer than the timeout."""
    async with connected(
        url, statement_timeout=timeout, lock_timeout=timeout, grace=timeout / 6
    ) as connection:
        yield Reports(connection)


class Reports:
    """Answers from the views of history, each of one moment throughout."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queue(self, of: Filter = NO_FILTER) -> Report:
        """Who waits, in the order in which they are looked at; last those that may not go yet."""
        return await self._report(_QUEUE, _bound(of))

    async def jobs(self, window: Window, of: Filter, most: int) -> Report:
        """AppWrappers that were there at some time in the window, the newest first."""
        values = {**_bound(of), **_times(window), "asked": most + 1}
        found = await self._report(_JOBS, values)
        return Report(found.columns, found.rows[:most], is_cut=len(found.rows) > most)

    async def descriptions(
        self, name: str, namespace: str = "", *, is_uid: bool = False, most: int | None = None
    ) -> tuple[list[Description], int]:
        """All about so many AppWrappers that ever had this name, the newest first; and how many there are.

        With `is_uid`, about the one of that uid.
        """
        which = {"uid" if is_uid else "name": name, "namespace": namespace or None}
        async with self._reading():
            jobs = list(await self._ask(_OF_UID if is_uid else _OF_NAME, which))
            return [await self._story(job) for job in jobs[:most]], len(jobs)

    async def usage(
        self, window: Window, by: Sequence[GroupBy], per: Period, of: Filter = NO_FILTER
    ) -> Report:
        """What was held in the hours that the window touches, and each one's share of the GPU-hours of its period."""
        hour = window.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return await self._report(_usage(by, per), {**_bound(of), **_times(Window(hour, window.until))})

    async def waits(self, window: Window, of: Filter = NO_FILTER) -> Report:
        """How long those waited that became eligible on each day that the window touches, the newest day first."""
        days = {"since": window.since.astimezone(UTC).date(), "until": window.until}
        return await self._report(_WAITS, {**_bound(of), **days})

    async def clusters(self) -> Report:
        """Each cluster as it is now."""
        return await self._report(_CLUSTERS, {})

    async def _report(self, query: str, values: Row) -> Report:
        async with self._reading():
            return await self._ask(query, values)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            await self._connection.execute(_READ_ONLY)
            yield

    async def _ask(self, query: str, values: Row) -> Report:
        found = await self._connection.execute(query.encode(), values)
        return Report(tuple(each.name for each in found.description or ()), tuple(await found.fetchall()))

    async def _story(self, job: Row) -> Description:
        which = {"uid": job["uid"]}
        # Its place in the queue is known only from the whole queue.
        waiting = await self._ask(_WAITING, which) if job["state"] == "Queued" else ()
        return Description(
            job,
            next(iter(waiting), None),
            await self._ask(_ATTEMPTS, which),
            await self._ask(_STATES, which),
            await self._ask(_TIMELINE, which),
        )


def _usage(by: Sequence[GroupBy], per: Period) -> str:
    period = [] if per is Period.TOTAL else [per.value]
    keys = [*period, *dict.fromkeys(COLUMN_OF[each] for each in by)]
    within = ", ".join(f"PARTITION BY {each}" for each in period)
    return (
        f"SELECT {''.join(f'{key}, ' for key in keys)}sum(cpu_h) AS cpu_h, sum(memory_gib_h) AS memory_gib_h, "
        "sum(gpu_h) AS gpu_h, "
        f"100 * sum(gpu_h) / nullif(sum(sum(gpu_h)) OVER ({within}), 0) AS gpu_percent "
        "FROM (SELECT *, (hour AT TIME ZONE 'UTC')::date AS day FROM history.usage_hourly) AS used "
        f"WHERE {_OF} AND hour >= %(since)s AND hour < %(until)s GROUP BY ({', '.join(keys)}) "
        f"ORDER BY {', '.join([*period, 'gpu_h DESC', 'cpu_h DESC', *keys])}"
    )


def _bound(of: Filter) -> dict[str, object]:
    return {
        "namespace": of.namespace or None,
        "user": of.user or None,
        "queue": of.queue or None,
        "state": of.state or None,
        "outcome": of.outcome or None,
    }


def _times(window: Window) -> dict[str, object]:
    return {"since": window.since, "until": window.until}


def _if_given(name: str, column: str) -> str:
    return f"(CAST(%({name})s AS text) IS NULL OR {column} = %({name})s)"


_READ_ONLY: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_OF_QUEUE: Final = f"{_if_given('namespace', 'namespace')} AND {_if_given('queue', 'queue')}"
_OF: Final = f"{_OF_QUEUE} AND {_if_given('user', 'user_name')}"
_QUEUE: Final = (
    f"SELECT * FROM history.queue_now WHERE {_OF} ORDER BY queue, position NULLS LAST, eligible_at, uid"
)
_JOBS: Final = (
    f"SELECT * FROM history.job_history WHERE {_OF} AND {_if_given('state', 'state')} "
    f"AND {_if_given('outcome', 'outcome')} AND submitted_at < %(until)s "
    "AND (ended_at IS NULL OR ended_at >= %(since)s) "
    "ORDER BY submitted_at DESC, uid LIMIT %(asked)s"
)
_OF_NAME: Final = (
    f"SELECT * FROM history.job_history WHERE name = %(name)s AND {_if_given('namespace', 'namespace')} "
    "ORDER BY submitted_at DESC, uid"
)
_OF_UID: Final = "SELECT * FROM history.job_history WHERE uid = %(uid)s"
_WAITING: Final = "SELECT * FROM history.queue_now WHERE uid = %(uid)s"
_ATTEMPTS: Final = "SELECT * FROM history.attempt_history WHERE uid = %(uid)s ORDER BY attempt"
_STATES: Final = (
    "SELECT state, sum(seconds) AS seconds FROM history.state_intervals WHERE uid = %(uid)s "
    "GROUP BY state ORDER BY min(entered_at), state"
)
_TIMELINE: Final = (
    "SELECT timeline.*, state.seconds AS seconds_in_state "
    "FROM history.timeline LEFT JOIN history.state_intervals AS state ON state.uid = timeline.uid "
    "AND entered_at = at AND state.state = to_phase AND from_phase IS DISTINCT FROM to_phase "
    "WHERE timeline.uid = %(uid)s ORDER BY at, id"
)
_WAITS: Final = (
    f"SELECT * FROM history.wait_stats_daily WHERE {_OF_QUEUE} AND day >= %(since)s AND day < %(until)s "
    "ORDER BY day DESC, queue, namespace, gpu_class"
)
_CLUSTERS: Final = "SELECT * FROM history.clusters_now ORDER BY cluster"
