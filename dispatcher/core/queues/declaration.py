"""Reads the declaration of a queue: the fields of DispatchQueue's spec, in a scenario file or from the API server.

A scenario file is read strictly: an unknown key is an error, and a key that begins with `x-` is ignored. In an object
of the API server every unknown field is ignored, because a newer CRD may have more fields; and `x-corp.io/npu` is a
resource like any other. A test keeps the fields, enums and bounds here equal to the CRD's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from dispatcher.api.clusters.provisioning import ProvisioningClass, read_provisioning
from dispatcher.api.conditions import MOST_APPROVALS, approval_problem
from dispatcher.api.document import LARGEST_INTEGER, Entry
from dispatcher.api.spec_errors import quoted
from dispatcher.core.model.quantity import QuantityError, amount_in, check_resource_name
from dispatcher.core.queues.queue import (
    MOST_RESOURCES,
    Elastic,
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
    "approvals",
    "provisioning",
    "elastic",
    "expectedRuntimeSeconds",
)
"""The fields of a DispatchQueue's spec."""

QUOTA_FIELDS: Final = ("nominalQuota", "borrowingLimit", "lendingLimit")
"""The fields of `resources.*`."""

PREEMPTION_FIELDS: Final = ("withinQueue", "reclaim", "whileBorrowing")
"""The fields of `preemption`."""

WHILE_BORROWING_FIELDS: Final = ("maxPriority",)
"""The fields of `preemption.whileBorrowing`."""

PROVISIONING_FIELDS: Final = (
    "className",
    "managedResources",
    "parameters",
    "authorParameters",
    "acceptWithinSeconds",
    "retry",
)
"""The fields of `provisioning`."""

RETRY_FIELDS: Final = ("limit", "baseSeconds", "maxSeconds")
"""The fields of `provisioning.retry`."""

SMALLEST_PRIORITY: Final = -LARGEST_INTEGER - 1


def parse_dispatch_queue(document: object) -> Queue:
    """The queue that a DispatchQueue declares, as the API server returns the object.

    Unknown fields are ignored. Raises `SpecError` with the place, and nothing else for any JSON.
    """
    top = Entry(document, "")
    name = top.child("metadata").child("name").name()
    spec = top.child("spec")
    return _queue(name, spec, resource_names(spec.child("resources")))


def read_queue(name: str, spec: Entry) -> Queue:
    """The queue that a spec in a scenario file declares; the caller has checked the keys of `spec`.

    Raises `SpecError`.
    """
    resources = spec.child("resources")
    names = resources.fields()
    _check_names(resources, names)
    _check_nested_keys(resources, spec.child("preemption"))
    provisioning = spec.child("provisioning")
    if provisioning.value is not None:
        provisioning.check_keys(PROVISIONING_FIELDS)
        if provisioning.child("retry").value is not None:
            provisioning.child("retry").check_keys(RETRY_FIELDS)
    return _queue(name, spec, names)


def resource_names(entry: Entry) -> list[str]:
    """The keys of a map by resource name, also keys that begin with `x-`.

    Raises `SpecError` for a key that is no resource name, and for more than `MOST_RESOURCES` keys.
    """
    entry.fields()  # fails if the value is no map of texts
    names = list(entry.value or {})
    _check_names(entry, names)
    return names


def read_approvals(entry: Entry) -> tuple[str, ...]:
    """The approvals of a list; none if it is absent. Raises `SpecError`."""
    found: list[str] = []
    for each in entry.elements():
        name = each.text()
        if problem := approval_problem(name):
            each.fail(problem)
        if name in found:
            each.fail(f"names {quoted(name)} twice")
        found.append(name)
    if len(found) > MOST_APPROVALS:
        entry.fail(f"names {len(found)} approvals; at most {MOST_APPROVALS} are allowed")
    return tuple(found)


def _check_names(entry: Entry, resources: Sequence[str]) -> None:
    """Fails at the map, before any value is read: the place of a value has the whole name, however long it is."""
    if len(resources) > MOST_RESOURCES:
        entry.fail(f"has {len(resources)} resources; at most {MOST_RESOURCES} are allowed")
    for resource in resources:
        try:
            check_resource_name(resource)
        except QuantityError as error:
            entry.fail(str(error))


def _check_nested_keys(resources: Entry, preemption: Entry) -> None:
    for quota in resources.children():
        quota.check_keys(QUOTA_FIELDS)
    if preemption.value is not None:
        preemption.check_keys(PREEMPTION_FIELDS)
        while_borrowing = preemption.child("whileBorrowing")
        if while_borrowing.value is not None:
            while_borrowing.check_keys(WHILE_BORROWING_FIELDS)


