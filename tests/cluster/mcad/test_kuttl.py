"""MCAD's declarative cases (kuttl), as far as they are not about quota trees."""

from __future__ import annotations

from typing import Any

from tests.cluster.manifests import appwrapper, changed, item, job
from tests.cluster.mcad.suite import TRUSTING, Suite, conditions, declaring, two_deployed

Json = dict[str, Any]

NAME = "workload.codeflare.dev/appwrapper"
NAME_OF_OLD = "appwrapper.mcad.ibm.com"
RESOURCE = "resourceName"


def completing(name: str, cpu: str, **labels: str) -> Json:
    """An AppWrapper of a Job that works for a second, declared as kuttl's are."""
    requests = {"cpu": cpu, "nvidia.com/gpu": 0, "memory": "300Mi"}
    wrapped = item(
        changed(job(name, cpu=cpu, run_for="1s"), "metadata.labels", {NAME: name}),
        replicas=1,
        completionstatus="Complete",
        custompodresources=[{"replicas": 1, "requests": requests, "limits": requests}],
    )
    manifest = appwrapper(name, wrapped, schedulingSpec={"minAvailable": 1})
    return changed(manifest, "metadata.labels", labels)


async def test_appwrapper_without_scheduling_runs(suite: Suite) -> None:
    """deployment-01, 01: no-quota-deployment-01."""
    manifest = declaring("no-quota-deployment-01", 1, "300m", "300m")
    del manifest["spec"]["schedulingSpec"]

    await suite.apply(manifest)

    await suite.until_shown("no-quota-deployment-01", "Running")
    await suite.until_ready("no-quota-deployment-01", 1)


async def test_job_without_quota_completes(suite: Suite) -> None:
    """deployment-01, 02: no-quota-job-02."""
    await suite.apply(completing("no-quota-job-02", "500m"))

    status = await suite.until_shown("no-quota-job-02", "Completed")

    assert status["queuejobstate"] == "Completed"


@TRUSTING
async def test_finished_job_beside_an_unschedulable_job_holds_the_completion(
    suite: Suite,
) -> None:
    """deployment-01, 03: hold-completion-job-03, whose second Job asks for more than it declares."""
    name = "hold-completion-job-03"
    requeuing = {"timeInSeconds": 60, "growthType": "none", "maxNumRequeuings": 3}
    done = item(
        job(f"{name}-01", cpu="500m", run_for="1s"),
        completionstatus="Complete",
        custompodresources=[{"replicas": 1, "requests": {"cpu": "500m"}}],
    )
    unschedulable = item(
        job(f"{name}-02", cpu="5"), custompodresources=[{"replicas": 1, "requests": {"cpu": "1"}}]
    )
    scheduling = {"minAvailable": 1, "requeuing": requeuing}

    await suite.apply(appwrapper(name, done, unschedulable, schedulingSpec=scheduling))

    status = await suite.until_shown(name, "RunningHoldCompletion")
    assert conditions(status)["RunningHoldCompletion"][:2] == ("True", "SomeItemsCompleted")
    finished = await suite.world.get("Job", f"{name}-01")
    assert finished is not None
    assert finished["status"]["succeeded"] == 1
    assert marks(finished) == {NAME: name, NAME_OF_OLD: name, RESOURCE: f"{name}-01"}
    of_pods = sorted((marks(each) for each in await suite.pods(name)), key=lambda each: each[RESOURCE])
    assert of_pods == [
        {NAME: name, NAME_OF_OLD: name, RESOURCE: f"{name}-{number}"} for number in ("01", "02")
    ]


async def test_job_waits_until_others_are_deleted(suite: Suite) -> None:
    """deployment-01, 06 and 07: 1500m are Pending, then Running."""
    await suite.apply(two_deployed("no-quota-deployment-06", "300m"))
    await suite.until_ready("no-quota-deployment-06", 2)
    await suite.apply(appwrapper("large-job-07", item(job("large-job-07", parallelism=2, cpu="750m"))))
    await suite.stays_without_pods("large-job-07")

    await suite.world.delete("no-quota-deployment-06")

    await suite.until_shown("large-job-07", "Running")
    await suite.until_ready("large-job-07", 2)


