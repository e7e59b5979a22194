"""docs/history.md shows what a run says, names every view and setting as it is, and links that lead somewhere."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psycopg
import pytest
from sqlalchemy import text

from dispatcher.__main__ import dispatcher_program, plugin_program
from dispatcher.settings import Settings
from dispatcher.store.database import Database
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
    assert len(questions) == 14
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


# --- The columns of the views are an interface: what was once there stays, in its place and of its type ----


GOLDEN = Path(__file__).parents[1] / "golden" / "history-columns.txt"
"""One line a column: view, column, type. New ones are added behind the last of their view; no line is ever removed."""

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'history'::regnamespace AND c.relkind = 'v' AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""


def test_columns_of_the_views_equal_the_published_interface(database_url: str) -> None:
    found = [" ".join(row) for row in rows_of(database_url, COLUMNS)]
    assert found == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_view_that_was_promised_but_that_of_termination_messages_can_be_read_by_the_reader(
    database_url: str,
) -> None:
    views = {line.split()[0] for line in GOLDEN.read_text(encoding="utf-8").splitlines()}
    readable = rows_of(
        database_url,
        "SELECT relname FROM pg_class WHERE relnamespace = 'history'::regnamespace "
        "AND has_table_privilege('dispatcher_reader', oid, 'SELECT')",
    )
    assert {name for (name,) in readable} == views - {"termination_messages"}


def test_reader_role_delays_no_writer_for_long(database_url: str) -> None:
    settings = rows_of(
        database_url, "SELECT unnest(rolconfig) FROM pg_roles WHERE rolname = 'dispatcher_reader' ORDER BY 1"
    )
    assert [setting for (setting,) in settings] == [
        "default_transaction_read_only=on",
        "idle_in_transaction_session_timeout=60s",
        "idle_session_timeout=600s",
        "lock_timeout=1s",
        "max_parallel_workers_per_gather=0",
        "search_path=history",
        "statement_timeout=30s",
        "temp_file_limit=2GB",
    ]


# --- The queries in docs/troubleshooting.md run on the schema as it is -------------------------------------


TROUBLESHOOTING = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", TROUBLESHOOTING, re.DOTALL)


@pytest.mark.parametrize("query", QUERIES)
async def test_query_runs(database: Database, query: str) -> None:
    async with database.reading() as connection:
        found = await connection.execute(text(query))
        assert list(found.keys()) != []
