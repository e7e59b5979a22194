"""Condition types, reasons, messages and states, as MCAD wrote them, to the letter.

Clients parse these strings (`FrontOfQueue.` does end in a dot), so they are constants with a sentence
each and are set by `core.status.conditions` only. Source: MCAD's queue job controller.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ConditionType(StrEnum):
    """What can be true of an AppWrapper; also the values of `status.queuejobstate`."""

    INIT = "Init"
    """The dispatcher has seen the AppWrapper."""
    QUEUEING = "Queueing"
    """It is in the queue."""
    HEAD_OF_LINE = "HeadOfLine"
    """A cycle has evaluated it."""
    BACKOFF = "Backoff"
    """It was evaluated and must wait."""
    DISPATCHED = "Dispatched"
    """Every wrapped object was created."""
    RUNNING = "Running"
    """Its gang's pods run."""
    FAILED = "Failed"
    """It will not run; the message says why."""
    SUSPENDED = "Suspended"
    """Its user holds it back; nothing of it exists. Ours: MCAD could not suspend."""
    PREEMPT_CANDIDATE = "PreemptCandidate"
    """It did not run as it should, and is taken from its cluster."""
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"
    """Some of its wrapped objects are done, and not all is over."""
    COMPLETED = "Completed"
    """Its wrapped objects are done and none of its pods lives."""


class ComponentsCondition(StrEnum):
    """What v1beta2 calls what can be true; shown on AppWrappers with components, beside the others."""

    QUOTA_RESERVED = "QuotaReserved"
    """Its capacity is taken."""
    RESOURCES_DEPLOYED = "ResourcesDeployed"
    """Its components exist."""
    PODS_READY = "PodsReady"
    """As many pods run as the gang needs."""
    UNHEALTHY = "Unhealthy"
    """Something is wrong with it."""
    DELETING_RESOURCES = "DeletingResources"
    """Its components are being removed."""


class ComponentsPhase(StrEnum):
    """v1beta2's `status.phase`."""

    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    RUNNING = "Running"
    RESETTING = "Resetting"
    SUSPENDING = "Suspending"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class State(StrEnum):
    """MCAD's coarse word in `status.state`; clients accept no other."""

    PENDING = "Pending"
    RUNNING = "Running"
    DELETED = "Deleted"
    FAILED = "Failed"
    COMPLETED = "Completed"
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"


AWAITING_HEAD_OF_LINE: Final = "AwaitingHeadOfLine"
"""Reason of Queueing."""
FRONT_OF_QUEUE: Final = "FrontOfQueue."
"""Reason of HeadOfLine."""
APPWRAPPER_RUNNABLE: Final = "AppWrapperRunnable"
"""Reason of Dispatched."""
APPWRAPPER_NOT_RUNNABLE: Final = "AppWrapperNotRunnable."
"""Reason of Backoff."""
PODS_RUNNING: Final = "PodsRunning"
"""Reason of Running."""
ITEM_CREATION_FAILURE: Final = "ItemCreationFailure."
"""Reason of Failed, when a wrapped object cannot be created."""

PREEMPTION_TRIGGERED: Final = "PreemptionTriggered"
"""Reason of Backoff, when it was taken from its cluster."""
MIN_PODS_NOT_RUNNING: Final = "MinPodsNotRunning"
"""Reason of PreemptCandidate: fewer than `minAvailable` pods run or have succeeded."""
PODS_FAILED_SCHEDULING: Final = "PodsFailedScheduling"
"""Reason of PreemptCandidate: enough pods run, but others cannot be scheduled."""
REASONS_OF_MCAD: Final = frozenset({MIN_PODS_NOT_RUNNING, PODS_FAILED_SCHEDULING})
"""Troubles that an author asked to have looked after, by `minAvailable`."""
CLUSTER_DRAINING: Final = "ClusterDraining"
"""Reason of PreemptCandidate: whoever runs its member cluster is emptying it; it counts as no requeuing."""
CLUSTER_LOST: Final = "ClusterLost"
"""Why an attempt was given up: its member cluster was unreachable for longer than its operator would wait."""
CLUSTER_UNREACHABLE: Final = "ClusterUnreachable"
"""What is wrong with one whose member cluster does not answer: nobody knows how it is."""
DRIFTED: Final = "Drifted"
"""What is wrong with one of whose wrapped objects somebody has changed a field: told, and nothing is done about it."""
DISPATCH_DEADLINE_EXCEEDED: Final = "DispatchDeadlineExceeded"
"""Reason of PreemptCandidate and Failed: it ran for longer than `dispatchDuration.limit`."""
SOME_ITEMS_COMPLETED: Final = "SomeItemsCompleted"
"""Reason of RunningHoldCompletion."""
PODS_COMPLETED: Final = "PodsCompleted"
"""Reason of Completed."""

FAILED_COMPONENT: Final = "FailedComponent"
"""Reason of Failed: a wrapped object says that it failed. This and those below are v1beta2's words."""
MISSING_COMPONENT: Final = "MissingComponent"
"""Reason of Failed: somebody deleted a wrapped object."""
FOUND_FAILED_PODS: Final = "FoundFailedPods"
"""Reason of PreemptCandidate: pods failed or were evicted."""
INSUFFICIENT_PODS_READY: Final = "InsufficientPodsReady"
"""Reason of PreemptCandidate: its pods do not appear, do not start, or were lost and do not come back."""
SUFFICIENT_PODS_READY: Final = "SufficientPodsReady"
"""Reason of PodsReady."""
COMPONENT_CREATED: Final = "ComponentCreatedSuccessfully"
"""Reason of a component's ResourcesDeployed."""
PRIORITY_CAPPED: Final = "PriorityCapped"
"""Reason of a change of priority that the ceiling of the namespace has cut."""
NAMESPACE_QUEUE_FULL: Final = "NamespaceQueueFull"
"""Reason of waiting outside the queue."""
SUSPENDED_BY_USER: Final = "SuspendedByUser"
"""Reason of Suspended."""

INSUFFICIENT_RESOURCES: Final = "Insufficient resources to dispatch AppWrapper."
"""Message of Backoff on a single cluster."""
NO_CLUSTER_HAS_ENOUGH: Final = "Cannot find a cluster with enough resources to dispatch AppWrapper."
"""Message of Backoff where there are member clusters."""

MIN_PODS_MESSAGE: Final = (
    "Insufficient number of Running and Completed pods, minimum={minimum}, running={running}, "
    "completed={completed}."
)
PODS_FAILED_SCHEDULING_MESSAGE: Final = "Pods failed scheduling failed={failed}, running={running}."
DEADLINE_MESSAGE: Final = "Dispatch deadline exceeded. allowed to run for {seconds} seconds"
MISSING_MESSAGE: Final = "Only found {found} deployed components, but was expecting {expected}"

SENDER_DISPATCHED: Final = "before manageQueueJob - afterEtcdDispatching"
SENDER_BACKOFF: Final = "before [backoff] - Rejoining"
SENDER_QUEUEING: Final = "before ScheduleNext - setQueueing"
SENDER_HEAD_OF_LINE: Final = "before ScheduleNext - setHOL"
SENDER_FAILED: Final = "before manageQueueJob - creationFailure"
SENDER_PREEMPTED: Final = "before PreemptQueueJobs - CanRun: false"
SENDER_HOLD_COMPLETION: Final = "before [UpdateQueueJobs] setRunningHoldCompletion"
SENDER_COMPLETED: Final = "before [UpdateQueueJobs] setCompleted"
