"""MemberClusters on a real API server: what it takes, refuses, fills in and shows."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.clusters.membercluster import MemberCluster, SecretKey, parse_member_cluster
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.kubeconfig import connection
from testbed.plane import Plane
from testbed.stand_in import Api, RefusedError

Json = dict[str, Any]

COLLECTION = "/apis/dispatcher.codeflare.dev/v1alpha1/memberclusters"
SECRET = {"kubeconfigSecretRef": {"name": "east"}}
POOL = {
    "name": "l4",
    "node": {
        "allocatable": {"cpu": 8, "nvidia.com/gpu": "1"},
        "labels": {"pool": "l4"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}],
    },
    "max": 10**9,
}
TIME = "2026-11-20T08:58:06Z"


@pytest.fixture
async def east(api: Api) -> AsyncIterator[str]:
    """A MemberCluster that only this test knows."""
    name = f"east-{uuid.uuid4().hex[:8]}"
    await api.request("POST", COLLECTION, member(SECRET, name))
    yield name
    await api.request("DELETE", f"{COLLECTION}/{name}")


def member(spec: object, name: str = "east") -> Json:
    body = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "MemberCluster"}
    return {**body, "metadata": {"name": name}, **({} if spec is None else {"spec": spec})}


async def try_to_create(api: Api, spec: object, name: str = "east") -> Json:
    """Have it checked and filled in, but not stored: a cluster has no namespace of a test's own."""
    return await api.request("POST", COLLECTION, member(spec, name), {"dryRun": "All"})


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        pytest.param(SECRET, "east", id="member"),
        pytest.param(SECRET, "a." * 31 + "b", id="longest-name"),
        pytest.param(None, "hub", id="hub-of-no-words"),
        pytest.param({}, "hub", id="hub"),
        pytest.param({"cordoned": True, "cordonReason": "members only"}, "hub", id="cordoned-hub"),
        pytest.param(
            {
                **SECRET,
                "drain": True,
                "namespacePolicy": "Create",
                "reserve": {"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1", "x.io/y": "1e3"},
                "onClusterLost": {"policy": "fail", "graceSeconds": 0},
                "potential": [POOL],
                "onPotential": "Wait",
                "bindWithinSeconds": 10,
            },
            "east",
            id="everything",
        ),
    ],
)
async def test_api_server_takes(api: Api, spec: Json | None, name: str) -> None:
    stored = await try_to_create(api, spec, name)

    assert parse_member_cluster(stored).name == name


