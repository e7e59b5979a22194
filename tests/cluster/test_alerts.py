"""Each alert fires for its trouble, and the dashboard has series: a real Prometheus scrapes real dispatchers.

The rules are those of manifests/components/monitoring, with short windows and without `for`, so that a test waits for a
scrape and not for minutes. Every test sees its alert quiet, causes the trouble, and sees it fire.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.types.json import Jsonb

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.store import migrate
from testbed import monitoring
from testbed.monitoring import Prometheus, Scrape
from testbed.plane import write_private
from testbed.ports import Ports
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Process, Supervisor
from testbed.proxy import ApiProxy, Exchange, Fault, Reply
from tests import dashboard
from tests.alerts import COMPONENT, read_rules
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import Json, appwrapper, changed, item, job, pod
from tests.cluster.world import World
from tests.postgres.changes import forget_replay

pytestmark = pytest.mark.exhaustive

SHORT = {"[5m]": "[4s]", "[30m]": "[4s]", "[1h]": "[20s]", "offset 1h": "offset 20s", "86400": "1"}
"""Windows and bounds of the rules, and those of the tests: twenty scrapes at least."""
OFTEN = {"poll_seconds": "0.2", "lease_seconds": "4", "renew_seconds": "0.5", "write_timeout_seconds": "1"}


def shortened(rules: str) -> str:
    """The rules with the windows of `SHORT` and without `for`; fails if one of these is not in the rules any more."""
    for long, short in SHORT.items():
        assert long in rules
        rules = rules.replace(long, short)
    return re.sub(r"\n +for: .*", "", rules)


@pytest.fixture(scope="module")
def port(supervisor: Supervisor) -> Iterator[int]:
    """The port on which the dispatcher of each test serves its metrics."""
    ports = Ports("metrics")
    yield ports["metrics"]
    ports.release()


@pytest.fixture(scope="module")
def prometheus(
    supervisor: Supervisor, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus with the rules that scrapes the dispatcher of each test."""
    binaries = monitoring.find()
    if binaries is None:
        pytest.skip(monitoring.PROVIDE)
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(shortened((COMPONENT / "rules.yaml").read_text()))
    prometheus = Prometheus(supervisor, binaries, rules, Scrape({"pod-0": f"127.0.0.1:{port}"}))
    prometheus.up()
    yield prometheus
    prometheus.down()


