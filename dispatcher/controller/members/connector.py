"""Keeps the connection to one member up: reads the kubeconfig, connects, recognises, watches, probes, begins anew.

Each member is kept by a task of its own. What goes wrong closes that member to new gangs, with a reason, and is tried
again; it holds up no other. A kubeconfig that was changed is a new connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from dispatcher import errors, log
from dispatcher.api.membercluster import SecretKey
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.members.member import CONNECTING, AnotherCluster, Member, Unlisted, closed_for
from dispatcher.core.scheduling import cluster_filters
from dispatcher.core.scheduling.cluster_filters import Closed
from dispatcher.core.status.cluster_state import ClusterState
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import cluster_uid
from dispatcher.kube.kubeconfig import Connection, connection

LISTING_SECONDS: Final = 60.0
"""For so long a member may take to list its nodes, pods and namespaces."""

CHECK_SECONDS: Final = 1.0
"""How often it is looked whether it refuses to."""

LINGER_SECONDS: Final = 30.0
"""For so long the connection before stays usable after a kubeconfig was changed, for those in the middle of a call."""

_log = log.get("fleet")


class Unreadable(errors.SettingsError):
    """The hub did not say what a kubeconfig is now: that is its trouble, and not the member's."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often, in seconds, a member is asked whether it is there; after how long without an answer it is not.

    `unlisted` is for how long the MemberClusters may not be readable before leadership is given up.
    """

    probe: float = 5.0
    unreachable: float = 15.0
    unlisted: float = 60.0


class ClusterRecords(Protocol):
    """What is known of clusters whoever leads."""

    async def recognise_cluster(self, name: str, uid: str, at: datetime) -> None:
        """Note by which uid a cluster of that name is known; raises `SettingsError` if it was another one before."""

    async def note_unreachable(self, name: str, since: datetime, message: str) -> None:
        """Note since when it does not answer, and in which words."""

    async def note_reachable(self, name: str, at: datetime) -> None:
        """Note that it answers again."""

    async def note_state(self, name: str, state: ClusterState, at: datetime) -> None:
        """Note how it stands; to note the same again is nothing."""

    async def note_rotation(self, name: str, at: datetime) -> None:
        """Note that its kubeconfig was changed."""


@dataclass(frozen=True, slots=True)
class Means:
    """What connections to members are made with: the hub's client, the namespace of the kubeconfigs, and the clock."""

    hub: ClusterClient
    namespace: str
    connect: Callable[[Connection], ClusterClient]
    make_cluster: Callable[[str, ClusterClient], Cluster]
    records: ClusterRecords
    now: Callable[[], datetime]
    pace: Pace


@dataclass(frozen=True, slots=True)
class ConnectionCallbacks:
    """Callbacks of the connector: a member can be asked, can no longer be asked, or was closed or opened."""

    on_connected: Callable[[Member, Cluster], None]
    on_disconnected: Callable[[Member], None]
    on_changed: Callable[[], None]


