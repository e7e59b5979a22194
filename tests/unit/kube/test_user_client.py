"""A person's kubeconfig, and the client that is built on the standard library."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from dispatcher import errors
from dispatcher.kube.user_client import UserClient
from dispatcher.kube.user_kubeconfig import Access, access_of
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal, text, watch
from tests.unit.scripted import no_proxies

__all__ = ["no_proxies"]

Json = dict[str, Any]
PODS = "/api/v1/namespaces/a/pods"
_Answer = TypeVar("_Answer")


def kubeconfig(user: Json, **cluster: object) -> Json:
    """A kubeconfig of two contexts; `mine` is the current one."""
    contexts = [
        {"name": "mine", "context": {"cluster": "here", "user": "me", "namespace": "team-a"}},
        {"name": "other", "context": {"cluster": "there", "user": "me"}},
    ]
    return {
        "current-context": "mine",
        "contexts": contexts,
        "clusters": [
            {"name": "here", "cluster": {"server": "http://here:1/", **cluster}},
            {"name": "there", "cluster": {"server": "http://there:1"}},
        ],
        "users": [{"name": "me", "user": user}],
    }


def plugin(folder: Path, printed: str, code: int = 0) -> Json:
    """A user whose credentials a program beside the kubeconfig prints."""
    program = folder / "login"
    program.write_text(f"#!/bin/sh\necho '{printed}'\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"}}


def written(folder: Path, content: object, name: str = "config") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        pytest.param({"token": "t"}, {"Authorization": "Bearer t"}, id="token"),
        pytest.param({"tokenFile": "token"}, {"Authorization": "Bearer of-file"}, id="relative file"),
        pytest.param({"username": "a", "password": "b"}, {"Authorization": "Basic YTpi"}, id="basic"),
        pytest.param(
            {"token": "t", "as": "ada"}, {"Impersonate-User": "ada", "Authorization": "Bearer t"}, id="as"
        ),
        pytest.param({}, {}, id="nobody"),
    ],
)
def test_user_client_uses_the_credentials_of_the_user(tmp_path: Path, user: Json, headers: Json) -> None:
    written(tmp_path, "of-file\n", "token")

    found = access_of(written(tmp_path, kubeconfig(user)))

    files = (str(tmp_path / "token"),) if "tokenFile" in user else ()
    assert found == Access("http://here:1", "team-a", None, headers=headers, files=files)


def test_plugin_beside_the_kubeconfig_gives_the_token(tmp_path: Path) -> None:
    user = plugin(tmp_path, json.dumps({"status": {"token": "fresh"}}))

    assert access_of(written(tmp_path, kubeconfig(user))).headers == {"Authorization": "Bearer fresh"}


@pytest.mark.parametrize(
    ("content", "context", "problem"),
    [
        pytest.param(
            kubeconfig({}),
            "west",
            "has no context 'west': choose one with --context, of: mine, other",
            id="context",
        ),
        pytest.param({}, "", "has no context: set KUBECONFIG to another kubeconfig", id="empty"),
        pytest.param("[", "", "is no kubeconfig: it is no YAML", id="no yaml"),
        pytest.param("a", "", "is no kubeconfig: it is no object", id="no object"),
        pytest.param(
            {**kubeconfig({}), "users": []}, "", "a context names the user 'me', which is missing", id="user"
        ),
        pytest.param(
            kubeconfig({}, server=""), "", "the cluster of context 'mine' has no server", id="server"
        ),
        pytest.param(
            kubeconfig({"auth-provider": {"name": "gcp"}}),
            "",
            "its auth-provider is not supported",
            id="provider",
        ),
        pytest.param(
            kubeconfig({"exec": {"command": "no-such-login"}}),
            "",
            "the plugin no-such-login is not installed",
            id="plugin",
        ),
        pytest.param(
            kubeconfig({}, server="https://here", **{"certificate-authority": "none.pem"}),
            "",
            "context 'mine': No such file or directory",
            id="authority",
        ),
    ],
)
def test_kubeconfig_that_cannot_work_is_named(
    tmp_path: Path, content: object, context: str, problem: str
) -> None:
    path = written(tmp_path, content)

    with pytest.raises(errors.SettingsError) as raised:
        access_of(path, context)

    assert str(raised.value).startswith(path)
    assert problem in str(raised.value)


@pytest.mark.parametrize(("printed", "code"), [("no JSON", 0), ("{}", 0), ("{}", 3)])
def test_plugin_without_credentials_is_named(tmp_path: Path, printed: str, code: int) -> None:
    path = written(tmp_path, kubeconfig(plugin(tmp_path, printed, code)))

    with pytest.raises(errors.SettingsError, match=r"the plugin .*/login"):
        access_of(path)


def test_of_several_files_the_first_entry_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"current-context": "other", "users": [{"name": "me", "user": {"token": "first"}}]}
    files = [written(tmp_path, first, "first"), written(tmp_path, kubeconfig({"token": "second"}))]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([*files, str(tmp_path / "missing")]))

    found = access_of()

    assert (found.server, found.namespace) == ("http://there:1", "default")
    assert found.headers == {"Authorization": "Bearer first"}


async def asked(server: FakeApiServer, call: Callable[[UserClient], _Answer]) -> _Answer:
    def in_thread() -> _Answer:
        with UserClient(Access(server.url, "a", None, headers={"Authorization": "Bearer t"})) as client:
            return call(client)

    return await asyncio.to_thread(in_thread)


async def test_list_is_read_in_pages_with_the_credentials() -> None:
    first = {"metadata": {"continue": "more"}, "items": [{"n": 1}]}
    async with FakeApiServer() as server:
        server.on("GET", PODS, answer(first), answer({"metadata": {}, "items": [{"n": 2}]}))

        found = await asked(server, lambda client: list(client.items(PODS, {"labelSelector": "a=b"})))

        assert found == [{"n": 1}, {"n": 2}]
        queries = [dict(each.query) for each in server.requests("GET", PODS)]
        assert queries == [
            {"labelSelector": "a=b", "limit": "500"},
            {"labelSelector": "a=b", "limit": "500", "continue": "more"},
        ]
        assert {each.headers["Authorization"] for each in server.asked} == {"Bearer t"}


async def test_page_that_is_too_large_is_asked_for_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.kube.user_client.LARGEST_ANSWER", 100)
    large = answer({"items": [{"n": "x" * 200}]})
    async with FakeApiServer() as server:
        first, second = (
            answer({"metadata": {"continue": "more"}, "items": [{"n": 1}]}),
            answer({"items": [{"n": 2}]}),
        )
        server.on("GET", PODS, large, first, large, second)

        found = await asked(server, lambda client: list(client.items(PODS)))

        assert found == [{"n": 1}, {"n": 2}]
        asked_for = [
            (each.query["limit"], each.query.get("continue")) for each in server.requests("GET", PODS)
        ]
        assert asked_for == [("500", None), ("62", None), ("62", "more"), ("7", "more")]


async def test_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.kube.user_client.LONGEST_ANSWER_SECONDS", 0.0)
    async with FakeApiServer() as server:
        server.on("GET", PODS, answer({"items": []}))

        with pytest.raises(errors.Unavailable, match="did not end its answer in 0 s"):
            await asked(server, lambda client: client.get(PODS))


async def test_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.kube.user_client.MOST_PAGES", 3)
    endless = answer({"metadata": {"continue": "more"}, "items": []})
    async with FakeApiServer() as server:
        server.on("GET", PODS, *[endless] * 10)

        with pytest.raises(errors.TooLarge, match="has no end"):
            await asked(server, lambda client: list(client.items(PODS)))

        assert len(server.requests("GET", PODS)) == 4


async def test_object_that_is_too_large_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.kube.user_client.LARGEST_ANSWER", 100)
    async with FakeApiServer() as server:
        server.on("GET", PODS, *[answer({"items": [{"n": "x" * 200}]})] * 4)

        with pytest.raises(errors.TooLarge):
            await asked(server, lambda client: list(client.items(PODS)))

        assert [each.query["limit"] for each in server.requests("GET", PODS)] == ["500", "62", "7", "1"]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (refusal(403, "Forbidden", "pods is forbidden"), errors.Forbidden, "pods is forbidden"),
        (refusal(404, "NotFound", "no"), errors.NotFound, "no"),
        (refusal(500, "", "broken"), errors.Unavailable, "http://[0-9.:]* answers 500 broken$"),
        (hang_up, errors.Unavailable, "http://[0-9.:]* closed the connection$"),
        (text("<html>", 200), errors.Unavailable, "http://[0-9.:]* answers with something that is no JSON$"),
    ],
)
async def test_refusals_are_errors_of_ours(reply: Reply, error: type[Exception], message: str) -> None:
    async with FakeApiServer() as server:
        server.on("GET", PODS, reply)

        with pytest.raises(error, match=f"^{message}"):
            await asked(server, lambda client: client.get(PODS))


async def test_refused_credentials_are_renewed_once_for_a_call() -> None:
    async with FakeApiServer() as server:
        server.on("GET", PODS, refusal(401, "Unauthorized"), answer({"n": 1}), refusal(401, "Unauthorized"))
        stale, fresh = (
            Access(server.url, "a", None, headers={"Authorization": f"Bearer {each}"})
            for each in ("stale", "fresh")
        )
        refused = list[Access]()

        def renewed(access: Access) -> Access:
            refused.append(access)
            return fresh

        def call() -> Json:
            with UserClient(stale, renew=renewed) as client:
                found = client.get(PODS)
                with pytest.raises(errors.Unauthorized):
                    client.get(PODS)
                return found

        assert await asyncio.to_thread(call) == {"n": 1}
        assert refused == [stale, fresh]
        sent = [each.headers["Authorization"] for each in server.asked]
        assert sent == ["Bearer stale", *["Bearer fresh"] * 3]


async def test_lines_end_with_the_watch() -> None:
    async with FakeApiServer() as server:
        server.on("GET", PODS, watch({"type": "ADDED"}, {"type": "DELETED"}))

        lines = await asked(server, lambda client: list(client.lines(PODS, {"watch": "1"}, None)))

        assert [json.loads(line)["type"] for line in lines] == ["ADDED", "DELETED"]


@pytest.mark.parametrize(
    ("reply", "is_ready"),
    [
        (text("ok", 200), True),
        (text("[-]etcd failed", 500), False),
        (refusal(403, "Forbidden", "no"), False),
        (hang_up, False),
    ],
)
async def test_api_server_is_ready_if_it_says_so(reply: Reply, is_ready: bool) -> None:
    async with FakeApiServer() as server:
        server.on("GET", "/readyz", reply)

        with nullcontext() if is_ready else pytest.raises(errors.Unavailable):
            await asked(server, lambda client: client.check_ready())


async def test_delete_is_of_one_object_and_no_namesake() -> None:
    async with FakeApiServer() as server:
        server.on("DELETE", f"{PODS}/p", answer({"status": "Success"}))

        await asked(server, lambda client: client.delete(f"{PODS}/p", "uid-1", is_dry=True))

        [sent] = server.requests("DELETE")
        assert (sent.body["preconditions"], sent.body["dryRun"], dict(sent.query)) == (
            {"uid": "uid-1"},
            ["All"],
            {},
        )
