"""Decodes nodes and pods from the API server's JSON, as far as the capacity check needs them.

A member's API server may be anything. Most pods are sound and are decoded as they are; only one that cannot be decoded
is reduced to its sound part: the fields that are read here, where they have the documented type. That costs O(size of
the pod) and recurses over the shape here, never over input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from sys import intern
from typing import Any, Final

from msgspec import Struct

from dispatcher.api import names
from dispatcher.core.kinds.manifest import controller_of
from dispatcher.core.kinds.object_status import End
from dispatcher.core.kinds.pods.affinity import apart_of, repelling_terms, shared_labels
from dispatcher.core.kinds.pods.pod_requests import live_pod_requests
from dispatcher.core.kinds.pods.podsets import constraint_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, Taint
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.core.model.resources import WELL_KNOWN, Resources
from dispatcher.kube.client import Json
from dispatcher.kube.objects.owner_resolver import controller_ref
from dispatcher.text import first_keys, mapping_of, mappings_of, name_of, one_line, text_of

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"


_MIRROR: Final = "kubernetes.io/config.mirror"

LONGEST_MESSAGE: Final = 1024
"""Characters kept of the scheduler's message about a pod; the message may name every node."""


class PodView(Struct, frozen=True):
    """A pod, the uid of the AppWrapper that its label names (`claimed_by`), and the object that controls it.

    `names_appwrapper` is true for a pod with MCAD's label and without ours: it belongs to some AppWrapper, and only its
    owners tell to which.
    """

    pod: Pod
    claimed_by: str | None
    controller: ObjectRef | None
    names_appwrapper: bool = False


MOST_NAMES_OF_NODE: Final = 64
"""Names of resources of one node that count."""

MOST_NAMES_READ: Final = 1024
"""Names of resources of one node that are looked at; names without an amount, or that are none, do not count."""

MOST_LABELS_OF_NODE: Final = 512
"""Labels of one node that count: a node with all labels of the device plugins has about 200."""

MOST_TAINTS: Final = 64
"""Taints of one node. A node with more is not used: the others could keep every pod away."""

