"""What the benchmark of members measures: who a gang is for, what counts as whose, and what its tables show."""

from __future__ import annotations

import pytest

from benchmarks.gangs import Gang, make_gangs
from benchmarks.members import hanging, scaling
from benchmarks.members_clusters import Written
from benchmarks.members_report import (
    PARTS,
    STATUSES,
    by_part,
    hanging_table,
    ratios,
    scaling_table,
    writes_per_appwrapper,
)
from benchmarks.members_trial import Outcome, bound_for, longest_pause, spread_over, target_of
from benchmarks.processor import Used
from dispatcher.api.annotations import ADMISSION_GRACE
from dispatcher.api.names import CLUSTER_SELECTOR

WRITTEN = {
    "hub": Written(writes=23, events=7, by_resource={STATUSES: 3, "POST appwrappers": 10}),
    "east": Written(writes=12, events=0, by_resource={}),
    "west": Written(writes=8, events=0, by_resource={}),
}


def outcome(name: str, per_second: float, *latencies: float) -> Outcome:
    """Ten gangs within two seconds, of which one was the dispatcher's on a processor."""
    seconds = {"dispatcher": 1.0, "hub-kube-apiserver": 0.5, "east-etcd": 0.25, "others": 0.25}
    return Outcome(
        scenario=name,
        count=10,
        first=3.0,
        seconds=2.0,
        per_second=per_second,
        wait_p50=0.5,
        wait_p99=1.5,
        pause=0.25,
        written=WRITTEN,
        used=Used(2.0, seconds),
        latencies=latencies,
    )


# --- who a gang is for -------------------------------------------------------------------------------


def said_by(gang: Gang) -> dict[str, str]:
    found: dict[str, str] = gang.appwrapper["metadata"]["annotations"]
    return found


def test_gangs_are_for_the_targets_in_turn_and_keep_what_they_said_before() -> None:
    gangs = spread_over(make_gangs("gang", 5), ("east", "west"))
    assert [(each.name, target_of(each)) for each in gangs] == [
        ("gang-00000", "east"),
        ("gang-00001", "west"),
        ("gang-00002", "east"),
        ("gang-00003", "west"),
        ("gang-00004", "east"),
    ]
    assert [said_by(each) for each in gangs[:2]] == [
        {ADMISSION_GRACE: "1h", CLUSTER_SELECTOR: "cluster=east"},
        {ADMISSION_GRACE: "1h", CLUSTER_SELECTOR: "cluster=west"},
    ]


def test_gang_for_the_hub_asks_for_nothing() -> None:
    gangs = make_gangs("gang", 2)
    assert bound_for("hub", gangs) == gangs
    assert [target_of(each) for each in gangs] == ["hub", "hub"]


def test_scenarios_of_a_part_have_names_of_their_own_and_only_the_last_of_the_first_part_rests() -> None:
    found = [*scaling(20.0), *hanging()]
    assert len({each.name for each in found}) == len(found)
    assert [each.rest for each in found if each.rest] == [20.0]
    assert [each.declared for each in scaling(0.0)] == [
        (),
        ("east",),
        ("east", "west"),
        ("east", "west", "north", "south"),
    ]


def test_load_is_never_for_the_member_that_hangs() -> None:
    assert all(each.declared[-1] not in each.targets for each in hanging())


# --- what counts as whose ----------------------------------------------------------------------------


def test_longest_pause_is_between_neighbours_in_time() -> None:
    assert longest_pause([5.0, 1.0, 2.0, 2.5]) == 2.5


def test_writes_are_the_hubs_or_the_members_and_how_members_are_is_told_apart() -> None:
    assert writes_per_appwrapper(WRITTEN, 10) == (2.0, 2.0)


def test_writes_since_a_moment_are_the_difference() -> None:
    before = Written(writes=3, events=2, by_resource={"POST appwrappers": 4})
    assert WRITTEN["hub"].since(before) == Written(20, 5, {STATUSES: 3, "POST appwrappers": 6})


@pytest.mark.parametrize(
    ("process", "part"),
    [
        ("dispatcher", "dispatcher"),
        ("postgres", "postgres"),
        ("client", "client"),
        ("hub-kube-apiserver", "hub: API server"),
        ("hub-etcd", "hub: etcd"),
        ("hub-kwok", "the rest of the control planes"),
        ("west-kube-apiserver", "members: API servers"),
        ("south-etcd", "members: etcds"),
        ("west-kube-scheduler", "the rest of the control planes"),
        ("west-kube-controller-manager", "the rest of the control planes"),
    ],
)
def test_processor_time_is_counted_for_what_a_process_is_part_of(process: str, part: str) -> None:
    assert by_part({process: 2.0}) == {**dict.fromkeys(PARTS, 0.0), part: 2.0}


def test_processor_time_of_several_members_is_added_and_that_of_others_is_not_ours() -> None:
    found = by_part({"east-etcd": 1.0, "west-etcd": 2.0, "others": 4.0})
    assert found == {**dict.fromkeys(PARTS, 0.0), "members: etcds": 3.0}


# --- tables ------------------------------------------------------------------------------------------


def rows(table: str) -> dict[str, str]:
    """The last column of each line by its title."""
    return {line[:46].strip(): line[72:].strip() for line in table.splitlines()}


def test_ratio_is_within_a_round_and_never_across() -> None:
    rounds = [{"a": outcome("a", 100), "b": outcome("b", 50)}, {"a": outcome("a", 10), "b": outcome("b", 11)}]
    assert ratios(rounds, "b", "a") == [0.5, 1.1]


def test_table_of_members_names_the_limit() -> None:
    shown = rows(scaling_table([{"a": outcome("a", 100), "b": outcome("b", 50)}], ["a", "b"]))
    assert {title: shown[title] for title in list(shown)[:6]} == {
        "": "b",
        "dispatched, gangs/s": "50.0",
        "ratio to the hub alone": "0.50",
        "API writes per AppWrapper: hub / members": "2.00 / 2.00",
        "statuses of members written meanwhile": "3",
        "CPU per AppWrapper, ms: all": "175.00",
    }
    assert (shown["dispatcher"], shown["hub: API server"], shown["members: etcds"]) == (
        "100.00",
        "50.00",
        "25.00",
    )
    assert shown["of the one the dispatcher can use"] == "0.50"
    assert [value for title, value in shown.items() if title.startswith("cores busy")] == ["1.00"]


def test_table_of_a_member_that_hangs_takes_latencies_of_all_rounds_together() -> None:
    rounds = [
        {"a": outcome("a", 100, 1, 2), "b": outcome("b", 90, 10, 20)},
        {"a": outcome("a", 50, 3, 4), "b": outcome("b", 55, 30, 40)},
    ]
    shown = rows(hanging_table(rounds, ["a", "b"]))
    assert shown["dispatched elsewhere, gangs/s"] == "72.5 (55.0 to 90.0)"
    assert shown["ratio to where all answer"] == "1.00 (0.90 to 1.10)"
    assert shown["longest pause between two Dispatched, s"] == "0.25"
    assert shown["create to Dispatched when idle p50 / p99, ms"] == "20 / 40"
