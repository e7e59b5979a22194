"""Policy of orphan garbage collection: which anchors in a member are orphans, and which of them may be deleted.

The anchor of an attempt that has ended, or whose AppWrapper is deleted, is always deleted. The anchor of an attempt
that the database does not know is deleted only if all such anchors are a small share of the member's anchors: a wrong
database must not empty a cluster. After a restore of the database, unknown anchors from before it stay.
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


class AnchorState(StrEnum):
    """Whether the attempt of an anchor has objects, has ended, or is not in the database."""

    LIVE = "live"
    ENDED = "ended"
    UNKNOWN = "unknown"


def anchor_state(attempt: int, record: Record | None, *, may_come: bool) -> AnchorState:
    """The state of the anchor of attempt number `attempt`.

    `record` is the record of its AppWrapper, None if the database has none. `may_come` is true if the AppWrapper is on
    the hub and its intake may follow, or if the list of AppWrappers is not complete.
    """
    if record is None:
        return AnchorState.LIVE if may_come else AnchorState.UNKNOWN
    if attempt > record.attempts:
        return AnchorState.UNKNOWN
    # Only the number counts: the cluster may have another name since the dispatch.
    if record.attempt is None or record.attempt.number != attempt:
        return AnchorState.ENDED
    return AnchorState.LIVE if record.has_objects else AnchorState.ENDED


def is_small_share(unknown: int, anchors: int) -> bool:
    """True if this number of unknown anchors, among all `anchors` of a cluster, may be removed."""
    return unknown <= max(FEW, anchors * LARGEST_SHARE // 100)


def was_missed(created_at: datetime, restored_at: datetime | None) -> bool:
    """True for an unknown anchor that a restored database may have known before its restore."""
    return restored_at is not None and created_at <= restored_at + CLOCKS_APART
