"""How many pods each kind of job makes, and where a path in a wrapped object leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.core.kinds.fields import Field, TemplateError, template_at
from dispatcher.core.kinds.pods.podsets import Pods, pods_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import Resources


def template(cpu: object = 1) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}


def replicas(count: int | None = None, cpu: object = 1) -> dict[str, Any]:
    return {"template": template(cpu), **({} if count is None else {"replicas": count})}


def pods(group: str, kind: str, **spec: object) -> Pods:
    return pods_of(BUILT_IN.derivable[group, kind], {"spec": spec})


def made(*sets: tuple[int, int]) -> Pods:
    """The pods of these counts and milli-cpus, which are all members."""
    pod_sets = tuple(PodSet(count, Resources({"cpu": cpu})) for count, cpu in sets)
    return Pods(pod_sets, sum(count for count, _ in sets))


REPLICA_SPECS = {
    "JAXJob": "jaxReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
}


@pytest.mark.parametrize(("kind", "field"), REPLICA_SPECS.items())
def test_kubeflow_job_makes_the_replicas_of_all_its_types(kind: str, field: str) -> None:
    specs = {"Chief": replicas(cpu=2), "PS": replicas(3), "Evaluator": replicas(0)}
    assert pods("kubeflow.org", kind, **{field: specs}) == made((1, 2000), (3, 1000))
    assert pods("kubeflow.org", kind, runPolicy={"suspend": True}, **{field: specs}) == Pods()


@pytest.mark.parametrize("key", ["Worker", "worker"])
def test_pytorch_workers_wait_for_their_master_in_an_init_container(key: str) -> None:
    specs = {"Master": replicas(cpu="20m"), key: replicas(2, cpu="20m")}
    found = pods("kubeflow.org", "PyTorchJob", pytorchReplicaSpecs=specs)
    worker = PodSet(2, Resources({"cpu": 50, "memory": 10 * 2**20}))
    assert found == Pods((PodSet(1, Resources({"cpu": 20})), worker), 3)


def test_pytorch_workers_without_a_master_wait_for_none() -> None:
    specs = {"Worker": replicas(2, cpu="20m")}
    assert pods("kubeflow.org", "PyTorchJob", pytorchReplicaSpecs=specs) == made((2, 20))


def test_mpi_workers_do_not_wait_for_the_launcher() -> None:
    specs = {"Launcher": replicas(cpu="20m"), "Worker": replicas(2, cpu="20m")}
    assert pods("kubeflow.org", "MPIJob", mpiReplicaSpecs=specs) == made((1, 20), (2, 20))


@pytest.mark.parametrize(
    ("replicated", "count"),
    [
        ({}, 1),
        ({"replicas": 3}, 3),
        ({"replicas": 3, "parallelism": 2}, 6),
        ({"replicas": 3, "parallelism": 4, "completions": 2}, 6),
        ({"replicas": 2, "completions": 5}, 2),
    ],
)
def test_job_set_makes_the_pods_of_each_job_as_often_as_it_is_replicated(
    replicated: Mapping[str, int], count: int
) -> None:
    own = {**replicated}
    count_of_jobs = {"replicas": own.pop("replicas")} if "replicas" in own else {}
    entry = {"name": "a", "template": {"spec": {"template": template(), **own}}, **count_of_jobs}
    driver = {"name": "driver", "template": {"spec": {"template": template(2)}}}
    found = pods("jobset.x-k8s.io", "JobSet", replicatedJobs=[driver, entry])
    assert found == made((1, 2000), (count, 1000))


def test_suspended_job_set_makes_no_pods() -> None:
    assert pods("jobset.x-k8s.io", "JobSet", suspend=True, replicatedJobs=[]) == Pods()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, made((1, 2000))),
        ({"replicas": 2}, made((2, 2000))),
        ({"replicas": 2, "size": 4}, made((2, 2000), (6, 1000))),
        ({"replicas": 2, "size": 1}, made((2, 2000))),
        ({"replicas": 2, "size": 0}, made((2, 2000))),
    ],
)
def test_leader_worker_set_makes_groups_of_a_leader_and_workers(
    spec: Mapping[str, int], expected: Pods
) -> None:
    size = {"size": spec["size"]} if "size" in spec else {}
    count = {"replicas": spec["replicas"]} if "replicas" in spec else {}
    templates = {"leaderTemplate": template(2), "workerTemplate": template(1)}
    found = pods(
        "leaderworkerset.x-k8s.io", "LeaderWorkerSet", leaderWorkerTemplate=templates | size, **count
    )
    assert found == expected


def test_leader_without_a_template_is_made_like_a_worker() -> None:
    templates = {"workerTemplate": template(), "size": 3}
    found = pods("leaderworkerset.x-k8s.io", "LeaderWorkerSet", leaderWorkerTemplate=templates)
    assert found == made((1, 1000), (2, 1000))


def test_volcano_job_makes_the_replicas_of_its_tasks_which_have_no_default() -> None:
    tasks = [replicas(1, cpu=2), replicas(4), replicas(), replicas(0)]
    assert pods("batch.volcano.sh", "Job", minAvailable=3, tasks=tasks) == made((1, 2000), (4, 1000))


@pytest.mark.parametrize(
    ("group", "kind", "spec", "problem"),
    [
        ("batch.volcano.sh", "Job", {}, "spec.tasks: must name at least one sort of pods"),
        ("batch.volcano.sh", "Job", {"tasks": []}, "spec.tasks: must name at least one sort of pods"),
        ("jobset.x-k8s.io", "JobSet", {}, "spec.replicatedJobs: must name at least one sort of pods"),
        (
            "jobset.x-k8s.io",
            "JobSet",
            {"replicatedJobs": [{"template": {"spec": {}}}]},
            "spec.replicatedJobs[0].template.spec.template.spec.containers: must list the containers of the pod",
        ),
        (
            "kubeflow.org",
            "PyTorchJob",
            {},
            "spec.pytorchReplicaSpecs: must name at least one sort of pods",
        ),
        (
            "kubeflow.org",
            "TFJob",
            {"tfReplicaSpecs": {"Worker": {"template": template(), "replicas": "2"}}},
            "spec.tfReplicaSpecs.Worker.replicas: must be a whole number",
        ),
        (
            "leaderworkerset.x-k8s.io",
            "LeaderWorkerSet",
            {},
            "spec.leaderWorkerTemplate.workerTemplate.spec.containers: must list the containers of the pod",
        ),
    ],
)
def test_object_we_cannot_read_is_refused_by_field(
    group: str, kind: str, spec: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(TemplateError) as raised:
        pods(group, kind, **spec)
    assert str(raised.value) == problem


WRAPPED = {
    "apiVersion": "example.com/v1",
    "spec": {
        "template": template(),
        "groups": [{"template": template(2)}, {"template": template(3), "nested": [[template(4)]]}],
        "service": {"spec": {"ports": []}},
        "empty": {"spec": {"containers": []}},
        "nothing": None,
        "count": 3,
    },
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("template.spec.template", Field(template(), "spec.template", "template")),
        (
            "template.spec.groups[1].template",
            Field(template(3), "spec.groups[1].template", "template"),
        ),
        ("template.spec.groups[1].nested[0][0]", Field(template(4), "spec.groups[1].nested[0][0]")),
    ],
)
def test_path_leads_to_a_pod_template(path: str, expected: Field) -> None:
    assert template_at(WRAPPED, path) == expected


def test_path_of_a_bare_pod_is_the_pod_itself() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **template()}
    assert template_at(pod, "template") == Field(pod)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "spec.template",
        "templates.spec",
        "template.",
        "template..spec",
        ".template",
        "template.spec.groups[",
        "template.spec.groups[0",
        "template.spec.groups[].template",
        "template.spec.groups[x].template",
        "template.spec.groups[-1].template",
        "template.spec.groups[+1].template",
        "template.spec.groups[1.0].template",
        "template.spec.groups]0[.template",
        "template.spec.groups[[0]].template",
        "template.spec.groups[0]template",
        "template.spec.groups.[0].template",
        "template.spec.groups[٣].template",
        "template.spec.groups[" + "9" * 5000 + "].template",
    ],
)
def test_text_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(TemplateError) as raised:
        template_at(WRAPPED, path)
    assert raised.value.problem == "is no path such as template.spec.groups[0].template"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("template.spec.absent.template", 'leads to nothing at "absent"'),
        ("template.spec.template ", 'leads to nothing at "template "'),
        ("template.spec.template\n", 'leads to nothing at "template\\n"'),
        ("template.spec.nothing", 'leads to nothing at "nothing"'),
        ("template.spec.count.template", 'leads to nothing at "template"'),
        ("template.spec.groups[2].template", "leads to nothing at 2"),
        ("template.spec.groups.template", 'leads to nothing at "template"'),
        ("template.spec.template[0]", "leads to nothing at 0"),
        ("template[0]", "leads to nothing at 0"),
        ("template", "leads to something that is no pod template with containers"),
        ("template.spec", "leads to something that is no pod template with containers"),
        ("template.spec.groups", "leads to something that is no pod template with containers"),
        ("template.spec.count", "leads to something that is no pod template with containers"),
        ("template.spec.service", "leads to something that is no pod template with containers"),
        ("template.spec.empty", "leads to something that is no pod template with containers"),
    ],
)
def test_path_that_leads_to_no_pod_template_is_refused(path: str, problem: str) -> None:
    with pytest.raises(TemplateError) as raised:
        template_at(WRAPPED, path)
    assert (raised.value.path, raised.value.problem) == (path, problem)
