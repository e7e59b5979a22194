"""The order of the pending queue.

One formula, shared with the SQL view `history.queue_now`: effective priority
(`priority + priorityslope * age in seconds`) descending, then age, then `enqueue_seq`. The age counts from the
creation, without the time in which the author kept the gang back (`core.lifecycle.ageing`). Both sides compute in
double precision, so they agree to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dispatcher.core.model.records.record import Phase, Record

Rank = tuple[float, datetime, int]


def effective_priority(record: Record, now: datetime) -> float:
    """Priority plus slope times the age in seconds."""
    if not record.priority_slope:
        return float(record.priority)
    return record.priority + record.priority_slope * (now - record.age_begins_at).total_seconds()


def in_order(records: Iterable[Record], now: datetime) -> list[Record]:
    """The queued and eligible records in queue order."""
    eligible = [record for record in records if is_eligible(record, now)]
    return sorted(eligible, key=lambda record: rank(record, now))


def rank(record: Record, now: datetime) -> Rank:
    """The rank in the queue: the lowest is first. Without a slope it never changes."""
    return -effective_priority(record, now), record.age_begins_at, record.enqueue_seq


def is_eligible(record: Record, now: datetime) -> bool:
    """True if the record is queued, has all approvals, and is not postponed beyond `now`."""
    if record.phase is not Phase.QUEUED or record.awaits_approval:
        return False
    return record.eligible_at is None or record.eligible_at <= now
