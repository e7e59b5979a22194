"""Random nodes and gangs for the binding benchmark; equal seeds give equal nodes and gangs.

Each gang fits the empty cluster, so that every setting can dispatch it. A first fit of whole pods, the largest pods
first, checks that. The check does not use the dispatcher's own placement.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from benchmarks.gangs import NAMESPACE
from dispatcher.api.annotations import RETRY_LIMIT, RETRY_PAUSE, WARMUP_GRACE
from dispatcher.api.names import APPWRAPPER_KIND, APPWRAPPER_VERSION, ITEM_LABEL, WORKLOAD_GROUP
from testbed.kuberay_operator import GROUP_LABEL, HEAD_GROUP
from testbed.nodes import Shape

Json = dict[str, Any]

MODEL: Final = "gpu-model"
MODELS: Final = ("a100", "t4", "v100")
TAINT: Final = {"key": "dedicated", "value": "research", "effect": "NoSchedule"}
TOLERATION: Final = {"key": "dedicated", "operator": "Equal", "value": "research", "effect": "NoSchedule"}
TAINTED: Final = 0.2
"""The share of the nodes that are tainted."""

MOST_BARE_PODS: Final = 3
"""The most pods of a pod set that is wrapped as bare pods; each pod is an item of its own."""
RAY_CLUSTERS: Final = 0.3
"""The share of the gangs that are RayClusters."""
SECONDS: Final = (6.0, 14.0)
"""The shortest and the longest run of a gang, in seconds from the binding of its last pod."""
FAULT_TOLERANCE: Final = {WARMUP_GRACE: "30s", RETRY_PAUSE: "5s", RETRY_LIMIT: "1000"}
"""The dispatcher requeues a gang that does not start within the grace.

With the default grace of five minutes a run would take hours.
"""
RUN_FOR: Final = {"testbed.dispatcher.codeflare.dev/run-for": "forever"}


@dataclass(frozen=True, slots=True)
class Amounts:
    """The requests of a pod, or the allocatable amounts of a node: CPUs, GiB of memory, GPUs."""

    cpu: int
    memory: int
    gpu: int

    def fits_in(self, free: Amounts) -> bool:
        """True if `free` has enough CPUs, memory and GPUs."""
        return self.cpu <= free.cpu and self.memory <= free.memory and self.gpu <= free.gpu

    def less(self, other: Amounts) -> Amounts:
        """These amounts less the other ones."""
        return Amounts(self.cpu - other.cpu, self.memory - other.memory, self.gpu - other.gpu)


@dataclass(frozen=True, slots=True)
class Machine:
    """A node: its allocatable amounts, its model of GPU, and whether it is tainted."""

    name: str
    amounts: Amounts
    model: str
    is_tainted: bool

    def shape(self) -> Shape:
        """The node as the testbed creates it."""
        amounts = self.amounts
        return Shape(
            cpu=str(amounts.cpu),
            memory=f"{amounts.memory}Gi",
            gpu=amounts.gpu,
            labels={MODEL: self.model},
            taints=[TAINT] if self.is_tainted else [],
        )


@dataclass(frozen=True, slots=True)
class Pods:
    """Equal pods of a gang; an empty `model` accepts every node."""

    count: int
    requests: Amounts
    model: str = ""
    tolerates: bool = False

    def may_use(self, machine: Machine) -> bool:
        """True if the node selector and the tolerations of the pods permit the node."""
        return self.model in {"", machine.model} and (self.tolerates or not machine.is_tainted)


class Wrapping(StrEnum):
    """How the pods of a gang are wrapped."""

    JOBS = "Jobs"
    """Each pod set is a Job."""
    PODS = "pods"
    """Each pod is an object of its own."""
    RAY_CLUSTER = "RayCluster"
    """One RayCluster: its head is the first pod of the first pod set, and all others are workers."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Pod sets of different shapes; the gang runs for `seconds`."""

    name: str
    pods: tuple[Pods, ...]
    wrapping: Wrapping
    seconds: float

    @property
    def size(self) -> int:
        """The number of pods of the gang."""
        return sum(each.count for each in self.pods)

    @property
    def has_one_shape(self) -> bool:
        """True if all pods of the gang are equal."""
        return len(self.pods) == 1

    def appwrapper(self) -> Json:
        """The AppWrapper as a user submits it."""
        items = [{"generictemplate": each} for each in self._wrapped()]
        return {
            "apiVersion": f"{WORKLOAD_GROUP}/{APPWRAPPER_VERSION}",
            "kind": APPWRAPPER_KIND,
            "metadata": {"name": self.name, "namespace": NAMESPACE, "annotations": FAULT_TOLERANCE},
            "spec": {"resources": {"GenericItems": items}},
        }

    def index_of(self, labels: Mapping[str, str]) -> int:
        """The index of a pod's set in the dispatcher's order, by the labels of the pod."""
        if self.wrapping is not Wrapping.RAY_CLUSTER:
            return int(labels[ITEM_LABEL])
        group = labels[GROUP_LABEL]
        return 0 if group == HEAD_GROUP else int(group.rpartition("-")[2])

    def _wrapped(self) -> Iterator[Json]:
        if self.wrapping is Wrapping.RAY_CLUSTER:
            yield self._raycluster()
            return
        for at, pods in enumerate(self.pods):
            name = f"{self.name}-{at}"
            if self.wrapping is Wrapping.PODS:
                for number in range(pods.count):
                    metadata = {"name": f"{name}-{number}", "annotations": RUN_FOR}
                    yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(pods)}
            else:
                yield _job(name, pods)

    def _raycluster(self) -> Json:
        first, *others = self.pods
        workers = [replace(first, count=first.count - 1), *others]
        groups = [
            {
                "groupName": f"group-{number}",
                "replicas": pods.count,
                "minReplicas": pods.count,
                "maxReplicas": pods.count,
                "rayStartParams": {},
                "template": _template(pods),
            }
            for number, pods in enumerate((each for each in workers if each.count), 1)
        ]
        head = {"rayStartParams": {}, "template": _template(first)}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": self.name},
            "spec": {"headGroupSpec": head, "workerGroupSpecs": groups},
        }


