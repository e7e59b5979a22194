"""`python -m benchmarks.members`: the cost of member clusters, and the cost of a hanging member for the others."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.floor import measure_floor
from benchmarks.gangs import make_gangs
from benchmarks.members_clusters import MEMBERS, Clusters, fresh_clusters
from benchmarks.members_report import Round, hanging_table, scaling_table
from benchmarks.members_trial import WARM_UP, Outcome, Scenario, Silence, Trial
from benchmarks.runner import measured, progress, write
from benchmarks.throughput import at_least_one
from dispatcher.api.names import HUB_CLUSTER
from testbed.postgres import EmbeddedPostgres

OF_ITS_OWN: Final = 100
"""Three times the number of AppWrappers that are reconciled at once for one cluster."""
SINGLES: Final = 20

ABOUT = """\
Measures the dispatcher with member clusters, each a control plane of its own; all of them run on this machine.

  members     The benchmark submits N AppWrappers, the same as in `python -m benchmarks.throughput`, at once: with no
              member declared, and with 1, 2 and 4 members; each AppWrapper selects one of them, in turn. The time
              runs from the first submit until a watch shows the last Dispatched. The API servers count writes, the
              kernel processor time. In a pause without submissions no API server may be written to.
  hanging     Two members are declared, and the N AppWrappers select the first. The second, which has 100 AppWrappers
              of its own, answers; or stops answering when the load begins; or before its own AppWrappers are
              submitted, so that all of them hang; or before the dispatcher starts. It still takes connections and
              requests. Then come single AppWrappers, while the second still hangs.

Every trial has a dispatcher of its own, just started, on an empty database, and clusters from which everything was
taken away. The trials of a round follow each other, and ratios are within a round. The floor, a client that writes the
same by itself to the hub alone, is measured before and after. In the end each gang must be where it was meant for,
once, or there is no result.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.members
  python -m benchmarks.members --repeat 3 --output out.json
  python -m benchmarks.members --only hanging
"""


@dataclass(frozen=True, slots=True)
class Results:
    """Floors in gangs per second, and the rounds of both parts."""

    floors: list[float]
    rounds: list[Round]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the tables, and returns the exit code."""
    options = parser().parse_args(arguments)
    results = measured(lambda folder: Benchmark(options, folder).run())
    write(
        options.output,
        {
            "benchmark": "members",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "floors": results.floors,
            "rounds": [{name: asdict(each) for name, each in one.items()} for one in results.rounds],
        },
    )
    print(as_text(results, options))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.members",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--count", type=at_least_one, default=300, metavar="N", help="AppWrappers (default: %(default)s)"
    )
    top.add_argument("--repeat", type=at_least_one, default=2, help="rounds (default: %(default)s)")
    top.add_argument("--only", choices=("members", "hanging"), help="one of the two parts; default: both")
    top.add_argument("--connections", type=at_least_one, default=32, help="of the submitter")
    top.add_argument("--rest", type=float, default=20.0, help="seconds of rest (default: %(default)s)")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def scaling(rest: float) -> list[Scenario]:
    """No member, and 1, 2 and 4 members; the last also measures rest."""
    alone = Scenario("hub alone", 0, (HUB_CLUSTER,))
    return [alone, *(_with(number, rest if number == len(MEMBERS) else 0.0) for number in (1, 2, 4))]


def hanging() -> list[Scenario]:
    """Two members; the second answers, or hangs in one of three ways."""
    named = {
        "all answer": Silence.NEVER,
        "one stops": Silence.AT_THE_LOAD,
        "its own hang": Silence.BEFORE_ITS_OWN,
        "hung at the start": Silence.FROM_THE_START,
    }
    return [
        Scenario(name, 2, MEMBERS[:1], silence, of_its_own=OF_ITS_OWN, singles=SINGLES)
        for name, silence in named.items()
    ]


def as_text(results: Results, options: argparse.Namespace) -> str:
    """Both tables, as far as they were measured."""
    floors = " / ".join(f"{each:.1f}" for each in results.floors)
    lines = [f"floor before / after, gangs/s on the hub alone: {floors}"]
    if options.only != "hanging":
        lines += ["", scaling_table(results.rounds, [each.name for each in scaling(0.0)])]
        lines += [_rest_of(results.rounds, options.rest)]
    if options.only != "members":
        lines += ["", hanging_table(results.rounds, [each.name for each in hanging()])]
    return "\n".join(lines)


class Benchmark:
    """A floor, rounds of all scenarios, and a floor, on the same clusters."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._say = progress()
        self._trials = 0

    async def run(self) -> Results:
        """Runs the requested measurements."""
        options = self._options
        room_for = options.count + OF_ITS_OWN + SINGLES + 2 * WARM_UP
        members = MEMBERS if options.only != "hanging" else MEMBERS[:2]
        self._say(f"starting {1 + len(members)} control planes and Postgres")
        async with (
            fresh_clusters(
                self._folder / "clusters", members, room_for, options.connections, self._say
            ) as clusters,
            _postgres(clusters) as postgres,
        ):
            floors = [await self._floor(clusters)]
            rounds = [await self._round(clusters, postgres, number) for number in range(options.repeat)]
            floors.append(await self._floor(clusters))
            return Results(floors, rounds)

    async def _round(self, clusters: Clusters, postgres: EmbeddedPostgres, number: int) -> Round:
        rest = self._options.rest if number == 0 else 0.0
        parts = {"members": scaling(rest), "hanging": hanging()}
        chosen = [
            each for part, found in parts.items() if self._options.only in {None, part} for each in found
        ]
        outcomes: dict[str, Outcome] = {}
        for scenario in chosen:
            url = await asyncio.to_thread(_new_database, postgres.url, f"trial_{number}_{len(outcomes)}")
            trial = Trial(clusters, scenario, url, self._options.connections, self._say)
            outcomes[scenario.name] = await trial.run(self._options.count)
        return outcomes

    async def _floor(self, clusters: Clusters) -> float:
        warm_up, measured = make_gangs("warm-up", WARM_UP), make_gangs("gang", self._options.count)
        connections = self._options.connections
        floor = await measure_floor(clusters.hub, warm_up, measured, connections)
        self._say(f"floor: {floor.per_second:.1f} gangs/s")
        await clusters.wipe(connections)
        await clusters.rest(self._say)
        return floor.per_second


def _with(number: int, rest: float) -> Scenario:
    name = "1 member" if number == 1 else f"{number} members"
    return Scenario(name, number, MEMBERS[:number], rest=rest)


def _rest_of(rounds: Sequence[Round], seconds: float) -> str:
    found = [each.at_rest for one in rounds for each in one.values() if each.at_rest]
    hub = sum(one.writes + one.events for each in found for name, one in each.items() if name == HUB_CLUSTER)
    members = sum(
        one.writes + one.events for each in found for name, one in each.items() if name != HUB_CLUSTER
    )
    return f"writes in {seconds:g} s of rest with {len(MEMBERS)} members: hub {hub}, members {members}"


@asynccontextmanager
async def _postgres(clusters: Clusters) -> AsyncIterator[EmbeddedPostgres]:
    with EmbeddedPostgres(clusters.supervisor, database="dispatcher") as postgres:
        yield postgres


def _new_database(url: str, name: str) -> str:
    """Creates an empty database on the server of that URL; returns its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return url.replace("/dispatcher?", f"/{name}?")


if __name__ == "__main__":
    sys.exit(main())
