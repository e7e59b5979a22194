"""The visible state of a cluster with queues at one moment: values in, a table or lines out, no I/O.

The rows are what the status of each AppWrapper says. The use of a team is counted from running pods, not asked of the
dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.table import Table

from dispatcher.api.names import QUEUE_LABEL
from testbed.gangs import ray_gang
from testbed.scene import GONE, UNSEEN, Json, gpus_of_pod, name_of, names_of

RUNNING: Final = "Running"
WAITING: Final = "Queued"
LEAVING: Final = "Requeueing"
PREEMPTED: Final = "PreemptCandidate"


@dataclass(frozen=True, slots=True)
class TeamGang:
    """A Ray gang of a team: `gpus` pods of one GPU each, in the queue of the team."""

    name: str
    team: str
    gpus: int
    priority: int = 0

    @property
    def appwrapper(self) -> dict[str, Any]:
        """Its AppWrapper."""
        wrapped = ray_gang(self.name, self.gpus)
        wrapped["metadata"]["labels"] = {QUEUE_LABEL: self.team}
        wrapped["spec"]["priority"] = self.priority
        return wrapped


@dataclass(frozen=True, slots=True)
class Row:
    """One gang. `reason` and `message` are why it waits, or why it was preempted while it is being removed."""

    gang: str
    team: str
    gpus: int
    state: str
    reason: str = ""
    message: str = ""
    running: int = 0

    @property
    def runs(self) -> bool:
        """True if its status says that it runs, and all of its pods do."""
        return self.state == RUNNING and self.running == self.gpus

    def waits_for(self, reason: str) -> bool:
        """True if its status says that it waits for this reason, and none of its pods holds a GPU."""
        return (self.state, self.reason, self.running) == (WAITING, reason, 0)


@dataclass(frozen=True, slots=True)
class QueueScene:
    """The gangs so far; `quotas` are the GPUs promised to each team."""

    rows: tuple[Row, ...]
    quotas: Mapping[str, int]

    @classmethod
    def of(
        cls,
        gangs: Sequence[TeamGang],
        quotas: Mapping[str, int],
        appwrappers: Sequence[Json],
        pods: Sequence[Json],
    ) -> Self:
        """The scene from what was read about these gangs."""
        found = {name_of(each): each for each in appwrappers}
        return cls(tuple(row_of(each, found.get(each.name), pods) for each in gangs), quotas)

    def row(self, gang: TeamGang) -> Row:
        """The row of one gang; raises `StopIteration` if it does not exist yet."""
        return next(each for each in self.rows if each.gang == gang.name)

    def used(self, team: str) -> int:
        """The GPUs that the gangs of a team hold."""
        return sum(each.running for each in self.rows if each.team == team)

    def waiting(self, team: str) -> int:
        """How many gangs of a team wait."""
        return sum(each.state == WAITING for each in self.rows if each.team == team)


def row_of(gang: TeamGang, found: Json | None, pods: Sequence[Json]) -> Row:
    """The row of one AppWrapper."""
    running = sum(gpus_of_pod(each) for each in pods if gang.name in names_of(each))
    if found is None:
        return Row(gang.name, gang.team, gang.gpus, GONE, running=running)
    status: Json = found.get("status", {})
    state = str(status.get("lifecyclePhase", UNSEEN))
    said = said_by(status) if state in (WAITING, LEAVING) else ("", "")
    return Row(gang.name, gang.team, gang.gpus, state, *said, running=running)


def said_by(status: Json) -> tuple[str, str]:
    """The reason and the message for which a gang waits, or by which it was preempted."""
    waiting: Json = status.get("waiting", {})
    if waiting:
        return waiting["reason"], waiting.get("message", "")
    preempted = [each for each in status.get("conditions", ()) if each["type"] == PREEMPTED]
    return (preempted[-1]["reason"], preempted[-1]["message"]) if preempted else ("", "")


def table_of(scene: QueueScene) -> Table:
    """The table of a scene."""
    table = Table("team", "gang", "GPUs", "state", "what the dispatcher says", caption_justify="left")
    table.caption = "   ".join(use_of(scene, team) for team in scene.quotas)
    for row in scene.rows:
        cells = (row.team, row.gang, str(row.gpus), row.state, row.message)
        table.add_row(*cells, style={RUNNING: "green", WAITING: "yellow", GONE: "dim"}.get(row.state, ""))
    return table


def use_of(scene: QueueScene, team: str) -> str:
    """The use of a team beside its quota, in words."""
    used, quota = scene.used(team), scene.quotas[team]
    borrowed = f", borrows {used - quota}" if used > quota else ""
    return f"{team} {used} of {quota}{borrowed}"


def news_of(before: QueueScene | None, now: QueueScene) -> list[str]:
    """One line for each gang that says something else."""
    shown = {each.gang: line_of(each) for each in (before.rows if before else ())}
    return [
        line_of(each) for each in now.rows if each.state != UNSEEN and shown.get(each.gang) != line_of(each)
    ]


def line_of(row: Row) -> str:
    """A row in one line."""
    return f"{row.team:<8} {row.gang:<10} {row.gpus}  {row.state:<11}  {row.message}".rstrip()
