"""Every pending reason, in one table: what it says about the gang, so that nobody lists reasons a second time.

A scheduling cycle gives each gang that waits a reason. The reason decides where the gang is filed, what its user is
told, and whether its age counts. A group of reasons is a field of `Reason`, and `codes` finds the reasons of a group.
docs/troubleshooting.md has a section for each reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dispatcher.api import conditions as words

NO_REASON: Final = ""
"""No cycle has decided about the gang yet."""

# Of room, on one cluster or on the nearest.
INSUFFICIENT: Final = "InsufficientResources"
"""The gang would fit the empty cluster, but does not fit its free capacity."""
RESERVED: Final = "ReservedForAnother"
"""The gang would fit the free capacity, but that is reserved for a gang past the starvation bound."""
LARGER_THAN_CLUSTER: Final = "LargerThanCluster"
"""The gang would not fit the cluster even after all pods that end there have ended."""
NOT_DECIDED: Final = "NotDecided"
"""The search for places for all pods ended at its bound, even in the cluster after all pods that end have ended."""
NEEDS_POTENTIAL: Final = "NeedsPotentialNodes"
"""The gang would fit only with potential nodes, of pools that are not trusted now or for which none is dispatched."""
REQUIRED_PODS_MISSING: Final = "RequiredPodsMissing"
"""Its pods require other pods beside them by affinity, and the cluster has none (`scheduling.capacity.pods_there`)."""
DEVICE_CLAIMS_NOT_COUNTED: Final = "DeviceClaimsNotCounted"
"""Its pods get devices by resource claims: they are no resource of nodes, so nothing says whether the gang fits."""
NO_CLUSTER: Final = "NoCluster"
"""No cluster has reported its capacity yet."""
AWAITING_RELEASE: Final = "AwaitingRelease"
"""The gang fits once gangs that are leaving have released their capacity."""

# Of queues.
NOT_EVALUATED: Final = "AwaitingHeadOfLine"
"""StrictFIFO: the cycle stopped at an earlier gang."""
INSUFFICIENT_QUOTA: Final = "InsufficientQuota"
"""The gang has no quota now."""
OVER_NOMINAL_QUOTA: Final = "OverNominalQuota"
"""The gang may not be preempted, and such gangs use all nominal quota."""
PREEMPTED_TOO_OFTEN: Final = "PreemptedTooOften"
"""The gang was preempted so often within 24 hours that it does not borrow any more."""
LARGER_THAN_QUOTA: Final = "LargerThanQuota"
"""The gang would have no quota even if nobody used any."""
QUEUE_NOT_FOUND: Final = "QueueNotFound"
"""There is no valid queue of that name."""
QUEUE_NOT_LEAF: Final = "QueueNotLeaf"
"""The queue has children, and only leaves take gangs."""
NAMESPACE_NOT_ALLOWED: Final = "NamespaceNotAllowed"
"""The queue, or one above it, does not serve the AppWrapper's namespace."""
QUEUE_STOPPED: Final = words.QUEUE_STOPPED
"""The queue, or one above it, is held."""

