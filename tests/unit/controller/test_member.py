"""One member: its snapshot, status and loss, and the closed reason of each error."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.clusters.membercluster import MemberCluster, SecretKey
from dispatcher.controller.members.cluster import Namespace, WatchedCluster
from dispatcher.controller.members.member import (
    CONNECTING,
    LISTING,
    AnotherCluster,
    Member,
    Unlisted,
    closed_by_operator,
    closed_for,
    required_kinds,
)
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.clusters.cluster_errors import ErrorCounts
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.status.clusters import ClusterState, MemberState
from dispatcher.core.status.samples import LedgerReading
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Kind
from tests.builders import at, make_core_node

EAST = MemberCluster("east", "uid-of-east", {"gpu": "a100"}, SecretKey("cluster-east"))
UNREACHABLE = Closed(pending_reasons.UNREACHABLE, "its API server does not answer")
JOB, RAY = ("batch/v1", "Job"), ("ray.io/v1", "RayCluster")


def make_member(**fields: Any) -> Member:  # noqa: ANN401
    """A member that changed its state at second 1 and is not connected."""
    values: dict[str, Any] = {"declared": EAST, "since": at(1), "closed": None}
    return Member(**{**values, **fields})


def make_cluster(client: ClusterClient, *, is_ready: bool = True) -> WatchedCluster:
    """A cluster of one node of 8 cpu and the namespace `default`."""
    cluster = WatchedCluster(
        "east", client, CapacityLedger(), on_capacity=lambda: None, on_pods=lambda _appwrapper: None
    )
    cluster.ledger.set_node(make_core_node("n1", cpu=8000))
    for name, is_enabled in (("default", True), ("private", False)):  # as after a list
        cluster._namespaces.items[name] = Namespace(name, is_enabled=is_enabled)  # noqa: SLF001
    for each in cluster._needed if is_ready else ():  # noqa: SLF001
        each.synced.set()
    return cluster


# --- what history is told of it ------------------------------------------------------------------------------

REFUSED = Closed(pending_reasons.CREDENTIALS_REFUSED, "no entry")


@pytest.mark.parametrize(
    ("closed", "unreachable", "reason"),
    [
        pytest.param(None, None, "", id="open"),
        pytest.param(CONNECTING, None, None, id="being-connected"),
        pytest.param(UNREACHABLE, at(10), None, id="unreachable-which-is-told-itself"),
        pytest.param(UNREACHABLE, None, pending_reasons.UNREACHABLE, id="too-busy-which-is-not"),
        pytest.param(REFUSED, None, pending_reasons.CREDENTIALS_REFUSED, id="refuses-us"),
        pytest.param(
            REFUSED, at(10), pending_reasons.CREDENTIALS_REFUSED, id="unreachable-and-then-refused-us"
        ),
    ],
)
def test_state_has_the_closed_reason_as_far_as_it_is_known(
    closed: Closed | None, unreachable: datetime | None, reason: str | None
) -> None:
    member = make_member(closed=closed, unreachable_since=unreachable)
    assert member.state() == ClusterState(closed_reason=reason)
    assert member.state().closed_message == (closed.message if closed else "")


def test_state_has_the_cordon_and_reason_of_the_operator() -> None:
    declared = replace(EAST, cordoned=True, drain=True, cordon_reason="it moves")
    state = make_member(declared=declared).state()
    assert state == ClusterState(is_cordoned=True, is_draining=True)
    assert state.said == "it moves"


@pytest.mark.parametrize("unreachable", [None, at(10)])
async def test_reading_of_a_connected_member_is_that_of_its_ledger(
    client: ClusterClient, unreachable: datetime | None
) -> None:
    member = make_member(cluster=make_cluster(client), unreachable_since=unreachable)
    eight = Resources({"cpu": 8000})
    assert member.reading() == LedgerReading(
        eight, eight, frozenset({"n1"}), [], is_reachable=unreachable is None
    )


async def test_member_that_is_disconnected_or_being_listed_has_no_reading(client: ClusterClient) -> None:
    listing = make_member(cluster=make_cluster(client, is_ready=False))
    assert (make_member().reading(), listing.reading()) == (None, None)


@pytest.mark.parametrize(
    ("closed", "has_cluster", "is_connecting"),
    [
        pytest.param(CONNECTING, False, True, id="being-connected"),
        pytest.param(CONNECTING, True, False, id="connected"),
        pytest.param(UNREACHABLE, False, False, id="unreachable"),
        pytest.param(None, False, False, id="just-left"),
        pytest.param(None, True, False, id="open"),
    ],
)
async def test_member_is_connecting_until_it_is_connected_or_closed(
    client: ClusterClient, closed: Closed | None, has_cluster: bool, is_connecting: bool
) -> None:
    cluster = make_cluster(client) if has_cluster else None
    assert make_member(closed=closed, cluster=cluster).is_connecting is is_connecting


LOST = Loss(OnClusterLost.FAIL, at(40), "cluster east has not answered since 2026-11-20 08:58:16 UTC")


@pytest.mark.parametrize(
    ("closed", "since", "expected"),
    [
        pytest.param(UNREACHABLE, at(10), LOST, id="unreachable"),
        pytest.param(
            Closed(pending_reasons.NOT_CONNECTED, "no Secret"),
            at(10),
            LOST,
            id="unreachable-before-its-secret-went",
        ),
        pytest.param(UNREACHABLE, None, None, id="closed-by-an-answer"),
        pytest.param(CONNECTING, at(10), None, id="being-connected"),
    ],
)
def test_loss_counts_from_the_time_the_member_became_unreachable(
    closed: Closed, since: datetime | None, expected: Loss | None
) -> None:
    declared = replace(EAST, on_lost=OnClusterLost.FAIL, grace=timedelta(seconds=30))
    assert make_member(declared=declared, closed=closed, unreachable_since=since).loss() == expected


async def test_connected_member_is_not_lost(client: ClusterClient) -> None:
    member = make_member(closed=UNREACHABLE, unreachable_since=at(10), cluster=make_cluster(client))
    assert member.loss() is None


async def test_cluster_snapshot_has_the_values_for_a_cycle(client: ClusterClient) -> None:
    declared = replace(EAST, reserve={"cpu": "2"}, namespace_policy=NamespacePolicy.CREATE)
    cluster = make_cluster(client)
    served = Kind(*JOB, "jobs", namespaced=True)
    cluster.discovery._kinds[JOB] = served  # noqa: SLF001  # as if it had said so
    cluster.object_client.rights._denied["team", JOB] = served  # noqa: SLF001  # as if it had refused one
    member = make_member(declared=declared, cluster=cluster)
    for second in range(3):
        member.errors.note(at(second))
    member.errors.note(at(2), "team")
    snapshot = member.snapshot(frozenset({JOB, RAY}), frozenset({"default", "team"}), at(601))
    assert snapshot.capacity.free_for(None) == Resources({"cpu": 6000})
    assert snapshot == ClusterSnapshot(
        name="east",
        capacity=snapshot.capacity,
        labels={"gpu": "a100"},
        missing_kinds=frozenset({RAY}),
        forbidden_kinds=frozenset({("team", JOB)}),
        missing_namespaces=frozenset({"team"}),
        creates_namespaces=True,
        errors=ErrorCounts(2, {"team": 1}),
    )


@pytest.mark.parametrize(
    ("accepted", "closed"),
    [(AcceptedNamespaces.LABELLED, frozenset({"private"})), (AcceptedNamespaces.ALL, frozenset[str]())],
)
async def test_namespaces_take_gangs_by_label_or_if_all_do(
    client: ClusterClient, accepted: AcceptedNamespaces, closed: frozenset[str]
) -> None:
    member = make_member(declared=replace(EAST, accepted_namespaces=accepted), cluster=make_cluster(client))
    snapshot = member.snapshot(frozenset(), frozenset({"default", "private", "team"}), at(1))
    assert (snapshot.closed_namespaces, snapshot.missing_namespaces) == (closed, frozenset({"team"}))


async def test_changes_of_namespaces_count_from_the_next_cycle_on(client: ClusterClient) -> None:
    cluster = make_cluster(client)
    asked = frozenset({"default", "private", "team"})
    seen = []
    changes = [("private", True), ("team", False), ("default", None)]
    for name, is_enabled in changes:
        new = None if is_enabled is None else Namespace(name, is_enabled=is_enabled)
        item = {} if new is None else {name: new}
        seen.append((cluster.missing_namespaces(asked), cluster.closed_namespaces(asked)))
        watch = cluster._namespaces  # noqa: SLF001  # as if it had told of that
        old = watch.items.pop(name, None)
        watch.items.update(item)
        cluster._namespace_changed(name, old, new)  # noqa: SLF001
    seen.append((cluster.missing_namespaces(asked), cluster.closed_namespaces(asked)))
    assert seen == [
        (frozenset({"team"}), frozenset({"private"})),
        (frozenset({"team"}), frozenset()),
        (frozenset(), frozenset({"team"})),
        (frozenset({"default"}), frozenset({"team"})),
    ]


@pytest.mark.parametrize(
    ("closed", "expected"), [(UNREACHABLE, UNREACHABLE), (CONNECTING, CONNECTING), (None, LISTING)]
)
async def test_member_that_is_not_ready_takes_no_gangs_and_has_a_reason(
    client: ClusterClient, closed: Closed | None, expected: Closed
) -> None:
    for cluster in (None, make_cluster(client, is_ready=False)):
        snapshot = make_member(closed=closed, cluster=cluster).snapshot(frozenset(), frozenset(), at(9))
        assert snapshot.capacity.free_for(None) == Resources()
        assert snapshot == ClusterSnapshot("east", snapshot.capacity, {"gpu": "a100"}, expected)


async def test_status_has_the_capacity_beyond_the_reserve(client: ClusterClient) -> None:
    declared = replace(EAST, reserve={"cpu": "2"}, cordoned=True)
    member = make_member(declared=declared, uid="of-east", cluster=make_cluster(client))
    assert member.status_values(3) == MemberState(
        since=at(1),
        closed=Closed(pending_reasons.CORDONED, "it takes nothing new"),
        cluster_uid="of-east",
        allocatable=Resources({"cpu": 8000}),
        free=Resources({"cpu": 6000}),
        running=3,
    )


def test_status_of_an_unreachable_member_has_a_time_and_no_capacity() -> None:
    member = make_member(closed=UNREACHABLE, uid="of-east", unreachable_since=at(-60))
    assert member.status_values(3) == MemberState(
        at(1), UNREACHABLE, "of-east", running=3, unreachable_since=at(-60)
    )


def test_required_kinds_are_the_kinds_of_all_requirements() -> None:
    requirements = {
        ClusterRequirements(kinds=frozenset({JOB})),
        ClusterRequirements(kinds=frozenset({RAY, JOB})),
        ClusterRequirements(),
    }
    assert (required_kinds(requirements), required_kinds(set())) == (frozenset({JOB, RAY}), frozenset())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"cordon_reason": "as it was"}, None),
        ({"cordoned": True}, Closed(pending_reasons.CORDONED, "it takes nothing new")),
        (
            {"cordoned": True, "cordon_reason": "new switches"},
            Closed(pending_reasons.CORDONED, "it takes nothing new: new switches"),
        ),
        ({"drain": True, "cordoned": True}, Closed(pending_reasons.DRAINING, "it is being emptied")),
        (
            {"drain": True, "cordon_reason": "it moves"},
            Closed(pending_reasons.DRAINING, "it is being emptied: it moves"),
        ),
    ],
)
def test_operator_closes_a_member_with_a_reason(fields: dict[str, Any], expected: Closed | None) -> None:
    assert closed_by_operator(replace(EAST, **fields)) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            errors.Unauthorized("no entry"),
            Closed(
                pending_reasons.CREDENTIALS_REFUSED,
                "its API server does not accept our credentials: no entry",
            ),
        ),
        (
            errors.Forbidden("may not"),
            Closed(
                pending_reasons.CREDENTIALS_REFUSED, "its API server does not accept our credentials: may not"
            ),
        ),
        (AnotherCluster("it is west"), Closed(pending_reasons.ANOTHER_CLUSTER, "it is west")),
        (errors.SettingsError("no Secret"), Closed(pending_reasons.NOT_CONNECTED, "no Secret")),
        (Unlisted("no lists"), Closed(pending_reasons.UNREACHABLE, "no lists")),
        (
            errors.Throttled("later"),
            Closed(pending_reasons.UNREACHABLE, "its API server is too busy to answer: later"),
        ),
        (
            errors.TooLarge("GET /x: the answer is larger than 16 MiB"),
            Closed(
                pending_reasons.ANSWERS_TOO_LARGE,
                "its API server sends more than an honest one does, which is not read: "
                "GET /x: the answer is larger than 16 MiB",
            ),
        ),
        (
            errors.Unavailable("timeout"),
            Closed(pending_reasons.UNREACHABLE, "its API server does not answer: timeout"),
        ),
        (errors.NotFound("404"), Closed(pending_reasons.UNREACHABLE, "its API server does not answer: 404")),
    ],
)
def test_error_of_a_connection_gives_the_closed_reason(error: Exception, expected: Closed) -> None:
    assert closed_for(error) == expected
