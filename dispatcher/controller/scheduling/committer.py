"""Group commit: the changes of many workers in one fenced transaction.

Changes gather while a transaction is under way; the next transaction takes them all. So a lone change does not wait,
and under load the number of transactions does not grow with the number of AppWrappers. Only committed records enter the
cache, and only then do the workers go on.

The committer sees every change of the leader. So it adds the latest choice of notifications to those by which a gang
starts, leaves or ends: targets are told by what the AppWrapper chooses at that moment, whoever decided the change.

Changes that are only right together, those of a preemption, are written whole or not at all, in a transaction of their
own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Final

from dispatcher import log
from dispatcher.api.notifications import Choices
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.records.record import Change, Record
from dispatcher.store.state.queue import CommitResult, QueueStore

LARGEST_BATCH: Final = 500
LARGEST_BATCH_BYTES: Final = 2**22
"""The most bytes of specs in one transaction, which holds each several times in memory; a lone spec may be larger."""
BYTES_OF_TOLERATION: Final = 100
"""Bytes of a toleration in the row and its event, however short it is in the spec."""

_log = log.get("committer")


class Committer:
    """Commits changes while `run` runs; calls `announce` with each change that was accepted.

    `choices_of` returns the notifications that the AppWrapper of a uid chooses now; None while no watch shows it.
    """

    def __init__(
        self,
        store: QueueStore,
        cache: Cache,
        announce: Callable[[Change, Record], None],
        choices_of: Callable[[str], Choices | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._cache = cache
        self._announce = announce
        self._choices_of = choices_of
        self._monotonic = monotonic
        self._gathered: list[tuple[Change, asyncio.Future[Record | None]]] = []
        self._groups: deque[list[tuple[Change, asyncio.Future[Record | None]]]] = deque()
        self._wake = asyncio.Event()

    async def commit(self, change: Change) -> Record | None:
        """The record as committed; None if the row has changed, or if the database cannot hold it (logged)."""
        return await self._gather(change)

    async def commit_all(self, changes: Sequence[Change]) -> list[Record]:
        """Commit many changes at once; the records as committed, without those whose rows have changed."""
        results = await asyncio.gather(*map(self._gather, changes))
        return [record for record in results if record is not None]

    async def commit_together(self, changes: Sequence[Change]) -> list[Record]:
        """Commit all changes or none; the records as committed.

        None are if a row has changed meanwhile, or if the database cannot hold one of them (logged).
        """
        if not changes:
            return []
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Record | None]] = [loop.create_future() for _ in changes]
        self._groups.append(list(zip(changes, futures, strict=True)))
        self._wake.set()
        return [record for record in await asyncio.gather(*futures) if record is not None]

    async def run(self) -> None:
        """Commit until cancelled. Raises `Fenced` and `StoreUnavailable`: memory may be behind the database."""
        try:
            while True:
                await self._wake.wait()
                if self._groups:
                    await self._commit(self._groups.popleft(), self._store.commit_together)
                if self._gathered:
                    await self._commit(self._next_batch(), self._store.commit)
                if not self._gathered and not self._groups:
                    self._wake.clear()
        finally:
            for _, future in chain(self._gathered, *self._groups):
                future.cancel()

    def _gather(self, change: Change) -> asyncio.Future[Record | None]:
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._gathered.append((change, future))
        self._wake.set()
        return future

    def _next_batch(self) -> list[tuple[Change, asyncio.Future[Record | None]]]:
        """The next changes to commit, in order; the second of two changes to one AppWrapper is for a later batch."""
        batch: dict[str, tuple[Change, asyncio.Future[Record | None]]] = {}
        left: list[tuple[Change, asyncio.Future[Record | None]]] = []
        room = LARGEST_BATCH_BYTES
        for change, future in self._gathered:
            size = _size(change)
            # New AppWrappers keep their order: after one that is too large for this batch, no other joins it.
            fits = not size or not batch or 0 < size <= room
            if len(batch) < LARGEST_BATCH and change.after.uid not in batch and fits:
                batch[change.after.uid] = change, future
                room -= size
            else:
                room = 0 if size else room
                left.append((change, future))
        self._gathered = left
        return list(batch.values())

    async def _commit(
        self,
        batch: list[tuple[Change, asyncio.Future[Record | None]]],
        write: Callable[[Sequence[Change]], Awaitable[CommitResult]],
    ) -> None:
        try:
            await self._take_choices_along(batch)
            result = await write([change for change, _ in batch])
            await self._publish(batch, result)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise

    async def _take_choices_along(self, batch: list[tuple[Change, asyncio.Future[Record | None]]]) -> None:
        """Add to each change of a phase, in slices, what its AppWrapper chooses now: all commits come through here."""
        slices = Slices(self._monotonic)
        for index, (change, future) in enumerate(batch):
            batch[index] = self._with_choice(change), future
            await slices.give_way()

    def _with_choice(self, change: Change) -> Change:
        """The change with the choice of its AppWrapper; without it if that raises (logged)."""
        if not queue_changes.takes_choice_along(change):
            return change  # an annotation costs milliseconds to read
        try:
            return queue_changes.with_choice(change, self._choices_of(change.after.uid))
        except Exception as error:  # noqa: BLE001  # one change must not end the commits of the others
            log.internal_error("committer", error, appwrapper=change.after.uid)
            return change

    async def _publish(
        self, batch: list[tuple[Change, asyncio.Future[Record | None]]], result: CommitResult
    ) -> None:
        """Update the cache without a pause; then, in slices, announce the changes and wake their workers."""
        for refusal in result.refused:
            _log.error("change_refused", appwrapper=refusal.uid, error=refusal.message)
        accepted = {record.uid: record for record in result.accepted}
        for record in result.accepted:
            self._cache.put(record)
        slices = Slices(self._monotonic)
        for change, future in batch:
            committed = accepted.get(change.after.uid)
            if committed is not None:
                self._announce_safely(change, committed)
            if not future.done():
                future.set_result(committed)
            await slices.give_way()

    def _announce_safely(self, change: Change, record: Record) -> None:
        """Announce a change; an error there does not undo the commit."""
        try:
            self._announce(change, record)
        except Exception as error:  # noqa: BLE001  # one change must not end the commits of the others
            log.internal_error("committer", error, appwrapper=record.uid)


def _size(change: Change) -> int:
    """Roughly the bytes that a new AppWrapper adds to a transaction; 0 for other changes, bounded by their number."""
    if change.spec is None:
        return 0
    tolerations = sum(len(each.tolerations) for each in change.after.gang.pod_sets)
    return len(change.spec) + BYTES_OF_TOLERATION * tolerations
