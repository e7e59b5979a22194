"""The nodes and gangs of the benchmark of packing: a mix of shapes, and gangs drawn from it, equal for equal seeds.

A mix is this module's own, or is read from a published trace: openb (Alibaba, cluster-trace-gpu-v2023), which its
README offers for research and study, so the trace is not part of this project.
Source: https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023

A trace lists pods. Here a gang is some equal pods: the number of pods, their shape and the time that the gang runs are
drawn independently. A pod counts whole devices, so a pod that requests a part of a GPU (`gpu_milli`) requests one GPU,
with its CPUs and memory; it can also be left out.
"""

from __future__ import annotations

import csv
import random
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

from benchmarks.failure import BenchmarkFailed
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources

GPU: Final = "nvidia.com/gpu"
GIB: Final = 2**30
MIB: Final = 2**20
MOST_PODS: Final = 110
"""The kubelet's default for one node."""

NODES_FILE: Final = "openb_node_list_all_node.csv"
PODS_FILE: Final = "openb_pod_list_default.csv"

PODS_OF_A_GANG: Final[Mapping[int, float]] = {1: 0.70, 2: 0.10, 4: 0.08, 8: 0.07, 16: 0.04, 32: 0.01}
"""The number of pods of a gang, with its probability."""
MOST_GPUS: Final = 64
"""The GPUs of the largest gang; a drawn gang of more has fewer pods."""
SHORTEST, LONGEST = 60, 7200
"""Seconds that a gang runs: the times of the mix within these bounds. Few pods of openb run for days, and would be
most of the load."""

SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "no GPU": (0, 0),
    "1 GPU": (1, 1),
    "2 to 7 GPUs": (2, 7),
    "8 to 31 GPUs": (8, 31),
    "32 to 64 GPUs": (32, MOST_GPUS),
}
"""The sizes of gangs by their GPUs, with both bounds."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shapes of nodes and of pods with their frequencies, and the seconds that pods ran."""

    nodes: tuple[tuple[Resources, int], ...]
    pods: tuple[tuple[Resources, float], ...]
    seconds: tuple[int, ...]

    def with_multi(self, share: float) -> Mix:
        """The mix in which pods of 2 or more GPUs request that share of all GPUs, each group with its own mix."""
        several = sum(each[GPU] * weight for each, weight in self.pods if each[GPU] > 1)
        single = sum(weight for each, weight in self.pods if each[GPU] == 1)
        if not several or not single or not 0 <= share < 1:
            raise BenchmarkFailed(f"cannot give pods of several GPUs {share:.0%} of the GPUs of this mix")
        factor = share / (1 - share) * single / several
        pods = tuple((each, weight * factor if each[GPU] > 1 else weight) for each, weight in self.pods)
        return replace(self, pods=pods)


@dataclass(frozen=True, slots=True)
class Job:
    """A gang, the second of its arrival, and the seconds that it runs."""

    arrives: float
    gang: Gang
    seconds: int

    @property
    def gpus(self) -> int:
        """The GPUs of all of its pods."""
        return self.gang.demand[GPU]

    @property
    def size(self) -> str:
        """Its key in `SIZES`."""
        return next(name for name, (least, most) in SIZES.items() if least <= self.gpus <= most)


def amounts(cpu: float, gib: float, gpu: int = 0) -> Resources:
    """CPUs, GiB of memory and GPUs."""
    return Resources({"cpu": round(cpu * 1000), "memory": round(gib * GIB), GPU: gpu})


MIXED: Final = Mix(
    nodes=(
        (amounts(96, 384, 8), 35),
        (amounts(64, 512, 4), 10),
        (amounts(96, 512, 2), 25),
        (amounts(16, 128, 2), 10),
        (amounts(8, 32, 1), 5),
        (amounts(64, 256), 15),
    ),
    pods=(
        (amounts(4, 16), 6),
        (amounts(16, 64), 6),
        (amounts(3, 6, 1), 20),
        (amounts(8, 32, 1), 20),
        (amounts(12, 48, 1), 20),
        (amounts(20, 64, 1), 10),
        (amounts(16, 64, 2), 8),
        (amounts(40, 160, 4), 5),
        (amounts(64, 256, 8), 3),
        (amounts(90, 320, 8), 2),
    ),
    seconds=(60, 120, 180, 300, 420, 600, 900, 1800, 3600, 7200),
)
"""A mix without a trace: nodes of 0 to 8 GPUs with 8 to 48 CPUs for each, pods that leave CPUs or GPUs over."""


