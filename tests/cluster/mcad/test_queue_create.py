"""MCAD's cases of creation: every kind it wrapped, and every template it could not."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import errors
from tests.cluster.manifests import appwrapper, deployment, item, pod, statefulset
from tests.cluster.mcad.suite import Suite, conditions, two_deployed

Json = dict[str, Any]

POD_GROUP = {
    "apiVersion": "scheduling.x-k8s.io/v1alpha1",
    "kind": "PodGroup",
    "metadata": {"name": "aw-schd-spec-with-timeout-1", "namespace": "default"},
    "spec": {"minMember": 1},
}
NAMELESS_POD = {**pod("unused"), "metadata": {"labels": {"app": "aw-bad-generic-pod"}}}
MANY = 50


def declaring(name: str, template: Json, pods: int) -> Json:
    """What MCAD's generic cases wrote, who declare their pods."""
    declared = [{"replicas": pods, "requests": {"cpu": "100m", "memory": "256Mi"}}]
    wrapped = item(template, replicas=1, custompodresources=declared)
    return appwrapper(name, wrapped, schedulingSpec={"minAvailable": pods})


def wrapping(name: str, *templates: Json, ready: int = 1) -> Json:
    return appwrapper(name, *map(item, templates), schedulingSpec={"minAvailable": ready})


READY = {
    "Create AppWrapper - StatefulSet Only - 2 Pods": (
        wrapping("aw-statefulset-2", statefulset("aw-statefulset-2", 2), ready=2),
        2,
    ),
    "Create AppWrapper - Generic StatefulSet Only - 2 Pods": (
        declaring("aw-generic-statefulset-2", statefulset("aw-generic-statefulset-2", 2), 2),
        2,
    ),
    "Create AppWrapper - Deployment Only - 3 Pods": (
        wrapping("aw-deployment-3", deployment("aw-deployment-3", 3), ready=3),
        3,
    ),
    "Create AppWrapper - Generic Deployment Only - 3 pods": (
        declaring("aw-generic-deployment-3", deployment("aw-generic-deployment-3", 3), 3),
        3,
    ),
    "Create AppWrapper - PodTemplate Only - 2 Pods": (
        wrapping("aw-podtemplate-2", pod("aw-podtemplate-1"), pod("aw-podtemplate-2"), ready=2),
        2,
    ),
    "Create AppWrapper - Generic Pod Only - 1 Pod": (
        wrapping("aw-generic-pod-1", pod("aw-generic-pod-1")),
        1,
    ),
}
"""By MCAD's name of the test: what it applies, and how many pods become ready."""


async def test_every_kind_that_mcad_wrapped_becomes_ready(suite: Suite) -> None:
    """All of READY, on one cluster."""
    await suite.apply(*(manifest for manifest, _ in READY.values()))

    for manifest, ready in READY.values():
        name = manifest["metadata"]["name"]
        await suite.until_ready(name, ready)
        status = await suite.world.until_state(name, "Running")
        assert status["state"] == "Running"


async def test_gang_that_runs_has_no_conditions_of_pending_pods(suite: Suite) -> None:
    """Create AppWrapper - Check failed pod status."""
    await suite.apply(wrapping("aw-checkfailedstatus-1", pod("aw-checkfailedstatus-1")))

    await suite.until_ready("aw-checkfailedstatus-1", 1)

    status = await suite.world.until_state("aw-checkfailedstatus-1", "Running")
    assert status.get("pendingpodconditions", []) == []


GENERIC_ITEMS = "spec.resources.GenericItems"
NO_NAME = "the Pod has neither name nor generateName. Give it a name of its own."
FAILED = {
    "Create AppWrapper- Bad PodTemplate": (
        wrapping("aw-bad-podtemplate-2", pod("aw-podtemplate-1"), NAMELESS_POD, ready=2),
        f"{GENERIC_ITEMS}[1].generictemplate.metadata: {NO_NAME}",
    ),
    "Create AppWrapper - Bad Generic Pod Only": (
        wrapping("aw-bad-generic-pod-1", NAMELESS_POD),
        f"{GENERIC_ITEMS}[0].generictemplate.metadata: {NO_NAME}",
    ),
    "Create AppWrapper - Bad Generic Item Only": (
        appwrapper("aw-bad-generic-item-1", {}),
        f"{GENERIC_ITEMS}[0].generictemplate: is required. "
        "Put the whole object to create there: apiVersion, kind, metadata and spec.",
    ),
    "MCAD GenericItem Without Status Test": (
        wrapping("aw-podgroup-in-default", POD_GROUP),
        f"{GENERIC_ITEMS}[0].generictemplate.metadata.namespace: [SyncQueueJob] resource namespace "
        '"default" is different from AppWrapper namespace "NAMESPACE". '
        "Leave it out: wrapped objects are created beside their AppWrapper.",
    ),
}
"""By MCAD's name of the test: what it applies, and what its user is told."""


async def test_template_that_cannot_be_created_fails_and_nothing_of_it_exists(suite: Suite) -> None:
    """All of FAILED, on one cluster."""
    namespace = suite.world.namespace
    await suite.apply(*(manifest for manifest, _ in FAILED.values()))

    for manifest, problem in FAILED.values():
        name = manifest["metadata"]["name"]
        status = await suite.until_shown(name, "Failed")
        said = f"{namespace}/{name} creation failure: {problem.replace('NAMESPACE', namespace)}"
        assert conditions(status)["Failed"] == ("True", "ItemCreationFailure.", said)

    await suite.cycles_pass(3)
    assert await suite.world.every("Pod") == []
    states = [each["status"]["state"] for each in await suite.world.every("AppWrapper")]
    assert states == ["Failed"] * len(FAILED)


async def test_template_that_says_nothing_of_its_kind_is_refused_at_the_door(suite: Suite) -> None:
    """Create AppWrapper - Bad Generic PodTemplate Only."""
    unkind = item({"metadata": {"name": "aw-generic-podtemplate-2"}, "spec": pod("p")["spec"]})

    with pytest.raises(errors.Invalid, match=r"generictemplate\.kind: Required value"):
        await suite.apply(appwrapper("aw-generic-podtemplate-2", unkind))


async def test_fifty_appwrappers_of_two_pods_become_ready(suite: Suite) -> None:
    """Create AppWrapper - Generic 50 Deployment Only - 2 pods each."""
    names = [f"aw-generic-deployment-2-{number:02}" for number in range(1, MANY + 1)]

    await suite.apply_at_once(*(two_deployed(name, "5m") for name in names))

    async def all_ready() -> bool:
        phases = [each["status"]["phase"] for each in await suite.world.every("Pod")]
        return phases == ["Running"] * 2 * MANY

    await suite.world.until(all_ready, "a hundred pods run")
    assert [len(await suite.pods(name)) for name in (names[0], names[-1])] == [2, 2]
