import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from testbed.processes import (
    KILL,
    NICE,
    FolderInUse,
    Process,
    ProcessDied,
    Record,
    Supervisor,
    beginning_of,
    end_owner,
    end_recorded,
)

REPOSITORY = Path(__file__).resolve().parents[2]
# Starts a child, says its pid, and waits to be killed.
OWNER = """
import sys, time
from pathlib import Path
from testbed.processes import Supervisor
supervisor = Supervisor(Path(sys.argv[1]))
print(supervisor.start("child", ["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path) as running:
        yield running


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process nobody recorded."""
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as popen:
        yield popen
        popen.kill()


def test_process_that_gives_way_is_nicer_with_all_its_threads(supervisor: Supervisor) -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print('two', flush=True)"
    process = supervisor.start("threads", [sys.executable, "-c", code])
    assert eventually(lambda: has_said(process, "two"))

    process.give_way()

    threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
    assert [os.getpriority(os.PRIO_PROCESS, each) for each in threads] == [NICE, NICE]


def eventually(is_so: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.01)
    return False


def is_gone(pid: int) -> bool:
    return beginning_of(pid) is None


def has_said(process: Process, text: str) -> bool:
    return process.log_tail() == text


def make_record(pid: int, mark: str = "1@me#1") -> Record:
    return Record("sleeper", pid, beginning_of(pid) or "gone", mark, *asdict(KILL).values())


def make_pids(folder: Path) -> Path:
    (folder / "pids").mkdir()
    return folder / "pids"


