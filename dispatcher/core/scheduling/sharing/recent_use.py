"""The recent use of namespaces, by which queues with `order: Usage` decide whose gang goes first.

The use of a namespace in a queue is the sum over its attempts charged there: the amount that an attempt held, times the
integral of a weight over the time for which it held it. The weight of a moment halves with every `HALF_LIFE` that has
passed since. Amounts are devices if the tree of the queue limits any, else cpu.

An integral needs only the weights of both ends of an attempt, so the database adds those up for all attempts at once.

Source: https://kueue.sigs.k8s.io/docs/concepts/admission_fair_sharing/
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction
from typing import Final, NamedTuple

from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.leaf_quota import leaf_quotas
from dispatcher.core.queues.queue import Order
from dispatcher.core.scheduling.sharing.gangs import RecentUse

HALF_LIFE: Final = timedelta(hours=168)
REMEMBERED: Final = 10 * HALF_LIFE
"""Attempts that ended longer ago are left out: less than a thousandth of their hours would count."""

_HOURS: Final = HALF_LIFE / timedelta(hours=1) / math.log(2)
"""The integral, in hours, of a weight that falls from 1 to 0."""
_UNITS: Final = {"cpu": 1000}
_PRECISION: Final = 10**6
"""Parts of an hour that count. Sums of floats differ in the last digits, which must not decide between equal uses."""


class WeightedUse(NamedTuple):
    """The use of one resource by the attempts of a namespace in a queue.

    `weighted` is the sum over the attempts of the amount, in base units, times the weight at the end of the attempt
    less the weight at its begin.
    """

    queue: str
    namespace: str
    resource: str
    weighted: float


def counted_resources(forest: Forest) -> dict[str, tuple[str, ...]]:
    """The leaves with `order: Usage`, each with the resources in which use counts there."""
    if all(place.queue.order is not Order.USAGE for place in forest.leaves):
        return {}
    return {
        each.queue: each.counted
        for each in leaf_quotas(forest)
        if forest.places[each.queue].queue.order is Order.USAGE
    }


def recent_use(uses: Iterable[WeightedUse]) -> RecentUse:
    """The recent use of each namespace in each leaf, in device-hours or core-hours; all devices count alike."""
    hours: defaultdict[tuple[str, str], float] = defaultdict(float)
    for each in uses:
        hours[each.queue, each.namespace] += each.weighted * _HOURS / _UNITS.get(each.resource, 1)
    return {key: Fraction(round(each * _PRECISION), _PRECISION) for key, each in hours.items()}
