"""What an oracle makes of plain facts first: attempts, when each AppWrapper came into a state, what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import HOLDING, Phase
from dispatcher.core.model.resources import Resources
from tests.builders import attempt_of
from tests.postgres.history.facts import Fact, Life

ENDS = (Phase.COMPLETED, Phase.FAILED, Phase.DELETED)
REQUEUED = ("evicted", "postponed", "withdrawn", "lost", "missed")
CAME_TO_NOTHING = (*REQUEUED, "preempted")


@dataclass(frozen=True)
class Try:
    """One attempt, as the facts tell of it."""

    number: int
    cluster: str
    decided: datetime
    queues: tuple[str, ...]
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    outcome: str = ""
    why: str = ""
    preempted_by: str = ""
    grown: tuple[tuple[datetime, Resources], ...] = ()

    @property
    def queue(self) -> str:
        """The queue that it was charged in first, wherever its AppWrapper was moved since."""
        return self.queues[0]

    def held(self, now: datetime) -> timedelta:
        return (self.ended or now) - self.decided

    def ran(self, now: datetime) -> timedelta:
        return (self.ended or now) - self.started if self.started else timedelta()


def tries(life: Life) -> list[Try]:
    """From the dispatch until nothing is held; what was found over was held for no time at all."""
    made: list[Try] = []
    for fact in life.facts:
        if fact.source is None and fact.attempt and fact.phase in ENDS:
            reason = fact.reason if fact.phase is Phase.FAILED else ""
            outcome = fact.phase.lower()
            made.append(
                Try(
                    fact.attempt,
                    life_cluster(life),
                    fact.at,
                    fact.queues,
                    ended=fact.at,
                    outcome=outcome,
                    why=reason,
                )
            )
        elif fact.cause in (Cause.DISPATCHED, Cause.ADOPTED, Cause.FOUND_RUNNING):
            made.append(Try(fact.attempt, fact.cluster, fact.at, fact.queues))
        elif fact.cause is Cause.CREATED:
            made[-1] = replace(made[-1], created=fact.at)
        elif fact.cause is Cause.PODS_RUNNING:
            made[-1] = replace(made[-1], started=fact.at)
        elif fact.cause in (Cause.GREW, Cause.SHRANK):
            made[-1] = replace(made[-1], grown=(*made[-1].grown, (fact.at, fact.grown)))
        elif fact.cause is Cause.PREEMPTED:
            made[-1] = replace(made[-1], preempted_by=fact.preempted_by)
        elif fact.source in HOLDING and fact.phase not in HOLDING:
            outcome, why = _end(fact, life)
            made[-1] = replace(made[-1], ended=fact.at, outcome=outcome, why=why)
    return made


def life_cluster(life: Life) -> str:
    return attempt_of(life.record).cluster


def _end(fact: Fact, life: Life) -> tuple[str, str]:
    """How an attempt ended, and why if it came to nothing."""
    match fact.cause, fact.phase:
        case ((Cause.COMPLETED | Cause.FOUND_COMPLETED), _):
            return "completed", ""
        case Cause.FOUND_FAILED, _:
            return "failed", fact.reason
        case Cause.FOUND_ENDED, _:
            return "missed", ""
        case Cause.RELEASED, _:
            return "deleted", ""
        case Cause.WITHDRAWN, _:
            return "withdrawn", "CreationPostponed"
        case Cause.ABANDONED, Phase.QUEUED:
            return "lost", "ClusterLost"
        case ((Cause.ABANDONED | Cause.LOST), _):
            return "lost", fact.reason or (fact.pending.reason if fact.pending else "")
        case Cause.REMOVED, Phase.FAILED:
            return "failed", fact.reason
        case Cause.REMOVED, Phase.SUSPENDED:
            return "suspended", ""
        case _:
            back = next(
                each for each in reversed(life.facts) if each.at < fact.at and each.phase != each.source
            )
            if back.cause in (Cause.EVICTED, Cause.PREEMPTED):
                return str(back.cause), fact.reason
            return "postponed", fact.reason or "CreationPostponed"


def seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def amounts(life: Life) -> tuple[Decimal, Decimal, Decimal]:
    """Cores, GiB and GPUs of the demand."""
    return in_units(life.record.gang.demand)


def in_units(held: Resources) -> tuple[Decimal, Decimal, Decimal]:
    """Cores, GiB and GPUs."""
    gpus = held["nvidia.com/gpu"] + held["gpu.intel.com/i915"]
    return Decimal(held["cpu"]) / 1000, Decimal(held["memory"]) / 2**30, Decimal(gpus)


def charges(life: Life, each: Try, now: datetime) -> list[tuple[Resources, datetime, datetime]]:
    """What an attempt held and from when to when: its demand, and at times more."""
    end = each.ended or now
    ends = [*(at for at, _ in each.grown[1:]), end]
    more = (
        [(held, at, until) for (at, held), until in zip(each.grown, ends, strict=True)] if each.grown else []
    )
    return [(life.record.gang.demand, each.decided, end), *more]


def held_hours(life: Life, each: Try, now: datetime) -> list[float]:
    """Hours of cores, GiB and GPUs that an attempt held."""
    parts = [(in_units(held), until - since) for held, since, until in charges(life, each, now)]
    return [sum(hours(units[index], [length]) for units, length in parts) for index in range(3)]


def hours(amount: Decimal, lengths: Iterable[timedelta]) -> float:
    return sum((float(amount) * length.total_seconds() / 3600 for length in lengths), start=0.0)


def user(life: Life) -> str:
    return life.record.user or life.record.namespace


def submitted(life: Life) -> datetime:
    return min(life.record.created_at, life.facts[0].at)


def eligible(life: Life) -> datetime | None:
    if life.facts[0].phase is Phase.QUEUED:
        return submitted(life)
    return next((fact.at for fact in life.facts if fact.phase is Phase.QUEUED), None)


def ended(life: Life) -> Fact | None:
    return next((fact for fact in life.facts if fact.phase in ENDS), None)


def first(times: Iterable[datetime | None]) -> datetime | None:
    return min((each for each in times if each is not None), default=None)


def stays(life: Life) -> list[tuple[Fact, datetime | None]]:
    """Each coming into a phase but Deleted, and when it left it."""
    moves = [fact for fact in life.facts if fact.source != fact.phase]
    left: list[datetime | None] = [fact.at for fact in moves[1:]]
    stays = zip(moves, [*left, None], strict=True)
    return [(fact, end) for fact, end in stays if fact.phase is not Phase.DELETED]
