"""The gangs that hold capacity, from AppWrappers and pods alone, and how `kubectl aw running` shows them.

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
from dispatcher.cli.screens.output import UNKNOWN, text
from dispatcher.cli.screens.tables import Heading, relative, table
from dispatcher.core.intake.labels import queues_of
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.pods.pod_defaults import NO_DEFAULTS, PodDefaults, runtime_classes, with_defaults
from dispatcher.core.kinds.pods.pod_requests import PodSpecError, live_pod_requests
from dispatcher.core.model.clock import time_in
from dispatcher.core.model.quantity import QuantityError, in_words, resource_amounts
from dispatcher.core.model.records.pending_reasons import AWAITING_CAPACITY
from dispatcher.core.model.resources import NOTHING, Resources, gpus
from dispatcher.core.status.phases import phase_in
from dispatcher.text import mapping_of, mappings_of, name_of, one_line, text_of

Json = dict[str, Any]
Place = tuple[str, str]
"""A cluster and a namespace."""

NONE_READ: Final[Mapping[Place, PodDefaults]] = {}

_ENDED: Final = frozenset({"Completed", "Failed"})
_DISPATCHED: Final = ("Dispatched", "QuotaReserved")
"""Conditions that begin with the dispatch, the first one that is there counts."""
HEADINGS: Final = (
    Heading("NAME", is_namespaced=True),
    Heading("USER", 4),
    Heading("QUEUE", 3),
    Heading("CLUSTER"),
    Heading("NODES", 2),
    Heading("GPU"),
    Heading("BOUND"),
    Heading("SINCE"),
    Heading("ENDS BY", 1),
)
WIDE_HEADINGS: Final = (
    *HEADINGS,
    *map(Heading, ("STATE", "PODS", "DEMAND", "HELD", "GROWTH WAITS", "NODE LIST")),
)


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
    status = mapping_of(appwrapper.get("status"))
    awaits_capacity = mapping_of(status.get("waiting")).get("reason") == AWAITING_CAPACITY
    is_there = bool(name_of(status.get("cluster"))) and text_of(status.get("state")) not in _ENDED
    return is_there and not awaits_capacity


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
        _since(mappings_of(status.get("conditions"))),
        None if spec is None else spec.scheduling.dispatch_duration.limit,
        dict(mapping_of(status.get("growth"))) or None,
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
        return resource_amounts(mapping_of(status.get("held")))
    except QuantityError:
        return NOTHING


def _since(conditions: Iterable[Json]) -> datetime | None:
    times = {
        text_of(each.get("type")): text_of(each.get("lastTransitionTime"))
        for each in conditions
        if each.get("status") == "True"
    }
    return time_in(next((times[type_] for type_ in _DISPATCHED if times.get(type_)), None))


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


class _Row(Struct, frozen=True):
    gang: HeldGang
    pods: Sequence[BoundPod] | None
    """The live pods; None if they cannot be seen."""

    @property
    def nodes(self) -> list[str]:
        return sorted({each.node for each in self.pods or () if each.node})


class RunningReport(Struct, frozen=True):
    """Gangs with their pods, at a moment."""

    rows: Sequence[_Row]
    now: datetime

    @classmethod
    def of(
        cls, gangs: Sequence[HeldGang], pods: Mapping[str, Sequence[BoundPod]], now: datetime
    ) -> RunningReport:
        """The report; a cluster without an entry in `pods` cannot be seen."""
        owners = Owners(gangs)
        of_gang: dict[tuple[str, str], list[BoundPod]] = {}
        for cluster, found in pods.items():
            for pod in found:
                owner = owners.of(pod)
                if owner is not None and owner.cluster == cluster:
                    of_gang.setdefault((cluster, owner.key), []).append(pod)
        rows = [
            _Row(each, of_gang.get((each.cluster, each.key), []) if each.cluster in pods else None)
            for each in gangs
        ]
        return cls(rows, now)

    def as_table(self, width: int | None) -> str:
        """A line a gang, for a terminal of `width` characters."""
        return table(HEADINGS, [self._cells(each) for each in self.rows], width)

    def as_wide_table(self) -> str:
        """The same with more columns, and times instead of spans."""
        return table(WIDE_HEADINGS, [(*self._cells(each, is_wide=True), *_more(each)) for each in self.rows])

    def as_value(self) -> list[dict[str, Any]]:
        """The gangs for programs; amounts in base units, and null where something is unknown."""
        return [_value(each) for each in self.rows]

    def _cells(self, row: _Row, *, is_wide: bool = False) -> tuple[str, ...]:
        gang = row.gang
        return (
            gang.key,
            gang.user,
            gang.queue,
            gang.cluster,
            UNKNOWN if row.pods is None else str(len(row.nodes)),
            UNKNOWN if gang.held is None else str(gpus(gang.held)),
            UNKNOWN if row.pods is None else str(gpus_of(row.pods)),
            *((text(gang.since), text(gang.ends_by)) if is_wide else self._spans(gang)),
        )

    def _spans(self, gang: HeldGang) -> tuple[str, str]:
        since, ends_by = (relative(each, self.now) if each else "" for each in (gang.since, gang.ends_by))
        return since, ends_by


def _more(row: _Row) -> tuple[str, ...]:
    pods = UNKNOWN if row.pods is None else f"{sum(1 for each in row.pods if each.node)}/{len(row.pods)}"
    return (
        row.gang.state,
        pods,
        amounts(row.gang.demand),
        amounts(row.gang.held),
        _growth(row.gang),
        ",".join(row.nodes),
    )


def _growth(gang: HeldGang) -> str:
    """How many pods of a gang wait for a grant, and why; empty if none waits."""
    growth = gang.growth or {}
    return f"{text(growth.get('pods'))}: {name_of(growth.get('reason'))}" if growth else ""


def amounts(resources: Resources | None) -> str:
    """Amounts in words, such as `cpu 8, nvidia.com/gpu 1`."""
    if resources is None:
        return UNKNOWN
    return ", ".join(f"{name} {in_words(name, resources[name])}" for name in sorted(resources))


def _value(row: _Row) -> dict[str, Any]:
    gang, pods = row.gang, row.pods
    bound = None if pods is None else [each for each in pods if each.node]
    return {
        "namespace": gang.namespace,
        "name": gang.name,
        "uid": gang.uid,
        "state": gang.state,
        "user": gang.user,
        "queue": gang.queue,
        "cluster": gang.cluster,
        "nodes": None if pods is None else row.nodes,
        "gpus": {"held": None if gang.held is None else gpus(gang.held), "bound": pods and gpus_of(pods)},
        "pods": None if pods is None or bound is None else {"live": len(pods), "bound": len(bound)},
        "demand": None if gang.demand is None else dict(gang.demand),
        "held": None if gang.held is None else dict(gang.held),
        "growth": gang.growth,
        "since": gang.since.isoformat() if gang.since else None,
        "endsBy": gang.ends_by.isoformat() if gang.ends_by else None,
    }
