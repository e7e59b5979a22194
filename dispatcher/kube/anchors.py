"""What stands for an AppWrapper in a member cluster: a namespace to be in, and one ConfigMap for each attempt.

The ConfigMap, the anchor, owns all that its attempt creates, so the member's own garbage collector removes a whole
gang with it, also one of which nobody knows any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dispatcher import errors
from dispatcher.api import names
from dispatcher.core.manifest import Anchor, Owner, anchor_name, anchor_of, appwrapper_of
from dispatcher.kube.client import METADATA_LIST, ClusterClient, Json

PAGE: Final = 500
MOST_SELECTED: Final = 50
"""So many AppWrappers fit the URL of a request, with room to spare."""


@dataclass(frozen=True, slots=True)
class Found:
    """An anchor as a member has it; `attempt` is the number of the attempt that it stands for."""

    namespace: str
    name: str
    uid: str
    appwrapper: str
    attempt: int
    hub_id: str
    deleting: bool
    created_at: datetime


class Anchors:
    """The anchors of one member cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def make_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace with these labels, unless it exists."""
        metadata = {"name": name, "labels": dict(labels)}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        try:
            await self._client.create("/api/v1/namespaces", body)
        except errors.AlreadyExists:
            return

    async def exists(self, owner: Owner) -> bool:
        """True if there is an anchor of that attempt already; raises if nobody can say."""
        name = anchor_name(owner.uid, owner.attempt)
        return await self._get(_path(owner.namespace, name)) is not None

    async def bring_about(self, owner: Owner) -> Anchor:
        """The anchor of an attempt, made if there is none yet; `Unavailable` while one is on its way out."""
        wanted = anchor_of(owner)
        name = wanted["metadata"]["name"]
        try:
            made = await self._client.create(_path(owner.namespace), wanted)
        except errors.AlreadyExists:
            there = await self._get(_path(owner.namespace, name))
            if there is None:
                raise errors.Unavailable(f"the anchor {owner.namespace}/{name} went a moment ago") from None
            made = there
        except errors.NotFound as error:
            raise _clear(error) from error
        metadata = made["metadata"]
        if "deletionTimestamp" in metadata:
            raise errors.Unavailable(f"the anchor {owner.namespace}/{name} is being deleted")
        if (metadata.get("labels") or {}).get(names.UID_LABEL) != owner.uid:
            raise errors.Invalid(f"ConfigMap {owner.namespace}/{name} exists already and is not ours")
        return Anchor(name, metadata["uid"])

    async def remove(self, namespace: str, name: str, appwrapper: str) -> bool:
        """Delete an anchor of an AppWrapper, by its uid; true once it is gone. Safe to repeat."""
        found = await self._get(_path(namespace, name))
        if found is None:
            return True
        metadata = found["metadata"]
        if (metadata.get("labels") or {}).get(names.UID_LABEL) != appwrapper:
            return True  # not ours
        if "deletionTimestamp" not in metadata:
            try:
                await self._client.delete(_path(namespace, name), metadata["uid"])
            except (errors.NotFound, errors.Conflict):
                return False  # changed under our hands: the next look tells
        return False

    async def _get(self, path: str) -> Json | None:
        try:
            return await self._client.get(path)
        except errors.NotFound as error:
            if error.reason:
                return None
            raise _clear(error) from error

    async def all(self, of: Collection[str] = ()) -> AsyncIterator[Found]:
        """Every anchor there is, whosever hub's: a complete list, or an error.

        If only those of a few AppWrappers are asked for, by uid, the member sends no others; of many it sends all.
        """
        query = {"labelSelector": _selector(of), "limit": str(PAGE)}
        while True:
            page = await self._client.get("/api/v1/configmaps", query, accept=METADATA_LIST)
            for raw in page.get("items") or ():
                found = _found(raw["metadata"])
                if found:
                    yield found
            token = page["metadata"].get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    async def delete(self, anchor: Found) -> None:
        """Delete one, if it is still the same."""
        try:
            await self._client.delete(_path(anchor.namespace, anchor.name), anchor.uid)
        except (errors.NotFound, errors.Conflict):
            return


def _selector(uids: Collection[str]) -> str:
    if 0 < len(uids) <= MOST_SELECTED:
        return f"{names.UID_LABEL} in ({','.join(sorted(uids))})"
    return names.UID_LABEL


def _clear(error: errors.NotFound) -> errors.ClusterError:
    """An API server that has no such object says so in its own words; a proxy's page is no answer."""
    return error if error.reason else errors.Unavailable(f"no clear answer: {error}")


def _found(metadata: Json) -> Found | None:
    """Read an anchor; None of a ConfigMap that only bears our label, such as a wrapped one."""
    meant = appwrapper_of({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"]})
    if meant is None or meant != metadata["labels"].get(names.UID_LABEL):
        return None
    return Found(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        appwrapper=meant,
        attempt=int(metadata["name"].rpartition("-")[2]),
        hub_id=str((metadata.get("annotations") or {}).get(names.HUB_ANNOTATION)),
        deleting="deletionTimestamp" in metadata,
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
    )


def _path(namespace: str, name: str = "") -> str:
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{collection}/{name}" if name else collection
