"""The GPU map as a value: the holders of each node's GPUs, and how many pods the free GPUs take.

Nodes and pods are counted where `kubectl aw nodes` counts them. Names may be a tenant's. Values are plain text; the
template escapes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Final

from msgspec import Struct

from dispatcher.cli.people.node_report import SeenNode
from dispatcher.cli.screens.output import UNKNOWN
from dispatcher.core.model.resources import gpus
from dispatcher.text import counted
from dispatcher.web.cells import CLASSES, FREE, Run, colours_of, css_of, runs
from dispatcher.web.node_reading import SeenNodes

MOST_NODES: Final = 500
"""Nodes that one page has, some 500 bytes each; a search finds the others."""
MOST_GANGS: Final = 60
"""Gangs that the legend names."""
POD_SIZES: Final = (1, 2, 4, 8)
"""GPUs of the pods whose largest gang is shown."""
_READY: Final = "Ready"
_KEEP_OFF: Final = (":NoSchedule", ":NoExecute")
"""Ends of taints that keep pods without a toleration off a node."""


class NodeRow(Struct, frozen=True):
    """A node: its cells, and the same in words."""

    name: str
    state: str
    is_hatched: bool
    gpus: int
    free: str
    holders: str
    taints: str
    cells: tuple[Run, ...]
    width: int


class ClusterMap(Struct, frozen=True):
    """The nodes of a cluster that are shown, those with most free GPUs first; `of_all` counts the found ones."""

    name: str
    nodes: tuple[NodeRow, ...]
    of_all: int


class Fits(Struct, frozen=True):
    """The pods that the free GPUs of a cluster take, for each of `POD_SIZES`."""

    cluster: str
    pods: tuple[str, ...]


class GangColour(Struct, frozen=True):
    """A gang of the legend with all its GPUs; `namespace` and `name` are empty if no page shows the AppWrapper."""

    key: str
    gpus: int
    css: str
    namespace: str = ""
    name: str = ""


class MapPage(Struct, frozen=True):
    """The GPU map of the nodes that the search finds. `fits` and colours are of all nodes, whatever is searched."""

    search: str
    fits: tuple[Fits, ...]
    not_counted: str
    clusters: tuple[ClusterMap, ...]
    gangs: tuple[GangColour, ...]
    of_all_gangs: int
    seen: int
    with_gpus: int
    found: int
    sentences: tuple[str, ...]

    @property
    def shown(self) -> int:
        """The nodes that are drawn."""
        return sum(len(each.nodes) for each in self.clusters)


def map_page(seen: SeenNodes, namespace: str, search: str) -> MapPage:
    """The map; `search` is found in nodes, states, clusters and gangs.

    Gangs are links to the pages of their AppWrappers, which are those of all namespaces if `namespace` is empty.

    Costs O(n log n) for n nodes, some 0.2 s for 5,000, of which `MOST_NODES` are rendered.
    """
    nodes = [each for each in seen.nodes if gpus(each.allocatable) or each.gpus_by_holder()]
    held = _gpus_by_gang(nodes)
    colours = colours_of(held)
    found = [each for each in nodes if _is_found(each, search)]
    clusters = _by_cluster(sorted(found, key=_by_hole))
    legend = sorted(_gpus_by_gang(found), key=lambda key: (-held[key], key))
    return MapPage(
        search,
        tuple(_fits(name, each) for name, each in _by_cluster(nodes).items()),
        _not_counted(nodes),
        tuple(
            ClusterMap(name, tuple(_row(each, colours) for each in shown), len(clusters[name]))
            for name, shown in _first(clusters).items()
        ),
        tuple(_legend(key, held[key], colours, namespace) for key in legend[:MOST_GANGS]),
        len(legend),
        len(seen.nodes),
        len(nodes),
        len(found),
        seen.sentences,
    )


def pods_that_fit(nodes: Iterable[SeenNode], size: int) -> int | None:
    """The pods of `size` GPUs that fit on the free GPUs of nodes that take pods; None if these are unknown on one.

    Nothing but GPUs is counted. Cordoned nodes, NotReady ones and those with a taint that keeps pods off take none.
    """
    free = [each.free_gpus for each in nodes if _takes_pods(each)]
    known = [each for each in free if each is not None]
    return sum(max(each, 0) // size for each in known) if len(known) == len(free) else None


def _gpus_by_gang(nodes: Iterable[SeenNode]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        for key, count in node.gpus_by_holder():
            if key not in CLASSES:
                found[key] = found.get(key, 0) + count
    return found


def _by_cluster(nodes: Iterable[SeenNode]) -> dict[str, list[SeenNode]]:
    found: dict[str, list[SeenNode]] = {}
    for node in nodes:
        found.setdefault(node.cluster, []).append(node)
    return {name: found[name] for name in sorted(found)}


def _by_hole(node: SeenNode) -> tuple[int, str]:
    return -node.free_gpus if node.free_gpus is not None else 1, node.name


def _first(clusters: Mapping[str, Sequence[SeenNode]]) -> dict[str, list[SeenNode]]:
    """At most `MOST_NODES` nodes, one of each cluster in turn, so that a large cluster hides no other."""
    turns = (node for turn in zip_longest(*clusters.values()) for node in turn if node is not None)
    return _by_cluster(islice(turns, MOST_NODES))


def _is_found(node: SeenNode, search: str) -> bool:
    words = (node.name, node.cluster, node.state, *(key for key, _ in node.gpus_by_holder()))
    return not search or any(search.casefold() in word.casefold() for word in words)


def _takes_pods(node: SeenNode) -> bool:
    return node.state == _READY and not _is_tainted(node)


def _is_tainted(node: SeenNode) -> bool:
    return any(taint.endswith(_KEEP_OFF) for taint in node.taints)


def _fits(cluster: str, nodes: Sequence[SeenNode]) -> Fits:
    fitting = (pods_that_fit(nodes, size) for size in POD_SIZES)
    return Fits(cluster, tuple(UNKNOWN if each is None else str(each) for each in fitting))


def _not_counted(nodes: Iterable[SeenNode]) -> str:
    """The nodes that no pod is counted on, such as `2 nodes that are cordoned or not ready`; empty without any."""
    off = [each for each in nodes if not _takes_pods(each)]
    tainted = [each for each in off if each.state == _READY]
    free = sum(max(each.free_gpus or 0, 0) for each in tainted)
    parts = (
        (len(off) - len(tainted), "cordoned or not ready"),
        (len(tainted), f"tainted NoSchedule or NoExecute, with {counted(free, 'free GPU')}"),
    )
    return "; ".join(f"{counted(number, 'node')} {words}" for number, words in parts if number)


def _row(node: SeenNode, colours: Mapping[str, int]) -> NodeRow:
    # The largest gang first, and the free ones last.
    holders = [*node.gpus_by_holder(), (FREE, max(node.free_gpus or 0, 0))]
    cells = tuple(runs(f"{node.name}, {node.state}", holders, colours))
    return NodeRow(
        node.name,
        node.state,
        node.state != _READY,
        gpus(node.allocatable),
        UNKNOWN if node.free_gpus is None else str(node.free_gpus),
        ", ".join(node.holders()),
        ", ".join(node.taints),
        cells,
        sum(each.width for each in cells),
    )


def _legend(key: str, count: int, colours: Mapping[str, int], only: str) -> GangColour:
    namespace, _, name = key.partition("/")
    css = css_of(key, colours)
    return GangColour(key, count, css, *((namespace, name) if only in {"", namespace} else ()))
