"""The queue of an AppWrapper: resolved at intake, followed while it is undispatched, and kept afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.api.names import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.record import Phase
from tests.builders import make_appwrapper, make_template
from tests.unit.controller.wire import job, made
from tests.unit.controller.world import World

Json = dict[str, Any]
UID = "uid-of-aw"


def labelled(labels: dict[str, str] | None = None, spec: Json | None = None) -> Json:
    return make_appwrapper("aw", job("train"), spec=spec, labels=labels or {})


def in_queue(name: str, spec: Json | None = None) -> Json:
    return labelled({QUEUE_LABEL: name}, spec)


async def look(world: World, raw: Json | None = None) -> tuple[str, ...]:
    """Its queues after a look at it, as the watch shows it now."""
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
    assert await look(world, in_queue("team", spec)) == ("team",)
    assert await look(world) == ("team",)
    assert await look(world, labelled(spec=spec)) == ("default",)
    # That of a suspended one says from when its age counts, too.
    told = [each.partition(";")[0] for each in moves(world)]
    assert told == ["queue default → team", "queue team → default"]
    assert world.dispatch_wakes == 2


async def test_changed_namespace_or_tree_moves_it(world: World) -> None:
    await world.admit(labelled({"context": "gold"}))
    world.namespace_labels["default"] = {QUEUE_LABEL: "team"}
    assert await look(world) == ("team",)
    world.trees = ("context",)
    assert await look(world) == ("team", "context/gold")
    assert moves(world) == ["queue default → team", "queue team → team, context/gold"]


async def test_user_who_changes_the_label_in_a_loop_is_followed_once_a_second(world: World) -> None:
    await world.admit(labelled())
    await look(world, in_queue("a"))
    for name in "bcd":
        world.show(in_queue(name))
        await world.reconcile(UID)
    assert world.record(UID).queue == "a"
    assert await look(world) == ("d",)
    assert len(moves(world)) == 2


@pytest.mark.parametrize(
    "phase",
    [Phase.DISPATCHING, Phase.DISPATCHED, Phase.RUNNING, Phase.REQUEUEING, Phase.COMPLETED, Phase.FAILED],
)
async def test_gang_that_left_the_queue_stays_where_it_was(world: World, phase: Phase) -> None:
    world.jobs.has(made(job("train")))
    await world.brought_to(phase, labelled())
    assert await look(world, in_queue("team")) == ("default",)
    assert moves(world) == []


async def test_requeued_gang_is_moved_when_it_is_queued_again(world: World) -> None:
    world.jobs.has(made(job("train")))
    await world.brought_to(Phase.REQUEUEING, labelled())
    world.show(in_queue("team"))
    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.QUEUED
    assert await look(world) == ("team",)


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
