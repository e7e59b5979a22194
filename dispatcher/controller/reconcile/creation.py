"""Creating the wrapped objects of an AppWrapper: all of them, or what exists is to be removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from dispatcher import errors, log
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.intake.specs import owner_of
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.parts import Parts
from dispatcher.core.intake.authorization import check_namespace
from dispatcher.core.kinds.manifest import Anchor, Owner
from dispatcher.core.lifecycle import steps
from dispatcher.core.lifecycle.decision import retry_pause
from dispatcher.core.model.record import Change, ObjectRef, Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.kube.anchors import taken
from dispatcher.kube.object_client import Created, Creation, InTheWay, NameTaken, Postponed, RefusedForGood

LONGEST_IN_THE_WAY: Final = timedelta(seconds=30)
"""How long an attempt waits for an earlier object to go before its capacity is given back for a while."""

MOST_FAILURES: Final = 9
"""Creations that fail in a row, over some 25 seconds, before capacity is given back and taken anew later."""

_log = log.get("reconciler")


async def create(parts: Parts, record: Record) -> None:
    """Create every wrapped object that does not exist yet, and commit what came of it."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        await _withdraw(parts, record, "its cluster cannot be reached")
        return
    objects = record.attempt.objects if record.attempt else ()
    try:
        check_namespace(
            record.namespace, parts.denied_namespaces
        )  # one of an earlier release was not asked at intake
    except SpecError as error:
        await _refuse(parts, record, objects, str(error))
        return
    if parts.queue.failures(record.uid) >= MOST_FAILURES:
        await parts.commit(_postponed(parts, record, objects, "the API server kept failing to create it"))
        return
    owner = await _owner_there(parts, record, cluster)
    if owner is not None:
        await _create_all(parts, record, cluster, owner)


async def _create_all(parts: Parts, record: Record, cluster: Cluster, owner: Owner) -> None:
    spec = await parts.specs.of(record)
    finished = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
    made: list[ObjectRef] = []
    for wrapped in spec.wrapped:
        if wrapped.index in finished:
            made.append(finished[wrapped.index])  # by an earlier attempt
            continue
        if not parts.is_wanted(record):
            parts.queue.add(record.uid)  # deleted meanwhile: what is created now would outlive it
            return
        outcome = await cluster.wrapped.create(wrapped, owner)
        if not isinstance(outcome, Created):
            await _give_up(parts, record, _with_rest(made, finished), outcome)
            return
        # Its pods may well be seen before the commit.
        cluster.learn_object(outcome.ref, record.uid, contents=bool(wrapped.completion))
        made.append(outcome.ref)
    await parts.commit(steps.created(record, tuple(made), parts.now()))


async def _owner_there(parts: Parts, record: Record, cluster: Cluster) -> Owner | None:
    """What is to own the objects in that cluster; None if that is not to be had now.

    In a member cluster that is an anchor. The AppWrapper is held before there can be one, so that it does not go
    without the member being asked.
    """
    owner = owner_of(record, parts.hub_id)
    if not cluster.is_member:
        return owner
    if not await _answers(parts, record, cluster, owner):
        return None
    view = parts.hub.view(record.uid)
    if view is None or not await parts.hub.hold(view):
        parts.look_again(record)
        return None
    return await _anchored(parts, record, cluster, owner)


async def _answers(parts: Parts, record: Record, cluster: Cluster, owner: Owner) -> bool:
    """Ask the member before the first thing is sent: an attempt that meets silence there can still go elsewhere."""
    if not parts.cache.is_unsent(record):
        return True
    try:
        is_taken = await cluster.anchors.exists(owner)
    except errors.Throttled:
        raise  # that is an answer
    except (errors.Unavailable, errors.Unauthorized, errors.Forbidden) as error:
        await _withdraw(parts, record, str(error))
        return False
    if is_taken:
        # Nothing of this attempt was ever sent, so it is not ours, whatever marks it bears.
        await parts.commit(_postponed(parts, record, (), str(taken(owner))))
        return False
    parts.cache.note_sent(record.uid)
    return True


async def _anchored(parts: Parts, record: Record, cluster: Cluster, owner: Owner) -> Owner | None:
    """The owner with its anchor; None if there can be none now."""
    try:
        return replace(owner, anchor=await _anchor_there(parts, cluster, owner))
    except errors.Refused as error:
        await parts.commit(_postponed(parts, record, (), str(error)))
    return None


