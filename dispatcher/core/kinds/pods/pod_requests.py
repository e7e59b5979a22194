"""The requests of one pod by the scheduler's own rule (component-helpers `PodRequests`), from raw JSON.

`pod_requests` works on pod templates, as users write them. A LimitRange's defaults and a RuntimeClass's overhead are
added to pods only at their creation; `pod_defaults` puts them into templates. `live_pod_requests` works on pods: after
an in-place resize the status has the amounts that are granted. The `pods` resource is left out (see
`core.scheduling.capacity.capacity_ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dispatcher.api.spec_errors import joined
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.resources import Resources

Container: TypeAlias = Mapping[str, Any]
Amounts: TypeAlias = dict[str, int]
"""Amounts by name. Unlike `Resources` it has zeros: a request of 0 is not an absent one."""


class PodSpecError(ValueError):
    """The API server would refuse this pod spec: `path` is the field inside it, `problem` the error there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def within(self, parent: str) -> PodSpecError:
        """The same error of the object that has `parent` as a field."""
        return PodSpecError(f"{parent}.{self.path}", self.problem)


def pod_requests(pod_spec: Mapping[str, Any], limits_are_defaults: bool = True) -> Resources:
    """Add up the requests of one pod with this spec, in base units.

    The API server replaces a missing request by the limit when a pod is created. So templates need this rule, and live
    pods (`limits_are_defaults=False`, which is faster) do not.
    """
    total = _of_containers(pod_spec, _requests_or_limits if limits_are_defaults else _requests)
    if pod_spec.get("resources"):
        _replace_by_pod_level(total, _pod_level_requests(pod_spec, limits_are_defaults, total))
    if pod_spec.get("overhead"):
        _add(total, _amounts(pod_spec, "overhead"))
    return Resources(total)


def live_pod_requests(pod_spec: Mapping[str, Any], status: Mapping[str, Any]) -> Resources:
    """Add up the requests of a live pod, in base units: of each container the larger of requested and granted.

    Granted amounts alone count for a resize that the kubelet refuses as infeasible. A pod whose granted amounts are
    those of its spec costs no more than its spec.
    Source: https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/ and `PodRequests` with
    `UseStatusResources`. Newer versions compare sums over all containers, which are never larger.
    """
    if not _is_resized(pod_spec, status):
        return pod_requests(pod_spec, limits_are_defaults=False)
    granted = _Granted.of(status)
    total = _of_containers(pod_spec, granted.of_container)
    if pod_spec.get("resources"):
        _replace_by_pod_level(total, granted.of_pod(pod_spec, status, total))
    if pod_spec.get("overhead"):
        _add(total, _amounts(pod_spec, "overhead"))
    return Resources(total)


def _is_resized(pod_spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """True if the status has granted amounts that may differ from the spec; compares the API server's spelling."""
    requested = None
    for field in _STATUSES:
        for container in status.get(field) or ():
            resources, allocated = container.get("resources"), container.get("allocatedResources")
            if not (resources or allocated):
                continue
            if requested is None:
                requested = _requested_by_name(pod_spec)
            own = requested.get(container.get("name"))
            if (allocated and allocated != own) or (resources and (resources.get("requests") or own) != own):
                return True
    return bool(pod_spec.get("resources") and (status.get("resources") or status.get("allocatedResources")))


_STATUSES: Final = ("containerStatuses", "initContainerStatuses")


def _requested_by_name(pod_spec: Mapping[str, Any]) -> dict[Any, Any]:
    containers = (*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ()))
    return {each.get("name"): (each.get("resources") or {}).get("requests") for each in containers}


