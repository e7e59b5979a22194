"""Operators that are played: the parts that all stand-ins share, and JSON requests to an API server.

A stand-in turns objects into the objects and statuses that the dispatcher and its users see with the real operator.
Its subclass decides; this module watches and writes. One worker at a time serves an object. A created object enters the
view at once, from the reply: a watch reports it later, and a decision in between would create it twice. The garbage
collector deletes.
"""

import asyncio
import contextlib
import json
import logging
import random
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from dispatcher.kube.library import Configuration, config

Json = dict[str, Any]

log = logging.getLogger("stand-in")


class RefusedError(Exception):
    """The API server answered without success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError)
RELIST = (401, 403, 404, 410)


class Api:
    """JSON requests to one API server."""

    def __init__(self, host: str, authorization: str, session: aiohttp.ClientSession) -> None:
        self._host = host
        self._authorization = authorization
        self._session = session

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, kubeconfig: Path) -> AsyncIterator[Self]:
        """A client for the server and the user of the kubeconfig's current context."""
        found = Configuration()
        await config.load_kube_config(str(kubeconfig), client_configuration=found, persist_config=False)
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
        # A cancelled watch leaves its connection to close by itself; such connections are aborted at the end, too.
        before = sys.version_info < (3, 12, 7)  # later versions do not need it, and aiohttp warns
        connector = aiohttp.TCPConnector(ssl=tls, limit=64, enable_cleanup_closed=before)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=2**21) as session:
            try:
                yield cls(str(found.host), found.api_key.get("BearerToken", ""), session)
            finally:
                await connector.close(abort_ssl=True)  # a server that is gone never completes the close

    async def request(
        self, method: str, path: str, body: Json | None = None, query: Mapping[str, str] | None = None
    ) -> Json:
        """The answer to a request of a few seconds; raises RefusedError if the server refuses."""
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        async with self._session.request(
            method,
            f"{self._host}{path}",
            params=query,
            data=None if body is None else json.dumps(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=10),
        ) as response:
            return await _answer(response)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
        """Yields events until the server ends the watch."""
        seconds = random.randint(300, 600)  # noqa: S311 - spreads load, hides nothing
        async with self._session.get(
            f"{self._host}{path}",
            params={**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)},
            headers={"Authorization": self._authorization},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=seconds + 60),
        ) as response:
            if response.status >= 300:
                await _answer(response)
            async for line in response.content:
                yield _event(json.loads(line))


async def _answer(response: aiohttp.ClientResponse) -> Json:
    text = await response.text()
    if response.status >= 300:
        raise RefusedError(response.status, _message(text))
    answer: Json = json.loads(text)
    return answer


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text


def _event(event: Json) -> Json:
    if event["type"] == "ERROR":
        raise RefusedError(event["object"].get("code", 500), event["object"].get("message", ""))
    return event


class View:
    """The objects of one kind as last seen, with created objects that the watch has not reported yet."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Json] = {}
        self._by_controller: dict[str | None, dict[str, Json]] = {}
        self._gone: set[str] = set()
        self._unconfirmed: dict[str, float] = {}

    def replace(self, objects: Iterable[Json], listed_from: float) -> None:
        """Replaces all but the objects that were created since the list began."""
        listed = {one["metadata"]["uid"]: one for one in objects}
        fresh = {uid for uid, created in self._unconfirmed.items() if created >= listed_from}
        for uid in self.by_uid.keys() - listed.keys() - fresh:
            self.apply("DELETED", self.by_uid[uid])
        self._gone.clear()
        for one in listed.values():
            self.apply("MODIFIED", one)

    def apply(self, event_type: str, seen: Json) -> None:
        """Applies one event of the watch."""
        uid = seen["metadata"]["uid"]
        self._unconfirmed.pop(uid, None)
        if event_type == "DELETED":
            self.by_uid.pop(uid, None)
            self._by_controller.get(controller_of(seen), {}).pop(uid, None)
            self._gone.add(uid)
        else:
            self._put(uid, seen)

    def expect(self, created: Json, now: float) -> None:
        """Adds a created object, unless the watch was faster than the reply."""
        uid = created["metadata"]["uid"]
        if uid not in self.by_uid and uid not in self._gone:
            self._put(uid, created)
            self._unconfirmed[uid] = now

    def controlled_by(self, uid: str) -> list[Json]:
        """The objects with this controller, oldest first."""
        mine = self._by_controller.get(uid, {}).values()
        return sorted(mine, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))

    def _put(self, uid: str, one: Json) -> None:
        self.by_uid[uid] = one
        self._by_controller.setdefault(controller_of(one), {})[uid] = one


class DirtyKeys:
    """Keys that wait for a worker: each once, and none that a worker has now."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._dirty: set[str] = set()
        self._busy: set[str] = set()

    def add(self, key: str) -> None:
        """Requests a visit after this moment."""
        if key not in self._dirty:
            self._dirty.add(key)
            if key not in self._busy:
                self._waiting.put_nowait(key)

    @contextlib.asynccontextmanager
    async def next(self) -> AsyncIterator[str]:
        """The next key; if it is requested again meanwhile, it is returned again afterwards."""
        key = await self._waiting.get()
        self._dirty.discard(key)
        self._busy.add(key)
        try:
            yield key
        finally:
            self._busy.discard(key)
            if key in self._dirty:
                self._waiting.put_nowait(key)


@dataclass(frozen=True, slots=True)
class Watched:
    """Objects that a stand-in follows; `keys` are the uids to visit after a change of one.

    A stand-in waits for the first list of `needed` objects. A kind that is not served is asked for again and again.
    """

    path: str
    view: View
    keys: Sequence[Callable[[Json], str | None]]
    query: Mapping[str, str] = field(default_factory=dict)
    needed: bool = False


