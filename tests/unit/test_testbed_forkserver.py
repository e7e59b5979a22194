"""Forks of a program that is imported once: each runs, ends and is ended like a process that was started anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from testbed.forkserver import ForkServer
from testbed.processes import Process, Supervisor, beginning_of

ENTRY = "tests.unit.test_testbed_forkserver:program"
SECONDS = 10
RARE = "colorsys"
"""A module that nothing else imports."""


def program() -> None:
    """What the forks run: says how it was started, then does as it was told."""
    said = {
        "argv": sys.argv[1:],
        "environment": {key: value for key, value in os.environ.items() if key.startswith("FORK_")},
        "folder": str(Path.cwd()),
        "imported": [RARE] if RARE in sys.modules else [],
        "leads": os.getpid() == os.getsid(0),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
    }
    print(json.dumps(said), flush=True)  # noqa: T201
    match sys.argv[1]:
        case "sleep":
            time.sleep(600)
        case "fail":
            raise ValueError("it was told to fail")
        case "say":
            raise SystemExit("said")
        case code:
            raise SystemExit(int(code))


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(ENTRY)
    yield server
    server.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path) as running:
        yield running


def start(
    supervisor: Supervisor, server: ForkServer, *argv: str, env: dict[str, str] | None = None
) -> Process:
    return supervisor.start(
        "fork", [sys.executable, *argv], env=env or {}, cwd=supervisor.folder, by=server.fork
    )


def eventually(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(("told", "code"), [("0", 0), ("3", 3), ("say", 1), ("fail", 1)])
def test_it_ends_with_the_exit_code_of_its_program(
    supervisor: Supervisor, server: ForkServer, told: str, code: int
) -> None:
    process = start(supervisor, server, told)
    assert process.wait(SECONDS) == code
    assert (process.is_running(), process.exit_code) == (False, code)
    assert ("it was told to fail" in process.log.read_text()) is (told == "fail")


def test_it_has_the_arguments_environment_folder_and_output_it_was_given_and_nothing_of_the_server(
    supervisor: Supervisor, server: ForkServer
) -> None:
    process = start(supervisor, server, "0", "--option", env={"FORK_OF": "mine"})
    process.wait(SECONDS)
    said = json.loads(process.log.read_text())
    assert said == {
        "argv": ["0", "--option"],
        "environment": {"FORK_OF": "mine"},
        "files": 4,  # three, and the one by which it looked
        "folder": str(supervisor.folder),
        "imported": [],
        "leads": True,
        "stdin": "/dev/null",
    }


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM])
def test_signal_ends_it_and_no_other(supervisor: Supervisor, server: ForkServer, number: Signals) -> None:
    process, other = start(supervisor, server, "sleep"), start(supervisor, server, "sleep")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send(number)
    assert process.wait(SECONDS) == -number
    assert (process.is_running(), other.is_running()) == (False, True)
    assert beginning_of(process.pid) is None


def test_forks_end_with_their_supervisor(tmp_path: Path, server: ForkServer) -> None:
    with Supervisor(tmp_path) as supervisor:
        process = start(supervisor, server, "sleep")
    assert beginning_of(process.pid) is None


def test_forkserver_ends_when_no_client_is_left() -> None:
    server = ForkServer(ENTRY)
    pid = server._popen.pid  # noqa: SLF001  # nobody else is to know it
    server._socket.shutdown(2)  # noqa: SLF001  # as the kernel does for a process that was killed
    assert eventually(lambda: beginning_of(pid) is None)
    server.close()


def test_modules_that_are_named_are_imported_before_the_fork(supervisor: Supervisor) -> None:
    server = ForkServer(ENTRY, RARE)
    process = start(supervisor, server, "0")
    process.wait(SECONDS)
    assert json.loads(process.log.read_text())["imported"] == [RARE]
    server.close()
