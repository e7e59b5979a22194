"""One AppWrapper at a time: observe, decide, act, commit, report.

What to do is `core.decision.decide`'s to say; here is only how. Every act is safe to repeat, because the
intent was committed before it: a crash between act and commit leads to the same act again. The status is
written last, from the record, and only if it differs from what was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from dispatcher import errors, log
from dispatcher.controller.admission import Admission
from dispatcher.controller.cluster import Cluster
from dispatcher.controller.committer import Committer
from dispatcher.controller.hub import Hub
from dispatcher.controller.reporter import Reporter
from dispatcher.controller.roster import Roster
from dispatcher.controller.specs import Specs, owner_of, priority_of
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core import lifecycle
from dispatcher.core.capacity import PodCounts
from dispatcher.core.decision import Observation, Step, decide, retry_pause
from dispatcher.core.manifest import reference
from dispatcher.core.record import Change, ObjectRef, Phase, Record
from dispatcher.kube.appwrappers import AppWrapperView
from dispatcher.kube.wrapped import Created, InTheWay, Postponed, RefusedForGood

CONFIRM_SECONDS = 0.5
"""Pause before looking again whether objects or pods are gone; events usually come first."""

REFUSED_SECONDS = 5.0
"""Pause before another try of a step that the database did not accept; the reason is in the log."""

REPORT_AGAIN_SECONDS = 2.0
"""Pause before a status that could not be written is tried again."""

LONGEST_IN_THE_WAY = timedelta(seconds=30)
"""How long an attempt waits for an earlier object to go before its capacity is given back for a while."""

MOST_FAILURES = 9
"""Creations that fail in a row, over some 25 seconds, before capacity is given back and taken anew later."""

_log = log.get("reconciler")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the reconciler works with."""

    hub: Hub
    hub_id: str
    clusters: Mapping[str, Cluster]
    roster: Roster
    committer: Committer
    admission: Admission
    specs: Specs
    reporter: Reporter
    queue: WorkQueue
    wake_dispatch: Callable[[], None]
    now: Callable[[], datetime]


