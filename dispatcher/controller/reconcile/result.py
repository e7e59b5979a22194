"""What a reconcile step returns, and the one place that carries it out.

A step observes and acts on clusters, but it commits nothing and schedules nothing by itself: the reconciler hands its
result to `Results.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.pacing import Pacing
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.model.record import Change, Phase, Record

FIRST_POLL_SECONDS: Final = 0.5
"""The first pause of a poll; events usually come first."""

LONGEST_POLL_SECONDS: Final = 30.0
"""The longest pause of a poll: a change that no watch shows is noticed after that."""

REFUSED_SECONDS: Final = 5.0
"""Pause before the next look at an AppWrapper whose change the database did not accept; the log has the reason."""


class Result(Struct, frozen=True):
    """The change to commit, when to look at the AppWrapper again, and whether to wake the scheduler.

    `after` is in seconds; None if only an event brings the next look. A result that `polls` waits for something that
    no event is sure to show: its pauses grow from `FIRST_POLL_SECONDS`, and `after` is the longest. A result that
    `follows_user` commits a request of the user: the next one waits for its turn (`Pacing`). A result that `is_ending`
    waits for an answer after which the gang is complete: its status is about to change, so it is not written now.
    """

    change: Change | None = None
    after: float | None = None
    polls: bool = False
    wakes_scheduler: bool = False
    follows_user: bool = False
    is_ending: bool = False


NOTHING: Final = Result()


def poll(within: float = LONGEST_POLL_SECONDS) -> Result:
    """Look again soon, then in growing pauses, at the latest after `within` seconds."""
    return Result(after=min(within, LONGEST_POLL_SECONDS), polls=True)


class PollBackoff:
    """The pauses between polls, by the uid of the AppWrapper.

    A pause is half as long as the poll has lasted, within limits. So pauses grow however many events come in between,
    and a step that took a moment is noticed a moment later.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, datetime]] = {}

    def pause(self, record: Record, now: datetime) -> float:
        """Seconds until the next look; another version of the record is another step, and begins anew."""
        version, since = self._since.get(record.uid, (record.version, now))
        if version != record.version:
            since = now
        self._since[record.uid] = record.version, since
        return min(LONGEST_POLL_SECONDS, max(FIRST_POLL_SECONDS, (now - since).total_seconds() / 2))

    def forget(self, uid: str) -> None:
        """Ends the poll of an AppWrapper."""
        self._since.pop(uid, None)


class Results:
    """Carries out the results of reconcile steps: commits, wakes and schedules."""

    def __init__(
        self,
        committer: Committer,
        informer: AppWrapperInformer,
        clusters: Mapping[str, Cluster],
        queue: WorkQueue,
        pacing: Pacing,
        wake_scheduler: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        self._committer = committer
        self._informer = informer
        self._clusters = clusters
        self._queue = queue
        self._pacing = pacing
        self._wake_scheduler = wake_scheduler
        self._now = now
        self._backoff = PollBackoff()

    async def apply(self, uid: str, result: Result, record: Record | None = None) -> Record | None:
        """Commits the change of a result, wakes the scheduler, and schedules the next look.

        `record` is the one that the step was decided on; a result that polls has one. Returns the record as committed;
        None if there is no change, if the row had moved, or if the database refused it.
        """
        committed = await self._commit(result.change) if result.change is not None else None
        # Until a request of the user is committed, and if it is refused, a cycle heeds what the user asks for.
        if committed is not None and result.follows_user:
            self._pacing.note(uid, self._now())
        if result.wakes_scheduler:
            self._wake_scheduler()
        if result.after is not None:
            pause = self._backoff.pause(record, self._now()) if result.polls and record else result.after
            self._queue.add_later(uid, min(result.after, pause))
        return committed

    async def _commit(self, change: Change) -> Record | None:
        """Commits one step. If the row had moved, or is refused, the AppWrapper is looked at again after a pause."""
        record = await self._committer.commit(change)
        if record is None:
            self._queue.add_later(change.after.uid, REFUSED_SECONDS)
            return None
        self._backoff.forget(record.uid)
        if record.phase is Phase.DELETED:
            self._informer.forget(record.uid)
        for cluster in self._clusters.values():
            cluster.track(record)
        return record
