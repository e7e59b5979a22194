"""A hot standby answers the commands that read the database: the place for readers who must not slow the queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg
import pytest

from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres, memory_folder
from tests.commands import Run


class Standby(EmbeddedPostgres):
    """A server that becomes a hot standby of what it was; its primary is gone, which its readers do not notice."""

    def _settings(self) -> Mapping[str, str]:
        return {**super()._settings(), "wal_level": "replica"}

    def become_standby(self) -> None:
        """Restart on the same data as a standby does, which is read-only."""
        (self._data / "standby.signal").touch()
        self.restart()


@pytest.fixture(scope="module")
def standby_url() -> Iterator[str]:
    with Standby(parent=memory_folder()) as server:
        assert migrate.migrate(server.url) == ()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE ada LOGIN IN ROLE dispatcher_reader")
        server.become_standby()
        yield server.url.replace("postgres@", "ada@")


@pytest.fixture
def database_url(standby_url: str) -> str:
    """The database that `run` asks."""
    return standby_url


async def test_replica_is_read_only(run: Run) -> None:
    assert (await run("sql", "-o", "csv", "SELECT pg_is_in_recovery() AS replica")).out == "replica\ntrue\n"


@pytest.mark.parametrize(
    "command",
    [["queue"], ["history"], ["usage"], ["waits"], ["clusters"]],
    ids=lambda each: each[0],
)
async def test_command_reads_the_replica(run: Run, command: list[str]) -> None:
    ran = await run(*command)
    assert (ran.code, ran.out) == (0, ""), ran.err
