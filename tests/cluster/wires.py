"""A dispatcher whose wires a test holds, and the account that the database gives of what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from dispatcher.core.lifecycle.transitions import TRANSITIONS
from dispatcher.core.model.records.record import Phase
from dispatcher.kube.client import METADATA_LIST
from testbed.processes import Process
from testbed.proxy import ApiProxy, Exchange
from testbed.proxy_postgres import Commit, PostgresProxy
from tests.cluster.manifests import appwrapper, config_map, item, job
from tests.cluster.world import World

Json = dict[str, Any]
TARGETS = {(row.source, row.cause): row.target for row in TRANSITIONS}
HOLDING = {
    Phase.DISPATCHING,
    Phase.DISPATCHED,
    Phase.RUNNING,
    Phase.DELETING,
    Phase.FAILING,
    Phase.REQUEUEING,
}

QUICK = {
    "lease_seconds": "4",
    "renew_seconds": "0.5",
    "write_timeout_seconds": "1",
    "read_timeout_seconds": "5",
}
"""A short lease, and writes that are given up soon."""


@dataclass(frozen=True, slots=True)
class Wires:
    """The two proxies of one dispatcher."""

    world: World
    api: ApiProxy
    postgres: PostgresProxy

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher on these wires."""
        kubeconfig = str(self.api.kubeconfig(self.world.plane))
        chosen = QUICK | {"kubeconfig": kubeconfig, "database_url": self.postgres.url} | settings
        return await self.world.start_dispatcher(**chosen)

    def spare(self) -> None:
        """Let everything pass from now on."""
        self.api.rules.clear()
        self.postgres.rules.clear()

    def created(self) -> Counter[str]:
        """How often each object was created, as the API server answered."""
        return Counter(
            f"{each.path}/{each.document['metadata']['name']}"
            for each in self.api.writes()
            if each.method == "POST" and each.status == 201 and not each.path.endswith("/events")
        )


@asynccontextmanager
async def wires_of(world: World) -> AsyncIterator[Wires]:
    """Proxies for one dispatcher; whoever runs on them is killed before they go."""
    async with ApiProxy.of(world.plane) as api, PostgresProxy(world.database_url) as postgres:
        yield Wires(world, api, postgres)
        await world.kill_dispatchers()


# --- what to strike at -------------------------------------------------------------------------------


def changes_records(commit: Commit) -> bool:
    """True for what history is written with; not for leases, partitions and reads."""
    return any("INTO event " in statement for statement in commit.statements)


def keeps_house(commit: Commit) -> bool:
    """True for samples, and for what is made, moved or dropped of history: when it is due, whatever else goes on."""
    said = " ".join(commit.statements)
    return any(
        each in said for each in ("INTO capacity_sample", "phase_since < ", "_default WHERE", "DROP TABLE")
    )


def writes_anything(commit: Commit) -> bool:
    """True for every fenced transaction, and for takeovers; not for renewals, releases and reads."""
    said = " ".join(commit.statements)
    return "INTO leader_lease" in said or "FOR SHARE OF e" in said


def is_write(exchange: Exchange) -> bool:
    """True for what may change something at the API server."""
    return exchange.is_write


# --- the account -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Life:
    """What the database says of one AppWrapper."""

    phase: Phase
    steps: tuple[str, ...]
    """The causes of its history; but not that it became the head, which is its neighbours' doing."""


async def lives(database_url: str) -> dict[str, Life]:
    """Every AppWrapper by name; fails if its history, its row and its attempts do not tell one story."""
    async with await psycopg.AsyncConnection.connect(database_url, row_factory=dict_row) as connection:
        # All of it as of one moment: the dispatcher writes on.
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        rows = await (await connection.execute("SELECT * FROM appwrapper")).fetchall()
        events = await (await connection.execute("SELECT * FROM event ORDER BY id")).fetchall()
        attempts = await (await connection.execute("SELECT * FROM attempt ORDER BY number")).fetchall()
    assert {each["uid"] for each in events} == {row["uid"] for row in rows}
    return {row["name"]: _life(row, _of(row, events), _of(row, attempts)) for row in rows}


def _of(row: Json, others: list[Json]) -> list[Json]:
    return [each for each in others if each["uid"] == row["uid"]]


def _life(row: Json, events: list[Json], attempts: list[Json]) -> Life:
    phase: Phase | None = None
    for event in events:
        assert event["from_phase"] == phase, f"{row['name']}: history has a gap: {events}"
        phase = TARGETS[phase, event["cause"]]
        assert event["to_phase"] == phase
    assert phase == row["phase"]
    causes = tuple(event["cause"] for event in events)
    # Every change is one version and one event: a change that was made twice would show here.
    assert len(causes) == row["version"]
    assert [event["epoch"] for event in events] == sorted(event["epoch"] for event in events)
    assert causes.count("dispatched") + causes.count("adopted") == len(attempts) == row["attempts"]
    assert sum(each["ended_at"] is None for each in attempts) == (phase in HOLDING)
    return Life(Phase(row["phase"]), tuple(cause for cause in causes if cause != "blocked-at-head"))


async def in_order_of(database_url: str, cause: str) -> list[str]:
    """The names of those to whom that happened, the first first."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        found = await connection.execute("SELECT name FROM event WHERE cause = %s ORDER BY id", [cause])
        return [name for (name,) in await found.fetchall()]


async def expire_lease(database_url: str) -> None:
    """Let the lease of a dispatcher that is dead run out now: all that waiting for it would do."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("UPDATE leader_lease SET expires_at = clock_timestamp()")


# --- what is dispatched ------------------------------------------------------------------------------

MORE_THAN_HALF = "7"
"""Of the eight cpus of a node, for two pods on three nodes: where one such gang is, no other fits."""


def gang(name: str, cpu: str = "100m", pods: int = 1, **annotations: str) -> Json:
    """An AppWrapper of two objects, whose pods live as their annotations say."""
    return appwrapper(name, item(config_map(name)), item(job(name, pods, cpu, **annotations)))


async def assert_whole(world: World, *names: str, pods: int = 1) -> None:
    """Exactly one full set of the objects of each gang, and all of its pods and no more."""
    found = [each["metadata"] for each in await world.every("AppWrapper", METADATA_LIST)]
    uids = {each["name"]: each["uid"] for each in found if each["name"] in names}
    assert uids.keys() == {*names}
    for kind in ("ConfigMap", "Job"):
        owned = await world.every(kind, METADATA_LIST)
        assert {name: _owned(owned, uid) for name, uid in uids.items()} == {name: [name] for name in uids}
    labels = [each["metadata"].get("labels") or {} for each in await world.every("Pod", METADATA_LIST)]
    counts = Counter(each.get("dispatcher.codeflare.dev/appwrapper-uid") for each in labels)
    assert {name: counts[uid] for name, uid in uids.items()} == dict.fromkeys(uids, pods)


def _owned(found: list[Json], uid: str) -> list[str]:
    """The names of the objects that an AppWrapper owns."""
    return [
        each["metadata"]["name"]
        for each in found
        if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ()))
    ]