def _queue(name: str, spec: Entry, resources: Sequence[str]) -> Queue:
    parent = spec.child("parent")
    if parent.value is not None and parent.name() == name:
        parent.fail("a queue cannot be its own parent")
    sharing = spec.child("sharing")
    strategy, approvals = spec.child("queueingStrategy"), spec.child("approvals")
    provisioning, elastic = spec.child("provisioning"), spec.child("elastic")
    namespaces = spec.child("namespaceSelector")
    return Queue(
        name=name,
        parent=None if parent.value is None else parent.name(),
        resources=_quotas(spec.child("resources"), resources),
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
        namespace_selector=None if namespaces.value is None else namespaces.selector(),
        stop_policy=StopPolicy(spec.child("stopPolicy").one_of(list(StopPolicy), StopPolicy.NONE)),
        approvals=None if approvals.value is None else read_approvals(approvals),
        provisioning=None if provisioning.value is None else read_provisioning(provisioning),
        elastic=None if elastic.value is None else Elastic(elastic.one_of(list(Elastic))),
        expected_runtime=_seconds(spec.child("expectedRuntimeSeconds")),
    )


def _quotas(entry: Entry, resources: Sequence[str]) -> dict[str, Quota]:
    return {resource: _quota(entry.child(resource), resource) for resource in resources}


def _quota(entry: Entry, resource: str) -> Quota:
    nominal, borrowing, lending = (amount_in(entry.child(key), resource) for key in QUOTA_FIELDS)
    if nominal is None:
        entry.child("nominalQuota").fail("is required")
    return Quota(nominal, borrowing, lending)


def _preemption(entry: Entry) -> Preemption:
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
    return None if entry.value is None else WhileBorrowing(_priority(entry.child("maxPriority")))


def _priority(entry: Entry) -> int | None:
    if entry.value is None:
        return None
    return entry.integer(0, least=SMALLEST_PRIORITY, most=LARGEST_INTEGER)


def _count(entry: Entry) -> int | None:
    return None if entry.value is None else entry.integer(0)


def _seconds(entry: Entry) -> timedelta | None:
    return None if entry.value is None else entry.seconds()


def write_queue(queue: Queue) -> dict[str, Any]:
    """The spec of a DispatchQueue that declares a queue: `parse_dispatch_queue` reads it back.

    It is no form of the codec, because readers of the database see it: `history.queue_specs` shows the spec in the
    words of the CRD, and views and statements read its fields.
    """
    preemption = queue.preemption
    while_borrowing = preemption.while_borrowing
    return {
        "parent": queue.parent,
        "resources": {name: _written_quota(name, quota) for name, quota in queue.resources.items()},
        "weight": format(Decimal(queue.weight.numerator) / queue.weight.denominator, "f"),
        "priority": queue.priority,
        "sharing": queue.sharing,
        "queueingStrategy": queue.strategy,
        "starvationBoundSeconds": _in_seconds(queue.starvation_bound),
        "order": queue.order,
        "preemption": {
            "withinQueue": preemption.within_queue,
            "reclaim": preemption.reclaim,
            "whileBorrowing": None
            if while_borrowing is None
            else {"maxPriority": while_borrowing.max_priority},
        },
        "minRuntimeSeconds": _in_seconds(queue.min_runtime),
        "maxPreemptions": queue.max_preemptions,
        "preemptibleBelow": queue.preemptible_below,
        "clusterSelector": str(queue.cluster_selector),
        "namespaceSelector": None if queue.namespace_selector is None else str(queue.namespace_selector),
        "stopPolicy": queue.stop_policy,
        "approvals": None if queue.approvals is None else list(queue.approvals),
        "provisioning": None if queue.provisioning is None else write_provisioning(queue.provisioning),
        "elastic": queue.elastic,
        "expectedRuntimeSeconds": _in_seconds(queue.expected_runtime),
    }


def _written_quota(resource: str, quota: Quota) -> dict[str, str]:
    amounts = zip(QUOTA_FIELDS, (quota.nominal, quota.borrowing_limit, quota.lending_limit), strict=True)
    unit = "m" if resource == "cpu" else ""
    return {key: f"{value}{unit}" for key, value in amounts if value is not None}


def write_provisioning(asked: ProvisioningClass) -> dict[str, Any]:
    """The value of `provisioning` that declares a class: `read_provisioning` reads it back."""
    return {
        "className": asked.name,
        "managedResources": sorted(asked.managed),
        "parameters": dict(asked.parameters),
        "authorParameters": sorted(asked.author_parameters),
        "acceptWithinSeconds": int(asked.accept_within.total_seconds()),
        "retry": {
            "limit": asked.retry.limit,
            "baseSeconds": int(asked.retry.base.total_seconds()),
            "maxSeconds": int(asked.retry.longest.total_seconds()),
        },
    }


def _in_seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
