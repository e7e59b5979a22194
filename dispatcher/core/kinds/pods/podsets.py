"""The pod sets of an object of a known kind, read from its templates by the rules of `pod_rules`.

Templates have not passed the API server: `core.kinds.fields` reads them, and `TemplateError` names the field that is
malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import most_similar
from dispatcher.core.kinds.fields import ConstraintError, Field, TemplateError, template_at
from dispatcher.core.kinds.pods.affinity import Template, constraints_of, node_requirements_of, rules_between
from dispatcher.core.kinds.pods.pod_requests import PodSpecError, pod_requests
from dispatcher.core.kinds.pods.pod_rules import Kind, PodRule, PodSpec
from dispatcher.core.model.clusters.nodes import Toleration
from dispatcher.core.model.gangs.gang import Constraint, PodSet
from dispatcher.values import equal_without


@equal_without("templates", "labelled")
class Pods(Struct, frozen=True):
    """The pods of one wrapped object: its pod sets, how many of the pods the gang waits for, and their templates.

    `labelled` has the template of each pod set with all labels of its pods; empty where these are not known.
    """

    sets: tuple[PodSet, ...] = ()
    members: int = 0
    templates: tuple[Field, ...] = ()
    labelled: tuple[Template, ...] = ()


def pods_of(kind: Kind, wrapped: Mapping[str, Any]) -> Pods:
    """The pods that an object of this kind makes; raises `TemplateError` if a template is malformed."""
    if kind.is_suspended(wrapped):
        return Pods()
    root = Field(wrapped)
    return _all([_pods(rule, group, root) for rule in kind.rules for group in _counted_groups(rule, root)])


def readable_pods_of(kind: Kind, wrapped: Mapping[str, Any]) -> Pods:
    """The pods of an object's well-formed templates; none if its `suspend` flag is malformed.

    Raises `ConstraintError` if only the constraints of a template are malformed: its pods have requests that count.
    """
    try:
        if kind.is_suspended(wrapped):
            return Pods()
    except TemplateError:
        return Pods()
    root = Field(wrapped)
    return _all([pods for rule in kind.rules for pods in _readable(rule, root)])


def _readable(rule: PodRule, root: Field) -> Iterator[Pods]:
    try:
        groups = _groups(rule, root)
    except TemplateError:
        return
    for group in groups:
        try:
            yield _pods(rule, group, root)
        except ConstraintError:
            raise
        except TemplateError:
            continue


def _all(found: Sequence[Pods]) -> Pods:
    labelled = tuple(each for pods in found for each in pods.labelled)
    try:
        rules = rules_between(labelled)
    except TemplateError as error:
        raise ConstraintError(error.path, error.problem) from error
    pod_sets = (pod_set for pods in found for pod_set in pods.sets)
    return Pods(
        sets=tuple(rule.of(pod_set) for pod_set, rule in zip(pod_sets, rules, strict=True)),
        members=sum(pods.members for pods in found),
        templates=tuple(template for pods in found for template in pods.templates),
        labelled=labelled,
    )


def _pods(rule: PodRule, group: Field, root: Field) -> Pods:
    """The pods of one template."""
    template = _template(rule, group)
    pod_set = _pod_set(rule, template, group, root)
    if not pod_set.count:
        return Pods()
    labelled = Template(template, root, lambda: rule.labels(group, root))
    return Pods((pod_set,), pod_set.count if rule.members else 0, (template,), (labelled,))


def is_template_of(kind: Kind, wrapped: Mapping[str, Any], path: str) -> bool:
    """True if the pod template at this path is one of this kind's, also while the object is suspended."""
    root, pointed_out = Field(wrapped), template_at(wrapped, path).value
    try:
        groups = [
            (rule, group) for rule in kind.rules if rule.applies(root) for group in root.each(rule.groups)
        ]
        return any(group.at(rule.template).value is pointed_out for rule, group in groups)
    except TemplateError:
        return False


class GrowingTemplate(NamedTuple):
    """The pod template of a group that can grow: its pods before any growth, and how many more it has at a time."""

    pods: int
    hosts: int = 1


