"""What the annotation about notifications chooses; what cannot be read is named and left out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.api.notifications import LONGEST_TEXT, Choice, Occasion, choices_in

ENDED = frozenset({Occasion.COMPLETED, Occasion.FAILED})


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param(" ; ", (), id="separators-alone"),
        pytest.param("mail=Failed", (Choice("mail", frozenset({Occasion.FAILED})),), id="one"),
        pytest.param("mail=failed,COMPLETED", (Choice("mail", ENDED),), id="any-case"),
        pytest.param("mail=Ended,", (Choice("mail", ENDED),), id="a-group-and-a-comma-too-many"),
        pytest.param("mail=All", (Choice("mail", frozenset(Occasion)),), id="all"),
        pytest.param(
            "mail=Waiting:90m;chat=Waiting:2d",
            (
                Choice("mail", longer_than=timedelta(minutes=90)),
                Choice("chat", longer_than=timedelta(days=2)),
            ),
            id="waits-and-semicolons",
        ),
        pytest.param(
            "mail=Failed\n mail=Completed,Waiting:1h",
            (Choice("mail", ENDED, timedelta(hours=1)),),
            id="two-entries-of-a-target",
        ),
    ],
)
def test_entries_are_read(text: str, entries: tuple[Choice, ...]) -> None:
    found = choices_in(text)
    assert (found.entries, found.problems) == (entries, ())
    assert choices_in(str(found)).entries == entries


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("team-slack", "'team-slack' is not TARGET=EVENT,EVENT, for example team-slack=Failed,Completed"),
        ("https://evil.example/hook=Failed", "names no target: a name has small letters, digits and dashes"),
        ("Mail=Failed", "names no target"),
        ("=Failed", "names no target"),
        ("mail=", "has no event: there are Started, Completed, Failed, Preempted, Evicted, Ended, All and"),
        ("mail=Faild", "has the unknown event 'Faild': there are Started,"),
        ("mail=Waiting", "has no duration that counts in 'Waiting': Waiting:2h"),
        ("mail=Waiting:30s", "has no duration that counts in 'Waiting:30s'"),
        ("mail=Waiting:31d", "from 1m to 30d"),
        ("mail=Waiting:1234567m", "has no duration that counts"),
        ("m" * 64 + "=Failed", "names no target"),
    ],
)
def test_unreadable_entries_are_named_and_left_out(text: str, problem: str) -> None:
    found = choices_in(f"{text} other=Failed")
    assert found.entries == (Choice("other", frozenset({Occasion.FAILED})),)
    [said] = found.problems
    assert said.startswith("dispatcher.codeflare.dev/notify: ")
    assert problem in said


def test_an_appwrapper_has_few_targets() -> None:
    found = choices_in(" ".join(f"t{number}=Failed" for number in range(9)))
    assert [each.target for each in found.entries] == [f"t{number}" for number in range(8)]
    assert "is one target too many: an AppWrapper has at most 8" in found.problems[0]


def test_a_text_that_is_too_long_chooses_nothing() -> None:
    found = choices_in("mail=Failed" + " " * LONGEST_TEXT + "x")
    assert found.entries == ()
    assert found.problems == (
        "dispatcher.codeflare.dev/notify has more than 1024 characters: it chooses nothing",
    )


def test_the_entry_of_a_target_is_found() -> None:
    found = choices_in("mail=Failed")
    assert found.of("mail") == Choice("mail", frozenset({Occasion.FAILED}))
    assert found.of("chat") is None