def openb(folder: Path, *, has_partial: bool = True) -> Mix:
    """The mix of the openb trace; `folder` has its two files. Raises `BenchmarkFailed`.

    `has_partial` is false to leave out the pods that request a part of a GPU.
    """
    nodes = Counter(_shape(row, "gpu") for row in _rows(folder / NODES_FILE))
    rows = [row for row in _rows(folder / PODS_FILE) if has_partial or not _is_partial(row)]
    pods = Counter(_shape(row, "num_gpu") for row in rows)
    # A pod that was never scheduled ran for no time.
    ran = [row for row in rows if row["scheduled_time"]]
    seconds = sorted(int(row["deletion_time"]) - int(row["scheduled_time"]) for row in ran)
    return Mix(tuple(_by_size(nodes)), tuple(_by_size(pods)), tuple(seconds))


def make_nodes(mix: Mix, count: int) -> list[Node]:
    """`count` nodes in the proportions of the mix, in the order of its shapes."""
    ends = list(accumulate(number for _, number in mix.nodes))
    places = ((2 * at + 1) * ends[-1] // (2 * count) for at in range(count))
    shapes = [mix.nodes[bisect_left(ends, place + 1)][0] for place in places]
    return [Node(f"node-{at:04d}", shape, most_pods=MOST_PODS) for at, shape in enumerate(shapes)]


def split(nodes: Sequence[Node], clusters: int) -> dict[str, list[Node]]:
    """The nodes dealt to clusters one by one, so that each has the same mix."""
    return {f"cluster-{at}": list(nodes[at::clusters]) for at in range(clusters)}


def gpus_of(nodes: Iterable[Node]) -> int:
    """The GPUs of all nodes."""
    return sum(node.allocatable[GPU] for node in nodes)


def make_jobs(mix: Mix, gpus: int, load: float, seconds: float, seed: int) -> list[Job]:
    """Gangs that arrive for `seconds` and request on average `load` times `gpus` GPUs; at random times."""
    chance = random.Random(f"jobs {seed}")  # noqa: S311  # repeatable
    rate = load * gpus / _gpu_seconds(mix)
    found: list[Job] = []
    now = chance.expovariate(rate)
    for job in _drawn(mix, random.Random(f"gangs {seed}")):  # noqa: S311
        if now >= seconds:
            break
        found.append(replace(job, arrives=now))
        now += chance.expovariate(rate)
    return found


def make_queue(mix: Mix, gpus: int, seed: int) -> list[Job]:
    """Gangs that together request at least that many GPUs, in order."""
    found: list[Job] = []
    requested = 0
    for job in _drawn(mix, random.Random(f"queue {seed}")):  # noqa: S311
        if requested >= gpus:
            break
        found.append(job)
        requested += job.gpus
    return found


def _drawn(mix: Mix, chance: random.Random) -> Iterator[Job]:
    """Gangs without an end."""
    shapes, weights = [shape for shape, _ in mix.pods], list(accumulate(weight for _, weight in mix.pods))
    numbers, odds = list(PODS_OF_A_GANG), list(accumulate(PODS_OF_A_GANG.values()))
    while True:
        shape = chance.choices(shapes, cum_weights=weights)[0]
        count = _within_bounds(chance.choices(numbers, cum_weights=odds)[0], shape)
        gang = Gang(shape * count, count, (PodSet(count, shape),))
        yield Job(0.0, gang, _clipped(chance.choice(mix.seconds)))


def _gpu_seconds(mix: Mix) -> float:
    """The GPUs of a drawn gang times its seconds, on average."""
    gpus = sum(
        weight * odds * _within_bounds(count, shape) * shape[GPU]
        for shape, weight in mix.pods
        for count, odds in PODS_OF_A_GANG.items()
    )
    return gpus / sum(weight for _, weight in mix.pods) * statistics.mean(map(_clipped, mix.seconds))


def _within_bounds(count: int, shape: Resources) -> int:
    """That number of pods, or as many as the largest gang has."""
    return min(count, MOST_GPUS // max(1, shape[GPU]))


def _clipped(seconds: int) -> int:
    return min(max(seconds, SHORTEST), LONGEST)


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise BenchmarkFailed(f"{file}: {error.strerror}; --help says which files a trace has") from error


def _shape(row: Mapping[str, str], gpus: str) -> Resources:
    return Resources(
        {"cpu": int(row["cpu_milli"]), "memory": int(row["memory_mib"]) * MIB, GPU: int(row[gpus])}
    )


def _is_partial(row: Mapping[str, str]) -> bool:
    return row["num_gpu"] == "1" and int(row["gpu_milli"]) < 1000


def _by_size(counts: Counter[Resources]) -> list[tuple[Resources, int]]:
    return sorted(counts.items(), key=lambda each: (each[0][GPU], each[0]["cpu"], each[0]["memory"]))
