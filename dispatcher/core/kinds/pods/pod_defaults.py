"""What the API server adds to pods at their creation, in one cluster or several, and the charge of a gang with it.

A container without a request and without a limit of a resource gets the `defaultRequest` of the namespace's LimitRange.
A pod with a RuntimeClass gets its overhead. Demand is derived from templates, so both are put into a copy of the
templates first. Where several LimitRanges have a default for one resource, Kubernetes takes any; the largest counts.
Source: https://kubernetes.io/docs/concepts/policy/limit-range/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-overhead/

Clusters have different defaults, and the demand of a gang is derived for each. Intake reads the defaults from the
clusters, `would` from the leader's snapshot. Both join them, and derive the charge, with the functions of this module,
so that both count a gang in the same way. Commands that read a snapshot import it without the parser of AppWrappers.

A pod has its policy of preemption from its priority class, and may repeat it: `preemptionPolicy: Never`. A gang goes as
a whole: one pod that may not preempt is enough.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#non-preempting-priority-class
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from operator import is_not
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.kinds.template_fields import is_pod_template
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.records.preemption import PREEMPT_NEVER

if TYPE_CHECKING:
    from dispatcher.api.appwrapper import AppWrapperSpec
    from dispatcher.core.kinds.demand import Charge

MOST_SMALLER: Final = 8
"""Different defaults of clusters for which a demand is derived; in clusters with others the largest counts."""
MOST_CLASSES: Final = 16
"""RuntimeClasses of one AppWrapper that count; more than any cluster has."""
MOST_NAMESPACES: Final = 5000
"""Namespaces with default requests that the survey of one cluster holds."""
MOST_SURVEYED_CLASSES: Final = 500
"""RuntimeClasses with an overhead that the survey of one cluster holds; of more than these it holds none."""

Quantities = Mapping[str, object]


class PodDefaults(Struct, frozen=True):
    """Default requests of each container, and overheads by the name of the RuntimeClass; quantities as written."""

    requests: Mapping[str, object] = field(default_factory=dict)
    overheads: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.requests or self.overheads)


NO_DEFAULTS: Final = PodDefaults()


MOST_RESOURCES: Final = 32
"""Resources of one LimitRange or RuntimeClass that count; more than any cluster has."""


def add_requests(found: dict[str, dict[str, object]], limit_ranges: Iterable[object]) -> None:
    """Add the default requests of these LimitRanges to those `found` in each namespace; the largest count."""
    for limit_range in limit_ranges:
        namespace = (_object(limit_range, "metadata") or {}).get("namespace")
        requests = default_requests([limit_range])
        if isinstance(namespace, str) and requests:
            _raise(found.setdefault(namespace, {}), requests)


def overheads_by_class(runtime_classes: Iterable[object]) -> dict[str, dict[str, object]]:
    """The overheads of these RuntimeClasses, by name; without the classes that have none."""
    found: dict[str, dict[str, object]] = {}
    for each in _objects(list(runtime_classes)):
        name, of_class = (_object(each, "metadata") or {}).get("name"), overhead(each)
        if isinstance(name, str) and of_class:
            found[name] = of_class
    return found


def default_requests(limit_ranges: Iterable[object]) -> dict[str, object]:
    """The default requests of containers, by resource, of these LimitRanges; anything unreadable is left out."""
    found: dict[str, object] = {}
    for limit_range in limit_ranges:
        for limit in _objects((_object(limit_range, "spec") or {}).get("limits")):
            if limit.get("type") == "Container":
                _raise(found, _readable(limit.get("defaultRequest")))
    return found


def overhead(runtime_class: Mapping[str, Any]) -> dict[str, object]:
    """The overhead of a pod with this RuntimeClass, by resource; anything unreadable is left out."""
    return _readable(_object(_object(runtime_class, "overhead"), "podFixed"))


def largest(each_cluster: Iterable[PodDefaults]) -> PodDefaults:
    """The largest default request of each resource, and the largest overheads, of these defaults."""
    requests: dict[str, object] = {}
    overheads: dict[str, dict[str, object]] = {}
    for defaults in each_cluster:
        _raise(requests, defaults.requests)
        for name, each in defaults.overheads.items():
            _raise(overheads.setdefault(name, {}), each)
    return PodDefaults(requests, overheads)


def _raise(found: dict[str, object], quantities: Mapping[str, object]) -> None:
    """Put each of these quantities into `found`, unless that has a larger one of the resource."""
    for name, quantity in quantities.items():
        if _amount(name, quantity) > _amount(name, found.get(name)):
            found[name] = quantity


def _readable(quantities: object) -> dict[str, object]:
    """The positive quantities of a ResourceList that can be read, of at most `MOST_RESOURCES` resources."""
    items = quantities.items() if isinstance(quantities, Mapping) else ()
    return dict(islice(((name, each) for name, each in items if _amount(name, each)), MOST_RESOURCES))


def runtime_classes(spec: AppWrapperSpec) -> frozenset[str]:
    """The RuntimeClasses that pod templates name without an overhead of their own."""
    templates = (template for wrapped in spec.wrapped for template in pod_templates(wrapped.template))
    specs = (template["spec"] for template in templates)
    named = (each.get("runtimeClassName") for each in specs if not each.get("overhead"))
    return frozenset(name for name in named if isinstance(name, str) and name)


def with_defaults(spec: AppWrapperSpec, defaults: PodDefaults) -> AppWrapperSpec:
    """The spec with these defaults in its pod templates; the same value if there are none."""
    if not defaults:
        return spec
    wrapped = tuple(replace(each, template=_defaulted(each.template, defaults)) for each in spec.wrapped)
    return replace(spec, wrapped=wrapped)


def pod_templates(value: object) -> Iterator[Mapping[str, Any]]:
    """The pod templates in a wrapped object, in no order."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            if is_pod_template(each):
                yield each
            left += each.values()
        elif isinstance(each, list):
            left += each


