"""The steps that have a Kubernetes Event: few, because each Event is a write to the API server.

Dispatched, Running, Completed, Failed, Requeued, Suspended, Preempted, Preempting, the first pending reason, adjusted
specs, and warnings of API servers; also a preemption that closes a circle, a gang that grows beyond the quota of its
queue, growth that is granted, growth that waits for another reason than before, surplus pods that a gang gives up, and
pods that an API server does not let the dispatcher admit or delete. Other steps are in the status and in history. A
preempted gang has its Event when its removal begins, because its pods go then, and none when its objects are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dispatcher.api.conditions import ConditionType
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import Change, Phase


class UserEvent(Struct, frozen=True):
    """Reason and message of a Kubernetes Event; `warning` is its type."""

    reason: str
    message: str
    warning: bool = False


def user_event_of(change: Change) -> UserEvent | None:
    """The Event of a change; None if it has none."""
    after = change.after
    cluster = after.attempt.cluster if after.attempt else ""
    event = change.events[-1]
    match event.cause:
        case Cause.SUBMITTED | Cause.SUBMITTED_SUSPENDED | Cause.ADOPTED if event.message:
            return UserEvent("SpecAdjusted", event.message, warning=True)
        case Cause.REPRIORITISED if event.reason:
            return UserEvent(event.reason, event.message, warning=True)
        case Cause.CREATED:
            count = len(after.attempt.objects) if after.attempt else 0
            return UserEvent("Dispatched", f"every wrapped object ({count}) was created in cluster {cluster}")
        case Cause.PODS_RUNNING:
            return UserEvent("Running", f"{_pods(after.gang.pods)} in cluster {cluster}")
        case Cause.REJECTED:
            return UserEvent("Failed", after.message, warning=True)
        case Cause.LOST:
            return UserEvent("Failed", after.message, warning=True)
        case Cause.ABANDONED if after.phase is Phase.QUEUED:
            return UserEvent("Requeued", after.message, warning=True)
        case Cause.REMOVED if after.phase is Phase.FAILED:
            return UserEvent("Failed", after.message, warning=True)
        case Cause.REMOVED | Cause.SUSPENDED if after.phase is Phase.SUSPENDED:
            return UserEvent("Suspended", "its user holds it back")
        case Cause.PREEMPTED:
            return UserEvent("Preempted", after.message, warning=True)
        case Cause.PREEMPTING:
            return UserEvent("Preempting", event.message)
        case Cause.REMOVED if after.attempt and after.attempt.outcome == "preempted":
            return None
        case Cause.REMOVED:
            return UserEvent("Requeued", after.message, warning=True)
        case Cause.COMPLETED:
            return UserEvent("Completed", f"it is done in cluster {cluster}, and none of its pods lives")
        case Cause.GRANTED:
            return UserEvent("GrowthGranted", event.message)
        case Cause.GROWTH_WAITS if after.growth_request and not _waits_as_before(change):
            return UserEvent("GrowthWaits", event.message, warning=True)
        case Cause.SURPLUS_PREEMPTED:
            return UserEvent("SurplusPreempted", event.message, warning=True)
        case Cause.GROWTH_TAKEN_BACK:
            return UserEvent("GrowthTakenBack", event.message, warning=True)
        case Cause.BLOCKED if after.pending and not _waited_before(change):
            return UserEvent("Backoff", after.pending.message)
        case _:
            return None


ABOUT_GROWTH: Final = frozenset({"GrowthGranted", "GrowthTakenBack", "GrowthWaits", "SurplusPreempted"})
"""Reasons of Events that the wrapped objects have as well: who scales a RayCluster looks there."""


def warnings_event_of(change: Change) -> UserEvent | None:
    """The Event of API servers' warnings about wrapped objects, beside that of their creation; None without news."""
    event = change.events[-1]
    if not event.message:
        return None
    match event.cause:
        case Cause.CREATED:
            return UserEvent("CreatedWithWarnings", event.message, warning=True)
        case Cause.WARNED:
            return UserEvent("UnknownFields", event.message, warning=True)
        case _:
            return None


def rest_of_growth_event_of(change: Change) -> UserEvent | None:
    """The Event of growth that waits after a grant of another part, beside that of the grant; None without news."""
    request = change.after.growth_request
    if change.events[-1].cause != Cause.GRANTED or request is None or _waits_as_before(change):
        return None
    return UserEvent("GrowthWaits", request.message, warning=True)


def grew_beyond_quota(message: str) -> UserEvent:
    """The Event of a gang that grew beyond the quota of its queue."""
    return UserEvent("GrewBeyondQuota", message, warning=True)


def pods_not_admitted(cluster: str, refusal: str) -> UserEvent:
    """The Event of a gang whose pods keep the dispatcher's scheduling gate, because an API server refuses the patch."""
    message = f"cluster {cluster} does not let the dispatcher start pods that it has granted: {refusal}"
    return UserEvent("PodsNotAdmitted", message, warning=True)


def pods_not_deleted(cluster: str, refusal: str) -> UserEvent:
    """The Event of a gang whose surplus pods stay, because an API server does not let the dispatcher delete them."""
    message = f"cluster {cluster} does not let the dispatcher delete surplus pods that give way: {refusal}"
    return UserEvent("PodsNotDeleted", message, warning=True)


MOST_IN_LOOP: Final = 10
"""Gangs that the Event of a circle of preemptions names."""


def preemption_loop(keys: Sequence[str]) -> UserEvent:
    """The Event of a gang whose preemption closes a circle of the gangs `keys`, which begins with this gang.

    Each was preempted for the next one, and the last for the first.
    """
    more = [f"{len(keys) - MOST_IN_LOOP} more"] if len(keys) > MOST_IN_LOOP else []
    circle = " → ".join([*keys[:MOST_IN_LOOP], *more, keys[0]])
    return UserEvent("PreemptionLoop", f"{_LOOP}: {circle}", warning=True)


# The advice comes first: a long message is cut at its end.
_LOOP: Final = (
    "its preemption closes a circle of gangs that were each preempted for the next within 24 h. To break it, lower the "
    "priority of one of them, or raise the nominal quota of its queue; else maxPreemptions of the queues, where it is "
    "not 0, ends it. The circle"
)


def _waits_as_before(change: Change) -> bool:
    """True if the growth of the gang waited for the same reason before."""
    before, after = (each.growth_request if each else None for each in (change.before, change.after))
    return before is not None and after is not None and before.reason == after.reason


def _waited_before(change: Change) -> bool:
    return change.before is not None and change.before.condition(ConditionType.BACKOFF) is not None


def _pods(count: int) -> str:
    return "1 pod runs" if count == 1 else f"{count} pods run"
