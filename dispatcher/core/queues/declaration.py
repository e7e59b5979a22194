"""Reads the declaration of a queue: the fields of DispatchQueue's spec, in a scenario file or from the API server."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Final

from dispatcher.api.spec_errors import quoted
from dispatcher.core.model.document import LARGEST_INTEGER, Entry
from dispatcher.core.queues.queue import (
    MOST_RESOURCES,
    NO_PREEMPTION,
    Order,
    Preemption,
    Queue,
    QueueingStrategy,
    Quota,
    Reclaim,
    Sharing,
    StopPolicy,
    WhileBorrowing,
    WithinQueue,
)

FIELDS: Final = (
    "parent",
    "resources",
    "weight",
    "priority",
    "sharing",
    "queueingStrategy",
    "starvationBoundSeconds",
    "order",
    "preemption",
    "minRuntimeSeconds",
    "maxPreemptions",
    "preemptibleBelow",
    "clusterSelector",
    "namespaceSelector",
    "stopPolicy",
)
"""The fields of a DispatchQueue's spec."""

_QUOTA: Final = ("nominalQuota", "borrowingLimit", "lendingLimit")
_PREEMPTION: Final = ("withinQueue", "reclaim", "whileBorrowing")
_WHILE_BORROWING: Final = ("maxPriority",)


def read_queue(name: str, spec: Entry) -> Queue:
    """The queue that a spec declares; the caller has checked the keys of `spec`. Raises `DocumentError`."""
    parent = spec.child("parent")
    if parent.value is not None and parent.name() == name:
        parent.fail("a queue cannot be its own parent")
    sharing = spec.child("sharing")
    strategy = spec.child("queueingStrategy")
    return Queue(
        name=name,
        parent=None if parent.value is None else parent.name(),
        resources=_quotas(spec.child("resources")),
        weight=spec.child("weight").decimal(Fraction(1)),
        priority=_priority(spec.child("priority")) or 0,
        sharing=None if sharing.value is None else Sharing(sharing.one_of(list(Sharing))),
        strategy=None
        if strategy.value is None
        else QueueingStrategy(strategy.one_of(list(QueueingStrategy))),
        starvation_bound=_seconds(spec.child("starvationBoundSeconds")),
        order=Order(spec.child("order").one_of(list(Order), Order.PRIORITY)),
        preemption=_preemption(spec.child("preemption")),
        min_runtime=_seconds(spec.child("minRuntimeSeconds")),
        max_preemptions=_count(spec.child("maxPreemptions")),
        preemptible_below=_priority(spec.child("preemptibleBelow")),
        cluster_selector=spec.child("clusterSelector").selector(),
        namespace_selector=spec.child("namespaceSelector").selector(),
        stop_policy=StopPolicy(spec.child("stopPolicy").one_of(list(StopPolicy), StopPolicy.NONE)),
    )


def _quotas(entry: Entry) -> dict[str, Quota]:
    quotas = {}
    for resource in entry.fields():
        quota = entry.child(resource)
        quota.check_keys(_QUOTA)
        nominal, borrowing, lending = (quota.child(key).amount_of(resource) for key in _QUOTA)
        if nominal is None:
            quota.child("nominalQuota").fail("is required")
        quotas[resource] = Quota(nominal, borrowing, lending)
    if len(quotas) > MOST_RESOURCES:
        entry.fail(f"has {len(quotas)} resources; at most {MOST_RESOURCES} are allowed")
    return quotas


def _preemption(entry: Entry) -> Preemption:
    if entry.value is None:
        return NO_PREEMPTION
    entry.check_keys(_PREEMPTION)
    within, reclaim = entry.child("withinQueue"), entry.child("reclaim")
    found = Preemption(
        within_queue=WithinQueue(within.one_of(list(WithinQueue), WithinQueue.NEVER)),
        reclaim=Reclaim(reclaim.one_of(list(Reclaim), Reclaim.NEVER)),
        while_borrowing=_while_borrowing(entry.child("whileBorrowing")),
    )
    if found.while_borrowing is not None and found.reclaim is Reclaim.NEVER:
        entry.child("whileBorrowing").fail(f"has no effect with reclaim {quoted(Reclaim.NEVER.value)}")
    return found


def _while_borrowing(entry: Entry) -> WhileBorrowing | None:
    if entry.value is None:
        return None
    entry.check_keys(_WHILE_BORROWING)
    return WhileBorrowing(_priority(entry.child("maxPriority")))


def _priority(entry: Entry) -> int | None:
    if entry.value is None:
        return None
    return entry.integer(0, least=-LARGEST_INTEGER, most=LARGEST_INTEGER)


def _count(entry: Entry) -> int | None:
    return None if entry.value is None else entry.integer(0)


def _seconds(entry: Entry) -> timedelta | None:
    return None if entry.value is None else entry.seconds()
