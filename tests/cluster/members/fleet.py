"""What the operator of a hub and its members does, and what is to be seen of it."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from dispatcher import errors
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.kube.client import MERGE_PATCH
from testbed.processes import Process
from tests.cluster.world import World

Json = dict[str, Any]

OFTEN = {"probe_seconds": "0.5", "unreachable_seconds": "2", "read_timeout_seconds": "2"}


class Fleet:
    """A hub and its members by name; each member has the namespace of the test.

    `namespace` is the dispatcher's own, which has the Secrets and no AppWrappers.
    """

    def __init__(self, hub: World, members: dict[str, World]) -> None:
        self.hub = hub
        self.members = members
        self.namespace = f"{hub.namespace}-own"

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher on the hub."""
        return await self.hub.start_dispatcher(**{"namespace": self.namespace, **OFTEN, **settings})

    async def declare(
        self,
        *names: str,
        kubeconfig: bytes | None = None,
        labels: dict[str, str] | None = None,
        **spec: object,
    ) -> None:
        """Make members known to the hub: a kubeconfig in a Secret, the administrator's, and a MemberCluster."""
        for name in names:
            await self.create_secret(name, kubeconfig or self.members[name].plane.kubeconfig.read_bytes())
            await self._declare(name, labels, {"kubeconfigSecretRef": {"name": f"cluster-{name}"}, **spec})

    async def declare_again(self, name: str) -> None:
        """Make a member known once more, whose kubeconfig is in its Secret still."""
        await self._declare(name, None, {"kubeconfigSecretRef": {"name": f"cluster-{name}"}})

    async def declare_hub(self, *, labels: dict[str, str] | None = None) -> None:
        """Have the hub's own nodes take gangs, too."""
        await self._declare("hub", labels, {})

    async def _declare(self, name: str, labels: dict[str, str] | None, spec: Json) -> None:
        spec = {"acceptedNamespaces": "All", **spec}  # unless a test is about those that opt in
        body = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "MemberCluster", "spec": spec}
        await self.hub.client.create(
            MEMBERS_PATH, {**body, "metadata": {"name": name, "labels": labels or {}}}
        )

    async def create_secret(self, name: str, kubeconfig: bytes, namespace: str = "") -> None:
        """Put the kubeconfig of a member into a new Secret, of the dispatcher's own namespace unless told otherwise."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"cluster-{name}"}}
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        await self.hub.client.create(_secrets(namespace or self.namespace), {**secret, "data": data})

    async def change(self, name: str, **spec: object) -> None:
        """Change what is declared of a member."""
        await self.hub.client.patch(f"{MEMBERS_PATH}/{name}", {"spec": spec}, MERGE_PATCH)

    async def write_kubeconfig(self, name: str, *, of: str = "") -> None:
        """Write a member's kubeconfig into its Secret anew; that of another member if it is to be invalid."""
        await self.rotate(name, self.members[of or name].plane.kubeconfig.read_bytes())

    async def spoil_kubeconfig(self, name: str) -> None:
        """Have a member's kubeconfig ask for a program to be run."""
        kubeconfig = yaml.safe_load(self.members[name].plane.kubeconfig.read_text())
        for user in kubeconfig["users"]:
            user["user"] = {"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}}
        await self.rotate(name, yaml.safe_dump(kubeconfig).encode())

    async def rotate(self, name: str, kubeconfig: bytes) -> None:
        """Put another kubeconfig into the Secret of a member."""
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        await self.hub.client.patch(f"{_secrets(self.namespace)}/cluster-{name}", {"data": data}, MERGE_PATCH)

    async def relabel(self, name: str, labels: dict[str, str | None]) -> None:
        """Change the labels of a MemberCluster; None takes one away."""
        await self.hub.client.patch(f"{MEMBERS_PATH}/{name}", {"metadata": {"labels": labels}}, MERGE_PATCH)

    async def declared(self) -> list[str]:
        """The members that the hub knows."""
        found = await self.hub.client.get(MEMBERS_PATH)
        return [each["metadata"]["name"] for each in found["items"]]

    async def remove(self, name: str) -> None:
        """Have the hub forget a member."""
        found = await self.hub.client.get(f"{MEMBERS_PATH}/{name}")
        try:
            await self.hub.client.delete(f"{MEMBERS_PATH}/{name}", found["metadata"]["uid"])
        except errors.NotFound:
            return

    async def objects(self, kind: str) -> dict[str, set[str]]:
        """The names of every object of a kind, by cluster; clusters that have none are left out."""
        found = {name: await member.names(kind) for name, member in self.members.items()}
        return {name: names for name, names in found.items() if names}


def _secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
