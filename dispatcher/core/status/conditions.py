"""The status of an AppWrapper, projected from its record: output only, and equal for equal records.

MCAD's words keep their spelling, each in one place: `state`, `queuejobstate`, `canrun`, the conditions with micro
times, and the internal `sender` and `filterignore` that old clients print. The dispatcher adds `cluster` and `waiting`
(the pending reason, structured, and the outlook of `core.status.outlook`). MCAD's `pending` remains a count of pods.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

from msgspec import Struct, field

from dispatcher.api import conditions as words
from dispatcher.api.conditions import OUR_TYPES, ConditionType, State
from dispatcher.core.model.clock import micro_timestamp, timestamp
from dispatcher.core.model.clusters.potential import Trusted, trusted_of
from dispatcher.core.model.gangs.growth import GrowthRequest
from dispatcher.core.model.gangs.pods import PodCounts, PodFailure
from dispatcher.core.model.quantity import quantity
from dispatcher.core.model.records.record import (
    ACTIVE,
    Condition,
    NotedIssue,
    Pending,
    Phase,
    QuotaSummary,
    Record,
)
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import Resources, is_gpu
from dispatcher.core.status import components
from dispatcher.core.status.about import about
from dispatcher.text import mappings_of

NO_PODS: Final = PodCounts()

POD_COUNTS: Final = ("pending", "running", "Succeeded", "failed")
"""The fields of the status that count pods; MCAD spells exactly one of them with a capital."""

MCAD_WORDS: Final = (
    *("state", "queuejobstate", "canrun", "sender", "filterignore", "controllerfirsttimestamp"),
    *("numberOfRequeueings", "requeueingTimeInSeconds"),
)
"""The fields of the status that are there for MCAD's clients alone: people read others, and `about` first."""

MOST_HELD: Final = 64
"""The most resources that `status.held` can list by the CRD."""

MOST_CLUSTERS: Final = 256
"""The most clusters that `status.waiting` can list by the CRD."""

MOST_OF_OTHERS: Final = 40
"""Conditions of other clients that are kept: with all conditions of ours they are fewer than the CRD allows."""


class Shown(Struct, frozen=True):
    """The parts of the status that are not in the record: the pods, whether the AppWrapper has components, the outlook.

    `pending_pods` are a few of the pods that cannot be scheduled, as MCAD lists them. `outlook` are fields of `waiting`
    (`core.status.outlook`), for a queued AppWrapper. `beyond_quota` says that a gang grew beyond the quota of its
    queue. `others` are the conditions of other clients, such as approvals, as they are.
    """

    pods: PodCounts = NO_PODS
    pending_pods: tuple[Mapping[str, Any], ...] = ()
    has_components: bool = False
    outlook: Mapping[str, Any] = field(default_factory=dict)
    beyond_quota: str = ""
    others: tuple[Mapping[str, Any], ...] = ()


NOTHING_BESIDE: Final = Shown()

_ENDED: Final = frozenset({Phase.COMPLETED, Phase.FAILED})
"""Phases that show the cluster of the last attempt, where its logs and its kept objects are."""

_MAY_TRUST: Final = ACTIVE | {Phase.DISPATCHING}
"""Phases in which a gang may wait for nodes that it trusts to come."""


def _trusted(record: Record) -> Trusted:
    """How many nodes of each pool the gang and its growth wait for."""
    attempt = record.attempt
    if record.phase not in _MAY_TRUST or attempt is None:
        return ()
    nodes = attempt.assignment.nodes if attempt.started_at is None else ()
    growth = attempt.growth_trust
    return trusted_of({*nodes, *(growth.nodes if growth else ())})


