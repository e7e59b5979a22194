"""Condition types, reasons, messages and states, in MCAD's exact words, and approvals, which are conditions of others.

Clients parse these strings (`FrontOfQueue.` ends in a dot), so they are constants, and only `core.status.conditions`
sets them. Source: MCAD's queue job controller.

An approval is a condition that somebody who may patch the status sets True before the AppWrapper may be dispatched. An
annotation of the AppWrapper names approvals, and so does its queue. The dispatcher's own types are no approvals: it
writes them itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from dispatcher.api.names import APPROVALS
from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.text import mappings_of


class ConditionType(StrEnum):
    """Types of conditions of an AppWrapper; also the values of `status.queuejobstate`."""

    INIT = "Init"
    """The dispatcher has seen the AppWrapper."""
    QUEUEING = "Queueing"
    """The AppWrapper is in the queue."""
    HEAD_OF_LINE = "HeadOfLine"
    """A scheduling cycle has evaluated the AppWrapper."""
    BACKOFF = "Backoff"
    """The AppWrapper was evaluated and stays queued."""
    DISPATCHED = "Dispatched"
    """Every wrapped object was created."""
    RUNNING = "Running"
    """The gang's pods run."""
    FAILED = "Failed"
    """The AppWrapper will not run; the message says why."""
    SUSPENDED = "Suspended"
    """The user suspended the AppWrapper, and it has no objects. An addition: MCAD cannot suspend."""
    PREEMPT_CANDIDATE = "PreemptCandidate"
    """The gang is removed from its cluster: it has a health issue, or gives way to another gang."""
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"
    """Some wrapped objects are done, others are not."""
    COMPLETED = "Completed"
    """The wrapped objects are done and no pod is live."""
    DEMAND_DIFFERS = "DemandDiffers"
    """The declared demand differs from that of the templates. An addition, and no value of `queuejobstate`."""
    CREATED_WITH_WARNINGS = "CreatedWithWarnings"
    """The API server warned about wrapped objects. An addition, and no value of `queuejobstate`."""
    UNKNOWN_FIELDS = "UnknownFields"
    """Wrapped objects of a gang that waits have fields that their kinds do not have. An addition, as before."""
    PRIORITY_CLASS_UNKNOWN = "PriorityClassUnknown"
    """The priority class in a label does not exist. An addition, and no value of `queuejobstate`."""


class ComponentsCondition(StrEnum):
    """v1beta2's types of conditions, shown beside the others on AppWrappers with components."""

    QUOTA_RESERVED = "QuotaReserved"
    """The capacity for the gang is reserved."""
    RESOURCES_DEPLOYED = "ResourcesDeployed"
    """The components exist."""
    PODS_READY = "PodsReady"
    """As many pods run as the gang needs."""
    UNHEALTHY = "Unhealthy"
    """The gang has a health issue."""
    DELETING_RESOURCES = "DeletingResources"
    """The components are being removed."""


OUR_TYPES: Final = frozenset({*map(str, ConditionType), *map(str, ComponentsCondition)})
"""The types of conditions that the dispatcher writes; conditions of any other type belong to other clients."""


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
    """MCAD's coarse state in `status.state`; clients accept no other values."""

    PENDING = "Pending"
    RUNNING = "Running"
    DELETED = "Deleted"
    FAILED = "Failed"
    COMPLETED = "Completed"
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"


DECLARATION_DIFFERS: Final = "DeclarationDiffers"
"""Reason of DemandDiffers; the message has both amounts."""
API_SERVER_WARNED: Final = "APIServerWarned"
"""Reason of CreatedWithWarnings and UnknownFields; the message has the warnings, each with its object."""
PRIORITY_CLASS_NOT_FOUND: Final = "PriorityClassNotFound"
"""Reason of PriorityClassUnknown; the message has the name and the label."""
AWAITING_HEAD_OF_LINE: Final = "AwaitingHeadOfLine"
"""Reason of Queueing."""
FRONT_OF_QUEUE: Final = "FrontOfQueue."
"""Reason of HeadOfLine."""
APPWRAPPER_RUNNABLE: Final = "AppWrapperRunnable"
"""Reason of Dispatched."""
APPWRAPPER_NOT_RUNNABLE: Final = "AppWrapperNotRunnable."
"""Reason of Backoff."""
QUOTA_LIMIT_EXCEEDED: Final = "quota limit exceeded"
"""Reason of Backoff: the gang's queue lacks quota."""
PODS_RUNNING: Final = "PodsRunning"
"""Reason of Running."""
ITEM_CREATION_FAILURE: Final = "ItemCreationFailure."
"""Reason of Failed: a wrapped object cannot be created."""

