"""The hub as the commands of `dispatcher clusters` see it: MemberClusters, and the Secrets of their kubeconfigs.

Every request could also be made with kubectl. An object is changed or removed only if it still has the uid that was
read before. Secrets that a command creates have labels that say so, and no other Secret is removed. The content of a
Secret is never shown.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher import errors
from dispatcher.api.names import (
    CLUSTER_LABEL,
    FIELD_MANAGER,
    HUB_CLUSTER,
    MANAGER_LABEL,
    MEMBERS_PATH,
    PREFIX,
)
from dispatcher.api.spec_errors import one_line
from dispatcher.cli.options import as_typed
from dispatcher.kube import paths
from dispatcher.kube.api_calls import MERGE_PATCH, METADATA_LIST, ApiCalls, Json
from dispatcher.kube.user_client import SECONDS, AsyncUserClient, UserClient
from dispatcher.kube.user_kubeconfig import access_of

if TYPE_CHECKING:
    from dispatcher.api.membercluster import SecretKey
    from dispatcher.cli.options import Hub

_Answer = TypeVar("_Answer")

CRD_FILE: Final = "crds/dispatcher.codeflare.dev_memberclusters.yaml"

_MEANINGS: Final = (
    (errors.Unauthorized, "does not take the credentials"),
    (errors.Forbidden, "does not allow it"),
    (errors.Conflict, "has seen another change at the same time; try again"),
    (errors.NotFound, "does not have it"),
    (errors.Refused, "refuses it"),
    (errors.Unavailable, "does not answer"),
)


class HubClient:
    """Reads and writes what declares a cluster; `namespace` is the dispatcher's own."""

    def __init__(self, client: ApiCalls, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def members(self) -> Json:
        """The list of all MemberClusters, as the API server gives it."""
        with _known():
            return await self.client.get(MEMBERS_PATH)

    async def find(self, name: str) -> Json | None:
        """The MemberCluster of that name, or None."""
        with _known():
            return await _unless_missing(self.client, f"{MEMBERS_PATH}/{paths.segment(name)}")

    async def member(self, name: str) -> Json:
        """The MemberCluster of that name, or `CommandFailed`."""
        found = await self.find(name)
        if found is None:
            raise errors.CommandFailed(missing(name))
        return found

    async def declare(self, name: str, labels: Mapping[str, str], spec: Json) -> Json:
        """Create a MemberCluster."""
        body = {"apiVersion": f"{PREFIX}/v1alpha1", "kind": "MemberCluster"}
        return await self.client.create(
            MEMBERS_PATH, {**body, "metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
        )

    async def change(self, found: Json, spec: Json, labels: Mapping[str, str] | None = None) -> Json:
        """Merge into the MemberCluster that was found; None takes a field away. No write at all if nothing differs."""
        metadata: Json = {"uid": found["metadata"]["uid"]}
        if labels:
            metadata["labels"] = dict(labels)
        return await merge(
            self.client,
            f"{MEMBERS_PATH}/{found['metadata']['name']}",
            {"metadata": metadata, "spec": spec},
        )

    async def remove(self, found: Json) -> None:
        """Delete the MemberCluster that was found."""
        with contextlib.suppress(errors.NotFound):
            await self.client.delete(f"{MEMBERS_PATH}/{found['metadata']['name']}", found["metadata"]["uid"])

    async def store(self, cluster: str, at: SecretKey, kubeconfig: bytes, *, is_declared: bool) -> str:
        """Have the Secret hold this kubeconfig and return, in a word, what became of it.

        A Secret that was not made for this cluster is changed only if the MemberCluster names it already.
        """
        path, data = self._secrets(at.name), {at.key: base64.b64encode(kubeconfig).decode()}
        found = await _unless_missing(self.client, path)
        if found is None:
            await self._create_secret(_secret(cluster, at.name, data))
            return "created"
        if not (is_declared or _was_made_for(cluster, found)):
            raise errors.CommandFailed(
                f"the Secret {self.namespace}/{at.name} exists and was not made for {cluster}: nothing was written. "
                "Choose another name with --secret, or delete it"
            )
        if (found.get("data") or {}).get(at.key) == data[at.key]:
            return "unchanged"
        await merge(self.client, path, {"metadata": {"uid": found["metadata"]["uid"]}, "data": data})
        return "changed"

    async def clear(self, cluster: str) -> list[str]:
        """Delete the Secrets that were made for this cluster, without reading them, and return their names."""
        selector = ",".join(f"{label}={value}" for label, value in _marks(cluster).items())
        listed = await self.client.get(self._secrets(), {"labelSelector": selector}, accept=METADATA_LIST)
        removed = []
        for metadata in (each["metadata"] for each in listed.get("items") or ()):
            with contextlib.suppress(errors.NotFound):
                await self.client.delete(self._secrets(metadata["name"]), metadata["uid"])
            removed.append(metadata["name"])
        return removed

    async def _create_secret(self, secret: Json) -> None:
        try:
            await self.client.create(self._secrets(), secret)
        except errors.NotFound as error:
            raise errors.CommandFailed(
                f"the hub has no namespace {self.namespace}. Say with --namespace where the dispatcher runs"
            ) from error

    def _secrets(self, name: str = "") -> str:
        collection = paths.collection("v1", "secrets", self.namespace)
        return f"{collection}/{paths.segment(name)}" if name else collection


async def merge(client: ApiCalls, path: str, patch: Json) -> Json:
    """Send a merge patch; raises `Conflict` if the object has another uid than the patch."""
    try:
        return await client.patch(path, patch, MERGE_PATCH)
    except errors.Invalid as error:
        # The API server takes the uid of another object in a merge patch for an attempt to change the uid.
        if "metadata.uid" in str(error):
            raise errors.Conflict(str(error), error.reason) from error
        raise


async def on_hub(
    hub: Hub, act: Callable[[ApiCalls], Awaitable[_Answer]], seconds: float = SECONDS
) -> _Answer:
    """Run `act` with the hub; raises `CommandFailed` where the hub does not do what it should.

    `seconds` bounds the wait for each answer.
    """
    access = access_of(hub.kubeconfig, hub.context)
    with (
        UserClient(access, seconds) as client,
        explained("the hub", "Is --kubeconfig, or KUBECONFIG, the hub's?"),
    ):
        return await act(AsyncUserClient(client))


@contextlib.contextmanager
def known_kind(kinds: str, crd_file: str, without: str) -> Iterator[None]:
    """Raises `CommandFailed` in place of the 404 of an API server that does not know `kinds`, which has no reason.

    The message names the file to apply, and what holds `without` these kinds.
    """
    try:
        yield
    except errors.NotFound as error:
        raise errors.CommandFailed(
            f"the hub does not know {kinds} yet: kubectl apply -f {crd_file}. Without them, {without}"
        ) from error


@contextlib.contextmanager
def explained(who: str, remedy: str) -> Iterator[None]:
    """Say in a sentence what an API server did not do; `remedy` is for one that does not answer or know us.

    Raises `TryAgain` for one that does not answer, else `CommandFailed`.
    """
    try:
        yield
    except errors.ClusterError as error:
        meaning = next((words for kind, words in _MEANINGS if isinstance(error, kind)), "was not asked")
        helps = isinstance(error, errors.Unauthorized | errors.Unavailable)
        said = f"{who} {meaning}: {one_line(str(error))}"
        failure = errors.TryAgain if isinstance(error, errors.Unavailable) else errors.CommandFailed
        raise failure(f"{said}. {remedy}" if helps else said) from error


def missing(name: str) -> str:
    """Say that there is no MemberCluster of that name, and what to do."""
    if name == HUB_CLUSTER:
        return (
            "the hub is not declared: it takes every gang as long as there are no member clusters, and none once there "
            f"are. Declare it with: {as_typed('clusters add hub')}"
        )
    return f"there is no member cluster {name}. See those there are with: {as_typed('clusters list')}"


def _known() -> AbstractContextManager[None]:
    return known_kind("MemberClusters", CRD_FILE, "all AppWrappers run on the hub itself")


async def _unless_missing(client: ApiCalls, path: str) -> Json | None:
    try:
        return await client.get(path)
    except errors.NotFound as error:
        if not error.reason:
            raise
        return None


def _marks(cluster: str) -> dict[str, str]:
    return {MANAGER_LABEL: FIELD_MANAGER, CLUSTER_LABEL: cluster}


def _was_made_for(cluster: str, secret: Json) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return _marks(cluster).items() <= labels.items()


def _secret(cluster: str, name: str, data: Mapping[str, str]) -> Json:
    metadata = {"name": name, "labels": _marks(cluster)}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": dict(data)}