async def test_labels_of_unknown_quota_trees_block_no_gang(suite: Suite) -> None:
    """deployment-01, 08: bronze-quota-job-08; quota-forest: a label that no tree knows."""
    await suite.apply(
        completing("bronze-quota-job-08", "300m", quota_context="bronze"),
        completing("unrelated-label-11", "300m", quota_management="bronze"),
    )

    await suite.until_shown("bronze-quota-job-08", "Completed")
    await suite.until_shown("unrelated-label-11", "Completed")


async def test_appwrapper_that_is_deleted_and_applied_again_at_once_runs_again(suite: Suite) -> None:
    """quota-errors, 04 and 05."""
    manifest = two_deployed("deployment-silver-lo-pri-1replica", "550m")
    await suite.apply(manifest)
    await suite.until_ready("deployment-silver-lo-pri-1replica", 2)
    before = {each["metadata"]["uid"] for each in await suite.pods("deployment-silver-lo-pri-1replica")}

    await suite.world.delete("deployment-silver-lo-pri-1replica")
    await suite.apply(manifest)

    async def only_new_pods_run() -> bool:
        pods = await suite.pods("deployment-silver-lo-pri-1replica")
        phases = [each["status"]["phase"] for each in pods]
        return phases == ["Running"] * 2 and not before & {each["metadata"]["uid"] for each in pods}

    await suite.world.until(only_new_pods_run, "two new pods run")
    await suite.until_shown("deployment-silver-lo-pri-1replica", "Running")


async def test_restart_keeps_what_runs_and_the_next_job_runs(suite: Suite) -> None:
    """deployment-02: MCAD's pod is restarted between two jobs."""
    await suite.apply(appwrapper("my-job-1", item(job("my-job-1", cpu="100m"))))
    await suite.world.until_state("my-job-1", "Running")
    await suite.until_ready("my-job-1", 1)
    before = {each["metadata"]["uid"] for each in await suite.pods("my-job-1")}

    await suite.restart()
    await suite.apply(appwrapper("my-job-2", item(job("my-job-2", cpu="100m"))))

    await suite.until_shown("my-job-2", "Running")
    await suite.until_ready("my-job-2", 1)
    assert {each["metadata"]["uid"] for each in await suite.pods("my-job-1")} == before
    assert (await suite.status("my-job-1"))["state"] == "Running"


async def test_gpus_of_a_whole_node_are_given_once(suite: Suite) -> None:
    """extended-resources: gpu-job, which asks for the eight GPUs of a node."""

    def gpus(name: str, run_for: str) -> Json:
        wrapped = job(name, parallelism=2, run_for=run_for)
        requests = {"cpu": "10m", "nvidia.com/gpu": "8"}
        container = {
            "name": "main",
            "image": "none",
            "resources": {"requests": requests, "limits": {"nvidia.com/gpu": "8"}},
        }
        wrapped["spec"]["template"]["spec"]["containers"] = [container]
        return appwrapper(name, item(wrapped, completionstatus="Complete"))

    await suite.apply(gpus("holds-all", "forever"), gpus("gpu-job", "1s"))
    waiting = (await suite.stays_without_pods("gpu-job"))["waiting"]
    assert waiting["message"] == "cluster hub: nvidia.com/gpu: needs 16, 0 free"

    await suite.world.delete("holds-all")

    await suite.until_shown("gpu-job", "Completed")


def marks(found: Json) -> Json:
    """The labels that MCAD put on what it created, and on its pods."""
    labels = found["metadata"]["labels"]
    return {key: labels.get(key) for key in (NAME, NAME_OF_OLD, RESOURCE)}
