"""Processor time and memory of each process, read from /proc, in seconds and bytes.

The processor time of foreign processes during a phase shows how far its figure can be trusted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.processes import Supervisor

OTHERS: Final = "others"
CLIENT: Final = "client"
CALM_CORES: Final = 0.15
CALM_SECONDS: Final = 1.0
CALM_ROUNDS: Final = 2
MOST_CALM_ROUNDS: Final = 60

_TICK: Final = os.sysconf("SC_CLK_TCK")
_MACHINE: Final = "machine"


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds within `elapsed` seconds, by name; `others` are foreign processes."""

    elapsed: float
    seconds: Mapping[str, float]

    @property
    def ours(self) -> float:
        """Processor seconds of the benchmark and the processes that it started."""
        return sum(value for name, value in self.seconds.items() if name != OTHERS)

    @property
    def noise(self) -> float:
        """Cores that foreign processes used on average."""
        return self.seconds[OTHERS] / self.elapsed


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds since the start of each process of the benchmark, by name; and of the whole machine."""

    at: float
    seconds: Mapping[str, float]

    @classmethod
    def now(cls, supervisor: Supervisor) -> Usage:
        """The processor time up to now; children count for their parent."""
        ours = {process.pid: process.name for process in supervisor.processes} | {os.getpid(): CLIENT}
        seconds = dict.fromkeys(ours.values(), 0.0)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid, parent, used, used_by_ended = _process(folder)
                name = ours.get(pid) or (ours.get(parent) if parent != os.getpid() else None)
                if name is not None:
                    # Started processes count separately; workers of Postgres come and go with their queries.
                    seconds[name] += used if pid == os.getpid() else used + used_by_ended
        return cls(time.monotonic(), {**seconds, _MACHINE: _machine_seconds()})

    def since(self, earlier: Usage) -> Used:
        """The processor time since then."""
        used = {name: value - earlier.seconds.get(name, 0.0) for name, value in self.seconds.items()}
        machine = used.pop(_MACHINE)
        used[OTHERS] = max(0.0, machine - sum(used.values()))
        return Used(self.at - earlier.at, dict(sorted(used.items())))


async def wait_for_calm(
    supervisor: Supervisor, say: Callable[[str], None], cores: float = CALM_CORES
) -> None:
    """Returns when the started processes are at rest: a new control plane is busy for some seconds.

    At rest all together use less than `cores` cores, which grows with the number of control planes.
    """
    calm = 0
    for _ in range(MOST_CALM_ROUNDS):
        before = Usage.now(supervisor)
        await asyncio.sleep(CALM_SECONDS)
        used = Usage.now(supervisor).since(before)
        calm = calm + 1 if used.ours < cores * used.elapsed else 0
        if calm == CALM_ROUNDS:
            return
    say(f"not calm after {MOST_CALM_ROUNDS} s; going on")


def cpu_seconds(pid: int) -> float:
    """Processor seconds of one process, without its children."""
    return _process(Path(f"/proc/{pid}"))[2]


def peak_memory(pid: int) -> int:
    """The peak resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024


def peak_memory_of_all(pid: int) -> int:
    """The sum of the peak resident memory of a process and of all processes below it, in bytes."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            child, parent, _, _ = _process(folder)
            children.setdefault(parent, []).append(child)
    total, left = 0, [pid]
    while left:
        each = left.pop()
        with suppress(OSError):
            total += peak_memory(each)
        left += children.get(each, ())
    return total


def _process(folder: Path) -> tuple[int, int, float, float]:
    """Pid, parent's pid, the processor seconds of the process, and those of its ended children."""
    # The name, in parentheses, may contain spaces and parentheses; the fields after it do not.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    user, system, user_of_ended, system_of_ended = map(int, fields[11:15])
    return (
        int(folder.name),
        int(fields[1]),
        (user + system) / _TICK,
        (user_of_ended + system_of_ended) / _TICK,
    )


def _machine_seconds() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _first_line("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICK


def _first_line(path: str) -> str:
    return Path(path).read_text().partition("\n")[0]
