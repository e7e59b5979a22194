"""Ray clusters that grow and shrink: when they come and go, and how many workers each wants, second by second.

All depends on the seed alone, so two ways to treat growth see the same demand. A cluster has a head without GPUs, and
workers with one GPU each. It always wants `LEAST` workers, and more while a burst of tasks runs. Ray's autoscaler adds
workers at once, and removes those that were idle for `IDLE_SECONDS`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources

GPU: Final = "nvidia.com/gpu"
HEAD: Final = Resources({"cpu": 2500})
"""The head, with the autoscaler in its pod."""
WORKER: Final = Resources({"cpu": 4000, GPU: 1})
NODE: Final = Resources({"cpu": 96_000, GPU: 8})

LEAST, MOST = 2, 10
"""Workers of a cluster: `minReplicas` and `maxReplicas`."""
IDLE_SECONDS: Final = 60
"""Ray's `idleTimeoutSeconds`, as the CodeFlare SDK writes it."""
MEAN_BURST, MEAN_CALM = 400.0, 500.0
"""Seconds of a burst of tasks, and between two bursts, on average; both are drawn from exponential distributions."""
SHORTEST_LIFE: Final = 1800
ARRIVALS: Final = 0.75
"""All clusters come within this part of the time."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """One cluster of a queue. `wants` has the seconds from which on it wants another number of workers."""

    number: int
    queue: str
    arrives: int
    ends: int
    wants: tuple[tuple[int, int], ...]

    @property
    def gang(self) -> Gang:
        """The head and the fewest workers."""
        demand = HEAD + WORKER * LEAST
        return Gang(demand, 1 + LEAST, (PodSet(1, HEAD), PodSet(LEAST, WORKER)))

    def wanted(self, second: int) -> int:
        """The workers that its tasks need."""
        return self.wants[bisect_right(self.wants, (second, MOST)) - 1][1]

    def kept(self, second: int) -> int:
        """The workers that its autoscaler asks for: some of them may be idle, but not long enough."""
        since = second - IDLE_SECONDS
        recent = [workers for at, workers in self.wants if since < at <= second]
        return max([self.wanted(max(since, self.arrives)), *recent])


def make_clusters(count: int, queues: Sequence[str], seconds: int, seed: int) -> list[RayCluster]:
    """So many clusters, dealt to the queues, in the order in which they come."""
    chance = random.Random(seed)  # noqa: S311 - the same seed, the same demand
    arrivals = sorted(chance.randrange(int(seconds * ARRIVALS)) for _ in range(count))
    return [
        _make_cluster(number, queues[number % len(queues)], arrives, seconds, chance)
        for number, arrives in enumerate(arrivals)
    ]


def make_nodes(count: int) -> list[Node]:
    """So many equal nodes with eight GPUs each."""
    return [Node(f"n{number:03}", NODE) for number in range(count)]


def _make_cluster(number: int, queue: str, arrives: int, seconds: int, chance: random.Random) -> RayCluster:
    ends = arrives + chance.randint(SHORTEST_LIFE, max(SHORTEST_LIFE, seconds))
    wants, at = [(arrives, LEAST)], arrives
    while True:
        begins = at + 1 + round(chance.expovariate(1 / MEAN_CALM))
        at = begins + 1 + round(chance.expovariate(1 / MEAN_BURST))
        if at >= ends:
            return RayCluster(number, queue, arrives, ends, tuple(wants))
        wants += [(begins, chance.randint(LEAST + 1, MOST)), (at, LEAST)]
