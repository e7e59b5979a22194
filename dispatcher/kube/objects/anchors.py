"""Namespaces and anchors in a member cluster: an anchor is a ConfigMap that stands for one attempt of an AppWrapper.

The anchor owns all objects of its attempt, so the member's garbage collector removes a whole gang with it, also a gang
that no database knows.

Any user who may create ConfigMaps in the namespace can take the name and copy our labels. So an anchor is recognised by
its uid, once it was created or first seen with our labels. Another ConfigMap of that name is foreign from then on, and
the anchor stays ours whatever happens to its labels.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from dispatcher import errors
from dispatcher.api import names
from dispatcher.core.kinds.manifest import Anchor, Owner, anchor_name, anchor_of, appwrapper_of, seal_in
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.kube import paths
from dispatcher.kube.api_calls import one_object
from dispatcher.kube.client import METADATA_LIST, ClusterClient, Json
from dispatcher.kube.objects.object_client import Mark
from dispatcher.kube.paging import pages
from dispatcher.text import name_of

MOST_SELECTED: Final = 50
"""AppWrappers whose uids fit into the URL of one request."""
MOST_KNOWN: Final = 200_000
"""Anchors whose uid is remembered; without a remembered uid the labels decide."""


class Found(Struct, frozen=True):
    """An anchor in a member; `attempt` is the number of the attempt that it stands for."""

    namespace: str
    name: str
    uid: str
    appwrapper: str
    attempt: int
    hub_id: str
    deleting: bool
    created_at: datetime
    seal: str = ""

    @property
    def mark(self) -> Mark:
        """What it says about the attempt."""
        return Mark(self.appwrapper, self.attempt, self.namespace, self.seal)


class Anchors:
    """The anchors of one member cluster; `on_known` gets the uids of each anchor and of its AppWrapper."""

    def __init__(self, client: ClusterClient, on_known: Callable[[str, str], None]) -> None:
        self._client = client
        self._on_known = on_known
        self._uids: BoundedDict[tuple[object, object], str] = BoundedDict(MOST_KNOWN)

    async def make_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace with these labels, unless it exists."""
        metadata = {"name": name, "labels": dict(labels)}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        try:
            await self._client.create("/api/v1/namespaces", body)
        except errors.AlreadyExists:
            return

    async def exists(self, owner: Owner) -> bool:
        """True if a ConfigMap has the name of the attempt's anchor; raises without a clear answer."""
        name = anchor_name(owner.uid, owner.attempt)
        return await self._get(_path(owner.namespace, name)) is not None

    async def ensure(self, owner: Owner) -> Anchor:
        """The anchor of an attempt, created if there is none; raises `Unavailable` while one is being deleted."""
        wanted = anchor_of(owner)
        name = wanted["metadata"]["name"]
        try:
            path = paths.collection("v1", "configmaps", owner.namespace)
            made = one_object(await self._client.create(path, wanted), path)
            self._remember(made["metadata"], owner.uid)
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
        if not self._is_ours(metadata, owner.uid):
            raise taken(owner)
        self._remember(metadata, owner.uid)
        return Anchor(name, metadata["uid"])

    async def remove(self, namespace: str, name: str, appwrapper: str) -> bool:
        """Delete an anchor of an AppWrapper, by its uid; True once it is gone. Safe to repeat."""
        found = await self._get(_path(namespace, name))
        if found is None:
            return True
        metadata = found["metadata"]
        if not self._is_ours(metadata, appwrapper):
            return True
        if "deletionTimestamp" not in metadata:
            try:
                await self._client.delete(_path(namespace, name), metadata["uid"])
            except (errors.NotFound, errors.Conflict):
                return False  # changed under our hands: the next look tells
        return False

    def root_of(self, metadata: Json) -> str | None:
        """The uid of the AppWrapper of an anchor; None for other ConfigMaps."""
        found = _found(metadata)
        if found is None or not self._is_ours(metadata, found.appwrapper):
            return None
        self._remember(metadata, found.appwrapper)
        return found.appwrapper

    def _is_ours(self, metadata: Json, appwrapper: str) -> bool:
        """True if the ConfigMap has the remembered uid; without one, if it has the label, which any user can write."""
        remembered = self._uids.get((metadata.get("namespace"), metadata.get("name")))
        if remembered is not None:
            return bool(remembered == metadata["uid"])
        return bool((metadata.get("labels") or {}).get(names.UID_LABEL) == appwrapper)

    def _remember(self, metadata: Json, appwrapper: str) -> None:
        key = metadata.get("namespace"), metadata.get("name")
        if self._uids.get(key) == metadata["uid"]:
            return
        self._uids[key] = metadata["uid"]
        self._on_known(metadata["uid"], appwrapper)

    async def _get(self, path: str) -> Json | None:
        try:
            return one_object(await self._client.get(path), path)
        except errors.NotFound as error:
            if error.reason:
                return None
            raise _clear(error) from error

    async def all(self, of: Collection[str] = ()) -> AsyncIterator[Found]:
        """Every anchor of any hub: a complete list, or an error.

        With the uids of a few AppWrappers in `of`, the member sends only their anchors; with many, all anchors.
        """
        query = {"labelSelector": _selector(of)}
        async for page in pages(self._client, "/api/v1/configmaps", query, accept=METADATA_LIST):
            for raw in page.items:
                if names.UID_LABEL not in (raw["metadata"].get("labels") or {}):
                    raise errors.Unavailable("the list of anchors makes no sense: that label was asked for")
                found = _found(raw["metadata"])
                if found and self._is_ours(raw["metadata"], found.appwrapper):
                    yield found

    async def delete(self, anchor: Found) -> None:
        """Delete an anchor if it is still the same object."""
        try:
            await self._client.delete(_path(anchor.namespace, anchor.name), anchor.uid)
        except (errors.NotFound, errors.Conflict):
            return


def _selector(uids: Collection[str]) -> str:
    if 0 < len(uids) <= MOST_SELECTED:
        return f"{names.UID_LABEL} in ({','.join(sorted(uids))})"
    return names.UID_LABEL


def taken(owner: Owner) -> errors.Invalid:
    """The error for an anchor whose name a foreign ConfigMap has; the next attempt's anchor has another name."""
    name = anchor_name(owner.uid, owner.attempt)
    return errors.Invalid(f"ConfigMap {owner.namespace}/{name} exists already and is not ours")


def _clear(error: errors.NotFound) -> errors.ClusterError:
    """`Unavailable` for a 404 without a reason: it comes from a proxy, not from the API server."""
    return error if error.reason else errors.Unavailable(f"no clear answer: {error}")


def _found(metadata: Json) -> Found | None:
    """Read an anchor; None for another ConfigMap with our label, such as a wrapped one, or an unreadable one."""
    try:
        return _read(metadata)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read(metadata: Json) -> Found | None:
    appwrapper = appwrapper_of({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"]})
    if appwrapper is None or appwrapper != metadata["labels"].get(names.UID_LABEL):
        return None
    if any(name_of(metadata[each]) != metadata[each] for each in ("namespace", "name", "uid")):
        return None  # no API server gives such names, and no database can be asked about them
    return Found(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        appwrapper=appwrapper,
        attempt=int(metadata["name"].rpartition("-")[2]),
        hub_id=str((metadata.get("annotations") or {}).get(names.HUB_ANNOTATION)),
        deleting="deletionTimestamp" in metadata,
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        seal=seal_in(metadata),
    )


def _path(namespace: str, name: str) -> str:
    return paths.item("v1", "configmaps", namespace, name)
