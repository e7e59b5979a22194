import copy
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.appwrapper import Requeuing, WrappedObject, parse_spec
from dispatcher.kube.client import ClusterClient
from testbed.plane import Plane
from testbed.stand_in import Api, RefusedError
from tests.cluster.definitions import appwrapper, collection
from tests.yaml_files import load_yaml

EXAMPLES = {
    path.stem: load_yaml(path) for path in sorted((Path(__file__).parents[2] / "examples").glob("aw-*.yaml"))
}
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
POD_SET = "spec.resources.GenericItems[0].custompodresources[0]"
PATTERN = r"'^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$'"
MCADS_TIME = "2026-11-20T08:58:06.842261Z"


def spec_of(*items: object, **fields: object) -> dict[str, Any]:
    return {"resources": {"GenericItems": list(items)}, **fields}


def with_pod_set(**fields: object) -> dict[str, Any]:
    return spec_of(
        {"generictemplate": POD, "custompodresources": [{"replicas": 1, "requests": {}, **fields}]}
    )


async def try_to_create(api: Api, spec: object) -> dict[str, Any]:
    """Have it checked and filled in, but not stored, so that no test needs a namespace of its own for it."""
    return await api.request("POST", collection("default"), appwrapper(spec), {"dryRun": "All"})


async def refusal_of(api: Api, spec: object) -> str:
    with pytest.raises(RefusedError) as caught:
        await try_to_create(api, spec)
    return str(caught.value)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("group", ["workload.codeflare.dev/v1beta1", "mcad.ibm.com/v1beta1"])
async def test_example_is_stored_as_it_was_written(
    api: Api, namespace: str, example: str, group: str
) -> None:
    document = copy.deepcopy(EXAMPLES[example])
    document["apiVersion"], document["metadata"]["namespace"] = group, namespace

    stored = await api.request("POST", collection(namespace, group), document)

    assert stored["spec"] == document["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"resources": {}}, id="empty-resources"),
        pytest.param({"resources": {"GenericItems": [], "Items": []}}, id="empty-lists"),
        pytest.param({"resources": {"GenericItems": None}}, id="null-list"),
        pytest.param(spec_of({}), id="empty-item"),
        pytest.param(spec_of({"generictemplate": {"apiVersion": "v1", "kind": "Pod"}}), id="no-metadata"),
        pytest.param(spec_of({"generictemplate": {**POD, "metadata": None}}), id="null-metadata"),
        pytest.param(spec_of({"generictemplate": {**POD, "metadata": {"labels": None}}}), id="no-name"),
        pytest.param(spec_of({"generictemplate": POD, "custompodresources": []}), id="nothing-declared"),
        pytest.param(
            with_pod_set(replicas=0, requests={"cpu": "500m", "memory": "1.5Gi", "x.io/y": 2, "z": "1e-3"}),
            id="quantities",
        ),
        pytest.param(with_pod_set(requests={"memory": 2**62}, limits={"cpu": "+1"}), id="large-integer"),
        pytest.param(
            with_pod_set(requests={"memory": "16G", "cpu": "0.5", "x.io/y": "1e3", "x.io/z": "500m"}),
            id="quantities-of-every-kind",
        ),
        pytest.param(spec_of(priority=-(2**31), priorityslope=0.5), id="low-priority"),
        pytest.param(
            spec_of(selector={"matchLabels": {"a": "b"}}, service={"spec": {}}), id="useless-fields"
        ),
        pytest.param(
            {"components": [{"template": POD, "podSets": [{"path": "template"}]}]}, id="v1beta2-spelling"
        ),
    ],
)
async def test_api_server_takes(api: Api, spec: dict[str, Any]) -> None:
    await try_to_create(api, spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(None, "[spec: Required value", id="no-spec"),
        pytest.param(
            {"priority": 1},
            "spec: Invalid value: names nothing to create: list the objects in spec.resources.GenericItems or "
            "spec.components",
            id="nothing-to-create",
        ),
        pytest.param(
            {**spec_of({"generictemplate": POD}), "components": [{"template": POD}]},
            "spec: Invalid value: has both resources.GenericItems and components: keep one of the two",
            id="both-spellings",
        ),
        pytest.param(
            {"resources": {"Items": [{"template": POD}]}},
            "spec.resources.Items: Invalid value: Items is no longer used: move its entries to GenericItems",
            id="items-of-old",
        ),
        pytest.param(
            spec_of({"generictemplate": {"metadata": {"name": "a"}}}),
            "[spec.resources.GenericItems[0].generictemplate.apiVersion: Required value, "
            "spec.resources.GenericItems[0].generictemplate.kind: Required value",
            id="template-of-no-kind",
        ),
        pytest.param(
            spec_of({"generictemplate": {**POD, "metadata": {"labels": {"a": 1}}}}),
            'spec.resources.GenericItems[0].generictemplate.metadata: Invalid value: {"labels":{"a":1}}: json: '
            "cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            id="label-not-a-string",
        ),
        pytest.param(
            spec_of({"generictemplate": {**POD, "apiVersion": "mcad.ibm.com/v1beta1", "kind": "AppWrapper"}}),
            "spec.resources.GenericItems[0]: Invalid value: Nested AppWrappers are forbidden: "
            "list what the inner one wraps in the outer one",
            id="nested",
        ),
        pytest.param(
            {
                "components": [
                    {
                        "template": {
                            **POD,
                            "apiVersion": "workload.codeflare.dev/v1beta2",
                            "kind": "AppWrapper",
                        }
                    }
                ]
            },
            "spec.components[0]: Invalid value: Nested AppWrappers are forbidden: "
            "list what the inner one wraps in the outer one",
            id="nested-in-v1beta2",
        ),
        pytest.param(
            {"components": [{}]}, "[spec.components[0].template: Required value", id="component-of-nothing"
        ),
        pytest.param(
            spec_of(*({"generictemplate": POD} for _ in range(257))),
            "[spec.resources.GenericItems: Too many: 257: must have at most 256 items",
            id="too-many-items",
        ),
        pytest.param(
            spec_of(priority=2**31),
            "Checked value must be of type integer with format int32 in spec.priority",
            id="priority-beyond-int32",
        ),
        pytest.param(
            spec_of(schedulingSpec={"minAvailable": -1}),
            "spec.schedulingSpec.minAvailable in body should be greater than or equal to 0",
            id="negative-min-available",
        ),
    ],
)
async def test_api_server_refuses(api: Api, spec: object, message: str) -> None:
    assert message in await refusal_of(api, spec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"replicas": -1}, "replicas in body should be greater than or equal to 0", id="negative-count"
        ),
        pytest.param({"replicas": 1.5}, 'replicas in body must be of type int32: "float64"', id="half-a-pod"),
        pytest.param(
            {"replicas": "2"}, 'replicas in body must be of type integer: "string"', id="count-in-quotes"
        ),
        pytest.param({"requests": None}, "requests: Required value", id="no-requests"),
        pytest.param(
            {"requests": {"cpu": -1}},
            "requests.cpu in body should be greater than or equal to 0",
            id="negative",
        ),
        pytest.param(
            {"requests": {"cpu": "-1"}}, f"requests.cpu in body should match {PATTERN}", id="negative-string"
        ),
        pytest.param(
            {"limits": {"cpu": "1K"}}, f"limits.cpu in body should match {PATTERN}", id="no-such-suffix"
        ),
        pytest.param(
            {"requests": {"cpu": "1\n"}}, f"requests.cpu in body should match {PATTERN}", id="newline"
        ),
        pytest.param(
            {"requests": {"cpu": 0.5}},
            'requests.cpu in body must be of type integer,string: "number"',
            id="unquoted-half",
        ),
        pytest.param(
            {"requests": {f"r{number}": 1 for number in range(65)}},
            "requests: Too many: 65: must have at most 64 items",
            id="too-many-resources",
        ),
    ],
)
async def test_api_server_refuses_declared_pods(api: Api, fields: dict[str, Any], message: str) -> None:
    assert f"{POD_SET}.{message}" in await refusal_of(api, with_pod_set(**fields))


