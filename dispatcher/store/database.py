"""The leader's pool of connections to Postgres: bounded transactions, the fence, translated errors.

Every use is one short transaction without other I/O. Timeouts of the server bound statements and locks, a deadline here
bounds the transaction, and keepalives detect a dead connection. A writing transaction is `fenced`: its first statement
checks that this process leads and locks that fact until the commit, so nothing is committed after a takeover. Pooled
connections are not pinged before use. If the first statement of a transaction finds its connection dead, the
transaction is opened again on a fresh one, since nothing was done yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final

import psycopg
from sqlalchemy import Engine, NullPool, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import Fenced, StoreError, StoreUnavailable
from dispatcher.store import connections
from dispatcher.store.connections import (
    CONNECT_SECONDS,
    IDLE_TIMEOUT,
    LOCK_TIMEOUT,
    STATEMENT_TIMEOUT,
    connection_parameters,
    in_our_words,
    milliseconds,
)
from dispatcher.store.library import AsyncConnection, AsyncEngine, create_async_engine

DIALECT: Final = "postgresql+psycopg://"
TRANSACTION_DEADLINE: Final = timedelta(seconds=15)
"""Bounds a transaction whose server stops answering without closing the connection: such a server enforces no timeout.
"""

FENCE: Final = text(
    "SELECT 1 FROM leader_epoch e JOIN leader_lease l USING (name) "
    "WHERE e.epoch = :mine AND l.holder = :me AND l.expires_at > clock_timestamp() FOR SHARE OF e"
)
READ_ONLY: Final = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


class Database:
    """A pool of connections to one database; call `close` in the event loop that used it.

    A leader passes the duration of its lease as `idle_timeout`: a leader that is paused or cut off in a transaction
    then locks the rows that a takeover needs no longer than its lease lasts.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        idle_timeout: timedelta = IDLE_TIMEOUT,
        deadline: timedelta = TRANSACTION_DEADLINE,
    ) -> None:
        parameters = connection_parameters(
            url,
            statement_timeout=milliseconds(statement_timeout),
            lock_timeout=milliseconds(LOCK_TIMEOUT),
            idle_in_transaction_session_timeout=milliseconds(idle_timeout),
        )

        async def connect() -> psycopg.AsyncConnection:
            connection = await psycopg.AsyncConnection.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names
            connections.leave_json(connection)
            return connection

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
        """A read-only transaction with one snapshot of the database."""
        async with self._transaction(READ_ONLY) as (connection, _):
            yield connection

    @asynccontextmanager
    async def unfenced(self, statement_timeout: timedelta) -> AsyncIterator[AsyncConnection]:
        """A transaction for leader election only; all other writes are `fenced`."""
        opening = text("SELECT set_config('statement_timeout', :limit, true)")
        async with self._transaction(opening, {"limit": milliseconds(statement_timeout)}) as (connection, _):
            yield connection

    @asynccontextmanager
    async def _transaction(
        self, opening: TextClause, values: Mapping[str, object] | None = None
    ) -> AsyncIterator[tuple[AsyncConnection, bool]]:
        """Yields the connection, and whether the opening statement returned a row."""
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
    driver = connection.sync_connection.connection.driver_connection if connection.sync_connection else None
    if isinstance(driver, psycopg.AsyncConnection):
        connections.hang_up(driver)


def sync_engine(url: str, lock_timeout: str) -> Engine:
    """An engine without a pool for migrations; statements have no timeout, because they may rewrite a table."""
    parameters = connection_parameters(url, statement_timeout="0", lock_timeout=lock_timeout)

    def connect() -> psycopg.Connection:
        return psycopg.connect(**parameters)  # type: ignore[arg-type]  # libpq's own names

    return create_engine(DIALECT, creator=connect, poolclass=NullPool, hide_parameters=True)


@contextmanager
def translated() -> Iterator[None]:
    """Raises errors of the driver and of the pool as errors of `dispatcher.errors`, chained."""
    with connections.translated():
        try:
            yield
        except DBAPIError as error:
            if not isinstance(error.orig, psycopg.Error):
                raise StoreError("the database driver failed") from error
            raise in_our_words(error.orig) from error
        except PoolTimeout as error:
            raise StoreUnavailable("every connection to the database is in use") from error
