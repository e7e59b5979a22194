"""A name that was there lingers until complete lists have lacked it for long enough."""

from __future__ import annotations

import pytest

from dispatcher.controller.scheduling.absence import LASTS_SECONDS, Absences


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def absences(clock: Clock) -> Absences:
    return Absences(clock)


def listed(_name: str) -> bool:
    return True


def unknown(_name: str) -> bool:
    return False


def test_name_that_was_never_there_does_not_linger(absences: Absences) -> None:
    assert not absences.note([], listed)
    assert (absences.lingering, absences.seen) == (frozenset(), frozenset())


def test_name_lingers_until_its_absence_has_lasted(absences: Absences, clock: Clock) -> None:
    assert not absences.note(["a", "b"], listed)
    assert absences.note(["b"], listed)
    clock.seconds = LASTS_SECONDS - 1
    assert not absences.note(["b"], listed)
    assert (absences.lingering, absences.seen) == (frozenset({"a"}), frozenset({"a", "b"}))
    clock.seconds = LASTS_SECONDS
    assert absences.note(["b"], listed)
    assert (absences.lingering, absences.seen) == (frozenset(), frozenset({"b"}))


def test_name_that_is_put_back_is_there_at_once_and_its_next_absence_counts_from_then(
    absences: Absences, clock: Clock
) -> None:
    absences.note(["a"], listed)
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS - 1
    assert absences.note(["a"], listed)
    assert absences.lingering == frozenset()
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS + 1
    assert not absences.note([], listed)
    assert absences.lingering == {"a"}


def test_time_without_a_current_list_does_not_count(absences: Absences, clock: Clock) -> None:
    absences.note(["a"], listed)
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS - 1
    absences.note([], unknown)
    clock.seconds = 10 * LASTS_SECONDS
    absences.note([], unknown)
    assert absences.lingering == {"a"}
    absences.note([], listed)
    clock.seconds += LASTS_SECONDS - 1
    absences.note([], listed)
    assert absences.lingering == {"a"}
    clock.seconds += 1
    absences.note([], listed)
    assert absences.lingering == frozenset()


def test_name_of_an_earlier_leader_lingers_from_the_beginning(absences: Absences, clock: Clock) -> None:
    absences.load(["a"])
    assert (absences.lingering, absences.seen) == (frozenset({"a"}), frozenset({"a"}))
    absences.note([], unknown)
    clock.seconds = 10 * LASTS_SECONDS
    assert not absences.note([], listed)
    assert absences.lingering == {"a"}
