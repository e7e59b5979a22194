"""Gangs of three pods that were dispatched, and what tests about their pods have in common."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.model.record import NotedIssue, Phase, Record
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
