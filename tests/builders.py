"""Values to test with: every default sensible, so that a test says only what matters to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dispatcher.api.appwrapper import WrappedObject
from dispatcher.api.names import UID_LABEL, WORKLOAD_GROUP
from dispatcher.core import lifecycle
from dispatcher.core.capacity import CapacityLedger, CapacitySnapshot, Node
from dispatcher.core.gang import Gang, PodSet, Taint, Toleration
from dispatcher.core.lifecycle import Newcomer
from dispatcher.core.manifest import Owner
from dispatcher.core.record import ObjectRef, Pending, Phase, Record
from dispatcher.core.resources import Resources

Json = dict[str, Any]

NOW: Final = datetime(2026, 11, 20, 8, 58, 6, 842261, tzinfo=UTC)
CREATED: Final = datetime(2026, 11, 20, 8, 58, 6, tzinfo=UTC)
"""When the AppWrapper was created, by the API server's clock; it has no fractions."""

WAITS: Final = Pending("InsufficientResources", "cluster hub: cpu: needs 1, 0 free", "cpu", "hub")


def at(seconds: float) -> datetime:
    """So many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def make_gang(pods: int = 1, *tolerations: Toleration, **requests: int) -> Gang:
    """So many equal pods; `requests` of each by resource (`gpu` for nvidia.com/gpu), 1 cpu if none."""
    each = _resources(requests or {"cpu": 1000})
    return Gang(each * pods, pods, (PodSet(pods, each, tolerations),))


def _resources(amounts: Mapping[str, int]) -> Resources:
    return Resources({{"gpu": "nvidia.com/gpu"}.get(name, name): amount for name, amount in amounts.items()})


def make_newcomer(name: str = "aw", **fields: Any) -> Newcomer:  # noqa: ANN401
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
    return Newcomer(**{**values, **fields})


def make_ref(item: int = 0, kind: str = "RayCluster", **fields: Any) -> ObjectRef:  # noqa: ANN401
    """A wrapped object that exists."""
    values: dict[str, Any] = {
        "api_version": "ray.io/v1" if kind == "RayCluster" else "v1",
        "namespace": "default",
        "name": f"{kind.lower()}-{item}",
        "uid": f"uid-of-{kind.lower()}-{item}",
    }
    return ObjectRef(item=item, kind=kind, **{**values, **fields})


def make_record(phase: Phase = Phase.QUEUED, name: str = "aw", **fields: Any) -> Record:  # noqa: ANN401
    """An AppWrapper in that phase, brought there by the lifecycle itself; `fields` are then put in place."""
    return replace(_LIVES[phase](lifecycle.submit(make_newcomer(name), make_gang(), NOW).after), **fields)


def make_blocked(record: Record | None = None, pending: Pending = WAITS, seconds: float = 1) -> Record:
    """A record (else a new one) that was evaluated and does not fit."""
    change = lifecycle.block(record or make_record(), pending, at(seconds))
    assert change is not None
    return change.after


def _dispatching(record: Record) -> Record:
    return lifecycle.dispatch(record, "hub", at(1)).after


def _dispatched(record: Record) -> Record:
    return lifecycle.created(_dispatching(record), (make_ref(),), at(2)).after


def _failing(record: Record) -> Record:
    return lifecycle.refuse_creation(_dispatching(record), (make_ref(),), "it is invalid", at(2)).after


def _requeueing(record: Record) -> Record:
    dispatching = _dispatching(record)
    return lifecycle.postpone_creation(dispatching, (make_ref(),), "exceeded quota", at(7), at(2)).after


_LIVES: Final[dict[Phase, Callable[[Record], Record]]] = {
    Phase.QUEUED: lambda record: record,
    Phase.DISPATCHING: _dispatching,
    Phase.DISPATCHED: _dispatched,
    Phase.RUNNING: lambda record: lifecycle.mark_running(_dispatched(record), at(3)).after,
    Phase.REQUEUEING: _requeueing,
    Phase.FAILING: _failing,
    Phase.FAILED: lambda record: lifecycle.removed(_failing(record), at(3)).after,
    Phase.DELETING: lambda record: lifecycle.delete(_dispatched(record), at(4)).after,
    Phase.DELETED: lambda record: lifecycle.delete(record, at(4)).after,
}


def make_core_node(name: str, *taints: Taint, usable: bool = True, **allocatable: int) -> Node:
    """A node as capacity sees it; `allocatable` as `make_gang` takes requests."""
    return Node(name, _resources(allocatable), usable, taints)


def make_snapshot(*nodes: Node, **allocatable: int) -> CapacitySnapshot:
    """An idle cluster of these nodes, or of one node that has `allocatable`."""
    ledger = CapacityLedger()
    for node in nodes or (Node("n1", _resources(allocatable)),):
        ledger.set_node(node)
    return ledger.snapshot()


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