def make_owner(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start another program that owns the folder, and return it and the pid of its child."""
    argv = [sys.executable, "-c", OWNER, str(folder)]
    owner = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
    assert owner.stdout is not None
    with owner.stdout:
        return owner, int(owner.stdout.readline())


def test_output_goes_to_a_log_of_its_name(supervisor: Supervisor) -> None:
    process = supervisor.start("speaker", ["sh", "-c", "echo said; echo complained >&2"])

    assert process.wait(10) == 0
    assert process.log == supervisor.folder / "logs" / "speaker.log"
    assert process.log_tail() == "said\ncomplained"


def test_environment_and_folder_are_as_asked(supervisor: Supervisor, tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo $GREETING $HOME; pwd"]
    environment = {"GREETING": "hello", "PATH": os.environ["PATH"]}
    process = supervisor.start("asked", argv, env=environment, cwd=tmp_path)

    process.wait(10)
    assert process.log_tail() == f"hello\n{tmp_path}"


def test_process_that_died_says_why(supervisor: Supervisor) -> None:
    process = supervisor.start("broken", ["sh", "-c", "echo no such flag; exit 3"])
    process.wait(10)

    with pytest.raises(ProcessDied, match=r"broken ended with 3; .*broken.log ends:\nno such flag"):
        process.check()


def test_missing_program_fails_at_the_start(supervisor: Supervisor) -> None:
    with pytest.raises(FileNotFoundError, match="no program no-such-program"):
        supervisor.start("missing", ["no-such-program"])


def test_stop_ends_a_process_that_ignores_its_signal(supervisor: Supervisor) -> None:
    process = supervisor.start(
        "stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done"]
    )
    assert eventually(lambda: process.log_tail() == "ready")

    process.stop(replace(KILL, signal=signal.SIGTERM, grace=0.1))

    assert process.exit_code == -signal.SIGKILL
    assert not list((supervisor.folder / "pids").iterdir())


def test_stop_ends_what_a_process_started_in_a_session_of_its_own(supervisor: Supervisor) -> None:
    process = supervisor.start("parent", ["sh", "-c", "setsid sleep 600 & echo $!; wait"])
    assert eventually(lambda: process.log_tail().isdigit())
    grandchild = int(process.log_tail())

    process.stop()

    assert eventually(lambda: is_gone(grandchild))


# In a session of its own, with nothing in its environment, and unable to notice anything: as a Postgres backend
# that a test has stopped.
HIDING = ["sh", "-c", "setsid env -i sleep 600 & echo $!; wait"]


def stop_when_hidden(pid: int) -> None:
    assert eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00")
    os.kill(pid, signal.SIGSTOP)


def test_stop_ends_a_descendant_that_hides(supervisor: Supervisor) -> None:
    process = supervisor.start("parent", HIDING)
    assert eventually(lambda: process.log_tail().isdigit())
    grandchild = int(process.log_tail())
    stop_when_hidden(grandchild)

    process.stop()

    assert eventually(lambda: is_gone(grandchild))


def test_descendant_that_hides_ends_from_elsewhere_too(tmp_path: Path) -> None:
    with (
        subprocess.Popen(  # noqa: S603 - our own
            ["/bin/sh", *HIDING[1:]], start_new_session=True, stdout=subprocess.PIPE, text=True
        ) as parent
    ):
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        stop_when_hidden(grandchild)
        make_record(parent.pid).write(make_pids(tmp_path))

        end_recorded(tmp_path)

    assert eventually(lambda: is_gone(grandchild))


def test_all_end_with_the_block_even_if_it_raises(tmp_path: Path) -> None:
    def fail(supervisor: Supervisor) -> None:
        with supervisor:
            raise ZeroDivisionError

    supervisor = Supervisor(tmp_path)
    processes = [supervisor.start(f"sleeper-{number}", ["sleep", "600"]) for number in range(3)]

    with pytest.raises(ZeroDivisionError):
        fail(supervisor)

    assert not any(each.is_running() for each in processes)
    assert not list((tmp_path / "pids").iterdir())


def test_last_started_ends_first(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with Supervisor(tmp_path) as supervisor:
        for name in ("first", "second"):
            script = f"trap 'echo {name} >> {order}; exit' TERM; echo ready; while :; do sleep 0.01; done"
            process = supervisor.start(name, ["sh", "-c", script])
            assert eventually(partial(has_said, process, "ready"))

    assert order.read_text().split() == ["second", "first"]


def test_children_of_a_killed_owner_end(tmp_path: Path) -> None:
    owner, child = make_owner(tmp_path)

    owner.kill()
    owner.wait()

    assert eventually(lambda: is_gone(child))


def test_next_owner_ends_what_a_killed_one_left_when_its_guardian_is_killed_too(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record = make_record(sleeper.pid, mark="1@dead#1").write(make_pids(tmp_path))

    with Supervisor(tmp_path):
        assert is_gone(sleeper.pid)
    assert not record.exists()


def test_owner_of_a_folder_is_alone(supervisor: Supervisor) -> None:
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
        Supervisor(supervisor.folder)


def test_folder_can_be_owned_again(tmp_path: Path) -> None:
    for _ in range(2):
        with Supervisor(tmp_path) as supervisor:
            assert supervisor.start("sleeper", ["sleep", "600"]).is_running()


def test_owner_can_be_ended_from_elsewhere(tmp_path: Path) -> None:
    owner, child = make_owner(tmp_path)

    assert end_owner(tmp_path, grace=10)

    owner.wait()
    assert eventually(lambda: is_gone(child))
    assert not end_owner(tmp_path, grace=10)


def test_reused_pid_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    reused = replace(make_record(sleeper.pid), began="another-boot/1")
    reused.write(make_pids(tmp_path))

    assert end_recorded(tmp_path) == []
    assert sleeper.poll() is None


def test_guardian_leaves_the_next_owners_processes_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record = make_record(sleeper.pid, mark="2@next#1").write(make_pids(tmp_path))

    assert end_recorded(tmp_path, owner="1@dead") == []
    assert sleeper.poll() is None
    assert record.exists()


@pytest.mark.parametrize("content", ["", "{", json.dumps({"pid": 1}), "[]"])
def test_unreadable_record_is_thrown_away(content: str, tmp_path: Path) -> None:
    record = make_pids(tmp_path) / "broken-1.json"
    record.write_text(content)

    assert end_recorded(tmp_path) == []
    assert not record.exists()


def test_zombie_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    record = make_record(sleeper.pid)
    assert record.is_alive

    sleeper.send_signal(signal.SIGKILL)

    assert eventually(lambda: not record.is_alive)
