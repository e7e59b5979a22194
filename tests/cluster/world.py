"""What a user sees and does: apply, wait, look, delete; and what an operator does: start, stop, kill."""

from __future__ import annotations

import asyncio
import atexit
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from signal import SIGKILL
from typing import Any, TypeVar

import yaml

from dispatcher import errors
from dispatcher.kube.bounds import loads_one
from dispatcher.kube.client import JSON, MERGE_PATCH, METADATA_LIST, ClusterClient
from dispatcher.store.database import Database
from testbed.forkserver import ForkServer
from testbed.plane import Plane
from testbed.processes import Ending, Process, Supervisor
from tests.history import History, QueueEntry

Json = dict[str, Any]
T = TypeVar("T")

CHECKOUT = Path(__file__).parents[2]
SHORTEST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.1
"""Each look costs the API server some milliseconds of CPU; the end of a long wait may be seen a little later."""
DEADLINE_SECONDS = 60.0
PLURALS = {
    "ProvisioningRequest": "apis/autoscaling.x-k8s.io/v1/{}/provisioningrequests",
    "AppWrapper": "apis/workload.codeflare.dev/v1beta1/{}/appwrappers",
    "AppWrapper/v1beta2": "apis/workload.codeflare.dev/v1beta2/{}/appwrappers",
    "McadAppWrapper": "apis/mcad.ibm.com/v1beta1/{}/mcadappwrappers",
    "RayCluster": "apis/ray.io/v1/{}/rayclusters",
    "RayJob": "apis/ray.io/v1/{}/rayjobs",
    "RayService": "apis/ray.io/v1/{}/rayservices",
    "Pod": "api/v1/{}/pods",
    "PodTemplate": "api/v1/{}/podtemplates",
    "Service": "api/v1/{}/services",
    "ConfigMap": "api/v1/{}/configmaps",
    "ResourceQuota": "api/v1/{}/resourcequotas",
    "Secret": "api/v1/{}/secrets",
    "PersistentVolumeClaim": "api/v1/{}/persistentvolumeclaims",
    "Deployment": "apis/apps/v1/{}/deployments",
    "StatefulSet": "apis/apps/v1/{}/statefulsets",
    "DaemonSet": "apis/apps/v1/{}/daemonsets",
    "Job": "apis/batch/v1/{}/jobs",
}
IMPORTED_WHEN_IT_RUNS = ("dispatcher.app", "sqlalchemy.dialects.postgresql.psycopg")
CLEANED_UP = (
    "AppWrapper",
    "McadAppWrapper",
    "RayJob",
    "RayService",
    "RayCluster",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "Pod",
    "ConfigMap",
)


def example(name: str) -> Json:
    """One of the files in `examples/`."""
    (loaded,) = examples(name)
    return loaded


def examples(name: str) -> list[Json]:
    """All objects of one of the files in `examples/`."""
    return list(yaml.safe_load_all((CHECKOUT / "examples" / f"{name}.yaml").read_text()))


@cache
def imported_dispatcher() -> ForkServer:
    """The dispatcher with its modules imported, which takes 1.5 s of CPU: every dispatcher is a fork of it."""
    server = ForkServer("dispatcher.__main__:main", *IMPORTED_WHEN_IT_RUNS)
    atexit.register(server.close)
    return server


def _status_with(field: str, value: str, found: Json | None) -> Json | None:
    """The status of an object if a field of it has this value."""
    status: Json = (found or {}).get("status") or {}
    return status if status.get(field) == value else None


