"""The facts of one cluster as a compressed document, and back without loss.

The document is lines of JSON, so that it can be written in parts: a header, then lists of nodes and of pods.

A command of an earlier release reads the document of a later leader, and the other way around. So fields that an
earlier release does not know are left out while they say nothing, and fields that this one does not know are passed
over. A change that would be misread so gets another `VERSION`.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import asdict, replace

from dispatcher.api.potential import OnPotential
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, DefaultsSurvey
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.cluster_errors import ErrorCounts
from dispatcher.core.model.growth import SurplusPod
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.nodes import Node, Taint
from dispatcher.core.model.potential import FULL_TRUST, PotentialPool, Trust
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.core.queues.declaration import parse_dispatch_queue, write_provisioning, write_queue
from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy
from dispatcher.core.scheduling.backfill_reservation import Before, Reservation
from dispatcher.core.scheduling.capacity_ledger import FitMode
from dispatcher.core.scheduling.cluster_filters import Closed
from dispatcher.core.scheduling.leader_snapshot import ClusterFacts, OwnedPods, SchedulingRules
from dispatcher.core.scheduling.node_snapshot import Place
from dispatcher.core.scheduling.sharing.quota_reservations import QuotaReservations
from dispatcher.core.scheduling.sharing.surplus import Surplus
from dispatcher.core.scheduling.world_facts import Cluster
from dispatcher.errors import StoreError
from dispatcher.store.gang_rows import assignment_of, class_of, sort_of, sort_row

VERSION: Final = 1
_LEVEL: Final = 1
"""Of compression: a tenth of the size at a quarter of the time of the usual level."""


def lines_of(facts: ClusterFacts) -> Steps[list[bytes]]:
    """The lines of the document, to be joined by `compressed`."""
    cluster = facts.cluster
    header = {
        "version": VERSION,
        "rules": {
            "policy": facts.rules.policy,
            "fit": facts.rules.fit,
            "starvation_seconds": facts.rules.starvation_bound.total_seconds(),
            "reservation_seconds": facts.rules.reservation_bound.total_seconds(),
            "declared_demand": facts.rules.declared_demand,
            "declared_kinds": facts.rules.kinds.declared,
            "queues": list(map(_written_queue, facts.rules.queues)),
            "namespaces": facts.rules.namespaces,
            "trees": facts.rules.trees,
            "usage": [(*key, str(hours)) for key, hours in facts.rules.usage.items()],
            "highest_priority": facts.rules.highest_priority,
            "ceilings": facts.rules.ceilings,
            "queue_access": facts.rules.access,
            "has_default_queue": facts.rules.has_default,
            "charged_in": facts.rules.charged_in,
            "held_queues": list(map(_written_queue, facts.rules.held)),
            "problems": facts.rules.problems,
            "deleted": facts.rules.deleted,
            "names": facts.rules.names,
        },
        "cluster": {
            "name": cluster.name,
            "labels": cluster.labels,
            "closed": cluster.closed,
            "reserve": cluster.reserve,
            "missing_kinds": cluster.missing_kinds,
            "kind_hints": [(*kind, hint) for kind, hint in cluster.kind_hints.items()],
            "missing_namespaces": cluster.missing_namespaces,
            "creates_namespaces": cluster.creates_namespaces,
            "closed_namespaces": cluster.closed_namespaces,
            "errors": cluster.errors.for_all,
            "errors_in_namespaces": cluster.errors.in_namespaces,
            "provisioning": write_provisioning(cluster.provisioning) if cluster.provisioning else None,
            "pools": cluster.pools,
            "trust": cluster.trust,
            "device_resources": cluster.device_resources,
        },
        "reservations": facts.reservations,
        "quota": {"reservations": facts.quota.by_uid, "resting": facts.quota.resting},
        "defaults": _written_survey(facts.defaults),
        "surplus": facts.surplus,
    }
    lines = [_dumped(header)]
    for nodes in in_parts(cluster.nodes, _AT_ONCE):
        lines.append(_dumped({"nodes": nodes}))
        yield
    for pods in in_parts(facts.pods, _AT_ONCE):
        rows = [(each.owner, *each.place[:3], each.never_ends) for each in pods]
        sorts = [(at, sort_row(each.place.sort)) for at, each in enumerate(pods) if each.place.sort]
        # A list of its own, which a command of an earlier release does not read.
        lines.append(_dumped({"pods": rows, "sorts": sorts} if sorts else {"pods": rows}))
        yield
    return lines


def _written_queue(queue: Queue) -> object:
    return {"metadata": {"name": queue.name}, "spec": write_queue(queue)}


_AT_ONCE: Final = 100

_ADDED: Final[Mapping[type, frozenset[str]]] = {
    KindDeclaration: frozenset({"managed_by"}),
    Node: frozenset({"left_out"}),
}
"""Fields that some releases which read `VERSION` do not know: they are written only if they say something."""


def compressed(lines: Iterable[bytes]) -> bytes:
    """The document; takes some milliseconds for each MiB, in which other threads run."""
    return zlib.compress(b"\n".join(lines), _LEVEL)


def facts_of(document: bytes, taken_at: datetime) -> ClusterFacts:
    """The facts of a document; raises `StoreError` for a document of another version or a damaged one."""
    try:
        header, *lines = map(orjson.loads, zlib.decompress(document).split(b"\n"))
        if header["version"] != VERSION:
            raise StoreError(
                f"the snapshot is of version {header['version']}, this program reads {VERSION}: use the same release"
            )
        nodes = tuple(_node_of(each) for line in lines for each in line.get("nodes", ()))
        pods = tuple(each for line in lines for each in _pods_of_line(line))
        return ClusterFacts(
            cluster=replace(_cluster_of(header["cluster"]), nodes=nodes),
            pods=pods,
            rules=_rules_of(header["rules"]),
            reservations={uid: _reservation_of(each) for uid, each in header["reservations"].items()},
            taken_at=taken_at,
            defaults=_survey_of(header.get("defaults")),
            # A leader of an earlier release writes none.
            surplus={uid: _surplus_of(each) for uid, each in header.get("surplus", {}).items()},
            quota=_quota_of(header.get("quota", {})),
        )
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"the snapshot cannot be read: {type(error).__name__}") from error


def _written_survey(survey: DefaultsSurvey | None) -> object:
    """The survey, with one list of namespaces for equal default requests: few differ among many namespaces."""
    if survey is None:
        return None
    found: dict[bytes, tuple[object, list[str]]] = {}
    for namespace, requests in (survey.requests or {}).items():
        found.setdefault(orjson.dumps(requests), (requests, []))[1].append(namespace)
    return {
        "requests": None if survey.requests is None else list(found.values()),
        "overheads": survey.overheads,
        "has_more": survey.has_more,
    }


def _survey_of(value: Mapping[str, Any] | None) -> DefaultsSurvey | None:
    """The survey of a document; None in a document of an earlier release, too."""
    if value is None:
        return None
    listed = value["requests"]
    requests = None if listed is None else {name: each for each, names in listed for name in names}
    return DefaultsSurvey(requests, value["overheads"], value["has_more"])


def _surplus_of(value: Mapping[str, Any]) -> Surplus:
    pods = (_made(SurplusPod, each, requests=_resources_of(each["requests"])) for each in value["pods"])
    held = _resources_of(value.get("held", value["admitted"]))  # some leaders wrote none
    return Surplus(_resources_of(value["admitted"]), held, tuple(pods), value.get("admitted_pods", 0))


def _resources_of(value: Mapping[str, int | str]) -> Resources:
    """The amounts of a document; one beyond 64 bits is text, because no reader of JSON here keeps it."""
    return Resources({name: int(amount) for name, amount in value.items()})


def _dumped(value: object) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: object) -> object:
    match value:
        case Struct():
            added = _ADDED.get(type(value), frozenset())
            return {name: each for name, each in asdict(value).items() if each or name not in added}
        case Resources():
            return {
                name: amount if abs(amount) <= LARGEST_AMOUNT else str(amount)
                for name, amount in value.items()
            }
        case Mapping():
            return dict(value)
        case frozenset():
            return sorted(value)
    raise TypeError(type(value).__name__)


_Made = TypeVar("_Made", bound=Struct)


def _made(kind: type[_Made], value: Mapping[str, Any], **read: object) -> _Made:
    """The struct with the fields of a document, those of `read` as they are; unknown fields are passed over."""
    known = {name: value[name] for name in kind.__struct_fields__ if name in value}
    return kind(**{**known, **read})


def _rules_of(value: Mapping[str, Any]) -> SchedulingRules:
    return SchedulingRules(
        policy=QueueingStrategy(value["policy"]),
        fit=FitMode(value["fit"]),
        starvation_bound=timedelta(seconds=value["starvation_seconds"]),
        reservation_bound=_reservation_bound_of(value),
        declared_demand=ChargeRule(value["declared_demand"]),
        # A leader of an earlier release declares none.
        kinds=Kinds(tuple(map(_declaration_of, value.get("declared_kinds", ())))),
        queues=tuple(map(parse_dispatch_queue, value.get("queues", ()))),
        namespaces=value.get("namespaces", {}),
        trees=tuple(value.get("trees", ())),
        usage={(queue, namespace): Fraction(hours) for queue, namespace, hours in value.get("usage", ())},
        highest_priority=value.get("highest_priority"),
        ceilings=value.get("ceilings", {}),
        # A leader of an earlier release had the queue `default` always, and open queues.
        access=Access(value.get("queue_access", Access.OPEN)),
        has_default=value.get("has_default_queue", True),
        charged_in=value.get("charged_in", {}),
        held=tuple(map(parse_dispatch_queue, value.get("held_queues", ()))),
        problems=value.get("problems", {}),
        deleted={name: at and datetime.fromisoformat(at) for name, at in value.get("deleted", {}).items()},
        names=None if value.get("names") is None else frozenset(value["names"]),
    )


def _reservation_bound_of(value: Mapping[str, Any]) -> timedelta:
    """The bound of a backfill reservation; a leader of an earlier release does not write it."""
    seconds = value.get("reservation_seconds")
    return SchedulingRules().reservation_bound if seconds is None else timedelta(seconds=seconds)


def _declaration_of(value: Mapping[str, Any]) -> KindDeclaration:
    pod_sets = tuple(_made(PodSetDeclaration, each) for each in value["pod_sets"])
    words = {key: tuple(value[key]) for key in ("succeeded", "failed")}
    return _made(KindDeclaration, value, **words, pod_sets=pod_sets)


def _cluster_of(value: Mapping[str, Any]) -> Cluster:
    return Cluster(
        name=value["name"],
        labels=value["labels"],
        closed=_made(Closed, value["closed"]) if value["closed"] else None,
        reserve=_resources_of(value["reserve"]),
        missing_kinds=frozenset((version, kind) for version, kind in value["missing_kinds"]),
        missing_namespaces=frozenset(value["missing_namespaces"]),
        creates_namespaces=value["creates_namespaces"],
        closed_namespaces=frozenset(value["closed_namespaces"]),
        # A leader of an earlier release writes none.
        errors=ErrorCounts(value["errors"], value.get("errors_in_namespaces", {})),
        provisioning=class_of(value["provisioning"]) if value.get("provisioning") else None,
        pools=tuple(_pool_of(each) for each in value.get("pools", ())),
        trust=_trust_of(value["trust"]) if "trust" in value else FULL_TRUST,
        device_resources=frozenset(value.get("device_resources", ())),
        kind_hints={(version, kind): hint for version, kind, hint in value.get("kind_hints", ())},
    )


def _pool_of(value: Mapping[str, Any]) -> PotentialPool:
    return PotentialPool(value["name"], _node_of(value["shape"]), value["most"])


def _trust_of(value: Mapping[str, Any]) -> Trust:
    distrusted = ((pool, datetime.fromisoformat(until)) for pool, until in value["distrusted"])
    in_namespaces = (
        (namespace, pool, datetime.fromisoformat(until))
        for namespace, pool, until in value.get(
            "in_namespaces", ()
        )  # a leader of an earlier release writes none
    )
    return Trust(OnPotential(value["policy"]), tuple(distrusted), tuple(in_namespaces))


def _node_of(value: Mapping[str, Any]) -> Node:
    taints = tuple(_made(Taint, each) for each in value["taints"])
    return _made(Node, value, allocatable=_resources_of(value["allocatable"]), taints=taints)


def _pods_of_line(line: Mapping[str, Any]) -> Iterator[OwnedPods]:
    sorts = {at: sort_of(each) for at, each in line.get("sorts", ())}
    for at, (owner, node, requests, pods, never_ends) in enumerate(line.get("pods", ())):
        place = Place(node, _shared(tuple(sorted(requests.items()))), pods, sorts.get(at))
        yield OwnedPods(owner, place, never_ends)


@functools.lru_cache(maxsize=10_000)
def _shared(requests: tuple[tuple[str, int | str], ...]) -> Resources:
    """One value for equal requests: few differ among many pods."""
    return _resources_of(dict(requests))


_TIMES: Final = ("since", "until", "began")


def _quota_of(value: Mapping[str, Any]) -> QuotaReservations:
    kept, resting = value.get("reservations", {}), value.get("resting", {})
    return QuotaReservations(
        {uid: _reservation_of(each) for uid, each in kept.items()},
        {leaf: datetime.fromisoformat(end) for leaf, end in resting.items()},
    )


def _reservation_of(value: Mapping[str, Any]) -> Reservation:
    times: dict[str, Callable[[Any], Any]] = dict.fromkeys(_TIMES, datetime.fromisoformat)
    read = {name: times[name](each) if name in times else each for name, each in value.items()}
    assignment = assignment_of(value["assignment"]["places"])
    before = Before(value.get("before", Before.OTHERS))  # a leader of an earlier release writes none
    return _made(Reservation, read, tried=tuple(value["tried"]), assignment=assignment, before=before)
