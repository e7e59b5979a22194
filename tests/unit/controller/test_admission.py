"""Admission: newcomers are taken in once, in order, and what runs already is adopted."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.manifest import build
from dispatcher.core.record import Phase
from tests.builders import make_appwrapper, make_owner, make_template, make_wrapped
from tests.fakes import answer, refusal
from tests.unit.controller.world import PODS, World

Json = dict[str, Any]
UNKNOWN = make_template("Widget", "example.com/v1", name="w")


async def test_batch_is_taken_in_by_creation_then_by_resource_version(world: World) -> None:
    for name, second, version in [
        ("late", 9, "1"),
        ("tenth", 5, "10"),
        ("ninth", 5, "9"),
        ("early", 1, "50"),
    ]:
        made = f"2026-11-20T08:58:0{second}Z"
        view = world.show(make_appwrapper(name, creationTimestamp=made, resourceVersion=version))
        world.admission.add(view.uid)
    await world.admission.admit_all()

    assert world.admitted == ["early", "ninth", "tenth", "late"]
    assert [name for batch in world.store.batches for name, _ in batch] == ["early", "ninth", "tenth", "late"]


async def test_newcomer_is_queued_with_what_it_asks_for(world: World) -> None:
    record = await world.admit(make_appwrapper(spec={"priority": 9, "priorityslope": 0.5}))
    assert (record.phase, record.priority, record.priority_slope) == (Phase.QUEUED, 9, 0.5)
    assert dict(record.gang.demand) == {"cpu": 1000}


async def test_one_that_never_can_be_dispatched_fails_with_the_reason(world: World) -> None:
    record = await world.admit(make_appwrapper("aw", UNKNOWN))
    assert record.phase is Phase.FAILED
    assert record.message.startswith("default/aw creation failure: spec.resources.GenericItems[0]: ")
    assert "custompodresources" in record.message


@pytest.mark.parametrize("case", ["known", "deleting", "gone"])
async def test_nothing_is_taken_in_twice_or_in_vain(world: World, case: str) -> None:
    metadata: Json = {"deletionTimestamp": "2026-11-20T09:00:00Z"} if case == "deleting" else {}
    view = world.show(make_appwrapper(**metadata))
    if case == "known":
        await world.admit(make_appwrapper())
    if case == "gone":
        world.hide(view.uid)
    world.admission.add(view.uid)
    await world.admission.admit_all()
    assert len(world.admitted) == (1 if case == "known" else 0)


def running(attempt: int) -> Json:
    built = build(make_wrapped(), make_owner(attempt=attempt))
    return {**built, "metadata": {**built["metadata"], "uid": "uid-of-pod"}}


async def test_one_that_runs_though_the_database_does_not_know_it_is_adopted(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(3)))
    record = await world.admit(make_appwrapper(status={"canrun": True}))
    assert record.attempt is not None
    assert (record.phase, record.attempt.number, record.attempt.cluster) == (Phase.DISPATCHING, 3, "hub")


async def test_one_that_only_says_it_can_run_is_queued(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", refusal(404, "NotFound"))
    record = await world.admit(make_appwrapper(status={"canrun": True}))
    assert record.phase is Phase.QUEUED


async def test_one_that_cannot_be_read_now_comes_back_and_holds_up_no_other(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", refusal(503, "ServiceUnavailable"))
    for raw in (make_appwrapper("troubled", status={"canrun": True}), make_appwrapper("fine")):
        world.admission.add(world.show(raw).uid)
    await world.admission.admit_all()
    assert (world.admitted, world.failed) == (["fine"], ["uid-of-troubled"])
