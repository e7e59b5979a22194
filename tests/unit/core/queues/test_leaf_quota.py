"""What each leaf is entitled to, and in which resources its use counts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.leaf_quota import LeafQuota, leaf_quotas
from dispatcher.core.queues.queue import Queue, Quota

ONE = Fraction(1)
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], [LeafQuota("default", ONE, {})], id="the queue that is there without a declaration"),
        pytest.param(
            [Queue("a", resources={GPU: Quota(8, 4, 2)}, weight=Fraction(3, 2))],
            [LeafQuota("a", Fraction(3, 2), {GPU: 8}), LeafQuota("default", ONE, {})],
            id="its nominal quota, whatever it borrows and lends",
        ),
        pytest.param(
            [
                Queue("org", resources={GPU: Quota(12)}),
                Queue("b", "org", {GPU: Quota(8)}),
                Queue("a", "org", {"cpu": Quota(500)}),
            ],
            [
                LeafQuota("a", ONE, {"cpu": 500, GPU: 0}),
                LeafQuota("b", ONE, {"cpu": 0, GPU: 8}),
                LeafQuota("default", ONE, {}),
            ],
            id="nothing of a resource that only others name; inner queues have no gangs",
        ),
        pytest.param(
            [Queue("lost", "nowhere", {GPU: Quota(8)})],
            [LeafQuota("default", ONE, {})],
            id="an invalid queue is entitled to nothing",
        ),
    ],
)
def test_each_leaf_is_entitled_to_its_nominal_quota(queues: list[Queue], expected: list[LeafQuota]) -> None:
    assert leaf_quotas(Forest.of(queues)) == tuple(expected)


@pytest.mark.parametrize(
    ("limited", "counted"),
    [
        ((GPU, "cpu", "amd.com/gpu"), ("amd.com/gpu", GPU)),
        (("cpu", "memory"), ("cpu",)),
        (("memory",), ("cpu",)),
        ((), ("cpu",)),
    ],
)
def test_use_counts_in_limited_devices_else_in_cpu(
    limited: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    assert LeafQuota("a", ONE, dict.fromkeys(limited, 1)).counted == counted
