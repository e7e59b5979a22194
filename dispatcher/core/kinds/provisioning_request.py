"""The objects that request the capacity of a gang: a PodTemplate for each managed pod set, and a ProvisioningRequest.

Their names follow from the AppWrapper and the attempt, so a repeated creation finds what exists, and a removal needs no
list. A PodTemplate requests what its pods will request: the requests of the pod set, which include what operators and
admission add.
Source: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/proposals/provisioning-request.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.api.appwrapper import WrappedObject
from dispatcher.api.clusters.provisioning import LONGEST_PARAMETER, MOST_PARAMETERS, ProvisioningClass
from dispatcher.core.kinds.fields import TemplateError, template_at
from dispatcher.core.kinds.manifest import template_path, with_infos
from dispatcher.core.kinds.object_status import FoundRequest
from dispatcher.core.kinds.pods.pod_requests import PodSpecError, pod_requests
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.quantity import quantity
from dispatcher.core.model.records.record import ObjectRef, Record
from dispatcher.core.model.resources import Resources
from dispatcher.text import name_of

Json = dict[str, Any]

GROUP: Final = "autoscaling.x-k8s.io"
API_VERSION: Final = f"{GROUP}/v1"
KIND: Final = "ProvisioningRequest"
TEMPLATE_KIND: Final = "PodTemplate"

CONSUME_ANNOTATION: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_ANNOTATION: Final = "autoscaling.x-k8s.io/provisioning-class-name"
PARAMETER_PREFIX: Final = "provreq.kueue.x-k8s.io/"
"""Begins the annotations of an AppWrapper that are parameters of its requests, as in Kueue."""

CHECK: Final = "provisioning"
"""The middle of a request's name."""
MOST_POD_SETS: Final = 32
REQUEST_ITEM: Final = -1
"""Stands for the request where wrapped objects have their index; those of the templates are below it."""
_LONGEST_NAME: Final = 240
"""The longest name of a request: that of a template is longer."""


class ProvisioningError(ValueError):
    """No request for the capacity of this gang can be made; the message says why, and what to change."""


def read_request(found: Mapping[str, Any]) -> FoundRequest:
    """A ProvisioningRequest as the API server has it."""
    spec = found.get("spec")
    named = spec.get("provisioningClassName") if isinstance(spec, Mapping) else None
    return FoundRequest(found["metadata"]["uid"], name_of(named), BUILT_IN.state_of(GROUP, KIND, found))


def request_name(name: str, attempt: int) -> str:
    """The name of the request of an attempt of the AppWrapper `name`."""
    suffix = f"-{CHECK}-{attempt}"
    if len(name) + len(suffix) <= _LONGEST_NAME:
        return f"{name}{suffix}"
    mark = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:5]
    return f"{name[: _LONGEST_NAME - len(suffix) - len(mark) - 1].rstrip('-.')}-{mark}{suffix}"


def pod_annotations(record: Record) -> Mapping[str, str]:
    """The annotations by which the pods of the current attempt use its requested capacity; none without a request."""
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None:
        return {}
    return {
        CONSUME_ANNOTATION: request_name(record.name, attempt.number),
        CLASS_ANNOTATION: attempt.provisioning.asked.name,
    }


def request_ref(record: Record) -> ObjectRef | None:
    """The reference of the request of the current attempt; None if it needs none."""
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None:
        return None
    uid = attempt.provisioning.request_uid
    name = request_name(record.name, attempt.number)
    return ObjectRef(REQUEST_ITEM, API_VERSION, KIND, record.namespace, name, uid)


def refs_of(record: Record) -> tuple[ObjectRef, ...]:
    """The references of all that requests the capacity of the current attempt, in the order of creation."""
    request, attempt = request_ref(record), record.attempt
    if request is None or attempt is None or attempt.provisioning is None:
        return ()
    managed = _managed(record.placed_gang.pod_sets, attempt.provisioning.asked)
    templates = (
        ObjectRef(_item(at), "v1", TEMPLATE_KIND, record.namespace, _template_name(request.name, at))
        for at in range(len(managed))
    )
    return (*templates, request)


def objects_of(
    record: Record, wrapped: Sequence[WrappedObject], given: Mapping[str, str]
) -> tuple[WrappedObject, ...]:
    """The objects that request the capacity of the current attempt, in the order of creation.

    `wrapped` are the wrapped objects of the gang; `given` are parameters by its author: those that the class lets
    authors set count, and no others. Raises `ProvisioningError`.
    """
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None:
        return ()
    asked = attempt.provisioning.asked
    pod_sets = _managed(record.placed_gang.pod_sets, asked)
    if len(pod_sets) > MOST_POD_SETS:
        raise ProvisioningError(
            f"{len(pod_sets)} pod sets need capacity of class {asked.name}, and a ProvisioningRequest has at most "
            f"{MOST_POD_SETS}: wrap fewer sorts of pods in one AppWrapper"
        )
    name = request_name(record.name, attempt.number)
    templates = [
        _template(at, _template_name(name, at), pod_set, wrapped) for at, pod_set in enumerate(pod_sets)
    ]
    spec: Json = {
        "provisioningClassName": asked.name,
        "podSets": [
            {"podTemplateRef": {"name": _template_name(name, at)}, "count": pod_set.count}
            for at, pod_set in enumerate(pod_sets)
        ],
    }
    if parameters := _parameters(asked, given):
        spec["parameters"] = parameters
    request = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    return (*templates, WrappedObject(REQUEST_ITEM, request))


