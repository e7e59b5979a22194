"""The record of one AppWrapper: the value that is committed, cached and projected to the status.

A `Record` is the row of an AppWrapper with its current attempt. It is immutable, and
replaced by `core.lifecycle.record_change`; `version` grows by one with every committed change and guards each write.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.gangs.growth import GrowthRequest, GrowthTrust, PodsByTemplate, Shrinking
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.pending_reasons import (
    AWAITING_APPROVAL,
    IN_NO_QUEUE,
    LACKS_QUOTA,
    TOO_LARGE,
)
from dispatcher.core.model.records.preemption import MOST_REMEMBERED
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements, Rejection
from dispatcher.core.model.resources import NOTHING, PODS, Resources, sum_of
from dispatcher.values import shown_without


class Phase(StrEnum):
    """The phase of an AppWrapper; it has exactly one at a time."""

    QUEUED = "Queued"
    """It is pending; no cluster has anything of it."""
    SUSPENDED = "Suspended"
    """Its user suspended it; it is not in the queue."""
    DISPATCHING = "Dispatching"
    """It is committed to a cluster, which is charged with its demand; its objects are being created."""
    DISPATCHED = "Dispatched"
    """Every wrapped object was created."""
    RUNNING = "Running"
    """The gang's pods run."""
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"
    """Some of its wrapped objects are done; its cluster is charged until all are."""
    COMPLETED = "Completed"
    """All is done and no pod lives; its capacity is released, and it never runs again."""
    REQUEUEING = "Requeueing"
    """It could not be created or was evicted; its objects are being removed, then it is queued again."""
    SUSPENDING = "Suspending"
    """Its user suspended it; its objects are being removed, then it is suspended."""
    FAILING = "Failing"
    """It failed; the objects that take capacity are being removed, then it is Failed."""
    FAILED = "Failed"
    """It failed and never runs again; its capacity is released."""
    DELETING = "Deleting"
    """The AppWrapper was deleted; its cluster is charged until its pods are confirmed gone."""
    DELETED = "Deleted"
    """Only its history is left."""


HOLDING: frozenset[Phase] = frozenset(
    {
        Phase.DISPATCHING,
        Phase.DISPATCHED,
        Phase.RUNNING,
        Phase.RUNNING_HOLD_COMPLETION,
        Phase.REQUEUEING,
        Phase.SUSPENDING,
        Phase.FAILING,
        Phase.DELETING,
    }
)
"""Phases with a live attempt: its demand is charged to the attempt's cluster."""


ACTIVE: frozenset[Phase] = frozenset({Phase.DISPATCHED, Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION})
"""Phases in which every object was created and the lifecycle policy counts."""


SET_ASIDE: Final = -1
"""The version of a record in place of a row that cannot be read. No row has it, so no change of it is ever written."""


class Condition(Struct, frozen=True):
    """A condition: `since` is the last change of `status`, `updated` that of `status`, `reason` or `message`.

    `failure` is how a pod of the latest attempt failed; only the condition Dispatched may have one.
    """

    type: ConditionType
    status: bool
    since: datetime
    updated: datetime
    reason: str = ""
    message: str = ""
    failure: PodFailure | None = None


RESERVATION: Final = "; a backfill reservation "
"""Begins the text about a backfill reservation; no name of a cluster, resource or label contains it."""


class Borrower(Struct, frozen=True):
    """A queue that borrows, and how much, as an exact quantity."""

    queue: str
    amount: str


class QuotaSummary(Struct, frozen=True):
    """The account of one queue in one resource; amounts are exact quantities.

    `available` and `most` are empty if nothing limits the queue; `available` is negative if more than the quota is
    used. `borrowers` are other queues of the tree that borrow, the largest amounts first.
    """

    nominal: str
    used: str
    available: str = ""
    most: str = ""
    borrowers: tuple[Borrower, ...] = ()


