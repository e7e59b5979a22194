"""The placement of pod sets on nodes: pure functions of arrays.

A pod set alone is placed exactly: as many pods as fit on each node it may use, until all have one. A spread limits the
pods of each node (`core.scheduling.spread`). Several pod sets compete for nodes, which is bin packing. So `place` tries
the pod sets in several orders and with two rules for the choice of nodes, and then, in a small cluster, searches all
placements up to a bound. It may therefore refuse pod sets that have a placement, but never returns a placement that
does not fit.

Growth: a pod set costs O(nodes x resources that it requests); several pod sets cost that for each order that is tried,
at most `placement_orders.MOST_ORDERS` times two, then at most `placement_search.MOST_STEPS` steps of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.gang import PodSet
from dispatcher.core.scheduling.node_room import Room
from dispatcher.core.scheduling.node_traits import Amounts, Traits
from dispatcher.core.scheduling.placement_orders import allowed, placed_by_orders
from dispatcher.core.scheduling.placement_search import placed_by_search
from dispatcher.core.scheduling.wanted_pods import Wanted, wanted_of

MOST_DOMAINS: Final = 64
"""Combinations of domains that are tried for pod sets whose pods must be together."""
MOST_COMBINATIONS: Final = 4096
"""Combinations of domains that are looked at; those that contradict themselves are not tried."""

Placement = list[Amounts]
"""For each pod set, the pods of it on each node."""


class Unplaceable(Struct, frozen=True):
    """The first pod set that alone has too few nodes, and how many of its pods fit; None if each alone fits."""

    index: int | None = None
    fitting: int = 0


class Rest(Struct, frozen=True):
    """The pods of each pod set that are still to be placed, and how many others of it each node has already."""

    counts: Sequence[int]
    present: Sequence[Mapping[int, int]]
    """For each pod set, pods by the row of their node; they count for the spread of the set, and keep others away."""


def place(
    pod_sets: Sequence[PodSet], room: Room, traits: Traits, rest: Rest | None = None
) -> Placement | Unplaceable:
    """The nodes for all pods at once, or why there are none; only for the `rest` of the pods if that is given."""
    sizes = [pod_set.count for pod_set in pod_sets] if rest is None else rest.counts
    wanted = wanted_of(pod_sets, sizes, traits, () if rest is None else rest.present)
    alone: list[Amounts] = []
    for each in wanted:
        fitting = allowed(each, room, traits)
        total = _most_alone(each, fitting, room)
        if total < each.count:
            return Unplaceable(each.index, total)
        alone.append(fitting)
    found = _placed(wanted, alone, room, traits) if wanted else {}
    if found is None:
        return Unplaceable()
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
    wanted: Sequence[Wanted], alone: Sequence[Amounts], room: Room, traits: Traits
) -> dict[int, Amounts] | None:
    for narrowed in islice(_in_domains(wanted, alone, traits), MOST_DOMAINS):
        found = placed_by_orders(narrowed, room, traits)
        if found is None and not _is_exact(narrowed) and not any(each.is_tentative for each in narrowed):
            found = placed_by_search(narrowed, room, traits)
        if found is not None:
            return found
    return None


def _is_exact(wanted: Sequence[Wanted]) -> bool:
    """True if one order finds every placement."""
    if len(wanted) > 1:
        return False
    return all(each.spreading is None or (each.spreading.is_exact and not each.pods.apart) for each in wanted)


def _in_domains(
    wanted: Sequence[Wanted], alone: Sequence[Amounts], traits: Traits
) -> Iterator[Sequence[Wanted]]:
    """The pod sets with their nodes narrowed to one domain, for each combination of domains that might do."""
    choices = [list(_domains_of(each, fitting, traits)) for each, fitting in zip(wanted, alone, strict=True)]
    yield from filter(None, islice(_combined(choices, ()), MOST_COMBINATIONS))


def _combined(
    choices: Sequence[Sequence[Wanted]], chosen: tuple[Wanted, ...]
) -> Iterator[tuple[Wanted, ...]]:
    """The combinations that begin with those chosen; an empty one in the place of those that contradict themselves."""
    if len(chosen) == len(choices):
        yield chosen
        return
    for each in choices[len(chosen)]:
        combined = *chosen, each
        if _may_agree(combined):
            yield from _combined(choices, combined)
        else:
            yield ()


def _may_agree(narrowed: Sequence[Wanted]) -> bool:
    """False if pod sets that must be near each other, and no others, were narrowed to different domains."""
    chosen = {each.index: each.chosen for each in narrowed}
    for each in narrowed:
        for label, distances in each.pods.near:
            own, others = (
                each.chosen.get(label),
                [chosen.get(each.index + one, {}).get(label) for one in distances],
            )
            if own is not None and None not in others and own not in others:
                return False
    return True


def _domains_of(each: Wanted, fitting: Amounts, traits: Traits) -> Iterator[Wanted]:
    """The pod set in each domain that has enough nodes for it, the tightest domain first.

    Pods that keep away from others may be on all nodes, which is tried first: one domain leaves others to the others.
    """
    if each.pods.together:
        found = [each]
        for key in each.pods.together:
            found = [one for before in found for one in _in_each_domain(before, key, fitting, traits)]
    else:
        yield each
        found = [
            one for key in _shared_keys(each, traits) for one in _in_each_domain(each, key, fitting, traits)
        ]
    sizes = [(int(fitting[one.mask].sum()), at) for at, one in enumerate(found)]
    for _, at in sorted(sizes):
        yield found[at]


def _in_each_domain(each: Wanted, key: str, fitting: Amounts, traits: Traits) -> Iterator[Wanted]:
    """The pod set in each domain of its nodes that has enough of them."""
    domains = traits.domains(key)
    for value in np.unique(domains[each.mask & (domains >= 0) & (fitting > 0)]):
        mask = each.mask & (domains == value)
        if int(fitting[mask].sum()) >= each.count:
            yield replace(each, mask=mask, chosen={**each.chosen, key: int(value)})


def _shared_keys(each: Wanted, traits: Traits) -> list[str]:
    """The topologies with domains of several nodes by which the pods are away from others, or near to others."""
    keys = {label for label, _ in (*each.pods.away, *each.pods.near)} | {label for _, label, _ in each.led}
    if each.spreading is None:
        keys |= each.counted_over
    return [key for key in sorted(keys) if int(traits.domains(key).max(initial=-1)) + 1 < len(traits.rows)]
