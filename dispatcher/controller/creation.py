"""Creating the wrapped objects of an AppWrapper: all of them, or what exists is to be removed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from dispatcher import log
from dispatcher.controller.parts import Parts
from dispatcher.controller.specs import owner_of
from dispatcher.core import lifecycle
from dispatcher.core.decision import retry_pause
from dispatcher.core.record import Change, ObjectRef, Record
from dispatcher.kube.wrapped import Created, Creation, InTheWay, Postponed, RefusedForGood

LONGEST_IN_THE_WAY: Final = timedelta(seconds=30)
"""How long an attempt waits for an earlier object to go before its capacity is given back for a while."""

MOST_FAILURES: Final = 9
"""Creations that fail in a row, over some 25 seconds, before capacity is given back and taken anew later."""

_log = log.get("reconciler")


async def create(parts: Parts, record: Record) -> None:
    """Create every wrapped object that does not exist yet, and commit what came of it."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    if parts.queue.failures(record.uid) >= MOST_FAILURES:
        objects = record.attempt.objects if record.attempt else ()
        await parts.commit(_postponed(parts, record, objects, "the API server kept failing to create it"))
        return
    spec = await parts.specs.of(record)
    owner = owner_of(record, parts.hub_id)
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
    await parts.commit(lifecycle.created(record, tuple(made), parts.now()))


def _with_rest(made: list[ObjectRef], finished: Mapping[int, ObjectRef]) -> tuple[ObjectRef, ...]:
    """What exists so far, in order: what an earlier attempt finished may stand behind what could not be made."""
    return tuple(sorted({*made, *finished.values()}, key=lambda ref: ref.item))


async def _give_up(parts: Parts, record: Record, made: tuple[ObjectRef, ...], outcome: Creation) -> None:
    """One object could not be created: for good, for now, or for a moment."""
    match outcome:
        case InTheWay(message):
            _log.info("in_the_way", appwrapper=record.key, uid=record.uid, detail=message)
            if _has_waited_long(parts, record):
                await parts.commit(_postponed(parts, record, made, message))
            else:
                parts.look_again(record)
        case Postponed(message):
            await parts.commit(_postponed(parts, record, made, message))
        case RefusedForGood(message):
            said = f"{record.key} creation failure: {message}"
            await parts.commit(lifecycle.refuse_creation(record, made, said, parts.now()))
        case Created():
            raise AssertionError("a created object is no reason to give up")


def _has_waited_long(parts: Parts, record: Record) -> bool:
    """True once its capacity was taken for long enough without anything to show for it."""
    decided = record.attempt.decided_at if record.attempt else parts.now()
    return parts.now() - decided >= LONGEST_IN_THE_WAY


def _postponed(parts: Parts, record: Record, made: tuple[ObjectRef, ...], message: str) -> Change:
    now = parts.now()
    return lifecycle.postpone_creation(record, made, message, now + retry_pause(record.attempts), now)
