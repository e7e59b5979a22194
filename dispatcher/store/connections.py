"""Single connections to Postgres through libpq, and the translation of its errors.

Commands need no more than this module, which imports only the driver. The leader's pool and its transactions build on
it and are in `store.database`.

libpq parses the URLs. Neither URLs nor bound values appear in errors: a URL may hold a password.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

from dispatcher.errors import DataRefused, SchemaMismatch, StoreError, StoreForbidden, StoreUnavailable

SCHEMES: Final = ("postgresql://", "postgres://")
APPLICATION_NAME: Final = "appwrapper-dispatcher"
CONNECT_SECONDS: Final = 5
STATEMENT_TIMEOUT: Final = timedelta(seconds=10)
LOCK_TIMEOUT: Final = timedelta(seconds=5)
IDLE_TIMEOUT: Final = timedelta(seconds=30)
"""Seconds a client may be silent in a transaction before the server ends its session."""

KEEPALIVE: Final = {
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

SERVER_SETTINGS: Final = {
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT.seconds}s",
    # A plan made while a table is small would be kept while the table grows by thousands of rows a minute.
    "plan_cache_mode": "force_custom_plan",
}

_DATA_CLASSES: Final = ("22", "23", "54")
"""SQLSTATE classes for faults of the data itself: data, integrity, program limits."""
_ABSENT_SCHEMA: Final = ("42P01", "42703", "42883", "3F000")
"""Undefined table, column, function, schema."""
TRANSIENT: Final = ("08", "40", "53", "55", "57")
"""SQLSTATE classes that a retry may clear: connection, rollback, resources, object in use, intervention."""
_READ_ONLY: Final = "25006"
"""SQLSTATE of a write to a read-only server, as after a failover."""
_FORBIDDEN: Final = "42501"
"""SQLSTATE of insufficient privilege."""
_LOGIN_REFUSED: Final = re.compile(
    r"FATAL:\s+(password authentication failed|.* authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r"|role .* (does not exist|is not permitted to log in)|permission denied for database)|no password supplied"
)
"""A refused login in the server's words, or libpq's: there is no SQLSTATE of a connection that was not made."""

Connection = psycopg.AsyncConnection[tuple[object, ...]]


@asynccontextmanager
async def connected(
    url: str, *, statement_timeout: timedelta, lock_timeout: timedelta, grace: timedelta
) -> AsyncIterator[Connection]:
    """A connection that is closed without a commit, so nothing done in it lasts.

    Raises `StoreForbidden` if the server refuses the login.

    The server ends a statement after `statement_timeout`. The connection is cut after `statement_timeout` and `grace`
    together, because a server that stops answering cannot enforce its own timeouts; `StoreUnavailable` is raised then.
    Other errors are those of `translated`.
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
                connection = await _log_in(parameters)
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


async def _log_in(parameters: dict[str, str]) -> Connection:
    try:
        return await psycopg.AsyncConnection.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names
    except psycopg.OperationalError as error:
        if _LOGIN_REFUSED.search(str(error)):
            raise StoreForbidden(_message(error)) from error
        raise


async def only_read(connection: Connection) -> None:
    """Have each transaction only read, and see one state of the database; set with BEGIN, at no further cost."""
    await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await connection.set_read_only(True)


def leave_json(connection: psycopg.AsyncConnection[Any]) -> None:
    """Hand on JSON columns as they are sent, in bytes: who reads one knows the type of its value."""
    set_json_loads(_as_sent, connection)


def _as_sent(document: str | bytes) -> bytes:
    return document if isinstance(document, bytes) else document.encode()


def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """End a connection for every task that waits for the server.

    Cancelling such a task would first ask the same server to cancel its statement, and wait for the answer.
    """
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire, suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)


def connection_parameters(url: str, **settings: str) -> dict[str, str]:
    """Parameters of libpq from a URL, with our defaults; `settings` are set in the server for the session.

    Raises `StoreError` for an invalid URL; the error does not quote it.
    """
    if not url.startswith(SCHEMES):
        raise StoreError("the database URL must begin with postgresql://")
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        # `from None`: libpq's message quotes the unreadable part of the URL, which may be the password.
        raise StoreError("the database URL is not one that libpq can read") from None
    server = {**SERVER_SETTINGS, **settings}
    options = " ".join(f"-c {name}={value}" for name, value in server.items())
    ours = {"application_name": APPLICATION_NAME, "connect_timeout": str(CONNECT_SECONDS), **KEEPALIVE}
    theirs = {name: str(value) for name, value in given.items() if value is not None}
    # Text comes as text also from a database without an encoding, which `migrate` then refuses in words.
    always = {"client_encoding": "UTF8", "options": f"{options} {given.get('options') or ''}".strip()}
    return {**ours, **theirs, **always}


@contextmanager
def translated() -> Iterator[None]:
    """Raises errors of the driver as errors of `dispatcher.errors`, chained."""
    try:
        yield
    except psycopg.Error as error:
        raise in_our_words(error) from error


def in_our_words(error: psycopg.Error) -> StoreError:
    """The error of `dispatcher.errors` for an error of the driver."""
    state = error.sqlstate or ""
    message = _message(error)
    if state == _FORBIDDEN:
        return StoreForbidden(message)
    if state.startswith(_DATA_CLASSES) or (not state and isinstance(error, psycopg.DataError)):
        return DataRefused(message)  # without a state it is the driver that refuses, a NUL for instance
    if state in _ABSENT_SCHEMA:
        return SchemaMismatch(f"{message}; run: dispatcher migrate")
    if state.startswith((*TRANSIENT, _READ_ONLY)) or isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError
    ):
        return StoreUnavailable(message)
    return StoreError(message)


def _message(error: psycopg.Error) -> str:
    parts = [error.diag.message_primary or str(error) or type(error).__name__, error.diag.message_detail]
    message = ": ".join(" ".join(part.split()) for part in parts if part)
    return f"{message} ({error.sqlstate})" if error.sqlstate else message


def milliseconds(duration: timedelta) -> str:
    """A duration in the form of the server's settings; never 0, which would mean no limit."""
    return f"{max(1, round(duration / timedelta(milliseconds=1)))}ms"
