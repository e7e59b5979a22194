"""The watch of priority classes: which are known, and which changes are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.controller.intake.priority_class_watch import PATH, PriorityClassWatch
from dispatcher.core.intake.labels import ChangedClasses, PriorityClasses
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.fakes import FakeApiServer, answer, never, refusal, watch
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
