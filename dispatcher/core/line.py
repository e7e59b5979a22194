"""The queue kept ready for the next pass: what `plan` says of it, at the cost of what changed.

`in_order` and `plan` are the definition, from scratch: they sort and look at every record. A `Line` comes to
the same decisions (a property test holds the two together), but keeps the queue between passes in order, by
shape (the gang and what it requires of a cluster), and by what each AppWrapper was last told. So a pass in which
nobody fits looks at one record of each distinct shape, and names only those to whom the answer is news. While the
clusters stay as they were, the answers are remembered; and if nothing at all has changed since a pass that had no
news, neither has this one.

Two kinds of record are looked at in every pass nevertheless: those with a slope, for their order changes with
time, and in a strict queue those before the head, which can never fit.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.choice import ANYWHERE, Site, Where
from dispatcher.core.lifecycle import Told, told, told_by
from dispatcher.core.placement import Behind, Outcome, Placed, Planning, Policy, Refusal, Waiting, behind
from dispatcher.core.queueing import Rank, next_eligible, rank, starved
from dispatcher.core.record import Record, Shape

Key = tuple[Rank, str]
"""Where a record stands; the uid makes it unlike any other."""


class Line:
    """Queued records. The clock that `plan` is given never goes back.

    What they require of a cluster counts only where there are members: on the hub alone there is nothing to choose.
    """

    def __init__(self) -> None:
        self._has_choice = False
        self._records: dict[str, Record] = {}
        self._shapes: dict[Shape, _Shape] = {}
        self._sloped: dict[str, Record] = {}
        self._postponed: dict[str, Record] = {}
        self._blocked: dict[str, Record] = {}
        self._changed = True
        self._last = _Memory()

    def __iter__(self) -> Iterator[Record]:
        """What is queued, in no order."""
        return iter(self._records.values())

    def put(self, record: Record) -> None:
        """Take in a queued record, or what has become of one that is queued still."""
        self.remove(record.uid)
        self._changed = True
        self._records[record.uid] = record
        if record.blocked_since:
            self._blocked[record.uid] = record
        if record.eligible_at:
            self._postponed[record.uid] = record
        else:
            self._line_up(record)

    def remove(self, uid: str) -> None:
        """Forget a record that is queued no longer; safe to repeat."""
        record = self._records.pop(uid, None)
        if record is None:
            return
        self._changed = True
        self._blocked.pop(uid, None)
        if self._postponed.pop(uid, None) or self._sloped.pop(uid, None):
            return
        shape = self._shapes[self._shape(record)]
        shape.remove(record)
        if not shape.keys:
            del self._shapes[self._shape(record)]

    def wheres(self) -> Iterator[Where]:
        """What those that are lined up require, in no order; cheap once there were members at the last pass."""
        if not self._has_choice:
            yield from {record.where for record in self._records.values()}
            return
        yield from {where for _, where in self._shapes}
        yield from {record.where for record in self._sloped.values()}

    def _regard(self, sites: Mapping[str, Site]) -> None:
        """Tell shapes apart by what they require, if there is something to choose from."""
        has_choice = bool(sites.keys() - {HUB_CLUSTER})
        if has_choice == self._has_choice:
            return
        records = list(self._records.values())
        for record in records:
            self.remove(record.uid)
        self._has_choice = has_choice
        for record in records:
            self.put(record)

    def _shape(self, record: Record) -> Shape:
        return record.shape if self._has_choice else (record.gang, ANYWHERE)

    def next_eligible(self, now: datetime) -> datetime | None:
        """When the next record becomes eligible that is queued but may not be dispatched yet."""
        return next_eligible(self._postponed.values(), now)

    def plan(
        self, sites: Mapping[str, Site], policy: Policy, bound: timedelta, now: datetime
    ) -> list[Outcome]:
        """The outcomes of a pass that are news to their AppWrappers, in queue order.

        `bound` is how long one may be blocked at the head before it is protected. The snapshots are used up
        by what is placed.
        """
        self._regard(sites)
        self._line_up_eligible(now)
        protected = self._protected(policy, bound, now)
        # Also what they require: it decides where capacity is kept for them, and so what others are refused.
        kept_for = tuple((record.uid, record.shape) for record in protected)
        last = self._last if (self._last.sites, self._last.protected) == (sites, kept_for) else _Memory()
        if last.is_quiet and not self._changed and not self._sloped:
            return []
        planning = Planning(sites, last.refusals)
        seen = _Pass(planning, planning.protect(protected, {record.uid for record in protected}))
        if policy is Policy.STRICT_FIFO:
            self._pass_up_to_head(seen, now)
        else:
            self._pass_by_shape(seen, now)
        news = sorted(filter(_is_news, seen.outcomes.values()), key=lambda each: rank(each.record, now))
        self._changed = False
        self._last = _Memory()
        if not planning.has_placed:
            self._last = _Memory(sites, kept_for, planning.refusals, is_quiet=not news)
        return news

    def _protected(self, policy: Policy, bound: timedelta, now: datetime) -> list[Record]:
        """Those that have been blocked for too long, in order."""
        if policy is Policy.STRICT_FIFO:
            return []
        uids = starved(self._blocked.values(), now, bound) - self._postponed.keys()
        return sorted((self._records[uid] for uid in uids), key=lambda record: rank(record, now))

    def _pass_up_to_head(self, seen: _Pass, now: datetime) -> None:
        """One by one up to the first that waits; nobody behind it is looked at."""
        sloped = sorted(_key(record, now) for record in self._sloped.values())
        for _, uid in heapq.merge(sloped, *(shape.keys for shape in self._shapes.values())):
            if isinstance(seen.look_at(self._records[uid]), Waiting):
                break
        if seen.head is not None:
            answer = behind(seen.head, seen.head)
            for shape in self._shapes.values():
                self._tell(shape, answer, seen)
            for record in self._sloped.values():
                seen.outcomes.setdefault(record.uid, replace(answer, record=record))

    def _pass_by_shape(self, seen: _Pass, now: datetime) -> None:
        """In order; but once one of a shape does not fit, none does, and the shape is answered as a whole.

        Those that are protected were decided before and stand for themselves, as do those with a slope.
        """
        protected = frozenset(seen.outcomes)
        alone = {uid: self._records[uid] for uid in protected} | self._sloped
        heap = [candidates for shape in self._shapes.values() for candidates in shape.candidates(protected)]
        heap += [(_key(record, now), iter(()), None) for record in alone.values()]
        heapq.heapify(heap)
        refused: list[tuple[_Shape, Outcome]] = []
        while heap:
            (_, uid), keys, shape = heap[0]
            outcome = seen.look_at(self._records[uid])
            following = next(keys, None) if isinstance(outcome, Placed) else None
            if shape is not None and not isinstance(outcome, Placed):
                refused.append((shape, outcome))
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, keys, shape))
        for refused_shape, refusal in refused:
            self._tell(refused_shape, refusal, seen)

    def _tell(self, shape: _Shape, answer: Outcome, seen: _Pass) -> None:
        """Give the answer to all of the shape who do not know it and were not looked at themselves."""
        for known, uids in shape.told.items():
            if not _is_known(known, answer):
                for uid in uids:
                    if uid not in seen.outcomes:
                        seen.outcomes[uid] = replace(answer, record=self._records[uid])

    def _line_up(self, record: Record) -> None:
        if record.priority_slope:
            self._sloped[record.uid] = record
            return
        shape = self._shapes.get(self._shape(record))
        if shape is None:
            shape = self._shapes[self._shape(record)] = _Shape()
        shape.add(record)

    def _line_up_eligible(self, now: datetime) -> None:
        for record in [each for each in self._postponed.values() if _is_eligible(each, now)]:
            del self._postponed[record.uid]
            self._line_up(record)
            self._changed = True


Candidates = tuple[Key, Iterator[Key], "_Shape | None"]
"""The first to be looked at, those of its shape that follow, and the shape; None for who stands alone."""


class _Shape:
    """Records of one shape: in order, and by what they were told."""

    __slots__ = ("keys", "told")

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.told: dict[Told, set[str]] = {}

    def add(self, record: Record) -> None:
        insort(self.keys, _static_key(record))
        self.told.setdefault(told(record), set()).add(record.uid)

    def remove(self, record: Record) -> None:
        del self.keys[bisect_left(self.keys, _static_key(record))]
        known = told(record)
        self.told[known].discard(record.uid)
        if not self.told[known]:
            del self.told[known]

    def candidates(self, but: frozenset[str]) -> list[Candidates]:
        """Itself, unless nobody is left in it."""
        keys = (key for key in self.keys if key[1] not in but) if but else iter(self.keys)
        first = next(keys, None)
        return [] if first is None else [(first, keys, self)]


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a pass that placed nothing was asked, and what it answered; `is_quiet` if that was news to nobody."""

    sites: Mapping[str, Site] | None = None
    protected: tuple[tuple[str, Shape], ...] = ()
    refusals: Mapping[Shape, Refusal] = field(default_factory=dict)
    is_quiet: bool = False


