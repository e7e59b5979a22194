"""The snapshot that the leader keeps in the database, and the `World` that it describes with the records of the queue.

The leader stores the facts that only it knows: nodes, pods and the state of each cluster, its rules, and the backfill
reservations. Records are read from their own tables, so the queue in a world is current, and the clusters are as old as
the snapshot. A gang that was dispatched since then holds the places of its assignment; the pods of a gang that released
its capacity since then are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, DefaultsSurvey
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.gangs.pods import Pod
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.declared_queues import forest_of, is_of_tree
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster, RunningGang, RunningPods
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds, Reservation
from dispatcher.core.scheduling.fit.cluster_filters import is_unreachable
from dispatcher.core.scheduling.preemption.surplus import NO_SURPLUS, Surplus
from dispatcher.core.scheduling.sharing.gangs import RecentUse, active_gang
from dispatcher.core.scheduling.sharing.quota_reservations import NO_QUOTA_RESERVATIONS, QuotaReservations


class SchedulingRules(Struct, frozen=True):
    """The settings of the leader and the valid declared queues, which its decisions depend on.

    `namespaces` are labels of namespaces by name: all labels if a queue selects namespaces by them, else those that
    name a queue. `trees` are the names of MCAD's trees, sorted. `usage` is the recent use of namespaces in queues that
    order by it. `highest_priority` is the ceiling of a namespace that sets none, and `ceilings` are those of the
    others; None is no bound. `expected` are run times in seconds by namespace, where one is declared.
    `access` says which namespaces the queues without a selector serve. If it `has_default`,
    the queue `default` is there, in `queues` or not. `charged_in` names the queue in which the gangs of another one are
    charged that is not valid any more, and `held` are the last valid declarations of queues that still count for quota.
    `problems` are the reasons of the queues that are not valid, `deleted` those that were there until lately, as
    `Forest` has them. `invalid` are the declarations that are there and not valid, `last` the last valid ones of all
    queues that are not valid now, there or not: what becomes of them depends on queues that are declared later.
    `names` are those of the DispatchQueues that are there, valid or not, and of those that are gone for a moment; None
    are those of the valid queues.
    """

    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    fit: FitMode = FitMode.NODE
    starvation_bound: timedelta = timedelta(minutes=10)
    reservation_bound: timedelta = Bounds().kept
    declared_demand: ChargeRule = ChargeRule.LARGER
    kinds: Kinds = BUILT_IN
    queues: tuple[Queue, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    trees: tuple[str, ...] = ()
    usage: RecentUse = field(default_factory=dict)
    highest_priority: int | None = None
    ceilings: Mapping[str, int | None] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    access: Access = Access.OPEN
    has_default: bool = True
    charged_in: Mapping[str, str] = field(default_factory=dict)
    held: tuple[Queue, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    deleted: Mapping[str, datetime | None] = field(default_factory=dict)
    names: frozenset[str] | None = None
    invalid: tuple[Queue, ...] = ()
    last: tuple[Queue, ...] = ()

    @property
    def known_names(self) -> frozenset[str]:
        """The names of DispatchQueues that the leader knows."""
        return frozenset(each.name for each in self.queues) if self.names is None else self.names

    def ceiling_of(self, namespace: str) -> int | None:
        """The highest priority that counts in a namespace; None is no bound."""
        return self.ceilings.get(namespace, self.highest_priority)

    @property
    def has_queues(self) -> bool:
        """True if gangs need quota: also where no queue or node of a tree is valid, or all linger, and they wait."""
        return bool(self.queues or self.trees) or not self.has_default

    def in_forest(self, forest: Forest) -> SchedulingRules:
        """The rules with the queues of a forest; where the queue `default` is there, it is among them."""
        return replace(
            self,
            queues=tuple(place.queue for place in forest.places.values()),
            has_default=False,
            charged_in=forest.charged_in,
            held=forest.held,
            problems=forest.problems,
            deleted=forest.deleted,
        )

    def with_declared(self, given: Iterable[Queue]) -> SchedulingRules:
        """The rules after these DispatchQueues were applied, each in place of the one of its name, if there is one.

        All other declarations are judged anew beside them, as the leader does.
        """
        applied = {each.name: each for each in given}
        names = self.known_names | applied.keys()
        there = [
            each for each in (*self.queues, *self.invalid) if each.name in names or is_of_tree(each.name)
        ]
        nodes = [each for each in there if is_of_tree(each.name)]
        queues = [applied.pop(each.name, each) for each in there if not is_of_tree(each.name)]
        declared = (*queues, *applied.values(), *nodes)
        present = {each.name for each in declared}
        held_nodes = {each.name for each in self.held if is_of_tree(each.name)}
        forest = forest_of(
            declared,
            Defaults(strategy=self.policy, starvation_bound=self.starvation_bound, access=self.access),
            (names | held_nodes) - present,
            {each.name: each for each in (*self.held, *self.last, *self.queues)},
            {name: time for name, time in self.deleted.items() if name not in present},
        )
        return replace(self.in_forest(forest), names=names)


class OwnedPods(NamedTuple):
    """Equal pods on one node; `owner` is the uid of their AppWrapper, empty for the pods of others."""

    owner: str
    place: Place
    never_ends: bool = False


class ClusterFacts(Struct, frozen=True):
    """The leader's facts about one cluster at `taken_at`: `cluster` is without pods, which are in `pods`.

    `reservations` are the backfill reservations on this cluster, by the uid of the gang. `defaults` are those of pods;
    None for a cluster that is not connected. `surplus` are the surplus pods of
    gangs there, by the uid of the AppWrapper. `quota` are the reservations of quota, the same in the facts of each
    cluster.
    """

    cluster: Cluster
    pods: tuple[OwnedPods, ...] = ()
    rules: SchedulingRules = field(default_factory=SchedulingRules)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    taken_at: datetime | None = None
    defaults: DefaultsSurvey | None = None
    surplus: Mapping[str, Surplus] = field(default_factory=dict)
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS


def count_pods_by_place(
    pods: Iterable[Pod], concerns_terms: Callable[[PodSort], bool] = lambda _: False
) -> Steps[tuple[OwnedPods, ...]]:
    """The pods that occupy nodes, equal pods together, by node; with their sort where that concerns known terms."""
    counts: Counter[tuple[str, str, Resources, bool, PodSort | None]] = Counter()
    for part in in_parts(pods):
        for pod in part:
            if pod.occupies_node:
                sort = pod.sort if pod.sort is not None and concerns_terms(pod.sort) else None
                owner = pod.owner or pod.claim or ""
                counts[pod.node, owner, pod.requests, pod.is_permanent, sort] += 1
        yield
    found: list[OwnedPods] = []
    for counted in in_parts(counts.items()):
        for (node, owner, requests, never_ends, sort), pods_there in counted:
            found.append(OwnedPods(owner, Place(node, requests, pods_there, sort), never_ends))
        yield
    return tuple(found)


def rules_of(facts: Sequence[ClusterFacts]) -> SchedulingRules:
    """The rules of a snapshot, which each cluster's facts have; the default ones without facts."""
    return facts[0].rules if facts else SchedulingRules()


