"""What the page reads of a hub: all AppWrappers, or those of one namespace if all may not be listed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dispatcher.cli.options import HubOptions
from dispatcher.errors import CommandFailed
from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.web.pages import queue_page
from dispatcher.web.reading import FRESH_SECONDS, Reading
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig
from tests.unit.kube.test_kept_accesses import Login
from tests.unit.scripted import no_proxies, server
from tests.unit.web.test_loopback import appwrapper

__all__ = ["no_proxies", "server"]

ALL = "/apis/workload.codeflare.dev/v1beta1/appwrappers"
OF_TEAM = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
LEGACY = "/apis/mcad.ibm.com/v1beta1"


@pytest.fixture
def hub(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApiServer:
    """A hub with an AppWrapper in each of two namespaces; the context of the kubeconfig is in team-a."""
    use_kubeconfig(plain_kubeconfig(server.url, "team-a"), tmp_path, monkeypatch)
    server.on("GET", ALL, answer({"items": [appwrapper("train"), appwrapper("train", "team-b")]}))
    server.on("GET", OF_TEAM, answer({"items": [appwrapper("train")]}))
    for path in (f"{LEGACY}/appwrappers", f"{LEGACY}/namespaces/team-a/appwrappers"):
        server.on("GET", path, refusal(404, "NotFound"))
    return server


async def look(reading: Reading) -> tuple[str, list[str], str]:
    """The namespace that was read, the keys of what was there, and the problem."""
    seen = await asyncio.to_thread(reading.look)
    return seen.namespace, ["/".join(key) for key in seen.appwrappers], reading.problem


async def test_all_appwrappers_are_read_where_they_may_be_listed(hub: FakeApiServer) -> None:
    assert await look(Reading(HubOptions())) == ("", ["team-a/train", "team-b/train"], "")
    assert hub.requests("GET", OF_TEAM) == []


async def test_namespace_of_the_context_is_read_where_all_may_not_be_listed(hub: FakeApiServer) -> None:
    hub.on("GET", ALL, refusal(403, "Forbidden"))
    assert await look(Reading(HubOptions())) == ("team-a", ["team-a/train"], "")


@pytest.mark.usefixtures("hub")
async def test_named_namespace_alone_is_read(hub: FakeApiServer) -> None:
    assert await look(Reading(HubOptions(), "team-a")) == ("team-a", ["team-a/train"], "")
    assert hub.requests("GET", ALL) == []


@pytest.mark.parametrize("reply", [refusal(403, "Forbidden"), hang_up], ids=["forbidden", "no-answer"])
async def test_what_the_hub_does_not_do_is_a_sentence(hub: FakeApiServer, reply: Reply) -> None:
    for path in (ALL, OF_TEAM):
        hub.on("GET", path, reply)
    _, keys, problem = await look(Reading(HubOptions()))
    assert keys == []
    assert problem.startswith("the hub does")


async def test_scope_stays_that_of_the_first_look(hub: FakeApiServer) -> None:
    clock = [0.0]
    reading = Reading(HubOptions(), monotonic=lambda: clock[0])
    everything = await look(reading)
    hub.on("GET", ALL, refusal(403, "Forbidden"))
    clock[0] += FRESH_SECONDS
    namespace, keys, problem = await look(reading)
    assert (namespace, keys) == everything[:2]
    assert "does not allow it" in problem


@pytest.mark.parametrize("reply", [refusal(500, "InternalError"), refusal(429, "TooManyRequests"), hang_up])
async def test_one_namespace_is_no_answer_for_all_while_the_hub_stumbles(
    hub: FakeApiServer, reply: Reply
) -> None:
    hub.on("GET", ALL, reply)
    _, keys, problem = await look(Reading(HubOptions()))
    assert keys == []
    assert problem


async def test_appwrapper_of_another_shape_is_left_out_and_counted(hub: FakeApiServer) -> None:
    odd = [appwrapper(f"odd-{number}") for number in range(4)]
    odd[0]["status"] = ["x"]
    odd[1]["status"]["waiting"] = "x"
    odd[2]["status"]["waiting"]["repair"] = 7
    del odd[3]["metadata"]["creationTimestamp"]
    hub.on("GET", ALL, answer({"items": [appwrapper("train"), *odd]}))
    reading = Reading(HubOptions())
    assert (await look(reading))[1] == ["team-a/train"]
    assert queue_page(reading.seen, "").unreadable == 4


async def test_looks_share_the_credentials_until_the_hub_refuses_them(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plain_kubeconfig(hub.url, "team-a")
    config["users"] = [{"name": "me", "user": Login(tmp_path).user}]
    use_kubeconfig(config, tmp_path, monkeypatch)
    clock, kept = [0.0], KeptAccesses()
    readings = [Reading(HubOptions(), name, monotonic=lambda: clock[0], kept=kept) for name in ("", "team-a")]
    for _ in range(2):
        for each in readings:
            assert (await look(each))[1]
        clock[0] += FRESH_SECONDS
    assert {each.headers["Authorization"] for each in hub.asked} == {"Bearer t1"}
    hub.on("GET", ALL, refusal(401, "Unauthorized"), answer({"items": [appwrapper("later")]}))
    assert await look(readings[0]) == ("", ["team-a/later"], "")
    assert hub.asked[-1].headers["Authorization"] == "Bearer t2"


async def test_kubeconfig_that_cannot_work_is_a_problem_in_its_words(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plain_kubeconfig(hub.url)
    config["users"] = [{"name": "me", "user": {"exec": {"command": "no-such-login"}}}]
    use_kubeconfig(config, tmp_path, monkeypatch)
    assert "the plugin no-such-login is not installed" in (await look(Reading(HubOptions())))[2]


async def test_answer_that_is_no_list_is_a_problem(hub: FakeApiServer) -> None:
    hub.on("GET", ALL, answer({"items": [{"metadata": 7}, "x"]}))
    _, keys, problem = await look(Reading(HubOptions()))
    assert keys == []
    assert problem


@pytest.mark.parametrize(
    ("reply", "code"), [(hang_up, 3), (refusal(403, "Forbidden"), 1)], ids=["no-answer", "forbidden"]
)
async def test_command_fails_with_its_usual_codes_if_there_is_nothing_to_show(
    hub: FakeApiServer, reply: Reply, code: int
) -> None:
    for path in (ALL, OF_TEAM):
        hub.on("GET", path, reply)
    with pytest.raises(CommandFailed) as failed:
        await asyncio.to_thread(Reading(HubOptions()).begin)
    assert failed.value.exit_code == code
