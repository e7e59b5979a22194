"""What the growth benchmark measures: sizes, shapes, and tables that show what they say."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from benchmarks import growth, reasons
from benchmarks.backlog import Backlog, Mix, Reason, Taken, full_cluster, median, shape, submitted
from benchmarks.growth import CROWD_PARTS, Measured, as_tables, backlogs, crowds, stretches_above
from benchmarks.reasons import Reasons
from dispatcher.core.scheduling.fit import fits
from tests.builders import NOW

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
