"""Scenario files: a document of clusters, running gangs and pending gangs, read into a `World`.

`docs/plan.md` has the format. The reader is strict: a document with an unknown key, a value of another type, a
duplicate name or a negative amount is refused with `ScenarioError`, which names the place. Keys that begin with `x-`
are ignored everywhere, and `source` and `expect` at the top. A null counts as an absent value.

Queues do not exist yet: a document that declares or names one is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NoReturn

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.api.selector import Selector, parse_selector
from dispatcher.api.spec_errors import SpecError, joined, one_line, quoted
from dispatcher.api.syntax import LONGEST_SUBDOMAIN
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.quantity import QuantityError, amount, in_words
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

DOCUMENT: Final = "document"
"""The place of an error about the whole document."""

MOST: Final = 100_000
"""Nodes of a document, and pods of its running gangs: each becomes a value of its own."""

MOST_PODS_OF_A_SET: Final = 2**31 - 1
LARGEST_PRIORITY: Final = 2**31 - 1
LONGEST_SPAN: Final = 10**10
"""Seconds; three centuries."""

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


class ScenarioError(ValueError):
    """A document that is no scenario; `place` is the path of the value, `problem` the error there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


def parse_scenario(document: object) -> World:
    """The world that a document describes, as a YAML or JSON parser returns it. Raises `ScenarioError`."""
    top = _Entry(document, "")
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


def _check_pods_are_on_nodes(world: World, entries: Sequence[_Entry]) -> None:
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


def _clusters(entries: _Entry) -> tuple[Cluster, ...]:
    clusters = tuple(map(_cluster, entries.unique_elements(set())))
    if not clusters:
        entries.fail("at least one cluster is required")
    if sum(len(cluster.nodes) for cluster in clusters) > MOST:
        entries.fail(f"there are more than {MOST} nodes")
    return clusters


def _cluster(entry: _Entry) -> Cluster:
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


def _nodes(entries: _Entry) -> Iterator[Node]:
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


def _taint(entry: _Entry) -> Taint:
    entry.check_keys(_TAINT)
    return Taint(
        entry.child("key").name(), entry.child("value").text(), entry.child("effect").one_of(_EFFECTS)
    )


# --- gangs ---------------------------------------------------------------------------------------------------


def _running(entries: _Entry, clusters: Collection[Cluster], names: set[str]) -> tuple[RunningGang, ...]:
    nodes = {cluster.name: {node.name for node in cluster.nodes} for cluster in clusters}
    gangs = tuple(_running_gang(entry, nodes) for entry in entries.unique_elements(names))
    if sum(each.pods.count for gang in gangs for each in gang.pods) > MOST:
        entries.fail(f"there are more than {MOST} pods")
    return gangs


def _running_gang(entry: _Entry, nodes: Mapping[str, Collection[str]]) -> RunningGang:
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


def _running_pods(entry: _Entry, cluster: str, names: Collection[str]) -> RunningPods:
    entry.check_keys((*_PODS, "nodes"))
    pods, nodes = _pod_set(entry), entry.child("nodes")
    for each in nodes.elements():
        if each.name() not in names:
            each.fail(f"cluster {cluster} has no node {quoted(each.value)}")
    found = tuple(each.name() for each in nodes.elements())
    if nodes.value is not None and len(found) != pods.count:
        nodes.fail(f"must name one node for each pod: {pods.count}, not {len(found)}")
    return RunningPods(pods, found)


def _pending(entries: _Entry, names: set[str]) -> tuple[Record, ...]:
    return tuple(
        _pending_gang(entry, position) for position, entry in enumerate(entries.unique_elements(names), 1)
    )


def _pending_gang(entry: _Entry, position: int) -> Record:
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


def _check_common(entry: _Entry) -> None:
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


def _gang(entry: _Entry, pod_sets: tuple[PodSet, ...]) -> Gang:
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


def _pod_set(entry: _Entry) -> PodSet:
    requests = entry.child("requests")
    if PODS in requests.amounts():
        requests.child(PODS).fail("cannot be requested: each pod counts as one")
    return PodSet(
        entry.child("count").integer(1, most=MOST_PODS_OF_A_SET),
        requests.amounts(),
        tuple(map(_toleration, entry.child("tolerations").elements())),
        NodeRequirements(tuple(sorted(entry.child("nodeSelector").labels().items()))),
    )


def _toleration(entry: _Entry) -> Toleration:
    entry.check_keys(_TOLERATION)
    entry.child("tolerationSeconds").number()
    key, operator = entry.child("key").text(), entry.child("operator").one_of(("Equal", "Exists"), "Equal")
    if not key and operator != "Exists":
        entry.child("operator").fail("must be Exists if there is no key")
    effect = entry.child("effect").one_of(("", *_EFFECTS), "")
    return Toleration(key, operator, entry.child("value").text(), effect)


