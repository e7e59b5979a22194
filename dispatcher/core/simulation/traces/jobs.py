"""The jobs of a trace as gangs on the clusters of a file: which shape, which queue, which cluster.

A job is refused if no cluster of the file could ever run it, if its queue or cluster is not in the file, or if it comes
before the job in the line above. The error names the line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from dispatcher.api.selector import Requirement, Selector, SelectorOperator
from dispatcher.api.spec_errors import SpecError, quoted
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.fit import fits_in_empty
from dispatcher.core.simulation.job import Devices, Job
from dispatcher.core.simulation.measures import CPU, MILLI
from dispatcher.core.simulation.traces.files import CPUS, READERS, UNSORTED, Stated
from dispatcher.core.simulation.traces.rows import MOST_JOBS, TraceError
from dispatcher.core.simulation.traces.spec import GPU, Limits, Policy, TraceSpec, Where

CLUSTER_LABEL: Final = "simulation/cluster"
"""The label by which gangs of a trace select a cluster by its name."""
LONGEST_LIMIT: Final = 2**31 - 1


def named(clusters: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """The clusters with a label that has the name of each."""
    return tuple(replace(each, labels={**each.labels, CLUSTER_LABEL: each.name}) for each in clusters)


def cluster_called(name: str) -> ClusterRequirements:
    """The requirements that only the cluster of this name meets."""
    requirement = Requirement(CLUSTER_LABEL, SelectorOperator.IN, frozenset({name}))
    return ClusterRequirements(Selector((requirement,)), namespace=DEFAULT_NAMESPACE)


def read_jobs(
    spec: TraceSpec, policy: Policy, world: World, lines: Iterable[str], taken_away: Collection[str] = ()
) -> list[Job]:
    """The jobs of a trace file in the order of arrival, the first at 0. Raises `TraceError` and `SpecError`.

    `taken_away` are the clusters that the file has and the world has not any more.
    """
    maker = _Maker.of(spec, policy, world, taken_away)
    jobs = [job for each in READERS[spec.format](lines, spec) if (job := maker.job(each)) is not None]
    if not jobs:
        raise SpecError("trace", "takes no job of the file: look at from, until and clusters")
    if len(jobs) > MOST_JOBS:
        raise TraceError(jobs[MOST_JOBS].line, f"there are more than {MOST_JOBS} jobs")
    if spec.is_to_sort or spec.format in UNSORTED:
        jobs.sort(key=lambda each: each.at)
    for before, after in pairwise(jobs):
        if after.at < before.at:
            raise TraceError(
                after.line,
                f"it arrives at {after.at:g} s, before the job in line {before.line} at {before.at:g} s: "
                "sort the file, or set sort: true",
            )
    return [replace(each, at=each.at - jobs[0].at) for each in jobs]


class _Maker(Struct):
    """Makes gangs of what a trace says; equal gangs are one value."""

    spec: TraceSpec
    policy: Policy
    world: World
    forest: Forest
    devices: Devices
    empty: Sequence[CapacitySnapshot]
    taken_away: Collection[str] = ()
    _gangs: dict[int, Gang] = field(default_factory=dict)
    _requirements: dict[str, ClusterRequirements] = field(default_factory=dict)
    _too_large: dict[int, bool] = field(default_factory=dict)
    _leaves: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: TraceSpec, policy: Policy, world: World, taken_away: Collection[str]) -> _Maker:
        """The maker for the clusters and queues of a world."""
        resource = spec.resource or (CPU if spec.format in CPUS else GPU)
        unit = MILLI if resource == CPU else 1
        nodes = [node for each in world.clusters for node in each.nodes]
        largest = max((node.allocatable[resource] // unit for node in nodes), default=0)
        if not largest:
            raise SpecError("clusters", f"no node has {resource}, which the jobs of the trace request")
        forest = world.forest
        clusters = {each.name for each in world.clusters}
        for column, name in spec.clusters.items():
            if name in taken_away and policy.cluster is Where.TRACE:
                raise SpecError(f"trace.clusters.{column}", _nowhere_else(name))
            if name not in clusters and name not in taken_away:
                raise SpecError(f"trace.clusters.{column}", f"there is no cluster {quoted(name)}")
        for column, name in spec.queues.items():
            if name not in forest.places:
                raise SpecError(f"trace.queues.{column}", f"there is no queue {quoted(name)}")
        devices = Devices(resource, spec.per_node or largest, unit)
        return cls(spec, policy, world, forest, devices, empty_clusters(world), taken_away)

    def job(self, said: Stated) -> Job | None:
        """The job; None if its cluster is none of those of the trace that are taken. Raises `TraceError`."""
        if self.spec.clusters and said.cluster not in self.spec.clusters:
            return None
        if self._is_too_large(said.devices):
            whole, resource = self._gang(said.devices), self.devices.resource
            raise TraceError(
                said.line,
                f"the job is larger than everything: {said.devices} {resource} in {whole.pods} pods fit no "
                "cluster, even if it was empty",
            )
        limits = {Limits.NONE: 0, Limits.TRACE: said.limit, Limits.TRUE: stated(said.runs)}
        return Job(
            name=said.name,
            at=said.at,
            runs=said.runs,
            gang=self._gang(said.devices),
            leaves=self._queue_of(said),
            priority=said.priority,
            requirements=self._where(said),
            limit=limits[self.policy.limits],
            line=said.line,
        )

    def _gang(self, devices: int) -> Gang:
        if devices not in self._gangs:
            self._gangs[devices] = self.devices.gang(devices)
        return self._gangs[devices]

    def _is_too_large(self, devices: int) -> bool:
        if devices not in self._too_large:
            self._too_large[devices] = not fits_somewhere(self._gang(devices), self.empty)
        return self._too_large[devices]

    def _queue_of(self, said: Stated) -> tuple[str, ...]:
        if self.policy.queue:
            return (self.policy.queue,)
        if said.queue not in self._leaves:
            self._leaves[said.queue] = (self._leaf(said),)
        return self._leaves[said.queue]

    def _leaf(self, said: Stated) -> str:
        if not self.world.queues or not said.queue:
            return DEFAULT_QUEUE
        name = self.spec.queues.get(said.queue, said.queue)
        if name not in self.forest.places:
            raise TraceError(said.line, f"there is no queue {quoted(name)} in the file")
        return name

    def _where(self, said: Stated) -> ClusterRequirements:
        if self.policy.cluster is Where.ANY or not said.cluster:
            return _ANYWHERE
        name = self.spec.clusters.get(said.cluster, said.cluster)
        if name not in self._requirements:
            if name in self.taken_away:
                raise TraceError(said.line, _nowhere_else(name))
            if name not in {each.name for each in self.world.clusters}:
                raise TraceError(
                    said.line,
                    f"there is no cluster {quoted(name)} in the file: name it in trace.clusters, or set cluster: any",
                )
            self._requirements[name] = cluster_called(name)
        return self._requirements[name]


def _nowhere_else(cluster: str) -> str:
    return (
        f"cluster {quoted(cluster)} is taken away by --without-cluster, and its jobs may go to no other: "
        "set policy.cluster to any"
    )


_ANYWHERE: Final = replace(ANYWHERE, namespace=DEFAULT_NAMESPACE)


def stated(runs: float) -> int:
    """The limit of a gang that states its run time: at least so many seconds, and 1 of a gang that ends at once."""
    return min(max(1, ceil(runs)), LONGEST_LIMIT)


def empty_clusters(world: World) -> list[CapacitySnapshot]:
    """The capacity of each cluster of the world if nothing ran there."""
    snapshots = KnownSnapshots().of(replace(world, running=(), pending=()))
    return [each.capacity for each in snapshots.values()]


def fits_somewhere(gang: Gang, empty: Iterable[CapacitySnapshot]) -> bool:
    """True if some of these empty clusters could run the gang."""
    return any(fits_in_empty(gang, each) for each in empty)
