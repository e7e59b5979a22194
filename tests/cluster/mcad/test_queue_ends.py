"""MCAD's cases of completion and of time: what is over gives its capacity back and is never run again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cluster.figures import free_in
from tests.cluster.manifests import appwrapper, changed, deployment, item, job, service
from tests.cluster.mcad.suite import Suite, conditions

Json = dict[str, Any]

WHOLE_CPU = 1950
COMPLETED = ("True", "PodsCompleted", "")
HOLDING = ("True", "SomeItemsCompleted", "")
LIMIT = 4


def short_job(name: str, **fields: Any) -> Json:  # noqa: ANN401
    """An item of one pod that works for a second."""
    return item(job(name, run_for="1s"), **fields)


async def until_free(suite: Suite, cpu: int) -> None:
    async def free() -> bool:
        return (await free_in(suite.process)).get("cpu") == cpu

    await suite.world.until(free, f"{cpu}m of cpu are free")


def moment(status: Json, type_: str) -> datetime:
    """When a condition came about."""
    found = next(each for each in status["conditions"] if each["type"] == type_)
    written: str = found["lastTransitionMicroTime"]
    return datetime.strptime(written, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


async def test_appwrapper_whose_items_are_done_completes_and_gives_its_capacity_back(suite: Suite) -> None:
    """MCAD Job Completion Test; MCAD Multi-Item Job Completion Test; and one that names nothing to wait for."""
    two = item(job("two", run_for="2s"), completionstatus="Failed, Complete")
    gangs = {
        "aw-test-job-with-comp-1": [short_job("single", completionstatus="Complete")],
        "aw-test-job-with-comp-ms-21": [short_job("one", completionstatus="Complete"), two],
        "aw-names-nothing": [short_job("unnamed")],
    }
    for name, items in gangs.items():
        await suite.apply(appwrapper(name, *items, schedulingSpec={"minAvailable": len(items)}))

    for name in gangs:
        status = await suite.until_shown(name, "Completed")
        assert (status["queuejobstate"], conditions(status)["Completed"]) == ("Completed", COMPLETED)
        assert status["canrun"] is False
        assert (await suite.world.causes(name)).count("dispatched") == 1
    await until_free(suite, WHOLE_CPU)


async def test_gang_that_has_succeeded_is_not_short_of_pods(suite: Suite) -> None:
    """MCAD Job Completion No-requeue Test."""
    scheduling = {"minAvailable": 2, "requeuing": {"timeInSeconds": 5, "growthType": "none"}}
    twice = item(job("aw-test-job-no-requeue", parallelism=2, run_for="1s"))
    await suite.apply(appwrapper("aw-test-job-no-requeue", twice, schedulingSpec=scheduling))

    status = await suite.until_shown("aw-test-job-no-requeue", "Completed")

    assert status["Succeeded"] == 2
    await suite.cycles_pass(20)
    after = await suite.status("aw-test-job-no-requeue")
    assert (after["state"], after.get("numberOfRequeueings", 0)) == ("Completed", 0)
    assert [each["status"]["phase"] for each in await suite.pods("aw-test-job-no-requeue")] == [
        "Succeeded"
    ] * 2
    assert (await suite.world.causes("aw-test-job-no-requeue")).count("dispatched") == 1


async def test_items_that_are_done_while_pods_run_hold_the_completion(suite: Suite) -> None:
    """MCAD Deployment RunningHoldCompletion Test; and one whose every item is named and done."""
    for name in ("aw-deployment-rhc", "aw-all-done"):
        named = item(deployment(f"{name}-1"), completionstatus="Progressing")
        others = [item(deployment(f"{name}-2"))] if name == "aw-deployment-rhc" else []
        await suite.apply(appwrapper(name, named, *others))

    for name in ("aw-deployment-rhc", "aw-all-done"):
        status = await suite.until_shown(name, "RunningHoldCompletion")
        assert status["queuejobstate"] == "RunningHoldCompletion"
        assert conditions(status)["RunningHoldCompletion"] == HOLDING
    await suite.cycles_pass(3)
    states = [each["status"]["state"] for each in await suite.world.every("AppWrapper")]
    assert states == ["RunningHoldCompletion"] * 2
    await until_free(suite, WHOLE_CPU - 300)


async def test_items_that_are_done_before_their_first_pod_appears_hold_the_completion(suite: Suite) -> None:
    """A Deployment is Progressing before it has a pod; no pod left is not the same as no pod yet."""
    hard = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await suite.world.create({"apiVersion": "v1", "kind": "ResourceQuota", **hard})

    async def in_force() -> bool:
        found = await suite.world.get("ResourceQuota", "none")
        return bool(found and (found.get("status") or {}).get("hard"))

    await suite.world.until(in_force, "no pod may be created")
    await suite.apply(appwrapper("aw-early", item(deployment("aw-early"), completionstatus="Progressing")))

    await suite.until_shown("aw-early", "RunningHoldCompletion")

    await suite.cycles_pass(20)
    assert (await suite.status("aw-early"))["state"] == "RunningHoldCompletion"


async def test_service_alone_runs_and_neither_holds_nor_completes(suite: Suite) -> None:
    """MCAD Service no RunningHoldCompletion or Complete Test."""
    await suite.apply(appwrapper("aw-service", item(service("aw-service"))))

    status = await suite.until_shown("aw-service", "Running")

    await suite.cycles_pass(3)
    status = await suite.status("aw-service")
    assert status["state"] == "Running"
    assert not {"Completed", "RunningHoldCompletion"} & conditions(status).keys()
    await until_free(suite, WHOLE_CPU)


async def test_job_that_failed_fails_its_appwrapper_though_failed_was_named(suite: Suite) -> None:
    """A Job that exits 1 with completionstatus "Complete,Failed", which MCAD called Completed."""
    broken = changed(job("aw-fails", fail_after="500ms"), "spec.backoffLimit", 0)
    await suite.apply(appwrapper("aw-fails", item(broken, completionstatus="Complete,Failed")))

    status = await suite.until_shown("aw-fails", "Failed")

    assert conditions(status)["Failed"][:2] == ("True", "FailedComponent")
    await suite.cycles_pass(3)
    assert (await suite.status("aw-fails"))["state"] == "Failed"
    assert (await suite.world.causes("aw-fails")).count("dispatched") == 1


async def test_time_that_is_up_fails_the_appwrapper_and_removes_its_objects(suite: Suite) -> None:
    """MCAD app wrapper timeout Test; and the same without minAvailable, and with time enough."""
    for name, limit, scheduling in (
        ("aw-patient", 3600, {"minAvailable": 1}),
        ("aw-test-jobtimeout", LIMIT, {"minAvailable": 1}),
        ("aw-without-minimum", LIMIT, {}),
    ):
        terms = {"dispatchDuration": {"limit": limit}, **scheduling}
        await suite.apply(appwrapper(name, item(job(name)), schedulingSpec=terms))

    for name in ("aw-test-jobtimeout", "aw-without-minimum"):
        status = await suite.until_shown(name, "Failed")
        told = conditions(status)
        message = f"Dispatch deadline exceeded. allowed to run for {LIMIT} seconds"
        assert told["PreemptCandidate"] == ("True", "DispatchDeadlineExceeded", message)
        assert told["Failed"] == ("True", "DispatchDeadlineExceeded", message)
        assert "Running" in told
        lived = moment(status, "PreemptCandidate") - moment(status, "Dispatched")
        assert lived >= timedelta(seconds=LIMIT)
        assert (await suite.world.get("Job", name), await suite.pods(name)) == (None, [])

    await suite.cycles_pass(3)
    assert (await suite.status("aw-test-jobtimeout"))["state"] == "Failed"
    assert (await suite.status("aw-patient"))["state"] == "Running"
