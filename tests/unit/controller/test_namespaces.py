"""Ceilings are what namespaces say, and what they said last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.api.names import MAX_PRIORITY, QUEUE_LABEL
from dispatcher.controller.intake.limits import PATH, Namespaces
from dispatcher.core.intake.namespace_bounds import Ceiling
from dispatcher.kube.client import METADATA_LIST, ClusterClient
from tests.fakes import FakeApiServer, answer, never, refusal, watch
from tests.unit.virtual_time import until

Json = dict[str, Any]
DEFAULT = Ceiling(7)


def namespace(name: str, version: int = 1, labels: dict[str, str] | None = None, **annotations: str) -> Json:
    keys = {key.replace("_", "-"): value for key, value in annotations.items()}
    ours = {f"dispatcher.codeflare.dev/{key}": value for key, value in keys.items()}
    metadata = {"uid": name, "name": name, "resourceVersion": str(version), "annotations": ours}
    metadata["labels"] = labels or {}
    return {"metadata": metadata}


@asynccontextmanager
async def running(namespaces: Namespaces) -> AsyncIterator[None]:
    task = asyncio.create_task(namespaces.run())
    try:
        await namespaces.wait_until_listed()
        yield
    finally:
        task.cancel()


async def test_ceilings_follow_the_annotations(server: FakeApiServer, client: ClusterClient) -> None:
    listed = [namespace("low", max_priority="1"), namespace("plain")]
    events = [
        {"type": "MODIFIED", "object": namespace("low", 6, max_priority="2", max_priority_slope="0.5")},
        {"type": "MODIFIED", "object": namespace("low", 7, max_priority="2", max_priority_slope="0.5")},
        {"type": "ADDED", "object": namespace("bad", 8, max_priority="high")},
        {"type": "MODIFIED", "object": namespace("plain", 9)},
    ]
    server.on(
        "GET",
        PATH,
        answer({"metadata": {"resourceVersion": "5"}, "items": listed}),
        watch(*events),
        watch(
            {"type": "MODIFIED", "object": namespace("low", 10)},
            {"type": "DELETED", "object": namespace("bad", 11)},
        ),
        never,
    )
    told: list[tuple[str, Ceiling]] = []
    with capture_logs() as logs:
        namespaces = Namespaces(
            client, DEFAULT, lambda name: told.append((name, namespaces.ceiling_of(name))), lambda: None
        )
        async with running(namespaces):
            assert namespaces.ceiling_of("plain") == namespaces.ceiling_of("unheard-of") == DEFAULT
            await until(lambda: len(told) == 5)
    assert told == [
        ("low", Ceiling(1)),
        ("low", Ceiling(2, 0.5)),
        ("bad", Ceiling(0)),
        ("low", DEFAULT),
        ("bad", DEFAULT),
    ]
    assert [each["annotation"] for each in logs if each["event"] == "ceiling_unreadable"] == [MAX_PRIORITY]
    assert server.requests("GET", PATH)[0].headers["Accept"] == METADATA_LIST


@pytest.mark.parametrize("status", [403, 404])
async def test_namespaces_that_may_not_be_listed_delay_nothing(
    server: FakeApiServer, client: ClusterClient, status: int
) -> None:
    server.on("GET", PATH, refusal(status, "Forbidden" if status == 403 else "NotFound"))
    namespaces = Namespaces(client, DEFAULT, lambda _name: None, lambda: None)
    with capture_logs() as logs:
        async with running(namespaces):
            assert namespaces.ceiling_of("low") == DEFAULT
    assert ("ceilings_unknown" in [each["event"] for each in logs]) is (status == 403)


async def test_labels_of_namespaces_are_cached_and_their_changes_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    tier, team = {"tier": "gold"}, {"tier": "gold", QUEUE_LABEL: "team"}
    events = [
        {"type": "MODIFIED", "object": namespace("gold", 6, team)},
        {"type": "MODIFIED", "object": namespace("gold", 7, {**team, "x": "y"})},
        {"type": "ADDED", "object": namespace("late", 8, tier)},
        {"type": "DELETED", "object": namespace("late", 9, tier)},
        {"type": "MODIFIED", "object": namespace("gold", 10)},
    ]
    listed = [namespace("gold", 1, tier), namespace("plain")]
    server.on(
        "GET", PATH, answer({"metadata": {"resourceVersion": "5"}, "items": listed}), watch(*events), never
    )
    changed: list[str] = []
    seen: list[dict[str, dict[str, str]]] = []
    namespaces = Namespaces(
        client,
        DEFAULT,
        changed.append,
        lambda: seen.append({name: dict(labels) for name, labels in namespaces.labels.items()}),
    )
    async with running(namespaces):
        assert (namespaces.labels_of("plain"), namespaces.labels_of("unheard-of")) == ({}, {})
        await until(lambda: len(seen) == 6)
    assert changed == ["gold", "gold"], "its queue was named, and is not any more"
    assert seen == [
        {"gold": tier},
        {"gold": team},
        {"gold": {**team, "x": "y"}},
        {"gold": {**team, "x": "y"}, "late": tier},
        {"gold": {**team, "x": "y"}},
        {},
    ]
