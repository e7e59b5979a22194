"""Approvals of an AppWrapper: read at intake, followed while it is queued, and never in the way of others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.names import APPROVALS, KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.step import Act
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.record import Phase
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, QueueingStrategy
from tests.builders import at, make_appwrapper, make_template
from tests.one_queue import Cycles
from tests.unit.controller.wire import job, made
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
    assert Cycles(world.cache.pending_queue).plan({}, policy, bound, world.now()) == []
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


# -----------------------------------------------------------------------------------------------------------
# The queue of an AppWrapper: resolved at intake, followed while it is undispatched, and kept afterwards.


def labelled(labels: dict[str, str] | None = None, spec: Json | None = None) -> Json:
    return make_appwrapper("aw", job("train"), spec=spec, labels=labels or {})


def in_queue(name: str, spec: Json | None = None) -> Json:
    return labelled({QUEUE_LABEL: name}, spec)


async def look_at_queue(world: World, raw: Json | None = None) -> tuple[str, ...]:
    """Its queues after a look_at_queue at it, as the watch shows it now."""
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    if raw is not None:
        world.show(raw)
    await world.reconcile(UID)
    return world.record(UID).leaves


def moves(world: World) -> list[str]:
    """The messages of the events `moved`, in order."""
    events = (event for change in world.store.changes for event in change.events)
    return [event.message for event in events if event.cause == Cause.MOVED]


async def test_without_labels_and_trees_it_is_in_the_queue_default(world: World) -> None:
    assert (await world.admit(make_appwrapper())).leaves == ("default",)
    await world.reconcile(UID, times=2)
    assert moves(world) == []


@pytest.mark.parametrize(
    ("key", "queue"),
    [
        (QUEUE_LABEL, "team"),
        (KAI_QUEUE_LABEL, "team"),
        # It names a LocalQueue, which is of one namespace: a name that no queue has gives way to the namespace's.
        (KUEUE_QUEUE_LABEL, "of-namespace"),
    ],
)
@pytest.mark.parametrize("spec", [{}, {"suspend": True}], ids=["queued", "suspended"])
async def test_label_names_the_queue_at_intake(world: World, key: str, queue: str, spec: Json) -> None:
    world.namespace_labels["default"] = {QUEUE_LABEL: "of-namespace"}
    record = await world.admit(labelled({key: "team"}, spec))
    assert (record.queue, record.more_queues) == (queue, ())
    await world.reconcile(UID, times=2)
    assert moves(world) == []


async def test_namespace_names_the_queue_of_appwrappers_without_a_label(world: World) -> None:
    world.namespace_labels["default"] = {KAI_QUEUE_LABEL: "of-namespace"}
    world.namespace_labels["other"] = {QUEUE_LABEL: "of-another"}
    assert (await world.admit(labelled())).queue == "of-namespace"


async def test_it_is_charged_in_each_tree(world: World) -> None:
    world.trees = ("context", "service")
    record = await world.admit(labelled({QUEUE_LABEL: "team", "service": "gold"}))
    assert (record.queue, record.more_queues) == ("team", ("context/default", "service/gold"))


async def test_rejected_appwrapper_is_recorded_in_its_queue(world: World) -> None:
    raw = make_appwrapper("aw", make_template("Widget", "example.com/v1"), labels={QUEUE_LABEL: "team"})
    record = await world.admit(raw)
    assert (record.phase, record.queue) == (Phase.FAILED, "team")


@pytest.mark.parametrize("spec", [{}, {"suspend": True}], ids=["queued", "suspended"])
async def test_changed_label_moves_it_once(world: World, spec: Json) -> None:
    await world.admit(labelled(spec=spec))
    assert await look_at_queue(world, in_queue("team", spec)) == ("team",)
    assert await look_at_queue(world) == ("team",)
    assert await look_at_queue(world, labelled(spec=spec)) == ("default",)
    # That of a suspended one says from when its age counts, too.
    told = [each.partition(";")[0] for each in moves(world)]
    assert told == ["queue default → team", "queue team → default"]
    assert world.dispatch_wakes == 2


async def test_changed_namespace_or_tree_moves_it(world: World) -> None:
    await world.admit(labelled({"context": "gold"}))
    world.namespace_labels["default"] = {QUEUE_LABEL: "team"}
    assert await look_at_queue(world) == ("team",)
    world.trees = ("context",)
    assert await look_at_queue(world) == ("team", "context/gold")
    assert moves(world) == ["queue default → team", "queue team → team, context/gold"]


async def test_user_who_changes_the_label_in_a_loop_is_followed_once_a_second(world: World) -> None:
    await world.admit(labelled())
    await look_at_queue(world, in_queue("a"))
    for name in "bcd":
        world.show(in_queue(name))
        await world.reconcile(UID)
    assert world.record(UID).queue == "a"
    assert await look_at_queue(world) == ("d",)
    assert len(moves(world)) == 2


@pytest.mark.parametrize(
    "phase",
    [Phase.DISPATCHING, Phase.DISPATCHED, Phase.RUNNING, Phase.REQUEUEING, Phase.COMPLETED, Phase.FAILED],
)
async def test_gang_that_left_the_queue_stays_where_it_was(world: World, phase: Phase) -> None:
    world.jobs.has(made(job("train")))
    await world.brought_to(phase, labelled())
    assert await look_at_queue(world, in_queue("team")) == ("default",)
    assert moves(world) == []


async def test_requeued_gang_is_moved_when_it_is_queued_again(world: World) -> None:
    world.jobs.has(made(job("train")))
    await world.brought_to(Phase.REQUEUEING, labelled())
    world.show(in_queue("team"))
    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.QUEUED
    assert await look_at_queue(world) == ("team",)


async def test_cycle_does_not_dispatch_it_in_its_former_queue(world: World) -> None:
    """The watch shows the new label, and the reconciler has not committed it yet."""
    record = await world.admit(labelled())
    observer = world.reconciling.observer
    assert observer.is_unchanged(record)
    world.show(in_queue("team"))
    assert not observer.is_unchanged(record)
    await world.reconcile(UID)
    assert observer.is_unchanged(world.record(UID))
    world.show(in_queue("another"))
    assert observer.is_unchanged(world.record(UID)), "within the second after a change the record counts"
