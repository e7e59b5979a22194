"""Writes the status that a record projects to: once per observable step, and never the same status twice.

Steps that follow each other at once share one write: the status of a queued AppWrapper is written after its first
scheduling cycle, that of an AppWrapper in creation after the creation, or once that takes longer. Changed pod counts
alone are written at most once a second. The writer compares with the status that the watch shows, so a restart writes
nothing; until the watch shows the last written status, it compares with that one.

The API server needs seconds to write the status of an AppWrapper that is too large to be read, or of any once it has
too much to do, and a tenth of a second for each that is large (`AppWrapperView.is_quick`). So these writes, and those
that follow a write which failed, wait for each other and have a lane of the work queue of their own
(`controller.reconcile.reconciler.lane_of`), and the pauses of one that fails double. Otherwise a tenant's large
AppWrappers take all places of the lane, and their statuses, which often change together, keep the API server busy for
seconds. Writes that take seconds and those of large ones do not wait for each other: large gangs are honest mostly.
Writes of AppWrappers that are too large have more time, and are refused once the AppWrapper has changed: one may still
be on its way when another leader writes.

A write replaces the whole status, but never changes the conditions of other clients. If there are any, or if approvals
are expected, the write is refused when the status has changed since the watch showed it. It follows once the watch
shows the change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.conditions import ConditionType
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.intake import namespace_bounds
from dispatcher.core.intake.namespace_bounds import QueueBound
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.status.conditions import POD_COUNTS, Shown, conditions_of_others, project
from dispatcher.core.status.outlook import Outlook, outlook_in
from dispatcher.kube import bounds
from dispatcher.kube.objects.appwrappers import AppWrapperView, encode_status

SECONDS_BETWEEN_COUNTS: Final = 1.0
PATIENCE_SECONDS: Final = 1.0
"""A creation or a completion that takes longer than this is reported before it is done."""
RETRY_SECONDS: Final = 2.0
"""Pause before a status that could not be written is tried again; it doubles with each failure."""
LONGEST_RETRY_SECONDS: Final = 60.0
"""The longest pause. An AppWrapper that is too large to be read has no shorter one: a try costs as much as hundreds."""

MOST_DOUBLINGS: Final = 20

Status = dict[str, Any]

_log = log.get("status_writer")


class _Written(Struct, frozen=True):
    status_json: bytes
    resource_version: int
    at: float


class StatusWriter:
    """Writes the status of one AppWrapper at a time; `monotonic` is in seconds.

    `outlook_of` returns the outlook of a queued AppWrapper by uid; None while this leader has none yet. The outlook in
    the status then stays, so that a new leader does not remove it and write it again. So it is with `beyond_quota_of`,
    the sentence about a gang that grew beyond the quota of its queue. `names_approvals` is true of queues that name
    approvals. `unserved_of` says why a new AppWrapper waits for a kind; empty of others.
    """

    def __init__(
        self,
        informer: AppWrapperInformer,
        cache: Cache,
        clusters: Mapping[str, WatchedCluster],
        queue: WorkQueue,
        *,
        monotonic: Callable[[], float],
        bound: QueueBound,
        outlook_of: Callable[[str], Outlook | None],
        beyond_quota_of: Callable[[str], str | None],
        names_approvals: Callable[[tuple[str, ...]], bool],
        unserved_of: Callable[[str], str],
    ) -> None:
        self._informer = informer
        self._cache = cache
        self._clusters = clusters
        self._queue = queue
        self._monotonic = monotonic
        self._bound = bound
        self._outlook_of = outlook_of
        self._beyond_quota_of = beyond_quota_of
        self._names_approvals = names_approvals
        self._unserved_of = unserved_of
        self._written: dict[str, _Written] = {}
        self._changing_since: dict[str, tuple[Phase, float]] = {}
        self._one_slow, self._one_large = asyncio.Semaphore(1), asyncio.Semaphore(1)

    async def report_or_retry(self, uid: str, *, is_ending: bool = False) -> None:
        """Like `report`; a status that cannot be written is tried again later and fails no step."""
        try:
            await self.report(uid, is_ending=is_ending)
        except errors.ClusterError as error:
            _log.warning("report_failed", uid=uid, error=str(error))
            failures = self._informer.note_unwritten(uid)
            self._queue.add_later(uid, _pause(self._informer.view(uid), failures))

    async def report(self, uid: str, *, is_ending: bool = False) -> None:
        """Write the status of one AppWrapper, if it differs. Raises `ClusterError`.

        The status of a gang that `is_ending`, which is about to be complete, is written after a second at the earliest.
        """
        record, view = self._cache.get(uid), self._informer.view(uid)
        if view is None:
            self._bound.forget(uid)
        elif record is None and (status := self._status_outside_queue(view)):
            await self._report_outside_queue(view, status)
            return
        if record is None or view is None or (view.deleting and not view.has_finalizer):
            self._written.pop(uid, None)
            self._changing_since.pop(uid, None)
            return
        if not self._is_due(record, is_ending):
            return
        shown = self._shown(view)
        status = self._status(record, view, shown)
        if status == shown or self._only_counts_too_soon(uid, status, shown):
            return
        await self._write(view, status, shown)

    def _status_outside_queue(self, view: AppWrapperView) -> Status:
        """The status of an AppWrapper that is deferred, or waits for a kind before its intake; empty for others."""
        if self._bound.is_deferred(view.uid):
            return namespace_bounds.deferred_status(
                view.namespace, self._bound.most, has_components=view.has_components
            )
        if not_served := self._unserved_of(view.uid):
            return namespace_bounds.status_without_kind(not_served, has_components=view.has_components)
        return {}

    async def _report_outside_queue(self, view: AppWrapperView, status: Status) -> None:
        """Write once that the AppWrapper is outside the queue."""
        shown = self._shown(view)
        if others := conditions_of_others(shown):
            status["conditions"] = list(others)
        if status != shown:
            await self._write(view, status, shown)

    def _is_due(self, record: Record, is_ending: bool) -> bool:
        """False while the next step is about to change what would be written."""
        if record.phase is Phase.QUEUED:
            evaluated = record.condition(ConditionType.HEAD_OF_LINE)
            return record.pending is not None or (evaluated is not None and evaluated.status)
        if record.phase is not Phase.DISPATCHING and not is_ending:
            self._changing_since.pop(record.uid, None)
            return True
        now = self._monotonic()
        phase, since = self._changing_since.get(record.uid, (record.phase, now))
        if phase is not record.phase:
            since = now
        self._changing_since[record.uid] = record.phase, since
        if now >= since + PATIENCE_SECONDS:
            return True
        self._queue.add_later(record.uid, PATIENCE_SECONDS)
        return False

    def _status(self, record: Record, view: AppWrapperView, said: Status) -> Status:
        """The status to write in place of the one that is said now."""
        attempt = record.attempt
        beyond = self._beyond_quota_of(record.uid)
        if beyond is None:
            beyond = str(said.get("beyondQuota", ""))
        shown = Shown(
            has_components=view.has_components, beyond_quota=beyond, others=conditions_of_others(said)
        )
        cluster = self._clusters.get(attempt.cluster) if attempt and record.has_objects else None
        if cluster is None:
            outlook = self._outlook_of(record.uid)
            if outlook is None:
                outlook = outlook_in(said)
            return project(record, replace(shown, outlook=outlook))
        pods, waiting = cluster.pod_counts(record.uid), cluster.pending_pods(record.uid)
        return project(record, replace(shown, pods=pods, pending_pods=tuple(waiting)))

    def _shown(self, view: AppWrapperView) -> Status:
        """The status that readers see, or will see once the last write reaches them."""
        ahead = self._ahead(view)
        return view.status if ahead is None else bounds.loads_unbounded(ahead.status_json)

    def _ahead(self, view: AppWrapperView) -> _Written | None:
        """The last write, if the watch does not show it yet."""
        written = self._written.get(view.uid)
        return written if written and int(view.resource_version) < written.resource_version else None

    def _only_counts_too_soon(self, uid: str, status: Status, shown: Status) -> bool:
        if _without_counts(status) != _without_counts(shown):
            return False
        written = self._written.get(uid)
        wait = SECONDS_BETWEEN_COUNTS - (self._monotonic() - written.at) if written else 0.0
        if wait > 0:
            self._queue.add_later(uid, wait)
        return wait > 0

    async def _write(self, view: AppWrapperView, status: Status, shown: Status) -> None:
        """Write a status in place of the one that is shown."""
        written = encode_status(status)
        try:
            async with self._turn_of(view.uid):
                version = await self._informer.write_status(view, written, self._guard(view, shown))
        except errors.NotFound:
            return  # it was deleted meanwhile; its deletion is on the way to us
        except errors.Conflict:
            self._queue.add_later(view.uid, _pause(view))  # if the event of the other change has come already
            return
        except errors.Invalid as error:
            # Most likely another AppWrapper has the name now; the test of the uid has protected it.
            _log.warning("status_refused", appwrapper=f"{view.namespace}/{view.name}", error=str(error))
            return
        self._written[view.uid] = _Written(written, int(version), self._monotonic())

    def _turn_of(self, uid: str) -> AbstractAsyncContextManager[None]:
        """The turn that a status write waits for; a write that the API server does at once waits for none."""
        if self._informer.is_slow(uid):
            return self._one_slow
        return self._one_large if self._informer.is_large(uid) else contextlib.nullcontext()

    def _guard(self, view: AppWrapperView, shown: Status) -> str | None:
        """The resource version that a write may replace; `shown` is the status that it replaces.

        None for any, where no other client writes conditions and the write ends before the lease does.
        """
        ahead, record = self._ahead(view), self._cache.get(view.uid)
        expects = view.approvals or (record is not None and self._names_approvals(record.leaves))
        may_replace_any = not expects and not view.excess
        if may_replace_any and not conditions_of_others(shown):
            return None
        return view.resource_version if ahead is None else str(ahead.resource_version)


def _pause(view: AppWrapperView | None, failures: int = 1) -> float:
    """Seconds until a status that could not be written is tried again, after so many failures."""
    if view is not None and view.excess:
        return LONGEST_RETRY_SECONDS
    return min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** (min(failures, MOST_DOUBLINGS) - 1))


def _without_counts(status: Status) -> Status:
    return {key: value for key, value in status.items() if key not in {*POD_COUNTS, "pendingpodconditions"}}
