"""What single operators do beyond the life of every gang: restarts, Jobs in order, scaling."""

from __future__ import annotations

from typing import Any

from dispatcher.api.annotations import WARMUP_GRACE
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.manifests import appwrapper, bent, changed, item, pod_template
from tests.cluster.operators.conftest import Start
from tests.cluster.operators.gangs import JOB_SET, LEADERS
from tests.cluster.operators.looks import assert_placed_once, until_pods, until_running, until_unhealthy
from tests.cluster.world import World

Json = dict[str, Any]

WITHIN_TWO_SECONDS = {WARMUP_GRACE: "2s"}
LEADER_POD = "spec.replicatedJobs.0.template.spec.template.metadata"


async def test_jobset_that_restarts_is_one_attempt_until_it_fails(world: World, start: Start) -> None:
    start(JOB_SET.operator)
    await world.start_dispatcher()
    failing = changed(JOB_SET.wrapped(fail_after="1s"), "spec.failurePolicy", {"maxRestarts": 1})

    await world.create(appwrapper("train", item(failing)))

    await world.until_state("train", "Failed")
    found = await world.client.get(JOB_SET.path(world.namespace))
    assert found["status"]["restarts"] == 1
    await assert_placed_once(world)


async def test_jobs_that_a_jobset_makes_in_order_are_not_missed_before_their_turn(
    world: World, start: Start
) -> None:
    start(JOB_SET.operator)
    await world.start_dispatcher()
    ordered = changed(
        JOB_SET.wrapped(run_for="forever"), "spec.startupPolicy", {"startupPolicyOrder": "InOrder"}
    )
    slow = pod_template(run_for="forever", start_after="5s")["metadata"]

    await world.create(
        bent(appwrapper("train", item(changed(ordered, LEADER_POD, slow))), WITHIN_TWO_SECONDS)
    )

    status = await world.until_state("train", "Running")
    assert status["running"] == JOB_SET.pods
    await assert_placed_once(world)


async def test_leaderworkerset_that_its_user_scales_down_is_told_of_and_goes_on(
    world: World, start: Start
) -> None:
    start(LEADERS.operator)
    await world.start_dispatcher()
    await until_running(world, LEADERS, run_for="forever")

    await world.client.patch(LEADERS.path(world.namespace), {"spec": {"replicas": 1}}, MERGE_PATCH)

    await until_pods(world, 3, "one group is left")
    assert await until_unhealthy(world) == (
        "Drifted",
        f"LeaderWorkerSet {world.namespace}/train asks for fewer than its {LEADERS.pods} pods",
    )
    await assert_placed_once(world)
