"""Kubernetes objects as the input of a plan: DispatchQueues, Nodes and Namespaces as they are, and gangs.

Nodes and queues are read as the parts of a scenario file, with its checks and bounds. AppWrappers, and those that the
other objects are wrapped in (`core.intake.wrapping`), become the records that intake would make of them. The nodes
are those of one cluster, on which nothing runs; or the objects change a scenario, or with `--live` the leader's last
snapshot: an object replaces the one of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from dispatcher.api.names import HUB_CLUSTER, PREFIX
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import Objects, refused
from dispatcher.cli.files.submission import check_any, wrapping_of
from dispatcher.cli.query import note
from dispatcher.core.intake.proposal import propose
from dispatcher.core.intake.wrapping import Beside, Wrapped
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.core.scheduling.fit.cluster_filters import is_unreachable
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.errors import InvalidFile
from dispatcher.text import mapping_of, mappings_of, name_of, one_line

if TYPE_CHECKING:
    from dispatcher.store.snapshot_reader import Snapshot

Json = dict[str, Any]

DEFAULT_NAMESPACE: Final = "default"
NO_NODE: Final = (
    "has no Node to plan on: add Nodes (kubectl get nodes -o yaml) or a scenario, "
    "or plan on the clusters with --live"
)


class Manifests(NamedTuple):
    """The objects of files by what they are for a plan; `nodes` and `queues` in the terms of a scenario file.

    `gangs` are the AppWrappers, each with its file.
    """

    nodes: list[Json]
    queues: list[Json]
    namespaces: dict[str, Json]
    gangs: list[tuple[str, Wrapped]]


def read_manifests(given: Sequence[Objects]) -> Manifests:
    """The objects of files; raises `InvalidFile` for an object that cannot be wrapped."""
    found, beside = Manifests([], [], {}, []), list[Beside]()
    for file in given:
        for number, raw in enumerate(file.objects, start=1):
            kind = name_of(raw.get("kind"))
            add = _PARTS.get((name_of(raw.get("apiVersion")).partition("/")[0], kind))
            if add is not None:
                add(found, raw, f"{file.name}: object {number} ({kind})")
        wrapping = wrapping_of(file)
        found.gangs.extend((file.name, each) for each in wrapping.appwrappers)
        beside.extend(each for each in wrapping.beside if each.kind not in _KINDS_OF_PARTS)
    if given and not any(found):
        check_any(given, found.gangs)
    for other in beside:
        note(f"{other} {other.why}: nothing is planned for it.")
    return found


def _add_node(found: Manifests, raw: Json, title: str) -> None:
    found.nodes.extend(_node(title, raw))


def _add_namespace(found: Manifests, raw: Json, _title: str) -> None:
    metadata = mapping_of(raw.get("metadata"))
    found.namespaces[name_of(metadata.get("name"))] = dict(mapping_of(metadata.get("labels")))


def _add_queue(found: Manifests, raw: Json, _title: str) -> None:
    found.queues.append({**mapping_of(raw.get("spec")), "name": mapping_of(raw.get("metadata")).get("name")})


_PARTS: Final[Mapping[tuple[str, str], Callable[[Manifests, Json, str], None]]] = {
    ("v1", "Node"): _add_node,
    ("v1", "Namespace"): _add_namespace,
    (PREFIX, "DispatchQueue"): _add_queue,
}
"""What adds an object that is no gang, by its group, or the version of the core, and its kind."""
_KINDS_OF_PARTS: Final = frozenset(kind for _, kind in _PARTS)


def _node(title: str, raw: Json) -> Iterator[Json]:
    """The node of a scenario; none, with a note, for one that takes no pods. Ready unless its status says otherwise."""
    metadata, spec, status = (mapping_of(raw.get(each)) for each in ("metadata", "spec", "status"))
    ready = [each for each in mappings_of(status.get("conditions")) if each.get("type") == "Ready"]
    if spec.get("unschedulable") or any(each.get("status") != "True" for each in ready):
        why = "is cordoned" if spec.get("unschedulable") else "is not ready"
        note(f"Node/{name_of(metadata.get('name'))} {why}: it takes no pods, and is left out.")
        return
    allocatable = status.get("allocatable") or status.get("capacity")
    if not allocatable:
        raise InvalidFile(one_line(f"{title}: status.allocatable: is missing: it says how much the node has"))
    taints = [
        {key: each[key] for key in ("key", "value", "effect") if key in each}
        for each in mappings_of(spec.get("taints"))
    ]
    labels = mapping_of(metadata.get("labels"))
    yield {"name": metadata.get("name"), "allocatable": allocatable, "labels": labels, "taints": taints}


def world_of(file: str, found: Manifests) -> World:
    """The world of these objects alone: one cluster, on which nothing runs. Raises `SpecError`, `InvalidFile`."""
    if not found.nodes:
        raise refused(file, NO_NODE)
    world = _parts(found, HUB_CLUSTER)
    proposals = _proposals(found, _rules(SchedulingRules(), world), world)
    return world.with_pending([record for _, record in proposals])


def with_manifests(world: World, found: Manifests, cluster: str) -> World:
    """The world of a scenario, changed by these objects, as `live_world_of` changes a snapshot.

    A scenario knows gangs by name, so no two may have one.
    """
    rules = SchedulingRules(queues=world.queues or (), namespaces=world.namespaces)
    changed, proposals = _changed(world, found, {}, rules, cluster)
    taken = {each.name for each in world.pending} | {each.name for each in world.running}
    for file, record in proposals:
        if record.name in taken:
            raise refused(file, f"another gang is named {record.name}")
        taken.add(record.name)
    return changed.with_pending([record for _, record in proposals])


def live_world_of(found: Manifests, snapshot: Snapshot, cluster: str) -> World:
    """The leader's last snapshot, changed by these objects; nodes are those of `cluster`, or of the only one.

    Raises `SpecError`, `InvalidFile`.
    """
    world, proposals = _changed(snapshot.world, found, snapshot.records, snapshot.rules, cluster)
    keys = {record.key for _, record in proposals}
    replaced = {each.uid for each in world.pending if each.key in keys}
    return world.without_pending(replaced).with_pending([record for _, record in proposals])


def _changed(
    world: World,
    found: Manifests,
    records: Mapping[str, Record],
    rules: SchedulingRules,
    cluster: str,
) -> tuple[World, list[tuple[str, Record]]]:
    """The world with these nodes, queues and namespaces, and the gangs that would be queued then."""
    names = [each.name for each in world.clusters]
    if cluster and cluster not in names:
        raise refused("--cluster", f"there is no cluster {cluster}: the clusters are {', '.join(names)}")
    if found.nodes and not cluster and len(names) != 1:
        raise InvalidFile(one_line(f"say with --cluster which cluster gets the Nodes: {', '.join(names)}"))
    if found.nodes or found.queues or found.namespaces:
        parts = _parts(found, cluster or names[0])
        world = _with_nodes(world, parts)
        if parts.queues:
            world = _with_queues(world, parts.queues, records)
        world = replace(world, namespaces={**world.namespaces, **parts.namespaces})
    return world, _proposals(found, _rules(rules, world), world)


def _parts(found: Manifests, cluster: str) -> World:
    """Nodes and queues as a scenario has them: read strictly, with the place of a mistake."""
    clusters = [{"name": cluster, "nodes": found.nodes}]
    return parse_scenario({"clusters": clusters, "queues": found.queues, "namespaces": found.namespaces})


def _rules(rules: SchedulingRules, world: World) -> SchedulingRules:
    """The rules by which AppWrappers find their queues in that world."""
    queues = world.queues or ()
    names = None if rules.names is None else rules.names | {each.name for each in queues}
    return replace(rules, queues=queues, names=names, namespaces={**rules.namespaces, **world.namespaces})


def _proposals(found: Manifests, rules: SchedulingRules, world: World) -> list[tuple[str, Record]]:
    """The gangs of the files, queued after all others, each with its file. Raises `InvalidFile`."""
    records = []
    for number, (file, wrapped) in enumerate(found.gangs):
        try:
            record = propose(wrapped.raw, DEFAULT_NAMESPACE, rules, world.now, number).record
        except SpecError as error:
            raise InvalidFile(one_line(f"{file}: {wrapped.place}: {error}")) from error
        if record.phase is Phase.QUEUED:
            records.append((file, record))
        else:
            note(f"{record.key} is suspended: it would not be queued before it is resumed.")
    return records


def _with_nodes(world: World, parts: World) -> World:
    """The world with the nodes of the only cluster of `parts`, in place of those of their names."""
    [given] = parts.clusters
    names = {each.name for each in given.nodes}
    clusters = tuple(
        replace(each, nodes=tuple(node for node in each.nodes if node.name not in names))
        if each.name == given.name
        else each
        for each in world.clusters
    )
    return replace(world, clusters=clusters).with_nodes(given.name, given.nodes)


def _with_queues(world: World, given: tuple[Queue, ...], records: Mapping[str, Record]) -> World:
    """The world with these queues, in place of those of their names.

    Where no queue was declared, the running gangs were charged in none; now they are.
    """
    by_name = {each.name: each for each in given}
    kept = [by_name.pop(each.name, each) for each in world.queues or ()]
    problems = {
        name: why for name, why in world.problems.items() if not any(each.name == name for each in given)
    }
    unreachable = {each.name for each in world.clusters if is_unreachable(each.closed)}

    def charged(gang: RunningGang) -> RunningGang:
        record = records.get(gang.name)
        if gang.active is not None or record is None:
            return gang
        return replace(gang, active=active_gang(record, is_unreachable=gang.cluster in unreachable))

    running = tuple(map(charged, world.running))
    return replace(world, queues=(*kept, *by_name.values()), problems=problems, running=running)
