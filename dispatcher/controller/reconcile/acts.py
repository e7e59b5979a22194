"""Carrying out a decision about one AppWrapper: each act returns a `Result`, and commits nothing by itself.

Of gangs that grow by grants, `PodAdmitter` removes the dispatcher's scheduling gate from pods, and `PodDeleter` deletes
pods that are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from dispatcher import errors, log
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.intake import Intake
from dispatcher.controller.reconcile.creation import Creator
from dispatcher.controller.reconcile.event_recorder import event_about
from dispatcher.controller.reconcile.remediation import Remediator, Remover, pools_failed
from dispatcher.controller.reconcile.result import NOTHING, Pacing, Result, Withdrawals, poll
from dispatcher.core.lifecycle import approvals, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.growth import without_unplaced
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do, ObservedState
from dispatcher.core.model.gangs.growth import GatedPod, PodRef
from dispatcher.core.model.records.record import Record
from dispatcher.core.status.events import UserEvent, pods_not_admitted, pods_not_deleted
from dispatcher.kube.objects.events import EventAbout


class Acts:
    """One act for each decision. Every act may be repeated: a crash before the commit leads to the same act again.

    `offer` takes Events that no committed step has.
    """

    def __init__(
        self,
        context: AttemptContext,
        intake: Intake,
        creator: Creator,
        pacing: Pacing,
        offer: Callable[[EventAbout], None],
        members: Members,
    ) -> None:
        self._context = context
        self._informer = context.informer
        self._intake = intake
        self._creator = creator
        self._remover = Remover(context)
        self._members = members
        self._remediator = Remediator(context, self._members.note_pools_failed)
        self._admitter = PodAdmitter(context, offer)
        self._deleter = PodDeleter(context, offer)
        self._pacing = pacing
        self._withdrawals = Withdrawals()

    async def carry_out(self, uid: str, observed: ObservedState, decision: Decision) -> Result:
        """Carries out a decision about the AppWrapper of that uid."""
        if isinstance(decision, Commit):
            return await self._commit(decision)
        match decision.act:
            case Act.NOOP:
                return _rest(observed, decision)
            case Act.TAKE_IN:
                self._intake.add(uid)
                return NOTHING
            case Act.REMOVE_FINALIZER:
                return await self._remove_finalizer(uid)
        if observed.record is None:
            raise AssertionError(f"{decision.act} needs a record")
        return await self._act_on(observed.record, observed, decision)

    async def _commit(self, decision: Commit) -> Result:
        """The change of the decision; what a user asks for is committed at most once a second."""
        change, attempt = decision.change, decision.change.after.attempt
        if decision.follows_user and (wait := self._pacing.wait(change.after.uid, self._context.now())):
            return Result(after=wait)
        if attempt is not None and (pools := run_changes.pools_that_came(change)):
            await self._members.note_pools_came(attempt.cluster, pools)
        return Result(change, wakes_scheduler=decision.wakes_scheduler, follows_user=decision.follows_user)

    async def _act_on(self, record: Record, observed: ObservedState, decision: Do) -> Result:
        match decision.act:
            case Act.DELETE:
                return await self._delete(record)
            case Act.FOLLOW_APPROVALS:
                return self._follow_approvals(record, observed)
            case Act.CREATE:
                return await self._creator.create(record)
            case Act.REQUEST_CAPACITY:
                return await self._creator.request_capacity(record)
            case Act.REQUEST_ELSEWHERE:
                return self._creator.request_elsewhere(record, decision.message)
            case Act.NOTE_HEALTH_ISSUE:
                return await self._remediator.note(record, observed, decision)
            case Act.TAKE_BACK_GROWTH:
                return await self._take_back_growth(record, observed, decision)
            case Act.ADMIT_PODS:
                return await self._admitter.admit(record, decision.pods, _rest(observed, decision))
            case Act.DELETE_PODS:
                pods = observed.objects.to_delete
                return await self._deleter.delete(record, pods, _rest(observed, decision))
            case Act.COMPLETE:
                return await self._remediator.complete(record, observed, decision)
            case Act.REQUEUE | Act.FAIL:
                return await self._remediator.end(record, observed, decision)
            case Act.REMOVE:
                return await self._remover.remove(record)
            case Act.CONFIRM_GONE:
                return await self._remover.confirm_gone(record)
            case Act.EXPIRE:
                return await self._remover.expire(record)
            case Act.NOOP | Act.TAKE_IN | Act.REMOVE_FINALIZER:
                raise AssertionError(f"{decision.act} needs no record")
            case never:
                assert_never(never)

    async def _take_back_growth(self, record: Record, observed: ObservedState, decision: Do) -> Result:
        """Commits that granted pods without nodes are given up, once their pools are not trusted any more."""
        attempt, cluster = record.attempt, self._context.cluster_of(record)
        if attempt is None or cluster is None:
            return NOTHING
        # Before the commit, as for a gang: the next pass must not grant the same pods on the same pool.
        await self._members.note_pools_failed(pools_failed(record, observed, cluster))
        shrinking = without_unplaced(attempt.grown, observed.objects.unplaced)
        change = run_changes.take_back_growth(record, shrinking, decision.message, self._context.now())
        return Result(change, wakes_scheduler=True)

    async def _remove_finalizer(self, uid: str) -> Result:
        """Lets the API server delete an AppWrapper, once intake has asked every member what it has of it."""
        view = self._informer.view(uid)
        if self._intake.is_unsure(uid):
            self._intake.add(uid)
        elif view is not None:
            await self._informer.remove_finalizer(view)
        return NOTHING

    async def _delete(self, record: Record) -> Result:
        """Commits the deletion of an AppWrapper; before an attempt ends for it, the API server confirms it."""
        view = self._informer.view(record.uid)
        if record.holds_capacity and view is None and await self._informer.exists(record):
            return poll()
        # Under StrictFIFO, gangs that were not evaluated may have waited for this one.
        return Result(removal.delete(record, self._context.now()), wakes_scheduler=True)

    def _follow_approvals(self, record: Record, observed: ObservedState) -> Result:
        """Commits which approvals are missing: at once if the gang was not waiting for any, else after a pause."""
        now, known, seen = self._context.now(), record.pending, observed.awaits
        known = known if record.awaits_approval else None
        wait = self._withdrawals.wait(record.uid, now)
        if known is not None and wait:
            return Result(after=wait)
        if approvals.is_withdrawal(known, seen):
            self._withdrawals.note(record.uid, now)
        change = (
            queue_changes.approve(record, now)
            if seen is None
            else queue_changes.await_approvals(record, seen, now, is_authors_own=observed.awaits_its_own)
        )
        return Result(change, wakes_scheduler=True)


def _rest(observed: ObservedState, decision: Do) -> Result:
    """Looks again when the next deadline is up, if there is one."""
    if decision.until is None:
        return NOTHING
    return Result(after=max(0.0, (decision.until - observed.now).total_seconds()))


MOST_TOLD: Final = 1000
"""The number of gangs whose last refusal is remembered. With more gangs, the Event of a refusal may be repeated."""

_log = log.get("pod_admission")


class PodAdmitter:
    """Removes gates; a refusal by the API server is offered as an Event, once for each attempt and message."""

    def __init__(self, context: AttemptContext, offer: Callable[[EventAbout], None]) -> None:
        self._context = context
        self._refusals = _Refusals(context, offer)

    async def admit(self, record: Record, pods: Sequence[GatedPod], then: Result) -> Result:
        """Removes the gate from these pods; `then` is the result once that is done. Raises `ClusterError`."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        try:
            await cluster.growth_gates.remove_from(pods)
        except errors.Forbidden as error:
            _log.warning("admission_forbidden", appwrapper=record.key, uid=record.uid, error=str(error))
            self._refusals.tell(record, pods_not_admitted(cluster.name, str(error)))
            return poll()
        self._refusals.forget(record)
        return then


