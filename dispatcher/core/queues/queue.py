"""A queue as its operators declare it: quota, sharing, preemption and who may use it.

A `Queue` is the spec of a DispatchQueue as a value. Queues form trees (`forest`), and only the leaves take gangs.
Amounts are in base units. `None` for an inherited setting means that the nearest queue above decides, and at the root
the dispatcher's own setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final

from msgspec import Struct, field

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.selector import EVERYTHING, Selector

MOST_RESOURCES: Final = 64
"""Resources with a quota in one queue."""


class QueueingStrategy(StrEnum):
    """The decision of a cycle after a gang that does not fit: go on or stop, in Kueue's words."""

    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


class Sharing(StrEnum):
    """How the queues of one tree share what others leave idle."""

    PRIORITY = "Priority"
    """Owners first, then priority and age: Kueue's classic preemption, MCAD's quota trees."""
    DOMINANT_SHARE = "DominantShare"
    """The queue that borrows the smallest share first: Kueue's fair sharing."""
    DIVISION = "Division"
    """Fair shares are divided from the root down: KAI."""


class Order(StrEnum):
    """The order of the gangs of one leaf."""

    PRIORITY = "Priority"
    USAGE = "Usage"
    """The namespace with the lower recent use first, then by priority."""


class Elastic(StrEnum):
    """Whether running gangs of a queue grow before or after the gangs that wait in it."""

    FIRST = "First"
    """Growth is granted before each cycle."""
    LAST = "Last"
    """Growth is granted after each cycle, and waits for the gangs that were queued before it."""


class WithinQueue(StrEnum):
    """The gangs of its own queue that a gang may preempt."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


class Reclaim(StrEnum):
    """The gangs of other queues of the tree that a gang may preempt."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class StopPolicy(StrEnum):
    """Whether a queue and all below it dispatch."""

    NONE = "None"
    HOLD = "Hold"
    """Nothing new is dispatched."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """Nothing new is dispatched, and running gangs are preempted."""


class Access(StrEnum):
    """Which namespaces a queue serves that has no `namespaceSelector` on its way to the root."""

    OPEN = "open"
    """All of them: any label of an AppWrapper may name it."""
    SELECTED = "selected"
    """Only namespaces whose own label names it: an operator writes that label."""


class Quota(Struct, frozen=True):
    """The quota of one resource.

    `borrowing_limit` is how much beyond `nominal` the queue may use; None means no limit. `lending_limit` is how much
    of its unused nominal quota others may use; None means all.
    """

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class WhileBorrowing(Struct, frozen=True):
    """A gang that borrows may preempt gangs of other queues, of at most this priority; None means of any lower one."""

    max_priority: int | None = None


class Preemption(Struct, frozen=True):
    """Whom the gangs of a leaf may preempt."""

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim: Reclaim = Reclaim.NEVER
    while_borrowing: WhileBorrowing | None = None


NO_PREEMPTION: Final = Preemption()


class Queue(Struct, frozen=True):
    """The declaration of one queue.

    `parent` is None for a root. `priority` is that of the queue among its siblings. `max_preemptions` counts within 24
    hours, 0 means no bound. A gang with a priority of `preemptible_below` or more is never preempted and never borrows.
    `approvals` are those that its gangs await beside their own. `provisioning` is the class from which their capacity
    is requested, in clusters that have it. `elastic` is None if it is inherited; at the root it is `Last`.
    `expected_runtime` is that of gangs whose authors state no duration: estimates of starts use it. A
    `namespace_selector` of None selects nothing by itself, and `EVERYTHING` every namespace.
    """

    name: str
    parent: str | None = None
    resources: Mapping[str, Quota] = field(default_factory=dict)
    weight: Fraction = Fraction(1)
    priority: int = 0
    sharing: Sharing | None = None
    strategy: QueueingStrategy | None = None
    starvation_bound: timedelta | None = None
    order: Order = Order.PRIORITY
    preemption: Preemption = NO_PREEMPTION
    min_runtime: timedelta | None = None
    max_preemptions: int | None = None
    preemptible_below: int | None = None
    cluster_selector: Selector = EVERYTHING
    namespace_selector: Selector | None = None
    stop_policy: StopPolicy = StopPolicy.NONE
    approvals: tuple[str, ...] | None = None
    provisioning: ProvisioningClass | None = None
    elastic: Elastic | None = None
    expected_runtime: timedelta | None = None