def project(record: Record, shown: Shown = NOTHING_BESIDE) -> dict[str, Any]:
    """The whole `status` of the AppWrapper of `record`, as JSON; absent fields mean zero or unknown."""
    status: dict[str, Any] = {
        # MCAD omits it if false; its SDK then reports "not seen yet", whatever the other fields say.
        "canrun": can_run(record),
        # Conditions of others come first, because clients take MCAD's last condition for the latest.
        "conditions": [*shown.others, *map(_entry, _in_order(record.conditions))],
        "filterignore": True,
        "queuejobstate": queue_job_state(record).value,
        "sender": _sender(record),
        "state": state(record).value,
        "systempriority": record.priority,
    }
    status.update(_columns(record))
    status.update(_times(record))
    if record.attempt and (record.holds_capacity or record.phase in _ENDED):
        status["cluster"] = record.attempt.cluster
    if trusted := _trusted(record):
        status["trusts"] = [{"pool": pool, "nodes": nodes} for pool, nodes in trusted]
    if record.pending:
        has_outlook = record.phase is Phase.QUEUED and not record.awaits_approval
        outlook = shown.outlook if has_outlook else {}
        status["waiting"] = {**_waiting(record.pending), **outlook}
    if record.failure:
        status["failure"] = _failure(record, record.failure)
    if record.requeuings:
        status["numberOfRequeueings"] = record.requeuings
        status["requeueingTimeInSeconds"] = record.requeuing_seconds
    if record.unhealthy:
        status["unhealthy"] = _unhealthy(record.unhealthy)
    if shown.pending_pods:
        status["pendingpodconditions"] = list(shown.pending_pods)
    if record.grown:
        status["held"] = _held(record)
    if record.growth_charge and shown.beyond_quota:
        status["beyondQuota"] = shown.beyond_quota
    if record.growth_request:
        status["growth"] = _growth(record.growth_request, record.grown)
    pods = shown.pods
    counts = (pods.pending, pods.running, pods.succeeded, pods.failed)
    status.update({word: count for word, count in zip(POD_COUNTS, counts, strict=True) if count})
    if shown.has_components:
        _add_components(status, record)
    status["about"] = about(record, status)
    return status


