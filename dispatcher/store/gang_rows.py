"""Rows of gangs as values: demand, pod sets, requirements and places.

Commands read the queue with these functions alone, so this module imports neither SQLAlchemy nor the tables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api.document import Entry
from dispatcher.api.provisioning import ProvisioningClass, read_provisioning
from dispatcher.api.selector import parse_selector
from dispatcher.core.model.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.growth import GrowthRequest, GrowthTrust, PodRef, Shrinking
from dispatcher.core.model.nodes import (
    LabelOperator,
    LabelRequirement,
    NodeRequirements,
    NodeTerm,
    Toleration,
)
from dispatcher.core.model.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.pod_terms import PodSort, PodTerm
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.core.model.record import MOST_GROWTHS_KEPT, Attempt, Growth, Pending, Phase, Record
from dispatcher.core.model.requirements import ANYWHERE, ClusterRequirements, Kind
from dispatcher.core.model.resources import Resources


def queued_or_running_of(row: Mapping[Any, Any]) -> Record:
    """The record for a row of the view `scheduling.gangs`, with what decisions depend on."""
    attempt = None
    if row["number"] is not None:
        attempt = Attempt(
            row["number"],
            row["cluster"],
            row["decided_at"],
            assignment=assignment_of(row["assignment"]),
            growth=growth_of(row["growth"]),
            provisioning=provisioning_of(row["provisioning"]),
            growth_request=growth_request_of(row["growth_request"]),
            shrinking=shrinking_of(row["shrinking"]),
        )
    return Record(
        **{name: row[name] for name in _DECIDING},
        more_queues=tuple(row["more_queues"]),
        preempted_at=tuple(map(datetime.fromisoformat, row["preempted_at"])),
        group=row["api_group"],
        user=row["user_name"],
        phase=Phase(row["phase"]),
        gang=gang_of(row),
        requirements=requirements_of(row),
        pending=_approvals_awaited(row),
        attempt=attempt,
    )


def _approvals_awaited(row: Mapping[Any, Any]) -> Pending | None:
    """The pending reason of a gang that lacks approvals; None for other gangs, whose reason decides nothing."""
    if row["pending_reason"] != AWAITING_APPROVAL:
        return None
    return Pending(AWAITING_APPROVAL, row["pending_message"])


_DECIDING: Final = (
    "uid",
    "namespace",
    "name",
    "queue",
    "phase_since",
    "priority",
    "priority_slope",
    "created_at",
    "aged_from",
    "enqueue_seq",
    "eligible_at",
    "blocked_since",
    "expected_seconds",
    "limit_seconds",
    "is_preempting",
    "pods_never_preempt",
    "class_never_preempts",
    "reason",
    "message",
)


def gang_of(row: Mapping[Any, Any]) -> Gang:
    """The gang for a row of an AppWrapper."""
    gang = Gang(Resources(row["demand"]), row["pods"], tuple(map(_pod_set_of, row["pod_sets"])))
    smaller = row["pod_sets"][0].get("smaller") if row["pod_sets"] else None
    return replace(gang, smaller=tuple(_smaller_of(gang, each) for each in smaller)) if smaller else gang


def _smaller_of(gang: Gang, value: Mapping[str, Any]) -> tuple[str, Gang]:
    """The gang in a cluster where it requests less, with the name of the cluster."""
    pod_sets = (
        replace(pod_set, requests=Resources(requests))
        for pod_set, requests in zip(gang.pod_sets, value["requests"], strict=True)
    )
    return value["cluster"], Gang(Resources(value["demand"]), gang.pods, tuple(pod_sets))


def assignment_of(places: Iterable[Iterable[tuple[str, int]]]) -> Assignment:
    """The assignment for lists of pairs of a node and a number of pods, one list for each pod set."""
    return Assignment(tuple(tuple((node, pods) for node, pods in each) for each in places))


def growth_of(steps: Sequence[Mapping[str, Any]] | None) -> tuple[Growth, ...]:
    """The latest growths of an attempt, the latest last."""
    latest = (steps or ())[-MOST_GROWTHS_KEPT:]
    return tuple(map(_growth_of, latest))


def _growth_of(step: Mapping[str, Any]) -> Growth:
    """One growth; an older release wrote no pods, or no count of those that queues are charged with."""
    pods, trust = step.get("pods"), step.get("trust")
    by_template = None if pods is None else tuple(sorted(pods.items()))
    at, amounts = datetime.fromisoformat(step["at"]), Resources(step["amounts"])
    trusted = None
    if trust is not None:
        trusted = GrowthTrust(datetime.fromisoformat(trust["since"]), tuple(trust["nodes"]))
    return Growth(at, amounts, step.get("is_taken", False), by_template, trusted, step.get("count", 0))


def growth_request_of(value: Mapping[str, Any] | None) -> GrowthRequest | None:
    """The growth of an attempt that waits for a grant; None if none waits."""
    if value is None:
        return None
    converted = {"amounts": Resources(value["amounts"]), "since": datetime.fromisoformat(value["since"])}
    return GrowthRequest(**{**value, **converted})


def shrinking_of(value: Mapping[str, Any] | None) -> Shrinking | None:
    """The surplus pods that an attempt gives up; None if it gives up none."""
    if value is None:
        return None
    pods = tuple(PodRef(**each) for each in value["pods"])
    return Shrinking(pods, Resources(value["growth"]), value["preempted_by"])


def class_of(value: Mapping[str, Any]) -> ProvisioningClass:
    """The provisioning class that `write_provisioning` has written. Raises `SpecError`, a `ValueError`."""
    return read_provisioning(Entry(value, "provisioning"))


def provisioning_of(value: Mapping[str, Any] | None) -> Provisioning | None:
    """The request for capacity of an attempt; None if it needs none."""
    if value is None:
        return None
    times = {key: value[key] and datetime.fromisoformat(value[key]) for key in ("noted_at", "provisioned_at")}
    return Provisioning(class_of(value["class"]), value["request_uid"], value["message"], **times)


def requirements_of(row: Mapping[Any, Any]) -> ClusterRequirements:
    """The requirements of a gang for a row of an AppWrapper."""
    return _requirements(
        row["cluster_selector"],
        row["cluster_preference"],
        row["namespace"],
        tuple(map(tuple, row["kinds"])),
        tuple(map(tuple, row["ruled_out"])),
        tuple(map(tuple, row["unprovisioned"])),
    )


@functools.lru_cache(maxsize=10_000)
def _requirements(
    selector: str,
    preference: str,
    namespace: str,
    kinds: tuple[Kind, ...],
    ruled_out: tuple[tuple[str, str], ...],
    unprovisioned: tuple[tuple[str, str], ...],
) -> ClusterRequirements:
    """One shared value for equal requirements: few differ among many AppWrappers."""
    if not (selector or preference or kinds):
        return ANYWHERE
    return ClusterRequirements(
        selector=parse_selector(selector, "cluster_selector"),
        prefers=parse_selector(preference, "cluster_preference"),
        namespace=namespace,
        kinds=frozenset(kinds),
        ruled_out=frozenset(ruled_out),
        unprovisioned=frozenset(unprovisioned),
    )


def _pod_set_of(value: Mapping[str, Any]) -> PodSet:
    selector = tuple((key, wanted) for key, wanted in value.get("selector", ()))
    sort = sort_of(value["sort"]) if "sort" in value else None
    return PodSet(
        count=value["count"],
        requests=Resources(value["requests"]),
        tolerations=tuple(Toleration(**each) for each in value["tolerations"]),
        nodes=NodeRequirements(selector, tuple(map(_node_term_of, value.get("terms", ())))),
        apart=tuple(value.get("apart", ())),
        together=tuple(value.get("together", ())),
        claims=tuple(value.get("claims", ())),
        path=value.get("path", ""),
        item=value.get("item", 0),
        spread=tuple(map(_spread_of, value.get("spread", ()))),
        away=tuple((label, distance) for label, distance in value.get("away", ())),
        near=tuple((label, tuple(distances)) for label, distances in value.get("near", ())),
        repels=sort.repels if sort else (),
        attracts=tuple(map(term_of, value.get("attracts", ()))),
        sort=sort,
        is_trusted=value.get("is_trusted", False),
    )


def sort_row(sort: PodSort) -> dict[str, Any]:
    """The sort of pods as JSON."""
    row: dict[str, Any] = {"namespace": sort.namespace, "labels": dict(sort.labels)}
    rare = {"repels": [term_row(each) for each in sort.repels], "is_ending": sort.is_ending}
    return row | {key: value for key, value in rare.items() if value}


def term_row(term: PodTerm) -> dict[str, Any]:
    """The term about pods as JSON."""
    namespaces = None if term.namespaces is None else sorted(term.namespaces)
    row = {"topology": term.topology, "namespaces": namespaces, "conditions": term.conditions}
    return row if term.selects_ending else {**row, "selects_ending": False}


def sort_of(value: Mapping[str, Any]) -> PodSort:
    """The sort of pods that a document or a row describes."""
    return PodSort.of(
        value["namespace"],
        value["labels"].items(),
        tuple(map(term_of, value.get("repels", ()))),
        is_ending=value.get("is_ending", False),
    )


def term_of(value: Mapping[str, Any]) -> PodTerm:
    """The term about pods that a document or a row describes."""
    namespaces = value["namespaces"]
    return PodTerm(
        value["topology"],
        None if namespaces is None else frozenset(namespaces),
        tuple(map(_label_requirement_of, value["conditions"])),
        value.get("selects_ending", True),
    )


def spread_row(spread: Spread) -> dict[str, Any]:
    """The topology spread as JSON; the pods of others that are there are no part of it."""
    names = ("topology", "most_skew", "least_domains", "ignores_requirements", "honors_taints")
    row: dict[str, Any] = {name: getattr(spread, name) for name in names}
    rare = {"others": spread.others and term_row(spread.others), "counts": spread.counts}
    return row | {key: value for key, value in rare.items() if value}


def _spread_of(value: Mapping[str, Any]) -> Spread:
    others, counts = value.get("others"), tuple(value.get("counts", ()))
    return Spread(**{**value, "others": None if others is None else term_of(others), "counts": counts})


def _node_term_of(value: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(
        tuple(map(_label_requirement_of, value["labels"])), tuple(map(_label_requirement_of, value["names"]))
    )


def _label_requirement_of(value: Mapping[str, Any]) -> LabelRequirement:
    return LabelRequirement(value["key"], LabelOperator(value["operator"]), tuple(value["values"]))