class _Granted(Struct, frozen=True):
    """The status of a pod's containers by name, and whether its resize is infeasible."""

    statuses: Mapping[Any, Mapping[str, Any]]
    is_infeasible: bool

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> _Granted:
        statuses = (each for field in _STATUSES for each in status.get(field) or ())
        pending = (each for each in status.get("conditions") or () if each.get("type") == "PodResizePending")
        is_infeasible = any(each.get("reason") == "Infeasible" for each in pending)
        return cls({each.get("name"): each for each in statuses}, is_infeasible)

    def of_container(self, container: Container) -> Amounts:
        status = self.statuses.get(container.get("name"), {})
        return self._larger(_requests(container), _granted_amounts(status))

    def of_pod(self, pod_spec: Mapping[str, Any], status: Mapping[str, Any], total: Amounts) -> Amounts:
        """The pod-level requests; granted ones have the overhead in them."""
        requested = _pod_level_requests(pod_spec, limits_are_defaults=False, total=total)
        if not any(map(_is_pod_level, requested)):
            return requested  # only a limit of the pod is set: its containers' requests count
        overhead = _amounts(pod_spec, "overhead")
        granted = {name: value - overhead.get(name, 0) for name, value in _granted_amounts(status).items()}
        return self._larger(requested, granted)

    def _larger(self, requested: Amounts, granted: Amounts) -> Amounts:
        larger = {} if self.is_infeasible and granted else dict(requested)
        _raise_to(larger, granted)
        return larger


def _granted_amounts(status: Mapping[str, Any]) -> Amounts:
    """The larger of the amounts that the kubelet has allocated and those that it has put into effect."""
    granted = _amounts(status, "allocatedResources")
    _raise_to(granted, _amounts(_mapping(status, "resources"), "requests"))
    return granted


def _of_containers(pod_spec: Mapping[str, Any], read: Callable[[Container], Amounts]) -> Amounts:
    """The sum of the containers, or the peak of the init containers where that is larger."""
    total: Amounts = {}
    for _, requests in _containers(pod_spec, "containers", read):
        _add(total, requests)
    if pod_spec.get("initContainers"):
        _add_init_containers(total, _containers(pod_spec, "initContainers", read))
    return total


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


def _replace_by_pod_level(total: Amounts, requests: Amounts) -> None:
    total.update({name: value for name, value in requests.items() if _is_pod_level(name)})


def _pod_level_requests(pod_spec: Mapping[str, Any], limits_are_defaults: bool, total: Amounts) -> Amounts:
    """The requests of the pod itself, or its limit of a resource that no container requests.

    Hugepages are the exception: they cannot be overcommitted, so their limit always is the request.
    """
    resources = _mapping(pod_spec, "resources")
    try:
        requests = _amounts(resources, "requests")
        limits = _amounts(resources, "limits") if limits_are_defaults else {}
    except PodSpecError as error:
        raise error.within("resources") from error
    for name, limit in limits.items():
        if name not in requests and (name not in total or name.startswith("hugepages-")):
            requests[name] = limit
    return requests


def _is_pod_level(name: str) -> bool:
    return name in {"cpu", "memory"} or name.startswith("hugepages-")


def _containers(
    pod_spec: Mapping[str, Any], field: str, read: Callable[[Container], Amounts]
) -> Iterator[tuple[Container, Amounts]]:
    containers = pod_spec.get(field) or ()
    if not isinstance(containers, list | tuple):
        raise PodSpecError(field, "must be a list")
    for index, container in enumerate(containers):
        if not isinstance(container, dict):
            raise PodSpecError(f"{field}[{index}]", "must be an object")
        try:
            yield container, read(container)
        except PodSpecError as error:
            raise error.within(f"{field}[{index}]") from error


def _requests_or_limits(container: Container) -> Amounts:
    """The requests of a container in a template."""
    requests, resources = _requests(container), _mapping(container, "resources")
    if not resources.get("limits"):
        return requests
    try:
        return {**_amounts(resources, "limits"), **requests}
    except PodSpecError as error:
        raise error.within("resources") from error


def _requests(container: Container) -> Amounts:
    """The requests of a container in a live pod."""
    resources = _mapping(container, "resources")
    try:
        return _amounts(resources, "requests")
    except PodSpecError as error:
        raise error.within("resources") from error


def _amounts(parent: Mapping[str, Any], field: str) -> Amounts:
    """Reads a ResourceList; a null counts as absent (a limit may replace it)."""
    written = _mapping(parent, field)
    return {name: _amount(name, value, field) for name, value in written.items() if value is not None}


def _amount(name: str, written: object, field: str) -> int:
    try:
        return amount(name, written)
    except QuantityError as error:
        problem = str(error).removeprefix(f"{name}: ")
        raise PodSpecError(joined(field, name), problem) from error


def _mapping(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PodSpecError(field, "must be an object")
    return value


def _add(total: Amounts, other: Amounts) -> None:
    for name, value in other.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, other: Amounts) -> None:
    for name, value in other.items():
        total[name] = max(total.get(name, 0), value)
