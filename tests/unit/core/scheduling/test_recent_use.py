"""The recent use of namespaces: what halves in a week, in which resources it counts, and who is asked for at all."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Order, Queue, Quota
from dispatcher.core.scheduling.sharing.recent_use import WeightedUse, counted_resources, recent_use

GPU = "nvidia.com/gpu"
WEEK = 168.0


def use(
    amount: int, began: float, ended: float, namespace: str = "team", resource: str = GPU, queue: str = "a"
) -> WeightedUse:
    """An attempt that held an amount, from when to when in hours ago."""
    return WeightedUse(queue, namespace, resource, amount * (0.5 ** (ended / WEEK) - 0.5 ** (began / WEEK)))


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        pytest.param([use(8, 24, 0)], {("a", "team"): 182.8}, id="8 GPUs for the last 24 hours"),
        pytest.param([use(8, 192, 168)], {("a", "team"): 91.4}, id="the same a week later"),
        pytest.param([use(8, 360, 336)], {("a", "team"): 45.7}, id="the same two weeks later"),
        pytest.param([use(4, 24, 0), use(4, 24, 0)], {("a", "team"): 182.8}, id="two attempts of 4 GPUs"),
        pytest.param([use(8, 24, 12), use(8, 12, 0)], {("a", "team"): 182.8}, id="one after the other"),
        pytest.param(
            [use(4, 24, 0), use(4, 24, 0, resource="amd.com/gpu")],
            {("a", "team"): 182.8},
            id="devices of two vendors count alike",
        ),
        pytest.param([use(8000, 24, 0, resource="cpu")], {("a", "team"): 182.8}, id="8 cores"),
        pytest.param(
            [use(8, 24, 0), use(8, 24, 0, "other"), use(8, 192, 168, queue="b")],
            {("a", "team"): 182.8, ("a", "other"): 182.8, ("b", "team"): 91.4},
            id="namespaces and queues apart",
        ),
        pytest.param([use(1, 1e9, 0)], {("a", "team"): 242.4}, id="one GPU for ever"),
        pytest.param([use(8, 0, 0)], {("a", "team"): 0}, id="no time"),
        pytest.param([], {}, id="nothing"),
    ],
)
def test_use_halves_in_a_week(uses: list[WeightedUse], expected: dict[tuple[str, str], float]) -> None:
    found = recent_use(uses)
    assert {key: round(float(hours), 1) for key, hours in found.items()} == expected


def test_equal_uses_are_equal_in_whatever_order_they_were_added_up() -> None:
    parts = [use(3, 24 - each / 7, 23 - each / 7) for each in range(100)]
    (forth,), (back,) = recent_use(parts).values(), recent_use(reversed(parts)).values()
    assert sum(each.weighted for each in parts) != sum(each.weighted for each in reversed(parts))
    assert forth == back
    assert forth.denominator <= 10**6
    assert isinstance(forth, Fraction)


USAGE = Order.USAGE


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], {}, id="no queue"),
        pytest.param([Queue("a", resources={GPU: Quota(8)})], {}, id="none orders by use"),
        pytest.param(
            [
                Queue("org", order=USAGE),
                Queue("a", "org", {GPU: Quota(8), "cpu": Quota(1000)}, order=USAGE),
                Queue("b", "org", {"amd.com/gpu": Quota(8)}),
            ],
            {"a": ("amd.com/gpu", GPU)},
            id="a leaf, by all devices of its tree",
        ),
        pytest.param(
            [Queue("a", resources={"memory": Quota(8)}, order=USAGE), Queue("default", order=USAGE)],
            {"a": ("cpu",), "default": ("cpu",)},
            id="cpu without a limited device",
        ),
        pytest.param([Queue("a", "nowhere", order=USAGE)], {}, id="an invalid queue"),
    ],
)
def test_only_leaves_that_order_by_use_are_asked_for(
    queues: list[Queue], expected: dict[str, tuple[str, ...]]
) -> None:
    assert counted_resources(Forest.of(queues)) == expected