PREEMPTION_TRIGGERED: Final = "PreemptionTriggered"
"""Reason of Backoff: the gang was removed from its cluster."""
MIN_PODS_NOT_RUNNING: Final = "MinPodsNotRunning"
"""Reason of PreemptCandidate: fewer than `minAvailable` pods run or have succeeded."""
PODS_FAILED_SCHEDULING: Final = "PodsFailedScheduling"
"""Reason of PreemptCandidate: enough pods run, but others cannot be scheduled."""
REASONS_OF_MCAD: Final = frozenset({MIN_PODS_NOT_RUNNING, PODS_FAILED_SCHEDULING})
"""Health issues that an author asks to act upon by setting `minAvailable`."""
CLUSTER_DRAINING: Final = "ClusterDraining"
"""Reason of PreemptCandidate: the member cluster is drained; it counts as no requeuing."""
PROVISIONING_FAILED: Final = "ProvisioningFailed"
"""Reason of Failed, and pending reason: no cluster provides the requested capacity."""
CAPACITY_REVOKED: Final = "CapacityRevoked"
"""Reason of PreemptCandidate: the provisioning class took the capacity back; it counts as no requeuing.

Reason of Failed: that happened too often in a row.
"""
POTENTIAL_NODES_MISSING: Final = "PotentialNodesMissing"
"""Reason of PreemptCandidate: the potential nodes that it trusted did not come; it counts as no requeuing."""
QUEUE_STOPPED: Final = "QueueStopped"
"""Reason of PreemptCandidate: its queue is stopped and drained; it counts as no requeuing."""
KIND_NOT_INSTALLED: Final = "KindNotInstalled"
"""Health issue: its cluster does not serve the kind of a wrapped object any more.

Reason of PreemptCandidate: the object is gone with its kind; it counts as no requeuing. Also a pending reason.
"""
NOT_BY_THE_GANG: Final = frozenset(
    {CLUSTER_DRAINING, CAPACITY_REVOKED, POTENTIAL_NODES_MISSING, QUEUE_STOPPED, KIND_NOT_INSTALLED}
)
"""Reasons of evictions that come from the cluster or the queue, and not from the gang: they count as no requeuing."""
CLUSTER_LOST: Final = "ClusterLost"
"""Reason for the end of an attempt: its member cluster was unreachable for longer than the operator allows."""
CLUSTER_UNREACHABLE: Final = "ClusterUnreachable"
"""Health issue: the member cluster does not answer, so the state of the gang is unknown."""
DRIFTED: Final = "Drifted"
"""Health issue: somebody changed a field of a wrapped object. It is reported, and nothing is done about it."""
OBJECT_SUSPENDED: Final = "ObjectSuspended"
"""Health issue: a wrapped object is suspended, as its AppWrapper says. Nothing is done about it."""
ADMISSION_AWAITED: Final = "AdmissionAwaited"
"""Health issue: a wrapped object is suspended until Kueue admits it.

Reason of PreemptCandidate: no object of the gang was admitted in the time that the operator allows.
"""
DISPATCH_DEADLINE_EXCEEDED: Final = "DispatchDeadlineExceeded"
"""Reason of PreemptCandidate and Failed: the gang ran for longer than `dispatchDuration.limit`."""
SOME_ITEMS_COMPLETED: Final = "SomeItemsCompleted"
"""Reason of RunningHoldCompletion."""
PODS_COMPLETED: Final = "PodsCompleted"
"""Reason of Completed."""