class Watch:
    """Dispatchers that are scraped, one at a time, and what Prometheus says of them."""

    def __init__(self, prometheus: Prometheus, world: World, port: int) -> None:
        self._prometheus = prometheus
        self._world = world
        self._port = port

    async def start(self, api: ApiProxy | None = None, **settings: str) -> Process:
        """Run a dispatcher with cycles several times a second, on that wire if there is one."""
        wire = {"kubeconfig": str(api.kubeconfig(self._world.plane))} if api else {}
        return await self._world.start_dispatcher(
            **OFTEN | wire | {"listen_port": str(self._port)} | settings
        )

    async def until_quiet(self, alert: str) -> None:
        """Return once a leader with all its lists is scraped and the alert does not fire."""
        await self.until_series("sum(dispatcher_leading * dispatcher_ready)", lambda values: values == [1.0])
        await self._until(lambda: alert not in self._names(), f"{alert} does not fire")

    async def until_fires(self, alert: str, **labels: str) -> None:
        """Return once the alert fires with these labels."""

        def fires() -> bool:
            return any(
                each["alertname"] == alert and labels.items() <= each.items()
                for each in self._prometheus.firing()
            )

        await self._until(fires, f"{alert} fires")

    async def until_series(self, query: str, are_right: Callable[[list[float]], bool]) -> None:
        """Return once the values of a query are as they should be."""

        def look() -> bool:
            return are_right([float(each["value"][1]) for each in self._prometheus.query(query)])

        await self._until(look, query)

    async def _until(self, look: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(self._prometheus.until, look, what)

    def _names(self) -> set[str]:
        return {each["alertname"] for each in self._prometheus.firing()}


@pytest.fixture
def watch(prometheus: Prometheus, world: World, port: int) -> Iterator[Watch]:
    """A watch on the dispatchers of this test; when it ends, none is up."""
    yield Watch(prometheus, world, port)
    world.stop_dispatchers()
    prometheus.until(lambda: not prometheus.query("up == 1"), "no dispatcher is up")


@pytest.fixture
async def api(world: World) -> AsyncIterator[ApiProxy]:
    """The wire between dispatchers and the hub; dispatchers end before it does."""
    async with ApiProxy.of(world.plane) as api:
        yield api
        await world.kill_dispatchers()


def gpu_pod(name: str) -> Json:
    """A pod of one GPU."""
    gpu = {"nvidia.com/gpu": "1"}
    return changed(pod(name, gpu), "spec.containers.0.resources.limits", gpu)


def is_of(collection: str) -> Callable[[Exchange], bool]:
    """True for lists and watches of a collection."""
    return lambda exchange: exchange.method == "GET" and exchange.path == f"/api/v1/{collection}"


async def test_no_leader(world: World, watch: Watch) -> None:
    process = await watch.start()
    await watch.until_quiet("DispatcherNoLeader")
    await world.stop_dispatcher(process)
    await watch.until_fires("DispatcherNoLeader", severity="critical")


async def test_cycle_that_does_not_come(world: World, watch: Watch) -> None:
    """A leader with nothing to do runs a cycle at each poll; one that polls in ten minutes stands still."""
    process = await watch.start()
    await watch.until_quiet("DispatcherCycleStalled")
    await world.stop_dispatcher(process)
    await watch.start(poll_seconds="600")
    await watch.until_fires("DispatcherCycleStalled", pod="pod-0")


async def test_database_that_is_away_and_comes_back(
    world: World, watch: Watch, supervisor: Supervisor
) -> None:
    postgres = EmbeddedPostgres(supervisor)
    await asyncio.to_thread(postgres.start)
    try:
        await asyncio.to_thread(migrate.migrate, postgres.url)
        world.database_url = postgres.url
        await watch.start()
        await watch.until_quiet("DispatcherDatabaseDown")
        await asyncio.to_thread(postgres.kill)
        await watch.until_fires("DispatcherDatabaseDown", pod="pod-0")
        await watch.until_fires("DispatcherNotReady", pod="pod-0")
        await asyncio.to_thread(postgres.start)
        await watch.until_quiet("DispatcherDatabaseDown")
        world.stop_dispatchers()
    finally:
        await asyncio.to_thread(postgres.close)


async def test_list_that_is_refused(world: World, watch: Watch, api: ApiProxy) -> None:
    api.rules.on(is_of("nodes"), Fault(reply=Reply(403)), times=10**6)
    await watch.start(api)
    await watch.until_series("sum(dispatcher_leading)", lambda values: values == [1.0])
    await watch.until_fires("DispatcherNotReady", pod="pod-0")
    await watch.until_fires("DispatcherWatchFailing", cluster="hub", watch="nodes")
    await watch.until_fires("DispatcherClusterUnreachable", cluster="hub")
    api.rules.clear()
    await watch.until_quiet("DispatcherNotReady")


async def test_watch_that_breaks_under_a_leader(world: World, watch: Watch, api: ApiProxy) -> None:
    await watch.start(api)
    await watch.until_quiet("DispatcherWatchFailing")
    api.rules.on(is_of("pods"), Fault(reply=Reply(503)), times=10**6)
    api.cut_watches()
    await watch.until_fires("DispatcherWatchFailing", cluster="hub", watch="pods")


async def test_member_that_does_not_answer(world: World, watch: Watch) -> None:
    """The member's address is that of nobody."""
    await watch.start(namespace=world.namespace, probe_seconds="0.5")
    await watch.until_quiet("DispatcherClusterUnreachable")
    nobody = yaml.safe_load(world.plane.kubeconfig.read_text())
    nobody["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    kubeconfig = write_private(world.plane.folder / "nobody.kubeconfig", yaml.safe_dump(nobody))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cluster-east"}}
    await world.create({**secret, "stringData": {"kubeconfig": kubeconfig.read_text()}})
    member = {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "MemberCluster",
        "metadata": {"name": "east"},
        "spec": {"kubeconfigSecretRef": {"name": "cluster-east"}},
    }
    created = await world.client.create(MEMBERS_PATH, member)
    try:
        await watch.until_fires("DispatcherClusterUnreachable", cluster="east")
    finally:
        await world.client.delete(f"{MEMBERS_PATH}/east", created["metadata"]["uid"])


