"""The client: what each answer means, how long it waits, and which writes it does not send."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import errors
from dispatcher.kube.client import JSON_PATCH, MERGE_PATCH, METADATA, ClusterClient, resource_of
from dispatcher.kube.library import ApiClient, ConfigException, Configuration
from tests.fakes import FakeApiServer, answer, client_of, hang_up, never, refusal, text, watch
from tests.unit.virtual_time import monotonic, until

WRITES: dict[str, Callable[[ClusterClient], object]] = {
    "POST": lambda client: client.create("/x", {}),
    "PATCH": lambda client: client.patch("/x", []),
    "DELETE": lambda client: client.delete("/x", "the-uid"),
}

REFUSALS = [
    (400, "BadRequest", errors.Invalid),
    (401, "Unauthorized", errors.Unauthorized),
    (403, "Forbidden", errors.Forbidden),
    (404, "NotFound", errors.NotFound),
    (405, "MethodNotAllowed", errors.Invalid),
    (409, "Conflict", errors.Conflict),
    (410, "Expired", errors.Expired),
    (413, "RequestEntityTooLarge", errors.Invalid),
    (415, "UnsupportedMediaType", errors.Invalid),
    (422, "Invalid", errors.Invalid),
]


@pytest.mark.parametrize(("code", "reason", "kind"), [pytest.param(*row, id=str(row[0])) for row in REFUSALS])
async def test_refusal_is_an_error_of_its_own_with_the_servers_words(
    server: FakeApiServer, client: ClusterClient, code: int, reason: str, kind: type[errors.Refused]
) -> None:
    server.on("GET", "/x", refusal(code, reason, "what the server says"))
    with pytest.raises(errors.Refused) as caught:
        await client.get("/x")
    assert (type(caught.value), str(caught.value), caught.value.reason) == (
        kind,
        "what the server says",
        reason,
    )


@pytest.mark.parametrize("code", [500, 502, 503, 504, 507])
async def test_failure_of_the_server_raises_unavailable(
    server: FakeApiServer, client: ClusterClient, code: int
) -> None:
    server.on("GET", "/x", refusal(code, "InternalError", "etcd is away"))
    with pytest.raises(errors.Unavailable, match=rf"^GET /x: {code} etcd is away$"):
        await client.get("/x")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({}, 1.0, id="not-said"),
        pytest.param({"Retry-After": "7"}, 7.0, id="seconds"),
        pytest.param({"Retry-After": "0"}, 0.1, id="at-once-is-soon"),
        pytest.param({"Retry-After": "Fri, 20 Nov 2026 09:00:00 GMT"}, 1.0, id="a-date"),
    ],
)
async def test_throttled_says_when_to_come_back(
    server: FakeApiServer, client: ClusterClient, headers: dict[str, str], seconds: float
) -> None:
    server.on("POST", "/x", text("too many requests", 429, headers))
    with pytest.raises(errors.Throttled, match="too many requests") as caught:
        await client.create("/x", {})
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    ("method", "reason", "kind"),
    [
        pytest.param("POST", "AlreadyExists", errors.AlreadyExists, id="create-of-what-exists"),
        pytest.param("POST", "", errors.AlreadyExists, id="create-without-a-reason"),
        pytest.param("POST", "Conflict", errors.Conflict, id="create-that-met-another-write"),
        pytest.param("DELETE", "Conflict", errors.Conflict, id="delete-of-another-uid"),
    ],
)
async def test_conflict_and_existing_object_raise_different_errors(
    server: FakeApiServer, client: ClusterClient, method: str, reason: str, kind: type[errors.Conflict]
) -> None:
    server.on(method, "/x", refusal(409, reason))
    with pytest.raises(errors.Conflict) as caught:
        await WRITES[method](client)  # type: ignore[misc]
    assert type(caught.value) is kind


async def test_plain_text_is_an_answer_too(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", "/x", text("404 page not found\n", 404))
    with pytest.raises(errors.NotFound, match="404 page not found") as caught:
        await client.get("/x")
    assert caught.value.reason == ""


async def test_redirection_is_no_answer_and_is_not_followed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """No API server sends one; a member's could lead us, and our writes, anywhere we can reach."""
    server.on("GET", "/x", text("", 307, {"Location": "/elsewhere"}))
    with pytest.raises(errors.Unavailable):
        await client.get("/x")
    assert server.requests(path="/elsewhere") == []


