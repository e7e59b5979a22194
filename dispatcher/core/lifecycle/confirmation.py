"""Policy of ending an attempt: the evidence to read first, and the change to commit once it confirms the health issue.

The watches may lag: the reconciler reads the API server before it ends an attempt for a health issue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

from dispatcher.api import conditions as words
from dispatcher.core.lifecycle import provisioning, run_changes
from dispatcher.core.lifecycle.health import unmade_pods
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import Act, Do, ObservedState
from dispatcher.core.model.gangs.pods import FAILED_FIRST, PodFailure
from dispatcher.core.model.records.record import Change, Record


class Evidence(StrEnum):
    """What the API server is asked for before an attempt ends."""

    NOTHING = "nothing"
    """The issue is the state of an object, or a time that is up: neither can be taken back."""
    OBJECTS = "objects"
    PODS = "pods"


def evidence_for(reason: str) -> Evidence:
    """The evidence that a health issue of this reason needs."""
    match reason:
        case words.MISSING_COMPONENT | words.KIND_NOT_INSTALLED:
            return Evidence.OBJECTS
        case words.FAILED_COMPONENT | words.DISPATCH_DEADLINE_EXCEEDED | words.CAPACITY_REVOKED:
            return Evidence.NOTHING
        case _:
            return Evidence.PODS


def is_confirmed(suspected: Do, confirmed: Do) -> bool:
    """True if the API server's answer leads, without doubt, to the same step for the same reason as the watches did."""
    is_the_same = (suspected.act, suspected.reason) == (confirmed.act, confirmed.reason)
    return is_the_same and not confirmed.is_in_doubt


class Complaint(StrEnum):
    """Whose words say why a gang lacks pods that run."""

    NOBODY = "nobody"
    CONTROLLERS = "controllers"
    """Pods do not exist: an operator could not make them, or a controller below its object."""
    NODES = "nodes"
    """Pods exist and do not start: their nodes say why, or the scheduler."""


def complaint_about(decision: Do, record: Record, observed: ObservedState) -> Complaint:
    """Whose words say why pods are missing, for a health issue of that reason."""
    objects = observed.objects
    if decision.reason not in {words.INSUFFICIENT_PODS_READY, words.MIN_PODS_NOT_RUNNING}:
        return Complaint.NOBODY
    done = {ref.item for ref in record.attempt.objects if ref.done} if record.attempt else set[int]()
    if not objects.pods.live or unmade_pods(record, observed.policy, objects.pods, done, objects.withheld):
        return Complaint.CONTROLLERS
    pods = objects.pods
    return Complaint.NODES if pods.pending > pods.starting + pods.gated else Complaint.NOBODY


def why_without_nodes(decision: Do, unscheduled: Mapping[str, str]) -> str:
    """The scheduler's commonest message about pods without a node, if a gang ends for want of pods; else empty.

    `unscheduled` has the message of each such pod by its name. The part about preemption is left out: it repeats the
    reasons.
    """
    by_message: dict[str, list[str]] = defaultdict(list)
    for pod, message in sorted(unscheduled.items()):
        by_message[message.partition(" preemption: ")[0].rstrip(" ,.")].append(pod)
    by_message.pop("", None)
    if decision.reason not in _LACKS_PODS or not by_message:
        return ""
    message, pods = max(by_message.items(), key=lambda each: len(each[1]))
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"no node for pod {pods[0]}{more}: {message}"


_LACKS_PODS: Final = frozenset(
    {words.INSUFFICIENT_PODS_READY, words.POTENTIAL_NODES_MISSING, *words.REASONS_OF_MCAD}
)


def may_have_failed_pods(reason: str) -> bool:
    """True if a gang that ends for this reason may end because a pod failed: then the failed pod is looked for."""
    return reason in _OF_PODS


_OF_PODS: Final = frozenset(
    {
        words.FAILED_COMPONENT,
        words.FOUND_FAILED_PODS,
        words.INSUFFICIENT_PODS_READY,
        words.MIN_PODS_NOT_RUNNING,
    }
)


def end_of_attempt(
    record: Record,
    decision: Do,
    policy: LifecyclePolicy,
    complaint: str,
    now: datetime,
    failure: PodFailure | None = None,
) -> Change:
    """The change that fails or evicts a gang; `complaint` is that of an operator or the scheduler.

    `failure` is how a pod failed first. No message has its termination message: the event of the history has it apart.
    """
    said = _failed_first(decision.message, failure)
    detail = decision.detail + "".join(f"; {each}" for each in (complaint, said) if each)
    reason = EvictionReason(decision.reason, decision.message, detail, failure)
    if decision.act is Act.FAIL:
        return run_changes.fail(record, reason, now)
    next_wait = int(policy.wait(record.requeuings + 1).total_seconds())
    if decision.reason == words.CAPACITY_REVOKED:
        return provisioning.revoke(record, reason, next_wait, now, decision.done)
    eligible_at = now + policy.pause(decision.reason)
    return run_changes.evict(record, reason, eligible_at, next_wait, now, decision.done)


def _failed_first(message: str, failure: PodFailure | None) -> str:
    """The failure in words; empty if the message names the container and its code, as that of a bare Pod does."""
    if failure is None or f"container {failure.container} exited with code {failure.exit_code}" in message:
        return ""
    return f"{FAILED_FIRST}{failure.in_words}"
