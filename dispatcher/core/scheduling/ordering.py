"""The order of the queue: who is looked at before whom.

One formula, shared with the SQL view `history.queue_now`: effective priority
(`priority + priorityslope * seconds since creation`) descending, then creation, then the order in which the
store took them in. All in double precision, as Postgres computes it, so both sides agree to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from dispatcher.core.model.record import Phase, Record

Rank = tuple[float, datetime, int]


def effective_priority(record: Record, now: datetime) -> float:
    """Static priority plus what waiting has added; the age is in seconds."""
    if not record.priority_slope:
        return float(record.priority)
    return record.priority + record.priority_slope * (now - record.created_at).total_seconds()


def in_order(records: Iterable[Record], now: datetime) -> list[Record]:
    """What is queued and may be dispatched now, the first to be looked at first."""
    waiting = [record for record in records if _is_waiting(record, now)]
    return sorted(waiting, key=lambda record: rank(record, now))


def rank(record: Record, now: datetime) -> Rank:
    """Where it stands: the lowest is looked at first. Without a slope it never changes."""
    return -effective_priority(record, now), record.created_at, record.enqueue_seq


def starved(records: Iterable[Record], now: datetime, bound: timedelta) -> frozenset[str]:
    """The uids of those that have been blocked since they were first at the head, for longer than `bound`."""
    return frozenset(
        record.uid for record in records if record.blocked_since and now - record.blocked_since >= bound
    )


def next_eligible(records: Iterable[Record], now: datetime) -> datetime | None:
    """When the next record becomes eligible that is queued but may not be dispatched yet."""
    later = (record.eligible_at for record in records if record.eligible_at and record.eligible_at > now)
    return min(later, default=None)


def _is_waiting(record: Record, now: datetime) -> bool:
    return record.phase is Phase.QUEUED and (record.eligible_at is None or record.eligible_at <= now)
