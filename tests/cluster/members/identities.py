"""Who the dispatcher is to the hub and to its members: the accounts of `manifests/`, their tokens and kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import uuid
from pathlib import Path
from typing import Any

import yaml

from dispatcher import errors
from testbed.plane import RBAC, Plane, documents_of
from tests.cluster.world import CHECKOUT, World

Json = dict[str, Any]

MANIFESTS = CHECKOUT / "manifests"
HUB = MANIFESTS / "base" / "hub.yaml"
MEMBER = MANIFESTS / "overlays" / "member" / "member.yaml"
NAMESPACE = "appwrapper-dispatcher"
"""Of both manifests."""
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": ACCOUNTS,
    "Secret": SECRETS,
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
}
"""Where the objects of both manifests are."""


async def apply(plane: Plane, manifest: Path) -> None:
    """Have a cluster hold what a manifest says, as server-side apply does.

    That kubectl applies these manifests, tests/cluster/install and test_clusters_command.py show.
    """
    for document in documents_of(manifest):
        path = f"{COLLECTIONS[document['kind']]}/{document['metadata']['name']}"
        await asyncio.to_thread(plane.client.apply, path, document)


def kubeconfig(plane: Plane, token: str, server: str = "") -> bytes:
    """A kubeconfig for whoever bears a token, as docs/clusters.md has it written; through `server` if one is given."""
    cluster = {"server": server or plane.url, "certificate-authority-data": plane.ca_data}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": plane.name,
        "contexts": [{"name": plane.name, "context": {"cluster": plane.name, "user": "hub"}}],
        "clusters": [{"name": plane.name, "cluster": cluster}],
        "users": [{"name": "hub", "user": {"token": token}}],
    }
    return yaml.safe_dump(content).encode()


async def dispatchers_token(hub: World) -> str:
    """The token of the dispatcher's account on the hub, as its pod would get one."""
    made = await hub.client.create(f"{ACCOUNTS}/dispatcher/token", {"spec": {"expirationSeconds": 3600}})
    token: str = made["status"]["token"]
    return token


async def token_in(member: World, secret: str = "hub") -> str:  # noqa: S107  # a name
    """The token that Kubernetes puts into a Secret of the hub's account on a member, once it has."""

    async def look() -> str | None:
        data = (await member.client.get(f"{SECRETS}/{secret}")).get("data") or {}
        return base64.b64decode(data["token"]).decode() if data.get("token") else None

    return await member.until(look, f"{secret} has a token")


async def another_token(member: World) -> str:
    """A second token of the hub's account on a member, in a Secret of its own."""
    secret, annotations = f"hub-{uuid.uuid4().hex[:8]}", {"kubernetes.io/service-account.name": "hub"}
    metadata = {"name": secret, "annotations": annotations}
    body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    await member.client.create(SECRETS, {**body, "metadata": metadata})
    return await token_in(member, secret)


async def short_lived_token(member: World) -> str:
    """A token of the hub's account on a member that expires, as `kubectl create token --duration` makes one."""
    made = await member.client.create(f"{ACCOUNTS}/hub/token", {"spec": {"expirationSeconds": 600}})
    token: str = made["status"]["token"]
    return token


async def revoke(member: World, path: str) -> None:
    """Delete a Secret with a token, the account itself, or the binding of its rights, if it is there."""
    try:
        found = await member.client.get(path)
        await member.client.delete(path, found["metadata"]["uid"])
    except errors.NotFound:
        return


# --- what the manifests give -------------------------------------------------------------------------

Right = tuple[str, str, str]
"""A verb, an API group and a resource, with its subresource if it is about one."""


def rights(manifest: Path) -> set[Right]:
    """What the roles of a manifest give, together."""
    documents = yaml.safe_load_all(manifest.read_text())
    rules = [rule for each in documents for rule in each.get("rules", ())]
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
