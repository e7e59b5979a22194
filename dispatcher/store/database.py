"""Connections to Postgres: a pool, bounded transactions, the fence, and errors in our own words.

The model: every use is one short transaction with no other I/O in it, bounded three times over (statement and
lock timeouts in the server, a deadline here, keepalives below both). A writing transaction is `fenced`: it
begins by proving that this process leads, and holds that proof until it commits, so nothing is committed
after a takeover. Pooled connections are not pinged before use; a transaction whose first statement finds its
connection dead is opened again on a fresh one, since nothing was done yet.

URLs are libpq's and are parsed by libpq. Neither they nor bound values appear in errors: a URL may hold a
password.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, NullPool, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from dispatcher.errors import DataRefused, Fenced, SchemaMismatch, StoreError, StoreUnavailable

SCHEMES: Final = ("postgresql://", "postgres://")
DIALECT: Final = "postgresql+psycopg://"
APPLICATION_NAME: Final = "appwrapper-dispatcher"
CONNECT_SECONDS: Final = 5
STATEMENT_TIMEOUT: Final = timedelta(seconds=10)
LOCK_TIMEOUT: Final = timedelta(seconds=5)
IDLE_TIMEOUT: Final = timedelta(seconds=30)
"""Longest silence of a client in the middle of a transaction: past it the server ends its session."""
TRANSACTION_DEADLINE: Final = timedelta(seconds=15)
"""A server that stops answering without closing the connection cannot enforce its own timeouts."""

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

FENCE: Final = text(
    "SELECT 1 FROM leader_epoch e JOIN leader_lease l USING (name) "
    "WHERE e.epoch = :mine AND l.holder = :me AND l.expires_at > clock_timestamp() FOR SHARE OF e"
)
READ_ONLY: Final = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

_DATA_CLASSES: Final = ("22", "23", "54")
"""SQLSTATE classes of what is wrong with the data itself: data, integrity, program limits."""
_ABSENT_SCHEMA: Final = ("42P01", "42703", "42883", "3F000")
"""Undefined table, column, function, schema."""
_PASSING: Final = ("08", "40", "53", "55", "57", "25006")
"""Connection, rollback, resources, object in use, intervention; and read-only, as after a failover."""


class Database:
    """A pool of connections to one database; `close` it in the loop that used it.

    A leader gives its lease as `idle_timeout`: paused or cut off in the middle of a transaction, it holds the
    rows that a takeover needs for no longer than it leads.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        lock_timeout: timedelta = LOCK_TIMEOUT,
        idle_timeout: timedelta = IDLE_TIMEOUT,
        deadline: timedelta = TRANSACTION_DEADLINE,
    ) -> None:
        parameters = connection_parameters(
            url,
            statement_timeout=milliseconds(statement_timeout),
            lock_timeout=milliseconds(lock_timeout),
            idle_in_transaction_session_timeout=milliseconds(idle_timeout),
        )

        async def connect() -> psycopg.AsyncConnection:
            return await psycopg.AsyncConnection.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names

        self._deadline = deadline.total_seconds()
        self._engine: AsyncEngine = create_async_engine(
            DIALECT,
            async_creator=connect,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS,
            hide_parameters=True,
        )

    async def close(self) -> None:
        """Close every pooled connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def fenced(self, epoch: int, holder: str) -> AsyncIterator[AsyncConnection]:
        """A transaction of the leader, committed on a normal exit; raises `Fenced` if it no longer leads."""
        async with self._transaction(FENCE, {"mine": epoch, "me": holder}) as (connection, leads):
            if not leads:
                raise Fenced(f"epoch {epoch} is over: another process leads, or the lease ran out")
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A read-only transaction that sees one moment throughout."""
        async with self._transaction(READ_ONLY) as (connection, _):
            yield connection

    @asynccontextmanager
    async def unfenced(self, statement_timeout: timedelta) -> AsyncIterator[AsyncConnection]:
        """A transaction for who leads, and for nothing else: all other writes are `fenced`."""
        opening = text("SELECT set_config('statement_timeout', :limit, true)")
        async with self._transaction(opening, {"limit": milliseconds(statement_timeout)}) as (connection, _):
            yield connection

    @asynccontextmanager
    async def _transaction(
        self, opening: TextClause, values: Mapping[str, object] | None = None
    ) -> AsyncIterator[tuple[AsyncConnection, bool]]:
        """Yield the connection, and whether the opening statement found a row."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._deadline
        with translated():
            try:
                async with AsyncExitStack() as stack:
                    try:
                        connection, found = await self._open(stack, until, opening, values)
                    except DBAPIError as error:
                        if not error.connection_invalidated or clock() >= until:
                            raise
                        connection, found = await self._open(stack, until, opening, values)
                    yield connection, found
                    await connection.commit()
            except DBAPIError as error:
                if clock() < until:
                    raise
                raise StoreUnavailable(f"the database did not answer within {self._deadline:g} s") from error

    async def _open(
        self, stack: AsyncExitStack, until: float, opening: TextClause, values: Mapping[str, object] | None
    ) -> tuple[AsyncConnection, bool]:
        connection = await stack.enter_async_context(self._engine.connect())
        stack.callback(asyncio.get_running_loop().call_at(until, _hang_up, connection).cancel)
        result = await connection.execute(opening, values)
        return connection, result.returns_rows and result.first() is not None


def _hang_up(connection: AsyncConnection) -> None:
    """Make whoever waits for the server see the connection's end.

    Cancelling the wait instead would first ask the same server to cancel its statement, and wait for that.
    """
    driver = connection.sync_connection.connection.driver_connection if connection.sync_connection else None
    if isinstance(driver, psycopg.AsyncConnection) and not driver.closed:
        with socket.socket(fileno=os.dup(driver.fileno())) as wire, suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)


def sync_engine(url: str, lock_timeout: str) -> Engine:
    """An engine without a pool for migrations: no limit on a statement, which may rewrite a table."""
    parameters = connection_parameters(url, statement_timeout="0", lock_timeout=lock_timeout)

    def connect() -> psycopg.Connection:
        return psycopg.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names

    return create_engine(DIALECT, creator=connect, poolclass=NullPool, hide_parameters=True)


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
    """Raise what the driver and the pool raise as one of `dispatcher.errors`, chained."""
    try:
        yield
    except DBAPIError as error:
        raise _in_our_words(error.orig if isinstance(error.orig, psycopg.Error) else None) from error
    except psycopg.Error as error:
        raise _in_our_words(error) from error
    except PoolTimeout as error:
        raise StoreUnavailable("every connection to the database is in use") from error


def _in_our_words(error: psycopg.Error | None) -> StoreError:
    if error is None:
        return StoreError("the database driver failed")
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
