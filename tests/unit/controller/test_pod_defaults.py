"""The defaults of the clusters that a gang may go to: each has its own, and a member delays or rejects no gang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.api.names import CLUSTER_SELECTOR
from dispatcher.api.selector import parse_selector
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.pod_defaults import ANSWER_SECONDS, PAUSE_SECONDS, PodDefaultsOfClusters
from dispatcher.core.kinds.pods.pod_defaults import ClusterDefaults, PodDefaults
from dispatcher.core.model.records.record import Phase
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from tests.builders import make_appwrapper, make_template
from tests.fakes import FakeApiServer, Reply, answer, client_of, never, refusal
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

RANGES = "/api/v1/namespaces/team/limitranges"
KATA = "/apis/node.k8s.io/v1/runtimeclasses/kata"
ANYWHERE = ClusterRequirements(namespace="team")
NONE: frozenset[str] = frozenset()


def default_of(**requests: str) -> Reply:
    limits = [{"type": "Container", "defaultRequest": requests}]
    return answer({"items": [{"spec": {"limits": limits}}]})


class Bench:
    """A hub and two members, each with its default, of which `allowed` may take the gang."""

    def __init__(self, servers: dict[str, FakeApiServer], clusters: dict[str, WatchedCluster]) -> None:
        self.servers = servers
        self.allowed = ["east", "west"]
        self.defaults = PodDefaultsOfClusters(
            clusters["hub"], lambda _: [clusters[name] for name in self.allowed], monotonic
        )
        self.servers["hub"].on("GET", RANGES, default_of(cpu="3"))
        self.servers["east"].on("GET", RANGES, default_of(cpu="1", memory="1Gi"))
        self.servers["west"].on("GET", RANGES, default_of(cpu="2"))

    async def requests(self) -> dict[str, object]:
        return dict((await self.defaults.read(ANYWHERE, NONE)).largest.requests)

    def asked(self, name: str) -> int:
        return len(self.servers[name].requests("GET", RANGES))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(FakeApiServer()) for name in ("hub", "east", "west")}
        clients = {name: client_of(server) for name, server in servers.items()}
        clusters = {
            name: WatchedCluster(
                name,
                client,
                CapacityLedger(),
                on_capacity=lambda: None,
                on_pods=lambda _: None,
                monotonic=monotonic,
            )
            for name, client in clients.items()
        }
        yield Bench(servers, clusters)
        for client in clients.values():
            await client.close()


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        pytest.param(["east"], {"cpu": "1", "memory": "1Gi"}, id="one-member"),
        pytest.param(["east", "west"], {"cpu": "2", "memory": "1Gi"}, id="two-members"),
        pytest.param(["hub"], {"cpu": "3"}, id="the-hub"),
        pytest.param(["hub", "east"], {"cpu": "3", "memory": "1Gi"}, id="the-hub-and-a-member"),
        pytest.param([], {"cpu": "3"}, id="no-connected-cluster"),
    ],
)
async def test_largest_defaults_of_the_clusters_count(
    bench: Bench, allowed: list[str], expected: dict[str, object]
) -> None:
    bench.allowed = allowed
    assert await bench.requests() == expected
    assert {name for name in bench.servers if bench.asked(name)} == set(allowed or ["hub"])


async def test_overhead_is_that_of_the_member(bench: Bench) -> None:
    for name, cpu in (("hub", "4"), ("east", "1"), ("west", "2")):
        bench.servers[name].on("GET", KATA, answer({"overhead": {"podFixed": {"cpu": cpu}}}))
    found = await bench.defaults.read(ANYWHERE, frozenset({"kata"}))
    east = PodDefaults({"cpu": "1", "memory": "1Gi"}, {"kata": {"cpu": "1"}})
    west = PodDefaults({"cpu": "2"}, {"kata": {"cpu": "2"}})
    largest = PodDefaults({"cpu": "2", "memory": "1Gi"}, {"kata": {"cpu": "2"}})
    assert found == ClusterDefaults(largest, {"east": east, "west": west})


async def test_own_defaults_of_a_cluster_are_known_only_if_it_shows_them(bench: Bench) -> None:
    bench.servers["west"].on("GET", RANGES, refusal(403, "Forbidden"))
    bench.allowed = ["hub", "east", "west"]
    found = await bench.defaults.read(ANYWHERE, NONE)
    assert found.own == {"hub": PodDefaults({"cpu": "3"}), "east": PodDefaults({"cpu": "1", "memory": "1Gi"})}


async def test_defaults_of_the_hub_replace_defaults_that_a_member_refuses_to_show(bench: Bench) -> None:
    bench.servers["east"].on("GET", RANGES, refusal(403, "Forbidden"))
    assert await bench.requests() == {"cpu": "3"}


async def test_member_that_does_not_answer_delays_intake_once_a_minute(bench: Bench) -> None:
    bench.servers["west"].on("GET", RANGES, never)
    start = monotonic()
    with capture_logs() as logs:
        assert await bench.requests() == {"cpu": "3", "memory": "1Gi"}
        assert await bench.requests() == {"cpu": "3", "memory": "1Gi"}
    assert (monotonic() - start, bench.asked("west")) == (ANSWER_SECONDS, 1)
    assert [(each["event"], each["cluster"]) for each in logs] == [("pod_defaults_not_read", "west")]

    bench.servers["west"].on("GET", RANGES, default_of(cpu="2"))
    await asyncio.sleep(PAUSE_SECONDS)
    assert await bench.requests() == {"cpu": "2", "memory": "1Gi"}


async def test_intake_waits_for_a_hub_that_does_not_answer(bench: Bench) -> None:
    bench.servers["hub"].on("GET", RANGES, refusal(503, "Unavailable"))
    bench.allowed = ["hub", "east"]
    with pytest.raises(errors.Unavailable):
        await bench.requests()


class GivenDefaults:
    """Defaults of pods that a test sets, and the requirements for which intake has read them."""

    def __init__(self, defaults: ClusterDefaults) -> None:
        self._defaults = defaults
        self.requirements: list[ClusterRequirements] = []

    async def read(self, requirements: ClusterRequirements, _classes: frozenset[str]) -> ClusterDefaults:
        self.requirements.append(requirements)
        return self._defaults


async def test_intake_reads_the_defaults_of_the_clusters_that_the_appwrapper_selects(world: World) -> None:
    given = GivenDefaults(ClusterDefaults(PodDefaults({"memory": "1Gi"})))
    world.intake = world.make_intake(pod_defaults=given.read)
    record = await world.admit(make_appwrapper(annotations={CLUSTER_SELECTOR: "zone=west"}))
    (requirements,) = given.requirements
    assert (requirements.namespace, requirements.selector) == (
        "default",
        parse_selector("zone=west", "selector"),
    )
    assert dict(record.gang.demand) == {"cpu": 1000, "memory": 2**30}


async def test_defaults_beyond_all_bounds_reject_no_appwrapper(world: World) -> None:
    given = GivenDefaults(ClusterDefaults(PodDefaults({"memory": f"{2**63 - 1}"})))
    world.intake = world.make_intake(pod_defaults=given.read)
    two = make_appwrapper("aw", make_template(name="one"), make_template(name="two"))
    record = await world.admit(two)
    assert (record.phase, dict(record.gang.demand)) == (Phase.QUEUED, {"cpu": 2000})


async def test_record_has_the_demand_of_each_cluster_that_adds_less(world: World) -> None:
    large, small = PodDefaults({"memory": "2Gi"}), PodDefaults({"memory": "1Gi"})
    own = {"east": small, "west": large, "north": small}
    world.intake = world.make_intake(pod_defaults=GivenDefaults(ClusterDefaults(large, own)).read)
    gang = (await world.admit(make_appwrapper())).gang
    demands = {name: dict(gang.in_cluster(name).demand) for name in (*own, "another")}
    assert demands == {
        "east": {"cpu": 1000, "memory": 2**30},
        "west": {"cpu": 1000, "memory": 2**31},
        "north": {"cpu": 1000, "memory": 2**30},
        "another": {"cpu": 1000, "memory": 2**31},
    }
    assert [name for name, _ in gang.smaller] == ["east", "north"]
