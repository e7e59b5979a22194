"""The baseline: its pattern, the check of the history, and the table."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import gangs
from benchmarks.baseline import as_floor_table, as_table
from benchmarks.baseline_check import Move, excesses, peaks
from benchmarks.baseline_floor import Floor, statuses, wrapped_job
from benchmarks.baseline_jobs import Lateness, complete
from benchmarks.baseline_pattern import (
    Limit,
    arrivals,
    dispatch_queues,
    limits,
    namespaces,
    parents,
)
from benchmarks.baseline_trial import Delays, Outcome
from benchmarks.processor import Used
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.core.kinds.completion import completion_rule
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of

ROOTS = {"a": "org", "b": "org", "c": "other"}

# --- the pattern -------------------------------------------------------------------------------------


def test_the_pattern_is_kueues() -> None:
    load = arrivals(1.0)
    assert Counter(each.size.name for each in load) == {"small": 10_500, "medium": 3_000, "large": 1_500}
    assert len({each.name for each in load}) == 15_000
    assert [each.at for each in load] == sorted(each.at for each in load)
    latest = {each.size.name: round(each.at, 1) for each in load}
    assert latest == {"small": 34.9, "medium": 49.5, "large": 58.8}
    work = sum(each.size.cpu * each.size.seconds for each in load)
    assert work / (5 * 120) == pytest.approx(66)


def test_a_smaller_pattern_has_fewer_gangs_of_each_size_in_each_queue() -> None:
    load = arrivals(0.1)
    assert Counter((each.queue, each.size.name) for each in load) == {
        (queue, size): count
        for queue in parents()
        for size, count in (("small", 35), ("medium", 10), ("large", 5))
    }
    assert len(arrivals(0.001)) == 90, "at least one of each"


def test_the_dispatcher_counts_the_demand_of_a_gang_and_sees_its_end() -> None:
    arrival = next(each for each in arrivals(0.001) if each.size.name == "medium")
    appwrapper = arrival.appwrapper()
    spec = parse_spec(appwrapper["spec"], namespace=arrival.queue)
    gang = gang_of(spec)
    assert (gang.demand, gang.pods) == (Resources({"cpu": 5000}), 1)
    assert completion_rule(spec.wrapped[0], 1)
    assert (spec.priority, appwrapper["metadata"]["namespace"]) == (100, arrival.queue)


def test_each_namespace_names_its_queue_and_each_queue_has_a_root() -> None:
    labels = {each["metadata"]["name"]: each["metadata"]["labels"][QUEUE_LABEL] for each in namespaces()}
    declared = {each["metadata"]["name"]: each["spec"].get("parent") for each in dispatch_queues()}
    assert labels == {leaf: leaf for leaf in parents()}
    assert declared == dict.fromkeys(parents().values()) | parents()
    assert {each.queue for each in limits()} == set(declared)
    assert {each.cpu for each in limits()} == {120}


# --- the check ---------------------------------------------------------------------------------------


def held(uid: str, queue: str, cpu: int) -> Move:
    return Move(uid, queue, cpu * 1000, is_held=True)


def free(uid: str, queue: str) -> Move:
    return Move(uid, queue, 0, is_held=False)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([free("1", "a"), free("2", "a")], {}, id="only-queued"),
        pytest.param(
            [held("1", "a", 3), held("2", "b", 4), free("1", "a"), held("3", "c", 1)],
            {"a": 3, "b": 4, "c": 1, "org": 7, "other": 1},
            id="two-of-a-tree-at-once",
        ),
        pytest.param(
            [held("1", "a", 3), free("1", "a"), held("2", "b", 4)],
            {"a": 3, "b": 4, "org": 4},
            id="one-after-the-other",
        ),
        pytest.param(
            [held("1", "a", 3), held("1", "a", 3), free("1", "a"), free("1", "a"), held("2", "a", 2)],
            {"a": 3, "org": 3},
            id="later-phases-of-a-held-gang-count-once",
        ),
        pytest.param(
            [held("1", "a", 3), free("1", "b"), held("2", "a", 3)],
            {"a": 3, "org": 3},
            id="released-where-it-was-charged",
        ),
        pytest.param(
            [held("1", "a", 3), free("1", "a"), held("1", "b", 3), held("2", "a", 1)],
            {"a": 3, "b": 3, "org": 4},
            id="a-second-attempt-in-another-queue",
        ),
    ],
)
def test_peaks_are_the_highest_use_after_any_commit(moves: list[Move], expected: dict[str, int]) -> None:
    assert peaks(moves, ROOTS) == {name: cpu * 1000 for name, cpu in expected.items()}


def test_only_what_used_more_than_its_limit_is_an_excess() -> None:
    highest = {"a": 4000, "b": 4001, "org": 8001}
    bounds = [Limit("a", 4), Limit("b", 4), Limit("c", 4), Limit("org", 8)]
    assert excesses(highest, bounds) == ["b used 4.001 CPUs of 4", "org used 8.001 CPUs of 8"]


# --- the floor -------------------------------------------------------------------------------------------


def test_the_floor_writes_what_the_dispatcher_writes() -> None:
    arrival, uid = arrivals(0.001)[0], "00000000-0000-4000-8000-000000000001"
    waits, dispatched, completed = statuses(arrival, uid)
    assert (waits["state"], completed["state"]) == ("Pending", "Completed")
    assert "InsufficientQuota" in str(waits)
    assert gangs.is_dispatched({"status": dispatched})
    metadata = wrapped_job(arrival, uid)["metadata"]
    assert (metadata["namespace"], metadata["name"]) == (arrival.queue, arrival.name)
    assert [each["uid"] for each in metadata["ownerReferences"]] == [uid]


# --- the stand-in, the options and the table ---------------------------------------------------------


def test_a_job_is_complete_as_the_job_controller_says_it() -> None:
    status = complete("2026-01-01T00:00:00Z", 1767225601.5)
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("SuccessCriteriaMet", "True"),
        ("Complete", "True"),
    ]
    assert (status["startTime"], status["completionTime"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z")


def test_the_table_says_what_makes_a_run_invalid() -> None:
    delays = Delays.of([1.0, 2.0])
    used = Used(10.0, {"dispatcher": 5.0, "others": 1.0})
    waits = {"small": delays, "medium": delays, "large": delays}
    jobs = Lateness.of([0.5])
    valid = Outcome(
        10,
        5.0,
        2.0,
        waits,
        delays,
        jobs,
        {"completed": 10},
        0,
        {"queue-0-0": 5000},
        [],
        used,
        2 * 10**6,
        {},
        0,
    )
    told = as_table(valid, 0.5)
    assert "LOST" not in told
    assert "EXCEEDED" not in told
    assert "  per gang, ms                                                    500.00" in told
    compared = as_floor_table(Floor(10, 4.0, Used(4.0, {"client": 2.0, "others": 1.0})), valid)
    assert [line.split()[-1] for line in compared.splitlines() if "quotient" in line] == ["1.25", "2.50"]
    invalid = Outcome(
        10,
        5.0,
        2.0,
        waits,
        delays,
        jobs,
        {"completed": 9},
        1,
        {},
        ["a used 5 CPUs of 4"],
        used,
        2 * 10**6,
        {},
        0,
    )
    told = as_table(invalid, 0.5)
    assert "LOST: 1 gangs" in told
    assert "EXCEEDED: a used 5 CPUs of 4" in told
