"""Who used the processor, and how much memory: read from /proc, in seconds and bytes.

On a machine that others use as well, what *they* took during a phase says how far its figure can be trusted.
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
    """Processor seconds used within `elapsed` seconds, by name; `others` is what we did not start."""

    elapsed: float
    seconds: Mapping[str, float]

    @property
    def ours(self) -> float:
        """What we and all that we started used."""
        return sum(value for name, value in self.seconds.items() if name != OTHERS)

    @property
    def noise(self) -> float:
        """How many cores others used on average."""
        return self.seconds[OTHERS] / self.elapsed


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds since their start, by the name of each of our processes; and of the whole machine."""

    at: float
    seconds: Mapping[str, float]

    @classmethod
    def now(cls, supervisor: Supervisor) -> Usage:
        """What all have used up to now; children count for who started them."""
        ours = {process.pid: process.name for process in supervisor.processes} | {os.getpid(): CLIENT}
        seconds = dict.fromkeys(ours.values(), 0.0)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid, parent, used, used_by_ended = _process(folder)
                name = ours.get(pid) or (ours.get(parent) if parent != os.getpid() else None)
                if name is not None:
                    # What we started is counted by itself; workers of Postgres come and go with their queries.
                    seconds[name] += used if pid == os.getpid() else used + used_by_ended
        return cls(time.monotonic(), {**seconds, _MACHINE: _machine_seconds()})

    def since(self, earlier: Usage) -> Used:
        """What was used since then."""
        used = {name: value - earlier.seconds.get(name, 0.0) for name, value in self.seconds.items()}
        machine = used.pop(_MACHINE)
        used[OTHERS] = max(0.0, machine - sum(used.values()))
        return Used(self.at - earlier.at, dict(sorted(used.items())))


async def wait_for_calm(
    supervisor: Supervisor, say: Callable[[str], None], cores: float = CALM_CORES
) -> None:
    """Return when what we started has come to rest: a fresh control plane is busy with itself for some seconds.

    At rest all together use less than so many cores: the more control planes, the more.
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
    """What one process has used, without its children."""
    return _process(Path(f"/proc/{pid}"))[2]


def peak_memory(pid: int) -> int:
    """The most resident memory a process ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024


def _process(folder: Path) -> tuple[int, int, float, float]:
    """Pid, parent's pid, the seconds it has used, and those that its children had used which have ended."""
    # The name, in parentheses, may hold spaces and parentheses; the fields after it may not.
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
