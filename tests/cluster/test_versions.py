"""Whichever version an AppWrapper is written through, whichever it is read through: nothing of it is lost."""

import asyncio
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from testbed.plane import Plane
from testbed.stand_in import Api
from tests.cluster.definitions import (
    WORKLOAD_V1BETA1,
    WORKLOAD_V1BETA2,
    Json,
    appwrapper,
    collection,
)

VERSIONS = (WORKLOAD_V1BETA1, WORKLOAD_V1BETA2)
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": 0.5}}}]},
}
FIELDS: Json = {
    "priority": 9,
    "priorityslope": 0.5,
    "schedulingSpec": {"minAvailable": 1, "dispatchDuration": {"limit": 60}},
    "suspend": True,
    "managedBy": "workload.codeflare.dev/appwrapper-controller",
}
SPELLINGS: dict[str, Json] = {
    "items": {
        **FIELDS,
        "resources": {
            "GenericItems": [
                {
                    "generictemplate": POD,
                    "custompodresources": [{"replicas": 1, "requests": {"cpu": "500m"}}],
                    "completionstatus": "Complete",
                }
            ]
        },
    },
    "components": {
        **FIELDS,
        "components": [
            {
                "template": POD,
                "podSets": [{"path": "template", "replicas": 1, "annotations": {"a": "b"}}],
                "podSetInfos": [{"nodeSelector": {"a": "b"}}],
                "annotations": {"a": "b"},
            }
        ],
    },
}
TIME = "2026-11-20T08:58:06.842261Z"
V1BETA2_CONDITIONS = {
    "QuotaReserved": ("True", "Resuming"),
    "ResourcesDeployed": ("True", "Resuming"),
    "PodsReady": ("False", "InsufficientPodsReady"),
    "Unhealthy": ("True", "FoundFailedPods"),
    "DeletingResources": ("False", "DeletionComplete"),
}
STATUS: Json = {
    "state": "Running",
    "queuejobstate": "Dispatched",
    "controllerfirsttimestamp": TIME,
    "controllerfirstdispatchtimestamp": TIME,
    "requeueingTimeInSeconds": 600,
    "numberOfRequeueings": 2,
    "unhealthy": {"reason": "FoundFailedPods", "message": "1 of 2 pods failed", "since": TIME},
    "keptUntil": TIME,
    "phase": "Running",
    "resettingCount": 2,
    "conditions": [
        {"type": "Init", "status": "True", "lastUpdateMicroTime": TIME, "lastTransitionMicroTime": TIME},
        *(
            {"type": kind, "status": status, "reason": reason, "message": "…", "lastTransitionTime": TIME}
            for kind, (status, reason) in V1BETA2_CONDITIONS.items()
        ),
    ],
    "componentStatus": [
        {
            "name": "a",
            "kind": "Pod",
            "apiVersion": "v1",
            "podSets": [{"path": "template", "replicas": 1}],
            "conditions": [
                {
                    "type": "ResourcesDeployed",
                    "status": status,
                    "reason": reason,
                    "lastTransitionTime": TIME,
                }
            ],
        }
        for status, reason in (
            ("Unknown", "ComponentCreationInitiated"),
            ("True", "ComponentCreatedSuccessfully"),
            ("False", "ComponentCreationErrored"),
            ("False", "CompononetDeleted"),
        )
    ],
}


@pytest.mark.parametrize("written", VERSIONS)
@pytest.mark.parametrize("patched", VERSIONS)
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_nothing_is_lost_between_the_versions(
    api: Api, namespace: str, spelling: str, written: str, patched: str
) -> None:
    spec, labels = SPELLINGS[spelling], {"a": "b"}
    await api.request("POST", collection(namespace, written), appwrapper(spec, written))

    through = f"{collection(namespace, patched)}/t"
    await api.request("PATCH", f"{through}/status", {"status": STATUS})
    await api.request("PATCH", through, {"metadata": {"labels": labels}})

    found = [await api.request("GET", f"{collection(namespace, version)}/t") for version in VERSIONS]
    assert [what_was_written(one) for one in found] == [
        (version, labels, spec, STATUS) for version in VERSIONS
    ]


def what_was_written(found: Json) -> tuple[Any, ...]:
    return found["apiVersion"], found["metadata"]["labels"], found["spec"], found["status"]


async def kubectl(plane: Plane, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(plane.kubectl, *arguments, stdout=PIPE)
    output, _ = await process.communicate()
    return output.decode()


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_table_shows_the_same_through_either_version(
    plane: Plane, api: Api, namespace: str, version: str
) -> None:
    await api.request("POST", collection(namespace), appwrapper(SPELLINGS["components"]))
    status = {
        "lifecyclePhase": "Queued",
        "queuejobstate": "Backoff",
        "systempriority": 9,
        "gpus": 2,
        "waiting": {"position": 1},
        "reason": "Insufficient",
    }
    await api.request("PATCH", f"{collection(namespace)}/t/status", {"status": status})

    table = await kubectl(plane, "get", f"appwrappers.{version}.workload.codeflare.dev", "-n", namespace)

    assert [line.split() for line in table.splitlines()] == [
        ["NAME", "STATE", "PRIORITY", "GPUS", "POSITION", "CLUSTER", "REASON", "AGE"],
        ["t", "Queued", "9", "2", "1", "Insufficient", table.split()[-1]],
    ]


@pytest.mark.parametrize(
    ("field", "taught"),
    [
        ("aw.spec", "resources, components and managedBy cannot change"),
        ("aw.spec.suspend", "Holds the AppWrapper back"),
        ("aw.spec.managedBy", "workload.codeflare.dev/appwrapper-controller mean the dispatcher"),
        ("aw.spec.schedulingSpec", "It counts as it was at submission."),
        ("aw.spec.components.podSets.path", "template.spec.workerGroupSpecs[0].template"),
        ("aw.status.keptUntil", "When the objects of an AppWrapper that has ended will be deleted."),
        ("mcadappwrappers.spec.suspend", "Holds the AppWrapper back"),
    ],
)
async def test_kubectl_explains(plane: Plane, field: str, taught: str) -> None:
    assert taught in " ".join((await kubectl(plane, "explain", field)).split())
