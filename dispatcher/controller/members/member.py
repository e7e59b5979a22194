"""One declared member cluster: its declaration, and the state of its connection.

`decode` reads a MemberCluster as its declaration says, or the error of a declaration that cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy
from dispatcher.api.clusters.membercluster import MemberCluster, parse_member_cluster
from dispatcher.api.clusters.potential import PotentialNodes
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.clusters.cluster_errors import RecentErrors
from dispatcher.core.model.clusters.potential import FULL_TRUST, Trust, pools_of
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.requirements import ClusterRequirements, Kind
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.status.clusters import ClusterState, MemberState, PoolState
from dispatcher.core.status.samples import LedgerReading, reading_of
from dispatcher.kube.client import Json
from dispatcher.kube.kubeconfig import Connection
from dispatcher.text import one_line

CONNECTING: Final = Closed(pending_reasons.NOT_REPORTED, "it is being connected")
OPEN: Final = Closed("", "")
LISTING: Final = Closed(pending_reasons.NOT_REPORTED, "its nodes and pods are being listed")


class AnotherCluster(errors.SettingsError):
    """The kubeconfig leads to another cluster than before, or to the cluster of another member."""


class Unlisted(errors.ClusterError):
    """The API server answers, but does not list its objects."""


class Member(Struct):
    """One declared member. `since` is the time of its last change between open and closed.

    `cluster` is set while the member is connected. `unreachable_since` is None while the API server answers, even with
    errors. `connection` was used last, `written_status` is the status on the hub, `recorded_state` that in history.
    """

    declared: MemberCluster
    since: datetime
    closed: Closed | None = CONNECTING
    uid: str = ""
    cluster: WatchedCluster | None = None
    unreachable_since: datetime | None = None
    is_loss_reported: bool = False
    errors: RecentErrors = field(default_factory=RecentErrors)
    task: asyncio.Task[None] | None = None
    written_status: Json = field(default_factory=dict)
    connection: Connection | None = None
    recorded_state: ClusterState | None = None

    @property
    def name(self) -> str:
        """The name of the MemberCluster."""
        return self.declared.name

    @property
    def is_connecting(self) -> bool:
        """True during the first contact: the state of the member is unknown."""
        is_begun = self.closed is not None and self.closed.reason == pending_reasons.NOT_REPORTED
        return self.cluster is None and is_begun

    @property
    def reserve(self) -> Resources:
        """The capacity that the operator keeps free."""
        try:
            return Resources(resource_amounts(self.declared.reserve))
        except QuantityError:
            return NOTHING  # the API server has checked it

    def loss(self) -> Loss | None:
        """The loss of the gangs dispatched to an unreachable member; None while it is connected or connecting."""
        if self.cluster is not None or self.is_connecting or self.unreachable_since is None:
            return None
        since = self.unreachable_since
        message = f"cluster {self.name} has not answered since {since:%Y-%m-%d %H:%M:%S} UTC"
        return Loss(self.declared.on_lost, since + self.declared.grace, message)

    def snapshot(
        self,
        kinds: frozenset[Kind],
        namespaces: frozenset[str],
        now: datetime,
        provisioning: ProvisioningClass | None = None,
        trust: Trust = FULL_TRUST,
    ) -> ClusterSnapshot:
        """The cluster snapshot for a scheduling cycle over gangs that require `kinds` and `namespaces`.

        `provisioning` is the class that provides capacity there. `trust` is that in its pools.
        """
        declared, cluster = self.declared, self.cluster
        closed = self.closed or closed_by_operator(declared)
        if cluster is None or not cluster.is_ready:
            return ClusterSnapshot(self.name, CapacityLedger().snapshot(), declared.labels, closed or LISTING)
        capacity = self._snapshot(cluster).provided_by(provisioning)
        capacity = capacity.backed_by(cluster.pod_defaults.device_resources)
        missing_kinds = cluster.missing_kinds(kinds)
        return ClusterSnapshot(
            name=self.name,
            capacity=capacity.trusting(trust) if capacity.pools else capacity,
            labels=declared.labels,
            closed=closed,
            missing_kinds=missing_kinds,
            kind_hints=cluster.kind_hints(missing_kinds),
            forbidden_kinds=cluster.forbidden_kinds,
            missing_namespaces=cluster.missing_namespaces(namespaces),
            closed_namespaces=self._closed_namespaces(cluster, namespaces),
            creates_namespaces=declared.namespace_policy is NamespacePolicy.CREATE,
            errors=self.errors.counts(now),
        )

    def _closed_namespaces(self, cluster: WatchedCluster, namespaces: frozenset[str]) -> frozenset[str]:
        is_open = self.declared.accepted_namespaces is AcceptedNamespaces.ALL
        return frozenset() if is_open else cluster.closed_namespaces(namespaces)

    def status_values(self, running: int, trust: Trust = FULL_TRUST) -> MemberState:
        """The values for the status of the MemberCluster; `trust` is the trust in its pools."""
        closed = self.closed or closed_by_operator(self.declared)
        if self.cluster is None or not self.cluster.is_ready:
            return MemberState(
                self.since, closed, self.uid, running=running, unreachable_since=self.unreachable_since
            )
        total, free = self.cluster.ledger.total(), self._snapshot(self.cluster).free_for(None)
        pools = tuple(_pool_states(self.cluster.ledger, trust))
        return MemberState(self.since, closed, self.uid, total, free, running, self.unreachable_since, pools)

    def reading(self) -> LedgerReading | None:
        """The current capacity; None while it is unknown."""
        if self.cluster is None or not self.cluster.is_ready:
            return None
        return reading_of(self.cluster.ledger, is_reachable=self.unreachable_since is None)

    def state(self) -> ClusterState:
        """The state for history; `closed_reason` is None while the member is unreachable or connecting."""
        closed, declared = self.closed or OPEN, self.declared
        unknown_reasons = (
            pending_reasons.NOT_REPORTED,
            *([pending_reasons.UNREACHABLE] if self.unreachable_since else []),
        )
        return ClusterState(
            is_cordoned=declared.cordoned,
            is_draining=declared.drain,
            closed_reason=None if closed.reason in unknown_reasons else closed.reason,
            said=declared.cordon_reason,
            closed_message=closed.message,
        )

    def _snapshot(self, cluster: WatchedCluster) -> CapacitySnapshot:
        return cluster.capacity().without(self.reserve)


def _pool_states(ledger: CapacityLedger, trust: Trust) -> Iterator[PoolState]:
    until = dict(trust.distrusted)
    for pool in ledger.pools:
        nodes = ledger.nodes_of(pool)
        yield PoolState(pool.name, nodes, pool.count(nodes), until.get(pool.name))


def required_kinds(requirements: set[ClusterRequirements]) -> frozenset[Kind]:
    """All kinds that any of the requirements names."""
    return frozenset[Kind]().union(*(each.kinds for each in requirements))


def closed_by_operator(declared: MemberCluster) -> Closed | None:
    """The operator's drain or cordon; None without one."""
    said = f": {declared.cordon_reason}" if declared.cordon_reason else ""
    if declared.drain:
        return Closed(pending_reasons.DRAINING, f"it is being emptied{said}")
    return Closed(pending_reasons.CORDONED, f"it takes nothing new{said}") if declared.cordoned else None