def world_of(
    facts: Sequence[ClusterFacts], records: Iterable[Record], released: Collection[str], now: datetime
) -> World:
    """The world of these clusters and records; `released` are the uids of gangs that released capacity since then."""
    rules = rules_of(facts)
    names = {each.cluster.name for each in facts}
    known = list(records)
    holders = {
        each.uid: (each, each.attempt)
        for each in known
        if each.holds_capacity and each.attempt is not None and each.attempt.cluster in names
    }
    bound: defaultdict[str, list[Place]] = defaultdict(list)
    clusters = []
    for each in facts:
        others = []
        for pods in each.pods:
            _, attempt = holders.get(pods.owner, (None, None))
            if attempt is not None and attempt.cluster == each.cluster.name:
                bound[pods.owner].append(pods.place)
            elif not (_is_since(attempt, each.taken_at) if attempt else pods.owner in released):
                others.append(pods)
        clusters.append(
            replace(
                each.cluster,
                others=tuple(pods.place for pods in others if not pods.never_ends),
                permanent=tuple(pods.place for pods in others if pods.never_ends),
            )
        )
    unreachable = frozenset(each.cluster.name for each in facts if is_unreachable(each.cluster.closed))
    surplus = {(each.cluster.name, uid): found for each in facts for uid, found in each.surplus.items()}
    world = World(
        clusters=tuple(clusters),
        running=tuple(
            replace(
                running_gang(record, attempt, bound[record.uid], unreachable if rules.has_queues else None),
                surplus=surplus.get((attempt.cluster, record.uid), NO_SURPLUS),
            )
            for record, attempt in sorted(holders.values(), key=_by_dispatch)
        ),
        pending=tuple(each for each in known if each.phase is Phase.QUEUED),
        now=now,
        policy=rules.policy,
        fit=rules.fit,
        starvation_bound=rules.starvation_bound,
        reservation_bound=rules.reservation_bound,
        reservations={uid: found for each in facts for uid, found in each.reservations.items()},
        quota=next((each.quota for each in facts), NO_QUOTA_RESERVATIONS).at(now),
        namespaces=rules.namespaces,
        usage=rules.usage,
        access=rules.access,
    )
    return with_queues_of(world, rules)


def with_queues_of(world: World, rules: SchedulingRules) -> World:
    """The world with the queues of these rules."""
    return replace(
        world,
        queues=rules.queues if rules.has_queues else None,
        has_default=rules.has_default,
        charged_in=rules.charged_in,
        held=rules.held,
        problems=rules.problems,
        deleted=rules.deleted,
    )


def _is_since(attempt: Attempt, taken_at: datetime | None) -> bool:
    """True if a gang went to its cluster after the snapshot of another one, whose pods of it are gone by now.

    The pods of an earlier attempt that was given up may still live, in a cluster that did not answer then.
    """
    return taken_at is not None and attempt.decided_at >= taken_at


def _by_dispatch(holder: tuple[Record, Attempt]) -> tuple[datetime, str]:
    """The order of running gangs: of holders that would do equally well, advice names the one that went first."""
    record, attempt = holder
    return attempt.decided_at, record.uid


def running_gang(
    record: Record, attempt: Attempt, bound: Iterable[Place], unreachable: Collection[str] | None
) -> RunningGang:
    """The running gang of a record; with queues, `unreachable` are the clusters that do not answer, else None."""
    active = (
        None if unreachable is None else active_gang(record, is_unreachable=attempt.cluster in unreachable)
    )
    gang = record.gang.in_cluster(attempt.cluster)
    return RunningGang(
        name=record.uid,
        cluster=attempt.cluster,
        demand=gang.demand,
        pods=tuple(map(RunningPods, gang.pod_sets)),
        bound=tuple(bound),
        assignment=attempt.assignment,
        active=active,
        grown=record.grown,
        awaits_capacity=attempt.awaits_capacity,
    )