async def test_defaults_are_filled_in_where_mcad_filled_them_in(api: Api) -> None:
    stored = await try_to_create(api, {"resources": {}, "schedulingSpec": {"requeuing": {}}})

    assert stored["spec"]["schedulingSpec"]["requeuing"] == {
        "timeInSeconds": 300,
        "maxTimeInSeconds": 0,
        "growthType": "exponential",
        "numRequeuings": 0,
        "maxNumRequeuings": 0,
        "pauseTimeInSeconds": 0,
    }
    read = parse_spec(stored["spec"], namespace="default").scheduling.requeuing
    assert read == Requeuing(explicit=True)


async def test_template_keeps_its_quantities_exactly(api: Api) -> None:
    """Quoted or not: the API server takes numbers for quantities in pods, so it takes them here."""
    requests = {
        "memory": "16G",
        "cpu": 0.5,
        "x.io/y": "1e3",
        "x.io/z": "500m",
        "x.io/w": 0.1,
        "x.io/v": 2**62,
    }
    pod = {**POD, "spec": {"containers": [{"name": "a", "image": "a", "resources": {"requests": requests}}]}}

    stored = await try_to_create(api, spec_of({"generictemplate": pod}))

    assert stored["spec"] == spec_of({"generictemplate": pod})


async def test_names_may_be_as_long_as_kubernetes_has_them(api: Api, namespace: str) -> None:
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    pod = {**POD, "metadata": {"name": longest}}
    spec = spec_of({"generictemplate": pod})

    await api.request("POST", collection(namespace), appwrapper(spec, name=longest))

    stored = await api.request("GET", f"{collection(namespace)}/{longest}")
    assert stored["spec"] == spec
    assert parse_spec(stored["spec"], namespace=namespace).wrapped == (WrappedObject(0, pod),)


