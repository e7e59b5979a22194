"""Forks of a program whose modules were imported once: as real as processes that are started anew, and at once there.

A fork server imports a program, then forks itself whenever it is asked to. Each fork leads a session of its own, has
the environment, folder and output it was given, and runs the program's entry; a signal ends it as it would end any
process. What a fork cannot show is whether the program can be started at all.

The server has one thread, and its forks inherit nothing of ours. It ends when we do, by whatever cause: then our end of
the socket closes. The forks are recorded by whoever supervises them (`testbed.processes`).
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
"""The first fork waits for the imports."""
LARGEST_MESSAGE: Final = 2**17
FIRST_FREE: Final = 3
"""File descriptors from here on are the server's."""


class Fork:
    """One process that was forked. It waits for `release` before it runs anything."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._ended = threading.Event()
        self._go = -1

    def release(self) -> None:
        """Let it run."""
        os.write(self._go, b"\n")
        os.close(self._go)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it to end and return its exit code; raises `subprocess.TimeoutExpired`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return self._code or 0

    def _note_end(self, code: int) -> None:
        self._code = code
        self._ended.set()


class ForkServer:
    """Forks `entry`, as in `package.module:function`, with these modules imported beside its own.

    Name the modules that the entry imports only when it runs: each fork would import them again. Safe to use from
    several threads.
    """

    def __init__(self, entry: str, *modules: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "testbed.forkserver", entry, *modules],
                stdin=theirs.fileno(),
                cwd=CHECKOUT,
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
        """Fork a process that waits to be released, then runs the entry with these arguments."""
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
        """Have the server end. Safe to repeat."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._socket.close()
        self._popen.wait()

    def _listen(self) -> None:
        """Note who was forked and who has ended, until the server has."""
        while message := self._socket.recv(LARGEST_MESSAGE):
            told = json.loads(message)
            if "code" in told:
                self._forks.pop(told["pid"])._note_end(told["code"])  # noqa: SLF001  # the two are one
            else:
                fork = self._forks[told["pid"]] = Fork(told["pid"])
                self._new.put(fork)


# --- the server ----------------------------------------------------------------------------------------------


def serve(entry: Callable[[], object], orders: socket.socket) -> None:
    """Fork for each order, and tell who has ended, until whoever orders is gone."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()  # what was imported is shared with every fork for as long as nobody touches it
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
    """A call that waits until some of them can be read, and says which."""
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
    """Be a process of its own from now on, and end with the entry."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    orders.send(json.dumps({"pid": os.getpid()}).encode())
    if not os.read(go, 1):
        os._exit(1)  # nobody waits for it any more
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
    """Serve the entry that is named first, by orders that come over standard input."""
    module, _, function = sys.argv[1].partition(":")
    for each in sys.argv[2:]:
        importlib.import_module(each)
    entry = getattr(importlib.import_module(module), function)
    with socket.socket(fileno=os.dup(0)) as orders:
        serve(entry, orders)


if __name__ == "__main__":
    main()
