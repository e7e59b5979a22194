"""The exact answer whether the pods of a gang can be placed on nodes at once, by complete search: an oracle for tests.

The search is exponential, and meant for about 8 nodes and 10 pods. Its rules are those of kube-scheduler:

- A pod needs a node that it tolerates, whose labels it accepts, and that has its requests and one place for a pod free.
- `apart`: no two pods of the set are on nodes with the same value of the label. A node without the label is apart
  from every other, and from itself.
- `together`: all pods of the set are on nodes with one value of the label. A node without the label takes none of them.
- `spread`: no value of the label that has pods of the set has more than `most_skew` pods more than another value. The
  values are those of all nodes that have the labels of every spread of the set and that the policies let count. Pods of
  the earlier sets that a spread counts are there before.
- `away`: no pod of the set is on a node with the same value of the label as a pod of the other set.
- `near`: each pod of the set is on a node with the same value of the label as a pod of one of the other sets.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
and https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import PodSet, Spread
from dispatcher.core.model.resources import NOTHING, Resources

Placement = list[tuple[str, ...]]
"""For each pod set the nodes of its pods, in the order of the nodes."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A node with what is free on it; `places` is the number of pods that it takes yet, None without a limit."""

    node: Node
    free: Resources
    places: int | None = None


def free_node(node: Node, requests: Resources = NOTHING, pods: int = 0) -> FreeNode:
    """A node on which so many pods request so much in all."""
    places = node.allocatable["pods"] - pods if "pods" in node.allocatable else None
    return FreeNode(node, node.allocatable - requests, places)


def can_place(nodes: Sequence[FreeNode], pod_sets: Sequence[PodSet]) -> bool:
    """True if all pods of all sets can be placed at once."""
    return find_placement(nodes, pod_sets) is not None


def find_placement(nodes: Sequence[FreeNode], pod_sets: Sequence[PodSet]) -> Placement | None:
    """A placement of all pods of all sets at once; None if there is none."""
    return _Search(nodes, pod_sets).place_sets(0, tuple((each.free, each.places) for each in nodes))


def is_placement(nodes: Sequence[FreeNode], pod_sets: Sequence[PodSet], placement: Placement) -> bool:
    """True if each pod of each set has a node there, and all rules hold."""
    by_name = {each.node.name: each for each in nodes}
    free = {name: (each.free, each.places) for name, each in by_name.items()}
    if len(placement) != len(pod_sets):
        return False
    chosen_of = [[by_name[name].node for name in names] for names in placement]
    for index, (pod_set, names) in enumerate(zip(pod_sets, placement, strict=True)):
        chosen = chosen_of[index]
        if len(names) != pod_set.count or not all(_may_use(pod_set, node) for node in chosen):
            return False
        if not all(_is_together(label, chosen) for label in pod_set.together):
            return False
        if not all(_is_apart(label, chosen) for label in pod_set.apart):
            return False
        if not _is_spread(pod_set, chosen, [each.node for each in nodes], chosen_of[:index]):
            return False
        for name in names:
            if not _has_room(pod_set, free[name]):
                return False
            free[name] = _taken(pod_set, free[name])
    return all(_is_beside(index, pod_sets, chosen_of) for index in range(len(pod_sets)))


_Free = tuple[Resources, int | None]
_State = tuple[_Free, ...]


