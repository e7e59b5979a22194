"""Demos as somebody runs them: processes of their own, in folders of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import build, kuberay_operator

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 100.0
STORY_SECONDS = 300.0


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

    def wait_for(self, text: str, patience: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + patience
        while text not in self.output:
            assert self.popen.poll() is None, f"it ended with {self.popen.returncode}: {self.output}"
            assert time.monotonic() < deadline, f"never said {text!r}: {self.output}"
            time.sleep(0.05)

    def end(self, number: signal.Signals | None = None, patience: float = PATIENCE_SECONDS) -> int:
        """Send it a signal, if one is given, and return the exit code it ends with."""
        if number is not None:
            self.popen.send_signal(number)
        return self.popen.wait(patience)

    def kill(self) -> None:
        """End it however it is. Safe to repeat."""
        self.popen.kill()
        self.popen.wait()

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


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder that is short, for the sockets in it, and open to the unprivileged user that runs Postgres for root."""
    folder = Path(tempfile.mkdtemp(prefix="aw-demo-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def developing() -> Iterator[Run]:
    """`make dev`, when it says that it is ready; it is ended however the tests end, and leaves nothing behind."""
    build.ensure()
    with fresh_folder() as folder:
        run = Run("dev", folder / "dev")
        try:
            run.wait_for("Ctrl-C ends all of it.")
            yield run
        finally:
            code = run.end(signal.SIGTERM)
        assert code == 0
        assert run.left_behind() == []


def assert_tells(command: str, *texts: str) -> str:
    """A demo ends well, says all of the texts one after the other, and leaves nothing behind. Returns what it said."""
    build.ensure()
    kuberay_operator.ensure()
    with fresh_folder() as folder:
        run = Run(command, folder / command)
        try:
            assert run.end(patience=STORY_SECONDS) == 0, run.output
            assert_in_order(run.output, *texts)
            assert run.left_behind() == []
            return run.output
        finally:
            run.kill()


def assert_in_order(output: str, *texts: str) -> None:
    """All of the texts are said, one after the other."""
    rest = output
    for text in texts:
        before, found, rest = rest.partition(text)
        assert found, f"{text!r} is not in what follows: {before}"


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
