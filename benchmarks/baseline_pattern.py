"""Kueue's baseline: 15,000 gangs of three sizes, which arrive in 30 queues of 5 trees within a minute.

Each queue has a namespace of its own, whose label names the queue, and each gang wraps one Job of one pod. All of it
takes 66 s if the quota is always used up.

Source: https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.declared_queues import dispatch_queue
from dispatcher.api.annotations import ADMISSION_GRACE
from dispatcher.api.names import APPWRAPPER_KIND, APPWRAPPER_VERSION, QUEUE_LABEL, WORKLOAD_GROUP

Json = dict[str, Any]

TREES: Final = 5
LEAVES_OF_A_TREE: Final = 6
NOMINAL_CPU: Final = 20
BORROWING_CPU: Final = 100
RUN_SECONDS: Final = "benchmark.dispatcher.codeflare.dev/run-seconds"
"""An annotation of a Job: how long the stand-in for its pod runs, in seconds."""
SIZE_LABEL: Final = "benchmark.dispatcher.codeflare.dev/size"


@dataclass(frozen=True, slots=True)
class Size:
    """`count` gangs in each queue, of `cpu` CPUs, that run for `seconds`; one arrives each `every` seconds."""

    name: str
    count: int
    cpu: int
    seconds: float
    priority: int
    every: float


SIZES: Final = (
    Size("small", 350, 1, 0.2, 50, 0.1),
    Size("medium", 100, 5, 0.5, 100, 0.5),
    Size("large", 50, 20, 1.0, 200, 1.2),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most CPUs that a queue, or a tree by the name of its root, may use at any instant."""

    queue: str
    cpu: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang, and when it arrives, in seconds from the start of the load."""

    at: float
    queue: str
    number: int
    size: Size

    @property
    def name(self) -> str:
        """The name of the AppWrapper and of its Job, different from all others."""
        return f"{self.queue}-{self.size.name}-{self.number:03d}"

    def appwrapper(self) -> Json:
        """The AppWrapper as a user submits it, in the namespace of its queue."""
        # No pods exist here, and by default a gang without pods is requeued after a minute.
        metadata = {
            "name": self.name,
            "namespace": self.queue,
            "labels": {SIZE_LABEL: self.size.name},
            "annotations": {ADMISSION_GRACE: "1h"},
        }
        return {
            "apiVersion": f"{WORKLOAD_GROUP}/{APPWRAPPER_VERSION}",
            "kind": APPWRAPPER_KIND,
            "metadata": metadata,
            "spec": {
                "priority": self.size.priority,
                "resources": {"GenericItems": [{"generictemplate": self._job()}]},
            },
        }

    def _job(self) -> Json:
        requests = {"cpu": str(self.size.cpu)}
        container = {
            "name": "work",
            "image": "example.com/work",
            "resources": {"requests": requests, "limits": requests},
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, "annotations": {RUN_SECONDS: str(self.size.seconds)}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        }


def parents() -> dict[str, str]:
    """The root of each leaf, in the order of declaration."""
    return {
        f"queue-{tree}-{leaf}": f"tree-{tree}" for tree in range(TREES) for leaf in range(LEAVES_OF_A_TREE)
    }


def dispatch_queues() -> list[Json]:
    """The DispatchQueues of all trees, each root before its leaves."""
    quota = {"cpu": {"nominalQuota": str(NOMINAL_CPU), "borrowingLimit": str(BORROWING_CPU)}}
    preemption = {"reclaim": "Any", "withinQueue": "LowerPriority"}
    found = {root: dispatch_queue(root, sharing="Priority") for root in parents().values()}
    for leaf, root in parents().items():
        found[leaf] = dispatch_queue(leaf, parent=root, resources=quota, preemption=preemption)
    return list(found.values())


def namespaces() -> list[Json]:
    """A namespace for each leaf, with the label that names it."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": leaf, "labels": {QUEUE_LABEL: leaf}}}
        for leaf in parents()
    ]


def limits() -> list[Limit]:
    """The limits of all leaves and trees."""
    leaves = [Limit(leaf, NOMINAL_CPU + BORROWING_CPU) for leaf in parents()]
    return leaves + [Limit(f"tree-{tree}", NOMINAL_CPU * LEAVES_OF_A_TREE) for tree in range(TREES)]


def arrivals(scale: float) -> list[Arrival]:
    """Every gang in the order of arrival; `scale` reduces the number of gangs of each size, to no less than one."""
    return sorted(_arrivals(scale), key=lambda each: (each.at, each.queue, each.number))


def _arrivals(scale: float) -> Iterator[Arrival]:
    for size in SIZES:
        for number in range(max(1, round(size.count * scale))):
            for queue in parents():
                yield Arrival(number * size.every, queue, number, size)
