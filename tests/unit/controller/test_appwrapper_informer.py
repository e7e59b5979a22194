"""What the hub remembers of AppWrappers that are gone: what their annotations said, for as long as it matters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.annotations import FORCE_DELETION_GRACE, fault_tolerance
from dispatcher.controller.reconcile.result import Result
from dispatcher.core.lifecycle import removal
from dispatcher.core.model.records.record import Phase
from dispatcher.kube.objects.appwrappers import NO_ANNOTATIONS, encode_status
from tests.builders import make_appwrapper
from tests.fakes import FakeApiServer, answer
from tests.unit import workers
from tests.unit.controller.wire import APPWRAPPERS, Watched
from tests.unit.controller.world import World
from tests.unit.virtual_time import until

UID = "uid-of-aw"
ANNOTATIONS = {FORCE_DELETION_GRACE: "5h"}
ANNOTATED = make_appwrapper("aw", annotations=ANNOTATIONS)
SAID = fault_tolerance(ANNOTATIONS)


@pytest.fixture
async def appwrappers(server: FakeApiServer, world: World) -> AsyncIterator[Watched]:
    """The AppWrappers of a hub that is watched."""
    appwrappers = Watched(server, "/apis/workload.codeflare.dev/v1beta1", "appwrappers")
    appwrappers.has(ANNOTATED)
    async with workers.running(world.hub.run()):
        await until(lambda: world.hub.view(UID))
        yield appwrappers


async def test_annotations_of_a_deleted_appwrapper_are_kept_until_its_record_is_deleted(
    world: World, appwrappers: Watched
) -> None:
    await world.running(ANNOTATED)
    assert world.hub.tolerance(UID) == SAID
    appwrappers.loses("aw")
    await until(lambda: world.hub.view(UID) is None)
    deleting = await world.commit(removal.delete(world.record(UID), world.now()))
    assert (deleting.phase, world.hub.tolerance(UID)) == (Phase.DELETING, SAID)

    await world.reconciling.results.apply(deleting.uid, Result(removal.release(deleting, world.now())))
    assert world.hub.tolerance(UID) == NO_ANNOTATIONS


async def test_current_annotations_count_for_an_appwrapper_that_is_there_again(
    world: World, appwrappers: Watched
) -> None:
    appwrappers.loses("aw")
    await until(lambda: world.hub.view(UID) is None)
    appwrappers.has(make_appwrapper("aw"))
    await until(lambda: world.hub.view(UID))
    assert world.hub.tolerance(UID) == NO_ANNOTATIONS
    appwrappers.loses("aw")
    await until(lambda: world.hub.view(UID) is None)
    assert world.hub.tolerance(UID) == NO_ANNOTATIONS


async def test_unseen_appwrapper_has_no_remembered_annotations(world: World) -> None:
    assert world.hub.tolerance("uid-of-nobody") == NO_ANNOTATIONS


# --- echoes of own writes --------------------------------------------------------------------------------

REPORTED = {"state": "Running", "systempriority": 5.0}
WRITTEN = encode_status(REPORTED)


async def is_looked_at(world: World, appwrappers: Watched, **changes: Any) -> bool:  # noqa: ANN401  # parts of a manifest
    """True if a change that follows the report of a status has the AppWrapper looked at."""
    view = world.hub.view(UID)
    assert view is not None
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", answer({"metadata": {"resourceVersion": "2"}}))
    await world.hub.write_status(view, WRITTEN)
    await world.forget_wakes()
    appwrappers.has(make_appwrapper("aw", **{"annotations": ANNOTATIONS, **changes}))
    await until(lambda: world.hub.view(UID) is not view)
    return await world.is_woken_within(0.1)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(REPORTED, id="as-written"),
        pytest.param({"systempriority": 5, "state": "Running"}, id="written-otherwise"),
    ],
)
async def test_a_status_that_was_just_written_is_no_change(
    world: World, appwrappers: Watched, shown: dict[str, Any]
) -> None:
    assert not await is_looked_at(world, appwrappers, status=shown)
    view = world.hub.view(UID)
    assert view is not None
    assert view.status_json is WRITTEN, "the status is in memory once"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"status": {"state": "Failed"}}, id="another-status"),
        pytest.param({"status": REPORTED, "spec": {"priority": 7}}, id="another-spec"),
        pytest.param({"status": REPORTED, "annotations": {}}, id="other-annotations"),
    ],
)
async def test_any_other_change_is_one(world: World, appwrappers: Watched, changes: dict[str, Any]) -> None:
    assert await is_looked_at(world, appwrappers, **changes)
