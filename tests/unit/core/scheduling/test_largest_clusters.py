"""Gangs of the largest permitted shapes on 5,000 nodes: each question about them takes a bounded number of steps.

Steps are counted by the searches themselves (`placement_bounds`), so no clock decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from dispatcher.core.model.clusters.nodes import HOSTNAME, Node
from dispatcher.core.model.gangs.gang import Gang, PodSet, Spread
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.explain.explanation import explain
from dispatcher.core.scheduling.explain.trials import size_of
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.fit import fit, fits, fits_in_empty
from dispatcher.core.scheduling.fit.search_budget import QUESTION
from dispatcher.core.scheduling.placement.placement_bounds import MOST_SPREAD
from tests.builders import make_record

MOST_COMPONENTS: Final = 1024
"""Pod sets of one gang: the components of the largest spec with one template each."""
NODES: Final = tuple(
    Node(
        f"n{number}",
        Resources({"cpu": 4000 + number % 7, "pods": 110}),
        labels={
            HOSTNAME: f"n{number}",
            "rack": f"k{number % 500}",
            "zone": f"z{number % 50}",
            "row": f"r{number % 10}",
        },
    )
    for number in range(5000)
)


def gang_of(sets: Iterable[PodSet]) -> Gang:
    sets = tuple(sets)
    return Gang(sum_of(each.total for each in sets), sum(each.count for each in sets), sets)


def each_of(sets: int, pods: int, cpu: int, **rules: object) -> Gang:
    """A gang of `sets` pod sets of `pods` pods each, with these rules; each set requests another amount of cpu."""
    return gang_of(
        PodSet(pods, Resources({"cpu": cpu + number}), path=f"{number}", **rules)  # type: ignore[arg-type]
        for number in range(sets)
    )


LARGEST: Final = {
    "a-quarter-of-a-million-equal-pods": each_of(1, 250_000, 60),
    "every-component-of-another-size": each_of(MOST_COMPONENTS, 4, 2001),
    "one-pod-more-than-nodes": each_of(MOST_COMPONENTS, 5, 2001),
    "a-zone-for-each-set-and-one-set-more": each_of(51, 100, 2500, together=("zone",)),
    "more-sets-than-racks": each_of(600, 10, 2500, together=("rack",)),
    "sets-spread-three-times": each_of(
        64, 300, 300, spread=(Spread("zone"), Spread("row"), Spread(HOSTNAME, 2))
    ),
    "no-two-pods-in-one-zone-or-on-one-node": each_of(120, 50, 2500, apart=("zone", HOSTNAME)),
}


@pytest.fixture(scope="module")
def ledger() -> CapacityLedger:
    found = CapacityLedger(FitMode.NODE)
    for node in NODES:
        found.set_node(node)
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("shape", LARGEST)
def test_question_about_the_largest_gangs_takes_a_bounded_number_of_steps(
    ledger: CapacityLedger, shape: str
) -> None:
    """The budget of a cycle counts a decision of unknown cost with `QUESTION` steps; spreads have a bound beside."""
    gang, snapshot = LARGEST[shape], ledger.snapshot()
    for ask in (fit, fits, fits_in_empty):
        before = snapshot.searched
        ask(gang, snapshot)
        assert snapshot.searched - before <= QUESTION + MOST_SPREAD


KINDS_OF_REPAIRS: Final = 5
"""Quota, nodes, taints, gangs, and the least priority: each is sought with the most work."""


@pytest.mark.timeout(120)
def test_explanation_over_the_largest_cluster_takes_a_bounded_number_of_steps() -> None:
    gang = each_of(11, 460, 2500, together=("row",))  # each set needs a row for itself
    world, known = (
        World((Cluster("east", NODES),), pending=(make_record(name="gang", gang=gang),)),
        KnownSnapshots(),
    )
    most_work = 2 * size_of(world)
    found = explain(world, "uid-of-gang", most_work, known)
    assert found.outcome is not None
    assert not isinstance(found.outcome, Placed)
    plans = 1 + KINDS_OF_REPAIRS * (most_work // size_of(world))
    questions = 2 * plans  # about what is free, and about the empty cluster
    assert 0 < known.of(world)["east"].capacity.searched <= questions * (QUESTION + MOST_SPREAD)
