"""What a file of objects becomes: which AppWrappers, with which fields, and which objects are left beside them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import (
    APPROVALS,
    CLUSTER_SELECTOR,
    KUEUE_QUEUE_LABEL,
    NOTIFY,
    QUEUE_LABEL,
    UID_LABEL,
    USER_ANNOTATION,
)
from dispatcher.core.intake.wrapping import (
    NO_OPTIONS,
    Beside,
    Why,
    WrapError,
    WrapOptions,
    Wrapped,
    Wrapping,
    wrap,
)
from dispatcher.core.kinds.breakdown import breakdown_of
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.resources import Resources
from tests.unit.core.kinds.ray import HEAD, WORKER, cluster, group, ray_cluster, ray_job, template

Json = dict[str, Any]

GIB = 2**30


def obj(api_version: str, kind: str, name: str = "x", spec: object = None, **metadata: object) -> Json:
    spoken = {} if spec is None else {"spec": spec}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, **spoken}


def job(name: str = "train", **metadata: object) -> Json:
    return obj("batch/v1", "Job", name, {"template": template({"cpu": 1, "memory": "1Gi"})}, **metadata)


def config_map(name: str = "settings", **metadata: object) -> Json:
    return obj("v1", "ConfigMap", name, **metadata)


def appwrapper(name: str = "theirs", api_version: str = "workload.codeflare.dev/v1beta2") -> Json:
    return obj(api_version, "AppWrapper", name, {"components": [{"template": job()}]})


def made(name: str, *wrapped: Json, metadata: Json | None = None, **spec: object) -> Json:
    """The AppWrapper that `wrap` makes of these objects."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {**spec, "resources": {"GenericItems": [{"generictemplate": each} for each in wrapped]}},
    }


def words(*objects: Json) -> tuple[str, ...]:
    return tuple(f"{each['kind']}/{each['metadata']['name']}" for each in objects)


SERVICE = obj("v1", "Service", "head", {"ports": [{"port": 6379}]})
ROLE = obj("rbac.authorization.k8s.io/v1", "ClusterRole", "reader")
SECRET = obj("v1", "Secret", "token")
CLAIM = obj("v1", "PersistentVolumeClaim", "scratch")
QUEUE = obj("kueue.x-k8s.io/v1beta1", "LocalQueue", "all", namespace="team-b")
RAY_JOB = ray_job(cluster(HEAD, group(WORKER, replicas=2)))
RAY_JOB["metadata"]["name"] = "ray"
TORCH = obj(
    "kubeflow.org/v1",
    "PyTorchJob",
    "torch",
    {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template({"cpu": 2})}}},
)


@pytest.mark.parametrize(
    ("objects", "gangs", "beside"),
    [
        pytest.param([job()], [("train", [0])], {}, id="one-workload"),
        pytest.param([config_map(), RAY_JOB, SERVICE], [("ray", [0, 1, 2])], {}, id="with-what-it-needs"),
        pytest.param([job(), TORCH], [("train", [0, 1])], {}, id="two-workloads-are-one-gang"),
        pytest.param(
            [ROLE, SECRET, CLAIM, QUEUE, job()],
            [("train", [4])],
            {0: Why.NOT_WRAPPED, 1: Why.VALUES, 2: Why.DATA, 3: Why.NOT_WRAPPED},
            id="what-no-gang-has",
        ),
        pytest.param(
            [config_map(), SERVICE],
            [],
            {0: Why.NOT_WRAPPED, 1: Why.NOT_WRAPPED},
            id="no-workload",
        ),
        pytest.param([], [], {}, id="nothing"),
    ],
)
def test_all_objects_of_a_file_are_one_gang(
    objects: list[Json], gangs: list[tuple[str, list[int]]], beside: dict[int, Why]
) -> None:
    expected = Wrapping(
        tuple(
            Wrapped(
                made(name, *(objects[at] for at in wrapped)),
                1 + min(at for at in wrapped if objects[at]["metadata"]["name"] == name),
                words(*(objects[at] for at in wrapped)),
            )
            for name, wrapped in gangs
        ),
        tuple(
            Beside(objects[at]["kind"], objects[at]["metadata"]["name"], why) for at, why in beside.items()
        ),
    )
    assert wrap(objects) == expected


def test_each_workload_can_be_a_gang_of_its_own() -> None:
    apart = WrapOptions(each_workload=True)
    assert wrap([config_map(), job(), SERVICE, TORCH], apart) == Wrapping(
        (
            Wrapped(made("train", job()), 2, ("Job/train",)),
            Wrapped(made("torch", TORCH), 4, ("PyTorchJob/torch",)),
        ),
        (
            Beside("ConfigMap", "settings", Why.SEVERAL_GANGS),
            Beside("Service", "head", Why.SEVERAL_GANGS),
        ),
    )
    assert wrap([config_map(), job()], apart) == wrap([config_map(), job()])


