"""Preemption comes to rest: with gangs that arrive and never end, and victims that leave one by one."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.core.scheduling.queue_simulation import Simulation
from tests.unit.core.scheduling.queue_worlds import random_document


def simulation_of(seed: int, max_preemptions: int | None = None) -> Simulation:
    """A random forest with gangs that arrive; with another bound than the default if one is given."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, arrivals=10)
    for gang in (*document["running"], *document["pending"]):
        for key in ("ending", "preempting", "preemptions"):
            gang.pop(key, None)
    if max_preemptions is not None:
        for queue in document["queues"]:
            if "parent" not in queue:
                queue["maxPreemptions"] = max_preemptions
    arrivals, document["pending"] = document["pending"], []
    return Simulation(document, chance, arrivals)


def check(seeds: range) -> int:
    """The preemptions until each of these simulations is at rest."""
    found = 0
    for seed in seeds:
        simulation = simulation_of(seed)
        assert simulation.comes_to_rest(), f"seed {seed}: {simulation.preemptions[-8:]}"
        found += len(simulation.preemptions)
    return found


def test_random_forests_come_to_rest() -> None:
    assert check(range(40)) > 15


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_three_thousand_random_forests_come_to_rest() -> None:
    assert check(range(3000)) > 1000
