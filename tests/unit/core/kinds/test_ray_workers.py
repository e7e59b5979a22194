"""The workers that Ray's autoscaler names in a RayCluster, for any JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.kinds.asked import MOST_NAMED, named_to_delete, owns_rayclusters
from dispatcher.core.model.record import ObjectRef


def raycluster(*named: object) -> dict[str, Any]:
    groups = [{"groupName": "w", "scaleStrategy": {"workersToDelete": each}} for each in named]
    return {"spec": {"workerGroupSpecs": groups}}


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        pytest.param({}, set(), id="nothing"),
        pytest.param({"spec": {"workerGroupSpecs": [{"groupName": "w"}]}}, set(), id="no-strategy"),
        pytest.param(raycluster(["a"], [], ["b", "c"]), {"a", "b", "c"}, id="of-all-groups"),
        pytest.param(raycluster("a", {"b": "c"}, None, [1, ["d"], "e"]), {"e"}, id="malformed"),
        pytest.param(
            {"spec": {"workerGroupSpecs": ["w", None, {"scaleStrategy": 1}]}}, set(), id="no-groups"
        ),
        pytest.param({"spec": {"workerGroupSpecs": "w"}}, set(), id="no-list"),
    ],
)
def test_workers_are_named_in_the_scale_strategies(raw: dict[str, Any], names: set[str]) -> None:
    assert named_to_delete("ray.io", "RayCluster", raw) == names
    assert named_to_delete("example.com", "RayCluster", raw) == set()


def test_as_many_names_are_read_as_one_raycluster_may_need() -> None:
    raw = raycluster([str(number) for number in range(MOST_NAMED + 1)])
    assert len(named_to_delete("ray.io", "RayCluster", raw)) == MOST_NAMED


@pytest.mark.parametrize(
    ("api_version", "kind", "expected"),
    [("ray.io/v1", "RayJob", True), ("ray.io/v1", "RayService", True), ("ray.io/v1", "RayCluster", False)],
)
def test_rayjobs_and_rayservices_own_rayclusters(api_version: str, kind: str, expected: bool) -> None:
    assert owns_rayclusters(ObjectRef(0, api_version, kind, "default", "x")) is expected
    assert not owns_rayclusters(ObjectRef(0, "example.com/v1", kind, "default", "x"))