@pytest.mark.parametrize("body", ["<html>Sign in</html>", '{"cut":', ""])
async def test_answer_that_is_no_json_is_no_answer(
    server: FakeApiServer, client: ClusterClient, body: str
) -> None:
    server.on("GET", "/x", text(body, 200))
    with pytest.raises(errors.Unavailable, match=r"^GET /x: "):
        await client.get("/x")


@pytest.mark.parametrize(("method", "seconds"), [("GET", 10), ("POST", 5), ("PATCH", 5), ("DELETE", 5)])
async def test_silence_is_given_up_after_the_timeout(
    server: FakeApiServer, client: ClusterClient, method: str, seconds: float
) -> None:
    server.on(method, "/x", never)
    asked_at = monotonic()
    with pytest.raises(errors.Unavailable, match=rf"^{method} /x: TimeoutError"):
        await (client.get("/x") if method == "GET" else WRITES[method](client))  # type: ignore[misc]
    assert monotonic() - asked_at == pytest.approx(seconds, abs=0.1)


async def test_broken_connection_raises_unavailable(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("POST", "/x", hang_up)
    with pytest.raises(errors.Unavailable, match="POST /x: "):
        await client.create("/x", {})
    assert len(server.requests("POST")) == 1


async def test_refused_connection_raises_unavailable() -> None:
    configuration = Configuration(host="http://127.0.0.1:1")
    async with ClusterClient(ApiClient(configuration=configuration)) as client:
        with pytest.raises(errors.Unavailable, match="ClientConnectorError"):
            await client.get("/x")


async def test_requests_are_sent_as_the_api_server_wants_them(
    server: FakeApiServer, client: ClusterClient
) -> None:
    for method in ("GET", *WRITES):
        server.on(method, "/x", answer({"ok": method}))

    assert await client.get("/x", {"limit": "5", "continue": "a b&c="}) == {"ok": "GET"}
    assert await client.create("/x", {"a": 1}) == {"ok": "POST"}
    assert await client.patch("/x", [{"op": "test"}]) == {"ok": "PATCH"}
    assert await client.patch("/x", {"a": 3}, MERGE_PATCH) == {"ok": "PATCH"}
    assert await client.delete("/x", "the-uid") == {"ok": "DELETE"}

    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "the-uid"},
        "propagationPolicy": "Background",
    }
    sent = [
        (each.method, dict(each.query), each.headers.get("Content-Type"), each.body) for each in server.asked
    ]
    assert sent == [
        ("GET", {"limit": "5", "continue": "a b&c="}, None, None),
        ("POST", {}, "application/json", {"a": 1}),
        ("PATCH", {}, JSON_PATCH, [{"op": "test"}]),
        ("PATCH", {}, MERGE_PATCH, {"a": 3}),
        ("DELETE", {}, "application/json", options),
    ]


