"""`plan --live`: objects of a file on the snapshot that a leader left in the database."""

from __future__ import annotations

import json

import yaml

from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_appwrapper, make_template
from tests.commands import Ran, Run
from tests.postgres.cli.queues import EAST, WEST, fill, snap

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "new"},
    "status": {"allocatable": {"cpu": "6", "memory": "16Gi", "pods": "110"}},
}


async def test_node_of_a_file_takes_the_gang_that_waits(
    run: Run, database: Database, leadership: Leadership, queue: QueueStore
) -> None:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, EAST, WEST)

    ran = await run(
        *("plan", "-f", "-", "--live", "--cluster", "east", "--no-repairs", "-o", "json"),
        stdin=yaml.safe_dump(NODE),
    )

    assert (ran.code, ran.err) == (0, "")
    planned = json.loads(ran.out)
    large, small = planned["decisions"]
    assert (large["dispatch"], large["cluster"]) == ("team-a/large", "east")
    assert (small["waiting"], small["reason"]) == ("team-a/small", "InsufficientResources")
    assert planned["ageSeconds"] >= 60


async def test_cluster_of_the_nodes_has_to_be_said_where_there_are_several(
    run: Run, database: Database, leadership: Leadership, queue: QueueStore
) -> None:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, EAST, WEST)

    ran = await run("plan", "-f", "-", "--live", stdin=yaml.safe_dump(NODE))

    said = "dispatcher: say with --cluster which cluster gets the Nodes: east, west\n"
    assert ran == Ran(2, "", said)


async def test_without_a_snapshot_there_is_nothing_to_plan_on(
    run: Run, database: Database, queue: QueueStore
) -> None:
    ran = await run("plan", "-f", "-", "--live", stdin=yaml.safe_dump(NODE))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("dispatcher: the database has no snapshot of clusters")


async def test_gangs_of_the_hub_keep_their_place_and_are_not_planned_twice(
    run: Run, database: Database, leadership: Leadership, queue: QueueStore
) -> None:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, EAST, WEST)
    there = (appwrapper("train", "5"), appwrapper("large", "6", priority=-1))

    ran = await run(
        *("plan", "-f", "-", "--live", "--no-repairs", "-o", "json"), stdin=yaml.safe_dump_all(there)
    )

    assert (ran.code, ran.err) == (0, "Dispatched already, and not planned again: team-a/train.\n")
    waiting = [each["waiting"] for each in json.loads(ran.out)["decisions"]]
    assert waiting == ["team-a/small", "team-a/large"]


def appwrapper(name: str, cpu: str, **spec: object) -> dict[str, object]:
    """An AppWrapper of one pod, as its user wrote it."""
    pod = make_template()
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return make_appwrapper(name, pod, namespace="team-a", spec=spec)