def _defaulted(value: Any, defaults: PodDefaults) -> Any:  # noqa: ANN401  # raw JSON
    """A copy of the value in which pod templates have the defaults; the value itself if it has no pod template."""
    if isinstance(value, Mapping):
        members = {key: _defaulted(each, defaults) for key, each in value.items()}
        if is_pod_template(members):
            members["spec"] = _defaulted_pod(members["spec"], defaults)
        return members if any(members[key] is not each for key, each in value.items()) else value
    if isinstance(value, list):
        elements = [_defaulted(each, defaults) for each in value]
        return elements if any(map(is_not, elements, value)) else value
    return value


def _defaulted_pod(spec: Mapping[str, Any], defaults: PodDefaults) -> Mapping[str, Any]:
    """The pod spec with the defaults; the same value if it has them."""
    added: dict[str, Any] = {}
    for name in ("initContainers", "containers"):
        containers = spec.get(name)
        if isinstance(containers, list):
            defaulted = [_defaulted_container(each, defaults.requests) for each in containers]
            if any(map(is_not, defaulted, containers)):
                added[name] = defaulted
    of_class = defaults.overheads.get(str(spec.get("runtimeClassName")))
    if of_class and not spec.get("overhead"):
        added["overhead"] = dict(of_class)
    return {**spec, **added} if added else spec


def _defaulted_container(container: Any, requests: Mapping[str, object]) -> Any:  # noqa: ANN401  # raw JSON
    """The container with the default requests; a malformed one is left for the reader to refuse."""
    resources = _object(container, "resources")
    own, limits = _object(resources, "requests"), _object(resources, "limits")
    if own is None or limits is None:
        return container
    missing = {
        name: each for name, each in requests.items() if own.get(name) is None and limits.get(name) is None
    }
    return {**container, "resources": {**resources, "requests": {**own, **missing}}} if missing else container


def _object(parent: Any, key: str) -> Any:  # noqa: ANN401  # raw JSON
    """An object inside another, empty if absent; None if it, or the other, is none."""
    value = parent.get(key) if isinstance(parent, Mapping) else ()
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else None


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, Mapping))


def _amount(name: str, quantity: object) -> int:
    try:
        return 0 if quantity is None else amount(name, quantity)
    except QuantityError:
        return 0


