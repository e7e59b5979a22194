"""Scenario files: a document of clusters, running gangs and pending gangs, read into a `World`.

`docs/plan.md` has the format. The reader is strict: a document with an unknown key, a value of another type, a
duplicate name or a negative amount is refused with `SpecError`, which names the place. Keys that begin with `x-`
are ignored everywhere, and `source` and `expect` at the top. A null counts as an absent value.

A running gang of a queue must name one that is declared; a pending gang may name any, because the answer is then that
there is no such queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from dispatcher.api.clusters.potential import MOST_POOLS, OnPotential
from dispatcher.api.document import LARGEST_INTEGER, Entry
from dispatcher.api.names import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from dispatcher.api.spec_errors import quoted
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.clusters.potential import PotentialPool, Trust
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.quantity import amount, amounts_in, in_words
from dispatcher.core.model.records.preemption import PREEMPT_LOWER, PREEMPT_NEVER
from dispatcher.core.model.records.record import Attempt, Growth, Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import PODS, Resources, sum_of
from dispatcher.core.queues.declaration import FIELDS, read_approvals, read_queue
from dispatcher.core.queues.forest import MOST_LEVELS, TOO_DEEP, Forest
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster, NoNode, RunningGang, RunningPods
from dispatcher.core.scheduling.fit.cluster_filters import Closed, is_unreachable
from dispatcher.core.scheduling.preemption.surplus import NO_SURPLUS, Surplus
from dispatcher.core.scheduling.sharing.gangs import ActiveGang

MOST: Final = 100_000
"""Nodes of a document, and pods of its running gangs: each becomes a value of its own."""

MOST_QUEUES: Final = 10_000

MOST_NAMES: Final = 256
"""Names of resources of a document: each takes a column of the arrays of all nodes."""

MOST_NAMES_OF_ONE: Final = 64
"""Names of resources of one node, queue or pod set."""

MOST_AMOUNTS: Final = 2_000_000
"""Nodes times the names of resources in their cluster, of all clusters: a plan has some arrays of this size."""

MOST_LABELS_OF_NODE: Final = 512
MOST_TAINTS: Final = 64
"""Of one node."""

MOST_PREEMPTIONS: Final = 1000
"""Of one gang within 24 hours."""
MOST_PODS_OF_A_SET: Final = LARGEST_INTEGER
LARGEST_PRIORITY: Final = LARGEST_INTEGER

_QUEUE: Final = ("name", "recentUsage", *FIELDS)
_TOP: Final = ("source", "namespaces", "clusters", "queues", "running", "pending", "expect")
_CLUSTER: Final = ("name", "labels", "closed", "reserve", "nodes", "potential", "onPotential")
_POOL: Final = ("name", "node", "max")
_SHAPE: Final = ("allocatable", "labels", "taints")
_NODE: Final = ("name", "count", "allocatable", "labels", "taints")
_TAINT: Final = ("key", "value", "effect")
_PENDING: Final = (
    "name",
    "queue",
    "namespace",
    "priority",
    "prioritySlope",
    "age",
    "blocked",
    "preempting",
    "preemptions",
    "clusterSelector",
    "demand",
    "pods",
    "approvals",
    "approved",
    "preemptionPolicy",
)
_RUNNING: Final = (*_PENDING, "cluster", "ran", "ending", "surplus")
_PODS: Final = ("count", "requests", "nodeSelector", "tolerations")
_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_POLICIES: Final = tuple(OnPotential)
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def parse_scenario(document: object) -> World:
    """The world that a document describes, as a YAML or JSON parser returns it. Raises `SpecError`."""
    top = Entry(document, "")
    top.check_keys(_TOP)
    _check_names(top)
    queues, usage = _queues(top.child("queues"))
    forest = Forest.of(queues)
    _check_levels(top.child("queues"), forest)
    clusters = _clusters(top.child("clusters"))
    names: set[str] = set()
    world = World(
        clusters,
        _running(top.child("running"), clusters, names, forest),
        _pending(top.child("pending"), names, forest),
        queues=queues,
        namespaces=_namespaces(top.child("namespaces")),
        usage=usage,
    )
    _check_pods_are_on_nodes(world, list(top.child("running").elements()))
    return world


def _check_names(top: Entry) -> None:
    """Fails at the first amounts that have too many names of resources, or bring the document beyond its bound.

    It looks only where amounts are and leaves the rest to the readers; O(amounts of the document).
    """
    names: set[str] = set()
    for amounts in _amounts_of(top):
        written = amounts.value
        if isinstance(written, dict):
            if len(written) > MOST_NAMES_OF_ONE:
                amounts.fail(f"has {len(written)} resources; at most {MOST_NAMES_OF_ONE} are allowed")
            names.update(map(str, written))
            if len(names) > MOST_NAMES:
                amounts.fail(f"there are more than {MOST_NAMES} names of resources up to here")


def _amounts_of(top: Entry) -> Iterator[Entry]:
    for queue in top.child("queues").elements():
        yield queue.child("resources")
    for cluster in top.child("clusters").elements():
        yield cluster.child("reserve")
        yield from (each.child("allocatable") for each in cluster.child("nodes").elements())
        yield from (each.child("node").child("allocatable") for each in cluster.child("potential").elements())
    for key in ("running", "pending"):
        for gang in top.child(key).elements():
            yield gang.child("demand")
            for pods in (*gang.child("pods").elements(), *gang.child("surplus").elements()):
                yield pods.child("requests")


def _check_levels(entries: Entry, forest: Forest) -> None:
    for entry in entries.elements():
        if forest.problems.get(entry.child("name").name()) == TOO_DEEP:
            entry.child("parent").fail(f"the queue is more than {MOST_LEVELS} levels deep")


def _namespaces(entry: Entry) -> dict[str, dict[str, str]]:
    return {name: entry.child(name).labels() for name in entry.fields()}


def _queues(entries: Entry) -> tuple[tuple[Queue, ...], dict[tuple[str, str], Fraction]]:
    """The declared queues, and the recent use of namespaces in them."""
    queues: list[Queue] = []
    usage: dict[tuple[str, str], Fraction] = {}
    for entry in entries.unique_elements(set(), MOST_QUEUES):
        entry.check_keys(_QUEUE)
        queue = read_queue(entry.child("name").name(), entry)
        queues.append(queue)
        recent = entry.child("recentUsage")
        usage.update({(queue.name, each): _recent_use(recent.child(each)) for each in recent.fields()})
    return tuple(queues), usage


def _recent_use(entry: Entry) -> Fraction:
    if entry.number() < 0:
        entry.fail(f"must be a number of at least 0, not {quoted(entry.value)}")
    return Fraction(entry.number())


def _check_pods_are_on_nodes(world: World, entries: Sequence[Entry]) -> None:
    try:
        world.bound_pods()
    except NoNode as error:
        gang = entries[error.gang]
        pods = list(gang.child("pods").elements())
        place = pods[error.pod_set] if pods else gang.child("demand")
        place.fail(f"no node of cluster {world.running[error.gang].cluster} takes a pod of this size")


def write_amounts(amounts: Resources) -> dict[str, str]:
    """The amounts as quantities that a scenario file may have; they are read back exactly."""
    return {name: _quantity(name, value) for name, value in sorted(amounts.items())}


def _quantity(name: str, value: int) -> str:
    written = in_words(name, value)
    return written if amount(name, written) == value else str(value)


# --- clusters ------------------------------------------------------------------------------------------------


def _clusters(entries: Entry) -> tuple[Cluster, ...]:
    clusters = tuple(map(_cluster, entries.unique_elements(set())))
    if not clusters:
        entries.fail("at least one cluster is required")
    if sum(len(cluster.nodes) for cluster in clusters) > MOST:
        entries.fail(f"there are more than {MOST} nodes")
    if sum(map(_size, clusters)) > MOST_AMOUNTS:
        entries.fail(
            f"there are more than {MOST_AMOUNTS} amounts: nodes times names of resources in their cluster"
        )
    return clusters


def _size(cluster: Cluster) -> int:
    """The size of an array of all nodes of a cluster: its nodes times the names of their resources."""
    # Nodes that one entry describes share their amounts, so each is looked at once.
    amounts = {id(node.allocatable): node.allocatable for node in cluster.nodes}
    return len(cluster.nodes) * len({name for each in amounts.values() for name in each})


def _cluster(entry: Entry) -> Cluster:
    entry.check_keys(_CLUSTER)
    closed = entry.child("closed")
    if not closed.text().isalnum() and closed.value is not None:
        closed.fail("must be a reason such as ClusterCordoned")
    return Cluster(
        name=entry.child("name").name(),
        nodes=tuple(_nodes(entry.child("nodes"))),
        labels=entry.child("labels").labels(),
        closed=Closed(closed.text(), f"it is closed: {closed.text()}") if closed.text() else None,
        reserve=amounts_in(entry.child("reserve")),
        pools=tuple(_pools(entry.child("potential"))),
        trust=Trust(OnPotential(entry.child("onPotential").one_of(_POLICIES, OnPotential.DISPATCH))),
    )


def _pools(entries: Entry) -> Iterator[PotentialPool]:
    for entry in entries.unique_elements(set(), MOST_POOLS):
        entry.check_keys(_POOL)
        name, node, most = (entry.child(key) for key in _POOL)
        node.check_keys(_SHAPE)
        shape = Node(
            "",
            amounts_in(node.child("allocatable")),
            taints=tuple(map(_taint, node.child("taints").elements(MOST_TAINTS))),
            labels=node.child("labels").labels(MOST_LABELS_OF_NODE),
        )
        if not shape.labels:
            node.child("labels").fail("at least one label is required: it says which nodes are of the pool")
        yield PotentialPool(name.name(), shape, most.integer(1))


def _nodes(entries: Entry) -> Iterator[Node]:
    taken: set[str] = set()
    for entry in entries.elements():
        entry.check_keys(_NODE)
        name, count, allocatable = (entry.child(key) for key in ("name", "count", "allocatable"))
        known = Node(
            name.name(),
            amounts_in(allocatable),
            taints=tuple(map(_taint, entry.child("taints").elements(MOST_TAINTS))),
            labels=entry.child("labels").labels(MOST_LABELS_OF_NODE),
            most_pods=amounts_in(allocatable)[PODS] if allocatable.child(PODS).value is not None else None,
        )
        written = [known.name]
        if count.value is not None:
            written = [f"{known.name}-{number}" for number in range(count.integer(0, most=MOST))]
        for each in written:
            if each in taken:
                name.fail(f"another node is named {quoted(each)}")
            taken.add(each)
            yield replace(known, name=each)


def _taint(entry: Entry) -> Taint:
    entry.check_keys(_TAINT)
    return Taint(
        entry.child("key").name(), entry.child("value").text(), entry.child("effect").one_of(_EFFECTS)
    )


# --- gangs ---------------------------------------------------------------------------------------------------


def _running(
    entries: Entry, clusters: Collection[Cluster], names: set[str], forest: Forest
) -> tuple[RunningGang, ...]:
    nodes = {cluster.name: {node.name: node.allocatable for node in cluster.nodes} for cluster in clusters}
    unreachable = {cluster.name for cluster in clusters if is_unreachable(cluster.closed)}
    gangs = tuple(
        _running_gang(entry, nodes, unreachable, forest) for entry in entries.unique_elements(names)
    )
    if sum(each.pods.count for gang in gangs for each in gang.pods) > MOST:
        entries.fail(f"there are more than {MOST} pods")
    return gangs


def _running_gang(
    entry: Entry, nodes: Mapping[str, Mapping[str, Resources]], unreachable: Collection[str], forest: Forest
) -> RunningGang:
    entry.check_keys(_RUNNING)
    leaves = _leaves(entry, forest)
    for each in leaves:
        if each not in forest.places and each not in forest.problems:
            entry.child("queue").fail(f"there is no queue {quoted(each)}")
    cluster = entry.child("cluster")
    if cluster.name() not in nodes:
        cluster.fail(f"there is no cluster {quoted(cluster.value)}")
    written = tuple(
        _running_pods(each, cluster.name(), nodes[cluster.name()]) for each in entry.child("pods").elements()
    )
    gang = _gang(entry, tuple(each.pods for each in written))
    pods = written or tuple(map(RunningPods, gang.pod_sets))
    record = _record(entry, 0, gang, Phase.RUNNING, leaves)
    ran, is_leaving = entry.child("ran").seconds(), entry.child("ending").flag()
    more = tuple(_surplus_pods(entry.child("surplus"), cluster.name(), nodes[cluster.name()]))
    grown = sum_of(each.pods.total for each in more)
    if more:
        growth = (Growth(SOME_TIME - ran, grown, count=sum(each.pods.count for each in more)),)
        record = replace(record, attempt=Attempt(1, cluster.name(), SOME_TIME - ran, growth=growth))
    does_not_answer = cluster.name() in unreachable
    active = ActiveGang(
        record,
        cluster.name(),
        SOME_TIME - ran,
        is_leaving=is_leaving and not does_not_answer,
        is_fixed=does_not_answer,
    )
    return RunningGang(
        record.uid,
        cluster.name(),
        gang.demand,
        (*pods, *more),
        active=active,
        grown=grown,
        surplus=Surplus(
            gang.demand + grown,
            gang.demand + grown,
            tuple(_one_by_one(record, more, len(pods))),
            record.charged_pods,
        )
        if more
        else NO_SURPLUS,
    )


def _surplus_pods(entries: Entry, cluster: str, known: Mapping[str, Resources]) -> Iterator[RunningPods]:
    for entry in entries.elements():
        pods = _running_pods(entry, cluster, known)
        if not pods.nodes:
            entry.child("nodes").fail(f"must name one node for each pod: {pods.pods.count}, not 0")
        yield pods


def _one_by_one(record: Record, surplus: Sequence[RunningPods], first: int) -> Iterator[SurplusPod]:
    """Each surplus pod, with the uid that the world gives it; `first` is the number of the first pod set."""
    for number, pods in enumerate(surplus, first):
        for index, node in enumerate(pods.nodes):
            uid = f"{record.uid}/{number}/{index}"
            yield SurplusPod(record.namespace, uid, uid, pods.pods.requests, node, "")


def _running_pods(entry: Entry, cluster: str, known: Mapping[str, Resources]) -> RunningPods:
    """`known` are the amounts that each node of the cluster has."""
    entry.check_keys((*_PODS, "nodes"))
    pods, nodes = _pod_set(entry), entry.child("nodes")
    for each in nodes.elements():
        if each.name() not in known:
            each.fail(f"cluster {cluster} has no node {quoted(each.value)}")
        if not pods.requests.fits_in(known[each.name()]):
            each.fail(f"node {each.name()} is too small for a pod of this size, even if it was empty")
    found = tuple(each.name() for each in nodes.elements())
    if nodes.value is not None and len(found) != pods.count:
        nodes.fail(f"must name one node for each pod: {pods.count}, not {len(found)}")
    return RunningPods(pods, found)


def _pending(entries: Entry, names: set[str], forest: Forest) -> tuple[Record, ...]:
    return tuple(
        read_pending(entry, position, forest)
        for position, entry in enumerate(entries.unique_elements(names), 1)
    )


def read_pending(entry: Entry, position: int, forest: Forest) -> Record:
    """The record of a pending gang, which is at this position in the order of arrival. Raises `SpecError`."""
    entry.check_keys(_PENDING)
    pods = entry.child("pods")
    for each in pods.elements():
        each.check_keys(_PODS)
    gang = _gang(entry, tuple(map(_pod_set, pods.elements())))
    leaves = _leaves(entry, forest)
    record = _record(entry, position, gang, Phase.QUEUED, leaves)
    return replace(record, pending=_awaited(entry, leaves, forest))


def _awaited(entry: Entry, leaves: tuple[str, ...], forest: Forest) -> Pending | None:
    """The pending reason of a gang that lacks approvals; None if it has all that it and its queues name."""
    named, granted = read_approvals(entry.child("approvals")), read_approvals(entry.child("approved"))
    of_queues = (name for place in forest.places_of(leaves) for name in place.approvals)
    needed = dict.fromkeys((*named, *of_queues))
    return pending_without(name for name in needed if name not in granted)


def _record(entry: Entry, position: int, gang: Gang, phase: Phase, leaves: tuple[str, ...]) -> Record:
    name, blocked = entry.child("name").name(), entry.child("blocked")
    namespace = entry.child("namespace").text() or DEFAULT_NAMESPACE
    created = SOME_TIME - entry.child("age").seconds()
    return Record(
        uid=name,
        group="",
        namespace=namespace,
        name=name,
        created_at=created,
        phase=phase,
        phase_since=created,
        enqueue_seq=position,
        queue=leaves[0],
        more_queues=leaves[1:],
        priority=entry.child("priority").integer(0, least=-LARGEST_PRIORITY, most=LARGEST_PRIORITY),
        priority_slope=entry.child("prioritySlope").number(),
        gang=gang,
        requirements=ClusterRequirements(entry.child("clusterSelector").selector(), namespace=namespace),
        blocked_since=None if blocked.value is None else SOME_TIME - blocked.seconds(),
        is_preempting=entry.child("preempting").flag(),
        pods_never_preempt=entry.child("preemptionPolicy").one_of(
            (PREEMPT_LOWER, PREEMPT_NEVER), PREEMPT_LOWER
        )
        == PREEMPT_NEVER,
        preempted_at=(SOME_TIME,) * entry.child("preemptions").integer(0, most=MOST_PREEMPTIONS),
    )


def _leaves(entry: Entry, forest: Forest) -> tuple[str, ...]:
    """The queues that a gang names, at most one in each tree."""
    queue = entry.child("queue")
    if not isinstance(queue.value, list):
        return (queue.text() or DEFAULT_QUEUE,)
    names = tuple(each.name() for each in queue.elements())
    if not names or len(set(names)) < len(names):
        queue.fail("must name one or more different queues")
    trees = [forest.places[each].root for each in names if each in forest.places]
    if len(set(trees)) < len(trees):
        queue.fail("must name at most one queue of each tree")
    return names


def _gang(entry: Entry, pod_sets: tuple[PodSet, ...]) -> Gang:
    """The gang of these pods and the declared demand; without pods in the document it is one pod of its demand."""
    demand = entry.child("demand")
    if entry.child("pods").value is None:
        if demand.value is None:
            entry.fail("demand or pods is required")
        one_pod = Resources({name: value for name, value in amounts_in(demand).items() if name != PODS})
        return Gang(amounts_in(demand), 1, (PodSet(1, one_pod),))
    pods = sum(each.count for each in pod_sets)
    total = sum_of(each.total for each in pod_sets)
    return Gang(total if demand.value is None else amounts_in(demand), pods, pod_sets)


def _pod_set(entry: Entry) -> PodSet:
    requests = entry.child("requests")
    if PODS in amounts_in(requests):
        requests.child(PODS).fail("cannot be requested: each pod counts as one")
    return PodSet(
        entry.child("count").integer(1, most=MOST_PODS_OF_A_SET),
        amounts_in(requests),
        tuple(map(_toleration, entry.child("tolerations").elements())),
        NodeRequirements(tuple(sorted(entry.child("nodeSelector").labels().items()))),
    )


def _toleration(entry: Entry) -> Toleration:
    entry.check_keys(_TOLERATION)
    entry.child("tolerationSeconds").number()
    key, operator = entry.child("key").text(), entry.child("operator").one_of(("Equal", "Exists"), "Equal")
    if not key and operator != "Exists":
        entry.child("operator").fail("must be Exists if there is no key")
    effect = entry.child("effect").one_of(("", *_EFFECTS), "")
    return Toleration(key, operator, entry.child("value").text(), effect)