class Pending(Struct, frozen=True):
    """The pending reason of an AppWrapper: a code, a sentence, and the resource and cluster concerned.

    With member clusters, `clusters` has the rejection of each, by name, and the other fields are about the cluster
    nearest to a fit. With declared queues, `queue` is the leaf of the gang that the reason is about, or its first one;
    `quota` is the account of that leaf in `resource` if quota is short. `preempting` are the keys of gangs that were
    preempted for this one. `approvals` are those that are missing. A change of `clusters`, `quota` or `preempting`
    alone is not committed.
    """

    reason: str
    message: str
    resource: str = ""
    cluster: str = ""
    clusters: tuple[Rejection, ...] = ()
    queue: str = ""
    quota: QuotaSummary | None = None
    preempting: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()

    @property
    def is_in_no_queue(self) -> bool:
        """True if the queue that the gang names does not take it."""
        return self.reason in IN_NO_QUEUE

    @property
    def has_position(self) -> bool:
        """False if the gang is in no queue, or would not go if nothing else ran."""
        return self.reason not in TOO_LARGE and not self.is_in_no_queue

    @property
    def mcad_reason(self) -> str:
        """MCAD's reason for the condition Backoff."""
        return words.QUOTA_LIMIT_EXCEEDED if self.reason in LACKS_QUOTA else words.APPWRAPPER_NOT_RUNNABLE

    @property
    def mcad_message(self) -> str:
        """MCAD's message for the condition Backoff; a hub with members has another one."""
        if self.reason in LACKS_QUOTA:
            return words.INSUFFICIENT_QUOTA
        return words.NO_CLUSTER_HAS_ENOUGH if self.clusters else words.INSUFFICIENT_RESOURCES

    @property
    def reservation(self) -> str:
        """The text about the backfill reservation; empty if there is none."""
        return self.message.partition(RESERVATION)[2]


class NotedIssue(Struct, frozen=True):
    """The health issue of a dispatched gang, and since when it lasts."""

    reason: str
    message: str
    since: datetime


class ObjectRef(Struct, frozen=True):
    """A wrapped object of one attempt in a cluster; `uid` is empty until it is created.

    `done` stays true once it was observed: the object may be deleted before its gang is done.
    """

    item: int
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    done: bool = False

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.kind} {self.namespace}/{self.name}"


class Growth(Struct, frozen=True, omit_defaults=True):
    """A change of an attempt's growth: from `at` on, it holds `amounts` beyond its demand.

    The amounts are positive. They are empty if it holds no more than the demand. With `is_taken` surplus pods were
    taken from it for another gang. `pods` are those that request the amounts, where they have the dispatcher's gate
    from their templates; None if they have not, or are not known. With `trust` some of them wait for potential nodes.

    `count` is the number of pods beyond those of the gang that its queues are charged with: pods that were granted, and
    pods on nodes. It is not the sum of `pods`, which its user can make: an admitted pod without a node is one of them.
    """

    at: datetime
    amounts: Resources
    is_taken: bool = False
    pods: PodsByTemplate | None = None
    trust: GrowthTrust | None = None
    count: int = 0

    @property
    def charge(self) -> Resources:
        """The amounts that its queues are charged with: those that it holds, and the number of pods."""
        return self.amounts + {PODS: self.count} if self.count else self.amounts


MOST_GROWTHS_KEPT: Final = 2 * MOST_REMEMBERED
"""The growths of an attempt in memory, the latest ones.

That is so many takings of surplus, each with the grant before it. The database has at most 400 growths of an attempt:
the latest 200 as they were, and averages of those before.
"""


class Attempt(Struct, frozen=True):
    """One dispatch of one AppWrapper to one cluster, which is charged until `ended_at`.

    `assignment` is where its pods had places at the dispatch. `preempted_by` is the uid of the AppWrapper that it was
    preempted for; empty if it was not. `growth` are its latest growths, the latest last; it is charged for the last
    one beside its demand. `provisioning` is its request for capacity, if it needed one. `growth_request` is the growth
    that waits for a grant, while there is any; only an active gang has one. It is `shrinking` while it gives up surplus
    pods for another gang.
    """

    number: int
    cluster: str
    decided_at: datetime
    objects: tuple[ObjectRef, ...] = ()
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    assignment: Assignment = ASSIGNED_NOWHERE
    preempted_by: str = ""
    growth: tuple[Growth, ...] = ()
    provisioning: Provisioning | None = None
    growth_request: GrowthRequest | None = None
    shrinking: Shrinking | None = None

    @property
    def awaits_capacity(self) -> bool:
        """True until the capacity that it requested is there: it takes none of its cluster until then."""
        return self.provisioning is not None and self.provisioning.provisioned_at is None

    @property
    def began_at(self) -> datetime:
        """When its objects were to be created: at the dispatch, or once the requested capacity was there."""
        there = self.provisioning.provisioned_at if self.provisioning else None
        return there or self.decided_at

    @property
    def grown(self) -> Resources:
        """The amounts that it is charged for beyond its demand."""
        return self.growth[-1].amounts if self.growth else NOTHING

    @property
    def growth_charge(self) -> Resources:
        """The amounts that its queues are charged with beyond those of the gang."""
        return self.growth[-1].charge if self.growth else NOTHING

    @property
    def growth_trust(self) -> GrowthTrust | None:
        """The potential nodes that its granted pods wait for; None if they wait for none."""
        return self.growth[-1].trust if self.growth else None


