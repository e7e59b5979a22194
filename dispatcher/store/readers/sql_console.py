"""Runs one SQL query of a user over history; it can change nothing and see nothing else.

A cursor reads it, and a cursor takes only a query: no second statement, no SET, COMMIT or DELETE. It runs in a
read-only transaction with the rights of the role `dispatcher_reader` alone. SET ROLE alone is not enough, since a query
can undo it: `set_config('role', 'none', true)`. So the query runs inside a function that the reader owns
(`history.answer`, made by `store.readers.reader`), where Postgres refuses to change roles. A user who logs in as the
reader has no role to undo and needs no function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, LiteralString

import psycopg
from msgspec import Struct
from psycopg import sql

from dispatcher.errors import CommandFailed, StoreUnavailable
from dispatcher.store.connections import TRANSIENT, Connection, connected
from dispatcher.store.readers.reader import READER
from dispatcher.store.readers.reports import Report

GRACE: Final = timedelta(seconds=10)
"""Added to the server's timeout, so that the server reports the timeout itself."""
LOCK_TIMEOUT: Final = timedelta(seconds=1)

_MANY_STATEMENTS: Final = "cannot insert multiple commands into a prepared statement"


class Answer(Struct, frozen=True):
    """The rows of a query; `asked_as` is the user whose rights it had, empty for the reader's."""

    report: Report
    asked_as: str = ""


async def answer(url: str, statement: str, timeout: timedelta, most: int | None = None) -> Answer:
    """Run one query; return at most `most` rows.

    Raises `CommandFailed` if Postgres refuses the query, and `StoreUnavailable` if Postgres cannot be reached or takes
    longer than `timeout`.
    """
    if "\0" in statement:
        raise CommandFailed("the query holds a NUL, which no SQL does")
    async with connected(
        url, statement_timeout=timeout, lock_timeout=LOCK_TIMEOUT, grace=GRACE
    ) as connection:
        asked_as, is_confined = await _rights(connection)
        await _begin(connection, is_confined=is_confined)
        with _refusals_translated(timeout):
            try:
                report = await _answered(connection, statement, most, is_confined=is_confined)
            except psycopg.errors.DatatypeMismatch:
                # A column of a domain, as those of information_schema: the protocol names the type below it.
                await connection.rollback()
                await _begin(connection, is_confined=is_confined)
                report = await _answered(connection, statement, most, is_confined=is_confined, casts=True)
        return Answer(report, asked_as)


async def _begin(connection: Connection, *, is_confined: bool) -> None:
    await (_confine(connection) if is_confined else connection.execute(_READ_ONLY))
    await connection.execute(_SEARCH_PATH)


async def _rights(connection: Connection) -> tuple[str, bool]:
    """The user whose rights the query has (empty for the reader's), and whether to confine it to the reader's."""
    found = await connection.execute(_WHO, {"reader": READER})
    user, is_reader, may_be_reader = await found.fetchone() or ("", False, False)
    return "" if is_reader or may_be_reader else str(user), bool(may_be_reader and not is_reader)


async def _confine(connection: Connection) -> None:
    """Take the reader's role for the transaction."""
    found = await connection.execute(_HAS_ANSWER)
    if await found.fetchone() is None:
        raise CommandFailed(
            f"this account cannot be kept to the rights of {READER} here: run dispatcher migrate again, or give a "
            f"--database-url of {READER} itself"
        )
    for statement in (f"SET LOCAL ROLE {READER}", _READ_ONLY):
        await connection.execute(statement.encode())


async def _answered(
    connection: Connection, statement: str, most: int | None, *, is_confined: bool, casts: bool = False
) -> Report:
    """The rows; of a confined query that `casts`, each column is cast to the type that the protocol names."""
    # One more row than is shown tells whether there are more.
    limit = None if most is None else most + 1
    async with connection.cursor(name="asked") as cursor:
        await cursor.execute(statement.encode())
        names = [column.name for column in cursor.description or ()]
        if not names:
            raise CommandFailed("a query has to have a column")
        if is_confined:
            types = await _types(connection, cursor)
            asked = _with_plain_types(statement, types) if casts else statement
            rows = await _from_inside(connection, asked, limit, types)
        else:
            rows = await (cursor.fetchall() if limit is None else cursor.fetchmany(limit))
    return Report(_distinct(names), tuple(rows[:most]), is_cut=most is not None and len(rows) > most)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The column names with a number added to repeated ones."""
    distinct: list[str] = []
    for name in names:
        candidates = (name, *(f"{name}_{number}" for number in range(2, len(names) + 2)))
        distinct.append(next(each for each in candidates if each not in distinct))
    return tuple(distinct)


async def _from_inside(
    connection: Connection, statement: str, limit: int | None, types: Sequence[LiteralString]
) -> list[tuple[object, ...]]:
    shape = sql.SQL(", ").join(sql.SQL(f"c{number} {name}") for number, name in enumerate(types))
    query = sql.SQL("SELECT * FROM history.answer(%s, %s) AS answer({})").format(shape)
    found = await connection.execute(query, (statement, limit))
    return await found.fetchall()


def _with_plain_types(statement: str, types: Sequence[LiteralString]) -> str:
    """The query with each column cast to its type; in it, as in the query, only the reader's rights count."""
    columns = ", ".join(f"c{number}" for number in range(len(types)))
    cast = ", ".join(f"c{number}::{name}" for number, name in enumerate(types))
    asked = statement.rstrip().rstrip(";")
    return f"SELECT {cast} FROM ({asked}\n) AS asked({columns})"


async def _types(
    connection: Connection, cursor: psycopg.AsyncServerCursor[tuple[object, ...]]
) -> list[LiteralString]:
    """The types of the query's columns, in Postgres' spelling."""
    result = cursor.pgresult
    columns = range(result.nfields if result else 0)
    oids = [result.ftype(column) for column in columns] if result else []
    modifiers = [result.fmod(column) for column in columns] if result else []
    found = await connection.execute(_TYPES, {"oids": oids, "modifiers": modifiers})
    return [row[0] for row in await found.fetchall()]  # type: ignore[misc]  # text


@contextmanager
def _refusals_translated(timeout: timedelta) -> Iterator[None]:
    """Raises `CommandFailed` for errors of the query; errors that a retry may clear are raised as they are."""
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise StoreUnavailable(f"no answer within {timeout.total_seconds():g} s") from error
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith(TRANSIENT) or isinstance(error, psycopg.OperationalError):
            raise
        raise CommandFailed(_refusal(error)) from error


def _refusal(error: psycopg.Error) -> str:
    if error.diag.message_primary == _MANY_STATEMENTS:
        return "one query at a time: it has several statements"
    parts = [error.diag.message_primary or str(error), error.diag.message_detail, error.diag.message_hint]
    message = " ".join(part.rstrip(".") + "." for part in parts if part)
    return f"Postgres refuses it: {message}"


_READ_ONLY: Final = "SET TRANSACTION READ ONLY"
_SEARCH_PATH: Final = "SET LOCAL search_path = history, tenant"
_WHO: Final = """
SELECT session_user, session_user = %(reader)s,
       EXISTS (SELECT FROM pg_roles WHERE rolname = %(reader)s AND pg_has_role(session_user, oid, 'MEMBER'))
"""
_TYPES: Final = """
SELECT format_type(type, modifier)
FROM unnest(%(oids)s::oid[], %(modifiers)s::integer[]) WITH ORDINALITY AS asked(type, modifier, place) ORDER BY place
"""
_HAS_ANSWER: Final = "SELECT FROM pg_proc WHERE proname = 'answer' AND pronamespace = 'history'::regnamespace"