def conditions_of_others(status: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The conditions in a status whose types are not the dispatcher's, the last of each type, at most `MOST_OF_OTHERS`.

    A status writer that replaces the status must keep them: others wrote them, and read them. Never raises.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for entry in mappings_of(status.get("conditions")):
        type_ = entry.get("type")
        if isinstance(type_, str) and type_ not in OUR_TYPES:
            found.pop(type_, None)
            found[type_] = entry
    return tuple(found.values())[:MOST_OF_OTHERS]


def _in_order(conditions: Sequence[Condition]) -> Iterable[Condition]:
    """The conditions, unknown fields right after Init: clients take MCAD's last condition for the latest."""
    warnings = [each for each in conditions if each.type is ConditionType.UNKNOWN_FIELDS]
    others = [each for each in conditions if each.type is not ConditionType.UNKNOWN_FIELDS]
    return (*others[:1], *warnings, *others[1:])


def _columns(record: Record) -> dict[str, Any]:
    """The fields that only the columns of `kubectl get` have in this form."""
    found = {
        "lifecyclePhase": record.phase.value,
        "reason": reason(record),
        "gpus": sum(amount for name, amount in record.charge.items() if is_gpu(name)),
        "queue": record.queue,
        "user": record.user,
    }
    return {word: value for word, value in found.items() if value}


def _growth(request: GrowthRequest, grown: Resources) -> dict[str, Any]:
    """The growth that waits for a grant, and what was granted before."""
    found = {
        "pods": request.pods,
        "requested": _amounts(request.amounts),
        "granted": _amounts(grown),
        "since": timestamp(request.since),
        "reason": request.reason,
        "message": request.message,
    }
    return {word: value for word, value in found.items() if value}


def _amounts(amounts: Resources) -> dict[str, str]:
    return {name: quantity(name, amounts[name]) for name in sorted(amounts)[:MOST_HELD]}


def _held(record: Record) -> dict[str, str]:
    """What a gang that grew holds, as exact quantities; above `MOST_HELD` resources, first those that it grew by."""
    names = sorted(record.held, key=lambda name: (name not in record.grown, name))[:MOST_HELD]
    return {name: quantity(name, record.held[name]) for name in sorted(names)}


def reason(record: Record) -> str:
    """Why an AppWrapper waits or has failed, in a word; empty otherwise."""
    failed = record.condition(ConditionType.FAILED)
    if record.phase is Phase.FAILED and failed is not None:
        return failed.reason
    return record.pending.reason if record.pending else ""


def state(record: Record) -> State:
    """MCAD's coarse state: Running as soon as all objects were created."""
    match record.phase:
        case (
            Phase.QUEUED
            | Phase.SUSPENDED
            | Phase.DISPATCHING
            | Phase.REQUEUEING
            | Phase.SUSPENDING
            | Phase.FAILING
        ):
            return State.PENDING
        case Phase.DISPATCHED | Phase.RUNNING:
            return State.RUNNING
        case Phase.RUNNING_HOLD_COMPLETION:
            return State.RUNNING_HOLD_COMPLETION
        case Phase.COMPLETED:
            return State.COMPLETED
        case Phase.FAILED:
            return State.FAILED
        case Phase.DELETING | Phase.DELETED:
            return State.DELETED
        case _:
            assert_never(record.phase)


def queue_job_state(record: Record) -> ConditionType:
    """MCAD's finer state: the condition type that describes the record best."""
    if record.phase is Phase.QUEUED:
        return _queued_state(record)
    if record.phase is Phase.FAILING and _is_true(record, ConditionType.PREEMPT_CANDIDATE):
        return ConditionType.PREEMPT_CANDIDATE
    return _STATES[record.phase]


_STATES: Final = {
    Phase.SUSPENDED: ConditionType.SUSPENDED,
    Phase.DISPATCHING: ConditionType.HEAD_OF_LINE,
    Phase.DISPATCHED: ConditionType.DISPATCHED,
    Phase.RUNNING: ConditionType.RUNNING,
    Phase.RUNNING_HOLD_COMPLETION: ConditionType.RUNNING_HOLD_COMPLETION,
    Phase.COMPLETED: ConditionType.COMPLETED,
    Phase.REQUEUEING: ConditionType.BACKOFF,
    Phase.SUSPENDING: ConditionType.SUSPENDED,
    # Failed is final, so it is shown only once the objects are confirmed gone.
    Phase.FAILING: ConditionType.HEAD_OF_LINE,
    Phase.FAILED: ConditionType.FAILED,
    Phase.DELETING: ConditionType.RUNNING,
    Phase.DELETED: ConditionType.RUNNING,
}


def can_run(record: Record) -> bool:
    """True from the decision to dispatch until the attempt ends or its removal begins."""
    return record.phase is Phase.DISPATCHING or record.phase in ACTIVE


def _queued_state(record: Record) -> ConditionType:
    for type_ in (ConditionType.BACKOFF, ConditionType.HEAD_OF_LINE):
        if _is_true(record, type_):
            return type_
    return ConditionType.QUEUEING


def _is_true(record: Record, type_: ConditionType) -> bool:
    found = record.condition(type_)
    return found is not None and found.status


def _sender(record: Record) -> str:
    return _SENDERS.get(queue_job_state(record), words.SENDER_QUEUEING)


_SENDERS: Final = {
    ConditionType.BACKOFF: words.SENDER_BACKOFF,
    ConditionType.HEAD_OF_LINE: words.SENDER_HEAD_OF_LINE,
    ConditionType.DISPATCHED: words.SENDER_DISPATCHED,
    ConditionType.RUNNING: words.SENDER_DISPATCHED,
    ConditionType.RUNNING_HOLD_COMPLETION: words.SENDER_HOLD_COMPLETION,
    ConditionType.COMPLETED: words.SENDER_COMPLETED,
    ConditionType.PREEMPT_CANDIDATE: words.SENDER_PREEMPTED,
    ConditionType.FAILED: words.SENDER_FAILED,
}


def _times(record: Record) -> dict[str, str]:
    first = record.condition(ConditionType.INIT)
    times: dict[str, str] = {}
    if first:
        times["controllerfirsttimestamp"] = micro_timestamp(first.since)
    if record.kept_until:
        times["keptUntil"] = timestamp(record.kept_until)
    return times


def _entry(condition: Condition | components.ComponentsFact) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": condition.type.value,
        "status": "True" if condition.status else "False",
        "lastUpdateMicroTime": micro_timestamp(condition.updated),
        "lastTransitionMicroTime": micro_timestamp(condition.since),
        "lastTransitionTime": timestamp(condition.since),
    }
    if condition.reason:
        entry["reason"] = condition.reason
    if condition.message:
        entry["message"] = condition.message
    return entry


