"""What is to be done about one AppWrapper next: a value for everything that can be seen of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from dispatcher.api.asked import Asked
from dispatcher.core import health
from dispatcher.core.capacity import PodCounts
from dispatcher.core.completion import Progress, progress
from dispatcher.core.endings import End
from dispatcher.core.health import Remedy, Sight, Trouble
from dispatcher.core.record import ACTIVE, Phase, Record
from dispatcher.core.terms import Terms


@dataclass(frozen=True, slots=True)
class Observation:
    """One AppWrapper as seen now.

    `wanted` is false once it is gone, or on its way out, at the API server. `asked` is what its spec asks for now
    of what may change; None if that is not known. `sight` and `terms` count only once it was dispatched.
    """

    record: Record | None
    wanted: bool
    now: datetime
    asked: Asked | None = None
    terms: Terms = field(default_factory=Terms)
    sight: Sight = field(default_factory=Sight)


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
    SUSPEND = "suspend"
    """Commit that its user holds it back."""
    RESUME = "resume"
    """Commit that its user released it."""
    CREATE = "create"
    """Create its wrapped objects, then commit what came of it."""
    MARK_RUNNING = "mark-running"
    """Commit that its pods run."""
    NOTE_TROUBLE = "note-trouble"
    """Commit that something is wrong with it."""
    NOTE_RECOVERY = "note-recovery"
    """Commit that nothing is wrong with it any more."""
    NOTE_PROGRESS = "note-progress"
    """Commit that some of its wrapped objects are done."""
    NOTE_DONE = "note-done"
    """Commit which of its wrapped objects are done, before anybody asks for their pods."""
    COMPLETE = "complete"
    """Commit that it is complete, once no live pod of it is confirmed."""
    REQUEUE = "requeue"
    """Take it from its cluster, once what is wrong with it is confirmed."""
    FAIL = "fail"
    """Commit that it failed, once that is confirmed."""
    REMOVE = "remove"
    """Delete what the attempt created, and commit once that is confirmed gone."""
    CONFIRM_GONE = "confirm-gone"
    """Commit the release once objects and pods are confirmed gone."""
    EXPIRE = "expire"
    """Delete what was kept after its end, and commit once that is gone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The step, and what it needs to know.

    `reason` and `message` say why, `detail` what MCAD would not have said; `done` are the items known to be done,
    or, where it leaves its cluster, those that need not be done again; `until` is when to look again though nothing
    happens, None for never.
    """

    step: Step
    reason: str = ""
    message: str = ""
    detail: str = ""
    done: frozenset[int] = frozenset()
    until: datetime | None = None


REST: Final = Decision(Step.REST)


def decide(seen: Observation) -> Decision:
    """The next step for one AppWrapper; repeating it is always safe."""
    record = seen.record
    if record is None:
        return Decision(Step.ADMIT) if seen.wanted else REST
    if record.phase is Phase.DELETED:
        return REST
    if record.phase is Phase.DELETING:
        return Decision(Step.CONFIRM_GONE)
    if not seen.wanted:
        return Decision(Step.FORGET)
    if record.phase in ACTIVE:
        if _is_held_back(seen):
            return Decision(Step.SUSPEND, done=_finished(record, seen))
        return _watch_over(record, seen)
    return _decide_inactive(record, seen)


def _decide_inactive(record: Record, seen: Observation) -> Decision:
    match record.phase:
        case Phase.QUEUED:
            return Decision(Step.SUSPEND) if _is_held_back(seen) else _reprioritise(record, seen)
        case Phase.SUSPENDED:
            released = seen.asked is not None and not seen.asked.suspend
            return Decision(Step.RESUME) if released else _reprioritise(record, seen)
        case Phase.DISPATCHING:
            return Decision(Step.SUSPEND if _is_held_back(seen) else Step.CREATE, done=_known_done(record))
        case Phase.REQUEUEING | Phase.SUSPENDING | Phase.FAILING:
            return Decision(Step.REMOVE)
        case Phase.FAILED | Phase.COMPLETED:
            return _expire(record, seen.now)
        case (
            Phase.DISPATCHED | Phase.RUNNING | Phase.RUNNING_HOLD_COMPLETION | Phase.DELETING | Phase.DELETED
        ):
            return REST  # decided before
        case _:
            assert_never(record.phase)


def pods_run(record: Record, terms: Terms, pods: PodCounts) -> bool:
    """True if as many pods run, or have done their work, as the gang needs; a gang without pods always runs."""
    return (
        health.running(pods) + health.completed(record, terms, pods, _known_done(record)) >= record.gang.pods
    )


def retry_pause(attempts: int) -> timedelta:
    """How long to wait before a creation that was postponed is tried again: 5 s, doubling, at most 5 minutes."""
    return min(timedelta(minutes=5), timedelta(seconds=5 * 2.0 ** min(max(0, attempts - 1), 10)))


def _is_held_back(seen: Observation) -> bool:
    return seen.asked is not None and seen.asked.suspend


def _reprioritise(record: Record, seen: Observation) -> Decision:
    asked = seen.asked
    if asked is None or (asked.priority, asked.priority_slope) == (record.priority, record.priority_slope):
        return REST
    return Decision(Step.REPRIORITISE)


def _expire(record: Record, now: datetime) -> Decision:
    if record.kept_until is None:
        return REST
    return Decision(Step.EXPIRE) if now >= record.kept_until else Decision(Step.REST, until=record.kept_until)


# --- what was dispatched ---------------------------------------------------------------------------------


def _watch_over(record: Record, seen: Observation) -> Decision:
    """In this order: it runs, it failed, it is complete, it has been in trouble for too long, it makes progress."""
    pods = seen.sight.pods
    if record.phase is Phase.DISPATCHED and pods_run(record, seen.terms, pods):
        return Decision(Step.MARK_RUNNING)
    failures = sorted(health.failures(record, seen.sight.states), key=_is_curable)
    if failures:
        return _act(failures[0], record, seen)
    done = _done(record, seen)
    items = seen.terms.items
    achieved = progress(items, [index in done for index in range(len(items))])
    if achieved is Progress.ALL and not pods.live and not _has_only_begun(record, seen):
        return Decision(Step.COMPLETE if done <= _known_done(record) else Step.NOTE_DONE, done=done)
    troubles = _troubles(record, seen, achieved, done)
    for trouble in troubles:
        if trouble.due is not None and trouble.due <= seen.now:
            return _act(trouble, record, seen)
    if achieved is not Progress.NONE and _is_news(record, done):
        return Decision(Step.NOTE_PROGRESS, done=done)
    return _note(record, troubles)


def _is_news(record: Record, done: frozenset[int]) -> bool:
    """True if more is done than was noted, or if what an earlier attempt finished was not yet noted of this one."""
    return not done <= _known_done(record) or record.phase is Phase.RUNNING


def _has_only_begun(record: Record, seen: Observation) -> bool:
    """True while no pod was ever seen of one that goes on by its kind, whatever its author calls done.

    A Deployment is Progressing before it has made its first pod.
    """
    attempt, pods = record.attempt, seen.sight.pods
    if attempt is None or attempt.started_at or pods.succeeded or not seen.terms.expects_pods:
        return False
    return any(state is not None and state.end is End.OPEN for state in seen.sight.states)


def _is_curable(trouble: Trouble) -> bool:
    return trouble.remedy is Remedy.REQUEUE


def _troubles(record: Record, seen: Observation, achieved: Progress, done: frozenset[int]) -> list[Trouble]:
    """What is wrong or will be; where all is done, nothing has to run any more, unless it has only begun."""
    only_begun = achieved is Progress.ALL and _has_only_begun(record, seen)
    short = achieved is not Progress.ALL or (only_begun and not seen.sight.pods.live)
    done = frozenset() if only_begun else done
    found = [
        health.deadline(record, seen.terms),
        health.missing(record, seen.sight.absent, done),
        health.shortage(record, seen.terms, seen.sight.pods, done) if short else None,
    ]
    return [trouble for trouble in found if trouble is not None]


def _note(record: Record, troubles: list[Trouble]) -> Decision:
    """Keep the record's word about what is wrong current; rest until the next of the troubles is due."""
    for trouble in troubles:
        if trouble.due is None:
            return Decision(Step.NOTE_TROUBLE, trouble.reason, trouble.message)
    ailment = record.unhealthy
    if ailment and not any(health.is_the_same(ailment.reason, trouble.reason) for trouble in troubles):
        return Decision(Step.NOTE_RECOVERY)
    dues = [trouble.due for trouble in troubles if trouble.due is not None]
    return Decision(Step.REST, until=min(dues, default=None))


