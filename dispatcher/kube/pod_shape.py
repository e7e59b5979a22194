"""The sound part of a pod that nobody has checked: the fields that the hub reads, where they have the documented type.

A member's API server may be anything. Most pods are sound and are decoded as they are; only one that cannot be decoded
is reduced to its sound part. Costs O(size of the pod) and recurses over the shape here, never over input.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from dispatcher.core.model.pods import PodPhase
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.kube.client import Json
from dispatcher.kube.outside import mapping_of, mappings_of

MOST_ENTRIES: Final = 1024
"""Entries of one list or map of an unsound pod that are kept."""

_AMOUNTS: Final = object()
_TEXTS: Final = object()
_PHASE: Final = object()

_RESOURCES: Final = {"requests": _AMOUNTS, "limits": _AMOUNTS}
_CONTAINER: Final = {"name": str, "restartPolicy": str, "resources": _RESOURCES}
_CONTAINER_STATUS: Final = {
    "name": str,
    "resources": _RESOURCES,
    "allocatedResources": _AMOUNTS,
    "state": {"waiting": {"reason": str}, "terminated": {"exitCode": int, "reason": str}},
}
_CONDITION: Final = {"type": str, "status": str, "reason": str, "message": str, "lastTransitionTime": str}
_TOLERATION: Final = {
    "key": str,
    "operator": str,
    "value": str,
    "effect": str,
    "tolerationSeconds": int,
}

_SHAPE: Final[Mapping[str, Any]] = {
    "metadata": {
        "uid": str,
        "namespace": str,
        "name": str,
        "creationTimestamp": str,
        "deletionTimestamp": str,
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool}],
    },
    "spec": {
        "nodeName": str,
        "nodeSelector": _TEXTS,
        "tolerations": [_TOLERATION],
        "schedulingGates": [{"name": str}],
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "resources": _RESOURCES,
        "overhead": _AMOUNTS,
    },
    "status": {
        "phase": _PHASE,
        "reason": str,
        "conditions": [_CONDITION],
        "containerStatuses": [_CONTAINER_STATUS],
        "initContainerStatuses": [_CONTAINER_STATUS],
        "resources": _RESOURCES,
        "allocatedResources": _AMOUNTS,
    },
}


def sound_part(raw: Json) -> Json:
    """A copy of a pod with the fields of `_SHAPE` that are sound; affinity, which has its own reader, is left out."""
    return _object(raw, _SHAPE)


def _object(written: object, shape: Mapping[str, Any]) -> dict[str, Any]:
    found = mapping_of(written)
    read = {name: _read(found[name], each) for name, each in shape.items() if name in found}
    return {name: value for name, value in read.items() if value is not None}


def _read(value: object, shape: Any) -> Any:  # noqa: ANN401  # a value of JSON
    """The sound part of a value; None if it has another type."""
    if shape is _AMOUNTS:
        return _amounts(value)
    if shape is _TEXTS:
        texts = ((key, each) for key, each in mapping_of(value).items() if isinstance(each, str))
        return dict(islice(texts, MOST_ENTRIES))
    if shape is _PHASE:
        return value if value in tuple(PodPhase) else PodPhase.UNKNOWN.value
    if isinstance(shape, list):
        return [_object(each, shape[0]) for each in islice(mappings_of(value), MOST_ENTRIES)]
    if isinstance(shape, dict):
        return _object(value, shape)
    return value if type(value) is shape else None


def _amounts(value: object) -> dict[str, Any]:
    sound: dict[str, Any] = {}
    for name, each in islice(mapping_of(value).items(), MOST_ENTRIES):
        with suppress(QuantityError):
            amount(name, each)
            sound[name] = each
    return sound
