"""The API server accepts every queue of docs/queues.md and of its examples."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dispatcher.api.names import QUEUES_PATH
from tests.cluster.world import World
from tests.unit.test_queues_page import ANSWERED, EXAMPLES, MANIFESTS, SHARED

Json = dict[str, Any]


def manifest(queue: Json) -> Json:
    """The DispatchQueue of a queue in a file for `plan`."""
    spec = {key: value for key, value in queue.items() if key != "name"}
    return {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "DispatchQueue",
        "metadata": {"name": queue["name"]},
        "spec": spec,
    }


OF_SCENARIOS = [
    [manifest(queue) for queue in yaml.safe_load(text)["queues"]]
    for text in (SHARED, *(scenario for scenario, _ in ANSWERED))
]
OF_FILES = [list(yaml.safe_load_all(text)) for text in (*MANIFESTS, *(each.read_text() for each in EXAMPLES))]


@pytest.mark.parametrize("queues", [*OF_SCENARIOS, *OF_FILES])
async def test_queues_are_accepted(world: World, queues: list[Json]) -> None:
    for each in queues:
        created = world.plane.client.request("POST", f"{QUEUES_PATH}?dryRun=All&fieldValidation=Strict", each)
        assert created["spec"] == each.get("spec", {})