async def _anchor_there(parts: Parts, cluster: Cluster, owner: Owner) -> Anchor:
    """The anchor of an attempt, in a namespace that is made for it where that is wanted."""
    try:
        return await cluster.anchors.bring_about(owner)
    except errors.NotFound as error:
        if not cluster.may_create_namespaces:
            said = f'cluster {cluster.name} has no namespace "{owner.namespace}"'
            raise errors.NotFound(said, error.reason) from error
        await cluster.anchors.make_namespace(owner.namespace, await parts.hub.copied_labels(owner.namespace))
        return await cluster.anchors.bring_about(owner)


async def _withdraw(parts: Parts, record: Record, message: str) -> None:
    """Have it go elsewhere if nothing was sent to its cluster; if anything may have been, it waits for that one."""
    if record.attempt is None or not parts.cache.is_unsent(record):
        return
    now = parts.now()
    said = f"cluster {record.attempt.cluster}: {message}"
    parts.note_mishap(record.attempt.cluster)
    await parts.commit(steps.withdraw(record, said, now + retry_pause(record.attempts), now))
    parts.wake_dispatch()


def _with_rest(made: list[ObjectRef], finished: Mapping[int, ObjectRef]) -> tuple[ObjectRef, ...]:
    """What exists so far, in order: what an earlier attempt finished may stand behind what could not be made."""
    return tuple(sorted({*made, *finished.values()}, key=lambda ref: ref.item))


async def _give_up(parts: Parts, record: Record, made: tuple[ObjectRef, ...], outcome: Creation) -> None:
    """One object could not be created: for good, for now, or for a moment."""
    match outcome:
        case InTheWay(message):
            await _wait_for_name(parts, record, made, message)
        case NameTaken(left_by=left_by, going=message) if left_by and parts.removes(
            left_by.appwrapper, left_by.attempt
        ):
            await _wait_for_name(parts, record, made, message)
        case Postponed(message):
            await parts.commit(_postponed(parts, record, made, message))
        case NameTaken(message):
            await _go_elsewhere(parts, record, made, message)
        case RefusedForGood(message):
            await _refuse(parts, record, made, message)
        case Created():
            raise AssertionError("a created object is no reason to give up")


async def _wait_for_name(parts: Parts, record: Record, made: tuple[ObjectRef, ...], message: str) -> None:
    """Try again soon; an object that stays in the way has the capacity given back for a while."""
    _log.info("in_the_way", appwrapper=record.key, uid=record.uid, detail=message)
    if _has_waited_long(parts, record):
        await parts.commit(_postponed(parts, record, made, message))
    else:
        parts.look_again(record)


async def _go_elsewhere(parts: Parts, record: Record, made: tuple[ObjectRef, ...], message: str) -> None:
    """Rule this cluster out, where a name is taken; if that leaves none, it can never be created."""
    cluster = record.attempt.cluster if record.attempt else ""
    where = record.where.without(cluster, message)
    if parts.leads_nowhere(where):
        await _refuse(parts, record, made, _of_each(where))
    else:
        await parts.commit(steps.rule_out(record, made, where, message, parts.now()))


def _of_each(where: ClusterRequirements) -> str:
    """Why no cluster takes it; of one there is no need to say which."""
    messages = sorted(where.ruled_out)
    if len(messages) == 1:
        return messages[0][1]
    return "; ".join(f"cluster {name}: {message}" for name, message in messages)


async def _refuse(parts: Parts, record: Record, made: tuple[ObjectRef, ...], message: str) -> None:
    said = f"{record.key} creation failure: {message}"
    await parts.commit(steps.refuse_creation(record, made, said, parts.now()))


def _has_waited_long(parts: Parts, record: Record) -> bool:
    """True once its capacity was taken for long enough without anything to show for it."""
    decided = record.attempt.decided_at if record.attempt else parts.now()
    return parts.now() - decided >= LONGEST_IN_THE_WAY


def _postponed(parts: Parts, record: Record, made: tuple[ObjectRef, ...], message: str) -> Change:
    now = parts.now()
    if record.attempt:
        parts.note_mishap(record.attempt.cluster)
    return steps.postpone_creation(record, made, message, now + retry_pause(record.attempts), now)
