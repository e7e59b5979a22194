"""Connections to Postgres, one at a time, as libpq makes them; and its errors in our own words.

This is what a question of a person needs, and it imports nothing but the driver. The leader's pool and its
transactions, which build on this, are in `store.database`.

URLs are libpq's and are parsed by libpq. Neither they nor bound values appear in errors: a URL may hold a password.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dispatcher.errors import DataRefused, SchemaMismatch, StoreError, StoreUnavailable

SCHEMES: Final = ("postgresql://", "postgres://")
APPLICATION_NAME: Final = "appwrapper-dispatcher"
CONNECT_SECONDS: Final = 5
STATEMENT_TIMEOUT: Final = timedelta(seconds=10)
LOCK_TIMEOUT: Final = timedelta(seconds=5)
IDLE_TIMEOUT: Final = timedelta(seconds=30)
"""Longest silence of a client in the middle of a transaction: past it the server ends its session."""

KEEPALIVE: Final = {
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

SERVER_SETTINGS: Final = {
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT.seconds}s",
    # A plan made while a table was small is kept too long by a table that grows by thousands a minute.
    "plan_cache_mode": "force_custom_plan",
}

_DATA_CLASSES: Final = ("22", "23", "54")
"""SQLSTATE classes of what is wrong with the data itself: data, integrity, program limits."""
_ABSENT_SCHEMA: Final = ("42P01", "42703", "42883", "3F000")
"""Undefined table, column, function, schema."""
_PASSING: Final = ("08", "40", "53", "55", "57", "25006")
"""Connection, rollback, resources, object in use, intervention; and read-only, as after a failover."""

Connection = psycopg.AsyncConnection[tuple[object, ...]]


@asynccontextmanager
async def connected(
    url: str, *, statement_timeout: timedelta, lock_timeout: timedelta, grace: timedelta
) -> AsyncIterator[Connection]:
    """A connection that is closed without a commit: nothing that was done in it is left.

    A statement may take `statement_timeout`. After that and `grace` together the connection is cut, for a server that
    stops answering cannot enforce its own timeouts. Raises `StoreUnavailable` then, and as `translated` does.
    """
    parameters = connection_parameters(
        url, statement_timeout=milliseconds(statement_timeout), lock_timeout=milliseconds(lock_timeout)
    )
    longest = (statement_timeout + grace).total_seconds()
    clock = asyncio.get_running_loop().time
    until = clock() + longest
    with translated():
        try:
            async with asyncio.timeout_at(until):
                connection = await psycopg.AsyncConnection.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names
            cut = asyncio.get_running_loop().call_at(until, hang_up, connection)
            try:
                yield connection
            finally:
                cut.cancel()
                await connection.close()
        except (TimeoutError, psycopg.OperationalError) as error:
            if clock() < until:
                raise
            raise StoreUnavailable(f"the database did not answer within {longest:g} s") from error


def hang_up(connection: psycopg.AsyncConnection) -> None:
    """Make whoever waits for the server see the connection's end.

    Cancelling the wait instead would first ask the same server to cancel its statement, and wait for that.
    """
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire, suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)


def connection_parameters(url: str, **settings: str) -> dict[str, str]:
    """Libpq's parameters from a URL, with ours where it says nothing; `settings` are the server's.

    Raises `StoreError`, without the URL in it, if that is none.
    """
    if not url.startswith(SCHEMES):
        raise StoreError("the database URL must begin with postgresql://")
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        # From None: libpq's message quotes the part it could not read, which may be the password.
        raise StoreError("the database URL is not one that libpq can read") from None
    server = {**SERVER_SETTINGS, **settings}
    options = " ".join(f"-c {name}={value}" for name, value in server.items())
    ours = {"application_name": APPLICATION_NAME, "connect_timeout": str(CONNECT_SECONDS), **KEEPALIVE}
    theirs = {name: str(value) for name, value in given.items() if value is not None}
    return {**ours, **theirs, "options": f"{options} {given.get('options') or ''}".strip()}


@contextmanager
def translated() -> Iterator[None]:
    """Raise what the driver raises as one of `dispatcher.errors`, chained."""
    try:
        yield
    except psycopg.Error as error:
        raise in_our_words(error) from error


def in_our_words(error: psycopg.Error) -> StoreError:
    """What an error of the driver means to us."""
    state = error.sqlstate or ""
    message = _message(error)
    if state.startswith(_DATA_CLASSES) or (not state and isinstance(error, psycopg.DataError)):
        return DataRefused(message)  # without a state it is the driver that refuses, a NUL for instance
    if state in _ABSENT_SCHEMA:
        return SchemaMismatch(f"{message}; run: dispatcher migrate")
    if state.startswith(_PASSING) or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(message)
    return StoreError(message)


def _message(error: psycopg.Error) -> str:
    parts = [error.diag.message_primary or str(error) or type(error).__name__, error.diag.message_detail]
    said = ": ".join(" ".join(part.split()) for part in parts if part)
    return f"{said} ({error.sqlstate})" if error.sqlstate else said


def milliseconds(duration: timedelta) -> str:
    """A duration as the server's settings take it; never 0, which would be no limit at all."""
    return f"{max(1, round(duration / timedelta(milliseconds=1)))}ms"
