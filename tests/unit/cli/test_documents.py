"""The bounds of the files that commands read: a small file cannot fill the memory or end the process."""

from __future__ import annotations

import pytest

from dispatcher.cli import documents
from tests.commands import Ran, runner

ALIASES = "a: &a [x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
PAIRS = ALIASES.replace("*", "k: *").replace("[k", "!!pairs [k")
MERGES = "a: &a {k: v}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
TOO_MANY = "has more than 1000000 values"
TOO_DEEP = "is nested more than 200 levels deep"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        pytest.param(ALIASES, TOO_MANY, id="aliases"),
        pytest.param(PAIRS, TOO_MANY, id="aliases-in-pairs"),
        pytest.param(MERGES, TOO_MANY, id="merges"),
        pytest.param("&a [*a]", TOO_DEEP, id="alias-of-itself"),
        pytest.param("a: &a {b: *a}", TOO_DEEP, id="alias-of-itself-in-an-object"),
        pytest.param("[" * 202 + "]" * 202, TOO_DEEP, id="deep"),
    ],
)
@pytest.mark.parametrize(("command", "file"), [("demand", "<stdin>"), ("plan", "-")])
async def test_file_beyond_a_bound_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    file: str,
    written: str,
    problem: str,
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: {file}: {problem}\n")


@pytest.mark.parametrize(("command", "file"), [("demand", "<stdin>"), ("plan", "-")])
async def test_file_that_is_too_large_is_refused_unread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, file: str
) -> None:
    written = "[" + " " * documents.LARGEST_FILE
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: {file}: is larger than {documents.LARGEST_FILE} bytes\n")
