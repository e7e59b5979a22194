"""`python -m benchmarks.largest`: the cost of the largest AppWrappers for others that wait beside them.

An API server with only a list and a watch, in a process of its own, has a hundred AppWrappers of the largest permitted
size, and sixty that are too large and too intricate to be parsed. The intake reads them as in a leader, by a list and
then a watch, on a real Postgres; a ticker records the longest block of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from aiohttp import web

from benchmarks.backlog import Meter, TimedStore
from benchmarks.processor import peak_memory
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS, SpecSize
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.intake.intake import Intake, IntakeRules
from dispatcher.controller.intake.limits import LabelResolver, Limits
from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.garbage import short_collections
from dispatcher.core.intake.labels import PriorityClasses
from dispatcher.core.intake.namespace_bounds import NO_CEILING, QueueBound
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, ClusterDefaults
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.records.record import Phase
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.seals import Seals
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.library import ApiClient, Configuration
from dispatcher.store.database import Database
from dispatcher.store.history.partitions import ensure_partitions
from dispatcher.store.leadership import Leadership
from testbed.postgres import EmbeddedPostgres, clone_template, migrated_template

ACCEPTABLE: Final = 100
TOO_LARGE: Final = 60
LISTS: Final = 466_000
"""Empty lists in 1.4 MB of JSON."""
PREFIX: Final = "/apis/workload.codeflare.dev/v1beta1"
PATH: Final = f"{PREFIX}/appwrappers"

Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the figures, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.largest", description=__doc__)
    parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(port,), daemon=True)
    server.start()
    try:
        with EmbeddedPostgres() as postgres:
            url = clone_template(postgres.url, migrated_template(postgres.url), "largest")
            with short_collections(time.monotonic):  # as in a leader
                asyncio.run(measure(f"http://127.0.0.1:{port.get(timeout=60)}", url))
    finally:
        server.kill()
    return 0


# --- the API server ---------------------------------------------------------------------------------------------


def serve(port: Any) -> None:  # noqa: ANN401  # a queue of multiprocessing has no type
    """Runs an API server that lists all of them, and shows all of them again in a watch."""
    asyncio.run(_serve(port.put))


async def _serve(tell: Callable[[int], None]) -> None:
    things = [*map(acceptable, range(ACCEPTABLE)), *map(too_large, range(TOO_LARGE))]
    written = [orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in things]
    by_name = {each["metadata"]["name"]: text for each, text in zip(things, written, strict=True)}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/readyz":
            return web.Response(text="ok")
        if request.path == PREFIX:
            kinds = {"resources": [{"name": "appwrappers", "kind": "AppWrapper", "namespaced": True}]}
            return web.Response(body=orjson.dumps(kinds))
        if request.path != PATH:
            text = by_name.get(request.path.rpartition("/")[2])
            return web.Response(body=text) if text else web.Response(status=404, text="404 page not found\n")
        return await (_watch if "watch" in request.query else _list)(request, written)

    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    tell(runner.addresses[0][1])
    await asyncio.Event().wait()


async def _list(request: web.BaseRequest, written: list[bytes]) -> web.StreamResponse:
    start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
    part = written[start : start + limit]
    if "PartialObjectMetadata" in request.headers["Accept"]:
        part = [orjson.dumps({"metadata": orjson.loads(each)["metadata"]}) for each in part]
    token = str(start + limit) if start + limit < len(written) else ""
    metadata = orjson.dumps({"continue": token, "resourceVersion": "1"})
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"items":[' + b",".join(part) + b'],"metadata":' + metadata + b"}")
    return response


async def _watch(request: web.BaseRequest, written: list[bytes]) -> web.StreamResponse:
    """Sends each again as a new version."""
    response = web.StreamResponse()
    await response.prepare(request)
    for text in written:
        changed = text.replace(b'"resourceVersion":"1"', b'"resourceVersion":"2"', 1)
        await response.write(b'{"type":"MODIFIED","object":' + changed + b"}\n")
    await asyncio.Event().wait()
    return response


def acceptable(number: int) -> Json:
    """An AppWrapper of the largest permitted size, in many small parts that all must be parsed."""
    containers = [
        {"name": f"c{index}", "image": "i", "env": [], "resources": {"requests": {"cpu": "1m"}}}
        for index in range(MOST_CONTAINERS // 5)
    ]
    template: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}"},
        "spec": {"containers": containers},
    }
    made = _appwrapper(f"acceptable-{number:03}", template)
    fill = LARGEST_SPEC - SpecSize.of(orjson.dumps(made["spec"])).length - len('"annotations":{"a":""},')
    template["metadata"]["annotations"] = {"a": "x" * fill}
    assert SpecSize.of(orjson.dumps(made["spec"])).is_acceptable  # noqa: S101  # else it measures something else
    return made


def too_large(number: int) -> Json:
    """1.4 MB of `[[],[],…]`."""
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": [[] for _ in range(LISTS)],
    }
    return _appwrapper(f"too-large-{number:03}", template)


def _appwrapper(name: str, template: Json) -> Json:
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    spec = {"resources": {"GenericItems": [{"generictemplate": template}]}}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": metadata,
        "spec": spec,
        "status": {},
    }


# --- the leader ---------------------------------------------------------------------------------------------------


@dataclass
class Leader:
    """The intake, composed as in `app`."""

    client: ClusterClient
    store: TimedStore

    def __post_init__(self) -> None:
        self.cache = Cache({HUB_CLUSTER: CapacityLedger()})
        self.committer = Committer(self.store, self.cache, lambda _change, _record: None, lambda _uid: None)
        self.hub = AppWrapperInformer(self.client, Discovery(self.client), self.note, self.is_known)
        self.failed: list[str] = []
        context = AttemptContext(
            self.hub,
            {},
            Specs(self.store),
            "benchmark",
            lambda: datetime.now(UTC),
            lambda _gang, _queues, _cluster: None,
            Seals(b"key", datetime.now(UTC)),
        )
        self.intake = Intake(
            context,
            self.cache,
            self.committer,
            lambda _record: None,
            self.failed.append,
            lambda: True,
            IntakeRules(
                self.limits(),
                authors=None,
                believes_stamps=False,
                denied_namespaces=frozenset(),
                takes_secrets=False,
                pod_defaults=_no_defaults,
            ),
        )

    def limits(self) -> Limits:
        """No ceilings, no queues and no labels of namespaces; a bound that no benchmark reaches."""
        return Limits(
            ChargeRule.LARGER,
            lambda _namespace: NO_CEILING,
            QueueBound(sys.maxsize, lambda _namespace: 0),
            self.note,
            BUILT_IN,
            LabelResolver(lambda _namespace: {}, DeclaredQueues, PriorityClasses),
        )

    def is_known(self, uid: str) -> bool:
        """True after its intake."""
        return self.cache.get(uid) is not None

    def note(self, _uid: str) -> None:
        """Does nothing: `take_in` reads the views."""

    async def list_all(self) -> None:
        """Returns after the list; the watch continues."""
        await self.hub.wait_until_listed()

    async def take_in(self) -> None:
        """Runs the intake of all of them."""
        for view in self.hub.views():
            self.intake.add(view.uid)
        await self.intake.take_in_all()


async def _no_defaults(_requirements: ClusterRequirements, _classes: frozenset[str]) -> ClusterDefaults:
    return ClusterDefaults()


async def measure(server: str, url: str) -> None:
    """Lists them, takes them in, and returns the costs."""
    database = Database(url, idle_timeout=timedelta(seconds=60))
    leadership = Leadership(database, holder="benchmark", lease=timedelta(seconds=300))
    lease = await leadership.acquire()
    assert lease is not None  # noqa: S101  # the database is nobody else's
    await ensure_partitions(database, lease, lease.database_now)
    store = TimedStore(database, lambda: lease)
    before = peak_memory(os.getpid())
    async with ClusterClient(ApiClient(configuration=Configuration(host=server))) as client:
        leader, meter = Leader(client, store), Meter(store)
        tasks = [asyncio.create_task(leader.hub.run()), asyncio.create_task(leader.committer.run())]
        began = time.perf_counter()
        print(
            f"{ACCEPTABLE} of {LARGEST_SPEC} bytes, {TOO_LARGE} of 1.4 MB of lists; {os.cpu_count()} processors"
        )
        for what, work in (
            ("list", leader.list_all),
            ("take in", leader.take_in),
        ):
            taken = await meter.measure(work())
            grown = (peak_memory(os.getpid()) - before) / 2**20
            print(
                f"{what:8} {taken.wall:7.1f} s, {taken.cpu:6.1f} s of processor, longest stretch "
                f"{taken.longest_stretch * 1000:5.0f} ms of processor, longest block "
                f"{taken.longest_block * 1000:5.0f} ms, peak memory +{grown:.0f} MiB"
            )
        phases = [record.phase for record in leader.cache.records()]
        print(
            f"all      {time.perf_counter() - began:7.1f} s: {phases.count(Phase.QUEUED)} queued, "
            f"{phases.count(Phase.FAILED)} refused, {len(leader.failed)} not taken in"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await database.close()


if __name__ == "__main__":
    sys.exit(main())
