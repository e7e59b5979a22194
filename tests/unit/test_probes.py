"""What a running dispatcher answers: alive, ready, and its figures."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from dispatcher.listener import MOST_CONNECTIONS
from dispatcher.probes import SHARED_FOR, Health, Metrics, MetricValues, Role, serve
from tests.metrics import full_metrics

LISTS = "leader: waiting for the first complete lists of AppWrappers, nodes, pods, namespaces and queues"


def leader(*, lists: bool, problem: str = "", concern: str = "") -> Health:
    return Health(Role.LEADER, problem, watches_ready=lambda: lists, concern=lambda: concern)


VERDICTS = [
    pytest.param(Health(), False, "starting: it has not reached the database yet", id="just-started"),
    pytest.param(Health(Role.STARTING, ""), False, "starting", id="starting"),
    pytest.param(Health(Role.STANDBY, ""), True, "standby", id="standby"),
    pytest.param(
        Health(Role.STANDBY, "database away"), False, "standby: database away", id="standby-without-database"
    ),
    pytest.param(leader(lists=False), False, LISTS, id="leader-before-its-lists"),
    pytest.param(leader(lists=True), True, "leader", id="leader"),
    pytest.param(
        leader(lists=True, concern="no members"), False, "leader: no members", id="leader-kept-from-its-work"
    ),
    pytest.param(leader(lists=True, problem="lost"), False, "leader: lost", id="leader-in-trouble"),
]


@pytest.mark.parametrize(("health", "ready", "line"), VERDICTS)
async def test_readiness_and_what_it_says(health: Health, ready: bool, line: str) -> None:
    assert health.verdict() == (ready, line)
    assert await get("readyz", health) == (200 if ready else 503, f"{line}\n")


async def test_liveness_holds_whatever_problem_the_process_has() -> None:
    assert await get("healthz", leader(lists=False, problem="everything")) == (200, "ok\n")


async def test_metrics_are_those_of_the_moment() -> None:
    status, text = await get("metrics", Health(), full_metrics())

    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#") and "_seconds" not in line]
    assert sorted(line for line in lines if "_created" not in line) == [
        'dispatcher_api_write_errors_total{error="Unavailable",resource="rayclusters",verb="post"} 1.0',
        'dispatcher_api_writes_total{resource="rayclusters",verb="post"} 4.0',
        'dispatcher_appwrappers{phase="Queued"} 2.0',
        'dispatcher_appwrappers{phase="Running"} 1.0',
        "dispatcher_author_policy_missing 0.0",
        'dispatcher_capacity_free{cluster="hub",resource="cpu"} -500.0',
        'dispatcher_capacity_total{cluster="hub",resource="cpu"} 8000.0',
        'dispatcher_cluster_reachable{cluster="hub"} 1.0',
        "dispatcher_database_up 1.0",
        "dispatcher_events_dropped_total 5.0",
        'dispatcher_internal_errors_total{worker="owners"} 6.0',
        "dispatcher_leading 1.0",
        'dispatcher_node_names_left_out{cluster="hub"} 8.0',
        'dispatcher_potential_failures_total{cluster="gke-west",pool="l4"} 1.0',
        "dispatcher_preemption_loops_total 0.0",
        'dispatcher_preemptions_total{reason="FairShare"} 1.0',
        'dispatcher_queue_borrowed{queue="team",resource="cpu"} 1500.0',
        'dispatcher_queue_depth{reason="InsufficientResources"} 2.0',
        'dispatcher_queue_nominal{queue="team",resource="cpu"} 4000.0',
        'dispatcher_queue_pending{queue="team"} 7.0',
        'dispatcher_queue_share{queue="team"} +Inf',
        'dispatcher_queue_used{queue="team",resource="cpu"} 5500.0',
        "dispatcher_ready 1.0",
        'dispatcher_watch_failing{cluster="hub",watch="pods"} 0.0',
        'dispatcher_watch_reconnects_total{cluster="hub",watch="pods"} 3.0',
    ]


async def test_scrapes_soon_after_one_share_its_answer() -> None:
    """With a long queue an answer takes the event loop a part of a second, and anybody can ask for it."""
    metrics, gathered, now = Metrics(), list[float](), 0.0

    def gather() -> MetricValues:
        nonlocal now
        now += 0.5  # as long as it takes
        gathered.append(now)
        return MetricValues(events_dropped=len(gathered))

    metrics.metric_values = gather
    async with serve("127.0.0.1", 0, Health(), metrics, monotonic=lambda: now) as port:
        several = await asyncio.gather(*(_scraped(port) for _ in range(8)))
        assert len(set(several)) == len(gathered) == 1
        now = 0.5 + SHARED_FOR * 0.5 - 0.1
        assert await _scraped(port) == several[0]
        now += 0.1
        later = [await _scraped(port) for _ in range(2)]
    assert gathered == [0.5, 1.0 + SHARED_FOR * 0.5]
    assert "dispatcher_events_dropped_total 2.0" in later[0].splitlines()
    assert later[0] == later[1]


async def test_two_dispatchers_in_one_process_have_metrics_of_their_own() -> None:
    first, second = Metrics(), Metrics()
    first.leading.set(1)
    assert "dispatcher_leading 0.0" in (await get("metrics", Health(), second))[1]


async def test_probe_is_answered_whatever_number_of_idle_connections_is_open() -> None:
    async with serve("127.0.0.1", 0, Health(), Metrics()) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4 * MOST_CONNECTIONS)]
        assert await _asked(port) == 200

        for oldest, _ in idle[:-MOST_CONNECTIONS]:
            assert await ended(oldest), "the oldest give way"
        for _, writer in idle:
            writer.close()


async def test_probe_that_has_begun_is_answered_while_another_address_opens_ever_new_connections() -> None:
    async with serve("127.0.0.1", 0, Health(), Metrics()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        flood = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            for _ in range(4 * MOST_CONNECTIONS)
        ]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, each in [(reader, writer), *flood]:
            each.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half-a-header"]
)
async def test_connection_that_sends_no_whole_request_is_ended(sent: bytes) -> None:
    async with serve("127.0.0.1", 0, Health(), Metrics(), most_seconds=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await ended(reader)
        writer.close()


async def test_connection_serves_one_request() -> None:
    async with serve("127.0.0.1", 0, Health(), Metrics()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """True once the server has ended the connection without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def _scraped(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        return await response.text()


async def _asked(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/healthz") as response,
    ):
        return response.status


async def get(path: str, health: Health, metrics: Metrics | None = None) -> tuple[int, str]:
    """The answer of a dispatcher that serves for just this question."""
    async with (
        serve("127.0.0.1", 0, health, metrics or Metrics()) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/{path}") as response,
    ):
        return response.status, await response.text()
