"""What the GPU map reads: the nodes of all clusters that answer, and sentences about the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.cli.options import HubOptions
from dispatcher.cli.people.node_report import NO_APPWRAPPER, NodeReport
from dispatcher.web.node_reading import FRESH_SECONDS, NodeReading
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal
from tests.unit.cli.people.test_running import APPWRAPPERS, GANGS, NODES, PODS, listed
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig
from tests.unit.scripted import no_proxies, server
from tests.unit.web.test_loopback import NOW

__all__ = ["no_proxies", "server"]

NODES_PATH, PODS_PATH = "/api/v1/nodes", "/api/v1/pods"


@pytest.fixture
def hub(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApiServer:
    """A hub with three nodes; the kubeconfig also leads to east, which is the same server, and to dead west."""
    config = plain_kubeconfig(server.url, "team-a")
    config["clusters"].append({"name": "west", "cluster": {"server": "http://127.0.0.1:1"}})
    config["contexts"] += [
        {"name": "east", "context": {"cluster": "hub", "user": "me"}},
        {"name": "west", "context": {"cluster": "west", "user": "me"}},
    ]
    use_kubeconfig(config, tmp_path, monkeypatch)
    server.on("GET", f"{APPWRAPPERS}/appwrappers", listed(*GANGS))
    server.on("GET", NODES_PATH, listed(*NODES))
    server.on("GET", PODS_PATH, listed(*PODS))
    return server


async def look(reading: NodeReading) -> tuple[list[tuple[str, str, int | None]], tuple[str, ...]]:
    """Cluster, name and free GPUs of each node, and the sentences."""
    seen = await asyncio.to_thread(reading.look)
    return [(each.cluster, each.name, each.free_gpus) for each in seen.nodes], seen.sentences


async def test_dead_member_leaves_the_others(hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS_PATH, listed(*({"metadata": {"name": name}} for name in ("east", "west"))))
    reading = NodeReading(HubOptions())
    found, sentences = await look(reading)
    assert [each[:2] for each in found] == [("east", f"gpu-{number}") for number in (1, 2, 3)]
    (said,) = sentences
    assert said.startswith("The nodes of west cannot be seen: ")
    assert reading.problem == ""


async def test_user_who_may_not_list_nodes_is_told_so_and_nothing_is_wrong(hub: FakeApiServer) -> None:
    hub.on("GET", NODES_PATH, refusal(403, "Forbidden", "nodes is forbidden"))
    reading = NodeReading(HubOptions())
    assert await look(reading) == ([], ("The nodes of hub cannot be seen: nodes is forbidden",))
    assert reading.problem == ""


@pytest.mark.parametrize("reply", [hang_up, refusal(500, "InternalError")], ids=["no-answer", "error"])
async def test_nodes_whose_pods_cannot_be_read_have_unknown_gpus(hub: FakeApiServer, reply: Reply) -> None:
    hub.on("GET", PODS_PATH, reply)
    found, (said,) = await look(NodeReading(HubOptions()))
    assert found == [("hub", f"gpu-{number}", None) for number in (1, 2, 3)]
    assert said.startswith("The pods in hub cannot be seen: ")


async def test_nodes_are_read_at_most_once_in_a_while_and_old_ones_stay(hub: FakeApiServer) -> None:
    clock = [0.0]
    reading = NodeReading(HubOptions(), now=lambda: NOW, monotonic=lambda: clock[0])
    first = await look(reading)
    assert await look(reading) == first
    assert len(hub.requests("GET", NODES_PATH)) == 1
    hub.on("GET", f"{APPWRAPPERS}/appwrappers", hang_up)
    clock[0] += FRESH_SECONDS
    assert await look(reading) == first
    assert reading.problem.startswith("the hub does not answer: ")
    assert reading.seen.at == NOW


async def test_answer_that_is_no_list_of_nodes_is_a_problem(hub: FakeApiServer) -> None:
    hub.on("GET", NODES_PATH, answer({"items": [{"metadata": 7}, "x"]}))
    reading = NodeReading(HubOptions())
    assert await look(reading) == ([], ("The nodes of hub cannot be read (TypeError).",))
    assert reading.problem == ""


async def test_pods_that_cannot_be_read_are_unknown_to_programs_and_not_none(hub: FakeApiServer) -> None:
    hub.on("GET", PODS_PATH, refusal(500, "", "broken"))
    reading = NodeReading(HubOptions())
    await look(reading)
    value = NodeReport(reading.seen.nodes).as_value()[0]
    assert (value["gangs"], value["podsWithoutAppWrapper"], value["gpus"]["withoutAppWrapper"]) == (None,) * 3


async def test_odd_status_of_one_appwrapper_leaves_the_map(hub: FakeApiServer) -> None:
    hub.on("GET", f"{APPWRAPPERS}/appwrappers", listed(*GANGS, GANGS[0] | {"status": ["x"]}))
    reading = NodeReading(HubOptions())
    found, _ = await look(reading)
    assert (len(found), reading.problem) == (3, "")


async def test_member_cannot_claim_a_gang_that_runs_elsewhere(hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS_PATH, listed({"metadata": {"name": "east"}}))
    reading = NodeReading(HubOptions())
    await look(reading)
    assert {key for node in reading.seen.nodes for key in node.by_gang} <= {NO_APPWRAPPER}
