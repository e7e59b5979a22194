"""A list, kept current: LIST once, then WATCH from there, for as long as it runs.

The model: the store is what the API server said, projected by `decode` to what we need of it, by uid. A
change calls `on_change(uid, old, new)`, synchronously and in order; new None is a deletion. Handlers only
mark keys and update indexes. A watch that ends is resumed where it was; one whose version is too old (410)
is replaced by a fresh list, whose differences are reported as if they had been watched. It is never an
answer to "does it exist?" before `synced` is set, and a cached absence is not proof of one afterwards.

It refuses to guess: an object that `decode` cannot read is logged by its name and left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import orjson

from dispatcher import errors, log
from dispatcher.kube import depth
from dispatcher.kube.client import ClusterClient, Json

T = TypeVar("T")

PAGE: Final = 500
WATCH_SECONDS: Final = (
    300,
    600,
)  # the server ends a watch after this long; spread, so that not all end at once
SILENCE_SECONDS: Final = 150  # bookmarks come every minute: a watch this quiet is a connection that has died
BACKOFF_SECONDS: Final = (0.2, 30.0)

_log = log.get("reflector")


class Reflector(Generic[T]):
    """Keeps `items` (by uid) equal to what the API server has at the path that `locate` gives."""

    def __init__(
        self,
        name: str,
        client: ClusterClient,
        locate: Callable[[], Awaitable[str]],
        decode: Callable[[Json], T | None],
        on_change: Callable[[str, T | None, T | None], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        """Set once a complete list was seen: from then on what is absent from `items` was absent then."""
        self.answered = asyncio.Event()
        """Set once the API server said anything: a list, or that it has no such kind."""
        self.reconnects = 0
        self._client = client
        self._locate = locate
        self._decode = decode
        self._on_change = on_change
        self._jitter = jitter
        self._versions: dict[str, str] = {}
        self._latest = ""
        self._followed = False

    async def run(self) -> None:
        """List and watch until cancelled; failures are retried with growing, jittered pauses."""
        failures = 0
        while True:
            self._followed = False
            try:
                path = await self._locate()
                version = await self._relist(path)
                await self._follow(path, version)
            except errors.ClusterError as error:
                # A list alone is no success: who may list but not watch would list everything without pause.
                failures = 1 if self._followed else failures + 1
                self._note(error, failures)
                await asyncio.sleep(self._pause(failures))

    def _note(self, error: errors.ClusterError, failures: int) -> None:
        match error:
            case errors.NotFound():
                # An API server that has just started answers 404 for kinds it will serve in a moment, so
                # nothing is forgotten. Where a kind is really removed, its objects were deleted before it.
                self.answered.set()
            case errors.Expired():
                _log.info("watch_expired", watch=self.name)
            case _:
                _log.warning("list_failed", watch=self.name, error=str(error), failures=failures)

    async def _relist(self, path: str) -> str:
        """Replace the store by a complete, consistent list and report what differs; its resource version."""
        fresh: dict[str, Json] = {}
        query = {"limit": str(PAGE)}
        while True:
            page = await self._client.get(path, query)
            for raw in page.get("items") or ():
                fresh[raw["metadata"]["uid"]] = raw
            token = page["metadata"].get("continue")
            if not token:
                break
            query = {"limit": str(PAGE), "continue": token}
        for uid in [uid for uid in self.items if uid not in fresh]:
            self._remove(uid)
        for uid, raw in fresh.items():
            self._upsert(uid, raw)
        self.synced.set()
        self.answered.set()
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, path: str, version: str) -> None:
        """Watch from `version` on, over as many connections as it takes; `Expired` when a new list is due."""
        failures = 0
        while True:
            before = version
            try:
                version = await self._watch_once(path, version)
                failures = 0
                if version == before:
                    await asyncio.sleep(1)  # an instant EOF must not become a busy loop
            except errors.Expired:
                raise
            except errors.Refused:
                raise
            except errors.ClusterError as error:
                self.reconnects += 1
                failures += 1
                version = self._latest or version
                _log.info("watch_broken", watch=self.name, error=str(error), failures=failures)
                await asyncio.sleep(self._pause(failures))

    async def _watch_once(self, path: str, version: str) -> str:
        seconds = WATCH_SECONDS[0] + int(self._jitter() * (WATCH_SECONDS[1] - WATCH_SECONDS[0]))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        self._latest = version
        async for line in self._client.watch(path, query, idle_timeout=SILENCE_SECONDS):
            self._latest = self._apply(line)
            self._followed = True
        return self._latest

    def _apply(self, line: bytes) -> str:
        """Apply one watch line; the resource version reached."""
        try:
            event = depth.loads(line)
        except orjson.JSONDecodeError as error:
            raise errors.Unavailable(f"{self.name}: a watch line was cut: {error}") from error
        kind, raw = event["type"], event["object"]
        if kind == "ERROR":
            raise _watch_error(raw)
        metadata = raw["metadata"]
        if kind == "DELETED":
            self._remove(metadata["uid"])
        elif kind != "BOOKMARK":
            self._upsert(metadata["uid"], raw)
        return str(metadata["resourceVersion"])

    def _upsert(self, uid: str, raw: Json) -> None:
        version = raw["metadata"]["resourceVersion"]
        if self._versions.get(uid) == version:
            return
        item = self._read(raw)
        old = self.items.get(uid)
        if item is None:
            self._remove(uid)
            return
        self.items[uid] = item
        self._versions[uid] = version
        self._on_change(uid, old, item)

    def _read(self, raw: Json) -> T | None:
        try:
            return self._decode(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = raw["metadata"].get("name")
            _log.error("undecodable_object", watch=self.name, name=name, error=repr(error)[:300])
            return None

    def _remove(self, uid: str) -> None:
        self._versions.pop(uid, None)
        old = self.items.pop(uid, None)
        if old is not None:
            self._on_change(uid, old, None)

    def _pause(self, failures: int) -> float:
        least, most = BACKOFF_SECONDS
        return min(most, least * 2.0 ** min(failures, 10)) * (0.5 + self._jitter() / 2)


def _watch_error(status: dict[str, Any]) -> errors.ClusterError:
    message = str(status.get("message"))
    if status.get("code") == 410:
        return errors.Expired(message)
    return errors.Unavailable(f"watch: {message}")
