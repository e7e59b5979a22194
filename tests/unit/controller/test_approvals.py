"""Approvals of an AppWrapper: read at intake, followed while it is queued, and never in the way of others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.names import APPROVALS
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.step import Act
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.record import Phase
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, QueueingStrategy
from tests.builders import at, make_appwrapper
from tests.unit.controller.wire import job
from tests.unit.controller.world import World
from tests.unit.core.lifecycle.dispatched import step_of

Json = dict[str, Any]
UID = "uid-of-aw"
BOTH = "data-staged,budget"


def gated(*granted: str, annotation: str = BOTH) -> Json:
    """An AppWrapper with these approvals, of which some are granted."""
    conditions = [{"type": each, "status": "True"} for each in granted]
    return make_appwrapper(
        "aw", job("train"), annotations={APPROVALS: annotation}, status={"conditions": conditions}
    )


def missing(world: World) -> tuple[str, ...]:
    """The approvals that the record lacks."""
    pending = world.record(UID).pending
    return pending.approvals if pending else ()


def causes(world: World) -> list[str]:
    """What happened because of approvals, in order."""
    events = (event for change in world.store.changes for event in change.events)
    return [event.cause for event in events if event.cause in {Cause.AWAITING_APPROVAL, Cause.APPROVED}]


async def look(world: World, raw: Json) -> tuple[str, ...]:
    """The approvals that the record lacks after a look at this AppWrapper."""
    world.show(raw)
    await world.reconcile(UID)
    return missing(world)


async def test_new_appwrapper_without_all_approvals_waits_from_its_first_moment(world: World) -> None:
    record = await world.admit(gated("budget"))
    (change,) = world.store.changes
    assert (record.phase, record.awaits_approval, missing(world)) == (Phase.QUEUED, True, ("data-staged",))
    assert [(event.cause, event.reason, event.message) for event in change.events] == [
        (Cause.SUBMITTED, AWAITING_APPROVAL, "it lacks the approval data-staged")
    ]
    policy, bound = QueueingStrategy.STRICT_FIFO, timedelta(0)
    assert world.cache.pending_queue.plan({}, policy, bound, world.now()) == []
    await world.reconcile(UID)
    assert causes(world) == []


async def test_new_appwrapper_with_all_approvals_is_queued_as_any_other(world: World) -> None:
    record = await world.admit(gated("budget", "data-staged"))
    assert (record.pending, record.awaits_approval) == (None, False)


@pytest.mark.parametrize("annotation", ["Running", "budget,", "a b", ",".join("abcdefghi")])
async def test_annotation_that_names_no_approvals_is_rejected_with_the_reason(
    world: World, annotation: str
) -> None:
    record = await world.admit(gated(annotation=annotation))
    assert record.phase is Phase.FAILED
    assert record.message.startswith(
        f'default/aw creation failure: metadata.annotations["{APPROVALS}"]: names '
    )


async def test_appwrapper_is_queued_with_all_approvals_and_waits_again_after_a_withdrawal(
    world: World,
) -> None:
    await world.admit(gated())
    assert await look(world, gated("budget")) == ("data-staged",)
    assert await look(world, gated("budget", "data-staged")) == ()
    assert not world.record(UID).awaits_approval
    assert await look(world, gated("data-staged")) == ("budget",)
    assert causes(world) == [Cause.AWAITING_APPROVAL, Cause.APPROVED, Cause.AWAITING_APPROVAL]
    assert world.dispatch_wakes == 3


async def test_age_leaves_out_the_time_in_which_the_authors_own_approvals_are_missing(world: World) -> None:
    record = await world.admit(gated())
    assert record.age_stopped_at == record.aged_from == record.phase_since
    await asyncio.sleep(600)  # virtual
    await look(world, gated("budget", "data-staged"))
    begins_at = world.record(UID).age_begins_at
    assert (world.record(UID).age_stopped_at, begins_at > record.phase_since) == (None, True)
    await look(world, gated("data-staged"))
    assert world.record(UID).age_stopped_at is not None
    await asyncio.sleep(600)  # virtual
    await look(world, gated(annotation=""))
    assert world.record(UID).age_begins_at > begins_at


async def test_age_goes_on_while_an_approval_of_the_queue_is_missing(world: World) -> None:
    world.forest = Forest.of([Queue("default", approvals=("budget",))])
    record = await world.admit(gated(annotation="budget"))
    assert (record.awaits_approval, record.age_stopped_at, record.aged_from) == (True, None, None)
    await look(world, gated("budget", annotation="budget"))
    assert world.record(UID).aged_from is None


async def test_annotation_that_becomes_unreadable_waits_until_it_is_corrected(world: World) -> None:
    await world.admit(gated("budget", "data-staged"))
    assert await look(world, gated("budget", "data-staged", annotation="Running")) == (APPROVALS,)
    pending = world.record(UID).pending
    assert pending is not None
    assert "names Running, a condition that the dispatcher writes itself" in pending.message
    assert await look(world, gated(annotation="")) == ()
    assert not world.record(UID).awaits_approval


async def test_queue_names_approvals_too(world: World) -> None:
    world.forest = Forest.of([Queue("default", approvals=("window",))])
    await world.admit(gated("budget", "data-staged"))
    assert missing(world) == ("window",)
    world.forest = Forest.of(())
    await world.reconcile(UID)
    assert not world.record(UID).awaits_approval


async def test_condition_that_flaps_writes_few_events(world: World) -> None:
    await world.admit(gated("budget", "data-staged"))
    for _ in range(600):
        for granted in (("budget",), ("budget", "data-staged")):
            await look(world, gated(*granted))
            await asyncio.sleep(0.5)  # virtual
    # Withdrawn in every second of ten minutes: pauses of 0, 1, 2, 4 … 300 seconds come between the events.
    assert len(causes(world)) <= 2 * 11
    assert world.record(UID).phase is Phase.QUEUED


async def test_gang_that_lacks_an_approval_by_the_watch_is_never_dispatched(world: World) -> None:
    """A new leader, or a cycle before the next look, knows only what the watch shows."""
    record = await world.admit(gated("budget", "data-staged"))
    observer = world.reconciling.observer
    assert observer.is_unchanged(record)
    world.show(gated("budget"))
    assert not observer.is_unchanged(record)
    world.reconciling.pacing.note(UID, world.now())
    assert not observer.is_unchanged(record)
    world.show(gated("budget", "data-staged"))
    world.forest = Forest.of([Queue("default", approvals=("window",))])
    assert not observer.is_unchanged(record)


async def test_approval_withdrawn_after_the_dispatch_changes_nothing(world: World) -> None:
    record = await world.admit(gated("budget", "data-staged"))
    await world.committer.commit(queue_changes.dispatch(record, "hub", at(1)))
    world.show(gated())
    seen = await world.reconciling.observer.observe(UID)
    assert (step_of(decide(seen)), causes(world)) == (Act.CREATE, [])


async def test_status_names_the_missing_approvals_and_no_position(world: World) -> None:
    await world.admit(gated("budget"))
    world.outlooks[UID] = {"position": 3}
    await world.reconciling.status_writer.report(UID)
    (written,) = world.statuses()
    assert written["waiting"] == {
        "reason": AWAITING_APPROVAL,
        "message": "it lacks the approval data-staged",
    }
    assert (written["reason"], written["queuejobstate"]) == (AWAITING_APPROVAL, "Queueing")
    assert written["conditions"][0] == {"type": "budget", "status": "True"}


async def test_write_that_expects_approvals_replaces_only_the_status_that_was_seen(world: World) -> None:
    await world.admit(gated())
    await world.reconciling.status_writer.report(UID)
    patch = world.server.requests("PATCH")[-1].body
    assert patch[-1] == {"op": "add", "path": "/metadata/resourceVersion", "value": "1"}
