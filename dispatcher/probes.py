"""What can be asked of a running dispatcher: alive, ready, and its metrics.

`/healthz` answers as long as the event loop turns. `/readyz` is 200 when it does its part: as leader with all
its watches in place, or as a standby that can see the database; else 503 with the reason. `/metrics` is
Prometheus text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class Role(StrEnum):
    """What this process is at the moment."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"


@dataclass
class Health:
    """What the loops last knew of themselves; set by `app`, read by the probes."""

    role: Role = Role.STARTING
    problem: str = "it has not reached the database yet"
    watches_ready: Callable[[], bool] = field(default=lambda: False)

    def verdict(self) -> tuple[bool, str]:
        """Whether it is ready, and a line that says what it is or what is missing."""
        if self.problem:
            return False, f"{self.role}: {self.problem}"
        if self.role is Role.LEADER and not self.watches_ready():
            return False, "leader: waiting for the first complete lists of AppWrappers, nodes and pods"
        return self.role is not Role.STARTING, str(self.role)


class Metrics:
    """The dispatcher's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("dispatcher_leading", "1 while this process leads", registry=self.registry)
        self.cycle_seconds = Histogram(
            "dispatcher_cycle_seconds", "Duration of one dispatch cycle", registry=self.registry
        )
        self.appwrappers = Gauge(
            "dispatcher_appwrappers", "AppWrappers by phase", ["phase"], registry=self.registry
        )
        self.wait_seconds = Histogram(
            "dispatcher_wait_seconds",
            "From an AppWrapper's creation to its dispatch",
            registry=self.registry,
            buckets=(0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
        )
        self.api_writes = Counter(
            "dispatcher_api_writes",
            "Writes sent to API servers",
            ["cluster", "method"],
            registry=self.registry,
        )


@asynccontextmanager
async def serve(address: str, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve probes and metrics until the block ends; yields the port that was bound."""
    application = web.Application()
    application.router.add_get("/healthz", _healthz)
    application.router.add_get("/readyz", _readyz(health))
    application.router.add_get("/metrics", _metrics(metrics))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _readyz(health: Health) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        ready, line = health.verdict()
        return web.Response(status=200 if ready else 503, text=f"{line}\n")

    return answer


def _metrics(metrics: Metrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    return answer
