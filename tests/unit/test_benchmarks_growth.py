"""What the growth benchmark measures: sizes, shapes, and tables that show what they say."""

from __future__ import annotations

from benchmarks.backlog import Backlog, Mix, Taken, full_cluster, median, shape, submission
from benchmarks.growth import Measured, as_tables, backlogs
from tests.builders import NOW

TAKEN = {"wall": 0.002, "cpu": 0.001, "longest_block": 0.003, "committing": 0.0005}


def test_each_size_changes_one_thing() -> None:
    sizes = [(each.queued, each.nodes) for each in backlogs([50, 10], [5, 1], [Mix.SHARED])]
    assert sizes == [(10, 1), (50, 1), (50, 5)]


def test_shapes_are_few_or_all_distinct_as_the_mix_says() -> None:
    assert len({shape(number, Mix.SHARED) for number in range(2000)}) == 300
    assert len({shape(number, Mix.DISTINCT) for number in range(2000)}) == 2000


def test_nothing_that_is_submitted_fits_the_full_cluster_but_all_of_it_would_fit_an_empty_one() -> None:
    ledger = full_cluster(100)
    gangs = [submission(number, Mix.DISTINCT, NOW).after.gang for number in range(500)]
    assert not any(gang.demand.fits_in(ledger.free(gang)) for gang in gangs)
    assert all(gang.demand.fits_in(ledger.total(gang)) for gang in gangs)


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
