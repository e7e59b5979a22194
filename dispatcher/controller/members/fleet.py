"""The clusters that gangs can go to: the hub, and the members that MemberClusters declare.

`clusters` has only the connected ones, so no act reaches a member that is unreachable: its gangs are left as they are
until it is connected again, or until `onClusterLost` says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from dispatcher import log
from dispatcher.api.clusters.clusterpolicies import NamespacePolicy, OnClusterLost
from dispatcher.api.clusters.membercluster import MemberCluster
from dispatcher.api.clusters.potential import NO_POTENTIAL, PotentialNodes
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.names import HUB_CLUSTER, MEMBERS_PATH
from dispatcher.api.selector import Selector
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.connector import ConnectionCallbacks, Connector, Means
from dispatcher.controller.members.member import (
    InvalidMember,
    Member,
    closed_by_operator,
    decode,
    required_kinds,
)
from dispatcher.controller.members.membership import (
    MEMBER_REMOVED,
    MEMBERS_UNKNOWN,
    Membership,
    MemberStatusWriter,
)
from dispatcher.controller.members.potential_trust import declare_pools
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.clusters.potential import Trust
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.fit.cluster_filters import (
    Closed,
    ClusterSnapshot,
    has_no_cluster_left,
    rejection,
)
from dispatcher.core.status.clusters import ClusterState
from dispatcher.core.status.samples import LedgerReading, reading_of
from dispatcher.kube.reflector import Reflector

FIRST_ANSWER_SECONDS: Final = 10.0
"""Seconds that a new leader waits for its members before it decides without the unreachable ones."""

CHECK_SECONDS: Final = 0.2

KINDS_SECONDS: Final = 1.0
"""Seconds that a scheduling cycle waits for the first answer of the members about a kind."""

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class FleetCallbacks(Struct, frozen=True):
    """Callbacks of the fleet.

    `on_capacity`: free capacity or cluster requirements may have changed. `on_member`: a member was connected,
    disconnected, lost, removed, or is to be drained.
    """

    on_capacity: Callable[[], None]
    on_member: Callable[[str], None]


class Fleet:
    """All clusters by name: `clusters` are the connected ones, `ledgers` their capacity."""

    def __init__(
        self,
        hub: WatchedCluster,
        hub_uid: str,
        means: Means,
        callbacks: FleetCallbacks,
        count_running: Callable[[str], int],
    ) -> None:
        self.clusters: dict[str, WatchedCluster] = {HUB_CLUSTER: hub}
        self.ledgers: dict[str, CapacityLedger] = {HUB_CLUSTER: hub.ledger}
        self._hub = hub
        self._callbacks = callbacks
        self._count_running = count_running
        self._records = means.records
        self._now = means.now
        self._pace = means.pace
        self._provisioning = means.provisioning
        self._potential = means.potential
        self._trusted = means.trust_in
        declare_pools(hub.name, hub.ledger, self._potential)
        self._unreachable_since: dict[str, datetime] = {}
        self._recorded: set[str] = set()
        self._recorded_seen: frozenset[str] = frozenset()
        self._states_changed = asyncio.Event()
        self._connections_changed = asyncio.Event()
        self._hub_member = Member(MemberCluster(HUB_CLUSTER, ""), LONG_AGO, uid=hub_uid)
        self._members: dict[str, Member] = {}
        self._invalid: dict[str, InvalidMember] = {}
        self._declarations_changed = asyncio.Event()
        self._declared: Reflector[MemberCluster | InvalidMember] = Reflector(
            "memberclusters",
            means.hub,
            _members_path,
            decode,
            self._note_change,
            on_listed=self._note_listed,
        )
        self._membership = Membership(self._declared, _seconds)
        self._statuses = MemberStatusWriter(means.hub, count_running, self._trust_in)
        self._connector = Connector(
            means,
            lambda: (*self._members.values(), self._hub_member),
            ConnectionCallbacks(self._connected, self._disconnected, self._notify),
        )

    @property
    def declared(self) -> Reflector[MemberCluster | InvalidMember]:
        """The watch of MemberClusters."""
        return self._declared

    @property
    def has_members(self) -> bool:
        """True if a MemberCluster is declared, or was until lately; without one, all gangs go to the hub."""
        return bool(self._declared.items or self._membership.seen)

    @property
    def problem(self) -> str:
        """Why the declared members are not known, or not current; empty if they are."""
        return self._membership.problem

    def load(
        self,
        unreachable_since: Mapping[str, datetime],
        declared: Collection[str] = (),
        occupied: Collection[str] = (),
        seen: Collection[str] = (),
    ) -> None:
        """Load the database's records of members.

        `unreachable_since` names the unreachable members, `declared` the declared ones, `occupied` those with gangs,
        `seen` those whose absence had not lasted, declared or not.
        """
        self._unreachable_since, self._recorded = dict(unreachable_since), set(declared)
        self._recorded_seen = frozenset(seen)
        self._membership.load({*declared, *occupied} - {HUB_CLUSTER}, seen)

    async def run(self) -> None:
        """Watch MemberClusters and keep each member connected, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._declared.run(), name="memberclusters")
                tasks.create_task(self._update_statuses(), name="members")
                tasks.create_task(self._record_states(), name="member-states")
                tasks.create_task(self._check_membership(), name="membership")
                while True:
                    self._apply_declarations(tasks)
                    await self._declarations_changed.wait()
                    self._declarations_changed.clear()
        finally:
            await self._connector.close()

    async def wait_for_members(self) -> None:
        """Return once each member is connected or closed, or after `FIRST_ANSWER_SECONDS`.

        If the members are unknown by then, nothing is dispatched until they are listed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_SECONDS):
                while not self._membership.is_known:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_SECONDS):
                            await self._declared.synced.wait()
                self._membership.note_refusal()
                await asyncio.sleep(0)  # `run` applies the list meanwhile
                while any(map(self.is_connecting, self._members)):
                    await self._connections_changed.wait()
                    self._connections_changed.clear()

    async def get_ready(self, requirements: Iterable[ClusterRequirements]) -> bool:
        """Ask the clusters about kinds that `snapshots` needs, and wait for the answers that no cycle waited for.

        True if there was nothing to wait for.
        """
        kinds = required_kinds(set(requirements))
        open_members = (each.cluster for each in self._members.values() if not each.closed)
        clusters = list(filter(None, open_members)) if self.has_members else [self._hub]
        unanswered = [each.ask_for_kinds(kinds) for each in clusters if not each.waited_for_kinds(kinds)]
        if unanswered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KINDS_SECONDS):
                    await asyncio.gather(*(each.wait() for each in unanswered))
        return not unanswered

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        """The cluster snapshots by name, for a scheduling cycle over gangs with these requirements.

        A member that was removed lately is closed; it is there so that the hub does not count as alone.
        """
        if not self.has_members or not self._membership.is_known:
            closed = None if self._membership.is_known else MEMBERS_UNKNOWN
            capacity = self._hub.capacity().provided_by(self._provisioning)
            capacity = capacity.trusting(self._trust_in(HUB_CLUSTER))
            capacity = capacity.backed_by(self._hub.pod_defaults.device_resources)
            missing = self._hub.missing_kinds(required_kinds(set(requirements)))
            hints = self._hub.kind_hints(missing)
            hub = ClusterSnapshot(
                HUB_CLUSTER,
                capacity,
                closed=closed,
                missing_kinds=missing,
                kind_hints=hints,
                forbidden_kinds=self._hub.forbidden_kinds,
            )
            return {HUB_CLUSTER: hub} if self._hub.is_ready else {}
        distinct, now = set(requirements), self._now()
        kinds, namespaces = required_kinds(distinct), frozenset(each.namespace for each in distinct)
        snapshots = {
            name: member.snapshot(kinds, namespaces, now, self.class_of(name), self._trust_in(name))
            for name, member in self._members.items()
        }
        invalid = {
            name: Closed(pending_reasons.NOT_REPORTED, each.message) for name, each in self._invalid.items()
        }
        for name, closed in {**dict.fromkeys(self._membership.absent, MEMBER_REMOVED), **invalid}.items():
            snapshots[name] = ClusterSnapshot(name, CapacityLedger().snapshot(), closed=closed)
        return snapshots

    def potential_of(self, cluster: str) -> PotentialNodes:
        """The declared pools of a cluster that grow for pending pods; without pools if it declares none."""
        member = self._members.get(cluster)
        declared = NO_POTENTIAL if member is None else member.declared.potential
        return self._potential if cluster == HUB_CLUSTER and not declared.pools else declared

    def class_of(self, cluster: str) -> ProvisioningClass | None:
        """The class that provides capacity on request in a cluster; None if gangs need room there."""
        member = self._members.get(cluster)
        return (None if member is None else member.declared.provisioning) or self._provisioning

    def _trust_in(self, cluster: str) -> Trust:
        return self._trusted(cluster, self.potential_of(cluster).on_potential)

    def reserve_of(self, cluster: str) -> Resources:
        """The reserve that the declaration of a member keeps free; none for other clusters."""
        member = self._members.get(cluster)
        return NOTHING if member is None else member.reserve

    def readings(self) -> dict[str, LedgerReading | None]:
        """The current capacity of each cluster that can have gangs; None where it is unknown.

        With members, the hub is included only while gangs from before run there.
        """
        unknown = () if self._membership.is_known else self._membership.recorded
        readings: dict[str, LedgerReading | None] = dict.fromkeys((*self._invalid, *unknown))
        if not self.has_members or self._count_running(HUB_CLUSTER):
            readings[HUB_CLUSTER] = reading_of(self._hub.ledger) if self._hub.is_ready else None
        return readings | {name: member.reading() for name, member in self._members.items()}

    def reachable(self) -> dict[str, bool]:
        """Whether each cluster that can have gangs answers, and the hub; false while a member is being connected."""
        members = {name: member.closed is None for name, member in self._members.items()}
        return {**dict.fromkeys(self._invalid, False), **members, HUB_CLUSTER: self._hub.is_answering}

    def has_no_cluster_left(self, requirements: ClusterRequirements) -> bool:
        """True if no declared cluster can ever meet the requirements.

        False while the members are unknown, one is invalid, or one was removed lately: it may meet them then.
        """
        if not self._membership.is_known or self._invalid or self._membership.absent:
            return False
        if not self.has_members:
            return bool(requirements.ruled_out)
        return has_no_cluster_left(
            requirements, {name: member.declared.labels for name, member in self._members.items()}
        )

    def provides_elsewhere(
        self,
        gang: Gang,
        requirements: ClusterRequirements,
        selected: Selector,
        of_queue: ProvisioningClass | None,
    ) -> bool:
        """True if a member that takes the gang now, and did not fail it, may provide its capacity on request.

        `selected` are the clusters that the gang's queues select. With the class `of_queue`, which a queue names, that
        is any member which declares no other class.
        """
        if not self.has_members:
            return False

        def may_provide(own: ProvisioningClass | None) -> bool:
            if of_queue is not None:
                return own is None or own.name == of_queue.name
            return gang.requested_from([own]) is not None

        return any(
            rejection(requirements, each) is None
            and selected.matches(each.labels)
            and may_provide(each.capacity.provisioning)
            for each in self.snapshots([requirements]).values()
        )

    def clusters_for(self, requirements: ClusterRequirements) -> list[WatchedCluster]:
        """The connected clusters that the selector of the requirements allows; without members the hub."""
        if not self.has_members:
            return [self._hub]
        selector = requirements.selector
        allowed = [each for each in self._members.values() if selector.matches(each.declared.labels)]
        return [each.cluster for each in allowed if each.cluster is not None]

    def accepting(
        self, requirements: ClusterRequirements, selected: Selector, of_queue: ProvisioningClass | None
    ) -> list[WatchedCluster]:
        """The connected clusters that a cycle accepts for a gang now, whatever is free there; on a hub alone, the hub.

        `selected` are the clusters that the gang's queues select, `of_queue` is the class that they name. The list is
        empty while the members are unknown.
        """
        if not self.has_members:
            return [self._hub] if self._membership.is_known else []
        accepting = [
            self._members[name]
            for name, each in self.snapshots([requirements]).items()
            if name in self._members
            and rejection(requirements, each) is None
            and selected.matches(each.labels)
            and _may_provide(each.capacity.provisioning, of_queue)
        ]
        return [each.cluster for each in accepting if each.cluster is not None]

    def loss_of(self, name: str) -> Loss | None:
        """The loss of the gangs in a member that is unreachable or not declared; None for other clusters."""
        member = self._members.get(name)
        if member is not None:
            return member.loss()
        if name == HUB_CLUSTER or not self.is_certain() or name in self._invalid:
            return None
        message = f"cluster {name} is not declared any more; what runs there may go on"
        return Loss(OnClusterLost.WAIT, self._now(), message, is_undeclared=True)

    def note_error(self, name: str, namespace: str) -> None:
        """Note an error of the cluster at a gang of that namespace: for some minutes, its gangs prefer other clusters.

        All gangs do once several namespaces had errors.
        """
        if name in self._members:
            self._members[name].errors.note(self._now(), namespace)

    def is_complete(self) -> bool:
        """True if every declared member is connected.

        False while the members are unknown, one is invalid, or one was removed lately.
        """
        is_known = self._membership.is_known and not self._invalid and not self._membership.absent
        return is_known and all(member.cluster is not None for member in self._members.values())

    def is_certain(self) -> bool:
        """True once the API server itself has said which members are declared."""
        return self._membership.is_certain

    def is_surely_complete(self) -> bool:
        """True if `is_complete` and `is_certain` hold, so that a search of the members misses none."""
        return self.is_certain() and self.is_complete()

    def is_connecting(self, name: str) -> bool:
        """True while the first contact with a member lasts, or while the members are unknown."""
        member = self._members.get(name)
        return member.is_connecting if member else name != HUB_CLUSTER and not self._membership.is_known

    def _apply_declarations(self, tasks: asyncio.TaskGroup) -> None:
        """Add newly declared members, remove undeclared ones, and update the others."""
        declared = self._declared.items.values()
        wanted = {each.name: each for each in declared if isinstance(each, MemberCluster)}
        invalid = {each.name: each for each in declared if isinstance(each, InvalidMember)}
        forgotten = self._invalid.keys() - wanted.keys() - invalid.keys()
        self._invalid = invalid
        for name in self._members.keys() - wanted.keys():
            self._remove(name)
        for name in forgotten:
            self._callbacks.on_member(name)
        for each in wanted.values():
            self._declare_safely(each, tasks)
        self._membership.note_declared()
        self._notify()

    def _declare_safely(self, declared: MemberCluster, tasks: asyncio.TaskGroup) -> None:
        try:
            self._declare(declared, tasks)
        except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
            log.internal_error("fleet", error, cluster=declared.name)

    def _declare(self, declared: MemberCluster, tasks: asyncio.TaskGroup) -> None:
        name, member = declared.name, self._members.get(declared.name)
        if member is not None and member.declared.kubeconfig == declared.kubeconfig:
            self._change(member, declared)
            return
        if member is not None:
            self._remove(name)
        member = self._members[name] = Member(
            declared,
            self._now(),
            unreachable_since=self._unreachable_since.pop(name, None),
            connection=member.connection if member else None,
        )
        if declared.kubeconfig is None:
            member.cluster, member.closed, member.uid = self._hub, None, self._hub_member.uid
            self._apply_policy(self._hub, declared)
        else:
            keeping = self._connector.keep(member, declared.kubeconfig)
            member.task = tasks.create_task(keeping, name=f"member-{name}")

    def _change(self, member: Member, declared: MemberCluster) -> None:
        """Apply a changed declaration to a member, without a new connection."""
        if declared.on_lost is not member.declared.on_lost:
            member.is_loss_reported = False  # its gangs are reconciled once more
        if declared.uid != member.declared.uid:
            member.written_status = {}  # the status of the deleted object does not count
        member.declared = declared
        if member.cluster is not None:
            self._apply_policy(member.cluster, declared)

    def _apply_policy(self, cluster: WatchedCluster, declared: MemberCluster) -> None:
        """Apply the declared namespace policy, pools, cordon and drain to a connected cluster."""
        declare_pools(cluster.name, cluster.ledger, self.potential_of(cluster.name))
        cluster.may_create_namespaces = declared.namespace_policy is NamespacePolicy.CREATE
        closed, drained = closed_by_operator(declared), cluster.draining
        cluster.draining = f"cluster {cluster.name}: {closed.message}" if declared.drain and closed else ""
        if cluster.draining and not drained:
            self._callbacks.on_member(cluster.name)

    def _remove(self, name: str) -> None:
        member = self._members.pop(name)
        if member.unreachable_since is not None:
            self._unreachable_since[name] = member.unreachable_since
        if member.task is not None:
            member.task.cancel()
        if member.cluster is not None:
            member.cluster.draining = ""
            declare_pools(name, member.cluster.ledger, self.potential_of(name))
        self._disconnected(member)
        self._callbacks.on_member(name)

    def _connected(self, member: Member, cluster: WatchedCluster) -> None:
        member.cluster = cluster
        self._apply_policy(cluster, member.declared)
        self.clusters[cluster.name], self.ledgers[cluster.name] = cluster, cluster.ledger
        self._callbacks.on_member(cluster.name)
        self._notify()

    def _disconnected(self, member: Member) -> None:
        cluster, member.cluster = member.cluster, None
        if cluster is not None and cluster.is_member and self.clusters.get(cluster.name) is cluster:
            del self.clusters[cluster.name]
            del self.ledgers[cluster.name]
            self._callbacks.on_member(cluster.name)
            self._callbacks.on_capacity()

    def _notify(self) -> None:
        self._callbacks.on_capacity()
        self._connections_changed.set()
        self._states_changed.set()

    async def _record_states(self) -> None:
        """Record the state of each member whenever it may have changed; one at a time, to keep their order."""
        await self._declared.synced.wait()  # a refusal does not say that declared members are gone
        while True:
            self._states_changed.clear()
            for member in list(self._members.values()):
                await self._record_state(member)
            for name in self._recorded - {each.name for each in self._declared.items.values()}:
                self._recorded.discard(name)
                await self._records.note_state(name, ClusterState(is_declared=False), self._now())
            await self._record_seen()
            await self._states_changed.wait()

    async def _record_seen(self) -> None:
        """Record the members that are declared or absent, if others are recorded."""
        seen = self._membership.seen
        if seen != self._recorded_seen:
            self._recorded_seen = seen
            await self._records.note_seen(seen)

    async def _record_state(self, member: Member) -> None:
        """Record the state of a member if it differs from the recorded one."""
        state = member.state()
        if member.recorded_state is not None:
            state = state.following(member.recorded_state)
        if state != member.recorded_state:
            member.recorded_state = state
            self._recorded.add(member.name)
            await self._records.note_state(member.name, state, self._now())

    async def _check_membership(self) -> None:
        """Let the members go whose absence has lasted; raise `MembersUnknown` after too long without a list."""
        while True:
            if self._membership.note_declared():
                self._notify()
            self._membership.check(self._pace.unlisted)
            await asyncio.sleep(self._pace.probe)

    def _note_listed(self) -> None:
        self._membership.note_listed()
        self._callbacks.on_capacity()  # an empty list opens the hub to gangs

    async def _update_statuses(self) -> None:
        """Write each member's status periodically, and report each member whose grace after its loss is over."""
        while True:
            await asyncio.sleep(self._pace.probe)
            for member in list(self._members.values()):
                self._report_loss(member)
            await asyncio.gather(*map(self._statuses.write, list(self._members.values())))

    def _report_loss(self, member: Member) -> None:
        loss = member.loss()
        if loss is not None and self._now() >= loss.due and not member.is_loss_reported:
            member.is_loss_reported = True
            self._callbacks.on_member(member.name)

    def _note_change(
        self, _uid: str, old: MemberCluster | InvalidMember | None, new: MemberCluster | InvalidMember | None
    ) -> None:
        if old != new:  # a change of its status, which we write, does not count
            self._declarations_changed.set()


def _may_provide(own: ProvisioningClass | None, of_queue: ProvisioningClass | None) -> bool:
    """True unless a cluster provides capacity of another class than the gang's queue names."""
    return own is None or of_queue is None or own.name == of_queue.name


def _seconds() -> float:
    return asyncio.get_running_loop().time()


async def _members_path() -> str:
    return MEMBERS_PATH