class PodDeleter:
    """Deletes surplus pods; a refusal by the API server is offered as an Event, like those of `PodAdmitter`."""

    def __init__(self, context: AttemptContext, offer: Callable[[EventAbout], None]) -> None:
        self._context = context
        self._refusals = _Refusals(context, offer)

    async def delete(self, record: Record, pods: Sequence[PodRef], then: Result) -> Result:
        """Deletes these pods; `then` is the result once all deletions are requested. Raises `ClusterError`.

        The watch shows when the pods are gone: a pod has its own grace period.
        """
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        try:
            await cluster.surplus_pods.delete(pods)
        except errors.Forbidden as error:
            _log.warning("deletion_forbidden", appwrapper=record.key, uid=record.uid, error=str(error))
            self._refusals.tell(record, pods_not_deleted(cluster.name, str(error)))
            return poll()
        self._refusals.forget(record)
        return then


class _Refusals:
    """The refusals that have an Event already, by the uid of the AppWrapper."""

    def __init__(self, context: AttemptContext, offer: Callable[[EventAbout], None]) -> None:
        self._context = context
        self._offer = offer
        self._told: dict[str, tuple[int, UserEvent]] = {}

    def tell(self, record: Record, notice: UserEvent) -> None:
        """Offer the Event, unless it was the last one about this attempt."""
        told = record.attempts, notice
        if self._told.get(record.uid) != told:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[record.uid] = told
            self._offer(event_about(record, notice, self._context.now()))

    def forget(self, record: Record) -> None:
        """The API server does not refuse any more."""
        self._told.pop(record.uid, None)
