"""Why a running gang is preempted, in Kueue's words where it has them."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a gang is preempted; also the reason of its condition PreemptCandidate."""

    PRIORITY_IN_QUEUE = "PriorityInQueue"
    QUOTA_RECLAIMED = "QuotaReclaimed"
    QUOTA_RECLAIMED_WHILE_BORROWING = "QuotaReclaimedWhileBorrowing"
    FAIR_SHARE = "FairShare"

    @property
    def words(self) -> str:
        """The reason in words, about the gang that is preempted."""
        return _WORDS[self]


_WORDS: Final = {
    Reason.PRIORITY_IN_QUEUE: "in its own queue the other gang goes first",
    Reason.QUOTA_RECLAIMED: "its queue uses more than its quota, which the other queue takes back",
    Reason.QUOTA_RECLAIMED_WHILE_BORROWING: "its queue borrows, and the other gang has a higher priority",
    Reason.FAIR_SHARE: "its queue uses more than its fair share",
}

PREEMPTIONS_WITHIN: Final = timedelta(hours=24)
"""The time in which preemptions count: those of a gang against `maxPreemptions`, and those of a circle."""

MOST_REMEMBERED: Final = 20
"""Preemptions of a gang that its record remembers."""

PREEMPT_LOWER: Final = "PreemptLowerPriority"
PREEMPT_NEVER: Final = "Never"
"""The preemption policies of pods and of PriorityClasses. Source: k8s.io/api, core/v1, PreemptionPolicy."""
