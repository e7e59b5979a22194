"""What was dispatched is watched over; before anything is done about it, the API server itself is asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.annotations import ADMISSION_GRACE, RETRY_LIMIT
from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import UID_LABEL
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.policy import KEPT
from dispatcher.core.model.gangs.pods import Pod, PodFailure, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING
from tests.builders import attempt_of, make_appwrapper, make_pod
from tests.fakes import Reply, answer, refusal
from tests.unit.controller.wire import ALL_PODS, JOBS, MISSING, PODS, job, made, pods, true
from tests.unit.controller.world import World
from tests.unit.virtual_time import until

Json = dict[str, Any]

UID = "uid-of-aw"
EVENTS = "/api/v1/namespaces/default/events"
CONTROLLER: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-train"}
TRAIN, SERVE = job("train"), job("serve")


def lives(name: str = "pod", phase: str = "Running") -> Json:
    """A pod of the gang, as the API server has it."""
    return make_pod(name, phase=phase, of=UID, controller=CONTROLLER)


def cannot_start() -> Json:
    """A pod of the gang whose image nobody has."""
    raw = lives(phase="Pending")
    raw["status"]["containerStatuses"] = [
        {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    ]
    return raw


def watch_shows(world: World, phase: PodPhase) -> None:
    """What the watch tells of the one pod of the gang."""
    world.ledger.set_pod(Pod("p", NOTHING, "n1", phase, owner=UID))


async def running(world: World, *statuses: Json, spec: Json | None = None) -> Record:
    """A gang of as many Jobs as there are statuses, at most two, that ran when the watches first saw it."""
    templates = [TRAIN, SERVE][: len(statuses)]
    for index, (template, status) in enumerate(zip(templates, statuses, strict=True)):
        world.jobs.has(made(template, index, status))
    record = await world.running(make_appwrapper("aw", *templates, spec=spec))
    await world.sees(record)
    return record


async def until_absent(world: World, name: str) -> None:
    """Return once the watch has told that an object is gone."""
    attempt = world.record(UID).attempt
    assert attempt is not None
    (ref,) = [ref for ref in attempt.objects if ref.name == name]
    await until(lambda: world.cluster.objects.is_absent(ref))


# --- completion ------------------------------------------------------------------------------------------


async def test_gang_is_complete_once_the_api_server_was_asked_for_live_pods(world: World) -> None:
    await running(world, true("Complete"))
    wakes, woken = world.dispatch_wakes, len(world.woken)
    await world.reconcile(UID)  # also asks for live pods
    assert world.record(UID).phase is Phase.RUNNING  # nobody waits for the answer
    assert world.ledger.free()["cpu"] == 7000

    await until(lambda: world.woken[woken:])
    await world.reconcile(UID)

    record, now = world.record(UID), world.now()
    assert (record.phase, record.kept_until) == (Phase.COMPLETED, now + KEPT)
    assert [ref.done for ref in attempt_of(record).objects] == [True]
    assert world.ledger.free()["cpu"] == 8000
    assert world.dispatch_wakes == wakes + 1
    assert world.jobs.deletions() == []


async def test_all_that_is_due_of_a_finished_gang_is_done_in_one_look(world: World) -> None:
    world.jobs.has(made(TRAIN, 0, true("Complete")))
    record = await world.created(make_appwrapper("aw", TRAIN))
    await world.sees(record)
    woken = len(world.woken)

    await world.reconcile(UID)

    assert [batch[0][1] for batch in world.store.batches][-2:] == ["items-done", "pods-running"]
    await until(lambda: world.woken[woken:])  # the live pods were asked for
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.COMPLETED
    assert [status["queuejobstate"] for status in world.statuses()] == ["Completed"]


async def test_gang_whose_live_pods_cannot_be_listed_is_reported_a_second_later(world: World) -> None:
    world.jobs.has(made(TRAIN, 0, true("Complete")))
    record = await world.created(make_appwrapper("aw", TRAIN))
    await world.sees(record)
    world.server.on("GET", ALL_PODS, refusal(503, "ServiceUnavailable"))

    await world.reconcile(UID)
    assert world.statuses() == []
    await world.forget_wakes()
    await asyncio.sleep(1)  # virtual
    assert await world.is_woken_within(0.1)
    await world.reconcile(UID)

    assert world.record(UID).phase is Phase.RUNNING
    assert [status["queuejobstate"] for status in world.statuses()] == ["Running"]


async def test_gang_whose_object_goes_while_its_pods_are_asked_for_is_complete(world: World) -> None:
    await running(world, true("Complete"))
    woken = len(world.woken)
    await world.reconcile(UID)
    world.jobs.loses("train")
    await until_absent(world, "train")
    await until(lambda: world.woken[woken:])
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.COMPLETED


async def test_gang_of_which_a_pod_still_lives_is_not_complete(world: World) -> None:
    await running(world, true("Complete"))
    world.server.on("GET", ALL_PODS, answer(pods(lives())), answer(pods()))
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.RUNNING
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.COMPLETED


async def test_gang_whose_pods_are_seen_to_live_is_not_asked_for(world: World) -> None:
    await running(world, true("Complete"))
    watch_shows(world, PodPhase.RUNNING)
    await world.reconcile(UID)
    await asyncio.sleep(2)  # virtual
    assert world.server.requests("GET", ALL_PODS) == []


async def test_part_that_is_done_stays_done_though_it_is_cleaned_up(world: World) -> None:
    await running(world, true("Complete"), {})
    watch_shows(world, PodPhase.RUNNING)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.RUNNING_HOLD_COMPLETION

    world.jobs.loses("train")
    await until_absent(world, "train")
    await asyncio.sleep(60)  # virtual
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.RUNNING_HOLD_COMPLETION

    woken = len(world.woken)
    world.jobs.has(made(SERVE, 1, true("Complete")))
    await until(lambda: world.woken[woken:])
    watch_shows(world, PodPhase.SUCCEEDED)
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.COMPLETED


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fresh", "phase"),
    [
        pytest.param([], Phase.REQUEUEING, id="the-api-server-agrees"),
        pytest.param([lives("a"), lives("b")], Phase.DISPATCHED, id="there-are-enough-by-now"),
    ],
)
async def test_gang_that_seems_short_of_pods_goes_back_if_a_fresh_count_agrees(
    world: World, fresh: list[Json], phase: Phase
) -> None:
    world.jobs.has(made(TRAIN))
    await world.created(make_appwrapper("aw", TRAIN, spec={"schedulingSpec": {"minAvailable": 2}}))
    world.server.on("GET", PODS, answer(pods(*fresh)))
    await asyncio.sleep(301)  # virtual
    await world.forget_wakes()
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.requeuings) == (phase, int(phase is Phase.REQUEUEING))
    assert await world.is_woken_within(1)


async def test_gang_without_a_pod_is_requeued_with_the_message_of_its_controller(world: World) -> None:
    said = {"reason": "FailedCreate", "message": "exceeded quota", "lastTimestamp": "2026-11-20T09:00:00Z"}
    world.server.on("GET", EVENTS, answer({"items": [said]}))
    world.jobs.has(made(TRAIN))
    await world.created(make_appwrapper("aw", TRAIN))
    await asyncio.sleep(31)  # virtual
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DISPATCHED
    await asyncio.sleep(30)  # virtual
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.reason, record.message) == (
        Phase.REQUEUEING,
        "InsufficientPodsReady",
        "0 of 1 pods run: there is none; Job default/train: FailedCreate: exceeded quota",
    )
    assert record.eligible_at == world.now() + timedelta(seconds=90)


REFUSED, NO_ANSWER = refusal(403, "Forbidden"), refusal(503, "ServiceUnavailable")
OF_NO_PODS = answer({**made(TRAIN), "spec": {**made(TRAIN)["spec"], "parallelism": 0}})


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        pytest.param(OF_NO_PODS, Phase.RUNNING, id="it-was-scaled-to-zero"),
        pytest.param(answer(made(TRAIN)), Phase.REQUEUEING, id="it-asks-for-its-pod"),
        pytest.param(MISSING, Phase.REQUEUEING, id="it-is-gone"),
        pytest.param(REFUSED, Phase.RUNNING, id="it-may-not-be-read"),
        pytest.param(NO_ANSWER, Phase.RUNNING, id="it-cannot-be-converted"),
    ],
)
async def test_gang_without_pods_whose_object_no_watch_shows_ends_once_its_object_is_known_to_ask_for_pods(
    world: World, found: Reply, phase: Phase
) -> None:
    world.server.on("GET", "/apis/batch/v1/jobs", REFUSED)
    await world.running(make_appwrapper("aw", TRAIN))
    world.server.on("GET", f"{JOBS}/train", found)
    await world.reconcile(UID)
    await asyncio.sleep(61)  # virtual
    await world.forget_wakes()
    await world.reconcile(UID)
    assert world.record(UID).phase is phase
    assert await world.is_woken_within(1)


async def test_gang_that_was_scaled_to_zero_is_not_ended_by_a_leader_that_may_not_read_its_object(
    world: World,
) -> None:
    world.server.on("GET", "/apis/batch/v1/jobs", REFUSED)
    record = await world.running(make_appwrapper("aw", TRAIN))
    lowered = "Job default/train asks for none of its 1 pods"
    await world.commit(run_changes.note_health_issue(record, "Drifted", lowered, world.now()))
    for _ in range(3):
        await world.reconcile(UID)
        await asyncio.sleep(120)  # virtual
    record = world.record(UID)
    assert (record.phase, record.unhealthy and record.unhealthy.message) == (Phase.RUNNING, lowered)
    assert world.server.requests("GET", f"{JOBS}/train") == []


async def test_gang_with_an_unschedulable_pod_is_requeued_with_the_message_of_kube_scheduler(
    world: World,
) -> None:
    world.jobs.has(made(TRAIN))
    await world.created(make_appwrapper("aw", TRAIN, spec={"schedulingSpec": {"minAvailable": 1}}))
    message = "0/1 nodes are available: 1 Insufficient cpu."
    raw = lives(phase="Pending")
    raw["spec"].pop("nodeName", None)
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw["status"]["conditions"] = [unscheduled]
    world.server.on("GET", PODS, answer(pods(raw)))
    without_node = Unscheduled("pod", message)
    world.ledger.set_pod(
        Pod("p", NOTHING, owner=UID, reason=PodReason.UNSCHEDULABLE, unscheduled=without_node)
    )
    await asyncio.sleep(301)  # virtual
    await world.reconcile(UID)
    record = world.record(UID)
    few = "Insufficient number of Running and Completed pods, minimum=1, running=0, completed=0."
    said = f"{few}; no node for pod pod: 0/1 nodes are available: 1 Insufficient cpu"
    assert (record.phase, record.reason, record.message) == (Phase.REQUEUEING, "MinPodsNotRunning", said)
    evicted = record.condition(ConditionType.PREEMPT_CANDIDATE)
    assert evicted is not None
    assert evicted.message == few  # as MCAD has it


async def test_annotations_count_as_they_are_now(world: World) -> None:
    world.jobs.has(made(TRAIN))
    await world.created(make_appwrapper("aw", TRAIN))
    world.show(make_appwrapper("aw", TRAIN, annotations={ADMISSION_GRACE: "10s", RETRY_LIMIT: "0"}))
    await asyncio.sleep(11)  # virtual
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.FAILING


@pytest.mark.parametrize("is_there", [True, False])
async def test_object_that_a_watch_misses_is_looked_for(world: World, is_there: bool) -> None:
    await running(world, {})
    world.jobs.loses("train")
    await until_absent(world, "train")
    if is_there:
        world.server.on("GET", f"{JOBS}/train", answer(made(TRAIN)))
    await asyncio.sleep(6)  # virtual
    await world.forget_wakes()
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.reason) == (
        (Phase.RUNNING, "") if is_there else (Phase.FAILING, "MissingComponent")
    )
    assert await world.is_woken_within(1)


NO_JOBS: Json = {"resources": [{"name": "cronjobs", "kind": "CronJob", "namespaced": True}]}
WITH_JOBS: Json = {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]}
WENT = "cluster hub stopped serving Job of batch/v1, and Job default/train went with it"


@pytest.mark.parametrize(
    ("later", "is_there", "phase", "reason"),
    [
        pytest.param(NO_JOBS, False, Phase.REQUEUEING, "KindNotInstalled", id="for-longer"),
        pytest.param(
            WITH_JOBS, False, Phase.REQUEUEING, "KindNotInstalled", id="and-then-without-the-object"
        ),
        pytest.param(WITH_JOBS, True, Phase.RUNNING, "", id="for-a-moment"),
    ],
)
async def test_gang_whose_object_went_with_its_kind_is_queued_again_and_not_failed(
    world: World, later: Json, is_there: bool, phase: Phase, reason: str
) -> None:
    """Its operator is upgraded: the definition of the kind is removed, with all objects, and installed again."""
    await running(world, {})
    watch_shows(world, PodPhase.RUNNING)
    world.server.on("GET", "/apis/batch/v1", answer(NO_JOBS))
    world.server.on("GET", "/readyz", answer({}))
    world.jobs.loses("train")
    await until_absent(world, "train")
    await asyncio.sleep(6)  # virtual
    await world.reconcile(UID)
    noted = world.record(UID)
    assert noted.phase is Phase.RUNNING
    assert noted.unhealthy is not None
    assert (noted.unhealthy.reason, noted.unhealthy.message) == ("KindNotInstalled", WENT)

    world.server.on("GET", "/apis/batch/v1", answer(later))
    if is_there:
        world.server.on("GET", f"{JOBS}/train", answer(made(TRAIN)))
    await asyncio.sleep(61)  # virtual
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.reason, record.requeuings) == (phase, reason, 0)


def hides(world: World, status: Json) -> None:
    """From now on the Job bears no mark of ours: it exists, but the watch tells that it is gone."""
    raw = made(TRAIN, status=status)
    raw["metadata"] = {**raw["metadata"], "labels": {}, "annotations": {}}
    world.jobs.loses("train")
    world.server.on("GET", f"{JOBS}/train", answer(raw))


async def test_object_that_lost_our_marks_is_given_them_and_seen_again(world: World) -> None:
    await running(world, {})
    watch_shows(world, PodPhase.RUNNING)
    hides(world, {})
    await until_absent(world, "train")
    await asyncio.sleep(6)  # virtual
    world.server.on("PATCH", f"{JOBS}/train", answer({}))
    await world.reconcile(UID)
    (patch,) = world.server.requests("PATCH", f"{JOBS}/train")
    assert patch.body["metadata"]["labels"][UID_LABEL] == UID

    woken = len(world.woken)
    world.jobs.has(made(TRAIN))  # with its label the watch shows it as new
    await until(lambda: world.woken[woken:])
    asked = len(world.server.requests("GET", f"{JOBS}/train"))
    await world.reconcile(UID)
    assert len(world.server.requests("GET", f"{JOBS}/train")) == asked


async def test_part_that_cannot_be_marked_is_asked_whether_it_is_done(world: World) -> None:
    await running(world, {}, {})
    watch_shows(world, PodPhase.RUNNING)
    hides(world, true("Complete"))
    await until_absent(world, "train")
    await asyncio.sleep(6)  # virtual
    await world.reconcile(UID, times=2)
    record = world.record(UID)
    assert (record.phase, [ref.done for ref in attempt_of(record).objects]) == (
        Phase.RUNNING_HOLD_COMPLETION,
        [True, False],
    )


@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        pytest.param(true("Complete"), Phase.COMPLETED, "", id="complete"),
        pytest.param(true("Failed"), Phase.FAILING, "FailedComponent", id="failed"),
        pytest.param({}, Phase.RUNNING, "", id="running"),
    ],
)
async def test_object_that_cannot_be_marked_is_asked_for_how_it_ends(
    world: World, status: Json, phase: Phase, reason: str
) -> None:
    await running(world, {})
    watch_shows(world, PodPhase.SUCCEEDED if status else PodPhase.RUNNING)
    hides(world, status)
    await until_absent(world, "train")
    await asyncio.sleep(6)  # virtual
    world.server.on("PATCH", f"{JOBS}/train", refusal(403, "Forbidden"))
    for _ in range(3):
        await world.reconcile(UID)
        await asyncio.sleep(2)  # virtual
    assert (world.record(UID).phase, world.record(UID).reason) == (phase, reason)


async def test_object_that_cannot_be_marked_is_asked_for_ever_less(world: World) -> None:
    await running(world, {})
    watch_shows(world, PodPhase.RUNNING)
    hides(world, {})
    await until_absent(world, "train")
    world.server.on("PATCH", f"{JOBS}/train", refusal(403, "Forbidden"))
    task = asyncio.create_task(world.reconciler.run())
    await asyncio.sleep(600)  # virtual
    task.cancel()
    assert world.record(UID).phase is Phase.RUNNING
    assert len(world.server.requests("GET", f"{JOBS}/train")) < 40


async def test_object_that_says_it_failed_is_believed(world: World) -> None:
    await running(world, true("Failed"))
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.reason, record.message) == (
        Phase.FAILING,
        "FailedComponent",
        "Job default/train failed: Failed",
    )


async def test_failed_gang_names_the_pod_that_failed_first_and_keeps_its_message_apart(world: World) -> None:
    await running(world, true("Failed"))
    failed = lives("train-x", phase="Failed")
    terminated = {"exitCode": 137, "reason": "OOMKilled", "message": "batch 7"}
    failed["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": terminated}}]
    world.server.on("GET", PODS, answer(pods(failed)))

    await world.reconcile(UID)

    record = world.record(UID)
    assert record.message == (
        "Job default/train failed: Failed; failed first: container main of pod train-x, exit code 137, OOMKilled"
    )
    assert record.failure == PodFailure("train-x", "main", 137, "OOMKilled", "batch 7")
    assert world.statuses()[-1]["failure"]["message"] == "batch 7"


async def test_health_issue_of_a_running_gang_is_noted_and_ends(world: World) -> None:
    await running(world, {})
    watch_shows(world, PodPhase.PENDING)
    await world.reconcile(UID)
    unhealthy = world.record(UID).unhealthy
    assert unhealthy is not None
    assert (unhealthy.reason, unhealthy.message, unhealthy.since) == (
        "InsufficientPodsReady",
        "0 of 1 pods run",
        world.now(),
    )
    watch_shows(world, PodPhase.RUNNING)
    await world.reconcile(UID)
    assert (world.record(UID).phase, world.record(UID).unhealthy) == (Phase.RUNNING, None)


async def test_gang_with_a_lasting_health_issue_is_reconciled_when_its_grace_period_ends(
    world: World,
) -> None:
    await running(world, {})
    watch_shows(world, PodPhase.PENDING)
    world.server.on("GET", PODS, answer(pods(cannot_start())))
    await world.reconcile(UID, times=2)
    await world.forget_wakes()
    assert not await world.is_woken_within(299)
    assert await world.is_woken_within(2)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.REQUEUEING


async def test_gang_that_rests_until_a_time_is_looked_at_once_then(world: World) -> None:
    await running(world, {}, spec={"schedulingSpec": {"dispatchDuration": {"limit": 60}}})
    watch_shows(world, PodPhase.RUNNING)
    for _ in range(3):
        await world.reconcile(UID)
    await world.forget_wakes()
    assert not await world.is_woken_within(59)
    assert await world.is_woken_within(2)
    assert not await world.is_woken_within(3600)
    await world.reconcile(UID)
    record = world.record(UID)
    assert (record.phase, record.reason, record.message) == (
        Phase.FAILING,
        "DispatchDeadlineExceeded",
        "Dispatch deadline exceeded. allowed to run for 60 seconds",
    )