def _add_components(status: dict[str, Any], record: Record) -> None:
    status["phase"] = components.PHASES[record.phase].value
    status["conditions"] += [_entry(condition) for condition in components.conditions(record)]
    if record.requeuings:
        status["resettingCount"] = record.requeuings
    if record.attempt:
        deployed = _entry(components.component_condition(record.attempt))
        parts = [{**part, "conditions": [deployed]} for part in components.component_status(record)]
        status.update({"componentStatus": parts} if parts else {})


def _waiting(pending: Pending) -> dict[str, Any]:
    found: dict[str, Any] = {
        "queue": pending.queue,
        "quota": None if pending.quota is None else _quota(pending.quota),
        "preempting": list(pending.preempting),
        "clusters": [_why(each) for each in pending.clusters[:MOST_CLUSTERS]],
    }
    return {**_why(pending), **{word: value for word, value in found.items() if value}}


def _quota(summary: QuotaSummary) -> dict[str, Any]:
    amounts = {
        "nominal": summary.nominal,
        "used": summary.used,
        "available": summary.available,
        "most": summary.most,
    }
    borrowers = [{"queue": each.queue, "amount": each.amount} for each in summary.borrowers]
    shown: dict[str, Any] = {word: amount for word, amount in amounts.items() if amount}
    return {**shown, **({"borrowers": borrowers} if borrowers else {})}


def _why(told: Pending | Rejection) -> dict[str, str]:
    found = {
        "reason": told.reason,
        "message": told.message,
        "resource": told.resource,
        "cluster": told.cluster,
    }
    return {word: value for word, value in found.items() if value}


def _failure(record: Record, failure: PodFailure) -> dict[str, Any]:
    """How a pod failed, and the command for its log while the pod is kept."""
    found = {
        "pod": failure.pod,
        "container": failure.container,
        "exitCode": failure.exit_code,
        "reason": failure.reason,
        "message": failure.message,
        "at": timestamp(failure.at) if failure.at else "",
        "logs": log_command(record.namespace, record.name, failure)
        if record.phase in _KEEPS_FAILED and record.has_objects
        else "",
    }
    return {word: value for word, value in found.items() if value not in ("", None)}


_KEEPS_FAILED: Final = frozenset({Phase.FAILING, Phase.FAILED})
"""Phases in which ended objects, and so failed pods, may be kept for their logs."""


def log_command(namespace: str, name: str, failure: PodFailure) -> str:
    """The command in quotes where a shell needs them: a member may answer any name of a pod."""
    container = ["-c", failure.container] if failure.container else []
    previous = ["--previous"] if failure.has_restarted else []
    where = ["-n", namespace, "--pod", failure.pod]
    return shlex.join(["kubectl", "aw", "logs", name, *where, *container, *previous])


def _unhealthy(noted: NotedIssue) -> dict[str, str]:
    return {"reason": noted.reason, "message": noted.message, "since": timestamp(noted.since)}
