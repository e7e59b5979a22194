"""Writes the Events of the dispatcher to one cluster, and reads the warnings of others about the objects of a gang.

One sender takes Events from a bounded queue; an Event that finds no room or cannot be written is dropped and counted.
Namespaces take turns. If the queue is full, the namespace with the most Events in it loses its newest one.

A controller that cannot make a pod says so only in an Event, about the object that it controls. For nested kinds that
is an object that nobody here created: the RayCluster of a RayJob, the ReplicaSet of a Deployment. Such an Event counts
only if the chain of controllers of its object leads to the AppWrapper. Any user who may write Events in the namespace
can write such words; they are shown, and nothing else follows from them.

An answer costs at most one list of a namespace and a few reads of owners, in bounded time. What they say, and that they
failed, holds for all AppWrappers of the namespace for a few seconds. A cluster is asked for one list at a time, and a
list that is larger than a hint may be is given up while it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.api.redaction import without_values
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube import paths
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.objects.owner_resolver import NOBODY, HintReads, OwnerResolver
from dispatcher.text import mapping_of, mappings_of, name_of, one_line, text_of

_log = log.get("events")

MOST_WAITING: Final = 200
PER_SECOND: Final = 10.0
BURST: Final = 50
LONGEST_MESSAGE: Final = 1024  # the API server's own limit

REFUSED_SECONDS: Final = 600.0
"""Pause of the Events of a namespace that a member refuses; with a shorter one, the alert about writes may fire."""


class EventAbout(Struct, frozen=True):
    """One Event to be written about one AppWrapper, or about one wrapped object in the same cluster as the Event."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool
    at: datetime


class EventRecorder:
    """Takes Events without waiting; `run` writes them. `monotonic` is in seconds, `cluster` is the name of the cluster.

    The role in a member may be older than the dispatcher and lack the right: once the member refuses an Event, those of
    that namespace are dropped for `REFUSED_SECONDS`.
    """

    def __init__(
        self, client: ClusterClient, monotonic: Callable[[], float], cluster: str = names.HUB_CLUSTER
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._is_forbidden = False
        self._paused_until: dict[str, float] = {}
        """By namespace of a member."""
        self._monotonic = monotonic
        self._waiting: OrderedDict[str, deque[EventAbout]] = OrderedDict()
        """By namespace, the one whose turn it is first; none is empty."""
        self._wake = asyncio.Event()
        self._tokens = float(BURST)
        self._filled_at = monotonic()

    def _drop(self, event: EventAbout) -> None:
        self._client.writes.dropped_events[event.reason] += 1

    def offer(self, event: EventAbout) -> None:
        """Queue an Event, at the expense of the namespace with the most."""
        now = self._monotonic()
        if now < self._paused_until.get(event.namespace, now):
            self._drop(event)
            return
        self._waiting.setdefault(event.namespace, deque()).append(event)
        if sum(map(len, self._waiting.values())) > MOST_WAITING:
            self._drop_newest_of_most()
        self._wake.set()

    def _drop_newest_of_most(self) -> None:
        # Of several namespaces with the most Events, the newest one loses, so that it does not displace earlier Events.
        waiting = max(reversed(self._waiting.values()), key=len)
        self._drop(waiting.pop())
        if not waiting:
            self._waiting.popitem()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._take_turn()
                await self._write(self._next())

    def _next(self) -> EventAbout:
        """The oldest event of the namespace whose turn it is."""
        namespace, waiting = self._waiting.popitem(last=False)
        event = waiting.popleft()
        if waiting:
            self._waiting[namespace] = waiting
        return event

    async def _take_turn(self) -> None:
        now = self._monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * PER_SECOND)
        self._filled_at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / PER_SECOND)

    async def _write(self, event: EventAbout) -> None:
        try:
            await self._client.create(paths.collection("v1", "events", event.namespace), _body(event))
            self._is_forbidden = False
        except errors.ClusterError as error:
            self._drop(event)
            if isinstance(error, errors.Forbidden):
                self._note_refusal(event.namespace, error)
        except Exception as error:  # noqa: BLE001  # the loop's edge: one Event must not end the others
            self._drop(event)
            log.internal_error("events", error, object=event.uid)

    def _note_refusal(self, namespace: str, error: errors.Forbidden) -> None:
        """Log a refusal, once until an Event is written again: it may be the same for each Event."""
        if not self._is_forbidden:
            self._is_forbidden = True
            _log.warning("events_forbidden", cluster=self._cluster, error=str(error))
        if self._cluster != names.HUB_CLUSTER:
            self._pause(namespace)

    def _pause(self, namespace: str) -> None:
        """Drop the Events of a namespace for a while. In other namespaces the member may allow them."""
        now = self._monotonic()
        self._paused_until = {name: end for name, end in self._paused_until.items() if end > now}
        self._paused_until[namespace] = now + REFUSED_SECONDS
        for event in self._waiting.pop(namespace, ()):
            self._drop(event)


