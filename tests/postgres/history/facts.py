"""What happened to AppWrappers, as plain facts in the order of their commits: all that an oracle is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import Change, Pending, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources


@dataclass(frozen=True)
class Fact:
    """One step of one AppWrapper, and what was so after it."""

    at: datetime
    cause: Cause
    source: Phase | None
    phase: Phase
    attempt: int
    cluster: str
    why_now: str
    reason: str
    message: str
    pending: Pending | None
    eligible_at: datetime | None
    priority: int
    slope: float
    preempted_by: str
    queues: tuple[str, ...]
    age_begins_at: datetime
    grown: Resources = NOTHING

    @property
    def queue(self) -> str:
        return self.queues[0]


@dataclass
class Life:
    """One AppWrapper: what never changes of it, its queue as it is now, and its facts."""

    record: Record
    facts: list[Fact] = field(default_factory=list)


def note(lives: dict[str, Life], change: Change) -> None:
    """Remember a change that was committed."""
    record, (event,) = change.after, change.events
    life = lives.setdefault(record.uid, Life(record))
    life.record = replace(life.record, queue=record.queue, more_queues=record.more_queues)
    life.facts.append(
        Fact(
            at=event.at,
            cause=Cause(event.cause),
            source=event.from_phase,
            phase=event.to_phase,
            attempt=event.attempt,
            cluster=event.cluster,
            why_now=event.reason,
            reason=record.reason,
            message=record.message,
            pending=record.pending,
            eligible_at=record.eligible_at,
            priority=record.priority,
            slope=record.priority_slope,
            preempted_by=record.attempt.preempted_by if record.attempt else "",
            queues=record.leaves,
            age_begins_at=record.age_begins_at,
            grown=record.attempt.grown if record.attempt else NOTHING,
        )
    )
