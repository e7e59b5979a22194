"""The part of one AppWrapper in the nodes of a cluster: its bound pods, and the places that its unbound pods hold."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.gangs.growth import PodShape
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.node_snapshot import Place

FEWEST_STEPS: Final = 256
"""Steps of a first search for places: some tens of milliseconds. Each that ends there has twice the steps next time."""


class Held(NamedTuple):
    """A place that is held, for pods of that template."""

    place: Place
    template: str


class BoundPods(NamedTuple):
    """The key under which equal bound pods are counted. `template` is empty if the pods do not name their template."""

    requests: Resources
    node: str
    sort: PodSort | None
    template: str


class PlaceShare(Struct):
    """One AppWrapper: its gang and assignment while it is active, its places, its bound pods.

    `growth` is charged beside the demand of the gang; `starting` are the unbound pods by shape, beyond it too.
    `number` is greater than that of each active AppWrapper that was reserved before. `steps` bound the next search for
    places that are not planned.
    """

    gang: Gang | None = None
    assignment: Assignment = ASSIGNED_NOWHERE
    bound: Counter[BoundPods] = field(default_factory=Counter)
    held: list[Held] = field(default_factory=list)
    beyond: Resources = NOTHING
    growth: Resources = NOTHING
    starting: Counter[PodShape] = field(default_factory=Counter)
    number: int = 0
    steps: int = FEWEST_STEPS

    @property
    def to_place(self) -> Gang | None:
        """Its gang, followed by an empty pod set for each other template of its starting pods; None if not active."""
        if self.gang is None or not self.starting:
            return self.gang
        known = {each.template for each in self.gang.pod_sets}
        others = {
            each.template: each
            for each in self.starting
            if each.template and each.constraint is not None and each.template not in known
        }
        more = tuple(others[name].pod_set for name in sorted(others))
        return replace(self.gang, pod_sets=(*self.gang.pod_sets, *more)) if more else self.gang

    def held_by_template(self) -> dict[str, Counter[str]]:
        """The number of held places by template and node."""
        found: dict[str, Counter[str]] = {}
        for each, template in self.held:
            found.setdefault(template, Counter())[each.node] += each.pods
        return found

    def nodes_with_bound(self) -> dict[str, set[str]]:
        """The nodes with its bound pods, by template; none while it is not active."""
        if self.gang is None:
            return {}
        present = unbound(self.gang, self).present
        found = {each.template: set(+nodes) for each, nodes in zip(self.gang.pod_sets, present, strict=True)}
        for each in self.bound:
            if each.template:
                found.setdefault(each.template, set()).add(each.node)
        return found


class Unbound(NamedTuple):
    """For each pod set: how many pods have no node, their planned places, and the other pods by their node."""

    missing: list[int]
    planned: list[dict[str, int]]
    present: list[Counter[str]]


def unbound(gang: Gang, share: PlaceShare) -> Unbound:
    """The pods of each pod set that are not bound, and the planned places that are left to them.

    A bound pod takes the place of a pod of its template, else of one with equal requests, planned for its node if there
    is one, else for another node; a pod that equals none takes one of the first pod set with places left. Starting pods
    beyond the demand are pods of their template, else of the last pod set with their requests; where no pod set has
    these, they get no places and are charged.
    """
    left = [pod_set.count for pod_set in gang.pod_sets]
    plans = [dict(places) for places in share.assignment.places]
    plans += [{} for _ in left[len(plans) :]]
    present = [Counter[str]() for _ in left]
    by_requests: dict[Resources, list[int]] = {}
    for index, pod_set in enumerate(gang.pod_sets):
        by_requests.setdefault(pod_set.requests, []).append(index)
    by_template = {pod_set.template: index for index, pod_set in enumerate(gang.pod_sets)}
    # First the pods that belong to one pod set, so that no other pod takes their places.
    for each, pods in sorted(
        share.bound.items(), key=lambda item: (item[0].template not in by_template, item[0].node)
    ):
        known = by_template.get(each.template)
        for index in (*by_requests.get(each.requests, ()), *range(len(left))) if known is None else (known,):
            taken = min(pods, left[index])
            left[index] -= taken
            pods -= taken
            present[index][each.node] += taken
            here = min(taken, plans[index].get(each.node, 0))
            if here:
                plans[index][each.node] -= here
    by_pod_set: Counter[tuple[int, ...]] = Counter()
    for shape, pods in share.starting.items():
        known = by_template.get(shape.template)
        by_pod_set[tuple(by_requests.get(shape.requests, ())) if known is None else (known,)] += pods
    for indices, pods in by_pod_set.items():
        if indices:
            left[indices[-1]] += max(0, pods - sum(left[index] for index in indices))
    for count, plan in zip(left, plans, strict=True):
        spare = sum(plan.values()) - count
        for node in sorted(plan, reverse=True):
            if spare <= 0:
                break
            cut = min(spare, plan[node])
            plan[node] -= cut
            spare -= cut
    return Unbound(left, plans, present)
