"""Policy of orphan garbage collection: which anchors in a member belong to no attempt any more, and which may go.

An attempt that the database says to be over, or whose AppWrapper it says to be deleted, is removed for certain. An
attempt that the database does not know is removed only if all such attempts are a small share of the member's anchors:
a mistaken database must not empty a cluster. After a restore of the database, unknown anchors from before it stay.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from dispatcher.core.model.record import Record

LARGEST_SHARE: Final = 20
"""In percent of the anchors in a cluster."""
FEW: Final = 5
"""Unknown anchors that are removed whatever their share: a fifth of two anchors would be none."""
CLOCKS_APART: Final = timedelta(minutes=5)
"""The largest difference between the clocks of a member and of the database."""


class Standing(StrEnum):
    """Whether the attempt of an anchor goes on, is over, or is not in the database."""

    LIVE = "live"
    OVER = "over"
    UNKNOWN = "unknown"


def standing(attempt: int, record: Record | None, *, may_come: bool) -> Standing:
    """The standing of the anchor of an attempt.

    `record` is that of its AppWrapper, None if the database knows none. `may_come` is true if the AppWrapper is on the
    hub without having been taken in, or if the hub's list is not complete.
    """
    if record is None:
        return Standing.LIVE if may_come else Standing.UNKNOWN
    if attempt > record.attempts:
        return Standing.UNKNOWN
    # Only the number counts: the cluster may have another name since the dispatch.
    if record.attempt is None or record.attempt.number != attempt:
        return Standing.OVER
    return Standing.LIVE if record.has_objects else Standing.OVER


def is_small_share(unknown: int, anchors: int) -> bool:
    """True if this number of unknown anchors, among all `anchors` of a cluster, may be removed."""
    return unknown <= max(FEW, anchors * LARGEST_SHARE // 100)


def was_missed(created_at: datetime, restored_at: datetime | None) -> bool:
    """True for an unknown anchor that a restored database may have known before its restore."""
    return restored_at is not None and created_at <= restored_at + CLOCKS_APART
