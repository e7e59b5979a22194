"""Showing the same again and again: until Ctrl-C, and through a database that is away for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import pytest

from dispatcher.cli.screens.output import cropped, watch
from dispatcher.errors import TryAgain


def looks(*found: str | Exception) -> Callable[[], str]:
    """Gives one after the other."""
    left: Iterator[str | Exception] = iter(found)

    def look() -> str:
        each = next(left)
        if isinstance(each, Exception):
            raise each
        return each

    return look


def interrupted_after(times: int, pauses: list[float]) -> Callable[[float], None]:
    """Notes each pause, and is ended by Ctrl-C in the last one."""

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == times:
            raise KeyboardInterrupt

    return pause


def test_it_is_shown_until_it_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[float] = []
    with pytest.raises(click.exceptions.Exit) as ended:
        watch(looks("one", "two"), 2.5, interrupted_after(2, pauses))
    assert (capsys.readouterr().out, pauses, ended.value.exit_code) == ("one\ntwo\n", [2.5, 2.5], 130)


def test_last_screen_stays_while_the_database_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    away = TryAgain("it is away")
    with pytest.raises(click.exceptions.Exit):
        watch(looks("one", away, away, "two"), 1, interrupted_after(4, []))
    assert capsys.readouterr().out == "one\none\n\nit is away\none\n\nit is away\ntwo\n"


def test_a_database_that_never_was_there_ends_it_at_once() -> None:
    with pytest.raises(TryAgain):
        watch(looks(TryAgain("it is away")), 1, interrupted_after(1, []))


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (4, "1\n2\n3\n4"),
        (3, "1\n2\n… and 2 more lines"),
        (2, "1\n… and 3 more lines"),
        (1, "1\n… and 3 more lines"),
        (0, "1\n… and 3 more lines"),
    ],
)
def test_a_terminal_shows_the_lines_it_has_room_for(room: int, shown: str) -> None:
    assert cropped("1\n2\n3\n4", room, 80) == shown


def test_one_more_line_is_one_line() -> None:
    assert cropped("1\n2", 1, 80) == "1\n… and 1 more line"


def test_a_line_does_not_wrap_in_a_terminal() -> None:
    assert cropped("NAME  GPU\ntrain  8", 4, 8) == "NAME  G…\ntrain  8"