class Reconciler:
    """Takes keys (uids) from the work queue; several workers may run at once, never two on one key."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def run(self) -> None:
        """Handle key after key until cancelled."""
        queue = self._parts.queue
        while True:
            uid = await queue.get()
            try:
                await self.reconcile(uid)
            except errors.ClusterError as error:
                pause = queue.add_failed(uid)
                _log.warning("retry", uid=uid, error=str(error), pause=round(pause, 1))
            except errors.StoreError:
                raise
            except Exception:  # noqa: BLE001  # the loop's edge: one AppWrapper must not end the others
                pause = queue.add_failed(uid)
                _log.exception("reconcile_failed", uid=uid, pause=round(pause, 1))
            else:
                if not self._is_newcomer(uid):  # that one succeeds when it is taken in
                    queue.succeed(uid)
            finally:
                queue.done(uid)

    def _is_newcomer(self, uid: str) -> bool:
        return self._parts.roster.get(uid) is None and self._parts.hub.view(uid) is not None

    async def reconcile(self, uid: str) -> None:
        """One look at one AppWrapper."""
        seen = self._observe(uid)
        try:
            await self._act(uid, seen)
        except errors.ClusterError:
            await self._report(uid)  # what takes long is told, too
            raise
        await self._report(uid)

    async def _report(self, uid: str) -> None:
        """Report, or have it tried again later: a status that cannot be written is no failure of the step."""
        try:
            await self._parts.reporter.report(uid)
        except errors.ClusterError as error:
            _log.warning("report_failed", uid=uid, error=str(error))
            self._parts.queue.add_later(uid, REPORT_AGAIN_SECONDS)

    async def _act(self, uid: str, seen: Observation) -> None:
        """Carry out the step that is due."""
        record = seen.record
        match decide(seen):
            case Step.REST:
                pass
            case Step.ADMIT:
                self._parts.admission.add(uid)
            case Step.FORGET:
                await self._forget(_known(record))
            case Step.REPRIORITISE:
                await self._reprioritise(_known(record), seen)
            case Step.CREATE:
                await self._create(_known(record))
            case Step.MARK_RUNNING:
                await self._commit(lifecycle.mark_running(_known(record), self._parts.now()))
            case Step.REMOVE:
                await self._remove(_known(record))
            case Step.CONFIRM_GONE:
                await self._confirm_gone(_known(record))
            case never:
                assert_never(never)

    def _observe(self, uid: str) -> Observation:
        record = self._parts.roster.get(uid)
        view = self._parts.hub.view(uid)
        if view is None and record is not None and not self._parts.hub.can_tell(record.group):
            return Observation(record, wanted=True, pods=self._pods(record))
        wanted = view is not None and not view.deleting
        return Observation(record, wanted, self._pods(record), self._asked(record, view))

    def _is_wanted(self, record: Record) -> bool:
        view = self._parts.hub.view(record.uid)
        return view is not None and not view.deleting

    def _asked(self, record: Record | None, view: AppWrapperView | None) -> tuple[int, float] | None:
        if record is None or view is None or record.phase is not Phase.QUEUED:
            return None
        return priority_of(view.spec)

    def _pods(self, record: Record | None) -> PodCounts:
        cluster = self._cluster_of(record)
        return cluster.pod_counts(record.uid) if cluster and record else PodCounts()

    def _cluster_of(self, record: Record | None) -> Cluster | None:
        if record is None or record.attempt is None or not record.holds_capacity:
            return None
        return self._parts.clusters.get(record.attempt.cluster)

    async def _forget(self, record: Record) -> None:
        """The watch says it is gone. Before an attempt is given up for that, the API server is asked itself."""
        view = self._parts.hub.view(record.uid)
        if record.holds_capacity and view is None and await self._parts.hub.exists(record):
            self._parts.queue.add_later(record.uid, CONFIRM_SECONDS)
            return
        await self._commit(lifecycle.delete(record, self._parts.now()))
        self._parts.wake_dispatch()  # those behind it may have waited for it to move

    async def _reprioritise(self, record: Record, seen: Observation) -> None:
        if seen.asked is not None:
            await self._commit(lifecycle.reprioritise(record, *seen.asked, self._parts.now()))
            self._parts.wake_dispatch()

    async def _create(self, record: Record) -> None:
        cluster = self._cluster_of(record)
        if cluster is None:
            return
        if self._parts.queue.failures(record.uid) >= MOST_FAILURES:
            await self._commit(self._postponed(record, (), "the API server kept failing to create it"))
            return
        spec = await self._parts.specs.of(record)
        owner = owner_of(record, self._parts.hub_id)
        made: list[ObjectRef] = []
        for wrapped in spec.wrapped:
            if not self._is_wanted(record):
                self._parts.queue.add(record.uid)  # deleted meanwhile: what is created now would outlive it
                return
            outcome = await cluster.wrapped.create(wrapped, owner)
            match outcome:
                case Created(ref):
                    cluster.learn_object(ref, record.uid)  # its pods may well be seen before the commit
                    made.append(ref)
                case InTheWay(message):
                    _log.info("in_the_way", appwrapper=record.key, uid=record.uid, detail=message)
                    if self._has_waited_long(record):
                        await self._commit(self._postponed(record, tuple(made), message))
                    else:
                        self._parts.queue.add_later(record.uid, CONFIRM_SECONDS)
                    return
                case Postponed(message):
                    await self._commit(self._postponed(record, tuple(made), message))
                    return
                case RefusedForGood(message):
                    said = f"{record.key} creation failure: {message}"
                    change = lifecycle.refuse_creation(record, tuple(made), said, self._parts.now())
                    await self._commit(change)
                    return
        await self._commit(lifecycle.created(record, tuple(made), self._parts.now()))

    def _has_waited_long(self, record: Record) -> bool:
        """True once its capacity was taken for long enough without anything to show for it."""
        decided = record.attempt.decided_at if record.attempt else self._parts.now()
        return self._parts.now() - decided >= LONGEST_IN_THE_WAY

    def _postponed(self, record: Record, made: tuple[ObjectRef, ...], message: str) -> Change:
        now = self._parts.now()
        return lifecycle.postpone_creation(record, made, message, now + retry_pause(record.attempts), now)

    async def _remove(self, record: Record) -> None:
        """Delete what a failed attempt created, last first; commit once all of it is gone."""
        cluster = self._cluster_of(record)
        if cluster is None:
            return
        owner = owner_of(record, self._parts.hub_id)
        refs = await self._refs(record)
        gone = [await cluster.wrapped.remove(ref, owner) for ref in reversed(refs)]
        if all(gone) and await self._no_live_pods(record, cluster):
            await self._commit(lifecycle.removed(record, self._parts.now()))
            self._parts.wake_dispatch()
        else:
            self._parts.queue.add_later(record.uid, CONFIRM_SECONDS)

    async def _confirm_gone(self, record: Record) -> None:
        """Release what a deleted AppWrapper holds, once neither objects nor live pods are left."""
        cluster = self._cluster_of(record)
        if cluster is None:
            return
        if await self._is_gone(record, cluster):
            await self._commit(lifecycle.release(record, self._parts.now()))
            self._parts.wake_dispatch()
        else:
            self._parts.queue.add_later(record.uid, CONFIRM_SECONDS)

    async def _is_gone(self, record: Record, cluster: Cluster) -> bool:
        if cluster.pod_counts(record.uid).live:
            return False  # not proof, but it saves asking: their going is an event that wakes us
        for ref in await self._refs(record):
            if not await cluster.wrapped.is_gone(ref, record.uid):
                return False
        return await self._no_live_pods(record, cluster)

    async def _no_live_pods(self, record: Record, cluster: Cluster) -> bool:
        return (record.namespace, record.uid) not in await cluster.live_pods.owners()

    async def _refs(self, record: Record) -> list[ObjectRef]:
        """Every object the attempt may have created: with its uid where the answer is known."""
        owner = owner_of(record, self._parts.hub_id)
        known = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
        spec = await self._parts.specs.of(record)
        return [known.get(wrapped.index, reference(wrapped, owner)) for wrapped in spec.wrapped]

    async def _commit(self, change: Change) -> None:
        """Commit one step, and look again: the next may be due at once."""
        record = await self._parts.committer.commit(change)
        if record is None:
            self._parts.queue.add_later(change.after.uid, REFUSED_SECONDS)
            return
        for cluster in self._parts.clusters.values():
            cluster.learn(record)
        self._parts.queue.add(change.after.uid)


def _known(record: Record | None) -> Record:
    """The record of a step that only records have."""
    if record is None:
        raise errors.IllegalTransition("a step without a record")
    return record
