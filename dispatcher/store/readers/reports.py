"""Reports for people over the queue and its history, from the views of schema `history`, or for a tenant of `tenant`.

Reads are unfenced and read-only, and need only the role `dispatcher_reader`. A role that may read only schema `tenant`
gets the same views limited to its namespaces, and `StoreForbidden` for what only operators see. Values from users are
always bound; column names are constants of this module. A report has the columns of its view, which are an interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.records.pending_reasons import IN_NO_QUEUE
from dispatcher.errors import StoreForbidden

if TYPE_CHECKING:
    from dispatcher.store.connections import Connection


Row = Mapping[str, object]


class Report(Struct, frozen=True):
    """Rows with distinct column names; `is_cut` is true if there are more rows than asked for.

    `at` is the time of the answer by the database's clock; tables show times relative to it, else exact times.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    is_cut: bool = False
    at: datetime | None = None

    def __iter__(self) -> Iterator[Row]:
        """Each row as a mapping from column name to value."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


class Description(Struct, frozen=True):
    """All that history has of one AppWrapper.

    `waiting` is its row of the pending queue, None unless it is queued; `holding` are the amounts that it holds, None
    unless it holds capacity.
    """

    job: Row
    waiting: Row | None
    holding: Row | None
    attempts: Report
    states: Report
    timeline: Report


class Filter(Struct, frozen=True):
    """The AppWrappers to report on; an empty field matches all."""

    namespace: str = ""
    user: str = ""
    queue: str = ""
    state: str = ""
    outcome: str = ""


class Window(Struct, frozen=True):
    """A time range, without its end."""

    since: datetime
    until: datetime


class GroupBy(StrEnum):
    """Keys by which usage is grouped."""

    NAMESPACE = "namespace"
    USER = "user"
    QUEUE = "queue"
    CLUSTER = "cluster"


class Period(StrEnum):
    """Aggregation periods of usage."""

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


HISTORY: Final = "history"
TENANT: Final = "tenant"
"""The schema with the views of `history` that are limited to the namespaces of a role."""


@asynccontextmanager
async def reports(url: str, timeout: timedelta) -> AsyncIterator[Reports]:
    """Reports over a connection of their own; every query ends after `timeout`."""
    from dispatcher.store.connections import connected, only_read  # most users of this module need no driver

    async with connected(
        url, statement_timeout=timeout, lock_timeout=timeout, grace=timeout / 6
    ) as connection:
        await only_read(connection)
        async with connection.transaction():
            found = await (await connection.execute(_RIGHTS.encode())).fetchone()
        schema, may_read = found or (HISTORY, False)
        yield Reports(connection, str(schema), has_termination_messages=bool(may_read))


class Reports:
    """Runs reports on the views of a schema; each sees one snapshot of the database.

    Termination messages are null without `has_termination_messages`: the role may not read their view.
    """

    def __init__(
        self, connection: Connection, schema: str = HISTORY, *, has_termination_messages: bool = False
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._has_termination_messages = has_termination_messages
        self._at: datetime | None = None

    async def queue(self, of: Filter = NO_FILTER) -> Report:
        """The pending queue in the order of evaluation; AppWrappers that may not go yet come last.

        For a node of MCAD's trees (`TREE/NODE`), which needs the right to read the schema `scheduling`, each is listed
        under the queue of its turn.
        """
        found = await self._report(_QUEUE_OF_NODE if "/" in of.queue else _QUEUE, _bound(of))
        return replace(found, rows=_in_turn(found))

    async def jobs(self, window: Window, of: Filter, most: int) -> Report:
        """AppWrappers that existed in the window, newest first, with the termination messages of those that failed."""
        values = {**_bound(of), **_times(window), "asked": most + 1}
        found = await self._report(_JOBS, values)
        return replace(found, rows=found.rows[:most], is_cut=len(found.rows) > most)

    async def descriptions(
        self, name: str, namespace: str = "", *, is_uid: bool = False, most: int | None = None
    ) -> tuple[list[Description], int]:
        """Descriptions of at most `most` AppWrappers that ever had this name, newest first, and how many there are.

        With `is_uid`, `name` is the uid of one AppWrapper.
        """
        which = {"uid" if is_uid else "name": name, "namespace": namespace or None}
        async with self._reading():
            jobs = list(await self._ask(_OF_UID if is_uid else _OF_NAME, which))
            return [await self._story(job) for job in jobs[:most]], len(jobs)

    async def names(self, namespace: str = "") -> list[str]:
        """The names of the newest AppWrappers of a namespace ("" is any), ended ones included; at most 1,000."""
        found = await self._report(_NAMES, {"namespace": namespace or None})
        return [str(row["name"]) for row in found]

    async def usage(
        self, window: Window, by: Sequence[GroupBy], per: Period, of: Filter = NO_FILTER
    ) -> Report:
        """Resource hours in the hours that the window touches, with each row's share of its period's GPU hours."""
        hour = window.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return await self._report(_usage(by, per), {**_bound(of), **_times(Window(hour, window.until))})

    async def waits(self, window: Window, of: Filter = NO_FILTER) -> Report:
        """Waiting times by the day of eligibility, for each day that the window touches, newest day first."""
        days = {"since": window.since.astimezone(UTC).date(), "until": window.until}
        return await self._report(_WAITS, {**_bound(of), **days})

    async def interruptions(self, window: Window, of: Filter, most: int) -> Report:
        """Attempts that lost their cluster in the window, newest first: preempted for another gang, or evicted."""
        values = {**_bound(of), **_times(window), "asked": most + 1}
        found = await self._report(_INTERRUPTIONS, values)
        return replace(found, rows=found.rows[:most], is_cut=len(found.rows) > most)

    async def utilisation(self, window: Window, resource: str) -> Report:
        """What became of a resource in each cluster, hour by hour; of all GPUs if `resource` is empty.

        Raises `StoreForbidden` for a tenant. The view is computed: it costs O(hours x clusters) and more for the gangs
        that ran.
        """
        hour = window.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        values = {**_times(Window(hour, window.until)), "resource": resource or None}
        return await self._report(_UTILISATION, values)

    async def clusters(self) -> Report:
        """The current state of each cluster; raises `StoreForbidden` for a tenant."""
        if self._schema == TENANT:
            raise StoreForbidden("a tenant's role does not see clusters")
        return await self._report(_CLUSTERS, {})

    async def held(self) -> Report:
        """The amounts that gangs hold now, for each cluster that has any gang."""
        return await self._report(_HELD, {})

    async def has_leader(self) -> bool:
        """True if a dispatcher leads and has written a snapshot; needs the right to read the schema `scheduling`."""
        return any(row["leads"] for row in await self._report(_LEADS, {}))

    async def _report(self, query: str, values: Row) -> Report:
        async with self._reading():
            return await self._ask(query, values)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            now = await (await self._connection.execute(_NOW)).fetchone()
            self._at = now[0] if now and isinstance(now[0], datetime) else None
            yield

    async def _ask(self, query: str, values: Row) -> Report:
        if not self._has_termination_messages:
            query = query.replace(f"{HISTORY}.{_TERMINATION_MESSAGES}", _NO_TERMINATION_MESSAGES)
        there = query.replace(f"{HISTORY}.", f"{self._schema}.")  # the SQL of this module: values are bound
        found = await self._connection.execute(there.encode(), values)
        columns = tuple(each.name for each in found.description or ())
        return Report(columns, tuple(await found.fetchall()), at=self._at)

    async def _story(self, job: Row) -> Description:
        which = {"uid": job["uid"]}
        # The view computes positions from the whole queue, so it is read only where there is a position.
        waiting = await self._ask(_WAITING, which) if job["state"] == "Queued" else ()
        return Description(
            job,
            next(iter(waiting), None),
            next(iter(await self._ask(_HOLDING, which)), None),
            await self._ask(_ATTEMPTS, which),
            await self._ask(_STATES, which),
            await self._ask(_TIMELINE, which),
        )


def _in_turn(queue: Report) -> tuple[tuple[object, ...], ...]:
    """The rows by position if no position occurs twice, as without declared queues; else by queue.

    Gangs that their queue does not take are last: they are in no queue.
    """
    place, reason = queue.columns.index("position"), queue.columns.index("reason")
    known = [row[place] for row in queue.rows if row[place] is not None]
    if len(set(known)) < len(known):
        return tuple(sorted(queue.rows, key=lambda row: row[reason] in IN_NO_QUEUE))
    return tuple(sorted(queue.rows, key=lambda row: (row[place] is None, int(str(row[place] or 0)))))


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


_NOW: Final = b"SELECT statement_timestamp()"
_SCHEMA: Final = (
    f"SELECT CASE WHEN has_schema_privilege('{HISTORY}', 'USAGE') OR NOT has_schema_privilege('{TENANT}', 'USAGE') "
    f"THEN '{HISTORY}' ELSE '{TENANT}' END"
)
_TERMINATION_MESSAGES: Final = "termination_messages"
_RIGHTS: Final = (
    f"SELECT schema, has_table_privilege(to_regclass(schema || '.{_TERMINATION_MESSAGES}'), 'SELECT') "
    f"FROM ({_SCHEMA}) AS readable(schema)"
)
_NO_TERMINATION_MESSAGES: Final = (
    "(SELECT CAST(NULL AS text) AS uid, CAST(NULL AS text) AS cause, CAST(NULL AS timestamptz) AS at, "
    "CAST(NULL AS bigint) AS id, CAST(NULL AS text) AS termination_message WHERE false)"
)
_OF_QUEUE: Final = f"{_if_given('namespace', 'namespace')} AND {_if_given('queue', 'queue')}"
_OF: Final = f"{_OF_QUEUE} AND {_if_given('user', 'user_name')}"
_IN_ORDER: Final = (
    "ORDER BY queue, position NULLS LAST, eligible_at, effective_priority DESC, created_at, uid"
)
_QUEUE: Final = f"SELECT * FROM history.queue_now WHERE {_OF} {_IN_ORDER}"
# A gang is in one node of each of MCAD's trees, beside the queue of its turn.
_QUEUE_OF_NODE: Final = (
    f"SELECT * FROM history.queue_now WHERE {_if_given('namespace', 'namespace')} "
    f"AND {_if_given('user', 'user_name')} AND uid IN (SELECT uid FROM scheduling.gangs "
    f"WHERE phase = 'Queued' AND more_queues @> jsonb_build_array(CAST(%(queue)s AS text))) {_IN_ORDER}"
)
# An AppWrapper fails once at most. The times leave out the months in which it was not there. They leave out no failure,
# whichever clocks its leaders had: the times of a record never decrease (`core.lifecycle.record_change`).
_JOBS: Final = (
    "SELECT job.*, said.termination_message FROM ("
    f"SELECT * FROM history.job_history WHERE {_OF} AND {_if_given('state', 'state')} "
    f"AND {_if_given('outcome', 'outcome')} AND submitted_at < %(until)s "
    "AND (ended_at IS NULL OR ended_at >= %(since)s) "
    "ORDER BY submitted_at DESC, uid LIMIT %(asked)s) AS job "
    "LEFT JOIN LATERAL (SELECT written.termination_message FROM history.termination_messages AS written "
    "WHERE job.outcome = 'failed' AND written.cause = 'run-failed' AND written.uid = job.uid "
    "AND written.at BETWEEN job.submitted_at AND job.ended_at LIMIT 1) AS said ON true "
    "ORDER BY job.submitted_at DESC, job.uid"
)
_OF_NAME: Final = (
    f"SELECT * FROM history.job_history WHERE name = %(name)s AND {_if_given('namespace', 'namespace')} "
    "ORDER BY submitted_at DESC, uid"
)
_NAMES: Final = (
    f"SELECT name FROM history.job_history WHERE {_if_given('namespace', 'namespace')} "
    "ORDER BY submitted_at DESC, uid LIMIT 1000"
)
_OF_UID: Final = "SELECT * FROM history.job_history WHERE uid = %(uid)s"
_WAITING: Final = "SELECT * FROM history.queue_now WHERE uid = %(uid)s"
_HOLDING: Final = "SELECT cpu, memory_gib, gpu FROM history.running_now WHERE uid = %(uid)s"
_ATTEMPTS: Final = "SELECT * FROM history.attempt_history WHERE uid = %(uid)s ORDER BY attempt"
_STATES: Final = (
    "SELECT state, sum(seconds) AS seconds FROM history.state_intervals WHERE uid = %(uid)s "
    "GROUP BY state ORDER BY min(entered_at), state"
)
# By the rule of `history.state_intervals`. That view has no ids of events, and several events may have one time: if the
# clock of a new leader is behind that of the former leader, the new leader repeats the time of the last event.
_SECONDS_IN_STATE: Final = (
    "CASE WHEN from_phase IS DISTINCT FROM to_phase AND to_phase <> 'Deleted' THEN CAST(greatest(extract(epoch FROM "
    "coalesce(lead(timeline.at) OVER changes, statement_timestamp()) - timeline.at), 0) AS double precision) END"
)
_TIMELINE: Final = (
    f"SELECT timeline.*, said.termination_message, {_SECONDS_IN_STATE} AS seconds_in_state FROM history.timeline "
    "LEFT JOIN history.termination_messages AS said ON said.uid = timeline.uid AND said.id = timeline.id "
    "WHERE timeline.uid = %(uid)s "
    "WINDOW changes AS (PARTITION BY from_phase IS DISTINCT FROM to_phase ORDER BY timeline.at, timeline.id) "
    "ORDER BY timeline.at, timeline.id"
)
_WAITS: Final = (
    f"SELECT * FROM history.wait_stats_daily WHERE {_OF_QUEUE} AND day >= %(since)s AND day < %(until)s "
    "ORDER BY day DESC, queue, namespace, gpu_class"
)
_INTERRUPTED: Final = "at, uid, namespace, name, queue, cluster, reason, by_name, ran_s, gpu_h_lost"
_IN_WINDOW: Final = f"{_OF_QUEUE} AND at >= %(since)s AND at < %(until)s"
_INTERRUPTIONS: Final = (
    f"SELECT 'preempted' AS what, {_INTERRUPTED}, by_namespace FROM history.preemptions WHERE {_IN_WINDOW} "
    f"UNION ALL SELECT 'evicted', {_INTERRUPTED}, NULL FROM history.evictions WHERE {_IN_WINDOW} "
    "ORDER BY at DESC, uid LIMIT %(asked)s"
)
_UTILISATION: Final = (
    "SELECT hour, cluster, resource, capacity_h, allocated_h, reserved_h, other_h, idle_h, down_h "
    "FROM history.utilisation_hourly WHERE hour >= %(since)s AND hour < %(until)s AND CASE WHEN "
    "CAST(%(resource)s AS text) IS NULL THEN resource LIKE '%%/gpu' ELSE resource = %(resource)s END "
    "ORDER BY cluster, resource, hour"
)
_LEADS: Final = "SELECT coalesce(bool_or(has_leader), false) AS leads FROM scheduling.clusters"
_CLUSTERS: Final = "SELECT * FROM history.clusters_now ORDER BY cluster"
_HELD: Final = (
    "SELECT cluster, sum(cpu) AS cpu_held, sum(memory_gib) AS memory_gib_held, sum(gpu) AS gpu_held "
    "FROM history.running_now GROUP BY cluster"
)
