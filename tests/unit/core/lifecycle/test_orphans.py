"""Which anchors of a member are orphans, and which of them may be deleted."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle.orphans import (
    CLOCKS_APART,
    AnchorState,
    anchor_state,
    is_small_share,
    was_missed,
)
from dispatcher.core.model.record import HOLDING, Phase
from tests.builders import at, make_record


@pytest.mark.parametrize(("may_come", "expected"), [(True, AnchorState.LIVE), (False, AnchorState.UNKNOWN)])
def test_attempt_without_a_record_is_unknown_unless_its_appwrapper_may_come(
    may_come: bool, expected: AnchorState
) -> None:
    assert anchor_state(1, None, may_come=may_come) is expected


@pytest.mark.parametrize("phase", sorted(HOLDING))
@pytest.mark.parametrize(
    ("attempt", "expected"), [(0, AnchorState.ENDED), (1, AnchorState.LIVE), (2, AnchorState.UNKNOWN)]
)
def test_only_the_current_attempt_of_a_gang_that_holds_capacity_is_live(
    phase: Phase, attempt: int, expected: AnchorState
) -> None:
    assert anchor_state(attempt, make_record(phase), may_come=False) is expected


@pytest.mark.parametrize("kept_until", [None, at(60)])
def test_objects_that_are_kept_after_the_end_are_live(kept_until: datetime | None) -> None:
    record = replace(make_record(Phase.FAILED), kept_until=kept_until)
    expected = AnchorState.LIVE if kept_until else AnchorState.ENDED
    assert anchor_state(record.attempts, record, may_come=True) is expected


def test_queued_gang_has_no_live_anchor() -> None:
    assert anchor_state(0, make_record(Phase.QUEUED), may_come=False) is AnchorState.ENDED


@pytest.mark.parametrize(
    ("unknown", "anchors", "expected"),
    [
        (0, 0, True),
        (5, 5, True),
        (6, 6, False),
        (6, 29, False),
        (6, 30, True),
        (20, 100, True),
        (21, 100, False),
    ],
)
def test_unknown_anchors_go_only_if_they_are_few_or_a_fifth(
    unknown: int, anchors: int, expected: bool
) -> None:
    assert is_small_share(unknown, anchors) is expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, True), (CLOCKS_APART.total_seconds(), True), (CLOCKS_APART.total_seconds() + 1, False)],
)
def test_restored_database_may_have_missed_objects_older_than_the_restore(
    seconds: float, expected: bool
) -> None:
    assert was_missed(at(seconds), at(0)) is expected
    assert not was_missed(at(seconds), None)
