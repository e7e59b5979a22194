"""Keeping one member connected: first contact, closed reasons, and the start of the unreachable time."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.api.clusters.membercluster import MemberCluster, SecretKey
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.connector import ConnectionCallbacks, Connector, Means, Pace
from dispatcher.controller.members.member import CONNECTING, Member
from dispatcher.core.model.clusters.cluster_errors import ErrorCounts
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.status.clusters import ClusterState
from dispatcher.kube import paging
from dispatcher.kube.client import ClusterClient
from tests.builders import at, make_node
from tests.fakes import FakeApiServer, Reply, answer, hang_up, never, refusal, text
from tests.unit.controller.members import (
    EXEC,
    HUB_UID,
    KUBE_SYSTEM,
    NAMESPACE,
    NODES,
    SECRETS,
    Clusters,
    holds,
    is_closed,
    is_cluster,
    kubeconfig,
)
from tests.unit.controller.wire import MISSING, Watched
from tests.unit.virtual_time import monotonic, until

EAST = SecretKey("cluster-east")
SECRET = f"{SECRETS}/cluster-east"
EARLIER = at(-3600)
FAILS = refusal(500, "InternalError")


class Bench(Clusters):
    """Members kept by one connector, and its callbacks."""

    def __init__(self, hub: FakeApiServer, client: ClusterClient, members: dict[str, FakeApiServer]) -> None:
        super().__init__(hub, members)
        self.known: list[Member] = [Member(MemberCluster("hub", ""), at(0), uid=HUB_UID)]
        self.told: list[str] = []
        self.changes = 0
        self.connector = Connector(
            Means(
                hub=client,
                namespace=NAMESPACE,
                connect=self.connect,
                make_cluster=lambda name, client: self.make_cluster(name, client),
                records=self.records,
                now=self.now,
                pace=Pace(probe=5, unreachable=15),
            ),
            lambda: self.known,
            ConnectionCallbacks(self._connected, self._left, self._changed),
        )

    def keep(
        self, name: str = "east", unreachable: datetime | None = None, key: str = "kubeconfig"
    ) -> Member:
        """Keep a member from now on."""
        secret = SecretKey(f"cluster-{name}", key)
        member = Member(
            MemberCluster(name, f"uid-of-{name}", kubeconfig=secret), at(0), unreachable_since=unreachable
        )
        member.task = asyncio.create_task(self.connector.keep(member, secret))
        self.known.append(member)
        return member

    async def connected(self, name: str = "east") -> Member:
        """A kept member, once it is connected."""
        member = self.keep(name)
        await until(lambda: member.cluster)
        return member

    async def close(self) -> None:
        tasks = [member.task for member in self.known if member.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connector.close()

    def _connected(self, member: Member, cluster: WatchedCluster) -> None:
        member.cluster = cluster
        self.told.append(f"{member.name} connected")

    def _left(self, member: Member) -> None:
        if member.cluster is not None:
            self.told.append(f"{member.name} left")
        member.cluster = None

    def _changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def benching(hub: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    async with FakeApiServer() as east, FakeApiServer() as west:
        bench = Bench(hub, client, {"east": east, "west": west})
        yield bench
        await bench.close()


@pytest.fixture
async def bench(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    """A hub and two members that are not kept yet."""
    async with benching(server, client) as bench:
        yield bench


async def test_member_is_connected_once_its_nodes_pods_and_namespaces_are_listed(bench: Bench) -> None:
    bench.members["east"].on("GET", "/api/v1/namespaces", never)
    member = bench.keep()
    await until(lambda: bench.members["east"].requests("GET", "/api/v1/namespaces"))
    assert (member.closed, bench.told) == (CONNECTING, [])
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: member.cluster)
    assert member.cluster is not None
    assert (member.closed, member.uid, member.unreachable_since) == (None, "uid-of-east", None)
    assert (member.cluster.name, member.cluster.is_ready) == ("east", True)
    assert (bench.told, bench.records.uids) == (["east connected"], {"east": "uid-of-east"})


async def test_kubeconfig_is_read_only_from_the_namespace_of_the_dispatcher(bench: Bench) -> None:
    bench.hub.on("GET", SECRET, holds(kubeconfig("east"), key="of-east.yaml"))
    member = bench.keep(key="of-east.yaml")
    await until(lambda: member.cluster)
    await asyncio.sleep(60)  # virtual
    assert {each.path for each in bench.hub.requests()} == {SECRET}


NO_PEM = {"certificate-authority-data": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="}
BAD_AUTHORITY = kubeconfig("nobody", cluster=NO_PEM)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(MISSING, "there is no Secret dispatcher/cluster-east", id="no-secret"),
        pytest.param(
            holds(kubeconfig("east"), key="config"),
            "the Secret dispatcher/cluster-east has no key kubeconfig",
            id="no-key",
        ),
        pytest.param(answer({}), "the Secret dispatcher/cluster-east has no key kubeconfig", id="empty"),
        pytest.param(
            holds(kubeconfig("east", user=EXEC)),
            'kubeconfig.users["it"].user.exec: would run a program on the hub. Use the token of a ServiceAccount, '
            "or a client certificate.",
            id="runs-a-program",
        ),
        pytest.param(
            holds(b"{"),
            "kubeconfig: is not YAML (line 2). Write it with: kubectl config view --minify --flatten --raw.",
            id="no-yaml",
        ),
        pytest.param(
            holds(BAD_AUTHORITY),
            "kubeconfig: cannot be used (not well-formed): certificate-authority-data, client-certificate-data or "
            "client-key-data. Write it with: kubectl config view --minify --flatten --raw.",
            id="no-certificate",
        ),
        pytest.param(
            refusal(403, "Forbidden", "may not"),
            "the Secret dispatcher/cluster-east could not be read: may not",
            id="may-not-read-it",
        ),
        pytest.param(
            text("404 page not found", 404),
            "the Secret dispatcher/cluster-east could not be read: 404 page not found",
            id="no-clear-answer",
        ),
    ],
)
async def test_unusable_kubeconfig_closes_the_member_and_is_read_again(
    bench: Bench, reply: Reply, message: str
) -> None:
    bench.hub.on("GET", SECRET, reply)
    member = bench.keep()
    await until(lambda: member.closed != CONNECTING)
    assert member.closed == Closed(pending_reasons.NOT_CONNECTED, message)
    assert (bench.members["east"].requests(), bench.records.unreachable_notes) == ([], [])
    bench.hub.on("GET", SECRET, holds(kubeconfig("east")))
    await until(lambda: member.cluster)
    assert (bench.told, member.unreachable_since) == (["east connected"], None)


@pytest.mark.parametrize("is_connected", [False, True], ids=["from-the-start", "later"])
@pytest.mark.parametrize(
    "reply", [refusal(401, "Unauthorized", "no entry"), refusal(403, "Forbidden", "no entry")]
)
async def test_member_that_refuses_our_credentials_is_closed_and_not_unreachable(
    bench: Bench, reply: Reply, is_connected: bool
) -> None:
    if is_connected:
        member = await bench.connected()
    bench.members["east"].on("GET", KUBE_SYSTEM, reply)
    if not is_connected:
        member = bench.keep()
    await until(lambda: member.closed not in (None, CONNECTING))
    assert monotonic() < 6
    assert member.closed == Closed(
        pending_reasons.CREDENTIALS_REFUSED, "its API server does not accept our credentials: no entry"
    )
    assert (member.cluster, member.unreachable_since, bench.records.unreachable_notes) == (None, None, [])
    await asyncio.sleep(60)  # virtual
    assert (member.unreachable_since, bench.records.unreachable_notes) == (None, [])


@pytest.mark.parametrize(
    ("uid", "message"),
    [
        pytest.param("another", "the cluster 'east' of this database is another one", id="another-uid"),
        pytest.param("uid-of-west", "it is the same cluster as west", id="another-member"),
        pytest.param(HUB_UID, "it is the same cluster as hub", id="the-hub"),
    ],
)
@pytest.mark.parametrize("is_connected", [False, True], ids=["from-the-start", "later"])
async def test_another_cluster_is_asked_for_nothing_but_its_uid(
    bench: Bench, uid: str, message: str, is_connected: bool
) -> None:
    bench.records.uids["east"] = "uid-of-east"
    await bench.connected("west")
    if is_connected:
        member = await bench.connected()
    is_cluster(bench.members["east"], uid)
    bench.members["east"].asked.clear()
    if not is_connected:
        member = bench.keep()
    await until(lambda: member.closed not in (None, CONNECTING))
    await asyncio.sleep(20)  # virtual
    assert member.closed == Closed(pending_reasons.ANOTHER_CLUSTER, message)
    assert (member.cluster, member.unreachable_since, bench.records.unreachable_notes) == (None, None, [])
    assert {each.path for each in bench.members["east"].requests()} == {KUBE_SYSTEM}
    assert bench.records.uids == {"east": "uid-of-east", "west": "uid-of-west"}


async def test_only_one_of_two_members_of_the_same_cluster_is_connected(bench: Bench) -> None:
    bench.hub.on("GET", f"{SECRETS}/cluster-west", holds(kubeconfig("east")))
    members = [bench.keep("east"), bench.keep("west")]
    await until(lambda: any(member.cluster for member in members))
    await asyncio.sleep(60)  # virtual
    connected, other = sorted(members, key=lambda member: member.cluster is None)
    assert bench.told == [f"{connected.name} connected"]
    assert (connected.closed, connected.uid) == (None, "uid-of-east")
    assert other.closed == Closed(
        pending_reasons.ANOTHER_CLUSTER, f"it is the same cluster as {connected.name}"
    )
    assert bench.records.uids == {connected.name: "uid-of-east"}


async def test_member_of_another_members_cluster_does_not_block_that_member(bench: Bench) -> None:
    bench.records.uids["west"] = "uid-of-west"
    bench.hub.on("GET", f"{SECRETS}/cluster-west", holds(kubeconfig("east")))
    west = bench.keep("west")
    await until(lambda: west.closed != CONNECTING)
    east = await bench.connected("east")
    await asyncio.sleep(60)  # virtual
    assert bench.told == ["east connected"]
    assert (east.closed, west.uid) == (None, "")


async def test_member_that_reports_the_recorded_uid_of_another_is_refused_though_it_connects_first(
    bench: Bench,
) -> None:
    bench.records.uids["west"] = "uid-of-west"
    is_cluster(bench.members["east"], "uid-of-west")
    liar = bench.keep("east")
    await until(lambda: liar.closed != CONNECTING)
    honest = await bench.connected("west")
    await asyncio.sleep(60)  # virtual
    assert bench.told == ["west connected"]
    assert (honest.closed, liar.cluster, liar.uid) == (None, None, "")
    assert liar.closed == Closed(pending_reasons.ANOTHER_CLUSTER, "it is the same cluster as west")
    assert bench.records.uids == {"west": "uid-of-west"}


async def test_connected_member_stays_while_another_one_reports_its_uid(bench: Bench) -> None:
    honest, liar = await bench.connected("west"), await bench.connected("east")
    is_cluster(bench.members["east"], "uid-of-west")
    await until(lambda: liar.closed is not None)
    await asyncio.sleep(60)  # virtual
    assert (honest.closed, honest.cluster is not None, liar.cluster) == (None, True, None)
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: liar.closed is None)


async def test_database_is_asked_once_per_connection_and_not_at_each_probe(bench: Bench) -> None:
    await bench.connected()
    await asyncio.sleep(60)  # virtual
    assert bench.records.asked == ["east"]


@pytest.mark.parametrize("reply", [answer({"metadata": {"uid": "uid-of-east"}}), hang_up])
async def test_database_error_ends_the_connection_because_the_cache_may_be_stale(
    bench: Bench, reply: Reply
) -> None:
    bench.members["east"].on("GET", KUBE_SYSTEM, reply)
    bench.records.failure = errors.StoreUnavailable("no answer")
    member = bench.keep()
    assert member.task is not None
    with pytest.raises(errors.StoreUnavailable):
        await member.task
    assert bench.told == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="of-another-kind"),
        pytest.param([], id="a-list"),
        pytest.param({"metadata": {"uid": ""}}, id="empty"),
        pytest.param({"metadata": {"uid": 7}}, id="no-text"),
        pytest.param({"metadata": {"uid": "a\0b"}}, id="what-no-database-can-hold"),
        pytest.param({"metadata": {"uid": "a" * 1000}}, id="longer-than-any"),
    ],
)
async def test_senseless_answer_counts_as_no_answer(bench: Bench, body: object) -> None:
    bench.members["east"].on("GET", KUBE_SYSTEM, answer(body))
    member = bench.keep()
    await until(lambda: member.closed != CONNECTING)
    assert member.closed == Closed(
        pending_reasons.UNREACHABLE,
        f"its API server does not answer: GET {KUBE_SYSTEM}: the answer makes no sense",
    )
    assert (bench.records.uids, member.uid) == ({}, "")


@pytest.mark.parametrize(
    "reply",
    [
        hang_up,
        never,
        refusal(503, "ServiceUnavailable"),
        text("404 page not found", 404),
        answer({}),
    ],
    ids=["hangs-up", "never-answers", "unavailable", "a-proxys-page", "nonsense"],
)
async def test_member_is_closed_at_the_first_missed_probe_and_disconnected_later(
    bench: Bench, reply: Reply
) -> None:
    member = await bench.connected()
    bench.members["east"].on("GET", KUBE_SYSTEM, reply)
    await until(lambda: bench.records.unreachable_notes)
    since = member.unreachable_since
    assert member.closed is not None
    assert (member.closed.reason, bench.records.unreachable_notes) == (
        pending_reasons.UNREACHABLE,
        [("east", since)],
    )
    await until(lambda: member.cluster is None)
    assert 15 <= monotonic() <= 21
    await asyncio.sleep(60)  # virtual
    assert (member.closed.reason, member.unreachable_since) == (pending_reasons.UNREACHABLE, since)
    assert (bench.records.unreachable_notes, bench.told) == (
        [("east", since)],
        ["east connected", "east left"],
    )
    (said,) = bench.records.said
    assert said.startswith("its API server does not answer: ")


async def test_member_that_answers_again_in_time_stays_connected(bench: Bench) -> None:
    member = await bench.connected()
    await asyncio.sleep(60)  # virtual
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS, answer({"metadata": {"uid": "uid-of-east"}}))
    await until(lambda: bench.records.unreachable_notes)
    since = member.unreachable_since
    await until(lambda: member.closed is None)
    assert (bench.told, len(bench.clients)) == (["east connected"], 1)
    assert (member.unreachable_since, bench.records.unreachable_notes) == (
        None,
        [("east", since), ("east", None)],
    )
    assert member.errors.counts(member.since) == ErrorCounts(1)


async def test_member_that_answers_again_is_connected_and_reachable(bench: Bench) -> None:
    member = await bench.connected()
    bench.members["east"].on("GET", KUBE_SYSTEM, hang_up)
    await until(lambda: member.cluster is None)
    since = member.unreachable_since
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: member.cluster)
    assert (member.closed, member.unreachable_since) == (None, None)
    assert bench.records.unreachable_notes == [("east", since), ("east", None)]
    assert bench.told == ["east connected", "east left", "east connected"]
    assert [is_closed(client) for client in bench.clients[:-1]] == [True] * (len(bench.clients) - 1)


async def test_state_of_a_newly_recognised_cluster_is_recorded_again(bench: Bench) -> None:
    member = bench.keep()
    member.recorded_state = ClusterState()
    await until(lambda: member.cluster)
    assert member.recorded_state is None
    member.recorded_state = ClusterState()
    await asyncio.sleep(60)  # virtual
    assert member.recorded_state == ClusterState()


async def test_member_that_answers_again_is_open_before_the_record_is_written(bench: Bench) -> None:
    member = await bench.connected()
    note, stands = bench.records.note_reachable, []

    async def note_reachable(name: str, at: datetime) -> None:
        stands.append(member.state())
        await note(name, at)

    bench.records.note_reachable = note_reachable  # type: ignore[method-assign]
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS, answer({"metadata": {"uid": "uid-of-east"}}))
    await until(lambda: member.closed)
    await until(lambda: stands)
    assert stands == [ClusterState()]


async def test_unreachable_time_counts_from_the_first_missed_answer(bench: Bench) -> None:
    member = bench.keep(unreachable=EARLIER)
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS, hang_up)
    said = []
    for reply in (holds(kubeconfig("east")), holds(kubeconfig("east", user=EXEC)), MISSING):
        bench.hub.on("GET", SECRET, reply)
        await asyncio.sleep(20)  # virtual
        assert member.closed is not None
        said.append(member.closed.reason)
    assert said == [pending_reasons.UNREACHABLE, pending_reasons.NOT_CONNECTED, pending_reasons.NOT_CONNECTED]
    assert (member.unreachable_since, bench.records.unreachable_notes) == (EARLIER, [])


async def test_unreachable_time_of_an_earlier_leader_ends_with_the_first_answer(bench: Bench) -> None:
    member = bench.keep(unreachable=EARLIER)
    await until(lambda: member.cluster)
    assert (member.unreachable_since, bench.records.unreachable_notes) == (None, [("east", None)])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (refusal(401, "Unauthorized"), pending_reasons.CREDENTIALS_REFUSED),
        (answer({"metadata": {"uid": HUB_UID}}), pending_reasons.ANOTHER_CLUSTER),
        (refusal(429, "TooManyRequests"), pending_reasons.UNREACHABLE),
    ],
    ids=["refuses-us", "is-another", "is-busy"],
)
async def test_any_answer_makes_a_member_reachable(bench: Bench, reply: Reply, reason: str) -> None:
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS, reply)
    member = bench.keep()
    await until(lambda: len(bench.records.unreachable_notes) > 1)
    assert member.closed is not None
    assert (member.closed.reason, member.unreachable_since) == (reason, None)
    assert [since is None for _, since in bench.records.unreachable_notes] == [False, True]


async def test_throttling_member_is_closed_but_connected_and_reachable(
    bench: Bench,
) -> None:
    member = await bench.connected()
    bench.members["east"].on("GET", KUBE_SYSTEM, refusal(429, "TooManyRequests", "come later"))
    await asyncio.sleep(60)  # virtual
    assert member.closed == Closed(
        pending_reasons.UNREACHABLE, "its API server is too busy to answer: come later"
    )
    assert (member.unreachable_since, bench.records.unreachable_notes) == (None, [])
    assert bench.told == ["east connected"]


async def test_changed_kubeconfig_is_a_new_connection_and_the_old_one_stays_open_for_its_calls(
    bench: Bench,
) -> None:
    member = await bench.connected()
    bench.hub.on("GET", SECRET, holds(kubeconfig("east", user={"token": "new"})))
    await until(lambda: member.cluster is None)
    old = bench.clients[0]
    assert (member.closed, member.unreachable_since, is_closed(old)) == (CONNECTING, None, False)
    left_at = monotonic()
    await until(lambda: member.cluster)
    assert (bench.tokens, bench.told) == (["good", "new"], ["east connected", "east left", "east connected"])
    assert (await old.get(KUBE_SYSTEM))["metadata"]["uid"] == "uid-of-east"  # calls on it may end
    await until(lambda: is_closed(old))
    assert 30 <= monotonic() - left_at <= 32
    assert not is_closed(bench.clients[1])
    assert (bench.records.unreachable_notes, bench.records.rotated) == ([], ["east"])


async def test_rotation_of_an_unusable_kubeconfig_is_recorded(bench: Bench) -> None:
    bench.members["east"].on("GET", KUBE_SYSTEM, refusal(401, "Unauthorized"))
    member = bench.keep()
    await asyncio.sleep(20)  # virtual
    assert bench.records.rotated == []
    bench.hub.on("GET", SECRET, holds(kubeconfig("east", user={"token": "new"})))
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: member.cluster)
    assert bench.records.rotated == ["east"]


async def test_old_connections_are_closed_at_once_when_leadership_ends(bench: Bench) -> None:
    member = await bench.connected()
    bench.hub.on("GET", SECRET, holds(kubeconfig("east", user={"token": "new"})))
    await until(lambda: len(bench.clients) == 2 and member.cluster)
    assert member.task is not None
    member.task.cancel()
    await asyncio.wait([member.task])
    stopped_at = monotonic()
    await bench.connector.close()
    assert [is_closed(client) for client in bench.clients] == [True, True]
    assert monotonic() == stopped_at


async def test_same_kubeconfig_in_another_format_is_no_new_connection(bench: Bench) -> None:
    await bench.connected()
    bench.hub.on("GET", SECRET, holds(kubeconfig("east", cluster={"insecure-skip-tls-verify": "false"})))
    await asyncio.sleep(60)  # virtual
    assert (len(bench.clients), bench.told, bench.records.rotated) == (1, ["east connected"], [])


@pytest.mark.parametrize(
    "reply",
    [
        hang_up,
        never,
        refusal(403, "Forbidden"),
        FAILS,
        text("404 page not found", 404),
    ],
    ids=["hangs-up", "never-answers", "forbidden", "fails", "a-proxys-page"],
)
async def test_unreadable_secret_closes_no_member_that_answers(bench: Bench, reply: Reply) -> None:
    member = await bench.connected()
    bench.hub.on("GET", SECRET, reply)
    await asyncio.sleep(120)  # virtual
    assert (member.closed, bench.told, len(bench.clients)) == (None, ["east connected"], 1)


@pytest.mark.parametrize("reply", [MISSING, holds(kubeconfig("east", user=EXEC))], ids=["removed", "spoilt"])
async def test_withdrawn_kubeconfig_disconnects_the_member(bench: Bench, reply: Reply) -> None:
    member = await bench.connected()
    bench.hub.on("GET", SECRET, reply)
    await until(lambda: member.cluster is None)
    await until(lambda: member.closed)
    assert member.closed is not None
    assert (member.closed.reason, member.unreachable_since) == (pending_reasons.NOT_CONNECTED, None)
    assert is_closed(bench.clients[0])


@pytest.mark.parametrize("path", [KUBE_SYSTEM, NODES, "/api/v1/pods"], ids=["identity", "nodes", "pods"])
async def test_hanging_member_is_closed_with_a_reason_and_delays_no_other(bench: Bench, path: str) -> None:
    bench.members["east"].on("GET", path, never)
    east = bench.keep("east")
    await bench.connected("west")
    assert (monotonic() < 1, east.closed) == (True, CONNECTING)
    await until(lambda: east.closed != CONNECTING)
    assert monotonic() <= 61
    assert east.closed is not None
    assert (east.closed.reason, east.cluster) == (pending_reasons.UNREACHABLE, None)
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: east.cluster)
    assert bench.told == ["west connected", "east connected"]


async def test_member_that_answers_but_cannot_list_is_closed_and_reachable(bench: Bench) -> None:
    bench.members["east"].on("GET", NODES, never)
    member = bench.keep(unreachable=EARLIER)
    await until(lambda: member.closed != CONNECTING)
    assert member.closed == Closed(
        pending_reasons.UNREACHABLE, "its nodes and pods could not be listed within a minute"
    )
    assert (member.unreachable_since, bench.records.unreachable_notes) == (None, [("east", None)])


async def test_member_that_forbids_lists_refuses_our_credentials(bench: Bench) -> None:
    bench.members["east"].on("GET", NODES, refusal(403, "Forbidden", "nodes is forbidden"))
    member = bench.keep()
    await until(lambda: member.closed != CONNECTING)
    assert member.closed == Closed(
        pending_reasons.CREDENTIALS_REFUSED,
        "its API server does not accept our credentials: may not list nodes",
    )
    assert (member.unreachable_since, bench.records.unreachable_notes) == (None, [])


async def test_internal_error_closes_one_member_and_no_other(bench: Bench) -> None:
    make = bench.make_cluster

    def fail_once(name: str, client: ClusterClient) -> WatchedCluster:
        bench.make_cluster = make  # type: ignore[method-assign]
        raise KeyError(name)

    bench.make_cluster = fail_once  # type: ignore[method-assign]
    with capture_logs() as logs:
        east = bench.keep("east")
        await until(lambda: east.closed != CONNECTING)
        await bench.connected("west")
    assert [entry["cluster"] for entry in logs if entry["event"] == "member_failed"] == ["east"]
    assert east.closed == Closed(pending_reasons.UNREACHABLE, "internal error; see the dispatcher's log")
    assert (east.unreachable_since, bench.records.unreachable_notes) == (None, [])
    assert is_closed(bench.clients[0])
    await until(lambda: east.cluster)
    assert bench.told == ["west connected", "east connected"]


async def test_member_with_ended_watches_is_connected_anew(bench: Bench) -> None:
    nodes = Watched(bench.members["east"], "/api/v1", "nodes")
    nodes.has(make_node("n1", cpu="8"))
    member = await bench.connected()
    first = member.cluster

    def fail_once() -> None:
        bench.on_capacity = lambda: None
        raise errors.StoreError("the one error that a watch does not outlive")

    bench.on_capacity = fail_once
    nodes.has(make_node("n2", cpu="8"))
    await until(lambda: member.cluster is None)
    await until(lambda: member.cluster)
    assert member.cluster is not first
    assert member.cluster is not None
    assert member.cluster.ledger.free()["cpu"] == 16000


async def test_member_with_watches_that_end_at_once_is_retried(bench: Bench) -> None:
    def fail_once() -> None:
        bench.on_capacity = lambda: None
        raise errors.StoreError("the one error that a watch does not outlive")

    bench.on_capacity = fail_once
    member = bench.keep()
    await until(lambda: member.closed != CONNECTING)
    assert member.closed == Closed(pending_reasons.UNREACHABLE, "internal error; see the dispatcher's log")
    await until(lambda: member.cluster)
    assert bench.told == ["east connected"]


@pytest.mark.parametrize(
    "path", ["", SECRET, KUBE_SYSTEM, NODES], ids=["connected", "secret", "identity", "nodes"]
)
async def test_removed_member_leaves_no_task_or_connection(bench: Bench, path: str) -> None:
    place: Callable[[str, str, Reply], None] = bench.hub.on if path == SECRET else bench.members["east"].on
    if path:
        place("GET", path, never)
    member = bench.keep()
    await asyncio.sleep(1)  # virtual
    assert member.task is not None
    member.task.cancel()
    await asyncio.wait([member.task])
    await until(lambda: all(map(is_closed, bench.clients)))
    assert member.cluster is None
    assert bench.told == ([] if path else ["east connected", "east left"])
    assert monotonic() < 2


def endless(piece: bytes, headers: dict[str, str] | None = None) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while True:
            await response.write(piece)

    return reply


def then_watch(listed: Reply, watched: Reply) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        return await (watched if "watch" in request.query else listed)(request)

    return reply


NOTHING = answer({"metadata": {"resourceVersion": "1"}, "items": []})
COMPRESSED = endless(gzip.compress(bytes(2**20)), {"Content-Encoding": "gzip"})
SPACES = endless(b" " * 2**20)
HOSTILE = [
    pytest.param(KUBE_SYSTEM, COMPRESSED, "compressed", id="compressed"),
    pytest.param(KUBE_SYSTEM, SPACES, "larger than 16 MiB", id="answer-without-end"),
    pytest.param(NODES, SPACES, "larger than 16 MiB", id="page-without-end"),
    pytest.param(NODES, then_watch(NOTHING, SPACES), "larger than 16 MiB", id="line-without-end"),
    pytest.param("/api/v1/pods", then_watch(NOTHING, COMPRESSED), "compressed", id="compressed-watch"),
    pytest.param(
        "/api/v1/namespaces",
        answer({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": []}),
        "more than 20 objects",
        id="list-without-end",
    ),
]


@pytest.mark.parametrize(("path", "reply", "said"), HOSTILE)
async def test_member_that_sends_without_end_is_closed_with_a_reason_and_harms_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, reply: Reply, said: str
) -> None:
    monkeypatch.setattr(paging, "MOST_LISTED", 20)
    west = await bench.connected("west")
    bench.members["east"].on("GET", path, reply)
    east = bench.keep()
    await until(lambda: east.closed not in (None, CONNECTING))
    await asyncio.sleep(12)  # virtual: it is tried again and again
    assert east.closed is not None
    assert (east.closed.reason, said in east.closed.message) == (pending_reasons.ANSWERS_TOO_LARGE, True)
    assert (east.cluster, east.unreachable_since, bench.records.unreachable_notes) == (None, None, [])
    assert (west.closed, west.cluster is not None) == (None, True)

    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: east.cluster and not east.closed)
    # Its watches may be too large though its lists are not. Then they must be right before it is connected again.
    in_between = ["east connected", "east left"] if len(bench.told) > 2 else []
    assert bench.told == ["west connected", *in_between, "east connected"]


@pytest.mark.parametrize(
    ("path", "reply"), [(KUBE_SYSTEM, COMPRESSED), (NODES, SPACES)], ids=["probe", "watch"]
)
async def test_connected_member_that_begins_to_send_without_end_is_disconnected(
    bench: Bench, path: str, reply: Reply
) -> None:
    turned = asyncio.Event()

    async def until_turned(request: web.Request) -> web.StreamResponse:
        await turned.wait()
        return await reply(request)

    nodes = answer({"metadata": {"resourceVersion": "1"}, "items": [make_node(cpu="8")]})
    bench.members["east"].on("GET", NODES, then_watch(nodes, until_turned))
    east, west = await bench.connected(), await bench.connected("west")
    if path == KUBE_SYSTEM:
        bench.members["east"].on("GET", path, reply)
    turned.set()
    await until(lambda: east.closed is not None and east.closed.reason == pending_reasons.ANSWERS_TOO_LARGE)
    await until(lambda: east.cluster is None)
    assert (west.closed, west.cluster is not None, east.unreachable_since) == (None, True, None)
