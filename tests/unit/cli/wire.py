"""What goes over the wires between a command, the hub and a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from dispatcher.cli.hub import WHO_AM_I
from tests.fakes import FakeApiServer, Reply, answer

Json = dict[str, Any]

HUB_UID = "uid-of-the-hub"
EAST_UID = "uid-of-east"
TOKEN = "Sesame_open_yourself"
MARKS = {"app.kubernetes.io/managed-by": "appwrapper-dispatcher", "dispatcher.codeflare.dev/cluster": "east"}


MEMBERS = "/apis/dispatcher.codeflare.dev/v1alpha1/memberclusters"
SECRETS = "/api/v1/namespaces/queue/secrets"
CREATED = "2026-11-20T08:58:06Z"


def plain_kubeconfig(server: str, namespace: str = "") -> Json:
    """A kubeconfig of one context."""
    context = {"cluster": "hub", "user": "me", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hub",
        "contexts": [{"name": "hub", "context": context}],
        "clusters": [{"name": "hub", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "mine"}}],
    }


def use_kubeconfig(config: Json, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands read this kubeconfig by default."""
    path = folder / "hub.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))


def kube_system(uid: str) -> Reply:
    """The namespace whose uid tells one cluster from another."""
    return answer({"metadata": {"name": "kube-system", "uid": uid}})


def member(
    name: str = "east", *, status: Json | None = None, labels: Json | None = None, **spec: object
) -> Json:
    """A MemberCluster as an API server has it."""
    secret = (
        {} if name == "hub" else {"kubeconfigSecretRef": {"name": f"cluster-{name}", "key": "kubeconfig"}}
    )
    metadata: Json = {"name": name, "uid": f"uid-of-member-{name}", "creationTimestamp": CREATED}
    return {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "MemberCluster",
        "metadata": {**metadata, **({"labels": labels} if labels else {})},
        "spec": {"cordoned": False, "drain": False, **secret, **spec},
        **({"status": status} if status else {}),
    }


def members(*found: Json) -> Reply:
    """The list of MemberClusters."""
    listed = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "MemberClusterList"}
    return answer({**listed, "metadata": {"resourceVersion": "7"}, "items": list(found)})


def merged(found: Json) -> Reply:
    """The answer to a merge patch of this object, as an API server that stores it gives it."""

    async def reply(request: web.Request) -> web.StreamResponse:
        return await answer(_merge(found, await request.json()))(request)

    return reply


async def echoed(request: web.Request) -> web.StreamResponse:
    """What was sent, with a uid and what the server fills in."""
    body = await request.json()
    return await answer({**body, "metadata": {**body["metadata"], "uid": "new"}}, status=201)(request)


def writes(server: FakeApiServer) -> list[tuple[str, str, Any]]:
    """Every write that arrived, in order; a review of who asks stores nothing."""
    return [
        (each.method, each.path, each.body)
        for each in server.asked
        if each.method != "GET" and each.path != WHO_AM_I
    ]


def _merge(old: Any, patch: Any) -> Any:  # noqa: ANN401  # JSON
    if not isinstance(patch, dict):
        return patch
    kept = old if isinstance(old, dict) else {}
    merged = {**kept, **{key: _merge(kept.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}
