"""The snapshot of a cluster as a document: `core.model.codec` writes it in lines, nodes and pods a part in each.

The first line is about the cluster as a whole, so a document of another version is known before anything else of it is
read. A part takes a fraction of a millisecond, so the event loop goes on while a thread writes or reads a large one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model import codec
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.incremental import in_parts
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, OwnedPods
from dispatcher.errors import StoreError

VERSION: Final = 1
_LEVEL: Final = 1
"""Of compression: a tenth of the size at a quarter of the time of the usual level."""
_AT_ONCE: Final = 100


class _Version(Struct, frozen=True):
    """The version alone, whatever else the first line of another version says."""

    version: Any


class _Header(Struct, frozen=True):
    """The facts without nodes and pods. The keys of `usage` and `kind_hints` are pairs, which JSON does not have.

    `requests` and `sorts` are those of the pods, each once: few differ among many pods.
    """

    version: int
    facts: ClusterFacts
    usage: tuple[tuple[str, str, Fraction], ...]
    kind_hints: tuple[tuple[str, str, str], ...]
    requests: tuple[Resources, ...]
    sorts: tuple[PodSort | None, ...]


class _Pods(NamedTuple):
    """Equal pods on one node; `requests` and `sort` are positions in the header."""

    owner: str
    node: str
    requests: int
    pods: int
    never_ends: bool
    sort: int


class _Part(Struct, frozen=True, omit_defaults=True):
    """Some of the nodes, or of the pods, in their order."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[_Pods, ...] = ()


def document_of(facts: ClusterFacts) -> bytes:
    """The document of the facts of a cluster; takes some milliseconds for each MiB, in which other threads run."""
    requests: dict[Resources, int] = {}
    sorts: dict[PodSort | None, int] = {}
    rows = (
        _Pods(
            owner,
            place.node,
            requests.setdefault(place.requests, len(requests)),
            place.pods,
            never_ends,
            sorts.setdefault(place.sort, len(sorts)),
        )
        for owner, place, never_ends in facts.pods
    )
    nodes = (_Part(nodes=tuple(part)) for part in in_parts(facts.cluster.nodes, _AT_ONCE))
    pods = (_Part(pods=tuple(part)) for part in in_parts(rows, _AT_ONCE))
    parts = list(map(codec.dump, (*nodes, *pods)))
    header = codec.dump(_header(facts, tuple(requests), tuple(sorts)))
    return zlib.compress(b"\n".join((header, *parts)), _LEVEL)


def _header(
    facts: ClusterFacts, requests: tuple[Resources, ...], sorts: tuple[PodSort | None, ...]
) -> _Header:
    cluster, rules = facts.cluster, facts.rules
    return _Header(
        VERSION,
        replace(
            facts,
            cluster=replace(cluster, nodes=(), kind_hints={}),
            pods=(),
            rules=replace(rules, usage={}),
            taken_at=None,
        ),
        tuple((queue, namespace, hours) for (queue, namespace), hours in rules.usage.items()),
        tuple((version, kind, hint) for (version, kind), hint in cluster.kind_hints.items()),
        requests,
        sorts,
    )


def facts_of(document: bytes, taken_at: datetime) -> ClusterFacts:
    """The facts of a document; raises `StoreError` for a document of another version or a damaged one."""
    try:
        first, *others = zlib.decompress(document).split(b"\n")
        version = codec.load(first, _Version).version
        if version != VERSION:
            raise StoreError(
                f"the snapshot is of version {version}, this program reads {VERSION}: use the same release"
            )
        header = codec.load(first, _Header)
        parts = [codec.load(each, _Part) for each in others]
        pods = tuple(_pods(header, parts))
    except (zlib.error, ValueError, LookupError) as error:
        raise StoreError(f"the snapshot cannot be read: {type(error).__name__}") from error
    facts = header.facts
    hints = {(version, kind): hint for version, kind, hint in header.kind_hints}
    nodes = tuple(node for part in parts for node in part.nodes)
    usage = {(queue, namespace): hours for queue, namespace, hours in header.usage}
    return replace(
        facts,
        cluster=replace(facts.cluster, nodes=nodes, kind_hints=hints),
        pods=pods,
        rules=replace(facts.rules, usage=usage),
        taken_at=taken_at,
    )


def _pods(header: _Header, parts: Iterable[_Part]) -> Iterator[OwnedPods]:
    sorts = tuple(each and each.shared() for each in header.sorts)
    for part in parts:
        for owner, node, requests, count, never_ends, sort in part.pods:
            yield OwnedPods(owner, Place(node, header.requests[requests], count, sorts[sort]), never_ends)
