"""What is known of clusters whoever leads, and the events that are written with each change of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.model.clusters.potential import LONGEST_DISTRUST, PoolFailures
from dispatcher.core.status.clusters import ClusterState
from dispatcher.errors import Fenced, SettingsError
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership, Lease
from dispatcher.store.state.clusters import ClusterStore
from tests.postgres.changes import LATER, NOW, rows_of

Told = tuple[datetime, str, str, str, str]
CONNECTED: Told = (NOW, "east", "connected", "", "")
REFUSED = ClusterState(closed_reason="ClusterCredentialsRefused", closed_message="no entry")


@pytest.fixture
def clusters(database: Database, leadership: Leadership) -> ClusterStore:
    """The clusters, as the leader notes them."""
    return ClusterStore(database, lambda: leadership.lease)


@pytest.fixture
async def east(clusters: ClusterStore) -> ClusterStore:
    """The clusters, of which `east` is connected."""
    await clusters.recognise_cluster("east", "uid-of-east", NOW)
    return clusters


def told(url: str) -> list[Told]:
    """Every event of a cluster, in order."""
    return rows_of(url, "SELECT at, cluster, event, reason, message FROM cluster_event ORDER BY id")


async def test_failures_of_pools_are_kept_until_their_nodes_come(clusters: ClusterStore) -> None:
    assert await clusters.pool_failures() == {}
    await clusters.note_pool("east", "l4", "team-a", PoolFailures(1, NOW), NOW)
    await clusters.note_pool("east", "l4", "team-a", PoolFailures(2, LATER, confirmed=True), NOW)
    await clusters.note_pool("east", "l4", "team-b", PoolFailures(1, LATER), NOW)
    await clusters.note_pool("west", "l4", "team-a", PoolFailures(1, NOW), NOW)
    await clusters.forget_pool("west", "l4")
    assert await clusters.pool_failures() == {
        ("east", "l4", "team-a"): PoolFailures(2, LATER, confirmed=True),
        ("east", "l4", "team-b"): PoolFailures(1, LATER),
    }


async def test_failures_of_pools_that_count_no_more_leave_the_table(clusters: ClusterStore) -> None:
    await clusters.note_pool("east", "l4", "team-a", PoolFailures(1, NOW), NOW)
    await clusters.note_pool("east", "l4", "team-b", PoolFailures(1, LATER), NOW + LONGEST_DISTRUST)
    assert await clusters.pool_failures() == {("east", "l4", "team-b"): PoolFailures(1, LATER)}


async def test_cluster_joins_once(east: ClusterStore, database_url: str, leadership: Leadership) -> None:
    await east.recognise_cluster("east", "uid-of-east", LATER)
    assert told(database_url) == [CONNECTED]
    found = rows_of(database_url, "SELECT actor, epoch FROM cluster_event")
    assert found == [("", leadership.lease.epoch)]


async def test_another_cluster_of_a_known_name_is_refused_without_an_event(
    east: ClusterStore, database_url: str
) -> None:
    with pytest.raises(SettingsError, match="declare it under another name"):
        await east.recognise_cluster("east", "another", LATER)
    assert told(database_url) == [CONNECTED]


async def test_uid_belongs_to_the_declared_cluster_that_had_it_first(east: ClusterStore) -> None:
    with pytest.raises(SettingsError, match="the kube-system uid of cluster east"):
        await east.recognise_cluster("liar", "uid-of-east", LATER)
    await east.recognise_cluster("east", "uid-of-east", LATER)


async def test_uid_of_a_removed_cluster_may_have_another_name(east: ClusterStore) -> None:
    await east.note_state("east", ClusterState(is_declared=False), NOW)
    await east.recognise_cluster("renamed", "uid-of-east", LATER)
    with pytest.raises(SettingsError, match="cluster renamed"):
        await east.recognise_cluster("liar", "uid-of-east", LATER)


async def test_hub_has_its_name_whatever_a_member_reported(east: ClusterStore) -> None:
    await east.recognise_cluster("hub", "uid-of-east", LATER)
    with pytest.raises(SettingsError, match="declare it under another name"):
        await east.recognise_cluster("east", "another", LATER)


async def test_unreachable_cluster_makes_events_at_begin_and_end_and_counts_from_its_begin(
    east: ClusterStore, database_url: str
) -> None:
    later = LATER + timedelta(seconds=1)
    await east.note_unreachable("east", NOW, "no answer")
    await east.note_unreachable("east", LATER, "no answer either")
    assert await east.unreachable_clusters() == {"east": NOW}
    await east.note_reachable("east", LATER)
    await east.note_reachable("east", later)
    assert await east.unreachable_clusters() == {}
    await east.note_unreachable("east", later, "again")
    assert told(database_url) == [
        CONNECTED,
        (NOW, "east", "unreachable", "ClusterUnreachable", "no answer"),
        (LATER, "east", "reachable", "", ""),
        (later, "east", "unreachable", "ClusterUnreachable", "again"),
    ]


async def test_cluster_state_is_recorded_once_by_several_leaders(
    east: ClusterStore, database: Database, database_url: str
) -> None:
    cordoned = ClusterState(is_cordoned=True, said="new switches")
    await east.note_state("east", ClusterState(), NOW)
    await east.note_state("east", cordoned, LATER)
    await east.note_state("east", replace(cordoned, said="old switches"), LATER)
    successor = Leadership(database, holder="successor")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE leader_lease SET expires_at = clock_timestamp()")
    assert await successor.acquire() is not None
    next_term = ClusterStore(database, lambda: successor.lease)
    await next_term.note_state("east", cordoned, LATER)
    await next_term.note_state("east", replace(cordoned, closed_reason=None), LATER)
    await next_term.note_state("east", REFUSED, LATER)
    await next_term.note_state("east", ClusterState(closed_reason=None), LATER)
    await next_term.note_state("east", ClusterState(), LATER)
    assert told(database_url) == [
        CONNECTED,
        (LATER, "east", "cordoned", "ClusterCordoned", "new switches"),
        (LATER, "east", "uncordoned", "", ""),
        (LATER, "east", "closed", "ClusterCredentialsRefused", "no entry"),
        (LATER, "east", "opened", "", ""),
    ]


async def test_member_that_is_declared_again_begins_anew(east: ClusterStore, database_url: str) -> None:
    await east.note_state("east", replace(REFUSED, is_cordoned=True), NOW)
    assert await east.declared_members() == {"east"}
    await east.note_state("east", replace(REFUSED, is_declared=False), LATER)
    assert await east.declared_members() == set()
    await east.note_state("east", replace(REFUSED, is_cordoned=True), LATER)
    assert [event for _, _, event, _, _ in told(database_url)] == [
        "connected",
        "cordoned",
        "closed",
        "removed",
        "declared",
        "cordoned",
        "closed",
    ]


async def test_hub_takes_gangs_before_it_is_declared(clusters: ClusterStore, database_url: str) -> None:
    await clusters.recognise_cluster("hub", "uid-of-hub", NOW)
    await clusters.note_state("hub", ClusterState(), LATER)
    assert await clusters.declared_members() == set()
    assert [event for _, _, event, _, _ in told(database_url)] == ["connected", "declared"]


async def test_each_rotation_of_credentials_makes_an_event(east: ClusterStore, database_url: str) -> None:
    await east.note_rotation("east", NOW)
    await east.note_rotation("east", LATER)
    assert told(database_url)[1:] == [
        (NOW, "east", "credentials-rotated", "", ""),
        (LATER, "east", "credentials-rotated", "", ""),
    ]


async def test_cluster_that_was_never_recognised_has_no_events(
    clusters: ClusterStore, database_url: str
) -> None:
    await clusters.note_unreachable("west", NOW, "no answer")
    await clusters.note_reachable("west", NOW)
    await clusters.note_state("west", REFUSED, NOW)
    await clusters.note_rotation("west", NOW)
    assert (told(database_url), await clusters.unreachable_clusters()) == ([], {})


async def test_message_is_one_short_line(east: ClusterStore, database_url: str) -> None:
    await east.note_unreachable("east", NOW, "a\0b\n" + "c" * 5000)
    (_, (_, _, _, _, message)) = told(database_url)
    assert message == r"a\x00b\n" + "c" * 1015 + "…"


@pytest.mark.parametrize(
    "note",
    [
        lambda store: store.recognise_cluster("west", "uid-of-west", LATER),
        lambda store: store.note_unreachable("east", LATER, ""),
        lambda store: store.note_state("east", REFUSED, LATER),
        lambda store: store.note_rotation("east", LATER),
        lambda store: store.note_seen(["east"]),
    ],
    ids=["recognised", "unreachable", "state", "rotation", "seen"],
)
async def test_former_leader_notes_nothing(
    east: ClusterStore,
    database: Database,
    leadership: Leadership,
    database_url: str,
    note: Callable[[ClusterStore], Awaitable[None]],
) -> None:
    stale: Lease = replace(leadership.lease, epoch=leadership.lease.epoch - 1)
    with pytest.raises(Fenced):
        await note(ClusterStore(database, lambda: stale))
    assert (told(database_url), await east.seen_members()) == ([CONNECTED], set())


async def test_members_that_one_leader_saw_are_known_to_the_next(
    clusters: ClusterStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    assert await clusters.seen_members() == set()
    await clusters.note_seen({"west", "hub"})
    before = rows_of(database_url, "SELECT xmin::text FROM hub")
    await leadership.release()
    successor = Leadership(database, "successor")
    assert await successor.acquire() is not None
    later = ClusterStore(database, lambda: successor.lease)
    assert await later.seen_members() == {"hub", "west"}
    await later.note_seen({"hub", "west"})
    assert rows_of(database_url, "SELECT xmin::text FROM hub") == before
    await later.note_seen(set())
    assert await later.seen_members() == set()
