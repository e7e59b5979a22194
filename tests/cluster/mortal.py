"""A dispatcher that is killed at a point of its wires, and the next one that takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TypeVar

from testbed.processes import Process
from testbed.proxy import Fault, Rules
from testbed.proxy_postgres import Commit
from tests.cluster.wires import (
    Wires,
    changes_records,
    expire_lease,
    is_write,
    keeps_house,
    writes_anything,
)

T = TypeVar("T")
CALM = {"lease_seconds": "15", "renew_seconds": "3"}
"""Nobody waits for a lease to run out here, and none should be lost to a slow machine."""


class When(StrEnum):
    """Before a point takes effect, or after it has and its answer is lost."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Strike:
    """A killing that may come; `done` once the next dispatcher was started."""

    begun: asyncio.Event
    done: asyncio.Event


class Mortal:
    """One dispatcher at a time on the same wires, each with the same settings."""

    def __init__(self, wires: Wires, **settings: str) -> None:
        self.wires = wires
        self._settings = settings
        self._process: Process | None = None

    async def start(self) -> None:
        """Run the first."""
        self._process = await self.wires.start_dispatcher(**CALM, **self._settings)

    async def replace(self) -> None:
        """Kill the one that runs and start another."""
        assert self._process is not None
        await self.wires.world.kill_dispatcher(self._process)
        # The server learns of its end by its connections; one of them is still held at the proxy.
        self.wires.postgres.cut()
        await expire_lease(self.wires.world.database_url)
        await self.start()

    def at_change(self, nth: int, when: When) -> Strike:
        """Have it killed at the nth commit from now that changes an AppWrapper's record."""
        return self.at(self.wires.postgres.rules, changes_records, when, nth)

    def at_takeover(self, nth: int, when: When) -> Strike:
        """Have it killed at the nth other commit that writes: those with which a term begins."""
        return self.at(self.wires.postgres.rules, _takes_over, when, nth)

    def at_write(self, nth: int, when: When) -> Strike:
        """Have it killed at the nth write to the API server from now."""
        return self.at(self.wires.api.rules, is_write, when, nth)

    def at(self, rules: Rules[T], matches: Callable[[T], bool], when: When, nth: int = 1) -> Strike:
        """Have it killed at the nth exchange from now that matches, on the wire of those rules."""
        done = asyncio.Event()

        async def act() -> None:
            await self.replace()
            done.set()

        before, after = Fault(before=act, forward=False), Fault(after=act, pass_on=False)
        return Strike(rules.on(matches, before if when is When.BEFORE else after, nth=nth).struck, done)

    def takeover_commits(self) -> int:
        """How many such commits there were."""
        return sum(map(_takes_over, self.wires.postgres.rules.seen))

    def spare(self) -> None:
        """Plan no more killings."""
        self.wires.spare()


async def sweep(
    arm: Callable[[int], Awaitable[Strike]],
    step: Callable[[], Awaitable[None]],
    first: int = 1,
    every: int = 1,
) -> int:
    """Strike at the first point of a step, in the next step so many points later, until there is none; how many."""
    for struck in count():
        strike = await arm(first + struck * every)
        await step()
        if not strike.begun.is_set():
            return struck
        await strike.done.wait()
    raise AssertionError


def _takes_over(commit: Commit) -> bool:
    return writes_anything(commit) and not (changes_records(commit) or keeps_house(commit))
