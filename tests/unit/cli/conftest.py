"""These tests run the command itself, in a thread, against scripted API servers: a hub, and a member over TLS."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from testbed.certificates import Certificates, make_certificates
from tests.commands import Run, runner
from tests.fakes import NOBODYS_CA, FakeApiServer, answer
from tests.unit.cli.wire import (
    EAST_UID,
    HUB_UID,
    MEMBERS,
    TOKEN,
    Json,
    kube_system,
    members,
    plain_kubeconfig,
    use_kubeconfig,
)
from tests.unit.scripted import client, no_proxies, server

__all__ = ["client", "no_proxies", "server"]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of an authority that nobody else knows."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub that knows MemberClusters, and has none."""
    async with FakeApiServer() as server:
        server.on("GET", "/api/v1/namespaces/kube-system", kube_system(HUB_UID))
        server.on("GET", MEMBERS, members())
        yield server


@pytest.fixture
async def east(certificates: Certificates) -> AsyncIterator[FakeApiServer]:
    """The API server of a cluster that could become a member."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.serving, certificates.serving_key)
    async with FakeApiServer(tls) as server:
        server.on("GET", "/version", answer({"gitVersion": "v1.36.3"}))
        server.on("GET", "/api/v1/namespaces/kube-system", kube_system(EAST_UID))
        yield server


@pytest.fixture
def kubeconfig(certificates: Certificates, east: FakeApiServer) -> Json:
    """A kubeconfig of two contexts, of which the current one leads to `east`."""
    authority = base64.b64encode(certificates.ca.read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "east",
        "contexts": [
            {"name": "east", "context": {"cluster": "east", "user": "hub", "namespace": "mine"}},
            {"name": "west", "context": {"cluster": "west", "user": "me"}},
        ],
        "clusters": [
            {"name": "east", "cluster": {"server": east.url, "certificate-authority-data": authority}},
            {"name": "west", "cluster": {"server": "https://west.example"}},
        ],
        "users": [
            {"name": "hub", "user": {"token": TOKEN}},
            {"name": "me", "user": {"exec": {"command": "aws"}}},
        ],
    }


@pytest.fixture
def file(tmp_path: Path, kubeconfig: Json) -> str:
    """The path of that kubeconfig."""
    path = tmp_path / "east.kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    return str(path)


@pytest.fixture
def run(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher clusters …` on the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url), tmp_path, monkeypatch)
    monkeypatch.setenv("DISPATCHER_NAMESPACE", "queue")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SSL_CERT_FILE", str(NOBODYS_CA))
    return runner(monkeypatch, capsys, "clusters")
