"""The constraints of a pod template on nodes: node selector and node affinity, and rules about pods.

This module reads required terms only. A topology spread constraint counts if it selects the pods of the template
itself, by the labels of the template and the labels that known operators add. A term of affinity or anti-affinity is
read as a rule among the pods of the template, as one between these and the pods of other templates, and as a term about
the pods that are there (`core.scheduling.capacity.pods_there`). kube-scheduler alone checks host ports and volumes.
A term that the API server would refuse raises `TemplateError`.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/,
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/ and `ValidateNodeSelector`,
`validatePodAffinityTerms`, `validateTopologySpreadConstraints` in Kubernetes' pkg/apis/core/validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import LONGEST_SUBDOMAIN, is_qualified_name
from dispatcher.core.kinds.built_in import LABELS_OF_ONE_OBJECT, LABELS_OF_ONE_POD
from dispatcher.core.kinds.fields import Field, TemplateError, TooManyError
from dispatcher.core.model.clusters.nodes import (
    ANY_NODE,
    LabelOperator,
    LabelRequirement,
    NodeRequirements,
    NodeTerm,
    whole_number,
)
from dispatcher.core.model.gangs.gang import PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import OWN_NAMESPACE, WELL_KNOWN_TOPOLOGIES, PodSort, PodTerm

MOST_TERMS: Final = 64
"""Entries of one list of terms, and keys of one node selector.

This bound and the next ones limit the work of a fit: for each gang with other requirements, every node is compared with
every term, condition and value. People write a handful; tools that exclude nodes by name write some hundred values.
"""
MOST_SPREADS: Final = 16
"""Topology spread constraints of a template, of either sort."""
MOST_LINKED: Final = 32
"""Templates of an object, and twice as many terms about pods in all of them, beyond which rules between templates are
not read.
"""
MOST_CONDITIONS: Final = 256
"""Conditions of all node terms of a template, of one label selector, and of all terms of one list about pods."""
MOST_VALUES: Final = 1024
"""Values of all node terms of a template, of one label selector, and of all terms of one list about pods."""
MOST_NAMESPACES: Final = 64
"""Namespaces that all terms of one list about pods name together."""
LONGEST_VALUE: Final = LONGEST_SUBDOMAIN
"""Characters of a value: the value of a label (at most 63) or the name of a node."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME: Final = "metadata.name"
"""The only field of a node that `matchFields` takes."""
_ON_PODS: Final = frozenset(LabelOperator) - {LabelOperator.GT, LabelOperator.LT}
_ON_NAMES: Final = frozenset({LabelOperator.IN, LabelOperator.NOT_IN})
_REQUIRED_SPREAD: Final = "DoNotSchedule"
_PREFERRED_SPREAD: Final = "ScheduleAnyway"
_HONOR: Final = "Honor"
_IGNORE: Final = "Ignore"
_OF_ONE_TEMPLATE: Final = frozenset({"pod-template-hash", "controller-revision-hash"})
"""Labels that controllers add with one value for all pods of a template."""


class PodConstraints(Struct, frozen=True):
    """The constraints of a `PodSet` on its nodes; constraints that mean the same are equal values."""

    nodes: NodeRequirements = ANY_NODE
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    spread: tuple[Spread, ...] = ()
    repels: tuple[PodTerm, ...] = ()
    attracts: tuple[PodTerm, ...] = ()
    sort: PodSort | None = None


def constraints_of(
    template: Field, wrapped: Field, added_labels: Callable[[], Mapping[str, str]]
) -> PodConstraints:
    """Read the constraints of a pod template in a wrapped object; raises `TemplateError` if a field is malformed.

    `added_labels` returns the labels that an operator adds; they replace labels of the template with the same key. It
    is called only for a template with terms about pods.
    """
    spec = template.at("spec")
    affinity, spread = spec.child("affinity"), spec.child("topologySpreadConstraints")
    if affinity.value is None and spread.value is None:  # as in most templates
        nodes = NodeRequirements(_selector(spec.child("nodeSelector")))
        return PodConstraints(nodes, sort=_sort_of(template, wrapped, added_labels))
    apart, together = affinity.at(f"podAntiAffinity.{_REQUIRED}"), affinity.at(f"podAffinity.{_REQUIRED}")
    required = [each for each in spread.entries(MOST_SPREADS) if _is_required(each)]
    about_pods = apart.entries(MOST_TERMS) or together.entries(MOST_TERMS) or required
    labels = {**_labels(template.at("metadata.labels")), **added_labels()} if about_pods else {}
    pods = _Pods(labels, wrapped)
    repels = _about_others(_terms(apart, pods), pods)
    attracts = _terms(together, pods)
    if len(_about_others(attracts, pods)) < len(attracts):
        attracts = ()  # kube-scheduler counts only pods that all terms select, which are pods of the same object
    return PodConstraints(
        nodes=node_requirements_of(spec),
        apart=pods.topologies(apart),
        together=pods.topologies(together),
        spread=pods.spread(required),
        repels=repels,
        attracts=attracts,
        sort=PodSort.of(pods.namespace, shared_labels(labels), repels)
        if about_pods
        else _sort_of(template, wrapped, added_labels),
    )


