"""What one running gang with gated pods asks for, and what it gets in a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.lifecycle.growth import (
    admissible,
    count_of,
    growth_of,
    lacking_hosts,
    pods_soon,
    requested,
    taken_soon,
    with_pods,
)
from dispatcher.core.model.clusters import potential
from dispatcher.core.model.clusters.potential import trusted_of
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest, PodsByTemplate, PodShape, slices_of
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import NOTHING, PODS, Resources, sum_of
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.growth_rules import Nodes, beside_own
from dispatcher.core.scheduling.growth.growth_turns import Hosts

SLICE_INCOMPLETE: Final = "SliceIncomplete"
"""Pods of a slice wait for its other hosts, which nobody has made: a slice asks once all its hosts are there."""


class Growing(Struct, frozen=True):
    """A gang with gated pods, or with an earlier growth request.

    `admitted` are the requests of its admitted pods that count: those on nodes, and others within what it holds;
    `admitted_pods` is their number.
    `gated` are the gated pods, the oldest first, and `beyond` are its admitted pods beyond the base gang. `there` are
    the nodes with its pods, by template; only if its pods have rules about each other.
    """

    record: Record
    admitted: Resources
    gated: Sequence[GatedPod]
    beyond: PodsByTemplate = ()
    there: Nodes = field(default_factory=dict)
    admitted_pods: int = 0

    @classmethod
    def of(cls, record: Record, ledger: CapacityLedger) -> Growing:
        """A gang by the ledger of its cluster."""
        uid = record.uid
        gated = ledger.gated(uid)
        has_rules = any(each.has_rules for each in record.gang.pod_sets) or any(each.apart for each in gated)
        there = ledger.nodes_with(uid) if has_rules else {}
        pods = ledger.taken_pods(uid, record.charged_pods)
        return cls(record, ledger.taken(uid), gated, ledger.beyond(uid) or (), there, pods)

    @property
    def requested(self) -> list[GatedPod]:
        """The growth request: the gated pods beyond what the gang holds and keeps, the oldest first."""
        return requested(self.record.allowed, self.admitted, self.gated, self.record.granted)

    @property
    def has_waiting(self) -> bool:
        """True if gated pods wait for a grant, or for the other hosts of their slices."""
        return len(self.within) < len(self.gated)

    @property
    def within(self) -> list[GatedPod]:
        """The gated pods that need no grant."""
        return admissible(self.record.allowed, self.admitted, self.gated, self.record.granted)


class Grant(Struct, frozen=True):
    """The decision about the growth of one gang: the pods that are granted now, and the request that is left.

    `amounts` is the whole growth of the gang with the grant, `beyond` are the pods of that, and `count` is their number
    for which queues are charged. `request` is None if no growth waits. `trusted` are the potential nodes among the
    places of the pods.
    """

    record: Record
    pods: tuple[GatedPod, ...] = ()
    amounts: Resources = NOTHING
    request: GrowthRequest | None = None
    beyond: PodsByTemplate = ()
    trusted: tuple[str, ...] = ()
    count: int = 0

    @property
    def note(self) -> str:
        """A sentence about the pods that are granted, and the pools that they trust."""
        amounts = _in_words(sum_of(each.requests for each in self.pods))
        said = f"{_count(len(self.pods), 'pod')} may start: {amounts}"
        trusted, attempt = potential.in_words(trusted_of(self.trusted)), self.record.attempt
        return (
            f"{said}; trusts {trusted} in cluster {attempt.cluster} to come" if trusted and attempt else said
        )


class GrowthRefusal(NamedTuple):
    """Why a pod or slice is not granted: a reason in one word, and a sentence."""

    reason: str
    message: str


class GangGrowth:
    """The growth of one gang while it is decided."""

    def __init__(self, growing: Growing) -> None:
        self._gated = growing.gated
        self.record = growing.record
        self.waiting = growing.requested
        self.granted: list[GatedPod] = []
        self._more = NOTHING
        """The requests of the granted pods."""
        self._trusted = set[str]()
        self.refused: dict[tuple[PodShape, ...], GrowthRefusal] = {}
        """By the shapes of the hosts: a younger pod or slice of the same shapes fares no better in the same pass."""
        self.there = {template: set(nodes) for template, nodes in growing.there.items()}
        """The nodes with its pods, by template, with those of the granted ones."""
        within = growing.within
        record = growing.record
        self._taken = taken_soon(record.allowed, growing.admitted, within)
        self._taken_pods = pods_soon(record, growing.admitted_pods, within)
        self._beyond = with_pods(growing.beyond, within)

    def grant(self, hosts: Hosts, assignment: Assignment) -> None:
        """Note that one more pod, or slice, is granted, and its place."""
        self.granted += hosts
        self._more += requests_of(hosts)
        self.there.setdefault(hosts[0].template, set()).update(assignment.nodes)
        self._trusted |= {node for node in assignment.nodes if potential.is_potential(node)}

    def held_with(self, hosts: Hosts = ()) -> Resources:
        """The amounts that the gang holds with what is granted, and with one more pod or slice."""
        more = self._more + requests_of(hosts)
        return self.record.held.highest(self._taken + more) if self.granted or hosts else self.record.held

    def increase(self, hosts: Hosts) -> Resources:
        """The amounts that its queues are charged with beyond the present charge, with one more pod or slice."""
        demand = self.record.gang.demand
        amounts = demand.highest(self.held_with(hosts)) - demand.highest(self.held_with())
        return amounts + {PODS: self._pods_with(hosts) - self._pods_with()}

    def _pods_with(self, hosts: Hosts = ()) -> int:
        """The number of pods that its queues are charged with, as for `held_with`."""
        more = len(self.granted) + len(hosts)
        return max(self.record.charged_pods, self._taken_pods + more) if more else self.record.charged_pods

    def decision(self, now: datetime) -> Grant:
        """The decision, once each pod is granted or refused."""
        amounts = growth_of(self.record.placed_gang.demand, self.held_with())
        beyond = with_pods(self._beyond, self.granted) if self.granted else ()
        count = count_of(self.record, self._pods_with())
        request = self._request(now)
        return Grant(self.record, tuple(self.granted), amounts, request, beyond, self.trusted, count)

    @property
    def trusted(self) -> tuple[str, ...]:
        """The potential nodes that granted pods wait for."""
        return tuple(sorted(self._trusted))

    def _request(self, now: datetime) -> GrowthRequest | None:
        granted = {each.uid for each in self.granted}
        left = [each for each in self.waiting if each.uid not in granted]
        if left:
            return _request_of(left, self.refused[shapes_of(slices_of(left)[0])], now)
        if lacking := lacking_hosts(self._gated, now):
            return _request_of([pod for hosts in lacking for pod in hosts], _incomplete(lacking[0]), now)
        return None


def _request_of(waiting: Sequence[GatedPod], refusal: GrowthRefusal, now: datetime) -> GrowthRequest:
    amounts = requests_of(waiting)
    wait = f"{_count(len(waiting), 'more pod')} wait{'s' * (len(waiting) == 1)}"
    message = f"{wait} ({_in_words(amounts)}): {refusal.message}"
    return GrowthRequest(len(waiting), amounts, now, refusal.reason, message)


def _incomplete(hosts: Hosts) -> GrowthRefusal:
    """Why pods of a slice wait that lacks hosts."""
    there = hosts[0].hosts - hosts[0].missing + len(hosts)
    return GrowthRefusal(SLICE_INCOMPLETE, f"its slice has {there} of {hosts[0].hosts} hosts")


def gangs_of(record: Record, hosts: Hosts) -> list[Gang]:
    """A gang of one pod or slice for each template that it may be made from, which differ in the nodes they may use.

    A pod names its template; if the base gang has no pods of that, its own conditions count. A pod that names none is
    made from a template with its requests, and of several from the last, where the ledger of nodes holds its place; if
    none has these, as where a sidecar was injected, it may be any.
    """
    pod, pod_sets = hosts[0], record.placed_gang.pod_sets
    named = [each for each in pod_sets if each.template == pod.template][:1]
    if pod.constraint is not None and not named:
        alike = [pod.shape.pod_set]
    else:
        alike = named or [each for each in pod_sets if each.requests == pod.requests][-1:]
    kinds = {(each.constraint, each.has_rules and each.template): each for each in alike or pod_sets}
    counts = Counter(each.requests for each in hosts)
    made = (
        tuple(replace(each, count=count, requests=requests) for requests, count in counts.items())
        for each in map(_without_rules, kinds.values())
    )
    gang = Gang(requests_of(hosts), len(hosts), namespace=record.namespace)
    return [replace(gang, pod_sets=each) for each in made] or [gang]


def _without_rules(pods: PodSet) -> PodSet:
    """The pod set without the rules about others, but those among its own pods, which the hosts of a slice keep."""
    return replace(pods, away=(), near=(), spread=())


def beside_own_pods(gang: Gang, growth: GangGrowth, capacity: CapacitySnapshot) -> Gang:
    """The gang of a pod or slice with the conditions on its nodes by the pods that its gang has."""
    if not growth.there:
        return gang
    known = growth.record.placed_gang.pod_sets
    made = (beside_own(each, known, growth.there, capacity.domains_of) for each in gang.pod_sets)
    return replace(gang, pod_sets=tuple(made))


def requests_of(pods: Iterable[GatedPod]) -> Resources:
    """The requests of all these pods."""
    return sum_of(each.requests for each in pods)


def shapes_of(pods: Iterable[GatedPod]) -> tuple[PodShape, ...]:
    """The shape of each of these pods."""
    return tuple(each.shape for each in pods)


def _in_words(amounts: Resources) -> str:
    return ", ".join(f"{name} {in_words(name, amounts[name])}" for name in sorted(amounts))


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
