"""The visible state of a cluster with a node pool that grows on request: values in, a table or lines out, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.table import Table

from testbed.autoscaler import POOL_LABEL, Answer
from testbed.operated import has_condition
from testbed.scene import GONE, UNSEEN, Json, name_of, pods_of

WAITING_STATES: Final = ("Queued", "Dispatching")
NO_ANSWER: Final = "no answer yet"


@dataclass(frozen=True, slots=True)
class Row:
    """One gang; `reason` and `message` are why it waits, `pods` its pods in words."""

    gang: str
    state: str
    reason: str = ""
    message: str = ""
    pods: str = ""


@dataclass(frozen=True, slots=True)
class ProvisioningScene:
    """The gangs so far, the last condition of each ProvisioningRequest by name, and the nodes of the pool."""

    rows: tuple[Row, ...]
    requests: Mapping[str, str]
    nodes: int

    @classmethod
    def of(
        cls,
        gangs: Iterable[str],
        appwrappers: Sequence[Json],
        pods: Sequence[Json],
        requests: Sequence[Json],
        nodes: Sequence[Json],
    ) -> Self:
        """The scene from what was read about the gangs with these names."""
        found = {name_of(each): each for each in appwrappers}
        return cls(
            tuple(row_of(each, found.get(each), pods) for each in gangs),
            {name_of(each): answer_of(each.get("status", {})) for each in requests},
            sum(POOL_LABEL in each["metadata"].get("labels", {}) for each in nodes),
        )

    def row(self, gang: str) -> Row:
        """The row of one gang; raises `StopIteration` if it does not exist yet."""
        return next(each for each in self.rows if each.gang == gang)


def row_of(gang: str, found: Json | None, pods: Sequence[Json]) -> Row:
    """The row of one AppWrapper; its pods are those whose names begin with its own."""
    own = [each for each in pods if name_of(each).startswith(f"{gang}-")]
    mine = pods_of(own) if own else ""
    if found is None:
        return Row(gang, GONE, pods=mine)
    status: Mapping[str, Any] = found.get("status", {})
    state = str(status.get("lifecyclePhase", UNSEEN))
    waiting = status.get("waiting", {}) if state in WAITING_STATES else {}
    return Row(gang, state, waiting.get("reason", ""), waiting.get("message", ""), mine)


def answer_of(status: Mapping[str, Any]) -> str:
    """The last condition of a ProvisioningRequest that was set."""
    last = (Answer.REVOKED, Answer.FAILED, Answer.PROVISIONED, Answer.ACCEPTED)
    return next((str(each) for each in last if has_condition(status, each)), NO_ANSWER)


def table_of(scene: ProvisioningScene) -> Table:
    """The table of a scene."""
    table = Table("gang", "state", "pods", "what the dispatcher says", caption_justify="left")
    requests = (f"{name}: {answer}" for name, answer in scene.requests.items())
    table.caption = "   ".join((pool_in_words(scene), *requests))
    for row in scene.rows:
        table.add_row(row.gang, row.state, row.pods, row.message)
    return table


def pool_in_words(scene: ProvisioningScene) -> str:
    """How many nodes the pool has."""
    return f"gpu-pool: {scene.nodes} {'node' if scene.nodes == 1 else 'nodes'}"


def news_of(before: ProvisioningScene | None, now: ProvisioningScene) -> list[str]:
    """One line for each request, for the pool and for each gang that is not as it was."""
    old = set(lines_of(before)) if before else set()
    gone = [each for each in (before.requests if before else ()) if each not in now.requests]
    return [
        *(f"request {each}: {GONE}" for each in gone),
        *(each for each in lines_of(now) if each not in old),
    ]


def lines_of(scene: ProvisioningScene) -> list[str]:
    """A scene in lines."""
    return [
        *(f"request {name}: {answer}" for name, answer in scene.requests.items()),
        pool_in_words(scene),
        *(line_of(each) for each in scene.rows if each.state != UNSEEN),
    ]


def line_of(row: Row) -> str:
    """A row in one line."""
    return f"{row.gang:<6} {row.state:<11}  {row.message or row.pods}".rstrip()