async def test_writes_that_fail(world: World, watch: Watch, api: ApiProxy) -> None:
    await watch.start(api)
    await watch.until_quiet("DispatcherWriteErrors")
    api.rules.on(lambda each: each.path.endswith("/status"), Fault(reply=Reply(503)), times=10**6)
    await world.create(appwrapper("aw", item(job("aw"))))
    await watch.until_fires("DispatcherWriteErrors", resource="appwrappers/status", error="Unavailable")


async def test_gang_that_waits_at_the_head_while_most_is_free(world: World, watch: Watch) -> None:
    """One of three GPUs is taken, and the gang needs all three."""
    await watch.start()
    await watch.until_quiet("DispatcherIdleCapacity")
    await watch.until_quiet("DispatcherHeadBlocked")
    await world.create_until("Running", appwrapper("one", item(gpu_pod("one"))))
    await world.create(appwrapper("all", *(item(gpu_pod(f"all-{number}")) for number in range(3))))
    await watch.until_fires("DispatcherHeadBlocked")
    await watch.until_fires("DispatcherIdleCapacity")
    await world.delete("one")
    await watch.until_quiet("DispatcherHeadBlocked")


async def test_gang_that_cannot_be_counted(world: World, watch: Watch) -> None:
    """No object of a cluster causes an exception, so the row of a gang in the database is damaged."""
    await watch.start()
    await watch.until_quiet("DispatcherInternalErrors")
    await world.create_until("Running", appwrapper("aw", item(gpu_pod("aw"))))
    world.stop_dispatchers()
    damaged = [{"at": "2026-01-01T00:00:00+00:00", "amounts": {"cpu": "many"}}]
    with psycopg.connect(world.database_url) as connection:
        connection.execute("UPDATE attempt SET growth = %s", [Jsonb(damaged)])
    forget_replay(world.database_url)
    await watch.start()
    await watch.until_fires("DispatcherInternalErrors", worker="scheduler")


async def test_circle_of_preemptions_and_the_dashboard(world: World, watch: Watch, declare: Declare) -> None:
    """A user who raises the priority of a victim lets it preempt its preemptor; the dashboard has series of it all."""
    preemption = {"withinQueue": "LowerPriority"}
    await declare("company", sharing="DominantShare")
    await declare("default", parent="company", resources={"cpu": {"nominalQuota": 4}}, preemption=preemption)
    await watch.start()
    await watch.until_quiet("DispatcherPreemptionLoop")
    await world.create(appwrapper("first", item(job("first", cpu="3")), priority=1))
    await world.until_history("first", "pods-running")
    await world.create(appwrapper("second", item(job("second", cpu="3")), priority=2))
    await world.until_history("second", "pods-running")
    await world.merge("AppWrapper", "first", {"spec": {"priority": 3}})
    await watch.until_fires("DispatcherPreemptionLoop")

    for query in dashboard.queries(job="dispatcher", interval="20s").values():
        await watch.until_series(query, bool)


def test_every_alert_is_made_to_fire_here() -> None:
    text = Path(__file__).read_text()
    assert set(re.findall(r'until_fires\(\s*"(\w+)"', text)) == read_rules().keys()