def _short(message: str) -> str:
    """The message, cut to the bytes that the API server accepts."""
    return message.encode(errors="replace")[:LONGEST_MESSAGE].decode(errors="ignore")


def _body(event: EventAbout) -> Json:
    at = timestamp(event.at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{event.name[:200]}.", "namespace": event.namespace},
        "involvedObject": {
            "apiVersion": event.api_version,
            "kind": event.kind,
            "namespace": event.namespace,
            "name": event.name,
            "uid": event.uid,
        },
        "reason": event.reason,
        "message": _short(event.message),
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


MOST_EVENTS: Final = 500
"""Warnings read at a time. There are seldom more than a few about an object: repeated ones are counted, not added."""

KUEUE: Final = "kueue.x-k8s.io/"
"""The group of the Workloads that Kueue makes, one for each object which it is to admit."""

MOST_READS: Final = 10
"""Reads of owners, and of the kinds that they have, for one answer."""

OWNERS_SECONDS: Final = 2.0
"""Time of these reads. A hint has more, so none of them counts as one without an answer in time."""

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

    async def about_controllers(
        self, appwrapper: str, refs: Sequence[ObjectRef], namespace: str, *, awaits_kueue: bool = False
    ) -> str:
        """The newest warning about an object between the wrapped ones (`refs`) and their pods, with its title.

        Without any, the newest about a wrapped one: what an operator says of the object below is nearer to the cause
        (KubeRay warns of a RayJob that its RayCluster "already exists" if it looked too early). Kueue's Workloads count
        only if the gang `awaits_kueue`: their last warning is of the time before the admission. Empty if there is
        neither, or if they cannot be read.
        """
        return await self._newest(
            appwrapper, refs, namespace, "involvedObject.kind!=Pod", with_kueue=awaits_kueue
        )

    async def about_pods(self, appwrapper: str, refs: Sequence[ObjectRef], namespace: str) -> str:
        """The newest warning about a pod of the AppWrapper, with its title; empty if there is none."""
        return await self._newest(appwrapper, refs, namespace, "involvedObject.kind=Pod")

    async def _newest(
        self,
        appwrapper: str,
        refs: Sequence[ObjectRef],
        namespace: str,
        selector: str,
        *,
        with_kueue: bool = True,
    ) -> str:
        listed = await self._warned(namespace, selector)
        wrapped = {ref.uid for ref in refs if ref.uid}
        reads = HintReads(MOST_READS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OWNERS_SECONDS):
                for each in _likely_first(listed.found, refs):
                    if each.ref.api_version.startswith(KUEUE) and not with_kueue:
                        continue
                    if each.ref.uid in wrapped or await self._root_of(each.ref, listed, reads) == appwrapper:
                        self._owners.learn(each.ref.uid, appwrapper)
                        return f"{each.ref.title}: {each.words}"
        return ""

    async def _root_of(self, ref: ObjectRef, listed: _Listed, reads: HintReads) -> str:
        """The AppWrapper above an object, or `NOBODY`; asked once for all AppWrappers of the namespace.

        An object for which no read was left is asked for again by the next answer.
        """
        if ref.uid not in listed.roots:
            try:
                root = await self._owners.root_of(ref, reads)
            except errors.ClusterError:
                root = NOBODY  # the words are only a hint; callers go on without them
                if reads.is_spent:
                    return root
            listed.roots[ref.uid] = root
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
                    await list_events(self._client, namespace, f"{selector},type=Warning"), namespace
                )
            except errors.ClusterError:
                found = ()  # not asked again at once: the next answer would be the same, and as slow
            listed = self._listed[key] = _Listed(self._monotonic() + SHARED_SECONDS, found)
            return listed


