"""The bounds of the files that commands read: a small file cannot fill the memory or end the process."""

from __future__ import annotations

import pytest
import yaml

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


@pytest.mark.parametrize(
    ("command", "place"), [("demand", "<stdin>: line 3"), ("plan", "-: line 3, column 1")]
)
@pytest.mark.parametrize(
    "written", ["pending:\n- {}\npending: []", '{"a": 1,\n"pending": [], "b":1,\n"pending": []}']
)
async def test_a_key_that_is_there_twice_is_refused_at_its_place(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    place: str,
    written: str,
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: {place}: the key 'pending' is there twice\n")


def test_a_key_beside_the_same_merged_key_is_there_once() -> None:
    written = "a: &a {k: 1, l: 1}\nb: &b {<<: *a, k: 2}\nc: {<<: *b, k: 3}\nd: *b"
    [document] = documents.documents_in(
        "f",
        written.encode(),
        lambda text: [yaml.load(text, Loader=documents.Loader)],  # noqa: S506  # a safe loader
        str,
    )
    b = {"k": 2, "l": 1}
    assert document == {"a": {"k": 1, "l": 1}, "b": b, "c": {"k": 3, "l": 1}, "d": b}


@pytest.mark.parametrize(
    ("command", "place"),
    [("demand", "<stdin>: is no text in YAML or JSON: "), ("plan", "-: is no text in YAML or JSON: ")],
)
async def test_file_that_is_no_text_is_refused_in_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin="a: \x01")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dispatcher: {place}")
    assert ran.err.endswith(" characters are not allowed, at position 3\n")


async def test_empty_scenario_is_refused_by_the_name_of_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = await runner(monkeypatch, capsys, "plan")("-f", "-", stdin="")
    assert ran == Ran(2, "", "dispatcher: -: must be an object, not null\n")


@pytest.mark.parametrize(("command", "file"), [("demand", "<stdin>"), ("plan", "-")])
async def test_file_that_is_too_large_is_refused_unread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, file: str
) -> None:
    written = "[" + " " * documents.LARGEST_FILE
    ran = await runner(monkeypatch, capsys, command)("-f", "-", stdin=written)
    assert ran == Ran(2, "", f"dispatcher: {file}: is larger than {documents.LARGEST_FILE} bytes\n")
