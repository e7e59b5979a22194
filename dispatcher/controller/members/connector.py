"""Keeps one member connected: reads its kubeconfig, connects, verifies the cluster's uid, watches, probes, reconnects.

Each member has a task of its own. An error closes only that member to new gangs, with a reason, and the task retries.
A changed kubeconfig is a new connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable
from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api.clusters.membercluster import SecretKey
from dispatcher.api.clusters.potential import NO_POTENTIAL, OnPotential, PotentialNodes
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.member import CONNECTING, AnotherCluster, Member, Unlisted, closed_for
from dispatcher.core.model.clusters.potential import Trust
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.failures import UNDECIDED_BY_ERROR
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.status.clusters import ClusterState
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import cluster_uid
from dispatcher.kube.kubeconfig import Connection, connection

LISTING_SECONDS: Final = 60.0
"""Seconds within which a member must list its nodes, pods and namespaces."""

CHECK_SECONDS: Final = 1.0
"""Period in which a refused list is noticed."""

LINGER_SECONDS: Final = 30.0
"""Seconds for which a replaced connection stays open, so that its calls can end."""

_log = log.get("fleet")


class Unreadable(errors.SettingsError):
    """The hub did not answer with the kubeconfig Secret: a problem of the hub, not of the member."""


class Pace(Struct, frozen=True):
    """Periods, in seconds.

    `probe`: between two probes of a member. `unreachable`: without an answer, after which the member is disconnected.
    `unlisted`: with unreadable MemberClusters, after which the leader gives up leadership.
    """

    probe: float = 5.0
    unreachable: float = 15.0
    unlisted: float = 60.0


class ClusterRecords(Protocol):
    """The records of clusters that outlast a leader."""

    async def recognise_cluster(self, name: str, uid: str, at: datetime) -> None:
        """Record the uid of a cluster; raises `SettingsError` if the name had another one, or another name has it."""

    async def note_unreachable(self, name: str, since: datetime, message: str) -> None:
        """Record the time from which the cluster has not answered, and the error."""

    async def note_reachable(self, name: str, at: datetime) -> None:
        """Record that the cluster answers again."""

    async def note_state(self, name: str, state: ClusterState, at: datetime) -> None:
        """Record the state of a cluster; safe to repeat."""

    async def note_rotation(self, name: str, at: datetime) -> None:
        """Record that the kubeconfig was changed."""

    async def note_seen(self, names: Collection[str]) -> None:
        """Record that exactly these members are declared, or absent and not surely gone; safe to repeat."""


def _full_trust(_cluster: str, policy: OnPotential) -> Trust:
    return Trust(policy)


class Means(Struct, frozen=True):
    """The dependencies of connections: the hub's client, the namespace of kubeconfigs, factories and the clock.

    `provisioning` is the class that provides capacity on request in clusters that declare none. `potential` are the
    pools of the hub that grow, unless the MemberCluster `hub` declares others. `trust_in` is the trust in the
    pools of a cluster with that policy now.
    """

    hub: ClusterClient
    namespace: str
    connect: Callable[[Connection], ClusterClient]
    make_cluster: Callable[[str, ClusterClient], WatchedCluster]
    records: ClusterRecords
    now: Callable[[], datetime]
    pace: Pace
    provisioning: ProvisioningClass | None = None
    potential: PotentialNodes = NO_POTENTIAL
    trust_in: Callable[[str, OnPotential], Trust] = _full_trust


class ConnectionCallbacks(Struct, frozen=True):
    """Callbacks of the connector: a member was connected, was disconnected, or was closed or opened to gangs."""

    on_connected: Callable[[Member, WatchedCluster], None]
    on_disconnected: Callable[[Member], None]
    on_changed: Callable[[], None]


class Connector:
    """Keeps members connected, each by `keep` in a task of its own; `close` closes replaced connections at once."""

    def __init__(
        self, means: Means, others: Callable[[], Iterable[Member]], changes: ConnectionCallbacks
    ) -> None:
        self._means = means
        self._others = others
        self._changes = changes
        self._closings: set[asyncio.Task[None]] = set()
        self._identifying = asyncio.Lock()

    async def close(self) -> None:
        """Close the replaced connections at once, without their `LINGER_SECONDS`."""
        for task in self._closings:
            task.cancel()
        await asyncio.gather(*self._closings, return_exceptions=True)

    async def keep(self, member: Member, secret: SecretKey) -> None:
        """Keep one member connected until cancelled; retries after any error but `StoreError`."""
        while True:
            try:
                await self._stay_connected(member, secret, connection(await self._read(secret)))
            except errors.StoreError:
                raise  # memory may be behind the database: the session ends
            except (errors.ClusterError, errors.SettingsError) as error:
                _log.info("member_unavailable", cluster=member.name, error=str(error))
                self._close_member(member, closed_for(error))
                await self._note_failure(member, error)
            except Exception:  # noqa: BLE001  # the loop's edge: one member must not end the others
                log.count_internal_error("connector")
                _log.exception("member_failed", cluster=member.name)
                self._close_member(member, Closed(pending_reasons.UNREACHABLE, UNDECIDED_BY_ERROR.message))
            await asyncio.sleep(self._means.pace.probe)

    async def _stay_connected(self, member: Member, secret: SecretKey, wanted: Connection) -> None:
        """Connect by one kubeconfig; returns when the kubeconfig has changed."""
        await self._note_rotation(member, wanted)
        client = self._means.connect(wanted)
        linger = 0.0
        try:
            await self._identify(member, client)
            cluster = self._means.make_cluster(member.name, client)
            watching = asyncio.create_task(cluster.run(), name=f"cluster-{member.name}")
            try:
                await self._connect(member, cluster, watching)
                await self._probe(member, client, secret, wanted, watching)
            finally:
                self._changes.on_disconnected(member)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            linger = LINGER_SECONDS  # calls on this connection may end
        finally:
            self._start(_close_later(client, linger))

    async def _identify(self, member: Member, client: ClusterClient) -> None:
        """Verify that the connection leads to the member's cluster, and that no other member is the same cluster.

        The uid is what the API server says of itself. A member has it once the records confirm it, one member after the
        other: so a member that reports the uid of another is refused, and the other one is not, whichever comes first.
        """
        uid = await cluster_uid(client)
        async with self._identifying:
            for other in self._others():
                if other.uid == uid and other.name != member.name:
                    _log.warning("cluster_claimed_twice", cluster=member.name, claimed=other.name, uid=uid)
                    raise AnotherCluster(f"it is the same cluster as {other.name}")
            if uid == member.uid:
                return
            try:
                await self._means.records.recognise_cluster(member.name, uid, self._means.now())
            except errors.SettingsError as error:
                raise AnotherCluster(str(error)) from error
            member.uid = uid
            member.recorded_state = None  # an unrecognised cluster has no record

    async def _connect(self, member: Member, cluster: WatchedCluster, watching: asyncio.Task[None]) -> None:
        """Report the member as connected once its nodes, pods and namespaces are listed."""
        listed = asyncio.create_task(cluster.wait_until_listed())
        try:
            listed_by = asyncio.get_running_loop().time() + LISTING_SECONDS
            while not listed.done():
                await asyncio.wait(
                    {listed, watching}, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                _raise_if_broken(watching, cluster)
                if cluster.forbidden or asyncio.get_running_loop().time() >= listed_by:
                    raise _listing_error(cluster)
            if member.closed is not None and member.closed.reason == pending_reasons.ANSWERS_TOO_LARGE:
                await asyncio.wait(
                    {watching}, timeout=self._means.pace.probe
                )  # a watch may send too much after its list
                _raise_if_broken(watching, cluster)
        finally:
            listed.cancel()
        await self._open_member(member)
        _log.info("member_connected", cluster=member.name)
        self._changes.on_connected(member, cluster)

    async def _probe(
        self,
        member: Member,
        client: ClusterClient,
        secret: SecretKey,
        wanted: Connection,
        watching: asyncio.Task[None],
    ) -> None:
        """Probe the member periodically; returns when its kubeconfig has changed, raises when the member is lost."""
        loop, pace = asyncio.get_running_loop(), self._means.pace
        answered_at = loop.time()
        while True:
            await asyncio.wait([watching], timeout=pace.probe)
            _raise_if_broken(watching, member.cluster)
            with contextlib.suppress(Unreadable):
                if connection(await self._read(secret)) != wanted:
                    self._close_member(member, CONNECTING)
                    return
            try:
                await self._identify(member, client)
                answered_at = loop.time()
                await self._open_member(member)
            except (errors.Unauthorized, errors.Forbidden):
                raise
            except errors.ClusterError as error:
                if isinstance(error, errors.Throttled):
                    answered_at = loop.time()
                if loop.time() - answered_at >= pace.unreachable:
                    raise
                self._close_member(member, closed_for(error))
                await self._note_failure(member, error)

    async def _read(self, secret: SecretKey) -> bytes:
        """The current kubeconfig, read from our own namespace only."""
        where = f"{self._means.namespace}/{secret.name}"
        try:
            found = await self._means.hub.get(paths.item("v1", "secrets", self._means.namespace, secret.name))
        except errors.ClusterError as error:
            if isinstance(error, errors.NotFound) and error.reason:
                raise errors.SettingsError(f"there is no Secret {where}") from error
            raise Unreadable(f"the Secret {where} could not be read: {error}") from error
        encoded = (found.get("data") or {}).get(secret.key)
        if encoded is None:
            raise errors.SettingsError(f"the Secret {where} has no key {secret.key}")
        return base64.b64decode(encoded)

    def _close_member(self, member: Member, closed: Closed) -> None:
        """Close the member to new gangs."""
        if member.closed != closed:
            if member.closed is None or member.closed.reason != closed.reason:
                member.since = self._means.now()
            member.closed = closed
            self._changes.on_changed()

    async def _note_failure(self, member: Member, error: errors.DispatcherError) -> None:
        """Record since when the member is unreachable, if the error says so; an error answer says that it is reachable.

        An unusable kubeconfig says neither.
        """
        match error:
            case (
                errors.Unauthorized()
                | errors.Forbidden()
                | errors.Throttled()
                | errors.TooLarge()
                | Unlisted()
                | AnotherCluster()
            ):
                await self._note_answer(member)
            case errors.ClusterError() if member.unreachable_since is None:
                member.unreachable_since = since = self._means.now()
                member.is_loss_reported = False
                member.errors.note(since)
                await self._means.records.note_unreachable(member.name, since, closed_for(error).message)

    async def _open_member(self, member: Member) -> None:
        if member.closed is not None:
            member.closed, member.since = None, self._means.now()
            self._changes.on_changed()
        await self._note_answer(member)

    async def _note_answer(self, member: Member) -> None:
        """Record that the member answers, also for later leaders."""
        if member.unreachable_since is not None:
            member.unreachable_since = None
            member.is_loss_reported = False
            await self._means.records.note_reachable(member.name, self._means.now())

    async def _note_rotation(self, member: Member, wanted: Connection) -> None:
        before, member.connection = member.connection, wanted
        if before not in (None, wanted):
            await self._means.records.note_rotation(member.name, self._means.now())

    def _start(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


def _raise_if_broken(watching: asyncio.Task[None], cluster: WatchedCluster | None) -> None:
    """Raise the error that ended a watch, or that leaves one unread: the member's state is unknown without it."""
    if watching.done():
        watching.result()
    if cluster is not None and cluster.excess:
        raise errors.TooLarge(cluster.excess)


def _listing_error(cluster: WatchedCluster) -> errors.ClusterError:
    if cluster.forbidden:
        return errors.Forbidden(f"may not list {' and '.join(cluster.forbidden)}")
    return Unlisted("its nodes and pods could not be listed within a minute")


async def _close_later(client: ClusterClient, seconds: float) -> None:
    """Close a connection after a pause, or at once if cancelled."""
    try:
        await asyncio.sleep(seconds)
    finally:
        await client.close()
