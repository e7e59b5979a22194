"""A bounded search over all placements, for a gang that no order places in a small cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.placement.node_room import Room
from dispatcher.core.scheduling.placement.node_traits import Amounts, Traits
from dispatcher.core.scheduling.placement.placement_bounds import Work
from dispatcher.core.scheduling.placement.placement_orders import allowed, orders
from dispatcher.core.scheduling.placement.spread import FewDomains
from dispatcher.core.scheduling.placement.wanted_pods import Wanted

MOST_SEARCHED_NODES: Final = 24
MOST_SEARCHED_PODS: Final = 64
"""Nodes that some pod set could use, and pods, beyond which there is no search: orders then find placements."""


class _Choice(Struct):
    """How many pods of a pod set one node takes, and the state before: it is not tried twice."""

    at: int
    node: int
    left: int
    pods: int
    state: object


class _Search(Struct):
    """A search over all placements of the pod sets on few nodes, in plain numbers; it ends after `steps` steps.

    Each step chooses how many pods of one pod set go to one node. The choices so far are a list and not calls within
    each other, because there are as many as pod sets times nodes.
    """

    wanted: Sequence[Wanted]
    requests: list[list[tuple[int, int]]]
    may_use: list[list[bool]]
    domains: list[list[list[int]]]
    spread: list[list[FewDomains]]
    away: list[list[tuple[int, list[int]]]]
    near: list[list[tuple[list[int], list[int], list[bool]]]]
    free: list[list[int]]
    slots: list[int]
    taken: list[list[int]]
    failed: set[object]
    steps: int

    def run(self) -> bool:
        """True if all pod sets have a placement; else False, and `steps` is negative if the search ended before."""
        choices: list[_Choice] = []
        at, node, left = 0, 0, self.wanted[0].count
        while True:
            while left == 0 and self._is_spread(at) and at + 1 < len(self.wanted):
                at, node, left = at + 1, 0, self.wanted[at + 1].count
            if left == 0 and self._is_placed(at):
                return True
            choice = self._first_choice(at, node, left)
            if choice is not None:
                choices.append(choice)
                self._take(at, node, choice.pods)
            elif self.steps < 0 or not self._choose_next(choices):
                return False
            last = choices[-1]
            at, node, left = last.at, last.node + 1, last.left - last.pods

    def _is_placed(self, at: int) -> bool:
        """True if all pods of the sets up to `at`, which is the last, are where their rules allow them."""
        return at + 1 == len(self.wanted) and self._is_spread(at) and all(map(self._is_near, range(at + 1)))

    def _first_choice(self, at: int, node: int, left: int) -> _Choice | None:
        """The most pods that a node takes; None if no choice is left, the same state failed, or the steps are over."""
        if left == 0 or node == len(self.slots):
            return None
        state = at, node, left, tuple(map(tuple, self.free)), tuple(self.slots), self._used_domains(at)
        if state in self.failed:
            return None
        self.steps -= 1
        return None if self.steps < 0 else _Choice(at, node, left, min(left, self._most(at, node)), state)

    def _choose_next(self, choices: list[_Choice]) -> bool:
        """Take one pod less by the last choice that has one; False if no choice is left."""
        while choices:
            last = choices[-1]
            if last.pods:
                self._take(last.at, last.node, -1)
                last.pods -= 1
                return True
            self.failed.add(last.state)
            choices.pop()
        return False

    def _most(self, at: int, node: int) -> int:
        if not self.may_use[at][node]:
            return 0
        most = self.slots[node]
        for row, amount in self.requests[at]:
            most = min(most, self.free[node][row] // amount)
        for domains in self.domains[at]:
            if domains[node] >= 0:
                others = (
                    pods for pods, one in zip(self.taken[at], domains, strict=True) if one == domains[node]
                )
                most = min(most, 1 - sum(others))
        for other, domains in self.away[at]:
            if domains[node] >= 0 and any(
                pods and one == domains[node] for pods, one in zip(self.taken[other], domains, strict=True)
            ):
                return 0
        for rule in self.near[at]:
            if all(other < at for other in rule[0]) and not self._is_shared(node, *rule):
                return 0
        for spread in self.spread[at]:
            most = min(most, spread.left(node, self.taken[at]))
        return max(most, 0)

    def _is_near(self, at: int) -> bool:
        return all(
            not pods or self._is_shared(node, *rule)
            for node, pods in enumerate(self.taken[at])
            for rule in self.near[at]
        )

    def _is_shared(self, node: int, others: list[int], domains: list[int], served: list[bool]) -> bool:
        """True if a pod of one of the other sets is in the domain of a node."""
        return served[node] or any(
            pods and one == domains[node]
            for other in others
            for pods, one in zip(self.taken[other], domains, strict=True)
        )

    def _is_spread(self, at: int) -> bool:
        return all(each.allows(self.taken[at], self.taken) for each in self.spread[at])

    def _take(self, at: int, node: int, pods: int) -> None:
        for row, amount in self.requests[at]:
            self.free[node][row] -= amount * pods
        self.slots[node] -= pods
        self.taken[at][node] += pods

    def _used_domains(self, at: int) -> tuple[object, ...]:
        if any(self.away) or any(self.near) or any(each.beside for spread in self.spread for each in spread):
            return tuple(map(tuple, self.taken))
        return tuple(self.taken[at]) if self.domains[at] or self.spread[at] else ()


def placed_by_search(
    wanted: Sequence[Wanted], room: Room, traits: Traits, work: Work
) -> dict[int, Amounts] | None:
    """A placement found by search; None if there is none, or if the search would be, or was, too long: `work` says."""
    steps = work.most_steps
    if steps <= 0 or sum(each.count for each in wanted) > MOST_SEARCHED_PODS:
        work.is_cut = True
        return None
    nodes = _searched(wanted, room, traits)
    if nodes.size > MOST_SEARCHED_NODES:
        work.is_cut = True
        return None
    ordered = next(orders(wanted, room))
    position = {each.index: at for at, each in enumerate(ordered)}
    search = _Search(
        ordered,
        requests=[_rows(each.pods.requests, room) for each in ordered],
        may_use=[each.mask[nodes].tolist() for each in ordered],
        domains=[[traits.domains(key)[nodes].tolist() for key in each.pods.apart] for each in ordered],
        away=[
            [(position[other], of_node[nodes].tolist()) for other, of_node in each.away if other in position]
            for each in ordered
        ],
        near=[
            [
                (
                    [position[other] for other in rule.others if other in position],
                    rule.domains[nodes].tolist(),
                    rule.served[nodes].tolist(),
                )
                for rule in each.near
            ]
            for each in ordered
        ],
        spread=[_few_domains(each, room, nodes, position) for each in ordered],
        free=room.free[:, nodes].T.tolist(),
        slots=room.slots[nodes].tolist(),
        taken=[[0] * nodes.size for _ in ordered],
        failed=set(),
        steps=steps,
    )
    is_found = search.run()
    work.searched += steps - max(search.steps, 0)
    if not is_found:
        work.is_cut |= search.steps < 0
        return None
    found = dict[int, Amounts]()
    for each, taken in zip(ordered, search.taken, strict=True):
        pods = np.zeros_like(room.slots)
        pods[nodes] = taken
        found[each.index] = pods
    return found


def _searched(wanted: Sequence[Wanted], room: Room, traits: Traits) -> NDArray[np.intp]:
    """The nodes that take pods, by name; where other rules might need them, also those that `apart` passed over."""
    could = np.zeros(room.slots.shape, dtype=np.bool_)
    are_linked = any(each.away or each.near for each in wanted)
    for each in wanted:
        if are_linked or each.spreading is not None:
            could |= room.fitting(each.pods.requests, each.count, each.mask) > 0
        else:
            could |= allowed(each, room, traits) > 0
    nodes = np.flatnonzero(could)
    return nodes[np.argsort(traits.order[nodes])]


def _few_domains(
    each: Wanted, room: Room, nodes: NDArray[np.intp], position: Mapping[int, int]
) -> list[FewDomains]:
    """The spreads of a set for the search; `position` has the place of each set in it, by index."""
    if each.spreading is None:
        return []
    levels = each.spreading.levels(room.fitting(each.pods.requests, each.count, each.mask), each.count)
    earlier = ([each.index + distance for distance in spread.earlier] for spread in each.pods.spread)
    return [
        level.on(nodes, [position[one] for one in counted if one in position])
        for level, counted in zip(levels, earlier, strict=True)
    ]


def _rows(requests: Resources, room: Room) -> list[tuple[int, int]]:
    return [
        (room.columns[name], amount)
        for name, amount in requests.items()
        if amount > 0 and name in room.columns
    ]
