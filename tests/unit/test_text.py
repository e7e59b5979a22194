"""Text of others is one printable line wherever it has entered, so that rows, statuses and logs can hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher import log
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.records.record import Change, Pending
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.store import rows
from dispatcher.text import LONGEST_MESSAGE, name_of, one_line, printable, text_of
from tests.builders import at, make_record
from tests.edges import EDGES, NASTY

texts = st.text(st.characters(), max_size=50) | st.sampled_from(NASTY)


def is_safe(text: str) -> bool:
    """True of what Postgres, JSON and a status can hold; a message of ours may have some words around it."""
    return text.isprintable() and len(text) <= LONGEST_MESSAGE + 200 and bool(text.encode() or True)


def change_with(text: str) -> Change:
    """A step that says so in every column it can."""
    pending = Pending("NotReported", text, "cpu", "east", (Rejection("east", "NotReported", text),))
    change = queue_changes.block(make_record(), pending, at(1))
    assert change is not None
    return replace(change, after=replace(change.after, message=text))


@pytest.mark.parametrize("edge", EDGES)
@given(text=texts)
@example(text="\0")
@example(text="\ud800")
def test_text_that_enters_anywhere_can_be_held_everywhere(edge: str, text: str) -> None:
    for kept in EDGES[edge](text):
        assert is_safe(kept)
        change = change_with(kept)
        assert change.before is not None
        written = [rows.changed_row(change.before, change.after), *rows.event_rows(change)]
        assert "\\u0000" not in rows.to_json(written).replace("\\\\", "")
        json.loads(rows.to_json(written))


@given(texts, st.integers(8, 500))
def test_line_is_printable_bounded_and_left_alone_the_second_time(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert line.isprintable()
    assert len(line) <= longest
    assert one_line(line, longest) == line
    if text.isprintable() and len(text) <= longest:
        assert line == text


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], {}, ["a"]])
def test_value_that_is_no_text_gives_empty_text(value: object) -> None:
    assert (text_of(value), name_of(value)) == ("", "")


@given(texts)
def test_text_for_a_terminal_has_line_breaks_and_printable_characters_alone(text: str) -> None:
    shown = printable(text)
    assert shown.replace("\n", "").isprintable()
    assert shown.count("\n") == text.count("\n")
    assert printable(shown) == shown


# --- Logs: one line of constant event and keys, no less and no more than asked for -------------------------


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Leaves logging as it was found."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_line_is_json_with_event_keys_component_level_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json")
    log.get("test").info("dispatched", appwrapper="default/aw", waited=1.5)

    (line,) = lines(capsys)
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "event": "dispatched",
        "appwrapper": "default/aw",
        "waited": 1.5,
        "component": "test",
        "level": "info",
    }


@pytest.mark.parametrize(
    ("level", "logged"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_only_the_level_asked_for_and_above_is_logged(
    capsys: pytest.CaptureFixture[str], level: str, logged: list[str]
) -> None:
    log.configure(level, "json")
    logger = log.get("test")
    for name in log.LEVELS:
        getattr(logger, name)("said")
    assert [json.loads(line)["level"] for line in lines(capsys)] == logged


def test_exception_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json")
    try:
        raise ValueError("wrong")
    except ValueError:
        log.get("test").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: wrong" in json.loads(line)["exception"]


def test_without_a_terminal_auto_means_json(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "auto")
    log.get("test").info("said")
    (line,) = lines(capsys)
    assert json.loads(line)["event"] == "said"


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "console")
    log.get("test").info("said", key="value")
    (line,) = lines(capsys)
    assert not line.startswith("{")
    assert "said" in line
