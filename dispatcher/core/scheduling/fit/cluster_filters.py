"""Filters and scores of clusters: where a gang may go, and which cluster suits it best. `cycle` compares capacity.

First filters: an AppWrapper's `ClusterRequirements` against a `ClusterSnapshot`, both values. Each rejection names its
reason. Then a score over the clusters that the gang fits, in exact integers and without ties: first the cluster that
the gang fills best, roughly, so that other clusters keep room for large gangs; then the cluster that the user prefers;
then the cluster with fewer recent errors; then again the cluster that the gang fills best, exactly; then the first by
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from dispatcher.api import names
from dispatcher.core.model.clusters.cluster_errors import NO_ERRORS, ErrorCounts
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.records.pending_reasons import (
    ANOTHER_CLUSTER,
    ANSWERS_TOO_LARGE,
    CREDENTIALS_REFUSED,
    KIND_MISSING,
    MEMBERS_UNKNOWN,
    NAME_TAKEN,
    NAMESPACE_MISSING,
    NAMESPACE_NOT_ENABLED,
    NOT_CONNECTED,
    NOT_REPORTED,
    NOT_SELECTED,
    PROVISIONING_FAILED,
    REMOVED,
    UNREACHABLE,
)
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements, Kind, KindIn, Rejection
from dispatcher.core.model.resources import Resources, is_device
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot

_INSTALL: Final = "install the CustomResourceDefinition there, or correct apiVersion and kind"
"""The remedy for a kind that is not served; the gang goes once it is."""
_GRANT: Final = "give the dispatcher's account the right to create it there"
"""The remedy for a kind that the dispatcher may not create; the gang goes once it may."""

LONGEST_MESSAGE: Final = 1024
"""Characters of the message about one cluster."""

WHOLE: Final = 10**6
"""The total of a resource, as the unit of shares: millionths."""
TENTHS: Final = 10


class Closed(Struct, frozen=True):
    """Why a cluster takes no gang now: one of the reasons above, and a sentence."""

    reason: str
    message: str


_UNREACHABLE: Final = frozenset(
    {
        NOT_CONNECTED,
        NOT_REPORTED,
        UNREACHABLE,
        CREDENTIALS_REFUSED,
        ANSWERS_TOO_LARGE,
        ANOTHER_CLUSTER,
        REMOVED,
    }
)
_TRANSIENT: Final = frozenset({NOT_REPORTED, UNREACHABLE, MEMBERS_UNKNOWN, REMOVED})


def is_unreachable(closed: Closed | None) -> bool:
    """True if a cluster is closed because it does not answer.

    Its gangs cannot be removed now: no gang preempts them or waits for them to end.
    """
    return closed is not None and closed.reason in _UNREACHABLE


def may_open_soon(closed: Closed | None) -> bool:
    """True if a cluster is closed for a transient reason; meanwhile no gang takes the capacity reserved there."""
    return closed is not None and closed.reason in _TRANSIENT


class ClusterSnapshot(Struct, frozen=True):
    """One cluster in one cycle, which takes the demand of placed gangs from `capacity`.

    `capacity` is without the reserve of the cluster. `errors` are the recent errors there. `kind_hints` tells
    what is special about some of the missing kinds, as a misspelling. `forbidden_kinds` are served, but the dispatcher
    may not create them.
    """

    name: str
    capacity: CapacitySnapshot
    labels: Mapping[str, str] = field(default_factory=dict)
    closed: Closed | None = None
    missing_kinds: frozenset[Kind] = frozenset()
    missing_namespaces: frozenset[str] = frozenset()
    creates_namespaces: bool = False
    closed_namespaces: frozenset[str] = frozenset()
    errors: ErrorCounts = NO_ERRORS
    kind_hints: Mapping[Kind, str] = field(default_factory=dict)
    forbidden_kinds: frozenset[KindIn] = frozenset()


def has_members(clusters: Collection[str]) -> bool:
    """True unless the hub is the only cluster."""
    return set(clusters) != {names.HUB_CLUSTER}


def effective(requirements: ClusterRequirements, clusters: Collection[str]) -> ClusterRequirements:
    """The requirements that count among these clusters.

    On the hub alone, where there is no choice, that are the kinds only, with the namespace: no cluster can create an
    object of a kind that it does not serve, or that the dispatcher may not create there.
    """
    if has_members(clusters):
        return requirements
    kinds, namespace = requirements.kinds, requirements.namespace
    return ClusterRequirements(namespace=namespace, kinds=kinds) if kinds else ANYWHERE


def required(
    requirements: ClusterRequirements, snapshots: Mapping[str, ClusterSnapshot]
) -> ClusterRequirements:
    """The requirements that count in a cycle over these clusters, by name.

    Clusters that failed to provide capacity count again once no other one takes the gang, which may be closed since.
    """
    found = effective(requirements, snapshots)
    failed = {name for name, _ in found.unprovisioned}
    others = (each for name, each in snapshots.items() if name not in failed)
    if not failed or any(rejection(found, each) is None for each in others):
        return found
    return found.with_all_provisioners()


def rejection(requirements: ClusterRequirements, snapshot: ClusterSnapshot) -> Rejection | None:
    """The rejection of these requirements by a cluster, whatever its capacity; None if it accepts them."""
    for reason, message in _failed_filters(requirements, snapshot):
        return Rejection(snapshot.name, reason, _short(message))
    return None


def has_no_cluster_left(requirements: ClusterRequirements, labels: Mapping[str, Mapping[str, str]]) -> bool:
    """True if every cluster, with its `labels` by name, is excluded by the selector or ruled out."""
    ruled_out = {name for name, _ in requirements.ruled_out}
    return all(name in ruled_out or not requirements.selector.matches(own) for name, own in labels.items())


def _short(message: str) -> str:
    """The message cut to `LONGEST_MESSAGE`, so that a status has room for the messages of all clusters."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 1]}…"


