"""Pods whose owner references nothing checks, beside gangs that run: whoever leads goes on leading."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import errors
from dispatcher.api.names import UID_LABEL
from testbed.processes import Process
from tests.cluster.manifests import appwrapper, item, job, pod
from tests.cluster.world import World

Json = dict[str, Any]

REPLICASET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}
HOSTILE = {
    "question": {**REPLICASET, "name": "?"},
    "traversal": {**REPLICASET, "name": "../../secrets"},
    "dots": {**REPLICASET, "name": ".."},
    "nul": {**REPLICASET, "name": "a\0b"},
    "escape": {**REPLICASET, "name": "%2e%2e"},
    "version": {**REPLICASET, "apiVersion": "v1?"},
    "group": {**REPLICASET, "apiVersion": "apps/v1?watch=1"},
    "kind": {**REPLICASET, "kind": "?"},
}


def hostile(name: str, appwrapper_uid: str) -> Json:
    """A pod that claims to be of the AppWrapper, and that no garbage collector removes."""
    raw = pod(f"hostile-{name}")
    raw["metadata"] |= {
        "labels": {UID_LABEL: appwrapper_uid},
        "finalizers": ["example.com/stays"],
        "ownerReferences": [{**HOSTILE[name], "uid": f"made-up-{name}"}],
    }
    return raw


async def release(world: World) -> None:
    for each in await world.every("Pod"):
        if each["metadata"].get("finalizers"):
            await world.merge("Pod", each["metadata"]["name"], {"metadata": {"finalizers": []}})


def events(process: Process, event: str) -> list[str]:
    return [line for line in process.log.read_text().splitlines() if f'"event": "{event}"' in line]


async def test_no_pod_ends_the_leader(world: World) -> None:
    process = await world.start_dispatcher()
    first = await world.create(appwrapper("first", item(job("first"))))
    await world.until_state("first", "Running")
    made = []
    for name in HOSTILE:
        try:
            made.append(await world.create(hostile(name, first["metadata"]["uid"])))
        except errors.Invalid:
            continue  # so much of it this API server does check
    assert {"hostile-question", "hostile-version"} <= {each["metadata"]["name"] for each in made}

    await world.create_until("Running", appwrapper("second", item(job("second"))))
    await world.delete("first")
    await world.create_until("Running", appwrapper("third", item(job("third"))))

    assert (len(events(process, "leading")), events(process, "leadership_ended")) == (1, [])
    assert events(process, "internal_error") == []


@pytest.fixture(autouse=True)
async def _released(world: World) -> Any:  # noqa: ANN401
    yield
    await release(world)
