"""The server the demo and the tests stand on: private, restartable, and gone with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from testbed.postgres import (
    URL_VARIABLE,
    EmbeddedPostgres,
    clone_template,
    drop_database,
    postgres_server,
    url_of,
)
from tests.postgres.changes import rows_of

pytestmark = pytest.mark.exhaustive

OWNER = """
import sys, time
from testbed.postgres import EmbeddedPostgres
with EmbeddedPostgres() as server:
    print(server.url, flush=True)
    if sys.argv[1] == "raise":
        raise SystemExit(3)
    time.sleep(60)
"""


def folder_of(url: str) -> Path:
    return Path(str(conninfo_to_dict(url)["host"]))


def wait_until(condition: object, seconds: float = 8) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]  # any callable
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_served(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_it_keeps_url_and_data_over_a_restart_and_over_being_killed() -> None:
    with EmbeddedPostgres(database="mine") as server:
        url = server.url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        server.restart()
        assert rows_of(url, "SELECT one FROM kept") == [(1,)]
        server.kill()
        assert not is_served(url)
        server.start()
        assert server.url == url
        assert rows_of(url, "SELECT one FROM kept") == [(1,)]
    assert not folder_of(url).exists()


def test_it_listens_on_its_socket_only_and_not_as_root() -> None:
    with EmbeddedPostgres() as server:
        assert rows_of(server.url, "SHOW listen_addresses") == [("",)]
        folder = folder_of(server.url)
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "data" / "postmaster.pid").stat().st_uid != 0


@pytest.mark.parametrize("end", ["raise", "terminate", "kill"])
def test_it_ends_with_its_owner_however_that_ends(end: str) -> None:
    command = [sys.executable, "-c", OWNER, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:  # noqa: S603 - our own script
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        if end != "raise":
            owner.send_signal(signal.SIGTERM if end == "terminate" else signal.SIGKILL)
        owner.wait(10)
    wait_until(lambda: not is_served(url))
    # What an owner without a chance to clean up has left, the next one removes.
    with EmbeddedPostgres():
        assert not folder_of(url).exists()


def test_a_named_server_is_used_and_left_alone(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres_url)
    with postgres_server() as server:
        assert server.url == postgres_url
    assert is_served(postgres_url)


def test_a_clone_holds_what_its_template_holds_and_is_dropped_under_its_users(
    postgres_url: str, database_template: str
) -> None:
    name = f"aw_clone_{os.getpid()}"
    url = clone_template(postgres_url, database_template, name)
    user = psycopg.connect(url)
    assert user.execute("SELECT count(*) FROM hub").fetchone() == (1,)
    drop_database(postgres_url, name)
    drop_database(postgres_url, name)
    user.close()
    assert not is_served(url)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        pytest.param("postgresql://u@/a?host=/s", "postgresql://u@/b?host=/s", id="socket"),
        pytest.param("postgresql://u:p@h:1/a", "postgresql://u:p@h:1/b", id="port"),
        pytest.param("postgresql://h", "postgresql://h/b", id="no-database"),
    ],
)
def test_another_database_of_the_same_server(server: str, expected: str) -> None:
    assert url_of(server, "b") == expected
