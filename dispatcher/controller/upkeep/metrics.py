"""The current metrics, gathered from memory at each scrape: they cost nothing in between.

No label has the name of an AppWrapper, a namespace or a node, so the number of series has a bound (docs/metrics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import log
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model.records.record import Record
from dispatcher.core.status.queue_status import QueueState
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.reflector import Reflector
from dispatcher.probes import MetricValues, QueueMetricValues

MOST_QUEUES: Final = 1000
MOST_AMOUNTS: Final = 10_000
"""Queues, and pairs of a queue and a resource, with metrics: the first in the order of declaration.

Labels have names of declared queues only, never a name that an AppWrapper asks for.
"""


class Sources(Struct, frozen=True):
    """Where a leader's metrics are gathered.

    `clusters` are the connected ones. `reachable` says of each declared cluster whether it answers. `watches` returns
    every watch with the name of its cluster. `queues` are the states of the declared queues, in their order.
    """

    cache: Cache
    clusters: Mapping[str, WatchedCluster]
    reachable: Callable[[], Mapping[str, bool]]
    informer: AppWrapperInformer
    watches: Callable[[], Iterable[tuple[str, Reflector[Any]]]]
    client: ClusterClient
    queues: Callable[[], Collection[QueueState]]


def gather(sources: Sources, now: datetime) -> MetricValues:
    """The metrics of this moment."""
    clusters, writes = sources.clusters, sources.client.writes
    values = MetricValues(
        phases=Counter(record.phase.value for record in sources.cache.records()),
        free=_of_each(clusters, _free),
        total=_of_each(clusters, lambda cluster: cluster.ledger.total()),
        left_out={name: cluster.ledger.left_out for name, cluster in clusters.items()},
        reachable=sources.reachable(),
        failing=_failing(sources.watches()),
        reconnects=sources.informer.reconnects
        | {
            (name, watch): count
            for name, cluster in clusters.items()
            for watch, count in cluster.reconnects.items()
        },
        writes=dict(writes.sent),
        write_errors=dict(writes.failed),
        events_dropped=writes.dropped_events.total(),
        internal_errors=log.internal_errors(),
        queues=metric_values_of(sources.queues()),
    )
    return with_queued(values, sources.cache.queued(), now)


def with_queued(values: MetricValues, queued: Iterable[Record], now: datetime) -> MetricValues:
    """The same values with those of the queued AppWrappers; an empty reason means not evaluated yet."""
    waiting: Counter[str] = Counter()
    first: dict[str, datetime] = {}
    blocked_since = now
    for record in queued:  # tens of thousands: times are compared here, and subtracted once
        reason = record.pending.reason if record.pending else ""
        waiting[reason] += 1
        begins_at = record.age_begins_at
        if begins_at < first.get(reason, now):
            first[reason] = begins_at
        if record.blocked_since is not None and record.blocked_since < blocked_since:
            blocked_since = record.blocked_since
    return replace(
        values,
        waiting=waiting,
        oldest={reason: (now - at).total_seconds() for reason, at in first.items()},
        head_blocked=(now - blocked_since).total_seconds(),
    )


def _failing(watches: Iterable[tuple[str, Reflector[Any]]]) -> dict[tuple[str, ...], bool]:
    """Whether each watch fails; two versions of one kind are one watch."""
    failing: dict[tuple[str, ...], bool] = {}
    for cluster, watch in watches:
        key = cluster, watch.name
        failing[key] = failing.get(key, False) or watch.is_failing
    return failing


def _of_each(
    clusters: Mapping[str, WatchedCluster], amounts: Callable[[WatchedCluster], Mapping[str, int]]
) -> dict[tuple[str, ...], int]:
    return {
        (name, resource): amount
        for name, cluster in clusters.items()
        for resource, amount in amounts(cluster).items()
    }


def metric_values_of(queues: Collection[QueueState]) -> QueueMetricValues:
    """The values of the first `MOST_QUEUES` queues, with at most `MOST_AMOUNTS` amounts of each kind."""

    def amounts(of: Callable[[QueueState], Mapping[str, int]]) -> dict[tuple[str, ...], float]:
        every = (((each.name, name), amount) for each in measured for name, amount in of(each).items())
        return dict(islice(every, MOST_AMOUNTS))

    measured = list(islice(queues, MOST_QUEUES))
    return QueueMetricValues(
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


def _free(cluster: WatchedCluster) -> dict[str, int]:
    """The free amount of each resource that the cluster has; an exhausted resource is 0, not absent."""
    free = cluster.ledger.free()
    return {resource: free[resource] for resource in {*cluster.ledger.total(), *free}}
