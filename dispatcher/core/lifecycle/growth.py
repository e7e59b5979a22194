"""Growth: the resources that a running gang holds beyond its demand.

An autoscaler, or a user who scales a Deployment, makes more pods than the demand has. A gang holds

    held = demand + growth

Its cluster is charged with this sum (`core.scheduling.capacity.capacity_ledger`), so that quota, usage and capacity
agree. A pod that is being deleted counts until it has ended. A gang grows in one of two ways:

- **By grants**, if its pod templates have the dispatcher's scheduling gate (`core.kinds.manifest.with_gates`). The
  scheduler commits a growth before the pods start. The reconciler then admits gated pods, which means that it removes
  their gates: those of the base gang, which has as many pods of each template as the gang was dispatched with, and
  further ones as long as the requests of all admitted live pods stay within `held`, and no template has more pods than
  were granted (`Record.granted`): pods of two templates with equal requests may need other nodes. The others are the
  growth request. A growth whose pods are gone shrinks again. A gang that gives up surplus pods (`Attempt.shrinking`)
  holds them until the reconciler has deleted them and they are gone, and admits pods only within what it keeps
  (`Record.allowed`).
- **By its pods**, if not. Their growth is charged once it has happened: per resource, `held` is the larger of the
  demand and the requests of the bound live pods. A pod without a node does not count, because it takes no room from
  other gangs.

The queues of a gang are also charged with the number of its pods, by the same rules: a pod counts from its grant on, or
once it is on a node. A pod that waits for a node beyond what was granted counts nowhere, because its user can make any
number of such pods.

The growth follows the pods while the gang is active. While its objects are removed the last growth stays charged, like
the demand, until its pods are confirmed gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from dispatcher.core.model.gangs.growth import (
    GatedPod,
    PodRef,
    PodsByTemplate,
    Shrinking,
    SurplusPod,
    age_in,
    slices_of,
)
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import LARGEST_AMOUNT, PODS, Resources, sum_of

GROWTH_PAUSE: Final = timedelta(seconds=5)
"""The pause after a change of a gang's growth: changes within it are committed as one."""

LONGEST_GROWTH_PAUSE: Final = timedelta(minutes=5)
"""The longest pause after a change. Each change is an event in history, and pauses keep them few."""

_AT_FULL_PACE: Final = 4
"""Changes within an hour after which the pause doubles with each."""


def growth_of(demand: Resources, taken: Resources) -> Resources:
    """The amounts of `taken`, the requests of all pods that count, beyond the demand; each at most `LARGEST_AMOUNT`."""
    beyond = (taken - demand).positive_part()
    return Resources({name: min(amount, LARGEST_AMOUNT) for name, amount in beyond.items()})


def taken_soon(held: Resources, taken: Resources, within: Sequence[GatedPod]) -> Resources:
    """The requests of all pods that count, and of those `within` what it holds, which are about to be admitted.

    So a grant stays until its pods are admitted, however long that takes. Gated pods add nothing to what a gang holds:
    a pod of the base gang that requests more than its template is charged for that once it is on a node.
    """
    soon = taken + sum_of(pod.requests for pod in within)
    return taken.highest(soon.lowest(held))


def pods_soon(record: Record, taken: int, within: Sequence[GatedPod]) -> int:
    """The number of all pods that count, with those that are about to be admitted: as for `taken_soon`."""
    return max(taken, min(taken + len(within), record.charged_pods))


def count_of(record: Record, pods: int) -> int:
    """The number of these pods, which are all that count, beyond those that the queues of a gang are charged with."""
    return max(0, pods - record.gang.charged[PODS])


def with_pods(beyond: PodsByTemplate, pods: Iterable[GatedPod]) -> PodsByTemplate:
    """The pods that a gang has beyond its base gang, with these ones."""
    found = Counter(dict(beyond))
    found.update(pod.template for pod in pods if pod.template and not pod.is_base)
    return tuple(sorted(found.items()))


def growth_due(
    record: Record, taken: Resources | None, pods: int, *, is_awaited: bool = False
) -> datetime | None:
    """When the growth of an active gang is to be committed; None if the record has it, or nothing is known.

    The pods that count are so many `pods`, and request the amounts `taken`.
    Growth that no pod uses any more is due at once if it `is_awaited` by another gang.
    """
    attempt = record.attempt
    if attempt is None or taken is None:
        return None
    growth = growth_of(record.placed_gang.demand, taken) + {PODS: count_of(record, pods)}
    if growth == attempt.growth_charge:
        return None
    if not attempt.growth or (is_awaited and growth.fits_in(attempt.growth_charge)):
        return attempt.decided_at
    last = attempt.growth[-1].at
    recent = sum(1 for each in attempt.growth if last - each.at < timedelta(hours=1))
    return last + growth_pause(recent)