@pytest.mark.parametrize(
    ("spec", "name", "message"),
    [
        pytest.param(
            SECRET,
            "hub",
            "spec.kubeconfigSecretRef: Forbidden: the name hub is reserved for the cluster that AppWrappers are "
            "read from, which needs no kubeconfig: leave this out, or choose another name",
            id="hub-by-a-kubeconfig",
        ),
        pytest.param(
            None,
            "east",
            "spec.kubeconfigSecretRef: Required value: every cluster but hub needs a kubeconfig: put one into a "
            "Secret in the dispatcher's namespace and name that Secret here",
            id="no-kubeconfig",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {}}, "east", "kubeconfigSecretRef.name: Required value", id="no-name"
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "../pods/a"}},
            "east",
            "spec.kubeconfigSecretRef.name in body should match",
            id="path-for-a-name",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "a", "key": "a/b"}},
            "east",
            "spec.kubeconfigSecretRef.key in body should match",
            id="path-for-a-key",
        ),
        pytest.param(SECRET, "a" * 64, "metadata.name: Too long", id="long-name"),
        pytest.param(
            {**SECRET, "potential": [POOL, POOL]},
            "east",
            "spec.potential[1]: Duplicate value",
            id="twin-pools",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "node": {"allocatable": {"cpu": 8}, "labels": {}}}]},
            "east",
            "spec.potential[0].node.labels in body should have at least 1 properties",
            id="pool-without-labels",
        ),
        pytest.param(
            {**SECRET, "namespacePolicy": "create"},
            "east",
            'spec.namespacePolicy: Unsupported value: "create": supported values: "Require", "Create"',
            id="no-such-policy",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"policy": "evict"}},
            "east",
            'spec.onClusterLost.policy: Unsupported value: "evict": supported values: "wait", "requeue", "fail"',
            id="no-such-policy-of-loss",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"graceSeconds": -1}},
            "east",
            "spec.onClusterLost.graceSeconds in body should be greater than or equal to 0",
            id="negative-grace",
        ),
        pytest.param(
            {**SECRET, "reserve": {"cpu": "-1"}},
            "east",
            "spec.reserve.cpu in body should match",
            id="negative",
        ),
        pytest.param(
            {**SECRET, "reserve": {f"r{number}": 1 for number in range(65)}},
            "east",
            "spec.reserve: Too many: 65: must have at most 64 items",
            id="too-many-resources",
        ),
        pytest.param(
            {**SECRET, "cordonReason": "x" * 1025}, "east", "spec.cordonReason: Too long", id="long-reason"
        ),
    ],
)
async def test_api_server_refuses(api: Api, spec: object, name: str, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        await try_to_create(api, spec, name)
    assert message in str(caught.value)


async def test_absent_fields_get_their_defaults(api: Api, east: str) -> None:
    stored = await api.request("GET", f"{COLLECTION}/{east}")

    assert stored["spec"] == {
        "kubeconfigSecretRef": {"name": "east", "key": "kubeconfig"},
        "cordoned": False,
        "potential": [],
        "onPotential": "Dispatch",
        "bindWithinSeconds": 900,
        "drain": False,
        "namespacePolicy": "Require",
        "acceptedNamespaces": "Labelled",
        "onClusterLost": {"policy": "wait", "graceSeconds": 600},
    }
    uid = stored["metadata"]["uid"]
    assert parse_member_cluster(stored) == MemberCluster(east, uid, kubeconfig=SecretKey("east"))


async def test_member_cannot_lose_its_kubeconfig(api: Api, east: str) -> None:
    with pytest.raises(RefusedError, match="every cluster but hub needs a kubeconfig"):
        await api.request("PATCH", f"{COLLECTION}/{east}", {"spec": {"kubeconfigSecretRef": None}})


STATUS: Json = {
    "potential": [{"name": "l4", "nodes": 2, "potential": 8, "distrustedUntil": TIME}],
    "conditions": [
        {
            "type": "Reachable",
            "status": "True",
            "reason": "Answers",
            "message": "…",
            "lastTransitionTime": TIME,
        },
        {"type": "Authenticated", "status": "Unknown", "reason": "NotAsked", "lastTransitionTime": TIME},
    ],
    "clusterUID": "0b3f6a5e-6f5a-4f44-9a51-3d4a51a0c8c1",
    "allocatable": {"cpu": "24", "memory": "183Gi", "nvidia.com/gpu": "3"},
    "free": {"cpu": "22500m", "memory": "180Gi", "nvidia.com/gpu": "1"},
    "running": 2,
    "unreachableSince": TIME,
    "reason": "Cordoned",
    "message": "rack 3 moves",
}


async def test_status_keeps_all_we_write(api: Api, east: str) -> None:
    stored = await api.request("PATCH", f"{COLLECTION}/{east}/status", {"status": STATUS})

    assert stored["status"] == STATUS


async def test_condition_type_may_be_there_only_once(api: Api, east: str) -> None:
    twice = [{"type": "Reachable", "status": status} for status in ("True", "False")]

    with pytest.raises(RefusedError, match="Duplicate value"):
        await api.request("PATCH", f"{COLLECTION}/{east}/status", {"status": {"conditions": twice}})


async def test_writing_the_status_cannot_change_the_spec(api: Api, east: str) -> None:
    body = {"spec": {"cordoned": True}, "status": {"running": 1}}

    stored = await api.request("PATCH", f"{COLLECTION}/{east}/status", body)

    assert (stored["spec"]["cordoned"], stored["metadata"]["generation"]) == (False, 1)


async def test_kubectl_get_shows_the_main_fields_of_a_member_cluster(
    api: Api, client: ClusterClient, east: str
) -> None:
    await api.request("PATCH", f"{COLLECTION}/{east}/status", {"status": STATUS})

    table = await client.get(f"{COLLECTION}/{east}", accept="application/json;as=Table;g=meta.k8s.io;v=v1")

    names = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    shown = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert shown.pop(("Age", 0))
    assert shown == {
        ("Name", 0): east,
        ("Reachable", 0): "True",
        ("Cordoned", 0): False,
        ("CPU free", 0): "22500m",
        ("GPU free", 0): "1",
        ("Memory free", 0): "180Gi",
        ("Running", 0): 2,
        ("Reason", 0): "Cordoned",
        ("Draining", 1): False,
        ("Message", 1): "rack 3 moves",
    }


async def test_short_name_is_mcl(api: Api) -> None:
    known = await api.request("GET", "/apis/dispatcher.codeflare.dev/v1alpha1")

    found = next(each for each in known["resources"] if each["name"] == "memberclusters")
    assert (found["namespaced"], found["shortNames"]) == (False, ["mcl"])


async def test_kubeconfig_that_holds_everything_leads_to_its_server(
    plane: Plane, api: Api, east: str
) -> None:
    async with ClusterClient.of(connection(plane.kubeconfig.read_bytes())) as member_of_itself:
        found = await member_of_itself.get(f"{COLLECTION}/{east}")

    assert found["metadata"]["name"] == east
