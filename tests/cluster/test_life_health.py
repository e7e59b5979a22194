"""What happens to a gang that runs: objects deleted, pods evicted or failed, a dead node, no pod at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.annotations import (
    ADMISSION_GRACE,
    FAILURE_GRACE,
    FORCE_DELETION_GRACE,
    RETRY_LIMIT,
    RETRY_PAUSE,
    TERMINAL_EXIT_CODES,
    WARMUP_GRACE,
)
from testbed import nodes
from testbed.plane import Plane
from tests.cluster.lives import breaking_job, crash, evict
from tests.cluster.manifests import (
    appwrapper,
    bent,
    component,
    components,
    config_map,
    deployment,
    item,
    job,
    pod,
    pod_template,
    raycluster,
    service,
)
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World

Json = dict[str, Any]

AT_ONCE = {RETRY_PAUSE: "0s"}
ONE_RETRY = {ADMISSION_GRACE: "1s", RETRY_LIMIT: "1", **AT_ONCE}
RUN_TWICE = [
    *("submitted", "dispatched", "created", "pods-running"),
    *("evicted", "removed", "dispatched", "created", "pods-running"),
]


def failing_pod(name: str, exit_code: int) -> Json:
    """A bare pod that fails soon after it runs."""
    lives = pod_template(fail_after="500ms", exit_code=str(exit_code))["metadata"]
    return {**pod(name), "metadata": {"name": name, **lives}}


def mixed(name: str) -> Json:
    """A gang of a RayCluster, a Job, and what they read."""
    return appwrapper(
        name, item(raycluster("ray")), item(job("lost")), item(config_map("input")), item(service("door"))
    )


async def only_what_makes_no_pods_is_kept(world: World) -> None:
    assert (await world.names("RayCluster"), await world.names("Job")) == (set(), set())
    assert await world.every("Pod") == []
    assert (await world.names("ConfigMap")) >= {"input"}
    assert (await world.names("Service")) >= {"door"}


async def test_deleted_object_fails_the_gang_and_objects_without_pods_are_kept(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", mixed("robbed"))

    await world.delete("lost", "Job")

    status = await world.until_shown("robbed", "Failed")
    assert conditions(status)["Failed"] == (
        "True",
        "MissingComponent",
        f"Only found 3 deployed components, but was expecting 4: Job {world.namespace}/lost was deleted",
    )
    await only_what_makes_no_pods_is_kept(world)
    assert (await world.causes("robbed"))[-2:] == ["run-failed", "removed"]


async def test_object_deleted_while_the_dispatcher_is_away_is_missed_at_its_return(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", mixed("robbed"))
    await crash(world, process)
    await world.delete("lost", "Job")
    await world.until_gone("Job", "lost")

    await world.start_dispatcher()

    status = await world.until_shown("robbed", "Failed")
    assert conditions(status)["Failed"][:2] == ("True", "MissingComponent")
    await only_what_makes_no_pods_is_kept(world)


async def test_evicted_pod_is_queued_again_and_runs_again(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until(
        "Running", bent(appwrapper("evicted", item(pod("bare")), item(config_map("input"))), AT_ONCE)
    )

    gone = await evict(world, "bare")

    causes = await world.until_history("evicted", "pods-running", 2)
    # Which of the two watches tells first, that of pods or that of what was wrapped, is chance.
    assert [cause for cause in causes if cause not in {"unhealthy", "recovered"}] == RUN_TWICE
    status = await world.until_state("evicted", "Running")
    assert status["numberOfRequeueings"] == 1
    assert conditions(status)["PreemptCandidate"] == (
        "True",
        "FoundFailedPods",
        f"Pod {world.namespace}/bare was evicted: Evicted: The node was low on resource: memory.",
    )
    now = await world.get("Pod", "bare")
    assert now is not None
    assert now["metadata"]["uid"] != gone["metadata"]["uid"]


async def test_failed_pod_fails_the_gang_and_is_kept_for_its_logs(world: World) -> None:
    await world.start_dispatcher()
    await world.create(
        appwrapper(
            "breaks",
            item(failing_pod("breaks", 3)),
            item(pod("other")),
            item(config_map("input")),
            item(service("door")),
        )
    )

    status = await world.until_shown("breaks", "Failed")

    assert conditions(status)["Failed"] == (
        "True",
        "FailedComponent",
        f"Pod {world.namespace}/breaks failed: Error: container main exited with code 3",
    )
    failure = status["failure"]
    assert {key: failure[key] for key in ("pod", "container", "exitCode", "reason", "logs")} == {
        "pod": "breaks",
        "container": "main",
        "exitCode": 3,
        "reason": "Error",
        "logs": f"kubectl aw logs breaks -n {world.namespace} --pod breaks -c main",
    }
    assert [(each["metadata"]["name"], each["status"]["phase"]) for each in await world.every("Pod")] == [
        ("breaks", "Failed")
    ]
    assert (await world.names("ConfigMap")) >= {"input"}
    assert (await world.names("Service")) >= {"door"}
    assert status["keptUntil"]


async def test_failed_job_is_kept_and_the_raycluster_beside_it_removed(world: World) -> None:
    await world.start_dispatcher()
    await world.create(
        appwrapper("half", item(raycluster("ray")), item(breaking_job("driver", fail_after="1500ms")))
    )

    status = await world.until_shown("half", "Failed")

    assert conditions(status)["Failed"] == (
        "True",
        "FailedComponent",
        f"Job {world.namespace}/driver failed: BackoffLimitExceeded: Job has reached the specified backoff limit; "
        f"failed first: container main of pod {status['failure']['pod']}, exit code 1, Error",
    )
    assert (await world.names("RayCluster"), await world.names("Job")) == (set(), {"driver"})
    assert [each["status"]["phase"] for each in await world.every("Pod")] == ["Failed"]
    assert (await world.causes("half")).count("dispatched") == 1


@pytest.fixture
async def mended(plane: Plane) -> AsyncIterator[Plane]:
    """The control plane; all its nodes are usable again at the end."""
    yield plane
    for each in (await nodes_of(plane)).values():
        if not each["metadata"].get("annotations", {}).keys() >= nodes.MANAGED.keys():
            await nodes.revive(plane.client, each["metadata"]["name"])


async def nodes_of(plane: Plane) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in plane.client.get(nodes.NODES)["items"]}


async def test_gang_on_a_dead_node_is_moved_to_live_nodes(world: World, mended: Plane) -> None:
    await world.start_dispatcher()
    graces = {WARMUP_GRACE: "3s", FORCE_DELETION_GRACE: "1s", **AT_ONCE}
    await world.create_until("Running", bent(appwrapper("moves", item(raycluster("ray", cpu="6"))), graces))
    dead = (await world.every("Pod"))[0]["spec"]["nodeName"]

    await nodes.silence(mended.client, dead)

    await until_health_issue(world, "moves", "1 of 2 pods run, on nodes that do not answer: 1")
    await world.until_history("moves", "pods-running", 2)
    assert (await world.causes("moves")).count("unhealthy") == 1
    placed = [each["spec"]["nodeName"] for each in await world.every("Pod")]
    assert (len(placed), dead in placed) == (2, False)
    assert (await world.until_state("moves", "Running"))["numberOfRequeueings"] == 1


async def test_gang_on_a_node_that_comes_back_in_time_stays_where_it_is(world: World, mended: Plane) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("stays", item(raycluster("ray", cpu="6"))))
    pods = {each["metadata"]["uid"] for each in await world.every("Pod")}
    absent = (await world.every("Pod"))[0]["spec"]["nodeName"]
    await nodes.silence(mended.client, absent)
    await until_health_issue(world, "stays", "1 of 2 pods run, on nodes that do not answer: 1")

    await nodes.revive(mended.client, absent)

    await until_health_issue(world, "stays", None)
    assert "evicted" not in await world.causes("stays")
    assert {each["metadata"]["uid"] for each in await world.every("Pod")} == pods


async def test_pod_that_its_controller_replaces_is_left_to_its_controller(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("heals", item(raycluster("ray"))))
    worker = next(
        each for each in await world.every("Pod") if each["metadata"]["labels"]["ray.io/group"] == "workers"
    )

    await evict(world, worker["metadata"]["name"])

    async def replaced() -> bool:
        pods = await world.every("Pod")
        running = [each for each in pods if each["status"]["phase"] == "Running"]
        return len(running) == 2 and worker["metadata"]["uid"] not in {
            each["metadata"]["uid"] for each in pods
        }

    await world.until(replaced, "another worker runs")
    await until_health_issue(world, "heals", None)
    assert not {"evicted", "run-failed"} & set(await world.causes("heals"))
    assert (await world.until_state("heals", "Running")).get("numberOfRequeueings") is None


async def until_health_issue(world: World, name: str, message: str | None) -> None:
    """Return once an AppWrapper is shown to be short of pods, with that message, or (None) in good health."""
    wanted = message and ("InsufficientPodsReady", message)

    async def shown() -> bool:
        issue = (((await world.get("AppWrapper", name)) or {}).get("status") or {}).get("unhealthy")
        return (issue and (issue["reason"], issue["message"])) == wanted

    await world.until(shown, f"{name} is shown with {message}")


async def test_raycluster_its_operator_refuses_fails_with_the_operators_words(world: World) -> None:
    await world.start_dispatcher()
    long = "n" * 54

    await world.create(bent(appwrapper("refused", item(raycluster(long))), ONE_RETRY))

    status = await world.until_shown("refused", "Failed")
    said = (
        "0 of 2 pods run: there is none (requeued so far: 1); "
        f"RayCluster {world.namespace}/{long}: InvalidRayClusterMetadata: The RayCluster metadata is invalid "
        f"{world.namespace}/{long}: RayCluster name should be no more than 53 characters"
    )
    assert conditions(status)["Failed"] == ("True", "InsufficientPodsReady", said)
    causes = await world.causes("refused")
    assert (causes.count("dispatched"), causes.count("evicted"), causes[-1]) == (2, 1, "removed")
    assert await world.names("RayCluster") == set()


async def test_deployment_whose_pods_a_quota_forbids_fails_with_the_quotas_words(world: World) -> None:
    await world.start_dispatcher()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    await world.create({**quota, "spec": {"hard": {"pods": "0"}}})

    async def in_force() -> bool:
        found = await world.get("ResourceQuota", "none")
        return bool(found and (found.get("status") or {}).get("hard"))

    await world.until(in_force, "the quota is in force")
    await world.create(bent(appwrapper("forbidden", item(deployment("forbidden"))), ONE_RETRY))

    status = await world.until_shown("forbidden", "Failed")

    _, reason, message = conditions(status)["Failed"]
    assert reason == "InsufficientPodsReady"
    assert message.startswith(
        "0 of 1 pods run: there is none (requeued so far: 1); "
        f"Deployment {world.namespace}/forbidden: FailedCreate: "
    )
    assert "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0" in message
    assert (await world.causes("forbidden")).count("dispatched") == 2


def failing_component(name: str, exit_code: int) -> Json:
    """v1beta2's spelling of a Job whose pod fails, and which its own controller would try again for long."""
    failing = job(name, fail_after="500ms", exit_code=str(exit_code))
    graces = {FAILURE_GRACE: "1s", TERMINAL_EXIT_CODES: "3", **ONE_RETRY}
    return bent(components(name, component(failing, template__spec__template=1)), graces)


async def test_exit_code_that_was_called_terminal_fails_at_once(world: World) -> None:
    await world.start_dispatcher()

    await world.create(failing_component("hopeless", 3), "AppWrapper/v1beta2")

    status = await world.until_shown("hopeless", "Failed", "AppWrapper/v1beta2")
    shown = conditions(status)
    failure = status["failure"]
    assert (failure["container"], failure["exitCode"]) == ("main", 3)
    assert failure["pod"].startswith("hopeless-")
    first = f"container main of pod {failure['pod']}, exit code 3, Error"
    message = f"failed pods: 1, with exit code 3; failed first: {first}"
    assert shown["Failed"] == ("True", "FoundFailedPods", message)
    assert shown["Unhealthy"] == shown["Failed"]
    assert (status["phase"], status.get("resettingCount")) == ("Failed", None)
    assert (await world.causes("hopeless")).count("dispatched") == 1
