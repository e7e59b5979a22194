"""Capacity that is requested before a dispatch: answers of its class, sentences about them, and changes of the gang.

The request is noted, answered, tried again, or its answer revoked; failures of a class are counted.

Source: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/proposals/provisioning-request.md
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.clusters.provisioning import ProvisioningClass, RetryRule
from dispatcher.api.spec_errors import one_line
from dispatcher.core.kinds.object_status import FoundRequest, ObjectState
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason, at_latest_time, change_by, live_attempt
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.pending_reasons import AWAITING_CAPACITY
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import Attempt, Change, Pending, Record
from dispatcher.errors import IllegalTransition

LEAST_BETWEEN_NOTES: Final = timedelta(seconds=30)
"""Pause between two notes of what the class says: an ETA may change with every look of an autoscaler."""

LEAST_BETWEEN_REQUESTS: Final = timedelta(seconds=1)
"""Pause between a note and a request that is made again: its deletion may be repeated in a loop, and a watch may need a
moment to show a new one."""

_MOST_NAMED: Final = 5
_LONGEST_NAMED: Final = 60
"""How many refused parameters a sentence names, and how much of each name."""


class Answer(StrEnum):
    """The conditions of a ProvisioningRequest that decide, the first of them that is true first."""

    REVOKED = "CapacityRevoked"
    EXPIRED = "BookingExpired"
    FAILED = "Failed"
    PROVISIONED = "Provisioned"
    ACCEPTED = "Accepted"
    NONE = ""
    """The request has not been looked at."""


BROKEN: Final = frozenset({Answer.REVOKED, Answer.EXPIRED, Answer.FAILED})
"""Answers after which the capacity does not come, or is not kept."""


def answer_of(state: ObjectState | None) -> Answer:
    """The answer that the state of a request has; `state` is None while no watch has shown the request."""
    conditions = frozenset[str]() if state is None else state.conditions
    return next((each for each in Answer if each in conditions), Answer.NONE)


def sentence(state: ObjectState | None, cluster: str) -> str:
    """A sentence about the state of a request, in one line. It ends with the message of the class, if there is one."""
    answer = answer_of(state)
    said = f": {state.message}" if state is not None and state.message else ""
    if answer is Answer.NONE:
        return f"capacity is requested in cluster {cluster}, and not promised yet"
    return one_line(f"{_WORDS[answer]} in cluster {cluster}{said}")


def requested(cluster: str, refused: Sequence[str]) -> str:
    """A sentence about a new request; `refused` are the parameters of its author that it does not have."""
    said = sentence(None, cluster)
    if not refused:
        return said
    names = ", ".join(each[:_LONGEST_NAMED] for each in refused[:_MOST_NAMED])
    more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
    return one_line(
        f"{said}; without these parameters, which the class does not let authors set: {names}{more}"
    )


def is_of_new_request(message: str, cluster: str) -> bool:
    """True if a message is that of `requested`: nothing of the class was noted since."""
    return message.startswith(sentence(None, cluster))


def unanswered(asked: ProvisioningClass, cluster: str) -> str:
    """A sentence that nobody has looked at a request."""
    return (
        f"no autoscaler answered the request for capacity of class {asked.name} in cluster {cluster} "
        f"within {_in_words(asked.accept_within)}"
    )


def failures_with_revocation(record: Record, now: datetime) -> int:
    """How often in a row the class has failed the gang if it revokes the capacity of the live attempt now.

    It is 0 if the gang had the capacity for as long as the longest pause: then this is no loop, and needs none.
    """
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None:
        raise IllegalTransition(f"{record.uid}: no capacity was requested")
    had_it_for = now - (attempt.provisioning.provisioned_at or now)
    return 0 if had_it_for >= attempt.provisioning.asked.retry.longest else record.provisioning_failures + 1


def failures_before(record: Record) -> int:
    """How often in a row the class has failed the gang when its next attempt begins.

    Capacity that came, and was not revoked, ends the row.
    """
    earlier = record.attempt
    came = earlier is not None and earlier.provisioning is not None and not earlier.awaits_capacity
    return 0 if came and record.reason != words.CAPACITY_REVOKED else record.provisioning_failures


def recovered(
    found: FoundRequest | None,
    declared: ProvisioningClass | None,
    has_objects: bool,
    cluster: str,
    now: datetime,
) -> Provisioning | None:
    """The request for capacity of an attempt in `cluster` that the database lacks; None if it needs none.

    `found` is its request there, `declared` the class from which its gang requests capacity now. Objects are created
    only once a request is provisioned, so an attempt that `has_objects` waits for no answer: a booking that expired
    since then must not end it. An attempt without objects goes on with its request, or makes it.
    """
    if found is None:
        return None if has_objects or declared is None else Provisioning(declared)
    is_declared = declared is not None and declared.name == found.class_name
    asked = declared if declared is not None and is_declared else ProvisioningClass(found.class_name)
    if not has_objects and Answer.PROVISIONED not in found.state.conditions:
        return Provisioning(asked)
    return Provisioning(asked, found.uid, sentence(found.state, cluster), provisioned_at=now)


def retry_in_words(retry: RetryRule, failures: int) -> str:
    """Which retry comes after that many failures in a row, and when: `retry 1 of 3 in 60 s`."""
    return f"retry {failures} of {retry.limit} in {_in_words(retry.pause(failures))}"


def _in_words(pause: timedelta) -> str:
    seconds = int(pause.total_seconds())
    return f"{seconds} s" if seconds % 60 or seconds < 120 else f"{seconds // 60} min"


_WORDS: Final = {
    Answer.REVOKED: "the capacity was revoked",
    Answer.EXPIRED: "the capacity was provisioned and its booking expired",
    Answer.FAILED: "the capacity cannot be provisioned",
    Answer.PROVISIONED: "the capacity is provisioned",
    Answer.ACCEPTED: "the request for capacity is accepted",
}


@at_latest_time
def note(record: Record, message: str, now: datetime, request_uid: str = "") -> Change:
    """Notes that the request exists, with its uid, or what its class says about it."""
    attempt, provisioning = _awaiting(record)
    message = one_line(message)
    noted = replace(
        provisioning, request_uid=request_uid or provisioning.request_uid, message=message, noted_at=now
    )
    return change_by(
        record,
        Cause.PROVISIONING,
        now,
        event_reason=AWAITING_CAPACITY,
        note=message,
        pending=Pending(AWAITING_CAPACITY, message, cluster=attempt.cluster),
        attempt=replace(attempt, provisioning=noted),
    )


@at_latest_time
def provisioned(record: Record, message: str, now: datetime, request_uid: str = "") -> Change:
    """The capacity is there: the cluster is charged with the demand, and the objects are created next.

    `request_uid` is the uid of the request if the record may lack it.
    """
    attempt, provisioning = _awaiting(record)
    uid = request_uid or provisioning.request_uid
    there = replace(provisioning, request_uid=uid, message=one_line(message), provisioned_at=now)
    return change_by(
        record,
        Cause.PROVISIONED,
        now,
        note=there.message,
        pending=None,
        requirements=record.requirements.with_all_provisioners(),
        attempt=replace(attempt, provisioning=there),
    )


@at_latest_time
def fail(record: Record, message: str, has_other_cluster: bool, now: datetime) -> Change:
    """The capacity does not come: the quota is given back, and the gang is queued for another try.

    With `has_other_cluster` it goes on at once in a cluster that was not asked in this round. Else a round is over: the
    next one begins after a pause, and after the last retry the gang fails with the words of the class.
    """
    attempt, provisioning = _awaiting(record)
    message, retry = one_line(message), provisioning.asked.retry
    if has_other_cluster:
        requirements = record.requirements.unprovisioned_in(attempt.cluster, message)
        return _try_again(record, message, now, now, requirements=requirements)
    failures = record.provisioning_failures + 1
    if failures > retry.limit:
        return change_by(
            record,
            Cause.PROVISIONING_REFUSED,
            now,
            event_reason=words.PROVISIONING_FAILED,
            note=message,
            reason=words.PROVISIONING_FAILED,
            message=message,
            pending=None,
            attempt=_answered(record, message),
        )
    return _try_again(
        record,
        f"{message}; {retry_in_words(retry, failures)}",
        now + retry.pause(failures),
        now,
        provisioning_failures=failures,
        requirements=record.requirements.with_all_provisioners(),
    )


@at_latest_time
def revoke(
    record: Record, because: EvictionReason, next_wait: int, now: datetime, finished: Collection[int]
) -> Change:
    """The class takes the capacity back: evicts the gang, which is queued again after the pause of its retry rule.

    `next_wait` and `finished` are those of `run_changes.evict`.
    """
    failures, provisioning = failures_with_revocation(record, now), live_attempt(record).provisioning
    pause = provisioning.asked.retry.pause(failures) if provisioning and failures else timedelta(0)
    return run_changes.evict(
        record, because, now + pause, next_wait, now, finished, provisioning_failures=failures
    )


@at_latest_time
def leave(record: Record, message: str, now: datetime) -> Change:
    """The cluster is drained: the quota is given back, and the gang is queued at once. That counts as no failure."""
    _awaiting(record)
    return _try_again(record, one_line(message), now, now)


def _try_again(
    record: Record,
    message: str,
    eligible_at: datetime,
    now: datetime,
    **fields: Any,  # noqa: ANN401  # as those of `change_by`
) -> Change:
    return change_by(
        record,
        Cause.PROVISIONING_FAILED,
        now,
        event_reason=words.PROVISIONING_FAILED,
        note=message,
        message=message,
        eligible_at=eligible_at,
        pending=Pending(words.PROVISIONING_FAILED, message, cluster=live_attempt(record).cluster),
        attempt=_answered(record, message),
        **fields,
    )


def _answered(record: Record, message: str) -> Attempt:
    """The attempt with what the class said last."""
    attempt, provisioning = _awaiting(record)
    return replace(attempt, provisioning=replace(provisioning, message=message))


def _awaiting(record: Record) -> tuple[Attempt, Provisioning]:
    attempt = live_attempt(record)
    if attempt.provisioning is None or attempt.provisioning.provisioned_at is not None:
        raise IllegalTransition(f"{record.uid}: attempt {attempt.number} does not await capacity")
    return attempt, attempt.provisioning