async def test_metadata_alone_may_be_asked_for_in_answer_to_a_write(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", "/x", answer({}))
    server.on("PATCH", "/x", answer({}))
    await client.create("/x", {}, accept=METADATA)
    await client.patch("/x", [], accept=METADATA)
    assert [each.headers["Accept"] for each in server.asked] == [METADATA] * 2


# --- the write fence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", WRITES)
async def test_write_is_not_sent_once_the_fence_is_closed(server: FakeApiServer, method: str) -> None:
    async with client_of(server, may_write=lambda: False) as client:
        with pytest.raises(errors.WriteForbiddenByFence, match=f"{method} /x was not sent"):
            await WRITES[method](client)  # type: ignore[misc]
    assert server.asked == []


async def test_reads_are_sent_whatever_the_fence_says(server: FakeApiServer) -> None:
    server.on("GET", "/x", answer({}))
    async with client_of(server, may_write=lambda: False) as client:
        assert await client.get("/x") == {}


@pytest.mark.parametrize("method", WRITES)
async def test_write_is_not_sent_if_the_fence_closes_while_it_waits_for_a_connection(
    server: FakeApiServer, method: str
) -> None:
    fence, release = asyncio.Event(), asyncio.Event()

    async def slow(request: object) -> object:
        await release.wait()
        return await answer({})(request)  # type: ignore[arg-type]

    server.on("GET", "/slow", slow)  # type: ignore[arg-type]
    async with (
        client_of(server, pool=1, may_write=lambda: not fence.is_set()) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.get("/slow"))
        await until(lambda: server.asked)
        write = asyncio.ensure_future(WRITES[method](client))  # type: ignore[call-overload]
        await asyncio.sleep(0.1)  # virtual: the write waits for the only connection
        fence.set()
        release.set()
        with pytest.raises(errors.WriteForbiddenByFence):
            await write

    assert [each.method for each in server.asked] == ["GET"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="aiohttp writes without waiting for a turn there")
@pytest.mark.parametrize("method", WRITES)
async def test_write_is_not_sent_if_the_fence_closes_before_its_first_byte_is_written(
    server: FakeApiServer, method: str
) -> None:
    """On Python 3.11 aiohttp writes in a task of its own, and others have their turn before it."""
    is_open = True
    server.on(method, "/x", answer({}))

    def close() -> None:
        nonlocal is_open
        is_open = False

    def may_write() -> bool:
        asyncio.get_running_loop().call_soon(close)
        return is_open

    async with client_of(server, may_write=may_write) as client:
        with pytest.raises(errors.WriteForbiddenByFence, match=f"{method} /x was not sent"):
            await WRITES[method](client)  # type: ignore[misc]
        assert not client.writes.sent
    assert server.asked == []


async def test_connection_can_be_used_after_a_write_was_not_sent(server: FakeApiServer) -> None:
    server.on("GET", "/x", answer({"still": "here"}))
    async with client_of(server, pool=1, may_write=lambda: False) as client:
        for _ in range(3):
            with pytest.raises(errors.WriteForbiddenByFence):
                await client.create("/x", {})
        assert await client.get("/x") == {"still": "here"}


RAYCLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"


async def test_only_writes_that_were_sent_are_counted(server: FakeApiServer) -> None:
    server.on("POST", RAYCLUSTERS, answer({}))
    server.on("GET", RAYCLUSTERS, answer({}))
    is_open = True
    async with client_of(server, may_write=lambda: is_open) as client:
        await client.create(RAYCLUSTERS, {})
        await client.get(RAYCLUSTERS)
        is_open = False
        with pytest.raises(errors.WriteForbiddenByFence):
            await client.create(RAYCLUSTERS, {})
        assert client.writes.sent == {("post", "rayclusters"): 1}
        assert not client.writes.failed


async def test_failed_writes_are_counted_by_their_error(server: FakeApiServer) -> None:
    server.on("POST", RAYCLUSTERS, answer({}, status=503), answer({}, status=403))
    server.on("GET", RAYCLUSTERS, answer({}, status=503))
    async with client_of(server) as client:
        for call in (client.create(RAYCLUSTERS, {}), client.create(RAYCLUSTERS, {}), client.get(RAYCLUSTERS)):
            with pytest.raises(errors.ClusterError):
                await call
        assert client.writes.failed == {
            ("post", "rayclusters", "Unavailable"): 1,
            ("post", "rayclusters", "Forbidden"): 1,
        }


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (RAYCLUSTERS, "rayclusters"),
        (f"{RAYCLUSTERS}/ray", "rayclusters"),
        (f"{RAYCLUSTERS}/ray/status", "rayclusters/status"),
        ("/apis/ray.io/v1/rayclusters", "rayclusters"),
        ("/api/v1/namespaces/default/pods/a", "pods"),
        ("/api/v1/pods", "pods"),
        ("/api/v1/nodes/n1/status", "nodes/status"),
        ("/api/v1/namespaces", "namespaces"),
        ("/api/v1/namespaces/default", "namespaces"),
        ("/readyz", ""),
    ],
)
def test_path_says_which_resource_it_is_about(path: str, resource: str) -> None:
    assert resource_of(path) == resource


