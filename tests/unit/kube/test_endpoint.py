"""How an API server is reached: as a pod, through a kubeconfig that holds everything, or through the library."""

from __future__ import annotations

import shutil
import ssl
import sys
from pathlib import Path

import pytest
import yaml

from dispatcher import errors
from dispatcher.kube.endpoint import TOKEN_SECONDS, of_kubeconfig, of_pod
from tests.fakes import NOBODYS_CA

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder of a ServiceAccount, as a kubelet mounts it."""
    shutil.copy(NOBODYS_CA, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def written(folder: Path, user: dict[str, object], cluster: dict[str, object] | None = None) -> str:
    """The path of a kubeconfig."""
    content = {
        "current-context": "hub",
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "ada"}}],
        "clusters": [{"name": "hub", "cluster": cluster or {"server": "https://hub.example.org:6443"}}],
        "users": [{"name": "ada", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return str(path)


async def test_pod_reaches_its_cluster_with_a_token_that_is_read_again_when_due(account: Path) -> None:
    now = 0.0
    endpoint = of_pod(account, POD, lambda: now)
    assert (endpoint.server, endpoint.proxy) == ("https://10.0.0.1:443", None)
    assert endpoint.tls.verify_mode is ssl.CERT_REQUIRED
    assert [each["subject"] for each in endpoint.tls.get_ca_certs()] != []
    (account / "token").write_text("second")
    assert await endpoint.authorization() == "Bearer first"
    now = TOKEN_SECONDS
    assert await endpoint.authorization() == "Bearer second"


async def test_token_that_cannot_be_read_for_a_moment_is_read_by_the_next_request(account: Path) -> None:
    now = 0.0
    endpoint = of_pod(account, POD, lambda: now)
    now = TOKEN_SECONDS
    (account / "token").write_text("")
    with pytest.raises(OSError, match="is empty"):
        await endpoint.authorization()
    (account / "token").write_text("second")
    assert await endpoint.authorization() == "Bearer second"


def test_address_of_ipv6_is_put_in_brackets(account: Path) -> None:
    assert of_pod(account, {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "token", "ca.crt"])
def test_what_is_missing_outside_a_pod_is_a_mistake_in_the_settings(account: Path, missing: str) -> None:
    (account / missing).unlink(missing_ok=True)
    environment = {name: value for name, value in POD.items() if name != missing}
    with pytest.raises(
        errors.SettingsError, match=r"no Kubernetes credentials from the pod's own .*KUBECONFIG"
    ):
        of_pod(account, environment)


async def test_kubeconfig_that_holds_everything_is_read_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio.config", None)
    cluster = {
        "server": "https://hub.example.org:6443/",
        "tls-server-name": "hub",
        "proxy-url": "http://proxy:3128",
    }
    endpoint = await of_kubeconfig(written(tmp_path, {"token": "s3cret"}, dict(cluster)))
    assert (endpoint.server, endpoint.tls_server_name) == ("https://hub.example.org:6443", "hub")
    assert endpoint.proxy == "http://proxy:3128"
    assert await endpoint.authorization() == "Bearer s3cret"


async def test_kubeconfig_with_a_plugin_is_left_to_the_library(tmp_path: Path) -> None:
    token = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "s3cret"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [token]}
    endpoint = await of_kubeconfig(written(tmp_path, {"exec": plugin}))
    assert endpoint.server == "https://hub.example.org:6443"
    assert await endpoint.authorization() == "Bearer s3cret"


async def test_kubeconfig_without_verification_is_the_hubs_own_choice(tmp_path: Path) -> None:
    cluster = {"server": "https://hub.example.org:6443", "insecure-skip-tls-verify": True}
    endpoint = await of_kubeconfig(written(tmp_path, {"token": "s3cret"}, dict(cluster)))
    assert endpoint.tls.verify_mode is ssl.CERT_NONE
