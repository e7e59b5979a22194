"""No message and no namespace blocks the others of its target, and nothing is given up because its target is down."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.core.model.notifications import Outgoing
from dispatcher.notify.retry import REFUSED, TOO_OLD, Failed, GiveUp, Refused, TryAgain
from dispatcher.notify.turns import MOST_STRIKES, SET_ASIDE, Turns
from tests.unit.notify.values import at, make_outgoing

DAY = timedelta(days=1)
DOWN = Failed("no answer")
FIRST, SECOND = make_outgoing("1"), make_outgoing("2")
OTHER = make_outgoing("3", "team-b")


def fail(
    turns: Turns, message: Outgoing, outcome: Failed | Refused = DOWN, clock: float = 0.0
) -> TryAgain | GiveUp:
    """A failure at `clock`, a second of which is one of the database's time; pauses are whole."""
    return turns.failed(message, outcome, at(clock), DAY, clock, 1.0)


def test_a_message_that_fails_is_tried_before_the_next_one_of_its_lane() -> None:
    turns = Turns()
    assert fail(turns, FIRST) == TryAgain(timedelta(seconds=5))
    assert (turns.resting_lanes(4.9), turns.resting_messages(4.9)) == ({"team-a"}, [])
    assert (turns.resting_lanes(5), turns.resting_messages(5)) == (set(), [])
    assert turns.tries(FIRST) == 1


def test_other_lanes_go_on_at_once_until_two_tries_fail_in_a_row() -> None:
    turns = Turns()
    fail(turns, FIRST)
    assert not turns.is_resting(0)
    fail(turns, OTHER)
    assert (turns.is_resting(4.9), turns.is_resting(5)) == (True, False)
    turns.took(OTHER)
    assert not turns.is_resting(4.9)


def test_target_that_takes_nothing_rests_longer_and_longer() -> None:
    turns, rests = Turns(), list[int]()
    for number in range(10):
        fail(turns, make_outgoing(f"{number}", f"team-{number}"))
        rests.append(next(second for second in range(400) if not turns.is_resting(second)))
    assert rests == [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_target_rests_as_long_as_it_asks_for() -> None:
    turns = Turns()
    fail(turns, FIRST, Failed("it answered 429", timedelta(seconds=60)))
    assert (turns.is_resting(59), turns.is_resting(60)) == (True, False)


def test_lanes_that_had_their_turn_come_after_the_others_until_all_had_one() -> None:
    turns = Turns()
    assert not turns.begin_again()
    fail(turns, FIRST)
    fail(turns, OTHER)
    assert turns.had_turn == {"team-a", "team-b"}
    assert turns.begin_again()
    fail(turns, FIRST)
    assert turns.had_turn == {"team-a"}
    turns.took(OTHER)
    assert turns.had_turn == set()


def test_only_refusals_count_as_refusals() -> None:
    turns = Turns()
    for outcome in (DOWN, DOWN, Refused("it answered 400"), DOWN, Refused("it answered 400")):
        assert isinstance(fail(turns, FIRST, outcome), TryAgain)
    assert fail(turns, FIRST, Refused("it answered 400")) == REFUSED


def set_aside(turns: Turns, message: Outgoing = FIRST) -> None:
    for _ in range(SET_ASIDE):
        fail(turns, message)


def test_a_message_that_fails_often_lets_the_next_one_of_its_lane_pass() -> None:
    turns = Turns()
    set_aside(turns)
    assert (turns.resting_lanes(0), turns.resting_messages(0)) == (set(), ["1"])
    assert (turns.resting_messages(159), turns.resting_messages(160)) == (["1"], [])


def test_a_message_that_fails_while_others_are_taken_is_given_up() -> None:
    turns, decided = Turns(), list[TryAgain | GiveUp]()
    set_aside(turns)
    for _ in range(MOST_STRIKES):
        turns.took(SECOND)
        decided.append(fail(turns, FIRST))
    assert [isinstance(each, TryAgain) for each in decided] == [True] * (MOST_STRIKES - 1) + [False]
    assert decided[-1] == REFUSED
    assert (turns.tries(FIRST), turns.resting_messages(0)) == (0, [])


def test_nothing_is_given_up_because_its_target_is_down_or_busy() -> None:
    turns = Turns()
    set_aside(turns)
    turns.took(SECOND)
    busy = Failed("it answered 429", timedelta(seconds=1))
    decided = [fail(turns, FIRST, outcome) for outcome in (*100 * [DOWN], *100 * [busy])]
    assert all(isinstance(each, TryAgain) for each in decided)


@pytest.mark.parametrize(
    ("outcome", "clock", "decided"),
    [
        (DOWN, 86_400, TOO_OLD),
        (Refused("it answered 400"), 0, REFUSED),
    ],
)
def test_a_message_is_given_up_as_ever_if_it_is_too_old_or_refused(
    outcome: Failed | Refused, clock: float, decided: GiveUp
) -> None:
    turns = Turns()
    fail(turns, FIRST, outcome)
    fail(turns, FIRST, outcome)
    assert fail(turns, FIRST, outcome, clock) == decided


def test_a_refusal_is_about_the_message_and_its_target_does_not_rest() -> None:
    turns = Turns()
    for message in (FIRST, OTHER, SECOND):
        fail(turns, message, Refused("it answered 400"))
    assert not turns.is_resting(0)


def test_a_message_that_is_gone_is_forgotten() -> None:
    turns = Turns()
    fail(turns, FIRST)
    fail(turns, OTHER, clock=7000)
    assert (turns.tries(FIRST), turns.tries(OTHER)) == (0, 1)
