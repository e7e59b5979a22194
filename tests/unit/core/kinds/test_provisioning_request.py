"""The objects that request the capacity of a gang."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.appwrapper import TemplatePodSet, WrappedObject
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.kinds.manifest import build
from dispatcher.core.kinds.pods.pod_requests import pod_requests
from dispatcher.core.kinds.provisioning_request import (
    ProvisioningError,
    objects_of,
    parameters_in,
    pod_annotations,
    refs_of,
    refused_parameters,
    request_name,
)
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from tests.builders import attempt_of, make_awaiting, make_owner, make_record

GPU = "nvidia.com/gpu"
ASKED = ProvisioningClass(
    "queued-provisioning.gke.io", frozenset({GPU}), (("maxRunDurationSeconds", "3600"),)
)
WORKER: dict[str, Any] = {
    "metadata": {"labels": {"app": "train"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": GPU, "operator": "Exists"}],
        "containers": [
            {
                "name": "ray",
                "image": "ray",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": 2, GPU: 1}},
            }
        ],
    },
}
HEAD: dict[str, Any] = {"spec": {"containers": [{"name": "ray", "image": "ray"}]}}
CLUSTER = WrappedObject(
    0,
    {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray"},
        "spec": {
            "headGroupSpec": {"template": HEAD},
            "workerGroupSpecs": [{"groupName": "gpu", "template": WORKER}],
        },
    },
)
HEAD_PODS = PodSet(1, Resources({"cpu": 500}), path="spec.headGroupSpec.template")
WORKER_PODS = PodSet(2, Resources({"cpu": 1000, GPU: 1}), path="spec.workerGroupSpecs[0].template")


def make(*pod_sets: PodSet, asked: ProvisioningClass = ASKED) -> Record:
    """A record whose capacity is to be requested."""
    return make_awaiting(make_record(gang=Gang(pods=1, pod_sets=pod_sets or (HEAD_PODS, WORKER_PODS))), asked)


def test_each_managed_pod_set_has_a_template_and_the_request_names_them() -> None:
    template, request = objects_of(make(), [CLUSTER], {})
    assert template.template["metadata"] == {"name": "ppt-aw-provisioning-1-0"}
    assert template.template["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert template.template["template"]["metadata"] == {"labels": {"app": "train"}}
    assert request.template == {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "aw-provisioning-1"},
        "spec": {
            "provisioningClassName": "queued-provisioning.gke.io",
            "podSets": [{"podTemplateRef": {"name": "ppt-aw-provisioning-1-0"}, "count": 2}],
            "parameters": {"maxRunDurationSeconds": "3600"},
        },
    }


def test_references_name_the_created_provisioning_objects() -> None:
    record = make()
    owner = make_owner()
    built = [build(each, owner) for each in objects_of(record, [CLUSTER], {})]
    assert [(ref.kind, ref.name) for ref in refs_of(record)] == [
        (each["kind"], each["metadata"]["name"]) for each in built
    ]
    assert all(each["metadata"]["ownerReferences"] for each in built)
    assert refs_of(make_record()) == ()


def test_limit_is_the_request_of_a_template_and_stated_requests_stay() -> None:
    template, _ = objects_of(make(), [CLUSTER], {})
    (container,) = template.template["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1", GPU: 1}, "limits": {"cpu": 2, GPU: 1}}


@pytest.mark.parametrize(
    "requests",
    [
        {"cpu": 1000, GPU: 1},
        {"cpu": 1500, GPU: 1},
        {"cpu": 3000, "memory": 2**30, GPU: 4},
        {"cpu": 1000, "hugepages-2Mi": 2**21, GPU: 1},
    ],
)
def test_template_requests_what_its_pods_will(requests: dict[str, int]) -> None:
    pods = replace(WORKER_PODS, requests=Resources(requests))
    template, _ = objects_of(make(pods), [CLUSTER], {})
    spec = template.template["template"]["spec"]
    assert pod_requests(spec, limits_are_defaults=False) == Resources(requests)
    (container,) = spec["containers"]
    for name, limit in container["resources"]["limits"].items():
        one = {"containers": [{"resources": {"requests": {name: limit}}}]}
        assert pod_requests(one)[name] >= pod_requests(spec, limits_are_defaults=False)[name]


def test_template_requests_what_its_pods_will_in_the_cluster_of_the_attempt() -> None:
    def requesting(memory: int) -> Gang:
        each = replace(WORKER_PODS, requests=Resources({"cpu": 1000, "memory": memory, GPU: 1}))
        return Gang(each.total, 2, (each,))

    awaiting = make_awaiting(make_record(gang=requesting(2**31)), ASKED)
    smaller = awaiting.gang.with_smaller({attempt_of(awaiting).cluster: requesting(2**30)})
    template, _ = objects_of(replace(awaiting, gang=smaller), [CLUSTER], {})
    spec = template.template["template"]["spec"]
    assert pod_requests(spec, limits_are_defaults=False)["memory"] == 2**30


def with_workers(**changed: object) -> WrappedObject:
    """The cluster whose workers have a template with these fields."""
    spec = CLUSTER.template["spec"]
    groups = [{"groupName": "gpu", "template": {**WORKER, **changed}}]
    return replace(CLUSTER, template={**CLUSTER.template, "spec": {**spec, "workerGroupSpecs": groups}})


def test_template_has_what_a_quota_manager_adds_to_the_pods() -> None:
    info = {"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "spot"}], "labels": {"team": "a"}}
    informed = replace(
        CLUSTER, pod_sets=(TemplatePodSet("template.spec.workerGroupSpecs[0].template", 2, info),)
    )
    template, _ = objects_of(make(), [informed], {})
    spec = template.template["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "b"}
    assert spec["tolerations"] == [*WORKER["spec"]["tolerations"], {"key": "spot"}]
    assert template.template["template"]["metadata"]["labels"] == {"app": "train", "team": "a"}


def test_limits_of_init_containers_are_their_requests_too() -> None:
    sidecar = {"name": "log", "restartPolicy": "Always", "resources": {"limits": {"cpu": "3"}}}
    workers = with_workers(spec={**WORKER["spec"], "initContainers": [sidecar]})
    pods = replace(WORKER_PODS, requests=Resources({"cpu": 4000, GPU: 1}))
    template, _ = objects_of(make(pods), [workers], {})
    spec = template.template["template"]["spec"]
    assert pod_requests(spec, limits_are_defaults=False) == Resources({"cpu": 4000, GPU: 1})


@pytest.mark.parametrize(
    "changed",
    [
        {"spec": {"containers": [None]}},
        {"spec": {"containers": ["ray"]}},
        {"spec": {"containers": [{"resources": "all"}]}},
        {"spec": {"containers": [{"resources": {"limits": "all"}}]}},
        {"spec": {"containers": [{"resources": {"requests": {"cpu": "much"}}}]}},
        {"spec": {"containers": [{}], "initContainers": "none"}},
    ],
)
def test_malformed_template_is_refused_with_its_place(changed: dict[str, Any]) -> None:
    place = re.escape("item 0, spec.workerGroupSpecs[0].template.spec: ")
    with pytest.raises(ProvisioningError, match=place):
        objects_of(make(), [with_workers(**changed)], {})


@pytest.mark.parametrize("metadata", [None, "x", ["x"]])
def test_malformed_metadata_of_a_template_is_left_out(metadata: object) -> None:
    template, _ = objects_of(make(), [with_workers(metadata=metadata)], {})
    assert template.template["template"]["metadata"] == {}


@pytest.mark.parametrize("resources", [None, {}, {"requests": None, "limits": None}])
def test_template_without_resources_requests_what_its_pods_will(resources: object) -> None:
    workers = with_workers(spec={"containers": [{"name": "ray", "resources": resources}]})
    template, _ = objects_of(make(), [workers], {})
    assert pod_requests(template.template["template"]["spec"], limits_are_defaults=False) == Resources(
        {"cpu": 1000, GPU: 1}
    )


def test_pods_without_a_template_of_their_own_are_requested_by_their_amounts() -> None:
    pods = PodSet(3, Resources({"cpu": 250, GPU: 2}), path="spec.unknown")
    template, request = objects_of(make(pods), [CLUSTER], {})
    spec = template.template["template"]["spec"]
    assert pod_requests(spec) == Resources({"cpu": 250, GPU: 2})
    assert request.template["spec"]["podSets"][0]["count"] == 3


def test_class_that_manages_nothing_in_particular_manages_every_pod() -> None:
    *templates, _ = objects_of(make(asked=ProvisioningClass("any")), [CLUSTER], {})
    assert len(templates) == 2


def test_pod_set_without_pods_is_left_out() -> None:
    empty = replace(WORKER_PODS, count=0)
    *templates, _ = objects_of(make(empty, WORKER_PODS), [CLUSTER], {})
    assert len(templates) == 1
    assert not Gang(pod_sets=(empty,)).is_managed_by(ASKED)


@pytest.mark.parametrize(
    ("listed", "parameters", "refused"),
    [
        ([], {"maxRunDurationSeconds": "3600"}, ("maxRunDurationSeconds", "x")),
        (["x"], {"maxRunDurationSeconds": "3600", "x": "y"}, ("maxRunDurationSeconds",)),
        (["maxRunDurationSeconds"], {"maxRunDurationSeconds": "60"}, ("x",)),
    ],
)
def test_author_sets_only_parameters_that_the_class_lists(
    listed: list[str], parameters: dict[str, str], refused: tuple[str, ...]
) -> None:
    given = parameters_in(
        {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "60", "provreq.kueue.x-k8s.io/x": "y", "other": "z"}
    )
    record = make(asked=replace(ASKED, author_parameters=frozenset(listed)))
    *_, request = objects_of(record, [CLUSTER], given)
    assert request.template["spec"]["parameters"] == parameters
    assert refused_parameters(record, given) == refused


@pytest.mark.parametrize(
    ("pod_sets", "given", "said"),
    [
        ((WORKER_PODS,) * 33, {}, "33 pod sets need capacity .* has at most 32"),
        ((WORKER_PODS,), {"long": "x" * 256}, "parameter long .* has 256 characters: at most 255"),
        ((WORKER_PODS,), {str(number): "" for number in range(100)}, "101 parameters .* has at most 100"),
    ],
)
def test_request_that_no_api_server_takes_is_refused_with_its_reason(
    pod_sets: tuple[PodSet, ...], given: dict[str, str], said: str
) -> None:
    with pytest.raises(ProvisioningError, match=said):
        objects_of(
            make(*pod_sets, asked=replace(ASKED, author_parameters=frozenset(given))), [CLUSTER], given
        )


def test_names_are_unique_short_enough_and_those_of_the_attempt() -> None:
    longest = "a" * 253
    names = {
        request_name("aw", 1),
        request_name("aw", 2),
        request_name(longest, 1),
        request_name("a" * 252, 1),
    }
    assert len(names) == 4
    assert request_name("aw", 12) == "aw-provisioning-12"
    # As Kueue does: cut, and five digits of SHA-1.
    assert request_name(longest, 1) == f"{'a' * 219}-9c490-provisioning-1"
    assert all(len(f"ppt-{name}-31") <= 253 for name in names)
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) for name in names)


def test_pods_of_the_gang_name_the_request_that_they_use() -> None:
    annotations = pod_annotations(make())
    assert annotations == {
        "autoscaling.x-k8s.io/consume-provisioning-request": "aw-provisioning-1",
        "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io",
    }
    assert pod_annotations(make_record()) == {}
    built = build(CLUSTER, replace(make_owner(), pod_annotations=annotations))
    head = built["spec"]["headGroupSpec"]["template"]
    worker = built["spec"]["workerGroupSpecs"][0]["template"]
    assert annotations.items() <= head["metadata"]["annotations"].items()
    assert annotations.items() <= worker["metadata"]["annotations"].items()


def test_attempt_keeps_the_class_that_it_asked() -> None:
    attempt = make().attempt
    assert attempt is not None
    assert attempt.provisioning == Provisioning(ASKED)
    assert attempt.assignment.provisioning is None
