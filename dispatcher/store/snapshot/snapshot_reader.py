"""Reads the facts of the next scheduling cycle: the records, and the leader's last snapshot of each cluster.

Reads are unfenced and read-only, and need only the role `dispatcher_reader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, field
from psycopg.rows import dict_row

from dispatcher.core.kinds.pods.pod_defaults import DefaultsSurvey
from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules, rules_of, world_of
from dispatcher.core.scheduling.explain.world import World
from dispatcher.errors import SchemaMismatch
from dispatcher.store.connections import connected, leave_json, only_read
from dispatcher.store.rows import queued_or_running_of, set_aside_record_of
from dispatcher.store.snapshot.snapshot_document import facts_of


class Snapshot(Struct, frozen=True):
    """The facts of the next cycle.

    `taken_at` is the time of the oldest facts about a cluster; None if no leader has written a snapshot. `has_leader`
    is false if no dispatcher leads now, so that nothing is decided. `surveys` are the defaults of pods in each cluster
    by name; None where the snapshot has none.
    """

    world: World
    records: Mapping[str, Record]
    rules: SchedulingRules
    taken_at: datetime | None
    has_leader: bool
    surveys: Mapping[str, DefaultsSurvey | None] = field(default_factory=dict)

    @property
    def age(self) -> timedelta | None:
        """The age of the oldest facts about a cluster, by the database's clock; None without any."""
        return max(self.world.now - self.taken_at, timedelta(0)) if self.taken_at else None


async def read_snapshot(url: str, timeout: timedelta) -> Snapshot:
    """The facts of the next cycle, from one state of the database; each query ends after `timeout`.

    Raises `SchemaMismatch` if the database is older than this code.
    """
    async with connected(
        url, statement_timeout=timeout, lock_timeout=timeout, grace=timeout / 6
    ) as connection:
        leave_json(connection)
        await only_read(connection)
        async with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_CLUSTERS)
            clusters = await cursor.fetchall()
            since = min((each["taken_at"] for each in clusters), default=None)
            await cursor.execute(_GANGS, {"since": since, "released": list(_RELEASED)})
            rows = await cursor.fetchall()
            await cursor.execute(_NOW)
            now = (await cursor.fetchone() or {})["now"]
    return _snapshot(clusters, rows, now)


def snapshot_of_nothing(now: datetime) -> Snapshot:
    """The snapshot of a hub without clusters, gangs and rules of its own, for who may not read the leader's."""
    return _snapshot([], [], now)


def _snapshot(clusters: list[dict[str, Any]], rows: list[dict[str, Any]], now: datetime) -> Snapshot:
    facts = [facts_of(each["body"], each["taken_at"]) for each in clusters]
    records = {row["uid"]: _record_of(row) for row in rows}
    taken_at = {each.cluster.name: each.taken_at for each in facts}
    released = {
        row["uid"]
        for row in rows
        if not records[row["uid"]].holds_capacity
        and _is_since(row["updated_at"], taken_at.get(row["cluster"]))
    }
    return Snapshot(
        world=world_of(facts, records.values(), released, now),
        records=records,
        rules=rules_of(facts),
        taken_at=min((each.taken_at for each in facts if each.taken_at), default=None),
        has_leader=any(each["has_leader"] for each in clusters),
        surveys={each.cluster.name: each.defaults for each in facts},
    )


def _record_of(row: dict[str, Any]) -> Record:
    """The record for a row; one that is set aside, as the leader has it, if the row cannot be read."""
    try:
        return queued_or_running_of(row)
    except KeyError as missing:
        # The view of an older revision has fewer columns.
        raise SchemaMismatch(
            f"the database does not have {missing} of an AppWrapper yet; an operator runs: dispatcher migrate"
        ) from missing
    except Exception:  # noqa: BLE001  # one row must not hide the others; the leader logs the error
        is_held = row["number"] is not None
        attempt = Attempt(row["number"], row["cluster"], row["decided_at"]) if is_held else None
        return set_aside_record_of(row, attempt)


def _is_since(updated_at: datetime, taken_at: datetime | None) -> bool:
    return taken_at is None or updated_at >= taken_at


_RELEASED: Final = (Phase.COMPLETED, Phase.FAILED, Phase.DELETED)
_CLUSTERS: Final = "SELECT * FROM scheduling.clusters ORDER BY cluster"
# AppWrappers that ended before the snapshot hold nothing, and are many.
_GANGS: Final = (
    "SELECT * FROM scheduling.gangs WHERE phase <> ALL(%(released)s) OR updated_at >= %(since)s ORDER BY uid"
)
_NOW: Final = "SELECT statement_timestamp() AS now"
