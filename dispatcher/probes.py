"""HTTP endpoints of a running dispatcher: liveness, readiness and metrics.

`/healthz` answers while the event loop runs. `/readyz` is 200 for a leader whose watches are complete and for a
standby that reaches the database; else 503 with the reason. `/metrics` is Prometheus text.

Anybody on the pod network reaches this port, and a liveness probe that finds no room restarts the leader. So each
connection serves one request, and `listener` bounds their number and their lives. The metrics of a long queue take the
event loop a part of a second, so requests that come soon after share one answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final, Protocol, cast

from aiohttp import web
from msgspec import Struct, field
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dispatcher.listener import MOST_SECONDS, listening


class Role(StrEnum):
    """The role of this process."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"


class Health(Struct):
    """The health of the loops; set by `app`, read by the probes."""

    role: Role = Role.STARTING
    problem: str = "it has not reached the database yet"
    watches_ready: Callable[[], bool] = field(default=lambda: False)
    concern: Callable[[], str] = field(default=str)
    """Returns why a leader whose watches are complete cannot work, as a sentence; empty if it can."""

    def verdict(self) -> tuple[bool, str]:
        """Return whether the process is ready, and one line with its role or its problem."""
        if self.problem:
            return False, f"{self.role}: {self.problem}"
        if self.role is Role.LEADER and not self.watches_ready():
            return (
                False,
                "leader: waiting for the first complete lists of AppWrappers, nodes, pods, namespaces and queues",
            )
        if self.role is Role.LEADER and (concern := self.concern()):
            return False, f"leader: {concern}"
        return self.role is not Role.STARTING, str(self.role)


Amounts = Mapping[tuple[str, ...], float]
"""Amounts by the values of their labels."""


class QueueMetricValues(Struct, frozen=True):
    """The values of declared queues, by queue and resource, or by queue alone; shares are in thousandths."""

    nominal: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    borrowed: Amounts = field(default_factory=dict)
    pending: Amounts = field(default_factory=dict)
    share: Amounts = field(default_factory=dict)


class MetricValues(Struct, frozen=True):
    """The leader's values at a scrape; amounts of resources are in base units (cpu in milli)."""

    phases: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)
    head_blocked: float = 0.0
    free: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    total: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    reachable: Mapping[str, bool] = field(default_factory=dict)
    failing: Mapping[tuple[str, ...], bool] = field(default_factory=dict)
    reconnects: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    writes: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    write_errors: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    events_dropped: int = 0
    internal_errors: Mapping[str, int] = field(default_factory=dict)
    queues: QueueMetricValues = field(default_factory=QueueMetricValues)


class Metrics(Collector):
    """The dispatcher's metrics: distributions are kept here, current values are computed at each scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metric_values: Callable[[], MetricValues] = MetricValues
        self.is_ready: Callable[[], bool] = lambda: False
        self.leading = Gauge("dispatcher_leading", "1 while this process leads", registry=self.registry)
        self.database_up = Gauge(
            "dispatcher_database_up",
            "1 if the database answered the last time that this process asked for the lease",
            registry=self.registry,
        )
        self.author_policy_missing = Gauge(
            "dispatcher_author_policy_missing",
            "1 if authors are to be checked by a policy of the API server that is not installed",
            registry=self.registry,
        )
        self.clock_off_seconds = Gauge(
            "dispatcher_clock_off_seconds",
            "How far the database's clock is ahead of the time that is kept, while it is not followed",
            registry=self.registry,
        )
        self.cycle_seconds = Histogram(
            "dispatcher_cycle_seconds",
            "Duration of one dispatch cycle, its commit included",
            registry=self.registry,
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.wait_seconds = Histogram(
            "dispatcher_wait_seconds",
            "From the creation of an AppWrapper to the decision to dispatch it",
            registry=self.registry,
            buckets=(0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
        )
        self.dispatch_seconds = Histogram(
            "dispatcher_dispatch_seconds",
            "From the decision to dispatch until every wrapped object was created",
            registry=self.registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300),
        )
        self.provisioning_seconds = Histogram(
            "dispatcher_provisioning_seconds",
            "From the dispatch of a gang until its request for capacity was answered, by the answer",
            ["answer"],
            registry=self.registry,
            buckets=(1, 5, 15, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600),
        )
        self.growth_grant_seconds = Histogram(
            "dispatcher_growth_grant_seconds",
            "From the creation of a pod beyond what its gang holds to the decision that it may start",
            registry=self.registry,
            buckets=(0.5, 1, 2, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
        )
        self.potential_failures = Counter(
            "dispatcher_potential_failures",
            "Pools whose nodes did not come for a gang that was dispatched on trust",
            ["cluster", "pool"],
            registry=self.registry,
        )
        self.preemptions = Counter(
            "dispatcher_preemptions",
            "Gangs that were preempted for another gang, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.preemption_loops = Counter(
            "dispatcher_preemption_loops",
            "Preemptions that closed a circle of gangs, each preempted for the next within 24 hours",
            registry=self.registry,
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values, for one scrape."""
        now = self.metric_values()
        yield GaugeMetricFamily("dispatcher_ready", "1 while /readyz is 200", value=self.is_ready())
        yield _gauge("dispatcher_appwrappers", "AppWrappers by phase", ["phase"], _by_name(now.phases))
        yield _gauge(
            "dispatcher_queue_depth", "Queued AppWrappers by why they wait", ["reason"], _by_name(now.waiting)
        )
        yield _gauge(
            "dispatcher_queue_oldest_seconds",
            "Age of the oldest queued AppWrapper by why it waits",
            ["reason"],
            _by_name(now.oldest),
        )
        yield GaugeMetricFamily(
            "dispatcher_head_blocked_seconds",
            "Longest time since a queued gang was first blocked at the head",
            value=now.head_blocked,
        )
        yield from _of_clusters(now)
        yield from _of_queues(now.queues)
        yield _counter(
            "dispatcher_events_dropped", "Kubernetes Events not written", [], {(): now.events_dropped}
        )
        yield _counter(
            "dispatcher_internal_errors",
            "Unexpected exceptions, by the worker that went on after them; the log has each",
            ["worker"],
            _by_name(now.internal_errors),
        )


