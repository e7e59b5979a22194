from datetime import UTC, datetime
from typing import Any

import pytest

from testbed.nodes import Shape, is_usable, make_node

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_node_offers_all_of_what_it_is_given() -> None:
    shape = Shape(cpu="4", memory="16Gi", gpu=2, labels={"pool": "a"})

    node = make_node("node-7", shape, NOW)

    expected = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"}
    assert (node["status"]["allocatable"], node["status"]["capacity"]) == (expected, expected)
    assert node["metadata"]["labels"] | {"pool": "a"} == node["metadata"]["labels"]


def test_node_without_gpus_does_not_know_them() -> None:
    assert "nvidia.com/gpu" not in Shape().capacity


@pytest.mark.parametrize(
    ("ready", "taint", "expected"),
    [
        ("True", None, True),
        ("True", "example.com/dedicated", True),
        ("True", "node.kubernetes.io/not-ready", False),
        ("Unknown", None, False),
    ],
)
def test_node_is_usable_when_the_control_plane_has_nothing_against_it(
    ready: str, taint: str | None, expected: bool
) -> None:
    node: dict[str, Any] = {
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }

    assert is_usable(node) is expected
