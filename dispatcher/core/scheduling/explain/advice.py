"""Advice for a waiting gang: the running gangs that hold its capacity, and the smallest repairs that dispatch it.

The search knows no rule of scheduling. It applies a repair, plans the world again and looks whether the gang is
dispatched, so it is right for every rule, and for gangs ahead that take the added capacity. For each returned repair it
has seen that the repair alone suffices, and that one node, gang, taint or base unit of quota less does not.

A gang goes if the next cycle dispatches it. A repair after which it still waits for the release of other gangs, or has
them preempted, is none. Gangs for which others are preempted get no advice.

How the search grows: one plan serves all waiting gangs. For each of at most `MOST_CLUSTERS` clusters and `MOST_SHAPES`
shapes of nodes that take a pod of the gang, it makes O(log k) plans to find that k nodes are needed; the gangs share
many of them. In a small world it then tries all smaller numbers up to `MOST_COUNTS`, because fewer nodes may suffice
where some more do not. For each limited resource and each queue of the tree that names it, up to the first that helps,
it makes O(log k) plans to find that k base units are needed, and about two if its first guess is right. If no quota of
one resource suffices and up to `MOST_RESOURCES` seem to be missing, it makes as many plans for each of them again, with
quota of all of them, for the queues on the way to the root. Sets of gangs
or of tainted nodes are tried by size while there are at most `MOST_SETS` (fewer in a large world), so the smallest is
found. Beyond that, some orders are cut where they begin to help, and members that are not needed are left out, in
O(set) plans or a few times as many: a minimal set, maybe not the smallest. Each search makes a bounded number of plans
(`trials.MOST_PLANS`), and `MOST_WORK` bounds the plans of all searches of one kind, for the gangs decided first. A
search that is cut short returns nothing, and the advice says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.pending_reasons import (
    DEVICE_CLAIMS_NOT_COUNTED,
    LARGER_THAN_QUOTA,
    REQUIRED_PODS_MISSING,
    WAITS_FOR_QUOTA,
    codes,
)
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.model.resources import Resources, is_device, sum_of
from dispatcher.core.scheduling.cycle.outcomes import NotEvaluated, Outcome, Placed, Preempting, Refusal
from dispatcher.core.scheduling.explain.minimal_changes import (
    beginning,
    boundary,
    first_that_goes,
    least_sufficient,
    minimal,
    smallest_by_size,
)
from dispatcher.core.scheduling.explain.repair import (
    ADDED_NODES,
    AddNodes,
    AddQuota,
    AddQuotas,
    RemoveGangs,
    RemoveTaints,
    Repair,
)
from dispatcher.core.scheduling.explain.scenario import MOST
from dispatcher.core.scheduling.explain.trials import Spent, Trials
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import Cluster, RunningGang
from dispatcher.core.scheduling.fit.cluster_filters import has_members

MOST_REPAIRS: Final = 5
"""Repairs of one gang."""

MOST_CLUSTERS: Final = 8
MOST_SETS: Final = 1024
MOST_WORK: Final = 300_000
"""The cost of all plans of the searches of one kind, in nodes: about ten seconds."""
MOST_WORK_ON_SETS: Final = 50_000
"""The same, over the plans of all sets by size."""
MOST_COUNTS: Final = 16
MOST_WORK_ON_COUNTS: Final = 4_000
"""Numbers of nodes that are all tried, and the cost of the plans for that."""
MOST_RESOURCES: Final = 4
"""Resources of which quota is added together."""
MOST_ORDERS: Final = 2
"""Orders whose beginnings are made minimal: the orders with the shortest beginnings."""

_LAST_NAME: Final = "~added"
"""A name of added nodes that comes after nearly every other: a repair must not depend on the name."""

_REFUSED: Final = codes(lambda each: each.is_refused_by_queue)
NEVER_ON_A_CLUSTER: Final = _REFUSED | {LARGER_THAN_QUOTA, REQUIRED_PODS_MISSING}
"""Reasons that no change of a cluster and no running gang has a part in."""
_SHORT_OF_QUOTA: Final = codes(lambda each: each.more_quota_may_help)

Found = TypeVar("Found")


class Advice(Struct, frozen=True):
    """The holders and the repairs for one waiting gang.

    `holders` are running gangs without which it would go, all of them needed; empty if that does not help. `repairs`
    are alternatives, the fewest changes first; of equals, taints before quota before nodes before gangs. If there is
    none, `message` says why; it is empty if no cluster or queue accepts the gang, because the pending reason then says
    why.
    """

    holders: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    message: str = ""


NO_ADVICE: Final = Advice()


def advise(
    world: World, outcomes: Sequence[Outcome], known: KnownSnapshots | None = None
) -> dict[str, Advice]:
    """The advice for each waiting gang, by its uid; `outcomes` are those of `world.plan(known)`.

    Gangs for which others are preempted get none.
    """
    waiting = [index for index, each in enumerate(outcomes) if not isinstance(each, Placed | Preempting)]
    return _advise(world, outcomes, waiting, MOST_WORK, known)


def advise_one(
    world: World,
    outcomes: Sequence[Outcome],
    uid: str,
    most_work: int = MOST_WORK,
    known: KnownSnapshots | None = None,
) -> Advice:
    """The advice for one gang, as in `advise_some`; empty if it does not wait."""
    return advise_some(world, outcomes, [uid], most_work, known).get(uid, NO_ADVICE)


def advise_some(
    world: World,
    outcomes: Sequence[Outcome],
    uids: Collection[str],
    most_work: int = MOST_WORK,
    known: KnownSnapshots | None = None,
) -> dict[str, Advice]:
    """The advice for these gangs by uid; none for a gang that is placed, or for which others are preempted.

    `outcomes` are those of `world.plan(known)`. `most_work` bounds the search for all of them together. Without queues
    the gangs that are decided after the last of them cannot change their outcomes, so the search leaves them out.
    """
    chosen = [
        index
        for index, each in enumerate(outcomes)
        if each.record.uid in uids and not isinstance(each, Placed | Preempting)
    ]
    if not chosen:
        return {}
    if world.has_queues:  # a repair may change the order of the decisions
        return _advise(world, outcomes, chosen, most_work, known)
    served = outcomes[: chosen[-1] + 1]
    smaller = replace(world, pending=tuple(each.record for each in served))
    return _advise(smaller, served, chosen, most_work, known)


def _advise(
    world: World,
    outcomes: Sequence[Outcome],
    waiting: Iterable[int],
    most_work: int,
    known: KnownSnapshots | None,
) -> dict[str, Advice]:
    """The advice for the gangs with these indices."""
    trials = Trials(world, outcomes, most_work, known or KnownSnapshots())
    records = [each.record for each in outcomes]
    searches = [
        _Search(trials, records if world.has_queues else records[: index + 1], outcome)
        for index in waiting
        if not isinstance(outcome := outcomes[index], Placed | Preempting)
    ]
    trials.begin_kind()
    for turn in range(
        max((search.steps_up for search in searches), default=0)
    ):  # its own queue of every gang first
        for search in searches:
            search.add_quota(turn)
    for search in searches:
        search.add_quotas()
    for search_in in (_Search.add_nodes, _Search.remove_taints):
        trials.begin_kind()
        for turn in range(MOST_CLUSTERS):  # every gang in its nearest cluster first
            for search in searches:
                for cluster in search.clusters_short_of_room[turn : turn + 1]:
                    search_in(search, cluster)
    trials.begin_kind()
    for search in searches:
        search.remove_gangs()
    return {search.record.uid: search.advice() for search in searches}


class _Search:
    """The searches for one waiting gang. `served` are the gangs that may be decided before it, and itself."""

    def __init__(self, trials: Trials, served: Sequence[Record], outcome: Refusal | NotEvaluated) -> None:
        self.record = outcome.record
        self._served = served
        self._trials = trials
        self._world = trials.world
        self._reason = outcome.pending.reason
        self._uncounted = frozenset(_counting_no_devices(outcome.pending))
        places = [trials.forest.places[leaf] for leaf in self.record.leaves if leaf in trials.forest.places]
        self._leaves = places if self._world.has_queues and self._reason not in _REFUSED else []
        accepting = list(filter(self._accepts, self._world.clusters))
        accepting.sort(key=lambda each: each.name != outcome.pending.cluster)
        self.clusters = accepting[:MOST_CLUSTERS]
        self.clusters_short_of_room = [] if self._reason in WAITS_FOR_QUOTA else self.clusters
        self._is_cut_short = len(accepting) > MOST_CLUSTERS
        self._depends_on_names = False
        self._tried_together = False
        self._ways = dict(self._ways_up())
        self._repairs: list[Repair] = []
        self._holders: tuple[str, ...] = ()

    def advice(self) -> Advice:
        """The result of the searches so far."""
        repairs = sorted(self._repairs, key=lambda repair: (repair.changes, _KINDS.index(type(repair))))
        message = "" if repairs else self._no_repair()
        if self._is_cut_short and not (repairs and self._holders):
            message = _CUT_SHORT
        return Advice(self._holders, tuple(repairs[:MOST_REPAIRS]), message)

    @property
    def steps_up(self) -> int:
        """The largest number of queues that may get more quota of one resource."""
        return max((len(names) for names in self._ways.values()), default=0)

    def add_quota(self, turn: int) -> None:
        """Searches for quota to add, of each resource to one queue, from 0 for the nearest on the way to the root.

        A resource for which an earlier queue suffices is left out.
        """
        for (leaf, resource), names in list(self._ways.items()):
            if turn < len(names):
                found = self._bounded(self._least_quota, leaf, names[turn], resource)
                if found is not None:
                    self._repairs.append(found)
                    del self._ways[leaf, resource]

    def add_quotas(self) -> None:
        """Searches for quota of several resources to add to one queue, where no quota of one resource suffices.

        It tries the resources that seem to be missing, and the queues on the way to the root that name them.
        """
        for place in self._leaves if self._reason in _SHORT_OF_QUOTA else ():
            if any(isinstance(each, AddQuota) for each in self._repairs):
                return
            missing = self._trials.missing_quota
            asked = missing.asked(place, self.record.gang.charged)
            short = [each for each in asked if missing.guesses(place, self.record, each)]
            for name in place.path if 1 < len(short) <= MOST_RESOURCES else ():
                if not all(each in self._trials.forest.places[name].queue.resources for each in short):
                    continue
                self._tried_together = True
                found = self._bounded(self._least_quotas, place.name, name, short)
                if found is not None:
                    self._repairs.append(found)
                    break

    def add_nodes(self, cluster: Cluster) -> None:
        """Searches for nodes to add to a cluster, of the shape that needs the fewest nodes."""
        gang = self.record.gang.in_cluster(cluster.name)
        shapes = [each for each in shapes_of(cluster.nodes) if has_use_for(gang, each)]
        known = self._fewest_of(cluster, shapes)
        own = known or self._fewest_of(cluster, own_shapes(gang))
        self._repairs += own[:1]

    def remove_taints(self, cluster: Cluster) -> None:
        """Searches for nodes of a cluster to take the taints from."""
        nodes = [node.name for node in cluster.nodes if self._is_kept_from(node)]
        found = self._smallest(nodes, [nodes], partial(RemoveTaints, cluster.name))
        self._repairs += [RemoveTaints(cluster.name, found)] if found else []

    def remove_gangs(self) -> None:
        """Searches for running gangs to remove."""
        if not self.clusters:
            return
        gangs = [each.name for each in self._world.running]
        found = self._smallest(gangs, list(self._orders()), RemoveGangs)
        self._holders = found
        self._repairs += [RemoveGangs(found)] if found else []

    def _no_repair(self) -> str:
        """Why there is no repair; empty if none was sought."""
        sought = [self._sought_quota()] if self._leaves and self._reason in _SHORT_OF_QUOTA else []
        nodes = (
            "no number of nodes whatever their names"
            if self._depends_on_names
            else "no more nodes of one shape"
        )
        sought += [nodes, "no fewer taints"] if self.clusters_short_of_room else []
        sought += ["no fewer gangs"] if self.clusters else []
        if len(sought) < 2:
            return f"no repair was found: {sought[0]} lets it go" if sought else ""
        return f"no repair was found: {', '.join(sought[:-1])} and {sought[-1]} let it go"

    def _sought_quota(self) -> str:
        """The quota that was sought in vain: what was tried and no more, as two queues may be short at once."""
        if len({resource for _, resource in self._ways}) < 2:
            return "no more quota of one queue"
        of_several = " or of several" if self._tried_together else " alone"
        return f"no more quota of one queue (of one resource{of_several})"

    def _accepts(self, cluster: Cluster) -> bool:
        """True if a cluster takes the gang but for its capacity, and all its queues select the cluster."""
        if self._reason in NEVER_ON_A_CLUSTER or cluster.name in self._uncounted:
            return False
        selectors = [each for place in self._leaves for _, each in place.cluster_selectors]
        count = has_members([each.name for each in self._world.clusters])
        if count and not all(selector.matches(cluster.labels) for selector in selectors):
            return False
        return self._world.accepts(cluster, self.record)

    def _ways_up(self) -> Iterator[tuple[tuple[str, str], list[str]]]:
        """The queues that name a resource, for each leaf and each resource that may be short.

        First those on the way to the root, then the others of the tree: the gang may borrow what they lend.
        """
        if self._reason not in _SHORT_OF_QUOTA:
            return
        forest = self._trials.forest
        for place in self._leaves:
            names = dict.fromkeys([*place.path, *forest.trees[place.root].names])
            queues = [forest.places[name].queue for name in names]
            for resource in self._trials.missing_quota.asked(place, self.record.gang.charged):
                yield (place.name, resource), [queue.name for queue in queues if resource in queue.resources]

    def _least_quota(self, leaf: str, queue: str, resource: str) -> AddQuota | None:
        """An amount that suffices where one base unit less does not; None if none is found."""
        missing = self._trials.missing_quota
        amount = least_sufficient(
            missing.most(queue, resource),
            missing.guesses(self._trials.forest.places[leaf], self.record, resource),
            lambda each: self._goes(AddQuota(queue, resource, each)),
        )
        return None if amount is None else AddQuota(queue, resource, amount)

    def _least_quotas(self, leaf: str, queue: str, resources: Sequence[str]) -> Repair | None:
        """Amounts that suffice where one base unit less of any does not; None if none are found."""
        missing, place = self._trials.missing_quota, self._trials.forest.places[leaf]
        amounts = {each: missing.most(queue, each) for each in resources}

        def goes(resource: str, amount: int) -> bool:
            return self._goes(_quotas(queue, {**amounts, resource: amount}))

        if not goes(resources[0], amounts[resources[0]]):
            return None
        for each in resources:
            guesses = missing.guesses(place, self.record, each)
            least = 0 if goes(each, 0) else least_sufficient(amounts[each], guesses, partial(goes, each))
            amounts[each] = amounts[each] if least is None else least
        is_least = not any(goes(each, amounts[each] - 1) for each in resources if amounts[each])
        return _quotas(queue, amounts) if is_least else None

    def _is_kept_from(self, node: Node) -> bool:
        if not any(taint.keeps_away for taint in node.taints):
            return False
        pod_sets = self.record.gang.pod_sets
        return not pod_sets or not all(each.tolerates(node.taints) for each in pod_sets)

    def _fewest_of(self, cluster: Cluster, shapes: Iterable[Node]) -> list[AddNodes]:
        """The verified additions to a cluster, the fewest and then the plainest nodes first."""
        found = [self._bounded(self._fewest, cluster, shape) for shape in shapes]
        return sorted(filter(None, found), key=lambda each: (each.count, plainness(each.node)))

    def _fewest(self, cluster: Cluster, shape: Node) -> AddNodes | None:
        """A number of nodes that suffices where one less does not; None if none is found."""

        def goes(count: int, name: str = ADDED_NODES) -> bool:
            return self._goes(AddNodes(cluster.name, count, shape), name)

        most = self._most_needed(cluster, shape)
        bounds = first_that_goes(most, goes)
        if bounds is None:
            return None
        _, found = boundary(*bounds, goes, self._trials.counts_of(cluster.name, shape))
        suffices = next(filter(goes, self._fewer_than(found)), found)
        fails = suffices - 1
        is_the_same = goes(suffices, _LAST_NAME) and not (fails and goes(fails, _LAST_NAME))
        self._depends_on_names |= not is_the_same
        return AddNodes(cluster.name, suffices, shape) if is_the_same else None

    def _fewer_than(self, count: int) -> range:
        """The smaller numbers of nodes, from 1, if all of them can be tried."""
        can_be_tried = count <= min(MOST_COUNTS, MOST_WORK_ON_COUNTS // max(1, self._trials.size))
        return range(1, count if can_be_tried else 1)

    def _most_needed(self, cluster: Cluster, shape: Node) -> int:
        """A number of nodes with room for it and all gangs ahead, one pod on each, and for all that is owed."""
        pods = sum(each.gang.pods for each in self._served)
        there = sum_of(gang.held for gang in self._world.running if gang.cluster == cluster.name)
        owed = cluster.reserve + there + sum_of(record.gang.demand for record in self._served)
        by_amount = [-(-owed[name] // amount) for name, amount in shape.allocatable.items() if amount > 0]
        most = MOST - sum(len(each.nodes) for each in self._world.clusters)
        return max(1, min(most, pods + max(by_amount, default=0)))

    def _orders(self) -> Iterator[list[str]]:
        """Orders of running gangs in which the first may be holders.

        The largest of its trees of queues come first, or by cluster the largest, or node by node.
        """
        if self._leaves:
            yield self._by_tree()
        bound = self._world.bound_pods()
        for cluster in self.clusters:
            there = [each for each in self._world.running if each.cluster == cluster.name]
            others = [each.name for each in self._world.running if each.cluster != cluster.name]
            by_size = sorted(there, key=lambda each: -self._share_of(each))
            yield [*(each.name for each in by_size), *others]
            nodes: dict[str, list[str]] = {node.name: [] for node in cluster.nodes}
            for pod in bound[cluster.name]:
                owners = nodes.get(pod.node)  # None for a node that is gone, whose pods are still listed
                if owners is not None and pod.owner is not None and pod.owner not in owners:
                    owners.append(pod.owner)
            node_by_node = [name for each in sorted(nodes.values(), key=len) for name in each]
            yield list(dict.fromkeys([*node_by_node, *(each.name for each in there), *others]))

    def _by_tree(self) -> list[str]:
        roots, places = {each.root for each in self._leaves}, self._trials.forest.places

        def is_elsewhere(running: RunningGang) -> bool:
            leaves = () if running.active is None else running.active.leaves
            return not any(each in places and places[each].root in roots for each in leaves)

        gangs = sorted(self._world.running, key=lambda each: (is_elsewhere(each), -self._share_of(each)))
        return [each.name for each in gangs]

    def _share_of(self, running: RunningGang) -> int:
        """The largest share of the gang's demand, of any resource, that a running gang has, in millionths."""
        demand = self.record.gang.demand
        return max((running.held[name] * 10**6 // amount for name, amount in demand.items()), default=0)

    def _smallest(
        self,
        items: Sequence[str],
        orders: Sequence[Sequence[str]],
        change: Callable[[tuple[str, ...]], Repair],
    ) -> tuple[str, ...]:
        """The smallest set that is found to suffice, minimal and in the order of `items`; empty if there is none."""
        place = {name: index for index, name in enumerate(items)}

        def goes(names: Iterable[str]) -> bool:
            return self._goes(change(tuple(sorted(names, key=place.__getitem__))))

        most = min(MOST_SETS, MOST_WORK_ON_SETS // max(1, self._trials.size))
        size, found = self._bounded(smallest_by_size, items, goes, most) or (0, ())
        if found or size == len(items):
            return found
        begun = [self._bounded(beginning, order, goes) for order in orders]
        shortest = sorted(filter(None, begun), key=len)[:MOST_ORDERS]
        found_minimal = [self._bounded(minimal, each, goes) for each in shortest]
        least = min(filter(None, found_minimal), key=len, default=())
        return tuple(sorted(least, key=place.__getitem__))

    def _goes(self, repair: Repair, name: str = ADDED_NODES) -> bool:
        return self._trials.goes(self.record.uid, repair, name)

    def _bounded(self, search: Callable[..., Found], *arguments: Any) -> Found | None:  # noqa: ANN401
        """The result of a search; None if it is cut short."""
        self._trials.begin()
        try:
            return search(*arguments)
        except Spent:
            self._is_cut_short = True
            return None


def _counting_no_devices(pending: Pending) -> Iterator[str]:
    """The clusters where nothing counts devices of the gang: no node and no running gang has a part in that."""
    if pending.reason == DEVICE_CLAIMS_NOT_COUNTED:
        yield pending.cluster
    for each in pending.clusters:
        if each.reason == DEVICE_CLAIMS_NOT_COUNTED:
            yield each.cluster


def _quotas(queue: str, amounts: Mapping[str, int]) -> AddQuota | AddQuotas:
    """More quota of these resources; those of which there is none more are left out."""
    parts = tuple(AddQuota(queue, name, amount) for name, amount in amounts.items() if amount)
    return parts[0] if len(parts) == 1 else AddQuotas(parts)


_KINDS: Final = (RemoveTaints, AddQuota, AddQuotas, AddNodes, RemoveGangs)
_CUT_SHORT: Final = "the search for repairs was cut short, because the scenario is large"


MOST_SHAPES: Final = 16
"""Shapes of one cluster, the most frequent."""


def shapes_of(nodes: Iterable[Node]) -> list[Node]:
    """The different shapes of these nodes, the most frequent first."""
    return [shape for shape, _ in Counter(node.shape for node in nodes).most_common(MOST_SHAPES)]


def has_use_for(gang: Gang, shape: Node) -> bool:
    """True if a node of this shape takes a pod of the gang; for a gang without pods, if it has a demanded resource."""
    if not any(each.count for each in gang.pod_sets):
        return any(name in shape.allocatable for name in gang.demand)
    return shape.pod_limit > 0 and any(
        each.count and each.requests.fits_in(shape.allocatable) and each.may_use(shape)
        for each in gang.pod_sets
    )


def own_shapes(gang: Gang) -> list[Node]:
    """Nodes of the size of the gang's pods: one that takes a pod of any set, then one for each set.

    Without pods, sets that are empty still say which nodes count for the demand.
    """
    pod_sets = [each for each in gang.pod_sets if each.count] or gang.pod_sets
    requested = sum_of(each.total for each in pod_sets)
    beyond = {name: amount for name, amount in gang.demand.items() if name not in requested}
    labels: dict[str, str] = {}
    largest = Resources(beyond)
    for pod_set in pod_sets:
        largest = largest.highest(pod_set.requests)
        labels |= dict(pod_set.nodes.selector)
    each_set = [Node("", each.requests, labels=dict(each.nodes.selector)) for each in pod_sets]
    return list(_distinct([Node("", largest, labels=labels), *each_set]))


def _distinct(shapes: Iterable[Node]) -> Iterator[Node]:
    seen: list[Node] = []
    for each in shapes:
        if each not in seen:
            seen.append(each)
            yield each


def plainness(node: Node) -> tuple[int, int, int]:
    """A measure by which a node without devices, with less cpu and less memory comes first."""
    devices = sum(amount for name, amount in node.allocatable.items() if is_device(name))
    return devices, node.allocatable["cpu"], node.allocatable["memory"]
