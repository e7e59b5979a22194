"""The age of a gang, by which gangs of equal priority go: it stands still while the author keeps the gang back.

Anybody can make gangs long before they are wanted. If their age counted from their creation, they would pass the gangs
of everybody else once their author lets them go. So the age counts the time in which the gang would have been
dispatched, had there been capacity, as far as its author decides it:

- It stands still while the author suspends the gang, or lacks an approval that only the author's annotation names.
- While the gang waits for a reason that capacity does not end (`NEEDS_ANOTHER_PLACE`), the age stands still if the
  gang goes on with another queue or selector. It counts if the reason ends without that: then an operator ended it.
- It stands still while the gang lacks something that its author may provide later on purpose (`STOPS_AGE`), such as a
  pod that its affinity requires. No capacity would have let the gang run meanwhile, so this time never counts.
- A reason that does not say whether the gang goes where it is (`UNDECIDED`) neither stops the age nor lets it go on.
- It stands still in the pause after an attempt that ended because of the gang: its author has had a turn, and writes
  how long the pause is.
- It counts while the gang lacks capacity or quota, or while an operator stops its queue or its clusters.

Each function takes constant time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from dispatcher.core.model.records.pending_reasons import NEEDS_ANOTHER_PLACE, STOPS_AGE, UNDECIDED
from dispatcher.core.model.records.record import Pending, Record


class Ageing(NamedTuple):
    """The two fields of a record that say how old it is."""

    aged_from: datetime | None
    age_stopped_at: datetime | None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the record, by name, as changes of records take them."""
        return self._asdict()


def kept_back(record: Record, now: datetime) -> Ageing:
    """Stops the age, unless it has stopped already."""
    return Ageing(record.aged_from, record.age_stopped_at or now)


def waiting(record: Record, pending: Pending, now: datetime) -> Ageing:
    """Stops the age of a gang that waits for such a reason that only its author can end; else it goes on.

    The time since an earlier stop counts then, as the author has changed nothing since, but not the time of a reason
    that stops the age in any case.
    """
    if pending.reason in STOPS_AGE:
        return kept_back(record, now) if _is_stopped(record) else Ageing(record.aged_from, now)
    age = changed_by_author(record, now) if _is_stopped(record) else _as_it_is(record)
    if pending.reason in NEEDS_ANOTHER_PLACE:
        return age._replace(age_stopped_at=age.age_stopped_at or now)
    return age if pending.reason in UNDECIDED else age._replace(age_stopped_at=None)


def dispatched(record: Record, now: datetime) -> Ageing:
    """Lets the age go on. The time since an earlier stop counts as for `waiting`."""
    return let_go(record, now) if _is_stopped(record) else Ageing(record.aged_from, None)


def _is_stopped(record: Record) -> bool:
    """True while the gang waits for a reason that stops its age."""
    return record.pending is not None and record.pending.reason in STOPS_AGE


def _as_it_is(record: Record) -> Ageing:
    return Ageing(record.aged_from, record.age_stopped_at)


def paused(record: Record, until: datetime, now: datetime) -> Ageing:
    """Leaves out the time from now on in which the gang may not be dispatched."""
    if until <= now:
        return _as_it_is(record)
    return Ageing(record.age_begins_at + (until - now), record.age_stopped_at)


def changed_by_author(record: Record, now: datetime) -> Ageing:
    """Leaves out the time since the age has stopped; it stands still from now on, if it did."""
    stopped_at = record.age_stopped_at
    if stopped_at is None:
        return Ageing(record.aged_from, None)
    # A pause that has been left out already may be cut short by a suspension.
    return Ageing(min(now, record.age_begins_at + (now - stopped_at)), now)


def let_go(record: Record, now: datetime) -> Ageing:
    """Leaves out the time since the age has stopped, and lets it go on."""
    return changed_by_author(record, now)._replace(age_stopped_at=None)


def sentence(before: Record, after: Ageing) -> str:
    """How much the age leaves out, for the history of the gang; empty if that is nothing."""
    begins_at = after.aged_from or before.created_at
    if begins_at == before.age_begins_at:
        return ""
    return f"its age counts from {begins_at:%Y-%m-%d %H:%M:%S} UTC, without the time in which its author kept it back"
