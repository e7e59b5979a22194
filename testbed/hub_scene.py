"""The visible state of a hub and its members at one moment: values in, a table or lines out, no I/O.

All of it is visible to users and operators: the status of AppWrappers and MemberClusters, and the dispatches in the
history. The objects in each cluster are checked at the end (`hub_ending`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.table import Table

from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, LARGER_THAN_CLUSTER, UNREACHABLE
from testbed.gangs import Gang
from testbed.scene import GONE, GPU, UNSEEN, Json, name_of

RUNNING: Final = "Running"
WAITING: Final = "Queued"
MEASURED: Final = (INSUFFICIENT, LARGER_THAN_CLUSTER)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one cluster does not take a gang."""

    cluster: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.cluster}: {self.message if self.reason in MEASURED else self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One gang; `refusals` say why it waits, `trouble` is its health issue, `route` are its dispatches."""

    gang: str
    gpus: int
    state: str
    cluster: str = ""
    refusals: tuple[Refusal, ...] = ()
    trouble: str = ""
    route: tuple[str, ...] = ()

    @property
    def why(self) -> tuple[str, ...]:
        """Why it waits, cluster by cluster, or its health issue."""
        return (self.trouble,) if self.trouble else tuple(map(str, self.refusals))

    def runs_on(self, cluster: str) -> bool:
        """True if its status says that it runs there and is healthy."""
        return (self.state, self.cluster, self.why) == (RUNNING, cluster, ())

    def waits_for(self, reasons: Mapping[str, str]) -> bool:
        """True if it waits, and these clusters and no others have these reasons."""
        return self.state == WAITING and {each.cluster: each.reason for each in self.refusals} == reasons


@dataclass(frozen=True, slots=True)
class Member:
    """One member cluster; `reason` is why it takes no gangs."""

    name: str
    free: int
    gpus: int
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        return f"{self.name}: {self.free} of {self.gpus} GPUs free"


@dataclass(frozen=True, slots=True)
class HubScene:
    """The gangs so far, and the members that they may use."""

    rows: tuple[Row, ...] = ()
    members: tuple[Member, ...] = ()

    @classmethod
    def of(
        cls,
        gangs: Sequence[Gang],
        appwrappers: Sequence[Json],
        members: Sequence[Json],
        routes: Mapping[str, tuple[str, ...]],
    ) -> Self:
        """The scene from what was read about these gangs."""
        found = {name_of(each): each for each in appwrappers}
        rows = tuple(row_of(each, found.get(each.name), routes.get(each.name, ())) for each in gangs)
        return cls(rows, tuple(map(member_of, members)))

    def row(self, gang: Gang) -> Row:
        """The row of one gang; raises `StopIteration` if it does not exist yet."""
        return next(each for each in self.rows if each.gang == gang.name)

    def is_connected(self, name: str, gpus: int) -> bool:
        """True if the member takes gangs and all of its GPUs are free."""
        return Member(name, gpus, gpus, "") in self.members

    def has_lost(self, name: str) -> bool:
        """True if the member's status says that it does not answer."""
        return any((each.name, each.reason) == (name, UNREACHABLE) for each in self.members)


def row_of(gang: Gang, found: Json | None, route: tuple[str, ...]) -> Row:
    """The row of one AppWrapper."""
    if found is None:
        return Row(gang.name, gang.pods, GONE, route=route)
    status: Json = found.get("status", {})
    return Row(
        gang=gang.name,
        gpus=gang.pods,
        state=status.get("lifecyclePhase", UNSEEN),
        cluster=status.get("cluster", ""),
        refusals=refusals_of(status.get("waiting", {})),
        trouble=status.get("unhealthy", {}).get("reason", ""),
        route=route,
    )


def refusals_of(waiting: Json) -> tuple[Refusal, ...]:
    """Why it waits: the rejection of each cluster, or the general reason before any cluster was evaluated."""
    told: Sequence[Json] = waiting.get("clusters") or ([waiting] if waiting else [])
    return tuple(Refusal(each.get("cluster", ""), each["reason"], each.get("message", "")) for each in told)


def member_of(found: Json) -> Member:
    """The row of one MemberCluster."""
    status: Mapping[str, Any] = found.get("status", {})
    free, gpus = (int(status.get(each, {}).get(GPU, 0)) for each in ("free", "allocatable"))
    return Member(name_of(found), free, gpus, status.get("reason", "") if status else UNSEEN)


def table_of(scene: HubScene) -> Table:
    """The table of a scene."""
    table = Table("gang", "GPUs", "state", "cluster", "dispatched to", "why", caption_justify="left")
    table.caption = "   ".join(map(str, scene.members))
    for row in scene.rows:
        cells = (row.gang, str(row.gpus), row.state, row.cluster, ", ".join(row.route), "\n".join(row.why))
        table.add_row(*cells, style=style_of(row))
    return table


def style_of(row: Row) -> str:
    """The colour of a row: gangs that wait or are unhealthy stand out."""
    if row.trouble:
        return "red"
    return {RUNNING: "green", WAITING: "yellow", GONE: "dim"}.get(row.state, "")


def news_of(before: HubScene | None, now: HubScene) -> list[str]:
    """One line for each change. Amounts and routes alone are no change, nor are gangs that were not evaluated yet."""
    before = before or HubScene()
    reasons = {each.name: each.reason for each in before.members}
    shown = {each.gang: line_of(each) for each in before.rows}
    members = [str(each) for each in now.members if reasons.get(each.name) != each.reason]
    rows = (each for each in now.rows if each.state != UNSEEN)
    return [*members, *(line_of(each) for each in rows if shown.get(each.gang) != line_of(each))]


def line_of(row: Row) -> str:
    """A row without its route, in one line."""
    return f"{row.gang:<9}  {row.state:<11}  {row.cluster:<4}  {'; '.join(row.why)}".rstrip()
