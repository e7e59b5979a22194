"""A real Postgres for tests: one server per session, a fresh migrated database per test.

Register it as a plugin of the outermost conftest. Rolling back would be quicker than a fresh database, but one
transaction cannot race itself.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from testbed.postgres import (
    NoPostgres,
    clone_template,
    drop_database,
    migrated_template,
    postgres_server,
    url_of,
)

REPLAY = (Path(__file__).parent / "postgres" / "replay.sql").read_bytes()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server whose user may create databases."""
    try:
        with postgres_server() as server:
            yield server.url
    except NoPostgres as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    """A database without tables."""
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield url_of(postgres_url, name)
    drop_database(postgres_url, name)


@pytest.fixture(scope="session")
def database_template(postgres_url: str) -> str:
    """The name of a database at the newest schema, to be cloned."""
    return migrated_template(postgres_url)


@pytest.fixture(scope="session")
def replaying_template(postgres_url: str, database_template: str) -> Iterator[str]:
    """The name of a database, to be cloned, that refuses a row that is not what its events come to."""
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(clone_template(postgres_url, database_template, name)) as connection:
        connection.execute(REPLAY)
    yield name
    drop_database(postgres_url, name)


@pytest.fixture
def make_database(postgres_url: str, replaying_template: str) -> Iterator[Callable[[], str]]:
    """Makes URLs of fresh, migrated databases, each of which refuses a row that is not what its events come to."""
    made: list[str] = []

    def make() -> str:
        made.append(f"aw_test_{uuid.uuid4().hex}")
        return clone_template(postgres_url, replaying_template, made[-1])

    yield make
    for name in made:
        drop_database(postgres_url, name)


@pytest.fixture
def database_url(make_database: Callable[[], str]) -> str:
    """A fresh, migrated database."""
    return make_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Connections to the fresh database."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
async def leadership(database: Database) -> Leadership:
    """The leader of the fresh database."""
    leadership = Leadership(database, holder="leader")
    assert await leadership.acquire() is not None
    return leadership


@pytest.fixture
def queue(database: Database, leadership: Leadership) -> QueueStore:
    """The queue, as the leader writes it."""
    return QueueStore(database, lambda: leadership.lease)
