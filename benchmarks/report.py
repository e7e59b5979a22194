"""The figures as JSON and as a table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.floor import Floor
from benchmarks.subject import DISPATCHER
from benchmarks.trial import Trial
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode

NOISE: Final = 0.2
"""Cores of foreign processes above which a figure is not reliable."""


@dataclass(frozen=True, slots=True)
class Round:
    """One dispatcher between two floors; `queues` is how many were declared, and `fit` how gangs were compared."""

    before: Floor
    trial: Trial
    after: Floor
    queues: int = 0
    fit: str = FitMode.NODE

    @property
    def ratio(self) -> float:
        """Dispatches per second relative to the mean floor."""
        return self.trial.load.per_second / statistics.mean((self.before.per_second, self.after.per_second))

    @property
    def noise(self) -> float:
        """The most cores that foreign processes used during a measurement."""
        return max(each.used.noise for each in (self.before, self.trial.load, self.after))


def as_json(rounds: Sequence[Round], conditions: dict[str, Any]) -> dict[str, Any]:
    """All figures and their conditions."""
    return {
        "benchmark": "throughput",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "conditions": conditions,
        "ratio": statistics.median(each.ratio for each in rounds),
        "by_fit": by_fit(rounds),
        "by_queues": {str(queues): value for queues, value in by_queues(rounds).items()},
        "rounds": [{**asdict(each), "ratio": each.ratio, "noise": each.noise} for each in rounds],
    }


def as_table(rounds: Sequence[Round]) -> str:
    """A column for each round, a line for each figure."""
    lines = [_line("", [f"round {number}" for number in range(1, len(rounds) + 1)])]
    lines += [
        _line(name, [row[index][1] for row in map(_rows, rounds)])
        for index, name in enumerate(_names(rounds))
    ]
    lines += ["", f"median ratio to the floor: {statistics.median(each.ratio for each in rounds):.2f}"]
    first, *others = by_queues(rounds).items()
    for queues, per_second in others:
        ratio = per_second / first[1]
        lines.append(f"dispatched/s with {queues} queues relative to {first[0]} queues: {ratio:.2f}")
    first_fit, *other_fits = by_fit(rounds).items()
    for fit, ratio_to_floor in other_fits:
        ratio = ratio_to_floor / first_fit[1]
        lines.append(f"ratio to the floor with fit {fit} relative to {first_fit[0]}: {ratio:.2f}")
    if any(each.noise > NOISE for each in rounds):
        lines.append(f"Others used more than {NOISE} cores meanwhile: compare ratios, not rates, and repeat.")
    return "\n".join(lines)


def by_queues(rounds: Sequence[Round]) -> dict[int, float]:
    """The median dispatches per second by the number of declared queues, in the order of the first rounds."""
    found: dict[int, list[float]] = {}
    for each in rounds:
        found.setdefault(each.queues, []).append(each.trial.load.per_second)
    return {queues: statistics.median(values) for queues, values in found.items()}


def by_fit(rounds: Sequence[Round]) -> dict[str, float]:
    """The median ratio to the floor by the way of fit, in the order of the first rounds."""
    ways = dict.fromkeys(str(each.fit) for each in rounds)
    return {fit: statistics.median(each.ratio for each in rounds if each.fit == fit) for fit in ways}


def _rows(result: Round) -> list[tuple[str, str]]:
    load, rest, latency = result.trial.load, result.trial.rest, result.trial.latency
    return [
        ("declared queues", str(result.queues)),
        ("fit", result.fit),
        ("floor before, gangs/s", f"{result.before.per_second:.1f}"),
        ("dispatched/s, first submit to last Dispatched", f"{load.per_second:.1f}"),
        ("floor after, gangs/s", f"{result.after.per_second:.1f}"),
        ("ratio to the mean floor", f"{result.ratio:.2f}"),
        ("wait under load p50 / p99, s", f"{load.wait_p50:.2f} / {load.wait_p99:.2f}"),
        ("API writes per AppWrapper, without Events", f"{load.writes_per_appwrapper:.2f}"),
        ("Events written in all", str(load.events)),
        ("create to Dispatched when idle p50 / p99, ms", f"{latency.p50:.0f} / {latency.p99:.0f}"),
        (
            "  since the create was answered p50 / p99, ms",
            f"{latency.since_answer_p50:.0f} / {latency.since_answer_p99:.0f}",
        ),
        (f"writes in {rest.seconds:.0f} s of rest", str(rest.writes)),
        (
            "CPU ms per gang: all processes, floor",
            f"{_milliseconds(result.before.used.ours, result.before.count):.1f}",
        ),
        ("CPU ms per gang: all processes, dispatched", f"{_milliseconds(load.used.ours, load.count):.1f}"),
        (
            "CPU ms per gang: the dispatcher alone",
            f"{_milliseconds(load.used.seconds[DISPATCHER], load.count):.1f}",
        ),
        ("dispatcher peak memory, MiB", f"{result.trial.peak_memory / 2**20:.0f}"),
        ("cores used by others, at most", f"{result.noise:.2f}"),
    ]


def _milliseconds(seconds: float, count: int) -> float:
    return seconds * 1000 / count


def _names(rounds: Sequence[Round]) -> list[str]:
    return [name for name, _ in _rows(rounds[0])]


def _line(name: str, values: Sequence[str]) -> str:
    return f"{name:<48}" + "".join(f"{value:>16}" for value in values)


def _machine() -> dict[str, Any]:
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "processors": os.cpu_count(),
        "model": models[0].partition(":")[2].strip() if models else platform.machine(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
