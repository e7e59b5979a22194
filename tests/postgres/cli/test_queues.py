"""`dispatcher queues NAME`: the gangs of a queue, from the database, beside its settings from the hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.commands import Run
from tests.fakes import NOBODYS_CA, FakeApiServer, answer
from tests.postgres.cli.lives import Lives
from tests.postgres.cli.queues import EAST, fill, snap
from tests.unit.cli.wire import Json, plain_kubeconfig, use_kubeconfig
from tests.unit.scripted import no_proxies

__all__ = ["no_proxies"]

QUEUES = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"


def queue(name: str, **spec: object) -> Json:
    metadata = {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": "2026-11-20T08:58:06Z"}
    return {"metadata": metadata, "spec": spec}


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    """A hub with a tree of queues; AppWrappers wait in one of them."""
    async with FakeApiServer() as server:
        use_kubeconfig(plain_kubeconfig(server.url), tmp_path, monkeypatch)
        monkeypatch.setenv("SSL_CERT_FILE", str(NOBODYS_CA))
        items = [queue("org"), queue("night", parent="org"), queue("day", parent="org")]
        server.on("GET", QUEUES, answer({"metadata": {"resourceVersion": "7"}, "items": items}))
        yield server


async def test_leaf_shows_its_gangs_in_turn(run: Run, lives: Lives, hub: FakeApiServer) -> None:
    ran = await run("queues", "night")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.rstrip("\n").split("\n\n")[-1].splitlines() == [
        "Gangs:",
        "POSITION  NAME          USER   PRIORITY  WAITED  GPU  REASON                 MESSAGE",
        "1         team-a/train  alice  7         3d      2    InsufficientResources  lacks 1 cpu",
    ]


async def test_inner_queue_shows_the_gangs_below_it_and_where_each_waits(
    run: Run, lives: Lives, hub: FakeApiServer
) -> None:
    *_, heading, gang = (await run("queues", "org")).out.splitlines()
    assert heading.split()[:3] == ["QUEUE", "POSITION", "NAME"]
    assert gang.split()[:3] == ["night", "1", "team-a/train"]


async def test_queue_without_gangs_says_so(run: Run, lives: Lives, hub: FakeApiServer) -> None:
    assert (await run("queues", "day")).out.endswith("\n\nGangs:\nNothing waits in it.\n")


async def test_wide_and_json_say_more_of_each_gang(run: Run, lives: Lives, hub: FakeApiServer) -> None:
    heading = (await run("queues", "night", "-o", "wide")).out.splitlines()[-2]
    assert heading.split("  ")[-2:] == ["EST START", "ESTIMATE UNKNOWN"]
    found = json.loads((await run("queues", "night", "-o", "json")).out)
    assert found["queue"] == queue("night", parent="org")
    assert [(each["name"], each["queue"], each["gpu"]) for each in found["gangs"]] == [("train", "night", 2)]


# --- MCAD's trees ----------------------------------------------------------------------------------------------

SUBTREES = "/apis/quota.codeflare.dev/v1alpha1/quotasubtrees"


def subtree(parent: str | None, **requests: object) -> Json:
    """A QuotaSubtree of the tree `context`; children are `requests` by name."""
    metadata = {"name": f"below-{parent}", "labels": {"tree": "context"}}
    children = [{"name": name, "quotas": {"requests": found}} for name, found in requests.items()]
    return {"metadata": metadata, "spec": {"parent": parent, "children": children}}


@pytest.fixture
def tree(hub: FakeApiServer) -> None:
    """One of MCAD's trees, beside the DispatchQueues."""
    items = [subtree(None, root={}), subtree("root", gold={"cpu": 8}, silver={"cpu": 2})]
    hub.on("GET", SUBTREES, answer({"items": items}))


@pytest.fixture
async def nodes(queue: QueueStore, database: Database, leadership: Leadership, tree: None) -> None:
    """A gang runs in the node gold, and another one waits there."""
    found = await fill(queue, "context/gold")
    await snap(database, leadership, found.taken_at, EAST, rules=SchedulingRules(trees=("context",)))


async def test_use_of_nodes_is_counted_from_the_records(run: Run, nodes: None) -> None:
    shown = (await run("queues")).out.splitlines()
    assert [line.split() for line in shown[-3:]] == [
        ["context/root", "cpu", "10", "5", "0", "5", "1", "1", "-", "Active"],
        ["context/gold", "cpu", "8", "5", "0", "5", "1", "1", "-", "Active"],
        ["context/silver", "cpu", "2", "0", "0", "5", "0", "0", "-", "Active"],
    ]


async def test_use_of_nodes_that_no_leader_has_counted_is_not_shown(
    run: Run, lives: Lives, tree: None
) -> None:
    line = next(each for each in (await run("queues")).out.splitlines() if "gold" in each)
    assert line.split() == ["context/gold", "cpu", "8", *"-" * 6, "Active"]


@pytest.mark.parametrize("name", ["context/gold", "context/root"])
async def test_node_shows_its_gangs(run: Run, nodes: None, name: str) -> None:
    found = json.loads((await run("queues", name, "-o", "json")).out)
    assert [(each["name"], each["queue"]) for each in found["gangs"]] == [("large", "default")]


async def test_queue_may_be_narrowed_to_a_node(run: Run, nodes: None, reader_url: str) -> None:
    async def names(queue: str) -> list[str]:
        asked = ("queue", "--queue", queue, "-o", "json", "--database-url", reader_url)
        return [each["name"] for each in json.loads((await run(*asked)).out)]

    assert await names("context/gold") == ["large"]
    assert await names("context/silver") == []
    assert sorted(await names("default")) == ["large", "small"]