class StandIn:
    """Acts as an operator on one API server while it is entered, or while ``run`` runs.

    A subclass says what is watched, and what it does about one uid (`_reconcile`); `_primaries` are the uids that it
    acts upon.
    """

    about = "a stand-in for an operator"
    WORKERS = 8
    RETRY_SECONDS = 0.5
    LONGEST_PAUSE = 5.0

    def __init__(self, kubeconfig: Path, watched: Sequence[Watched]) -> None:
        self._kubeconfig = kubeconfig
        self._watched = watched
        self._dirty = DirtyKeys()
        self._listed = {each.path: asyncio.Event() for each in watched if each.needed}
        self._api: Api
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        listed = asyncio.gather(*(each.wait() for each in self._listed.values()))
        # An exit during the connect would leave connections that nothing can close.
        either: list[asyncio.Future[Any]] = [self._task, listed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        listed.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        """Watches and acts until cancelled, also through failures of the API server."""
        async with Api.connect(self._kubeconfig) as self._api, asyncio.TaskGroup() as tasks:
            for each in self._watched:
                tasks.create_task(self._follow(each))
            for _ in range(self.WORKERS):
                tasks.create_task(self._work(tasks))

    def _primaries(self) -> Iterable[str]:
        raise NotImplementedError

    async def _reconcile(self, uid: str) -> None:
        raise NotImplementedError

    def _name(self, uid: str) -> str:
        raise NotImplementedError

    async def _follow(self, watched: Watched) -> None:
        """Keeps a view up to date; after a broken connection continues where it broke."""
        version, pause = "", 0.0
        while True:
            try:
                if not version:
                    version = await self._list(watched)
                async for event in self._api.watch(
                    watched.path, {**watched.query, "resourceVersion": version}
                ):
                    version, pause = event["object"]["metadata"]["resourceVersion"], 0.0
                    if event["type"] != "BOOKMARK":
                        watched.view.apply(event["type"], event["object"])
                        self._wake(*(key(event["object"]) for key in watched.keys))
            except RefusedError as refusal:
                version = "" if refusal.status in RELIST else version
                log.info("%s: %s", watched.path, refusal)
            except UNREACHABLE as error:
                log.info("%s: lost the API server (%r)", watched.path, error)
            pause = min(self.LONGEST_PAUSE, pause * 2 or 0.1)
            await asyncio.sleep(pause)

    async def _list(self, watched: Watched) -> str:
        """Reads everything (unpaged: a testbed has few thousand pods) and marks all of it dirty."""
        started = asyncio.get_running_loop().time()
        answer = await self._api.request("GET", watched.path, query=watched.query)
        # The items of a list do not say their kind.
        kind = answer["kind"].removesuffix("List")
        items = [{"apiVersion": answer["apiVersion"], "kind": kind, **each} for each in answer["items"]]
        watched.view.replace(items, started)
        if watched.path in self._listed:
            self._listed[watched.path].set()
        self._wake(*self._primaries())
        return str(answer["metadata"]["resourceVersion"])

    def _wake(self, *uids: str | None) -> None:
        for uid in uids:
            if uid is not None:
                self._dirty.add(uid)

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        for listed in self._listed.values():
            await listed.wait()
        while True:
            async with self._dirty.next() as uid:
                try:
                    await self._reconcile(uid)
                except (RefusedError, *UNREACHABLE) as error:
                    log.info("%s: %r, will try again", self._name(uid), error)
                    tasks.create_task(self._later(uid))

    async def _later(self, uid: str) -> None:
        await asyncio.sleep(self.RETRY_SECONDS)
        self._dirty.add(uid)

    async def _create(self, group: str, plural: str, body: Json) -> Json:
        """The created object, or the one of that name; raises as long as that has another controller."""
        path = f"{group}/namespaces/{body['metadata']['namespace']}/{plural}"
        try:
            return await self._api.request("POST", path, body)
        except RefusedError as refusal:
            if refusal.status != 409:
                raise
            existing = await self._api.request("GET", f"{path}/{body['metadata']['name']}")
            if controller_of(existing) != controller_of(body):
                raise
            return existing

    async def _delete(self, one: Json, group: str, plural: str) -> None:
        """Deletes an object, unless it is gone or another one has its name."""
        metadata = one["metadata"]
        path = f"{group}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
        body = {"preconditions": {"uid": uid_of(one)}, "propagationPolicy": "Background"}
        try:
            await self._api.request("DELETE", path, body)
        except RefusedError as refusal:
            if refusal.status not in (404, 409):
                raise

    async def _patch_status(self, one: Json, plural: str, patch: Json | None) -> None:
        """Merges a patch into the status of an object that is still the same."""
        if patch is None:
            return
        metadata = one["metadata"]
        path = (
            f"/apis/{one['apiVersion']}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}/status"
        )
        body = {"metadata": {"uid": metadata["uid"]}, "status": patch}
        try:
            await self._api.request("PATCH", path, body)
        except RefusedError as refusal:
            if refusal.status not in (404, 409):
                raise


def now_text() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def uid_of(one: Json) -> str:
    """The uid of an object."""
    return str(one["metadata"]["uid"])


def controller_of(one: Json) -> str | None:
    """The uid of the object that controls this one; None without a controller."""
    owners = one["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


async def run_until_told(stand_in: StandIn) -> None:
    """Runs a stand-in until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    log.info("this is %s", stand_in.about)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stand_in.run())
        await told.wait()
        running.cancel()
