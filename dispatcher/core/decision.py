"""What is to be done about one AppWrapper next: a value for everything that can be seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from dispatcher.core.capacity import PodCounts
from dispatcher.core.record import Phase, Record


@dataclass(frozen=True, slots=True)
class Observation:
    """One AppWrapper as seen now.

    `wanted` is false once it is gone, or on its way out, at the API server. `asked` is the priority and slope
    its spec asks for now; None if the spec is as it was submitted.
    """

    record: Record | None
    wanted: bool
    pods: PodCounts
    asked: tuple[int, float] | None = None


class Step(StrEnum):
    """What the reconciler does about one AppWrapper."""

    REST = "rest"
    """Nothing, until something changes."""
    ADMIT = "admit"
    """Read it, and queue or reject it."""
    FORGET = "forget"
    """It was deleted: commit that."""
    REPRIORITISE = "reprioritise"
    """Commit the priority it asks for now."""
    CREATE = "create"
    """Create its wrapped objects, then commit what came of it."""
    MARK_RUNNING = "mark-running"
    """Commit that its pods run."""
    REMOVE = "remove"
    """Delete what the attempt created, and commit once that is confirmed gone."""
    CONFIRM_GONE = "confirm-gone"
    """Commit the release once objects and pods are confirmed gone."""


def decide(seen: Observation) -> Step:
    """The next step for one AppWrapper; repeating it is always safe."""
    record = seen.record
    if record is None:
        return Step.ADMIT if seen.wanted else Step.REST
    match record.phase:
        case Phase.DELETED:
            return Step.REST
        case Phase.DELETING:
            return Step.CONFIRM_GONE
        case _ if not seen.wanted:
            return Step.FORGET
        case Phase.QUEUED:
            moved = seen.asked not in (None, (record.priority, record.priority_slope))
            return Step.REPRIORITISE if moved else Step.REST
        case Phase.FAILED | Phase.RUNNING:
            return Step.REST
        case Phase.DISPATCHING:
            return Step.CREATE
        case Phase.DISPATCHED:
            return Step.MARK_RUNNING if pods_run(record, seen.pods) else Step.REST
        case Phase.REQUEUEING | Phase.FAILING:
            return Step.REMOVE
        case _:
            assert_never(record.phase)


def pods_run(record: Record, pods: PodCounts) -> bool:
    """True if as many pods run, or have succeeded, as the gang needs; a gang without pods always runs."""
    return pods.running + pods.succeeded >= record.gang.pods


def retry_pause(attempts: int) -> timedelta:
    """How long to wait before a creation that was postponed is tried again: 5 s, doubling, at most 5 minutes."""
    return min(timedelta(minutes=5), timedelta(seconds=5 * 2.0 ** min(max(0, attempts - 1), 10)))