def admissible(
    held: Resources,
    admitted: Resources,
    gated: Sequence[GatedPod],
    granted: PodsByTemplate | None = None,
) -> list[GatedPod]:
    """The gated pods that a gang may start: those of the base gang, then the oldest within what it holds.

    It holds the amounts `held`, and `granted` pods of each template beyond the base gang; None if these are not known.
    `admitted` are the requests of its live pods without the gate. A pod of the base gang may start although it requests
    more than its template, for example because a webhook added a container: it is charged for that as a growth. A pod
    that does not fit is skipped, because a younger one may have other requests. Beyond the base gang the hosts of a
    slice start together or not at all.

    Where pods do not name their templates, a grant says how much, not which pods. If the oldest pods leave some of it,
    a choice that uses up all of it is the granted one: a worker with a GPU is not replaced by an older one without,
    which still has no room.
    """
    base = [pod for pod in gated if pod.is_base]
    admitted += sum_of(pod.requests for pod in base)
    others = whole_slices(pod for pod in gated if not pod.is_base)
    found, left = _within(held, admitted, others, granted)
    if left and len(found) < sum(map(len, others)):
        for last in islice(dict.fromkeys(pod.requests for pod in found), _MOST_CHOICES):
            others_first = sorted(others, key=lambda hosts: hosts[0].requests == last)
            choice, left = _within(held, admitted, others_first, granted)
            if not left:
                chosen = {pod.uid for pod in choice}
                return [*base, *(pod for hosts in others for pod in hosts if pod.uid in chosen)]
    return [*base, *found]


_MOST_CHOICES: Final = 8
"""Different requests of pods that are tried as the last ones to be admitted: a Ray cluster has few worker groups."""


def whole_slices(gated: Iterable[GatedPod]) -> list[tuple[GatedPod, ...]]:
    """The gated pods that may be granted or admitted together: slices without missing hosts, and pods by themselves."""
    return [hosts for hosts in slices_of(gated) if len(hosts) >= hosts[0].missing]


HOSTS_COME_WITHIN: Final = timedelta(seconds=10)
"""The time that an operator has for the next host of a slice: it makes the hosts one after another."""


def lacking_hosts(gated: Iterable[GatedPod], now: datetime) -> list[tuple[GatedPod, ...]]:
    """The gated pods of each incomplete slice beyond the base gang.

    A slice counts as incomplete once its newest pod is older than `HOSTS_COME_WITHIN`.
    """
    found = slices_of(pod for pod in gated if not pod.is_base)
    return [
        hosts
        for hosts in found
        if len(hosts) < hosts[0].missing
        and now - max(age_in(pod.created_at) for pod in hosts) >= HOSTS_COME_WITHIN
    ]


def _within(
    held: Resources,
    admitted: Resources,
    slices: Sequence[Sequence[GatedPod]],
    granted: PodsByTemplate | None,
) -> tuple[list[GatedPod], Resources]:
    """The first of these pods that a gang may start beside its admitted ones, and the amounts that are left of `held`.

    What it has admitted beyond `held` stays.
    """
    found: list[GatedPod] = []
    left = None if granted is None else Counter(dict(granted))
    for hosts in slices:
        template, with_it = hosts[0].template, admitted + sum_of(pod.requests for pod in hosts)
        if left is not None and template and left[template] < hosts[0].beyond + len(hosts):
            continue
        if (with_it - held).positive_part().fits_in((admitted - held).positive_part()):
            admitted = with_it
            found += hosts
            if left is not None:
                left[template] -= len(hosts)
    return found, (held - admitted).positive_part()


def requested(
    held: Resources, admitted: Resources, gated: Sequence[GatedPod], granted: PodsByTemplate | None = None
) -> list[GatedPod]:
    """The growth request: the gated pods beyond what the gang holds, the oldest first.

    A slice asks once all its hosts are there.
    """
    within = {each.uid for each in admissible(held, admitted, gated, granted)}
    others = whole_slices(each for each in gated if not each.is_base and each.uid not in within)
    return [each for hosts in others for each in hosts]


def unplaced_in(surplus: Iterable[SurplusPod]) -> tuple[SurplusPod, ...]:
    """The surplus pods without a node, with the other hosts of their slices: these are no use alone."""
    return tuple(pod for hosts in slices_of(surplus) if not all(each.node for each in hosts) for pod in hosts)


def without_unplaced(grown: Resources, unplaced: Sequence[SurplusPod]) -> Shrinking:
    """What a gang gives up of its growth because no nodes came for these pods, and what it keeps.

    A pod with the gate needs no deletion: it waits for a grant again.
    """
    pods = tuple(PodRef(pod.namespace, pod.name, pod.uid) for pod in unplaced if not pod.is_gated)
    kept = (grown - sum_of(pod.requests for pod in unplaced)).positive_part()
    return Shrinking(pods, kept, "")


def growth_pause(recent: int) -> timedelta:
    """The pause after that many changes within an hour, the last one included."""
    return min(LONGEST_GROWTH_PAUSE, GROWTH_PAUSE * (1 << max(0, recent - _AT_FULL_PACE)))


def in_words_of(demand: Resources, before: Resources, after: Resources) -> str:
    """A sentence for history about a growth that changed from `before` to `after`."""
    return ", ".join(
        f"{name}: holds {in_words(name, demand[name] + after[name])}, "
        f"before {in_words(name, demand[name] + before[name])}, demand {in_words(name, demand[name])}"
        for name in sorted({*before, *after})
        if before[name] != after[name]
    )
