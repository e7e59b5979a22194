"""The requests of one pod by the scheduler's own rule (component-helpers `PodRequests`), from raw JSON.

Works on pod templates, as users write them, and on live pods. It ignores a LimitRange's defaults and a RuntimeClass's
overhead, which are added to pods only at their creation, and sizes that an in-place resize has granted and not yet
written into the spec. The `pods` resource is left out (see `core.scheduling.capacity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.resources import Resources

Container: TypeAlias = Mapping[str, Any]
Amounts: TypeAlias = dict[str, int]
"""Amounts by name. Unlike `Resources` it has zeros: a request of 0 is not an absent one."""


class PodSpecError(ValueError):
    """The API server would refuse this pod spec; the message begins with the field inside it."""


def pod_requests(pod_spec: Mapping[str, Any], limits_are_defaults: bool = True) -> Resources:
    """Add up the requests of one pod with this spec, in base units.

    The API server replaces a missing request by the limit when a pod is created. So templates need this rule, and live
    pods (`limits_are_defaults=False`, which is faster) do not.
    """
    total: dict[str, int] = {}
    for _, requests in _containers(pod_spec, "containers", limits_are_defaults):
        _add(total, requests)
    if pod_spec.get("initContainers"):
        _add_init_containers(total, _containers(pod_spec, "initContainers", limits_are_defaults))
    if pod_spec.get("resources"):
        _replace_by_pod_level(total, _mapping(pod_spec, "resources"), limits_are_defaults)
    if pod_spec.get("overhead"):
        _add(total, _amounts(pod_spec, "overhead"))
    return Resources(total)


def _add_init_containers(total: Amounts, containers: Iterable[tuple[Container, Amounts]]) -> None:
    """Adds the largest sum at any moment: init containers run one after the other; restartable ones stay."""
    restartable: Amounts = {}
    peak: Amounts = {}
    for container, requests in containers:
        moment = dict(restartable)
        _add(moment, requests)
        if container.get("restartPolicy") == "Always":
            _add(total, requests)
            restartable = moment
        _raise_to(peak, moment)
    _raise_to(total, peak)


def _replace_by_pod_level(total: Amounts, resources: Mapping[str, Any], limits_are_defaults: bool) -> None:
    """Replaces the sum by pod-level requests, or by a pod-level limit where no container has a request.

    Hugepages are the exception: they cannot be overcommitted, so their limit always is the request.
    """
    try:
        requests = _amounts(resources, "requests")
        limits = _amounts(resources, "limits") if limits_are_defaults else {}
    except PodSpecError as error:
        raise PodSpecError(f"resources.{error}") from error
    for name, limit in limits.items():
        if name not in requests and (name not in total or name.startswith("hugepages-")):
            requests[name] = limit
    total.update({name: value for name, value in requests.items() if _is_pod_level(name)})


def _is_pod_level(name: str) -> bool:
    return name in {"cpu", "memory"} or name.startswith("hugepages-")


def _containers(
    pod_spec: Mapping[str, Any], field: str, limits_are_defaults: bool
) -> Iterator[tuple[Container, Amounts]]:
    containers = pod_spec.get(field) or ()
    if not isinstance(containers, list | tuple):
        raise PodSpecError(f"{field} must be a list")
    for index, container in enumerate(containers):
        if not isinstance(container, Mapping):
            raise PodSpecError(f"{field}[{index}] must be an object")
        try:
            yield container, _container_requests(container, limits_are_defaults)
        except PodSpecError as error:
            raise PodSpecError(f"{field}[{index}].{error}") from error


def _container_requests(container: Container, limits_are_defaults: bool) -> Amounts:
    resources = _mapping(container, "resources")
    try:
        requests = _amounts(resources, "requests")
        if limits_are_defaults and resources.get("limits"):
            return {**_amounts(resources, "limits"), **requests}
    except PodSpecError as error:
        raise PodSpecError(f"resources.{error}") from error
    return requests


def _amounts(parent: Mapping[str, Any], field: str) -> Amounts:
    """Reads a ResourceList; a null counts as absent (a limit may replace it)."""
    written = _mapping(parent, field)
    try:
        return {name: amount(name, value) for name, value in written.items() if value is not None}
    except QuantityError as error:
        raise PodSpecError(f"{field}: {error}") from error


def _mapping(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PodSpecError(f"{field} must be an object")
    return value


def _add(total: Amounts, other: Amounts) -> None:
    for name, value in other.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, other: Amounts) -> None:
    for name, value in other.items():
        total[name] = max(total.get(name, 0), value)