def growing_templates(kind: Kind, wrapped: Mapping[str, Any]) -> Mapping[str, GrowingTemplate]:
    """The pod templates of groups that can grow, by their paths inside the object; empty if a field is malformed."""
    root = Field(wrapped)
    try:
        return {
            group.at(rule.template).path: GrowingTemplate(rule.count(group), rule.hosts(group))
            for rule in kind.rules
            if rule.applies(root)
            for group in root.each(rule.groups)
            if rule.grows(group, root)
        }
    except TemplateError:
        return {}


def pod_set_at(wrapped: Mapping[str, Any], path: str, count: int) -> PodSet:
    """The pod set of `count` pods of the template at this path; raises `TemplateError` if there is none."""
    template = template_at(wrapped, path)
    return _shape(template, template.at("spec").mapping(), count, Field(wrapped), dict)


def constraint_of(pod_spec: Mapping[str, Any]) -> Constraint | None:
    """The conditions of a pod that exists on its node; None if this release cannot read them."""
    spec = Field(pod_spec)
    try:
        return _tolerations(spec), node_requirements_of(spec)
    except TemplateError:
        return None


def _groups(rule: PodRule, root: Field) -> tuple[Field, ...]:
    if not rule.applies(root):
        return ()
    groups = tuple(root.each(rule.groups))
    if not (groups or rule.optional):
        raise TemplateError(rule.groups.removesuffix(".*"), "must name at least one sort of pods")
    return groups


def _counted_groups(rule: PodRule, root: Field) -> tuple[Field, ...]:
    """The groups, of which one at least has the count that a declaration points to; else the path is misspelled.

    Authors who declare the demand of an object need no count: `readable_pods_of` does not ask for it.
    """
    groups = _groups(rule, root)
    if rule.count_path and groups and all(group.at(rule.count_path).value is None for group in groups):
        parent, _, last = rule.count_path.rpartition(".")
        similar = most_similar(last, list(groups[0].at(parent).mapping()))
        meant = f"; did you mean {quoted(similar)}?" if similar else ""
        raise TemplateError(
            groups[0].at(rule.count_path).path,
            "is not there, and the declaration of the kind says that it has the number of pods: correct the "
            f"declaration, or give its count a default{meant}",
        )
    return groups


def _template(rule: PodRule, group: Field) -> Field:
    template = group.at(rule.template)
    return rule.otherwise(group) if template.value is None and rule.otherwise else template


def _pod_set(rule: PodRule, template: Field, group: Field, root: Field) -> PodSet:
    pod_spec = template.at("spec")
    containers = pod_spec.at("containers")
    if not (isinstance(containers.value, list | tuple) and containers.value):
        raise TemplateError(containers.path, "must list the containers of the pod")
    injected = pod_spec.mapping()
    for inject in rule.injections:
        injected = inject(injected, group, root)
    return _shape(template, injected, rule.count(group), root, lambda: rule.labels(group, root))


def _shape(
    template: Field,
    injected: PodSpec,
    count: int,
    root: Field,
    added_labels: Callable[[], Mapping[str, str]],
) -> PodSet:
    pod_spec = template.at("spec")
    try:
        requests = pod_requests(injected)
    except PodSpecError as error:
        raise TemplateError(f"{pod_spec.path}.{error.path}".removeprefix("."), error.problem) from error
    try:
        constraints = constraints_of(template, root, added_labels)
    except TemplateError as error:
        raise ConstraintError(error.path, error.problem) from error
    return PodSet(
        count,
        requests,
        _tolerations(pod_spec),
        nodes=constraints.nodes,
        apart=constraints.apart,
        together=constraints.together,
        path=template.path,
        spread=constraints.spread,
        repels=constraints.repels,
        attracts=constraints.attracts,
        sort=constraints.sort,
    )


def _tolerations(pod_spec: Field) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=toleration.at("key").text(),
            operator=toleration.at("operator").text() or "Equal",
            value=toleration.at("value").text(),
            effect=toleration.at("effect").text(),
        )
        for toleration in pod_spec.each("tolerations.*")
    )
