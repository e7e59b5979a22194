"""Values to test with: every default sensible, so that a test says only what matters to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import UID_LABEL, WORKLOAD_GROUP
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.manifest import Owner
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import KEPT, LifecyclePolicy
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import ObservedState
from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Attempt, ObjectRef, Pending, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot

Json = dict[str, Any]

NOW: Final = datetime(2026, 11, 20, 8, 58, 6, 842261, tzinfo=UTC)
CREATED: Final = datetime(2026, 11, 20, 8, 58, 6, tzinfo=UTC)
"""When the AppWrapper was created, by the API server's clock; it has no fractions."""

WAITS: Final = Pending("InsufficientResources", "cluster hub: cpu: needs 1, 0 free", "cpu", "hub")


def at(seconds: float) -> datetime:
    """So many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def times_told(words: str) -> list[datetime]:
    """The times in a message, which are in UTC and in whole seconds; the year may have fewer than four digits."""
    found = re.findall(r"([0-9]+-[0-9]{2}-[0-9]{2} [0-9:]{8}) UTC", words)
    return [datetime.fromisoformat(each.rjust(19, "0")).replace(tzinfo=UTC) for each in found]


def gang_of(spec: AppWrapperSpec, rule: ChargeRule = ChargeRule.LARGER, kinds: Kinds = BUILT_IN) -> Gang:
    """The gang of an AppWrapper, as it is charged; raises `DemandError` if its demand cannot be derived."""
    return charge_of(spec, rule, kinds).gang


def make_gang(pods: int = 1, *tolerations: Toleration, **requests: int) -> Gang:
    """So many equal pods; `requests` of each by resource (`gpu` for nvidia.com/gpu), 1 cpu if none."""
    each = _resources(requests or {"cpu": 1000})
    return Gang(each * pods, pods, (PodSet(pods, each, tolerations),))


def _resources(amounts: Mapping[str, int]) -> Resources:
    return Resources({{"gpu": "nvidia.com/gpu"}.get(name, name): amount for name, amount in amounts.items()})


def make_submission(name: str = "aw", **fields: Any) -> Submission:  # noqa: ANN401
    """An AppWrapper never seen before."""
    values: dict[str, Any] = {
        "uid": f"uid-of-{name}",
        "group": WORKLOAD_GROUP,
        "namespace": "default",
        "name": name,
        "created_at": CREATED,
        "spec": b"{}",
        "spec_hash": hashlib.sha256(b"{}").hexdigest(),
    }
    return Submission(**{**values, **fields})


def make_ref(item: int = 0, kind: str = "RayCluster", **fields: Any) -> ObjectRef:  # noqa: ANN401
    """A wrapped object that exists."""
    values: dict[str, Any] = {
        "api_version": "ray.io/v1" if kind == "RayCluster" else "v1",
        "namespace": "default",
        "name": f"{kind.lower()}-{item}",
        "uid": f"uid-of-{kind.lower()}-{item}",
    }
    return ObjectRef(item=item, kind=kind, **{**values, **fields})


def attempt_of(record: Record) -> Attempt:
    """The live attempt of a record that has one."""
    assert record.attempt is not None
    return record.attempt


def make_record(phase: Phase = Phase.QUEUED, name: str = "aw", **fields: Any) -> Record:  # noqa: ANN401
    """An AppWrapper in that phase, brought there by the lifecycle itself; `fields` are then put in place."""
    return replace(
        _LIVES[phase](first_changes.submit(make_submission(name), make_gang(), NOW).after), **fields
    )


def make_blocked(record: Record | None = None, pending: Pending = WAITS, seconds: float = 1) -> Record:
    """A record (else a new one) that was evaluated and does not fit."""
    change = queue_changes.block(record or make_record(), pending, at(seconds))
    assert change is not None
    return change.after


def _dispatching(record: Record) -> Record:
    return queue_changes.dispatch(record, "hub", at(1)).after


QUEUED_CLASS: Final = ProvisioningClass("queued-provisioning.gke.io", frozenset({"cpu"}))


def make_awaiting(record: Record | None = None, asked: ProvisioningClass = QUEUED_CLASS) -> Record:
    """A record (else a new one) that was dispatched, and whose capacity is to be requested."""
    assignment = Assignment(provisioning=asked)
    return queue_changes.dispatch(record or make_record(), "hub", at(1), assignment=assignment).after


def make_requested(record: Record | None = None, asked: ProvisioningClass = QUEUED_CLASS) -> Record:
    """The same once its ProvisioningRequest exists."""
    said = "capacity is requested in cluster hub, and not promised yet"
    return provisioning.note(make_awaiting(record, asked), said, at(2), "uid-of-request").after


def _dispatched(record: Record) -> Record:
    return run_changes.created(_dispatching(record), (make_ref(),), at(2)).after


def _failing(record: Record) -> Record:
    return run_changes.refuse_creation(_dispatching(record), (make_ref(),), "it is invalid", at(2)).after


def _requeueing(record: Record) -> Record:
    dispatching = _dispatching(record)
    return run_changes.postpone_creation(dispatching, (make_ref(),), "exceeded quota", at(7), at(2)).after


def _running(record: Record) -> Record:
    return run_changes.mark_running(_dispatched(record), at(3)).after


def _suspending(record: Record) -> Record:
    return queue_changes.suspend(_running(record), at(4)).after


_LIVES: Final[dict[Phase, Callable[[Record], Record]]] = {
    Phase.QUEUED: lambda record: record,
    Phase.SUSPENDED: lambda record: queue_changes.suspend(record, at(1)).after,
    Phase.DISPATCHING: _dispatching,
    Phase.DISPATCHED: _dispatched,
    Phase.RUNNING: _running,
    Phase.RUNNING_HOLD_COMPLETION: lambda record: (
        run_changes.complete_some(_running(record), (0,), at(4)).after
    ),
    Phase.COMPLETED: lambda record: run_changes.complete(_running(record), (0,), at(4) + KEPT, at(4)).after,
    Phase.REQUEUEING: _requeueing,
    Phase.SUSPENDING: _suspending,
    Phase.FAILING: _failing,
    Phase.FAILED: lambda record: removal.removed(_failing(record), at(3)).after,
    Phase.DELETING: lambda record: removal.delete(_dispatched(record), at(4)).after,
    Phase.DELETED: lambda record: removal.delete(record, at(4)).after,
}


def make_evicted(record: Record | None = None, reason: str = words.MIN_PODS_NOT_RUNNING) -> Record:
    """A record (else a new one that runs) that is taken from its cluster at second 4, and may go on at 94."""
    return run_changes.evict(
        record or make_record(Phase.RUNNING), EvictionReason(reason, "too few pods"), at(94), 600, at(4)
    ).after


def make_drained(record: Record | None = None) -> Record:
    """A record (else a new one that runs) that is evicted because its queue is drained, at second 4."""
    why = EvictionReason(words.QUEUE_STOPPED, "its queue b is stopped and drained")
    running = record or make_record(Phase.RUNNING)
    return run_changes.evict(running, why, at(4), running.requeuing_seconds, at(4)).after


def make_preempted(
    record: Record | None = None, preemptor: str = "uid-of-other", seconds: float = 4
) -> Record:
    """A record (else a new one that runs) that gives way to a gang that takes its quota back, at second 4."""
    why = "preempted for default/other (queue b, priority 3): its queue uses more than its quota"
    running = record or make_record(Phase.RUNNING)
    return run_changes.preempt(running, Reason.QUOTA_RECLAIMED, why, at(seconds), preemptor).after


def make_failing_run(record: Record | None = None, reason: str = words.FAILED_COMPONENT) -> Record:
    """A record (else a new one that runs) that failed after its dispatch, at second 4; its parts are going."""
    return run_changes.fail(
        record or make_record(Phase.RUNNING), EvictionReason(reason, "it failed"), at(4)
    ).after


def make_failed_run(record: Record | None = None, reason: str = words.FAILED_COMPONENT) -> Record:
    """A record that failed after its dispatch, and of which something is kept for its logs."""
    return removal.removed(make_failing_run(record, reason), at(5), at(5) + KEPT).after


def make_policy(*items: CompletionRule, **fields: Any) -> LifecyclePolicy:  # noqa: ANN401
    """The terms of what is sure to make pods; of one item that never ends, as a RayCluster, if none is given."""
    values: dict[str, Any] = {"items": items or (CompletionRule(holds=True),), "expects_pods": True}
    return LifecyclePolicy(**{**values, **fields})


def make_objects(
    pods: PodCounts | None = None,
    *states: ObjectState | None,
    absent: tuple[ObjectRef, ...] = (),
) -> ObservedObjects:
    """What is seen of a gang: one pod that runs and one object of which there is nothing to say, if not told."""
    return ObservedObjects(PodCounts(running=1) if pods is None else pods, states or (ObjectState(),), absent)


def make_observation(record: Record | None = None, seconds: float = 10, **fields: Any) -> ObservedState:  # noqa: ANN401
    """A record (else a new one) seen so many seconds after `NOW`, wanted as it was submitted, and in good health."""
    seen = record or make_record()
    suspended = seen.phase in {Phase.SUSPENDED, Phase.SUSPENDING}
    values: dict[str, Any] = {
        "wanted": True,
        "asked": MutableSpec(seen.priority, seen.priority_slope, suspended),
        "policy": make_policy(),
        "objects": make_objects(),
    }
    return ObservedState(seen, now=at(seconds), **{**values, **fields})


def make_core_node(name: str, *taints: Taint, usable: bool = True, **allocatable: int) -> Node:
    """A node as capacity sees it; `allocatable` as `make_gang` takes requests."""
    return Node(name, _resources(allocatable), usable, taints)


def make_snapshot(*nodes: Node, **allocatable: int) -> CapacitySnapshot:
    """An idle cluster of these nodes, or of one node that has `allocatable`."""
    ledger = CapacityLedger(FitMode.AGGREGATE)
    for node in nodes or (Node("n1", _resources(allocatable)),):
        ledger.set_node(node)
    return ledger.snapshot()


def make_snapshots(**snapshots: CapacitySnapshot) -> dict[str, ClusterSnapshot]:
    """Clusters of which nothing is known but their capacity."""
    return {name: ClusterSnapshot(name, snapshot) for name, snapshot in snapshots.items()}


def make_owner(name: str = "aw", **fields: Any) -> Owner:  # noqa: ANN401
    """The AppWrapper that objects are created for, at its first attempt."""
    values: dict[str, Any] = {
        "uid": f"uid-of-{name}",
        "group": WORKLOAD_GROUP,
        "version": "v1beta1",
        "namespace": "default",
        "attempt": 1,
        "hub_id": "the-hub",
    }
    return Owner(name=name, **{**values, **fields})


def make_wrapped(template: Mapping[str, Any] | None = None, index: int = 0) -> WrappedObject:
    """One object to create; a small Pod unless told otherwise."""
    return WrappedObject(index, template or make_template())


def make_template(kind: str = "Pod", api_version: str = "v1", **metadata: object) -> Json:
    """What a user writes under generictemplate."""
    containers = [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata or {"name": kind.lower()},
        "spec": {"containers": containers},
    }


def make_appwrapper(
    name: str = "aw",
    *templates: Json,
    spec: Json | None = None,
    status: Json | None = None,
    group: str = WORKLOAD_GROUP,
    **metadata: Any,  # noqa: ANN401
) -> Json:
    """An AppWrapper as the API server has it; `spec` is put beside what it wraps."""
    items = [{"generictemplate": template} for template in templates or (make_template(),)]
    return {
        "apiVersion": f"{group}/v1beta1",
        "kind": "AppWrapper",
        "metadata": make_metadata(name, **metadata),
        "spec": {"resources": {"GenericItems": items}, **(spec or {})},
        "status": status or {},
    }


def make_metadata(name: str, **fields: Any) -> Json:  # noqa: ANN401
    """The metadata of any object that exists."""
    return {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-20T08:58:06Z",
        **fields,
    }


def make_node(name: str = "n1", *, ready: str = "True", spec: Json | None = None, **allocatable: str) -> Json:
    """A node as the API server has it."""
    return {
        "metadata": make_metadata(name),
        "spec": spec or {},
        "status": {
            "allocatable": allocatable or {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def make_pod(
    name: str = "pod",
    *,
    cpu: str = "1",
    node: str = "n1",
    phase: str = "Running",
    of: str = "",
    controller: Json | None = None,
    **metadata: Any,  # noqa: ANN401
) -> Json:
    """A pod as the API server has it; `of` is the uid of the AppWrapper its label claims."""
    labels = {UID_LABEL: of} if of else {}
    owners = [{**controller, "controller": True}] if controller else []
    return {
        "metadata": make_metadata(name, labels=labels, ownerReferences=owners, **metadata),
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": phase},
    }
