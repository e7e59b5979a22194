"""The demand of an AppWrapper, from its author's declarations and from its templates.

Declared demand (`custompodresources`) is a claim. Each item is charged the larger of the declared demand and the demand
of its readable templates, resource by resource, and a kind that makes no pods is charged nothing. The rule `TRUSTED`
charges the declared demand alone, as MCAD did. An object of a kind without derivable pods is charged its declared
demand. A declaration that is not charged as written makes a warning for its author.

The number of pods that must run and the pod sets come from the templates where these can be read: declared pods may add
up to the right total without existing. v1beta2's `podSets` only declare the paths of templates and the number of pods:
unknown kinds need them, and for known kinds they must agree with the derived pod sets.

No template tells all that pods take. A RuntimeClass adds its overhead and a LimitRange its defaults when a pod is
created; both are objects of a cluster. The devices of a resource claim are allocated by kube-scheduler and are no
resource of the pod.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-overhead/,
https://kubernetes.io/docs/concepts/policy/limit-range/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, TemplatePodSet, WrappedObject
from dispatcher.api.spec_errors import SpecError, quoted
from dispatcher.core.kinds.built_in import KnownKind
from dispatcher.core.kinds.fields import ConstraintError, Field, TemplateError, template_at
from dispatcher.core.kinds.manifest import with_infos
from dispatcher.core.kinds.pods.affinity import Template, rules_between
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.pods.pod_rules import Kind
from dispatcher.core.kinds.pods.podsets import Pods, is_template_of, pod_set_at, pods_of, readable_pods_of
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.kinds.template_fields import is_pod_template
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.term_bounds import MOST_OF_GANGS, OwnTerms, excess_of
from dispatcher.core.model.quantity import QuantityError, in_words, resource_amounts
from dispatcher.core.model.resources import LARGEST_AMOUNT, NOTHING, Resources, is_device
from dispatcher.text import counted
from dispatcher.values import equal_without

_DECLARATION: Final = "custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]"
_POD_SETS: Final = "podSets: [{path: template.spec.template, replicas: 2}]"
_MOST_NAMED: Final = 8
"""Resources that a warning names."""
_REMEDY_FOR_PATH: Final = "Name where the pod template is, beginning with `template` for the wrapped object"
_MOST_POD_SETS: Final = 8
"""The most pod sets of one component; v1beta2 and Kueue have the same bound."""


class DemandError(SpecError):
    """The demand of a spec cannot be derived: the AppWrapper can never be dispatched as written."""


class Part(Struct, frozen=True):
    """The part of one wrapped object in a gang; `claimed` is its declared total, charged or not.

    `templates` are the templates of the pod sets; there are none where the declaration takes the place of any.
    `labelled` are those of all pod sets with the labels of their pods, or none.
    """

    gang: Gang
    claimed: Resources = NOTHING
    warning: str = ""
    templates: tuple[Field, ...] = ()
    labelled: tuple[Template, ...] = ()


@equal_without("parts")
class Charge(Struct, frozen=True):
    """The gang as it is charged, with warnings for its author and the part of each wrapped object, in their order."""

    gang: Gang
    warnings: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def differences(self) -> tuple[str, ...]:
        """A sentence for each declaration that differs from its template."""
        return tuple(part.warning for part in self.parts if part.warning)


def charge_of(spec: AppWrapperSpec, rule: ChargeRule = ChargeRule.LARGER, kinds: Kinds = BUILT_IN) -> Charge:
    """The charge of a gang by `rule`, with a warning for each difference; raises `DemandError` if underivable."""
    items = _items(spec, kinds)
    parts = tuple(_part(item, rule) for item in items)
    gangs = [part.gang for part in parts]
    demand = _total((gang.demand, 1) for gang in gangs)
    pods = spec.min_available or sum(gang.pods for gang in gangs)
    _check_sizes(demand.highest(_total((part.claimed, 1) for part in parts)), pods)
    pod_sets = [
        pod_set for item, part in zip(items, parts, strict=True) for pod_set in _pod_sets(item, part, rule)
    ]
    gang = Gang(demand, pods, tuple(_in_namespace(_linked(pod_sets, items, parts), spec.namespace)))
    _check_terms(gang.pod_sets, spec.namespace)
    charge = Charge(gang, parts=parts)
    return replace(charge, warnings=charge.differences)


class _Item(Struct, frozen=True):
    """One wrapped object with its place in the spec and the row of its kind."""

    wrapped: WrappedObject
    row: KnownKind
    spelling: str
    path: str
    template_path: str

    @property
    def template(self) -> Mapping[str, Any]:
        return self.wrapped.template

    @property
    def kind(self) -> Kind | None:
        """How the object makes pods; None if its template does not say so."""
        return self.row.pods


def _items(spec: AppWrapperSpec, kinds: Kinds) -> tuple[_Item, ...]:
    return tuple(
        _Item(
            wrapped,
            kinds.row(wrapped.group, wrapped.kind),
            spec.spelling,
            spec.path_of(wrapped),
            spec.template_path_of(wrapped),
        )
        for wrapped in spec.wrapped
    )


def _pod_sets(item: _Item, part: Part, rule: ChargeRule) -> list[PodSet]:
    """The pod sets of one wrapped object; the first has its resource claims, if nothing counts their devices."""
    wrapped = item.wrapped
    pod_sets = [replace(pod_set, item=wrapped.index) for pod_set in part.gang.pod_sets]
    if wrapped.declared and rule is ChargeRule.TRUSTED:
        return [replace(each, is_trusted=any(map(is_device, each.requests))) for each in pod_sets]
    claims = tuple(f"{item.template_path}.{path}" for path in _device_claims(item, part))
    if claims:
        first = pod_sets[0] if pod_sets else PodSet(0, NOTHING, item=wrapped.index)
        pod_sets[:1] = [replace(first, claims=claims)]
    return pod_sets


def _linked(pod_sets: Sequence[PodSet], items: Sequence[_Item], parts: Sequence[Part]) -> Sequence[PodSet]:
    """The pod sets with the rules between those of different wrapped objects, if the labels of all are known."""
    labelled = [each for part in parts for each in part.labelled]
    if (
        len(items) < 2
        or len(labelled) != len(pod_sets)
        or not any(each.has_terms or each.spread for each in pod_sets)
    ):
        return pod_sets
    try:
        rules = rules_between(labelled)
    except TemplateError:  # which each object alone has not raised
        return pod_sets
    return [rule.of(pod_set) for pod_set, rule in zip(pod_sets, rules, strict=True)]


def _in_namespace(pod_sets: Iterable[PodSet], namespace: str) -> Iterator[PodSet]:
    """The pod sets with the terms of pods in that namespace, which a wrapped object may leave out."""
    for each in pod_sets:
        if each.sort is None:
            yield each
            continue
        yield replace(
            each,
            repels=tuple(term.in_namespace(namespace) for term in each.repels),
            attracts=tuple(term.in_namespace(namespace) for term in each.attracts),
            spread=tuple(spread.in_namespace(namespace) for spread in each.spread),
            sort=each.sort.in_namespace(namespace),
        )


def _check_terms(pod_sets: Iterable[PodSet], namespace: str) -> None:
    """Raises `DemandError` if a namespace may never have as many terms about pods in the queue."""
    terms = OwnTerms.of(each for each in pod_sets if each.depends_on_others)
    problem = excess_of(namespace, terms.counted, MOST_OF_GANGS)
    if problem:
        raise DemandError("spec", f"has {problem}", "Use fewer terms, or several AppWrappers")


def _device_claims(item: _Item, part: Part) -> tuple[str, ...]:
    """The paths of the resource claims of all pods, or of all pod templates where these cannot be told apart."""
    templates, kind = part.templates, item.kind
    try:
        if not templates and kind is not None:
            templates = pods_of(kind, item.template).templates  # a declaration took their place
    except TemplateError:
        kind = None
    if kind is None:
        return device_claims_anywhere(Field(item.template))
    return tuple(path for template in templates for path in device_claims(template))


def pods_by_item(spec: AppWrapperSpec, kinds: Kinds = BUILT_IN) -> tuple[int, ...]:
    """The number of pods of each wrapped object, in their order; 0 where it cannot be derived."""
    return tuple(map(_pods_or_none, _items(spec, kinds)))


def _pods_or_none(item: _Item) -> int:
    try:
        return _part(item, ChargeRule.LARGER).gang.pods
    except DemandError:
        return 0  # admitted by a declaration of its kind that is gone


def _part(item: _Item, rule: ChargeRule) -> Part:
    """The part of one wrapped object."""
    wrapped = item.wrapped
    if wrapped.pod_sets:
        return _of_pods(_pointed_out(replace(item, wrapped=with_infos(wrapped))))
    if wrapped.declared is None:
        return _of_pods(_derived(item))
    if not wrapped.declared and rule is ChargeRule.TRUSTED:
        return Part(Gang())
    return _declared_part(item, wrapped.declared, rule)


def _of_pods(pods: Pods) -> Part:
    return Part(_gang(pods), templates=pods.templates, labelled=pods.labelled)


def _declared_part(item: _Item, written: Sequence[DeclaredPodSet], rule: ChargeRule) -> Part:
    """The part of an object with a declaration, compared with its template."""
    path = f"{item.path}.custompodresources"
    declared = tuple(_declared(one, f"{path}[{index}]") for index, one in enumerate(written))
    claimed = _gang(_all_members(declared)).demand
    found = _found(item, declared, rule)
    if found is None:
        stand_ins = _all_members(tuple(pod_set for pod_set in declared if pod_set.count))
        return _stand_in(_gang(stand_ins), _readable(item), rule, path)
    derived, makes_pods = _gang(found).demand, item.row.may_make_pods
    larger = claimed.highest(derived) if makes_pods else NOTHING
    charged = claimed if rule is ChargeRule.TRUSTED else larger
    differing = [name for name in {*claimed, *derived} if claimed[name] != derived[name]]
    how = ""
    if not makes_pods and claimed != charged:
        how = f"a {item.wrapped.kind} makes no pods, so nothing is charged for it"
    elif derived and differing:  # a suspended object may declare its later demand
        how = f"{_HOW_CHARGED[rule]} is charged"
    warning = f"{path}: {_differing(claimed, derived, differing)}; {how}" if how else ""
    gang = Gang(charged, found.members, found.sets)
    return Part(gang, claimed, warning, found.templates, found.labelled)


def _stand_in(declared: Gang, readable: Pods, rule: ChargeRule, path: str) -> Part:
    """The part of an object with an unreadable template: the declaration takes the place of this template.

    The object's readable templates still count: their pods can be made in any case.
    """
    claimed, derived = declared.demand, _gang(readable).demand
    if not readable.sets:
        return Part(declared, claimed)
    more = [name for name in derived if derived[name] > claimed[name]]
    warning = f"{path}: {_differing(claimed, derived, more)}; {_HOW_CHARGED[rule]} is charged" if more else ""
    charged = claimed if rule is ChargeRule.TRUSTED else claimed.highest(derived)
    return Part(Gang(charged, max(declared.pods, readable.members), readable.sets), claimed, warning)


_HOW_CHARGED: Final = {ChargeRule.LARGER: "the larger", ChargeRule.TRUSTED: "what is declared"}


def _found(item: _Item, declared: tuple[PodSet, ...], rule: ChargeRule) -> Pods | None:
    """The pods that the template derives; None where it cannot be read and the declaration takes its place.

    A declaration without pods does not take its place, unless it is trusted: an unreadable template would be free of
    charge. Nor does any where only a constraint is unreadable: the API server may take it, and the pods then request
    what the template says.
    """
    if item.kind is None:
        return None
    try:
        return pods_of(item.kind, item.template)
    except TemplateError as error:
        has_pods = any(pod_set.count for pod_set in declared)
        if (has_pods or rule is ChargeRule.TRUSTED) and not isinstance(error, ConstraintError):
            return None
        raise _unreadable(item, error) from error


def _readable(item: _Item) -> Pods:
    """The pods of the templates that can be read; raises `DemandError` if one has a malformed constraint."""
    try:
        return readable_pods_of(item.kind, item.template) if item.kind else Pods()
    except TemplateError as error:
        raise _unreadable(item, error) from error


def _differing(claimed: Resources, derived: Resources, differing: Iterable[str]) -> str:
    """The resources in which a declaration and its template differ, with both amounts."""
    names = sorted(differing)
    named = ", ".join(
        f"{name}: {in_words(name, claimed[name])} declared, {in_words(name, derived[name])} by the template"
        for name in names[:_MOST_NAMED]
    )
    return named if len(names) <= _MOST_NAMED else f"{named}, and {len(names) - _MOST_NAMED} more"


def _gang(pods: Pods) -> Gang:
    demand = _total((pod_set.requests, pod_set.count) for pod_set in pods.sets)
    return Gang(demand, pods.members, pods.sets)


def _all_members(pod_sets: tuple[PodSet, ...], templates: tuple[Field, ...] = ()) -> Pods:
    return Pods(pod_sets, sum(pod_set.count for pod_set in pod_sets), templates)


def _derived(item: _Item) -> Pods:
    if item.kind is None:
        raise DemandError(item.path, _why_underivable(item), _remedy_for_unknown(item))
    try:
        return pods_of(item.kind, item.template)
    except TemplateError as error:
        raise _unreadable(item, error) from error


def _unreadable(item: _Item, error: TemplateError) -> DemandError:
    path = f"{item.template_path}.{error.path}"
    is_constraint = isinstance(error, ConstraintError)
    remedy = "Correct the template" if is_constraint else _remedy_for_unreadable(item)
    return DemandError(path, error.problem, remedy)


def _pointed_out(item: _Item) -> Pods:
    """The pods that podSets point out; those of a known kind must agree with the derived ones."""
    wrapped, path = item.wrapped, f"{item.path}.podSets"
    if len(wrapped.pod_sets) > _MOST_POD_SETS:
        problem = f"has {len(wrapped.pod_sets)} entries, and at most {_MOST_POD_SETS} are taken"
        raise DemandError(path, problem, "Spread them over several components")
    pod_sets = tuple(_at(one, wrapped, f"{path}[{index}]") for index, one in enumerate(wrapped.pod_sets))
    templates = tuple(template_at(wrapped.template, one.path) for one in wrapped.pod_sets if one.replicas)
    declared = _all_members(tuple(pod_set for pod_set in pod_sets if pod_set.count), templates)
    if item.kind is None:
        return declared
    agreed = _agreed(declared, item.kind, item)
    _check_places(item.kind, wrapped, path)
    return agreed


def _check_places(kind: Kind, wrapped: WrappedObject, path: str) -> None:
    """Raises `DemandError` for a path that is no pod template of a known kind."""
    for index, one in enumerate(wrapped.pod_sets):
        if not is_template_of(kind, wrapped.template, one.path):
            problem = f"{quoted(one.path)} is not where {_named(wrapped)} has a pod template"
            raise DemandError(f"{path}[{index}].path", problem, _REMEDY_FOR_PATH)


def _at(pod_set: TemplatePodSet, wrapped: WrappedObject, path: str) -> PodSet:
    try:
        return pod_set_at(wrapped.template, pod_set.path, pod_set.replicas)
    except TemplateError as error:
        problem, remedy = _astray(pod_set.path, error)
        raise DemandError(f"{path}.path", problem, remedy) from error


def _astray(path: str, error: TemplateError) -> tuple[str, str]:
    """The problem and the remedy of a path: it has no pod template, or an unreadable one."""
    if error.path != path:
        return f"the template at {quoted(path)} cannot be read: {error}", "Correct the template"
    return f"{quoted(path)} {error.problem}", _REMEDY_FOR_PATH


def _agreed(declared: Pods, kind: Kind, item: _Item) -> Pods:
    """The derived pods, which must equal the declared ones; a suspended object reserves the declared ones."""
    found = _derived(item)
    if kind.is_suspended(item.template):
        return Pods(declared.sets, templates=declared.templates)
    if declared.members not in {found.members, sum(pod_set.count for pod_set in found.sets)}:
        named = _named(item.wrapped)
        problem = (
            f"counts {counted(declared.members, 'pod')}, but {named} written like this makes {found.members}"
        )
        remedy = "Correct the replicas, or leave podSets out"
        raise DemandError(f"{item.path}.podSets", problem, remedy)
    return found


def _named(wrapped: WrappedObject) -> str:
    return f"a {wrapped.kind} ({wrapped.group})" if wrapped.group else f"a {wrapped.kind}"


def _why_underivable(item: _Item) -> str:
    problem = f"the requests of the pods of {_named(item.wrapped)} cannot be derived from its template"
    why = item.row.why_underivable
    return f"{problem}: {why}" if why else problem


def _remedy_for_unknown(item: _Item) -> str:
    """Where to declare the demand; v1beta2's podSets cannot say that an object makes no pods."""
    if item.spelling == "v1beta1":
        return f"Declare it beside the template, such as `{_DECLARATION}` (`[]` if it makes no pods)"
    in_v1beta1 = "wrap it in resources.GenericItems (v1beta1) with `custompodresources: []`"
    return f"Say where its pod templates are, such as `{_POD_SETS}`; if it makes no pods, {in_v1beta1}"


def _remedy_for_unreadable(item: _Item) -> str:
    """How to correct the template; v1beta2's podSets declare no resources."""
    if item.spelling == "v1beta2":
        return "Correct the template"
    return f"Correct the template, or declare what its pods ask for beside it, such as `{_DECLARATION}`"


def _declared(declared: DeclaredPodSet, path: str) -> PodSet:
    """The declared pod set as MCAD reads it: a limit replaces a request that is absent or 0."""
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
