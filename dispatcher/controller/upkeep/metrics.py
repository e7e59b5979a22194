"""The current metrics, gathered from memory at each scrape: they cost nothing in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from math import inf
from typing import Final

from dispatcher import log
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.status.queue_status import QueueState
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.events import EventRecorder
from dispatcher.probes import Figures, QueueFigures

MOST_QUEUES: Final = 1000
MOST_AMOUNTS: Final = 10_000
"""Queues, and pairs of a queue and a resource, with metrics: the first in the order of declaration.

Labels have names of declared queues only, never a name that an AppWrapper asks for.
"""


def gather(
    cache: Cache,
    clusters: Mapping[str, Cluster],
    informer: AppWrapperInformer,
    client: ClusterClient,
    recorder: EventRecorder,
    queues: Collection[QueueState] = (),
) -> Figures:
    """The metrics of this moment; `queues` are the states of the declared queues in the order of declaration."""
    reasons: Counter[str] = Counter()
    for record in cache.queued():
        reasons[record.pending.reason if record.pending else ""] += 1
    return Figures(
        phases=Counter(record.phase.value for record in cache.records()),
        waiting=reasons,
        free={
            (name, resource): amount
            for name, cluster in clusters.items()
            for resource, amount in _free(cluster).items()
        },
        reconnects=informer.reconnects
        | {
            (name, watch): count
            for name, cluster in clusters.items()
            for watch, count in cluster.reconnects.items()
        },
        writes=dict(client.writes),
        events_dropped=recorder.dropped,
        internal_errors=log.internal_errors(),
        queues=figures_of(queues),
    )


def figures_of(queues: Collection[QueueState]) -> QueueFigures:
    """The figures of the first `MOST_QUEUES` queues, with at most `MOST_AMOUNTS` amounts of each kind."""

    def amounts(of: Callable[[QueueState], Mapping[str, int]]) -> dict[tuple[str, ...], float]:
        every = (((each.name, name), amount) for each in measured for name, amount in of(each).items())
        return dict(islice(every, MOST_AMOUNTS))

    measured = list(islice(queues, MOST_QUEUES))
    return QueueFigures(
        nominal=amounts(lambda each: each.nominal),
        used=amounts(lambda each: each.used),
        borrowed=amounts(lambda each: each.borrowed),
        pending={(each.name,): each.pending for each in measured},
        share={
            (each.name,): inf if each.share.shown is None else each.share.shown
            for each in measured
            if each.share is not None
        },
    )


def _free(cluster: Cluster) -> dict[str, int]:
    """The free amount of each resource that the cluster has; an exhausted resource is 0, not absent."""
    free = cluster.ledger.free()
    return {resource: free[resource] for resource in {*cluster.ledger.total(), *free}}
