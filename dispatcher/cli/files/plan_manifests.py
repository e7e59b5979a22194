"""Kubernetes objects as the input of a plan: DispatchQueues, Nodes and Namespaces as they are, and gangs.

Nodes and queues are read as the parts of a scenario file, with its checks and bounds. AppWrappers, and those that the
other objects are wrapped in (`core.intake.wrapping`), become the records that intake would make of them. The nodes
are those of one cluster, on which nothing runs; or the objects change a scenario, or the leader's last snapshot
(`plan_live`): an object replaces the one of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_NAMESPACE, HUB_CLUSTER, PREFIX
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import Objects, refused
from dispatcher.cli.files.submission import check_any, wrapping_of
from dispatcher.cli.query import note
from dispatcher.core.intake.proposal import Proposal, propose
from dispatcher.core.intake.wrapping import Beside, Wrapped
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.records.record import Phase
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules, with_queues_of
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.errors import InvalidFile
from dispatcher.text import mapping_of, mappings_of, name_of, one_line

Json = dict[str, Any]

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


class Proposed(NamedTuple):
    """An AppWrapper of a file as intake would read it; `raw` is the object."""

    file: str
    raw: Mapping[str, Any]
    proposal: Proposal


def read_manifests(
    given: Sequence[Objects], kinds: Kinds = BUILT_IN, *, are_kinds_of_leader: bool = False
) -> Manifests:
    """The objects of files; raises `InvalidFile` for an object that cannot be wrapped."""
    found, beside = Manifests([], [], {}, []), list[Beside]()
    for file in given:
        for number, raw in enumerate(file.objects, start=1):
            kind = name_of(raw.get("kind"))
            add = _PARTS.get((name_of(raw.get("apiVersion")).partition("/")[0], kind))
            if add is not None:
                add(found, raw, f"{file.name}: object {number} ({kind})")
        wrapping = wrapping_of(file, kinds=kinds, are_kinds_of_leader=are_kinds_of_leader)
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
"""The functions that add nodes, queues and namespaces, by group and kind; the core group stands as its version v1."""
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


def world_of(file: str, found: Manifests, kinds: Kinds = BUILT_IN) -> World:
    """The world of these objects alone: one cluster, on which nothing runs. Raises `SpecError`, `InvalidFile`."""
    if not found.nodes:
        raise refused(file, NO_NODE)
    world = _parts(found, HUB_CLUSTER)
    proposals = queued(proposals_of(found, _rules_of(world, kinds), world.now))
    return world.with_pending(each.proposal.record for each in proposals)


def with_manifests(world: World, found: Manifests, cluster: str, kinds: Kinds) -> World:
    """The world of a scenario, changed by these objects.

    A scenario knows gangs by name, so no two may have one.
    """
    changed, rules = changed_by(found, world, _rules_of(world, kinds), cluster)
    proposals = queued(proposals_of(found, rules, world.now))
    taken = {each.name for each in world.pending} | {each.name for each in world.running}
    for file, _, proposal in proposals:
        name = proposal.record.name
        if name in taken:
            raise refused(file, f"another gang is named {name}")
        taken.add(name)
    return changed.with_pending(each.proposal.record for each in proposals)


def _rules_of(world: World, kinds: Kinds) -> SchedulingRules:
    """The rules by which AppWrappers find their queues in the world of a scenario."""
    return SchedulingRules(
        policy=world.policy,
        starvation_bound=world.starvation_bound,
        queues=world.queues or (),
        namespaces=world.namespaces,
        access=world.access,
        kinds=kinds,
    )


def changed_by(
    found: Manifests, world: World, rules: SchedulingRules, cluster: str
) -> tuple[World, SchedulingRules]:
    """The world and its rules with these nodes, queues and namespaces; nodes are those of `cluster`, or the only one.

    Raises `SpecError`, `InvalidFile`.
    """
    names = [each.name for each in world.clusters]
    if cluster and cluster not in names:
        raise refused("--cluster", f"there is no cluster {cluster}: the clusters are {', '.join(names)}")
    if found.nodes and not cluster and len(names) != 1:
        raise InvalidFile(one_line(f"say with --cluster which cluster gets the Nodes: {', '.join(names)}"))
    if not (found.nodes or found.queues or found.namespaces):
        return world, rules
    parts = _parts(found, cluster or names[0])
    rules = replace(rules, namespaces={**rules.namespaces, **parts.namespaces})
    if parts.queues:
        rules = rules.with_declared(parts.queues)
        world = with_queues_of(world, rules)
    namespaces = {**world.namespaces, **parts.namespaces}
    return replace(_with_nodes(world, parts), namespaces=namespaces), rules


def _parts(found: Manifests, cluster: str) -> World:
    """Nodes and queues as a scenario has them: read strictly, with the place of a mistake."""
    clusters = [{"name": cluster, "nodes": found.nodes}]
    return parse_scenario({"clusters": clusters, "queues": found.queues, "namespaces": found.namespaces})


def proposals_of(found: Manifests, rules: SchedulingRules, now: datetime) -> list[Proposed]:
    """The AppWrappers of the files, behind all that were submitted. Raises `InvalidFile`, also for two of one name."""
    proposals: list[Proposed] = []
    seen = set[tuple[str, str]]()
    for number, (file, wrapped) in enumerate(found.gangs):
        try:
            proposal = propose(wrapped.raw, DEFAULT_NAMESPACE, rules, now, number)
        except SpecError as error:
            raise InvalidFile(one_line(f"{file}: {wrapped.place}: {error}")) from error
        named = proposal.record.group, proposal.record.key
        if named in seen and not proposal.record.name.endswith("*"):
            raise refused(file, f"another AppWrapper is named {proposal.record.key}")
        seen.add(named)
        proposals.append(Proposed(file, wrapped.raw, proposal))
    return proposals


def queued(proposals: Iterable[Proposed]) -> list[Proposed]:
    """The new AppWrappers that would be queued; a note says which ones are suspended."""
    found = []
    for each in proposals:
        record = each.proposal.record
        if record.phase is Phase.QUEUED:
            found.append(each)
        else:
            note(f"{record.key} is suspended: it would not be queued before it is resumed.")
    return found


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
