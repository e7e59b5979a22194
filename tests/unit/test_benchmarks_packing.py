"""What the benchmark of packing draws, what its two measurements count, and what its tables show."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import inf
from pathlib import Path

import orjson
import pytest

from benchmarks import packing
from benchmarks.packing import Trial, as_tables, read_trials
from benchmarks.packing_load import (
    GPU,
    MIXED,
    MOST_GPUS,
    NODES_FILE,
    PODS_FILE,
    SIZES,
    Job,
    Mix,
    amounts,
    gpus_of,
    make_jobs,
    make_nodes,
    make_queue,
    openb,
    split,
)
from benchmarks.packing_trial import fill, live, overtakings, share_at
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
a,32000,262144,0,
b,96000,393216,8,G2
c,96000,393216,8,G2
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,4000,1024,1,1000,,LS,Running,0,100,10
p1,4000,1024,1,460,,LS,Running,0,200,20
p2,8000,2048,8,1000,,LS,Pending,0,300,
"""


def make_job(gpus: int, pods: int = 1, arrives: float = 0.0, seconds: int = 60, cpu: float = 1) -> Job:
    shape = amounts(cpu, 1, gpus)
    return Job(arrives, Gang(shape * pods, pods, (PodSet(pods, shape),)), seconds)


def make_cluster(*gpus: int) -> dict[str, list[Node]]:
    return {"c": [Node(f"n{at}", amounts(64, 256, each)) for at, each in enumerate(gpus)]}


# --- the load ----------------------------------------------------------------------------------------------------


def test_nodes_are_in_the_proportions_of_the_mix() -> None:
    shapes = Counter(node.allocatable for node in make_nodes(MIXED, 200))
    assert shapes == {shape: 2 * number for shape, number in MIXED.nodes}


def test_nodes_are_dealt_so_that_each_cluster_has_the_same_mix() -> None:
    clusters = split(make_nodes(MIXED, 400), 4)
    assert {len(nodes) for nodes in clusters.values()} == {100}
    gpus = [gpus_of(nodes) for nodes in clusters.values()]
    assert max(gpus) - min(gpus) <= 8


def test_gangs_are_the_same_for_a_seed_and_no_larger_than_allowed() -> None:
    jobs = make_jobs(MIXED, 500, 1.0, 3600, seed=1)
    assert jobs == make_jobs(MIXED, 500, 1.0, 3600, seed=1)
    assert jobs != make_jobs(MIXED, 500, 1.0, 3600, seed=2)
    assert max(job.gpus for job in jobs) <= MOST_GPUS
    assert {job.size for job in jobs} == set(SIZES)


def test_load_changes_the_times_of_arrival_and_no_gang() -> None:
    low, high = (make_jobs(MIXED, 500, load, 3600, seed=1) for load in (0.5, 1.0))
    assert [(job.gang, job.seconds) for job in low] == [
        (job.gang, job.seconds) for job in islice(high, len(low))
    ]
    assert [2 * job.arrives for job in islice(high, len(low))] == pytest.approx([job.arrives for job in low])


def test_gangs_request_on_average_the_gpus_of_the_load() -> None:
    jobs = make_jobs(MIXED, 300, 0.8, 48 * 3600, seed=1)
    running = sum(job.gpus * job.seconds for job in jobs) / (48 * 3600)
    assert running == pytest.approx(240, rel=0.1)


def test_queue_requests_all_gpus_and_no_gang_more() -> None:
    queue = make_queue(MIXED, 700, seed=3)
    assert sum(job.gpus for job in queue) >= 700 > sum(job.gpus for job in queue[:-1])


def test_pods_of_several_gpus_request_the_share_that_was_set() -> None:
    pods = MIXED.with_multi(0.6).pods
    several = sum(shape[GPU] * weight for shape, weight in pods if shape[GPU] > 1)
    assert several / sum(shape[GPU] * weight for shape, weight in pods) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("has_partial", "single", "seconds"), [(True, 2, (90, 180)), (False, 1, (90,))], ids=["whole", "drop"]
)
def test_trace_is_read_as_shapes_with_counts(
    tmp_path: Path, has_partial: bool, single: int, seconds: tuple[int, ...]
) -> None:
    (tmp_path / NODES_FILE).write_text(NODES)
    (tmp_path / PODS_FILE).write_text(PODS)
    assert openb(tmp_path, has_partial=has_partial) == Mix(
        nodes=((amounts(32, 256), 1), (amounts(96, 384, 8), 2)),
        pods=((amounts(4, 1, 1), single), (amounts(8, 2, 8), 1)),
        seconds=seconds,
    )


# --- the measurements --------------------------------------------------------------------------------------------