class _Search:
    """Places the pods one after another; pods of a set are equal, so they come in the order of the nodes."""

    def __init__(self, nodes: Sequence[FreeNode], pod_sets: Sequence[PodSet]) -> None:
        self._nodes = [each.node for each in nodes]
        self._pod_sets = pod_sets
        self._by_name = {node.name: node for node in self._nodes}
        self._matters = any(
            each.away or each.near or any(one.counts for one in each.spread) for each in pod_sets
        )
        self._failed: set[object] = set()

    def place_sets(
        self, index: int, state: _State, before: tuple[tuple[str, ...], ...] = ()
    ) -> Placement | None:
        """Places the sets from `index` on, after those `before`."""
        if index == len(self._pod_sets):
            nodes = [[self._by_name[name] for name in names] for names in before]
            are_beside = all(_is_beside(each, self._pod_sets, nodes) for each in range(index))
            return [] if are_beside else None
        known = index, state, before if self._matters else ()
        if known in self._failed:
            return None
        seen: set[object] = set()
        nodes_before = [[self._by_name[name] for name in names] for names in before]
        for names, after in self._place_set(self._pod_sets[index], state):
            chosen = [self._by_name[name] for name in names]
            if not _is_spread(self._pod_sets[index], chosen, self._nodes, nodes_before):
                continue
            choice = after, names if self._matters else ()
            if choice in seen:
                continue
            seen.add(choice)
            rest = self.place_sets(index + 1, after, (*before, names))
            if rest is not None:
                return [names, *rest]
        self._failed.add(known)
        return None

    def _place_set(self, pod_set: PodSet, state: _State) -> Iterator[tuple[tuple[str, ...], _State]]:
        """Every placement of one set, with the state after it."""
        usable = [index for index, node in enumerate(self._nodes) if _may_use(pod_set, node)]
        if not pod_set.together:
            yield from self._place_pods(pod_set, usable, (), state)
            return
        groups: dict[tuple[str, ...], list[int]] = {}
        for index in usable:
            labels = self._nodes[index].labels
            if all(label in labels for label in pod_set.together):
                groups.setdefault(tuple(labels[label] for label in pod_set.together), []).append(index)
        if not pod_set.count:
            yield (), state
        for group in groups.values():
            if pod_set.count:
                yield from self._place_pods(pod_set, group, (), state)

    def _place_pods(
        self, pod_set: PodSet, usable: Sequence[int], chosen: tuple[int, ...], state: _State
    ) -> Iterator[tuple[tuple[str, ...], _State]]:
        if len(chosen) == pod_set.count:
            yield tuple(self._nodes[index].name for index in chosen), state
            return
        for index in usable:
            if (chosen and index < chosen[-1]) or not _has_room(pod_set, state[index]):
                continue
            nodes = [self._nodes[each] for each in (*chosen, index)]
            if all(_is_apart(label, nodes) for label in pod_set.apart):
                after = (*state[:index], _taken(pod_set, state[index]), *state[index + 1 :])
                yield from self._place_pods(pod_set, usable, (*chosen, index), after)


def _may_use(pod_set: PodSet, node: Node) -> bool:
    return node.usable and pod_set.tolerates(node.taints) and pod_set.nodes.matches(node.name, node.labels)


def _has_room(pod_set: PodSet, free: _Free) -> bool:
    amounts, places = free
    return (places is None or places > 0) and pod_set.requests.fits_in(amounts)


def _taken(pod_set: PodSet, free: _Free) -> _Free:
    amounts, places = free
    return amounts - pod_set.requests, None if places is None else places - 1


def _is_apart(label: str, nodes: Sequence[Node]) -> bool:
    values = [node.labels[label] for node in nodes if label in node.labels]
    return len(values) == len(set(values))


def _is_together(label: str, nodes: Sequence[Node]) -> bool:
    return len({node.labels.get(label) for node in nodes}) <= 1 and all(
        label in node.labels for node in nodes
    )


def _is_beside(index: int, pod_sets: Sequence[PodSet], nodes: Sequence[Sequence[Node]]) -> bool:
    for label, distance in pod_sets[index].away:
        own = {node.labels[label] for node in nodes[index] if label in node.labels}
        if own & {node.labels.get(label) for node in nodes[index + distance]}:
            return False
    for label, distances in pod_sets[index].near:
        there = {node.labels.get(label) for distance in distances for node in nodes[index + distance]}
        if any(label not in node.labels or node.labels[label] not in there for node in nodes[index]):
            return False
    return True


def _is_spread(
    pod_set: PodSet, chosen: Sequence[Node], nodes: Sequence[Node], before: Sequence[Sequence[Node]]
) -> bool:
    """True if all spreads of a set hold; `before` are the nodes of the earlier sets, the last one directly before."""
    return all(
        _holds(
            spread, pod_set, chosen, nodes, [node for one in spread.counts if one < 0 for node in before[one]]
        )
        for spread in pod_set.spread
    )


def _holds(
    spread: Spread, pod_set: PodSet, chosen: Sequence[Node], nodes: Sequence[Node], there: Sequence[Node]
) -> bool:
    labels = [each.topology for each in pod_set.spread]
    counted = [node for node in nodes if all(label in node.labels for label in labels)]
    if not all(node in counted for node in chosen):
        return False
    if not spread.ignores_requirements:
        counted = [node for node in counted if pod_set.nodes.matches(node.name, node.labels)]
    if spread.honors_taints:
        counted = [node for node in counted if node.usable and pod_set.tolerates(node.taints)]
    pods = dict.fromkeys((node.labels[spread.topology] for node in counted), 0)
    for node in (*chosen, *(each for each in there if each in counted)):
        pods[node.labels[spread.topology]] += 1
    fewest = 0 if len(pods) < spread.least_domains else min(pods.values(), default=0)
    most = max((pods[node.labels[spread.topology]] for node in chosen), default=0)
    return most - fewest <= spread.most_skew
