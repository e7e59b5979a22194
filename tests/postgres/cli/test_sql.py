"""`dispatcher sql`: one query of a person's own, which changes nothing and sees history alone."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.commands import Ran, Run
from tests.postgres.changes import rows_of
from tests.postgres.cli.conftest import STRANGER
from tests.postgres.cli.lives import Lives

REFUSED = [
    ("RESET ROLE", 'syntax error at or near "RESET".'),
    ("COMMIT", 'syntax error at or near "COMMIT".'),
    ("DELETE FROM public.appwrapper", 'syntax error at or near "DELETE".'),
    (
        "WITH gone AS (DELETE FROM public.appwrapper RETURNING 1) TABLE gone",
        "DECLARE CURSOR must not contain data-modifying statements in WITH.",
    ),
    ("SELECT 1 INTO taken", "SELECT ... INTO is not allowed here."),
    ("SELECT * FROM public.appwrapper", "permission denied for table appwrapper."),
    ("SELECT query_to_xml('TABLE public.event', true, true, '')", "permission denied for table event."),
    (
        "SELECT set_config('transaction_read_only', 'off', true), count(*) FROM queue_now",
        "transaction read-write mode must be set before any query.",
    ),
    ("SELECT lo_create(0)", "permission denied for function lo_create."),
    ("SELECT pg_advisory_lock(1)", "permission denied for function pg_advisory_lock."),
    ("SELECT nowhere FROM queue_now", 'column "nowhere" does not exist.'),
]
"""Whatever the account: what it cannot do, and how Postgres says so."""
ESCAPES = [
    ("role", "none"),
    ("session_authorization", "default"),
]


async def test_a_query_is_answered_from_history(run: Run, lives: Lives) -> None:
    ran = await run("sql", "SELECT name, state FROM job_history ORDER BY submitted_at;")
    assert ran == Ran(
        0,
        "name   state\ntrain  Deleted\nprobe  Failed\ntrain  Queued\n",
    )


async def test_a_query_may_come_from_a_pipe(run: Run) -> None:
    assert await run("sql", "-", "-o", "csv", stdin="SELECT 1 AS one,\n 'a,b' AS two -- 100%") == Ran(
        0, 'one,two\n1,"a,b"\n'
    )


async def test_columns_of_a_domain_are_read_as_the_type_below_it(run: Run) -> None:
    ran = await run(
        "sql",
        "SELECT column_name, ordinal_position AS place FROM information_schema.columns "
        "WHERE table_schema = 'history' AND table_name = 'queue_now' ORDER BY 2 LIMIT 2; ",
    )
    assert ran == Ran(0, "column_name  place\nqueue        1\nposition     2\n")


async def test_nothing_found_is_an_answer(run: Run) -> None:
    assert await run("sql", "SELECT name FROM queue_now") == Ran(0, "", "No rows.\n")
    assert await run("sql", "SELECT name FROM queue_now", "-o", "csv") == Ran(0, "name\n")
    assert await run("sql", "SELECT name FROM queue_now", "-o", "json") == Ran(0, "[]\n")


async def test_json_has_numbers_as_numbers_and_times_as_iso_8601(run: Run) -> None:
    ran = await run(
        "sql",
        "SELECT 1, 2, 1.5 AS half, 'NaN'::float8 AS none, NULL AS nothing, true AS so, '{\"a\": [1]}'::jsonb AS json, "
        "'2026-11-20 12:00Z'::timestamptz AS at, '2026-11-20'::date AS day, interval '90s' AS span, 2::numeric AS two",
        "-o",
        "json",
    )
    assert (ran.code, json.loads(ran.out), ran.err) == (
        0,
        [
            {
                "?column?": 1,
                "?column?_2": 2,
                "half": 1.5,
                "none": "nan",
                "nothing": None,
                "so": True,
                "json": {"a": [1]},
                "at": "2026-11-20T12:00:00+00:00",
                "day": "2026-11-20",
                "span": 90,
                "two": 2,
            }
        ],
        "",
    )


async def test_sql_with_a_limit_says_that_rows_are_left_out(run: Run, reader_url: str) -> None:
    few = ("sql", "SELECT * FROM (VALUES (1), (2), (3)) AS a(n)", "--limit")
    there = "--limit 2 leaves rows out: raise it.\n"
    for account in ((), ("--database-url", reader_url)):
        assert await run(*few, "2", *account) == Ran(0, "n\n1\n2\n", there)
        assert await run(*few, "3", *account) == Ran(0, "n\n1\n2\n3\n")


@pytest.mark.parametrize(("query", "why"), REFUSED)
async def test_only_a_query_over_history_is_answered(run: Run, reader_url: str, query: str, why: str) -> None:
    for account in ((), ("--database-url", reader_url)):
        assert await run("sql", query, *account) == Ran(1, "", f"dispatcher: Postgres refuses it: {why}\n")


@pytest.mark.parametrize("query", ["SELECT 1; SELECT 2", "SELECT 1; COMMIT; DELETE FROM public.appwrapper"])
async def test_one_query_is_one_statement(run: Run, lives: Lives, database_url: str, query: str) -> None:
    ran = await run("sql", query)
    assert ran == Ran(1, "", "dispatcher: one query at a time: it has several statements\n")
    assert rows_of(database_url, "SELECT count(*) FROM appwrapper") == [(3,)]


@pytest.mark.parametrize(("setting", "value"), ESCAPES)
async def test_the_role_that_was_put_on_cannot_be_taken_off(run: Run, setting: str, value: str) -> None:
    query = (
        f"SELECT set_config('{setting}', '{value}', true), query_to_xml('TABLE public.event', true, true, '')"
    )
    assert await run("sql", query) == Ran(
        1,
        "",
        f'dispatcher: Postgres refuses it: cannot set parameter "{setting}" within security-definer function.\n',
    )


async def test_session_of_the_reader_cannot_leave_its_role(run: Run, reader_url: str) -> None:
    query = "SELECT set_config('role', 'none', true), current_user, session_user"
    ran = await run("sql", query, "-o", "csv", "--database-url", reader_url)
    assert ran == Ran(0, "set_config,current_user,session_user\nnone,dispatcher_reader,dispatcher_reader\n")


async def test_an_account_that_may_not_be_the_reader_asks_with_its_own_rights(
    run: Run, database_url: str, stranger_url: str
) -> None:
    ran = await run("sql", "SELECT * FROM queue_now", "-o", "json", "--database-url", stranger_url)
    said = (
        f"There is no role dispatcher_reader that {STRANGER} may use: asked with the rights of {STRANGER}.\n"
    )
    assert ran == Ran(0, "[]\n", said)
    ran = await run("sql", "SELECT count(lo_create(0))", "--database-url", stranger_url)
    assert ran == Ran(1, "", "dispatcher: Postgres refuses it: permission denied for function lo_create.\n")


async def test_sql_refuses_an_account_that_cannot_be_confined_with_a_remedy(
    run: Run, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("DROP FUNCTION history.answer")
    assert await run("sql", "SELECT 1") == Ran(
        1,
        "",
        "dispatcher: this account cannot be kept to the rights of dispatcher_reader here: run dispatcher migrate "
        "again, or give a --database-url of dispatcher_reader itself\n",
    )


async def test_sql_works_without_the_right_to_temporary_tables(run: Run, database_url: str) -> None:
    name = urlsplit(database_url).path.removeprefix("/")
    with psycopg.connect(database_url) as connection:
        connection.execute(
            sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name))
        )
    assert (await run("sql", "SELECT 1 AS one", "-o", "csv")).out == "one\n1\n"


async def test_a_query_leaves_no_temporary_schema(run: Run, database_url: str) -> None:
    assert (await run("sql", "SELECT 1")).code == 0
    # Where a temporary function lived outlasts it, unless the transaction was taken back.
    assert rows_of(database_url, "SELECT nspname FROM pg_namespace WHERE nspname ~ '^pg_temp'") == []


async def test_a_query_that_takes_too_long_is_ended(run: Run, reader_url: str) -> None:
    for account in ((), ("--database-url", reader_url)):
        ran = await run("sql", "SELECT 1 FROM pg_sleep(30)", "--timeout", "0.1s", *account)
        assert ran == Ran(3, "", "dispatcher: no answer within 0.1 s\n")


async def test_a_database_that_is_not_there_is_to_be_tried_again(run: Run) -> None:
    ran = await run("sql", "SELECT 1", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (3, "")
    assert "Connection refused" in ran.err


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "Postgres refuses it: syntax error at end of input."),
        ("-- nothing", "Postgres refuses it: syntax error at end of input."),
        ("SELECT FROM queue_now", "a query has to have a column"),
        ("SELECT '\0'", "the query holds a NUL, which no SQL does"),
    ],
)
async def test_text_that_is_no_query_is_refused(run: Run, query: str, why: str) -> None:
    assert await run("sql", "-", stdin=query) == Ran(1, "", f"dispatcher: {why}\n")