def _act(trouble: Trouble, record: Record, seen: Observation) -> Decision:
    """Take it back while that may help; a trouble that came back too often is a failure."""
    if trouble.remedy is Remedy.FAIL:
        return Decision(Step.FAIL, trouble.reason, trouble.message)
    if seen.terms.is_spent(record, trouble.reason):
        detail = f" (requeued so far: {record.requeuings})"
        return Decision(Step.FAIL, trouble.reason, trouble.message, detail)
    return Decision(Step.REQUEUE, trouble.reason, trouble.message, done=_finished(record, seen))


def _done(record: Record, seen: Observation) -> frozenset[int]:
    """The items that are done, now or as was seen before."""
    objects = record.attempt.objects if record.attempt else ()
    now_done = {
        ref.item
        for ref, state in zip(objects, seen.sight.states, strict=False)
        if ref.item < len(seen.terms.items) and seen.terms.items[ref.item].is_met_by(state)
    }
    return _known_done(record) | now_done


def _finished(record: Record, seen: Observation) -> frozenset[int]:
    """The items that are done and come to no more by their kind: the next attempt leaves them as they are.

    What its author called done while it goes on (a Deployment that is available) is needed again.
    """
    done, items = _done(record, seen), seen.terms.items
    objects = record.attempt.objects if record.attempt else ()
    return frozenset(
        ref.item
        for ref, state in zip(objects, seen.sight.states, strict=False)
        if ref.item in done and items[ref.item].ends and (state is None or state.end is End.SUCCEEDED)
    )


def _known_done(record: Record) -> frozenset[int]:
    return (
        frozenset(ref.item for ref in record.attempt.objects if ref.done) if record.attempt else frozenset()
    )
