"""A reflector: LIST once, then WATCH from there, into a local store by uid.

The store has each object as `decode` projects it. A change calls `on_change(uid, old, new)`, synchronously and in
order; new None is a deletion. Handlers only mark keys and update indexes. A watch that ends is resumed at its resource
version. If that version is too old (410), a fresh list replaces the store, and its differences are reported like
watched ones. An object that was deleted before the first list, or came and went between two lists, makes no difference;
`on_listed` is called after each list. Before `synced` is set the store proves nothing; afterwards an absence is still
no proof.

An object that `decode` cannot read is logged by its name and left out. A failure is logged when it begins and when it
ends, not at every try. Answers are bounded (`bounds`, `paging`), and the event loop runs other tasks between any two
objects.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import orjson
from msgspec import Struct

from dispatcher import errors, log
from dispatcher.kube import bounds
from dispatcher.kube.client import JSON, METADATA, METADATA_LIST, ClusterClient, Json
from dispatcher.kube.paging import MOST_LISTED, Page, ReadAlone, no_other_way, pages
from dispatcher.kube.time_slices import TimeSlice
from dispatcher.text import name_of

T = TypeVar("T")

LONGEST_ID: Final = 256
"""Characters of a uid or a resource version; Kubernetes' own have 36 at most."""
WATCH_SECONDS: Final = (
    300,
    600,
)  # the server ends a watch after this long; spread, so that not all end at once
SILENCE_SECONDS: Final = 150  # bookmarks come every minute: a watch this quiet is a connection that has died
BACKOFF_SECONDS: Final = (0.2, 30.0)
LONG_LINE_SECONDS: Final = 0.025
"""Processor time after which a line of a watch counts as long; parsing one of the largest takes 80 ms."""
RESTS: Final = 1
"""Pause after a long line, as a multiple of its processing time: other tasks get half of the time, and the watch reads
half as fast."""

_log = log.get("reflector")


class Extent(Struct, frozen=True):
    """The requested part of a collection: objects with a label or all, whole objects or their metadata only."""

    labelled: str = ""
    contents: bool = True

    @property
    def query(self) -> Json:
        """The common query of the list and the watch."""
        return {"labelSelector": self.labelled} if self.labelled else {}


EVERYTHING: Final = Extent()


class Reading(Struct, frozen=True):
    """How answers are read: `loads` parses a line of a watch, `read_alone` reads an object that no list may hold."""

    loads: Callable[[bytes], Any] = bounds.loads
    read_alone: ReadAlone = no_other_way


USUAL_READING: Final = Reading()


class Pace(Struct, frozen=True):
    """The pace of a reflector: `jitter`, 0 to 1, spreads its pauses; `processor_time`, in seconds, times long lines."""

    jitter: Callable[[], float] = random.random
    processor_time: Callable[[], float] = time.thread_time


USUAL_PACE: Final = Pace()


