"""Whatever becomes of `python -m testbed up`, nothing it started is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed import build

REPOSITORY = Path(__file__).resolve().parents[2]
# The command and its guardian, and two clusters of five processes.
EXPECTED_PROCESSES = 2 + 2 * 5
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(120)]


class Up:
    """A running `python -m testbed up`."""

    def __init__(self, state: Path, *options: str, home: Path) -> None:
        self.state = state
        self.popen = run("up", "--state", str(state), "--nodes", "1", *options, home=home)

    def wait_until_ready(self) -> str:
        """Return what it printed first when its clusters were ready."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()


def run(*arguments: str, home: Path) -> subprocess.Popen[str]:
    """Run the command as somebody whose own kubeconfig would break whoever read it."""
    broken = home / ".kube" / "config"
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_text("{ not a kubeconfig")
    own = {"HOME": str(home), "KUBECONFIG": str(broken), "XDG_CACHE_HOME": str(build.cache_folder().parent)}
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "testbed", *arguments],
        cwd=REPOSITORY,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    build.ensure()
    running = Up(tmp_path / "state", "--clusters", "2", home=tmp_path / "home")
    yield running
    running.close()


def processes_of(state: Path) -> dict[int, str]:
    """Return all that run with this folder in their arguments or their environment."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (each / "cmdline").read_bytes()
            everything = arguments + (each / "environ").read_bytes()
        except OSError:
            continue
        if str(state).encode() in everything:
            found[int(each.name)] = arguments.replace(b"\0", b" ").decode()
    return found


def until(is_so: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda each: each.name)
def test_signal_ends_everything_before_the_command_ends(up: Up, number: signal.Signals) -> None:
    assert up.wait_until_ready().startswith("# 2 ready")
    assert len(processes_of(up.state)) == EXPECTED_PROCESSES

    up.popen.send_signal(number)

    assert up.popen.wait() == 130
    assert processes_of(up.state) == {}


def test_signal_while_starting_ends_everything(up: Up) -> None:
    assert until(lambda: any("kube-apiserver" in each for each in processes_of(up.state).values()))

    up.popen.send_signal(signal.SIGTERM)

    assert up.popen.wait() == 130
    assert processes_of(up.state) == {}


def test_everything_ends_when_the_command_is_killed(up: Up) -> None:
    up.wait_until_ready()

    up.popen.kill()
    up.popen.wait()

    assert until(lambda: processes_of(up.state) == {})


def test_down_ends_the_remaining_processes_when_the_guardian_is_killed_too(up: Up, tmp_path: Path) -> None:
    up.wait_until_ready()
    guardians = [pid for pid, each in processes_of(up.state).items() if "processes.py" in each]
    for pid in (*guardians, up.popen.pid):
        os.kill(pid, signal.SIGKILL)
    up.popen.wait()
    assert len(processes_of(up.state)) == EXPECTED_PROCESSES - 2

    down = run("down", "--state", str(up.state), home=tmp_path / "home")

    assert down.communicate()[0] == "ended\n"
    assert processes_of(up.state) == {}


def test_down_ends_a_running_command(up: Up, tmp_path: Path) -> None:
    up.wait_until_ready()

    down = run("down", "--state", str(up.state), home=tmp_path / "home")

    assert down.communicate()[0] == "ended\n"
    assert up.popen.wait() == 130
    assert processes_of(up.state) == {}


def test_component_that_dies_ends_the_command_with_its_log(up: Up) -> None:
    up.wait_until_ready()
    [scheduler, _] = [pid for pid, each in processes_of(up.state).items() if "kcp kube-scheduler" in each]

    os.kill(scheduler, signal.SIGKILL)
    _, errors = up.popen.communicate()

    assert up.popen.returncode == 1
    assert "kube-scheduler ended with -9" in errors
    assert processes_of(up.state) == {}


def test_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    build.ensure()
    failing = Up(tmp_path / "state", "--cpu", "many", home=tmp_path / "home")

    _, errors = failing.popen.communicate()

    assert failing.popen.returncode == 1
    assert errors.startswith("testbed: 400: Node in version")
    assert processes_of(failing.state) == {}
