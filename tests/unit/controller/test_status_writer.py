"""The reporter: one write per step a reader can see, and none for what is known."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api import conditions as words
from dispatcher.api.names import FINALIZER
from dispatcher.controller.reconcile.reconciler import lane_of
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.model.gangs.pods import Pod, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.status.conditions import Shown, project
from dispatcher.kube.objects.appwrappers import decode
from tests.builders import WAITS, at, make_appwrapper, make_blocked, make_record
from tests.fakes import answer, refusal
from tests.unit.controller.wire import APPWRAPPERS
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

UID = "uid-of-aw"
WRITTEN = {"metadata": {"resourceVersion": "2"}}


async def report(world: World, record: Record) -> None:
    world.cache.put(record)
    await world.reconciling.status_writer.report(record.uid)


def run_pod(world: World, index: int) -> None:
    world.ledger.set_pod(Pod(f"p{index}", NOTHING, "n1", PodPhase.RUNNING, owner=UID))


async def test_each_step_a_reader_can_see_is_one_write(world: World) -> None:
    world.show(make_appwrapper())
    queued = make_record()
    blocked = make_blocked(queued)
    dispatching = queue_changes.dispatch(blocked, "hub", at(2)).after
    dispatched = run_changes.created(dispatching, (), at(3)).after
    running = run_changes.mark_running(dispatched, at(4)).after
    for record in (queued, blocked, dispatching, dispatched, running):
        await report(world, record)
        await report(world, record)

    assert [status["queuejobstate"] for status in world.statuses()] == ["Backoff", "Dispatched", "Running"]


async def test_new_appwrapper_is_reported_after_its_first_evaluation(world: World) -> None:
    world.show(make_appwrapper())
    await report(world, make_record())
    assert world.statuses() == []
    await report(world, make_record(pending=WAITS))
    assert [status["queuejobstate"] for status in world.statuses()] == ["Queueing"]


async def test_outlook_stays_in_the_status_until_the_leader_has_one(world: World) -> None:
    record = make_blocked()
    world.show(make_appwrapper(status=project(record, Shown(outlook={"position": 7}))))
    await report(world, record)
    assert world.statuses() == []

    world.outlooks[UID] = {"position": 6}
    await report(world, record)
    world.outlooks[UID] = {}
    await report(world, record)
    assert [status["waiting"].get("position") for status in world.statuses()] == [6, None]


async def test_that_a_gang_grew_beyond_its_quota_stays_in_the_status_until_the_leader_knows(
    world: World,
) -> None:
    record = run_changes.note_growth(make_record(Phase.RUNNING), Resources({"cpu": 9000}), at(5)).after
    world.show(make_appwrapper(status=project(record, Shown(beyond_quota="too much"))))
    await report(world, record)
    assert world.statuses() == []

    world.beyond_quota[UID] = "less"
    await report(world, record)
    world.beyond_quota[UID] = ""
    await report(world, record)
    assert [status.get("beyondQuota") for status in world.statuses()] == ["less", None]


async def test_restart_writes_nothing_where_the_api_server_shows_the_same(world: World) -> None:
    record = make_record(Phase.RUNNING)
    world.show(make_appwrapper(status=project(record)))
    await report(world, record)
    assert world.server.requests("PATCH") == []


async def test_status_written_by_another_client_is_corrected(world: World) -> None:
    record = make_record(Phase.RUNNING)
    world.show(make_appwrapper(status={**project(record), "state": "Failed"}))
    await report(world, record)
    assert world.statuses() == [project(record)]


APPROVED = {"type": "budget", "status": "True", "reason": "Granted", "message": "by finance"}


async def test_conditions_of_other_controllers_stay_and_a_write_needs_the_version_it_read(
    world: World,
) -> None:
    queued = project(make_blocked())
    shown = {**queued, "conditions": [*queued["conditions"], APPROVED]}
    world.show(make_appwrapper(status=shown, resourceVersion="7"))
    await report(world, make_record(Phase.DISPATCHED))
    (written,) = world.statuses()
    assert written["conditions"] == [APPROVED, *project(make_record(Phase.DISPATCHED))["conditions"]]
    assert world.server.requests("PATCH")[-1].body[-1] == {
        "op": "add",
        "path": "/metadata/resourceVersion",
        "value": "7",
    }


async def test_status_of_a_too_large_appwrapper_is_written_over_the_version_it_read_only(
    world: World,
) -> None:
    """It may outlast the lease, so that another leader has written meanwhile; and a try costs the API server much."""
    world.show(make_appwrapper(spec={"a": "x" * 300_000}, resourceVersion="7"))
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", refusal(409, "Conflict"))
    await report(world, make_record(Phase.FAILED))
    assert world.server.requests("PATCH")[-1].body[-1]["value"] == "7"
    await world.forget_wakes()
    assert not await world.is_woken_within(59)
    assert await world.is_woken_within(2)


async def test_pauses_of_a_status_that_cannot_be_written_double(world: World) -> None:
    """Each try costs an API server that answers too late as much as the last one: it would never catch up."""
    world.show(make_appwrapper())
    world.cache.put(make_record(Phase.RUNNING))
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", *[refusal(504, "Timeout")] * 8, answer(WRITTEN))
    pauses = []
    for _ in range(8):
        began = monotonic()
        await world.forget_wakes()
        await world.reconciling.status_writer.report_or_retry(UID)
        await asyncio.wait_for(world.queue.get(), 100)  # virtual
        world.queue.done(UID)
        pauses.append(round(monotonic() - began))
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]

    assert lane_of(UID, world.cache, world.hub) == "hub/slow"
    await world.reconciling.status_writer.report_or_retry(UID)
    assert lane_of(UID, world.cache, world.hub) == "hub"


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(("objects", "lane"), [(10, "hub"), (200, "hub"), (300, "hub/large")])
async def test_statuses_of_large_appwrappers_wait_for_each_other(
    world: World, objects: int, lane: str, is_new: bool
) -> None:
    """The statuses of twenty of 256 items, all written at once, kept an API server from others for seconds."""
    view = decode(make_appwrapper(spec={"components": [{}] * objects}), with_spec=is_new)
    world.hub.reflectors[0].items[UID] = view
    assert lane_of(UID, world.cache, world.hub) == lane


@pytest.mark.parametrize(("length", "lane"), [(20_000, "hub"), (40_000, "hub/large")])
async def test_statuses_of_appwrappers_with_much_metadata_wait_for_each_other(
    world: World, length: int, lane: str
) -> None:
    world.show(make_appwrapper(annotations={"example.com/notes": "x" * length}))
    assert lane_of(UID, world.cache, world.hub) == lane


async def test_failure_of_a_deleted_appwrapper_is_not_remembered(world: World) -> None:
    world.show(make_appwrapper())
    world.hide(UID)
    world.hub.note_unwritten(UID)
    assert not world.hub.is_slow(UID)


async def test_write_over_a_later_change_of_others_is_tried_again(world: World) -> None:
    world.show(make_appwrapper(status={"conditions": [APPROVED]}, resourceVersion="7"))
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", refusal(409, "Conflict"))
    with capture_logs() as logs:
        await report(world, make_record(Phase.DISPATCHED))
    assert logs == []
    assert await asyncio.wait_for(world.queue.get(), 3) == UID  # virtual


async def test_conditions_of_others_stay_while_an_appwrapper_is_deferred(world: World) -> None:
    view = world.show(make_appwrapper(status={"conditions": [APPROVED]}))
    world.bound.most = 0
    assert not world.limits.admits(view)
    await world.reconciling.status_writer.report(UID)
    (written,) = world.statuses()
    assert written["conditions"] == [APPROVED]


async def test_own_write_is_believed_until_the_watch_has_caught_up(world: World) -> None:
    view = world.show(make_appwrapper())
    record = make_record(Phase.DISPATCHED)
    await report(world, record)
    await report(world, record)
    assert len(world.statuses()) == 1

    overtaken = replace(view, resource_version="3", status_json=b'{"state":"Failed"}')
    world.hub.reflectors[0].items[UID] = overtaken
    await report(world, record)
    assert len(world.statuses()) == 2


async def test_pod_counts_alone_are_written_at_most_once_a_second(world: World) -> None:
    world.show(make_appwrapper())
    record = make_record(Phase.RUNNING)
    for index in range(16):
        run_pod(world, index)
        await report(world, record)
        await asyncio.sleep(0.125)  # virtual

    assert [status["running"] for status in world.statuses()] == [1, 9]
    assert await world.queue.get() == UID
    await report(world, record)
    assert world.statuses()[-1]["running"] == 16


async def test_step_is_written_at_once_even_just_after_counts(world: World) -> None:
    world.show(make_appwrapper())
    dispatched = make_record(Phase.DISPATCHED)
    await report(world, dispatched)
    run_pod(world, 0)
    await report(world, run_changes.mark_running(dispatched, at(4)).after)
    assert [(status["queuejobstate"], status.get("running")) for status in world.statuses()] == [
        ("Dispatched", None),
        ("Running", 1),
    ]


async def test_creation_that_takes_long_is_reported_before_it_is_done(world: World) -> None:
    world.show(make_appwrapper())
    record = make_record(Phase.DISPATCHING)
    await report(world, record)
    assert world.statuses() == []
    assert await asyncio.wait_for(world.queue.get(), 2) == UID
    await report(world, record)
    assert [status["queuejobstate"] for status in world.statuses()] == ["HeadOfLine"]


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED])
@pytest.mark.parametrize("kept", [True, False])
async def test_status_of_an_ended_gang_counts_its_pods_while_they_are_kept(
    world: World, phase: Phase, kept: bool
) -> None:
    world.show(make_appwrapper())
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.SUCCEEDED, owner=UID))
    await report(world, make_record(phase, kept_until=at(3600) if kept else None))
    (status,) = world.statuses()
    assert (status.get("Succeeded"), status.get("keptUntil")) == (
        (1, "2026-11-20T09:58:06Z") if kept else (None, None)
    )


async def test_status_lists_unschedulable_pods_with_the_reason(world: World) -> None:
    world.show(make_appwrapper())
    waits = Unscheduled("default/p", "0/1 nodes are available", "2026-11-20T09:00:00Z")
    unscheduled = Pod("p", NOTHING, owner=UID, reason=PodReason.UNSCHEDULABLE, unscheduled=waits)
    world.ledger.set_pod(unscheduled)
    await report(world, make_record(Phase.DISPATCHED))
    (status,) = world.statuses()
    assert status["pendingpodconditions"] == [
        {
            "podname": "default/p",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                    "lastTransitionTime": "2026-11-20T09:00:00Z",
                }
            ],
        }
    ]


@pytest.mark.parametrize("case", ["going", "gone"])
async def test_status_of_a_deleted_appwrapper_is_not_written(world: World, case: str) -> None:
    view = world.show(make_appwrapper(deletionTimestamp="2026-11-20T09:00:00Z"))
    if case == "gone":
        world.hide(view.uid)
    await report(world, make_record(Phase.DELETING))
    assert world.server.requests("PATCH") == []


async def test_deleted_appwrapper_with_a_finalizer_says_why_it_stays(world: World) -> None:
    world.show(make_appwrapper(deletionTimestamp="2026-11-20T09:00:00Z", finalizers=[FINALIZER]))
    deleting = make_record(Phase.DELETING)
    record = run_changes.note_health_issue(
        deleting, words.CLUSTER_UNREACHABLE, "cluster east is away", at(5)
    ).after
    await report(world, record)
    await report(world, record)
    (status,) = world.statuses()
    assert status["unhealthy"]["reason"] == "ClusterUnreachable"


async def test_status_is_not_written_once_no_object_of_the_deleted_appwrapper_is_left(world: World) -> None:
    world.show(make_appwrapper(deletionTimestamp="2026-11-20T09:00:00Z", finalizers=[FINALIZER]))
    await report(world, make_record(Phase.DELETING))
    await report(world, make_record(Phase.DELETED))
    assert len(world.statuses()) == 1


@pytest.mark.parametrize(
    ("reply", "logged"),
    [
        pytest.param(refusal(422, "Invalid", "test failed"), ["status_refused"], id="a-successor"),
        pytest.param(refusal(404, "NotFound"), [], id="deleted-meanwhile"),
    ],
)
async def test_status_write_that_met_another_object_is_dropped(
    world: World, reply: object, logged: list[str]
) -> None:
    world.show(make_appwrapper())
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", reply)  # type: ignore[arg-type]
    with capture_logs() as logs:
        await report(world, make_record(Phase.RUNNING))
    assert [entry["event"] for entry in logs] == logged
    assert world.server.requests("PATCH")[0].body[0] == {"op": "test", "path": "/metadata/uid", "value": UID}
