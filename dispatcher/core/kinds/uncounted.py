"""What pods take beyond the requests of their template, and what no template can tell.

A RuntimeClass adds its overhead and a LimitRange its defaults when a pod is created; both are objects of a cluster. The
devices of a resource claim are allocated by kube-scheduler and are no resource of the pod.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-overhead/,
https://kubernetes.io/docs/concepts/policy/limit-range/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dispatcher.api.spec_errors import quoted
from dispatcher.core.kinds.fields import Field
from dispatcher.core.kinds.server_fields import is_pod_template

_DEFAULTED: Final = ("cpu", "memory")
"""The resources for which LimitRanges usually have defaults."""


def unknowns(template: Field) -> Iterator[str]:
    """A sentence for each part of the requests of a readable pod template that depends on a cluster."""
    spec = template.at("spec")
    runtime_class = spec.at("runtimeClassName")
    if runtime_class.value and not spec.at("overhead").value:
        name = quoted(runtime_class.value)
        yield f"{runtime_class.path}: the RuntimeClass {name} may add its overhead to every pod"
    for container in (*spec.each("initContainers.*"), *spec.each("containers.*")):
        missing = [
            name for name in _DEFAULTED if not _has_request(spec, name) and not _has_request(container, name)
        ]
        if missing:
            names = " and ".join(missing)
            yield f"{container.path}: has no request of {names}; a LimitRange of the namespace may add one"
    for path in device_claims(template):
        yield f"{path}: the devices of resource claims are not counted"


def device_claims(template: Field) -> tuple[str, ...]:
    """The path of the claims by which pods of this template get devices, readable or not; empty without claims."""
    claims = template.at("spec.resourceClaims")
    return (claims.path,) if claims.value else ()


def device_claims_anywhere(wrapped: Field) -> tuple[str, ...]:
    """The paths of resource claims in all pod templates of an object, wherever these are."""
    found: list[str] = []
    left = [wrapped]
    while left:
        field = left.pop()
        if isinstance(field.value, Mapping | list | tuple):
            left += field.elements()
        if isinstance(field.value, Mapping) and is_pod_template(field.value):
            found += device_claims(field)
    return tuple(sorted(found))


def _has_request(parent: Field, resource: str) -> bool:
    """True if a container or a pod requests a resource, by a request or a limit."""
    resources = parent.at("resources")
    amounts = (resources.at(part).value for part in ("requests", "limits"))
    return any(isinstance(each, dict) and each.get(resource) is not None for each in amounts)
