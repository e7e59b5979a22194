"""One AppWrapper as the queue believes it to be: the value that is committed, remembered and projected.

A `Record` is the whole row of an AppWrapper, its current attempt included. It is never changed, only
replaced by `core.lifecycle.record_change`; `version` grows by one with every committed change and guards each write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ComponentsCondition, ConditionType
from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.requirements import ANYWHERE, ClusterRequirements, Rejection


class Phase(StrEnum):
    """Where an AppWrapper is in its life; exactly one at a time."""

    QUEUED = "Queued"
    """It waits; nothing of it exists in any cluster."""
    SUSPENDED = "Suspended"
    """Its user holds it back; it does not stand in the queue."""
    DISPATCHING = "Dispatching"
    """Committed to a cluster, its capacity is taken; its objects are being created."""
    DISPATCHED = "Dispatched"
    """Every wrapped object was created."""
    RUNNING = "Running"
    """The gang's pods run."""
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"
    """Some of its wrapped objects are done; its capacity is held until all is over."""
    COMPLETED = "Completed"
    """All is done and no pod lives; nothing is held, and it never runs again."""
    REQUEUEING = "Requeueing"
    """It could not be created or did not run; what exists is being removed, then it is queued again."""
    SUSPENDING = "Suspending"
    """Its user suspended it; what exists is being removed, then it is suspended."""
    FAILING = "Failing"
    """It failed; what takes capacity is being removed, then it has failed."""
    FAILED = "Failed"
    """It will not run again; nothing is held."""
    DELETING = "Deleting"
    """The AppWrapper was deleted; its capacity is held until its pods are confirmed gone."""
    DELETED = "Deleted"
    """Nothing is left but history."""


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
"""Phases in which everything was created, and is watched over."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A fact with its times: `since` is the last change of `status`, `updated` the last change of anything."""

    type: ConditionType | ComponentsCondition
    status: bool
    since: datetime
    updated: datetime
    reason: str = ""
    message: str = ""


RESERVATION: Final = "; a backfill reservation "
"""Begins what a pending reason says of a backfill reservation; no name of a cluster, resource or label contains it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Why an AppWrapper waits: a code for machines, a sentence for people, and what it is about.

    Where there are member clusters, `clusters` says why of each, by name, and the rest is about the one that comes
    nearest. A change of `clusters` alone is no news.
    """

    reason: str
    message: str
    resource: str = ""
    cluster: str = ""
    clusters: tuple[Rejection, ...] = ()

    @property
    def mcad_message(self) -> str:
        """How MCAD says it in the condition Backoff: a hub with members has words of its own."""
        return words.NO_CLUSTER_HAS_ENOUGH if self.clusters else words.INSUFFICIENT_RESOURCES

    @property
    def reservation(self) -> str:
        """What the message says of a backfill reservation; empty if nothing."""
        return self.message.partition(RESERVATION)[2]


@dataclass(frozen=True, slots=True)
class NotedIssue:
    """What is wrong with a gang that was dispatched, and since when; it is acted upon if it lasts."""

    reason: str
    message: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A wrapped object in a cluster, as one attempt wants or has it; `uid` is empty until created.

    `done` is remembered once it was seen: the object itself may be cleaned up before its gang is done.
    """

    item: int
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One dispatch of one AppWrapper to one cluster; it holds capacity until `ended_at`."""

    number: int
    cluster: str
    decided_at: datetime
    objects: tuple[ObjectRef, ...] = ()
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""


Shape = tuple[Gang, ClusterRequirements]


@dataclass(frozen=True, slots=True)
class Record:
    """The row of one AppWrapper. `enqueue_seq` is 0 until the store has given it one.

    `user` and `groups` are who submitted it; empty if nobody vouches for that.

    `reason` and `message` say why it failed or went back. `requeuings` counts how often it was taken from its
    cluster, `retries` how often of these for what MCAD did not look at; `requeuing_seconds` is how long it may be
    short of pods before the next time (0 if nobody asked). `expected_seconds` is how long its user expects it to
    run. `kept_until` is when what is left of it after its end will be removed; None if nothing is left. `last_event_at`
    is the time of its last event; None if an older release wrote the record.
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
    kept_until: datetime | None = None
    eligible_at: datetime | None = None
    blocked_since: datetime | None = None
    attempts: int = 0
    attempt: Attempt | None = None
    last_event_at: datetime | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, for people; never an identity (two groups, and a successor, share it)."""
        return f"{self.namespace}/{self.name}"

    @property
    def shape(self) -> Shape:
        """All that decides where it fits: in one pass, equal shapes are refused alike."""
        return self.gang, self.requirements

    @property
    def holds_capacity(self) -> bool:
        """True while the demand is charged to the attempt's cluster."""
        return self.phase in HOLDING

    def condition(self, type_: ConditionType) -> Condition | None:
        """The condition of that type, if it ever was set."""
        return next((entry for entry in self.conditions if entry.type == type_), None)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of history: what happened to an AppWrapper, written in the transaction that made it so."""

    at: datetime
    cause: str
    from_phase: Phase | None
    to_phase: Phase
    reason: str = ""
    message: str = ""
    cluster: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A step from one record to the next, with the history it makes.

    `before` is None for an AppWrapper that was never seen. The store commits it only if the row still has
    `before.version`; `after.version` is already `before.version + 1`.
    """

    before: Record | None
    after: Record
    events: tuple[Event, ...]
    spec: bytes | None = None
