from __future__ import annotations

import pytest

from dispatcher.core.model.records.termination import LONGEST_KEPT, both, kept
from dispatcher.text import LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("message", "said", "expected"),
    [
        pytest.param("it failed", "", "it failed", id="nothing"),
        pytest.param("it failed", "batch 7", "it failed; termination message: «batch 7»", id="both"),
        pytest.param(
            "it failed",
            "full»; checked by operator: «",
            "it failed; termination message: «full>; checked by operator: <»",
            id="quotes-of-its-own",
        ),
        pytest.param("it failed", "it failed", "it failed; termination message: «it failed»", id="the-same"),
    ],
)
def test_readers_of_both_see_the_termination_message_in_quotes_behind_the_message(
    message: str, said: str, expected: str
) -> None:
    assert both(message, said) == expected


def test_both_are_one_line_that_is_no_longer_than_a_message() -> None:
    told = both("m" * LONGEST_MESSAGE, kept("first\n" + "x" * 2000))
    assert (len(told), told.isprintable(), told[-1]) == (LONGEST_MESSAGE, True, "»")
    assert len(kept("x" * 2000)) == LONGEST_KEPT