# --- credentials ---------------------------------------------------------------------------------------


async def test_bearer_token_is_sent(server: FakeApiServer) -> None:
    server.on("GET", "/x", answer({}))
    async with client_of(server, token="s3cret") as client:
        await client.get("/x")
    assert server.asked[0].headers["Authorization"] == "Bearer s3cret"


async def test_without_a_token_no_authorization_is_sent(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", "/x", answer({}))
    await client.get("/x")
    assert "Authorization" not in server.asked[0].headers


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(never, id="timeout"),
        pytest.param(hang_up, id="hang-up"),
        pytest.param(refusal(401, "Unauthorized", "no"), id="unauthorized"),
        pytest.param(refusal(500, "InternalError", "no"), id="failure"),
        pytest.param(text("<html>", 200), id="no-json"),
    ],
)
async def test_token_is_in_no_error(server: FakeApiServer, reply: object) -> None:
    server.on("POST", "/x", reply)  # type: ignore[arg-type]
    async with client_of(server, token="s3cret") as client:
        with pytest.raises(errors.ClusterError) as caught:
            await client.create("/x", {})
    chain: list[BaseException] = [caught.value]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    assert "s3cret" not in " ".join(f"{each} {each!r}" for each in chain)


async def test_token_is_asked_for_anew_each_time_and_its_failure_is_not_the_end(
    server: FakeApiServer,
) -> None:
    server.on("GET", "/x", answer({}))
    tokens = iter(["first", "second"])

    def refresh(configuration: Configuration) -> None:
        try:
            configuration.api_key["BearerToken"] = next(tokens)
        except StopIteration:
            raise ConfigException("exec: the cloud's tool failed") from None

    configuration = Configuration(host=server.url)
    configuration.api_key = {"BearerToken": ""}
    configuration.refresh_api_key_hook = refresh
    async with ClusterClient(ApiClient(configuration=configuration)) as client:
        await client.get("/x")
        await client.get("/x")
        with pytest.raises(errors.Unavailable, match="the cloud's tool failed"):
            await client.get("/x")
    assert [each.headers["Authorization"] for each in server.asked] == ["first", "second"]


async def test_kubeconfig_that_cannot_be_read_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(
        errors.SettingsError, match=r"no Kubernetes credentials from /nowhere/config: .*KUBECONFIG"
    ):
        await ClusterClient.connect("/nowhere/config")


