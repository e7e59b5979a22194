"""The pods of one AppWrapper, counted by phase."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The pods of one AppWrapper by phase; every live one that does not run is pending.

    Of the pending, `starting` and `unschedulable` are in that plight; of the failed, `evicted`. `lost` are the live
    ones on nodes that are known and not Ready. `exit_codes` are those of all failed ones.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    starting: int = 0
    unschedulable: int = 0
    lost: int = 0
    evicted: int = 0
    exit_codes: frozenset[int] = frozenset()

    @property
    def live(self) -> int:
        """How many are neither Succeeded nor Failed: capacity is not free before this is 0."""
        return self.pending + self.running
