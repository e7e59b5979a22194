"""`python -m benchmarks.canary`: the latency of one gang while many unfittable gangs are deleted at once."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.arena import Arena, fresh_arena, spread
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, Gang, make_gangs, unfittable
from benchmarks.processor import Usage, wait_for_calm
from benchmarks.runner import measured, progress, write
from benchmarks.subject import DISPATCHER, Watcher, running_dispatcher, wait_until_ready
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres

CONNECTIONS: Final = 32
SETTLE_SECONDS: Final = 300.0

ABOUT = """\
Measures, on a real control plane of its own, what MCAD needed 23 minutes for.

  The benchmark submits N AppWrappers that fit no cluster. Once each has its pending reason, it deletes all of
  them as fast as the API server answers, and then creates a canary that fits. The result is the time until a
  watch shows the canary Dispatched, beside the same time before, with all N queued. In the end every row but
  the canaries' must be Deleted, and only the canaries may hold capacity, or there is no result.
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """Seconds; `noise` is the number of cores that other processes used from the first deletion to the end."""

    count: int
    blocked: float
    """From the first submission until the database has a pending reason for each."""
    before: float
    """From the create of a canary to Dispatched while all are queued."""
    deleting: float
    """From the first request to delete to the last answer."""
    after: float
    """From the create of a canary, after the last of these answers, to Dispatched."""
    forgotten: float
    """From the last of these answers until no row is queued."""
    dispatcher_cpu: float
    noise: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    rounds = measured(lambda folder: _rounds(options.count, options.repeat, folder))
    write(
        options.output,
        {
            "benchmark": "canary",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": [asdict(each) for each in rounds],
        },
    )
    print(as_table(rounds))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.canary",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--count", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    top.add_argument("--repeat", type=int, default=1, help="rounds (default: %(default)s)")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(rounds: Sequence[Canary]) -> str:
    """A column for each round, a line for each figure."""
    lines = [
        ("AppWrappers that fit nowhere", [str(each.count) for each in rounds]),
        ("submitted and blocked, s", [f"{each.blocked:.1f}" for each in rounds]),
        ("canary with all of them queued, s", [f"{each.before:.2f}" for each in rounds]),
        ("deleting all of them, s", [f"{each.deleting:.1f}" for each in rounds]),
        ("canary after the last deletion, s", [f"{each.after:.2f}" for each in rounds]),
        ("all forgotten after the last deletion, s", [f"{each.forgotten:.2f}" for each in rounds]),
        ("dispatcher's CPU from the first deletion, s", [f"{each.dispatcher_cpu:.1f}" for each in rounds]),
        ("cores used by others meanwhile", [f"{each.noise:.2f}" for each in rounds]),
    ]
    return "\n".join(f"{name:<46}" + "".join(f"{value:>10}" for value in values) for name, values in lines)


async def _rounds(count: int, repeat: int, folder: Path) -> list[Canary]:
    return [await _round(count, folder / f"round-{number}") for number in range(repeat)]


async def _round(count: int, folder: Path) -> Canary:
    canaries = make_gangs("canary", 2)
    async with fresh_arena(folder, len(canaries), CONNECTIONS, _say) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            kubeconfig = await arena.dispatcher_kubeconfig()
            with running_dispatcher(arena.supervisor, kubeconfig, postgres.url, "") as process:
                await wait_until_ready(process)
                watcher = Watcher(arena.client)
                version = (await arena.client.get(APPWRAPPERS))["metadata"]["resourceVersion"]
                watching = asyncio.create_task(watcher.run(version))
                try:
                    found = await _MassDeletion(arena, postgres.url, watcher).run(count, canaries)
                finally:
                    watching.cancel()
                process.check()
                return found


class _MassDeletion:
    def __init__(self, arena: Arena, database_url: str, watcher: Watcher) -> None:
        self._arena = arena
        self._database_url = database_url
        self._watcher = watcher

    async def run(self, count: int, canaries: Sequence[Gang]) -> Canary:
        """Submits and deletes, and measures a canary."""
        _say(f"submitting {count} AppWrappers that fit nowhere")
        began = time.monotonic()
        await spread(range(count), CONNECTIONS, self._submit)
        await self._until("SELECT count(*) FROM appwrapper WHERE pending_reason IS NOT NULL", count)
        blocked = time.monotonic() - began
        await wait_for_calm(self._arena.supervisor, _say)
        before = await self._canary(canaries[0])
        doomed = await self._doomed()
        _say(f"deleting {len(doomed)} AppWrappers")
        usage, began = Usage.now(self._arena.supervisor), time.monotonic()
        await spread(doomed, CONNECTIONS, self._delete)
        deleted = time.monotonic()
        after, _ = await asyncio.gather(self._canary(canaries[1]), self._until(_LEFT, 0))
        forgotten = time.monotonic() - deleted
        used = Usage.now(self._arena.supervisor).since(usage)
        await self._until(_HELD, len(canaries))
        await self._until("SELECT count(*) FROM appwrapper WHERE phase = 'Deleted'", count)
        return Canary(
            count,
            blocked,
            before,
            deleted - began,
            after,
            forgotten,
            used.seconds[DISPATCHER],
            used.noise,
        )

    async def _submit(self, number: int) -> None:
        await self._arena.client.create(APPWRAPPERS, unfittable(f"doomed-{number:05d}"))

    async def _canary(self, gang: Gang) -> float:
        sent = time.monotonic()
        await self._arena.client.create(APPWRAPPERS, gang.appwrapper)
        return await self._watcher.wait_for_name(gang.name) - sent

    async def _doomed(self) -> list[tuple[str, str]]:
        found = [each["metadata"] for each in await self._arena.list(APPWRAPPERS)]
        return [(each["name"], each["uid"]) for each in found if each["name"].startswith("doomed")]

    async def _delete(self, name_and_uid: tuple[str, str]) -> None:
        name, uid = name_and_uid
        await self._arena.client.delete(f"{APPWRAPPERS}/{name}", uid)

    async def _until(self, query: str, wanted: int) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        async with await psycopg.AsyncConnection.connect(self._database_url, autocommit=True) as connection:
            while True:
                row = await (await connection.execute(query.encode())).fetchone()
                if row is not None and row[0] == wanted:
                    return
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{query}: {row} instead of {wanted} after {SETTLE_SECONDS:g} s")
                await asyncio.sleep(0.02)


_LEFT: Final = "SELECT count(*) FROM appwrapper WHERE phase = 'Queued'"
_HELD: Final = "SELECT count(*) FROM attempt WHERE ended_at IS NULL"


_say: Final = progress()


if __name__ == "__main__":
    sys.exit(main())
