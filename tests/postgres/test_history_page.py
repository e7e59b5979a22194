"""docs/history.md shows what a run says, names every view and setting as it is, and links that lead somewhere."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psycopg
import pytest

from dispatcher.__main__ import dispatcher_program, plugin_program
from dispatcher.settings import Settings
from testbed.past import past_database
from tests.postgres.changes import rows_of
from tests.screens import OF_DATABASE, golden, of_database, screen_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "history.md").read_text(encoding="utf-8")
PROGRAMS = {
    "dispatcher": dispatcher_program,
    "kubectl aw": plugin_program,
}
TYPED = re.findall(r"(?:^\$ |`|^)(dispatcher|kubectl aw) ([^`\n]*)", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def past_url(postgres_url: str) -> Iterator[str]:
    """A new database at the newest schema, and a fortnight committed step by step."""
    with past_database(postgres_url) as url:
        yield url


@pytest.mark.timeout(90)
def test_answers_are_those_of_a_run(past_url: str) -> None:
    answered: Callable[[str, str], str] = runpy.run_path(str(DOCS / "generate_history.py"))["answered"]
    assert answered(PAGE, past_url) == PAGE, "run `make docs`"


@pytest.mark.timeout(90)
def test_screens_of_commands_over_the_database_are_the_golden_ones(past_url: str) -> None:
    shown = dict(of_database(past_url))
    assert shown == {name: golden(name) for name in shown}, "run `make docs`"
    assert [name for name in shown if name.endswith("-160") and "No room for" in shown[name]] == []


@pytest.mark.parametrize("command", OF_DATABASE.values())
@pytest.mark.timeout(90)
def test_tables_of_the_database_have_room_in_120_columns(past_url: str, command: str) -> None:
    assert "No room for" not in screen_of(command, 120, url=past_url)


def test_every_question_has_its_sql_and_an_answer() -> None:
    questions = re.findall(r"\n### ([^\n]*\?)\n```sql\n[^`]*```\n```console\n\$ [^`]*```\n(?=\w|`)", PAGE)
    assert len(questions) == 12
    assert questions == re.findall(r"\n### ([^\n]*\?)\n", PAGE)


def test_history_page_lists_every_view_and_no_other(database_url: str) -> None:
    views = "SELECT viewname::text FROM pg_views WHERE schemaname = 'history'"
    assert set(re.findall(r"\n\| `(\w+)` \|", PAGE)) == {name for (name,) in rows_of(database_url, views)}


def test_every_setting_on_it_is_one() -> None:
    named = set(re.findall(r"(?<!_)DISPATCHER_[A-Z_]+", PAGE))
    assert "DISPATCHER_HISTORY_DAYS" in named
    assert named <= {f"DISPATCHER_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize(("program", "typed"), sorted({(program, typed) for program, typed in TYPED}))
def test_every_command_on_it_is_one(program: str, typed: str) -> None:
    command: click.Command = PROGRAMS[program]
    words = typed.partition(" #")[0].partition(" < ")[0].split()
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command = found
        words.pop(0)
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert command is not PROGRAMS[program] or words[0] in options
    assert {word for word in words if re.match(r"--?\w", word)} <= options


def test_accounts_it_makes_may_ask(database_url: str) -> None:
    makes, *grants = re.findall(r"```sql\n((?:ALTER|GRANT)[^`]*)```", PAGE)
    with psycopg.connect(database_url) as connection:
        for statements in (makes, *grants):
            connection.execute(statements)
        connection.execute("SET LOCAL ROLE ada")
        assert connection.execute("SELECT count(*) FROM history.job_history").fetchone() == (0,)
        connection.rollback()  # roles are the whole server's


def leads_somewhere(target: str) -> bool:
    """True if there is such a file, this one if none is named, and such a heading in it."""
    name, _, fragment = target.partition("#")
    file = DOCS / (name or "history.md")
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if file.exists() else []
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return fragment in anchors if fragment else file.exists()


def test_every_link_leads_somewhere() -> None:
    assert [target for target in re.findall(r"\]\(([^)]+)\)", PAGE) if not leads_somewhere(target)] == []
