"""`dispatcher clusters` with a database: how full each is, since when it answers, what happened to it last."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dispatcher.store.queue import QueueStore
from tests.commands import Ran, Run
from tests.postgres.changes import make_dispatch, make_submit
from tests.postgres.cli.lives import shown

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


async def test_each_cluster_is_told_as_it_is(run: Run, clusters: None) -> None:
    assert await run("clusters") == Ran(
        0,
        """\
CLUSTER  REACHABLE  SINCE  CLOSED           RUNNING  CPU FREE  GIB FREE  GPU FREE  LAST EVENT   AT
east     yes        2d     ClusterCordoned  1        6/8.5     31.5/32   3/5       cordoned     2d
hub      yes        -      -                0        -2/1      0/0       0/0       -            -
west     no         2d     -                0        -         -         -         unreachable  2d
""",
    )


async def test_the_wide_table_says_why(run: Run, clusters: None) -> None:
    lines = (await run("clusters", "-o", "wide")).out.splitlines()
    at = lines[0].index("SAMPLED")
    assert [line[at:] for line in lines] == [
        "SAMPLED               CPU HELD  GIB HELD  GPU HELD  CORDONED  DRAINING  WHY",
        f"{shown(NOW)}  1.5       0         2         yes       no        new switches",
        f"{shown(NOW)}  3         0         0         no        no        -",
        "-                     -         -         -         no        no        it does not answer",
    ]


async def test_the_reader_is_told_the_same(run: Run, clusters: None, reader_url: str) -> None:
    told = await run("clusters", "-o", "json", "--database-url", reader_url)
    assert told == await run("clusters", "-o", "json")
    east: dict[str, Any] = json.loads(told.out)[0]
    assert (east["cpu_free"], east["memory_gib_other"], east["gpu"], east["running"]) == (6, 0.5, 5, 1)


async def test_no_cluster_is_an_answer(run: Run) -> None:
    assert await run("clusters") == Ran(0, "", "No cluster was ever seen: no dispatcher has led yet.\n")


async def test_a_database_that_is_not_there_is_to_be_tried_again(run: Run) -> None:
    ran = await run("clusters", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (3, "")
