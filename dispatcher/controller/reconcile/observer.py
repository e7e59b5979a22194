"""Observing one AppWrapper: everything that the caches show of it, as one value for `decide`.

Drift is the fields of a dispatched gang's objects that somebody has edited. The status shows it, nothing reverts it. A
watch raises the suspicion, by the edition of an object. A background task compares the object with the manifest; the
outcome is in memory only. After a restart, or when a member is connected again, edited objects are compared anew,
without knowing how they were created: see `core.kinds.drift.edited`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from dispatcher.api import conditions as words
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.limits import Limits
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.reconcile.result import Pacing
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.kinds.drift import message
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.kinds.provisioning_request import request_ref
from dispatcher.core.lifecycle.decision import finished_items, is_unchanged
from dispatcher.core.lifecycle.growth import unplaced_in
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.missing_pods import Withheld, withheld_by
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.step import Loss, ObservedState
from dispatcher.core.model.records.record import ACTIVE, ObjectRef, Pending, Phase, Record
from dispatcher.kube.objects.appwrappers import AppWrapperView
from dispatcher.kube.objects.drift_checker import Edits, Question


class Observer:
    """Reads the caches; only a lifecycle policy may have to be read from the database.

    `is_in_doubt` is true of an AppWrapper, by uid, about which restore recovery has not decided yet.
    """

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        limits: Limits,
        pacing: Pacing,
        choices: Pacing,
        members: Members,
        is_in_doubt: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._informer = context.informer
        self._cache = cache
        self._limits = limits
        self._members = members
        self._is_in_doubt = is_in_doubt
        self._pacing = pacing
        self._choices = choices

    def is_new(self, uid: str) -> bool:
        """True of an AppWrapper that intake has not queued or rejected yet."""
        return self._cache.get(uid) is None and self._informer.view(uid) is not None

    def is_unread(self, uid: str) -> bool:
        """True while the state of a dispatched gang, its row, or the annotations of its AppWrapper cannot be known."""
        record = self._cache.get(uid)
        if self._is_in_doubt(uid) or (record is not None and record.is_set_aside):
            return True
        if record is None or record.attempt is None or not record.holds_capacity:
            return False
        if self._members.is_connecting(record.attempt.cluster):
            return True
        is_unlisted = self._informer.view(uid) is None and not self._informer.can_tell(record.group)
        return is_unlisted and record.phase in ACTIVE

    def is_unchanged(self, record: Record) -> bool:
        """True unless the watches show that a queued gang is to go to another cluster or queue, or nowhere, by now.

        It is to go nowhere while it lacks approvals, also under a new leader that has followed none of them yet.

        The reconciler follows a user once a second. Within that second the record counts: else a user who changes a
        gang in a loop would keep capacity from others in each cycle.
        """
        view = self._informer.view(record.uid)
        if view is None:
            can_tell = self._informer.can_tell(record.group)
            return not can_tell and not self._limits.names_approvals(record.leaves)
        if self._limits.awaited(view, record.leaves) is not None:
            return False  # the reconciler follows a withdrawn approval at once
        if self._pacing.had_turn(record.uid, self._context.now()):
            return not view.deleting
        queues = self._limits.labels.queues_of(view)
        return is_unchanged(record, not view.deleting, view.mutable_spec, queues)

    async def observe(self, uid: str) -> ObservedState:
        """The observed state of one AppWrapper, now."""
        record, view, now = self._cache.get(uid), self._informer.view(uid), self._context.now()
        if record is None:
            return _observe_new(view, now)
        if view is None and not self._informer.can_tell(record.group):
            return ObservedState(record, True, now)
        policy, objects = await self._observe_objects(record)
        request, request_is_absent = self._observe_request(record)
        bind_within, growth_bind_within = self._bind_within(record), self._growth_bind_within(record)
        is_undispatched = record.phase in {Phase.QUEUED, Phase.SUSPENDED}
        is_on_trust = bind_within is not None or growth_bind_within is not None
        return ObservedState(
            record=record,
            wanted=view is not None and not view.deleting,
            now=now,
            asked=self._limits.asked(view, record) if view else None,
            queues=self._limits.labels.queues_of(view) if view and is_undispatched else (),
            unknown_class=self._limits.unknown_class(view, record) if view and is_undispatched else "",
            cut=self._limits.cut(view, record) if view and is_undispatched else "",
            notifications=self._limits.notifications(view) if view else None,
            chosen_at=self._choices.last(uid, now),
            awaits=self._awaited(record, view),
            awaits_its_own=self._awaits_its_own(record, view),
            policy=policy,
            objects=objects,
            request=request,
            request_is_absent=request_is_absent,
            bind_within=bind_within,
            growth_bind_within=growth_bind_within,
            awaited_pools=self._awaited_pools(record) if is_on_trust else frozenset(),
            unreachable=self._unreachable(record),
            draining=self._draining(record),
            growth_is_awaited=uid in self._cache.awaited_growth,
            loss=self._loss(record),
        )

    def _awaited(self, record: Record, view: AppWrapperView | None) -> Pending | None:
        """The pending reason of a queued gang that lacks approvals now; None if it has all."""
        if view is None or record.phase is not Phase.QUEUED:
            return None
        return self._limits.awaited(view, record.leaves)

    def _awaits_its_own(self, record: Record, view: AppWrapperView | None) -> bool:
        """True if the gang lacks an approval that only its author's annotation names."""
        return view is not None and self._limits.awaits_its_own(view, record.leaves)

    async def finished_items(self, record: Record) -> frozenset[int]:
        """The items of a dispatched gang that its next attempt does not create again, if the gang leaves now."""
        policy, objects = await self._observe_objects(record)
        return finished_items(record, policy, objects)

    def _loss(self, record: Record) -> Loss | None:
        attempt = record.attempt
        return self._members.loss_of(attempt.cluster) if attempt else None

    def _unreachable(self, record: Record) -> str:
        """Why the cluster of a dispatched gang cannot be reached, in a sentence; empty if it can."""
        attempt = record.attempt
        if attempt is None or not record.holds_capacity:
            return ""
        if attempt.cluster in self._context.clusters:
            return ""
        loss = self._members.loss_of(attempt.cluster)
        if loss and loss.is_undeclared:
            return loss.message
        return f"cluster {attempt.cluster} cannot be reached; what runs there may go on"

    def _bind_within(self, record: Record) -> timedelta | None:
        """The time in which the pods of a gang on trust must have nodes; None without trust, and once it has run."""
        attempt = record.attempt
        if attempt is None or attempt.started_at is not None or not attempt.assignment.trusted:
            return None
        return self._members.bind_within_of(attempt.cluster)

    def _growth_bind_within(self, record: Record) -> timedelta | None:
        """The time in which granted pods that trust in potential nodes must have nodes; None without such pods."""
        attempt = record.attempt
        if attempt is None or attempt.growth_trust is None:
            return None
        return self._members.bind_within_of(attempt.cluster)

    def _awaited_pools(self, record: Record) -> frozenset[str]:
        """The pools whose nodes a gang or its growth still waits for; none while its cluster is not reached."""
        cluster = self._context.cluster_of(record)
        if record.attempt is None or cluster is None:
            return frozenset()
        trust = record.attempt.growth_trust
        return cluster.ledger.pools_awaited_by(record.uid, trust.pools if trust else ())

    def _draining(self, record: Record) -> str:
        """Why the cluster of an attempt is being drained, in a sentence; empty if it is not."""
        cluster = self._context.cluster_of(record)
        return cluster.draining if cluster else ""

    def _observe_request(self, record: Record) -> tuple[ObjectState | None, bool]:
        """The state of its ProvisioningRequest, None if no watch shows one; and whether a complete list lacks it."""
        ref, cluster = request_ref(record), self._context.cluster_of(record)
        if ref is None or cluster is None or not ref.uid:
            return None, False
        return cluster.objects.state(ref), cluster.objects.is_absent(ref)

    async def _observe_objects(self, record: Record) -> tuple[LifecyclePolicy, ObservedObjects]:
        """The policy of a dispatched gang, and what the watches of its cluster show."""
        cluster = self._context.cluster_of(record)
        if cluster is None or record.phase not in ACTIVE:
            return LifecyclePolicy(), ObservedObjects()
        policy = await self._context.policy_of(record)
        withheld = _withheld(record, policy, cluster)
        drift = drift_of(self._context, record, cluster, withheld.lowered)
        return policy, _objects_of(record, policy, cluster, drift, withheld)


