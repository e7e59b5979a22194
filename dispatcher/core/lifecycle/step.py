"""What is observed of one AppWrapper in one reconcile, and the step that follows: argument and result of `decide`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.notifications import Choices
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.growth import GatedPod
from dispatcher.core.model.records.record import Change, Pending, Record


class Loss(Struct, frozen=True):
    """An unreachable cluster: from `due` on, the operator's `policy` counts for its gangs.

    A cluster that `is_undeclared` has no MemberCluster any more.
    """

    policy: OnClusterLost
    due: datetime
    message: str
    is_undeclared: bool = False


class ObservedState(Struct, frozen=True):
    """Everything observed of one AppWrapper in one reconcile.

    `wanted` is false once it is gone, or on its way out, at the API server. `asked` is what its spec asks for now
    of what may change; None if that is not known. `objects` and `policy` count only once it was dispatched, and while
    its cluster is not `unreachable`, which says why in a sentence. `draining` says why the cluster is being drained.
    """

    record: Record | None
    wanted: bool
    now: datetime
    asked: MutableSpec | None = None
    policy: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    objects: ObservedObjects = field(default_factory=ObservedObjects)
    unreachable: str = ""
    draining: str = ""
    loss: Loss | None = None
    is_finalizing: bool = False
    """True while an AppWrapper without a record is being deleted and bears the dispatcher's finalizer."""
    queues: tuple[str, ...] = ()
    """The queues that its labels name now; empty if they are not known."""
    request: ObjectState | None = None
    """The state of its ProvisioningRequest; None while no watch has shown one."""
    bind_within: timedelta | None = None
    """The time from the creation of a gang on trust in which its pods must have nodes; None without trust, and once the
    gang has run."""
    growth_bind_within: timedelta | None = None
    """The time from a grant on trust in which the pods must have nodes; None without such a grant."""
    awaited_pools: frozenset[str] = frozenset()
    """The pools whose nodes a gang, or a growth, on trust still waits for."""
    request_is_absent: bool = False
    """True if a complete list lacks its ProvisioningRequest."""
    awaits: Pending | None = None
    """The pending reason of a queued gang that lacks approvals now; None if it has all."""
    awaits_its_own: bool = False
    """True if a queued gang lacks an approval that only its author's annotation names."""
    growth_is_awaited: bool = False
    """True while a gang waits for growth of this one that no pod uses."""
    unknown_class: str = ""
    """A sentence that the priority class which its labels name does not exist; empty if there is no need for one."""
    cut: str = ""
    """A sentence about what the ceiling of its namespace cuts from the priority asked for; empty if nothing."""
    notifications: Choices | None = None
    """The notifications that its annotation, else that of its namespace, chooses now; None if that is not known."""
    chosen_at: datetime | None = None
    """When this leader last committed a change that only chooses other notifications; None if that is long ago."""


class Act(StrEnum):
    """What the reconciler does about one AppWrapper where a step needs more than a commit."""

    NOOP = "noop"
    """Nothing, until something changes."""
    TAKE_IN = "take-in"
    """Read a new AppWrapper, and queue or reject it."""
    DELETE = "delete"
    """Commit that the AppWrapper was deleted."""
    FOLLOW_APPROVALS = "follow-approvals"
    """Commit which approvals it lacks now."""
    REQUEST_CAPACITY = "request-capacity"
    """Create its ProvisioningRequest, then commit that it exists."""
    REQUEST_ELSEWHERE = "request-elsewhere"
    """Commit that the requested capacity does not come."""
    CREATE = "create"
    """Create its wrapped objects, then commit what came of it."""
    NOTE_HEALTH_ISSUE = "note-health-issue"
    """Commit its health issue."""
    ADMIT_PODS = "admit-pods"
    """Remove the dispatcher's scheduling gate from pods that it holds capacity for."""
    TAKE_BACK_GROWTH = "take-back-growth"
    """Commit that granted pods are given up, because their nodes did not come."""
    DELETE_PODS = "delete-pods"
    """Delete the surplus pods that it gives up."""
    COMPLETE = "complete"
    """Commit that it is complete, once no live pod of it is confirmed."""
    REQUEUE = "requeue"
    """Evict it, once its health issue is confirmed."""
    FAIL = "fail"
    """Commit that it failed, once that is confirmed."""
    REMOVE = "remove"
    """Delete what the attempt created, and commit once that is confirmed gone."""
    CONFIRM_GONE = "confirm-gone"
    """Commit the release once objects and pods are confirmed gone."""
    EXPIRE = "expire"
    """Delete the objects kept after its end, and commit once they are gone."""
    REMOVE_FINALIZER = "remove-finalizer"
    """Let the API server delete the AppWrapper: no cluster has objects of it."""


class Do(Struct, frozen=True):
    """The next step is an act, with its arguments.

    `reason` and `message` are the cause, `detail` an addition that MCAD's message does not have. `done` are the items
    known to be done; if the gang leaves its cluster, the items that the next attempt does not repeat. `pods` are those
    to admit. `until` is the time of the next look without an event, None for never. `since` is when a health issue
    began, None for now. An end `is_in_doubt` if it is due only unless objects that nobody has read ask for fewer pods.
    """

    act: Act
    reason: str = ""
    message: str = ""
    detail: str = ""
    done: frozenset[int] = frozenset()
    pods: tuple[GatedPod, ...] = ()
    until: datetime | None = None
    since: datetime | None = None
    is_in_doubt: bool = False


class Commit(Struct, frozen=True):
    """The next step is this change: nothing is asked and nothing is done before it is committed.

    A change that `follows_user` is what its user asks for: users may ask in a loop, so it waits for its turn.
    """

    change: Change
    wakes_scheduler: bool = False
    follows_user: bool = False

    @property
    def cause(self) -> Cause:
        """The cause of the change."""
        return Cause(self.change.events[-1].cause)


Decision = Commit | Do

NOOP: Final = Do(Act.NOOP)
