"""Creating the wrapped objects of an AppWrapper: all of them, or what exists is to be removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.specs import hints_of
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.intake.authorization import check_namespace
from dispatcher.core.kinds.manifest import Anchor, Owner, with_gates
from dispatcher.core.kinds.provisioning_request import API_VERSION as PROVISIONING_API_VERSION
from dispatcher.core.kinds.provisioning_request import KIND as PROVISIONING_KIND
from dispatcher.core.kinds.provisioning_request import ProvisioningError, objects_of, refused_parameters
from dispatcher.core.lifecycle import provisioning, run_changes
from dispatcher.core.lifecycle.decision import retry_pause
from dispatcher.core.lifecycle.provisioning import requested
from dispatcher.core.model.records.record import ObjectRef, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.kube.objects.anchors import taken
from dispatcher.kube.objects.object_client import (
    Created,
    Creation,
    InTheWay,
    NameTaken,
    NotServed,
    Postponed,
    RefusedForGood,
)

LONGEST_IN_THE_WAY: Final = timedelta(seconds=30)
"""How long an attempt waits for an earlier object to go before its capacity is given back for a while."""

LOOK_SECONDS: Final = 0.1
"""Pause until the next look at a gang that follows another one, times the number of gangs that it follows."""

LONGEST_LOOK_SECONDS: Final = 1.0
"""The longest pause: in a burst of a thousand gangs the last ones are looked at ten times, not a hundred times."""

MOST_FAILURES: Final = 9
"""Creations that fail in a row, over some 25 seconds, before capacity is given back and reserved again later."""

_log = log.get("creation")


class Creator:
    """Creates gangs. Each creation may be repeated: objects that exist with the attempt's marks are taken as created.

    `failures_of` is the number of failures in a row of an AppWrapper, by uid. `removes` is true of an attempt, given
    by the uid of its AppWrapper and its number, whose objects are being removed. Nothing is created in
    `denied_namespaces`. With `gates_growth`, pods of groups that can grow get the dispatcher's scheduling gate.
    """

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        failures_of: Callable[[str], int],
        members: Members,
        removes: Callable[[str, int], bool],
        denied_namespaces: frozenset[str],
        *,
        gates_growth: bool,
    ) -> None:
        self._context = context
        self._cache = cache
        self._failures_of = failures_of
        self._members = members
        self._removes = removes
        self._denied_namespaces = denied_namespaces
        self._gates_growth = gates_growth

    async def create(self, record: Record) -> Result:
        """Creates every wrapped object that does not exist yet; the result commits the outcome.

        A gang that follows others is looked at again.
        """
        if followed := self._count_followed(record):
            return Result(after=min(LONGEST_LOOK_SECONDS, LOOK_SECONDS * followed))
        return await self._with_owner(record, self._create_all)

    def _count_followed(self, record: Record) -> int:
        """How many gangs, dispatched just before, have pods that are to be bound first."""
        cluster, now = self._context.cluster_of(record), self._context.now()
        if cluster is None:
            return 0
        ahead = filter(None, map(self._cache.get, cluster.ledger.ahead_of(record.uid)))
        return sum(run_changes.goes_first(each, now) for each in ahead)

    async def request_capacity(self, record: Record) -> Result:
        """Creates the objects that request the capacity of the gang; the result commits that they exist."""
        return await self._with_owner(record, self._request_all)

    def request_elsewhere(self, record: Record, message: str) -> Result:
        """Gives the quota back, because the capacity does not come: another cluster is asked, or this one later."""
        now, attempt = self._context.now(), record.attempt
        if attempt is None or attempt.provisioning is None:
            return NOTHING
        asked = record.requirements.unprovisioned_in(attempt.cluster, message)
        has_other = self._members.provides_elsewhere(record, asked)
        return Result(provisioning.fail(record, message, has_other, now))

    async def _with_owner(
        self, record: Record, make: Callable[[Record, WatchedCluster, Owner], Awaitable[Result]]
    ) -> Result:
        """Has objects made under their owner, unless the attempt cannot have one now."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return self._withdraw(record, "its cluster cannot be reached")
        objects = _made_before(record)
        try:
            # Intake may have checked the namespace by another setting.
            check_namespace(record.namespace, self._denied_namespaces)
        except SpecError as error:
            return self._refuse(record, objects, str(error))
        if self._failures_of(record.uid) >= MOST_FAILURES:
            return self._postpone(record, objects, "the API server kept failing to create it")
        owner = await self._bring_about_owner(record, cluster)
        return owner if isinstance(owner, Result) else await make(record, cluster, owner)

    async def _request_all(self, record: Record, cluster: WatchedCluster, owner: Owner) -> Result:
        spec, view = await self._context.specs.of(record), self._context.informer.view(record.uid)
        given = view.provisioning_parameters if view else {}
        try:
            requesting = objects_of(record, spec.wrapped, given)
        except ProvisioningError as error:
            return self._refuse(record, _made_before(record), str(error))
        try:
            await cluster.discovery.find(PROVISIONING_API_VERSION, PROVISIONING_KIND)
        except errors.NotFound as error:
            return self.request_elsewhere(record, f"cluster {cluster.name}: {error}")
        uid = ""
        for each in requesting:
            if not self._context.is_wanted(record):
                return Result(after=0)
            outcome = await cluster.object_client.create(each, owner)
            if not isinstance(outcome, Created):
                return self._give_up(record, _made_before(record), outcome)
            uid = outcome.ref.uid
        attempt = record.attempt
        if (
            attempt is not None
            and attempt.provisioning is not None
            and attempt.provisioning.request_uid == uid
        ):
            return poll()  # it was there all the time, and the watch has not shown it yet
        said = requested(cluster.name, refused_parameters(record, given))
        return Result(provisioning.note(record, said, self._context.now(), uid))

    async def _create_all(self, record: Record, cluster: WatchedCluster, owner: Owner) -> Result:
        places = cluster.ledger.current(record.uid)
        hinted = owner if places is None else replace(owner, hints=hints_of(record.gang, places))
        spec = await self._context.specs.of(record)
        finished = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
        made: list[ObjectRef] = []
        warnings: list[str] = []
        for wrapped in spec.wrapped:
            if wrapped.index in finished:
                made.append(finished[wrapped.index])  # by an earlier attempt
                continue
            if not self._context.is_wanted(record):
                return Result(after=0)  # an object created after the deletion would outlive the AppWrapper
            outcome = await cluster.object_client.create(self._gated(wrapped, cluster), hinted)
            if not isinstance(outcome, Created):
                return self._give_up(record, _with_finished(made, finished), outcome)
            # The watch may well show its pods before the commit.
            cluster.track_object(outcome.ref, record.uid, contents=bool(wrapped.completion))
            made.append(outcome.ref)
            warnings += (f"{outcome.ref.kind} {outcome.ref.name}: {each}" for each in outcome.warnings)
        return Result(run_changes.created(record, tuple(made), self._context.now(), warnings, places))

    def _gated(self, wrapped: WrappedObject, cluster: WatchedCluster) -> WrappedObject:
        """The object to create. If it can grow, its templates have the gate that stops additional pods."""
        kind = cluster.kinds.row(wrapped.group, wrapped.kind).pods
        return with_gates(kind, wrapped) if self._gates_growth and kind is not None else wrapped

    async def _bring_about_owner(self, record: Record, cluster: WatchedCluster) -> Owner | Result:
        """The owner of the objects in that cluster, or the result of an attempt that can have none now.

        In a member cluster the owner is an anchor. The AppWrapper has the finalizer before there can be an anchor, so
        that the AppWrapper does not go before the objects in the member are gone.
        """
        owner = self._context.owner_of(record)
        if not cluster.is_member:
            return owner
        refusal = await self._ask_member(record, cluster, owner)
        if refusal is not None:
            return refusal
        view = self._context.informer.view(record.uid)
        if view is None or not await self._context.informer.add_finalizer(view):
            return poll()
        try:
            return replace(owner, anchor=await self._bring_about_anchor(cluster, owner))
        except errors.Refused as error:
            return self._postpone(record, (), str(error))

    async def _ask_member(self, record: Record, cluster: WatchedCluster, owner: Owner) -> Result | None:
        """Asks the member before the first write: an attempt without an answer can still go elsewhere.

        None if the creation may go on.
        """
        if not self._cache.is_unsent(record):
            return None
        try:
            is_taken = await cluster.anchors.exists(owner)
        except errors.Throttled:
            raise  # the member has answered
        except (errors.Unavailable, errors.Unauthorized, errors.Forbidden) as error:
            return self._withdraw(record, str(error))
        if is_taken:
            # Nothing of this attempt was ever sent, so the anchor is not ours, whatever marks it bears.
            return self._postpone(record, (), str(taken(owner)))
        self._cache.note_sent(record.uid)
        return None

    async def _bring_about_anchor(self, cluster: WatchedCluster, owner: Owner) -> Anchor:
        """The anchor of an attempt; its namespace is created first if the MemberCluster allows that."""
        try:
            return await cluster.anchors.ensure(owner)
        except errors.NotFound as error:
            if not cluster.may_create_namespaces:
                message = f'cluster {cluster.name} has no namespace "{owner.namespace}"'
                raise errors.NotFound(message, error.reason) from error
            labels = await self._context.informer.copied_labels(owner.namespace)
            await cluster.anchors.make_namespace(owner.namespace, labels)
            return await cluster.anchors.ensure(owner)

    # --- objects that cannot be created ------------------------------------------------------------------------

    def _give_up(self, record: Record, made: tuple[ObjectRef, ...], outcome: Creation) -> Result:
        """The result of an object that cannot be created: ever, for a while, or for a moment."""
        match outcome:
            case InTheWay(message):
                return self._wait_for_name(record, made, message)
            case NameTaken(left_by=left_by, going=message) if left_by and self._removes(
                left_by.appwrapper, left_by.attempt
            ):
                return self._wait_for_name(record, made, message)
            case Postponed(message) | NotServed(message):
                return self._postpone(record, made, message)
            case NameTaken(message):
                return self._go_elsewhere(record, made, message)
            case RefusedForGood(message):
                return self._refuse(record, made, message)
            case Created():
                raise AssertionError("a created object is no reason to give up")

    def _withdraw(self, record: Record, message: str) -> Result:
        """Sends the gang to another cluster if nothing was sent to this one; else the gang waits for this one."""
        if record.attempt is None or not self._cache.is_unsent(record):
            return NOTHING
        now, cluster = self._context.now(), record.attempt.cluster
        self._members.note_error(cluster, record.namespace)
        eligible_at = now + retry_pause(record.attempts)
        change = run_changes.withdraw(record, f"cluster {cluster}: {message}", eligible_at, now)
        return Result(change, wakes_scheduler=True)

    def _wait_for_name(self, record: Record, made: tuple[ObjectRef, ...], message: str) -> Result:
        """Tries again soon; the attempt of a gang that has waited long gives its capacity back for a while."""
        _log.info("in_the_way", appwrapper=record.key, uid=record.uid, detail=message)
        now = self._context.now()
        began_at = record.attempt.began_at if record.attempt else now
        if now - began_at >= LONGEST_IN_THE_WAY:
            return self._postpone(record, made, message)
        return poll()

    def _go_elsewhere(self, record: Record, made: tuple[ObjectRef, ...], message: str) -> Result:
        """Rules out this cluster, where a name is taken; a gang without another cluster can never be created."""
        cluster = record.attempt.cluster if record.attempt else ""
        requirements = record.requirements.without(cluster, message)
        if self._members.has_no_cluster_left(requirements):
            return self._refuse(record, made, _reasons(requirements))
        return Result(run_changes.rule_out(record, made, requirements, message, self._context.now()))

    def _refuse(self, record: Record, made: tuple[ObjectRef, ...], message: str) -> Result:
        failure = f"{record.key} creation failure: {message}"
        return Result(run_changes.refuse_creation(record, made, failure, self._context.now()))

    def _postpone(self, record: Record, made: tuple[ObjectRef, ...], message: str) -> Result:
        now = self._context.now()
        if record.attempt:
            self._members.note_error(record.attempt.cluster, record.namespace)
        eligible_at = now + retry_pause(record.attempts)
        return Result(run_changes.postpone_creation(record, made, message, eligible_at, now))


def _made_before(record: Record) -> tuple[ObjectRef, ...]:
    """The objects of the attempt that an earlier one finished."""
    return record.attempt.objects if record.attempt else ()


def _with_finished(made: list[ObjectRef], finished: Mapping[int, ObjectRef]) -> tuple[ObjectRef, ...]:
    """The objects that exist, in order: an object of an earlier attempt may stand behind the one that failed."""
    return tuple(sorted({*made, *finished.values()}, key=lambda ref: ref.item))


def _reasons(requirements: ClusterRequirements) -> str:
    """Why no cluster takes the gang; with one cluster its name is left out."""
    messages = sorted(requirements.ruled_out)
    if len(messages) == 1:
        return messages[0][1]
    return "; ".join(f"cluster {name}: {message}" for name, message in messages)
