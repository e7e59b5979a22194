"""The clusters that gangs can go to: the hub itself, and the members that MemberClusters declare.

Nobody acts upon a member that cannot be reached: `clusters` has only those that can, so that what runs on the others
is left as it is until they are back, or until their operator's `onClusterLost` says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dispatcher import errors, log
from dispatcher.api.clusterpolicies import NamespacePolicy, OnClusterLost
from dispatcher.api.membercluster import MemberCluster, parse_member_cluster
from dispatcher.api.names import HUB_CLUSTER, MEMBERS_PATH
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.members.connector import Changes, Connector, Means
from dispatcher.controller.members.member import Member, asked_kinds, closed_by_hand
from dispatcher.controller.members.membership import MEMBERS_UNKNOWN, Membership
from dispatcher.core.lifecycle.decision import Loss
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.scheduling import cluster_filters
from dispatcher.core.scheduling.capacity import CapacityLedger
from dispatcher.core.scheduling.cluster_filters import Closed, ClusterSnapshot, has_no_cluster_left
from dispatcher.core.status.cluster_state import ClusterState
from dispatcher.core.status.member_status import status_of
from dispatcher.core.status.samples import LedgerReading, reading_of
from dispatcher.kube import paths
from dispatcher.kube.client import Json
from dispatcher.kube.reflector import Reflector
from dispatcher.text import one_line

FIRST_ANSWER_SECONDS: Final = 10.0
"""For so long a new leader waits for its members before it decides without those that did not answer."""

ASK_AGAIN_SECONDS: Final = 0.2

KINDS_SECONDS: Final = 1.0
"""For so long a pass waits to hear whether the members serve a kind that was never asked about."""

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

_log = log.get("fleet")


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A MemberCluster that cannot be read; what is wrong with it, in a sentence."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Concerned:
    """Whom the fleet tells: of what may change a plan, and of a member that has come or gone, or is lost."""

    on_capacity: Callable[[], None]
    on_member: Callable[[str], None]


class Fleet:
    """All clusters by name: `clusters` are those that can be asked now, `ledgers` their capacity."""

    def __init__(
        self,
        hub: Cluster,
        hub_uid: str,
        means: Means,
        concerned: Concerned,
        count_running: Callable[[str], int],
    ) -> None:
        self.clusters: dict[str, Cluster] = {HUB_CLUSTER: hub}
        self.ledgers: dict[str, CapacityLedger] = {HUB_CLUSTER: hub.ledger}
        self._hub = hub
        self._client = means.hub
        self._concerned = concerned
        self._count_running = count_running
        self._memory = means.memory
        self._now = means.now
        self._pace = means.pace
        self._silent: dict[str, datetime] = {}
        self._noted: set[str] = set()
        self._stirred = asyncio.Event()
        self._joined = asyncio.Event()
        self._itself = Member(MemberCluster(HUB_CLUSTER, ""), LONG_AGO, uid=hub_uid)
        self._members: dict[str, Member] = {}
        self._mistaken: dict[str, Mistaken] = {}
        self._changed = asyncio.Event()
        self._declared: Reflector[MemberCluster | Mistaken] = Reflector(
            "memberclusters",
            means.hub,
            _members_path,
            _decode,
            self._note_change,
            on_listed=self._note_listed,
        )
        self._membership = Membership(self._declared, _seconds)
        self._connector = Connector(
            means,
            lambda: (*self._members.values(), self._itself),
            Changes(self._join, self._leave, self._note_state),
        )

    @property
    def declared(self) -> Reflector[MemberCluster | Mistaken]:
        """The watch of MemberClusters."""
        return self._declared

    @property
    def has_members(self) -> bool:
        """True once a MemberCluster was declared: before that there is nothing to choose."""
        return bool(self._declared.items)

    @property
    def problem(self) -> str:
        """Why it is not known, or not currently known, which members are declared; empty while it is."""
        return self._membership.problem

    def remember(
        self,
        silent: Mapping[str, datetime],
        declared: Collection[str] = (),
        occupied: Collection[str] = (),
    ) -> None:
        """Take in what the database knows of members, as whoever led before noted it.

        Since when each has been silent, which were declared, and which are occupied: have gangs of ours.
        """
        self._silent, self._noted = dict(silent), set(declared)
        self._membership.remember({*declared, *occupied} - {HUB_CLUSTER})

    async def run(self) -> None:
        """Watch what is declared and keep each member connected, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._declared.run(), name="memberclusters")
                tasks.create_task(self._look_after(), name="members")
                tasks.create_task(self._keep_noted(), name="standings")
                tasks.create_task(self._check_membership(), name="membership")
                while True:
                    self._settle(tasks)
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            await self._connector.close()

    async def wait_until_answered(self) -> None:
        """Return once each member has joined or is known not to, or when that takes too long.

        Members that are unknown by then are left alone until they are listed, and nothing is dispatched.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_SECONDS):
                while not self._membership.is_known:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_SECONDS):
                            await self._declared.synced.wait()
                self._membership.settle()
                await asyncio.sleep(0)  # what was listed is settled by then
                while any(map(self.is_joining, self._members)):
                    await self._joined.wait()
                    self._joined.clear()

    async def get_ready(self, requirements: Iterable[ClusterRequirements]) -> None:
        """Asks the clusters about kinds and namespaces that `snapshots` needs and that were not asked about before."""
        if not self.has_members:
            return
        kinds = asked_kinds(set(requirements))
        there = [member.cluster for member in self._members.values() if member.cluster and not member.closed]
        unanswered = [each.ask_for_kinds(kinds) for each in there if not each.was_asked_for(kinds)]
        if unanswered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KINDS_SECONDS):
                    await asyncio.gather(*(each.wait() for each in unanswered))

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        """What is known of each cluster now, for a pass over those who require `requirements`."""
        if not self.has_members:
            closed = None if self._membership.is_known else MEMBERS_UNKNOWN
            hub = ClusterSnapshot(HUB_CLUSTER, self._hub.ledger.snapshot(), closed=closed)
            return {HUB_CLUSTER: hub} if self._hub.is_known else {}
        asked, now = set(requirements), self._now()
        kinds, namespaces = asked_kinds(asked), frozenset(each.namespace for each in asked)
        snapshots = {name: member.snapshot(kinds, namespaces, now) for name, member in self._members.items()}
        for name, mistaken in self._mistaken.items():
            closed = Closed(cluster_filters.NOT_REPORTED, mistaken.message)
            snapshots[name] = ClusterSnapshot(name, CapacityLedger().snapshot(), closed=closed)
        return snapshots

    def readings(self) -> dict[str, LedgerReading | None]:
        """What each cluster has at this moment that gangs may go to; None of one that cannot be asked.

        The hub is among them also if it only has gangs from before.
        """
        unknown = () if self._membership.is_known else self._membership.remembered
        readings: dict[str, LedgerReading | None] = dict.fromkeys((*self._mistaken, *unknown))
        if not self.has_members or self._count_running(HUB_CLUSTER):
            readings[HUB_CLUSTER] = reading_of(self._hub.ledger) if self._hub.is_known else None
        return readings | {name: member.stock() for name, member in self._members.items()}

    def has_no_cluster_left(self, requirements: ClusterRequirements) -> bool:
        """True if no cluster that is declared will ever take whoever requires this; false while they are unknown."""
        if not self._membership.is_known:
            return False
        if not self.has_members:
            return bool(requirements.ruled_out)
        return has_no_cluster_left(
            requirements, {name: member.declared.labels for name, member in self._members.items()}
        )

    def loss_of(self, name: str) -> Loss | None:
        """What is to be done about what was dispatched to a member that does not answer; None while it does."""
        member = self._members.get(name)
        if member is not None:
            return member.loss()
        if name == HUB_CLUSTER or not self.is_certain() or name in self._mistaken:
            return None
        message = f"cluster {name} is not declared any more; what runs there may go on"
        return Loss(OnClusterLost.WAIT, self._now(), message, is_undeclared=True)

    def note_mishap(self, name: str) -> None:
        """Something went wrong there: for a while, gangs rather go elsewhere."""
        if name in self._members:
            self._members[name].mishaps.append(self._now())

    def is_complete(self) -> bool:
        """True if every member that is declared can be asked what it has; false while they are unknown."""
        is_known = self._membership.is_known and not self._mistaken
        return is_known and all(member.cluster is not None for member in self._members.values())

    def is_certain(self) -> bool:
        """True once the API server itself said which members are declared: it was read, and not concluded."""
        return self._membership.is_certain

    def is_surely_complete(self) -> bool:
        """True if `is_complete` holds and `is_certain`: nothing less will do for what a member may have."""
        return self.is_certain() and self.is_complete()

    def is_joining(self, name: str) -> bool:
        """True while a member is being connected, or may yet turn out to be declared: nobody knows how it is."""
        member = self._members.get(name)
        return member.is_joining if member else name != HUB_CLUSTER and not self._membership.is_known

    # --- what is declared ------------------------------------------------------------------------------------

    def _settle(self, tasks: asyncio.TaskGroup) -> None:
        """Begin what was declared, end what no longer is, and take over what was changed of the others."""
        declared = self._declared.items.values()
        wanted = {each.name: each for each in declared if isinstance(each, MemberCluster)}
        mistaken = {each.name: each for each in declared if isinstance(each, Mistaken)}
        forgotten = self._mistaken.keys() - wanted.keys() - mistaken.keys()
        self._mistaken = mistaken
        for name in self._members.keys() - wanted.keys():
            self._end(name)
        for name in forgotten:
            self._concerned.on_member(name)
        for each in wanted.values():
            self._declare_safely(each, tasks)
        self._note_state()

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
            self._end(name)
        member = self._members[name] = Member(
            declared,
            self._now(),
            unreachable_since=self._silent.pop(name, None),
            connection=member.connection if member else None,
        )
        if declared.kubeconfig is None:
            member.cluster, member.closed, member.uid = self._hub, None, self._itself.uid
            self._instruct(self._hub, declared)
        else:
            keeping = self._connector.keep(member, declared.kubeconfig)
            member.task = tasks.create_task(keeping, name=f"member-{name}")

    def _change(self, member: Member, declared: MemberCluster) -> None:
        """Take over what is declared otherwise now, over the connection there is."""
        if declared.on_lost is not member.declared.on_lost:
            member.is_known_to_be_lost = False  # those it has are looked at once more
        if declared.uid != member.declared.uid:
            member.told = {}  # that was another object, which is gone
        member.declared = declared
        if member.cluster is not None:
            self._instruct(member.cluster, declared)

    def _instruct(self, cluster: Cluster, declared: MemberCluster) -> None:
        """Have a member do as is declared of it."""
        cluster.may_create_namespaces = declared.namespace_policy is NamespacePolicy.CREATE
        closed, drained = closed_by_hand(declared), cluster.draining
        cluster.draining = f"cluster {cluster.name}: {closed.message}" if declared.drain and closed else ""
        if cluster.draining and not drained:
            self._concerned.on_member(cluster.name)

    def _end(self, name: str) -> None:
        member = self._members.pop(name)
        if member.unreachable_since is not None:
            self._silent[name] = member.unreachable_since
        if member.task is not None:
            member.task.cancel()
        if member.cluster is not None:
            member.cluster.draining = ""
        self._leave(member)
        self._concerned.on_member(name)

    # --- what becomes of it ----------------------------------------------------------------------------------

    def _join(self, member: Member, cluster: Cluster) -> None:
        member.cluster = cluster
        self._instruct(cluster, member.declared)
        self.clusters[cluster.name], self.ledgers[cluster.name] = cluster, cluster.ledger
        self._concerned.on_member(cluster.name)
        self._note_state()

    def _leave(self, member: Member) -> None:
        cluster, member.cluster = member.cluster, None
        if cluster is not None and cluster.is_member and self.clusters.get(cluster.name) is cluster:
            del self.clusters[cluster.name]
            del self.ledgers[cluster.name]
            self._concerned.on_member(cluster.name)
            self._concerned.on_capacity()

    def _note_state(self) -> None:
        self._concerned.on_capacity()
        self._joined.set()
        self._stirred.set()

    async def _keep_noted(self) -> None:
        """Have it noted how each cluster stands whenever that may have changed; one at a time keeps the order."""
        await self._declared.synced.wait()  # a refusal does not say that those are gone which were declared
        while True:
            self._stirred.clear()
            for member in list(self._members.values()):
                await self._note_state_of(member)
            for name in self._noted - {each.name for each in self._declared.items.values()}:
                self._noted.discard(name)
                await self._memory.note_state(name, ClusterState(is_declared=False), self._now())
            await self._stirred.wait()

    async def _note_state_of(self, member: Member) -> None:
        """Have it noted how a member stands, if that is not noted."""
        state = member.state()
        if member.noted is not None:
            state = state.following(member.noted)
        if state != member.noted:
            member.noted = state
            self._noted.add(member.name)
            await self._memory.note_state(member.name, state, self._now())

    async def _check_membership(self) -> None:
        """Raise `MembersUnknown` when the MemberClusters could not be listed for too long."""
        while True:
            self._membership.check(self._pace.unlisted)
            await asyncio.sleep(self._pace.probe)

    def _note_listed(self) -> None:
        self._membership.note_listed()
        self._concerned.on_capacity()  # an empty list, too, says where gangs may go

    async def _look_after(self) -> None:
        """Now and then tell of each member in its own status, and have those looked at whose member is lost by now."""
        while True:
            await asyncio.sleep(self._pace.probe)
            for member in list(self._members.values()):
                self._notice_loss(member)
            await asyncio.gather(*map(self._tell_safely, list(self._members.values())))

    def _notice_loss(self, member: Member) -> None:
        loss = member.loss()
        if loss is not None and self._now() >= loss.due and not member.is_known_to_be_lost:
            member.is_known_to_be_lost = True
            self._concerned.on_member(member.name)

    async def _tell_safely(self, member: Member) -> None:
        try:
            await self._tell(member)
        except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
            log.internal_error("fleet", error, cluster=member.name)

    async def _tell(self, member: Member) -> None:
        status = status_of(member.known(self._count_running(member.name)))
        if status == member.told:
            return
        path = f"{MEMBERS_PATH}/{paths.segment(member.name)}/status"
        test = {"op": "test", "path": "/metadata/uid", "value": member.declared.uid}
        try:
            await self._client.patch(path, [test, {"op": "add", "path": "/status", "value": status}])
            member.told = status
        except errors.ClusterError as error:
            _log.info("member_status_not_written", cluster=member.name, error=str(error))

    def _note_change(
        self, _uid: str, old: MemberCluster | Mistaken | None, new: MemberCluster | Mistaken | None
    ) -> None:
        if old != new:  # its status is our own
            self._changed.set()


def _seconds() -> float:
    return asyncio.get_running_loop().time()


async def _members_path() -> str:
    return MEMBERS_PATH


def _decode(raw: Json) -> MemberCluster | Mistaken:
    try:
        return parse_member_cluster(raw)
    except SpecError as error:
        return Mistaken(raw["metadata"]["name"], one_line(str(error)))
