"""How `kubectl aw running` shows gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.cli.held_gangs import BoundPod, HeldGang, Owners, gpus_of
from dispatcher.cli.output import UNKNOWN, text
from dispatcher.cli.tables import Heading, relative, table
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.resources import Resources, gpus
from dispatcher.text import name_of

HEADINGS: Final = (
    Heading("NAME", is_namespaced=True),
    Heading("USER", 4),
    Heading("QUEUE", 3),
    Heading("CLUSTER"),
    Heading("NODES", 2),
    Heading("GPU"),
    Heading("BOUND"),
    Heading("SINCE"),
    Heading("ENDS BY", 1),
)
WIDE_HEADINGS: Final = (
    *HEADINGS,
    *map(Heading, ("STATE", "PODS", "DEMAND", "HELD", "GROWTH WAITS", "NODE LIST")),
)


class _Row(Struct, frozen=True):
    gang: HeldGang
    pods: Sequence[BoundPod] | None
    """The live pods; None if they cannot be seen."""

    @property
    def nodes(self) -> list[str]:
        return sorted({each.node for each in self.pods or () if each.node})


class RunningReport(Struct, frozen=True):
    """Gangs with their pods, at a moment."""

    rows: Sequence[_Row]
    now: datetime

    @classmethod
    def of(
        cls, gangs: Sequence[HeldGang], pods: Mapping[str, Sequence[BoundPod]], now: datetime
    ) -> RunningReport:
        """The report; a cluster without an entry in `pods` cannot be seen."""
        owners = Owners(gangs)
        of_gang: dict[tuple[str, str], list[BoundPod]] = {}
        for cluster, found in pods.items():
            for pod in found:
                owner = owners.of(pod)
                if owner is not None and owner.cluster == cluster:
                    of_gang.setdefault((cluster, owner.key), []).append(pod)
        rows = [
            _Row(each, of_gang.get((each.cluster, each.key), []) if each.cluster in pods else None)
            for each in gangs
        ]
        return cls(rows, now)

    def as_table(self, width: int | None) -> str:
        """A line a gang, for a terminal of `width` characters."""
        return table(HEADINGS, [self._cells(each) for each in self.rows], width)

    def as_wide_table(self) -> str:
        """The same with more columns, and times instead of spans."""
        return table(WIDE_HEADINGS, [(*self._cells(each, is_wide=True), *_more(each)) for each in self.rows])

    def as_value(self) -> list[dict[str, Any]]:
        """The gangs for programs; amounts in base units, and null where something is unknown."""
        return [_value(each) for each in self.rows]

    def _cells(self, row: _Row, *, is_wide: bool = False) -> tuple[str, ...]:
        gang = row.gang
        return (
            gang.key,
            gang.user,
            gang.queue,
            gang.cluster,
            UNKNOWN if row.pods is None else str(len(row.nodes)),
            UNKNOWN if gang.held is None else str(gpus(gang.held)),
            UNKNOWN if row.pods is None else str(gpus_of(row.pods)),
            *((text(gang.since), text(gang.ends_by)) if is_wide else self._spans(gang)),
        )

    def _spans(self, gang: HeldGang) -> tuple[str, str]:
        since, ends_by = (relative(each, self.now) if each else "" for each in (gang.since, gang.ends_by))
        return since, ends_by


def _more(row: _Row) -> tuple[str, ...]:
    pods = UNKNOWN if row.pods is None else f"{sum(1 for each in row.pods if each.node)}/{len(row.pods)}"
    return (
        row.gang.state,
        pods,
        amounts(row.gang.demand),
        amounts(row.gang.held),
        _growth(row.gang),
        ",".join(row.nodes),
    )


def _growth(gang: HeldGang) -> str:
    """How many pods of a gang wait for a grant, and why; empty if none waits."""
    growth = gang.growth or {}
    return f"{text(growth.get('pods'))}: {name_of(growth.get('reason'))}" if growth else ""


def amounts(resources: Resources | None) -> str:
    """Amounts in words, such as `cpu 8, nvidia.com/gpu 1`."""
    if resources is None:
        return UNKNOWN
    return ", ".join(f"{name} {in_words(name, resources[name])}" for name in sorted(resources))


def _value(row: _Row) -> dict[str, Any]:
    gang, pods = row.gang, row.pods
    bound = None if pods is None else [each for each in pods if each.node]
    return {
        "namespace": gang.namespace,
        "name": gang.name,
        "uid": gang.uid,
        "state": gang.state,
        "user": gang.user,
        "queue": gang.queue,
        "cluster": gang.cluster,
        "nodes": None if pods is None else row.nodes,
        "gpus": {"held": None if gang.held is None else gpus(gang.held), "bound": pods and gpus_of(pods)},
        "pods": None if pods is None or bound is None else {"live": len(pods), "bound": len(bound)},
        "demand": None if gang.demand is None else dict(gang.demand),
        "held": None if gang.held is None else dict(gang.held),
        "growth": gang.growth,
        "since": gang.since.isoformat() if gang.since else None,
        "endsBy": gang.ends_by.isoformat() if gang.ends_by else None,
    }
