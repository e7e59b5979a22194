"""`python -m benchmarks.start`: the processor time of commands, and of a dispatcher until it may lead."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.arena import fresh_arena
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, CHECKOUT, NAMESPACE, Json, make_gangs, unfittable
from benchmarks.processor import CALM_CORES, Usage
from benchmarks.runner import measured, progress, write
from benchmarks.subject import DISPATCHER, running_dispatcher, wait_until_ready
from dispatcher.api.names import MEMBERS_PATH, PREFIX, QUEUES_PATH
from dispatcher.cli.files.plan import EXAMPLE
from dispatcher.kube.client import ClusterClient
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Supervisor

SETTLE_SECONDS: Final = 60.0
MOST_SECONDS: Final = 0.5
"""Seconds in which each command ends on a warm machine."""
_OF: Final = ("-n", NAMESPACE)
_HUB: Final = ("--database-url", "")
"""Reads the hub with the kubeconfig alone, although the environment names the database."""
_WAIT: Final = ("wait", "failed", "--for", "done", *_OF)
_LOGS: Final = ("logs", "runs-00000", "--commands", *_OF)
_EXPLAIN: Final = ("explain", "waits", *_OF)
COMMANDS: Final[Sequence[Sequence[str]]] = (
    ("--help",),
    ("queue",),
    ("queue", *_OF, *_HUB),
    ("show", "waits"),
    ("show", "waits", *_OF, *_HUB),
    ("history",),
    ("usage",),
    ("waits",),
    ("sql", "SELECT * FROM history.queue_now"),
    ("clusters",),
    ("clusters", "list"),
    ("clusters", "add", "hub"),
    ("clusters", "cordon", "spare"),
    ("clusters", "drain", "spare"),
    ("clusters", "uncordon", "spare"),
    ("clusters", "remove", "nobody"),
    ("queues",),
    ("queues", "show", "team"),
    ("queues", "hold", "team"),
    ("queues", "drain", "team"),
    ("queues", "resume", "team"),
    ("running", "-A"),
    ("nodes",),
    ("hold", "waits", "--dry-run", *_OF),
    ("release", "held", "--dry-run", *_OF),
    ("priority", "7", "waits", "--dry-run", *_OF),
    ("cancel", "waits", "--dry-run", *_OF),
    ("submit", "{file}", "--dry-run", *_OF),
    _WAIT,
    _LOGS,
    _EXPLAIN,
    ("explain", "waits", *_OF, *_HUB),
    ("would", "-f", "{file}", *_OF),
    ("demand", "-f", "{file}"),
    ("wrap", "{file}"),
    ("web", "--help"),
    ("plan", "-f", "{scenario}"),
    ("simulate", "--help"),
)
"""All commands of `kubectl aw`, on the objects of `_fill`."""
EXIT_CODES: Final[Mapping[Sequence[str], int]] = {("clusters", "remove", "nobody"): 1, _WAIT: 1}
"""Commands that exit with an error here: there is nothing to remove, and `wait` is about a gang that has failed."""
INTERPRETER: Final = ("-c", "pass")
LIBRARIES: Final = ("-c", "import click, msgspec, numpy, psycopg, pydantic.dataclasses, yaml")
"""Imports what `would` imports of others: it tells how fast the machine is, whatever this project does."""
_FLOORS: Final[Mapping[str, Sequence[str]]] = {"python": INTERPRETER, "libraries": LIBRARIES}
PLUGIN: Final = ("-c", "from dispatcher.__main__ import kubectl_plugin; kubectl_plugin()")

ABOUT = """\
Measures what users wait for before anything happens, on a real Postgres and a real control plane.

  commands  Each is run R times, in turns, while a dispatcher leads; medians of its processor time, in user and
            kernel mode, and of its wall time from start to exit. `python` is the interpreter alone, `libraries`
            imports what `would` imports of others: by it, runs of different days can be compared. The exit
            code is 1 if a command takes more than 0.5 s: of wall time, or of processor time if others used
            more than 0.15 cores meanwhile, because they take the processor from the commands.
  run       A dispatcher is started R times; what counts is the median of its processor time until it leads
            and has seen the cluster.
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Medians in seconds; `cpu` is processor time, `wall` what a user waits."""

    name: str
    cpu: float
    wall: float
    is_command: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """All starts; `noise` is the number of cores that others used while the commands ran."""

    starts: Sequence[Start]
    noise: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    result = measured(lambda folder: _measure(options.repeat, folder))
    write(
        options.output,
        {"benchmark": "start", "at": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(result)},
    )
    print(as_table(result))
    for each in too_slow(result):
        print(f"{each.name} takes more than {MOST_SECONDS} s", file=sys.stderr)
    return 1 if too_slow(result) else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.start",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--repeat", type=int, default=7, metavar="R", help="(default: %(default)s)")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(result: Result) -> str:
    """A line for each start, and one for the rest of the machine."""
    lines = [f"{'':<56}{'CPU s':>8}{'wall s':>8}"]
    lines += [f"{each.name:<56}{each.cpu:>8.2f}{each.wall:>8.2f}" for each in result.starts]
    return "\n".join([*lines, f"others used {result.noise:.2f} cores while the commands ran"])


def too_slow(result: Result) -> list[Start]:
    """The commands above the bound: of wall time on a calm machine, else of processor time."""
    is_calm = result.noise <= CALM_CORES
    return [
        each
        for each in result.starts
        if each.is_command and (each.wall if is_calm else each.cpu) > MOST_SECONDS
    ]


async def _measure(repeat: int, folder: Path) -> Result:
    async with fresh_arena(folder / "plane", 2, 1, _say) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            kubeconfig = await arena.dispatcher_kubeconfig()
            asked = _Asked(folder, postgres.url, str(arena.plane.kubeconfig))
            await _fill(arena.client, asked)
            settings = {"DISPATCHER_SNAPSHOT_SECONDS": "1"}
            with running_dispatcher(
                arena.supervisor, kubeconfig, postgres.url, "", settings=settings
            ) as process:
                await wait_until_ready(process)
                await asyncio.to_thread(asked.until_settled)
                _say(f"running {len(COMMANDS)} commands {repeat} times")
                before, children = Usage.now(arena.supervisor), _seconds_of_children()
                starts = await asyncio.to_thread(asked.commands, repeat)
                used = Usage.now(arena.supervisor).since(before)
                commands = _seconds_of_children() - children
            _say(f"starting a dispatcher {repeat} times")
            runs = [await _run(folder / f"run-{each}", kubeconfig, postgres.url) for each in range(repeat)]
    noise = max(0.0, used.noise - commands / used.elapsed)
    return Result([*starts, _medians("dispatcher run, until it leads", runs, is_command=False)], noise)


async def _fill(client: ClusterClient, asked: _Asked) -> None:
    """A gang that is dispatched, one that never fits, one that is held and one that fails; a queue and clusters."""
    (runs,) = make_gangs("runs", 1)
    held, failed = unfittable("held"), unfittable("failed", "many")
    held["spec"]["suspend"] = True
    for each in (runs.appwrapper, unfittable("waits"), held, failed):
        await client.create(APPWRAPPERS, each)
    version = f"{PREFIX}/v1alpha1"
    queue = {"apiVersion": version, "kind": "DispatchQueue", "metadata": {"name": "team"}, "spec": {}}
    await client.create(QUEUES_PATH, queue)
    spare: Json = {"apiVersion": version, "kind": "MemberCluster", "metadata": {"name": "spare"}}
    spare["spec"] = {"kubeconfigSecretRef": {"name": "cluster-spare", "key": "kubeconfig"}}
    await client.create(MEMBERS_PATH, spare)
    asked.files["file"].write_text(json.dumps(unfittable("new")))
    asked.files["scenario"].write_text("\n".join(EXAMPLE))
    await asyncio.to_thread(asked.once, "clusters", "add", "hub")


class _Asked:
    """The commands, as a user runs them on one hub and one database."""

    def __init__(self, folder: Path, url: str, kubeconfig: str) -> None:
        self.files = {name: folder / f"{name}.yaml" for name in ("file", "scenario")}
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "DISPATCHER_DATABASE_URL": url,
            "KUBECONFIG": kubeconfig,
        }

    def until_settled(self) -> None:
        """Return when the leader has dispatched, queued and failed the gangs, and has written a snapshot."""
        deadline = time.monotonic() + SETTLE_SECONDS
        for words, code in (_EXPLAIN, 0), (_LOGS, 0), ((*_WAIT, "--timeout", "1s"), 1):
            while self._run((*PLUGIN, *words)).returncode != code:
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{' '.join(words)} does not end with {code}")

    def commands(self, repeat: int) -> list[Start]:
        """The times of the interpreter and of each command."""
        taken: dict[str, list[tuple[float, float]]] = {}
        for _ in range(repeat):
            for name, floor in _FLOORS.items():
                taken.setdefault(name, []).append(self._timed(floor, 0))
            for each in COMMANDS:
                taken.setdefault(f"kubectl aw {' '.join(each)}", []).append(self.once(*each))
        return [_medians(name, each, is_command=name not in _FLOORS) for name, each in taken.items()]

    def once(self, *words: str) -> tuple[float, float]:
        """The processor time and the wall time of one command."""
        code = EXIT_CODES.get(words, 0)
        return self._timed((*PLUGIN, *(each.format(**self.files) for each in words)), code)

    def _timed(self, arguments: Sequence[str], code: int) -> tuple[float, float]:
        before, began = _seconds_of_children(), time.monotonic()
        done = self._run(arguments)
        wall, cpu = time.monotonic() - began, _seconds_of_children() - before
        if done.returncode != code:
            raise BenchmarkFailed(
                f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
            )
        return cpu, wall

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self._environment,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
        )


async def _run(folder: Path, kubeconfig: Path, url: str) -> tuple[float, float]:
    """The processor time and the wall time of a dispatcher until it leads; each has its own log."""
    began = time.monotonic()
    with Supervisor(folder) as supervisor, running_dispatcher(supervisor, kubeconfig, url, "") as process:
        await wait_until_ready(process)
        wall = time.monotonic() - began
        return Usage.now(supervisor).seconds[DISPATCHER], wall


def _medians(name: str, taken: Sequence[tuple[float, float]], *, is_command: bool) -> Start:
    cpu, wall = zip(*taken, strict=True)
    return Start(name, statistics.median(cpu), statistics.median(wall), is_command)


def _seconds_of_children() -> float:
    """The processor time of all processes that were started here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


_say: Final = progress()


if __name__ == "__main__":
    sys.exit(main())