# Of clusters that do not take the gang, or none.
NOT_SELECTED: Final = "ClusterNotSelected"
"""The AppWrapper's own selector does not match the cluster's labels."""
NOT_CONNECTED: Final = "ClusterNotConnected"
"""The cluster's kubeconfig is missing, or the dispatcher may not use it."""
NOT_REPORTED: Final = "ClusterNotReported"
"""The cluster has not reported its nodes and pods yet."""
UNREACHABLE: Final = words.CLUSTER_UNREACHABLE
"""The cluster's API server does not answer."""
CREDENTIALS_REFUSED: Final = "ClusterCredentialsRefused"
"""The cluster's API server answers, but does not accept the dispatcher's credentials."""
ANSWERS_TOO_LARGE: Final = "ClusterAnswersTooLarge"
"""The cluster's API server sends answers beyond all bounds: too large, too many, or compressed without request."""
ANOTHER_CLUSTER: Final = "ClusterIsAnother"
"""The kubeconfig leads to another cluster than before."""
CORDONED: Final = "ClusterCordoned"
"""An operator closed the cluster to new gangs; running gangs stay."""
DRAINING: Final = words.CLUSTER_DRAINING
"""An operator closed the cluster and its gangs are evicted."""
KIND_MISSING: Final = words.KIND_NOT_INSTALLED
"""The cluster does not serve the kind of a wrapped object."""
NAMESPACE_MISSING: Final = "NamespaceMissing"
"""The cluster does not have the AppWrapper's namespace, and it may not be created there."""
NAMESPACE_NOT_ENABLED: Final = "NamespaceNotEnabled"
"""The AppWrapper's namespace in the cluster has not opted in to gangs."""
MEMBERS_UNKNOWN: Final = "MembersUnknown"
"""The MemberClusters cannot be listed, so the clusters are unknown."""
REMOVED: Final = "ClusterRemoved"
"""The cluster's MemberCluster was removed, and its absence has not lasted yet: it may be put back."""
NAME_TAKEN: Final = "NameTaken"
"""A foreign object in the cluster has the name of a wrapped object."""
CLASS_MISSING: Final = "ProvisioningClassMissing"
"""The cluster provides capacity, but not of the class that the gang's queue names."""
PROVISIONING_FAILED: Final = words.PROVISIONING_FAILED
"""The cluster could not provide the capacity that was requested there; another one is asked first."""

# Of the gang itself, or of what happened to it.
AWAITING_APPROVAL: Final = "AwaitingApproval"
"""It lacks approvals: until it has them, it takes part in no cycle."""
AWAITING_CAPACITY: Final = "AwaitingProvisioning"
"""It waits for the answer to its ProvisioningRequest."""
CREATION_POSTPONED: Final = "CreationPostponed"
"""An object of it could not be created for now; the others were removed again."""
INTERNAL_ERROR: Final = "InternalError"
"""An exception ended the decision about the gang; it blocks no other gang, and is decided again later."""


class Reason(Struct, frozen=True):
    """One pending reason: its `code`, and what is true of each gang that waits for it."""

    code: str
    lacks_quota: bool = False
    """Its queue lacks quota, and the account of the queue is told with it; MCAD has words of its own for that."""
    waits_for_quota: bool = False
    """Quota that becomes free would let it go, whatever room there is: no room gives a gang quota."""
    more_quota_may_help: bool = False
    """More quota of one queue may let it go: with `RESERVED` what is kept is quota, or behind a head that lacks it."""
    waits_for_room: bool = False
    """It waits for room on a cluster, or no cycle has said yet that it waits for something else."""
    room_suffices: bool = False
    """It would go if a cluster had more room. Its queue does not hold it back, and not only more nodes help it."""
    ends_with_others: bool = False
    """It ends when other gangs end. So the first such gang is the head of its queue; no other gang blocks any."""
    is_too_large: bool = False
    """It would not go if nothing else ran; it has no position in its queue."""
    is_in_no_queue: bool = False
    """It names a queue that does not take it, and counts nowhere in that queue: any user can name any queue."""
    is_refused_by_queue: bool = False
    """Its queue does not take it: only another declaration of the queue helps."""
    is_undecided: bool = False
    """It does not say whether the gang goes where it is: its filters may not have been asked.

    Its author may bring that about, by another gang before it in a strict queue.
    """
    needs_another_place: bool = False
    """It goes with more capacity nowhere: by its author's choice of a queue and of clusters.

    An operator may end this, too: by a queue, a kind or a larger node that was not there.
    """
    blocks_none: bool = False
    """A decision about it may cost a search, and it waits whatever runs: a strict queue may pass it."""
    takes_turns: bool = False
    """A gang that lacks quota has such reasons by turns: the change from one to the other is no news."""
    is_in_no_cycle: bool = False
    """It takes part in no cycle, and no position in its queue follows."""
    stops_age: bool = False
    """It could not run, however much capacity there was, and its author may end that without changing it."""


