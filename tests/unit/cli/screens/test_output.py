"""Reports as tables, JSON and CSV: what becomes of each kind of value, and of what would steer a terminal."""

from __future__ import annotations

import ast
import csv
import io
import json
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from dispatcher import cli
from dispatcher.cli.screens import output
from dispatcher.cli.screens.output import (
    as_asked,
    as_csv,
    as_json,
    as_table,
    how_long,
    known,
    named,
    plain,
    put,
    text,
    value,
)
from dispatcher.store.readers.reports import Report

AT = datetime(2026, 11, 20, 13, 0, 5, 250_000, tzinfo=timezone(timedelta(hours=1)))
REPORT = Report(
    ("namespace", "name", "waited_s", "gpu", "estimated_start"),
    (
        ("team-a", "train", 7200.5, Decimal("2.00"), None),
        ("team-b", "pr\x1b[2Jobe,\n", None, Decimal("0.5"), AT),
    ),
)
VALUES = [
    # as it is, in a table, in JSON
    pytest.param(None, "", None, id="null"),
    pytest.param(True, "yes", True, id="true"),
    pytest.param(7, "7", 7, id="integer"),
    pytest.param(Decimal("2.000"), "2", 2, id="whole-number"),
    pytest.param(Decimal("1234567.125"), "1234567.12", 1234567.125, id="number"),
    pytest.param(100.0, "100", 100.0, id="hundred"),
    pytest.param(Decimal("1E+3"), "1000", 1000, id="thousand"),
    pytest.param(float("inf"), "inf", "inf", id="infinite"),
    pytest.param(Decimal("NaN"), "NaN", "NaN", id="no-number"),
    pytest.param(AT, "2026-11-20T12:00:05Z", "2026-11-20T13:00:05.250000+01:00", id="time"),
    pytest.param(date(2026, 11, 20), "2026-11-20", "2026-11-20", id="day"),
    pytest.param(timedelta(minutes=90), "90m", 5400.0, id="span"),
    pytest.param({"cpu": Decimal("1.5")}, '{"cpu": 1.5}', {"cpu": 1.5}, id="object"),
    pytest.param([AT.date(), None], '["2026-11-20", null]', ["2026-11-20", None], id="list"),
    pytest.param(b"\x00\xff", r"\x00ff", r"\x00ff", id="bytes"),
    pytest.param(UUID(int=1), str(UUID(int=1)), str(UUID(int=1)), id="anything-else"),
]


@pytest.mark.parametrize(("found", "in_table", "in_json"), VALUES)
def test_each_kind_of_value_is_shown_in_its_way(found: object, in_table: str, in_json: object) -> None:
    assert (text(found), value(found)) == (in_table, in_json)
    json.dumps(value(found), allow_nan=False)


def test_a_table_has_the_words_of_people() -> None:
    columns = [
        named(),
        how_long("WAITED", "waited_s"),
        plain("GPU", "gpu"),
        known("EST START", "estimated_start"),
    ]
    assert as_table(REPORT, columns).splitlines() == [
        "NAME                    WAITED  GPU  EST START",
        "team-a/train            2h      2    unknown",
        r"team-b/pr\x1b[2Jobe,\n  -       0.5  2026-11-20T12:00:05Z",
    ]


def test_times_are_relative_to_a_moment_if_there_is_one() -> None:
    assert [text(AT, AT + timedelta(hours=3)), text(AT, AT - timedelta(minutes=20))] == ["3h", "in 20m"]


def test_a_report_may_be_shown_as_it_was_asked_for() -> None:
    assert [column.heading.name for column in as_asked(REPORT)] == list(REPORT.columns)


def test_json_has_the_names_of_the_report() -> None:
    assert json.loads(as_json(REPORT)) == [
        {"namespace": "team-a", "name": "train", "waited_s": 7200.5, "gpu": 2, "estimated_start": None},
        {
            "namespace": "team-b",
            "name": "pr\x1b[2Jobe,\n",
            "waited_s": None,
            "gpu": 0.5,
            "estimated_start": "2026-11-20T13:00:05.250000+01:00",
        },
    ]


def test_nothing_in_json_steers_the_terminal() -> None:
    assert as_json(REPORT).replace("\n", "").isprintable()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "line", "is_paged"),
    [("wide", "x" * 81, True), ("wide", "x" * 80, False), ("json", "x" * 81, False), (None, "x" * 81, False)],
)
def test_wide_output_that_does_not_fit_the_terminal_is_scrolled(
    form: str | None, line: str, is_paged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, seen = Terminal(), tmp_path / "seen"
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PAGER", f"tee {seen}")
    put(f"NAME\n{line}", form)
    assert (seen.exists(), terminal.getvalue()) == (is_paged, "" if is_paged else f"NAME\n{line}\n")
    assert not is_paged or seen.read_text() == f"NAME\n{line}\n"


@pytest.mark.parametrize("pager", ["no-such-pager", "no-such-pager -S", " "])
def test_wide_output_without_a_pager_is_printed(pager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PAGER", pager)
    put("x" * 81, "wide")
    assert terminal.getvalue() == f"{'x' * 81}\n"


def test_csv_has_a_heading_and_a_record_a_row() -> None:
    told = as_csv(Report(("a", "b", "c"), ((None, True, {"d": [1]}), ('"', "x,\ny", Decimal("1.50")))))
    assert list(csv.reader(io.StringIO(told))) == [
        ["a", "b", "c"],
        ["", "true", '{"d": [1]}'],
        ['"', "x,\ny", "1.5"],
    ]


def test_an_empty_report_is_a_heading_or_an_empty_list() -> None:
    empty = Report(("a", "b"), ())
    assert (as_csv(empty), as_json(empty)) == ("a,b", "[]")


# --- the way to the terminal -----------------------------------------------------------------------------

COMMANDS = Path(cli.__file__).parent
WRITERS = {
    (
        "output.py",
        "click.echo",
    ): "the one function, and the refresh of a screen, which makes the text printable itself",
    ("verbs.py", "click.echo"): "the log of a pod, as kubectl shows it",
    ("release.py", "click.echo"): "files of the package",
    ("command_line.py", "click.echo"): "for the shell, which reads words",
}


def test_one_function_writes_to_the_terminal() -> None:
    found = set()
    for path in COMMANDS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            written = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if written in {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}:
                found.add((path.name, written))
    assert found == WRITERS.keys()


def test_what_others_wrote_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\x1b[2Kb\nc\x9b2Jd\u202ee")
    output.put("name\x1b]0;title\x07", None)

    assert capsys.readouterr().out == "a\\x1b[2Kb\nc\\x9b2Jd\\u202ee\nname\\x1b]0;title\\x07\n"