class Reflector(Generic[T]):
    """Keeps `items` (by uid) equal to the collection at the path that `locate` gives.

    `on_not_served` is called for each answer that there is no such collection; then `locate` is called again.
    """

    def __init__(
        self,
        name: str,
        client: ClusterClient,
        locate: Callable[[], Awaitable[str]],
        decode: Callable[[Json], T | None],
        on_change: Callable[[str, T | None, T | None], None],
        *,
        on_listed: Callable[[], None] = lambda: None,
        on_not_served: Callable[[], None] = lambda: None,
        extent: Extent = EVERYTHING,
        reading: Reading = USUAL_READING,
        pace: Pace = USUAL_PACE,
    ) -> None:
        self.name = name
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        """Set once a list is complete: from then on an object absent from `items` was absent at that time."""
        self.answered = asyncio.Event()
        """Set once the API server sent a list, or answered that it does not serve the kind."""
        self.heard = asyncio.Event()
        """Set with `answered`, and also once the API server refused access."""
        self.reconnects = 0
        self.most_pages = 0
        """Pages read of the longest list so far; it grows while a long list goes on."""
        self._client = client
        self._locate = locate
        self._decode = decode
        self._on_change = on_change
        self._on_listed = on_listed
        self._on_not_served = on_not_served
        self._extent = extent
        self._reading = reading
        self._pace = pace
        self._versions: dict[str, str] = {}
        self._latest = ""
        self._followed = False
        self._is_broken = False
        self.last_error: errors.ClusterError | None = None
        """The failure of the last list or watch; None once a watch works."""

    @property
    def is_forbidden(self) -> bool:
        """True while the API server refuses access."""
        return type(self.last_error) is errors.Forbidden

    @property
    def is_failing(self) -> bool:
        """True from a failure of a list or watch until a watch works again; a kind that is not served is no failure."""
        is_served = not isinstance(self.last_error, errors.NotFound)
        return self._is_broken or (self.last_error is not None and is_served)

    @property
    def is_current(self) -> bool:
        """True while the store follows a complete list: an object absent from it is not there."""
        return self.synced.is_set() and self.last_error is None and not self._is_broken

    @property
    def reason(self) -> str:
        """The reflector's name and the failure of its last list or watch."""
        return f"{self.name}: {self.last_error or 'the API server has not answered yet'}"

    @property
    def excess(self) -> str:
        """The API server's violation of the bounds, in a sentence; empty without one."""
        return str(self.last_error) if isinstance(self.last_error, errors.TooLarge) else ""

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
                # A list alone is no success: a user who may list but not watch would list everything without pause.
                failures = 1 if self._followed else failures + 1
                self._note(error, failures)
                await asyncio.sleep(self._pause(failures))
            except errors.StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # the loop's edge: one watch must not end the others
                failures += 1
                log.internal_error("reflector", error, watch=self.name)
                await asyncio.sleep(self._pause(failures))

    def _note(self, error: errors.ClusterError, failures: int) -> None:
        match error:
            case errors.NotFound():
                # An API server that has just started answers 404 for kinds it serves a moment later, so the store
                # stays. Where a kind is really removed, its objects were deleted before it.
                self.answered.set()
                self.heard.set()
                self._on_not_served()
                self._report(error, "not_served", log.LEVELS["info"], failures)
            case errors.Expired():
                _log.info("watch_expired", watch=self.name)
            case _:
                self._report(error, "list_failed", log.LEVELS["warning"], failures)
                if self.is_forbidden:
                    self.heard.set()

    def _report(self, error: errors.ClusterError, event: str, level: int, failures: int) -> None:
        """Log a failure once for each type of error, and at debug level while that type goes on."""
        is_repeated = type(self.last_error) is type(error)
        self.last_error = error
        _log.log(
            log.LEVELS["debug"] if is_repeated else level,
            event,
            watch=self.name,
            error=str(error),
            failures=failures,
        )

    def _mark_followed(self) -> None:
        self._followed = True
        self._is_broken = False
        if self.last_error is not None:
            self.last_error = None
            _log.info("watch_works_again", watch=self.name)

    async def _relist(self, path: str) -> str:
        """Replace the store by a complete, consistent list and report the differences; return its resource version."""
        fresh: dict[str, tuple[str, T | None]] = {}
        reached, time_slice = "", TimeSlice()
        accept = JSON if self._extent.contents else METADATA_LIST
        listed = pages(
            self._client, path, self._extent.query, accept=accept, read_alone=self._reading.read_alone
        )
        read = 0
        async for page in listed:
            reached = self._version(page)
            read += 1
            self.most_pages = max(self.most_pages, read)
            # Decoded page by page: raw objects take many times the memory of decoded ones.
            for raw in page.items:
                with self._sensible():
                    fresh[_short(raw["metadata"]["uid"])] = self._decoded(raw)
                await time_slice.pause_if_long()
            with self._sensible():
                fresh.update(self._kept(raw["metadata"]["uid"] for raw in page.left_out))
        for uid in [uid for uid in self.items if uid not in fresh]:
            self._remove(uid)
            await time_slice.pause_if_long()
        for uid, (version, item) in fresh.items():
            self._upsert(uid, version, item)
            await time_slice.pause_if_long()
        self.synced.set()
        self.answered.set()
        self.heard.set()
        self._on_listed()
        return reached

    async def _follow(self, path: str, version: str) -> None:
        """Watch from `version` on, over any number of connections; raises `Expired` when a new list is due."""
        failures = 0
        while True:
            before = version
            try:
                version = await self._watch_once(path, version)
                failures = 0
                if version == before:
                    await asyncio.sleep(1)  # an instant EOF must not become a busy loop
            except (errors.Refused, errors.TooLarge):
                raise
            except errors.ClusterError as error:
                self.reconnects += 1
                self._is_broken = True
                failures = failures + 1 if self._latest == before else 1
                version = self._latest or version
                _log.info("watch_broken", watch=self.name, error=str(error), failures=failures)
                await asyncio.sleep(self._pause(failures))

    async def _watch_once(self, path: str, version: str) -> str:
        seconds = WATCH_SECONDS[0] + int(self._pace.jitter() * (WATCH_SECONDS[1] - WATCH_SECONDS[0]))
        query = {
            **self._extent.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        accept = JSON if self._extent.contents else METADATA
        self._latest = version
        time_slice = TimeSlice()
        async for line in self._client.watch(path, query, idle_timeout=SILENCE_SECONDS, accept=accept):
            began = self._pace.processor_time()
            self._latest = self._apply(line)
            used = self._pace.processor_time() - began
            self._mark_followed()
            await time_slice.pause_if_long()
            if used > LONG_LINE_SECONDS:
                await asyncio.sleep(used * RESTS)
        return self._latest

    def _apply(self, line: bytes) -> str:
        """Apply one line of a watch; return its resource version."""
        try:
            event = self._reading.loads(line)
        except orjson.JSONDecodeError as error:
            raise errors.Unavailable(f"{self.name}: a watch line was cut: {error}") from error
        with self._sensible():
            kind, raw = event["type"], event["object"]
            if kind == "ERROR":
                raise _watch_error(raw)
            reached = _short(raw["metadata"]["resourceVersion"])
            uid = "" if kind == "BOOKMARK" else _short(raw["metadata"]["uid"])
        if kind == "DELETED":
            self._remove(uid)
        elif uid:
            self._upsert(uid, *self._decoded(raw))
        return reached

    def _version(self, page: Page) -> str:
        if not page.version:
            raise errors.Unavailable(f"{self.name}: the answer makes no sense: a list without a version")
        return _short(page.version)

    @contextmanager
    def _sensible(self) -> Iterator[None]:
        """Raises `Unavailable` for nonsense from a server, so that it does not end the watches of other kinds."""
        try:
            yield
        except (KeyError, TypeError, AttributeError) as error:
            raise errors.Unavailable(f"{self.name}: the answer makes no sense: {error!r}") from error

    def _decoded(self, raw: Json) -> tuple[str, T | None]:
        """The version of an object and its decoded value; an unchanged version is not decoded again."""
        version = _short(raw["metadata"]["resourceVersion"])
        uid = raw["metadata"]["uid"]
        if self._versions.get(uid) == version:
            return version, self.items[uid]
        return version, self._read(raw)

    def _kept(self, uids: Iterable[str]) -> Iterator[tuple[str, tuple[str, T | None]]]:
        """The stored values of objects that cannot be read now, but still exist."""
        return ((uid, (self._versions[uid], self.items[uid])) for uid in uids if uid in self.items)

    def _upsert(self, uid: str, version: str, item: T | None) -> None:
        if self._versions.get(uid) == version:
            return
        if item is None:
            self._remove(uid)
            return
        old = self.items.get(uid)
        if old is None and len(self.items) >= MOST_LISTED:
            raise errors.TooLarge(f"{self.name}: there are more than {MOST_LISTED} objects")
        self.items[uid] = item
        self._versions[uid] = version
        self._notify(uid, old, item)

    def _read(self, raw: Json) -> T | None:
        try:
            return self._decode(raw)
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of the others
            name = name_of(raw["metadata"].get("name"))
            log.count_internal_error("reflector")
            _log.error("undecodable_object", watch=self.name, name=name, error=repr(error)[:300])
            return None

    def _notify(self, uid: str, old: T | None, new: T | None) -> None:
        """Call the handler; the store has the change, so an error of the handler is logged and the watch goes on."""
        try:
            self._on_change(uid, old, new)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # one object must not end the watch of the others
            log.internal_error("reflector", error, watch=self.name, uid=uid)

    def _remove(self, uid: str) -> None:
        self._versions.pop(uid, None)
        old = self.items.pop(uid, None)
        if old is not None:
            self._notify(uid, old, None)

    def _pause(self, failures: int) -> float:
        least, most = BACKOFF_SECONDS
        return min(most, least * 2.0 ** min(failures, 10)) * (0.5 + self._pace.jitter() / 2)


def _short(identity: object) -> str:
    """A uid or a resource version; raises `TooLarge` for a longer text, which would be kept."""
    text = str(identity)
    if len(text) > LONGEST_ID:
        raise errors.TooLarge(f"an identity of {len(text)} characters")
    return text


def _watch_error(status: dict[str, Any]) -> errors.ClusterError:
    message = str(status.get("message"))
    if status.get("code") == 410:
        return errors.Expired(message)
    return errors.Unavailable(f"watch: {message}")