def _likely_first(found: Sequence[Warned], refs: Sequence[ObjectRef]) -> Sequence[Warned]:
    """Warnings about objects that are named after a wrapped one, then those about the wrapped ones, then all others.

    Operators name an object after the one that it is made for.
    """
    wrapped = {ref.uid for ref in refs if ref.uid}
    names, prefixes = {ref.name for ref in refs}, tuple(f"{ref.name}-" for ref in refs)

    def place(each: Warned) -> int:
        if each.ref.uid in wrapped:
            return 1
        return 0 if each.ref.name in names or each.ref.name.startswith(prefixes) else 2

    return sorted(found, key=place)


async def list_events(client: ClusterClient, namespace: str, selector: str) -> list[Json]:
    """The first Events of a namespace that a field selector names. Raises `ClusterError`."""
    query = {"fieldSelector": selector, "limit": str(MOST_EVENTS)}
    page = await client.get(paths.collection("v1", "events", namespace), query, purpose=Purpose.HINT)
    return list(mappings_of(page.get("items")))


def warned_in(found: Sequence[Json], namespace: str) -> Sequence[Warned]:
    """The objects of these Events, each with its newest warning, the newest first. Unreadable Events are left out."""
    by_object: dict[str, Warned] = {}
    for event in sorted(found, key=_occurrence, reverse=True):
        ref = _object_of(event, namespace)
        if ref is not None:
            by_object.setdefault(ref.uid, Warned(ref, words_of(event), last_seen(event)))
    return tuple(by_object.values())


def newest_words(found: Sequence[Json]) -> str:
    """The newest of these warnings; empty without any."""
    return words_of(max(found, key=_occurrence, default={}))


def words_of(event: Json) -> str:
    """An Event as "Reason: message", in one line and without values of fields."""
    message = without_values(text_of(event.get("message")))
    return one_line(": ".join(filter(None, (text_of(event.get("reason")), message))))


def last_seen(event: Json) -> str:
    """The time of an event's last occurrence; the three fields are of three versions of the Events API."""
    observed = mapping_of(event.get("series")).get("lastObservedTime")
    times = (observed, event.get("lastTimestamp"), event.get("eventTime"))
    return max(filter(None, map(text_of, times)), default="")


_SECOND: Final = len("2026-01-01T00:00:00")
"""Characters of a time up to its second."""


def _occurrence(event: Json) -> tuple[str, int, str, str]:
    """What Events are sorted by, the one that occurred last at the end; no two Events of a namespace are equal in it.

    Most clients write whole seconds. Within a second the order is that of the API server's last writes: versions of one
    resource are numbers, of which the one with more digits is greater. Events without a version go by their names.

    Source: https://www.kubernetes.dev/resources/keps/5504/
    """
    metadata = mapping_of(event.get("metadata"))
    version = name_of(metadata.get("resourceVersion"))
    return last_seen(event)[:_SECOND], len(version), version, name_of(metadata.get("name"))


def _object_of(event: Json, namespace: str) -> ObjectRef | None:
    match event.get("involvedObject"):
        case {"apiVersion": str(api_version), "kind": str(kind), "name": str(name), "uid": str(uid)} if uid:
            return ObjectRef(
                -1, one_line(api_version), one_line(kind), namespace, one_line(name), name_of(uid)
            )
    return None
