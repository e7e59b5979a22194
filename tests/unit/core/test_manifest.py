"""What is really created for a wrapped object, and whose an object is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.manifest import Owner, Whose, build, reference, whose
from dispatcher.core.record import ObjectRef
from tests.builders import make_metadata, make_owner, make_template, make_wrapped

Json = dict[str, Any]

MARKS = {
    "dispatcher.codeflare.dev/appwrapper-uid": "uid-of-aw",
    "dispatcher.codeflare.dev/attempt": "1",
    "appwrapper.mcad.ibm.com": "aw",
}
POD_SPEC = {"containers": [{"name": "main"}]}


def pod_template(**labels: str) -> Json:
    return {"metadata": {"labels": labels}, "spec": POD_SPEC} if labels else {"spec": POD_SPEC}


def test_whole_object_that_is_created_for_a_pod() -> None:
    template = make_template(name="worker", labels={"app": "training"}, annotations={"note": "mine"})

    assert build(make_wrapped(template, index=2), make_owner()) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "worker",
            "namespace": "default",
            "labels": {"app": "training", **MARKS},
            "annotations": {
                "note": "mine",
                "dispatcher.codeflare.dev/hub": "the-hub",
                "dispatcher.codeflare.dev/item": "2",
            },
            "ownerReferences": [
                {
                    "apiVersion": "workload.codeflare.dev/v1beta1",
                    "kind": "AppWrapper",
                    "name": "aw",
                    "uid": "uid-of-aw",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": template["spec"],
    }


TEMPLATES = [
    pytest.param(
        {"kind": "Deployment", "spec": {"replicas": 2, "template": pod_template(app="web")}},
        ["spec.template"],
        id="deployment",
    ),
    pytest.param({"kind": "Job", "spec": {"template": pod_template()}}, ["spec.template"], id="job"),
    pytest.param(
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod_template(app="night")}}}},
        ["spec.jobTemplate.spec.template"],
        id="cronjob",
    ),
    pytest.param(
        {
            "kind": "RayCluster",
            "spec": {
                "headGroupSpec": {"rayStartParams": {}, "template": pod_template(ray="head")},
                "workerGroupSpecs": [
                    {"replicas": 1, "template": pod_template(ray="small")},
                    {"replicas": 2, "template": pod_template()},
                ],
            },
        },
        [
            "spec.headGroupSpec.template",
            "spec.workerGroupSpecs.0.template",
            "spec.workerGroupSpecs.1.template",
        ],
        id="raycluster",
    ),
    pytest.param(
        {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Master": {"template": pod_template()}}}},
        ["spec.pytorchReplicaSpecs.Master.template"],
        id="pytorchjob",
    ),
    pytest.param({"kind": "PodTemplate", "template": pod_template()}, ["template"], id="podtemplate"),
    pytest.param(
        {"kind": "Job", "spec": {"template": {"metadata": None, "spec": POD_SPEC}}},
        ["spec.template"],
        id="metadata-null",
    ),
    pytest.param(
        {"kind": "Job", "spec": {"template": {"metadata": {"labels": None}, "spec": POD_SPEC}}},
        ["spec.template"],
        id="labels-null",
    ),
    pytest.param({"kind": "ConfigMap", "data": {"a": "b"}}, [], id="configmap"),
    pytest.param(
        {"kind": "StatefulSet", "spec": {"volumeClaimTemplates": [{"metadata": {}, "spec": {"size": 1}}]}},
        [],
        id="claim-templates-are-no-pod-templates",
    ),
]


@pytest.mark.parametrize(("template", "paths"), TEMPLATES)
def test_marks_reach_every_pod_template_and_nothing_else_in_the_object(
    template: Json, paths: list[str]
) -> None:
    whole = {"apiVersion": "example.com/v1", "metadata": {"name": "x"}, **template}
    expected = copy.deepcopy(whole)
    for path in paths:
        found = at_path(expected, path)
        found["metadata"] = {**(found.get("metadata") or {})}
        found["metadata"]["labels"] = {**(found["metadata"].get("labels") or {}), **MARKS}

    built = build(make_wrapped(whole), make_owner())

    assert {key: built[key] for key in built if key != "metadata"} == {
        key: expected[key] for key in expected if key != "metadata"
    }
    assert built["metadata"]["labels"] == MARKS


def at_path(value: Any, path: str) -> Json:  # noqa: ANN401
    for step in path.split("."):
        value = value[int(step)] if step.isdecimal() else value[step]
    found: Json = value
    return found


def test_users_template_is_not_changed() -> None:
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"template": pod_template(app="web")},
    }
    before = copy.deepcopy(template)
    build(make_wrapped(template), make_owner())
    assert template == before


def test_users_labels_are_kept_but_cannot_pass_for_ours() -> None:
    forged = {
        "app": "web",
        "appwrapper.mcad.ibm.com": "chosen-by-the-user",
        "dispatcher.codeflare.dev/appwrapper-uid": "of-another",
        "dispatcher.codeflare.dev/attempt": "7",
    }
    built = build(make_wrapped(make_template(name="x", labels=forged)), make_owner())
    assert built["metadata"]["labels"] == {
        **MARKS,
        "app": "web",
        "appwrapper.mcad.ibm.com": "chosen-by-the-user",
    }


def test_users_annotations_are_kept_but_cannot_pass_for_ours() -> None:
    forged = {"note": "mine", "dispatcher.codeflare.dev/hub": "of-another"}
    built = build(make_wrapped(make_template(name="x", annotations=forged)), make_owner())
    assert built["metadata"]["annotations"] == {
        "note": "mine",
        "dispatcher.codeflare.dev/hub": "the-hub",
        "dispatcher.codeflare.dev/item": "0",
    }


def test_name_too_long_for_a_label_is_left_out_of_the_labels() -> None:
    fits, too_long = make_owner("a" * 63), make_owner("a" * 64)
    assert fits.labels()["appwrapper.mcad.ibm.com"] == "a" * 63
    assert too_long.labels() == {
        "dispatcher.codeflare.dev/appwrapper-uid": too_long.uid,
        "dispatcher.codeflare.dev/attempt": "1",
    }


def test_what_only_the_server_sets_is_dropped_and_the_rest_of_the_metadata_kept() -> None:
    kept: Json = {"name": "x", "finalizers": ["example.com/keep"]}
    dropped: Json = {
        "uid": "1",
        "resourceVersion": "2",
        "generation": 3,
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "deletionTimestamp": "2020-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 30,
        "managedFields": [],
        "selfLink": "/x",
        "generateName": "y-",
        "ownerReferences": [{"kind": "Deployment", "uid": "of-another", "controller": True}],
    }
    template = {**make_template(**kept, **dropped), "status": {"phase": "Running"}}

    built = build(make_wrapped(template), make_owner())

    assert built == build(make_wrapped(make_template(**kept)), make_owner())
    assert built["metadata"]["finalizers"] == ["example.com/keep"]


@pytest.mark.parametrize("metadata", [{"name": "x"}, {"name": "x", "namespace": "default"}])
def test_reference_names_the_object_in_the_namespace_of_its_appwrapper(metadata: dict[str, str]) -> None:
    wrapped = make_wrapped(make_template("RayCluster", "ray.io/v1", **metadata), index=1)
    assert reference(wrapped, make_owner()) == ObjectRef(1, "ray.io/v1", "RayCluster", "default", "x")


def generated(prefix: str, owner: Owner | None = None, index: int = 0) -> str:
    wrapped = WrappedObject(index, make_template(generateName=prefix))
    owner = owner or make_owner()
    built = build(wrapped, owner)
    assert built["metadata"]["name"] == reference(wrapped, owner).name
    assert "generateName" not in built["metadata"]
    return str(built["metadata"]["name"])


def test_generated_name_is_the_same_however_often_it_is_asked_and_in_every_attempt() -> None:
    assert generated("job-") == generated("job-") == generated("job-", make_owner(attempt=2))
    assert generated("job-").startswith("job-")
    assert len(generated("job-")) == len("job-") + 10


def test_generated_names_differ_between_items_and_between_appwrappers_of_one_name() -> None:
    names = {generated("job-"), generated("job-", index=1), generated("job-", make_owner(uid="a-successor"))}
    assert len(names) == 3


def test_generated_name_is_never_longer_than_a_name_may_be() -> None:
    name = generated("a" * 253)
    assert len(name) == 63
    assert name != generated("a" * 253, index=1)


def found(**metadata: Any) -> Json:  # noqa: ANN401
    return {"metadata": make_metadata("x", **metadata)}


def owned_by(uid: str, kind: str = "AppWrapper", *, controller: bool = True) -> list[Json]:
    return [
        {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": kind, "uid": uid, "controller": controller}
    ]


def attempt(number: str) -> dict[str, str]:
    return {"dispatcher.codeflare.dev/attempt": number}


OWNERS = [
    pytest.param(
        found(ownerReferences=owned_by("uid-of-aw"), labels=attempt("2")), Whose.THIS_ATTEMPT, id="ours"
    ),
    pytest.param(found(ownerReferences=owned_by("uid-of-aw")), Whose.THIS_ATTEMPT, id="ours-made-by-mcad"),
    pytest.param(
        found(ownerReferences=owned_by("uid-of-aw"), labels=attempt("1")),
        Whose.EARLIER_ATTEMPT,
        id="ours-of-an-earlier-attempt",
    ),
    pytest.param(
        found(ownerReferences=owned_by("a-predecessor"), labels=attempt("2")),
        Whose.ANOTHER_APPWRAPPER,
        id="of-another-appwrapper",
    ),
    pytest.param(found(), Whose.FOREIGN, id="nobodys"),
    pytest.param({"metadata": {}}, Whose.FOREIGN, id="bare"),
    pytest.param(found(labels={**MARKS, **attempt("2")}), Whose.FOREIGN, id="labels-alone-prove-nothing"),
    pytest.param(
        found(ownerReferences=owned_by("uid-of-aw", controller=False), labels=attempt("2")),
        Whose.FOREIGN,
        id="owned-but-not-controlled",
    ),
    pytest.param(
        found(ownerReferences=owned_by("uid-of-aw", kind="Deployment")), Whose.FOREIGN, id="of-another-kind"
    ),
    pytest.param(
        found(
            ownerReferences=[*owned_by("x", kind="Lease", controller=False), *owned_by("uid-of-aw")],
            labels=attempt("2"),
        ),
        Whose.THIS_ATTEMPT,
        id="the-controller-counts-among-several-owners",
    ),
]


@pytest.mark.parametrize(("raw", "expected"), OWNERS)
def test_whose_an_object_is(raw: Json, expected: Whose) -> None:
    assert whose(raw, make_owner(attempt=2)) is expected


def test_what_is_built_is_recognised_as_this_attempts_and_by_the_next_attempt_as_earlier() -> None:
    built = build(make_wrapped(), make_owner())
    assert whose(built, make_owner()) is Whose.THIS_ATTEMPT
    assert whose(built, make_owner(attempt=2)) is Whose.EARLIER_ATTEMPT
    assert whose(built, make_owner(uid="a-successor")) is Whose.ANOTHER_APPWRAPPER