FAILED_COMPONENT: Final = "FailedComponent"
"""Reason of Failed: a wrapped object says that it failed. This reason and those below are v1beta2's words."""
MISSING_COMPONENT: Final = "MissingComponent"
"""Reason of Failed: somebody deleted a wrapped object."""
FOUND_FAILED_PODS: Final = "FoundFailedPods"
"""Reason of PreemptCandidate: pods failed or were evicted."""
INSUFFICIENT_PODS_READY: Final = "InsufficientPodsReady"
"""Reason of PreemptCandidate: pods do not appear, do not start, or were lost and are not replaced."""
SUFFICIENT_PODS_READY: Final = "SufficientPodsReady"
"""Reason of PodsReady."""
COMPONENT_CREATED: Final = "ComponentCreatedSuccessfully"
"""Reason of a component's ResourcesDeployed."""
PRIORITY_CAPPED: Final = "PriorityCapped"
"""Reason of a change of priority: the namespace's ceiling lowered it."""
NAMESPACE_QUEUE_FULL: Final = "NamespaceQueueFull"
"""Pending reason of an AppWrapper that is not in the queue yet."""
SUSPENDED_BY_USER: Final = "SuspendedByUser"
"""Reason of Suspended."""

INSUFFICIENT_RESOURCES: Final = "Insufficient resources to dispatch AppWrapper."
"""Message of Backoff on a single cluster."""
NO_CLUSTER_HAS_ENOUGH: Final = "Cannot find a cluster with enough resources to dispatch AppWrapper."
"""Message of Backoff where there are member clusters."""
INSUFFICIENT_QUOTA: Final = "Insufficient quota and/or resources to dispatch AppWrapper."
"""Message of Backoff if the queue lacks quota."""

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


MOST_APPROVALS: Final = 8
"""Approvals that an AppWrapper, or a queue, may name."""
LONGEST_APPROVAL: Final = 316
"""Characters of a condition type. Source: k8s.io/apimachinery, metav1.Condition."""
LONGEST_ANNOTATION: Final = MOST_APPROVALS * (LONGEST_APPROVAL + 2)

APPROVALS_PATH: Final = joined("metadata.annotations", APPROVALS)
"""The place of the annotation in an AppWrapper."""

CONDITION_TYPE: Final = (
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
)
"""The syntax of a condition type. Source: k8s.io/apimachinery, metav1.Condition."""

_CONDITION_TYPE: Final = re.compile(CONDITION_TYPE)


def approval_problem(name: str) -> str:
    """Why a text cannot name an approval, as the rest of a sentence about it; empty if it can."""
    if name in OUR_TYPES:
        return f"names {name}, a condition that the dispatcher writes itself"
    if len(name) > LONGEST_APPROVAL:
        return f"names an approval of {len(name)} characters; at most {LONGEST_APPROVAL} are allowed"
    if not _CONDITION_TYPE.fullmatch(name):
        return f"names {quoted(name)}, which is no type of a condition"
    return ""


def approvals_in(annotation: str) -> tuple[str, ...]:
    """The approvals that an annotation names, with commas between, each once. Raises `SpecError`."""
    if not annotation.strip():
        return ()
    if len(annotation) > LONGEST_ANNOTATION:
        raise SpecError(
            APPROVALS_PATH, f"has more than {LONGEST_ANNOTATION} characters", "Name fewer approvals"
        )
    found = tuple(dict.fromkeys(word.strip() for word in annotation.split(",")))
    for problem in filter(None, map(approval_problem, found)):
        raise SpecError(
            APPROVALS_PATH,
            problem,
            'Write names such as "budget" or "example.com/budget", with commas between',
        )
    if len(found) > MOST_APPROVALS:
        raise SpecError(APPROVALS_PATH, f"names {len(found)} approvals", f"Name at most {MOST_APPROVALS}")
    return found


def granted_in(status: Mapping[str, Any]) -> frozenset[str]:
    """The types of the conditions in a status that are True; of several of one type the last counts. Never raises."""
    entries = mappings_of(status.get("conditions"))
    states = {each.get("type"): each.get("status") for each in entries if isinstance(each.get("type"), str)}
    return frozenset(type_ for type_, state in states.items() if type_ is not None and state == "True")
