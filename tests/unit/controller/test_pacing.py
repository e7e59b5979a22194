"""Each key has a turn once in a while, and none is kept in memory for longer."""

from __future__ import annotations

from datetime import timedelta

from dispatcher.controller.reconcile.result import Pacing, Withdrawals
from tests.builders import NOW, at


def test_each_key_has_a_turn_once_in_a_while() -> None:
    pacing = Pacing(timedelta(seconds=1))
    waits = []
    for key, moment in [("a", 0), ("b", 0.5), ("a", 0.75), ("a", 1), ("b", 1)]:
        waits.append(pacing.wait(key, at(moment)))
        if not waits[-1]:
            pacing.note(key, at(moment))
    assert waits == [0, 0, 0.25, 0, 0.5]


def test_key_that_had_a_turn_is_known_until_the_next_is_due() -> None:
    pacing = Pacing(timedelta(seconds=1))
    pacing.note("a", at(0))
    asked = [("a", 0), ("a", 0.75), ("b", 0.75), ("a", 1)]
    assert [pacing.had_turn(key, at(moment)) for key, moment in asked] == [True, True, False, False]


def test_key_that_only_asked_has_had_no_turn() -> None:
    pacing = Pacing(timedelta(seconds=1))
    assert pacing.wait("a", at(0)) == 0
    assert not pacing.had_turn("a", at(0))


def test_turns_that_have_passed_are_forgotten() -> None:
    pacing = Pacing(timedelta(seconds=1))
    for number in range(1000):
        pacing.note(str(number), NOW + timedelta(seconds=number))
    assert len(pacing._turns) == 1  # noqa: SLF001  # nothing else shows it


def test_pause_grows_with_the_withdrawals_of_a_key_until_an_hour_after_the_last() -> None:
    withdrawals = Withdrawals()
    waits = []
    for moment in (0, 10, 20, 30):
        withdrawals.note("a", at(moment))
        waits.append(withdrawals.wait("a", at(moment + 0.5)))
    assert waits == [0, 0.5, 1.5, 3.5]
    assert withdrawals.wait("a", at(34)) == 0
    assert withdrawals.wait("b", at(30)) == 0
    withdrawals.note("a", at(30 + 3600))
    assert withdrawals.wait("a", at(30 + 3600)) == 0
