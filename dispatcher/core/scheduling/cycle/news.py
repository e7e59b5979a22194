"""Which outcomes of a cycle over queues change a record; a refusal of a class is looked at once for equal records.

A gang that is no head lacks quota in two ways by turns, because quota that becomes free is promised before it is used:
there is none, or what there is, is kept for gangs that go first. Between these two its record stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.lifecycle.queue_changes import (
    PendingKey,
    is_known_not_evaluated,
    pending_key,
    pending_key_of,
    says_otherwise,
)
from dispatcher.core.model.records.pending_reasons import ENDS_WITH_OTHERS, codes
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Outcome, Waiting, refusal
from dispatcher.core.scheduling.fit.refused import Refused
from dispatcher.core.scheduling.queued.queued_gangs import QueueClass


class Unplaced(Struct, frozen=True):
    """A gang of a queue that no cluster takes now; `outcome` adds the message, which takes longer than the decision."""

    record: Record
    refused: Refused
    queue: str = ""
    is_head: bool = False

    @property
    def may_be_head(self) -> bool:
        """True if the gang waits for room that ends of other gangs free."""
        return self.refused.may_fit_later and self.refused.nearest.reason in ENDS_WITH_OTHERS

    @property
    def key(self) -> PendingKey:
        """The key that the record has once it says so."""
        if self.refused.reservation is not None:
            return pending_key_of(self.outcome.pending)
        return PendingKey(*self.refused.nearest, is_backoff=True, queue=self.queue)

    @property
    def outcome(self) -> Waiting | Impossible:
        """The outcome of the cycle for the record."""
        found = refusal(self.record, self.refused, is_head=self.is_head)
        return replace(found, pending=replace(found.pending, queue=self.queue)) if self.queue else found


NewOutcome = Outcome | Unplaced
"""An outcome of a cycle; the message of an `Unplaced` gang is made on demand."""


def outcome_of(news: NewOutcome) -> Outcome:
    """The outcome with its message; with many clusters, that takes a tenth of a millisecond."""
    return news.outcome if isinstance(news, Unplaced) else news


Refusal = Waiting | Impossible | NotEvaluated | Unplaced

_BY_TURNS: Final = codes(lambda each: each.takes_turns)


class ClassRefused(Struct, frozen=True):
    """All gangs of a class that were not decided by themselves wait for the same reason, and none is a head."""

    class_: QueueClass
    answer: Refusal

    @classmethod
    def by(cls, answer: Refusal, class_: QueueClass) -> Self:
        """The refusal of a class by the answer for its first gang, which may be the head of its queue."""
        if isinstance(answer, Waiting | Unplaced) and answer.is_head:
            answer = replace(answer, is_head=False)
        return cls(class_, answer)

    def outcome(self, record: Record) -> NewOutcome:
        """The outcome for one of the gangs."""
        return replace(self.answer, record=record)

    def news(self) -> Iterator[str]:
        """The uids of the gangs whose records say something else."""
        for known, uids in self.class_.by_pending_key.items():
            if self.class_.key.is_preempting or not _says(known, self.answer):
                yield from uids


def is_news(outcome: object) -> bool:
    """True if an outcome changes a record."""
    match outcome:
        case Unplaced(record, is_head=is_head):
            becomes_head = is_head and record.blocked_since is None
            return becomes_head or record.is_preempting or pending_key(record) != outcome.key
        case Waiting(record, pending, is_head) if is_head:
            return record.blocked_since is None or says_otherwise(record, pending)
        case Waiting(record, pending):
            is_same = _are_without_quota(pending_key(record), pending) and not record.is_preempting
            return not is_same and says_otherwise(record, pending)
        case Impossible(record, pending):
            return says_otherwise(record, pending)
        case NotEvaluated(record):
            return not _says(pending_key(record), outcome)
        case _:
            return True


def _says(known: PendingKey, answer: Refusal) -> bool:
    """True if records with this key say what the answer says."""
    if isinstance(answer, NotEvaluated):
        return is_known_not_evaluated(known, answer.pending)
    if isinstance(answer, Unplaced):
        return known == answer.key
    return known == pending_key_of(answer.pending) or _are_without_quota(known, answer.pending)


def _are_without_quota(known: PendingKey, pending: Pending) -> bool:
    return {known.reason, pending.reason} == _BY_TURNS and known.queue == pending.queue
