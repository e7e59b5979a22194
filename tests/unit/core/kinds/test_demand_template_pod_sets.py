"""v1beta2's podSets: they tell the pods of a kind we do not know, and must agree about one we do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import parse_spec
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.model.clusters.nodes import NodeRequirements, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of

CPU = Resources({"cpu": 1000})


def template(cpu: object = 1, **spec: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **spec}}


def obj(api_version: str, kind: str, **spec: object) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def at(path: str, replicas: int | None = None) -> dict[str, Any]:
    return {"path": path} if replicas is None else {"path": path, "replicas": replicas}


def gang(wrapped: Mapping[str, Any], *pod_sets: Mapping[str, Any]) -> Gang:
    component = {"template": wrapped, "podSets": list(pod_sets)}
    return gang_of(parse_spec({"components": [component]}, namespace="default"))


def refusal(wrapped: Mapping[str, Any], *pod_sets: Mapping[str, Any]) -> str:
    with pytest.raises(DemandError) as raised:
        gang(wrapped, *pod_sets)
    return str(raised.value)


TOLERATIONS = [{"key": "gpu", "operator": "Exists"}]
SIMULATION = obj(
    "example.com/v1", "Simulation", leader=template(2), groups=[template(1, tolerations=TOLERATIONS)]
)
RAY_CLUSTER = obj(
    "ray.io/v1",
    "RayCluster",
    headGroupSpec={"template": template()},
    workerGroupSpecs=[{"replicas": 2, "numOfHosts": 2, "template": template()}],
)
RAY_JOB = obj("ray.io/v1", "RayJob", rayClusterSpec=RAY_CLUSTER["spec"])
HEAD, WORKERS = "template.spec.headGroupSpec.template", "template.spec.workerGroupSpecs[0].template"


def test_pod_sets_tell_the_pods_of_a_kind_we_do_not_know() -> None:
    found = gang(SIMULATION, at("template.spec.leader"), at("template.spec.groups[0]", 3))
    workers = PodSet(3, CPU, (Toleration("gpu", "Exists"),))
    assert found == Gang(CPU * 5, 4, (PodSet(1, CPU * 2), workers))


def test_pod_set_of_no_replicas_has_no_pods() -> None:
    assert gang(SIMULATION, at("template.spec.leader", 0)) == Gang()


def test_pod_sets_that_agree_with_a_kind_we_know_change_nothing() -> None:
    assert gang(RAY_CLUSTER, at(HEAD, 1), at(WORKERS, 4)) == gang(RAY_CLUSTER)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template()}
    assert gang(pod, at("template")) == gang(pod) == Gang(CPU, 1, (PodSet(1, CPU),))


def test_pod_sets_of_a_ray_job_may_leave_its_submitter_out() -> None:
    head, workers = (path.replace("spec.", "spec.rayClusterSpec.", 1) for path in (HEAD, WORKERS))
    assert gang(RAY_JOB, at(head), at(workers, 4)) == gang(RAY_JOB)
    with_submitter = {**RAY_JOB, "spec": {**RAY_JOB["spec"], "submitterPodTemplate": template()}}
    everything = (at(head), at(workers, 4), at("template.spec.submitterPodTemplate"))
    assert gang(with_submitter, *everything) == gang(with_submitter)


def test_pod_sets_that_disagree_with_a_kind_we_know_are_refused() -> None:
    assert refusal(RAY_CLUSTER, at(HEAD), at(WORKERS, 2)) == (
        "spec.components[0].podSets: counts 3 pods, but a RayCluster (ray.io) written like this makes 5."
        " Correct the replicas, or leave podSets out."
    )
    assert refusal(RAY_CLUSTER, at(HEAD)) == (
        "spec.components[0].podSets: counts 1 pod, but a RayCluster (ray.io) written like this makes 5."
        " Correct the replicas, or leave podSets out."
    )


def test_pod_sets_reserve_what_a_suspended_object_will_take_later() -> None:
    job = obj("batch/v1", "Job", suspend=True, parallelism=3, template=template())
    assert gang(job, at("template.spec.template", 3)) == Gang(CPU * 3, 0, (PodSet(3, CPU),))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("template.spec.groups[", '"template.spec.groups[" is no path such as template.spec.groups[0].templ'),
        ("", '"" is no path such as'),
        ("template.spec.a\0", '"template.spec.a\\u0000" leads to nothing at "a\\u0000"'),
        ("template.spec.groups[1]", '"template.spec.groups[1]" leads to nothing at 1'),
        ("template.spec", '"template.spec" leads to something that is no pod template with containers'),
    ],
)
def test_pod_set_whose_path_leads_nowhere_is_refused(path: str, problem: str) -> None:
    message = refusal(SIMULATION, at("template.spec.leader"), at(path))
    assert message.startswith(f"spec.components[0].podSets[1].path: {problem}")
    remedy = "Name where the pod template is, beginning with `template` for the wrapped object."
    assert message.endswith(remedy)


def test_pod_set_whose_template_cannot_be_read_is_refused() -> None:
    assert refusal(obj("example.com/v1", "X", main=template("1 core")), at("template.spec.main")).startswith(
        'spec.components[0].podSets[0].path: the template at "template.spec.main" cannot be read:'
        " spec.main.spec.containers[0].resources.requests.cpu: '1 core' is not a quantity"
    )


def test_kind_without_pods_has_no_pod_template_to_point_at() -> None:
    assert "no pod template with containers" in refusal(obj("v1", "Service"), at("template.spec"))


def test_component_has_at_most_eight_pod_sets() -> None:
    eight = [at("template.spec.leader")] * 8
    assert gang(SIMULATION, *eight).pods == 8
    assert refusal(SIMULATION, *eight, *eight[:1]) == (
        "spec.components[0].podSets: has 9 entries, and at most 8 are taken."
        " Spread them over several components."
    )


def test_component_of_a_kind_we_do_not_know_needs_pod_sets() -> None:
    assert refusal(SIMULATION) == (
        "spec.components[0]: the requests of the pods of a Simulation (example.com) cannot be derived from its"
        " template. Say where its pod templates are, such as"
        " `podSets: [{path: template.spec.template, replicas: 2}]`; if it makes no pods, wrap it in"
        " resources.GenericItems (v1beta1) with `custompodresources: []`."
    )


def test_component_whose_template_cannot_be_read_can_only_be_corrected() -> None:
    deployment = obj("apps/v1", "Deployment", replicas=-1, template=template())
    expected = (
        "spec.components[0].template.spec.replicas: must be between 0 and 2147483647. Correct the template."
    )
    assert refusal(deployment) == expected
    assert refusal(deployment, at("template.spec.template")) == expected


def test_absurd_replicas_are_refused_without_being_counted_out() -> None:
    huge = obj("example.com/v1", "X", main=template("9223372036854775"))
    message = refusal(huge, at("template.spec.main", 2**31 - 1))
    assert message.startswith("spec: asks for more cpu in total than can be counted")


OTHER_DEPLOYMENT = obj("apps/v1", "Deployment", template=template(), other=template())
SUSPENDED_JOB = obj("batch/v1", "Job", suspend=True, template=template(), other=template(64))
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"x": template()}}
KUBEFLOW_JOB = obj("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Worker": {"template": template()}})


@pytest.mark.parametrize(
    ("wrapped", "path", "replicas", "kind"),
    [
        pytest.param(
            OTHER_DEPLOYMENT, "template.spec.other", 1, "a Deployment (apps)", id="beside-the-right-one"
        ),
        pytest.param(SUSPENDED_JOB, "template.spec.other", 3, "a Job (batch)", id="of-one-that-is-suspended"),
        pytest.param(CONFIG_MAP, "template.data.x", 0, "a ConfigMap", id="of-a-kind-without-pods"),
        pytest.param(
            {**SUSPENDED_JOB, "spec": {**SUSPENDED_JOB["spec"], "suspend": True, "template": None}},
            "template.spec.other",
            3,
            "a Job (batch)",
            id="of-one-that-has-none",
        ),
    ],
)
def test_pod_set_whose_path_is_not_where_a_kind_we_know_has_pods_is_refused(
    wrapped: Mapping[str, Any], path: str, replicas: int, kind: str
) -> None:
    """The API server would drop such a field, and capacity would be reserved for pods that never come."""
    assert refusal(wrapped, at(path, replicas)) == (
        f'spec.components[0].podSets[0].path: "{path}" is not where {kind} has a pod template. Name where the pod '
        "template is, beginning with `template` for the wrapped object."
    )


def test_pod_sets_name_templates_by_key_as_well() -> None:
    path = "template.spec.pytorchReplicaSpecs.Worker.template"
    assert gang(KUBEFLOW_JOB, at(path)) == gang(KUBEFLOW_JOB)


INFO = {
    "labels": {"flavor": "spot"},
    "nodeSelector": {"gpu": "a100", "zone": "east"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "schedulingGates": [{"name": "quota"}],
}


@pytest.mark.parametrize(
    ("wrapped", "path"),
    [
        pytest.param(
            obj("example.com/v1", "Simulation", worker=template()), "template.spec.worker", id="unknown-kind"
        ),
        pytest.param(obj("batch/v1", "Job", template=template()), "template.spec.template", id="known-kind"),
        pytest.param({**obj("v1", "Pod"), **template()}, "template", id="pod"),
    ],
)
def test_additions_of_a_quota_manager_constrain_the_pods(wrapped: dict[str, Any], path: str) -> None:
    component = {"template": wrapped, "podSets": [at(path)], "podSetInfos": [INFO]}
    (found,) = gang_of(parse_spec({"components": [component]}, namespace="default")).pod_sets
    assert found == PodSet(
        1,
        CPU,
        (Toleration("spot", "Exists"),),
        nodes=NodeRequirements((("gpu", "a100"), ("zone", "east"))),
    )
    assert found.path == path.removeprefix("template").removeprefix(".")


def test_own_constraint_stays_where_a_quota_manager_has_another() -> None:
    wrapped = obj("batch/v1", "Job", template=template(nodeSelector={"zone": "west"}))
    component = {"template": wrapped, "podSets": [at("template.spec.template")], "podSetInfos": [INFO]}
    (found,) = gang_of(parse_spec({"components": [component]}, namespace="default")).pod_sets
    assert found.nodes == NodeRequirements((("gpu", "a100"), ("zone", "west")))


def test_addition_that_no_api_server_takes_is_refused_by_field() -> None:
    wrapped = obj("batch/v1", "Job", template=template())
    info = {"nodeSelector": {"gpu": 7}}
    component = {"template": wrapped, "podSets": [at("template.spec.template")], "podSetInfos": [info]}
    with pytest.raises(DemandError, match=r"spec.nodeSelector.gpu: must be a string"):
        gang_of(parse_spec({"components": [component]}, namespace="default"))
