"""A stand-in for KubeRay's operator, which no package registry has.

It turns RayClusters into the objects that the dispatcher and its users see with the real operator: one head pod, the
worker pods of each group, the head's service and the status, with KubeRay's labels, owner references, injected
containers and sticky "ready". A RayService becomes a RayCluster, two services and a status, and a second RayCluster
while it is upgraded. `testbed.rayclusters` and `testbed.rayservices` decide, from values; this module watches and
writes. Not included: parts that need a running Ray (autoscaling itself, dashboards, jobs, the health of a service),
RayJobs, RBAC for the autoscaler, network policies, and the totals in `status.desiredCPU` and so on.

One worker at a time serves a RayCluster. A created object enters the view of the pods at once, from the reply: a watch
reports it later, and a decision in between would create it twice. The garbage collector deletes. An invalid spec gets
only an Event, as from KubeRay.
"""

import argparse
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
from testbed import rayservices
from testbed.rayclusters import (
    CLUSTER_LABEL,
    Json,
    Plan,
    Slot,
    make_complaint,
    make_pod,
    make_refusal,
    make_services,
    make_status,
    patch_for,
    plan_pods,
    problem_with,
)

log = logging.getLogger("kuberay-stand-in")

RAYCLUSTERS = "/apis/ray.io/v1/rayclusters"
RAYSERVICES = "/apis/ray.io/v1/rayservices"
PODS = "/api/v1/pods"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


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

    async def _report(self, one: Json, plural: str, status: Json) -> None:
        """Writes a status where it differs."""
        await self._patch_status(one, plural, patch_for(one.get("status") or {}, status, now_text()))

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


class RayClusterStandIn(StandIn):
    """Acts as KubeRay's operator. A cluster without the CRD of RayServices is served, too."""

    about = "a stand-in for KubeRay's operator; watching RayClusters"

    def __init__(self, kubeconfig: Path) -> None:
        self._rayservices = View()
        self._clusters = View()
        self._pods = View()
        self._served: set[str] = set()
        self._told: dict[str, str] = {}
        super().__init__(
            kubeconfig,
            [
                Watched(RAYSERVICES, self._rayservices, [uid_of]),
                Watched(RAYCLUSTERS, self._clusters, [uid_of, controller_of], needed=True),
                Watched(PODS, self._pods, [controller_of], {"labelSelector": CLUSTER_LABEL}, needed=True),
            ],
        )

    def _primaries(self) -> Iterable[str]:
        return [*self._rayservices.by_uid, *self._clusters.by_uid]

    async def _reconcile(self, uid: str) -> None:
        """Makes the next changes that the spec of one RayCluster or RayService requires."""
        if (service := self._rayservices.by_uid.get(uid)) is not None:
            if "deletionTimestamp" not in service["metadata"]:
                await self._reconcile_service(service)
        elif (cluster := self._clusters.by_uid.get(uid)) is not None and self._is_ours(cluster):
            await self._reconcile_cluster(cluster)

    async def _reconcile_service(self, service: Json) -> None:
        clusters = self._clusters.controlled_by(uid_of(service))
        name = rayservices.cluster_name(service)
        if not any(each["metadata"]["name"] == name for each in clusters):
            wanted = rayservices.make_cluster(service)
            created = await self._create("/apis/ray.io/v1", "rayclusters", wanted)
            self._clusters.expect(created, asyncio.get_running_loop().time())
        for outdated in rayservices.clusters_of(service, clusters).outdated:
            await self._delete(outdated, "/apis/ray.io/v1", "rayclusters")
        await self._make_services(service, rayservices.make_services(service))
        await self._report(service, "rayservices", rayservices.make_status(service, clusters, now_text()))

    async def _reconcile_cluster(self, cluster: Json) -> None:
        if problem := problem_with(cluster):
            await self._refuse(cluster, problem)
            return
        await self._make_services(cluster, make_services(cluster))
        plan = plan_pods(cluster, self._pods.controlled_by(uid_of(cluster)))
        failures = await self._carry_out(cluster, plan)
        failure = next((str(one) for one in failures if isinstance(one, RefusedError)), None)
        if failure:
            await self._tell(cluster, make_complaint(cluster, failure))
        pods = self._pods.controlled_by(uid_of(cluster))
        await self._report(cluster, "rayclusters", make_status(cluster, pods, failure, now_text()))
        if failures:
            raise failures[0]

    def _is_ours(self, cluster: Json) -> bool:
        metadata, spec = cluster["metadata"], cluster.get("spec") or {}
        return "deletionTimestamp" not in metadata and spec.get("managedBy") != MULTIKUEUE

    async def _refuse(self, cluster: Json, problem: str) -> None:
        """Reports a problem once, by an Event: users see nothing else of an ignored RayCluster."""
        if await self._tell(cluster, make_refusal(cluster, problem)):
            log.warning("RayCluster %s is left alone: %s", self._name(uid_of(cluster)), problem)

    async def _tell(self, cluster: Json, event: Json) -> bool:
        """Writes an Event about a RayCluster, unless the one before said the same; true if it is written."""
        uid, message = uid_of(cluster), str(event["message"])
        if self._told.get(uid) == message:
            return False
        await self._api.request("POST", f"{_namespace_path(cluster)}/events", event)
        self._told[uid] = message
        return True

    async def _make_services(self, owner: Json, services: Sequence[Json]) -> None:
        """Creates the services of a RayCluster or RayService once."""
        uid = uid_of(owner)
        if uid not in self._served:
            for service in services:
                await self._create("/api/v1", "services", service)
            self._served.add(uid)

    async def _carry_out(self, cluster: Json, plan: Plan) -> list[BaseException]:
        """Sends all requests and lets each end: a cancelled one might have created its pod nevertheless."""
        doomed = [self._pods.by_uid[uid] for uid in plan.delete]
        results = await asyncio.gather(
            *(self._delete(pod, "/api/v1", "pods") for pod in doomed),
            *(self._create_pod(cluster, slot) for slot in plan.create),
            return_exceptions=True,
        )
        return [one for one in results if one is not None]

    async def _create_pod(self, cluster: Json, slot: Slot) -> None:
        created = await self._api.request("POST", f"{_namespace_path(cluster)}/pods", make_pod(cluster, slot))
        self._pods.expect(created, asyncio.get_running_loop().time())
        log.info("RayCluster %s: created %s", cluster["metadata"]["name"], created["metadata"]["name"])

    def _name(self, uid: str) -> str:
        found = self._clusters.by_uid.get(uid) or self._rayservices.by_uid.get(uid) or {}
        metadata = found.get("metadata", {})
        return f"{metadata.get('namespace')}/{metadata.get('name')}"


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


def _namespace_path(one: Json) -> str:
    return f"/api/v1/namespaces/{one['metadata']['namespace']}"


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the stand-in until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.kuberay",
        description="A stand-in for KubeRay's operator, not KubeRay itself: turns RayClusters into the pods, "
        "services and status that KubeRay would make. For demos, tests and benchmarks.",
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how to reach the API server")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(run_until_told(RayClusterStandIn(options.kubeconfig)))


if __name__ == "__main__":
    main()