def _observe_new(view: AppWrapperView | None, now: datetime) -> ObservedState:
    """The state of an AppWrapper without a record. Intake, which reads the spec itself, needs no more of it."""
    if view is None:
        return ObservedState(None, False, now)
    wanted, is_finalizing = not view.deleting and view.is_ours, view.deleting and view.has_finalizer
    return ObservedState(None, wanted, now, is_finalizing=is_finalizing)


def _withheld(record: Record, policy: LifecyclePolicy, cluster: WatchedCluster) -> Withheld:
    refs = record.attempt.objects if record.attempt else ()
    return withheld_by(refs, policy.items, tuple(map(cluster.objects.asked, refs)))


def _objects_of(
    record: Record, policy: LifecyclePolicy, cluster: WatchedCluster, drift: str | None, withheld: Withheld
) -> ObservedObjects:
    refs = record.attempt.objects if record.attempt else ()
    shrinking, ledger = record.attempt.shrinking if record.attempt else None, cluster.ledger
    trust = record.attempt.growth_trust if record.attempt else None
    given_up = [pod for pod in shrinking.pods if ledger.is_live(pod.uid)] if shrinking else []
    for ref, item in zip(refs, policy.items, strict=False):
        if item.words:
            cluster.objects.want(ref.api_version, ref.kind, contents=True)
    return ObservedObjects(
        pods=cluster.pod_counts(record.uid),
        states=tuple(map(cluster.objects.state, refs)),
        absent=tuple(filter(cluster.objects.is_absent, refs)),
        unserved=tuple(filter(cluster.objects.is_unserved, refs)),
        drift=drift,
        taken=ledger.taken(record.uid) if cluster.is_ready else None,
        taken_pods=ledger.taken_pods(record.uid, record.charged_pods),
        beyond=ledger.beyond(record.uid),
        gated=tuple(ledger.gated(record.uid)),
        gives_up=bool(given_up),
        to_delete=tuple(pod for pod in given_up if not ledger.is_ending(pod.uid)),
        unplaced=unplaced_in(ledger.surplus(record.uid)) if trust else (),
        withheld=withheld,
    )


