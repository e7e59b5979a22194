"""What the settings mean for scheduling: the rules, bounds and denied namespaces of a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from dispatcher.core.intake.labels import naming_queues
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Defaults
from dispatcher.core.queues.queue import Access, QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.kube.client import POD_NAMESPACE, pod_namespace
from dispatcher.settings import Settings


def scheduling_rules(settings: Settings, kinds: Kinds) -> SchedulingRules:
    """The settings and the kinds that decisions depend on."""
    return SchedulingRules(
        policy=QueueingStrategy(settings.queue_policy),
        fit=FitMode(settings.fit),
        starvation_bound=timedelta(seconds=settings.starvation_bound_seconds),
        reservation_bound=timedelta(seconds=settings.reservation_bound_seconds),
        declared_demand=ChargeRule(settings.declared_demand),
        kinds=kinds,
        highest_priority=settings.max_priority,
        access=Access(settings.queue_access),
    )


def without_queues(rules: SchedulingRules, namespaces: Mapping[str, Mapping[str, str]]) -> SchedulingRules:
    """The rules where no queue is declared, with the labels of namespaces that name queues."""
    return replace(rules, namespaces=naming_queues(namespaces))


def with_queues(rules: SchedulingRules, queues: QueueRules, declared: DeclaredQueues) -> SchedulingRules:
    """The rules with the declared queues; of namespaces, only those whose labels matter to some queue."""
    places = queues.forest.places.values()
    has_selector = any(place.namespace_selectors for place in places)
    return replace(
        rules.in_forest(queues.forest),
        namespaces=dict(queues.namespaces) if has_selector else naming_queues(queues.namespaces),
        trees=declared.trees,
        names=declared.names,
        invalid=declared.invalid,
        usage=queues.usage,
    )


def defaults_of_queues(settings: Settings) -> Defaults:
    """The settings of a queue where none on the way to its root has any."""
    return Defaults(
        strategy=QueueingStrategy(settings.queue_policy),
        starvation_bound=timedelta(seconds=settings.starvation_bound_seconds),
        access=Access(settings.queue_access),
    )


def denied_namespaces(settings: Settings, pod: Path = POD_NAMESPACE) -> frozenset[str]:
    """The namespaces in which nothing is dispatched: Kubernetes' own, that of members' kubeconfigs, and this pod's.

    The pod's namespace has its ServiceAccount and the database's URL. Outside a pod there is none to deny.
    """
    named = {each.strip() for each in settings.denied_namespaces.split(",")}
    return frozenset({*named, settings.namespace, pod_namespace(pod)} - {""})


def bounds_of_reservations(settings: Settings) -> Bounds:
    """How long backfill reservations may take, and the least pause after one: the starvation bound."""
    return Bounds(
        kept=timedelta(seconds=settings.reservation_bound_seconds),
        rest=timedelta(seconds=settings.starvation_bound_seconds),
    )
