"""How simulated runs are shown: a document for programs, and tables for people with a column for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from dispatcher.cli.screens.tables import folded, table
from dispatcher.core.simulation.measures import SHARES, Measured, Part
from dispatcher.core.simulation.traces.spec import GPU

NONE: Final = "-"


class Run(NamedTuple):
    """One run: its name, the resource that was measured, and what it came to."""

    name: str
    resource: str
    measured: Measured


class SimulationReport(Struct, frozen=True):
    """The runs in the order of their files."""

    runs: Sequence[Run]

    def as_document(self) -> dict[str, Any]:
        """The runs as JSON; docs/simulation.md has the fields."""
        return {"runs": [each.measured.as_document(each.name) for each in self.runs]}

    def as_text(self, width: int | None = None) -> str:
        """The runs for people: all gangs, then the waits by queue and by size where there are several."""
        blocks = [table(("MEASURE", *self._names), list(self._rows()), width)]
        blocks += self._by("QUEUE", lambda each: each.by_queue, width)
        blocks += self._by("SIZE", lambda each: each.by_size, width)
        return folded("\n\n".join(blocks), width)

    @property
    def _names(self) -> list[str]:
        return [each.name for each in self.runs]

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for title, of in _MEASURES.items():
            yield title, *(of(each.measured) for each in self.runs)
        device = {_short(each.resource) for each in self.runs}
        title = f"{device.pop() if len(device) == 1 else 'device'} hours lost"
        yield title, *(f"{each.measured.gpu_hours_lost:.1f}" for each in self.runs)
        for share in SHARES:
            shares = (_percent(each.measured.allocated[share]) for each in self.runs)
            yield f"allocated at {share} % requested", *shares

    def _by(
        self, title: str, parts_of: Callable[[Measured], Mapping[str, Part]], width: int | None
    ) -> Iterator[str]:
        """A table of the mean waits and the 99th percentiles of parts of the gangs; nothing for a single part."""
        names = list(dict.fromkeys(name for each in self.runs for name in parts_of(each.measured)))
        if len(names) < 2:
            return
        headings = [title]
        for each in self.runs:
            prefix = f"{each.name} " if len(self.runs) > 1 else ""
            headings += [f"{prefix}GANGS", f"{prefix}LEFT", f"{prefix}MEAN", f"{prefix}P99"]
        rows = [
            [name, *(cell for each in self.runs for cell in _cells(parts_of(each.measured).get(name)))]
            for name in sorted(names, key=_in_order)
        ]
        yield table(headings, rows, width)


def _cells(part: Part | None) -> tuple[str, ...]:
    if part is None:
        return NONE, NONE, NONE, NONE
    return str(part.gangs), str(part.left), seconds(part.wait.mean), seconds(part.wait.p99)


def _in_order(name: str) -> tuple[int, str]:
    """Sizes by their number, queues by their name."""
    first = name.partition("-")[0]
    return (int(first), "") if first.isdecimal() else (0, name)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share * 100:.2f} %"


def seconds(span: float | None) -> str:
    """A time for people, in whole seconds."""
    return NONE if span is None else f"{span:.0f} s"


def _short(resource: str) -> str:
    return "GPU" if resource == GPU else resource


_MEASURES: Final[Mapping[str, Callable[[Measured], str]]] = {
    "gangs": lambda each: str(each.all.gangs),
    "left": lambda each: str(each.all.left),
    "mean wait": lambda each: seconds(each.all.wait.mean),
    "p50 wait": lambda each: seconds(each.all.wait.p50),
    "p90 wait": lambda each: seconds(each.all.wait.p90),
    "p99 wait": lambda each: seconds(each.all.wait.p99),
    "utilisation": lambda each: _percent(each.utilisation),
    "makespan": lambda each: seconds(each.makespan),
    "preemptions": lambda each: str(each.preemptions),
}
