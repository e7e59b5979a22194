"""The pods of one AppWrapper, counted by phase."""

from __future__ import annotations

from msgspec import Struct


class PodCounts(Struct, frozen=True):
    """The pods of one AppWrapper by phase; every live pod that does not run is pending.

    `starting`, `unschedulable` and `gated` count pending pods; the dispatcher's own scheduling gate stops gated ones.
    `evicted` counts failed pods, `lost` counts live pods on nodes that are not Ready, and `unbound` live pods without a
    node and without that gate. `exit_codes` are those of all failed pods.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    starting: int = 0
    unschedulable: int = 0
    gated: int = 0
    lost: int = 0
    evicted: int = 0
    unbound: int = 0
    exit_codes: frozenset[int] = frozenset()

    @property
    def live(self) -> int:
        """The number of pods that are neither Succeeded nor Failed; capacity is released once it is 0."""
        return self.pending + self.running
