"""What an AppWrapper asks for, from what its author declared and what its templates say.

Declared demand (`custompodresources`) is believed, as in MCAD, and it alone is charged. How many pods must
run, and the shapes that have to fit nodes, come from the templates where those can be read: what is declared
may add up to the right total in pods that never exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject
from dispatcher.api.mistakes import SpecError
from dispatcher.core.gang import Gang, PodSet
from dispatcher.core.podsets import KINDS, TemplateError, pod_sets_of
from dispatcher.core.quantity import QuantityError, resource_amounts
from dispatcher.core.resources import LARGEST_AMOUNT, Resources

_DECLARATION: Final = "custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]"


class DemandError(SpecError):
    """A spec whose demand cannot be told, so that it can never be dispatched as written."""


def gang_of(spec: AppWrapperSpec) -> Gang:
    """Tell the whole of what has to fit at once; DemandError, and nothing else, if that cannot be told."""
    parts = [_part(wrapped, spec) for wrapped in spec.wrapped]
    demand = _total((part.demand, 1) for part in parts)
    pods = spec.min_available or sum(part.pods for part in parts)
    _check_sizes(demand, pods)
    return Gang(demand, pods, tuple(pod_set for part in parts for pod_set in part.pod_sets))


def _part(wrapped: WrappedObject, spec: AppWrapperSpec) -> Gang:
    """Tell the share of one wrapped object."""
    if wrapped.declared is None:
        return _gang(_derived(wrapped, spec))
    if not wrapped.declared:
        return Gang()
    path = f"{spec.path_of(wrapped)}.custompodresources"
    declared = tuple(_declared(one, f"{path}[{index}]") for index, one in enumerate(wrapped.declared))
    shapes = _derived_or(wrapped, declared)
    return Gang(_gang(declared).demand, _gang(shapes).pods, shapes)


def _gang(pod_sets: tuple[PodSet, ...]) -> Gang:
    demand = _total((pod_set.requests, pod_set.count) for pod_set in pod_sets)
    return Gang(demand, sum(pod_set.count for pod_set in pod_sets), pod_sets)


def _derived(wrapped: WrappedObject, spec: AppWrapperSpec) -> tuple[PodSet, ...]:
    kind = KINDS.get((wrapped.group, wrapped.kind))
    if kind is None:
        problem = f"what the pods of {_named(wrapped)} ask for cannot be told from its template"
        raise DemandError(spec.path_of(wrapped), problem, f"{_remedy(spec)} (`[]` if it makes no pods)")
    try:
        return pod_sets_of(kind, wrapped.template)
    except TemplateError as error:
        template = "generictemplate" if spec.spelling == "v1beta1" else "template"
        path = f"{spec.path_of(wrapped)}.{template}.{error.path}"
        raise DemandError(path, error.problem, f"Correct it, or: {_remedy(spec)}") from error


def _derived_or(wrapped: WrappedObject, declared: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    """Prefer the template's shapes; what was declared stands in for what we cannot read."""
    kind = KINDS.get((wrapped.group, wrapped.kind))
    readable = tuple(pod_set for pod_set in declared if pod_set.count)
    try:
        return readable if kind is None else pod_sets_of(kind, wrapped.template)
    except TemplateError:
        return readable


def _named(wrapped: WrappedObject) -> str:
    return f"a {wrapped.kind} ({wrapped.group})" if wrapped.group else f"a {wrapped.kind}"


def _remedy(spec: AppWrapperSpec) -> str:
    """Name the only place for a declaration: v1beta2's podSets have counts, but no resources."""
    place = "beside the template" if spec.spelling == "v1beta1" else "in resources.GenericItems (v1beta1)"
    return f"Declare it {place}, such as `{_DECLARATION}`"


def _declared(declared: DeclaredPodSet, path: str) -> PodSet:
    """Read a declaration as MCAD does: a limit stands for a request that is absent or 0."""
    requests = _amounts(declared.requests, f"{path}.requests")
    limits = _amounts(declared.limits, f"{path}.limits")
    return PodSet(declared.replicas, Resources({**limits, **requests}))


def _amounts(quantities: Mapping[str, int | str], path: str) -> Resources:
    try:
        return resource_amounts(quantities)
    except QuantityError as error:
        raise DemandError(path, str(error), "Correct the quantity") from error


def _total(parts: Iterable[tuple[Resources, int]]) -> Resources:
    total: dict[str, int] = {}
    for requests, count in parts:
        for name, value in requests.items():
            total[name] = total.get(name, 0) + value * count
    return Resources(total)


def _check_sizes(demand: Resources, pods: int) -> None:
    for name, total in [*demand.items(), ("pods", pods)]:
        if total > LARGEST_AMOUNT:
            most = f"{LARGEST_AMOUNT}{' milli-units' if name == 'cpu' else ''}"
            problem = f"asks for more {name} in total than can be counted (at most {most})"
            raise DemandError("spec", problem, "Correct the counts or the quantities")
