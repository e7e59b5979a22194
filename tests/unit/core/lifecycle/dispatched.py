"""Gangs of three pods that were dispatched, and what tests about their pods have in common."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import NotedIssue, Phase, Record
from tests.builders import at, make_gang, make_record

GANG = make_gang(3)
NEVER_RAN = make_record(Phase.DISPATCHED, gang=GANG)
"""Dispatched at second 2."""
RAN = make_record(Phase.RUNNING, gang=GANG)
SERVER = CompletionRule(holds=True, pods=3)
NOT_READY, FOUND_FAILED = words.INSUFFICIENT_PODS_READY, words.FOUND_FAILED_PODS


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


PATIENT = Requeuing(wait=minutes(1))
EXPLICIT = Requeuing(wait=minutes(1), explicit=True)


def unhealthy(record: Record, reason: str, since: float = 60) -> Record:
    return replace(record, unhealthy=NotedIssue(reason, "something", at(since)))


Outline = Do | tuple[Cause, frozenset[int]]
"""A decision to compare: an act as it is, a change by its cause and the items that are done after it."""


def outline(decision: Decision) -> Outline:
    """The outline of a decision; the changes themselves are tested beside it."""
    if isinstance(decision, Do):
        return decision
    attempt = decision.change.after.attempt
    return by(
        decision.cause, frozenset(ref.item for ref in attempt.objects if ref.done) if attempt else frozenset()
    )


def by(cause: Cause, done: frozenset[int] = frozenset()) -> Outline:
    """The outline of a change."""
    return cause, done


def act_of(decision: Decision | Outline) -> Do:
    """The act that a decision is."""
    assert isinstance(decision, Do)
    return decision


def step_of(decision: Decision | Outline) -> Act | Cause:
    """What a decision does, without its arguments."""
    if isinstance(decision, Do):
        return decision.act
    return decision.cause if isinstance(decision, Commit) else decision[0]