def drift_of(
    context: AttemptContext, record: Record, cluster: WatchedCluster, lowered: str = ""
) -> str | None:
    """The edited fields, in a sentence; a noted drift stands until every object is compared. Empty without drift.

    `lowered` is a sentence about objects that ask for fewer pods, which a comparison of fields leaves out.

    None while a comparison is due that may find one. Objects that no watch has shown are left out: a watch may be
    refused for ever.
    """
    objects = [ref for ref in (record.attempt.objects if record.attempt else ()) if ref.uid and not ref.done]
    seen = [ref for ref in objects if cluster.objects.state(ref) is not None]
    edits = [(ref, _edits(context, record, ref, cluster)) for ref in seen]
    found = [(ref, each) for ref, each in edits if each is not None]
    if len(found) < len(objects) and (noted := _noted(record)):
        return noted
    said = "; ".join(filter(None, (lowered, message(found))))
    return said or (None if len(found) < len(seen) else "")


def _noted(record: Record) -> str:
    issue = record.unhealthy
    return issue.message if issue is not None and issue.reason == words.DRIFTED else ""


def _edits(context: AttemptContext, record: Record, ref: ObjectRef, cluster: WatchedCluster) -> Edits | None:
    """The edits of one object that a watch has shown; None until it is compared."""
    edition = cluster.objects.edition(ref)
    if edition is None:
        return ()
    if edition.generation == 1 or edition.version == cluster.object_client.version_made(ref.uid):
        return ()  # unchanged since its creation

    async def compare() -> Edits:
        wrapped = (await context.specs.of(record)).wrapped[ref.item]
        return await cluster.object_client.edits(wrapped, ref, context.owner_of(record))

    return cluster.drift_checker.ask(Question(record.uid, ref, edition, compare))
