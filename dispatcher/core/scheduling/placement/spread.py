"""The spread of the pods of one set over domains of nodes: how many of its pods each node takes.

Every spread has a level, which is the number of pods that each of its domains has at least. So a domain takes the pods
that it lacks to the level, and at most the skew more. With one spread the highest level leaves the most room, and the
result is exact. Spreads whose domains are nested, such as zones and their hosts, bound each other: where the bounds
contradict, a level is lowered. If domains cross each other, pods are placed one by one. With several spreads a
placement may be missed; every result holds.

The pods of a set that have a node already (`present`) count, and do not move; so do the pods of others that the spread
selects. As in kube-scheduler, a domain that has
too many of them takes no more, and keeps no pod from other domains.

Arrays have one entry for each node or for each domain. Growth: O(nodes) for each spread and each lowered level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Final, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.scheduling.placement.node_traits import Amounts, Domains, Mask, Traits
from dispatcher.core.scheduling.placement.placement_bounds import Work

MOST_LOWERINGS: Final = 16
"""Levels that are lowered for one placement of a pod set."""
MOST_SINGLE_PODS: Final = 200
"""Pods of a set beyond which they are not placed one by one; some ten milliseconds."""

_LEVELS: Final = 4
"""Spreads of one pod that is placed alone in the time of a step."""
_UNBOUNDED: Final = 1 << 30


class Level(Struct, frozen=True):
    """One spread: its domains, the pods that each has (`present`), and the pods that each is to have at least.

    `level` is at least `lowest`, at which no domain needs a pod more. With too few domains (`is_fixed`) it is 0.
    """

    domains: Domains
    most_skew: int
    present: Amounts
    is_fixed: bool
    lowest: int
    level: int

    @property
    def floors(self) -> Amounts:
        """The pods that each domain lacks."""
        return np.maximum(self.level - self.present, 0)

    @property
    def ceilings(self) -> Amounts:
        """The most pods that each domain takes."""
        return np.maximum(self.level + self.most_skew - self.present, 0)

    def at(self, nodes: Amounts) -> Amounts:
        """The domains of nodes."""
        return self.domains.of_node[nodes]

    def on(self, nodes: Amounts, beside: Sequence[int] = ()) -> FewDomains:
        """The spread for a search that puts pods on these few nodes, where pods of the sets `beside` count as well."""
        of_node = self.at(nodes)
        used = np.unique(of_node[of_node >= 0])
        numbers = np.where(of_node >= 0, np.searchsorted(used, of_node), -1)
        elsewhere = np.delete(self.present, used)
        fewest = 0 if self.is_fixed else int(elsewhere.min()) if elsewhere.size else None
        return FewDomains(
            numbers.tolist(),
            self.present[used].tolist(),
            self.ceilings[used].tolist(),
            self.most_skew,
            fewest,
            tuple(beside),
        )


class FewDomains(Struct, frozen=True):
    """A spread in plain numbers: the domain of each of some nodes (-1 for none), and values by domain.

    `fewest` are the fewest pods that the other domains have; None if there are no others. `beside` are the sets, by
    their place in the search, whose pods count as well.
    """

    of_node: list[int]
    present: list[int]
    ceilings: list[int]
    most_skew: int
    fewest: int | None
    beside: tuple[int, ...] = ()

    def left(self, node: int, taken: Sequence[int]) -> int:
        """The most pods that the domain of a node takes, beside those that the nodes have `taken`."""
        domain = self.of_node[node]
        if domain < 0:
            return 0
        if self.beside:
            return _UNBOUNDED  # `allows` decides
        others = (pods for pods, one in zip(taken, self.of_node, strict=True) if one == domain)
        return self.ceilings[domain] - sum(others)

    def allows(self, taken: Sequence[int], of_set: Sequence[Sequence[int]]) -> bool:
        """True if no domain that takes pods then has too many more than another; `of_set` are the pods of each set."""
        totals, chosen = self.present.copy(), set[int]()
        for each in self.beside:
            for domain, pods in zip(self.of_node, of_set[each], strict=True):
                if domain >= 0:
                    totals[domain] += pods
        for domain, pods in zip(self.of_node, taken, strict=True):
            if pods:
                totals[domain] += pods
                chosen.add(domain)
        fewest = min(totals) if self.fewest is None else min(self.fewest, *totals)
        return all(totals[domain] - fewest <= self.most_skew for domain in chosen)


class Spreading(Struct, frozen=True):
    """The rules by which the pods of one set are spread; `present` has the pods in each domain that count for each."""

    pod_set: PodSet
    domains: tuple[Domains, ...]
    present: tuple[Amounts, ...]

    @classmethod
    def of(cls, pod_set: PodSet, traits: Traits, present: Mapping[int, Amounts]) -> Self:
        """The rules of a pod set; `present` are pods on each node, by the distance to their set, 0 for its own."""
        domains = traits.spread_domains(pod_set)
        none = np.zeros(len(traits.nodes), np.int64)
        counted = (
            sum((present[one] for one in (0, *each.counts) if one in present), _on_nodes(each.there, traits))
            if present or each.there
            else none
            for each in pod_set.spread
        )
        return cls(pod_set, domains, tuple(map(_in_domains, domains, counted)))

    @property
    def counts_earlier(self) -> bool:
        """True if pods of earlier sets of the gang count, which may have no node yet."""
        return any(each.earlier for each in self.pod_set.spread)

    def beside(self, placed: Mapping[int, Amounts]) -> Self:
        """The rules once earlier sets have nodes: their pods on each node, by the distance to the set."""
        if not self.counts_earlier:
            return self
        more = (
            [_in_domains(domains, placed[one]) for one in spread.earlier if one in placed]
            for spread, domains in zip(self.pod_set.spread, self.domains, strict=True)
        )
        present = (sum(each, before) for before, each in zip(self.present, more, strict=True))
        return replace(self, present=tuple(present))

    @property
    def usable(self) -> Mask:
        """The nodes that are in a domain of every spread."""
        return reduce(and_, (each.of_node >= 0 for each in self.domains))

    @property
    def is_exact(self) -> bool:
        """True if every placement of this set alone is found."""
        return len(self.domains) == 1

    def levels(self, fitting: Amounts, count: int) -> list[Level]:
        """The spreads at their highest levels for `count` pods, of which `fitting` fit on each node."""
        rules = zip(self.pod_set.spread, self.domains, self.present, strict=True)
        found = []
        for spread, domains, present in rules:
            is_fixed = domains.count < spread.least_domains
            lowest = highest = 0
            if not is_fixed:
                lowest = int(present.min())
                highest = _highest(present, _in_domains(domains, fitting), count)
            found.append(Level(domains, spread.most_skew, present, is_fixed, lowest, highest))
        return found

    def most(self, fitting: Amounts, count: int) -> int:
        """How many of `count` pods have a node under each spread alone, of which `fitting` fit on each node."""
        allowed = [
            int(np.minimum(level.ceilings, _in_domains(level.domains, fitting)).sum())
            for level in self.levels(fitting, count)
        ]
        return min([count, *allowed])

    def place(self, fitting: Amounts, count: int, nodes: Amounts, work: Work) -> Amounts | None:
        """The pods of each node; None if none are found, also because the `work` would be too much.

        `nodes` are those that may take pods, the best first.
        """
        if int(fitting[nodes].sum()) < count:
            return None
        levels = sorted(self.levels(fitting, count), key=lambda each: each.domains.count, reverse=True)
        if _are_nested(levels, nodes):
            taken = _Tree(levels, nodes, fitting[nodes], count, work).placed()
        else:
            taken = _one_by_one(levels, nodes, fitting[nodes], count, work)
        if taken is None:
            return None
        pods = np.zeros_like(fitting)
        pods[nodes] = taken
        return pods


def _on_nodes(pods: Sequence[tuple[str, int]], traits: Traits) -> Amounts:
    """The pods of each node, of those by its name."""
    amounts = np.zeros(len(traits.nodes), np.int64)
    for name, number in pods:
        row = traits.rows.get(name)
        if row is not None:
            amounts[row] = number
    return amounts


def _highest(present: Amounts, capacity: Amounts, count: int) -> int:
    """The highest level that `count` pods reach, of which `capacity` fit in each domain."""
    low, high = int(present.min()), int((present + capacity).min())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.maximum(middle - present, 0).sum()) <= count:
            low = middle
        else:
            high = middle - 1
    return low


def _in_domains(domains: Domains, amounts: Amounts) -> Amounts:
    """The sum over the nodes of each domain."""
    rows = np.flatnonzero(amounts)
    rows = rows[domains.of_node[rows] >= 0]
    return _sums(domains.of_node[rows], amounts[rows], domains.count)


def _sums(groups: Amounts, amounts: Amounts, size: int) -> Amounts:
    """The sum of each of `size` groups; exact, because the amounts are numbers of pods."""
    return np.bincount(groups, amounts, size).astype(np.int64)


# --- nested domains -----------------------------------------------------------------------------------------------


def _are_nested(levels: Sequence[Level], nodes: Amounts) -> bool:
    """True if each domain is within one domain of the next level."""
    for fine, coarse in pairwise(levels):
        homes = _homes(fine, coarse.at(nodes), nodes)
        if not np.array_equal(homes[fine.at(nodes)], coarse.at(nodes)):
            return False
    return True


def _homes(fine: Level, coarse: Amounts, nodes: Amounts) -> Amounts:
    """For each domain of `fine` the coarser domain of one of its nodes; 0 if none of its nodes takes pods."""
    homes = np.zeros(fine.domains.count, np.int64)
    homes[fine.at(nodes)] = coarse
    return homes


class _Bounds(Struct, frozen=True):
    """The least and the most pods of each node or domain, and the domain of the next level that it is in."""

    least: Amounts
    most: Amounts
    homes: Amounts


class _Tree:
    """Nodes in the domains of the first level, these in those of the next one, and all in one root."""

    def __init__(
        self, levels: Sequence[Level], nodes: Amounts, fitting: Amounts, count: int, work: Work
    ) -> None:
        everywhere = Domains(np.zeros(int(nodes.max()) + 1, np.int64), 1)
        root = Level(everywhere, 0, np.zeros(1, np.int64), is_fixed=True, lowest=count, level=count)
        self._nodes, self._fitting, self._count = nodes, fitting, count
        self._highest = (*levels, root)
        self._lowerings = MOST_LOWERINGS
        self._work = work

    def placed(self) -> Amounts | None:
        """The pods of each node."""
        found = self._settled(self._highest)
        return None if found is None else self._shared_out(found)

    def _settled(self, levels: tuple[Level, ...]) -> list[_Bounds] | None:
        """Bounds that agree, with levels as high as these or lower."""
        none = np.zeros_like(self._fitting)
        found = [_Bounds(none, self._fitting, levels[0].at(self._nodes))]
        for at, level in enumerate(levels):
            below, size = found[-1], level.domains.count
            lacking = _sums(below.homes, below.least, size)
            taking = _sums(below.homes, below.most, size)
            bounds = np.maximum(lacking, level.floors), np.minimum(taking, level.ceilings)
            contradict = bounds[0] > bounds[1]
            if contradict.any():
                return self._lowered(levels, at, taking, contradict)
            if at + 1 < len(levels):
                found.append(_Bounds(*bounds, _homes(level, levels[at + 1].at(self._nodes), self._nodes)))
        return found

    def _lowered(
        self, levels: tuple[Level, ...], at: int, taking: Amounts, contradict: Mask
    ) -> list[_Bounds] | None:
        """The bounds after one level is lowered: this one if it is out of reach, else a finer one that needs less."""
        level = levels[at]
        if (level.floors > taking).any():
            choices = [(at, int((level.present + taking).min()))]
        else:
            choices = list(self._finer(levels, at, contradict))
        for each, number in choices:
            lower = max(levels[each].lowest, min(number, levels[each].level - 1))
            if lower == levels[each].level or not self._lowerings or not self._work.may_spread(len(levels)):
                continue
            self._lowerings -= 1
            changed = replace(levels[each], level=lower)
            found = self._settled((*levels[:each], changed, *levels[each + 1 :]))
            if found is not None:
                return found
        return None

    def _finer(self, levels: tuple[Level, ...], at: int, contradict: Mask) -> Iterator[tuple[int, int]]:
        """The finer levels, and for each the highest at which it alone needs no more than these domains take."""
        level = levels[at]
        for each in reversed(range(at)):
            finer = levels[each]
            used = np.unique(finer.at(self._nodes))
            homes = _homes(finer, level.at(self._nodes), self._nodes)[used]
            number = np.bincount(homes, minlength=level.domains.count)
            present = _sums(homes, finer.present[used], level.domains.count)
            at_most = (level.ceilings + present)[contradict] // np.maximum(number[contradict], 1)
            yield each, int(at_most.min())

    def _shared_out(self, bounds: Sequence[_Bounds]) -> Amounts:
        """The pods of each node: the least of each, then for the best ones the most."""
        amounts = np.array([self._count])
        for at in reversed(range(len(bounds))):
            each = bounds[at]
            left = amounts - _sums(each.homes, each.least, amounts.size)
            order = np.lexsort((self._ranks(at), each.homes))
            amounts = each.least + _filled(left, each.homes, each.most - each.least, order)
        return amounts

    def _ranks(self, at: int) -> Amounts:
        """The place of each node, or of the best node of each domain, by which the best come first."""
        if not at:
            return np.arange(self._nodes.size)
        level = self._highest[at - 1]
        ranks = np.full(level.domains.count, self._nodes.size)
        used, first = np.unique(level.at(self._nodes), return_index=True)
        ranks[used] = first
        return ranks


def _filled(amounts: Amounts, homes: Amounts, spare: Amounts, order: NDArray[np.intp]) -> Amounts:
    """The amount of each home shared out to those in it, at most `spare` to each; in `order`, which is by home."""
    sorted_homes, sorted_spare = homes[order], spare[order]
    before = np.cumsum(sorted_spare) - sorted_spare
    first = np.searchsorted(sorted_homes, sorted_homes)
    found = np.empty_like(spare)
    found[order] = np.clip(amounts[sorted_homes] - (before - before[first]), 0, sorted_spare)
    return found


# --- domains that cross each other --------------------------------------------------------------------------------


def _one_by_one(
    levels: Sequence[Level], nodes: Amounts, fitting: Amounts, count: int, work: Work
) -> Amounts | None:
    """The pods of each node, each pod in the domains with the fewest pods; None if a pod has no node."""
    if count > MOST_SINGLE_PODS or not work.may_spread(count * (1 + len(levels) // _LEVELS)):
        return None
    domains = np.array([level.at(nodes) for level in levels])
    cells, first, cell_of = np.unique(domains, axis=1, return_index=True, return_inverse=True)
    cell_of = cell_of.reshape(-1)
    size = first.size
    room, taken = _sums(cell_of, fitting, size), np.zeros(size, np.int64)
    totals = [level.present.copy() for level in levels]
    for _ in range(count):
        allowed, height = room > 0, np.zeros(size, np.int64)
        for level, total, of_cell in zip(levels, totals, cells, strict=True):
            fewest = 0 if level.is_fixed else int(total.min())
            allowed &= total[of_cell] + 1 - fewest <= level.most_skew
            height += total[of_cell] - fewest
        choices = np.flatnonzero(allowed)
        if not choices.size:
            return None
        chosen = choices[np.lexsort((first[choices], height[choices]))[0]]
        room[chosen] -= 1
        taken[chosen] += 1
        for total, of_cell in zip(totals, cells, strict=True):
            total[of_cell[chosen]] += 1
    return _filled(taken, cell_of, fitting, np.argsort(cell_of, kind="stable"))
