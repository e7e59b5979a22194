"""What an AppWrapper asks for, from what its author declared and what its templates say.

Declared demand (`custompodresources`) is believed, as in MCAD, and it alone is charged. How many pods must
run, and the shapes that have to fit nodes, come from the templates where those can be read: what is declared
may add up to the right total in pods that never exist. v1beta2's `podSets` declare less, only which templates
there are and how many pods are made of each: they are needed for kinds we do not know, and for the others
they must agree with what we find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, TemplatePodSet, WrappedObject
from dispatcher.api.mistakes import SpecError, quoted
from dispatcher.core.gang import Gang, PodSet
from dispatcher.core.podsets import KINDS, UNTOLD, Kind, Pods, TemplateError, pod_set_at, pods_of
from dispatcher.core.quantity import QuantityError, resource_amounts
from dispatcher.core.resources import LARGEST_AMOUNT, Resources

_DECLARATION: Final = "custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]"
_POD_SETS: Final = "podSets: [{path: template.spec.template, replicas: 2}]"
_MOST_POD_SETS: Final = 8
"""Of one component; the upstream of v1beta2 takes no more either, because Kueue does not."""


class DemandError(SpecError):
    """A spec whose demand cannot be told, so that it can never be dispatched as written."""


def gang_of(spec: AppWrapperSpec) -> Gang:
    """Tell the whole of what has to fit at once; DemandError, and nothing else, if that cannot be told."""
    parts = [_part(wrapped, spec) for wrapped in spec.wrapped]
    demand = _total((part.demand, 1) for part in parts)
    pods = spec.min_available or sum(part.pods for part in parts)
    _check_sizes(demand, pods)
    return Gang(demand, pods, tuple(pod_set for part in parts for pod_set in part.pod_sets))


def pods_by_item(spec: AppWrapperSpec) -> tuple[int, ...]:
    """How many pods each wrapped object makes, in their order; 0 where that cannot be told."""
    return tuple(_pods_or_none(wrapped, spec) for wrapped in spec.wrapped)


def _pods_or_none(wrapped: WrappedObject, spec: AppWrapperSpec) -> int:
    try:
        return _part(wrapped, spec).pods
    except DemandError:
        return 0  # admitted by an earlier release


def _part(wrapped: WrappedObject, spec: AppWrapperSpec) -> Gang:
    """Tell the share of one wrapped object."""
    if wrapped.pod_sets:
        return _gang(_pointed_out(wrapped, spec))
    if wrapped.declared is None:
        return _gang(_derived(wrapped, spec))
    if not wrapped.declared:
        return Gang()
    path = f"{spec.path_of(wrapped)}.custompodresources"
    declared = tuple(_declared(one, f"{path}[{index}]") for index, one in enumerate(wrapped.declared))
    found = _derived_or(wrapped, declared)
    return Gang(_gang(_all_members(declared)).demand, found.members, found.sets)


def _gang(pods: Pods) -> Gang:
    demand = _total((pod_set.requests, pod_set.count) for pod_set in pods.sets)
    return Gang(demand, pods.members, pods.sets)


def _all_members(pod_sets: tuple[PodSet, ...]) -> Pods:
    return Pods(pod_sets, sum(pod_set.count for pod_set in pod_sets))


def _derived(wrapped: WrappedObject, spec: AppWrapperSpec) -> Pods:
    kind = KINDS.get((wrapped.group, wrapped.kind))
    if kind is None:
        raise DemandError(spec.path_of(wrapped), _why_untold(wrapped), _remedy_for_unknown(spec))
    try:
        return pods_of(kind, wrapped.template)
    except TemplateError as error:
        path = f"{spec.path_of(wrapped)}.{_template_field(spec)}.{error.path}"
        raise DemandError(path, error.problem, _remedy_for_unreadable(spec)) from error


def _derived_or(wrapped: WrappedObject, declared: tuple[PodSet, ...]) -> Pods:
    """Prefer the template's shapes; what was declared stands in for what we cannot read."""
    kind = KINDS.get((wrapped.group, wrapped.kind))
    readable = _all_members(tuple(pod_set for pod_set in declared if pod_set.count))
    try:
        return readable if kind is None else pods_of(kind, wrapped.template)
    except TemplateError:
        return readable