def _of_clusters(now: MetricValues) -> Iterator[Metric]:
    yield _gauge(
        "dispatcher_cluster_reachable",
        "1 while the cluster's API server answers and its capacity is known",
        ["cluster"],
        _by_name(now.reachable),
    )
    yield _gauge(
        "dispatcher_capacity_total",
        "Allocatable amount of the usable nodes in base units (cpu in milli)",
        ["cluster", "resource"],
        now.total,
    )
    yield _gauge(
        "dispatcher_capacity_free",
        "Free amount in base units (cpu in milli), outstanding demand taken off; negative is a debt",
        ["cluster", "resource"],
        now.free,
    )
    yield _gauge(
        "dispatcher_node_names_left_out",
        "Resources, labels and taints of nodes beyond the bounds, which do not count",
        ["cluster"],
        _by_name(now.left_out),
    )
    yield _gauge(
        "dispatcher_watch_failing",
        "1 from a failed list or watch until the watch works again",
        ["cluster", "watch"],
        now.failing,
    )
    yield _counter("dispatcher_watch_reconnects", "Broken watches", ["cluster", "watch"], now.reconnects)
    yield _counter("dispatcher_api_writes", "Writes sent to API servers", ["verb", "resource"], now.writes)
    yield _counter(
        "dispatcher_api_write_errors",
        "Writes to API servers that failed",
        ["verb", "resource", "error"],
        now.write_errors,
    )


def _of_queues(queues: QueueMetricValues) -> Iterator[Metric]:
    by_resource, unit = ["queue", "resource"], "in base units (cpu in milli)"
    yield _gauge("dispatcher_queue_nominal", f"Nominal quota {unit}", by_resource, queues.nominal)
    yield _gauge(
        "dispatcher_queue_used",
        f"Demand of the gangs that hold capacity, with those of the queues below, {unit}",
        by_resource,
        queues.used,
    )
    yield _gauge(
        "dispatcher_queue_borrowed", f"Use beyond the own quota {unit}", by_resource, queues.borrowed
    )
    yield _gauge(
        "dispatcher_queue_pending",
        "AppWrappers that wait, with those of the queues below",
        ["queue"],
        queues.pending,
    )
    yield _gauge(
        "dispatcher_queue_share",
        "Dominant share of what could be borrowed, in thousandths, divided by the weight; +Inf with weight 0",
        ["queue"],
        queues.share,
    )


def _by_name(amounts: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): amount for name, amount in amounts.items()}


def _gauge(name: str, text: str, labels: list[str], amounts: Amounts) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, amount in amounts.items():
        family.add_metric(list(values), amount)
    return family


def _counter(name: str, text: str, labels: list[str], amounts: Amounts) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, amount in amounts.items():
        family.add_metric(list(values), amount)
    return family


SHARED_FOR: Final = 10
"""Times as long as it took to make an answer with the metrics, it is given again: metrics take a tenth of the event
loop at most."""


class Exposed(Protocol):
    """What a process serves at `/metrics`."""

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of its metrics."""


@asynccontextmanager
async def serve(
    address: str,
    port: int,
    health: Health,
    metrics: Exposed,
    *,
    most_seconds: float = MOST_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[int]:
    """Serve probes and metrics until the block ends; yields the port that was bound."""
    application = web.Application()
    application.router.add_get("/healthz", _healthz)
    application.router.add_get("/readyz", _readyz(health))
    application.router.add_get("/metrics", _metrics(metrics, monotonic))
    application.on_response_prepare.append(_one_request)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        server = cast("web.Server", runner.server)  # None only before the setup
        async with listening(server, address, port, most_seconds=most_seconds) as bound:
            yield bound
    finally:
        await runner.cleanup()


async def _one_request(_request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _readyz(health: Health) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        ready, line = health.verdict()
        return web.Response(status=200 if ready else 503, text=f"{line}\n")

    return answer


def _metrics(
    metrics: Exposed, monotonic: Callable[[], float]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    body, shared_until = b"", monotonic()

    async def answer(_request: web.Request) -> web.Response:
        nonlocal body, shared_until
        if (begun := monotonic()) >= shared_until:
            body = generate_latest(metrics.registry)
            ended = monotonic()
            shared_until = ended + SHARED_FOR * (ended - begun)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer
