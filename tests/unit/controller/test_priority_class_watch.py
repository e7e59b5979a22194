"""The watch of priority classes: which are known, and which changes are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.names import PRIORITY_LABEL
from dispatcher.controller.intake.priority_class_watch import PATH, PriorityClassWatch
from dispatcher.controller.scheduling.absence import CHECK_SECONDS, LASTS_SECONDS
from dispatcher.core.intake.labels import ChangedClasses, ClassValue, PriorityClasses, ResolvedPriority
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, watch
from tests.unit.controller.test_queue_absence import after, bookmarks
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import listing

Json = dict[str, Any]
KUEUE = "/apis/kueue.x-k8s.io"


def priority_class(name: str, value: int, version: int = 1) -> Json:
    metadata = {"uid": f"{name}-{value}", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "value": value}


def serves_kueue(server: FakeApiServer, version: str) -> str:
    """Have the server know Kueue's classes in this version; returns the path of their collection."""
    found = {"name": "workloadpriorityclasses", "kind": "WorkloadPriorityClass", "namespaced": False}
    server.on("GET", f"{KUEUE}/{version}", answer({"resources": [found]}))
    return f"{KUEUE}/{version}/workloadpriorityclasses"


def listed(*raw: Json) -> Json:
    return {"metadata": {"resourceVersion": "5"}, "items": list(raw)}


@pytest.fixture
def told() -> list[set[str]]:
    """The names of each call."""
    return []


@pytest.fixture
def watched(client: ClusterClient, told: list[set[str]]) -> PriorityClassWatch:
    async def tell(changed: ChangedClasses) -> None:
        told.append(set(changed.names))
        if "poison" in changed.names:
            raise ValueError("a defect")

    return PriorityClassWatch(client, Discovery(client), tell, monotonic)


def values(watched: PriorityClassWatch) -> PriorityClasses:
    """The known classes; whether these are all has tests of its own."""
    return replace(watched.classes, are_all=True)


async def test_preemption_policy_of_a_class_is_known_until_the_class_is_replaced(
    server: FakeApiServer, watched: PriorityClassWatch, told: list[set[str]]
) -> None:
    polite, never_preempts = priority_class("polite", 5), {"preemptionPolicy": "Never"}
    usual = {**priority_class("usual", 5), "preemptionPolicy": "PreemptLowerPriority"}
    events = [
        {"type": "DELETED", "object": {**polite, **never_preempts}},
        {"type": "ADDED", "object": priority_class("polite", 6, 7)},
        {"type": "ADDED", "object": {**priority_class("late", 5, 8), **never_preempts}},
    ]
    first = answer(listed({**polite, **never_preempts}, usual))
    server.on("GET", PATH, first, watch(*events), never)
    async with listing(watched) as goes_on:
        await until(goes_on)
        await until(lambda: "late" in set().union(*told))
        assert values(watched) == PriorityClasses({}, {"polite": 6, "usual": 5, "late": 5}, {"late"})


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_classes_of_both_kinds_are_known(
    server: FakeApiServer, watched: PriorityClassWatch, version: str
) -> None:
    server.on("GET", PATH, answer(listed(priority_class("train", 5))), never)
    server.on("GET", serves_kueue(server, version), answer(listed(priority_class("train", 9))), never)
    async with listing(watched) as goes_on:
        await until(goes_on)
        assert values(watched) == PriorityClasses({"train": 9}, {"train": 5})


async def test_changes_of_priority_classes_are_followed_and_reported_by_name(
    server: FakeApiServer, watched: PriorityClassWatch, told: list[set[str]]
) -> None:
    events = [
        {"type": "ADDED", "object": priority_class("poison", 1, 6)},
        {"type": "DELETED", "object": priority_class("train", 5, 7)},
        {"type": "ADDED", "object": priority_class("train", 6, 8)},
        {"type": "MODIFIED", "object": priority_class("train", 6, 9)},
        {"type": "ADDED", "object": priority_class("late", -1, 10)},
        {"type": "DELETED", "object": priority_class("same", 3, 11)},
    ]
    first = answer(listed(priority_class("train", 5), priority_class("same", 3)))
    server.on("GET", PATH, first, watch(*events), never)
    async with listing(watched):
        await until(lambda: set().union(*told) == {"train", "same", "poison", "late"})
        assert values(watched) == PriorityClasses({}, {"train": 6, "same": 3, "poison": 1, "late": -1})


@pytest.mark.parametrize(("status", "warnings"), [(403, 1), (404, 0)])
async def test_priority_classes_that_may_not_be_listed_delay_nothing(
    server: FakeApiServer, watched: PriorityClassWatch, status: int, warnings: int
) -> None:
    server.on("GET", PATH, refusal(status, "Forbidden" if status == 403 else ""))
    with capture_logs() as logs:
        async with listing(watched) as goes_on:
            await until(goes_on)
    assert values(watched) == PriorityClasses()
    assert [each["event"] for each in logs].count("priority_classes_unknown") == warnings


async def test_leader_waits_while_classes_cannot_be_listed(
    server: FakeApiServer, watched: PriorityClassWatch
) -> None:
    server.on("GET", PATH, refusal(500, "InternalError"))
    async with listing(watched) as goes_on:
        await asyncio.sleep(100)  # virtual
        assert not goes_on()
        server.on("GET", PATH, answer(listed(priority_class("train", 5))), never)
        await until(goes_on)
        assert watched.classes.of_pods == {"train": 5}


# -----------------------------------------------------------------------------------------------------------
# A priority class that is removed and put back keeps its values meanwhile; one that is gone for good loses
# them.


NOT_SERVED = refusal(404, "")


@asynccontextmanager
async def following(
    client: ClusterClient, seen: Mapping[str, ClassValue] | None = None
) -> AsyncIterator[tuple[PriorityClassWatch, list[ChangedClasses], Callable[[], bool]]]:
    """A watch that runs, its calls of `on_changed`, and whether a leader would go on by now.

    Earlier leaders have recorded the classes `seen`, unless it is None.
    """
    told: list[ChangedClasses] = []

    async def tell(changed: ChangedClasses) -> None:
        told.append(changed)

    watched = PriorityClassWatch(client, Discovery(client), tell, monotonic)
    watched.load(seen)
    async with listing(watched) as goes_on:
        yield watched, told, goes_on


def removed(raw: Json) -> Json:
    return {"type": "DELETED", "object": {**raw, "metadata": {**raw["metadata"], "resourceVersion": "7"}}}


def added(raw: Json) -> Json:
    return {"type": "ADDED", "object": raw}


@pytest.mark.parametrize(("value", "changes"), [(1000, 0), (7, 1)], ids=["as-before", "another-value"])
async def test_class_that_is_replaced_keeps_its_value_until_it_is_back(
    server: FakeApiServer, client: ClusterClient, value: int, changes: int
) -> None:
    server.on("GET", PATH, answer(listed()), bookmarks)
    urgent, path = priority_class("urgent", 1000), serves_kueue(server, "v1beta2")
    gone, back = asyncio.Event(), asyncio.Event()
    again = {**priority_class("urgent", value, 8), "preemptionPolicy": ""}
    server.on(
        "GET",
        path,
        answer(listed(urgent)),
        after(gone, removed(urgent)),
        after(back, added(again)),
        bookmarks,
    )
    async with following(client) as (watched, told, goes_on):
        await until(goes_on)
        await until(lambda: len(told) == 1)
        gone.set()
        with capture_logs() as logs:
            await until(lambda: any(each["event"] == "priority_classes_absent" for each in logs))
        assert watched.classes.of_workloads == {"urgent": 1000}
        await asyncio.sleep(60)  # virtual
        assert watched.classes.of_workloads == {"urgent": 1000}
        back.set()
        await asyncio.sleep(2 * LASTS_SECONDS)  # virtual
        assert watched.classes == PriorityClasses({"urgent": value})
        assert [each.names for each in told[1:] if each.names] == [frozenset({"urgent"})] * changes


@pytest.mark.parametrize(
    "last",
    [
        pytest.param([bookmarks], id="deleted"),
        pytest.param([NOT_SERVED], id="deleted-with-its-crd"),
    ],
)
async def test_class_whose_absence_has_lasted_is_forgotten_with_its_policy(
    server: FakeApiServer, client: ClusterClient, last: list[Reply]
) -> None:
    polite = {**priority_class("polite", 5), "preemptionPolicy": "Never"}
    server.on("GET", PATH, answer(listed(polite)), watch(removed(polite)), bookmarks)
    urgent, path = priority_class("urgent", 1000), serves_kueue(server, "v1beta2")
    server.on("GET", path, answer(listed(urgent)), watch(removed(urgent)), *last)
    async with following(client) as (watched, told, goes_on):
        await until(goes_on)
        if last == [NOT_SERVED]:
            server.on("GET", f"{KUEUE}/v1beta2", NOT_SERVED)
        begun = monotonic()
        known = PriorityClasses({"urgent": 1000}, {"polite": 5}, {"polite"}, are_all=False)
        await asyncio.sleep(LASTS_SECONDS - 60)  # virtual
        assert watched.classes == known
        await until(lambda: watched.classes == PriorityClasses())
        assert monotonic() - begun >= LASTS_SECONDS - CHECK_SECONDS
        await until(lambda: {"urgent", "polite"} <= set().union(*(each.names for each in told[1:])))


@pytest.mark.parametrize("lost", [refusal(403, "Forbidden"), refusal(500, ""), NOT_SERVED])
async def test_list_that_cannot_be_read_forgets_no_class(
    server: FakeApiServer, client: ClusterClient, lost: Reply
) -> None:
    server.on("GET", PATH, answer(listed(priority_class("train", 5))), watch(), lost)
    server.on(
        "GET", serves_kueue(server, "v1beta2"), answer(listed(priority_class("train", 9))), watch(), lost
    )
    async with following(client) as (watched, _, goes_on):
        await until(goes_on)
        await asyncio.sleep(3 * LASTS_SECONDS)  # virtual
        assert (watched.classes.of_workloads, watched.classes.of_pods) == ({"train": 9}, {"train": 5})


async def test_any_name_may_be_that_of_a_class_until_complete_lists_have_lasted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """An earlier leader may have seen a class that is being replaced while this one begins."""
    server.on("GET", PATH, answer(listed(priority_class("train", 5))), bookmarks)
    server.on("GET", f"{KUEUE}/v1beta2", NOT_SERVED)
    async with following(client) as (watched, told, goes_on):
        await until(goes_on)
        assert not watched.classes.are_all
        await asyncio.sleep(LASTS_SECONDS - 60)  # virtual
        assert not watched.classes.are_all
        await until(lambda: watched.classes.are_all)
        await until(lambda: any(each.all_but is not None for each in told))
        assert (told[-1].concern("train"), told[-1].concern("urgent"), told[-1].concern("")) == (
            False,
            True,
            False,
        )


@pytest.mark.parametrize("lost", [refusal(403, "Forbidden"), NOT_SERVED])
async def test_any_name_may_be_that_of_a_class_while_a_list_is_refused(
    server: FakeApiServer, client: ClusterClient, lost: Reply
) -> None:
    server.on("GET", PATH, lost)
    server.on("GET", serves_kueue(server, "v1beta1"), answer(listed()), never)
    async with following(client) as (watched, _, goes_on):
        await until(goes_on)
        await asyncio.sleep(3 * LASTS_SECONDS)  # virtual
        assert not watched.classes.are_all


# --- a later leader --------------------------------------------------------------------------------------------

SEEN = {"workloads/urgent": ClassValue(1000), "pods/polite": ClassValue(5, never_preempts=True)}


@pytest.mark.parametrize("value", [1000, 7])
async def test_later_leader_knows_the_value_of_a_class_that_is_being_replaced(
    server: FakeApiServer, client: ClusterClient, value: int
) -> None:
    """A new AppWrapper has no record whose priority could count meanwhile."""
    server.on("GET", PATH, answer(listed()), bookmarks)
    back = asyncio.Event()
    again = added(priority_class("urgent", value, 8))
    server.on("GET", serves_kueue(server, "v1beta2"), answer(listed()), after(back, again), bookmarks)
    async with following(client, SEEN) as (watched, _, goes_on):
        await until(goes_on)
        assert watched.classes.resolve(0, {PRIORITY_LABEL: "urgent"}) == ResolvedPriority(1000)
        assert watched.classes.resolve(0, {PRIORITY_LABEL: "polite"}) == ResolvedPriority(
            5, never_preempts=True
        )
        await asyncio.sleep(60)  # virtual
        assert watched.classes.resolve(0, {PRIORITY_LABEL: "urgent"}) == ResolvedPriority(1000)
        back.set()
        await asyncio.sleep(LASTS_SECONDS)  # virtual
        assert watched.seen == {"workloads/urgent": ClassValue(value)}


async def test_later_leader_forgets_a_class_whose_absence_has_lasted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PATH, answer(listed()), bookmarks)
    server.on("GET", serves_kueue(server, "v1beta2"), answer(listed()), bookmarks)
    async with following(client, SEEN) as (watched, told, goes_on):
        await until(goes_on)
        await asyncio.sleep(LASTS_SECONDS - 10)  # virtual
        assert watched.classes.of_workloads == {"urgent": 1000}
        await until(lambda: watched.classes == PriorityClasses())
        assert watched.seen == {}
        await until(lambda: {"urgent", "polite"} <= set().union(*(each.names for each in told)))


async def test_name_that_no_leader_saw_is_unknown_once_the_lists_are_complete(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PATH, answer(listed()), bookmarks)
    server.on("GET", serves_kueue(server, "v1beta2"), answer(listed()), bookmarks)
    async with following(client, SEEN) as (watched, told, goes_on):
        await until(goes_on)
        await until(lambda: watched.classes.are_all)
        assert monotonic() <= 2 * CHECK_SECONDS
        await until(lambda: any(each.concern("misspelt") for each in told))
        assert watched.seen == SEEN


@pytest.mark.parametrize("lost", [refusal(403, "Forbidden"), NOT_SERVED])
async def test_later_leader_keeps_the_recorded_classes_while_a_list_is_refused(
    server: FakeApiServer, client: ClusterClient, lost: Reply
) -> None:
    server.on("GET", PATH, lost)
    server.on("GET", serves_kueue(server, "v1beta2"), answer(listed()), bookmarks)
    async with following(client, SEEN) as (watched, _, goes_on):
        await until(goes_on)
        await asyncio.sleep(3 * LASTS_SECONDS)  # virtual
        assert watched.classes.resolve(0, {PRIORITY_LABEL: "polite"}) == ResolvedPriority(
            5, never_preempts=True
        )
        assert (watched.classes.are_all, watched.seen) == (False, None)


async def test_classes_are_recorded_once_it_is_sure_that_they_are_all(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PATH, answer(listed(priority_class("train", 5))), bookmarks)
    server.on("GET", f"{KUEUE}/v1beta2", NOT_SERVED)
    async with following(client) as (watched, _, goes_on):
        await until(goes_on)
        await asyncio.sleep(LASTS_SECONDS - 60)  # virtual
        assert watched.seen is None
        await until(lambda: watched.seen == {"pods/train": ClassValue(5)})
