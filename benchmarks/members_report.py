"""The figures of many trials side by side, each relative to a trial of the same round."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks import figures
from benchmarks.members_clusters import Written
from benchmarks.members_trial import Outcome
from benchmarks.processor import CLIENT, OTHERS
from benchmarks.subject import DISPATCHER
from dispatcher.api.names import HUB_CLUSTER

STATUSES: Final = "PATCH memberclusters/status"
PARTS: Final = (
    DISPATCHER,
    "hub: API server",
    "hub: etcd",
    "members: API servers",
    "members: etcds",
    "postgres",
    CLIENT,
    "the rest of the control planes",
)

Round = Mapping[str, Outcome]
"""The outcome of each scenario, by its name."""


def scaling_table(rounds: Sequence[Round], names: Sequence[str]) -> str:
    """A column for each number of members; the first is the reference."""
    cells = {name: [each[name] for each in rounds] for name in names}
    rows = [
        ("dispatched, gangs/s", lambda name: _spread([each.per_second for each in cells[name]], "{:.1f}")),
        ("ratio to the hub alone", lambda name: _spread(ratios(rounds, name, names[0]), "{:.2f}")),
        (
            "API writes per AppWrapper: hub / members",
            lambda name: " / ".join(f"{each:.2f}" for each in _writes_of(cells[name])),
        ),
        (
            "statuses of members written meanwhile",
            lambda name: str(sum(_on_hub(each).by_resource.get(STATUSES, 0) for each in cells[name])),
        ),
        ("CPU per AppWrapper, ms: all", lambda name: f"{sum(_milliseconds(cells[name]).values()):.2f}"),
        *[(f"  {part}", lambda name, part=part: f"{_milliseconds(cells[name])[part]:.2f}") for part in PARTS],
        (f"cores busy, of {os.cpu_count()}", lambda name: f"{_median(cells[name], cores_busy):.2f}"),
        ("  of the one the dispatcher can use", lambda name: f"{_median(cells[name], dispatcher_cores):.2f}"),
        ("  used by others, at most", lambda name: f"{max(each.used.noise for each in cells[name]):.2f}"),
    ]
    return _table(names, rows)


def hanging_table(rounds: Sequence[Round], names: Sequence[str]) -> str:
    """A column for each way in which a member hangs; the first is the reference."""
    cells = {name: [each[name] for each in rounds] for name in names}
    rows = [
        (
            "dispatched elsewhere, gangs/s",
            lambda name: _spread([each.per_second for each in cells[name]], "{:.1f}"),
        ),
        ("ratio to where all answer", lambda name: _spread(ratios(rounds, name, names[0]), "{:.2f}")),
        (
            "wait under load p99, s",
            lambda name: _spread([each.wait_p99 for each in cells[name]], "{:.1f}"),
        ),
        (
            "longest pause between two Dispatched, s",
            lambda name: f"{max(each.pause for each in cells[name]):.2f}",
        ),
        (
            "create to Dispatched when idle p50 / p99, ms",
            lambda name: " / ".join(f"{_latency(cells[name], percent):.0f}" for percent in (50, 99)),
        ),
        (
            "from the start to the first Dispatched, s",
            lambda name: _spread([each.first for each in cells[name]], "{:.1f}"),
        ),
        ("cores used by others, at most", lambda name: f"{max(each.used.noise for each in cells[name]):.2f}"),
    ]
    return _table(names, rows)


def ratios(rounds: Sequence[Round], name: str, base: str) -> list[float]:
    """Gangs per second relative to another scenario, round by round."""
    return [each[name].per_second / each[base].per_second for each in rounds]


def by_part(seconds: Mapping[str, float]) -> dict[str, float]:
    """Processor seconds of the benchmark's processes by part; `others`, which are foreign, are left out."""
    found = dict.fromkeys(PARTS, 0.0)
    for process, used in seconds.items():
        if process != OTHERS:
            found[_part_of(process)] += used
    return found


def writes_per_appwrapper(written: Mapping[str, Written], count: int) -> tuple[float, float]:
    """Writes to the hub and to all members, for each AppWrapper; without Events and the members' own statuses."""
    hub = written[HUB_CLUSTER]
    members = sum(each.writes for name, each in written.items() if name != HUB_CLUSTER)
    return (hub.writes - hub.by_resource.get(STATUSES, 0)) / count, members / count


def cores_busy(outcome: Outcome) -> float:
    """Cores that the benchmark and all others used on average."""
    return sum(outcome.used.seconds.values()) / outcome.used.elapsed


def dispatcher_cores(outcome: Outcome) -> float:
    """The part of a core that the dispatcher used on average: it has one thread."""
    return outcome.used.seconds[DISPATCHER] / outcome.used.elapsed


def _part_of(process: str) -> str:
    if process in PARTS:
        return process
    cluster, _, component = process.partition("-")
    whose = "hub: {}" if cluster == HUB_CLUSTER else "members: {}s"
    named = {"kube-apiserver": "API server", "etcd": "etcd"}.get(component)
    return whose.format(named) if named else PARTS[-1]


def _on_hub(outcome: Outcome) -> Written:
    return outcome.written[HUB_CLUSTER]


def _writes_of(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    found = [writes_per_appwrapper(each.written, each.count) for each in outcomes]
    return statistics.median(hub for hub, _ in found), statistics.median(member for _, member in found)


def _milliseconds(outcomes: Sequence[Outcome]) -> dict[str, float]:
    found = [(by_part(each.used.seconds), each.count) for each in outcomes]
    return {part: statistics.median(used[part] * 1000 / count for used, count in found) for part in PARTS}


def _latency(outcomes: Sequence[Outcome], percent: float) -> float:
    return figures.percentile([one for each in outcomes for one in each.latencies], percent)


def _median(outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]) -> float:
    return statistics.median(map(figure, outcomes))


def _spread(values: Sequence[float], form: str) -> str:
    """The median, and the range if there are several values."""
    said = form.format(statistics.median(values))
    around = f" ({form} to {form})".format(min(values), max(values))
    return said + around if len(values) > 1 else said


def _table(names: Sequence[str], rows: Sequence[tuple[str, Callable[[str], str]]]) -> str:
    lines = [("", list(names)), *((title, [cell(name) for name in names]) for title, cell in rows)]
    return "\n".join(f"{title:<46}" + "".join(f"{value:>26}" for value in values) for title, values in lines)
