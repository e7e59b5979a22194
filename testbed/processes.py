"""Child processes that cannot outlive the process that started them.

The model: a `Supervisor` owns one folder. Every process that it starts leads a session of its own, writes to
`logs/<name>.log`, and is recorded in `pids/` *before* it runs anything: the child waits on a pipe until its record is
on disk. A pid alone proves nothing, so a record also has the start time of the process, and only a process that matches
both gets signals. Descendants of a process are known in two ways: they were below it in the process tree when it was
ended, or they have the mark that descendants inherit in their environment. Neither is enough alone: an orphan is below
no process, and Postgres overwrites its environment.

Three safety nets, each for the failures of the one before: `stop_all` on the way out; a guardian, started with the
first process, that sees the end of a pipe close when its owner is killed; and the next supervisor of the same folder,
which first ends the recorded processes. Parent-death signals are not used: they follow the parent *thread*, and tests
start processes from short-lived threads.

The module reads `/proc`, so it needs Linux. It restarts nothing, and knows nothing about the programs.
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
# "$@" becomes the program only after a line arrives on stdin: if the parent dies before it writes the record,
# the read meets the end of the pipe and nothing runs.
MARK = "TESTBED_PROCESS"
WAIT_FOR_RECORD = 'read -r _ && exec "$@" </dev/null'


class ProcessDied(Exception):
    """A process has ended unexpectedly; the message has the end of its log."""


class FolderInUse(Exception):
    """Another live supervisor owns this folder."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The signal that asks a process to end, and the seconds until SIGKILL."""

    signal: Signals = SIGTERM
    grace: float = 5.0


KILL = Ending(SIGKILL, 5.0)
NICE = 10
"""The niceness of a process that gives way: it gets a tenth of a processor that another process wants."""


class Child(Protocol):
    """A process that waits for its release."""

    pid: int

    def release(self) -> None:
        """Lets it become its program."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs. Reaps an ended process."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code; raises `subprocess.TimeoutExpired`."""


Spawn = Callable[[Sequence[str], int, Mapping[str, str], Path | None, str | None], Child]
"""Makes a child from a command, a descriptor for its output, an environment, a folder and a user."""


class Spawned:
    """A child that becomes the program of a command once a line arrives on its standard input."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self.poll = popen.poll
        self.wait = popen.wait
        self._stdin = popen.stdin

    def release(self) -> None:
        """Lets it become its program."""
        if self._stdin is not None:
            self._stdin.write(b"\n")
            self._stdin.close()


@dataclass(frozen=True, slots=True)
class Stat:
    """A process in the kernel's view: its state, its parent, and its start in clock ticks since boot."""

    state: str
    parent: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one process on disk; it lets another process end this one, and no other."""

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
        """True if this very process still runs; False for a zombie and for another process with its pid."""
        return beginning_of(self.pid) == self.began

    def write(self, folder: Path) -> Path:
        """Writes the whole record to disk, and returns its path."""
        path = folder / f"{self.name}-{self.pid}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The record at `path`; None if it is gone or unreadable."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def send(self, number: int) -> None:
        """Signals the process and its session's group, if it is still the recorded process."""
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
        """True until it has ended; reaps an ended process."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def check(self) -> None:
        """Raises `ProcessDied` with the end of the log if it has ended."""
        if not self.is_running():
            raise ProcessDied(f"{self.name} ended with {self.exit_code}; {self.log} ends:\n{self.log_tail()}")

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code; raises `subprocess.TimeoutExpired`."""
        return self._child.wait(timeout)

    def give_way(self) -> None:
        """Leaves the processor to whoever else wants it, from now on; threads to come inherit that."""
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)

    def send(self, number: Signals) -> None:
        """Signals the process and its group; does nothing if it has ended."""
        if self.is_running():
            self._record.send(number)

    def stop(self, ending: Ending | None = None) -> None:
        """Ends the process by this ending, or by the one given at its start. Safe to repeat."""
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
    """Starts processes in one folder and ends all of them, however its own process ends.

    Raises `FolderInUse` if another supervisor holds the folder; first ends the processes of a dead one. Installs no
    signal handlers: a program that should end in order on SIGTERM turns it into an exception (see `__main__`);
    otherwise the guardian ends the children.
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
        # One process may have several supervisors, and none may end another's processes.
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
        """All processes that were started and not stopped, in the order of their start."""
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
        """Starts a process whose output is appended to `logs/<name>.log`.

        `env` replaces the whole environment; the default is the caller's. `user` needs root. `by` replaces the way to
        make the child. Raises `FileNotFoundError` if the program does not exist. Safe to call from several threads.
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
        """Ends one process. Safe to repeat."""
        process.stop()
        with self._mutex, contextlib.suppress(ValueError):
            self._processes.remove(process)

    def afterwards(self, release: Callable[[], None]) -> None:
        """Registers a call for after the end of all processes; the last one registered runs first."""
        self._afterwards.callback(release)

    def stop_all(self) -> None:
        """Ends everything, last started first, and releases the folder. Safe to repeat."""
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
    """A process that ends the children if their supervisor's process cannot.

    It holds one end of a pipe whose other end closes when that process ends, by whatever cause. It ends only this
    supervisor's children: a new owner may have started others in the folder by then.
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
        """Ends the guardian, and waits for its end."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen.wait()


def end_recorded(folder: Path, owner: str | None = None) -> list[Record]:
    """Ends the processes recorded in a folder, all or one owner's, and returns those that were alive.

    All are signalled at once and get the longest of their graces; then the rest is killed.
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
    """Asks the live supervisor of a folder, if any, to end; kills it if it does not. True if there was one.

    After a kill its guardian ends the children.
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
    """Returns when none of them is alive, or when the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(each.is_alive for each in records):
        time.sleep(POLL_SECONDS)


def descendants_of(pids: Set[int]) -> dict[int, str]:
    """Every process below these, at any depth, with its start."""
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
    """Kills the processes among these that are still alive, and all processes with one of these marks."""
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
    """The start of this process, which no other process with its pid shares; None if it has ended."""
    stat = stat_of(pid)
    return None if stat is None or stat.state in "ZX" else f"{boot_id()}/{stat.ticks}"


def stat_of(pid: int) -> Stat | None:
    """The kernel's view of a process; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may contain spaces and parentheses; the fields after it do not.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], int(fields[1]), int(fields[19]))


def boot_id() -> str:
    """The id of this boot: start times count from it, so equal ticks of another boot mean another process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def owner_name(pid: int) -> str:
    """A name for the process that owns a folder."""
    return f"{pid}@{beginning_of(pid)}"


def hold(folder: Path, owner: str) -> int:
    """Locks the folder for as long as the returned descriptor is open, and records the holder."""
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
    """The path of a program by the child's PATH, so that a missing one fails here and not in a log."""
    found = shutil.which(program, path=(env or os.environ).get("PATH"))
    if found is None:
        raise FileNotFoundError(f"no program {program}")
    return found


def spawn(
    command: Sequence[str], output: int, env: Mapping[str, str], cwd: Path | None, user: str | None
) -> Spawned:
    """Forks a child that waits for one line on its stdin before it becomes `command`."""
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
    """Waits until the owner closes the pipe or dies, then ends its processes."""
    sys.stdin.buffer.read()
    end_recorded(folder, owner)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), sys.argv[2])