class World:
    """One namespace of one real cluster, one database, any number of dispatchers."""

    def __init__(
        self,
        supervisor: Supervisor,
        plane: Plane,
        client: ClusterClient,
        namespace: str,
        database_url: str,
    ) -> None:
        self.plane = plane
        self.client = client
        self.namespace = namespace
        self.database_url = database_url
        self._supervisor = supervisor
        self._dispatchers: list[Process] = []

    # --- an operator's means -------------------------------------------------------------------------

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher as its own process; returns at once."""
        environment = {
            "DISPATCHER_DATABASE_URL": self.database_url,
            "DISPATCHER_LISTEN_PORT": "0",
            "KUBECONFIG": str(self.plane.kubeconfig),
            **{f"DISPATCHER_{name.upper()}": value for name, value in settings.items()},
        }
        name = f"dispatcher-{self.namespace}-{len(self._dispatchers)}"
        process = await asyncio.to_thread(
            self._supervisor.start,
            name,
            [sys.executable, "run"],
            env=environment,
            cwd=CHECKOUT,
            ending=Ending(grace=10),
            by=imported_dispatcher().fork,
        )
        self._dispatchers.append(process)
        return process

    async def kill_dispatcher(self, process: Process) -> None:
        """End it as a crash would."""
        process.send(SIGKILL)
        await asyncio.to_thread(process.wait, 10)
        self._dispatchers.remove(process)

    async def kill_dispatchers(self) -> None:
        """End all that still run as a crash would, and show what each said if the test failed."""
        for process in tuple(self._dispatchers):
            await self.kill_dispatcher(process)
            sys.stdout.write(process.log.read_text())

    async def stop_dispatcher(self, process: Process) -> int:
        """End it as an operator would; its exit code."""
        await asyncio.to_thread(process.stop)
        self._dispatchers.remove(process)
        code = process.exit_code
        assert code is not None
        return code

    def stop_dispatchers(self) -> None:
        """End all that still run, and show what each said if the test failed."""
        for process in self._dispatchers:
            process.stop()
            sys.stdout.write(process.log.read_text())

    # --- a user's means ------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "") -> str:
        """Where objects of a kind live in our namespace."""
        collection = "/" + PLURALS[kind].format(f"namespaces/{self.namespace}")
        return f"{collection}/{name}" if name else collection

    async def create(self, manifest: Json, kind: str | None = None) -> Json:
        """Create an object in our namespace."""
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        return await self.client.create(self.path(kind or manifest["kind"]), body)

    async def create_until(self, state: str, manifest: Json) -> Json:
        """Create an AppWrapper; its status once its `queuejobstate` is `state`."""
        await self.create(manifest)
        return await self.until_state(manifest["metadata"]["name"], state)

    async def get(self, kind: str, name: str) -> Json | None:
        """An object, or None."""
        try:
            return await self.client.get(self.path(kind, name))
        except errors.NotFound:
            return None

    async def every(self, kind: str, accept: str = JSON) -> list[Json]:
        """Every object of a kind in our namespace; a server that was only just started asks for a little patience."""
        while True:
            try:
                return (await self.client.get(self.path(kind), accept=accept)).get("items") or []
            except errors.Throttled as error:
                await asyncio.sleep(error.retry_after)

    async def merge(self, kind: str, name: str, patch: Json) -> Json:
        """Change an object."""
        return await self.client.patch(self.path(kind, name), patch, MERGE_PATCH)

    async def merge_status(self, kind: str, name: str, status: Json) -> Json:
        """Write into the status of an object, as its controller or a kubelet would."""
        return await self.client.patch(f"{self.path(kind, name)}/status", {"status": status}, MERGE_PATCH)

    async def names(self, kind: str) -> set[str]:
        """The names of every object of a kind in our namespace."""
        return {each["metadata"]["name"] for each in await self.every(kind)}

    async def delete(self, name: str, kind: str = "AppWrapper") -> None:
        """Delete an object, as `kubectl delete --wait=false`."""
        found = await self.get(kind, name)
        assert found is not None, f"{kind} {name} is not there"
        await self.client.delete(self.path(kind, name), found["metadata"]["uid"])

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Look until there is something to see; fails, saying what was waited for, after a minute."""
        began = time.monotonic()
        while True:
            seen = await look()
            if seen:
                return seen
            waited = time.monotonic() - began
            assert waited < DEADLINE_SECONDS, f"waited in vain for: {what}"
            await asyncio.sleep(min(max(SHORTEST_POLL_SECONDS, waited / 10), LONGEST_POLL_SECONDS))

    async def until_object(
        self, kind: str, name: str, look: Callable[[Json | None], T | None], what: str
    ) -> T:
        """Return the first result of `look` at an object, or at its absence, that is not false.

        An object that is there is watched, because a watch costs less than the looks of a long wait.
        """

        async def see() -> T | None:
            found = await self.get(kind, name)
            seen = look(found)
            return seen if seen or found is None else await self._see_change(kind, found, look)

        return await self.until(see, what)

    async def _see_change(self, kind: str, found: Json, look: Callable[[Json | None], T | None]) -> T | None:
        """Return the first such result after this state of an object; None once it is gone, or the watch has ended."""
        metadata = found["metadata"]
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={metadata['name']}",
            "resourceVersion": metadata["resourceVersion"],
            "timeoutSeconds": f"{DEADLINE_SECONDS:.0f}",
        }
        with suppress(errors.Unavailable):
            async with aclosing(self.client.watch(self.path(kind), query, DEADLINE_SECONDS)) as lines:
                async for line in lines:
                    event = loads_one(line)
                    if event["type"] == "DELETED":
                        return look(None)
                    if event["type"] != "MODIFIED":
                        return None
                    if seen := look(event["object"]):
                        return seen
        return None

    async def until_state(self, name: str, state: str, kind: str = "AppWrapper") -> Json:
        """The status of an AppWrapper once its `queuejobstate` is `state`."""
        look = partial(_status_with, "queuejobstate", state)
        return await self.until_object(kind, name, look, f"{name} is {state}")

    async def until_shown(self, name: str, state: str, kind: str = "AppWrapper") -> Json:
        """The status of an AppWrapper once its `state`, MCAD's coarser word, is `state`."""
        look = partial(_status_with, "state", state)
        return await self.until_object(kind, name, look, f"the state of {name} is {state}")

    async def until_history(self, name: str, cause: str, times: int = 1) -> list[str]:
        """The causes of an AppWrapper's history once `cause` is among them so often."""

        async with self._history() as history:  # one connection for all looks

            async def look() -> list[str] | None:
                causes = [entry.cause for entry in await history.timeline(self.namespace, name)]
                return causes if causes.count(cause) >= times else None

            return await self.until(look, f"{name}: {cause} ({times})")

    async def until_gone(self, kind: str, name: str) -> None:
        """Return once an object is gone."""
        await self.until_object(kind, name, lambda found: found is None, f"{kind} {name} is gone")

    async def causes(self, name: str) -> list[str]:
        """What history says happened to an AppWrapper of that name, in order."""
        async with self._history() as history:
            return [entry.cause for entry in await history.timeline(self.namespace, name)]

    async def reasons(self, name: str) -> list[str]:
        """What history gives as reasons, in order."""
        async with self._history() as history:
            return [entry.reason for entry in await history.timeline(self.namespace, name)]

    async def messages(self, name: str) -> list[str]:
        """What history says in words, in order."""
        async with self._history() as history:
            return [entry.message for entry in await history.timeline(self.namespace, name)]

    async def event(self, name: str, reason: str) -> Json:
        """The Kubernetes Event of that reason about an AppWrapper, once there is one."""

        async def look() -> Json | None:
            found = await self.client.get(f"/api/v1/namespaces/{self.namespace}/events")
            return next(
                (
                    each
                    for each in found["items"]
                    if (each["involvedObject"]["name"], each["reason"]) == (name, reason)
                ),
                None,
            )

        return await self.until(look, f"an Event {reason} about {name}")

    async def queue_now(self) -> list[QueueEntry]:
        """Who waits, the first to go first."""
        async with self._history() as history:
            return await history.queue_now()

    @asynccontextmanager
    async def _history(self) -> AsyncIterator[History]:
        database = Database(self.database_url, pool_size=1)
        try:
            yield History(database)
        finally:
            await database.close()

    async def demolish(self) -> None:
        """Delete all that makes pods, and the anchors, and wait until no pod is left.

        The namespace stays as long as its cluster: its deletion would cost 0.3 s of CPU, an eighth of a test, since
        every kind of the API is searched for objects in it.
        """
        for kind in CLEANED_UP:
            for found in await self.every(kind, METADATA_LIST):
                with suppress(errors.NotFound, errors.Conflict):  # its owner went first
                    metadata = found["metadata"]
                    await self.client.delete(self.path(kind, metadata["name"]), metadata["uid"])

        async def no_pods() -> bool:
            return not await self.every("Pod")

        await self.until(no_pods, f"the pods of {self.namespace} are gone")
