"""A job of a trace: a gang with its arrival and its run time, on virtual time.

Virtual time begins at `SOME_TIME`. A job becomes a record only when it arrives, because a record is ten times as large.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil
from typing import Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME

LONGEST: Final = 10**10
"""Seconds of one run, and from the beginning to the last arrival: three centuries."""


class Job(Struct, frozen=True):
    """A gang that arrives `at` so many seconds after the beginning, and runs for `runs` seconds.

    `runs` is None for a gang that never ends. `expected` and `limit` are the seconds that its user states, 0 if none.
    `line` is its line in the file of the trace, 0 in a document.
    """

    name: str
    at: float
    runs: float | None
    gang: Gang
    leaves: tuple[str, ...] = (DEFAULT_QUEUE,)
    priority: int = 0
    requirements: ClusterRequirements = ANYWHERE
    namespace: str = DEFAULT_NAMESPACE
    slope: float = 0.0
    never_preempts: bool = False
    expected: int = 0
    limit: int = 0
    line: int = 0

    @classmethod
    def of(cls, record: Record, at: float, runs: float | None) -> Self:
        """The job that a gang of a document is."""
        return cls(
            name=record.name,
            at=at,
            runs=runs,
            gang=record.gang,
            leaves=record.leaves,
            priority=record.priority,
            requirements=record.requirements,
            namespace=record.namespace,
            slope=record.priority_slope,
            never_preempts=record.pods_never_preempt,
        )

    def record(self, position: int) -> Record:
        """The record of the gang at its arrival, which is at this position in the order of arrival."""
        created = moment(self.at)
        return Record(
            uid=self.name,
            group="",
            namespace=self.namespace,
            name=self.name,
            created_at=created,
            phase=Phase.QUEUED,
            phase_since=created,
            enqueue_seq=position,
            queue=self.leaves[0],
            more_queues=self.leaves[1:],
            priority=self.priority,
            priority_slope=self.slope,
            gang=self.gang,
            requirements=self.requirements,
            expected_seconds=self.expected,
            limit_seconds=self.limit,
            pods_never_preempt=self.never_preempts,
        )

    def sooner(self, factor: float) -> Job:
        """The job at its arrival if so many times as many gangs arrive in the same time."""
        return replace(self, at=self.at / factor)


def moment(at: float) -> datetime:
    """The virtual time so many seconds after the beginning."""
    return SOME_TIME + timedelta(seconds=at)


class Devices(NamedTuple):
    """How a trace that states a number of devices becomes gangs: `resource` in pods of at most `per_node`."""

    resource: str
    per_node: int
    unit: int = 1
    """Base units of one device: 1000 for a cpu."""

    def gang(self, number: int) -> Gang:
        """One pod of so many devices if a node has as many; else the fewest whole nodes that have them."""
        count = 1 if number <= self.per_node else ceil(number / self.per_node)
        each = number if count == 1 else self.per_node
        pods = PodSet(count, Resources({self.resource: each * self.unit}))
        return Gang(pods.total, count, (pods,))