@pytest.mark.parametrize("content", ["", "token: [secret", "- secret", "secret", "clusters: 3"])
async def test_file_that_is_no_kubeconfig_is_a_mistake_in_the_settings(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(errors.SettingsError) as caught:
        await ClusterClient.connect(str(file))
    assert str(caught.value) == f"no Kubernetes credentials from {file}: it is no kubeconfig"


@pytest.mark.parametrize("provider", ["oidc", "gcp", "azure"])
async def test_auth_provider_of_the_hub_is_refused_because_its_tls_would_not_be_verified(
    tmp_path: Path, provider: str
) -> None:
    file = tmp_path / "config"
    login = {"name": provider, "config": {"idp-issuer-url": "https://127.0.0.1:1", "refresh-token": "secret"}}
    document = {
        "current-context": "hub",
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
        "clusters": [{"name": "hub", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {"auth-provider": login}}],
    }
    file.write_text(json.dumps(document))
    with pytest.raises(
        errors.SettingsError, match=r"its user has an auth-provider, .* exec plugin"
    ) as caught:
        await ClusterClient.connect(str(file))
    assert "secret" not in str(caught.value)


@pytest.fixture
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ~/.netrc that has something for the host of the API server."""
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login somebody password else")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))


@pytest.mark.usefixtures("netrc")
async def test_password_in_a_netrc_is_none_of_ours(server: FakeApiServer) -> None:
    server.on("GET", "/x", answer({}))
    async with client_of(server, token="s3cret") as client:
        await client.get("/x")
    assert server.asked[0].headers["Authorization"] == "Bearer s3cret"


def through_kubeconfig(configuration: Configuration, proxy: str, _monkeypatch: pytest.MonkeyPatch) -> None:
    configuration.proxy = proxy


def through_environment(_configuration: Configuration, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)


def around_environment(_configuration: Configuration, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize(
    ("configure", "arrives"),
    [(through_kubeconfig, True), (through_environment, True), (around_environment, False)],
)
async def test_proxy_is_the_kubeconfigs_else_the_environments(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, configure: Callable[..., None], arrives: bool
) -> None:
    server.on("GET", "/x", answer({"through": "the proxy"}))
    configuration = Configuration(host="http://127.0.0.1:1")
    configure(configuration, server.url, monkeypatch)
    async with ClusterClient(ApiClient(configuration=configuration)) as client:
        if arrives:
            assert await client.get("/x") == {"through": "the proxy"}
        else:
            with pytest.raises(errors.Unavailable):
                await client.get("/x")
    assert len(server.asked) == arrives


# --- readiness and watches -----------------------------------------------------------------------------


async def test_readiness_is_the_answer_of_the_server(server: FakeApiServer, client: ClusterClient) -> None:
    await client.check_ready()
    server.on("GET", "/readyz", text("[-]etcd failed", 500))
    with pytest.raises(errors.Unavailable, match="not ready: 500"):
        await client.check_ready()


async def lines(client: ClusterClient) -> list[bytes]:
    return [line async for line in client.watch("/x", {"watch": "true"}, idle_timeout=100)]


async def test_watch_gives_line_by_line_until_the_server_ends_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/x", watch({"a": 1}, {"b": 2}))
    assert await lines(client) == [b'{"a":1}\n', b'{"b":2}\n']


async def test_line_may_be_as_long_as_an_object_can_be(server: FakeApiServer, client: ClusterClient) -> None:
    """1.5 MiB of `<` is a line of 9 MiB: Go writes each as six characters."""
    long = b'{"a":"' + b"\\u003c" * (3 * 2**19) + b'"}\n'
    server.on("GET", "/x", watch(long, {"b": 2}))
    assert [len(line) for line in await lines(client)] == [len(long), 8]


async def test_refused_watch_is_the_same_error_as_a_refused_read(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/x", refusal(410, "Expired", "too old"))
    with pytest.raises(errors.Expired, match="too old"):
        await lines(client)


async def test_watch_that_falls_silent_is_given_up(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", "/x", watch({"a": 1}, then=never))
    with pytest.raises(errors.Unavailable, match="WATCH /x: "):
        await lines(client)
    assert monotonic() == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    "number",
    [pytest.param(0, id="that-is-being-answered"), pytest.param(1, id="that-waits-for-a-connection")],
)
async def test_call_ends_with_unavailable_and_cancels_no_task_if_the_client_is_closed(
    server: FakeApiServer, number: int
) -> None:
    server.on("GET", "/hangs", never)
    async with client_of(server, pool=1) as client:
        calls = [asyncio.create_task(client.get("/hangs")) for _ in range(2)]
        await until(server.requests)
        await client.close()
        with pytest.raises(errors.Unavailable):
            await calls[number]
        await asyncio.gather(*calls, return_exceptions=True)


async def test_call_of_a_client_that_was_closed_is_an_error_of_ours(server: FakeApiServer) -> None:
    async with client_of(server) as client:
        await client.close()
        with pytest.raises(errors.Unavailable, match="the connection was closed"):
            await client.get("/")
