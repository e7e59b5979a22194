"""An AppWrapper that was not submitted, as the record that intake would make of it: for the question what would happen.

One that is there already follows the changes of its user instead (`applied`).

The rights of the author and the defaults of pods are facts of clusters, and are given by the caller. Priority ceilings,
priority classes and the bound on the queue of a namespace are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import APPROVALS, CLUSTER_PREFERENCE, CLUSTER_SELECTOR, HUB_CLUSTER
from dispatcher.api.selector import selector_of
from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.core.intake.labels import class_name, kept_labels, queues_of
from dispatcher.core.intake.namespace_bounds import Ceiling
from dispatcher.core.kinds.breakdown import check_appwrapper, object_of
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.pods import pod_defaults
from dispatcher.core.kinds.pods.pod_defaults import (
    MOST_CLASSES,
    NO_DEFAULTS,
    ClusterDefaults,
    DefaultsSurvey,
    PodDefaults,
    charge_in_clusters,
    runtime_classes,
)
from dispatcher.core.lifecycle import approvals, first_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.step import Commit, ObservedState
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.quantity import quantity
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import has_members

LAST: Final = 2**62
"""The `enqueue_seq` of proposals: behind every AppWrapper that was submitted at the same time."""

LONGEST_RUNTIME: Final = 2**31 - 1
"""Seconds of an expected run time that a record can hold."""


class Proposal(Struct, frozen=True):
    """An AppWrapper that was not submitted: its record, its spec as written, and the priority class that it names."""

    record: Record
    spec: AppWrapperSpec
    priority_class: str = ""


def propose(
    raw: Mapping[str, Any], namespace: str, rules: SchedulingRules, now: datetime, number: int = 0
) -> Proposal:
    """The AppWrapper `raw` as if it were submitted at `now`; `namespace` counts if it names none.

    The demand is charged, and the queues are resolved, by the `rules` of the leader. `number` tells apart the proposals
    of one question, and is their order. Raises `SpecError` for an AppWrapper that intake would reject, and for an
    object that is none.
    """
    check_appwrapper(raw)
    metadata, spec = object_of(raw, "metadata"), object_of(raw, "spec")
    name = _text(metadata, "name") or f"{_text(metadata, 'generateName')}*"
    there = _text(metadata, "namespace") or namespace
    annotations, labels = _texts(metadata, "annotations"), _texts(metadata, "labels")
    parsed = parse_spec(spec, namespace=there)
    bound = rules.namespaces.get(there, {})
    queues = queues_of(kept_labels(labels), bound, rules.trees, rules.known_names)
    forest = Forest.of(rules.queues)
    needed = approvals.needed(annotations.get(APPROVALS, ""), queues, forest)
    submission = Submission(
        uid=f"proposal/{number}",
        group=str(raw["apiVersion"]).partition("/")[0],
        namespace=there,
        name=name,
        created_at=now,
        spec=b"",
        spec_hash="",
        queues=queues,
        priority=parsed.priority,
        priority_slope=parsed.priority_slope,
        suspended=parsed.suspend,
        expected_seconds=expected_seconds(
            parsed, default_runtime(rules.expected.get(there, 0), queues, forest)
        ),
        limit_seconds=limit_seconds(parsed),
        requirements=requirements_of(annotations, there, parsed),
        awaits=approvals.pending_without(needed),
        pods_never_preempt=pod_defaults.never_preempts(parsed, ()),
    )
    gang = charge_of(parsed, rules.declared_demand, rules.kinds).gang
    submitted = first_changes.submit(submission, gang, now).after
    return Proposal(replace(submitted, enqueue_seq=LAST + number), parsed, class_name(labels))


def applied(record: Record, proposal: Proposal, rules: SchedulingRules, now: datetime) -> Record:
    """The record after a proposal was applied to its AppWrapper, and the leader has followed what its user may change.

    Its age and all else stay: an API server refuses other wrapped objects. Of a gang that holds capacity, only a
    suspension is followed. The value of a priority class is not known, nor is a ceiling of the slope: with a class the
    priority stays unless the proposal has one, and where there is a ceiling the slope grows no more.
    """
    asked = _asked(record, proposal, rules)
    if record.holds_capacity and not asked.suspend:
        return record
    while True:
        step = decide(ObservedState(record, wanted=True, now=now, asked=asked, queues=proposal.record.leaves))
        if not isinstance(step, Commit):
            return record
        record = step.change.after


def _asked(record: Record, proposal: Proposal, rules: SchedulingRules) -> MutableSpec:
    """The fields of a proposal that a user may change, with the values that count."""
    spec, requirements = proposal.spec, proposal.record.requirements
    names_class = bool(proposal.priority_class)
    asked = MutableSpec(
        priority=spec.priority or (record.priority if names_class else 0),
        priority_slope=spec.priority_slope,
        suspend=spec.suspend,
        selector=requirements.selector,
        prefers=requirements.prefers,
        never_preempts=record.class_never_preempts and names_class,
    )
    ceiling = rules.ceiling_of(record.namespace)
    return asked if ceiling is None else Ceiling(ceiling, record.priority_slope).lower(asked)


class KnownDefaults(Struct, frozen=True):
    """The defaults of pods that the leader counts, and the names of the clusters with unknown defaults.

    `lacks_hub` is true if the defaults of the hub would count, and are not known.
    """

    defaults: ClusterDefaults
    unknown: tuple[str, ...] = ()
    lacks_hub: bool = False


def known_defaults(
    proposal: Proposal,
    clusters: Sequence[Cluster],
    surveys: Mapping[str, DefaultsSurvey | None],
    of_hub: PodDefaults | None,
) -> KnownDefaults:
    """The defaults of pods in the clusters that the selector of a proposal allows, as intake joins them.

    `surveys` are those of the leader's snapshot, by cluster. `of_hub` are those of the hub, None if they are not known.
    """
    record = proposal.record
    classes = sorted(runtime_classes(proposal.spec))[:MOST_CLASSES]

    def read(survey: DefaultsSurvey | None) -> PodDefaults | None:
        return None if survey is None else survey.read(record.namespace, classes)

    if not has_members([each.name for each in clusters]):
        found = read(surveys.get(HUB_CLUSTER)) if of_hub is None else of_hub
        return KnownDefaults(ClusterDefaults.of({HUB_CLUSTER: found or NO_DEFAULTS}), lacks_hub=found is None)
    selector = record.requirements.selector
    # The leader leaves out a member that is not connected; its survey is None, and no gang can go there.
    counted = [
        each.name
        for each in clusters
        if selector.matches(each.labels) and (surveys.get(each.name) is not None or each.closed is None)
    ]
    own = {name: defaults for name in counted if (defaults := read(surveys.get(name))) is not None}
    if own and len(own) == len(counted):
        return KnownDefaults(ClusterDefaults.of(own))
    unknown = tuple(name for name in counted if name not in own)
    return KnownDefaults(ClusterDefaults.of(own, of_hub), unknown, lacks_hub=of_hub is None)


def with_pod_defaults(proposal: Proposal, defaults: ClusterDefaults, rules: SchedulingRules) -> Proposal:
    """The proposal with the demand of its pods in each cluster; the same value if the defaults change nothing."""
    charge = partial(charge_of, rule=rules.declared_demand, kinds=rules.kinds)
    gang = charge_in_clusters(proposal.spec, defaults, charge).gang
    if gang == proposal.record.gang:
        return proposal
    return replace(proposal, record=replace(proposal.record, gang=gang))


def may_be_charge_of(gang: Gang, written: Proposal, rules: SchedulingRules) -> bool:
    """True if intake may have charged the gang for the objects that the proposal wraps, with unknown defaults of pods.

    `written` has no defaults yet. Defaults only add amounts of resources that a container states neither as a request
    nor as a limit. With such a container in a pod, a default cannot be told from a request that another one had.
    """
    least = written.record.gang
    if not least.is_within(gang):
        return False
    defaults = ClusterDefaults(_defaults_between(least, gang, written.spec))
    try:
        most = with_pod_defaults(written, defaults, rules).record.gang
    except SpecError:  # so much in every container is more than a gang may ask for, and more than the charge
        return True
    return gang.is_within(most)


def _defaults_between(least: Gang, gang: Gang, spec: AppWrapperSpec) -> PodDefaults:
    """Defaults of each resource of which the gang has more than the file: what its largest pod asks for in all."""
    added: dict[str, int] = {}
    for less, more in zip(least.pod_sets, gang.pod_sets, strict=False):
        for name in (more.requests - less.requests).positive_part():
            added[name] = max(added.get(name, 0), more.requests[name])
    requests = {name: quantity(name, amount) for name, amount in added.items()}
    return PodDefaults(requests, dict.fromkeys(runtime_classes(spec), requests))


def _texts(metadata: Mapping[str, Any], key: str) -> Mapping[str, str]:
    """The annotations or the labels."""
    texts = metadata.get(key) or {}
    if not isinstance(texts, Mapping):
        raise SpecError(f"metadata.{key}", "must be an object", "Write names and texts")
    for name, value in texts.items():
        if not isinstance(value, str):
            path = joined(f"metadata.{key}", name)
            raise SpecError(path, f"must be text, not {quoted(value)}", "Write it in quotes")
    return texts


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key) or ""
    if not isinstance(value, str) or not value.isprintable():
        raise SpecError(f"metadata.{key}", f"must be text, not {quoted(value)}", "Write a name")
    return value


def requirements_of(
    annotations: Mapping[str, str], namespace: str, spec: AppWrapperSpec
) -> ClusterRequirements:
    """The cluster requirements of an AppWrapper; raises `SpecError` if one of its selectors cannot be parsed."""
    return ClusterRequirements(
        selector=selector_of(annotations, CLUSTER_SELECTOR),
        prefers=selector_of(annotations, CLUSTER_PREFERENCE),
        namespace=namespace,
        kinds=frozenset((wrapped.api_version, wrapped.kind) for wrapped in spec.wrapped),
    )


def expected_seconds(spec: AppWrapperSpec, default: int = 0) -> int:
    """The run time that the author expects, in whole seconds; the `default` if the author states no duration at all.

    0 if it is unknown. A limit is a duration: estimates take it for the end.
    """
    stated = spec.scheduling.dispatch_duration
    if stated.expected:
        return int(stated.expected.total_seconds())
    return 0 if stated.limit else default


def default_runtime(of_namespace: int, queues: Iterable[str], forest: Forest) -> int:
    """The expected run time of an AppWrapper without a stated duration, in seconds; 0 if none is declared.

    `of_namespace` is that of its namespace, which counts before those of its queues.
    """
    if of_namespace:
        return of_namespace
    declared = (place.expected_runtime for place in forest.places_of(queues))
    seconds = next((each.total_seconds() for each in declared if each is not None), 0.0)
    return int(min(seconds, LONGEST_RUNTIME))


def limit_seconds(spec: AppWrapperSpec) -> int:
    """The longest run time that the author allows, in whole seconds; 0 if unlimited."""
    limit = spec.scheduling.dispatch_duration.limit
    return int(limit.total_seconds()) if limit else 0