# --- values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value of the document with its place. Each method reads one type, and fails at that place."""

    value: Any
    place: str

    def fail(self, problem: str) -> NoReturn:
        raise ScenarioError(self.place or DOCUMENT, one_line(problem))

    def child(self, key: str) -> _Entry:
        """The value of a key; absent if there is no such key."""
        return _Entry(self._mapping().get(key), joined(self.place, key).removeprefix("."))

    def children(self) -> list[_Entry]:
        """The values of all keys that count."""
        return [self.child(key) for key in self._mapping() if not key.startswith("x-")]

    def check_keys(self, known: Collection[str]) -> None:
        """Fails if the value is no object, or has an unknown key."""
        if not isinstance(self.value, Mapping):
            self.fail(f"must be an object, not {quoted(self.value)}")
        for each in self._mapping():
            if each not in known and not each.startswith("x-"):
                self.child(each).fail(f"is unknown here; known are {', '.join(known)}")

    def elements(self) -> Iterator[_Entry]:
        """The elements of a list; none if it is absent."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            self.fail(f"must be a list, not {quoted(self.value)}")
        for index, value in enumerate(self.value):
            yield _Entry(value, f"{self.place}[{index}]")

    def unique_elements(self, names: set[str]) -> Iterator[_Entry]:
        """The elements of a list of named objects; each name is added to `names` and may not be there before."""
        for entry in self.elements():
            if not isinstance(entry.value, Mapping):
                entry.fail(f"must be an object, not {quoted(entry.value)}")
            name = entry.child("name")
            if name.name() in names:
                name.fail(f"{quoted(name.value)} names another one, too")
            names.add(name.name())
            yield entry

    def name(self) -> str:
        """A text that is not empty."""
        if self.value is None:
            self.fail("is required")
        if not self.text() or len(self.text()) > LONGEST_SUBDOMAIN:
            self.fail(f"must have 1 to {LONGEST_SUBDOMAIN} characters")
        return self.text()

    def text(self) -> str:
        """A printable text; empty if absent."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str) or not self.value.isprintable():
            self.fail(f"must be a text, not {quoted(self.value)}")
        return self.value

    def one_of(self, allowed: Collection[str], default: str | None = None) -> str:
        """One of these texts; without a default it is required."""
        if self.value is None and default is not None:
            return default
        if self.value not in allowed:
            self.fail(f"must be one of {', '.join(filter(None, allowed))}, not {quoted(self.value)}")
        return self.text()

    def flag(self) -> bool:
        """A boolean; false if absent."""
        if self.value is not None and not isinstance(self.value, bool):
            self.fail(f"must be true or false, not {quoted(self.value)}")
        return bool(self.value)

    def integer(self, default: int, least: int = 0, most: int = MOST_PODS_OF_A_SET) -> int:
        """A whole number within these bounds."""
        if self.value is None:
            return default
        is_integer = isinstance(self.value, int) and not isinstance(self.value, bool)
        if not is_integer or not least <= self.value <= most:
            self.fail(f"must be a whole number from {least} to {most}, not {quoted(self.value)}")
        return int(self.value)

    def number(self) -> float:
        """A finite number; 0 if absent."""
        if self.value is None:
            return 0.0
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.fail(f"must be a number, not {quoted(self.value)}")
        if not -_LARGEST_NUMBER <= self.value <= _LARGEST_NUMBER:
            self.fail("must be a finite number")
        return float(self.value)

    def seconds(self) -> timedelta:
        """A duration in seconds; 0 if absent."""
        number = self.number()
        if not 0 <= number <= LONGEST_SPAN:
            self.fail(f"must be seconds from 0 to {LONGEST_SPAN}, not {quoted(self.value)}")
        return timedelta(seconds=number)

    def amounts(self) -> Resources:
        """Quantities by resource, in base units."""
        written = {key: value for key, value in self._mapping().items() if not key.startswith("x-")}
        return Resources({key: self._amount(key) for key, value in written.items() if value is not None})

    def labels(self) -> dict[str, str]:
        """Texts by name."""
        return {each: self.child(each).text() for each in self._mapping() if not each.startswith("x-")}

    def selector(self) -> Selector:
        """A label selector; it selects everything if absent."""
        try:
            return parse_selector(self.text(), self.place)
        except SpecError as error:
            self.fail(f"{error.problem}. {error.remedy}.")

    def _amount(self, resource: str) -> int:
        entry = self.child(resource)
        try:
            return amount(resource, entry.value)
        except QuantityError as error:
            entry.fail(str(error).removeprefix(f"{resource}: "))

    def _mapping(self) -> Mapping[str, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            self.fail(f"must be an object, not {quoted(self.value)}")
        for each in self.value:
            if not isinstance(each, str):
                self.fail(f"has the key {quoted(each)}, which is no text")
        return self.value


_LARGEST_NUMBER: Final = 1e300
