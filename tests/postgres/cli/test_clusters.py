"""`dispatcher clusters` with a database: how full each is, since when it answers, what happened to it last."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.commands import Ran, Run
from tests.fakes import FakeApiServer, refusal, text
from tests.postgres.changes import make_dispatch, make_submit
from tests.postgres.cli.lives import shown
from tests.postgres.cli.queues import EAST, snap
from tests.unit.cli.wire import Json, member, members, plain_kubeconfig, use_kubeconfig
from tests.unit.scripted import no_proxies

__all__ = ["no_proxies"]

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=60)
"""In a table `2d` ago, however long the tests take."""
EARLIER = NOW - timedelta(minutes=5)
GIB = 2**30
SAMPLES = [
    # at, cluster, resource, capacity, held, other, free
    (EARLIER, "east", "example.com/gone", 9, 9, 9, 9),
    (EARLIER, "east", "cpu", 99_000, 0, 0, 99_000),
    (NOW, "east", "cpu", 8_500, 1_500, 1_000, 6_000),
    (NOW, "east", "memory", 32 * GIB, 0, GIB // 2, 63 * GIB // 2),
    (NOW, "east", "nvidia.com/gpu", 4, 2, 0, 2),
    (NOW, "east", "amd.com/gpu", 1, 0, 0, 1),
    (NOW - timedelta(hours=2), "former", "cpu", 1_000, 0, 0, 1_000),
    (NOW, "hub", "cpu", 1_000, 3_000, 0, -2_000),
]
EVENTS = [
    (EARLIER - timedelta(hours=1), "east", "connected", "", ""),
    (EARLIER, "east", "reachable", "", ""),
    (NOW, "east", "cordoned", "ClusterCordoned", "new switches"),
    (EARLIER, "west", "connected", "", ""),
    (NOW, "west", "unreachable", "ClusterUnreachable", "it does not answer"),
]
MEMBERS = [
    ("east", None, True, True, "ClusterCordoned"),
    ("west", NOW, True, False, ""),
    ("hub", None, True, False, ""),
    ("former", None, False, False, ""),
]


@pytest.fixture
async def clusters(database_url: str, queue: QueueStore) -> None:
    """A hub that is overcommitted, east that is cordoned, west that is away and was never sampled, and a former one."""
    with psycopg.connect(database_url) as connection:
        cursor = connection.cursor()
        cursor.executemany("INSERT INTO capacity_sample VALUES (%s, %s, %s, %s, %s, %s, %s, true)", SAMPLES)
        cursor.executemany(
            "INSERT INTO cluster_event (at, cluster, event, reason, message, epoch) VALUES (%s, %s, %s, %s, %s, 1)",
            EVENTS,
        )
        cursor.executemany(
            "INSERT INTO member_cluster (name, cluster_uid, unreachable_since, is_declared, is_cordoned, "
            "closed_reason) VALUES (%s, '', %s, %s, %s, %s)",
            MEMBERS,
        )
    (record,) = (await queue.commit([make_submit()])).accepted
    await queue.commit([make_dispatch(record, "east")])


async def test_clusters_lists_the_state_of_each_cluster(run: Run, clusters: None) -> None:
    assert await run("clusters") == Ran(
        0,
        """\
CLUSTER  REACHABLE  SINCE  CLOSED           RUNNING  CPU FREE  GIB FREE  GPU FREE  AS OF  LAST EVENT   AT
east     yes        2d     ClusterCordoned  1        6/8.5     31.5/32   3/5       2d     cordoned     2d
hub      yes        -      -                0        -2/1      0/0       0/0       2d     -            -
west     no         2d     -                0        -         -         -         -      unreachable  2d
""",
    )


@pytest.mark.parametrize(("running", "listed"), [(0, []), (1, ["gone"])])
async def test_removed_cluster_is_listed_while_it_runs_gangs(
    run: Run, database_url: str, queue: QueueStore, running: int, listed: list[str]
) -> None:
    """The view has it for an hour after its last sample."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO capacity_sample VALUES (now(), 'gone', 'cpu', 8000, 0, 0, 8000, true)"
        )
        connection.execute(
            "INSERT INTO cluster_event (at, cluster, event, epoch) VALUES (now(), 'gone', 'removed', 1)"
        )
    for _ in range(running):
        (record,) = (await queue.commit([make_submit()])).accepted
        await queue.commit([make_dispatch(record, "gone")])
    assert [line.split()[0] for line in (await run("clusters")).out.splitlines()[1:]] == listed


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    """A hub that knows what is free now in east; west does not answer, and has what it had before."""
    free: Json = {"cpu": "5500m", "memory": "16Gi", "nvidia.com/gpu": "2", "amd.com/gpu": "1"}
    status = {"allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4", "bad": "x"}, "free": free}
    async with FakeApiServer() as server:
        use_kubeconfig(plain_kubeconfig(server.url), tmp_path, monkeypatch)
        reached = [{"type": "Reachable", "status": "True"}]
        away = [{"type": "Reachable", "status": "False"}]
        east = member("east", status={**status, "conditions": reached})
        server.on("GET", MEMBERS_PATH, members(east, member("west", status={**status, "conditions": away})))
        yield server