Shape = tuple[Gang, ClusterRequirements]


class Record(Struct, frozen=True):
    """The row of one AppWrapper. `enqueue_seq` is 0 until the store assigns it.

    `user` and `groups` are the submitter, empty if no policy vouches for it. `reason` and `message` say why the gang
    failed or was requeued. `requeuings` counts evictions, `retries` those of them for reasons that MCAD does not have.
    `requeuing_seconds` is how long the next attempt may be short of pods (0 without a limit by its author).
    `expected_seconds` is the run time that its user expects, `limit_seconds` the longest one that it allows; both count
    from the dispatch, and are 0 if its user states none. `kept_until` is when the objects of an ended gang will be
    removed; None if there are none. `last_event_at` is None in a record that no change made.
    `provisioning_failures` counts how often in a row all clusters failed to provide the capacity that it requested.
    `aged_from` is the time from which its age counts, if that is not its creation. `age_stopped_at` is since when its
    age stands still, because its author keeps it back (`core.lifecycle.ageing`). `pods_never_preempt` is true if one of
    its pods has the preemption policy `Never`, `class_never_preempts` if the priority class that its labels name has.
    `notifications` is what its annotation, else that of its namespace, chooses (`api.notifications`).

    `queue` is the leaf that it is charged in; an AppWrapper in several trees of queues has `more_queues`.
    `is_preempting` is true from the time when gangs were preempted for it until it is dispatched or waits for something
    else. `preempted_at` are the times of its own last preemptions by queues, the latest last.
    """

    uid: str
    group: str
    namespace: str
    name: str
    created_at: datetime
    phase: Phase
    phase_since: datetime
    user: str = ""
    groups: tuple[str, ...] = ()
    spec_hash: str = ""
    version: int = 0
    enqueue_seq: int = 0
    queue: str = DEFAULT_QUEUE
    more_queues: tuple[str, ...] = ()
    priority: int = 0
    priority_slope: float = 0.0
    gang: Gang = field(default_factory=Gang)
    requirements: ClusterRequirements = ANYWHERE
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    pending: Pending | None = None
    unhealthy: NotedIssue | None = None
    requeuings: int = 0
    retries: int = 0
    requeuing_seconds: int = 0
    expected_seconds: int = 0
    limit_seconds: int = 0
    kept_until: datetime | None = None
    eligible_at: datetime | None = None
    blocked_since: datetime | None = None
    attempts: int = 0
    attempt: Attempt | None = None
    last_event_at: datetime | None = None
    is_preempting: bool = False
    preempted_at: tuple[datetime, ...] = ()
    provisioning_failures: int = 0
    aged_from: datetime | None = None
    age_stopped_at: datetime | None = None
    pods_never_preempt: bool = False
    class_never_preempts: bool = False
    notifications: str = ""

    @property
    def is_set_aside(self) -> bool:
        """True of a record in place of a row that cannot be read: only the capacity that it holds counts."""
        return self.version == SET_ASIDE

    @property
    def never_preempts(self) -> bool:
        """True if no gang is preempted for it, whatever its queue allows."""
        return self.pods_never_preempt or self.class_never_preempts

    @property
    def age_begins_at(self) -> datetime:
        """The time from which its age counts: gangs of equal priority go in the order of these times."""
        return self.aged_from or self.created_at

    @property
    def leaves(self) -> tuple[str, ...]:
        """Its queues, one in each tree; its turn is that of the first."""
        return self.queue, *self.more_queues

    @property
    def key(self) -> str:
        """`namespace/name`, for people; never an identity (two groups, and a successor, share it)."""
        return f"{self.namespace}/{self.name}"

    @property
    def shape(self) -> Shape:
        """The values that decide where the gang fits: a cycle refuses equal shapes alike."""
        return self.gang, self.requirements

    @property
    def holds_capacity(self) -> bool:
        """True while the demand is charged to the attempt's cluster."""
        return self.phase in HOLDING

    @property
    def grown(self) -> Resources:
        """The amounts that it holds beyond its demand; empty while it holds no capacity."""
        return self.attempt.grown if self.attempt is not None and self.holds_capacity else NOTHING

    @property
    def growth_charge(self) -> Resources:
        """The amounts that its queues are charged with beyond those of the gang; empty while it holds no capacity."""
        return self.attempt.growth_charge if self.attempt is not None and self.holds_capacity else NOTHING

    @property
    def charged_pods(self) -> int:
        """The number of pods that its queues are charged with."""
        return self.gang.charged[PODS] + self.growth_charge[PODS]

    @property
    def placed_gang(self) -> Gang:
        """The gang as its pods are made in the cluster of its attempt, where it may request less than in others."""
        return self.gang.in_cluster(self.attempt.cluster) if self.attempt is not None else self.gang

    @property
    def growth_request(self) -> GrowthRequest | None:
        """The growth that waits for a grant; None if there is none."""
        return self.attempt.growth_request if self.attempt is not None else None

    @property
    def held(self) -> Resources:
        """The amounts that it holds in the cluster of its attempt."""
        return self.placed_gang.demand + self.grown

    @property
    def allowed(self) -> Resources:
        """The amounts within which its pods are admitted: less than it holds while it gives up surplus pods."""
        shrinking = self.attempt.shrinking if self.attempt is not None else None
        return self.held if shrinking is None else self.placed_gang.demand + shrinking.growth

    @property
    def granted(self) -> PodsByTemplate | None:
        """The pods that it may have beyond its base gang; None if only the amounts count.

        They do where the templates have no gate of the dispatcher, and before any growth of a gang that declares a
        larger demand than its templates request.
        """
        attempt, gang = self.attempt, self.placed_gang
        if attempt is not None and attempt.growth:
            return attempt.growth[-1].pods
        return () if gang.demand.fits_in(sum_of(each.total for each in gang.pod_sets)) else None

    @property
    def charge(self) -> Resources:
        """The amounts that it is charged for: its demand in any cluster, or more if it holds more."""
        attempt = self.attempt
        # First what is true of nearly all gangs: each cycle asks for every one that holds capacity.
        if attempt is None or not attempt.growth:
            return self.gang.demand
        return self.gang.demand.highest(self.held)

    @property
    def quota_charge(self) -> Resources:
        """The amounts that its queues are charged with: `charge`, and the number of its pods."""
        attempt = self.attempt
        if attempt is None or not attempt.growth:
            return self.gang.charged
        return self.charge.highest({PODS: self.charged_pods})

    @property
    def has_objects(self) -> bool:
        """True while the attempt's cluster may have objects of it: it holds capacity, or its objects are kept."""
        return self.holds_capacity or self.kept_until is not None

    @property
    def awaits_approval(self) -> bool:
        """True of a queued gang without all approvals: it takes part in no cycle."""
        return self.pending is not None and self.pending.reason == AWAITING_APPROVAL

    @property
    def failure(self) -> PodFailure | None:
        """How a pod of its latest attempt failed; None if that attempt ended otherwise, or is not over."""
        dispatched = self.condition(ConditionType.DISPATCHED)
        return dispatched.failure if dispatched else None

    def condition(self, type_: ConditionType) -> Condition | None:
        """The condition of that type; None if it was never set."""
        return next((entry for entry in self.conditions if entry.type == type_), None)


@shown_without("termination_message")
class Event(Struct, frozen=True):
    """One event of history, written in the transaction that commits the change.

    `termination_message` is a text of the gang's author, which its message is without (`records.termination`).
    """

    at: datetime
    cause: str
    from_phase: Phase | None
    to_phase: Phase
    reason: str = ""
    message: str = ""
    cluster: str = ""
    attempt: int = 0
    termination_message: str = ""


class Change(Struct, frozen=True):
    """A step from one record to the next, with its events.

    `before` is None for an AppWrapper that the database does not know. The store commits a change only if the row still
    has `before.version`; `after.version` is `before.version + 1`.
    """

    before: Record | None
    after: Record
    events: tuple[Event, ...]
    spec: bytes | None = None
