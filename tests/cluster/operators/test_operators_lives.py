"""Gangs whose pods real operators make: what they are charged, and how they run, end and are stopped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.core.kinds.built_in import LABELS_OF_ONE_OBJECT, LABELS_OF_ONE_POD
from dispatcher.core.model.quantity import parse_quantity
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.mcad.suite import conditions
from tests.cluster.operators.conftest import Start
from tests.cluster.operators.gangs import ENDING, GANGS, Gang
from tests.cluster.operators.looks import (
    assert_placed_once,
    pods_of,
    until_healthy,
    until_no_pods,
    until_pods,
    until_running,
    until_unhealthy,
)
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]

COMPLETED = ("True", "PodsCompleted", "")


def each_of(gangs: Sequence[Gang]) -> pytest.MarkDecorator:
    """A parameter `gang` for each of these."""
    return pytest.mark.parametrize("gang", [pytest.param(each, id=each.kind) for each in gangs])


def cpu_of(pod: Json) -> int:
    """The CPUs that a pod requests, in thousandths, by the rule of kube-scheduler for pods without side-cars."""
    main, first = (
        [_cpu(each) for each in pod["spec"].get(field) or ()] for field in ("containers", "initContainers")
    )
    return max(sum(main), *first, 0)


def _cpu(container: Json) -> int:
    return int(parse_quantity(container["resources"].get("requests", {}).get("cpu", "0")) * 1000)


@each_of(GANGS)
async def test_gang_is_charged_what_the_pods_request_that_its_operator_makes(
    world: World, start: Start, gang: Gang
) -> None:
    start(gang.operator)
    await world.start_dispatcher()

    status = await until_running(world, gang, run_for="forever")

    pods = await pods_of(world)
    (row,) = await rows(world, "SELECT demand, pods FROM appwrapper WHERE name = 'train'")
    assert (row["pods"], row["demand"]["cpu"]) == (len(pods), sum(map(cpu_of, pods)))
    assert (len(pods), status["running"]) == (gang.pods, gang.pods)
    assert "unhealthy" not in status


@each_of(GANGS)
async def test_labels_that_differ_from_pod_to_pod_of_a_template_are_known(
    world: World, start: Start, gang: Gang
) -> None:
    start(gang.operator)
    await world.start_dispatcher()

    await until_running(world, gang, run_for="forever")

    values = Counter(
        key
        for key, _ in {
            (key, value) for pod in await pods_of(world) for key, value in pod["metadata"]["labels"].items()
        }
    )
    many = {key for key, count in values.items() if count > 2}
    assert many <= LABELS_OF_ONE_POD | LABELS_OF_ONE_OBJECT


@each_of(ENDING)
async def test_object_that_succeeds_completes_its_appwrapper(world: World, start: Start, gang: Gang) -> None:
    start(gang.operator)
    await world.start_dispatcher()

    await world.create(gang.appwrapper(run_for="1s"))

    status = await world.until_state("train", "Completed")
    assert conditions(status)["Completed"] == COMPLETED
    await assert_placed_once(world)


@each_of(ENDING)
async def test_object_that_fails_fails_its_appwrapper_in_the_words_of_its_operator(
    world: World, start: Start, gang: Gang
) -> None:
    start(gang.operator)
    await world.start_dispatcher()

    await world.create(gang.appwrapper(fail_after="1s"))

    status = await world.until_state("train", "Failed")
    held, reason, message = conditions(status)["Failed"]
    found = await world.client.get(gang.path(world.namespace))
    (failed,) = [each for each in found["status"]["conditions"] if each["type"] == "Failed"]
    assert (held, reason) == ("True", "FailedComponent")
    said = f"{gang.kind} {world.namespace}/train failed: {failed['reason']}: {failed['message'].strip()}"
    first = rf"; failed first: container {gang.container} of pod train-{gang.first}, exit code 1, Error"
    assert re.fullmatch(re.escape(said) + first, message)


# The training operator has one controller for all of its kinds.
@each_of([*{each.operator.name: each for each in ENDING if each.suspend}.values()])
async def test_object_that_its_user_suspends_and_resumes_is_told_of_and_runs_again(
    world: World, start: Start, gang: Gang
) -> None:
    start(gang.operator)
    await world.start_dispatcher()
    await until_running(world, gang, run_for="forever")

    await set_suspend(world, gang, True)
    await until_no_pods(world, "its pods are gone")
    assert await until_unhealthy(world) == (
        "Drifted",
        f"{gang.kind} {world.namespace}/train is suspended",
    )

    await set_suspend(world, gang, False)
    await until_pods(world, gang.pods, "its pods are back")
    await until_healthy(world)
    await assert_placed_once(world)


@each_of(GANGS)
async def test_deleted_appwrapper_takes_all_that_its_operator_made(
    world: World, start: Start, gang: Gang
) -> None:
    start(gang.operator)
    await world.start_dispatcher()
    await until_running(world, gang, run_for="forever")

    await world.delete("train")
    await world.until_gone("AppWrapper", "train")

    async def is_gone() -> bool:
        try:
            await world.client.get(gang.path(world.namespace))
        except errors.NotFound:
            left = [await world.names(kind) for kind in ("Pod", "Job", "StatefulSet", "Service")]
            return not any(left)
        return False

    await world.until(is_gone, "everything is gone")


async def set_suspend(world: World, gang: Gang, flag: bool) -> None:
    """Write the flag, as a user does."""
    patch: Any = flag
    for step in reversed(gang.suspend.split(".")):
        patch = {step: patch}
    await world.client.patch(gang.path(world.namespace), patch, MERGE_PATCH)
