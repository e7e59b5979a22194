"""What the growth benchmark measures: sizes, shapes, and tables that show what they say."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import growth, reasons
from benchmarks.backlog import Backlog, Mix, Reason, Taken, full_cluster, median, shape, submitted
from benchmarks.elastic import forest_of
from benchmarks.elastic_load import IDLE_SECONDS, LEAST, MOST, RayCluster, make_clusters, make_nodes
from benchmarks.elastic_trial import REMOVAL_SECONDS, Growths, Outcome, live
from benchmarks.failure import BenchmarkFailed
from benchmarks.grants import GateBook, elastic_gang, mean_of_metric
from benchmarks.growth import CROWD_PARTS, Measured, as_tables, backlogs, crowds, stretches_above
from benchmarks.reasons import Reasons
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import GROWTH_GATE
from dispatcher.core.scheduling.fit.fit import fits
from tests.builders import NOW, gang_of

TAKEN = {"wall": 0.002, "cpu": 0.001, "longest_block": 0.003, "committing": 0.0005}


def test_each_size_changes_one_thing() -> None:
    sizes = [(each.queued, each.nodes) for each in backlogs([50, 10], [5, 1], [Mix.SHARED])]
    assert sizes == [(10, 1), (50, 1), (50, 5)]


def test_sizes_may_be_those_of_several_clusters() -> None:
    (backlog,) = backlogs([50], [5], [Mix.DISTINCT], clusters=4)
    assert backlog == Backlog(50, 5, Mix.DISTINCT, clusters=4)


def test_shapes_are_few_or_all_distinct_as_the_mix_says() -> None:
    assert len({shape(number, Mix.SHARED) for number in range(2000)}) == 300
    assert len({shape(number, Mix.TWENTY) for number in range(2000)}) == 20
    assert len({shape(number, Mix.DISTINCT) for number in range(2000)}) == 2000


def test_nothing_that_is_submitted_fits_the_full_cluster_but_all_of_it_would_fit_an_empty_one() -> None:
    ledger = full_cluster(100)
    gangs = [submitted(number, Mix.DISTINCT, NOW).after.gang for number in range(500)]
    snapshot = ledger.snapshot()
    assert any(gang.demand.fits_in(snapshot.free_for(gang)) for gang in gangs)
    assert not any(fits(gang, snapshot) for gang in gangs)
    assert all(gang.demand.fits_in(snapshot.total_for(gang)) for gang in gangs)


def test_median_is_by_processor_time_and_keeps_the_longest_block_of_all() -> None:
    taken = [Taken(1, cpu, block) for cpu, block in ((3.0, 0.1), (1.0, 0.9), (2.0, 0.2))]
    assert median(taken) == Taken(1, 2.0, 0.9)


def test_table_has_a_column_for_each_size_and_how_the_longer_queue_compares() -> None:
    cycles = dict.fromkeys(
        ("loading", "first cycle", "cycle, nothing changed", "cycle, capacity changed", "cycle, one arrived"),
        TAKEN,
    )
    measured = [
        Measured(
            Backlog(queued, 1, Mix.SHARED),
            first={"taken": {"taking in": TAKEN, "full plan": {**TAKEN, "wall": 0.01 * queued}}},
            restart={"taken": cycles, "memory": {"at start": 0, "loaded": 2**20 * queued}},
            load=0.5,
        )
        for queued in (1, 5)
    ]
    lines = {line[:34].strip(): line[34:].split() for line in as_tables(measured).splitlines()}
    assert lines["full plan, wall ms"] == ["10.0", "50.0", "5.0"]
    assert lines["memory of the process, MiB"] == ["1.0", "5.0", "5.0"]
    assert lines["load average at its start"] == ["0.5", "0.5"]


# --- a crowd -----------------------------------------------------------------------------------------------------


def crowd(mix: Mix = Mix.SIZES, **stretches: float) -> Measured:
    """One whose parts took 49 ms without a pause, but for those that are named (with _ for each blank and comma)."""
    lives: dict[str, dict[str, dict[str, dict[str, float]]]] = {
        "first": {"taken": {}},
        "restart": {"taken": {}},
    }
    for life, name in CROWD_PARTS:
        stretch = stretches.get(name.replace(", ", "_").replace(" ", "_"), 0.049)
        lives[life]["taken"][name] = {**TAKEN, "longest_stretch": stretch}
    (backlog,) = crowds(50_000, [mix])
    return Measured(backlog, lives["first"], lives["restart"], load=1.5)


def test_crowd_is_the_longest_queue_over_many_namespaces_and_clusters() -> None:
    sizes = [(each.queued, each.clusters, each.namespaces, each.mix) for each in crowds(7, [Mix.SIZES])]
    assert sizes == [(7, 20, 5000, Mix.SIZES)]
    assert crowds(7, []) == []


def test_table_of_crowds_has_a_column_for_each_mix_and_a_row_for_each_part() -> None:
    measured = [crowd(first_cycle=0.02), crowd(Mix.DISTINCT)]
    title, _, *rows = as_tables(measured).splitlines()
    assert title == "50000 queued, 20 clusters, 5000 namespaces: longest stretch ms / CPU ms"
    lines = {row[:34].strip(): row[34:].split() for row in rows}
    assert list(lines) == [*(name for _, name in CROWD_PARTS), "load average at its start"]
    assert lines["first cycle"] == ["20", "/", "1", "49", "/", "1"]


def test_parts_of_a_crowd_are_named_that_keep_others_waiting_for_too_long() -> None:
    measured = [
        crowd(full_plan=0.0501, cycle_nothing_changed=0.13),
        crowd(Mix.DISTINCT, loading=0.05),
        Measured(Backlog(1, 1, Mix.SHARED), {}, {}, load=0.5),
    ]
    assert stretches_above(measured) == [
        "10 sizes: full plan: 50.1 ms",
        "10 sizes: cycle, nothing changed: 130.0 ms",
    ]


@pytest.mark.parametrize(("stretch", "code"), [(0.05, 0), (0.051, 1)])
def test_exit_code_tells_whether_a_part_of_a_crowd_is_above_the_aim(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stretch: float, code: int
) -> None:
    monkeypatch.setattr(growth, "EmbeddedPostgres", lambda: nullcontext(SimpleNamespace(url="")))
    monkeypatch.setattr(growth, "measure", lambda _url, _backlog: crowd(loading=stretch))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert growth.main(["--mix", "--crowd", Mix.SIZES]) == code
    assert ("10 sizes: loading: 51.0 ms" in capsys.readouterr().out) is bool(code)


# --- the time to a pending reason ----------------------------------------------------------------------------------


def test_times_to_a_reason_are_a_line_for_each_setting_in_milliseconds() -> None:
    taken = [Reason(wall=number / 1000, cpu=number / 2000) for number in range(1, 201)]
    found = [
        Reasons(Backlog(10, 5, mix, clusters=4), is_changing, taken, load=1.5)
        for mix, is_changing in ((Mix.SHARED, False), (Mix.DISTINCT, True))
    ]
    _, first, second = reasons.as_table(found).splitlines()
    assert first.split() == ["300", "shapes,", "capacity", "unchanged", "100", "198", "200", "99", "1.5"]
    assert second.startswith("all distinct, capacity changes")


# --- The benchmark of elastic Ray clusters -----------------------------------------------------------------


QUEUES = ("a", "b")
SECONDS = 1200


def ray(number: int = 0, queue: str = "a", *wants: tuple[int, int], arrives: int = 0) -> RayCluster:
    """A cluster that wants its fewest workers, but for `wants`."""
    return RayCluster(number, queue, arrives, 10_000, ((arrives, LEAST), *wants))


def lived(
    *rays: RayCluster, growths: Growths, nominal: int = 4, borrows: bool = False, seconds: int = 300
) -> Outcome:
    """Their life on two nodes, in queues with that nominal quota."""
    forest = forest_of(QUEUES, nominal, has_borrowing=borrows)
    return live(rays, forest, make_nodes(2), growths, seconds)


@cache
def crowded(growths: Growths, borrows: bool) -> Outcome:
    """The life of twelve clusters that want more than there is."""
    rays = make_clusters(12, QUEUES, SECONDS, 1)
    return live(rays, forest_of(QUEUES, 15, has_borrowing=borrows), make_nodes(6), growths, SECONDS)


def test_demand_depends_on_the_seed_alone_and_stays_within_its_bounds() -> None:
    rays = make_clusters(20, QUEUES, 7200, 1)
    assert rays == make_clusters(20, QUEUES, 7200, 1)
    assert rays != make_clusters(20, QUEUES, 7200, 2)
    assert [each.arrives for each in rays] == sorted(each.arrives for each in rays)
    for each in rays:
        assert each.wants[0] == (each.arrives, LEAST)
        assert {each.wanted(second) for second in range(each.arrives, each.ends)} <= set(
            range(LEAST, MOST + 1)
        )


def test_autoscaler_keeps_an_idle_worker_for_a_minute() -> None:
    grows = ray(0, "a", (100, 5), (200, 2), (300, 4))
    assert [grows.wanted(second) for second in (99, 100, 199, 200, 300)] == [2, 5, 5, 2, 4]
    assert [grows.kept(second) for second in (99, 100, 199 + IDLE_SECONDS, 200 + IDLE_SECONDS)] == [
        2,
        5,
        5,
        2,
    ]


def test_growth_within_the_quota_starts_at_once() -> None:
    outcome = lived(ray(0, "a", (10, 4), (100, 2)), growths=Growths.GRANT)
    assert (outcome.waits, outcome.beyond_quota, outcome.withdrawn) == ([0, 0], 0, 0)
    assert outcome.served == outcome.wanted == 2 * 300 + 2 * 90


def test_growth_beyond_the_quota_waits_for_a_grant_or_is_counted_as_beyond() -> None:
    grows = ray(0, "a", (10, 6), (100, 2))
    granted, charged = (lived(grows, growths=each) for each in Growths)
    assert (granted.waits, granted.withdrawn, granted.beyond_quota) == ([0, 0], 2, 0)
    assert (charged.waits, charged.withdrawn, charged.beyond_quota) == ([0] * 4, 0, 90 + IDLE_SECONDS)
    assert charged.served - granted.served == 2 * 90


def test_gang_that_grew_on_the_quota_of_another_queue_is_preempted_and_its_work_is_lost() -> None:
    grown, owner = ray(0, "a", (10, 8)), ray(1, "b", arrives=100)
    outcome = lived(grown, owner, growths=Growths.CHARGE, borrows=True)
    assert outcome.preempted == 1
    assert outcome.gang_waits == [0, REMOVAL_SECONDS]
    assert outcome.lost == 2 * 10 + 8 * (90 + REMOVAL_SECONDS)


@pytest.mark.parametrize("borrows", [False, True])
def test_granted_growth_never_exceeds_a_quota_where_charged_growth_does(borrows: bool) -> None:
    granted, charged = crowded(Growths.GRANT, borrows), crowded(Growths.CHARGE, borrows)
    assert granted.wanted == charged.wanted
    assert granted.beyond_quota == 0 < charged.beyond_quota
    assert len(granted.gang_waits) == 12


def test_granted_growth_within_nominal_quotas_costs_no_gang_its_work() -> None:
    granted, charged = crowded(Growths.GRANT, False), crowded(Growths.CHARGE, False)
    assert (granted.preempted, granted.lost) == (0, 0)
    assert charged.preempted > 0 < charged.lost


# --- The benchmark of grants -------------------------------------------------------------------------------


METRICS = "dispatcher_growth_grant_seconds_count 4.0\ndispatcher_growth_grant_seconds_sum 2.0\n"


def pod(uid: str, *gates: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"name": each} for each in gates]}}


@pytest.mark.parametrize(
    ("events", "times"),
    [
        pytest.param([(pod("a", GROWTH_GATE), 1.0), (pod("a"), 3.0)], {"a": 2.0}, id="with, then without"),
        pytest.param(
            [(pod("a", GROWTH_GATE), 1.0), (pod("a", GROWTH_GATE), 2.0), (pod("a"), 3.0), (pod("a"), 4.0)],
            {"a": 2.0},
            id="from the first event to the first without it",
        ),
        pytest.param(
            [(pod("a", GROWTH_GATE), 1.0), (pod("a", "other"), 2.0)],
            {"a": 1.0},
            id="other gates do not count",
        ),
        pytest.param([(pod("a", GROWTH_GATE), 1.0), (pod("b"), 2.0)], {}, id="never without, and never with"),
    ],
)
def test_time_is_that_with_the_gate(
    events: list[tuple[dict[str, Any], float]], times: dict[str, float]
) -> None:
    book = GateBook()
    for seen, now in events:
        book.note(seen, now)
    assert book.times() == times


def test_mean_needs_a_count_of_each_grant() -> None:
    assert mean_of_metric(METRICS, 4) == 0.5
    with pytest.raises(BenchmarkFailed, match="has 4 grants instead of 5"):
        mean_of_metric(METRICS, 5)


def test_workers_of_the_gang_are_its_demand_and_further_ones_are_not() -> None:
    gang = gang_of(parse_spec(elastic_gang("ray")["spec"], namespace="default"))
    assert gang.demand["nvidia.com/gpu"] == 4