def closed_for(error: Exception) -> Closed:
    """The closed state that an error of the connection leads to."""
    match error:
        case errors.Unauthorized() | errors.Forbidden():
            return Closed(
                pending_reasons.CREDENTIALS_REFUSED,
                f"its API server does not accept our credentials: {error}",
            )
        case AnotherCluster():
            return Closed(pending_reasons.ANOTHER_CLUSTER, one_line(str(error)))
        case errors.SettingsError():
            return Closed(pending_reasons.NOT_CONNECTED, one_line(str(error)))
        case Unlisted():
            return Closed(pending_reasons.UNREACHABLE, str(error))
        case errors.TooLarge():
            return Closed(
                pending_reasons.ANSWERS_TOO_LARGE,
                f"its API server sends more than an honest one does, which is not read: {error}",
            )
        case errors.Throttled():
            return Closed(pending_reasons.UNREACHABLE, f"its API server is too busy to answer: {error}")
        case _:
            return Closed(pending_reasons.UNREACHABLE, f"its API server does not answer: {error}")


class InvalidMember(Struct, frozen=True):
    """A MemberCluster that cannot be parsed, with the error in a sentence."""

    name: str
    message: str


def decode(raw: Json) -> MemberCluster | InvalidMember:
    """Read a MemberCluster; one that cannot be parsed is an `InvalidMember`."""
    try:
        declared = parse_member_cluster(raw)
        _check_pools(declared.potential)
        return declared
    except SpecError as error:
        return InvalidMember(raw["metadata"]["name"], one_line(str(error)))


def _check_pools(declared: PotentialNodes) -> None:
    """Refuse amounts that the API server accepts and a quantity cannot represent, such as 1e99."""
    try:
        pools_of(declared)
    except QuantityError as error:
        raise SpecError("spec.potential", str(error), "Change the value") from error
