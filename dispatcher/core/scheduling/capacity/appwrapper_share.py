"""The part of one AppWrapper in the capacity of a cluster: its demand while it is active, and its pods there.

`capacity_ledger` has the formula in which these amounts count, and keeps them current by events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct, field

from dispatcher.core.lifecycle.growth import admissible
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.gangs.growth import GatedPod, PodsByTemplate, PodShape, SurplusPod
from dispatcher.core.model.gangs.pods import Gate, Pod, PodCounts, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.resources import NOTHING, Resources

_Key = TypeVar("_Key")


def count_pods(pods: Iterable[Pod], is_down: Callable[[str], bool]) -> PodCounts:
    """The counts of these pods, of any owner, from scratch; `is_down` is true for a known node that is not Ready."""
    tally = PodTally()
    lost = 0
    for pod in pods:
        tally.count(pod, +1)
        lost += pod.occupies_node and is_down(pod.node)
    return tally.pod_counts(lost)


class PodTally(Struct):
    """Counts of pods by phase, reason and exit code, without zeros."""

    phases: Counter[PodPhase] = field(default_factory=Counter)
    reasons: Counter[PodReason] = field(default_factory=Counter)
    exit_codes: Counter[int] = field(default_factory=Counter)
    unbound: int = 0

    def count(self, pod: Pod, sign: int) -> None:
        """Count a confirmed pod, or no more with the sign -1."""
        add(self.phases, pod.phase, sign)
        self.unbound += sign * (pod.live and pod.gate is None and not pod.node)
        if pod.reason is not PodReason.NONE:
            add(self.reasons, pod.reason, sign)
        for code in pod.exit_codes:
            add(self.exit_codes, code, sign)

    def pod_counts(self, lost: int) -> PodCounts:
        """The counts, with that number of pods on nodes that are down."""
        return PodCounts(
            pending=self.phases[PodPhase.PENDING] + self.phases[PodPhase.UNKNOWN],
            running=self.phases[PodPhase.RUNNING],
            succeeded=self.phases[PodPhase.SUCCEEDED],
            failed=self.phases[PodPhase.FAILED],
            starting=self.reasons[PodReason.STARTING],
            unschedulable=self.reasons[PodReason.UNSCHEDULABLE],
            gated=self.reasons[PodReason.GATED],
            lost=lost,
            evicted=self.reasons[PodReason.EVICTED],
            unbound=self.unbound,
            exit_codes=frozenset(self.exit_codes),
        )


class AppWrapperShare(Struct):
    """One AppWrapper's demand while it is active, its confirmed pods, and the requests of all pods that claim it.

    `grown` is its growth in the record, and `granted` are the pods of that. `sets` are the pod sets of its gang by
    template. `unbound` are the admitted pods without a node, by their shapes; `admitted_of` counts the admitted pods by
    template, `admitted_in` by the name of their replica, and `admitted_pods` all of them; `growing` are the confirmed
    admitted pods. `base_of` has the pods of each template in the base gang as its `live_of` pods say it; the gang's own
    count goes before that. Without pods `of_gated_templates` its growth is that of its bound pods, and unbound pods
    beyond the demand do not count.

    `away` are the requests of its admitted pods on nodes that do not exist, as for a moment after a node went, and of
    those that only their author says to be on a node.

    Anybody who may create pods in its namespace can make a pod of it, with any mark, amount and node. So only pods
    `there`, which means bound to nodes that exist, are charged beyond the record: they use real capacity. The number of
    these is `pods_there`. The other pods are covered by what the record holds, or count nothing.
    """

    demand: Resources | None = None
    bound: Resources = NOTHING
    there: Resources = NOTHING
    away: Counter[Resources] = field(default_factory=Counter)
    reservation: Resources = NOTHING
    lost: int = 0
    tally: PodTally = field(default_factory=PodTally)
    unscheduled: dict[str, Unscheduled] = field(default_factory=dict)
    gated: dict[str, Pod] = field(default_factory=dict)
    admitted_of: Counter[str] = field(default_factory=Counter)
    admitted_in: Counter[str] = field(default_factory=Counter)
    base_of: dict[str, int] = field(default_factory=dict)
    live_of: Counter[str] = field(default_factory=Counter)
    sets: Mapping[str, PodSet] = field(default_factory=dict)
    growing: dict[str, Pod] = field(default_factory=dict)
    grown: Resources = NOTHING
    granted: PodsByTemplate | None = None
    unbound: Counter[PodShape] = field(default_factory=Counter)
    admitted_pods: int = 0
    pods_there: int = 0
    of_gated_templates: int = 0
    version: object = None
    """Another object after each change."""

    def count(self, pod: Pod, sign: int) -> None:
        """Count a confirmed pod by its state, or no more with the sign -1."""
        self.tally.count(pod, sign)
        if sign < 0:
            self.unscheduled.pop(pod.uid, None)
        elif pod.unscheduled is not None:
            self.unscheduled[pod.uid] = pod.unscheduled

    def count_live(self, pod: Pod, sign: int) -> None:
        """Count a live pod by its gate; pods that only claim the AppWrapper count too."""
        self.of_gated_templates += sign * (pod.can_be_gated or pod.gate is not None)
        if pod.template:
            self._note_base(pod, sign)
        if pod.is_admitted:
            self.admitted_pods += sign
            if pod.template:
                add(self.admitted_of, pod.template, sign)
                if pod.replica:
                    add(self.admitted_in, pod.replica, sign)
                if pod.owner is not None and pod.admitted_as is not None:
                    self._note_growing(pod, sign)
            if not pod.node:
                add(self.unbound, pod.shape, sign)
        elif sign < 0:
            self.gated.pop(pod.uid, None)
        else:
            self.gated[pod.uid] = pod

    def _note_base(self, pod: Pod, sign: int) -> None:
        """Note how many pods of its template the base gang has, as the pod says, while there is a live pod of it."""
        add(self.live_of, pod.template, sign)
        if pod.template in self.live_of:
            self.base_of[pod.template] = pod.base_pods
        else:
            self.base_of.pop(pod.template, None)

    def _base(self, template: str, said: int) -> int:
        """The pods of a template in the base gang: by the gang, or if its pod sets do not have that one, as `said`."""
        known = self.sets.get(template)
        return said if known is None else known.count

    def _note_growing(self, pod: Pod, sign: int) -> None:
        if sign < 0:
            self.growing.pop(pod.uid, None)
        else:
            self.growing[pod.uid] = pod

    def surplus(
        self,
        nodes: Collection[str],
        given_up: Collection[str] = (),
        unwanted: Collection[tuple[str, str]] = (),
    ) -> list[SurplusPod]:
        """The pods that were given up, then the others beyond the base gang: first those that lose the least.

        The least lose ending pods, `unwanted` ones, which Ray found idle, gated ones, which have not started, and those
        without a node. Of several, the newest goes first. `nodes` are those that exist.
        """
        found = []
        growing = self._growing_and_covered(nodes, given_up)
        beyond = Counter(pod.template for pod in growing)
        beyond.subtract(self._base_of(growing))
        pods = [(pod.admitted_as, pod) for pod in growing if pod.admitted_as is not None]
        pods += [(pod.gate, pod) for pod in self._granted() if pod.gate is not None]
        pods.sort(key=lambda each: (each[1].gate is not None, _age_of(each)))
        slices = list(_by_slice(pods, Counter()).values())
        slices.sort(
            key=lambda hosts: max(_surplus_order(at, pod, unwanted) for at, pod in hosts), reverse=True
        )
        slices.sort(key=lambda hosts: all(pod.uid not in given_up for _, pod in hosts))
        for hosts in slices:
            admitted = sum(pod.gate is None for _, pod in hosts)
            template, name = hosts[0][1].template, hosts[0][1].uid if len(hosts) > 1 else ""
            is_given_up = any(pod.uid in given_up for _, pod in hosts)
            if not admitted or is_given_up or beyond[template] >= admitted:
                beyond[template] -= admitted
                found += [_surplus_pod(at, pod, name) for at, pod in hosts]
        return found

    def _growing_and_covered(self, nodes: Collection[str], given_up: Collection[str]) -> list[Pod]:
        """The confirmed admitted pods that are charged: those on nodes, and the oldest others within what it holds.

        To delete an unbound pod that the record does not cover would free nothing. Without a record it is all of them.
        """
        if self.demand is None:
            return list(self.growing.values())
        found, others = list[Pod](), list[Pod]()
        for pod in self.growing.values():
            is_there = pod.node in nodes and not pod.node_by_author
            (found if is_there or pod.uid in given_up else others).append(pod)
        left = self._left_of_held()
        for pod in sorted(others, key=_admitted_age_of):
            if pod.requests.fits_in(left):
                left -= pod.requests
                found.append(pod)
        return found

    def _base_of(self, growing: Iterable[Pod]) -> dict[str, int]:
        """The pods of each template in the base gang; where the confirmed pods differ, the most that one says."""
        found: dict[str, int] = {}
        for pod in growing:
            said = max(found.get(pod.template, 0), pod.base_pods)
            found[pod.template] = self._base(pod.template, said)
        return found

    def _granted(self) -> list[Pod]:
        """The confirmed pods that are about to be admitted, without those of the base gang."""
        confirmed = (self.gated[each.uid] for each in self._admissible() if not each.is_base)
        return [pod for pod in confirmed if pod.template and pod.owner is not None]

    def _admissible(self) -> list[GatedPod]:
        """The gated pods that may be admitted."""
        if self.demand is None or not self.gated:
            return []
        return admissible(self.held, self.taken, self.gated_by_age(), self.granted)

    def gated_by_age(self) -> list[GatedPod]:
        """The gated pods, by slice and the oldest first; of each template, those that the base gang lacks belong to it.

        A slice belongs to the base gang as a whole, also before all its hosts are there.
        """
        found, counted = [], self.admitted_of.copy()
        gated = [(each.gate, each) for each in self.gated.values() if each.gate is not None]
        for name, hosts in _by_slice(sorted(gated, key=_age_of), self.admitted_of.copy()).items():
            _, pod = hosts[0]
            missing = self._missing(name, pod)
            base = self._base(pod.template, pod.base_pods)
            is_base = bool(pod.template) and counted[pod.template] + missing <= base
            counted[pod.template] += missing * is_base
            found += [self._gated_pod(gate, host, name, missing, is_base=is_base) for gate, host in hosts]
        return found

    def _missing(self, name: str, pod: Pod) -> int:
        """The gated pods that a slice needs to be whole, by one of its pods."""
        if pod.hosts == 1:
            return 1
        if pod.replica:
            return max(1, pod.hosts - self.admitted_in[pod.replica])
        admitted = self.admitted_of[pod.template]
        is_begun = name == _slice_name(pod, admitted)
        return pod.hosts - admitted % pod.hosts * is_begun

    def _gated_pod(self, gate: Gate, pod: Pod, name: str, missing: int, *, is_base: bool) -> GatedPod:
        return GatedPod(
            gate.namespace,
            gate.name,
            pod.uid,
            pod.requests,
            gate.created_at,
            is_base,
            pod.template,
            pod.constraint,
            self._beyond(pod.template),
            name if pod.hosts > 1 else "",
            missing,
            pod.hosts,
            pod.apart,
        )

    def beyond(self) -> PodsByTemplate:
        """The admitted pods beyond the base gang."""
        found = ((template, self._beyond(template)) for template in sorted(self.admitted_of))
        return tuple((template, pods) for template, pods in found if pods)

    def _beyond(self, template: str) -> int:
        return max(0, self.admitted_of[template] - self._base(template, self.base_of.get(template, 0)))

    def move(self, requests: Resources, pods: int, *, is_there: bool) -> None:
        """Count pods with these requests on nodes, or no more with a negative number."""
        if is_there:
            self.there += requests * pods
            self.pods_there += pods
        else:
            self.away[requests] += pods
            if not self.away[requests]:
                del self.away[requests]

    @property
    def claims_any(self) -> bool:
        """True while live pods are known."""
        return bool(self.admitted_pods or self.gated)

    @property
    def held(self) -> Resources:
        """The amounts that it holds by its record."""
        return (self.demand or NOTHING) + self.grown

    @property
    def target(self) -> Resources:
        """The amounts that an active AppWrapper is to have room for, with those that its pods take on nodes."""
        return self.held.highest(self.there) if self.of_gated_templates else self.demand or NOTHING

    @property
    def taken(self) -> Resources:
        """The requests of the live pods for which it is charged: those on nodes, and others within what it holds.

        A pod without a node that does not fit as a whole in what is left is not of this gang's growth. Costs O(shapes).
        """
        taken, left = self.there, self._left_of_held()
        if not self.of_gated_templates or not left:
            return taken
        elsewhere = self.away.copy()
        for shape, pods in self.unbound.items():
            elsewhere[shape.requests] += pods
        for requests in sorted(elsewhere, key=_order_of_requests):
            most, pods = requests.times_in(left), elsewhere[requests]
            more = requests * (pods if most is None else min(pods, most))
            taken, left = taken + more, left - more
        return taken

    def taken_pods(self, held: int) -> int:
        """The number of the live pods for which it is charged, where the record holds that many: as for `taken`."""
        if not self.of_gated_templates:
            return self.pods_there
        return max(self.pods_there, min(self.admitted_pods, held))

    def _left_of_held(self) -> Resources:
        """What it holds beyond its pods on nodes."""
        return (self.held - self.there).positive_part()

    def starting(self) -> Counter[PodShape]:
        """The admitted pods without a node, and the gated ones that may be admitted, by their shapes.

        Pods of the base gang come first. Beyond them there are no more than what it holds has room for; a pod takes the
        place of its template, whatever it requests itself. Costs O(shapes), of which a tenant can make one for each
        pod.
        """
        if self.demand is None or not self.of_gated_templates:
            return Counter()
        wanted = self.unbound + Counter(each.shape for each in self._admissible())
        found: Counter[PodShape] = Counter()
        left, base = self._left_of_held(), self._missing_base()
        beyond: list[tuple[PodShape, int]] = []
        for shape, pods in wanted.items():
            own = max(0, min(pods, base[shape.template]))
            base[shape.template] -= own
            if own:
                found[shape] += own
                left -= self._place_of(shape) * own
            if pods > own:
                beyond.append((shape, pods - own))
        left = left.positive_part()
        for shape, pods in sorted(beyond, key=_order_of_shapes):
            place = self._place_of(shape)
            most = place.times_in(left)
            taken = pods if most is None else min(pods, most)
            if taken:
                found[shape] += taken
                left -= place * taken
        return found

    def _missing_base(self) -> Counter[str]:
        """The pods of each template in the base gang that have no node."""
        found = Counter({name: each.count for name, each in self.sets.items()})
        found.subtract(self.admitted_of)
        for shape, pods in self.unbound.items():
            if shape.template:
                found[shape.template] += pods
        return found

    def _place_of(self, shape: PodShape) -> Resources:
        """The amounts of the place that such a pod gets."""
        known = self.sets.get(shape.template)
        return shape.requests if known is None else known.requests.highest(shape.requests)


def _order_of_shapes(each: tuple[PodShape, int]) -> tuple[str, list[tuple[str, int]]]:
    """The sort key of shapes: the same in every process."""
    return each[0].template, _order_of_requests(each[0].requests)


def _order_of_requests(requests: Resources) -> list[tuple[str, int]]:
    return sorted(requests.items())


def _admitted_age_of(pod: Pod) -> tuple[str, str]:
    at = pod.admitted_as
    return ("", "") if at is None else (at.created_at, at.name)


def _surplus_order(
    at: Gate, pod: Pod, unwanted: Collection[tuple[str, str]]
) -> tuple[bool, bool, bool, bool, str, str]:
    """The key of a surplus pod: the pods with the greatest keys are given up first."""
    is_unwanted = (at.namespace, at.name) in unwanted
    return pod.is_ending, is_unwanted, pod.gate is not None, not pod.node, at.created_at, at.name


def _surplus_pod(at: Gate, pod: Pod, slice_: str) -> SurplusPod:
    is_gated = pod.gate is not None
    return SurplusPod(
        at.namespace, at.name, pod.uid, pod.requests, pod.node, at.created_at, pod.is_ending, is_gated, slice_
    )


_Placed = tuple[Gate, Pod]
"""A pod, and where it is."""


def _age_of(each: _Placed) -> tuple[str, str]:
    return each[0].created_at, each[0].name


def _by_slice(pods: Iterable[_Placed], before: Counter[str]) -> dict[str, list[_Placed]]:
    """These pods by the name of their slice, in their order; a pod of a template with one host is by itself.

    Pods that do not name their replica fill up the slices of their template one after the other. Of those, as many came
    `before` as this has by template; it is changed.
    """
    found: dict[str, list[_Placed]] = {}
    for each in pods:
        _, pod = each
        name = pod.uid
        if pod.hosts > 1:
            name = pod.replica or _slice_name(pod, before[pod.template])
            before[pod.template] += not pod.replica
        found.setdefault(name, []).append(each)
    return found


def _slice_name(pod: Pod, before: int) -> str:
    """A name for the slice of a pod that does not name its replica, with that many pods of its template before it."""
    return f"{pod.template}#{before // pod.hosts}"


def add(counter: Counter[_Key], key: _Key, sign: int) -> None:
    """Counts one more or one less in `counter`; drops a zero."""
    counter[key] += sign
    if not counter[key]:
        del counter[key]
