"""The statuses of DispatchQueues: what is written, and when nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep.queue_status_writer import QueueStatusWriter
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Phase
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue, read_dispatch_queue
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.status.conditions import Shown, project
from dispatcher.kube.client import ClusterClient
from tests.builders import at, make_record, make_snapshot, make_snapshots
from tests.fakes import FakeApiServer, Reply, answer, hang_up, never, refusal
from tests.unit.virtual_time import monotonic

Json = dict[str, Any]

QUEUES = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"
CREATED = "2026-11-20T08:58:06Z"
CPU = {"cpu": {"nominalQuota": 4}}
PERIOD_SECONDS = 10.0


def status_path(name: str) -> str:
    return f"{QUEUES}/{name}/status"


class Bench:
    """DispatchQueues at an API server that stores statuses, as the watch shows them; and a writer over them."""

    def __init__(self, server: FakeApiServer, client: ClusterClient) -> None:
        self.server = server
        self.cache = Cache({})
        self.found: dict[str, DispatchQueue] = {}
        self.clusters = make_snapshots(hub=make_snapshot(cpu=16_000))
        self.asked_for_snapshots = 0
        self.declared = DeclaredQueues()
        self.told: list[tuple[str, str]] = []
        self.writer = QueueStatusWriter(
            self,
            self.cache,
            self,
            client,
            lambda: at(int(monotonic())),
            PERIOD_SECONDS,
            monotonic,
            lambda record, message: self.told.append((record.name, message)),
        )

    @property
    def dispatch_queues(self) -> Iterable[DispatchQueue]:
        return self.found.values()

    def snapshots(self, _requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        self.asked_for_snapshots += 1
        return self.clusters

    def declare(self, name: str, uid: str = "", **spec: object) -> None:
        """Declare a queue, or change it; the API server takes its status, and the watch shows it."""
        document = {"metadata": {"name": name}, "spec": spec}
        self.found[name] = read_dispatch_queue(document, name, uid or f"uid-of-{name}", CREATED)
        self.declared = DeclaredQueues.of(self.found.values(), [])
        self.server.on("PATCH", status_path(name), self.stores(name))

    def start(self) -> asyncio.Task[None]:
        """Have the writer run."""
        return asyncio.create_task(self.writer.run())

    def stores(self, name: str) -> Reply:
        async def reply(request: web.Request) -> web.StreamResponse:
            self.found[name] = replace(self.found[name], status=(await request.json())[1]["value"])
            return await answer({})(request)

        return reply

    def runs(self, name: str, queue: str, cpu: int = 1000) -> None:
        """A gang of a queue runs on the hub."""
        gang = Gang(Resources({"cpu": cpu}))
        self.cache.put(make_record(Phase.RUNNING, name, queue=queue, gang=gang))

    def writes(self) -> list[tuple[str, Json]]:
        """The queues whose status was written, in order, each with the status."""
        asked = self.server.requests("PATCH")
        return [(each.path.split("/")[-2], each.body[1]["value"]) for each in asked]

    def written(self) -> list[str]:
        """The names of the queues whose status was written since the last call."""
        names = [name for name, _ in self.writes()]
        self.server.asked.clear()
        return names


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(server: FakeApiServer, client: ClusterClient) -> Bench:
    """A hub without DispatchQueues."""
    return Bench(server, client)


async def test_status_is_written_under_the_uid_that_was_counted(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    bench.runs("train", "team")
    await bench.writer.write()
    (asked,) = bench.server.requests("PATCH")
    assert asked.path == status_path("team")
    test, change = asked.body
    assert test == {"op": "test", "path": "/metadata/uid", "value": "uid-of-team"}
    assert (change["op"], change["path"]) == ("add", "/status")
    status = change["value"]
    assert (status["used"], status["running"], status["state"]) == ({"cpu": "1"}, 1, "Active")


async def test_nothing_is_written_that_the_api_server_has(bench: Bench) -> None:
    bench.declare("org")
    bench.declare("team", parent="org", resources=CPU)
    bench.declare("lost", parent="nobody")
    bench.runs("train", "team")
    await bench.writer.write()
    assert bench.written() == ["org", "team", "lost"]
    await asyncio.sleep(100)
    await bench.writer.write()
    assert bench.written() == []


async def test_only_queues_that_changed_are_written(bench: Bench) -> None:
    bench.declare("org")
    bench.declare("a", parent="org", resources=CPU)
    bench.declare("b", parent="org", resources=CPU)
    await bench.writer.write()
    bench.written()
    bench.declare("c", resources=CPU)
    bench.cache.put(make_record(name="waits", queue="a"))
    await bench.writer.write()
    assert bench.written() == ["org", "a", "c"]


async def test_status_that_the_watch_has_not_shown_yet_is_not_written_again(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    bench.server.on("PATCH", status_path("team"), answer({}))
    await bench.writer.write()
    await bench.writer.write()
    assert bench.written() == ["team"]
    bench.runs("train", "team")
    await bench.writer.write()
    ((_, status),) = bench.writes()
    assert status["conditions"][0]["lastTransitionTime"] == CREATED


async def test_queue_status_changed_by_another_client_is_written_again(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    await bench.writer.write()
    bench.written()
    bench.found["team"] = replace(bench.found["team"], status={"state": "Hold"})
    await bench.writer.write()
    assert bench.written() == ["team"]


async def test_queue_that_was_made_anew_gets_a_status_of_its_own(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    await bench.writer.write()
    bench.declare("team", uid="another", resources=CPU)
    await bench.writer.write()
    assert [each.body[0]["value"] for each in bench.server.requests("PATCH")] == ["uid-of-team", "another"]


async def test_fair_shares_are_of_what_the_clusters_have(bench: Bench) -> None:
    bench.clusters = make_snapshots(east=make_snapshot(cpu=6_000), west=make_snapshot(cpu=8_000))
    bench.clusters["east"] = replace(bench.clusters["east"], labels={"gpu": "a100"})
    bench.declare("org", sharing="Division", clusterSelector="gpu=a100")
    bench.declare("team", parent="org", resources=CPU)
    bench.cache.put(make_record(name="waits", queue="team", gang=Gang(Resources({"cpu": 20_000}))))
    await bench.writer.write()
    assert dict(bench.writes())["team"]["fairShare"] == {"cpu": "6"}


async def test_without_declared_queues_nothing_is_counted(bench: Bench) -> None:
    bench.runs("train", "default")
    await bench.writer.write()
    assert (bench.asked_for_snapshots, bench.writer.states) == (0, {})
    bench.declare("team")
    await bench.writer.write()
    assert bench.writer.states["default"].running == 1
    bench.found, bench.declared = {}, DeclaredQueues()
    await bench.writer.write()
    assert bench.writer.states == {}


@pytest.mark.parametrize(
    ("reply", "others"),
    [
        pytest.param(refusal(404, "NotFound"), True, id="deleted"),
        pytest.param(refusal(409, "Conflict"), True, id="conflict"),
        pytest.param(refusal(422, "Invalid"), True, id="another-uid"),
        pytest.param(refusal(403, "Forbidden"), False, id="no-right"),
        pytest.param(refusal(500, "InternalError"), False, id="fails"),
        pytest.param(hang_up, False, id="hangs-up"),
        pytest.param(never, False, id="silent"),
    ],
)
async def test_queue_status_that_cannot_be_written_is_logged_once_and_written_later(
    bench: Bench, reply: Reply, others: bool
) -> None:
    bench.declare("a")
    bench.declare("b")
    bench.server.on("PATCH", status_path("a"), reply)
    running = bench.start()
    with capture_logs() as logs:
        await asyncio.sleep(65)
    assert [each["event"] for each in logs] == ["queue_status_not_written"]
    assert ("b" in [name for name, _ in bench.writes()]) is others
    bench.server.on("PATCH", status_path("a"), bench.stores("a"))
    bench.written()
    await asyncio.sleep(30)
    assert bench.written() == (["a"] if others else ["a", "b"])
    await stop(running)


async def test_a_round_comes_every_ten_seconds(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    running = bench.start()
    for number in range(60):
        bench.runs(f"gang-{number}", "team")
        await asyncio.sleep(1)
    assert 6 <= len(bench.written()) <= 7
    await stop(running)


async def test_a_defect_does_not_end_the_rounds(bench: Bench) -> None:
    bench.declare("team")
    bench.runs("train", "team")
    bench.clusters = None  # type: ignore[assignment]  # whatever a defect may be
    running = bench.start()
    with capture_logs() as logs:
        await asyncio.sleep(5)
        assert [each["event"] for each in logs] == ["internal_error"]
    bench.clusters = {}
    await asyncio.sleep(10)
    assert bench.written() == ["team"]
    await stop(running)


BEYOND = (
    "it holds 2 cpu beyond its demand, and queue team uses more than it may (nominal 4): no gang is evicted for that, "
    "but the queue's gangs may be preempted, and others wait"
)


async def test_gang_that_grew_beyond_its_quota_shows_that_as_long_as_it_lasts(
    bench: Bench,
) -> None:
    bench.declare("team", resources=CPU)
    bench.runs("other", "team", cpu=1000)
    bench.runs("ray", "team", cpu=2000)
    assert bench.writer.beyond_quota_of("uid-of-ray") is None
    await bench.writer.write()
    assert (bench.writer.beyond_quota_of("uid-of-ray"), bench.told) == ("", [])

    record = bench.cache.get("uid-of-ray")
    assert record is not None
    grown = run_changes.note_growth(record, Resources({"cpu": 4000}), at(20)).after
    bench.cache.put(grown)
    await bench.writer.write()
    await bench.writer.write()
    assert (bench.writer.beyond_quota_of("uid-of-ray"), bench.told) == (BEYOND, [("ray", BEYOND)])
    assert bench.writer.states["team"].used == {"cpu": 5000}

    bench.declare("team", resources={"cpu": {"nominalQuota": 5}})
    await bench.writer.write()
    assert (bench.writer.beyond_quota_of("uid-of-ray"), bench.told[1:]) == ("", [("ray", "")])


async def test_gang_that_grew_beyond_its_quota_of_pods_shows_that(bench: Bench) -> None:
    bench.declare("team", resources={"pods": {"nominalQuota": 2}})
    bench.runs("ray", "team", cpu=1000)
    record = bench.cache.get("uid-of-ray")
    assert record is not None
    grown = run_changes.note_growth(record, record.gang.demand, at(20), count=3).after
    bench.cache.put(grown)
    await bench.writer.write()
    told = bench.writer.beyond_quota_of("uid-of-ray") or ""
    assert "it holds 3 pods beyond its demand" in told
    assert "queue team uses more than it may (nominal 2)" in told
    assert bench.writer.states["team"].used == {"pods": 3}
    assert project(grown, Shown(beyond_quota=told))["beyondQuota"] == told


async def test_gang_that_grew_into_borrowed_quota_shows_no_excess(bench: Bench) -> None:
    bench.declare("company")
    bench.declare("team", parent="company", resources=CPU)
    bench.declare("lender", parent="company", resources=CPU)
    bench.runs("ray", "team", cpu=4000)
    record = bench.cache.get("uid-of-ray")
    assert record is not None
    bench.cache.put(run_changes.note_growth(record, Resources({"cpu": 8000}), at(20)).after)
    await bench.writer.write()
    assert bench.writer.beyond_quota_of("uid-of-ray") == ""


async def test_first_round_of_a_leader_renews_the_statuses_that_an_earlier_one_wrote(bench: Bench) -> None:
    """The quota was raised while no dispatcher led, and the status still says that the gang is beyond it."""
    bench.declare("team", resources=CPU)
    bench.runs("other", "team", cpu=1000)
    bench.runs("ray", "team", cpu=2000)
    record = bench.cache.get("uid-of-ray")
    assert record is not None
    bench.cache.put(run_changes.note_growth(record, Resources({"cpu": 3000}), at(20)).after)
    await bench.writer.write()
    await bench.writer.write()
    assert bench.told == [("ray", "")]


async def test_excess_of_a_gang_ends_when_no_queue_is_declared_any_more(bench: Bench) -> None:
    bench.declare("team", resources=CPU)
    bench.runs("ray", "team", cpu=4000)
    record = bench.cache.get("uid-of-ray")
    assert record is not None
    bench.cache.put(run_changes.note_growth(record, Resources({"cpu": 6000}), at(20)).after)
    await bench.writer.write()
    bench.found, bench.declared = {}, DeclaredQueues()
    await bench.writer.write()
    await bench.writer.write()
    assert [bool(message) for _, message in bench.told] == [True, False]
