"""One SQL query of a person's own over history, which can change nothing and see nothing else.

It is read as a cursor, which only a query can be: no second statement, no SET, COMMIT or DELETE. It is answered in
a read-only transaction, and with the rights of the role `dispatcher_reader` alone. Putting on that role is not
enough for that, since a query may take it off again: `set_config('role', 'none', true)`. So it runs inside a
function that the reader owns (`history.answer`, made by `store.reader`), where Postgres refuses to change roles. Who
logs in as the reader has nothing to take off, and needs no function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from dispatcher.errors import CommandFailed, StoreUnavailable
from dispatcher.store.connections import Connection, connected
from dispatcher.store.reader import READER
from dispatcher.store.reports import Report

GRACE: Final = timedelta(seconds=10)
"""Longer than its timeout a server is waited for, so that it is the one to say what happened."""
LOCK_TIMEOUT: Final = timedelta(seconds=1)

_PASSING: Final = ("08", "40", "53", "55", "57")
"""SQLSTATE classes of what may be otherwise in a moment."""
_MANY_STATEMENTS: Final = "cannot insert multiple commands into a prepared statement"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query came to, and with whose rights, where those were more than the reader's."""

    report: Report
    asked_as: str = ""


async def answer(url: str, statement: str, timeout: timedelta, most: int | None = None) -> Answer:
    """Answer one query, in at most so many rows.

    Raises `CommandFailed` if Postgres refuses it, and `StoreUnavailable` if it cannot be reached or takes longer.
    """
    if "\0" in statement:
        raise CommandFailed("the query holds a NUL, which no SQL does")
    async with connected(
        url, statement_timeout=timeout, lock_timeout=LOCK_TIMEOUT, grace=GRACE
    ) as connection:
        asked_as, is_confined = await _standing(connection)
        await (_confine(connection) if is_confined else connection.execute(_READ_ONLY))
        await connection.execute(_SEARCH_PATH)
        with _told_why(timeout):
            report = await _answered(connection, statement, most, is_confined=is_confined)
        return Answer(report, asked_as)


async def _standing(connection: Connection) -> tuple[str, bool]:
    """With whose rights it has to be asked, if not the reader's; and whether those of others are to be put aside."""
    found = await connection.execute(_WHO, {"reader": READER})
    user, is_reader, may_be_reader = await found.fetchone() or ("", False, False)
    return "" if is_reader or may_be_reader else str(user), bool(may_be_reader and not is_reader)


async def _confine(connection: Connection) -> None:
    """Put on the reader's role, where it cannot be taken off again."""
    found = await connection.execute(_HAS_ANSWER)
    if await found.fetchone() is None:
        raise CommandFailed(
            f"this account cannot be kept to the rights of {READER} here: run dispatcher migrate again, or give a "
            f"--database-url of {READER} itself"
        )
    for statement in (f"SET LOCAL ROLE {READER}", _READ_ONLY):
        await connection.execute(statement.encode())


async def _answered(connection: Connection, statement: str, most: int | None, *, is_confined: bool) -> Report:
    # One more than is shown tells whether there are more.
    asked = None if most is None else most + 1
    async with connection.cursor(name="asked") as cursor:
        await cursor.execute(statement.encode())
        names = [column.name for column in cursor.description or ()]
        if not names:
            raise CommandFailed("a query has to have a column")
        if is_confined:
            rows = await _from_inside(connection, statement, asked, await _types(connection, cursor))
        else:
            rows = await (cursor.fetchall() if asked is None else cursor.fetchmany(asked))
    return Report(_distinct(names), tuple(rows[:most]), is_cut=most is not None and len(rows) > most)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of one name, which a query may have, are told apart by a number."""
    distinct: list[str] = []
    for name in names:
        candidates = (name, *(f"{name}_{number}" for number in range(2, len(names) + 2)))
        distinct.append(next(each for each in candidates if each not in distinct))
    return tuple(distinct)


async def _from_inside(
    connection: Connection, statement: str, asked: int | None, types: Sequence[LiteralString]
) -> list[tuple[object, ...]]:
    shape = sql.SQL(", ").join(sql.SQL(f"c{number} {name}") for number, name in enumerate(types))
    query = sql.SQL("SELECT * FROM history.answer(%s, %s) AS answer({})").format(shape)
    found = await connection.execute(query, (statement, asked))
    return await found.fetchall()


async def _types(
    connection: Connection, cursor: psycopg.AsyncServerCursor[tuple[object, ...]]
) -> list[LiteralString]:
    """The types of its columns, as Postgres spells them."""
    result = cursor.pgresult
    columns = range(result.nfields if result else 0)
    oids = [result.ftype(column) for column in columns] if result else []
    modifiers = [result.fmod(column) for column in columns] if result else []
    found = await connection.execute(_TYPES, {"oids": oids, "modifiers": modifiers})
    return [row[0] for row in await found.fetchall()]  # type: ignore[misc]  # text


@contextmanager
def _told_why(timeout: timedelta) -> Iterator[None]:
    """What Postgres says against a query is about the query, but where time may help."""
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise StoreUnavailable(f"no answer within {timeout.total_seconds():g} s") from error
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith(_PASSING) or isinstance(error, psycopg.OperationalError):
            raise
        raise CommandFailed(_refusal(error)) from error


def _refusal(error: psycopg.Error) -> str:
    if error.diag.message_primary == _MANY_STATEMENTS:
        return "one query at a time: it has several statements"
    parts = [error.diag.message_primary or str(error), error.diag.message_detail, error.diag.message_hint]
    said = " ".join(part.rstrip(".") + "." for part in parts if part)
    return f"Postgres refuses it: {said}"


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
