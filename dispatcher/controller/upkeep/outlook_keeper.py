"""Keeps the outlook of each waiting gang for its status: position, estimated start, holders and the least repair.

Nothing of it is committed: an outlook is derived from the leader's memory, and a new leader derives it again. Once in
`period`, all positions are counted. Starts and the advice for the first gangs are sought if anything has changed since
the last search, and the searches take at most 1 / `PAUSE_FACTOR` of the time. So both are some minutes old in large
clusters. Both run beside the event loop. A search cannot be cancelled: a process that ends waits for it, seconds in the
largest clusters.

A gang that causes an exception in a search is set aside for `BARRED_FOR`, or until it changes: its status says that its
outlook is not known, and the outlooks of all others are sought without it.

A gang that begins to wait gets its position before the next round: whoever submitted it looks at its status now. The
positions are counted again within `NEW_SECONDS`, and the statuses of at most `MOST_NEW` such gangs are written. These
counts take at most 1 / `PAUSE_FACTOR` of the time, too, and there are none in a busy round.

Outlooks give way to dispatches: `core.status.outlook` passes busy rounds over, and bounds the statuses that a
round changes. A status that shows the same outlook already is not written, and neither is one that differs by a start
that has moved a little (`steady`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.snapshot_keeper import Clusters, SchedulingState, facts_in_steps, states_of
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.scheduling.cycle.isolation import BARRED_FOR
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, SchedulingRules
from dispatcher.core.status.outlook import (
    Found,
    Outlook,
    Positions,
    Round,
    joined,
    positions,
    search_in_steps,
    steady,
    to_write,
)

PAUSE_FACTOR: Final = 20
"""A search is followed by a pause of at least so many times its duration."""
NEW_SECONDS: Final = 0.5
"""Least seconds between two counts of positions for gangs that have begun to wait."""
MOST_NEW: Final = 20
"""Gangs that get their position at one such count; the others get it in the next round."""


class _Searched(Struct, frozen=True):
    """All that the answer of a search depends on, beside the time."""

    first: tuple[str, ...]
    exact: tuple[str, ...]
    queued: tuple[Record, ...]
    aside: frozenset[str]
    holders_version: int
    states: Mapping[str, SchedulingState]


class OutlookKeeper:
    """Renews the outlooks while `run` runs.

    `shown` returns the outlook in the status of an AppWrapper by uid. `on_changed` is called with the uid of an
    AppWrapper after its `outlook_of` changed: its status has to be written. `monotonic` is in seconds.
    """

    def __init__(
        self,
        cache: Cache,
        clusters: Clusters,
        rules: Callable[[], SchedulingRules],
        now: Callable[[], datetime],
        shown: Callable[[str], Outlook],
        on_changed: Callable[[str], None],
        period: timedelta,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._clusters = clusters
        self._rules = rules
        self._now = now
        self._shown = shown
        self._on_changed = on_changed
        self._period = period
        self._monotonic = monotonic
        self._planner = Planner()
        self._outlooks: dict[str, Outlook] = {}
        self._behind: dict[str, Outlook] = {}
        self._is_counted = False
        self._found = Found({})
        self._searched: _Searched | None = None
        self._aside: dict[str, tuple[Record, datetime]] = {}
        """The gangs that are set aside, by uid: as long as their records are the same, and until these times."""
        self._next_search = monotonic()
        self._round = Round(cache.dispatches)
        self._new: dict[str, None] = {}
        self._wake = asyncio.Event()

    def outlook_of(self, uid: str) -> Outlook | None:
        """The outlook of a queued gang for its status, empty if it has no position; None while that is not known."""
        is_known = self._is_counted and uid not in self._behind
        return self._outlooks.get(uid, {} if is_known else None)

    def note(self, change: Change) -> None:
        """Have the position of a gang counted soon if it begins to wait."""
        before, after = change.before, change.after
        waits = after.phase is Phase.QUEUED and after.pending is not None
        if waits and (before is None or before.pending is None):
            self._new[after.uid] = None
            self._wake.set()

    async def run(self) -> None:
        """Renew all outlooks once in each period, until cancelled; meanwhile count the positions of new gangs."""
        while True:
            await self._safely(self.renew)
            next_round = self._monotonic() + self._period.total_seconds()
            while (left := next_round - self._monotonic()) > 0:
                try:
                    async with asyncio.timeout(left):
                        await self._wake.wait()
                except TimeoutError:
                    break
                begun = self._monotonic()
                await self._safely(self.place_new)
                pause = PAUSE_FACTOR * (self._monotonic() - begun)
                await asyncio.sleep(min(max(pause, NEW_SECONDS), next_round - self._monotonic()))

    async def _safely(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: statuses have an old outlook, no more
            log.internal_error("outlook", error)

    async def place_new(self) -> None:
        """Count the positions, and have the statuses of some gangs that have begun to wait written with theirs.

        Does nothing if the round is busy so far: the next one writes them.
        """
        new, self._new = self._new, {}
        self._wake.clear()
        if self._round.next(self._cache.dispatches).is_busy:
            return
        queued, rules = tuple(self._cache.queued()), self._rules()
        found = await self._planner.run(positions(queued, self._now(), has_queues=rules.has_queues))
        for uid in islice((uid for uid in new if uid in found.outlooks), MOST_NEW):
            if uid not in self._outlooks:
                self._outlooks[uid] = found.outlooks[uid]
                self._on_changed(uid)

    async def renew(self) -> None:
        """Count the positions, seek advice if that is due, and have a bounded number of statuses written.

        Does nothing in a busy round that is passed over.
        """
        self._round = self._round.next(self._cache.dispatches)
        if self._round.is_passed_over:
            return
        queued, rules = tuple(self._cache.queued()), self._rules()
        found = await self._planner.run(positions(queued, self._now(), has_queues=rules.has_queues))
        for failure in found.failures:
            log.internal_error("outlook", failure.error, appwrapper=failure.uid)
        await self._search(found, queued, rules)
        await self._update(found)
        self._publish(frozenset(found.first))

    async def _search(self, sought: Positions, queued: tuple[Record, ...], rules: SchedulingRules) -> None:
        if not sought.first:
            self._found, self._searched = Found({}), None
            return
        begun = self._monotonic()
        if begun < self._next_search:
            return
        now, until = self._now(), self._found.until
        states = states_of(self._cache, self._clusters, rules)
        version = self._cache.holders_version
        self._aside = {
            uid: (record, end)
            for uid, (record, end) in self._aside.items()
            if now < end and self._cache.get(uid) is record
        }
        aside = frozenset(self._aside)
        searched = _Searched(sought.first, sought.exact, queued, aside, version, states)
        if searched == self._searched and (until is None or now < until):
            return
        records = list(self._cache.records())
        facts, slices = list[Steps[ClusterFacts]](), Slices(self._monotonic)
        await slices.for_each(
            states.values(), lambda state: facts.append(facts_in_steps(state, self._clusters, now))
        )
        try:
            found = await self._planner.run(_search(facts, records, sought, now, aside))
        except Exception as error:  # noqa: BLE001  # the search's edge: the positions are right without it
            log.internal_error("outlook", error)
            found = Found({})
        for each in found.culprits:
            log.internal_error("outlook", each.failure.error, appwrapper=each.failure.uid)
            self._aside |= {record.uid: (record, now + BARRED_FOR) for record in each.records}
        self._found = replace(found, culprits=())  # an exception has all values of its search
        self._searched = replace(searched, aside=frozenset(self._aside))
        self._next_search = begun + PAUSE_FACTOR * (self._monotonic() - begun)

    async def _update(self, found: Positions) -> None:
        """Compare each new outlook with the one in the gang's status; note the gangs where they differ, as behind.

        A gang that was behind before comes first, so that its status is written first.
        """
        changed: dict[str, Outlook] = {}
        now, slices = self._now(), Slices(self._monotonic)
        for uid, position in found.outlooks.items():
            try:
                shown, outlook = self._compared(uid, position, now)
            except Exception as error:  # noqa: BLE001  # one gang must not end the outlooks of the others
                log.internal_error("outlook", error, appwrapper=uid)
            else:
                if outlook == shown:
                    self._outlooks[uid] = outlook
                else:
                    changed[uid] = outlook
            await slices.give_way()
        self._outlooks = {uid: each for uid, each in self._outlooks.items() if uid in found.outlooks}
        still_behind = [uid for uid in self._behind if uid in changed]
        self._behind = {uid: changed[uid] for uid in [*still_behind, *changed]}
        self._is_counted = True

    def _compared(self, uid: str, position: Outlook, now: datetime) -> tuple[Outlook, Outlook]:
        """The outlook that the status of a gang shows, and the one that it is to show."""
        known, before = self._found.outlooks.get(uid), self._outlooks.get(uid)
        shown = self._shown(uid) if before is None else before
        return shown, position if known is None else steady(shown, joined(position, known), now)

    def _publish(self, first: Collection[str]) -> None:
        """Have a bounded number of the statuses that are behind written."""
        for uid in to_write(self._behind, first, is_busy=self._round.is_busy):
            self._outlooks[uid] = self._behind.pop(uid)
            self._on_changed(uid)


def _search(
    facts_of_clusters: Sequence[Steps[ClusterFacts]],
    records: Sequence[Record],
    sought: Positions,
    now: datetime,
    aside: Collection[str],
) -> Steps[Found]:
    facts = list[ClusterFacts]()
    for each in facts_of_clusters:
        facts += [(yield from each)]
    return (yield from search_in_steps(facts, records, sought, now, aside))