class _Pass:
    """What was decided so far, by uid, and who is the first that waits."""

    def __init__(self, planning: Planning, protected: Mapping[str, Placed | Refusal]) -> None:
        self.outcomes: dict[str, Outcome] = dict(protected)
        self.head: Record | None = None
        self._planning = planning
        self._protected = protected

    def look_at(self, record: Record) -> Placed | Refusal:
        """Decide for the next in order."""
        outcome = self._protected.get(record.uid) or self._planning.place(record)
        self.outcomes[record.uid] = outcome
        if self.head is None and isinstance(outcome, Waiting):
            self.head = record
            self.outcomes[record.uid] = replace(outcome, is_head=True)
        return outcome


def _is_known(known: Told, answer: Outcome) -> bool:
    """True if one who was told `known` learns nothing from the answer."""
    match answer:
        case Placed():
            return False
        case Behind():
            return known.reason == answer.pending.reason
        case _:
            return known == told_by(answer.pending)


def _is_news(outcome: Outcome) -> bool:
    becomes_head = isinstance(outcome, Waiting) and outcome.is_head and not outcome.record.blocked_since
    return becomes_head or not _is_known(told(outcome.record), outcome)


def _is_eligible(record: Record, now: datetime) -> bool:
    return record.eligible_at is None or record.eligible_at <= now


def _key(record: Record, now: datetime) -> Key:
    return rank(record, now), record.uid


def _static_key(record: Record) -> Key:
    """Without a slope it is the same at any time."""
    return _key(record, record.created_at)