@pytest.fixture
async def leads(clusters: None, database: Database, leadership: Leadership) -> None:
    """A leader that has written a snapshot, so that the statuses of members are of now."""
    await snap(database, leadership, NOW, EAST)


async def free_now(run: Run) -> dict[str, list[str]]:
    """CPU, GIB and GPU FREE of each cluster, and AS OF."""
    ran = await run("clusters")
    at = ran.out.index("CPU FREE")
    assert ran.code == 0
    return {line.split()[0]: line[at:].split()[:4] for line in ran.out.splitlines()[1:]}


async def test_free_capacity_is_live_where_the_hub_has_it(run: Run, leads: None, hub: FakeApiServer) -> None:
    assert await free_now(run) == {
        "east": ["5.5/8", "16/32", "3/4", "live"],
        "hub": ["-2/1", "0/0", "0/0", "2d"],
        "west": ["-", "-", "-", "-"],
    }


async def test_kubeconfig_of_the_home_folder_counts(
    run: Run, leads: None, hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / "hub.kubeconfig").rename(tmp_path / ".kube" / "config")
    monkeypatch.delenv("KUBECONFIG")
    assert (await free_now(run))["east"] == ["5.5/8", "16/32", "3/4", "live"]


async def test_clusters_reads_no_statuses_from_the_hub_without_a_leader(
    run: Run, leads: None, leadership: Leadership, hub: FakeApiServer
) -> None:
    await leadership.release()
    assert (await free_now(run))["east"] == ["6/8.5", "31.5/32", "3/5", "2d"]
    assert hub.asked == []


async def test_hub_that_does_not_list_members_leaves_the_samples(
    run: Run, leads: None, hub: FakeApiServer
) -> None:
    hub.on("GET", MEMBERS_PATH, refusal(403, "Forbidden", "memberclusters is forbidden"))
    ran = await run("clusters")
    assert (ran.code, ran.out.count("live")) == (0, 0)
    assert ran.err == (
        "The free capacity is that of the last sample: the hub does not allow it: memberclusters is forbidden\n"
    )


async def test_hub_without_members_is_no_note(run: Run, leads: None, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS_PATH, text("404 page not found\n", 404))
    ran = await run("clusters")
    assert (ran.code, ran.out.count("live"), ran.err) == (0, 0, "")


async def test_json_has_the_samples(run: Run, leads: None, hub: FakeApiServer) -> None:
    (east, *_) = json.loads((await run("clusters", "-o", "json")).out)
    assert (east["cpu_free"], datetime.fromisoformat(east["sampled_at"]), hub.asked) == (6, NOW, [])


async def test_the_wide_table_says_why_and_what_is_held_now(run: Run, clusters: None) -> None:
    lines = (await run("clusters", "-o", "wide")).out.splitlines()
    at = lines[0].index("SAMPLED")
    assert [line[at:] for line in lines] == [
        "SAMPLED               CPU HELD  GIB HELD  GPU HELD  CORDONED  DRAINING  WHY",
        f"{shown(NOW)}  1.5       0         2         yes       no        new switches",
        f"{shown(NOW)}  0         0         0         no        no        -",
        "-                     0         0         0         no        no        it does not answer",
    ]


async def test_clusters_gives_the_reader_the_same_answer(run: Run, clusters: None, reader_url: str) -> None:
    told = await run("clusters", "-o", "json", "--database-url", reader_url)
    assert told == await run("clusters", "-o", "json")
    east: dict[str, Any] = json.loads(told.out)[0]
    assert (east["cpu_free"], east["memory_gib_other"], east["gpu"], east["running"]) == (6, 0.5, 5, 1)


async def test_no_cluster_is_an_answer(run: Run) -> None:
    assert await run("clusters") == Ran(
        0, "", "No clusters: no dispatcher has led yet, or the members were removed.\n"
    )


async def test_a_database_that_is_not_there_is_to_be_tried_again(run: Run) -> None:
    ran = await run("clusters", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (3, "")
