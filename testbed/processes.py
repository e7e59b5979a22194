"""Child processes that cannot outlive whoever started them.

The model: a `Supervisor` owns one folder. Every process it starts leads a session of its own, writes to
`logs/<name>.log`, and is recorded in `pids/` *before* it runs anything: the child waits on a pipe until its
record is on disk. A pid alone proves nothing, so a record also holds when the process began; only a process
that matches both is ever signalled. What a process leaves behind in turn is known in two ways: it was below
the process when that was asked to end, or it bears the mark that descendants inherit in their environment.
Neither is enough alone: who lost its parent is below nobody, and Postgres writes over its environment.

Three nets, each for what the one before it cannot catch: `stop_all` on the way out; a guardian, started with
the first process, that sees our end of a pipe close when we are killed; and the next supervisor of the same
folder, which begins by ending what is recorded there. Parent-death signals are not used: they follow the
parent *thread*, and tests start processes from threads that come and go.

It reads `/proc`, so it needs Linux. It does not restart, and it knows nothing of what it runs.
"""

import atexit
import contextlib
import fcntl
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from types import TracebackType
from typing import Protocol, Self

POLL_SECONDS = 0.02
LOG_TAIL_LINES = 15
# "$@" becomes the program only after a line arrives on stdin: should we die before the record is written,
# the read meets the end of the pipe and nothing is run.
MARK = "TESTBED_PROCESS"
WAIT_FOR_RECORD = 'read -r _ && exec "$@" </dev/null'


class ProcessDied(Exception):
    """A process that should be running has ended; the message carries the end of its log."""


class FolderInUse(Exception):
    """Another live supervisor owns this folder."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process is asked to end, and how many seconds it has before SIGKILL."""

    signal: Signals = SIGTERM
    grace: float = 5.0


KILL = Ending(SIGKILL, 5.0)


class Child(Protocol):
    """A process that waits until it is released."""

    pid: int

    def release(self) -> None:
        """Let it become its program."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs; reaps it if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it to end and return its exit code; raises `subprocess.TimeoutExpired`."""


Spawn = Callable[[Sequence[str], int, Mapping[str, str], Path | None, str | None], Child]
"""Make a child of a command, a descriptor for its output, an environment, a folder and a user."""


class Spawned:
    """A child that becomes the program of a command once a line arrives on its standard input."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self.poll = popen.poll
        self.wait = popen.wait
        self._stdin = popen.stdin

    def release(self) -> None:
        """Let it become its program."""
        if self._stdin is not None:
            self._stdin.write(b"\n")
            self._stdin.close()


@dataclass(frozen=True, slots=True)
class Stat:
    """A process as the kernel sees it: its state, its parent, and its start in clock ticks since boot."""

    state: str
    parent: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is written down about one process; enough to end it, and it alone, from another process."""

    name: str
    pid: int
    began: str
    mark: str
    signal: int
    grace: float

    @property
    def owner(self) -> str:
        """The name of the process whose supervisor started it."""
        return self.mark.partition("#")[0]

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; false for a zombie and for another with its pid."""
        return beginning_of(self.pid) == self.began

    def write(self, folder: Path) -> Path:
        """Put the record on disk whole, and return its path."""
        path = folder / f"{self.name}-{self.pid}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record at `path`, or None if it is gone or unreadable."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def send(self, number: int) -> None:
        """Signal the process and all of its session's group, if it is still the one recorded."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class Process:
    """One running child of this process."""

    def __init__(self, record: Record, path: Path, child: Child, log: Path) -> None:
        self.name = record.name
        self.pid = record.pid
        self.log = log
        self._record = record
        self._path = path
        self._child = child

    def is_running(self) -> bool:
        """Whether it has not ended; reaps it if it has."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._child.poll()

    def check(self) -> None:
        """Raise `ProcessDied` with the end of the log if it has ended."""
        if not self.is_running():
            raise ProcessDied(f"{self.name} ended with {self.exit_code}; {self.log} ends:\n{self.log_tail()}")

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it to end by itself and return its exit code; raises `subprocess.TimeoutExpired`."""
        return self._child.wait(timeout)

    def send(self, number: Signals) -> None:
        """Send a signal to it and its group; a process that has ended is left alone."""
        if self.is_running():
            self._record.send(number)

    def stop(self, ending: Ending | None = None) -> None:
        """End it as declared at its start, or as said here. Safe to repeat."""
        ending = ending or Ending(Signals(self._record.signal), self._record.grace)
        below = descendants_of({self.pid} if self.is_running() else set())
        self.send(ending.signal)
        try:
            self._child.wait(ending.grace)
        except subprocess.TimeoutExpired:
            self.send(SIGKILL)
            self._child.wait()
        kill_left(below, {self._record.mark})
        self._path.unlink(missing_ok=True)


