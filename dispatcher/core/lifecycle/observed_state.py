"""What is observed of one AppWrapper in one reconcile: the argument of `decision.decide`."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct, field

from dispatcher.api.clusterpolicies import OnClusterLost
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.record import Pending, Record


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
    """True while the AppWrapper is being deleted and bears the dispatcher's finalizer."""
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
