"""Approvals: what a gang lacks, when it waits, and how soon a change is followed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.lifecycle.approvals import (
    LONGEST_PAUSE,
    awaited,
    is_withdrawal,
    pause_after,
    pending_without,
)
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.step import Act, ObservedState
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.queues.queue import Queue
from tests.builders import NOW, at, make_blocked, make_record
from tests.unit.core.lifecycle.dispatched import step_of

FOREST = Forest.of(
    [
        Queue("org", approvals=("budget",)),
        Queue("inherits", parent="org"),
        Queue("free", parent="org", approvals=()),
        Queue("own", parent="org", approvals=("window", "example.com/a")),
        Queue("lost", parent="nobody", approvals=("window",)),
    ]
)
ANNOTATION = "dispatcher.codeflare.dev/approvals"


@pytest.mark.parametrize(
    ("annotation", "leaves", "granted", "missing"),
    [
        ("", ["default"], [], ()),
        ("", ["inherits"], [], ("budget",)),
        ("", ["inherits"], ["budget"], ()),
        ("", ["free"], [], ()),
        ("", ["own"], ["budget"], ("window", "example.com/a")),
        ("", ["lost"], [], ()),
        ("", ["unknown"], [], ()),
        ("", ["own", "inherits"], ["window"], ("example.com/a", "budget")),
        ("data-staged,budget", ["inherits"], ["data-staged"], ("budget",)),
        ("data-staged,budget", ["default"], ["budget", "data-staged", "other"], ()),
    ],
)
def test_gang_lacks_the_approvals_of_its_annotation_and_of_its_queues_that_are_not_granted(
    annotation: str, leaves: Sequence[str], granted: Sequence[str], missing: tuple[str, ...]
) -> None:
    found = awaited(annotation, leaves, FOREST, granted)
    assert (found.approvals if found else ()) == missing


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["budget"], "it lacks the approval budget"),
        (["data-staged", "budget"], "it lacks the approvals data-staged, budget"),
    ],
)
def test_message_names_the_missing_approvals(names: list[str], message: str) -> None:
    assert pending_without(names) == Pending(AWAITING_APPROVAL, message, approvals=tuple(names))


def test_unreadable_approvals_annotation_awaits_an_approval_that_cannot_be_granted() -> None:
    found = awaited("Running", ["inherits"], FOREST, [ANNOTATION, "budget", "Running"])
    assert found is not None
    assert (found.reason, found.approvals) == (AWAITING_APPROVAL, (ANNOTATION,))
    assert found.message.startswith(f'metadata.annotations["{ANNOTATION}"]: names Running, a condition')


@pytest.mark.parametrize(
    ("known", "seen", "expected"),
    [
        ([], [], False),
        ([], ["a"], True),
        (["a"], ["a"], False),
        (["a", "b"], ["b"], False),
        (["a"], ["b"], True),
        (["a"], [], False),
    ],
)
def test_approval_is_withdrawn_if_it_was_not_missing_before(
    known: list[str], seen: list[str], expected: bool
) -> None:
    assert is_withdrawal(pending_without(known), pending_without(seen)) is expected


def test_pause_doubles_with_each_withdrawal_but_the_first_up_to_five_minutes() -> None:
    assert [pause_after(count) / timedelta(seconds=1) for count in (0, 1, 2, 3, 4, 5)] == [0, 0, 1, 2, 4, 8]
    assert {pause_after(count) for count in (11, 50, 10**9)} == {LONGEST_PAUSE}


# --- the record ------------------------------------------------------------------------------------------------

LACKS = pending_without(["budget"])
LACKS_OTHER = pending_without(["window"])
OTHER_QUEUE = ("team",)
URGENT = MutableSpec(priority=7)


def awaiting(record: Record | None = None, pending: Pending | None = LACKS) -> Record:
    assert pending is not None
    return queue_changes.await_approvals(record or make_record(), pending, at(1)).after


def test_gang_that_lacks_an_approval_is_no_candidate_and_its_claims_end() -> None:
    blocked = replace(make_blocked(), blocked_since=NOW, is_preempting=True)
    after = awaiting(blocked)
    assert is_eligible(blocked, at(2))
    assert not is_eligible(after, at(2))
    assert (after.blocked_since, after.is_preempting, after.conditions) == (None, False, blocked.conditions)


def test_gang_with_all_approvals_is_a_candidate_of_its_original_age() -> None:
    before = make_record()
    after = queue_changes.approve(awaiting(before), at(2)).after
    assert is_eligible(after, at(2))
    assert after == replace(before, version=after.version, last_event_at=at(2))


def test_only_a_queued_gang_awaits_approvals() -> None:
    assert [each for each in Phase if make_record(each, pending=None).awaits_approval] == []


@pytest.mark.parametrize(
    ("record", "awaits", "queues", "asked", "step"),
    [
        pytest.param(make_record(), None, (), MutableSpec(), Act.NOOP, id="names-none"),
        pytest.param(make_record(), LACKS, (), MutableSpec(), Act.FOLLOW_APPROVALS, id="withdrawn"),
        pytest.param(make_record(), LACKS, (), URGENT, Act.FOLLOW_APPROVALS, id="withdrawn-before-its-user"),
        pytest.param(make_record(), LACKS, (), MutableSpec(suspend=True), Cause.SUSPENDED, id="suspended"),
        pytest.param(awaiting(), LACKS, (), MutableSpec(), Act.NOOP, id="known"),
        pytest.param(awaiting(), None, (), MutableSpec(), Act.FOLLOW_APPROVALS, id="approved"),
        pytest.param(awaiting(), LACKS_OTHER, (), MutableSpec(), Act.FOLLOW_APPROVALS, id="others-missing"),
        pytest.param(awaiting(), None, OTHER_QUEUE, MutableSpec(), Cause.MOVED, id="first-its-queue"),
        pytest.param(awaiting(), None, (), URGENT, Cause.REPRIORITISED, id="first-its-user"),
        pytest.param(
            make_record(Phase.SUSPENDED), LACKS, (), MutableSpec(suspend=True), Act.NOOP, id="not-queued"
        ),
        pytest.param(make_record(Phase.DISPATCHING), LACKS, (), MutableSpec(), Act.CREATE, id="dispatched"),
    ],
)
def test_next_step_follows_the_approvals_of_a_queued_gang(
    record: Record, awaits: Pending | None, queues: tuple[str, ...], asked: MutableSpec, step: Act | Cause
) -> None:
    assert step_of(decide(ObservedState(record, True, NOW, asked, queues=queues, awaits=awaits))) is step
