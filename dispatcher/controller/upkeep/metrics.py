"""The current metrics, gathered from memory at each scrape: they cost nothing in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dispatcher import log
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.events import EventRecorder
from dispatcher.probes import Figures


def gather(
    cache: Cache,
    clusters: Mapping[str, Cluster],
    informer: AppWrapperInformer,
    client: ClusterClient,
    recorder: EventRecorder,
) -> Figures:
    """The metrics of this moment."""
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
    )


def _free(cluster: Cluster) -> dict[str, int]:
    """The free amount of each resource that the cluster has; an exhausted resource is 0, not absent."""
    free = cluster.ledger.free()
    return {resource: free[resource] for resource in {*cluster.ledger.total(), *free}}