def test_appwrappers_stay_as_they_are_and_all_else_is_one_gang() -> None:
    ours, theirs = appwrapper(), appwrapper("mcads", "mcad.ibm.com/v1beta1")
    assert wrap([job(), ours, config_map(), theirs, TORCH]) == Wrapping(
        (
            Wrapped(made("train", job(), config_map(), TORCH), 1, words(job(), config_map(), TORCH)),
            Wrapped(ours, 2),
            Wrapped(theirs, 4),
        )
    )
    assert wrap([config_map(), ours]) == Wrapping(
        (Wrapped(ours, 2),), (Beside("ConfigMap", "settings", Why.NOT_WRAPPED),)
    )


def test_options_write_the_fields() -> None:
    options = WrapOptions(
        queue="vision", priority=-3, expected_seconds=5400, limit_seconds=7200, min_available=2
    )
    (found,) = wrap([job()], options).appwrappers
    assert found.raw == made(
        "train",
        job(),
        metadata={"labels": {QUEUE_LABEL: "vision"}},
        priority=-3,
        schedulingSpec={"minAvailable": 2, "dispatchDuration": {"expected": 5400, "limit": 7200}},
    )
    parsed = parse_spec(found.raw["spec"], namespace="team-a")
    assert (parsed.priority, parsed.min_available) == (-3, 2)


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        (NO_OPTIONS, {}),
        (WrapOptions(priority=0), {"priority": 0}),
        (WrapOptions(expected_seconds=60), {"schedulingSpec": {"dispatchDuration": {"expected": 60}}}),
        (WrapOptions(min_available=1), {"schedulingSpec": {"minAvailable": 1}}),
    ],
)
def test_options_that_are_left_out_write_nothing(options: WrapOptions, spec: Json) -> None:
    (found,) = wrap([job()], options).appwrappers
    assert found.raw == made("train", job(), **spec)
    assert options.writes_fields == bool(spec)


def test_appwrapper_has_the_name_the_namespace_and_the_labels_of_its_workload() -> None:
    workload = job(
        namespace="team-a",
        labels={"app": "train", KUEUE_QUEUE_LABEL: "local", UID_LABEL: "of-an-attempt"},
        annotations={CLUSTER_SELECTOR: "gpu=a100", APPROVALS: "budget", USER_ANNOTATION: "root", "note": "a"},
    )
    (found,) = wrap([config_map(), workload], WrapOptions(queue="vision")).appwrappers
    assert found.raw["metadata"] == {
        "name": "train",
        "namespace": "team-a",
        "labels": {"app": "train", KUEUE_QUEUE_LABEL: "local", QUEUE_LABEL: "vision"},
        "annotations": {CLUSTER_SELECTOR: "gpu=a100", APPROVALS: "budget"},
    }


@pytest.mark.parametrize(
    ("annotations", "notify", "written"),
    [
        ({}, "", {}),
        ({}, "mail=Ended", {"annotations": {NOTIFY: "mail=Ended"}}),
        ({NOTIFY: "mail=Ended"}, "", {"annotations": {NOTIFY: "mail=Ended"}}),
        ({NOTIFY: "mail=Ended"}, "team-slack=All", {"annotations": {NOTIFY: "team-slack=All"}}),
    ],
    ids=["none", "option", "annotation", "option-in-place-of-the-annotation"],
)
def test_notifications_are_chosen_by_the_workload_or_by_the_option(
    annotations: dict[str, str], notify: str, written: Json
) -> None:
    options = WrapOptions(notify=notify)
    (found,) = wrap([job(annotations=annotations)], options).appwrappers
    assert found.raw["metadata"] == {"name": "train", **written}
    assert options.writes_fields is bool(notify)


def test_name_that_the_api_server_makes_is_left_to_it() -> None:
    generated = job()
    generated["metadata"] = {"generateName": "run-"}
    (found,) = wrap([generated]).appwrappers
    assert (found.raw["metadata"], found.wraps) == ({"generateName": "run-"}, ("Job/run-*",))


def test_object_that_was_read_from_a_cluster_can_be_wrapped() -> None:
    read = job(
        uid="u",
        resourceVersion="7",
        generation=1,
        creationTimestamp="2026-11-20T08:58:06Z",
        managedFields=[],
        ownerReferences=[],
        labels=None,
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "a"},
    )
    (found,) = wrap([{**read, "status": {"active": 1}}]).appwrappers
    assert found.raw == made("train", job(annotations={"note": "a"}))


def test_demand_of_the_gang_is_that_of_its_workloads() -> None:
    (found,) = wrap([config_map(), RAY_JOB, SERVICE, job()]).appwrappers
    alone = breakdown_of(RAY_JOB).demand + Resources({"cpu": 1000, "memory": GIB})
    assert breakdown_of(found.raw).demand == alone