async def test_status_keeps_all_we_and_mcad_write(api: Api, namespace: str) -> None:
    times = dict.fromkeys(
        ("lastUpdateMicroTime", "lastTransitionMicroTime", "lastTransitionTime"), MCADS_TIME
    )
    status = {
        "state": "Pending",
        "queuejobstate": "Backoff",
        "canrun": False,
        "filterignore": True,
        "sender": "before [backoff] - Rejoining",
        "systempriority": 9,
        "controllerfirsttimestamp": MCADS_TIME,
        "pending": 2,
        "totalmemory": 2**40,
        "cluster": "hub",
        "waiting": {
            "reason": "Insufficient",
            "resource": "nvidia.com/gpu",
            "message": "needs 2, free 0",
            "clusters": [{"cluster": "hub", "reason": "Insufficient", "resource": "nvidia.com/gpu"}],
            "position": 1,
            "queueLength": 2,
            "estimatedStart": "2026-11-20T09:58:06Z",
            "estimateUnknown": "too many AppWrappers start or end before it",
            "holders": [
                {"name": "a", "namespace": namespace, "user": "alice", "since": "2026-11-20T08:58:06Z"}
            ],
            "otherHolders": 1,
            "leastPriority": 9,
            "repair": {
                "message": "it would be dispatched with 1 more node in hub",
                "add_nodes": {
                    "cluster": "hub",
                    "count": 1,
                    "allocatable": {"nvidia.com/gpu": "2"},
                    "labels": {"pool": "a"},
                    "taints": [{"key": "only", "effect": "NoSchedule"}],
                },
                "remove": ["a"],
                "removeOthers": 1,
                "untaint": {"cluster": "hub", "count": 1},
                "add_quota": {"queue": "a", "resource": "cpu", "amount": "1500m"},
                "add_quotas": [{"queue": "a", "resource": "pods", "amount": "2"}],
            },
        },
        "conditions": [
            {"type": "Init", "status": "True", **times},
            {"type": "HeadOfLine", "status": "True", "reason": "FrontOfQueue.", **times},
            {
                "type": "Backoff",
                "status": "True",
                "reason": "AppWrapperNotRunnable.",
                "message": "…",
                **times,
            },
        ],
    }
    await api.request("POST", collection(namespace), appwrapper({"resources": {}}))

    stored = await api.request("PATCH", f"{collection(namespace)}/t/status", {"status": status})

    assert stored["status"] == status


@pytest.mark.parametrize("group", ["workload.codeflare.dev/v1beta1", "mcad.ibm.com/v1beta1"])
async def test_kubectl_get_shows_demand_position_and_reason(
    api: Api, plane: Plane, namespace: str, group: str
) -> None:
    path = f"{collection(namespace, group)}/t"
    await api.request("POST", collection(namespace, group), appwrapper({"resources": {}}, group))
    status = {
        "lifecyclePhase": "Queued",
        "queuejobstate": "Backoff",
        "systempriority": 9,
        "gpus": 2,
        "reason": "InsufficientResources",
        "queue": "research",
        "user": "alice",
        "waiting": {
            "reason": "InsufficientResources",
            "position": 3,
            "estimatedStart": "2026-11-20T09:58:06Z",
        },
    }
    await api.request("PATCH", f"{path}/status", {"status": status})

    async with await ClusterClient.connect(str(plane.kubeconfig)) as client:
        table = await client.get(path, accept="application/json;as=Table;g=meta.k8s.io;v=v1")

    columns = {column["name"]: column["priority"] for column in table["columnDefinitions"]}
    shown = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert shown.pop("Age")
    assert shown == {
        "Name": "t",
        "State": "Queued",
        "Priority": 9,
        "GPUs": 2,
        "Position": 3,
        "Est Start": "2026-11-20T09:58:06Z",
        "Cluster": None,
        "Reason": "InsufficientResources",
        "Queue": "research",
        "User": "alice",
    }
    assert {name for name, priority in columns.items() if priority} == {
        "Est Start",
        "Queue",
        "User",
    }  # only with -o wide


async def test_condition_type_may_be_there_only_once(api: Api, namespace: str) -> None:
    await api.request("POST", collection(namespace), appwrapper({"resources": {}}))
    twice = [{"type": "Init", "status": "True"}, {"type": "Init", "status": "False"}]

    with pytest.raises(RefusedError, match="Duplicate value"):
        await api.request("PATCH", f"{collection(namespace)}/t/status", {"status": {"conditions": twice}})


async def test_writing_the_status_cannot_change_the_spec(api: Api, namespace: str) -> None:
    await api.request("POST", collection(namespace), appwrapper({"resources": {}, "priority": 1}))

    body = {"spec": {"priority": 2}, "status": {"state": "Pending"}}
    stored = await api.request("PATCH", f"{collection(namespace)}/t/status", body)

    assert (stored["spec"]["priority"], stored["metadata"]["generation"]) == (1, 1)
