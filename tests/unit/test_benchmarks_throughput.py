"""The throughput benchmark with declared queues and ways of fit: options, queues, and the ratios between them."""

from __future__ import annotations

import argparse
from collections import Counter

import orjson
import pytest

from benchmarks.declared_queues import generous_trees, leaves, spread_over_queues
from benchmarks.floor import Floor
from benchmarks.gangs import make_gangs
from benchmarks.processor import Used
from benchmarks.report import Round, as_json, as_table
from benchmarks.throughput import fit_modes, queue_counts
from benchmarks.trial import Latency, Load, Rest, Trial
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.core.scheduling.capacity_ledger import FitMode

USED = Used(1.0, {"dispatcher": 0.5, "others": 0.0})


def round_of(queues: int, per_second: float, fit: str = "node") -> Round:
    floor = Floor(10, 1.0, 10.0, USED, {})
    load = Load(10, 0.5, 1.0, per_second, 0.1, 0.2, 20, 3, 2.0, {}, USED, {})
    trial = Trial(load, Rest(20.0, 0, {}, 0.0), Latency(1, 20.0, 30.0, 30.0, 10.0, 20.0), 2**20, 0)
    return Round(floor, trial, floor, queues, fit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0", (0,), id="one"),
        pytest.param("0,100", (0, 100), id="two-in-turns"),
        pytest.param("100,0", (100, 0), id="in-the-order-given"),
    ],
)
def test_numbers_of_queues_are_a_list(text: str, expected: tuple[int, ...]) -> None:
    assert queue_counts(text) == expected


@pytest.mark.parametrize("text", ["", "0,", "-1", "many", "5,5", "5,05"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        queue_counts(text)


def test_a_tree_has_ten_leaves_and_the_last_one_the_rest() -> None:
    queues = generous_trees(23)
    parents = Counter(each["spec"].get("parent") for each in queues)
    assert parents == {None: 3, "tree-00": 10, "tree-01": 10, "tree-02": 3}
    names = [each["metadata"]["name"] for each in queues]
    assert names == ["tree-00", "tree-01", "tree-02", *leaves(23)], "parents are declared first"
    assert generous_trees(0) == []


def test_gangs_are_spread_over_the_queues_in_turn() -> None:
    gangs = make_gangs("gang", 3)
    labels = [
        each.appwrapper["metadata"]["labels"][QUEUE_LABEL] for each in spread_over_queues(gangs, leaves(2))
    ]
    assert labels == ["leaf-000", "leaf-001", "leaf-000"]
    assert spread_over_queues(gangs, ()) == gangs
    assert all(QUEUE_LABEL not in each.appwrapper["metadata"].get("labels", {}) for each in gangs)


def test_the_ratio_compares_medians_with_the_first_number_of_queues() -> None:
    rounds = [round_of(0, 100.0), round_of(50, 80.0), round_of(0, 120.0), round_of(50, 91.0)]
    assert "dispatched/s with 50 queues relative to 0 queues: 0.78" in as_table(rounds)
    assert as_json(rounds, {})["by_queues"] == {"0": 110.0, "50": 85.5}
    assert "relative to 0 queues" not in as_table(rounds[:1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("node", ("node",), id="one"),
        pytest.param("aggregate,node", ("aggregate", "node"), id="both-in-turns"),
    ],
)
def test_ways_of_fit_are_a_list(text: str, expected: tuple[str, ...]) -> None:
    assert fit_modes(text) == expected


@pytest.mark.parametrize("text", ["", "node,", "node,node", "sums"])
def test_other_ways_of_fit_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        fit_modes(text)


def test_ways_of_fit_are_compared_by_their_ratios_to_the_floor() -> None:
    rates = ((FitMode.AGGREGATE, 8.0), (FitMode.NODE, 9.0), (FitMode.NODE, 11.0))
    rounds = [round_of(0, rate, fit) for fit, rate in rates]
    assert "ratio to the floor with fit node relative to aggregate: 1.25" in as_table(rounds)
    assert orjson.loads(orjson.dumps(as_json(rounds, {})))["by_fit"] == {"aggregate": 0.8, "node": 1.0}
    assert "relative to" not in as_table(rounds[:1])
