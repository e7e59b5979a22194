"""What benchmarks of dispatch count: figures of API servers, starts of commands, handovers, and ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import orjson
import pytest

from benchmarks.declared_queues import generous_trees, leaves, spread_over_queues
from benchmarks.figures import difference, percentile, requests_of_flow, writes
from benchmarks.floor import Floor
from benchmarks.gangs import Gang, Json, make_gangs
from benchmarks.handover import longest_pause
from benchmarks.processor import Used
from benchmarks.report import Round, as_json, as_table
from benchmarks.start import COMMANDS, Result, Start, too_slow
from benchmarks.trial import Latency, Load, Rest, Trial, notes_of_missing_pods
from dispatcher.__main__ import plugin_program
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.status.conditions import project
from tests.builders import NOW, make_record

API_METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",dry_run="",group="ray.io",resource="rayclusters",subresource="",verb="POST"} 7
apiserver_request_total{code="409",dry_run="",group="ray.io",resource="rayclusters",subresource="",verb="POST"} 1
apiserver_request_total{code="200",dry_run="",group="x",resource="appwrappers",subresource="status",verb="PATCH"} 1e+06
apiserver_request_total{code="200",dry_run="",group="x",resource="appwrappers",subresource="",verb="LIST"} 3
apiserver_request_total{code="201",dry_run="All",group="",resource="nodes",subresource="",verb="POST"} 2
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 5
apiserver_flowcontrol_dispatched_requests_total{flow_schema="ours",priority_level="workload-low"} 8
"""


def test_every_write_counts_refused_ones_too_and_neither_reads_nor_dry_runs_do() -> None:
    assert writes(API_METRICS) == Counter({"POST rayclusters": 8, "PATCH appwrappers/status": 1_000_000})


def test_requests_are_classed_by_their_flow_schema() -> None:
    assert (requests_of_flow(API_METRICS, "ours"), requests_of_flow(API_METRICS, "absent")) == (8, 0)


def test_difference_is_what_grew() -> None:
    assert difference({"a": 5, "b": 2, "c": 1}, {"a": 3, "b": 2}) == {"a": 2, "c": 1}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 50, 2.0, id="median-of-unsorted"),
        pytest.param([float(number) for number in range(1, 101)], 99, 99.0, id="p99-of-a-hundred"),
        pytest.param([4.0], 1, 4.0, id="one-value"),
    ],
)
def test_percentile_is_a_value_that_was_measured(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


# --- The benchmark of starts -------------------------------------------------------------------------------


def words_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all commands below it."""
    if path:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from words_of(found, (*path, name))


def test_every_command_is_measured() -> None:
    measured = {tuple(each[:length]) for each in COMMANDS for length in (1, 2)}
    assert set(words_of(plugin_program)) - measured == set()


STARTS = (
    Start("python", 0.9, 0.9, is_command=False),
    Start("kubectl aw queue", 0.4, 0.6),
    Start("kubectl aw explain", 0.51, 0.5),
)


@pytest.mark.parametrize(
    ("noise", "slow"), [(0.1, ["kubectl aw queue"]), (1.2, ["kubectl aw explain"])], ids=["calm", "busy"]
)
def test_bound_is_for_the_wall_time_unless_others_use_the_machine(noise: float, slow: list[str]) -> None:
    assert [each.name for each in too_slow(Result(STARTS, noise))] == slow


# --- The benchmark of handovers ----------------------------------------------------------------------------


START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def at(**seconds: float) -> dict[str, datetime]:
    return {name: START + timedelta(seconds=number) for name, number in seconds.items()}


@pytest.mark.parametrize(
    ("submitted", "dispatched", "pause"),
    [
        pytest.param(at(a=0, b=1), at(a=1, b=5), 4.0, id="from one dispatch to the next"),
        pytest.param(at(a=0, b=4), at(a=1, b=5), 1.0, id="only while a gang waits"),
        pytest.param(at(a=-3), at(a=2), 2.0, id="from the begin on"),
        pytest.param(at(a=0, b=8), at(a=1, b=14), 2.0, id="until the end"),
        pytest.param(at(a=-3), at(a=-2), 0.0, id="no gang waited"),
    ],
)
def test_pause_is_the_longest_time_without_a_dispatch_while_a_gang_waits(
    submitted: dict[str, datetime], dispatched: dict[str, datetime], pause: float
) -> None:
    assert longest_pause(submitted, dispatched, START, START + timedelta(seconds=10)) == pause


# --- The benchmark of throughput ---------------------------------------------------------------------------


USED = Used(1.0, {"dispatcher": 0.5, "others": 0.0})


def round_of(queues: int, per_second: float, fit: str = "node") -> Round:
    floor = Floor(10, 1.0, 10.0, USED, {})
    load = Load(10, 0.5, 1.0, per_second, 0.1, 0.2, 20, 3, 2.0, {}, USED, {})
    trial = Trial(load, Rest(20.0, 0, {}, 0.0), Latency(1, 20.0, 30.0, 30.0, 10.0, 20.0), 2**20, 0)
    return Round(floor, trial, floor, queues, fit)


def with_status(gang: Gang, record: Record) -> Json:
    return {**gang.appwrapper, "status": project(record)}


def test_notes_of_missing_pods_are_told_apart_from_the_writes_of_a_dispatch() -> None:
    """Nobody makes pods in the benchmark, so the dispatcher writes once more for each gang, after half a minute."""
    (warm_up,), load = make_gangs("warm-up", 1), make_gangs("gang", 3)
    sound = make_record(Phase.DISPATCHED)
    noted = run_changes.note_health_issue(
        sound, "InsufficientPodsReady", "0 of 2 pods run: no pods", NOW
    ).after
    statuses = [(warm_up, noted), (load[0], noted), (load[1], sound)]
    shown = [*(with_status(*each) for each in statuses), load[2].appwrapper]
    assert notes_of_missing_pods(load, shown) == 1


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


def test_ways_of_fit_are_compared_by_their_ratios_to_the_floor() -> None:
    rates = ((FitMode.AGGREGATE, 8.0), (FitMode.NODE, 9.0), (FitMode.NODE, 11.0))
    rounds = [round_of(0, rate, fit) for fit, rate in rates]
    assert "ratio to the floor with fit node relative to aggregate: 1.25" in as_table(rounds)
    assert orjson.loads(orjson.dumps(as_json(rounds, {})))["by_fit"] == {"aggregate": 0.8, "node": 1.0}
    assert "relative to" not in as_table(rounds[:1])
