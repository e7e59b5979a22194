"""Whose places are settled next: stages, the order of searches, and the steps of rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from dispatcher.core.scheduling.capacity.place_turns import PlaceTurn, PlaceTurns, Stage

RELEASE, PLANNED, OTHERS, SEARCH = Stage
STEPS = 10


class Turns(PlaceTurns):
    """Turns with rounds of `STEPS` steps; a search takes at least as many as `least` says, else one."""

    def __init__(self, least: Mapping[str, int]) -> None:
        super().__init__(STEPS)
        self.least = least

    def new_round(self) -> None:
        self.begin_round(lambda uid: self.least.get(uid, 1))

    def new_snapshot(self) -> None:
        self.begin_snapshot(lambda uid: self.least.get(uid, 1))


def turns_of(least: Mapping[str, int] | None = None) -> Turns:
    return Turns(least or {})


def settle(turns: Turns, steps: Mapping[str, int], placed: Collection[str] = ()) -> list[PlaceTurn]:
    """The turns until all are settled.

    Each AppWrapper of `steps` needs a search of so many steps, and has no place after it unless it is `placed`; any
    other is settled once it has its planned places.
    """
    taken = []
    while (turn := turns.next()) is not None:
        taken.append(turn)
        uid, stage = turn
        is_settled = False
        if stage is OTHERS:
            is_settled = uid not in steps
            (turns.end_wait if is_settled else turns.wait)(uid)
        elif stage is SEARCH:
            is_settled = True
            search(turns, uid, steps[uid], is_placed=uid in placed)
        turns.end(turn, is_settled=is_settled)
    return taken


def search(turns: Turns, uid: str, steps: int, *, is_placed: bool) -> None:
    """Search as the ledger does: not at all if no steps are left."""
    if not turns.has_steps:
        turns.try_later(uid)
        return
    turns.end_wait(uid)
    turns.use(steps)
    if not is_placed:
        turns.wait(uid)


def play_round(turns: Turns, steps: Mapping[str, int], placed: Collection[str] = ()) -> str:
    """The AppWrappers whose search was made in one round, in order."""
    turns.new_round()
    searched = [uid for uid, stage in settle(turns, steps, placed) if stage is SEARCH]
    return "".join(uid for uid in searched if not turns.is_untried(uid))


@pytest.mark.parametrize(
    ("begun", "steps", "expected"),
    [
        pytest.param("", {}, [], id="nobody"),
        pytest.param("a", {}, [(RELEASE, "a"), (PLANNED, "a"), (OTHERS, "a")], id="one-without-a-search"),
        pytest.param(
            "ba",
            {},
            [(RELEASE, "ba"), (PLANNED, "ba"), (OTHERS, "ba")],
            id="all-pass-a-stage-before-any-passes-the-next",
        ),
        pytest.param(
            "abc",
            {"a": 1, "c": 1},
            [(RELEASE, "abc"), (PLANNED, "abc"), (OTHERS, "abc"), (SEARCH, "ac")],
            id="searches-come-last",
        ),
        pytest.param("aba", {}, [(RELEASE, "ab"), (PLANNED, "ab"), (OTHERS, "ab")], id="each-once"),
    ],
)
def test_appwrappers_pass_the_stages_together(
    begun: str, steps: Mapping[str, int], expected: Sequence[tuple[Stage, str]]
) -> None:
    turns = turns_of()
    for uid in begun:
        turns.begin(uid)
    assert settle(turns, steps) == [PlaceTurn(uid, stage) for stage, uids in expected for uid in uids]
    assert not turns.has_new
    assert not turns.is_under_way


@pytest.mark.parametrize("stage", list(Stage))
def test_appwrapper_that_changes_begins_from_the_first_stage(stage: Stage) -> None:
    turns = turns_of()
    turns.begin("a")
    for _ in range(stage):
        turn = turns.next()
        assert turn is not None
        turns.end(turn, is_settled=False)
    assert turns.next() == PlaceTurn("a", stage)
    assert (turns.has_new, turns.is_under_way) == (stage is RELEASE, stage is not RELEASE)
    turns.begin("a")
    assert turns.next() == PlaceTurn("a", RELEASE)
    assert not turns.is_under_way


def test_searches_are_made_in_the_order_in_which_appwrappers_began_to_wait() -> None:
    turns, steps = turns_of(), dict.fromkeys("abc", 1)
    for uid in "abc":
        turns.begin(uid)
    assert play_round(turns, steps) == "abc"
    for uid in "cab":  # each waits already, and keeps its turn
        turns.begin(uid)
    assert play_round(turns, steps) == "abc"


def test_appwrapper_that_was_searched_for_goes_behind_those_that_wait() -> None:
    """However often it changes, it keeps no other from its search."""
    turns, steps = turns_of(), dict.fromkeys("abc", STEPS)
    for uid in "abc":
        turns.begin(uid)
    searched = ""
    for _ in range(4):
        turns.begin("a")
        searched += play_round(turns, steps)
    assert searched == "abca"


@pytest.mark.parametrize(
    ("steps", "rounds"),
    [
        pytest.param({"a": 1, "b": 1, "c": 1}, ["abc", ""], id="enough-steps"),
        pytest.param({"a": STEPS, "b": 1, "c": 1}, ["a", "bc", ""], id="one-takes-all"),
        pytest.param({"a": STEPS - 1, "b": STEPS, "c": 1}, ["ab", "c", ""], id="the-last-goes-beyond"),
        pytest.param(dict.fromkeys("abcd", STEPS), ["a", "b", "c", "d", "", ""], id="one-in-each-round"),
    ],
)
def test_rounds_without_news_search_once_for_each_and_end(
    steps: Mapping[str, int], rounds: Sequence[str]
) -> None:
    turns = turns_of()
    for uid in steps:
        turns.begin(uid)
    for number, expected in enumerate(rounds):
        assert number == 0 or turns.has_untried is bool(expected)
        assert play_round(turns, steps) == expected


def test_news_have_all_that_wait_searched_for_again() -> None:
    turns, steps = turns_of(), dict.fromkeys("abc", 1)
    for uid in steps:
        turns.begin(uid)
    assert play_round(turns, steps, placed="b") == "abc"
    assert play_round(turns, steps) == ""
    turns.note_news()
    assert play_round(turns, steps) == "ac"


def test_round_settles_only_as_many_again_as_there_may_be_steps_for() -> None:
    """The others are untried, and have their turns in the next rounds even if the news were the last."""
    turns = turns_of(dict.fromkeys("abc", STEPS))
    for uid in "abc":
        turns.begin(uid)
    searched = [play_round(turns, dict.fromkeys("abc", 1))]
    turns.note_news()
    while turns.has_untried or len(searched) == 1:
        searched.append(play_round(turns, dict.fromkeys("abc", 1)))
    assert searched == ["abc", "a", "b", "c"]


def test_steps_last_for_all_snapshots_of_a_round_and_for_one_where_no_round_begins() -> None:
    for has_rounds in (False, True):
        turns = turns_of()
        if has_rounds:
            turns.new_round()
        turns.use(STEPS)
        turns.new_snapshot()
        assert turns.has_steps is not has_rounds


def test_untried_search_can_be_made_at_once() -> None:
    turns, steps = turns_of(), dict.fromkeys("abc", STEPS)
    for uid in steps:
        turns.begin(uid)
    assert play_round(turns, steps) == "a"
    assert turns.is_untried("c")
    turns.try_now("c")
    assert settle(turns, steps)[-1] == PlaceTurn("c", SEARCH)
    assert not turns.is_untried("c")
    assert turns.is_waiting("c")
    assert play_round(turns, steps) == "b"


def test_appwrapper_that_waits_no_more_is_not_searched_for() -> None:
    turns, steps = turns_of(), dict.fromkeys("ab", STEPS)
    for uid in steps:
        turns.begin(uid)
    assert play_round(turns, steps) == "a"
    turns.end_wait("b")
    assert not turns.is_waiting("b")
    assert not turns.has_untried
    assert play_round(turns, steps) == ""
