"""The placement of pod sets on nodes: pure functions of arrays.

A pod set alone is placed exactly: as many pods as fit on each node it may use, until all have one. A spread limits the
pods of each node (`core.scheduling.placement.spread`). Several pod sets compete for nodes, which is bin packing. So
`place` tries the pod sets in several orders and with two rules for the choice of nodes, and then, in a small cluster,
searches all placements up to a bound. It may therefore refuse pod sets that have a placement, but never returns a
placement that does not fit.

Growth: a pod set costs O(nodes x resources that it requests). Several pod sets cost that for each order that is tried,
in each combination of domains that is tried, then some steps of a search; `placement_bounds` bounds the sum of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.scheduling.placement.node_room import Room
from dispatcher.core.scheduling.placement.node_traits import Amounts, Traits
from dispatcher.core.scheduling.placement.placement_bounds import MOST_STEPS_IN_ALL, Tally, Work
from dispatcher.core.scheduling.placement.placement_orders import allowed, placed_by_orders
from dispatcher.core.scheduling.placement.placement_search import placed_by_search
from dispatcher.core.scheduling.placement.wanted_pods import Wanted, wanted_of

MOST_DOMAINS: Final = 64
"""Combinations of domains that are tried for pod sets whose pods must be together."""
MOST_COMBINATIONS: Final = 4096
"""Combinations of domains that are looked at; those that contradict themselves are not tried."""

Placement = list[Amounts]
"""For each pod set, the pods of it on each node."""


class Unplaceable(Struct, frozen=True):
    """The first pod set that alone has too few nodes, and how many of its pods fit; None if each alone fits.

    If each alone fits, `undecided` are the steps after which the search for a placement of all ended at its bound. It
    is 0 if there is none.
    """

    index: int | None = None
    fitting: int = 0
    undecided: int = 0


class Rest(Struct, frozen=True):
    """The pods of each pod set that are still to be placed, and how many others of it each node has already."""

    counts: Sequence[int]
    present: Sequence[Mapping[int, int]]
    """For each pod set, pods by the row of their node; they count for the spread of the set, and keep others away."""


def place(
    pod_sets: Sequence[PodSet],
    room: Room,
    traits: Traits,
    rest: Rest | None = None,
    tally: Tally | None = None,
    most: int = MOST_STEPS_IN_ALL,
) -> Placement | Unplaceable:
    """The nodes for all pods at once, or why there are none; only for the `rest` of the pods if that is given.

    It ends after `most` steps. They are added to the `tally`.
    """
    sizes = [pod_set.count for pod_set in pod_sets] if rest is None else rest.counts
    wanted = wanted_of(pod_sets, sizes, traits, () if rest is None else rest.present)
    alone: list[Amounts] = []
    for each in wanted:
        fitting = allowed(each, room, traits)
        total = _most_alone(each, fitting, room)
        if total < each.count:
            return Unplaceable(each.index, total)
        alone.append(fitting)
    work = Work(room.slots.size, most)
    found = _placed(wanted, alone, room, traits, work) if wanted else {}
    if tally is not None:
        tally.steps += work.steps
    if isinstance(found, Unplaceable):
        return found
    empty = np.zeros_like(room.slots)
    return [found.get(index, empty) for index in range(len(pod_sets))]


def _most_alone(each: Wanted, fitting: Amounts, room: Room) -> int:
    """How many pods of the set have a node under each of its rules; `fitting` is by node, as `apart` leaves it."""
    total = int(fitting.sum())
    if each.spreading is None or total < each.count or each.counts_earlier:
        return total
    if each.pods.apart:  # which leaves one of several nodes that would do
        fitting = room.fitting(each.pods.requests, each.count, each.mask)
    return each.spreading.most(fitting, each.count)


def _placed(
    wanted: Sequence[Wanted], alone: Sequence[Amounts], room: Room, traits: Traits, work: Work
) -> dict[int, Amounts] | Unplaceable:
    has_choice = any(each.pods.together for each in wanted)
    for narrowed in _in_domains(wanted, alone, traits, work):
        found = placed_by_orders(narrowed, room, traits, work)
        if found is not None:
            return found
        # The combination in which the pods of these sets may be in several domains has a search for all of them.
        if _is_exact(narrowed) or any(each.is_tentative for each in narrowed):
            continue
        found = placed_by_search(narrowed, room, traits, work)
        if found is not None:
            return found
        if not (has_choice or work.is_cut):
            break
    is_complete = all(each.spreading is None or each.spreading.is_exact for each in wanted)
    return Unplaceable(undecided=work.steps if work.is_cut or not is_complete else 0)


def _is_exact(wanted: Sequence[Wanted]) -> bool:
    """True if one order finds every placement."""
    if len(wanted) > 1:
        return False
    return all(each.spreading is None or (each.spreading.is_exact and not each.pods.apart) for each in wanted)


def _in_domains(
    wanted: Sequence[Wanted], alone: Sequence[Amounts], traits: Traits, work: Work
) -> Iterator[Sequence[Wanted]]:
    """The pod sets with their nodes narrowed to one domain, for each combination of domains that might do.

    There may be more than are looked at, or tried: `work` then says so.
    """
    choices = [_domains_of(each, fitting, traits) for each, fitting in zip(wanted, alone, strict=True)]
    if all(len(each) == 1 for each in choices):
        yield [each.only for each in choices]
        return
    for tried, combined in enumerate(_combined(choices, _rules_by_last(wanted), work)):
        if tried == MOST_DOMAINS:
            work.is_cut = True
            return
        yield combined


def _combined(
    choices: Sequence[_Choices], rules: Sequence[Sequence[_NearRule]], work: Work
) -> Iterator[list[Wanted]]:
    """The combinations of domains that do not contradict themselves, of those that are looked at, in order.

    `rules` are those that the choice at each place may break. The choices are a list of iterators and not calls within
    each other, because there is one for each pod set.
    """
    if not all(map(len, choices)):
        return
    chosen: list[Wanted] = []
    begun, looked_at = [iter(choices[0])], 0
    while begun:
        del chosen[len(begun) - 1 :]
        each = next(begun[-1], None)
        if each is None:
            begun.pop()
            continue
        chosen.append(each)
        agrees = all(rule.may_hold(chosen) for rule in rules[len(chosen) - 1])
        if agrees and len(chosen) < len(choices):
            begun.append(iter(choices[len(chosen)]))
            continue
        looked_at += 1
        if looked_at > MOST_COMBINATIONS:
            work.is_cut = True
            return
        if agrees:
            yield list(chosen)


class _NearRule(NamedTuple):
    """That pods of the set at one place are near others, by their places: not all of them in other domains."""

    label: str
    place: int
    others: tuple[int, ...]

    def may_hold(self, chosen: Sequence[Wanted]) -> bool:
        """False if the pod sets were narrowed to different domains."""
        own = chosen[self.place].chosen.get(self.label)
        others = [chosen[other].chosen.get(self.label) for other in self.others]
        return own is None or None in others or own in others


def _rules_by_last(wanted: Sequence[Wanted]) -> list[list[_NearRule]]:
    """The rules about pods that must be near each other, by the last place that they are about."""
    place = {each.index: at for at, each in enumerate(wanted)}
    found: list[list[_NearRule]] = [[] for _ in wanted]
    for at, each in enumerate(wanted):
        for label, distances in each.pods.near:
            others = [place.get(each.index + one) for one in distances]
            known = tuple(other for other in others if other is not None)
            if len(known) == len(others):  # a set without pods to place was not narrowed
                found[max((at, *known))].append(_NearRule(label, at, known))
    return found


class _Choices(Struct, frozen=True):
    """A pod set, and the domains by label to which its nodes may be narrowed, in the order in which they are tried.

    The first are no domains if `is_free`, which narrows nothing.
    """

    pods: Wanted
    domains: Sequence[Mapping[str, int]]
    traits: Traits
    is_free: bool

    def __len__(self) -> int:
        return len(self.domains) + self.is_free

    def __iter__(self) -> Iterator[Wanted]:
        if self.is_free:
            yield self.pods
        for domains in self.domains:
            mask = reduce(
                and_, (self.traits.domains(key) == value for key, value in domains.items()), self.pods.mask
            )
            yield replace(self.pods, mask=mask, chosen=domains)

    @property
    def only(self) -> Wanted:
        """The first one."""
        return next(iter(self))


def _domains_of(each: Wanted, fitting: Amounts, traits: Traits) -> _Choices:
    """The pod set in each domain that has enough nodes for it, the tightest domain first.

    Pods that keep away from others may be on all nodes, which is tried first: one domain leaves others to the others.
    """
    if each.pods.together:
        found = _having_enough(each, each.pods.together, fitting, traits)
    else:
        found = [
            one for key in _shared_keys(each, traits) for one in _having_enough(each, (key,), fitting, traits)
        ]
    tightest = sorted(range(len(found)), key=lambda at: (found[at][0], at))
    domains = [found[at][1] for at in tightest[: MOST_COMBINATIONS + 1]]
    return _Choices(each, domains, traits, is_free=not each.pods.together)


def _having_enough(
    each: Wanted, keys: Sequence[str], fitting: Amounts, traits: Traits
) -> list[tuple[int, dict[str, int]]]:
    """The domains by each of these labels with nodes for all pods of the set, and for how many pods.

    Costs O(nodes) for each label; of several labels, the domains are sorted once.
    """
    domains = np.array([traits.domains(key) for key in keys])
    nodes = np.flatnonzero(each.mask & (fitting > 0) & (domains >= 0).all(axis=0))
    if len(keys) == 1:
        sums = np.bincount(domains[0, nodes], fitting[nodes]).astype(np.int64)
        return [(int(sums[cell]), {keys[0]: int(cell)}) for cell in np.flatnonzero(sums >= each.count)]
    cells, of_node = np.unique(domains[:, nodes], axis=1, return_inverse=True)
    sums = np.bincount(of_node.reshape(-1), fitting[nodes], cells.shape[1]).astype(np.int64)
    return [
        (int(sums[cell]), dict(zip(keys, cells[:, cell].tolist(), strict=True)))
        for cell in np.flatnonzero(sums >= each.count)
    ]


def _shared_keys(each: Wanted, traits: Traits) -> list[str]:
    """The topologies with domains of several nodes by which the pods are away from others, or near to others."""
    keys = {label for label, _ in (*each.pods.away, *each.pods.near)} | {label for _, label, _ in each.led}
    if each.spreading is None:
        keys |= each.counted_over
    return [key for key in sorted(keys) if int(traits.domains(key).max(initial=-1)) + 1 < len(traits.rows)]
