"""Logs: one line of constant event and keys, no less and no more than asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from dispatcher import log


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
