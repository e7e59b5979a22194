"""These tests run the command itself, in a thread, over a real database that was filled as the dispatcher fills it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from dispatcher.store.state.queue import QueueStore
from tests.commands import Run, runner
from tests.postgres.cli.lives import Lives, live
from tests.postgres.cli.shared_databases import filled_database

STRANGER: Final = "aw_test_stranger"


@pytest.fixture
def run(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run `dispatcher …` on the fresh database, as its owner."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", database_url)
    for name in ("DISPATCHER_KUBECONFIG", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)  # there is no hub
    monkeypatch.setenv("HOME", str(tmp_path))  # and no ~/.kube/config
    return runner(monkeypatch, capsys)


@pytest.fixture
def reader_url(database_url: str) -> str:
    """The fresh database, for who may read history and nothing else."""
    return _of(database_url, "dispatcher_reader")


@pytest.fixture
def stranger_url(database_url: str) -> Iterator[str]:
    """The fresh database, for an account that may read the queue and has nothing to do with the reader."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {STRANGER} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA history TO {STRANGER}")
        connection.execute(f"GRANT SELECT ON history.queue_now TO {STRANGER}")
        try:
            yield _of(database_url, STRANGER)
        finally:
            connection.execute(f"DROP OWNED BY {STRANGER}")
            connection.execute(f"DROP ROLE {STRANGER}")


def _of(url: str, account: str) -> str:
    there = urlsplit(url)
    url = urlunsplit(there._replace(netloc=f"{account}@{there.netloc.rpartition('@')[2]}"))
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise
        pytest.skip(f"{account} may not log in here without a password: {error}")
    return url


@pytest.fixture
async def lives(queue: QueueStore) -> Lives:
    """Three AppWrappers: one completed and gone, one failed, and one that waits under the name of the first."""
    return await live(queue)


@dataclass(frozen=True, slots=True)
class Lived:
    """A database in which the three AppWrappers lived, for tests that only read it."""

    url: str
    lives: Lives


@pytest.fixture(scope="package")
def lived(postgres_url: str, replaying_template: str) -> Iterator[Lived]:
    """Made once for all tests of this folder that ask for it."""
    with filled_database(postgres_url, replaying_template, lambda _, __, queue: live(queue)) as (url, lives):
        yield Lived(url, lives)