class Supervisor:
    """Starts processes in one folder and ends all of them, whatever becomes of us.

    Raises `FolderInUse` if another supervisor holds the folder; what a dead one left behind there is ended
    first. Installs no signal handlers: a program that should end in order on SIGTERM turns it into an
    exception (see `__main__`); without one, the guardian ends the children.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._pids = self.folder / "pids"
        self._logs = self.folder / "logs"
        for each in (self._pids, self._logs):
            each.mkdir(parents=True, exist_ok=True)
        self._owner = owner_name(os.getpid())
        self._lock = hold(self.folder, self._owner)
        end_recorded(self.folder)
        self._mutex = threading.Lock()
        self._processes: list[Process] = []
        self._guardian: Guardian | None = None
        self._started = 0
        # One process may have several supervisors, and none may end what another started.
        self._token = secrets.token_hex(4)
        self._closed = False
        self._afterwards = contextlib.ExitStack()
        atexit.register(self.stop_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All started and not yet ended by us, in the order of their start."""
        return tuple(self._processes)

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        ending: Ending | None = None,
        by: Spawn | None = None,
    ) -> Process:
        """Start a process whose output is appended to `logs/<name>.log`.

        `env` replaces the whole environment; without it the child has ours. `user` needs root. `by` makes the child
        in another way. Raises `FileNotFoundError` for a program that is not there. Safe to call from several threads.
        """
        command = [program_path(argv[0], env), *map(str, argv[1:])]
        log = self._logs / f"{name}.log"
        with self._mutex:
            if self._closed:
                raise RuntimeError(f"the supervisor of {self.folder} has ended; it starts nothing more")
            self._guardian = self._guardian or Guardian(self.folder, self._owner)
            self._started += 1
            mark = f"{self._owner}#{self._token}#{self._started}"
            with log.open("ab") as output:
                child = (by or spawn)(
                    command, output.fileno(), {**(env or os.environ), MARK: mark}, cwd, user
                )
            began = beginning_of(child.pid)
            if began is None:
                raise ProcessDied(f"{name} could not be started; see {log}")
            record = Record(name, child.pid, began, mark, *astuple(ending or Ending()))
            process = Process(record, record.write(self._pids), child, log)
            child.release()
            self._processes.append(process)
        return process

    def stop(self, process: Process) -> None:
        """End one process. Safe to repeat."""
        process.stop()
        with self._mutex, contextlib.suppress(ValueError):
            self._processes.remove(process)

    def afterwards(self, release: Callable[[], None]) -> None:
        """Call this when everything has ended; the last one given is called first."""
        self._afterwards.callback(release)

    def stop_all(self) -> None:
        """End everything, last started first, and give the folder back. Safe to repeat."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.stop_all)
        while self._processes:
            self._processes.pop().stop()
        if self._guardian is not None:
            self._guardian.dismiss()
        self._afterwards.close()
        os.close(self._lock)


class Guardian:
    """A process that ends our children when we can no longer do so.

    It holds one end of a pipe and we the other, so that it learns of our end by whatever cause. It ends only
    what *we* started: by then a new owner may have begun in the same folder.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def dismiss(self) -> None:
        """Let it go, and wait until it has."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen.wait()


def end_recorded(folder: Path, owner: str | None = None) -> list[Record]:
    """End the processes recorded in a folder, all or one owner's, and return those that were alive.

    All are asked at once and given the longest of their graces; what then remains is killed.
    """
    found = {path: Record.read(path) for path in (folder / "pids").glob("*.json")}
    records = {path: each for path, each in found.items() if owner is None or (each and each.owner == owner)}
    alive = [each for each in records.values() if each is not None and each.is_alive]
    below = descendants_of({each.pid for each in alive})
    for each in alive:
        each.send(each.signal)
    wait_until_gone(alive, max((each.grace for each in alive), default=0.0))
    for each in alive:
        each.send(SIGKILL)
    kill_left(below, {each.mark for each in records.values() if each is not None})
    wait_until_gone(alive, KILL.grace)
    for path in records:
        path.unlink(missing_ok=True)
    return alive


def end_owner(folder: Path, grace: float) -> bool:
    """Ask the live supervisor of a folder, if there is one, to end; kill it if it does not.

    Its guardian ends what a killed one leaves. Returns whether there was one.
    """
    lock = folder / "owner"
    pid, _, began = (lock.read_text() if lock.exists() else "").partition("@")
    if not began or not pid.isdigit() or pid == str(os.getpid()):
        return False
    owner = Record("owner", int(pid), began, "", SIGTERM, grace)
    if not owner.is_alive:
        return False
    for number, seconds in ((SIGTERM, grace), (SIGKILL, KILL.grace)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, number)
        wait_until_gone([owner], seconds)
    return True


def wait_until_gone(records: Sequence[Record], seconds: float) -> None:
    """Return when none of them is alive, or when the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(each.is_alive for each in records):
        time.sleep(POLL_SECONDS)