class Connector:
    """Keeps members, each by `keep` in a task of its own; `close` ends what is left of old connections."""

    def __init__(
        self, means: Means, others: Callable[[], Iterable[Member]], changes: ConnectionCallbacks
    ) -> None:
        self._means = means
        self._others = others
        self._changes = changes
        self._closings: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close at once the connections that were to be closed later."""
        for task in self._closings:
            task.cancel()
        await asyncio.gather(*self._closings, return_exceptions=True)

    async def keep(self, member: Member, secret: SecretKey) -> None:
        """Keep one member connected until cancelled; whatever goes wrong is tried again."""
        while True:
            try:
                await self._stay_connected(member, secret, connection(await self._read(secret)))
            except errors.StoreError:
                raise  # whoever leads no longer knows what is so
            except (errors.ClusterError, errors.SettingsError) as error:
                _log.info("member_unavailable", cluster=member.name, error=str(error))
                self._close_member(member, closed_for(error))
                await self._note_failure(member, error)
            except Exception:  # noqa: BLE001  # the loop's edge: one member must not end the others
                log.count_internal_error("connector")
                _log.exception("member_failed", cluster=member.name)
                self._close_member(
                    member, Closed(cluster_filters.UNREACHABLE, "it failed in a way nobody thought of")
                )
            await asyncio.sleep(self._means.pace.probe)

    async def _stay_connected(self, member: Member, secret: SecretKey, wanted: Connection) -> None:
        """Be connected until that connection is no longer the one that is wanted."""
        await self._note_rotation(member, wanted)
        client = self._means.connect(wanted)
        closing = 0.0
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
            closing = LINGER_SECONDS  # who is in the middle of a call may end it
        finally:
            self._start(_close_later(client, closing))

    async def _identify(self, member: Member, client: ClusterClient) -> None:
        """Make sure that it is the cluster it was, and none that we have under another name."""
        uid = await cluster_uid(client)
        for other in self._others():
            if other.uid == uid and other.name != member.name:
                raise AnotherCluster(f"it is the same cluster as {other.name}")
        if uid == member.uid:
            return
        known, member.uid = member.uid, uid  # before anything is awaited: another may lead there, too
        try:
            await self._means.records.recognise_cluster(member.name, uid, self._means.now())
        except errors.SettingsError as error:
            member.uid = known
            raise AnotherCluster(str(error)) from error
        member.recorded_state = None  # before it was recognised there was nothing to note it in

    async def _connect(self, member: Member, cluster: Cluster, watching: asyncio.Task[None]) -> None:
        """Make it one of the clusters once its nodes and pods are known."""
        known = asyncio.create_task(cluster.wait_until_listed())
        try:
            listed_by = asyncio.get_running_loop().time() + LISTING_SECONDS
            while not known.done():
                await asyncio.wait(
                    {known, watching}, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                _raise_if_broken(watching, cluster)
                if cluster.forbidden or asyncio.get_running_loop().time() >= listed_by:
                    raise _listing_error(cluster)
            if member.closed is not None and member.closed.reason == cluster_filters.ANSWERS_TOO_LARGE:
                await asyncio.wait(
                    {watching}, timeout=self._means.pace.probe
                )  # its watches are seen after its lists
                _raise_if_broken(watching, cluster)
        finally:
            known.cancel()
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
        """Ask again and again whether it is there; return when its kubeconfig was changed, raise when it is lost."""
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
        """The kubeconfig as it is now, from our own namespace only."""
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
        """Nothing new goes there from now on."""
        if member.closed != closed:
            if member.closed is None or member.closed.reason != closed.reason:
                member.since = self._means.now()
            member.closed = closed
            self._changes.on_changed()

    async def _note_failure(self, member: Member, error: errors.DispatcherError) -> None:
        """Whoever is silent is timed, whoever answers is not; a kubeconfig of no use says nothing of either."""
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
                member.errors_at.append(since)
                await self._means.records.note_unreachable(member.name, since, closed_for(error).message)

    async def _open_member(self, member: Member) -> None:
        if member.closed is not None:
            member.closed, member.since = None, self._means.now()
            self._changes.on_changed()
        await self._note_answer(member)

    async def _note_answer(self, member: Member) -> None:
        """Whoever was silent is so no longer, for another leader, too."""
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


def _raise_if_broken(watching: asyncio.Task[None], cluster: Cluster | None) -> None:
    """Raise what has ended the watches, or keeps one from being read: without them nobody sees how a member is."""
    if watching.done():
        watching.result()
    if cluster is not None and cluster.excess:
        raise errors.TooLarge(cluster.excess)


def _listing_error(cluster: Cluster) -> errors.ClusterError:
    if cluster.forbidden:
        return errors.Forbidden(f"may not list {' and '.join(cluster.forbidden)}")
    return Unlisted("its nodes and pods could not be listed within a minute")


async def _close_later(client: ClusterClient, seconds: float) -> None:
    """Close a connection after a while, or as soon as nobody leads any more."""
    try:
        await asyncio.sleep(seconds)
    finally:
        await client.close()