def _pointed_out(wrapped: WrappedObject, spec: AppWrapperSpec) -> Pods:
    """Follow podSets, for a kind we do not know; for one we know they only have to agree with us."""
    path = f"{spec.path_of(wrapped)}.podSets"
    if len(wrapped.pod_sets) > _MOST_POD_SETS:
        problem = f"has {len(wrapped.pod_sets)} entries, and at most {_MOST_POD_SETS} are taken"
        raise DemandError(path, problem, "Spread them over several components")
    pod_sets = tuple(_at(one, wrapped, f"{path}[{index}]") for index, one in enumerate(wrapped.pod_sets))
    told = _all_members(tuple(pod_set for pod_set in pod_sets if pod_set.count))
    kind = KINDS.get((wrapped.group, wrapped.kind))
    return told if kind is None else _agreed(told, kind, wrapped, spec)


def _at(pod_set: TemplatePodSet, wrapped: WrappedObject, path: str) -> PodSet:
    try:
        return pod_set_at(wrapped.template, pod_set.path, pod_set.replicas)
    except TemplateError as error:
        problem, remedy = _astray(pod_set.path, error)
        raise DemandError(f"{path}.path", problem, remedy) from error


def _astray(path: str, error: TemplateError) -> tuple[str, str]:
    """Tell a path that leads to no pod template from one that leads to a bad one."""
    if error.path != path:
        return f"the template at {quoted(path)} cannot be read: {error}", "Correct the template"
    remedy = "Name where the pod template is, beginning with `template` for the wrapped object"
    return f"{quoted(path)} {error.problem}", remedy


def _agreed(told: Pods, kind: Kind, wrapped: WrappedObject, spec: AppWrapperSpec) -> Pods:
    """Hold what was told against what we find; a suspended object has only what was told to reserve."""
    found = _derived(wrapped, spec)
    if kind.is_suspended(wrapped.template):
        return Pods(told.sets)
    if told.members not in {found.members, sum(pod_set.count for pod_set in found.sets)}:
        problem = f"counts {told.members} pods, but {_named(wrapped)} written like this makes {found.members}"
        remedy = "Correct the replicas, or leave podSets out"
        raise DemandError(f"{spec.path_of(wrapped)}.podSets", problem, remedy)
    return found


def _named(wrapped: WrappedObject) -> str:
    return f"a {wrapped.kind} ({wrapped.group})" if wrapped.group else f"a {wrapped.kind}"


def _why_untold(wrapped: WrappedObject) -> str:
    problem = f"what the pods of {_named(wrapped)} ask for cannot be told from its template"
    why = UNTOLD.get((wrapped.group, wrapped.kind))
    return f"{problem}: {why}" if why else problem


def _remedy_for_unknown(spec: AppWrapperSpec) -> str:
    """Name the places for a declaration: v1beta2's podSets cannot say that there are no pods."""
    if spec.spelling == "v1beta1":
        return f"Declare it beside the template, such as `{_DECLARATION}` (`[]` if it makes no pods)"
    in_v1beta1 = "wrap it in resources.GenericItems (v1beta1) with `custompodresources: []`"
    return f"Say where its pod templates are, such as `{_POD_SETS}`; if it makes no pods, {in_v1beta1}"


def _remedy_for_unreadable(spec: AppWrapperSpec) -> str:
    """Ask for a correction: v1beta2's podSets could not help, because they give no resources."""
    if spec.spelling == "v1beta2":
        return "Correct the template"
    return f"Correct the template, or declare what its pods ask for beside it, such as `{_DECLARATION}`"


def _template_field(spec: AppWrapperSpec) -> str:
    return "generictemplate" if spec.spelling == "v1beta1" else "template"


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