def descendants_of(pids: Set[int]) -> dict[int, str]:
    """Return every process below these, at any depth, and when it began."""
    stats = {int(each.name): stat_of(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    found: dict[int, str] = {}
    waiting = list(pids)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            found[pid] = beginning_of(pid) or ""
            waiting.append(pid)
    return found


def kill_left(below: Mapping[int, str], marks: Set[str]) -> None:
    """Kill those of these processes that are still there, and all that bear one of these marks."""
    for pid, began in below.items():
        if beginning_of(pid) == began:
            with contextlib.suppress(OSError):
                os.kill(pid, SIGKILL)
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = environment.read_bytes().split(b"\0")
            mark = next((each for each in variables if each.startswith(f"{MARK}=".encode())), b"=")
            if mark.partition(b"=")[2].decode() in marks:
                os.kill(int(environment.parent.name), SIGKILL)


def beginning_of(pid: int) -> str | None:
    """Return what tells this process from any other that had or will have its pid; None if it has ended."""
    stat = stat_of(pid)
    return None if stat is None or stat.state in "ZX" else f"{boot_id()}/{stat.ticks}"


def stat_of(pid: int) -> Stat | None:
    """Return what the kernel says of a process, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses; the fields after it may not.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], int(fields[1]), int(fields[19]))


def boot_id() -> str:
    """Return the name of this boot: process times count from it, so the same ticks mean another process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def owner_name(pid: int) -> str:
    """Return a name for the process that owns a folder."""
    return f"{pid}@{beginning_of(pid)}"


def hold(folder: Path, owner: str) -> int:
    """Lock the folder for as long as the returned descriptor is open, and write down who holds it."""
    descriptor = os.open(folder / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode().partition("@")[0]
        os.close(descriptor)
        raise FolderInUse(f"{folder} is in use by process {holder}") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, owner.encode())
    return descriptor


def program_path(program: str | Path, env: Mapping[str, str] | None) -> str:
    """Find a program as the child would, so that a missing one fails here and not in a log."""
    found = shutil.which(program, path=(env or os.environ).get("PATH"))
    if found is None:
        raise FileNotFoundError(f"no program {program}")
    return found


def spawn(
    command: Sequence[str], output: int, env: Mapping[str, str], cwd: Path | None, user: str | None
) -> Spawned:
    """Fork a child that waits for one line on its stdin before it becomes `command`."""
    account = pwd.getpwnam(user) if user is not None else None
    popen = subprocess.Popen(
        ["/bin/sh", "-c", WAIT_FOR_RECORD, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    return Spawned(popen)


def guard(folder: Path, owner: str) -> None:
    """Wait for our owner to close the pipe or to die, then end what it left."""
    sys.stdin.buffer.read()
    end_recorded(folder, owner)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), sys.argv[2])
