"""The composition root: settings, clients and the database, the probes, and a candidate that leads by a session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from dispatcher import errors, log
from dispatcher.api.clusters.potential import PotentialNodes, parse_potential
from dispatcher.api.clusters.provisioning import parse_provisioning
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.spec_errors import one_line
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.clock import Clock
from dispatcher.core.model.clusters.potential import pools_of
from dispatcher.election import RETRY_SECONDS, Candidate, WriteFence
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import cluster_uid
from dispatcher.kube.time_slices import set_switch_interval
from dispatcher.probes import Health, Metrics, serve
from dispatcher.session import Process, Session, identify
from dispatcher.settings import Settings, variable_of
from dispatcher.store import revision
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership, holder_name
from dispatcher.store.state.clusters import ClusterStore

_log = log.get("app")

MOST_DESCRIPTORS: Final = 65_536
"""Open files and connections that the process may have, where its hard limit allows them.

A member has about ten connections, and probes are bounded. Container runtimes start a process with a soft limit of
1,024, which a hub of many members could reach.
"""


async def run(settings: Settings, kinds: Kinds) -> None:
    """Run the dispatcher until SIGTERM or SIGINT."""
    main = asyncio.current_task()
    assert main is not None  # noqa: S101  # a coroutine always runs in a task
    loop, application = asyncio.get_running_loop(), Application(settings, kinds)
    set_switch_interval()
    raise_descriptor_limit()

    def stop() -> None:
        application.stop()
        main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):
        await application.run()
    _log.info("stopped")


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to `MOST_DESCRIPTORS`; never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Application:
    """One process: serves probes, and leads whenever no other replica does."""

    def __init__(self, settings: Settings, kinds: Kinds = BUILT_IN) -> None:
        self._settings = settings
        self._kinds = kinds
        self._provisioning = _read(parse_provisioning, "provisioning", settings.provisioning)
        self._potential = _read(_possible_potential, "potential", settings.potential)
        self._health = Health()
        self._metrics = Metrics()
        self._metrics.is_ready = lambda: self._health.verdict()[0]
        self._clock = Clock(time.monotonic, lambda: datetime.now(UTC))
        self._fence = WriteFence(settings.write_timeout_seconds, time.monotonic)
        lease = timedelta(seconds=settings.lease_seconds)
        self._database = Database(settings.database_url.get_secret_value(), idle_timeout=lease)
        self._leadership = Leadership(
            self._database,
            holder=holder_name(
                f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}", revision.NEWEST
            ),
            lease=lease,
        )
        self._candidate = Candidate(
            self._leadership,
            self._clock,
            self._fence,
            self._health,
            self._metrics,
            settings.renew_seconds,
            self._begin_term,
        )

    def stop(self) -> None:
        """Begin no other term. The caller also cancels `run`."""
        self._candidate.stop()

    async def run(self) -> None:
        """Serve probes, and lead whenever no other replica does."""
        settings = self._settings
        self._client = await ClusterClient.connect(
            settings.kubeconfig,
            read_timeout=settings.read_timeout_seconds,
            write_timeout=settings.write_timeout_seconds,
            may_write=self._fence.is_open,
        )
        probes = serve(settings.listen_address, settings.listen_port, self._health, self._metrics)
        async with self._client, probes as port:
            _log.info("started", probes=f"http://{settings.listen_address}:{port}")
            try:
                await self._wait_for_revision()
                await self._candidate.run()
            finally:
                await self._database.close()

    async def _wait_for_revision(self) -> None:
        """Wait for the database, but not for a migration that somebody has to run."""
        while True:
            try:
                await self._check_revision()
            except errors.StoreUnavailable as error:
                self._health.problem = str(error)
                self._metrics.database_up.set(0)
                _log.warning("store_unavailable", error=str(error), kind=type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _check_revision(self) -> None:
        url = self._settings.database_url.get_secret_value()
        found = await asyncio.to_thread(revision.check_revision, url)
        if found != revision.NEWEST:
            _log.info("schema_newer", revision=found, own=revision.NEWEST)

    async def _begin_term(self) -> Session:
        """Compose the session of a leader. Raises `StoreError`, and `ClusterError` if the hub does not answer."""
        # The database may have been migrated since the start of this process, which stood by meanwhile.
        await self._check_revision()
        process = Process(
            self._settings,
            self._client,
            self._database,
            self._leadership,
            self._clock,
            self._metrics,
            self._fence.is_open,
            self._kinds,
            self._provisioning,
            self._potential,
        )
        return Session(process, await identify(process, await self._recognise_hub()))

    async def _recognise_hub(self) -> str:
        """The uid of the hub, once it is sure that the kubeconfig and the database belong together."""
        store = ClusterStore(self._database, lambda: self._leadership.lease)
        hub_uid = await cluster_uid(self._client)
        await store.recognise_cluster(HUB_CLUSTER, hub_uid, self._clock.now())
        return hub_uid


_Declared = TypeVar("_Declared")


def _read(parse: Callable[[str], _Declared], setting: str, text: str) -> _Declared:
    """The declaration in a setting. Raises `SettingsError` with its name."""
    try:
        return parse(text)
    except ValueError as error:
        raise errors.SettingsError(f"{variable_of(setting)}: {one_line(str(error))}") from error


def _possible_potential(text: str) -> PotentialNodes:
    """The potential nodes in a setting. Raises `ValueError` also for amounts that no node can have."""
    potential = parse_potential(text)
    pools_of(potential)
    return potential