REASONS: Final = {
    each.code: each
    for each in (
        Reason(NO_REASON, waits_for_room=True, room_suffices=True),
        Reason(INSUFFICIENT, waits_for_room=True, room_suffices=True, ends_with_others=True),
        Reason(
            RESERVED,
            waits_for_room=True,
            room_suffices=True,
            more_quota_may_help=True,
            ends_with_others=True,
            takes_turns=True,
        ),
        Reason(LARGER_THAN_CLUSTER, is_too_large=True, needs_another_place=True, blocks_none=True),
        Reason(NOT_DECIDED, is_undecided=True, blocks_none=True),
        Reason(NEEDS_POTENTIAL, waits_for_room=True),
        Reason(REQUIRED_PODS_MISSING, blocks_none=True, stops_age=True),
        Reason(DEVICE_CLAIMS_NOT_COUNTED, needs_another_place=True),
        Reason(NO_CLUSTER, waits_for_room=True, ends_with_others=True),
        Reason(AWAITING_RELEASE, waits_for_room=True, ends_with_others=True),
        Reason(NOT_EVALUATED, waits_for_room=True, more_quota_may_help=True, is_undecided=True),
        Reason(
            INSUFFICIENT_QUOTA,
            lacks_quota=True,
            waits_for_quota=True,
            more_quota_may_help=True,
            ends_with_others=True,
            takes_turns=True,
        ),
        Reason(
            OVER_NOMINAL_QUOTA,
            lacks_quota=True,
            waits_for_quota=True,
            more_quota_may_help=True,
            ends_with_others=True,
        ),
        Reason(PREEMPTED_TOO_OFTEN, waits_for_quota=True, more_quota_may_help=True),
        Reason(
            LARGER_THAN_QUOTA,
            lacks_quota=True,
            more_quota_may_help=True,
            is_too_large=True,
            needs_another_place=True,
            blocks_none=True,
        ),
        Reason(QUEUE_NOT_FOUND, is_in_no_queue=True, is_refused_by_queue=True, needs_another_place=True),
        Reason(QUEUE_NOT_LEAF, is_in_no_queue=True, is_refused_by_queue=True, needs_another_place=True),
        Reason(
            NAMESPACE_NOT_ALLOWED, is_in_no_queue=True, is_refused_by_queue=True, needs_another_place=True
        ),
        Reason(QUEUE_STOPPED, is_refused_by_queue=True),
        Reason(NOT_SELECTED, needs_another_place=True),
        Reason(NOT_CONNECTED),
        Reason(NOT_REPORTED),
        Reason(UNREACHABLE),
        Reason(CREDENTIALS_REFUSED),
        Reason(ANSWERS_TOO_LARGE),
        Reason(ANOTHER_CLUSTER),
        Reason(CORDONED),
        Reason(DRAINING),
        Reason(KIND_MISSING, needs_another_place=True),
        Reason(NAMESPACE_MISSING, needs_another_place=True),
        Reason(NAMESPACE_NOT_ENABLED, needs_another_place=True),
        Reason(MEMBERS_UNKNOWN),
        Reason(REMOVED),
        Reason(NAME_TAKEN, needs_another_place=True),
        Reason(CLASS_MISSING),
        Reason(PROVISIONING_FAILED, waits_for_room=True),
        Reason(AWAITING_APPROVAL, is_in_no_cycle=True),
        Reason(AWAITING_CAPACITY),
        Reason(CREATION_POSTPONED, waits_for_room=True),
        Reason(INTERNAL_ERROR, is_undecided=True, blocks_none=True),
        Reason(words.PREEMPTION_TRIGGERED, waits_for_room=True),
        Reason(words.CLUSTER_LOST, waits_for_room=True),
        Reason(words.NAMESPACE_QUEUE_FULL, is_in_no_cycle=True),
    )
}
"""Each reason by its code."""


def codes(which: Callable[[Reason], bool]) -> frozenset[str]:
    """The codes of the reasons for which this is true."""
    return frozenset(each.code for each in REASONS.values() if which(each))


LACKS_QUOTA: Final = codes(lambda each: each.lacks_quota)
WAITS_FOR_QUOTA: Final = codes(lambda each: each.waits_for_quota)
ENDS_WITH_OTHERS: Final = codes(lambda each: each.ends_with_others)
TOO_LARGE: Final = codes(lambda each: each.is_too_large)
IN_NO_QUEUE: Final = codes(lambda each: each.is_in_no_queue)
UNDECIDED: Final = codes(lambda each: each.is_undecided)
NEEDS_ANOTHER_PLACE: Final = codes(lambda each: each.needs_another_place)
STOPS_AGE: Final = codes(lambda each: each.stops_age)