def parameters_in(annotations: Mapping[str, str]) -> dict[str, str]:
    """The parameters of requests that the annotations of an AppWrapper give."""
    return {
        key.removeprefix(PARAMETER_PREFIX): value
        for key, value in annotations.items()
        if key.startswith(PARAMETER_PREFIX)
    }


def refused_parameters(record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters of its author that the request of the current attempt does not have, sorted by name."""
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None:
        return ()
    return tuple(sorted(given.keys() - attempt.provisioning.asked.author_parameters))


def _managed(pod_sets: Sequence[PodSet], asked: ProvisioningClass) -> list[PodSet]:
    return [each for each in pod_sets if each.count > 0 and asked.manages(each.requests)]


def _parameters(asked: ProvisioningClass, given: Mapping[str, str]) -> dict[str, str]:
    by_author = {name: value for name, value in given.items() if name in asked.author_parameters}
    parameters = {**dict(asked.parameters), **by_author}
    if len(parameters) > MOST_PARAMETERS:
        raise ProvisioningError(
            f"{len(parameters)} parameters are given, and a ProvisioningRequest has at most {MOST_PARAMETERS}"
        )
    for name, value in sorted(parameters.items()):
        if max(len(name), len(value)) > LONGEST_PARAMETER:
            raise ProvisioningError(
                f"the parameter {name[:40]} of the ProvisioningRequest has {max(len(name), len(value))} characters: "
                f"at most {LONGEST_PARAMETER} are allowed"
            )
    return parameters


def _item(at: int) -> int:
    return REQUEST_ITEM - 1 - at


def _template_name(request: str, at: int) -> str:
    return f"ppt-{request}-{at}"


def _template(at: int, name: str, pod_set: PodSet, wrapped: Sequence[WrappedObject]) -> WrappedObject:
    """The PodTemplate of a pod set: the template of its pods, with the requests that they will have."""
    written = _written_template(pod_set, wrapped)
    metadata = written.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    try:
        spec = _requesting(dict(written.get("spec") or {}), pod_set.requests)
    except PodSpecError as error:
        where = f"item {pod_set.item}, {pod_set.path}.spec"
        raise ProvisioningError(f"no capacity can be requested for {where}: {error}") from error
    template = {"metadata": kept, "spec": spec}
    body = {"apiVersion": "v1", "kind": TEMPLATE_KIND, "metadata": {"name": name}, "template": template}
    return WrappedObject(_item(at), body)


def _written_template(pod_set: PodSet, wrapped: Sequence[WrappedObject]) -> Mapping[str, Any]:
    """The template of a pod set with the additions of a quota manager; empty where an operator makes it."""
    try:
        return template_at(with_infos(wrapped[pod_set.item]).template, template_path(pod_set.path)).mapping()
    except (TemplateError, IndexError):
        return {}


def _requesting(spec: Json, required: Resources) -> Json:
    """The pod spec with explicit requests that add up to those required.

    The API server makes a limit the request only of pods, not of templates. Raises `PodSpecError`.
    """
    pod_requests(spec)  # nothing below has to think of malformed containers
    containers = [_with_explicit_requests(each) for each in spec.get("containers") or ()]
    containers = containers or [{"name": "pod", "image": "unknown", "resources": {}}]
    if spec.get("initContainers"):
        spec = {**spec, "initContainers": [_with_explicit_requests(each) for each in spec["initContainers"]]}
    stated = pod_requests({**spec, "containers": containers})
    missing = (required - stated).positive_part()
    first = containers[0]
    resources = first.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    own = pod_requests({"containers": [first]}) if missing else Resources()
    for resource, amount in missing.items():
        requests[resource] = quantity(resource, own[resource] + amount)
        if resource in limits or "/" in resource or resource.startswith("hugepages-"):
            limits[resource] = requests[resource]  # the API server refuses less, and overcommitted devices
    found = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    containers[0] = {**first, "resources": {**resources, **found}}
    return {**spec, "containers": containers}


def _with_explicit_requests(container: Mapping[str, Any]) -> Json:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    if not limits:
        return dict(container)
    return {
        **container,
        "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}},
    }
