"""What somebody changes of a gang's objects is told, once it was compared; the gang itself is left alone."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from dispatcher.core.kinds.drift import differences
from dispatcher.core.kinds.manifest import build
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING
from tests.builders import make_appwrapper, make_owner, make_wrapped
from tests.fakes import answer, never, refusal
from tests.unit.controller.wire import JOBS, job, made, secret, true
from tests.unit.controller.world import World

Json = dict[str, Any]

UID = "uid-of-aw"
TRAIN, SERVE = job("train"), job("serve")
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
INPUT: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "input"}, "data": {"a": "1"}}
IMAGE = "spec.template.spec.containers[0].image"
DRIFTED = ("Drifted", f"Job default/train: {IMAGE} was changed")


def of_generation(generation: int, image: str = "busybox", status: Json | None = None, item: int = 0) -> Json:
    """One of the Jobs, as the API server has it."""
    raw = copy.deepcopy(made((TRAIN, SERVE)[item], item, status))
    raw["metadata"]["generation"] = generation
    raw["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return raw


async def running(world: World, *raws: Json) -> Record:
    """A gang of these Jobs, all of whose pods run."""
    for raw in raws:
        world.jobs.has(raw)
    record = await world.running(make_appwrapper("aw", *(TRAIN, SERVE)[: len(raws)]))
    for number in range(len(raws)):
        world.ledger.set_pod(Pod(f"p{number}", NOTHING, "n1", PodPhase.RUNNING, owner=UID))
    await world.sees(record)
    return record


def told(world: World) -> tuple[str, str] | None:
    """What is said to be wrong."""
    issue = world.record(UID).unhealthy
    return (issue.reason, issue.message) if issue else None


async def settle(world: World) -> None:
    """Look at it, let all that was asked be answered, and look again, as its wakes would have it."""
    for _ in range(3):
        await asyncio.sleep(2)  # virtual
        await world.reconcile(UID)


def read(world: World, name: str = "train") -> int:
    """How often an object was asked for by its name."""
    return len(world.server.requests("GET", f"{JOBS}/{name}"))


async def test_edit_is_reported_until_it_is_reverted(world: World) -> None:
    await running(world, of_generation(1))
    await settle(world)
    assert (told(world), read(world)) == (None, 0)

    world.jobs.has(of_generation(2, "other"))
    await settle(world)
    assert (told(world), read(world)) == (DRIFTED, 1)
    assert world.statuses()[-1]["unhealthy"]["message"] == DRIFTED[1]

    world.jobs.has(of_generation(3))
    await settle(world)
    assert (told(world), read(world)) == (None, 2)
    assert "unhealthy" not in world.statuses()[-1]
    assert world.record(UID).phase is Phase.RUNNING
    assert world.server.requests("DELETE") == []


async def test_answer_wakes_the_appwrapper(world: World) -> None:
    await running(world, of_generation(2, "other"))
    await world.forget_wakes()
    await world.reconcile(UID)
    assert told(world) is None  # nobody waits for the answer
    assert await world.is_woken_within(5)
    await world.reconcile(UID)
    assert told(world) == DRIFTED


async def test_heartbeats_of_an_object_that_was_compared_cost_nothing(world: World) -> None:
    await running(world, of_generation(2))
    await settle(world)
    for number in range(3):
        world.jobs.has(of_generation(2, status={"active": number}))
        await settle(world)
    assert (told(world), read(world)) == (None, 1)


async def test_edits_are_reported_for_each_unfinished_object_of_a_gang(world: World) -> None:
    await running(world, of_generation(2, "other", true("Complete")), of_generation(2, "other", item=1))
    await settle(world)
    assert world.record(UID).phase is Phase.RUNNING_HOLD_COMPLETION
    assert told(world) == ("Drifted", f"Job default/serve: {IMAGE} was changed")


async def test_object_that_may_not_be_read_is_asked_for_once_and_hides_no_other(world: World) -> None:
    await running(world, of_generation(2, "other"), of_generation(2, "other", item=1))
    world.server.on("GET", f"{JOBS}/train", refusal(403, "Forbidden"))
    await settle(world)
    assert told(world) == ("Drifted", f"Job default/serve: {IMAGE} was changed")
    assert read(world) == 1


async def test_secret_is_never_read(world: World) -> None:
    raw = made(secret())
    raw["metadata"]["generation"] = 2
    world.secrets.has(raw)
    record = await world.running(make_appwrapper("aw", secret()))
    await world.sees(record)
    await settle(world)
    assert world.server.requests("GET", "/api/v1/namespaces/default/secrets/token") == []


def config_map(value: str) -> Json:
    return {**made(INPUT), "data": {"a": value}}


async def test_object_without_generation_is_compared_when_its_version_is_not_that_it_was_made_with(
    world: World,
) -> None:
    world.config_maps.has(config_map("1"))
    as_made = {**config_map("1"), "metadata": {**config_map("1")["metadata"], "resourceVersion": "2"}}
    world.server.on("POST", CONFIG_MAPS, answer(as_made, 201))
    await world.dispatched(make_appwrapper("aw", INPUT))
    await world.reconcile(UID)
    await world.sees(world.record(UID))
    await settle(world)
    assert world.server.requests("GET", f"{CONFIG_MAPS}/input") == []

    world.config_maps.has(config_map("2"))
    await settle(world)
    assert told(world) == ("Drifted", "ConfigMap default/input: data.a was changed")


async def test_noted_drift_stands_after_a_restart_until_it_is_compared_again(world: World) -> None:
    world.jobs.has(of_generation(3))
    record = await world.running(make_appwrapper("aw", TRAIN))
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.RUNNING, owner=UID))
    await world.commit(run_changes.note_health_issue(record, *DRIFTED, world.now()))
    await world.reconcile(UID)
    assert told(world) == DRIFTED  # the watch has shown nothing yet

    await world.sees(record)
    await world.reconcile(UID)
    assert told(world) == DRIFTED  # it is being asked for

    await settle(world)
    assert told(world) is None


async def test_gang_that_was_short_of_pods_has_not_recovered_before_its_objects_are_compared(
    world: World,
) -> None:
    """Its drift was not told, because the shortage was; a new leader does not know of it."""
    world.jobs.has(of_generation(3, "other"))
    record = await world.running(make_appwrapper("aw", TRAIN))
    short = ("InsufficientPodsReady", "0 of 1 pods run: there is none")
    await world.commit(run_changes.note_health_issue(record, *short, world.now()))
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.RUNNING, owner=UID))
    await world.sees(record)
    await world.reconcile(UID)
    assert told(world) == short  # it is being asked for

    await settle(world)
    assert told(world) == DRIFTED


async def test_gang_that_was_short_of_pods_recovers_though_its_object_may_not_be_read(world: World) -> None:
    world.jobs.has(of_generation(3, "other"))
    world.server.on("GET", f"{JOBS}/train", refusal(403, "Forbidden"))
    record = await world.running(make_appwrapper("aw", TRAIN))
    await world.commit(run_changes.note_health_issue(record, "InsufficientPodsReady", "no pods", world.now()))
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.RUNNING, owner=UID))
    await world.sees(record)
    await world.forget_wakes()
    await world.reconcile(UID)
    assert await world.is_woken_within(5)
    await world.reconcile(UID)
    assert told(world) is None


async def test_health_of_a_gang_is_checked_while_the_api_server_does_not_answer_about_edits(
    world: World,
) -> None:
    world.jobs.has(of_generation(2))
    world.server.on("GET", f"{JOBS}/train", never)
    record = await world.running(make_appwrapper("aw", TRAIN))
    await world.sees(record)
    await world.reconcile(UID)
    assert told(world) == ("InsufficientPodsReady", "0 of 1 pods run: there is none")


def test_object_as_it_was_built_has_no_drift() -> None:
    """The tests above rest upon it: of their objects, only those with another image differ."""
    written = build(make_wrapped(TRAIN), make_owner())
    assert differences(written, of_generation(1)) == {}
    assert differences(written, of_generation(1, "other")) == {IMAGE: "other"}
