"""The gangs that hold capacity, from AppWrappers and pods alone: the resources that each holds, and its pods on nodes.

A pod belongs to the AppWrapper of its namespace that its labels name: by uid, as the dispatcher writes it into pod
templates, else by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, field

from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.names import MCAD_NAME_LABEL, NAME_LABEL, UID_LABEL, USER_ANNOTATION
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.queue_labels import queues_of
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, PodDefaults, runtime_classes, with_defaults
from dispatcher.core.kinds.pod_requests import PodSpecError, live_pod_requests
from dispatcher.core.model.pending_reasons import AWAITING_CAPACITY
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.resources import NOTHING, Resources, gpus
from dispatcher.core.status.phases import phase_in
from dispatcher.text import name_of, one_line

Json = dict[str, Any]
Place = tuple[str, str]
"""A cluster and a namespace."""

NONE_READ: Final[Mapping[Place, PodDefaults]] = {}

_ENDED: Final = frozenset({"Completed", "Failed"})
_DISPATCHED: Final = ("Dispatched", "QuotaReserved")
"""Conditions that begin with the dispatch, the first one that is there counts."""


class BoundPod(Struct, frozen=True):
    """A live pod with its requests; `node` is empty while it waits for one."""

    namespace: str
    name: str
    node: str
    requests: Resources
    labels: Mapping[str, str] = field(default_factory=dict)


class HeldGang(Struct, frozen=True):
    """A gang that holds capacity of a cluster.

    `held` are the resources in the status of a gang that grew, else its demand. Both are None if the demand cannot be
    derived from the AppWrapper, such as that of a declared kind.
    """

    namespace: str
    name: str
    uid: str
    state: str
    user: str
    queue: str
    cluster: str
    demand: Resources | None
    held: Resources | None
    since: datetime | None
    limit: timedelta | None
    growth: Json | None = None
    """The growth that waits for a grant, as the status has it; None if none waits."""

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.namespace}/{self.name}"

    @property
    def ends_by(self) -> datetime | None:
        """When `dispatchDuration.limit` ends it; None without a limit, or before it is dispatched."""
        return self.since + self.limit if self.since and self.limit else None


def held_gangs(
    appwrappers: Iterable[Json],
    namespace_labels: Mapping[str, Mapping[str, str]],
    defaults: Mapping[Place, PodDefaults] = NONE_READ,
) -> list[HeldGang]:
    """The gangs that hold capacity now, by cluster, namespace and name; with these defaults in their pods."""
    found = [_gang(each, namespace_labels, defaults) for each in appwrappers if holds_capacity(each)]
    return sorted(found, key=lambda gang: (gang.cluster, gang.namespace, gang.name))


def holds_capacity(appwrapper: Json) -> bool:
    """True from the dispatch of an AppWrapper until its capacity is free again."""
    status = appwrapper.get("status") or {}
    awaits_capacity = (status.get("waiting") or {}).get("reason") == AWAITING_CAPACITY
    return bool(status.get("cluster")) and status.get("state") not in _ENDED and not awaits_capacity


def runtime_classes_by_place(appwrappers: Iterable[Json]) -> dict[Place, frozenset[str]]:
    """Where gangs hold capacity, with the RuntimeClasses that pods of theirs name there."""
    found: dict[Place, frozenset[str]] = {}
    for each in appwrappers:
        if holds_capacity(each):
            place, spec = _place(each), _spec(each)
            named = frozenset[str]() if spec is None else runtime_classes(spec)
            found[place] = found.get(place, frozenset()) | named
    return found


def pods_of(raw: Iterable[Json]) -> list[BoundPod]:
    """The pods of an API server's answer."""
    return [_pod(each) for each in raw]


class Owners:
    """Finds the gang of a pod by its labels."""

    def __init__(self, gangs: Sequence[HeldGang]) -> None:
        self._by_uid = {(each.namespace, each.uid): each for each in gangs}
        self._by_name = {(each.namespace, each.name): each for each in gangs}

    def of(self, pod: BoundPod) -> HeldGang | None:
        """The gang of a pod; None if no gang that holds capacity has it."""
        uid = pod.labels.get(UID_LABEL)
        if uid:
            return self._by_uid.get((pod.namespace, uid))
        name = pod.labels.get(NAME_LABEL) or pod.labels.get(MCAD_NAME_LABEL)
        return self._by_name.get((pod.namespace, name)) if name else None


def _place(raw: Json) -> Place:
    return name_of(raw["status"]["cluster"]), raw["metadata"]["namespace"]


def _gang(
    raw: Json, namespace_labels: Mapping[str, Mapping[str, str]], defaults: Mapping[Place, PodDefaults]
) -> HeldGang:
    metadata, status = raw["metadata"], raw["status"]
    namespace = metadata["namespace"]
    labels = metadata.get("labels") or {}
    spec = _spec(raw)
    demand = None if spec is None else _demand(with_defaults(spec, defaults.get(_place(raw), NO_DEFAULTS)))
    return HeldGang(
        namespace,
        metadata["name"],
        metadata["uid"],
        phase_in(status) or "",
        one_line(str((metadata.get("annotations") or {}).get(USER_ANNOTATION, ""))),
        queues_of(labels, namespace_labels.get(namespace, {}), ())[0],
        name_of(status["cluster"]),
        demand,
        None if demand is None else demand.highest(_grown(status)),
        _since(status.get("conditions") or ()),
        None if spec is None else spec.scheduling.dispatch_duration.limit,
        status.get("growth") or None,
    )


def _spec(raw: Json) -> AppWrapperSpec | None:
    try:
        return parse_spec(raw.get("spec") or {}, namespace=raw["metadata"]["namespace"])
    except SpecError:
        return None


def _demand(spec: AppWrapperSpec) -> Resources | None:
    try:
        return charge_of(spec).gang.demand
    except SpecError:
        return None


def _grown(status: Json) -> Resources:
    """The resources that a gang holds, by its status; empty if it has not grown."""
    try:
        return resource_amounts(status.get("held") or {})
    except QuantityError:
        return NOTHING


def _since(conditions: Iterable[Json]) -> datetime | None:
    times = {
        each.get("type"): each.get("lastTransitionTime")
        for each in conditions
        if each.get("status") == "True"
    }
    written = next((times[type_] for type_ in _DISPATCHED if times.get(type_)), None)
    return datetime.fromisoformat(written) if written else None


def _pod(raw: Json) -> BoundPod:
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    try:
        requests = live_pod_requests(spec, raw.get("status") or {})
    except (PodSpecError, QuantityError):
        requests = Resources()
    return BoundPod(
        metadata["namespace"],
        metadata["name"],
        name_of(spec.get("nodeName")),
        requests,
        metadata.get("labels") or {},
    )


def gpus_of(pods: Iterable[BoundPod]) -> int:
    """The GPUs that these pods have on nodes."""
    return sum(gpus(each.requests) for each in pods if each.node)
