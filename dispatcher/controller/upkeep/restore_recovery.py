"""Restore recovery: finds in the clusters the steps that a restored database has missed, before any decision.

It searches the members for anchors, and the hub for objects of each wrapped kind and for requests for capacity. An
attempt that is later than the recorded one is taken over in its cluster, with its request. An AppWrapper that has ended
by its status has ended. An AppWrapper that was running and has no objects any more is queued again. The reconciler
observes everything else as always.

The work on all AppWrappers is done in slices. Each decision is made on the current record, and the change of a record
that has changed since is not committed. Unanswered searches are repeated. Until then an AppWrapper that may have
objects there is not dispatched and, unless its recorded attempt was found, not reconciled. Every search is safe to
repeat, also by another leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.conditions import State
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.intake.attempt_search import (
    REQUEST_KIND,
    FoundAttempt,
    UnknownAttempt,
    find_request,
    note_found,
    note_unanswered,
)
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.intake.status_end import StatusEnd, end_in_status
from dispatcher.core.lifecycle import first_changes, provisioning
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.incremental import in_parts
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import ACTIVE, Change, Phase, Record
from dispatcher.core.model.records.requirements import Kind
from dispatcher.kube.objects.object_client import Mark

SEARCH_AGAIN_SECONDS: Final = 5.0
AT_ONCE: Final = 8
"""Concurrent lists."""

T = TypeVar("T")

_log = log.get("restore_recovery")


class Search(Struct):
    """The latest attempt found of each AppWrapper, and the searches without an answer.

    `unanswered_kinds` are those of the hub. If the members are not certain, there may be members without a search.
    `unread` are uids of AppWrappers: their attempt was found, but the request for its capacity could not be read.
    """

    latest: dict[str, FoundAttempt] = field(default_factory=dict)
    unanswered_kinds: set[Kind] = field(default_factory=set)
    are_members_missing: bool = False
    are_members_certain: bool = True
    unread: set[str] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        """True if every search was answered."""
        return not (self.unanswered_kinds or self.are_members_missing)


class Members(Protocol):
    """The questions of restore recovery about the members."""

    def is_complete(self) -> bool:
        """True if every known member is connected."""

    def is_certain(self) -> bool:
        """True if there can be no other member."""


class RestoreRecovery:
    """Searches until every cluster has answered, then calls `settle`; calls `wake` with each AppWrapper to reconcile.

    Whether the members are certain matters only while a member may have objects of an AppWrapper.
    """

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        committer: Committer,
        members: Members,
        settle: Callable[[], Awaitable[None]],
        wake: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._informer = context.informer
        self._hub_id = context.hub_id
        self._cache = cache
        self._committer = committer
        self._clusters = context.clusters
        self._specs = context.specs
        self._members = members
        self._settle = settle
        self._wake_appwrapper = wake
        self._now = context.now
        self._monotonic = monotonic
        self._withheld: frozenset[str] = frozenset()
        self._in_doubt: frozenset[str] = frozenset()
        self._is_settled = False
        self._wake = asyncio.Event()

    def is_in_doubt(self, uid: str) -> bool:
        """True while the database may be wrong about the place of the AppWrapper: it must not be reconciled."""
        return uid in self._in_doubt

    def wake(self) -> None:
        """Repeat the search at once: a member was connected."""
        self._wake.set()

    async def begin(self) -> None:
        """Make the first search, before any decision or act."""
        search = await self._search()
        await self._take_over(search)
        await self._take_provisioned(search)
        await self._take_over_ends()
        await self._end_vanished(search)
        await self._conclude(search)

    async def run(self) -> None:
        """Repeat the search until every cluster has answered."""
        while not self._is_settled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEARCH_AGAIN_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            await self._search_again()

    async def _search_again(self) -> None:
        """Repeat the search once; a failed search is repeated, too."""
        try:
            search = await self._search()
            await self._take_over(search)
            await self._take_provisioned(search)
            await self._conclude(search)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: the leader goes on
            log.internal_error("restore_recovery", error)

    async def _search(self) -> Search:
        search, limit = Search(are_members_certain=self._members.is_certain()), asyncio.Semaphore(AT_ONCE)
        search.are_members_missing = not self._members.is_complete()
        members = [each for each in self._clusters.values() if each.is_member]
        kinds = sorted(await self._wrapped_kinds())
        searches = [self._search_member(each, search) for each in members]
        searches += [self._search_hub(kind, search) for kind in kinds]
        await asyncio.gather(*(_within(limit, each) for each in searches))
        search.are_members_missing |= (
            not self._members.is_complete()
        )  # a member may have been declared meanwhile
        return search

    async def _wrapped_kinds(self) -> set[Kind]:
        return {kind async for record in self._unended() for kind in _kinds_of(record)}

    async def _search_member(self, cluster: WatchedCluster, search: Search) -> None:
        try:
            async for found in cluster.anchors.all():
                if found.hub_id == self._hub_id and self._is_proven(found.mark):
                    note_found(search.latest, found.appwrapper, FoundAttempt(found.attempt, cluster.name))
        except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
            note_unanswered("restore_recovery", error, cluster=cluster.name)
            search.are_members_missing = True

    async def _search_hub(self, kind: Kind, search: Search) -> None:
        try:
            async for mark in self._clusters[HUB_CLUSTER].object_client.marks(*kind):
                if self._is_proven(mark):
                    note_found(search.latest, mark.appwrapper, FoundAttempt(mark.attempt, HUB_CLUSTER))
        except errors.Forbidden as error:
            # A hub that takes no gangs itself grants no right to read objects, and has none of ours.
            _log.info("search_forbidden", cluster=HUB_CLUSTER, kind=kind[1], error=str(error))
        except Exception as error:  # noqa: BLE001  # the loop's edge: one kind must not end the others
            note_unanswered("restore_recovery", error, cluster=HUB_CLUSTER, kind=kind[1])
            search.unanswered_kinds.add(kind)

    def _is_proven(self, mark: Mark) -> bool:
        """False for an object in another namespace than its AppWrapper, or without proof: any user can write labels."""
        record = self._cache.get(mark.appwrapper)
        return (
            record is not None
            and record.namespace == mark.namespace
            and self._context.believes(mark, record.created_at)
        )

    async def _unended(self) -> AsyncIterator[Record]:
        """Yields, in slices, each record of an AppWrapper that exists or may exist, and has not ended."""
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
        """End each recorded attempt that has a later one, and take over the later one."""
        later = {
            record.uid: search.latest[record.uid]
            async for record in self._unended()
            if record.uid in search.latest and search.latest[record.uid].attempt > record.attempts
        }
        requests = await self._requests(later, search)
        await self._change(requests, lambda record: self._overtaken(record, later[record.uid]))
        for record in await self._change(
            requests, lambda record: self._continued(record, later[record.uid], requests[record.uid])
        ):
            self._cache.note_sent(record.uid)  # an earlier leader sent its requests
            self._wake_appwrapper(record.uid)

    async def _take_provisioned(self, search: Search) -> None:
        """Note for each attempt that waits by the restored database whether its capacity came since the backup.

        Its objects may exist, and the reconciler would take them away if the booking has expired meanwhile.
        """
        waiting = {
            record.uid: FoundAttempt(record.attempts, record.attempt.cluster)
            async for record in self._unended()
            if record.attempt is not None
            and record.attempt.awaits_capacity
            and record.phase is Phase.DISPATCHING
            and record.attempt.cluster in self._clusters
        }
        requests = await self._requests(waiting, search)
        await self._change(requests, lambda record: self._provisioned(record, requests[record.uid]))

    async def _requests(
        self, found: Mapping[str, FoundAttempt], search: Search
    ) -> dict[str, Provisioning | None]:
        """The request for capacity of each attempt, by the uid of its AppWrapper; `unread` ones are left out."""
        requests: dict[str, Provisioning | None] = {}
        limit = asyncio.Semaphore(AT_ONCE)
        for part in in_parts(found):
            reads = (self._read_request(uid, found[uid], requests, search) for uid in part)
            await asyncio.gather(*(_within(limit, each) for each in reads))
        return requests

    async def _read_request(
        self, uid: str, found: FoundAttempt, requests: dict[str, Provisioning | None], search: Search
    ) -> None:
        record, cluster = self._cache.get(uid), self._clusters.get(found.cluster)
        if record is None:
            return
        if cluster is None:
            search.unread.add(uid)
            return
        try:
            owner = replace(self._context.owner_of(record), attempt=found.attempt)
            wrapped = (await self._specs.of(record)).wrapped
            attempt = UnknownAttempt(
                owner,
                record.gang,
                record.leaves,
                wrapped,
                lambda mark: self._context.believes(mark, record.created_at),
            )
            requests[uid] = await find_request(cluster, attempt, self._context.class_of, self._now())
        except errors.StoreError:
            raise
        except errors.ClusterError as error:
            note_unanswered("restore_recovery", error, cluster=cluster.name, appwrapper=record.key)
            search.unread.add(uid)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the search for the others
            log.internal_error("restore_recovery", error, appwrapper=record.key)
            requests[uid] = None

    def _overtaken(self, record: Record, later: FoundAttempt) -> Change | None:
        if not record.holds_capacity:
            return None
        return first_changes.end_missed_attempt(
            record, f"attempt {later.attempt} exists, which came after it", self._now()
        )

    def _continued(self, record: Record, later: FoundAttempt, request: Provisioning | None) -> Change | None:
        if record.phase not in {Phase.QUEUED, Phase.SUSPENDED}:
            return None
        return first_changes.take_over(record, later.cluster, later.attempt, self._now(), request)

    def _provisioned(self, record: Record, request: Provisioning | None) -> Change | None:
        is_waiting = record.attempt is not None and record.attempt.awaits_capacity
        if not is_waiting or request is None or request.provisioned_at is None:
            return None
        return provisioning.provisioned(record, request.message, self._now(), request.request_uid)

    async def _change(self, uids: Iterable[str], decide: Callable[[Record], Change | None]) -> list[Record]:
        """Commit the decisions about AppWrappers, in parts, each on current records; return the committed records."""
        committed: list[Record] = []
        for part in in_parts(uids):
            records = [record for uid in part if (record := self._cache.get(uid)) is not None]
            changes = [change for record in records if (change := decide(record)) is not None]
            committed += await self._committer.commit_all(changes) if changes else []
        return committed

    async def _take_over_ends(self) -> None:
        """End each AppWrapper that has ended by its status, whatever the restored database says."""
        ended = [record.uid async for record in self._unended() if self._end_in_status(record) is not None]
        await self._change(ended, self._with_end_in_status)

    def _end_in_status(self, record: Record) -> StatusEnd | None:
        view = self._informer.view(record.uid)
        return end_in_status(view.status) if view else None

    def _with_end_in_status(self, record: Record) -> Change | None:
        end = self._end_in_status(record) if self._is_unended(record) else None
        return None if end is None else _ended(record, end, self._now())

    async def _end_vanished(self, search: Search) -> None:
        """Requeue each running AppWrapper without any objects: as far as known, it did not fail."""
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
            # On the records whose objects were searched, not on the current ones.
            changes = [first_changes.end_missed_attempt(record, message, self._now()) for record in over]
            await self._committer.commit_all(changes)

    async def _is_gone(self, record: Record) -> bool:
        """True if the API server says that none of the unfinished objects of the attempt exist."""
        cluster = self._clusters.get(record.attempt.cluster) if record.attempt else None
        refs = [ref for ref in record.attempt.objects if not ref.done] if record.attempt else []
        if cluster is None or not refs:
            return False
        try:
            return all([await cluster.object_client.is_gone(ref, record.uid) for ref in refs])
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the search for the others
            note_unanswered("restore_recovery", error, cluster=cluster.name, appwrapper=record.key)
            return False

    async def _conclude(self, search: Search) -> None:
        """Release the AppWrappers without open searches, and withhold the others."""
        unsearched, in_doubt = set[str](), set[str]()
        async for record in self._unended():
            if self._is_unsearched(record, search):
                unsearched.add(record.uid)
                if record.uid in search.unread or not _is_found(record, search):
                    in_doubt.add(record.uid)
        slices = Slices(self._monotonic)
        released = self._withheld.union(self._in_doubt)
        self._withheld, self._in_doubt = frozenset(unsearched), frozenset(in_doubt)
        await self._cache.withhold(self._withheld, slices)
        await slices.for_each(released - (self._withheld & self._in_doubt), self._wake_appwrapper)
        is_complete = search.is_complete and not unsearched
        if is_complete:
            await self._settle()
            self._is_settled = True
        _log.info("searched", is_complete=is_complete, withheld=len(unsearched), in_doubt=len(in_doubt))

    def _is_unsearched(self, record: Record, search: Search) -> bool:
        """True if the AppWrapper may have objects where a search is unanswered."""
        if record.uid in search.unread:
            return True
        view = self._informer.view(record.uid)
        may_be_elsewhere = search.are_members_missing or not search.are_members_certain
        if may_be_elsewhere and (view is None or view.has_finalizer):
            return True
        return not search.unanswered_kinds.isdisjoint(_kinds_of(record))


def _kinds_of(record: Record) -> frozenset[Kind]:
    """The kinds that an AppWrapper wraps, and that of its request for capacity."""
    return record.requirements.kinds | {REQUEST_KIND}


async def _within(limit: asyncio.Semaphore, asking: Awaitable[T]) -> T:
    async with limit:
        return await asking


def _is_found(record: Record, search: Search) -> bool:
    found = search.latest.get(record.uid)
    return found is not None and record.holds_capacity and found.attempt == record.attempts


def _ended(record: Record, end: StatusEnd, now: datetime) -> Change:
    if end.state is State.COMPLETED:
        return first_changes.complete_missed(record, end.kept_until, now)
    return first_changes.fail_missed(record, end.reason, end.message, end.kept_until, now)
