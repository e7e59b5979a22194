"""Files of simulations: a scenario of `docs/plan.md` with the keys `trace` and `policy`.

Gangs of the document may state their `duration` in seconds, and those of a list in `trace.gangs` their `arrival`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.document import Entry
from dispatcher.api.selector import EVERYTHING
from dispatcher.api.spec_errors import quoted
from dispatcher.core.queues.queue import Order
from dispatcher.core.scheduling.explain.scenario import parse_scenario, read_pending
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.simulation.job import Job
from dispatcher.core.simulation.simulation import Simulation
from dispatcher.core.simulation.traces.jobs import empty_clusters, fits_somewhere, named, read_jobs, stated
from dispatcher.core.simulation.traces.rows import TraceError
from dispatcher.core.simulation.traces.spec import (
    Format,
    Limits,
    Policy,
    TraceSpec,
    Where,
    read_policy,
    read_trace,
)

KEYS: Final = ("trace", "policy")
_DURATION: Final = "duration"
_ARRIVAL: Final = "arrival"
_GANGS: Final = ("running", "pending")
_OF_WAITING: Final = ("age", "blocked", "preempting", "preemptions")
"""Keys of a gang that was waiting before the simulation begins."""


class RunFile(Struct, frozen=True):
    """One run as its document has it: `listed` are the jobs of a list, `runs` the run times of gangs by name.

    `taken_away` are the clusters of the document that a change has taken out of the world.
    """

    world: World
    trace: TraceSpec
    policy: Policy
    listed: tuple[Job, ...]
    runs: Mapping[str, float]
    taken_away: frozenset[str] = frozenset()

    def jobs(self, lines: Iterable[str] = ()) -> list[Job]:
        """The jobs of the trace. If the trace is a file, `lines` are its text. Raises `TraceError` and `SpecError`."""
        if self.trace.format is Format.LIST:
            return list(self.listed)
        jobs = read_jobs(self.trace, self.policy, self.world, lines, self.taken_away)
        names = _names(self.world)
        for job in jobs if names else ():
            if job.name in names:
                raise TraceError(job.line, f"a gang of the file has the name {job.name}, as this job")
        return jobs

    def simulation(self, jobs: Iterable[Job]) -> Simulation:
        """The simulation of these jobs."""
        return Simulation(self.world, list(jobs), self.runs, self.policy.removal)


def read_run(
    document: object, default_name: str, change: Callable[[World], World] = lambda world: world
) -> RunFile:
    """The run that a document describes, in the world after a `change`; raises `SpecError`, and what `change` raises.

    `default_name` is the name of a run without one.
    """
    top = Entry(document, "").object()
    trace, policy = read_trace(top.child("trace")), read_policy(top.child("policy"), default_name)
    runs = {
        gang.child("name").name(): gang.child(_DURATION).seconds().total_seconds()
        for key in _GANGS
        for gang in top.child(key).elements()
        if gang.object().child(_DURATION).value is not None
    }
    world = parse_scenario(_scenario(top))
    _check_simulated(top, world, policy)
    clusters = {each.name for each in world.clusters}
    world = change(world)
    taken_away = clusters.difference(each.name for each in world.clusters)
    world = replace(
        world,
        clusters=named(world.clusters),
        policy=policy.queueing,
        fit=policy.fit,
        starvation_bound=policy.starvation_bound,
    )
    listed = tuple(_listed(top.child("trace").child("gangs"), world, policy))
    return RunFile(world, trace, policy, listed, runs, frozenset(taken_away))


def _check_simulated(top: Entry, world: World, policy: Policy) -> None:
    """Raises `SpecError` about what `plan` takes, and a simulation would decide otherwise than the leader."""
    closed = {each.name for each in world.clusters if each.closed}
    for entry, gang in zip(top.child("running").elements(), world.running, strict=True):
        if gang.surplus.pods:
            entry.child("surplus").fail("is not simulated: a gang has no growth")
        if gang.active is not None and gang.active.is_leaving and entry.child(_DURATION).value is not None:
            entry.child(_DURATION).fail("has no meaning for a gang that is ending")
        if gang.cluster in closed:
            entry.child("cluster").fail("is closed, and its nodes do not count: leave its gangs out")
    for cluster in world.clusters:
        if cluster.pools:
            top.child("clusters").fail(f"cluster {cluster.name} has pools that grow, which is not simulated")
    for name, place in world.forest.places.items():
        if place.queue.order is Order.USAGE:
            top.child("queues").fail(f"queue {name} is in the order of past use, which is not simulated")
    if policy.queue and policy.queue not in world.forest.places:
        top.child("policy").child("queue").fail(f"there is no queue {quoted(policy.queue)}")


def _scenario(top: Entry) -> dict[str, Any]:
    """The document as `plan` reads it."""
    found = {key: value for key, value in top.mapping().items() if key not in KEYS}
    for key in _GANGS:
        if found.get(key) is not None:
            found[key] = [_without(each, _DURATION).value for each in top.child(key).elements()]
    return found


def _without(entry: Entry, *keys: str) -> Entry:
    """The entry of an object without these keys, at the same place."""
    return replace(entry, value={key: value for key, value in entry.mapping().items() if key not in keys})


def _listed(entries: Entry, world: World, policy: Policy) -> Iterable[Job]:
    names, before = _names(world), 0.0
    forest, empty, fitting = world.forest, empty_clusters(world), dict[object, bool]()
    for position, entry in enumerate(entries.unique_elements(names), 1):
        arrival, duration = entry.child(_ARRIVAL), entry.child(_DURATION)
        at = arrival.seconds().total_seconds()
        if at < before:
            arrival.fail(f"it arrives before the gang above, at {before:g} s: sort the list")
        before = at
        record = read_pending(_without(entry, _ARRIVAL, _DURATION), position, forest)
        for key in _OF_WAITING:
            if entry.child(key).value is not None:
                entry.child(key).fail("has no meaning for a gang that arrives")
        if record.pending is not None:
            entry.fail("awaits approvals, which are not simulated")
        for leaf in record.leaves:
            if leaf not in forest.places:
                entry.child("queue").fail(f"there is no queue {leaf}")
        if record.gang not in fitting:
            fitting[record.gang] = fits_somewhere(record.gang, empty)
        if not fitting[record.gang]:
            entry.fail("is larger than everything: it fits no cluster, even if it was empty")
        length = None if duration.value is None else duration.seconds().total_seconds()
        yield _under(policy, Job.of(record, at, length))


def _names(world: World) -> set[str]:
    """The names of the gangs of a world."""
    return {each.name for each in world.pending} | {each.name for each in world.running}


def _under(policy: Policy, job: Job) -> Job:
    """The job of a list under a policy."""
    if policy.cluster is Where.ANY:
        job = replace(job, requirements=replace(job.requirements, selector=EVERYTHING))
    if policy.queue:
        job = replace(job, leaves=(policy.queue,))
    if policy.limits is Limits.TRUE and job.runs is not None:
        job = replace(job, limit=stated(job.runs))
    return job
