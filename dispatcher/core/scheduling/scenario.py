"""Scenario files: a document of clusters, running gangs and pending gangs, read into a `World`.

`docs/plan.md` has the format. The reader is strict: a document with an unknown key, a value of another type, a
duplicate name or a negative amount is refused with `DocumentError`, which names the place. Keys that begin with `x-`
are ignored everywhere, and `source` and `expect` at the top. A null counts as an absent value.

Queues do not exist yet: a document that declares or names one is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.api.spec_errors import quoted
from dispatcher.core.model.document import LARGEST_INTEGER, Entry
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.quantity import amount, in_words
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.model.resources import PODS, Resources, sum_of
from dispatcher.core.scheduling.cluster_filters import Closed
from dispatcher.core.scheduling.world import (
    SOME_TIME,
    Cluster,
    NoNode,
    RunningGang,
    RunningPods,
    World,
)

MOST: Final = 100_000
"""Nodes of a document, and pods of its running gangs: each becomes a value of its own."""

MOST_PODS_OF_A_SET: Final = LARGEST_INTEGER
LARGEST_PRIORITY: Final = LARGEST_INTEGER

NO_QUEUES: Final = "queues are not supported by this version yet"

_TOP: Final = ("source", "namespaces", "clusters", "queues", "running", "pending", "expect")
_CLUSTER: Final = ("name", "labels", "closed", "reserve", "nodes")
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
)
_RUNNING: Final = (*_PENDING, "cluster", "ran", "ending")
_PODS: Final = ("count", "requests", "nodeSelector", "tolerations")
_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def parse_scenario(document: object) -> World:
    """The world that a document describes, as a YAML or JSON parser returns it. Raises `DocumentError`."""
    top = Entry(document, "")
    top.check_keys(_TOP)
    if list(top.child("queues").elements()):
        top.child("queues").fail(NO_QUEUES)
    for namespace in top.child("namespaces").children():
        namespace.labels()
    clusters = _clusters(top.child("clusters"))
    names: set[str] = set()
    running = _running(top.child("running"), clusters, names)
    world = World(clusters, running, _pending(top.child("pending"), names))
    _check_pods_are_on_nodes(world, list(top.child("running").elements()))
    return world


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
    return clusters


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
        reserve=entry.child("reserve").amounts(),
    )


def _nodes(entries: Entry) -> Iterator[Node]:
    taken: set[str] = set()
    for entry in entries.elements():
        entry.check_keys(_NODE)
        name, count, allocatable = (entry.child(key) for key in ("name", "count", "allocatable"))
        known = Node(
            name.name(),
            allocatable.amounts(),
            taints=tuple(map(_taint, entry.child("taints").elements())),
            labels=entry.child("labels").labels(),
            most_pods=allocatable.amounts()[PODS] if allocatable.child(PODS).value is not None else None,
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


def _running(entries: Entry, clusters: Collection[Cluster], names: set[str]) -> tuple[RunningGang, ...]:
    nodes = {cluster.name: {node.name for node in cluster.nodes} for cluster in clusters}
    gangs = tuple(_running_gang(entry, nodes) for entry in entries.unique_elements(names))
    if sum(each.pods.count for gang in gangs for each in gang.pods) > MOST:
        entries.fail(f"there are more than {MOST} pods")
    return gangs


def _running_gang(entry: Entry, nodes: Mapping[str, Collection[str]]) -> RunningGang:
    entry.check_keys(_RUNNING)
    _check_common(entry)
    entry.child("ran").seconds()
    entry.child("ending").flag()
    cluster = entry.child("cluster")
    if cluster.name() not in nodes:
        cluster.fail(f"there is no cluster {quoted(cluster.value)}")
    written = tuple(
        _running_pods(each, cluster.name(), nodes[cluster.name()]) for each in entry.child("pods").elements()
    )
    gang = _gang(entry, tuple(each.pods for each in written))
    pods = written or tuple(map(RunningPods, gang.pod_sets))
    return RunningGang(entry.child("name").name(), cluster.name(), gang.demand, pods)


def _running_pods(entry: Entry, cluster: str, names: Collection[str]) -> RunningPods:
    entry.check_keys((*_PODS, "nodes"))
    pods, nodes = _pod_set(entry), entry.child("nodes")
    for each in nodes.elements():
        if each.name() not in names:
            each.fail(f"cluster {cluster} has no node {quoted(each.value)}")
    found = tuple(each.name() for each in nodes.elements())
    if nodes.value is not None and len(found) != pods.count:
        nodes.fail(f"must name one node for each pod: {pods.count}, not {len(found)}")
    return RunningPods(pods, found)


def _pending(entries: Entry, names: set[str]) -> tuple[Record, ...]:
    return tuple(
        _pending_gang(entry, position) for position, entry in enumerate(entries.unique_elements(names), 1)
    )


def _pending_gang(entry: Entry, position: int) -> Record:
    entry.check_keys(_PENDING)
    _check_common(entry)
    pods = entry.child("pods")
    for each in pods.elements():
        each.check_keys(_PODS)
    name, blocked = entry.child("name").name(), entry.child("blocked")
    namespace = entry.child("namespace").text() or "default"
    created = SOME_TIME - entry.child("age").seconds()
    return Record(
        uid=name,
        group="",
        namespace=namespace,
        name=name,
        created_at=created,
        phase=Phase.QUEUED,
        phase_since=created,
        enqueue_seq=position,
        priority=entry.child("priority").integer(0, least=-LARGEST_PRIORITY, most=LARGEST_PRIORITY),
        priority_slope=entry.child("prioritySlope").number(),
        gang=_gang(entry, tuple(map(_pod_set, pods.elements()))),
        requirements=ClusterRequirements(entry.child("clusterSelector").selector(), namespace=namespace),
        blocked_since=None if blocked.value is None else SOME_TIME - blocked.seconds(),
    )


def _check_common(entry: Entry) -> None:
    """Checks the fields that pending and running gangs share and that only some gangs need."""
    queue = entry.child("queue")
    named = list(queue.elements()) if isinstance(queue.value, list) else [queue]
    if any((each.text() or DEFAULT_QUEUE) != DEFAULT_QUEUE for each in named) or len(named) > 1:
        queue.fail(NO_QUEUES)
    entry.child("namespace").text()
    entry.child("priority").integer(0, least=-LARGEST_PRIORITY, most=LARGEST_PRIORITY)
    entry.child("prioritySlope").number()
    entry.child("age").seconds()
    entry.child("blocked").seconds()
    entry.child("preempting").flag()
    entry.child("preemptions").integer(0)
    entry.child("clusterSelector").selector()


def _gang(entry: Entry, pod_sets: tuple[PodSet, ...]) -> Gang:
    """The gang of these pods and the declared demand; without pods in the document it is one pod of its demand."""
    demand = entry.child("demand")
    if entry.child("pods").value is None:
        if demand.value is None:
            entry.fail("demand or pods is required")
        one_pod = Resources({name: value for name, value in demand.amounts().items() if name != PODS})
        return Gang(demand.amounts(), 1, (PodSet(1, one_pod),))
    pods = sum(each.count for each in pod_sets)
    total = sum_of(each.total for each in pod_sets)
    return Gang(total if demand.value is None else demand.amounts(), pods, pod_sets)


def _pod_set(entry: Entry) -> PodSet:
    requests = entry.child("requests")
    if PODS in requests.amounts():
        requests.child(PODS).fail("cannot be requested: each pod counts as one")
    return PodSet(
        entry.child("count").integer(1, most=MOST_PODS_OF_A_SET),
        requests.amounts(),
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
