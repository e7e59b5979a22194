"""A trace on virtual time: arrivals, ends and cycles, one moment after the other.

A moment is a time at which something happens. First the gangs that end leave, then gangs arrive, then cycles are run
until none is due. A cycle is due as for the leader (`controller.scheduling.scheduler`): after each change, `POLL` after
a cycle that changed a record, and when time alone may bring news, as a starvation bound does.

A gang ends once it has run for its time since the dispatch. A gang that was preempted or evicted leaves `removal` later
and is queued again; its next run begins anew. The simulation ends when nothing is left that may happen.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec.structs import replace

from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.simulation.hub import Cycle, Hub
from dispatcher.core.simulation.job import Job, moment
from dispatcher.core.simulation.measures import Measured, Measures, measured_resource

POLL: Final = timedelta(seconds=10)
"""The leader's cycles are at most so far apart (`controller.scheduling.scheduler.Rules`)."""
REMOVAL: Final = timedelta(seconds=1)
"""How long the removal of a preempted gang takes where a policy does not say it."""
MOST_IDLE: Final = 1000
"""Cycles without a dispatch, when nothing else is left to happen, after which no gang can start any more."""


_PREEMPTED: Final = frozenset({Phase.REQUEUEING, Phase.QUEUED})


class _End(NamedTuple):
    """The end of a run: `attempt` says of which, because a preempted gang runs again."""

    at: datetime
    order: int
    uid: str
    attempt: int


class _Removal(NamedTuple):
    """When a preempted gang has left."""

    at: datetime
    order: int
    uid: str


class Simulation:
    """One run of a trace over a world; `runs` has the run times of the gangs of the world itself, by name.

    `jobs` are in the order of arrival. `advance` moves to the next moment; `measured` may be asked at any time.
    """

    def __init__(
        self,
        world: World,
        jobs: Sequence[Job],
        runs: Mapping[str, float] | None = None,
        removal: timedelta = REMOVAL,
    ) -> None:
        self._jobs = jobs
        self._removal = removal
        self._runs: dict[str, float] = dict(runs or {})
        self._hub = Hub(world)
        open_nodes = [
            node for each in world.clusters if not each.closed for node in each.nodes if node.usable
        ]
        resource = measured_resource(open_nodes)
        capacity = sum(node.allocatable[resource] for node in open_nodes)
        is_under_way = world.pending or world.running or not jobs
        begun = SOME_TIME if is_under_way else moment(jobs[0].at)
        self._measures = Measures(resource, capacity, begun)
        self._arrived = 0
        self._first_position = len(world.pending) + 1
        self._orders = 0
        self._ends: list[_End] = []
        self._removals: list[_Removal] = []
        self._wake: datetime | None = None
        self._idle = 0
        self.now = begun
        self._begin(world)

    @property
    def resource(self) -> str:
        """The resource that is measured."""
        return self._measures.resource

    @property
    def arrived(self) -> int:
        """How many gangs of the trace have arrived."""
        return self._arrived

    @property
    def gangs(self) -> int:
        """How many gangs the trace has."""
        return len(self._jobs)

    @property
    def day(self) -> int:
        """The day of the trace, from 1 on."""
        return (self.now - self._measures.begun).days + 1

    def measured(self) -> Measured:
        """What the run comes to so far; gangs that have not arrived do not count."""
        return self._measures.measured()

    def advance(self) -> bool:
        """Move to the next moment, with all its cycles; False if nothing is left that may happen."""
        now = self._next()
        if now is None:
            return False
        self.now = now
        self._measures.move_to(now)
        has_changed = self._take_ends(now) | self._take_removals(now) | self._take_arrivals(now)
        has_moved = self._run_cycles(now)
        self._measures.decided()
        self._idle = 0 if has_changed or has_moved else self._idle + 1
        return True

    # --- the beginning -----------------------------------------------------------------------------------------

    def _begin(self, world: World) -> None:
        for gang in world.running:
            if gang.active is None:
                continue
            began = gang.active.dispatched_at
            attempt = gang.active.record.attempt or Attempt(1, gang.cluster, began, created_at=began)
            phase = Phase.DELETING if gang.active.is_leaving else Phase.RUNNING
            record = replace(gang.active.record, phase=phase, attempts=attempt.number, attempt=attempt)
            self._hub.hold(record)
            self._measures.hold(record.gang.demand)
            if record.uid in self._runs:
                self._note_end(record, max(began + timedelta(seconds=self._runs[record.uid]), self.now))
            elif gang.active.is_leaving:
                self._note_end(record, self.now + self._removal)
        for record in world.pending:
            self._hub.put(record)
            self._measures.arrive(record, self.now)
        self._wake = self.now if world.pending or world.running else None

    # --- what happens -------------------------------------------------------------------------------------------

    def _next(self) -> datetime | None:
        """The next moment; None if nothing is left that may happen."""
        times = [moment(each.at) for each in self._jobs[self._arrived : self._arrived + 1]]
        times += [each.at for each in self._ends[:1]]
        times += [each.at for each in self._removals[:1]]
        if not times and self._idle >= MOST_IDLE:
            return None
        waking = self._wake, self._hub.next_eligible()
        return min([*times, *(each for each in waking if each is not None)], default=None)

    def _take_ends(self, now: datetime) -> bool:
        has_ended = False
        while self._ends and self._ends[0].at <= now:
            end = heapq.heappop(self._ends)
            record = self._hub.get(end.uid)
            if record is None or record.phase in _PREEMPTED or record.attempts != end.attempt:
                continue  # it was preempted, and runs again from the beginning
            self._hub.end(end.uid)
            self._measures.leave(record)
            self._measures.end(now)
            has_ended = True
        return has_ended

    def _take_removals(self, now: datetime) -> bool:
        has_left = False
        while self._removals and self._removals[0].at <= now:
            removal = heapq.heappop(self._removals)
            record = self._hub.requeue(removal.uid, now)
            self._measures.leave(record)
            self._measures.arrive(record, now)
            has_left = True
        return has_left

    def _take_arrivals(self, now: datetime) -> bool:
        has_arrived = False
        while self._arrived < len(self._jobs) and moment(self._jobs[self._arrived].at) <= now:
            job = self._jobs[self._arrived]
            record = job.record(self._first_position + self._arrived)
            self._arrived += 1
            if job.runs is not None:
                self._runs[record.uid] = job.runs
            self._hub.put(record)
            self._measures.arrive(record, now)
            has_arrived = True
        return has_arrived

    def _run_cycles(self, now: datetime) -> bool:
        """Run cycles until none is due; true if one of them dispatched or preempted a gang."""
        has_moved = False
        while self._hub.has_work:
            cycle = self._hub.cycle(now)
            self._note(cycle, now)
            has_moved |= bool(cycle.dispatched or cycle.leaving)
            if not cycle.is_next_due:
                break
        if not self._hub.has_work:
            self._wake = None
        elif self._hub.is_quiet:
            self._wake = self._hub.quiet_until
        else:
            self._wake = now + POLL
        return has_moved

    def _note(self, cycle: Cycle, now: datetime) -> None:
        for record in cycle.leaving:
            self._measures.preempt(record, now)
            self._orders += 1
            heapq.heappush(self._removals, _Removal(now + self._removal, self._orders, record.uid))
        for record in cycle.dispatched:
            self._measures.start(record, now)
            if record.uid in self._runs:
                self._note_end(record, now + timedelta(seconds=self._runs[record.uid]))

    def _note_end(self, record: Record, at: datetime) -> None:
        self._orders += 1
        heapq.heappush(self._ends, _End(at, self._orders, record.uid, record.attempts))
