"""Filters and scores of clusters: where a gang may go, and which cluster suits it best. `cycle` compares capacity.

First filters: an AppWrapper's `ClusterRequirements` against a `ClusterSnapshot`, both values. Each rejection names its
reason. Then a score over the clusters that the gang fits, in exact integers and without ties: first the cluster that
the gang fills best, roughly, so that other clusters keep room for large gangs; then the cluster that the user prefers;
then the cluster with fewer recent errors; then again the cluster that the gang fills best, exactly; then the first by
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dispatcher.api import names
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.requirements import ClusterRequirements, Kind, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity import CapacitySnapshot

NOT_SELECTED: Final = "ClusterNotSelected"
"""The AppWrapper's own selector does not match the cluster's labels."""
NOT_CONNECTED: Final = "ClusterNotConnected"
"""The cluster's kubeconfig is missing, or is not one we may use."""
NOT_REPORTED: Final = "ClusterNotReported"
"""The cluster has not reported its nodes and pods yet."""
UNREACHABLE: Final = "ClusterUnreachable"
"""The cluster's API server does not answer."""
CREDENTIALS_REFUSED: Final = "ClusterCredentialsRefused"
"""The cluster's API server answers, but does not accept our credentials."""
ANSWERS_TOO_LARGE: Final = "ClusterAnswersTooLarge"
"""The cluster's API server sends answers that no honest one sends: too large, too many, or compressed unasked."""
ANOTHER_CLUSTER: Final = "ClusterIsAnother"
"""Where the kubeconfig leads is not the cluster it used to be."""
CORDONED: Final = "ClusterCordoned"
"""Somebody closed the cluster to new gangs; what runs there stays."""
DRAINING: Final = "ClusterDraining"
"""The cluster is being emptied."""
KIND_MISSING: Final = "KindNotInstalled"
"""The cluster does not serve the kind of a wrapped object."""
NAMESPACE_MISSING: Final = "NamespaceMissing"
"""The cluster does not have the AppWrapper's namespace, and it may not be created there."""
NAMESPACE_NOT_ENABLED: Final = "NamespaceNotEnabled"
"""The AppWrapper's namespace in the cluster has not opted in to gangs."""
MEMBERS_UNKNOWN: Final = "MembersUnknown"
"""The MemberClusters cannot be listed, so nobody knows which clusters there are."""
NAME_TAKEN: Final = "NameTaken"
"""An object that is not ours has the name of a wrapped object there."""

LONGEST_MESSAGE: Final = 1024
"""Characters of what is said of one cluster."""

WHOLE: Final = 10**6
"""What is left of a cluster is counted in millionths of all it has."""
TENTHS: Final = 10


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a cluster takes nobody now, whoever asks; one of the reasons above, and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """What is known of one cluster in one pass, which takes from `snapshot` what it gives away.

    The snapshot is without what the cluster keeps in reserve. `errors` is how much went wrong there lately.
    """

    name: str
    capacity: CapacitySnapshot
    labels: Mapping[str, str] = field(default_factory=dict)
    closed: Closed | None = None
    missing_kinds: frozenset[Kind] = frozenset()
    missing_namespaces: frozenset[str] = frozenset()
    creates_namespaces: bool = False
    closed_namespaces: frozenset[str] = frozenset()
    errors: int = 0


def rejection(requirements: ClusterRequirements, snapshot: ClusterSnapshot) -> Rejection | None:
    """Say why it may not go there, however much is free; None if it may."""
    for reason, message in _objections(requirements, snapshot):
        return Rejection(snapshot.name, reason, _short(message))
    return None


def has_no_cluster_left(requirements: ClusterRequirements, labels: Mapping[str, Mapping[str, str]]) -> bool:
    """True if none of the clusters, whose `labels` are by name, will ever take it: each is excluded or ruled out."""
    ruled_out = {name for name, _ in requirements.ruled_out}
    return all(name in ruled_out or not requirements.selector.matches(own) for name, own in labels.items())


def _short(message: str) -> str:
    """A status has room for the messages of all clusters, whatever is written in selectors and on clusters."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 1]}…"


def _objections(requirements: ClusterRequirements, snapshot: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    """What lasts longest comes first: who excludes a cluster need not hear how it is."""
    if unmet := requirements.selector.unmet(snapshot.labels):
        yield NOT_SELECTED, f"its labels do not match {', '.join(map(str, unmet))}"
    if snapshot.closed is not None:
        yield snapshot.closed.reason, snapshot.closed.message
    if missing := requirements.kinds & snapshot.missing_kinds:
        kinds = ", ".join(f"{kind} of {api_version}" for api_version, kind in sorted(missing))
        yield KIND_MISSING, f"it does not serve {kinds}"
    if requirements.namespace in snapshot.missing_namespaces and not snapshot.creates_namespaces:
        yield NAMESPACE_MISSING, f"it has no namespace {requirements.namespace}"
    if requirements.namespace in snapshot.closed_namespaces:
        said = f"its namespace {requirements.namespace} takes no gangs: label it"
        yield NAMESPACE_NOT_ENABLED, f"{said} {names.DISPATCH_LABEL}={names.DISPATCH_ENABLED} there"
    for cluster, message in sorted(requirements.ruled_out):
        if cluster == snapshot.name:
            yield NAME_TAKEN, message


class Score(NamedTuple):
    """How well a cluster suits a gang that fits it: the lowest wins, and no two clusters are equal.

    `tenths` and `left` are what would be left of the resource that would be scarcest, of what the gang asks for: of
    devices if it asks for any, then of the rest. One gang's scores are comparable, those of two are not.
    """

    tenths: int
    is_not_preferred: bool
    errors: int
    left: tuple[int, int]
    name: str


def score(
    gang: Gang, requirements: ClusterRequirements, snapshot: ClusterSnapshot, available: Resources
) -> Score:
    """Rate a cluster of which `available` is what the gang may take, and enough."""
    left = _left(gang.demand, available, snapshot.capacity.total_for(gang))
    scarcest = left[0] if any(map(_is_device, gang.demand)) else left[1]
    return Score(
        tenths=scarcest * TENTHS // WHOLE,
        is_not_preferred=not requirements.prefers.matches(snapshot.labels),
        errors=snapshot.errors,
        left=left,
        name=snapshot.name,
    )


def _left(demand: Resources, available: Resources, total: Resources) -> tuple[int, int]:
    """Of devices and of the rest: the least that would be left of one, in millionths of all there is of it."""
    shares = {
        name: (available[name] - amount) * WHOLE // total[name]
        for name, amount in demand.items()
        if amount > 0
    }
    devices = [share for name, share in shares.items() if _is_device(name)]
    rest = [share for name, share in shares.items() if not _is_device(name)]
    return min(devices, default=0), min(rest, default=0)


def _is_device(resource: str) -> bool:
    """True of what a vendor adds, such as `nvidia.com/gpu`: dearer, and less of it, than what every node has."""
    return "/" in resource
