"""One AppWrapper at a time: observe, decide, act, commit, report.

What to do is `core.lifecycle.decision.decide`'s to say; here is only how. Every act is safe to repeat, because the
intent was committed before it: a crash between act and commit leads to the same act again. The status is
written last, from the record, and only if it differs from what was written before.
"""

from __future__ import annotations

import asyncio
from typing import Final, assert_never

from dispatcher import errors, log
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile import creation, remediation, removal
from dispatcher.controller.reconcile.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.reconcile.drift import drift_of
from dispatcher.controller.reconcile.parts import Parts
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.lifecycle import steps
from dispatcher.core.lifecycle.decision import Decision, Loss, ObservedState, Step, decide, where_asked
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.record import ACTIVE, Record

UNREAD_SECONDS: Final = 5.0
"""Pause before asking again whether the API server has said what a gang's author wrote."""

_GOES_ON: Final = "what runs there may go on"

REPORT_AGAIN_SECONDS: Final = 2.0
"""Pause before a status that could not be written is tried again."""
LARGE_AGAIN_SECONDS: Final = 60.0
"""The same for an AppWrapper that is too large to be read: a try costs the API server as much as hundreds of others."""

_log = log.get("reconciler")


def lane_of(uid: str, cache: Cache, hub: AppWrapperInformer) -> str:
    """The lane of an AppWrapper in the work queue: the AppWrappers in it may have to wait for the same.

    That is the cluster that is asked about it. AppWrappers that are too large to be read wait for each other's status
    writes as well (`controller.reconcile.status_writer`), so each cluster has a second lane for them.
    """
    cluster, view = cache.cluster_of(uid), hub.view(uid)
    return f"{cluster}/large" if view is not None and view.excess else cluster