LABELS_READ_FIRST: Final = (
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Where labels are bounded, these go first: they name topologies, and what every kubelet says of its machine.

Source: https://kubernetes.io/docs/reference/labels-annotations-taints/
"""


def decode_node(raw: Json) -> Node:
    """A node; usable if it is Ready and not cordoned. Never raises: it keeps the sound parts of any object.

    Names of resources, labels and taints are bounded, and the value says how many were left out. Costs O(bounds)
    whatever was sent, and at most 100 bytes of memory for each byte of the JSON.
    """
    metadata, spec, status = (mapping_of(raw.get(each)) for each in ("metadata", "spec", "status"))
    ready = _node_is_ready(status)
    written = mapping_of(status.get("allocatable"))
    allocatable, unread = _amounts(written)
    labels = _labels_of_node(labelled := mapping_of(metadata.get("labels")))
    taints = list(islice(mappings_of(spec.get("taints")), MOST_TAINTS + 1))
    has_too_many = len(taints) > MOST_TAINTS
    return Node(
        name=intern(name_of(metadata.get("name"))),
        allocatable=allocatable,
        usable=ready and not spec.get("unschedulable") and not has_too_many,
        taints=tuple(_taint(each) for each in taints[:MOST_TAINTS] if _is_taint(each)),
        ready=ready,
        labels=labels,
        most_pods=allocatable["pods"] if "pods" in written else None,
        left_out=unread + max(0, len(labelled) - MOST_LABELS_OF_NODE) + has_too_many,
    )


def _node_is_ready(status: Mapping[str, Any]) -> bool:
    conditions = mappings_of(status.get("conditions"))
    ready = next((each for each in conditions if each.get("type") == "Ready"), {})
    return ready.get("status") == "True"


def _labels_of_node(written: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels, up to the bound; interned, because nodes of one sort have the same ones."""
    names_read = first_keys(written, LABELS_READ_FIRST, MOST_LABELS_OF_NODE)
    return {
        intern(name_of(key)): intern(name_of(value))
        for key in names_read
        if isinstance(value := written[key], str)
    }


MOST_NAMES_OF_POD: Final = 64
"""Names of resources of one pod that count: each would be a column of all sums. cpu and memory go first."""


class NotAPod(ValueError):
    """An object that is left out: without uid, namespace or name, or a gated pod that cannot be read in full.

    Growth is never granted to a pod for less than it asks.
    """


def decode_pod(raw: Json) -> PodView:
    """A pod, without `owner`, which only the chain of owners can confirm.

    Of a pod with fields of other types the sound part is decoded. The only exception is `NotAPod`. Takes at most 100
    bytes of memory for each byte of the JSON.
    """
    metadata = mapping_of(mapping_of(raw).get("metadata"))
    if not all(isinstance(each := metadata.get(name), str) and each for name in _IDENTITY):
        raise NotAPod(f"a pod needs {', '.join(_IDENTITY)}")
    try:
        return _pod_view(raw)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        view = _pod_view(sound_part(raw))
        if view.pod.gate is not None:
            raise NotAPod("its gate stays: what it asks for cannot be read") from error
        return view


_IDENTITY: Final = ("uid", "namespace", "name")


def _bounded(requests: Resources) -> Resources:
    """The requests, of at most `MOST_NAMES_OF_POD` names."""
    if len(requests) <= MOST_NAMES_OF_POD:
        return requests
    kept = first_keys(requests, ("cpu", "memory", "ephemeral-storage"), MOST_NAMES_OF_POD)
    return Resources({name: requests[name] for name in kept})


def _pod_view(raw: Json) -> PodView:
    metadata = raw["metadata"]
    spec = raw.get("spec") or {}
    status = raw.get("status") or {}
    labels = metadata.get("labels") or {}
    claimed_by = name_of(labels.get(names.UID_LABEL)) or None
    node = intern(name_of(spec.get("nodeName")))
    phase = PodPhase(status.get("phase") or PodPhase.PENDING)
    unscheduled = _unscheduled(metadata["name"], status) if phase is PodPhase.PENDING and not node else None
    is_gated = any(each.get("name") == names.GROWTH_GATE for each in spec.get("schedulingGates") or ())
    annotations = metadata.get("annotations") or {}
    can_be_gated = names.GROWTH_ANNOTATION in annotations
    gate = _gate(metadata) if is_gated or can_be_gated else None
    base_pods, _, named = text_of(annotations.get(names.GROWTH_ANNOTATION)).partition(" ")
    template, _, hosts = named.partition(" ")
    return PodView(
        pod=Pod(
            uid=metadata["uid"],
            requests=_bounded(live_pod_requests(spec, status)),
            node=node,
            phase=phase,
            reason=PodReason.UNSCHEDULABLE
            if unscheduled
            else _pod_reason(raw, status, phase, node, is_gated),
            exit_codes=_exit_codes(status) if phase is PodPhase.FAILED else (),
            unscheduled=unscheduled,
            never_ends=_never_ends(metadata),
            gate=gate if is_gated else None,
            can_be_gated=can_be_gated,
            template=intern(template),
            sort=_sort(raw, metadata, spec) if node else None,
            base_pods=int(base_pods) if _COUNT.fullmatch(base_pods) else 0,
            hosts=max(1, int(hosts)) if _COUNT.fullmatch(hosts) else 1,
            replica=name_of(labels.get(names.RAY_REPLICA_LABEL)) if hosts else "",
            admitted_as=None if is_gated else gate,
            is_ending=can_be_gated and metadata.get("deletionTimestamp") is not None,
            constraint=constraint_of(spec) if can_be_gated and not node else None,
            apart=apart_of(raw) if can_be_gated and not node else (),
            node_by_author=bool(node) and phase is PodPhase.PENDING and not _is_bound(status),
        ),
        claimed_by=claimed_by and intern(claimed_by),
        controller=_controller(metadata),
        names_appwrapper=claimed_by is None and names.MCAD_NAME_LABEL in labels,
    )


def _sort(raw: Json, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> PodSort:
    """What terms about pods depend on; equal sorts are one object."""
    labels = tuple(shared_labels(metadata.get("labels") or {}))
    namespace, is_ending = metadata["namespace"], metadata.get("deletionTimestamp") is not None
    if not (spec.get("affinity") or {}).get("podAntiAffinity"):
        try:
            return _sort_without_terms(namespace, labels, is_ending=is_ending)
        except TypeError:  # no API server sends a value that is no text
            return _sort_without_terms.__wrapped__(namespace, labels, is_ending=is_ending)
    kept, repels = _labels(dict(labels)).items(), repelling_terms(raw)
    return PodSort.of(intern(name_of(namespace)), kept, repels, is_ending=is_ending)


@lru_cache(maxsize=4096)
def _sort_without_terms(namespace: str, labels: tuple[tuple[str, str], ...], *, is_ending: bool) -> PodSort:
    """One value for equal labels: the pods of a template come one after the other."""
    return PodSort.of(intern(name_of(namespace)), _labels(dict(labels)).items(), is_ending=is_ending)


_COUNT: Final = re.compile("[0-9]{1,9}")


def _gate(metadata: Mapping[str, Any]) -> Gate:
    """The dispatcher's gate on a pod that has it, or had it."""
    created_at = name_of(metadata.get("creationTimestamp"))
    return Gate(intern(name_of(metadata["namespace"])), name_of(metadata["name"]), created_at)


def _never_ends(metadata: Mapping[str, Any]) -> bool:
    """True for a pod of a DaemonSet, which is replaced on its node, and for the mirror of a static pod.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/ and
    https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
    """
    controller = controller_of(metadata) or {}
    is_of_daemon_set = controller.get("kind") == "DaemonSet" and str(controller.get("apiVersion")).startswith(
        "apps/"
    )
    return is_of_daemon_set or _MIRROR in (metadata.get("annotations") or {})


def _pod_reason(
    raw: Json, status: Mapping[str, Any], phase: PodPhase, node: str, is_gated: bool
) -> PodReason:
    if phase is PodPhase.PENDING and node:
        return PodReason.STUCK if _is_stuck(status) else PodReason.STARTING
    if phase is PodPhase.PENDING and is_gated:
        return PodReason.GATED
    if phase is PodPhase.FAILED and BUILT_IN.state_of("", "Pod", raw).end is End.EVICTED:
        return PodReason.EVICTED
    return PodReason.NONE


_STARTING_REASONS: Final = frozenset({"", "ContainerCreating", "PodInitializing", "RestartingAllContainers"})
"""Reasons of a waiting container without an error; every other reason of a kubelet is an error."""


def _is_stuck(status: Mapping[str, Any]) -> bool:
    """True if a container waits because of an error; a container that crashed and runs again does not wait."""
    waiting = (state.get("waiting") or {} for state in _container_states(status))
    return any((each.get("reason") or "") not in _STARTING_REASONS for each in waiting)


def _exit_codes(status: Mapping[str, Any]) -> tuple[int, ...]:
    terminated = (state.get("terminated") or {} for state in _container_states(status))
    codes = {code for each in terminated if type(code := each.get("exitCode")) is int and code in _INT32}
    return tuple(sorted(codes - {0}))


_INT32: Final = range(-(2**31), 2**31)


def _container_states(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or ():
            yield container.get("state") or {}


_CO_SCHEDULING: Final = (
    ("pgName", "last", "failed", "deny"),
    ("optimistic", "rejection", "PostFilter"),
    ("cannot", "find", "enough", "sibling"),
    ("waiting for", "pods from a gang"),
    ("pod group is not ready",),
)
"""Words in a gang scheduler's message about a pod that waits for other pods of its gang: those of the co-scheduler, as
MCAD checks them (the first three), of Kubernetes, and of Volcano. Such a pod is not unschedulable by itself."""


def _is_bound(status: Mapping[str, Any]) -> bool:
    """True if a scheduler bound the pod, or a kubelet took it: both say so, and an author cannot.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-conditions
    """
    return _condition(status, "PodScheduled").get("status") == "True"


def _unscheduled(pod: str, status: Mapping[str, Any]) -> Unscheduled | None:
    """The scheduler's message about a pod without a node; None for a pod that a scheduling gate stops."""
    condition = _condition(status, "PodScheduled")
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None
    text = condition.get("message")
    message = one_line(text[:LONGEST_MESSAGE], LONGEST_MESSAGE) if isinstance(text, str) else ""
    if any(all(word in message for word in words) for words in _CO_SCHEDULING):
        return None
    return Unscheduled(name_of(pod), intern(message), intern(name_of(condition.get("lastTransitionTime"))))


def _controller(metadata: Mapping[str, Any]) -> ObjectRef | None:
    found = controller_ref(metadata, metadata["namespace"])
    if found is None:
        return None
    return ObjectRef(
        item=-1,
        api_version=intern(found.api_version),
        kind=intern(found.kind),
        namespace=intern(found.namespace),
        name=intern(found.name),
        uid=intern(found.uid),
    )


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """The condition of that type; empty if there is none."""
    found = (each for each in status.get("conditions") or () if each.get("type") == type_)
    return next(found, {})


def _labels(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels; interned, because nodes of one sort have the same ones."""
    return {intern(name_of(key)): intern(name_of(value)) for key, value in raw.items()}


def _is_taint(raw: Mapping[str, Any]) -> bool:
    return isinstance(raw.get("key"), str) and isinstance(raw.get("effect"), str)


def _taint(raw: Mapping[str, Any]) -> Taint:
    return Taint(key=name_of(raw["key"]), value=name_of(raw.get("value")), effect=name_of(raw["effect"]))


def _amounts(quantities: Mapping[str, Any]) -> tuple[Resources, int]:
    """Allocatable amounts, and how many were left out by the bounds; an amount over 2^63-1 counts as 0."""
    amounts: dict[str, int] = {}
    read = 0
    for resource in first_keys(quantities, WELL_KNOWN, MOST_NAMES_READ):
        if len(amounts) == MOST_NAMES_OF_NODE:
            break
        read += 1
        try:
            found = amount(resource, quantities[resource])
        except QuantityError:
            continue
        if found:
            amounts[intern(resource)] = found
    return Resources(amounts), len(quantities) - read


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
    return _sound_object(raw, _SHAPE)


def _sound_object(written: object, shape: Mapping[str, Any]) -> dict[str, Any]:
    found = mapping_of(written)
    read = {name: _sound_value(found[name], each) for name, each in shape.items() if name in found}
    return {name: value for name, value in read.items() if value is not None}


def _sound_value(value: object, shape: Any) -> Any:  # noqa: ANN401  # a value of JSON
    """The sound part of a value; None if it has another type."""
    if shape is _AMOUNTS:
        return _sound_amounts(value)
    if shape is _TEXTS:
        texts = ((key, each) for key, each in mapping_of(value).items() if isinstance(each, str))
        return dict(islice(texts, MOST_ENTRIES))
    if shape is _PHASE:
        return value if value in tuple(PodPhase) else PodPhase.UNKNOWN.value
    if isinstance(shape, list):
        return [_sound_object(each, shape[0]) for each in islice(mappings_of(value), MOST_ENTRIES)]
    if isinstance(shape, dict):
        return _sound_object(value, shape)
    return value if type(value) is shape else None


def _sound_amounts(value: object) -> dict[str, Any]:
    sound: dict[str, Any] = {}
    for name, each in islice(mapping_of(value).items(), MOST_ENTRIES):
        with suppress(QuantityError):
            amount(name, each)
            sound[name] = each
    return sound
