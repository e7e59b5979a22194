"""`make demo` and `make dev`, as somebody runs them: what they say, and that nothing is left of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import build

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 100.0


class Run:
    """A demo or a dev in folders of its own, run by somebody whose own kubeconfig is of no use."""

    def __init__(self, command: str, folder: Path) -> None:
        self.state = folder / "state"
        self.temporary = folder / "tmp"
        self._command = command
        self._folder = folder
        self._output = folder / "output"
        self.temporary.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        broken = self._folder / "kubeconfig"
        broken.write_text("{ not a kubeconfig")
        own = {
            "HOME": str(self._folder),
            "KUBECONFIG": str(broken),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(build.cache_folder().parent),
        }
        with self._output.open("wb") as output:
            self.popen = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", f"testbed.{self._command}", "--state", str(self.state)],
                cwd=CHECKOUT,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.output:
            assert self.popen.poll() is None, f"it ended with {self.popen.returncode}: {self.output}"
            assert time.monotonic() < deadline, f"never said {text!r}: {self.output}"
            time.sleep(0.05)

    def end(self, number: signal.Signals | None = None) -> int:
        """Send it a signal, if one is given, and return the exit code it ends with."""
        if number is not None:
            self.popen.send_signal(number)
        return self.popen.wait(PATIENCE_SECONDS)

    def pid_of(self, name: str) -> int:
        """Return the process id of one of its parts."""
        [record] = (self.state / "pids").glob(f"{name}-*.json")
        return int(json.loads(record.read_text())["pid"])

    def left_behind(self) -> list[str]:
        """Name the processes that know its folder, and what is in the system's temporary one."""
        found = [str(each) for each in self.temporary.iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                known = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(self._folder).encode() in known:
                found.append(known.replace(b"\0", b" ").decode())
        return found


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Run]]:
    """All that the tests below look at, started together because each takes some seconds to begin."""
    build.ensure()
    # Short, for the sockets in it, and open to the unprivileged user that runs Postgres for root.
    folder = Path(tempfile.mkdtemp(prefix="aw-demo-", dir="/tmp"))
    folder.chmod(0o711)
    commands = {"told": "demo", "interrupted": "demo", "broken": "demo", "dev": "dev"}
    started = {name: Run(command, folder / name) for name, command in commands.items()}
    yield started
    for each in started.values():
        each.popen.kill()
        each.popen.wait()
    shutil.rmtree(folder)


def test_demo_that_is_interrupted_leaves_nothing(runs: dict[str, Run]) -> None:
    run = runs["interrupted"]
    run.wait_for("$ kubectl apply")

    assert run.end(signal.SIGINT) == 130
    assert run.left_behind() == []


def test_demo_without_a_dispatcher_says_what_it_saw_and_fails(runs: dict[str, Run]) -> None:
    run = runs["broken"]
    run.wait_for("$ kubectl apply")
    os.kill(run.pid_of("dispatcher"), signal.SIGKILL)

    assert run.end() == 1
    failure = run.output.partition("this is not what should have happened: ")[2]
    assert failure.startswith("dispatcher ended with -9")
    assert "seen last: " in failure
    assert '"event": "leading"' in failure
    assert run.left_behind() == []


def test_demo_tells_its_story(runs: dict[str, Run]) -> None:
    run = runs["told"]

    assert run.end() == 0, run.output
    in_order = (
        "a stand-in for KubeRay's operator (not KubeRay",
        "$ kubectl apply -f examples/aw-raycluster-glue.yaml",
        "│ 2 running │ 1 of 3 ",
        "$ kubectl apply -f examples/aw-raycluster-glue-1.yaml",
        "│ Backoff ",
        "there was no RayCluster, pod or service of raycluster-glue-1",
        "$ kubectl delete appwrapper raycluster-glue",
        "│ deleted ",
        "│ pods-running │ Dispatched  │ Running ",
        "│ released ",
        "│ blocked ",
        "The same by hand: `make dev`",
    )
    rest = run.output
    for text in in_order:
        before, found, rest = rest.partition(text)
        assert found, f"{text!r} is not in what follows: {before}"
    assert run.left_behind() == []


def test_dev_can_be_used_killed_and_started_again(runs: dict[str, Run]) -> None:
    run = runs["dev"]
    run.wait_for("Ctrl-C ends all of it.")
    assert all(line in run.output for line in (run.state / "env").read_text().splitlines())
    assert in_shell(run, "kubectl get nodes -o name") == ["node/node-0", "node/node-1", "node/node-2"]
    assert in_shell(run, "kubectl auth whoami -o jsonpath={.status.userInfo.username}") == ["admin"]
    assert in_shell(
        run, 'psql -At "$DISPATCHER_DATABASE_URL" -c "SELECT count(*) FROM history.queue_now"'
    ) == ["0"]
    assert in_shell(run, "for each in kubectl psql dispatcher; do command -v $each; done") == [
        str(run.state / "bin" / each) for each in ("kubectl", "psql", "dispatcher")
    ]

    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    run.start()
    run.wait_for("Ctrl-C ends all of it.")

    assert run.end(signal.SIGTERM) == 0
    assert run.left_behind() == []


def in_shell(run: Run, command: str) -> list[str]:
    """Run a command as somebody who did what `make dev` said, and return the lines it prints."""
    done = subprocess.run(  # noqa: S603 - our own command
        ["/bin/sh", "-ec", f". {run.state / 'env'}; {command}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