def test_declared_kind_is_wrapped_where_its_declaration_is_known() -> None:
    declared = Kinds(
        (KindDeclaration("example.com", "Simulation", (PodSetDeclaration("spec.worker", "spec.workers"),)),)
    )
    simulation = obj("example.com/v1", "Simulation", "s", {"workers": 2, "worker": template(WORKER)})
    assert wrap([simulation], kinds=declared).appwrappers == (
        Wrapped(made("s", simulation), 1, ("Simulation/s",)),
    )


def with_spec(changed: Json, **spec: object) -> Json:
    return {**changed, "spec": {**changed["spec"], **spec}}


@pytest.mark.parametrize(
    ("objects", "options", "message"),
    [
        pytest.param(
            [job(), obj("example.com/v1", "Simulation")],
            NO_OPTIONS,
            'object 2 (Simulation): kind: no template says what the pods ask for of a "Simulation". Submit the file '
            "without it, or wrap it",
            id="unknown-kind",
        ),
        pytest.param(
            [obj("trainer.kubeflow.org/v1alpha1", "TrainJob", spec={})],
            NO_OPTIONS,
            'object 1 (TrainJob): kind: no template says what the pods ask for of a "TrainJob": they are described by',
            id="kind-without-templates",
        ),
        pytest.param(
            [obj("batch/v1", "CronJob", spec={"jobTemplate": {"spec": job()["spec"]}})],
            NO_OPTIONS,
            "object 1 (CronJob): kind: CronJob has pods again and again: it makes them again and again",
            id="kind-with-a-schedule",
        ),
        pytest.param(
            [job(namespace="a"), config_map(), TORCH | {"metadata": {"name": "t", "namespace": "b"}}],
            NO_OPTIONS,
            "object 3 (PyTorchJob): metadata.namespace: is b, and object 1 is in a: a gang has one namespace",
            id="two-namespaces",
        ),
        pytest.param(
            [with_spec(job(), parallelism="two")],
            NO_OPTIONS,
            "object 1 (Job): spec.parallelism: must be a whole number. Correct the template.",
            id="malformed-template",
        ),
        pytest.param(
            [job(), {**config_map(), "metadata": {}}],
            NO_OPTIONS,
            "object 2 (ConfigMap): metadata: the ConfigMap has neither name nor generateName",
            id="object-without-a-name",
        ),
        pytest.param(
            [job(), {"metadata": {"name": "x"}}],
            NO_OPTIONS,
            "object 2 (without a kind): apiVersion: is not an API version: null",
            id="no-object-of-kubernetes",
        ),
        pytest.param(
            [appwrapper(api_version="workload.codeflare.dev/v1")],
            NO_OPTIONS,
            'object 1 (AppWrapper): apiVersion: has no AppWrappers: "workload.codeflare.dev/v1"',
            id="version-that-is-not-served",
        ),
        pytest.param(
            [obj("workload.codeflare.dev/v1beta1", "Appwraper")],
            NO_OPTIONS,
            'object 1 (Appwraper): kind: is not AppWrapper, but "Appwraper". Did you mean AppWrapper?',
            id="misspelt-kind",
        ),
        pytest.param(
            [job(), appwrapper()],
            WrapOptions(queue="vision"),
            "object 2 (AppWrapper): spec: is submitted as it is: no option changes an AppWrapper of a file",
            id="option-that-an-appwrapper-would-not-get",
        ),
    ],
)
def test_object_that_cannot_be_wrapped_is_named_with_its_place(
    objects: list[Json], options: WrapOptions, message: str
) -> None:
    with pytest.raises(WrapError) as caught:
        wrap(objects, options)
    assert str(caught.value).startswith(message)


def test_gangs_of_several_namespaces_are_apart() -> None:
    objects = [job(namespace="a"), TORCH | {"metadata": {"name": "torch", "namespace": "b"}}]
    found = wrap(objects, WrapOptions(each_workload=True)).appwrappers
    assert [each.raw["metadata"] for each in found] == [
        {"name": "train", "namespace": "a"},
        {"name": "torch", "namespace": "b"},
    ]


def test_wrapping_changes_no_object_of_the_list() -> None:
    read = {**job(labels={"a": "b"}, uid="u"), "status": {}}
    before = {**read, "metadata": dict(read["metadata"])}
    wrap([read], WrapOptions(queue="q"))
    assert read == before


def test_raycluster_is_wrapped_as_it_is() -> None:
    raw = ray_cluster(HEAD, group(WORKER, replicas=2))
    (found,) = wrap([raw]).appwrappers
    assert found.raw["spec"]["resources"]["GenericItems"] == [{"generictemplate": raw}]
