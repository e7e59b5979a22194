"""Cycles over random forests: no quota or cluster is exceeded, no preemption is in vain, order does not matter."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.scheduling.scenario import parse_scenario
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_replay import Replay, UnknownPromise
from tests.unit.core.scheduling.queue_worlds import SHARINGS, random_document

Json = dict[str, Any]

SEEDS = st.integers(0, 2**32)
FEW, MANY = range(300), range(300, 15_000)
IN_TWO_TREES = 0.6
"""The part of the gangs that are in a leaf of each of two trees, in forests with such gangs."""
PARTS_IN_TWO_TREES = st.sampled_from([0, IN_TWO_TREES])


def replayed(seeds: range, in_two_trees: float = 0) -> Counter[str]:
    """How often each decision was checked, over the cycles of these seeds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        document = random_document(Random(seed), in_two_trees=in_two_trees)  # noqa: S311 - repeatable
        shares, outcomes = parse_scenario(document).plan_queues()
        replay = Replay(document, dict(shares))
        try:
            replay.check(outcomes)
        except UnknownPromise:
            counts["unknown promise"] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts.update(replay.counts)
    return counts


def test_each_decision_of_a_cycle_is_right_by_definition() -> None:
    counts = replayed(FEW)
    seldom = {"OverNominalQuota", "AwaitingRelease", "several victims"}
    assert all(counts[each] > 0 for each in seldom)
    assert counts["dispatch"] > 100
    assert counts["preempt"] > 20
    assert counts["truth"] > 80
    assert counts["unknown promise"] < 10
    assert all(counts[each] > 0 for each in ("1 borrowers", "2 borrowers", "shortest of several"))


def test_each_decision_about_gangs_in_two_trees_is_right_by_definition() -> None:
    counts = replayed(FEW, IN_TWO_TREES)
    assert counts["preempt"] > 20
    assert counts["several victims"] > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("in_two_trees", [0, IN_TWO_TREES])
def test_each_decision_of_many_cycles_is_right_by_definition(in_two_trees: float) -> None:
    assert replayed(MANY, in_two_trees)["preempt"] > 1000


def check_memory(seed: int, in_two_trees: float) -> None:
    """Four gangs of each kind are decided as if each were the only one of its kind."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, arrivals=8, in_two_trees=in_two_trees)
    document["pending"] = [
        gang | {"name": f"{gang['name']}-{number}", "age": gang["age"] + number % 2}
        for number in range(4)
        for gang in document["pending"]
    ]
    world = parse_scenario(document)
    assert world.plan_queues(remembers=False) == world.plan_queues()


@settings(max_examples=80)
@given(SEEDS, PARTS_IN_TWO_TREES)
def test_a_remembered_rejection_equals_a_new_decision(seed: int, in_two_trees: float) -> None:
    check_memory(seed, in_two_trees)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=4000)
@given(SEEDS, PARTS_IN_TWO_TREES)
def test_many_remembered_rejections_equal_new_decisions(seed: int, in_two_trees: float) -> None:
    check_memory(seed, in_two_trees)


def check_order(seed: int, sharing: str, in_two_trees: float) -> None:
    """Ties between queues are broken by their declaration only under Division, and where several are drained."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, sharing=sharing, in_two_trees=in_two_trees)
    answer = answer_of(parse_scenario(document))
    document["running"] = chance.sample(document["running"], len(document["running"]))
    assert answer_of(parse_scenario(document)) == answer
    roots = {queue.get("sharing") for queue in document["queues"]}
    if "Division" not in roots and all(
        each.get("stopPolicy") != "HoldAndDrain" for each in document["queues"]
    ):
        document["queues"] = chance.sample(document["queues"], len(document["queues"]))
        assert answer_of(parse_scenario(document)) == answer


@settings(max_examples=80)
@given(SEEDS, st.sampled_from(SHARINGS), PARTS_IN_TWO_TREES)
def test_the_order_of_running_gangs_and_queues_does_not_matter(
    seed: int, sharing: str, in_two_trees: float
) -> None:
    check_order(seed, sharing, in_two_trees)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=3000)
@given(SEEDS, st.sampled_from(SHARINGS), PARTS_IN_TWO_TREES)
def test_the_order_of_many_running_gangs_and_queues_does_not_matter(
    seed: int, sharing: str, in_two_trees: float
) -> None:
    check_order(seed, sharing, in_two_trees)
