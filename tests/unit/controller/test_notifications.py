"""Which notifications an AppWrapper chooses is in its record, from its first commit on, and followed later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.api.names import NOTIFY
from dispatcher.controller.intake.limits import PATH, Namespaces
from dispatcher.core.intake.namespace_bounds import Ceiling
from dispatcher.core.lifecycle.queue_changes import CHOSEN_EVERY
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Phase
from dispatcher.core.model.resources import NOTHING
from dispatcher.core.queues.queue import Queue
from dispatcher.kube.client import ClusterClient
from tests.builders import make_appwrapper
from tests.fakes import FakeApiServer, answer, never, watch
from tests.unit.controller.test_limits import running
from tests.unit.controller.test_scheduler_queues import DRAINED, TEAMS, put, scheduler_of
from tests.unit.controller.wire import job, made, true
from tests.unit.controller.world import World
from tests.unit.virtual_time import until

Json = dict[str, Any]


def chooses(text: str | None, **fields: Any) -> Json:  # noqa: ANN401
    annotations = {} if text is None else {NOTIFY: text}
    return make_appwrapper("aw", uid="uid-1", annotations=annotations, **fields)


async def take_in(world: World, raw: Json) -> str:
    """What the record of a new AppWrapper has."""
    world.intake.add(world.show(raw).uid)
    await world.intake.take_in_all()
    return world.record("uid-1").notifications


@pytest.mark.parametrize(
    ("own", "of_namespace", "recorded"),
    [
        pytest.param(None, "", "", id="nothing"),
        pytest.param("mail=failed", "", "mail=Failed", id="its-own"),
        pytest.param(None, "mail=Ended", "mail=Completed,Failed", id="of-its-namespace"),
        pytest.param("chat=All", "mail=Ended", "chat=Started,Completed,Failed,Preempted,Evicted", id="both"),
        pytest.param("", "mail=Ended", "", id="none-by-its-own"),
    ],
)
async def test_first_commit_has_what_is_chosen(
    world: World, own: str | None, of_namespace: str, recorded: str
) -> None:
    world.namespace_notify["default"] = of_namespace
    assert await take_in(world, chooses(own)) == recorded


async def test_what_cannot_be_read_is_in_the_first_event_and_the_appwrapper_is_queued(world: World) -> None:
    assert await take_in(world, chooses("mail=Failed https://evil.example=All")) == "mail=Failed"
    event = world.store.changes[-1].events[0]
    assert (event.cause, event.to_phase) == (Cause.SUBMITTED, Phase.QUEUED)
    assert "'https://evil.example=All' names no target" in event.message


async def test_a_rejected_appwrapper_keeps_what_it_chooses(world: World) -> None:
    raw = chooses("mail=Failed")
    raw["spec"]["resources"] = 7
    assert await take_in(world, raw) == "mail=Failed"
    assert world.record("uid-1").phase is Phase.FAILED


async def test_a_changed_annotation_is_followed(world: World) -> None:
    await take_in(world, chooses("mail=Failed"))
    world.show(chooses("mail=Started", resourceVersion="9"))
    await world.reconcile("uid-1")
    assert world.record("uid-1").notifications == "mail=Started"
    event = world.store.changes[-1].events[0]
    assert (event.cause, event.message) == (
        Cause.NOTIFICATIONS_CHANGED,
        "notifications mail=Failed → mail=Started",
    )


async def test_annotation_that_is_patched_in_a_loop_is_followed_once_a_minute_and_the_last_one_counts(
    world: World,
) -> None:
    await take_in(world, chooses("mail=Failed"))
    version = world.record("uid-1").version
    for minutes in range(1, 131):
        world.show(chooses(f"mail=Waiting:{minutes}m"))
        await world.reconcile("uid-1")
        await asyncio.sleep(1)  # virtual
    assert world.record("uid-1").version == version + 3
    # It comes back by itself once it may be followed, and finds the last value.
    while world.record("uid-1").notifications != "mail=Waiting:130m":
        world.queue.done(await asyncio.wait_for(world.queue.get(), CHOSEN_EVERY.total_seconds()))
        await world.reconcile("uid-1")
    assert world.record("uid-1").version == version + 4


async def test_choice_that_waits_for_its_turn_counts_for_the_end_of_the_gang(world: World) -> None:
    train = job("train")
    world.jobs.has(made(train))
    record = await world.running(make_appwrapper("aw", train))
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.RUNNING, owner=record.uid))
    await world.sees(record)
    for text in ("mail=Started", "mail=Failed"):
        world.show(make_appwrapper("aw", train, annotations={NOTIFY: text}))
        await world.reconcile(record.uid)
    assert world.record(record.uid).notifications == "mail=Started"

    world.jobs.has(made(train, status=true("Failed")))
    await asyncio.sleep(2)  # virtual
    await world.reconcile(record.uid)
    ended = world.record(record.uid)
    assert (ended.phase, ended.notifications) == (Phase.FAILING, "mail=Failed")


@pytest.mark.parametrize(
    ("phase", "queues", "cause"),
    [
        pytest.param(Phase.QUEUED, (Queue("b"),), Cause.DISPATCHED, id="dispatch"),
        pytest.param(Phase.RUNNING, TEAMS, Cause.PREEMPTED, id="preemption"),
        pytest.param(Phase.RUNNING, DRAINED, Cause.EVICTED, id="drain"),
    ],
)
async def test_choice_that_waits_for_its_turn_counts_for_what_a_cycle_commits(
    world: World, phase: Phase, queues: tuple[Queue, ...], cause: Cause
) -> None:
    gang, owner = put(world, "aw", 6, "b", phase), put(world, "owner", 6, "a")
    for each in (gang, owner):
        world.show(make_appwrapper(each.name, annotations={NOTIFY: "mail=Preempted,Evicted oops"}))
    await scheduler_of(world, queues).cycle()

    [change] = [each for each in world.store.changes if each.after.uid == gang.uid]
    assert change.events[-1].cause == cause
    assert change.events[-1].message.endswith(
        "'oops' is not TARGET=EVENT,EVENT, for example team-slack=Failed,Completed"
    )
    assert world.record(gang.uid).notifications == "mail=Preempted,Evicted"
    assert world.record(owner.uid).notifications == ""  # it stays queued: its choice has a turn of its own


async def test_annotations_of_namespaces_are_known_and_their_changes_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    def namespace(version: int, text: str | None) -> Json:
        annotations = {} if text is None else {NOTIFY: text}
        return {
            "metadata": {"uid": "u", "name": "a", "resourceVersion": str(version), "annotations": annotations}
        }

    server.on(
        "GET",
        PATH,
        answer({"metadata": {"resourceVersion": "5"}, "items": [namespace(1, "mail=Failed")]}),
        watch(
            {"type": "MODIFIED", "object": namespace(6, "mail=All")},
            {"type": "MODIFIED", "object": namespace(7, None)},
        ),
        never,
    )
    told: list[str] = []
    namespaces = Namespaces(
        client, Ceiling(), lambda name: told.append(namespaces.notify_of(name)), lambda: None
    )
    async with running(namespaces):
        await until(lambda: len(told) == 3)
    assert told == ["mail=Failed", "mail=All", ""]
    assert namespaces.notify_of("unheard-of") == ""
