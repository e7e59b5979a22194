"""The metrics of the notifier; the label `target` has the names that the operator declares."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class NotifierMetrics:
    """One registry with all metrics of one notifier."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sending = Gauge(
            "dispatcher_notify_sending", "1 while this process sends", registry=self.registry
        )
        self.sent = Counter(
            "dispatcher_notify_sent", "Messages that the target has taken", ["target"], registry=self.registry
        )
        self.failures = Counter(
            "dispatcher_notify_failures",
            "Attempts to send that failed; a message is sent again",
            ["target"],
            registry=self.registry,
        )
        self.dropped = Counter(
            "dispatcher_notify_dropped",
            "Messages that were given up, by the reason: age, backlog or refused",
            ["target", "reason"],
            registry=self.registry,
        )
        self.behind = Gauge(
            "dispatcher_notify_behind_messages",
            "Messages that the target has not taken yet, and events that were not read for it yet",
            ["target"],
            registry=self.registry,
        )
        self.lag = Gauge(
            "dispatcher_notify_lag_seconds",
            "Age of the oldest message that the target has not taken, or event that was not read for it",
            ["target"],
            registry=self.registry,
        )
        self.closed = Counter(
            "dispatcher_notify_closed_choices",
            "Events whose AppWrapper chooses a target that is not declared, or not open to its namespace",
            registry=self.registry,
        )
        self.errors = Counter(
            "dispatcher_notify_errors",
            "Unexpected errors, which are defects; what raised one is passed over or tried again",
            registry=self.registry,
        )

    def forget_targets(self) -> None:
        """Show no target as behind: others are declared from now on, or this process does not send any more."""
        self.behind.clear()
        self.lag.clear()
