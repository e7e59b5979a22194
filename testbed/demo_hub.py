"""`python -m testbed.demo_hub`, or `make demo-hub`: a hub, two member clusters, ten gangs, and one cluster dies.

Each gang goes whole to one of the members, or waits with a reason for each of them. When a member dies, its gangs are
queued again, as its operator configured, and run on the other member as far as it has room. When the member is back,
its orphans are removed, and it takes the rest. The demo checks each step, and at the end every object in every cluster:
it exits 0 if all of it is as described, else it prints the differences and exits 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, NOT_SELECTED, UNREACHABLE
from testbed import gangs, hub_ending, hub_scene
from testbed.gangs import DONE, GANGS, LARGE, MOVED, PINNED, STAYING, Gang
from testbed.hub_ending import Found, Past, found_objects, wanted_objects
from testbed.hub_scene import HubScene
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.screen import Screen
from testbed.stack import CRDS, HUB, ROOT, Setting, Stack
from testbed.story import Player, StoryFailed, command_line, exit_code_of, explained, stage

STATE: Final = ROOT / ".dev" / "demo-hub"
EAST: Final = "east"
WEST: Final = "west"
GPU_NODE: Final = Shape(cpu="32", memory="256Gi", gpu=4)
"""A node for four pods of the example, which run out of GPUs first."""
NODES: Final = {EAST: 4, WEST: 2}
GPUS: Final = {name: count * GPU_NODE.gpu for name, count in NODES.items()}
GRACE_SECONDS: Final = 8
SETTING: Final = Setting(
    hub=Wanted(nodes=0, crds=CRDS),
    members={name: Wanted(count, GPU_NODE, CRDS) for name, count in NODES.items()},
    settings={"DISPATCHER_PROBE_SECONDS": "0.5", "DISPATCHER_UNREACHABLE_SECONDS": "1"},
)

NAMESPACED: Final = {
    "appwrappers": "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers",
    "configmaps": "/api/v1/namespaces/default/configmaps",
    "pods": "/api/v1/namespaces/default/pods",
    "rayclusters": "/apis/ray.io/v1/namespaces/default/rayclusters",
    "services": "/api/v1/namespaces/default/services",
}

HISTORY: Final = """
SELECT name, cause, cluster FROM history.timeline WHERE cause IN ('dispatched', 'pods-running') ORDER BY id
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 if every step happened, 1 if not, 128 and more if a signal ended it."""
    options = command_line("testbed.demo_hub", __doc__, STATE).parse_args(arguments)
    return exit_code_of("demo-hub", lambda: run(options.state))


def run(folder: Path) -> None:
    """Starts the clusters, runs the demo, and removes everything."""
    screen = Screen(hub_scene.table_of, hub_scene.news_of)
    with (
        stage(folder, screen, SETTING) as stack,
        psycopg.connect(stack.database_url, autocommit=True) as history,
    ):
        story = HubStory(stack, history, screen)
        with explained(stack, lambda: story.player.last):
            with screen:
                story.tell()
            story.sum_up()


class HubStory:
    """The steps of the ten gangs; each returns when it has happened, or raises `StoryFailed`."""

    def __init__(self, stack: Stack, history: psycopg.Connection, screen: Screen[HubScene]) -> None:
        self.player = Player(stack, screen, self._look)
        self._stack = stack
        self._history = history
        self._screen = screen
        self._gangs: list[Gang] = []

    def tell(self) -> None:
        """Runs all steps."""
        self._declare_members()
        self._submit()
        self._lose_west()
        self._make_room()
        self._bring_west_back()

    def sum_up(self) -> None:
        """Prints the result of each gang and the objects of each cluster; raises `StoryFailed` if they differ."""
        pasts, found = self._pasts(), self._found()
        if differences := self._differences():
            raise StoryFailed("\n  ".join(["this differs from what should be:", *differences]))
        running = {row.gang: row.cluster for row in self.player.look().rows}
        self._screen.say("\nWhat became of them, from history.timeline:")
        self._screen.print_table(hub_ending.summary_of(GANGS, pasts, running))
        counts = ", ".join(f"{name} {sum(each.values())}" for name, each in found.items())
        self._screen.say(
            f"Objects in each cluster: {counts}. They are exactly those that should be there, and no gang has any in "
            f"two clusters.\nThe same with clusters of yours: docs/clusters.md"
        )

    def _declare_members(self) -> None:
        self._screen.say(
            "\nA hub without nodes gets two members. West is not to be waited for if it is lost."
        )
        self._add(EAST, "--label", "gpu=a100")
        self._add(WEST, "--label", "gpu=h100", "--on-lost", "requeue", "--grace", str(GRACE_SECONDS))
        self.player.until(
            "all GPUs of both are known",
            lambda scene: all(scene.is_connected(name, count) for name, count in GPUS.items()),
        )
        self._clusters("list")

    def _submit(self) -> None:
        say = self._screen.say
        say(f"\nA gang whose user wants the GPUs of west: its cluster-selector is {PINNED.selector}.")
        self._apply("one", PINNED)
        self._until_run(WEST, PINNED)
        say("\nEight more. Each goes whole to the cluster that it fills best.")
        self._apply("eight", *MOVED, *STAYING)
        self._until_run(WEST, *MOVED)
        self._until_run(EAST, *STAYING)
        say(
            f"\nOne of {LARGE.pods} GPUs. Four are free: it waits as a whole, with a reason for each cluster."
        )
        self._apply("large", LARGE)
        self._until_waits(LARGE, {EAST: INSUFFICIENT, WEST: INSUFFICIENT})

    def _lose_west(self) -> None:
        lost = (PINNED, *MOVED)
        self._screen.say(
            "\nWest dies: all its processes are killed (SIGKILL). The hub cannot know whether its pods still run."
        )
        self._stack.lose(WEST)
        self.player.until(
            "the gangs of west say so",
            lambda scene: (
                scene.has_lost(WEST) and all(scene.row(each).trouble == UNREACHABLE for each in lost)
            ),
        )
        self._clusters("list")
        self._screen.say(
            f"\nAfter {GRACE_SECONDS} s without an answer, the gangs of west are queued again. "
            "East has room for one; the others wait."
        )
        self.player.until("one runs on east, and the others know why they wait", has_moved_on)

    def _make_room(self) -> None:
        self._screen.say("\nA gang on east is deleted.")
        self.player.kubectl("delete", "appwrapper", DONE.name)
        self._until_run(EAST, *MOVED)

    def _bring_west_back(self) -> None:
        self._screen.say(
            "\nWest is back. The hub removes the old objects there and dispatches the pending gangs."
        )
        self._stack.bring_back(WEST)
        self._until_run(WEST, PINNED, LARGE)
        self._until_run(EAST, *MOVED)
        with contextlib.suppress(StoryFailed):  # the differences explain more than a timeout
            self.player.until("nothing differs", lambda _: not self._differences())

    def _add(self, name: str, *arguments: str) -> None:
        kubeconfig = os.path.relpath(self._stack.members[name].kubeconfig, ROOT)
        self._clusters(
            "add", name, "--member-kubeconfig", kubeconfig, "--accepted-namespaces", "All", *arguments
        )

    def _clusters(self, *arguments: str) -> None:
        program = [sys.executable, "-m", "dispatcher"]
        environment = self._stack.environment
        self.player.type("dispatcher", "clusters", *arguments, program=program, environment=environment)

    def _apply(self, file: str, *submitted: Gang) -> None:
        path = self._stack.folder / "gangs" / f"{file}.yaml"
        gangs.write(path, submitted)
        self.player.kubectl("apply", "-f", os.path.relpath(path, ROOT))
        self._gangs += submitted

    def _until_run(self, cluster: str, *wanted: Gang) -> None:
        self.player.until(
            f"these run on {cluster}: {', '.join(each.name for each in wanted)}",
            lambda scene: all(scene.row(each).runs_on(cluster) for each in wanted),
        )

    def _until_waits(self, gang: Gang, reasons: dict[str, str]) -> None:
        self.player.until(
            f"{gang.name} waits for {reasons}", lambda scene: scene.row(gang).waits_for(reasons)
        )

    def _look(self) -> HubScene:
        read = self._stack.plane.client.get
        appwrappers, members = read(NAMESPACED["appwrappers"])["items"], read(MEMBERS_PATH)["items"]
        routes = {name: past.dispatched for name, past in self._pasts().items()}
        return HubScene.of(self._gangs, appwrappers, members, routes)

    def _pasts(self) -> dict[str, Past]:
        events = self._history.execute(HISTORY).fetchall()
        return {each.name: Past.of(each.name, events) for each in GANGS}

    def _found(self) -> dict[str, Counter[str]]:
        planes = {HUB: self._stack.plane, **self._stack.members}
        return {name: found_objects(self._found_in(plane)) for name, plane in planes.items()}

    def _found_in(self, plane: Plane) -> Found:
        with ThreadPoolExecutor(len(NAMESPACED)) as pool:
            found = pool.map(lambda path: plane.client.get(path)["items"], NAMESPACED.values())
        return Found(**dict(zip(NAMESPACED, found, strict=True)))

    def _differences(self) -> list[str]:
        left = [each for each in GANGS if each is not DONE]
        wanted = wanted_objects(left, NODES, HUB)
        return [
            *hub_ending.wrong_pasts(GANGS, self._pasts()),
            *hub_ending.wrong_objects(wanted, self._found()),
        ]


def has_moved_on(scene: HubScene) -> bool:
    """True if one gang of west runs on east, which lacks room for the second and does not suit the third."""
    moved = [scene.row(each) for each in MOVED]
    return (
        sum(each.runs_on(EAST) for each in moved) == 1
        and sum(each.waits_for({EAST: INSUFFICIENT, WEST: UNREACHABLE}) for each in moved) == 1
        and scene.row(PINNED).waits_for({EAST: NOT_SELECTED, WEST: UNREACHABLE})
    )


if __name__ == "__main__":
    sys.exit(main())
