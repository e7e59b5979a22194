"""Reads the warnings that controllers and nodes wrote as Events about the objects of a gang.

A controller that cannot make a pod says so only in an Event, about the object that it controls. For nested kinds that
is an object that nobody here created: the RayCluster of a RayJob, the ReplicaSet of a Deployment. Such an Event counts
only if the chain of controllers of its object leads to the AppWrapper. Any user who may write Events in the namespace
can write such words; they are shown, and nothing else follows from them.

An answer costs at most one list of a namespace and a bounded number of reads of owners. What they say, and that they
failed, holds for all AppWrappers of the namespace for a few seconds. A cluster is asked for one list at a time, and a
list that is larger than a hint may be is given up while it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.redaction import without_values
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.record import ObjectRef
from dispatcher.kube import paths
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.owner_resolver import NOBODY, OwnerResolver
from dispatcher.text import name_of, one_line, text_of

MOST_EVENTS: Final = 500
"""Warnings read at a time. There are seldom more than a few about an object: repeated ones are counted, not added."""

MOST_RESOLVED: Final = 10
"""Objects whose owners are resolved for one answer."""

SHARED_SECONDS: Final = 5.0
"""How long the warnings of a namespace are used for other AppWrappers of it."""

MOST_NAMESPACES: Final = 50
"""Namespaces whose warnings are kept for that long."""


class Warned(Struct, frozen=True):
    """The newest warning about one object, as "Reason: message" in one line."""

    ref: ObjectRef
    words: str
    seen: str


class _Listed(Struct):
    """The warnings of a namespace `until` a time, and the AppWrappers that were found above their objects, by uid."""

    until: float
    found: Sequence[Warned]
    roots: dict[str, str] = field(default_factory=dict)


class WarningReader:
    """The warnings about objects of one cluster; `monotonic` is in seconds."""

    def __init__(self, client: ClusterClient, owners: OwnerResolver, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._owners = owners
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._listed: BoundedDict[str, _Listed] = BoundedDict(MOST_NAMESPACES)

    async def about_controllers(self, appwrapper: str, refs: Sequence[ObjectRef], namespace: str) -> str:
        """The newest warning about an object between the wrapped ones (`refs`) and their pods, with its title.

        Empty if there is none, or if it cannot be read.
        """
        return await self._newest(appwrapper, refs, namespace, "involvedObject.kind!=Pod")

    async def about_pods(self, appwrapper: str, refs: Sequence[ObjectRef], namespace: str) -> str:
        """The newest warning about a pod of the AppWrapper, with its title; empty if there is none."""
        return await self._newest(appwrapper, refs, namespace, "involvedObject.kind=Pod")

    async def _newest(self, appwrapper: str, refs: Sequence[ObjectRef], namespace: str, selector: str) -> str:
        listed = await self._warned(namespace, selector)
        names, prefixes = {ref.name for ref in refs}, tuple(f"{ref.name}-" for ref in refs)
        # Operators name an object after the one that it is made for, so these are resolved first.
        likely = sorted(
            listed.found,
            key=lambda each: not (each.ref.name in names or each.ref.name.startswith(prefixes)),
        )
        left = MOST_RESOLVED
        for each in likely:
            if each.ref.uid not in listed.roots:  # what another gang has asked about costs nothing
                if not left:
                    continue
                left -= 1
            if await self._root_of(each.ref, listed) == appwrapper:
                self._owners.learn(each.ref.uid, appwrapper)
                return f"{each.ref.kind} {each.ref.namespace}/{each.ref.name}: {each.words}"
        return ""

    async def _root_of(self, ref: ObjectRef, listed: _Listed) -> str:
        """The AppWrapper above an object, or `NOBODY`; asked once for all AppWrappers of the namespace."""
        if ref.uid not in listed.roots:
            try:
                listed.roots[ref.uid] = await self._owners.root_of(ref)
            except errors.ClusterError:
                listed.roots[ref.uid] = NOBODY  # the words are only a hint; callers go on without them
        return listed.roots[ref.uid]

    async def _warned(self, namespace: str, selector: str) -> _Listed:
        """The objects of a namespace with warnings, the one with the newest first; none if they cannot be listed."""
        key = f"{namespace}/{selector}"
        async with self._lock:
            kept = self._listed.get(key)
            if kept is not None and self._monotonic() < kept.until:
                return kept
            for expired in [name for name, each in self._listed.items() if each.until <= self._monotonic()]:
                del self._listed[expired]
            try:
                found = warned_in(
                    await events(self._client, namespace, f"{selector},type=Warning"), namespace
                )
            except errors.ClusterError:
                found = ()  # not asked again at once: the next answer would be the same, and as slow
            listed = self._listed[key] = _Listed(self._monotonic() + SHARED_SECONDS, found)
            return listed


async def events(client: ClusterClient, namespace: str, selector: str) -> list[Json]:
    """The first Events of a namespace that a field selector names. Raises `ClusterError`."""
    query = {"fieldSelector": selector, "limit": str(MOST_EVENTS)}
    page = await client.get(paths.collection("v1", "events", namespace), query, purpose=Purpose.HINT)
    items = page.get("items")
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def warned_in(found: Sequence[Json], namespace: str) -> Sequence[Warned]:
    """The objects of these Events, each with its newest warning, the newest first. Unreadable Events are left out."""
    by_object: dict[str, Warned] = {}
    for event in sorted(found, key=last_seen, reverse=True):
        ref = _object_of(event, namespace)
        if ref is not None:
            by_object.setdefault(ref.uid, Warned(ref, words_of(event), last_seen(event)))
    return tuple(by_object.values())


def newest_words(found: Sequence[Json]) -> str:
    """The newest of these warnings; empty without any."""
    return words_of(max(found, key=last_seen, default={}))


def words_of(event: Json) -> str:
    """An Event as "Reason: message", in one line and without values of fields."""
    message = without_values(text_of(event.get("message")))
    return one_line(": ".join(filter(None, (text_of(event.get("reason")), message))))


def last_seen(event: Json) -> str:
    """The time of an event's last occurrence; the three fields are of three versions of the Events API."""
    series = event.get("series")
    observed = series.get("lastObservedTime") if isinstance(series, dict) else None
    times = (observed, event.get("lastTimestamp"), event.get("eventTime"))
    return max(filter(None, map(text_of, times)), default="")


def _object_of(event: Json, namespace: str) -> ObjectRef | None:
    match event.get("involvedObject"):
        case {"apiVersion": str(api_version), "kind": str(kind), "name": str(name), "uid": str(uid)} if uid:
            return ObjectRef(
                -1, one_line(api_version), one_line(kind), namespace, one_line(name), name_of(uid)
            )
    return None