def _failed_filters(
    requirements: ClusterRequirements, snapshot: ClusterSnapshot
) -> Iterator[tuple[str, str]]:
    """The failed filters with their messages, the most lasting first."""
    if unmet := requirements.selector.unmet(snapshot.labels):
        yield NOT_SELECTED, f"its labels do not match {', '.join(map(str, unmet))}"
    if snapshot.closed is not None:
        yield snapshot.closed.reason, snapshot.closed.message
    if missing := requirements.kinds & snapshot.missing_kinds:
        yield KIND_MISSING, f"it does not serve {_kinds_in_words(missing, snapshot.kind_hints)}"
    if forbidden := _forbidden(requirements, snapshot):
        named = ", ".join(f"{kind} of {api_version}" for api_version, kind in forbidden)
        said = f"it does not let the dispatcher create {named} in namespace {requirements.namespace}"
        yield KIND_MISSING, f"{said}: {_GRANT}"
    if requirements.namespace in snapshot.missing_namespaces and not snapshot.creates_namespaces:
        yield NAMESPACE_MISSING, f"it has no namespace {requirements.namespace}"
    if requirements.namespace in snapshot.closed_namespaces:
        said = f"its namespace {requirements.namespace} takes no gangs: label it"
        yield NAMESPACE_NOT_ENABLED, f"{said} {names.DISPATCH_LABEL}={names.DISPATCH_ENABLED} there"
    for cluster, message in sorted(requirements.ruled_out):
        if cluster == snapshot.name:
            yield NAME_TAKEN, message
    for cluster, message in sorted(requirements.unprovisioned):
        if cluster == snapshot.name:
            yield PROVISIONING_FAILED, message


def _forbidden(requirements: ClusterRequirements, snapshot: ClusterSnapshot) -> list[Kind]:
    if not snapshot.forbidden_kinds:
        return []
    return sorted(
        each for each in requirements.kinds if (requirements.namespace, each) in snapshot.forbidden_kinds
    )


def _kinds_in_words(missing: Collection[Kind], hints: Mapping[Kind, str]) -> str:
    """The missing kinds with their hints, and the remedy for those without any."""
    named = []
    for each in sorted(missing):
        api_version, kind = each
        hint = hints.get(each)
        named.append(f"{kind} of {api_version}" + (f" ({hint})" if hint else ""))
    has_all = all(each in hints for each in missing)
    return ", ".join(named) + ("" if has_all else f": {_INSTALL}")


class Score(NamedTuple):
    """The score of a cluster that a gang fits: the lowest wins, and no two clusters are equal.

    `tenths` and `left` are the share of the scarcest requested resource that would be left: of devices if the gang
    requests any, then of other resources. Only scores of the same gang are comparable.
    """

    tenths: int
    is_not_preferred: bool
    errors: int
    left: tuple[int, int]
    name: str


def score(
    gang: Gang,
    requirements: ClusterRequirements,
    snapshot: ClusterSnapshot,
    available: Resources,
    assignment: Assignment = ASSIGNED_NOWHERE,
) -> Score:
    """The score of a cluster with `available` capacity for the gang, in which the gang fits by `assignment`.

    A cluster where its capacity must be requested comes after all that have it. A cluster where the gang needs
    potential nodes comes last: no autoscaler has confirmed them.
    """
    if snapshot.capacity.provisioning_of(gang) is not None:
        return score_of_request(requirements, snapshot)
    if assignment.trusted:
        return score_of_request(requirements, snapshot)._replace(tenths=TENTHS + 2)
    gang = gang.in_cluster(snapshot.name)
    left = _left(gang.demand, available, snapshot.capacity.total_for(gang))
    scarcest = left[0] if any(map(is_device, gang.demand)) else left[1]
    return Score(
        tenths=scarcest * TENTHS // WHOLE,
        is_not_preferred=not requirements.prefers.matches(snapshot.labels),
        errors=snapshot.errors.for_gangs_of(requirements.namespace),
        left=left,
        name=snapshot.name,
    )


def score_of_request(requirements: ClusterRequirements, snapshot: ClusterSnapshot) -> Score:
    """The score of a cluster where the capacity of a gang is requested."""
    return Score(
        tenths=TENTHS + 1,
        is_not_preferred=not requirements.prefers.matches(snapshot.labels),
        errors=snapshot.errors.for_gangs_of(requirements.namespace),
        left=(WHOLE, WHOLE),
        name=snapshot.name,
    )


def _left(demand: Resources, available: Resources, total: Resources) -> tuple[int, int]:
    """The smallest share of a device, and of any other resource, that would be left, in millionths of the total."""
    shares = {
        name: (available[name] - amount) * WHOLE // total[name]
        for name, amount in demand.items()
        if amount > 0 and total[name] > 0  # nothing counts devices for which a trusted declaration stands
    }
    devices = [share for name, share in shares.items() if is_device(name)]
    rest = [share for name, share in shares.items() if not is_device(name)]
    return min(devices, default=0), min(rest, default=0)
