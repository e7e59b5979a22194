"""Nodes and pods as the capacity check needs them, read from the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.api import names
from dispatcher.core.capacity import Node, Pod, PodPhase
from dispatcher.core.gang import Taint
from dispatcher.core.manifest import controller_of
from dispatcher.core.podrequests import pod_requests
from dispatcher.core.quantity import QuantityError, amount
from dispatcher.core.record import ObjectRef
from dispatcher.core.resources import Resources
from dispatcher.kube.client import Json

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod, whose it says it is (`claimed_by`, an AppWrapper's uid), and the object that controls it."""

    pod: Pod
    claimed_by: str | None
    controller: ObjectRef | None


def decode_node(raw: Json) -> Node:
    """A node; usable if it is Ready and not cordoned."""
    spec = raw.get("spec") or {}
    status = raw.get("status") or {}
    return Node(
        name=raw["metadata"]["name"],
        allocatable=_amounts(status.get("allocatable") or {}),
        usable=_is_ready(status) and not spec.get("unschedulable"),
        taints=tuple(_taint(taint) for taint in spec.get("taints") or ()),
    )


def decode_pod(raw: Json) -> PodView:
    """A pod; its `owner` is left open, because only the chain of owners can confirm it."""
    metadata = raw["metadata"]
    spec = raw.get("spec") or {}
    phase = (raw.get("status") or {}).get("phase") or PodPhase.PENDING
    return PodView(
        pod=Pod(
            uid=metadata["uid"],
            requests=pod_requests(spec, limits_are_defaults=False),
            node=spec.get("nodeName") or "",
            phase=PodPhase(phase),
        ),
        claimed_by=(metadata.get("labels") or {}).get(names.UID_LABEL),
        controller=_controller(metadata),
    )


def _controller(metadata: Mapping[str, Any]) -> ObjectRef | None:
    found = controller_of(metadata)
    if found is None:
        return None
    return ObjectRef(
        item=-1,
        api_version=found["apiVersion"],
        kind=found["kind"],
        namespace=metadata["namespace"],
        name=found["name"],
        uid=found["uid"],
    )


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )


def _taint(raw: Mapping[str, Any]) -> Taint:
    return Taint(key=raw["key"], value=raw.get("value") or "", effect=raw["effect"])


def _amounts(quantities: Mapping[str, Any]) -> Resources:
    """Allocatable amounts; one that cannot be counted (over 2^63-1) counts as none, never as plenty."""
    amounts: dict[str, int] = {}
    for resource, quantity in quantities.items():
        try:
            amounts[resource] = amount(resource, quantity)
        except QuantityError:
            continue
    return Resources(amounts)
