"""`python -m testbed.demo_provisioning`, or `make demo-provisioning`: a node pool that has no nodes until a gang asks.

A RayJob waits until the nodes of all its workers are there. Another one is refused first, and its retry succeeds. The
demo checks each step: it exits 0 if all of them happened, else it prints the difference and exits 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from psycopg.rows import class_row

from testbed import provisioning_scene
from testbed.autoscaler import FAIL_FIRST, OUT_OF_STOCK
from testbed.demo import HISTORY, Event, history_of
from testbed.nodes import NODES, Shape
from testbed.operated import RUN_FOR
from testbed.plane import Wanted
from testbed.provisioning_scene import ProvisioningScene
from testbed.screen import Screen
from testbed.stack import CRDS, ROOT, Setting, Stack
from testbed.story import Player, StoryFailed, command_line, exit_code_of, explained, stage

STATE: Final = ROOT / ".dev" / "demo-provisioning"
QUEUE: Final = ROOT / "examples" / "provisioning" / "queue.yaml"
TRAIN_FILE: Final = ROOT / "examples" / "provisioning" / "train.yaml"
WORK_SECONDS: Final = 3600
"""Longer than the demo: it ends the work itself."""
SETTING: Final = Setting(
    hub=Wanted(1, Shape(cpu="8", memory="32Gi"), CRDS, WORK_SECONDS),
    autoscaler=True,
)

TRAIN: Final = "train"
TUNE: Final = "tune"
PARAMETER: Final = f"provreq.kueue.x-k8s.io/{FAIL_FIRST}"
AWAITING: Final = "AwaitingProvisioning"
RUNNING: Final = "Running"
COMPLETED: Final = "Completed"
ALL_RUN: Final = "4 running"
"""A head, two workers and the pod that submits the job."""
TOLD: Final = ("provisioning-failed", "provisioned", "created")
EXPECTED: Final = {
    TRAIN: ["provisioned", "created"],
    TUNE: ["provisioning-failed", "provisioned", "created"],
}
"""The order of these causes in the history of each gang."""
LISTS: Final = (
    "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers",
    "/api/v1/namespaces/default/pods",
    "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests",
    NODES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 if every step happened, 1 if not, 128 and more if a signal ended it."""
    options = command_line("testbed.demo_provisioning", __doc__, STATE).parse_args(arguments)
    return exit_code_of("demo-provisioning", lambda: run(options.state))


def run(folder: Path) -> None:
    """Starts the stack, runs the demo, and removes everything."""
    screen = Screen(provisioning_scene.table_of, provisioning_scene.news_of)
    with (
        stage(folder, screen, SETTING) as stack,
        psycopg.connect(stack.database_url, autocommit=True) as database,
    ):
        story = ProvisioningStory(stack, screen)
        with explained(stack, lambda: story.player.last):
            with screen:
                story.tell()
            events = history(database)
            check(events)
        screen.say("\nWhat the database remembers (SELECT … FROM history.timeline):")
        screen.print_table(history_of([each for each in events if each.name == TUNE], TUNE))
        screen.say("A class of your own: docs/provisioning.md")


class ProvisioningStory:
    """The steps of two RayJobs; each returns when it has happened, or raises `StoryFailed`."""

    def __init__(self, stack: Stack, screen: Screen[ProvisioningScene]) -> None:
        self.player = Player(stack, screen, self._look)
        self._stack = stack
        self._say = screen.say
        self._gangs: list[str] = []

    def tell(self) -> None:
        """Runs all steps."""
        self._declare()
        self._request()
        self._end()
        self._retry()

    def _declare(self) -> None:
        self._say("\nOne node without GPUs is there. A pool has GPUs, and no nodes. The quota is no limit.")
        self.player.kubectl("apply", "-f", os.path.relpath(QUEUE, ROOT))
        self.player.kubectl("get", "nodes")

    def _request(self) -> None:
        self._say("\nA RayJob needs two GPUs. Its capacity is requested, and nothing of it exists meanwhile.")
        self._submit(TRAIN, TRAIN_FILE)
        self._until_promised(TRAIN, "train-provisioning-1")
        self.player.kubectl("get", "provisioningrequests")
        self._say("\nThe nodes come, and all pods of the gang start.")
        self._until_runs(TRAIN)
        self.player.kubectl("get", "pods", "-o", "custom-columns=POD:.metadata.name,NODE:.spec.nodeName")

    def _end(self) -> None:
        self._say("\nThe job is done. (No container runs here: an annotation ends its pod.)")
        self.player.kubectl("annotate", "pods", "-l", f"job-name={TRAIN}", "--overwrite", f"{RUN_FOR}=0s")
        self.player.until(f"{TRAIN} is completed", lambda scene: scene.row(TRAIN).state == COMPLETED)
        self._say("\nIts request is gone, so its nodes go, too. Its objects stay for their logs.")
        self.player.until("request and nodes are gone", lambda scene: not scene.requests and not scene.nodes)

    def _retry(self) -> None:
        self._say(
            "\nAnother one. For its first request the zone has no GPUs left: the gang gives its quota back, and asks "
            "again."
        )
        self._submit(TUNE, tune_file(self._stack.folder))
        self.player.until(
            "the first request failed",
            lambda scene: OUT_OF_STOCK in scene.row(TUNE).message or "tune-provisioning-2" in scene.requests,
        )
        self._until_promised(TUNE, "tune-provisioning-2")
        self._until_runs(TUNE)

    def _submit(self, gang: str, path: Path) -> None:
        self.player.kubectl("apply", "-f", os.path.relpath(path, ROOT))
        self._gangs.append(gang)

    def _until_promised(self, gang: str, request: str) -> None:
        """Returns when the gang waits with an estimated time, or its nodes are there already."""

        def is_promised(scene: ProvisioningScene) -> bool:
            row = scene.row(gang)
            is_told = row.reason == AWAITING and "ETA" in row.message
            return request in scene.requests and (is_told or row.state == RUNNING)

        self.player.until(f"{gang} waits with an estimated time", is_promised)

    def _until_runs(self, gang: str) -> None:
        self.player.until(
            f"{gang} runs on nodes of the pool",
            lambda scene: (scene.row(gang).state, scene.row(gang).pods, scene.nodes) == (RUNNING, ALL_RUN, 2),
        )

    def _look(self) -> ProvisioningScene:
        with ThreadPoolExecutor(len(LISTS)) as pool:
            found = pool.map(lambda path: self._stack.plane.client.get(path)["items"], LISTS)
        return ProvisioningScene.of(self._gangs, *found)


def tune_file(folder: Path) -> Path:
    """Writes the second gang: like the first, but the first request for its capacity fails."""
    wrapped: dict[str, Any] = yaml.safe_load(TRAIN_FILE.read_text())
    wrapped["metadata"] |= {"name": TUNE, "annotations": {PARAMETER: "1"}}
    [item] = wrapped["spec"]["resources"]["GenericItems"]
    item["generictemplate"]["metadata"]["name"] = TUNE
    path = folder / "gangs" / f"{TUNE}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(wrapped, sort_keys=False))
    return path


def history(database: psycopg.Connection) -> list[Event]:
    """The history of both gangs, in order."""
    with database.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(HISTORY).fetchall()


def check(events: Sequence[Event]) -> None:
    """Raises `StoryFailed` if objects were created before their capacity was provisioned."""
    for gang, expected in EXPECTED.items():
        causes = [each.cause for each in events if each.name == gang and each.cause in TOLD]
        if causes != expected:
            raise StoryFailed(f"the history of {gang} is another one: {causes}")


if __name__ == "__main__":
    sys.exit(main())
