"""DispatchQueues on a real API server: what it takes, refuses, leaves as written and shows."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.queue import Queue, Quota
from dispatcher.kube.client import ClusterClient
from testbed.stand_in import Api, RefusedError

Json = dict[str, Any]

COLLECTION = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"
TIME = "2026-11-20T08:58:06Z"
GPU = "nvidia.com/gpu"
QUANTITY = r"'^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$'"
OWN_PARENT = (
    "spec.parent: Invalid value: a queue cannot be its own parent: name another queue, or leave this out to make it "
    "the root of a tree"
)
WHILE_BORROWING = (
    'spec.preemption.whileBorrowing: Invalid value: has no effect with reclaim "Never", which is the default: set '
    "reclaim to LowerPriority or Any, or leave this out"
)


@pytest.fixture
async def queue(api: Api) -> AsyncIterator[str]:
    """A root queue that only this test knows."""
    name = f"queue-{uuid.uuid4().hex[:8]}"
    await api.request("POST", COLLECTION, dispatch_queue({"resources": quota(GPU, nominalQuota=8)}, name))
    yield name
    await api.request("DELETE", f"{COLLECTION}/{name}")


def dispatch_queue(spec: object, name: str = "a") -> Json:
    body = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "DispatchQueue"}
    return {**body, "metadata": {"name": name}, **({} if spec is None else {"spec": spec})}


def quota(resource: str = "cpu", **fields: object) -> Json:
    return {resource: fields}


async def try_to_create(api: Api, spec: object, name: str = "a") -> Json:
    """Have it checked and filled in, but not stored: a cluster has no namespace of a test's own."""
    return await api.request("POST", COLLECTION, dispatch_queue(spec, name), {"dryRun": "All"})


EVERY_FIELD: Json = {
    "parent": "research",
    "resources": {
        "cpu": {"nominalQuota": "1500m", "borrowingLimit": 0},
        "memory": {"nominalQuota": "1.5Gi"},
        GPU: {"nominalQuota": 8, "borrowingLimit": 4, "lendingLimit": "6"},
    },
    "weight": "1.5",
    "priority": -(2**31),
    "sharing": "Division",
    "queueingStrategy": "StrictFIFO",
    "starvationBoundSeconds": 10**10,
    "order": "Usage",
    "preemption": {
        "withinQueue": "LowerOrNewerEqualPriority",
        "reclaim": "LowerPriority",
        "whileBorrowing": {"maxPriority": 10},
    },
    "minRuntimeSeconds": 0,
    "maxPreemptions": 5,
    "preemptibleBelow": 2**31 - 1,
    "clusterSelector": "gpu=h100",
    "namespaceSelector": "tier in (gold, silver)",
    "stopPolicy": "HoldAndDrain",
    "approvals": ["example.com/budget", "data-staged"],
    "elastic": "First",
    "expectedRuntimeSeconds": 0,
}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="empty"),
        pytest.param(EVERY_FIELD, id="every-field"),
        pytest.param({"weight": 0}, id="weight-of-0"),
        pytest.param({"preemption": {"reclaim": "Any", "whileBorrowing": {}}}, id="while-borrowing"),
        pytest.param({"resources": {f"r{n}": {"nominalQuota": n} for n in range(64)}}, id="64-resources"),
        pytest.param({"parent": "nobody"}, id="parent-that-does-not-exist"),
        pytest.param({"parent": "b", "sharing": "Priority"}, id="sharing-below-a-root"),
        pytest.param(
            {"sharing": "Division", "resources": quota(nominalQuota=1, lendingLimit=1)},
            id="lending-limit-under-division",
        ),
    ],
)
async def test_api_server_takes_as_written(api: Api, spec: Json) -> None:
    stored = await try_to_create(api, spec)

    assert stored["spec"] == spec
    assert parse_dispatch_queue(stored) == parse_dispatch_queue(dispatch_queue(spec))


