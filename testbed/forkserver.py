"""Forks of a program whose modules are imported once: real processes that start at once.

A fork server imports a program, then forks itself on request. Each fork leads a session of its own, with the given
environment, folder and output, and runs the program's entry; a signal ends it like any other process. A fork cannot
show whether the program starts from nothing.

The server has one thread, and its forks inherit nothing from the test process. It ends with the test process, however
that ends, because the socket closes. The supervisor of the forks records them (`testbed.processes`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).parents[1]
ANSWER_SECONDS: Final = 60.0
"""Long enough for the imports, which the first fork waits for."""
LARGEST_MESSAGE: Final = 2**17
FIRST_FREE: Final = 3
"""The first file descriptor of the server."""


class Fork:
    """A forked process, which runs nothing before `release`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._ended = threading.Event()
        self._go = -1

    def release(self) -> None:
        """Lets the process run."""
        os.write(self._go, b"\n")
        os.close(self._go)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code; raises `subprocess.TimeoutExpired`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return self._code or 0

    def _note_end(self, code: int) -> None:
        self._code = code
        self._ended.set()


class ForkServer:
    """Forks `entry` (`package.module:function`), with these modules imported beforehand.

    Name also the modules that the entry imports only when it runs: otherwise each fork imports them again. `python` may
    be of another environment, and `environment` has the variables with which it imports. Safe to use from several
    threads.
    """

    def __init__(
        self,
        entry: str,
        *modules: str,
        python: str | Path = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [python, "-m", "testbed.forkserver", entry, *modules],
                stdin=theirs.fileno(),
                cwd=CHECKOUT,
                env=environment,
                start_new_session=True,
            )
        self._mutex = threading.Lock()
        self._forks: dict[int, Fork] = {}
        self._new: queue.Queue[Fork] = queue.Queue()
        self._listening = threading.Thread(target=self._listen, name="forkserver", daemon=True)
        self._listening.start()

    def fork(
        self, argv: Sequence[str], output: int, env: Mapping[str, str], cwd: Path | None, _user: str | None
    ) -> Fork:
        """Forks a process that, once released, runs the entry with these arguments."""
        order = json.dumps({"argv": [*argv], "env": dict(env), "cwd": str(cwd or Path.cwd())}).encode()
        read, write = os.pipe()
        try:
            with self._mutex:
                socket.send_fds(self._socket, [order], [output, read])
                fork = self._new.get(timeout=ANSWER_SECONDS)
        finally:
            os.close(read)
        fork._go = write  # noqa: SLF001  # the two are one
        return fork

    def close(self) -> None:
        """Ends the server. Safe to repeat."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._socket.close()
        self._popen.wait()

    def _listen(self) -> None:
        """Records new and ended forks until the server ends."""
        while message := self._socket.recv(LARGEST_MESSAGE):
            told = json.loads(message)
            if "code" in told:
                self._forks.pop(told["pid"])._note_end(told["code"])  # noqa: SLF001  # the two are one
            else:
                fork = self._forks[told["pid"]] = Fork(told["pid"])
                self._new.put(fork)


# --- the server ----------------------------------------------------------------------------------------------


def serve(entry: Callable[[], object], orders: socket.socket) -> None:
    """Forks for each request and reports ended forks, until the client is gone."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()  # forks share the imported modules as long as no process writes to them
    with contextlib.ExitStack() as sockets:
        wait = _waiter(orders, woken)
        sockets.enter_context(woken)
        sockets.enter_context(wake)
        while True:
            ready = wait()
            if woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                _tell_ends(orders)
            if orders.fileno() in ready:
                order, files, _, _ = socket.recv_fds(orders, LARGEST_MESSAGE, 2)
                if not order:
                    return
                if os.fork() == 0:
                    _become(entry, json.loads(order), orders, *files)
                for each in files:
                    os.close(each)


def _waiter(*sockets: socket.socket) -> Callable[[], set[int]]:
    """A function that waits until some of the descriptors can be read, and returns these."""
    poller = select.poll()
    for each in sockets:
        poller.register(each, select.POLLIN)
    return lambda: {descriptor for descriptor, _ in poller.poll()}


def _tell_ends(orders: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            orders.send(json.dumps({"pid": ended[0], "code": code}).encode())


def _become(
    entry: Callable[[], object], order: dict[str, Any], orders: socket.socket, output: int, go: int
) -> None:
    """Makes the fork an independent process that ends with the entry."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    orders.send(json.dumps({"pid": os.getpid()}).encode())
    if not os.read(go, 1):
        os._exit(1)  # its client is gone
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(FIRST_FREE, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    random.seed()
    sys.argv = order["argv"]
    os._exit(_run(entry))


def _run(entry: Callable[[], object]) -> int:
    """The exit code of a program that ends by returning, by `SystemExit` or by any other exception."""
    try:
        entry()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  # the end of a process
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Serves the entry that is named first; requests come over standard input."""
    module, _, function = sys.argv[1].partition(":")
    for each in sys.argv[2:]:
        importlib.import_module(each)
    entry = getattr(importlib.import_module(module), function)
    with socket.socket(fileno=os.dup(0)) as orders:
        serve(entry, orders)


if __name__ == "__main__":
    main()
