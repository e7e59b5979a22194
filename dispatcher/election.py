"""Leader election: a candidate leads whenever no other replica does, as long as its lease holds.

A term ends when the process is stopped, or when memory may be behind the database (the lease is lost, or the database
does not answer). Then everything in memory is dropped and the process is a candidate again. So there is one way to
start, and every failure of the database ends in it.

The clock is the database's (`core.model.clock`): read with each renewal, carried on by the monotonic clock in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from dispatcher import errors, log
from dispatcher.controller.members.first_lists import NotListed
from dispatcher.controller.members.membership import MembersUnknown
from dispatcher.controller.scheduling.garbage import short_collections
from dispatcher.core.model.clock import Clock
from dispatcher.probes import Health, Metrics, MetricValues, Role
from dispatcher.store.leadership import Leadership, Lease

LOOK_SECONDS: Final = 0.2
"""The pause of a standby between two looks at the lease. A look only reads, so that the next leader follows one that
stops within a fraction of a second at a cost that no database notices. A notification would need a session of its own
for as long as the process lives, which a connection pooler does not give."""

RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
"""The longest pause of a replica that gave up leadership because it could not list what a leader has to know."""

_log = log.get("election")


class WriteFence:
    """Whether a write may go to an API server now: only well within the lease.

    One kind of write may outlast it: the status of an AppWrapper that is too large, at the version it had here.
    """

    def __init__(self, write_timeout: float, monotonic: Callable[[], float]) -> None:
        self._write_timeout = write_timeout
        self._monotonic = monotonic
        self._until = 0.0

    def extend(self, renewed_at: float, lease: timedelta) -> None:
        """A renewal that was requested at `renewed_at` was granted."""
        self._until = renewed_at + lease.total_seconds() - self._write_timeout

    def close(self) -> None:
        """No more writes."""
        self._until = 0.0

    def is_open(self) -> bool:
        """True while a write sent now would time out before the lease does."""
        return self._monotonic() < self._until


class Term(Protocol):
    """What a candidate does while it leads."""

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to lead; the loops run in `tasks`, which are cancelled when the term ends."""

    def watches_ready(self) -> bool:
        """True once every watch has its first complete answer."""

    def concern(self) -> str:
        """Why the leader cannot work, in a sentence; empty if it can."""

    def metric_values(self) -> MetricValues:
        """The metrics of this moment."""


class Candidate:
    """Acquires the lease, leads for a term and renews the lease meanwhile, again and again until stopped.

    `begin_term` is called once for each lease that was acquired. `renew_seconds` is the pause between renewals.
    """

    def __init__(
        self,
        leadership: Leadership,
        clock: Clock,
        fence: WriteFence,
        health: Health,
        metrics: Metrics,
        renew_seconds: float,
        begin_term: Callable[[], Awaitable[Term]],
    ) -> None:
        self._leadership = leadership
        self._clock = clock
        self._fence = fence
        self._health = health
        self._metrics = metrics
        self._renew_seconds = renew_seconds
        self._begin_term = begin_term
        self._stopping = False
        self._failed_terms = 0

    def stop(self) -> None:
        """Begin no other term. The caller also cancels `run`."""
        self._stopping = True

    async def run(self) -> None:
        """Lead whenever no other replica does."""
        try:
            while not self._stopping:
                await self._stand()
        finally:
            await self._step_down()

    async def _stand(self) -> None:
        """Lead for a term if no other replica does; pause after it."""
        renewed_at, pause = time.monotonic(), LOOK_SECONDS
        try:
            lease = await self._leadership.acquire()
        except errors.StoreError as error:
            self._metrics.database_up.set(0)
            self._note_problem("store_unavailable", error)
            pause = RETRY_SECONDS
        else:
            self._metrics.database_up.set(1)
            if lease is None:
                self._health.role, self._health.problem = Role.STANDBY, ""
            else:
                self._note_lease(renewed_at, lease)
                await self._serve_term()
                pause = retry_pause(self._failed_terms)
        if not self._stopping:
            await asyncio.sleep(pause)

    async def _serve_term(self) -> None:
        ended_by = await until_over(self._run_term, lambda: self._stopping)
        if ended_by is not None:
            has_failed = isinstance(ended_by, (MembersUnknown, NotListed))
            self._failed_terms = self._failed_terms + 1 if has_failed else 0
            self._note_problem("leadership_ended", ended_by)
        await self._step_down()

    async def _run_term(self) -> None:
        term = await self._begin_term()
        _log.info("leading", epoch=self._leadership.lease.epoch)
        self._health.role, self._health.problem = Role.LEADER, self._clock.problem
        self._health.watches_ready, self._health.concern = term.watches_ready, term.concern
        self._metrics.leading.set(1)
        self._metrics.metric_values = term.metric_values
        with short_collections(time.monotonic):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew(), name="renew")
                await term.start(tasks)

    async def _renew(self) -> None:
        """Renew until cancelled, or until the lease is lost."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            renewed_at = time.monotonic()
            try:
                self._note_lease(renewed_at, await self._leadership.renew())
            except errors.StoreUnavailable as error:
                self._metrics.database_up.set(0)
                # The lease may well outlive a short absence; the fence closes by itself if it does not.
                _log.warning("renewal_failed", error=str(error))
                if not self._fence.is_open():
                    raise

    def _note_lease(self, renewed_at: float, lease: Lease) -> None:
        was_followed = not self._clock.problem
        self._metrics.database_up.set(1)
        self._clock.set(lease.database_now)
        self._fence.extend(renewed_at, lease.duration)
        self._metrics.clock_off_seconds.set(self._clock.off.total_seconds())
        if self._health.role is Role.LEADER:
            self._health.problem = self._clock.problem
        if was_followed and self._clock.problem:
            _log.warning("clock_not_followed", error=self._clock.problem)
        elif not (was_followed or self._clock.problem):
            _log.info("clock_followed")

    def _note_problem(self, event: str, error: BaseException) -> None:
        self._health.problem = str(error)
        _log.warning(event, error=str(error), kind=type(error).__name__)

    async def _step_down(self) -> None:
        self._fence.close()
        self._metrics.leading.set(0)
        self._metrics.metric_values = MetricValues
        self._health.role = Role.STANDBY
        try:
            await asyncio.shield(self._leadership.release())
        except errors.StoreError as error:
            _log.info("lease_left_to_expire", error=str(error))


async def until_over(
    lead: Callable[[], Awaitable[None]], is_stopping: Callable[[], bool]
) -> BaseException | None:
    """Run a term to its end; return the error of a store or cluster that has ended it, if one has.

    On Python 3.11 a task group that fails swallows a cancellation of its task, and the task counts as cancelled after
    any task group in it that failed. So `is_stopping` says whether the caller has cancelled the term.
    """
    ended = None
    try:
        await lead()
    except* (errors.StoreError, errors.ClusterError) as group:
        ended = errors.innermost(group)
    if is_stopping():
        raise asyncio.CancelledError
    return ended


def retry_pause(failed_terms: int) -> float:
    """Seconds before this replica tries to lead again, after so many terms in a row that it had to give up.

    In the pause another replica takes the lease, if there is one.
    """
    return min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(failed_terms, 10))
