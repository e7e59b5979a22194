"""What a database that was restored has missed: looked for in the clusters, and taken over before anybody decides.

Asked are the members for their anchors, and the hub for the objects of every kind that is wrapped. An attempt that is
later than those the database knows of goes on where it was found; what the status says to have ended has ended; what
ran and is nowhere any more is queued again. All else is seen by looking at each AppWrapper as ever.

All this goes through every AppWrapper in slices. Each is decided on by its record of that moment, and a change of a
record that has moved since is not committed. Who does not answer is asked again. Until then an AppWrapper that may
have something there takes no turn in the queue and, unless its own attempt was found, is left in_doubt altogether.
Every look may be repeated, also by another leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, TypeVar

from dispatcher import errors, log
from dispatcher.api.conditions import State
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.anchor_search import FoundAttempt
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.intake.intake import StatusEnd, end_in_status
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.takeover import for_each
from dispatcher.core.lifecycle import restore_steps
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.incremental import in_parts
from dispatcher.core.model.record import ACTIVE, Change, Phase, Record
from dispatcher.core.model.requirements import Kind

SEARCH_AGAIN_SECONDS: Final = 5.0
AT_ONCE: Final = 8
"""Lists asked for at the same time."""

T = TypeVar("T")

_log = log.get("restore_recovery")


@dataclass
class Search:
    """The latest attempt seen of each AppWrapper, and who did not answer: a member, or the hub of a kind.

    Where the members are not certain there may be others that were not asked.
    """

    latest: dict[str, FoundAttempt] = field(default_factory=dict)
    unanswered_kinds: set[Kind] = field(default_factory=set)
    are_members_missing: bool = False
    are_members_certain: bool = True

    @property
    def is_complete(self) -> bool:
        """True if everybody has answered."""
        return not (self.unanswered_kinds or self.are_members_missing)

    def note(self, appwrapper: str, sighting: FoundAttempt) -> None:
        """It was seen there."""
        self.latest[appwrapper] = max(sighting, self.latest.get(appwrapper, sighting))


class Members(Protocol):
    """What restore recovery needs to know of the members."""

    def is_complete(self) -> bool:
        """True if every member that is known can be asked."""

    def is_certain(self) -> bool:
        """True if there can be no other member."""


class RestoreRecovery:
    """Searches until every cluster has answered, then calls `settle`; calls `wake` with each AppWrapper to reconcile.

    Whether the members are certain matters only while there is an AppWrapper that a member may have something of.
    """

    def __init__(
        self,
        attempts: Attempts,
        cache: Cache,
        committer: Committer,
        members: Members,
        settle: Callable[[], Awaitable[None]],
        wake: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._informer = attempts.informer
        self._hub_id = attempts.hub_id
        self._cache = cache
        self._committer = committer
        self._clusters = attempts.clusters
        self._specs = attempts.specs
        self._members = members
        self._settle = settle
        self._wake_appwrapper = wake
        self._now = attempts.now
        self._monotonic = monotonic
        self._withheld: frozenset[str] = frozenset()
        self._in_doubt: frozenset[str] = frozenset()
        self._is_settled = False
        self._wake = asyncio.Event()

    def is_in_doubt(self, uid: str) -> bool:
        """True while nobody knows whether the database is right about where this AppWrapper is."""
        return uid in self._in_doubt

    def wake(self) -> None:
        """A member has come: ask at once."""
        self._wake.set()

    async def begin(self) -> None:
        """Look for the first time, before anything is decided or done."""
        search = await self._search()
        await self._take_over(search)
        await self._take_over_ends()
        await self._end_vanished(search)
        await self._conclude(search)

    async def run(self) -> None:
        """Look again until everybody has answered."""
        while not self._is_settled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEARCH_AGAIN_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            await self._look_safely()

    async def _look_safely(self) -> None:
        """Look once; a look that fails is followed by another."""
        try:
            search = await self._search()
            await self._take_over(search)
            await self._conclude(search)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: the leader goes on
            log.internal_error("restore_recovery", error)

    # --- what there is ----------------------------------------------------------------------------------------

    async def _search(self) -> Search:
        search, limit = Search(are_members_certain=self._members.is_certain()), asyncio.Semaphore(AT_ONCE)
        search.are_members_missing = not self._members.is_complete()
        members = [each for each in self._clusters.values() if each.is_member]
        kinds = sorted(await self._wrapped_kinds())
        asked = [self._search_member(each, search) for each in members]
        asked += [self._search_hub(kind, search) for kind in kinds]
        await asyncio.gather(*(_within(limit, each) for each in asked))
        search.are_members_missing |= not self._members.is_complete()  # one may have come meanwhile
        return search

    async def _wrapped_kinds(self) -> set[Kind]:
        return {kind async for record in self._unended() for kind in await self._kinds_safely(record)}

    async def _kinds_safely(self, record: Record) -> frozenset[Kind]:
        """Of one whose spec cannot be read any more nothing was made, either, since that was so."""
        try:
            return await self._kinds_of(record)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the search for the others
            log.internal_error("restore_recovery", error, appwrapper=record.uid)
            return frozenset()

    async def _kinds_of(self, record: Record) -> frozenset[Kind]:
        """The kinds an AppWrapper wraps; in a record of an earlier version there are none."""
        if record.requirements.kinds:
            return record.requirements.kinds
        spec = await self._specs.of(record)
        return frozenset((wrapped.api_version, wrapped.kind) for wrapped in spec.wrapped)

    async def _search_member(self, cluster: Cluster, search: Search) -> None:
        try:
            async for found in cluster.anchors.all():
                if found.hub_id == self._hub_id and self._is_in_its_namespace(
                    found.appwrapper, found.namespace
                ):
                    search.note(found.appwrapper, FoundAttempt(found.attempt, cluster.name))
        except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
            _note_silence(error, cluster=cluster.name)
            search.are_members_missing = True

    async def _search_hub(self, kind: Kind, search: Search) -> None:
        try:
            async for mark in self._clusters[HUB_CLUSTER].object_client.marks(*kind):
                if self._is_in_its_namespace(mark.appwrapper, mark.namespace):
                    search.note(mark.appwrapper, FoundAttempt(mark.attempt, HUB_CLUSTER))
        except errors.Forbidden as error:
            # A hub that takes no gangs itself gives no right to look there, and none was made there.
            _log.info("search_forbidden", cluster=HUB_CLUSTER, kind=kind[1], error=str(error))
        except Exception as error:  # noqa: BLE001  # the loop's edge: one kind must not end the others
            _note_silence(error, cluster=HUB_CLUSTER, kind=kind[1])
            search.unanswered_kinds.add(kind)

    def _is_in_its_namespace(self, appwrapper: str, namespace: str) -> bool:
        """False of what was put into another namespace under the marks of an AppWrapper, which anybody can write."""
        record = self._cache.get(appwrapper)
        return record is not None and record.namespace == namespace

    # --- what follows -----------------------------------------------------------------------------------------

    async def _unended(self) -> AsyncIterator[Record]:
        """Yields each record that has not ended and whose AppWrapper the watch shows, or may still show; in slices."""
        slices = Slices(self._monotonic)
        for uid in self._cache.uids():
            record = self._cache.get(uid)
            if record is not None and self._is_unended(record):
                yield record
            await slices.give_way()

    def _is_unended(self, record: Record) -> bool:
        is_over = (record.phase, Cause.FOUND_COMPLETED) not in TARGETS
        return not is_over and not (
            self._informer.view(record.uid) is None and self._informer.can_tell(record.group)
        )

    async def _take_over(self, search: Search) -> None:
        """Have each go on with the latest attempt there is of it; the one the database believed in ends before."""
        later = {
            record.uid: search.latest[record.uid]
            async for record in self._unended()
            if record.uid in search.latest and search.latest[record.uid].attempt > record.attempts
        }
        await self._change(later, lambda record: self._overtaken(record, later[record.uid]))
        for record in await self._change(later, lambda record: self._continued(record, later[record.uid])):
            self._cache.note_sent(record.uid)  # it was there before us
            self._wake_appwrapper(record.uid)

    def _overtaken(self, record: Record, later: FoundAttempt) -> Change | None:
        if not record.holds_capacity:
            return None
        return restore_steps.end_missed_attempt(
            record, f"attempt {later.attempt} exists, which came after it", self._now()
        )

    def _continued(self, record: Record, later: FoundAttempt) -> Change | None:
        if record.phase not in {Phase.QUEUED, Phase.SUSPENDED}:
            return None
        return restore_steps.take_over(record, later.cluster, later.attempt, self._now())

    async def _change(self, uids: Iterable[str], decide: Callable[[Record], Change | None]) -> list[Record]:
        """Commit what is decided of each: of a part of them at a time, on the records as they are then."""
        committed: list[Record] = []
        for part in in_parts(uids):
            records = [record for uid in part if (record := self._cache.get(uid)) is not None]
            changes = [change for record in records if (change := decide(record)) is not None]
            committed += await self._committer.commit_all(changes) if changes else []
        return committed

    async def _take_over_ends(self) -> None:
        """What its status says has ended stays ended, though the restored database takes it to wait or to run."""
        ended = [record.uid async for record in self._unended() if self._end_in_status(record) is not None]
        await self._change(ended, self._with_end_in_status)

    def _end_in_status(self, record: Record) -> StatusEnd | None:
        view = self._informer.view(record.uid)
        return end_in_status(view) if view else None

    def _with_end_in_status(self, record: Record) -> Change | None:
        end = self._end_in_status(record) if self._is_unended(record) else None
        return None if end is None else _ended(record, end, self._now())

    async def _end_vanished(self, search: Search) -> None:
        """What ran and has gone without a trace went back to the queue, as far as anybody knows: it did not fail."""
        limit = asyncio.Semaphore(AT_ONCE)
        ran = [
            record
            async for record in self._unended()
            if record.phase in ACTIVE and not _is_found(record, search)
        ]
        for part in in_parts(ran):
            gone = await asyncio.gather(*(_within(limit, self._is_gone(record)) for record in part))
            message = "nothing of it exists any more"
            over = [record for record, is_gone in zip(part, gone, strict=True) if is_gone]
            # Not on the records of this moment: what was asked for was these.
            changes = [restore_steps.end_missed_attempt(record, message, self._now()) for record in over]
            await self._committer.commit_all(changes)

    async def _is_gone(self, record: Record) -> bool:
        """True if its cluster says, asked itself, that nothing is left of what was to be there still."""
        cluster = self._clusters.get(record.attempt.cluster) if record.attempt else None
        refs = [ref for ref in record.attempt.objects if not ref.done] if record.attempt else []
        if cluster is None or not refs:
            return False
        try:
            return all([await cluster.object_client.is_gone(ref, record.uid) for ref in refs])
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the search for the others
            _note_silence(error, cluster=cluster.name, appwrapper=record.key)
            return False

    async def _conclude(self, search: Search) -> None:
        """Let go of those of whom all is known, and hold on to the others."""
        unsearched, in_doubt = set[str](), set[str]()
        async for record in self._unended():
            if await self._is_unsearched(record, search):
                unsearched.add(record.uid)
                if not _is_found(record, search):
                    in_doubt.add(record.uid)
        slices = Slices(self._monotonic)
        released = self._withheld.union(self._in_doubt)
        self._withheld, self._in_doubt = frozenset(unsearched), frozenset(in_doubt)
        await slices.run(self._cache.withhold(self._withheld))
        await for_each(released - (self._withheld & self._in_doubt), self._wake_appwrapper, slices)
        is_complete = search.is_complete and not unsearched
        if is_complete:
            await self._settle()
            self._is_settled = True
        _log.info("searched", is_complete=is_complete, withheld=len(unsearched), in_doubt=len(in_doubt))

    async def _is_unsearched(self, record: Record, search: Search) -> bool:
        """True if something of it may be where nobody has said what is there."""
        view = self._informer.view(record.uid)
        may_be_elsewhere = search.are_members_missing or not search.are_members_certain
        if may_be_elsewhere and (view is None or view.has_finalizer):
            return True
        return bool(search.unanswered_kinds) and not search.unanswered_kinds.isdisjoint(
            await self._kinds_safely(record)
        )


def _note_silence(error: Exception, **about: str) -> None:
    """Log that an answer is missing; count it if the cause is none that API servers have."""
    if isinstance(error, errors.ClusterError):
        _log.warning("search_unanswered", error=str(error), **about)
    else:
        log.internal_error("restore_recovery", error, **about)


async def _within(limit: asyncio.Semaphore, asking: Awaitable[T]) -> T:
    async with limit:
        return await asking


def _is_found(record: Record, search: Search) -> bool:
    seen = search.latest.get(record.uid)
    return seen is not None and record.holds_capacity and seen.attempt == record.attempts


def _ended(record: Record, end: StatusEnd, now: datetime) -> Change:
    if end.state is State.COMPLETED:
        return restore_steps.recall_completed(record, end.kept_until, now)
    return restore_steps.recall_failed(record, end.reason, end.message, end.kept_until, now)
