"""What a reconcile step returns, and the one place that carries it out.

A step observes and acts on clusters, but it commits nothing and schedules nothing by itself: the reconciler hands its
result to `Results.apply`.

`Pacing` and `Withdrawals` limit how often the requests of a user, and approvals, are committed: each writes history.
Users can patch in a loop. Other notifications have a pace of their own (`CHOSEN_EVERY`), which `decide` keeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.lifecycle.approvals import pause_after
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import Change, Phase, Record

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
        clusters: Mapping[str, WatchedCluster],
        queue: WorkQueue,
        pacing: Pacing,
        choices: Pacing,
        wake_scheduler: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        self._committer = committer
        self._informer = informer
        self._clusters = clusters
        self._queue = queue
        self._pacing = pacing
        self._choices = choices
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
        if change.events[-1].cause == Cause.NOTIFICATIONS_CHANGED:
            self._choices.note(record.uid, self._now())
        if record.phase is Phase.DELETED:
            self._informer.forget(record.uid)
        for cluster in self._clusters.values():
            cluster.track(record)
        return record


FOLLOWED_EVERY: Final = timedelta(seconds=1)
"""The pause between two commits of a changed priority, selector or `suspend`; the last value wins, and none is lost."""


class Pacing:
    """Gives each key one turn per `every`."""

    def __init__(self, every: timedelta = FOLLOWED_EVERY) -> None:
        self._every = every
        self._turns: OrderedDict[str, datetime] = OrderedDict()
        """When each key had its last turn, the oldest first; turns older than `every` are dropped."""

    def wait(self, key: str, now: datetime) -> float:
        """Seconds until the next turn of this key; 0 if it may have one now."""
        last = self.last(key, now)
        return (last + self._every - now).total_seconds() if last is not None else 0.0

    def last(self, key: str, now: datetime) -> datetime | None:
        """When the key had its last turn; None if it need not wait for the next one."""
        self._forget_past(now)
        return self._turns.get(key)

    def note(self, key: str, now: datetime) -> None:
        """Note that the key had a turn: a request of its user was committed."""
        self._forget_past(now)
        self._turns[key] = now
        self._turns.move_to_end(key)

    def had_turn(self, key: str, now: datetime) -> bool:
        """True if the key must wait for its next turn."""
        return self.last(key, now) is not None

    def _forget_past(self, now: datetime) -> None:
        while self._turns and next(iter(self._turns.values())) + self._every <= now:
            self._turns.popitem(last=False)


WITHDRAWALS_COUNTED_FOR: Final = timedelta(hours=1)
"""The time after the last withdrawal of an approval until all withdrawals of its AppWrapper are forgotten."""


class Withdrawals:
    """Counts by key how often approvals were withdrawn; the pause before a change is followed grows with that."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, datetime]] = OrderedDict()
        """The number of withdrawals by key and the time of the last one, the oldest first."""

    def note(self, key: str, now: datetime) -> None:
        """Note that an approval was withdrawn."""
        self._forget_past(now)
        count, _ = self._counts.get(key, (0, now))
        self._counts[key] = count + 1, now
        self._counts.move_to_end(key)

    def wait(self, key: str, now: datetime) -> float:
        """Seconds until the next change is followed; 0 if it may be now."""
        self._forget_past(now)
        count, last = self._counts.get(key, (0, now))
        return max(0.0, (last + pause_after(count) - now).total_seconds())

    def _forget_past(self, now: datetime) -> None:
        while self._counts and next(iter(self._counts.values()))[1] + WITHDRAWALS_COUNTED_FOR <= now:
            self._counts.popitem(last=False)
