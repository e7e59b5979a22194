"""`python -m testbed.demo_queues`, or `make demo-queues`: two departments, three teams, sixteen GPUs.

A team borrows what the others leave idle. The others take their quota back when they need it, a gang of higher priority
preempts one of its own team, and what was preempted runs again. The demo checks each step: it exits 0 if all of them
happened, else it prints the difference and exits 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg
import yaml
from rich.table import Table

from dispatcher.api.names import QUEUES_PATH
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT_QUOTA
from dispatcher.core.model.records.preemption import Reason
from testbed import queue_scene
from testbed.nodes import Shape
from testbed.plane import Wanted
from testbed.queue_scene import QueueScene, TeamGang, use_of
from testbed.scene import GPU, name_of
from testbed.screen import Screen
from testbed.stack import CRDS, ROOT, Setting, Stack
from testbed.story import Player, StoryFailed, command_line, exit_code_of, explained, stage

STATE: Final = ROOT / ".dev" / "demo-queues"
QUEUES: Final = ROOT / "examples" / "queues" / "departments" / "queues.yaml"
SETTING: Final = Setting(hub=Wanted(4, Shape(cpu="32", memory="256Gi", gpu=4), CRDS))

PRETRAIN: Final = TeamGang("pretrain", "vision", 6)
ABLATION: Final = TeamGang("ablation", "vision", 4)
SWEEP: Final = TeamGang("sweep", "vision", 6)
EVAL: Final = TeamGang("eval", "vision", 2)
DEADLINE: Final = TeamGang("deadline", "vision", 6, priority=10)
DICTATE: Final = TeamGang("dictate", "speech", 4)
ASSISTANT: Final = TeamGang("assistant", "serving", 4)

LISTS: Final = (
    "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers",
    "/api/v1/namespaces/default/pods",
)

PREEMPTIONS: Final = "SELECT name, reason, by_name FROM history.preemptions ORDER BY at"

EXPECTED: Final = [
    (SWEEP.name, Reason.QUOTA_RECLAIMED, ASSISTANT.name),
    (ABLATION.name, Reason.QUOTA_RECLAIMED, DICTATE.name),
    (PRETRAIN.name, Reason.PRIORITY_IN_QUEUE, DEADLINE.name),
]
"""The victims, each with the reason and the gang that it gave way to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 if every step happened, 1 if not, 128 and more if a signal ended it."""
    options = command_line("testbed.demo_queues", __doc__, STATE).parse_args(arguments)
    return exit_code_of("demo-queues", lambda: run(options.state))


def run(folder: Path) -> None:
    """Starts the stack, runs the demo, and removes everything."""
    screen = Screen(queue_scene.table_of, queue_scene.news_of)
    with (
        stage(folder, screen, SETTING) as stack,
        psycopg.connect(stack.database_url, autocommit=True) as history,
    ):
        story = QueueStory(stack, screen)
        with explained(stack, lambda: story.player.last):
            with screen:
                story.tell()
            preemptions = history.execute(PREEMPTIONS).fetchall()
            check_preemptions(preemptions)
        screen.say("\nWhat the database remembers (SELECT … FROM history.preemptions):")
        screen.print_table(preemptions_of(preemptions))
        screen.say("Queues of your own: docs/queues.md")


class QueueStory:
    """The steps of the three teams; each returns when it has happened, or raises `StoryFailed`."""

    def __init__(self, stack: Stack, screen: Screen[QueueScene]) -> None:
        self.player = Player(stack, screen, self._look)
        self._stack = stack
        self._screen = screen
        self._quotas = quotas_of(QUEUES)
        self._gangs: list[TeamGang] = []

    def tell(self) -> None:
        """Runs all steps."""
        self._borrow()
        self._reclaim()
        self._preempt()
        self._resume()

    def _borrow(self) -> None:
        self._screen.say(f"\nSixteen GPUs are promised to three teams: {self._words(self._quotas)}.")
        self.player.kubectl("apply", "-f", os.path.relpath(QUEUES, ROOT))
        self._screen.say(
            "\nOnly vision works. Beyond its own six GPUs it borrows what the others leave idle."
        )
        for each in (PRETRAIN, ABLATION, SWEEP):
            self._submit(each)
            self._until_run(each)
        self._until_used(vision=16)
        self._screen.say("\nNothing is left to borrow. Nobody gives way to a gang that would borrow.")
        self._submit(EVAL)
        self._until_waits(EVAL)

    def _reclaim(self) -> None:
        self._screen.say(
            "\nServing wants four of its own. The youngest gang beyond vision's quota gives way, and the gang that "
            "waits\ntakes what is left of it."
        )
        self._submit(ASSISTANT)
        self._until_run(ASSISTANT, EVAL)
        self._until_waits(SWEEP)
        self._until_used(vision=12, serving=4)
        self._screen.say(
            "\nSpeech wants its four. Eval is younger than ablation, but without it there would not be four."
        )
        self._submit(DICTATE)
        self._until_run(DICTATE)
        self._until_waits(ABLATION)
        self._until_used(vision=8, speech=4, serving=4)

    def _preempt(self) -> None:
        self._screen.say(
            f"\nVision has a deadline: a gang of priority {DEADLINE.priority}. It takes from its own team, not from "
            "others."
        )
        self._submit(DEADLINE)
        self._until_run(DEADLINE)
        self._until_waits(PRETRAIN)
        self._until_used(vision=8, speech=4, serving=4)

    def _resume(self) -> None:
        self._screen.say("\nServing is done. Vision may borrow again.")
        self._delete(ASSISTANT)
        self._until_run(ABLATION)
        self._screen.say("\nThe deadline is met. The oldest gang that fits goes on.")
        self._delete(DEADLINE)
        self._until_run(PRETRAIN)
        self._until_used(vision=12, speech=4)
        self._until_waits(SWEEP)
        self._show_queues()

    def _show_queues(self) -> None:
        self._screen.say("\nThe same from the status of the queues, which is written every ten seconds:")
        self.player.until("the status of each queue is up to date", lambda scene: self._is_written(scene))
        program = [sys.executable, "-m", "dispatcher"]
        self.player.type("dispatcher", "queues", program=program, environment=self._stack.environment)

    def _is_written(self, scene: QueueScene) -> bool:
        """True if the status of the teams' queues says what their pods hold, and how many gangs wait."""
        found = {name_of(each): each for each in self._stack.plane.client.get(QUEUES_PATH)["items"]}
        statuses = {team: found[team].get("status", {}) for team in self._quotas}
        said = {team: (each.get("used", {}).get(GPU), each.get("pending")) for team, each in statuses.items()}
        return said == {team: (str(scene.used(team)), scene.waiting(team)) for team in self._quotas}

    def _submit(self, gang: TeamGang) -> None:
        path = self._stack.folder / "gangs" / f"{gang.name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(gang.appwrapper, sort_keys=False))
        self.player.kubectl("apply", "-f", os.path.relpath(path, ROOT))
        self._gangs.append(gang)

    def _delete(self, gang: TeamGang) -> None:
        self.player.kubectl("delete", "appwrapper", gang.name)

    def _until_run(self, *gangs: TeamGang) -> None:
        self.player.until(
            f"these run: {', '.join(each.name for each in gangs)}",
            lambda scene: all(scene.row(each).runs for each in gangs),
        )

    def _until_waits(self, gang: TeamGang) -> None:
        self.player.until(
            f"{gang.name} waits for quota", lambda scene: scene.row(gang).waits_for(INSUFFICIENT_QUOTA)
        )

    def _until_used(self, **used: int) -> None:
        wanted = {team: used.get(team, 0) for team in self._quotas}
        self.player.until(
            f"the teams use {wanted}", lambda scene: {team: scene.used(team) for team in wanted} == wanted
        )
        scene = self.player.look()
        self._screen.say(f"GPUs in use: {'; '.join(use_of(scene, team) for team in wanted)}.")

    def _look(self) -> QueueScene:
        with ThreadPoolExecutor(len(LISTS)) as pool:
            appwrappers, pods = pool.map(lambda path: self._stack.plane.client.get(path)["items"], LISTS)
        return QueueScene.of(self._gangs, self._quotas, appwrappers, pods)

    @staticmethod
    def _words(quotas: dict[str, int]) -> str:
        return ", ".join(f"{gpus} to {team}" for team, gpus in quotas.items())


def quotas_of(path: Path) -> dict[str, int]:
    """The GPUs promised to each team, which is a queue with a quota of its own."""
    declared = yaml.safe_load_all(path.read_text())
    specs = {each["metadata"]["name"]: each.get("spec", {}) for each in declared}
    return {
        name: int(spec["resources"][GPU]["nominalQuota"])
        for name, spec in specs.items()
        if "resources" in spec
    }


def check_preemptions(found: Sequence[tuple[str, ...]]) -> None:
    """Raises `StoryFailed` if others were preempted, or for others, than the story says."""
    if list(found) != EXPECTED:
        raise StoryFailed(f"the history has other preemptions: {found}")


def preemptions_of(found: Sequence[tuple[str, ...]]) -> Table:
    """The table of the preemptions in the history."""
    table = Table("preempted", "reason", "for")
    for each in found:
        table.add_row(*each)
    return table


if __name__ == "__main__":
    sys.exit(main())
