"""Tables of the cost of analytics for dispatch and of the speed of queries on history, with their arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.answers import Answered
from benchmarks.beside import Company, Phase

LIMIT_SECONDS: Final = 30
"""The statement timeout of the role dispatcher_reader."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Dispatches per second with company, as parts of the mean of the trials alone before and after."""

    analysts: float
    strangers: float

    @property
    def of_the_database(self) -> float:
        """The part of the rate with equally busy strangers; 1 if queries cost nothing but processor time."""
        return self.analysts / self.strangers


def costs(phases: Sequence[Phase]) -> list[Cost]:
    """One for each round of four trials: alone, analysts, strangers, alone."""
    found = []
    for before, observed, crowded, after in _rounds(phases):
        alone = statistics.mean((before.per_second, after.per_second))
        found.append(Cost(observed.per_second / alone, crowded.per_second / alone))
    return found


def spread_alone(phases: Sequence[Phase]) -> float:
    """The range of the trials alone as a part of their mean; smaller differences are noise."""
    alone = [each.per_second for each in phases if each.company is Company.NOBODY]
    return (max(alone) - min(alone)) / statistics.mean(alone)


def dispatch_table(phases: Sequence[Phase], floors: Sequence[float]) -> str:
    """A column for each trial and a line for each figure, followed by the conclusions."""
    rows = [_column(each) for each in phases]
    lines = [f"{name:<44}" + "".join(f"{row[name]:>11}" for row in rows) for name in rows[0]]
    return "\n".join([*lines, "", *_conclusions(phases, floors)])


def answers_table(answered: Sequence[Answered]) -> str:
    """A line for each question."""
    lines = [f"{'':<42}{'seconds':>9}{'rows':>10}  tables read"]
    return "\n".join([*lines, *map(_line, answered)])


def _rounds(phases: Sequence[Phase]) -> Iterator[tuple[Phase, Phase, Phase, Phase]]:
    for start in range(0, len(phases) - 1, 3):
        before, observed, crowded, after = phases[start : start + 4]
        yield before, observed, crowded, after


def _column(phase: Phase) -> dict[str, str]:
    load, latency = phase.trial.load, phase.trial.latency
    longest = max((seconds for each in phase.asked for seconds in each.seconds), default=0.0)
    answers = sum(len(each.seconds) for each in phase.asked)
    return {
        "beside": phase.company,
        "dispatched/s, all at once": f"{load.per_second:.1f}",
        "wait under load p50 / p99, s": f"{load.wait_p50:.1f} / {load.wait_p99:.1f}",
        "one at a time p50 / p99, ms": f"{latency.p50:.0f} / {latency.p99:.0f}",
        "cores used by the company": f"{phase.cores:.2f}",
        "dispatcher's CPU ms per AppWrapper": f"{load.used.seconds['dispatcher'] * 1000 / load.count:.1f}",
        "answers, the longest in s": f"{answers}, {longest:.1f}" if answers or phase.asked else "",
        "dead rows in the tables of the queue": str(phase.tables.dead_rows),
        "size of these tables, MiB": f"{phase.tables.bytes / 2**20:.1f}",
        "cores used by others": f"{load.used.noise:.2f}",
    }


def _conclusions(phases: Sequence[Phase], floors: Sequence[float]) -> list[str]:
    found = costs(phases)
    alone = statistics.mean(each.per_second for each in phases if each.company is Company.NOBODY)
    return [
        f"floor before / after, gangs/s: {' / '.join(f'{each:.1f}' for each in floors)}; "
        f"alone, by the mean floor: {alone / statistics.mean(floors):.2f}",
        f"beside analysts, by alone: {_each(cost.analysts for cost in found)}",
        f"beside strangers as busy, by alone: {_each(cost.strangers for cost in found)}",
        f"what the database's work costs (the one by the other): {_each(c.of_the_database for c in found)}",
        f"trials alone lie within {spread_alone(phases):.0%} of their mean: less is noise",
    ]


def _each(values: Iterable[float]) -> str:
    shown = list(values)
    return f"{statistics.median(shown):.2f} ({', '.join(f'{each:.2f}' for each in shown)})"


def _line(answered: Answered) -> str:
    if answered.failure:
        return f"{answered.name:<42}  {answered.failure}"
    late = "!" if answered.seconds > LIMIT_SECONDS else " "
    access = "; ".join(f"{table}: {how}" for table, how in answered.access.items())
    return f"{answered.name:<42}{answered.seconds:>8.2f}{late}{answered.rows:>10}  {access}"
