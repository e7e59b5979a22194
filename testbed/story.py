"""The common parts of the demos: start and end, the user's actions, and waiting for their results."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import psycopg

from testbed import build
from testbed.__main__ import raise_on_signals
from testbed.client import ApiError
from testbed.plane import NotReady
from testbed.postgres import NoPostgres
from testbed.processes import FolderInUse, ProcessDied, Supervisor
from testbed.screen import Screen
from testbed.stack import ROOT, Setting, Stack, ignore_signals

PATIENCE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
LOG_LINES: Final = 8

T = TypeVar("T")


class StoryFailed(Exception):
    """An expected step did not happen; the message describes the actual state."""


WENT_WRONG: Final = (
    ApiError,
    NotReady,
    OSError,
    ProcessDied,
    StoryFailed,
    psycopg.Error,
    subprocess.SubprocessError,
)
"""The errors that end a demo early."""


def command_line(module: str, about: str | None, state: Path) -> argparse.ArgumentParser:
    """The command line of a demo with a state folder."""
    top = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    top.add_argument(
        "--state", type=Path, default=state, metavar="FOLDER", help="kubeconfig, logs, data (%(default)s)"
    )
    return top


def exit_code_of(name: str, run: Callable[[], None]) -> int:
    """Runs a demo; 0 if every step happened, 1 if not, 128 and more if a signal ended it."""
    raise_on_signals()
    try:
        run()
    except KeyboardInterrupt as interrupt:
        return 128 + int(interrupt.args[0])
    except BrokenPipeError:
        return 1
    except (StoryFailed, build.BuildFailed, FolderInUse, NoPostgres, NotReady, ProcessDied) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def stage(folder: Path, screen: Screen[T], setting: Setting | None = None) -> Iterator[Stack]:
    """Starts the stack, and removes everything at the end."""
    binaries = build.ensure()
    with Supervisor(folder) as supervisor:
        stack = Stack(supervisor, binaries, setting)
        try:
            screen.say("Setting up, each part a process of its own:")
            stack.up(screen.say_part)
            yield stack
        finally:
            ignore_signals()
            stack.down()


@contextlib.contextmanager
def explained(stack: Stack, last_seen: Callable[[], object]) -> Iterator[None]:
    """Turns errors inside into `StoryFailed`, with the last scene and the last log lines."""
    try:
        yield
    except WENT_WRONG as error:
        raise StoryFailed(
            f"this is not what should have happened: {error}\n"
            f"seen last: {last_seen()}\nthe dispatcher's last lines:\n"
            f"{stack.dispatcher.process.log_tail(LOG_LINES)}\nall logs are in {stack.folder / 'logs'}"
        ) from error


class Player(Generic[T]):
    """Acts as a user and observes the results; `look_at` reads a scene, which the screen then shows."""

    def __init__(self, stack: Stack, screen: Screen[T], look_at: Callable[[], T]) -> None:
        self._stack = stack
        self._screen = screen
        self._look_at = look_at
        self.last: T | None = None

    def look(self) -> T:
        """Looks now; raises `ProcessDied` if a part has ended unexpectedly."""
        self._stack.check()
        self.last = self._look_at()
        self._screen.show(self.last)
        return self.last

    def until(self, what: str, has_come: Callable[[T], bool]) -> None:
        """Looks until the condition holds; raises `StoryFailed` if that takes too long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not has_come(self.look()):
            if time.monotonic() > deadline:
                raise StoryFailed(f"after {PATIENCE_SECONDS:.0f} s it is still not so that {what}")
            time.sleep(LOOK_SECONDS)

    def kubectl(self, *arguments: str) -> None:
        """Runs a kubectl command, at the hub."""
        self.type("kubectl", *arguments, program=[str(self._stack.plane.kubectl)])

    def type(
        self,
        name: str,
        *arguments: str,
        program: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Shows a command, runs it, and shows its output; raises `StoryFailed` if it fails."""
        self._screen.say(f"$ {name} {' '.join(arguments)}")
        done = subprocess.run(
            [*program, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise StoryFailed(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
        self._screen.say(done.stdout.strip())
