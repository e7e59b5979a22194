"""The server of the tests in a Docker container; `make test-image` runs this with an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest

from testbed.postgres import IMAGE_VARIABLE, SETTINGS, postgres_server
from testbed.postgres_container import OWNER
from tests.postgres.changes import rows_of

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(120)]

KEEPER = """
import time
from testbed.postgres import postgres_server
with postgres_server() as server:
    print(server.url, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def engine() -> None:
    if not os.environ.get(IMAGE_VARIABLE):
        pytest.skip(f"{IMAGE_VARIABLE} names no image: `make test-image` does, and needs a Docker engine")


def containers() -> list[str]:
    """The ids of the containers of the tests."""
    command = ["docker", "ps", "--all", "--quiet", f"--filter=label={OWNER}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()  # noqa: S603


def address(container: str) -> str:
    """The addresses at which a container publishes Postgres."""
    command = ["docker", "port", container, "5432"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


def test_container_is_used_has_the_settings_of_the_tests_and_is_removed() -> None:
    before = containers()
    with postgres_server() as server:
        (own,) = set(containers()) - set(before)
        assert server.url.endswith(f"@{address(own)}/postgres")
        assert address(own).startswith("127.0.0.1:")
        for name, value in SETTINGS.items():
            assert rows_of(server.url, f"SHOW {name}") == [(value,)]
    assert containers() == before


def test_container_of_a_killed_owner_is_removed_by_the_next_and_that_of_a_living_one_is_not() -> None:
    before = set(containers())
    with subprocess.Popen([sys.executable, "-c", KEEPER], stdout=subprocess.PIPE, text=True) as owner:  # noqa: S603
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        with postgres_server():
            assert rows_of(url, "SELECT 1") == [(1,)]
        owner.send_signal(signal.SIGKILL)
    (left,) = set(containers()) - before
    with postgres_server():
        assert left not in containers()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5)
