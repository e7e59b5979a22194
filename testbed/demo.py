"""`python -m testbed.demo`, or `make demo`: the scenario of the KubeRay and MCAD blog, on a real control plane.

Two Ray gangs of two GPUs each share three GPUs. The first runs; the second waits without any object, and is dispatched
when the first is deleted. The demo checks each step: it exits 0 if all of them happened, else it prints the difference
and exits 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg
from psycopg.rows import class_row
from rich.table import Table

from dispatcher.core.model.records.record import Phase
from testbed.scene import GONE, Lists, Scene
from testbed.screen import Screen
from testbed.stack import ROOT, Stack
from testbed.story import LOOK_SECONDS, Player, StoryFailed, command_line, exit_code_of, explained, stage

STATE: Final = ROOT / ".dev" / "demo"
FIRST: Final = "raycluster-glue"
SECOND: Final = "raycluster-glue-1"
WAITING: Final = "Queued"
RUNNING: Final = "Running"
TWO_RUN: Final = "2 running"
WATCHED_SECONDS: Final = 4.0

LISTS: Final = {
    "appwrappers": "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers",
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/namespaces/default/pods",
    "rayclusters": "/apis/ray.io/v1/namespaces/default/rayclusters",
    "services": "/api/v1/namespaces/default/services",
}

HISTORY: Final = """
SELECT name, at, cause, from_phase, to_phase, message, seconds_since_previous FROM history.timeline ORDER BY id
"""

BY_HAND: Final = """\
By hand: `make dev` leaves a larger cluster running, with three users. docs/try-it.md has an afternoon to play there.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One step in the life of an AppWrapper, from `history.timeline`."""

    name: str
    at: datetime
    cause: str
    from_phase: str | None
    to_phase: str
    message: str
    seconds_since_previous: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 if every step happened, 1 if not, 128 and more if a signal ended it."""
    options = command_line("testbed.demo", __doc__, STATE).parse_args(arguments)
    return exit_code_of("demo", lambda: run(options.state))


def run(folder: Path) -> None:
    """Starts the stack, runs the demo, and removes everything."""
    screen = Screen(table_of)
    with stage(folder, screen) as stack:
        perform(stack, screen)
    screen.say(BY_HAND)


def perform(stack: Stack, screen: Screen[Scene]) -> None:
    """Runs the demo on a started stack, and prints its history from the database."""
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        story = Story(stack, database, screen)
        with explained(stack, lambda: story.player.last):
            with screen:
                story.tell()
            print_history(story.history(), screen)


class Story:
    """The steps of the blog; each returns when it has happened, or raises `StoryFailed`."""

    def __init__(self, stack: Stack, database: psycopg.Connection, screen: Screen[Scene]) -> None:
        self.player = Player(stack, screen, self._look)
        self._stack = stack
        self._database = database
        self._screen = screen
        self._names: list[str] = []

    def tell(self) -> None:
        """Runs all steps."""
        say, until = self._screen.say, self.player.until
        say("\nA gang of two pods that need a GPU each; there are three GPUs.")
        self._apply(FIRST)
        until(f"{FIRST} runs whole", lambda scene: runs_whole(scene, FIRST))
        say("\nAnother one like it. There is one GPU left, so it waits, whole: half a gang is of no use.")
        self._apply(SECOND)
        until(f"{SECOND} is first in the queue", lambda scene: waits_first(scene, SECOND))
        self._watch_nothing_made(WATCHED_SECONDS)
        say(f"For {WATCHED_SECONDS:.0f} s there was no RayCluster, pod or service of {SECOND}.")
        say("\nThe first one goes.")
        self.player.kubectl("delete", "appwrapper", FIRST)
        until(f"{SECOND} runs whole", lambda scene: runs_whole(scene, SECOND))
        until(f"nothing is left of {FIRST}", lambda scene: is_gone(scene, FIRST))

    def history(self) -> list[Event]:
        """The history in the database, in order; raises `StoryFailed` if it differs from the steps."""
        with self._database.cursor(row_factory=class_row(Event)) as cursor:
            cursor.execute(HISTORY)
            events = cursor.fetchall()
        if gap(events) < timedelta(0):
            raise StoryFailed(f"{SECOND} was dispatched before {FIRST} had gone: {events}")
        return events

    def _apply(self, name: str) -> None:
        self.player.kubectl("apply", "-f", f"examples/aw-{name}.yaml")
        self._names.append(name)

    def _watch_nothing_made(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not waits_first(self.player.look(), SECOND):
                raise StoryFailed(f"{SECOND} should wait with nothing created until {FIRST} is deleted")
            time.sleep(LOOK_SECONDS)

    def _look(self) -> Scene:
        with ThreadPoolExecutor(len(LISTS)) as pool:
            found = pool.map(lambda path: self._stack.plane.client.get(path)["items"], LISTS.values())
        lists = Lists(**dict(zip(LISTS, found, strict=True)))
        positions = self._database.execute("SELECT name, position FROM history.queue_now").fetchall()
        return Scene.of(self._names, lists, dict(positions))


def runs_whole(scene: Scene, name: str) -> bool:
    """True if its status says that it runs, and both of its pods do."""
    row = scene.row(name)
    return row.state == RUNNING and row.pods == TWO_RUN and row.position is None


def waits_first(scene: Scene, name: str) -> bool:
    """True if it waits at the head of the queue and has no objects."""
    row = scene.row(name)
    return row.state == WAITING and row.position == 1 and not row.exists


def is_gone(scene: Scene, name: str) -> bool:
    """True if neither the AppWrapper nor any object of it exists."""
    row = scene.row(name)
    return row.state == GONE and not row.exists


def gap(events: Sequence[Event]) -> timedelta:
    """The time from the release of the first gang's capacity to the dispatch of the second."""
    at = {(each.name, each.to_phase): each.at for each in events}
    try:
        return at[SECOND, Phase.DISPATCHING] - at[FIRST, Phase.DELETED]
    except KeyError as missing:
        raise StoryFailed(f"the history lacks {missing}: {events}") from missing


def table_of(scene: Scene) -> Table:
    """The table of a scene."""
    table = Table("AppWrapper", "position", "state", "reason", "pods", "free GPUs")
    for number, row in enumerate(scene.rows):
        free = f"{scene.free_gpus} of {scene.gpus}" if number == 0 else ""
        table.add_row(row.name, str(row.position or ""), row.state, row.reason, row.pods, free)
    return table


def print_history(events: Sequence[Event], screen: Screen[Scene]) -> None:
    """Prints the history of each AppWrapper."""
    screen.say("\nWhat the database remembers (SELECT … FROM history.timeline):")
    for name in (FIRST, SECOND):
        screen.print_table(history_of([each for each in events if each.name == name], name))
    milliseconds = gap(events) / timedelta(milliseconds=1)
    screen.say(f"{SECOND} was dispatched {milliseconds:.0f} ms after the GPUs of {FIRST} were free.\n")


def history_of(events: Sequence[Event], title: str) -> Table:
    """The table of one history."""
    table = Table("at", "after", "cause", "from", "to", "message", title=title, title_justify="left")
    for each in events:
        at, seconds = f"{each.at:%H:%M:%S.%f}"[:-3], each.seconds_since_previous
        after = "" if seconds is None else f"{seconds:.3f} s"
        table.add_row(at, after, each.cause, each.from_phase or "", each.to_phase, each.message)
    return table


if __name__ == "__main__":
    sys.exit(main())