def test_fill_counts_allocated_gpus_and_gangs_left_out() -> None:
    jobs = [make_job(4), make_job(4, pods=2), make_job(1), make_job(8), make_job(2)]
    filled = fill(make_cluster(8, 4), jobs, (1.0, 1.5))
    assert filled.allocated == {"100%": 1.0, "150%": 1.0}
    assert {size: count for size, count in filled.left_out.items() if count} == {
        "1 GPU": 1,
        "8 to 31 GPUs": 1,
        "2 to 7 GPUs": 1,
    }
    assert filled.gangs == {"no GPU": 0, "1 GPU": 1, "2 to 7 GPUs": 2, "8 to 31 GPUs": 2, "32 to 64 GPUs": 0}


def test_share_at_a_mark_counts_only_the_gangs_up_to_it() -> None:
    jobs = [make_job(4), make_job(4), make_job(2)]
    assert share_at(1.0, 8, jobs, [True, False, True]) == 0.5
    assert share_at(1.1, 8, jobs, [True, False, True]) == 0.75


def test_life_counts_allocated_gpus_waits_and_overtakings() -> None:
    """On 8 GPUs: 4 run for 100 s, 8 wait for them, 4 overtake; from second 10 to 110 all wait but one."""
    jobs = [
        make_job(4, arrives=5, seconds=100),
        make_job(8, arrives=5, seconds=600),
        make_job(4, arrives=15, seconds=60),
    ]
    lived = live(make_cluster(8), jobs, warm_up=0, until=200)
    assert lived.overtaken == pytest.approx(1 / 3)
    assert lived.waits["2 to 7 GPUs"].left_out == 0
    assert lived.waits["2 to 7 GPUs"].p99 * 60 == pytest.approx(5)
    assert lived.waits["8 to 31 GPUs"].p50 * 60 == pytest.approx(105)
    # A cycle every 10 s: 4 GPUs at 10 s, 8 from 20 s to 70 s, 4 until 100 s, 8 from 110 s on.
    assert lived.allocated == pytest.approx((4 + 6 * 8 + 3 * 4 + 10 * 8) / (20 * 8))


def test_gang_without_a_place_at_the_end_is_left_out_and_has_waited_until_then() -> None:
    jobs = [make_job(8, arrives=5, seconds=600), make_job(8, arrives=20, seconds=60)]
    waits = live(make_cluster(8), jobs, warm_up=10, until=200).waits["8 to 31 GPUs"]
    assert (waits.gangs, waits.left_out, waits.p50) == (1, 1, 3.0)


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        pytest.param([1.0, 2.0, 3.0], [0, 0, 0], id="in-order"),
        pytest.param([5.0, 1.0, 5.0, 2.0], [2, 0, 1, 0], id="overtaken"),
        pytest.param([inf, inf, 1.0], [1, 1, 0], id="never-started"),
    ],
)
def test_overtakings_are_later_gangs_that_start_before(starts: list[float], expected: list[int]) -> None:
    assert overtakings(starts) == expected


# --- options and tables ------------------------------------------------------------------------------------------


def make_trial(seed: int, clusters: int = 1, allocated: float = 90.0) -> Trial:
    return Trial(clusters, seed, {"life: GPUs allocated, %": allocated})


def test_table_has_averages_over_seeds_and_ratios_of_equal_seeds() -> None:
    now = [make_trial(1, allocated=90.0), make_trial(2, allocated=96.0), make_trial(1, clusters=4)]
    before = [make_trial(1, allocated=75.0), make_trial(2, allocated=80.0), make_trial(3, allocated=1.0)]
    one, four = as_tables(now, before).split("\n\n")
    title, heads, row = one.splitlines()
    assert title == "1 cluster, 2 seeds"
    assert heads.split() == ["average", "least", "most", "before", "ratio", "up/down"]
    assert row[40:].split() == ["93.00", "90.00", "96.00", "77.50", "1.200", "2/0"]
    assert four.splitlines()[1].split() == ["average", "least", "most"]


def test_output_is_read_back_and_compared_only_under_equal_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "before.json")
    small = ["--nodes", "12", "--clusters", "1", "--seeds", "1", "--hours", "0.2"]
    assert packing.main([*small, "--output", output]) == 0
    known = orjson.loads(Path(output).read_bytes())
    assert read_trials(output, known["conditions"]) == [Trial(**known["trials"][0])]
    assert packing.main([*small, "--beside", output]) == 0
    allocated = [line for line in capsys.readouterr().out.splitlines() if "life: GPUs allocated" in line]
    assert allocated[1].split()[-2:] == ["1.000", "0/0"]
    assert packing.main([*small, "--load", "2", "--beside", output]) == 1
    assert "has --load 1.0, this run 2.0" in capsys.readouterr().err
