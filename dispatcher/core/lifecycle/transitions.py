"""The life of an AppWrapper as a table: every change of phase, and its cause in history.

`docs/lifecycle.md` is generated from it. `core.lifecycle.first_changes` and `core.lifecycle.record_change` make all
changes, and none that the table lacks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from dispatcher.core.model.records.record import Phase


class Cause(StrEnum):
    """Why a record changed, as history spells it."""

    SUBMITTED = "submitted"
    SUBMITTED_SUSPENDED = "submitted-suspended"
    REJECTED = "rejected"
    ADOPTED = "adopted"
    FOUND_COMPLETED = "found-completed"
    FOUND_FAILED = "found-failed"
    BLOCKED = "blocked"
    NOT_EVALUATED = "not-evaluated"
    BLOCKED_AT_HEAD = "blocked-at-head"
    AWAITING_APPROVAL = "awaiting-approval"
    APPROVED = "approved"
    WARNED = "warned"
    REPRIORITISED = "reprioritised"
    REDIRECTED = "redirected"
    MOVED = "moved"
    NOTIFICATIONS_CHANGED = "notifications-changed"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    DISPATCHED = "dispatched"
    PROVISIONING = "provisioning"
    PROVISIONED = "provisioned"
    PROVISIONING_FAILED = "provisioning-failed"
    PROVISIONING_REFUSED = "provisioning-refused"
    CREATED = "created"
    PODS_RUNNING = "pods-running"
    UNHEALTHY = "unhealthy"
    RECOVERED = "recovered"
    GREW = "grew"
    SHRANK = "shrank"
    GRANTED = "granted"
    GROWTH_WAITS = "growth-waits"
    SURPLUS_PREEMPTED = "surplus-preempted"
    GROWTH_TAKEN_BACK = "growth-taken-back"
    ITEMS_DONE = "items-done"
    SOME_COMPLETED = "some-completed"
    COMPLETED = "completed"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    PREEMPTING = "preempting"
    RUN_FAILED = "run-failed"
    CREATION_REFUSED = "creation-refused"
    CREATION_POSTPONED = "creation-postponed"
    WITHDRAWN = "withdrawn"
    REMOVED = "removed"
    ABANDONED = "abandoned"
    LOST = "lost"
    DELETED = "deleted"
    RELEASED = "released"
    EXPIRED = "expired"
    FOUND_ENDED = "found-ended"
    FOUND_RUNNING = "found-running"


class Transition(Struct, frozen=True):
    """One row of the table; `source` is None for an AppWrapper without a record."""

    source: Phase | None
    cause: Cause
    target: Phase
    meaning: str


_QUEUED, _SUSPENDED, _SUSPENDING = Phase.QUEUED, Phase.SUSPENDED, Phase.SUSPENDING
_DISPATCHING, _DISPATCHED, _RUNNING = Phase.DISPATCHING, Phase.DISPATCHED, Phase.RUNNING
_HOLD, _COMPLETED, _REQUEUEING = Phase.RUNNING_HOLD_COMPLETION, Phase.COMPLETED, Phase.REQUEUEING
_FAILING, _FAILED, _DELETING, _DELETED = Phase.FAILING, Phase.FAILED, Phase.DELETING, Phase.DELETED
_GOING_ON: Final = (_DISPATCHING, _DISPATCHED, _RUNNING, _HOLD, _REQUEUEING, _SUSPENDING)
"""Phases that a restored database may have although a later attempt exists."""
_AFTER_A_RESTORE: Final = "the database was restored"


def _from_active(cause: Cause, target: Phase | None, meaning: str) -> tuple[Transition, ...]:
    """The rows of a cause for each active phase; with `target` None the phase stays."""
    return tuple(
        Transition(source, cause, target or source, meaning) for source in (_DISPATCHED, _RUNNING, _HOLD)
    )


_OTHER_NOTIFICATIONS: Final = "an annotation chooses other notifications"

TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(None, Cause.SUBMITTED, _QUEUED, "a valid AppWrapper was seen for the first time"),
    Transition(None, Cause.SUBMITTED_SUSPENDED, _SUSPENDED, "seen for the first time, suspended by its user"),
    Transition(None, Cause.REJECTED, _FAILED, "its spec can never be dispatched"),
    Transition(None, Cause.ADOPTED, _DISPATCHING, "its objects exist, but it had no record"),
    Transition(None, Cause.FOUND_COMPLETED, _COMPLETED, "its status says so, but it had no record"),
    Transition(None, Cause.FOUND_FAILED, _FAILED, "its status says so, but it had no record"),
    Transition(_QUEUED, Cause.BLOCKED, _QUEUED, "a cycle evaluated it and it does not fit"),
    Transition(_QUEUED, Cause.NOT_EVALUATED, _QUEUED, "StrictFIFO: the cycle stopped at an earlier gang"),
    Transition(
        _QUEUED,
        Cause.BLOCKED_AT_HEAD,
        _QUEUED,
        "now at the head, and it does not fit: its starvation bound begins",
    ),
    Transition(_QUEUED, Cause.PREEMPTING, _QUEUED, "gangs are preempted for it: it waits for their capacity"),
    Transition(
        _QUEUED, Cause.AWAITING_APPROVAL, _QUEUED, "an approval is missing: it takes part in no cycle"
    ),
    Transition(_QUEUED, Cause.APPROVED, _QUEUED, "it has all approvals: it goes by its age"),
    Transition(
        _QUEUED, Cause.WARNED, _QUEUED, "its wrapped objects have fields that their kinds do not have"
    ),
    Transition(_QUEUED, Cause.REPRIORITISED, _QUEUED, "the user changed its priority"),
    Transition(_QUEUED, Cause.REDIRECTED, _QUEUED, "the user changed its cluster requirements"),
    Transition(_QUEUED, Cause.MOVED, _QUEUED, "a label, or a new tree of MCAD's, names another queue"),
    Transition(_QUEUED, Cause.NOTIFICATIONS_CHANGED, _QUEUED, _OTHER_NOTIFICATIONS),
    Transition(_QUEUED, Cause.SUSPENDED, _SUSPENDED, "the user suspended it"),
    Transition(_QUEUED, Cause.DISPATCHED, _DISPATCHING, "the gang fits: committed to a cluster"),
    Transition(_QUEUED, Cause.DELETED, _DELETED, "deleted while it had no objects"),
    Transition(_SUSPENDED, Cause.REPRIORITISED, _SUSPENDED, "the user changed its priority"),
    Transition(_SUSPENDED, Cause.REDIRECTED, _SUSPENDED, "the user changed its cluster requirements"),
    Transition(_SUSPENDED, Cause.MOVED, _SUSPENDED, "a label, or a new tree of MCAD's, names another queue"),
    Transition(_SUSPENDED, Cause.NOTIFICATIONS_CHANGED, _SUSPENDED, _OTHER_NOTIFICATIONS),
    Transition(_SUSPENDED, Cause.RESUMED, _QUEUED, "the user resumed it: queued by the age that it had"),
    Transition(_SUSPENDED, Cause.DELETED, _DELETED, "deleted while it had no objects"),
    Transition(
        _DISPATCHING,
        Cause.PROVISIONING,
        _DISPATCHING,
        "its capacity is requested: what the class says is noted",
    ),
    Transition(_DISPATCHING, Cause.PROVISIONED, _DISPATCHING, "the requested capacity is there"),
    Transition(
        _DISPATCHING,
        Cause.PROVISIONING_FAILED,
        _REQUEUEING,
        "the requested capacity does not come: tried again",
    ),
    Transition(
        _DISPATCHING,
        Cause.PROVISIONING_REFUSED,
        _FAILING,
        "the requested capacity does not come, after all retries",
    ),
    Transition(
        _DISPATCHING,
        Cause.PREEMPTED,
        _REQUEUEING,
        "it is preempted for another gang while it awaits capacity",
    ),
    Transition(_DISPATCHING, Cause.EVICTED, _REQUEUEING, "its queue is drained while it awaits capacity"),
    Transition(_DISPATCHING, Cause.NOTIFICATIONS_CHANGED, _DISPATCHING, _OTHER_NOTIFICATIONS),
    Transition(_DISPATCHING, Cause.CREATED, _DISPATCHED, "every wrapped object was created"),
    Transition(_DISPATCHING, Cause.CREATION_REFUSED, _FAILING, "an object can never be created"),
    Transition(_DISPATCHING, Cause.CREATION_POSTPONED, _REQUEUEING, "an object cannot be created now"),
    Transition(
        _DISPATCHING, Cause.WITHDRAWN, _QUEUED, "its cluster did not answer, and nothing was requested yet"
    ),
    Transition(_DISPATCHING, Cause.SUSPENDED, _SUSPENDING, "suspended while being created"),
    Transition(_DISPATCHING, Cause.DELETED, _DELETING, "deleted while being created"),
    Transition(_DISPATCHED, Cause.PODS_RUNNING, _RUNNING, "as many pods run as the gang needs"),
    *_from_active(Cause.UNHEALTHY, None, "it has a health issue; its lifecycle policy applies"),
    *_from_active(Cause.RECOVERED, None, "its health issue is over"),
    *(
        row
        for source in (_DISPATCHING, _REQUEUEING, _SUSPENDING, _FAILING, _DELETING)
        for row in (
            Transition(
                source, Cause.UNHEALTHY, source, "its cluster does not answer; the phase goes on once it does"
            ),
            Transition(source, Cause.RECOVERED, source, "its cluster answers again"),
        )
    ),
    *_from_active(Cause.NOTIFICATIONS_CHANGED, None, _OTHER_NOTIFICATIONS),
    *_from_active(Cause.GREW, None, "its pods hold more than before, and more than its demand"),
    *_from_active(
        Cause.SHRANK, None, "its pods hold less than before; it is charged for its demand at least"
    ),
    *_from_active(Cause.GRANTED, None, "it may grow: it is charged for more pods before they start"),
    *_from_active(
        Cause.GROWTH_WAITS, None, "more of its pods wait for a grant, for another reason, or not any more"
    ),
    *_from_active(
        Cause.SURPLUS_PREEMPTED, None, "surplus pods give way to another gang: it goes on without them"
    ),
    *_from_active(
        Cause.GROWTH_TAKEN_BACK,
        None,
        "no nodes of the trusted pools came for granted pods, which are deleted",
    ),
    *_from_active(Cause.ITEMS_DONE, None, "all objects that end are done; its pods are checked next"),
    *_from_active(Cause.SOME_COMPLETED, _HOLD, "some of its wrapped objects are done"),
    *_from_active(Cause.COMPLETED, _COMPLETED, "all objects that end are done, and no pod lives"),
    *_from_active(Cause.EVICTED, _REQUEUEING, "health, a drain or a deadline ended the attempt"),
    *_from_active(Cause.PREEMPTED, _REQUEUEING, "it is preempted for another gang"),
    *_from_active(Cause.RUN_FAILED, _FAILING, "it failed, ran too long, or was evicted too often"),
    *_from_active(Cause.SUSPENDED, _SUSPENDING, "suspended after its dispatch"),
    *_from_active(Cause.DELETED, _DELETING, "deleted after its dispatch"),
    Transition(_REQUEUEING, Cause.REMOVED, _QUEUED, "its objects are confirmed gone"),
    Transition(_REQUEUEING, Cause.DELETED, _DELETING, "deleted while being removed"),
    Transition(_SUSPENDING, Cause.REMOVED, _SUSPENDED, "its objects are confirmed gone"),
    Transition(_SUSPENDING, Cause.DELETED, _DELETING, "deleted while being removed"),
    Transition(_FAILING, Cause.REMOVED, _FAILED, "the objects that took capacity are confirmed gone"),
    Transition(_FAILING, Cause.DELETED, _DELETING, "deleted while being removed"),
    Transition(_FAILED, Cause.EXPIRED, _FAILED, "the objects kept for their logs were removed"),
    Transition(_FAILED, Cause.DELETED, _DELETED, "deleted after it failed"),
    Transition(_COMPLETED, Cause.EXPIRED, _COMPLETED, "the objects kept for their logs were removed"),
    Transition(_COMPLETED, Cause.DELETED, _DELETED, "deleted after it completed"),
    *(
        Transition(
            source, Cause.ABANDONED, _QUEUED, "its cluster was lost: queued again; it may still run there"
        )
        for source in (_DISPATCHING, _DISPATCHED, _RUNNING, _HOLD, _REQUEUEING)
    ),
    Transition(_SUSPENDING, Cause.ABANDONED, _SUSPENDED, "its cluster was lost: removal not confirmed"),
    Transition(_DELETING, Cause.ABANDONED, _DELETED, "its cluster was lost: removal not confirmed"),
    *(
        Transition(source, Cause.LOST, _FAILED, "its cluster was lost, and it is not queued again")
        for source in (_DISPATCHING, _DISPATCHED, _RUNNING, _HOLD, _FAILING)
    ),
    Transition(_DELETING, Cause.RELEASED, _DELETED, "its objects and pods are confirmed gone"),
    *(
        Transition(source, Cause.FOUND_ENDED, _QUEUED, f"{_AFTER_A_RESTORE}, and this attempt had ended")
        for source in _GOING_ON
    ),
    *(
        Transition(
            source, Cause.FOUND_RUNNING, _DISPATCHING, f"{_AFTER_A_RESTORE}, and a later attempt exists"
        )
        for source in (_QUEUED, _SUSPENDED)
    ),
    *(
        Transition(source, cause, target, f"{_AFTER_A_RESTORE}, and its status says so")
        for source in (_QUEUED, _SUSPENDED, *_GOING_ON)
        for cause, target in ((Cause.FOUND_COMPLETED, _COMPLETED), (Cause.FOUND_FAILED, _FAILED))
    ),
)

TARGETS: Final = {(row.source, row.cause): row.target for row in TRANSITIONS}
"""The next phase by the phase (None for an AppWrapper without a record) and the cause."""
