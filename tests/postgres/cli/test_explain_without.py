"""`explain` and `would` on databases that lack something: members, a snapshot, a leader."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import yaml

from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.explain import trials
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.commands import Ran, Run
from tests.postgres.cli.queues import EAST, WEST, fill, snap
from tests.postgres.cli.test_explain import manifest, without_age

NO_SNAPSHOT = (
    "dispatcher: the database has no snapshot of clusters: start a dispatcher of this release with it, and ask again "
    "some seconds later\n"
)


async def test_on_the_hub_alone_there_is_no_table_of_clusters(
    run: Run, queue: QueueStore, database: Database, leadership: Leadership
) -> None:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, Cluster("hub", WEST.nodes))
    assert without_age(await run("explain", "small", "--priority", "9")) == Ran(
        0,
        "team-a/small fits: the next cycle dispatches it to hub, on n1.\n"
        "  position 1 of 2 in the queue, before team-a/large\n",
    )
    assert without_age(await run("explain", "small", "--if", "nodes+1:cpu=2")) == Ran(
        0,
        "team-a/small fits: the next cycle dispatches it to hub, on added-0-0.\n"
        "  position 2 of 2 in the queue, after team-a/large\n",
    )


@pytest.mark.parametrize("asked", [["explain", "small"], ["would", "-f", "-"]], ids=lambda asked: asked[0])
async def test_without_a_snapshot_it_says_what_to_start(
    run: Run, queue: QueueStore, asked: list[str]
) -> None:
    await fill(queue)
    assert await run(*asked, stdin=yaml.safe_dump(manifest())) == Ran(1, "", NO_SNAPSHOT)


async def test_without_a_leader_it_says_so_and_answers(
    run: Run, queue: QueueStore, database: Database, leadership: Leadership
) -> None:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, EAST, WEST)
    before = without_age(await run("explain", "small"))
    await leadership.release()
    note = "No dispatcher leads now, so nothing is dispatched: start one, or see its log.\n"
    assert without_age(await run("explain", "small")) == Ran(0, before.out, note)


async def test_queue_show_and_explain_estimate_the_same_start(
    run: Run, queue: QueueStore, database: Database, leadership: Leadership
) -> None:
    queues = await fill(queue, limit_of_sweep=timedelta(hours=5))
    await snap(database, leadership, queues.taken_at, EAST, WEST)
    start = (queues.started + timedelta(hours=5)).isoformat()
    unknown = "no end is known for team-a/large (cpu 6, no dispatchDuration)"

    rows = json.loads((await run("queue", "-o", "json")).out)
    (described,) = json.loads((await run("show", "large", "-o", "json")).out)
    (explained,) = json.loads((await run("explain", "large", "-o", "json")).out)

    in_queue = {row["name"]: (row["estimated_start"], row["estimate_unknown"]) for row in rows}
    assert in_queue == {"large": (start, None), "small": (None, unknown)}
    assert described["waiting"]["estimated_start"] == start
    assert (explained["estimatedStart"], explained["estimateUnknown"]) == (start, None)
    assert f"  Est. start:  unknown: {unknown}" in (await run("show", "small")).out.splitlines()

    await leadership.release()
    rows = json.loads((await run("queue", "-o", "json")).out)
    assert {row["estimate_unknown"] for row in rows} == {"no dispatcher leads now"}


async def test_queues_that_are_too_large_have_no_estimates_in_the_words_of_a_status(
    run: Run,
    queue: QueueStore,
    database: Database,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = await fill(queue)
    await snap(
        database, leadership, queues.taken_at, EAST, WEST, rules=SchedulingRules(queues=(Queue("default"),))
    )
    monkeypatch.setattr(trials, "MOST_PLANNED", 9)
    rows = json.loads((await run("queue", "-o", "json")).out)
    assert {row["estimate_unknown"] for row in rows} == {
        "the clusters and queues are too large for an estimate"
    }


async def test_user_who_may_read_the_queue_alone_gets_the_reason_for_no_estimate(
    run: Run, queue: QueueStore, stranger_url: str
) -> None:
    await fill(queue)
    rows = json.loads((await run("queue", "-o", "json", "--database-url", stranger_url)).out)
    why = {row["estimate_unknown"] for row in rows}
    assert why == {"the leader's snapshot cannot be read: permission denied for schema scheduling (42501)"}