async def test_queue_needs_no_spec(api: Api) -> None:
    assert parse_dispatch_queue(await try_to_create(api, None)) == Queue("a")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"approvals": ["Running"]},
            'spec.approvals[0]: Invalid value: "Running": is a condition that the dispatcher writes itself',
            id="approval-of-the-dispatchers",
        ),
        pytest.param(
            {"approvals": ["budget", "budget"]},
            'spec.approvals[1]: Duplicate value: "budget"',
            id="approval-twice",
        ),
        pytest.param(
            {"resources": quota(nominalQuota=-1)},
            "spec.resources.cpu.nominalQuota in body should be greater than or equal to 0",
            id="negative-quota",
        ),
        pytest.param(
            {"resources": quota(nominalQuota="-1")},
            f"spec.resources.cpu.nominalQuota in body should match {QUANTITY}",
            id="negative-quota-in-quotes",
        ),
        pytest.param(
            {"resources": quota(nominalQuota=0.5)},
            'spec.resources.cpu.nominalQuota in body must be of type integer,string: "number"',
            id="unquoted-half",
        ),
        pytest.param(
            {"resources": quota(nominalQuota="1" * 65)},
            "spec.resources.cpu.nominalQuota: Too long: may not be more than 64 bytes",
            id="long-quantity",
        ),
        pytest.param(
            {"resources": quota(borrowingLimit=1)},
            "spec.resources.cpu.nominalQuota: Required value",
            id="no-nominal-quota",
        ),
        pytest.param(
            {"resources": {f"r{n}": {"nominalQuota": 1} for n in range(65)}},
            "spec.resources: Too many: 65: must have at most 64 items",
            id="too-many-resources",
        ),
        pytest.param(
            {"sharing": "Fair"},
            'spec.sharing: Unsupported value: "Fair": supported values: "Priority", "DominantShare", "Division"',
            id="no-such-sharing",
        ),
        pytest.param(
            {"preemption": {"reclaim": "Never", "whileBorrowing": {}}},
            WHILE_BORROWING,
            id="while-borrowing-without-reclaim",
        ),
        pytest.param(
            {"preemption": {"whileBorrowing": {"maxPriority": 0}}},
            WHILE_BORROWING,
            id="while-borrowing-and-reclaim-absent",
        ),
        pytest.param({"parent": "a"}, OWN_PARENT, id="own-parent"),
    ],
)
async def test_api_server_refuses(api: Api, spec: object, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        await try_to_create(api, spec)
    assert message in str(caught.value)


async def test_name_of_a_queue_is_the_value_of_a_label(api: Api) -> None:
    with pytest.raises(RefusedError, match=r"metadata\.name: Too long"):
        await try_to_create(api, {}, "a" * 64)


async def test_queue_cannot_become_its_own_parent(api: Api, queue: str) -> None:
    with pytest.raises(RefusedError, match="a queue cannot be its own parent"):
        await api.request("PATCH", f"{COLLECTION}/{queue}", {"spec": {"parent": queue}})


async def test_circle_is_taken(api: Api, queue: str) -> None:
    other = f"{queue}-below"
    await api.request("POST", COLLECTION, dispatch_queue({"parent": queue}, other))
    try:
        changed = await api.request("PATCH", f"{COLLECTION}/{queue}", {"spec": {"parent": other}})
    finally:
        await api.request("DELETE", f"{COLLECTION}/{other}")

    assert parse_dispatch_queue(changed) == Queue(queue, parent=other, resources={GPU: Quota(8)})


STATUS: Json = {
    "conditions": [
        {"type": "Valid", "status": "True", "reason": "Valid", "message": "…", "lastTransitionTime": TIME},
        {"type": "Stopped", "status": "True", "reason": "Hold", "lastTransitionTime": TIME},
        {"type": "Ignored", "status": "False", "reason": "None", "lastTransitionTime": TIME},
    ],
    "state": "Hold",
    "nominal": {"cpu": "24", GPU: "8"},
    "used": {"cpu": "22500m", GPU: "9"},
    "borrowed": {"cpu": "0", GPU: "1"},
    "available": {"cpu": "1500m", GPU: "0"},
    "pending": 3,
    "running": 2,
    "share": 84,
    "fairShare": {GPU: "6"},
}


async def test_status_keeps_all_that_the_dispatcher_writes(api: Api, queue: str) -> None:
    stored = await api.request("PATCH", f"{COLLECTION}/{queue}/status", {"status": STATUS})

    assert stored["status"] == STATUS


async def test_writing_the_status_cannot_change_the_spec(api: Api, queue: str) -> None:
    body = {"spec": {"stopPolicy": "Hold"}, "status": {"running": 1}}

    stored = await api.request("PATCH", f"{COLLECTION}/{queue}/status", body)

    assert (stored["spec"], stored["metadata"]["generation"]) == (
        {"resources": quota(GPU, nominalQuota=8)},
        1,
    )


async def test_kubectl_get_shows_the_account_of_a_queue(api: Api, client: ClusterClient, queue: str) -> None:
    await api.request(
        "PATCH", f"{COLLECTION}/{queue}", {"spec": {"parent": "research", "sharing": "Division"}}
    )
    await api.request("PATCH", f"{COLLECTION}/{queue}/status", {"status": STATUS})

    table = await client.get(f"{COLLECTION}/{queue}", accept="application/json;as=Table;g=meta.k8s.io;v=v1")

    names = [column["name"] for column in table["columnDefinitions"]]
    shown = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert shown.pop("Age")
    assert shown == {
        "Name": queue,
        "Parent": "research",
        "Sharing": "Division",
        "GPU nominal": "8",
        "GPU used": "9",
        "Borrowed": "1",
        "Pending": 3,
        "Running": 2,
        "State": "Hold",
    }


async def test_short_name_is_dq(api: Api) -> None:
    known = await api.request("GET", "/apis/dispatcher.codeflare.dev/v1alpha1")

    found = next(each for each in known["resources"] if each["name"] == "dispatchqueues")
    assert (found["namespaced"], found["shortNames"]) == (False, ["dq"])