def make_machines(count: int, seed: int) -> list[Machine]:
    """Nodes with 1 to 8 GPUs of three models, different CPUs and memory; about a fifth are tainted."""
    chance = random.Random(f"nodes {seed}")  # noqa: S311  # repeatable
    return [_machine(f"node-{number}", chance) for number in range(count)]


def make_gangs(count: int, machines: Sequence[Machine], seed: int) -> list[Gang]:
    """Gangs of 1 to 3 pod sets, about `RAY_CLUSTERS` of them RayClusters. Each gang fits the empty cluster."""
    chance = random.Random(f"gangs {seed}")  # noqa: S311  # repeatable
    wrapping = random.Random(f"wrapping {seed}")  # noqa: S311  # so that the pods do not depend on it
    found: list[Gang] = []
    while len(found) < count:
        gang = _gang(f"gang-{len(found):04d}", chance)
        if fits_empty(gang, machines):
            is_ray = wrapping.random() < RAY_CLUSTERS
            found.append(replace(gang, wrapping=Wrapping.RAY_CLUSTER) if is_ray else gang)
    return found


def fits_empty(gang: Gang, machines: Sequence[Machine]) -> bool:
    """True if a first fit finds a node for every pod.

    The fit takes the pods with the most GPUs first, and tries the smallest nodes first.
    """
    free = {each: each.amounts for each in sorted(machines, key=lambda each: _rank(each.amounts))}
    for pods in sorted(gang.pods, key=lambda each: _rank(each.requests), reverse=True):
        for _ in range(pods.count):
            node = next(
                (each for each in free if pods.may_use(each) and pods.requests.fits_in(free[each])), None
            )
            if node is None:
                return False
            free[node] = free[node].less(pods.requests)
    return True


def gpus_of(machines: Sequence[Machine]) -> int:
    """The GPUs of all nodes."""
    return sum(each.amounts.gpu for each in machines)


def _machine(name: str, chance: random.Random) -> Machine:
    gpu = chance.choices((1, 2, 4, 8), weights=(3, 3, 3, 2))[0]
    cpu = max(8, gpu * chance.choice((4, 6, 8)))
    amounts = Amounts(cpu, cpu * chance.choice((4, 8)), gpu)
    return Machine(name, amounts, chance.choice(MODELS), chance.random() < TAINTED)


def _gang(name: str, chance: random.Random) -> Gang:
    pods = tuple(_pods(chance) for _ in range(chance.choices((1, 2, 3), weights=(2, 2, 1))[0]))
    is_bare = all(each.count <= MOST_BARE_PODS for each in pods) and chance.random() < 0.5
    wrapping = Wrapping.PODS if is_bare else Wrapping.JOBS
    return Gang(name, pods, wrapping, round(chance.uniform(*SECONDS), 1))


def _pods(chance: random.Random) -> Pods:
    gpu = chance.choices((0, 1, 2, 3, 4, 8), weights=(3, 4, 3, 1, 2, 1))[0]
    count = chance.randint(1, 2) if gpu >= 4 else chance.randint(1, 5)
    cpu = chance.randint(1, 16)
    requests = Amounts(cpu, cpu * chance.choice((1, 2, 4)), gpu)
    model = chance.choice(MODELS) if chance.random() < 0.35 else ""
    return Pods(count, requests, model, tolerates=chance.random() < 0.4)


def _rank(amounts: Amounts) -> tuple[int, int, int]:
    return amounts.gpu, amounts.cpu, amounts.memory


def _job(name: str, pods: Pods) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods.count,
            "completions": pods.count,
            "template": _template(pods),
        },
    }


def _template(pods: Pods) -> Json:
    return {"metadata": {"annotations": RUN_FOR}, "spec": _pod_spec(pods)}


def _pod_spec(pods: Pods) -> Json:
    requests = {"cpu": str(pods.requests.cpu), "memory": f"{pods.requests.memory}Gi"}
    if pods.requests.gpu:
        requests["nvidia.com/gpu"] = str(pods.requests.gpu)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        **({"nodeSelector": {MODEL: pods.model}} if pods.model else {}),
        **({"tolerations": [TOLERATION]} if pods.tolerates else {}),
        "containers": [
            {
                "name": "work",
                "image": "example.com/work",
                "resources": {"requests": requests, "limits": requests},
            }
        ],
    }