class Reconciler:
    """Takes keys (uids) from the work queue; each is handled in a task of its own, never two for one key."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def run(self) -> None:
        """Handle key after key until cancelled; how many at once is for the queue to say."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                uid = await self._parts.queue.get()
                tasks.create_task(self._handle(uid), name=f"reconcile-{uid}")

    async def _handle(self, uid: str) -> None:
        """Look at one AppWrapper, and give it back to the queue: to come again later if that failed."""
        queue = self._parts.queue
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
            if not self._is_newcomer(uid):  # that one succeeds when it is taken in
                queue.succeed(uid)
        finally:
            queue.done(uid)

    def _is_newcomer(self, uid: str) -> bool:
        return self._parts.cache.get(uid) is None and self._parts.hub.view(uid) is not None

    async def reconcile(self, uid: str) -> None:
        """One look at one AppWrapper."""
        if self._is_unread(uid):
            self._parts.queue.add_later(uid, UNREAD_SECONDS)
            return
        seen = await self._observe(uid)
        try:
            await self._act(uid, seen, decide(seen))
            await self._let_go(uid)
        except errors.ClusterError:
            await self._report(uid)  # what takes long is told, too
            raise
        await self._report(uid)

    async def _let_go(self, uid: str) -> None:
        """An AppWrapper that was held because of a member cluster goes once nothing of it is left there."""
        view = self._parts.hub.view(uid)
        if view is None or not (view.deleting and view.is_held) or self._parts.cache.get(uid) is not None:
            return
        if self._parts.intake.is_unsure(uid):
            self._parts.intake.add(uid)
        else:
            await self._parts.hub.let_go(view)

    def _is_unread(self, uid: str) -> bool:
        """True while nobody can tell how a dispatched gang is, or on what terms its author wants it kept."""
        record = self._parts.cache.get(uid)
        if self._parts.is_left_alone(uid):
            return True
        if record is None or record.attempt is None or not record.holds_capacity:
            return False
        if self._parts.is_joining(record.attempt.cluster):
            return True
        unseen = self._parts.hub.view(uid) is None and not self._parts.hub.can_tell(record.group)
        return unseen and record.phase in ACTIVE

    async def _report(self, uid: str) -> None:
        """Report, or have it tried again later: a status that cannot be written is no failure of the step."""
        try:
            await self._parts.status_writer.report(uid)
        except errors.ClusterError as error:
            _log.warning("report_failed", uid=uid, error=str(error))
            view = self._parts.hub.view(uid)
            pause = LARGE_AGAIN_SECONDS if view is not None and view.excess else REPORT_AGAIN_SECONDS
            self._parts.queue.add_later(uid, pause)

    async def _act(self, uid: str, seen: ObservedState, decision: Decision) -> None:
        """Carry out the step that is due."""
        if decision.step is Step.REST:
            self._rest(uid, seen, decision)
        elif decision.step is Step.ADMIT:
            self._parts.intake.add(uid)
        elif seen.record is not None:
            await self._step(seen.record, seen, decision)

    async def _step(self, record: Record, seen: ObservedState, decision: Decision) -> None:
        parts, now = self._parts, self._parts.now()
        match decision.step:
            case Step.FORGET:
                await self._forget(record)
            case Step.REPRIORITISE | Step.REDIRECT | Step.SUSPEND | Step.RESUME:
                await self._follow(record, seen, decision)
            case Step.CREATE:
                await creation.create(parts, record)
            case Step.MARK_RUNNING:
                await parts.commit(steps.mark_running(record, now))
            case Step.NOTE_TROUBLE:
                await parts.commit(steps.fall_ill(record, decision.reason, decision.message, now))
            case Step.NOTE_RECOVERY:
                await parts.commit(steps.recover(record, now))
            case Step.NOTE_DONE:
                await parts.commit(steps.note_done(record, decision.done, now))
            case Step.NOTE_PROGRESS:
                await parts.commit(steps.complete_some(record, decision.done, now))
            case Step.COMPLETE:
                await remediation.complete(parts, record, seen, decision)
            case Step.REQUEUE | Step.FAIL:
                await remediation.act(parts, record, seen, decision)
            case Step.REMOVE:
                await removal.remove(parts, record)
            case Step.CONFIRM_GONE:
                await removal.confirm_gone(parts, record)
            case Step.EXPIRE:
                await removal.expire(parts, record)
            case Step.ABANDON:
                await parts.commit(steps.abandon(record, decision.message, now))
                parts.wake_dispatch()
            case Step.LOSE:
                await parts.commit(steps.lose(record, decision.message, now))
            case Step.REST | Step.ADMIT:
                raise AssertionError(f"{decision.step} is no step of a record")
            case never:
                assert_never(never)

    def _rest(self, uid: str, seen: ObservedState, decision: Decision) -> None:
        """Look again when the next of its times is up, if it has any."""
        if decision.until is not None:
            self._parts.queue.add_later(uid, max(0.0, (decision.until - seen.now).total_seconds()))

    async def _observe(self, uid: str) -> ObservedState:
        parts = self._parts
        record, view, now = parts.cache.get(uid), parts.hub.view(uid), parts.now()
        if view is None and record is not None and not parts.hub.can_tell(record.group):
            return ObservedState(record, True, now)
        wanted = view is not None and not view.deleting and (record is not None or view.is_ours)
        asked = parts.limits.lower(view.namespace, view.asked) if view else None
        terms, sight = await self._sight(record)
        return ObservedState(
            record=record,
            wanted=wanted,
            now=now,
            asked=asked,
            terms=terms,
            sight=sight,
            away=self._away(record),
            draining=self._draining(record),
            loss=self._loss(record),
        )

    def _loss(self, record: Record | None) -> Loss | None:
        attempt = record.attempt if record else None
        return self._parts.loss_of(attempt.cluster) if attempt else None

    def _away(self, record: Record | None) -> str:
        """Why the cluster of a dispatched gang cannot be reached, in a sentence."""
        attempt = record.attempt if record else None
        if record is None or attempt is None or not record.holds_capacity:
            return ""
        if attempt.cluster in self._parts.clusters:
            return ""
        loss = self._parts.loss_of(attempt.cluster)
        return (
            loss.message
            if loss and loss.is_undeclared
            else f"cluster {attempt.cluster} cannot be reached; {_GOES_ON}"
        )

    def _draining(self, record: Record | None) -> str:
        """Why the cluster of an attempt is being emptied, in a sentence; empty if it is not."""
        cluster = self._parts.cluster_of(record)
        return cluster.draining if cluster else ""

    async def _sight(self, record: Record | None) -> tuple[LifecyclePolicy, ObservedObjects]:
        """What is to be seen of it in its cluster, and what it is measured by."""
        cluster = self._parts.cluster_of(record)
        if record is None or record.attempt is None or cluster is None or record.phase not in ACTIVE:
            return LifecyclePolicy(), ObservedObjects()
        terms = await self._parts.specs.terms_of(record, self._parts.hub.tolerance(record.uid))
        return terms, _sight_of(record, terms, cluster, drift_of(self._parts, record, cluster))

    async def _forget(self, record: Record) -> None:
        """The watch says it is gone. Before an attempt is given up for that, the API server is asked itself."""
        view = self._parts.hub.view(record.uid)
        if record.holds_capacity and view is None and await self._parts.hub.exists(record):
            self._parts.look_again(record)
            return
        await self._parts.commit(steps.delete(record, self._parts.now()))
        self._parts.wake_dispatch()  # those behind it may have waited for it to move

    async def _follow(self, record: Record, seen: ObservedState, decision: Decision) -> None:
        """Do what its user has asked for meanwhile; who asks again and again is followed once a second."""
        now, asked = self._parts.now(), seen.asked
        wait = self._parts.pacing.wait(record.uid, now)
        if wait:
            self._parts.queue.add_later(record.uid, wait)
            return
        if decision.step is Step.SUSPEND:
            change = steps.suspend(record, now, decision.done)
        elif decision.step is Step.RESUME:
            change = steps.resume(record, now)
        elif asked is not None and decision.step is Step.REDIRECT:
            change = steps.redirect(record, where_asked(record, asked), now)
        elif asked is not None:
            cut = self._cut(record)
            change = steps.reprioritise(record, asked.priority, asked.priority_slope, now, cut)
        else:
            return
        # Until it is committed, and if it is not, a cycle has to heed what the user asks for, not what the record says.
        if await self._parts.commit(change):
            self._parts.pacing.note(record.uid, self._parts.now())
        self._parts.wake_dispatch()

    def _cut(self, record: Record) -> str:
        """What does not count of the priority that is asked for now."""
        view = self._parts.hub.view(record.uid)
        return self._parts.limits.cut(record.namespace, view.asked) if view and view.asked else ""


def _sight_of(record: Record, terms: LifecyclePolicy, cluster: Cluster, drift: str) -> ObservedObjects:
    objects = record.attempt.objects if record.attempt else ()
    for ref, item in zip(objects, terms.items, strict=False):
        if item.words:
            cluster.objects.want(ref.api_version, ref.kind, contents=True)
    return ObservedObjects(
        pods=cluster.pod_counts(record.uid),
        states=tuple(map(cluster.objects.state, objects)),
        absent=tuple(filter(cluster.objects.is_absent, objects)),
        drift=drift,
    )
