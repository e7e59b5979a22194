"""A registry with a sample of every metric, and its metrics as docs/metrics.md and queries name them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.probes import Metrics, MetricValues, QueueMetricValues

OF_HISTOGRAMS: Final = ("bucket", "count", "sum")


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as Prometheus sees it: its type, and the names of its labels in order of the alphabet."""

    kind: str
    labels: tuple[str, ...] = ()


def full_metrics() -> Metrics:
    """Metrics with at least one sample of each family."""
    metrics = Metrics()
    metrics.leading.set(1)
    metrics.database_up.set(1)
    metrics.is_ready = lambda: True
    metrics.preemptions.labels("FairShare").inc()
    metrics.provisioning_seconds.labels("provisioned").observe(60)
    metrics.potential_failures.labels("gke-west", "l4").inc()
    metrics.metric_values = lambda: MetricValues(
        phases={"Queued": 2, "Running": 1},
        waiting={"InsufficientResources": 2},
        oldest={"InsufficientResources": 90.0},
        head_blocked=60.0,
        free={("hub", "cpu"): -500},
        total={("hub", "cpu"): 8000},
        left_out={"hub": 8},
        reachable={"hub": True},
        failing={("hub", "pods"): False},
        reconnects={("hub", "pods"): 3},
        writes={("post", "rayclusters"): 4},
        write_errors={("post", "rayclusters", "Unavailable"): 1},
        events_dropped=5,
        internal_errors={"owners": 6},
        queues=QueueMetricValues(
            nominal={("team", "cpu"): 4000},
            used={("team", "cpu"): 5500},
            borrowed={("team", "cpu"): 1500},
            pending={("team",): 7},
            share={("team",): inf},
        ),
    )
    return metrics


def described() -> dict[str, Described]:
    """Every metric of the registry by its name; raises if one has no sample in `full_metrics`."""
    found = {}
    for family in full_metrics().registry.collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.samples, f"{name} has no sample in tests/metrics.py"
        found[name] = Described(family.type, tuple(sorted(labels)))
    return found


def series_names() -> set[str]:
    """The names that a query may use: those of histograms are their buckets, counts and sums."""
    return {
        name
        for metric, description in described().items()
        for name in (
            [f"{metric}_{part}" for part in OF_HISTOGRAMS] if description.kind == "histogram" else [metric]
        )
    }


def names_of_notifier() -> set[str]:
    """The metrics of the notifier, which docs/notify.md describes."""
    families = NotifierMetrics().registry.collect()
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
