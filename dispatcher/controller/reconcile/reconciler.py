"""One AppWrapper at a time: observe, decide, act, commit, report.

`Observer` observes, `core.lifecycle.decision.decide` decides, `Acts` acts, `Results` commits, `StatusWriter` reports.
The intent of every act was committed before it, so a crash between act and commit leads to the same act again. The
status is written last, from the record, and only if it differs from the status written before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.intake import Intake
from dispatcher.controller.intake.limits import Limits
from dispatcher.controller.reconcile.acts import Acts
from dispatcher.controller.reconcile.creation import Creator
from dispatcher.controller.reconcile.observer import Observer
from dispatcher.controller.reconcile.result import Pacing, Results
from dispatcher.controller.reconcile.status_writer import StatusWriter
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.queue_changes import CHOSEN_EVERY
from dispatcher.core.model.records.record import ACTIVE
from dispatcher.core.status.outlook import Outlook
from dispatcher.kube.objects.events import EventAbout

UNREAD_SECONDS: Final = 5.0
"""Pause before the next look at an AppWrapper whose state cannot be known yet."""
MOST_STEPS: Final = 4
"""Steps of one look: created, items done, running, and the question for live pods. Others wait for the next look."""

_log = log.get("reconciler")


def lane_of(uid: str, cache: Cache, informer: AppWrapperInformer) -> str:
    """The lane of an AppWrapper in the work queue; AppWrappers of one lane may have to wait for the same answers.

    Each cluster has three lanes. The first has most AppWrappers, and the second the large ones. The third has those
    that are too large to be read, and those whose last status write failed. In the second and in the third lane status
    writes wait for each other (`controller.reconcile.status_writer`).
    """
    cluster = cache.cluster_of(uid)
    if informer.is_slow(uid):
        return f"{cluster}/slow"
    return f"{cluster}/large" if informer.is_large(uid) else cluster


class Reconciler:
    """Takes keys (uids) from the work queue; each is handled in a task of its own, never two for one key.

    `has_policy_unread` is true of a gang, by uid, that will be added to the queue once its policy was read.
    """

    def __init__(
        self,
        observer: Observer,
        acts: Acts,
        results: Results,
        status_writer: StatusWriter,
        queue: WorkQueue,
        has_policy_unread: Callable[[str], bool],
    ) -> None:
        self._observer = observer
        self._acts = acts
        self._results = results
        self._status_writer = status_writer
        self._queue = queue
        self._has_policy_unread = has_policy_unread

    async def run(self) -> None:
        """Handle key after key until cancelled; the queue bounds how many at once."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                uid = await self._queue.get()
                tasks.create_task(self._handle(uid), name=f"reconcile-{uid}")

    async def _handle(self, uid: str) -> None:
        """Reconcile one AppWrapper and give its key back to the queue, to come again later if that failed."""
        queue = self._queue
        try:
            await self.reconcile(uid)
        except errors.ClusterError as error:
            pause = queue.add_failed(uid)
            _log.warning("retry", uid=uid, error=str(error), pause=round(pause, 1))
        except errors.StoreError:
            raise
        except Exception:  # noqa: BLE001  # the task's edge: one AppWrapper must not end the others
            pause = queue.add_failed(uid)
            log.count_internal_error("reconciler")
            _log.exception("reconcile_failed", uid=uid, pause=round(pause, 1))
        else:
            # A new AppWrapper succeeds when intake has queued or rejected it.
            if not self._observer.is_new(uid):
                queue.succeed(uid)
        finally:
            queue.done(uid)

    async def reconcile(self, uid: str) -> None:
        """One look at one AppWrapper. Raises `ClusterError` and `StoreError`.

        Several steps of an active gang may be due at once: its items are done, it ran, its live pods are asked for.
        They follow each other within the look, because under load a place in the work queue takes seconds, for which a
        finished gang would hold its capacity. Only the state after the last of them is reported.
        """
        if self._has_policy_unread(uid):
            return
        if self._observer.is_unread(uid):
            self._queue.add_later(uid, UNREAD_SECONDS)
            return
        try:
            is_ending = await self._take_steps(uid)
        except errors.ClusterError:
            await self._status_writer.report_or_retry(uid)  # the status also shows a step that takes long
            raise
        await self._status_writer.report_or_retry(uid, is_ending=is_ending)

    async def _take_steps(self, uid: str) -> bool:
        """Takes the steps of one look; true if the gang is about to be complete.

        After the last commit the AppWrapper is always looked at again.
        """
        for _ in range(MOST_STEPS):
            observed = await self._observer.observe(uid)
            result = await self._acts.carry_out(uid, observed, decide(observed))
            committed = await self._results.apply(uid, result, observed.record)
            if committed is None:
                return result.is_ending
            if committed.phase not in ACTIVE:
                break
        self._queue.add(uid)
        return False


class Surroundings(Struct, frozen=True):
    """The functions of other parts that the reconciler and its parts call, and the settings that these parts share."""

    wake_scheduler: Callable[[], None]
    offer: Callable[[EventAbout], None]
    """Takes Events that no committed change has."""
    removes: Callable[[str, int], bool]
    """True of an attempt, by the uid of its AppWrapper and its number, whose objects are being removed."""
    is_in_doubt: Callable[[str], bool]
    """True of an AppWrapper about which restore recovery has not decided yet."""
    has_policy_unread: Callable[[str], bool]
    """True of a gang that will be added to the queue once its policy was read."""
    outlook_of: Callable[[str], Outlook | None]
    beyond_quota_of: Callable[[str], str | None]
    unserved_of: Callable[[str], str]
    """These three as `StatusWriter` has them."""
    monotonic: Callable[[], float] = time.monotonic
    denied_namespaces: frozenset[str] = frozenset()
    gates_growth: bool = True
    """These two as `Creator` has them."""


class Reconciling(Struct, frozen=True):
    """A reconciler, and those of its parts that others ask."""

    reconciler: Reconciler
    observer: Observer
    pacing: Pacing
    results: Results
    status_writer: StatusWriter


def compose(
    context: AttemptContext,
    cache: Cache,
    committer: Committer,
    queue: WorkQueue,
    intake: Intake,
    limits: Limits,
    members: Members,
    around: Surroundings,
) -> Reconciling:
    """The reconciler of a leader with all its parts."""
    informer, clusters, pacing = context.informer, context.clusters, Pacing()
    choices = Pacing(CHOSEN_EVERY)
    observer = Observer(context, cache, limits, pacing, choices, members, around.is_in_doubt)
    creator = Creator(
        context,
        cache,
        queue.failures,
        members,
        around.removes,
        around.denied_namespaces,
        gates_growth=around.gates_growth,
    )
    acts = Acts(context, intake, creator, pacing, around.offer, members)
    results = Results(
        committer, informer, clusters, queue, pacing, choices, around.wake_scheduler, context.now
    )
    status_writer = StatusWriter(
        informer,
        cache,
        clusters,
        queue,
        monotonic=around.monotonic,
        bound=limits.bound,
        outlook_of=around.outlook_of,
        beyond_quota_of=around.beyond_quota_of,
        names_approvals=limits.names_approvals,
        unserved_of=around.unserved_of,
    )
    reconciler = Reconciler(observer, acts, results, status_writer, queue, around.has_policy_unread)
    return Reconciling(reconciler, observer, pacing, results, status_writer)