def never_preempts(spec: AppWrapperSpec, never_preempting: Container[str]) -> bool:
    """True if a pod of the gang may preempt no pod; `never_preempting` are the names of the classes that say so.

    O(the spec), as a spec is walked for its templates.
    """
    for wrapped in spec.wrapped:
        for template in pod_templates(wrapped.template):
            pod = template["spec"]
            name = pod.get("priorityClassName")
            if pod.get("preemptionPolicy") == PREEMPT_NEVER or (
                isinstance(name, str) and name in never_preempting
            ):
                return True
    return False


class ChargeRule(StrEnum):
    """How a declaration is charged where the demand can be derived from the template."""

    LARGER = "larger"
    """The larger of declared and derived, of each resource; a kind without pods is charged nothing."""
    TRUSTED = "trusted"
    """The declared demand, whatever the template says, as in MCAD."""


class ClusterDefaults(Struct, frozen=True):
    """The defaults of pods in the clusters that a gang may go to.

    `largest` has the largest of each resource. `own` are the defaults of each cluster by name, where they are known.
    """

    largest: PodDefaults = NO_DEFAULTS
    own: Mapping[str, PodDefaults] = field(default_factory=dict)

    @classmethod
    def of(cls, own: Mapping[str, PodDefaults], another: PodDefaults | None = None) -> ClusterDefaults:
        """The defaults of these clusters; `another` counts among the largest, for clusters that are not known."""
        return cls(largest([*own.values(), *([] if another is None else [another])]), own)

    def __bool__(self) -> bool:
        return bool(self.largest)

    def smaller(self) -> list[tuple[PodDefaults, list[str]]]:
        """The different defaults that are not the largest, each with its clusters; at most `MOST_SMALLER`."""
        found: list[tuple[PodDefaults, list[str]]] = []
        for name in sorted(self.own):
            defaults = self.own[name]
            names = next((names for known, names in found if known == defaults), None)
            if names is not None:
                names.append(name)
            elif defaults != self.largest and len(found) < MOST_SMALLER:
                found.append((defaults, [name]))
        return found


class DefaultsSurvey(Struct, frozen=True):
    """All defaults of one connected cluster: default requests by namespace, and overheads by RuntimeClass.

    None stands for those that the cluster does not show. Namespaces and classes without defaults are left out. With
    `has_more`, default requests of further namespaces exist; at most `MOST_NAMESPACES` are held.
    """

    requests: Mapping[str, Quantities] | None = None
    overheads: Mapping[str, Quantities] | None = None
    has_more: bool = False

    def read(self, namespace: str, classes: Iterable[str]) -> PodDefaults | None:
        """The defaults of pods with these RuntimeClasses in a namespace; None if they are not known."""
        requests = self.requests_in(namespace)
        overheads = {name: self.overhead_of(name) for name in sorted(classes)}
        if requests is None or None in overheads.values():
            return None
        return PodDefaults(requests, {name: each for name, each in overheads.items() if each})

    def requests_in(self, namespace: str) -> Quantities | None:
        """The default requests in a namespace, maybe none; None if they are not known."""
        if self.requests is None or (self.has_more and namespace not in self.requests):
            return None
        return self.requests.get(namespace, {})

    def overhead_of(self, name: str) -> Quantities | None:
        """The overhead of a RuntimeClass, maybe none; None if it is not known."""
        return None if self.overheads is None else self.overheads.get(name, {})


def charge_in_clusters(
    spec: AppWrapperSpec, defaults: ClusterDefaults, charge: Callable[[AppWrapperSpec], Charge]
) -> Charge:
    """The charge with the largest defaults; its gang has its demand in clusters with smaller ones, too.

    `charge` derives the charge of a spec. Raises the `SpecError` that it raises for the spec without defaults.
    """
    try:
        found = charge(with_defaults(spec, defaults.largest))
        gangs = [(charge(with_defaults(spec, each)).gang, names) for each, names in defaults.smaller()]
    except SpecError:
        # Defaults of a cluster make no AppWrapper invalid: without them only its own errors are raised.
        return charge(spec)
    smaller = {name: gang for gang, names in gangs for name in names}
    return replace(found, gang=found.gang.with_smaller(smaller)) if smaller else found