def node_requirements_of(pod_spec: Field) -> NodeRequirements:
    """The requirements of a pod spec on the labels of nodes; raises `TemplateError` if a field is malformed."""
    required = pod_spec.at(f"affinity.nodeAffinity.{_REQUIRED}")
    return NodeRequirements(_selector(pod_spec.child("nodeSelector")), _node_terms(required))


def shared_labels(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The labels but for those that a controller adds with another value for each pod."""
    return (each for each in labels.items() if each[0] not in LABELS_OF_ONE_POD)


def repelling_terms(pod: Mapping[str, Any]) -> tuple[PodTerm, ...]:
    """The required terms of anti-affinity of a pod that is there; those that this release cannot read are left out.

    If they are more than are taken from a template, the pod repels all pods, by the same topologies.
    """
    metadata = pod.get("metadata") or {}
    try:
        written = Field(pod).at(f"spec.affinity.podAntiAffinity.{_REQUIRED}")
        pods = _Pods(_labels(Field(metadata).child("labels")), Field(pod))
        try:
            return _about_others(_terms(written, pods), pods)
        except TooManyError:
            return _about_all_pods(written)
    except TemplateError:
        return ()


def _about_all_pods(written: Field) -> tuple[PodTerm, ...]:
    """A term about every pod for each topology of the terms; if these are too many, for the well-known ones."""
    topologies = {_topology(each) for each in written.elements()}
    found = topologies if len(topologies) <= MOST_TERMS else WELL_KNOWN_TOPOLOGIES
    return tuple(PodTerm(each, None) for each in sorted(found))


def apart_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of nodes by which a pod that exists repels pods with its labels; none if they cannot be read."""
    try:
        written = Field(pod)
        labels = dict(shared_labels(_labels(written.at("metadata.labels"))))
        return _Pods(labels, written).topologies(written.at(f"spec.affinity.podAntiAffinity.{_REQUIRED}"))
    except TemplateError:
        return ()


def _sort_of(
    template: Field, wrapped: Field, added_labels: Callable[[], Mapping[str, str]]
) -> PodSort | None:
    """The sort of the pods of a template; None if its labels are malformed, which only the API server refuses."""
    try:
        labels = {**_labels(template.at("metadata.labels")), **added_labels()}
    except TemplateError:
        return None
    return PodSort.of(_Pods(labels, wrapped).namespace, shared_labels(labels))


def _terms(written: Field, pods: _Pods) -> tuple[PodTerm, ...]:
    """The terms, sorted and without duplicates, and without those that cannot be compared with pods of others."""
    listed = written.entries(MOST_TERMS)
    _check_namespaces(listed, written.path)
    found = {term for each in listed if (term := _term(each, pods)) is not None}
    _check_bounds([each for term in found for each in term.conditions], written)
    return tuple(sorted(found, key=_order_of_term))


def _check_namespaces(terms: Iterable[Field], path: str) -> None:
    written = [each.at("namespaces").value for each in terms]
    named = sum(len(each) for each in written if isinstance(each, list | tuple))
    if named > MOST_NAMESPACES:
        problem = f"names {named} namespaces in all, and at most {MOST_NAMESPACES} are taken"
        raise TooManyError(path, problem)


def _about_others(terms: tuple[PodTerm, ...], pods: _Pods) -> tuple[PodTerm, ...]:
    """The terms without those that name the object of these pods: no pods of others are of it.

    Each object has another name, so with these terms every gang would be a class of its own.
    """

    def is_of_own_object(condition: LabelRequirement) -> bool:
        value = pods.labels.get(condition.key) if condition.key in LABELS_OF_ONE_OBJECT else None
        return condition.operator is LabelOperator.IN and condition.values == (value,)

    own = frozenset({pods.namespace})
    return tuple(
        term for term in terms if term.namespaces != own or not any(map(is_of_own_object, term.conditions))
    )


def _order_of_term(term: PodTerm) -> tuple[object, ...]:
    return term.topology, sorted(term.namespaces or ()), _order(term.conditions)


def _term(written: Field, pods: _Pods) -> PodTerm | None:
    """A term with its keys of labels resolved; None if it selects namespaces, or by labels of one pod alone.

    A term without a selector selects no pod.
    """
    selector = written.at("labelSelector")
    same = [each.text() for each in written.at("matchLabelKeys").entries(MOST_CONDITIONS)]
    differing = [each.text() for each in written.at("mismatchLabelKeys").entries(MOST_CONDITIONS)]
    spaces = written.at("namespaceSelector")
    listed = frozenset(each.text() for each in written.at("namespaces").entries(MOST_CONDITIONS))
    if selector.value is None or (spaces.value is not None and _label_conditions(spaces)):
        return None
    keys = [(key, LabelOperator.IN) for key in same] + [(key, LabelOperator.NOT_IN) for key in differing]
    # As in the API server, a key that the pod itself lacks does not count.
    own = [LabelRequirement(key, how, (pods.labels[key],)) for key, how in keys if key in pods.labels]
    conditions = _distinct((*_label_conditions(selector), *own))
    if any(each.key in LABELS_OF_ONE_POD for each in conditions):
        return None
    namespaces = None if spaces.value is not None else listed or frozenset({pods.namespace})
    return PodTerm(_topology(written), namespaces, conditions)


class Template(Struct, frozen=True):
    """A pod template in a wrapped object, with the labels that an operator adds to its pods."""

    template: Field
    wrapped: Field
    added_labels: Callable[[], Mapping[str, str]]

    @property
    def repelling(self) -> tuple[Field, ...]:
        """The required terms of pod anti-affinity."""
        return self.template.at(f"spec.affinity.podAntiAffinity.{_REQUIRED}").entries(MOST_TERMS)

    @property
    def attracting(self) -> tuple[Field, ...]:
        """The required terms of pod affinity."""
        return self.template.at(f"spec.affinity.podAffinity.{_REQUIRED}").entries(MOST_TERMS)

    @property
    def spreading(self) -> tuple[Field, ...]:
        """The required topology spread constraints."""
        written = self.template.at("spec.topologySpreadConstraints").entries(MOST_SPREADS)
        return tuple(filter(_is_required, written))

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the pods; raises `TemplateError` if they are malformed."""
        return {**_labels(self.template.at("metadata.labels")), **self.added_labels()}


class TemplateRules(Struct, frozen=True):
    """The fields `away` and `near` of a `PodSet`, and by topology the `counts` of its spreads."""

    away: tuple[tuple[str, int], ...] = ()
    near: tuple[tuple[str, tuple[int, ...]], ...] = ()
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, pod_set: PodSet) -> PodSet:
        """The pod set with these rules."""
        if not (self.away or self.near or self.counts):
            return pod_set
        spread = tuple(replace(each, counts=self.counts.get(each.topology, ())) for each in pod_set.spread)
        return replace(pod_set, away=self.away, near=self.near, spread=spread)


def rules_between(templates: Sequence[Template]) -> tuple[TemplateRules, ...]:
    """For each template of one object, the rules between its pods and those of the others.

    There are none beyond `MOST_LINKED`. Raises `TemplateError` for malformed labels.
    """
    none = (TemplateRules(),) * len(templates)
    if not 2 <= len(templates) <= MOST_LINKED:
        return none
    repelling, attracting = [each.repelling for each in templates], [each.attracting for each in templates]
    spreading = [each.spreading for each in templates]
    terms = sum(map(len, (*repelling, *attracting, *spreading)))
    if not 0 < terms <= 2 * MOST_LINKED:  # in most objects there are none
        return none
    pods = [_Pods(each.labels, each.wrapped) for each in templates]
    attractions = [
        [(_topology(term), _selected(pods, at, term)) for term in terms]
        for at, terms in enumerate(attracting)
    ]
    counts = (
        {
            _topology(term): tuple(sorted(other - at for other in selected))
            for term in terms
            if (selected := _selected(pods, at, term))
        }
        for at, terms in enumerate(spreading)
    )
    return tuple(map(TemplateRules, _repulsions(pods, repelling), _attractions(attractions), counts))


def _selected(pods: Sequence[_Pods], at: int, term: Field) -> frozenset[int]:
    """The indices of the other templates with pods that a term of template `at` selects."""
    selector, own = term.at("labelSelector"), pods[at]
    same = [each.text() for each in term.at("matchLabelKeys").entries(MOST_CONDITIONS)]
    differing = term.at("mismatchLabelKeys").entries(MOST_CONDITIONS)
    if selector.value is None or differing or not own.are_in_namespace_of(term):
        return frozenset()
    if any(key not in own.labels for key in same):
        return frozenset()
    exact = [LabelRequirement(key, LabelOperator.IN, (own.labels[key],)) for key in same]
    conditions = (*_label_conditions(selector), *exact)
    return frozenset(
        other
        for other, each in enumerate(pods)
        if other != at and all(condition.matches(each.labels) for condition in conditions)
    )


def _repulsions(
    pods: Sequence[_Pods], repelling: Sequence[Sequence[Field]]
) -> Iterator[tuple[tuple[str, int], ...]]:
    """A repulsion is of both templates: in Kubernetes the pods that are there keep off pods that they repel, too."""
    found = [set[tuple[str, int]]() for _ in pods]
    for at, terms in enumerate(repelling):
        for term in terms:
            for other in _selected(pods, at, term):
                found[at].add((_topology(term), other - at))
                found[other].add((_topology(term), at - other))
    yield from (tuple(sorted(each)) for each in found)


def _attractions(
    attractions: Sequence[Sequence[tuple[str, frozenset[int]]]],
) -> Iterator[tuple[tuple[str, tuple[int, ...]], ...]]:
    """Pods need one of the others that they select, but each of those that select them in turn.

    Which of two such pods comes first is not known, and the later one goes to the first one's domain.
    """
    for at, terms in enumerate(attractions):
        found = set[tuple[str, tuple[int, ...]]]()
        for topology, selected in terms:
            mutual = [
                other
                for other in selected
                if any(at in back for key, back in attractions[other] if key == topology)
            ]
            if mutual:
                found.update((topology, (other - at,)) for other in mutual)
            elif selected:
                found.add((topology, tuple(sorted(other - at for other in selected))))
        yield tuple(sorted(found))


def _selector(written: Field) -> tuple[tuple[str, str], ...]:
    """The conditions of a node selector, sorted by key."""
    if written.value is None:
        return ()
    labels = _labels(written)
    if len(labels) > MOST_TERMS:
        raise TemplateError(written.path, f"has {len(labels)} keys, and at most {MOST_TERMS} are taken")
    return tuple(sorted(labels.items()))


def _labels(written: Field) -> Mapping[str, str]:
    for key in written.mapping():
        _check_label_key(key, written.path)
    return {key: _value(written.child(key)) for key in written.mapping()}


def _node_terms(written: Field) -> tuple[NodeTerm, ...]:
    """The terms of a required node affinity: a node must satisfy one. The API server requires at least one."""
    if written.value is None:
        return ()
    listed = written.at("nodeSelectorTerms")
    terms = {_node_term(each) for each in listed.entries(MOST_TERMS)}
    if not terms:
        raise TemplateError(listed.path, "must have at least one term")
    conditions = [each for term in terms for each in (*term.labels, *term.names)]
    _check_bounds(conditions, listed)
    return tuple(sorted(terms, key=lambda term: (_order(term.labels), _order(term.names))))


def _node_term(written: Field) -> NodeTerm:
    """A term; without any condition it matches no node."""
    by_labels = [_condition(each) for each in written.at("matchExpressions").entries(MOST_CONDITIONS)]
    by_name = [_name_condition(each) for each in written.at("matchFields").entries(MOST_CONDITIONS)]
    return NodeTerm(_distinct(by_labels), _distinct(by_name))


def _name_condition(written: Field) -> LabelRequirement:
    if written.at("key").text() != _NAME:
        raise TemplateError(written.at("key").path, f"must be {_NAME}, the only field of nodes to match")
    condition = _condition(written, _ON_NAMES)
    if len(condition.values) != 1:
        raise TemplateError(written.at("values").path, "must have exactly one name")
    return condition


def _condition(
    written: Field, operators: frozenset[LabelOperator] = frozenset(LabelOperator)
) -> LabelRequirement:
    key = written.at("key").text()
    _check_label_key(key, written.at("key").path)
    operator = _operator(written.at("operator"), operators)
    listed = written.at("values")
    values = {_value(each) for each in listed.entries(MOST_VALUES)}
    match operator:
        case LabelOperator.IN | LabelOperator.NOT_IN if not values:
            raise TemplateError(listed.path, f"must have a value for {operator}")
        case LabelOperator.EXISTS | LabelOperator.DOES_NOT_EXIST if values:
            raise TemplateError(listed.path, f"must be absent for {operator}")
        case LabelOperator.GT | LabelOperator.LT:
            return LabelRequirement(key, operator, (_whole_number(listed, operator),))
    return LabelRequirement(key, operator, tuple(sorted(values)))


def _operator(written: Field, operators: frozenset[LabelOperator]) -> LabelOperator:
    text = written.text()
    if text not in operators:
        raise TemplateError(written.path, f"is none of {', '.join(sorted(operators))}: {quoted(text)}")
    return LabelOperator(text)


def _whole_number(listed: Field, operator: LabelOperator) -> str:
    """The one operand of Gt or Lt, in its shortest spelling."""
    values = [each.text() for each in listed.entries(MOST_VALUES)]
    number = whole_number(values[0]) if len(values) == 1 else None
    if number is not None:
        return str(number)
    raise TemplateError(listed.path, f"must be one whole number in quotes for {operator}")


def _value(written: Field) -> str:
    text = written.text()
    if len(text) > LONGEST_VALUE:
        raise TemplateError(written.path, f"must be at most {LONGEST_VALUE} characters long")
    return text


def _check_label_key(key: str, path: str) -> None:
    if not is_qualified_name(key):
        raise TemplateError(path, f"must be a label's key such as example.com/gpu, not {quoted(key)}")


def _check_bounds(conditions: Iterable[LabelRequirement], written: Field) -> None:
    sizes = [len(each.values) for each in conditions]
    if len(sizes) > MOST_CONDITIONS:
        problem = f"has {len(sizes)} conditions, and at most {MOST_CONDITIONS} are taken"
        raise TooManyError(written.path, problem)
    if sum(sizes) > MOST_VALUES:
        raise TooManyError(written.path, f"has {sum(sizes)} values, and at most {MOST_VALUES} are taken")


def _distinct(conditions: Iterable[LabelRequirement]) -> tuple[LabelRequirement, ...]:
    """The conditions, sorted and without duplicates: all must hold, so neither changes their meaning."""
    return tuple(sorted(set(conditions), key=_order_of_condition))


def _order(conditions: Iterable[LabelRequirement]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    return tuple(map(_order_of_condition, conditions))


def _order_of_condition(condition: LabelRequirement) -> tuple[str, str, tuple[str, ...]]:
    return condition.key, condition.operator, condition.values


class _Pods(Struct, frozen=True):
    """The pods of one template; terms about pods select them by `labels` and by the namespace of `wrapped`."""

    labels: Mapping[str, str]
    wrapped: Field

    @property
    def namespace(self) -> str:
        """Their namespace as the wrapped object names it."""
        return self.wrapped.at("metadata.namespace").text() or OWN_NAMESPACE

    def topologies(self, written: Field) -> tuple[str, ...]:
        """The topology keys of the terms that select these pods; raises `TemplateError` for any malformed term."""
        found = [(_topology(term), self._are_selected_by(term)) for term in written.entries(MOST_TERMS)]
        return tuple(sorted({topology for topology, is_own in found if is_own}))

    def spread(self, written: Iterable[Field]) -> tuple[Spread, ...]:
        """The spread of these pods; raises `TemplateError` for any malformed constraint, also about other pods."""
        found = dict[str, Spread]()
        topologies = set[str]()
        for constraint in written:
            spread = _spread(constraint)
            if spread.topology in topologies:
                raise TemplateError(constraint.at("topologyKey").path, "must differ from those before it")
            topologies.add(spread.topology)
            if self._are_spread_by(constraint):
                found[spread.topology] = replace(spread, others=self._counted_by(constraint))
        return tuple(found[topology] for topology in sorted(found))

    def _are_spread_by(self, constraint: Field) -> bool:
        """True if the constraint selects these pods, and they share the value of each key in `matchLabelKeys`."""
        selector, listed = constraint.at("labelSelector"), constraint.at("matchLabelKeys")
        keys = [each.text() for each in listed.entries(MOST_CONDITIONS)]
        if keys and selector.value is None:
            raise TemplateError(listed.path, "must be absent without a labelSelector")
        for key in keys:
            _check_label_key(key, listed.path)
        conditions = _label_conditions(selector)
        if any(condition.key in keys for condition in conditions):
            raise TemplateError(listed.path, "must have no key of the labelSelector")
        # In Kubernetes an absent selector selects no pod, an empty one every pod.
        by_labels = selector.value is not None and all(each.matches(self.labels) for each in conditions)
        return by_labels and self._share(keys)

    def _counted_by(self, constraint: Field) -> PodTerm | None:
        """The pods of others that count for a spread of these pods; None if only pods of the same object can."""
        keys = [each.text() for each in constraint.at("matchLabelKeys").entries(MOST_CONDITIONS)]
        if any(key not in self.labels for key in keys):
            return None  # a label that its controller adds, with another value for each object
        own = [LabelRequirement(key, LabelOperator.IN, (self.labels[key],)) for key in keys]
        conditions = _distinct((*_label_conditions(constraint.at("labelSelector")), *own))
        if any(each.key in LABELS_OF_ONE_POD for each in conditions):
            return None
        term = PodTerm("", frozenset({self.namespace}), conditions, selects_ending=False)
        return next(iter(_about_others((term,), self)), None)

    def _are_selected_by(self, term: Field) -> bool:
        selector = term.at("labelSelector")
        if selector.value is None:
            return False  # in Kubernetes an absent selector selects no pod, an empty one every pod
        by_labels = all(condition.matches(self.labels) for condition in _label_conditions(selector))
        return by_labels and self._share_keys(term) and self.are_in_namespace_of(term)

    def _share_keys(self, term: Field) -> bool:
        """True if these pods share the value of each key in `matchLabelKeys`, and `mismatchLabelKeys` is empty."""
        same = {each.text() for each in term.at("matchLabelKeys").entries(MOST_CONDITIONS)}
        differing = term.at("mismatchLabelKeys").entries(MOST_CONDITIONS)
        return self._share(same) and not differing

    def _share(self, keys: Iterable[str]) -> bool:
        """True if all these pods have the same value of each label."""
        return all(key in self.labels or key in _OF_ONE_TEMPLATE for key in keys)

    def are_in_namespace_of(self, term: Field) -> bool:
        """True if the term selects pods in the namespace of these pods, which the wrapped object may leave out."""
        own = self.wrapped.at("metadata.namespace").text()
        listed = {each.text() for each in term.at("namespaces").entries(MOST_CONDITIONS)}
        selector = term.at("namespaceSelector")
        is_listed = bool(own) and own in listed
        if selector.value is None:
            return is_listed or not listed
        selects_every_namespace = not _label_conditions(selector)
        return is_listed or selects_every_namespace


def _is_required(constraint: Field) -> bool:
    """True for a topology spread constraint that keeps pods off nodes; raises `TemplateError` if it says neither."""
    return (
        _choice(constraint.at("whenUnsatisfiable"), (_REQUIRED_SPREAD, _PREFERRED_SPREAD)) == _REQUIRED_SPREAD
    )


def _spread(constraint: Field) -> Spread:
    policies = _HONOR, _IGNORE
    return Spread(
        _topology(constraint),
        most_skew=_at_least_one(constraint.at("maxSkew"), 0),
        least_domains=_at_least_one(constraint.at("minDomains"), 1),
        ignores_requirements=_choice(constraint.at("nodeAffinityPolicy"), policies, _HONOR) == _IGNORE,
        honors_taints=_choice(constraint.at("nodeTaintsPolicy"), policies, _IGNORE) == _HONOR,
    )


def _at_least_one(written: Field, default: int) -> int:
    number = written.integer(default)
    if number < 1:
        raise TemplateError(written.path, "must be at least 1")
    return number


def _choice(written: Field, choices: tuple[str, ...], default: str = "") -> str:
    text = written.text() or default
    if text not in choices:
        raise TemplateError(written.path, f"is none of {', '.join(choices)}: {quoted(text)}")
    return text


def _topology(term: Field) -> str:
    key = term.at("topologyKey")
    _check_label_key(key.text(), key.path)
    return key.text()


def _label_conditions(selector: Field) -> tuple[LabelRequirement, ...]:
    """The conditions of a label selector."""
    labels = _labels(selector.at("matchLabels"))
    exact = [LabelRequirement(key, LabelOperator.IN, (value,)) for key, value in labels.items()]
    listed = selector.at("matchExpressions").entries(MOST_CONDITIONS)
    conditions = (*exact, *(_condition(each, _ON_PODS) for each in listed))
    _check_bounds(conditions, selector)
    return conditions
