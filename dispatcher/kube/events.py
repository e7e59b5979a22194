"""Writes Kubernetes Events about AppWrappers and their wrapped objects to one cluster, at a limited rate.

One sender takes Events from a bounded queue; an Event that finds no room or cannot be written is dropped and counted.
Namespaces take turns. If the queue is full, the namespace with the most Events in it loses its newest one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.model.timestamps import timestamp
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient, Json

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
