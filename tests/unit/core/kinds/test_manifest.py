"""What is really created for a wrapped object, and whose an object is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dispatcher.api.appwrapper import TemplatePodSet, WrappedObject
from dispatcher.api.syntax import is_qualified_name
from dispatcher.core.kinds.drift import differences
from dispatcher.core.kinds.manifest import (
    MOST_HINTED_NODES,
    Anchor,
    NodeHint,
    ObjectOwnership,
    Owner,
    adoption,
    anchor_name,
    anchor_of,
    appwrapper_of,
    build,
    owned_by,
    ownership_of,
    reference,
)
from dispatcher.core.model.records.record import ObjectRef
from tests.builders import make_metadata, make_owner, make_template, make_wrapped

Json = dict[str, Any]

MARKS = {
    "dispatcher.codeflare.dev/appwrapper-uid": "uid-of-aw",
    "dispatcher.codeflare.dev/attempt": "1",
    "workload.codeflare.dev/appwrapper": "aw",
    "appwrapper.mcad.ibm.com": "aw",
}
"""On every wrapped object and its pods."""

OF_X = {**MARKS, "resourceName": "x"}
"""On an object of the name x."""

PODS_OF_X = {**OF_X, "dispatcher.codeflare.dev/item": "0"}
"""On the pods of an object of the name x, the first of its AppWrapper."""

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
            "labels": {
                "app": "training",
                **MARKS,
                "resourceName": "worker",
                "dispatcher.codeflare.dev/item": "2",
            },
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
        found["metadata"]["labels"] = {**(found["metadata"].get("labels") or {}), **PODS_OF_X}

    built = build(make_wrapped(whole), make_owner())

    assert {key: built[key] for key in built if key != "metadata"} == {
        key: expected[key] for key in expected if key != "metadata"
    }
    assert built["metadata"]["labels"] == OF_X


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


def test_labels_of_users_stay_but_cannot_forge_labels_of_the_dispatcher() -> None:
    theirs = {
        "app": "web",
        "appwrapper.mcad.ibm.com": "chosen-by-the-user",
        "workload.codeflare.dev/appwrapper": "chosen-by-the-user",
        "resourceName": "chosen-by-the-user",
    }
    forged = {
        "dispatcher.codeflare.dev/appwrapper-uid": "of-another",
        "dispatcher.codeflare.dev/attempt": "7",
        "dispatcher.codeflare.dev/item": "7",
    }
    pod = build(make_wrapped(make_template(name="x", labels=theirs | forged)), make_owner())
    job = {**make_template("Job", name="x"), "spec": {"template": pod_template(**theirs, **forged)}}
    built = build(make_wrapped(job), make_owner())["spec"]["template"]
    assert pod["metadata"]["labels"] == built["metadata"]["labels"] == {**PODS_OF_X, **theirs}


def test_annotations_of_users_stay_but_cannot_forge_annotations_of_the_dispatcher() -> None:
    forged = {"note": "mine", "dispatcher.codeflare.dev/hub": "of-another"}
    built = build(make_wrapped(make_template(name="x", annotations=forged)), make_owner())
    assert built["metadata"]["annotations"] == {
        "note": "mine",
        "dispatcher.codeflare.dev/hub": "the-hub",
        "dispatcher.codeflare.dev/item": "0",
    }


NAMES = [
    pytest.param("aw", "aw", id="short"),
    pytest.param("a" * 63, "a" * 63, id="longest-that-fits"),
    pytest.param("a" * 64, "a" * 52 + "-ffe054fe7a", id="one-too-long"),
    pytest.param("a" * 253, "a" * 52 + "-32859a3ab6", id="longest-there-is"),
    pytest.param("a" * 51 + "." + "b" * 20, "a" * 51 + ".-a8c1068876", id="cut-after-a-dot"),
    pytest.param("a" * 51 + "-" + "b" * 20, "a" * 51 + "--c6901826cb", id="cut-after-a-dash"),
    pytest.param("a" * 50 + "--" + "b" * 20, "a" * 50 + "---542a416340", id="cut-after-dashes"),
]


@pytest.mark.parametrize(("name", "label"), NAMES)
def test_name_too_long_for_a_label_is_cut_and_ends_in_a_hash(name: str, label: str) -> None:
    labels = make_owner(name).labels()
    assert {labels["workload.codeflare.dev/appwrapper"], labels["appwrapper.mcad.ibm.com"]} == {label}
    assert is_qualified_name(label)


def test_labels_of_names_that_begin_alike_differ() -> None:
    labels = {make_owner("a" * 100 + end).labels()["workload.codeflare.dev/appwrapper"] for end in "bcd"}
    assert len(labels) == 3


@pytest.mark.parametrize(
    "name", [pytest.param("a" * 64, id="too-long"), pytest.param("system:admin", id="no-label")]
)
def test_objects_name_that_is_no_label_is_left_out_of_the_labels(name: str) -> None:
    role = make_template("Role", "rbac.authorization.k8s.io/v1", name=name)
    built = build(make_wrapped({**role, "spec": {}}), make_owner())
    assert built["metadata"]["labels"] == MARKS


NOT_CREATED: Json = {
    "uid": "1",
    "resourceVersion": "2",
    "generation": 3,
    "creationTimestamp": "2020-01-01T00:00:00Z",
    "deletionTimestamp": "2020-01-01T00:00:00Z",
    "deletionGracePeriodSeconds": 30,
    "finalizers": ["example.com/keep"],
    "managedFields": [],
    "selfLink": "/x",
    "ownerReferences": [{"kind": "Deployment", "uid": "of-another", "controller": True}],
}


def test_fields_of_the_server_are_dropped_and_other_metadata_is_kept() -> None:
    kept: Json = {"name": "x", "annotations": {"a": "b"}}
    template = {
        **make_template(**kept, **NOT_CREATED, generateName="y-"),
        "status": {"phase": "Running"},
    }
    assert build(make_wrapped(template), make_owner()) == build(
        make_wrapped(make_template(**kept)), make_owner()
    )


def test_fields_of_the_server_are_dropped_from_pod_templates_and_kept_elsewhere() -> None:
    def job(**metadata: object) -> Json:
        template = {**pod_template(), "metadata": {"name": "x", "generateName": "y-", **metadata}}
        spec = {"template": template, "claim": {"metadata": {"finalizers": ["a/b"]}}, "status": {"a": "b"}}
        return {**make_template("Job", "batch/v1"), "spec": spec}

    template = job(**NOT_CREATED)
    template["spec"]["template"]["status"] = {"phase": "Running"}
    built = build(make_wrapped(template), make_owner())

    assert built == build(make_wrapped(job()), make_owner())
    assert built["spec"]["template"]["metadata"]["generateName"] == "y-"
    assert built["spec"]["claim"] == {"metadata": {"finalizers": ["a/b"]}}
    assert built["spec"]["status"] == {"a": "b"}
    assert differences(built, built) == {}


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


INFO: Json = {
    "labels": {"app": "of-the-manager", "team": "red", "dispatcher.codeflare.dev/attempt": "7"},
    "annotations": {"note": "of-the-manager", "flavor": "spot"},
    "nodeSelector": {"zone": "of-the-manager", "pool": "spot"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "schedulingGates": [{"name": "topology"}],
}


def informed(template: Json, infos: dict[str, Json]) -> Json:
    """What is built of `template` when there are infos, by path."""
    pod_sets = tuple(TemplatePodSet(path, 1, info) for path, info in infos.items())
    return build(WrappedObject(0, template, pod_sets=pod_sets), make_owner())


def test_pod_set_infos_are_added_and_values_of_the_user_stay() -> None:
    template = make_template(name="x", labels={"app": "mine"}, annotations={"note": "mine"})
    template["spec"] |= {"nodeSelector": {"zone": "mine"}, "tolerations": [{"key": "gpu"}]}

    built = informed(template, {"template": INFO})

    expected = build(make_wrapped(template), make_owner())
    expected["metadata"]["labels"]["team"] = "red"
    expected["metadata"]["annotations"]["flavor"] = "spot"
    expected["spec"] |= {
        "nodeSelector": {"zone": "mine", "pool": "spot"},
        "tolerations": [{"key": "gpu"}, {"key": "spot", "operator": "Exists"}],
        "schedulingGates": [{"name": "topology"}],
    }
    assert built == expected


RAY_CLUSTER = {
    **make_template("RayCluster", "ray.io/v1", name="x"),
    "spec": {
        "headGroupSpec": {"template": pod_template()},
        "workerGroupSpecs": [{"template": pod_template()}, {"template": pod_template()}],
    },
}


def test_each_pod_template_gets_the_values_given_for_its_path() -> None:
    built = informed(
        RAY_CLUSTER,
        {
            "template.spec.headGroupSpec.template": {"nodeSelector": {"pool": "head"}},
            "template.spec.workerGroupSpecs[1].template": {"nodeSelector": {"pool": "large"}},
        },
    )
    groups = [built["spec"]["headGroupSpec"], *built["spec"]["workerGroupSpecs"]]
    assert [group["template"]["spec"] for group in groups] == [
        {**POD_SPEC, "nodeSelector": {"pool": "head"}},
        POD_SPEC,
        {**POD_SPEC, "nodeSelector": {"pool": "large"}},
    ]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "template",
        "spec.headGroupSpec.template",
        "template.spec",
        "template.spec.workerGroupSpecs",
        "template.spec.workerGroupSpecs[2].template",
        "template.spec.workerGroupSpecs[-1].template",
        "template.spec.workerGroupSpecs[x",
    ],
)
def test_pod_set_infos_of_a_path_without_a_pod_template_are_ignored(path: str) -> None:
    assert informed(RAY_CLUSTER, {path: INFO}) == build(make_wrapped(RAY_CLUSTER), make_owner())


@pytest.mark.parametrize(
    ("spec", "info"),
    [
        pytest.param({"nodeSelector": ["x"], "tolerations": {"x": 1}}, INFO, id="in-the-template"),
        pytest.param({}, dict.fromkeys(INFO, 7), id="in-the-info"),
        pytest.param({}, dict.fromkeys(INFO), id="null"),
    ],
)
def test_pod_set_infos_that_cannot_be_added_change_nothing(spec: Json, info: Json) -> None:
    template = make_template(name="x")
    template["spec"] |= spec
    built = informed(template, {"template": info})
    assert {key: built["spec"][key] for key in spec} == spec


# --- whose an object is --------------------------------------------------------------------------------


def found(**metadata: Any) -> Json:  # noqa: ANN401
    return {"metadata": make_metadata("x", **metadata)}


def controlled_by(uid: str, kind: str = "AppWrapper", *, controller: bool = True) -> list[Json]:
    return [
        {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": kind, "uid": uid, "controller": controller}
    ]


def attempt(number: str) -> dict[str, str]:
    return {"dispatcher.codeflare.dev/attempt": number}


OWNERS = [
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw"), labels=attempt("2")),
        ObjectOwnership.THIS_ATTEMPT,
        id="ours",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw")),
        ObjectOwnership.THIS_ATTEMPT,
        id="ours-made-by-mcad",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw"), labels=attempt("1")),
        ObjectOwnership.EARLIER_ATTEMPT,
        id="ours-of-an-earlier-attempt",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw"), labels=attempt("10")),
        ObjectOwnership.LATER_ATTEMPT,
        id="ours-of-a-later-attempt",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw"), labels=attempt("two")),
        ObjectOwnership.EARLIER_ATTEMPT,
        id="ours-of-no-number",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("a-predecessor"), labels=attempt("2")),
        ObjectOwnership.ANOTHER_APPWRAPPER,
        id="of-another-appwrapper",
    ),
    pytest.param(found(), ObjectOwnership.FOREIGN, id="nobodys"),
    pytest.param({"metadata": {}}, ObjectOwnership.FOREIGN, id="bare"),
    pytest.param(
        found(labels={**MARKS, **attempt("2")}), ObjectOwnership.FOREIGN, id="labels-alone-prove-nothing"
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw", controller=False), labels=attempt("2")),
        ObjectOwnership.FOREIGN,
        id="owned-but-not-controlled",
    ),
    pytest.param(
        found(ownerReferences=controlled_by("uid-of-aw", kind="Deployment")),
        ObjectOwnership.FOREIGN,
        id="of-another-kind",
    ),
    pytest.param(
        found(
            ownerReferences=[
                *controlled_by("x", kind="Lease", controller=False),
                *controlled_by("uid-of-aw"),
            ],
            labels=attempt("2"),
        ),
        ObjectOwnership.THIS_ATTEMPT,
        id="the-controller-counts-among-several-owners",
    ),
]


@pytest.mark.parametrize(("raw", "expected"), OWNERS)
def test_object_on_the_hub_has_the_owner_its_marks_name(raw: Json, expected: ObjectOwnership) -> None:
    assert ownership_of(raw, make_owner(attempt=2)) is expected


def test_built_object_belongs_to_this_attempt_and_to_an_earlier_one_for_the_next() -> None:
    built = build(make_wrapped(), make_owner())
    assert ownership_of(built, make_owner()) is ObjectOwnership.THIS_ATTEMPT
    assert ownership_of(built, make_owner(attempt=2)) is ObjectOwnership.EARLIER_ATTEMPT
    assert ownership_of(built, make_owner(uid="a-successor")) is ObjectOwnership.ANOTHER_APPWRAPPER


def test_object_of_ours_without_marks_is_given_them_and_keeps_its_own_labels() -> None:
    made_by_mcad = found(labels={"app": "mine", "appwrapper.mcad.ibm.com": "aw", "resourceName": "other"})
    assert adoption(made_by_mcad, make_wrapped(make_template(name="x"), index=3), make_owner()) == {
        "metadata": {
            "uid": "uid-of-x",
            "labels": {
                "dispatcher.codeflare.dev/appwrapper-uid": "uid-of-aw",
                "dispatcher.codeflare.dev/attempt": "1",
                "workload.codeflare.dev/appwrapper": "aw",
            },
            "annotations": {
                "dispatcher.codeflare.dev/hub": "the-hub",
                "dispatcher.codeflare.dev/item": "3",
            },
        }
    }


def test_object_that_has_our_marks_needs_no_others() -> None:
    assert adoption(build(make_wrapped(), make_owner()), make_wrapped(), make_owner()) is None


# --- in a member cluster -------------------------------------------------------------------------------

ANCHOR = Anchor("appwrapper-uid-of-aw-2", "uid-of-the-anchor")
ANCHORED = make_owner(attempt=2, anchor=ANCHOR)
HUB = "dispatcher.codeflare.dev/hub"


def anchored(name: str, *, controller: bool = True, uid: str = "uid-of-the-anchor") -> list[Json]:
    """The owner references of what a ConfigMap of that name owns."""
    return [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": controller}]


def test_owner_in_a_member_cluster_is_the_anchor() -> None:
    assert ANCHORED.reference() == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "appwrapper-uid-of-aw-2",
        "uid": "uid-of-the-anchor",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_object_in_a_member_cluster_differs_from_one_on_the_hub_by_its_owner_alone() -> None:
    there = build(make_wrapped(), ANCHORED)
    assert there["metadata"].pop("ownerReferences") == [ANCHORED.reference()]
    here = build(make_wrapped(), make_owner(attempt=2))
    del here["metadata"]["ownerReferences"]
    assert there == here


def test_whole_anchor_of_an_attempt() -> None:
    assert anchor_of(make_owner(attempt=2)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "appwrapper-uid-of-aw-2",
            "namespace": "default",
            "labels": {**MARKS, **attempt("2")},
            "annotations": {HUB: "the-hub"},
        },
        "immutable": True,
        "data": {"appwrapper": "default/aw", "attempt": "2"},
    }


def test_anchors_of_attempts_and_of_appwrappers_of_one_name_differ() -> None:
    owners = [("uid-of-aw", 1), ("uid-of-aw", 2), ("a-successor", 1)]
    assert [anchor_name(uid, number) for uid, number in owners] == [
        "appwrapper-uid-of-aw-1",
        "appwrapper-uid-of-aw-2",
        "appwrapper-a-successor-1",
    ]


MEANT = [
    pytest.param(make_owner().reference(), "uid-of-aw", id="the-appwrapper-itself"),
    pytest.param(make_owner(group="mcad.ibm.com").reference(), "uid-of-aw", id="of-the-old-group"),
    pytest.param(make_owner(version="v1beta2").reference(), "uid-of-aw", id="of-another-version"),
    pytest.param(make_owner(group="example.com").reference(), None, id="of-a-foreign-group"),
    pytest.param(ANCHORED.reference(), "uid-of-aw", id="an-anchor"),
    pytest.param(anchored(anchor_name("7c-1", 2**31 - 1))[0], "7c-1", id="anchor-of-the-last-attempt"),
    pytest.param({**ANCHORED.reference(), "kind": "Secret"}, None, id="secret-of-that-name"),
    pytest.param({**ANCHORED.reference(), "apiVersion": "v2"}, None, id="another-core-version"),
    pytest.param(
        {**ANCHORED.reference(), "apiVersion": "example.com/v1"}, None, id="configmap-of-a-foreign-group"
    ),
    pytest.param(anchored("settings")[0], None, id="configmap-of-another-name"),
    pytest.param(anchored("appwrapper-settings")[0], None, id="name-without-a-number"),
    pytest.param(anchored("appwrapper--1")[0], None, id="name-without-a-uid"),
    pytest.param(anchored("appwrapper-x-12345678901")[0], None, id="number-too-long"),
    pytest.param(anchored(anchor_name("x", 2**31))[0], None, id="number-that-no-attempt-has"),
    pytest.param(anchored("my-appwrapper-x-1")[0], None, id="name-that-begins-otherwise"),
    pytest.param(anchored("appwrapper-x-1\n")[0], None, id="name-that-goes-on"),
    pytest.param({}, None, id="bare"),
]


@pytest.mark.parametrize(("owner", "uid"), MEANT)
def test_which_appwrapper_an_owner_reference_means(owner: Json, uid: str | None) -> None:
    assert appwrapper_of(owner) == uid


@pytest.mark.parametrize(
    ("owners", "uid"),
    [
        pytest.param(anchored(ANCHOR.name), "uid-of-aw", id="by-an-anchor"),
        pytest.param(controlled_by("uid-of-aw"), "uid-of-aw", id="by-itself"),
        pytest.param(anchored(ANCHOR.name, controller=False), None, id="an-owner-that-does-not-control"),
        pytest.param(
            [*anchored("appwrapper-x-1", controller=False), *anchored(ANCHOR.name)],
            "uid-of-aw",
            id="the-controller-counts-among-several-owners",
        ),
        pytest.param([], None, id="nobodys"),
        pytest.param(None, None, id="null"),
    ],
)
def test_object_is_owned_by_the_appwrapper_that_controls_it(
    owners: list[Json] | None, uid: str | None
) -> None:
    assert owned_by({"ownerReferences": owners}) == uid


def in_member(owners: list[Json], hub: str | None = "the-hub", number: str = "2") -> Json:
    """An object as a member cluster has it."""
    annotations = {HUB: hub} if hub else {"note": "mine"}
    return found(ownerReferences=owners, labels=attempt(number), annotations=annotations)


IN_MEMBER = [
    pytest.param(in_member(anchored(ANCHOR.name)), ObjectOwnership.THIS_ATTEMPT, id="ours"),
    pytest.param(
        in_member(anchored("appwrapper-uid-of-aw-1"), number="1"),
        ObjectOwnership.EARLIER_ATTEMPT,
        id="ours-of-an-earlier-attempt",
    ),
    pytest.param(
        in_member(anchored("appwrapper-uid-of-aw-3"), number="3"),
        ObjectOwnership.LATER_ATTEMPT,
        id="ours-of-a-later-attempt",
    ),
    pytest.param(
        in_member(anchored(ANCHOR.name, uid="of-one-that-went")),
        ObjectOwnership.EARLIER_ATTEMPT,
        id="ours-under-an-anchor-that-is-gone",
    ),
    pytest.param(
        in_member(anchored("appwrapper-of-another-2")),
        ObjectOwnership.ANOTHER_APPWRAPPER,
        id="of-another-appwrapper",
    ),
    pytest.param(
        in_member(anchored(ANCHOR.name), "another-hub"),
        ObjectOwnership.THIS_ATTEMPT,
        id="ours-before-the-database-was-lost",
    ),
    pytest.param(in_member(anchored(ANCHOR.name), hub=None), ObjectOwnership.THIS_ATTEMPT, id="of-no-hub"),
    pytest.param(
        in_member(anchored("settings")), ObjectOwnership.FOREIGN, id="of-a-configmap-that-is-no-anchor"
    ),
    pytest.param(
        in_member(anchored(ANCHOR.name, controller=False)),
        ObjectOwnership.FOREIGN,
        id="owned-but-not-controlled",
    ),
    pytest.param(in_member([]), ObjectOwnership.FOREIGN, id="marks-alone-prove-nothing"),
]


@pytest.mark.parametrize(("raw", "expected"), IN_MEMBER)
def test_object_in_a_member_cluster_has_the_owner_its_marks_name(
    raw: Json, expected: ObjectOwnership
) -> None:
    assert ownership_of(raw, ANCHORED) is expected


def test_object_built_in_a_member_is_recognised_by_a_hub_that_lost_its_database() -> None:
    built = build(make_wrapped(), ANCHORED)
    third = make_owner(attempt=3, anchor=Anchor("appwrapper-uid-of-aw-3", "uid-of-the-next"))
    bereft = make_owner(attempt=2, anchor=ANCHOR, hub_id="another-hub")
    assert [ownership_of(built, owner) for owner in (ANCHORED, third, bereft)] == [
        ObjectOwnership.THIS_ATTEMPT,
        ObjectOwnership.EARLIER_ATTEMPT,
        ObjectOwnership.THIS_ATTEMPT,
    ]


def preferred(**weights: int) -> list[Json]:
    """Terms for nodes by name, as kube-scheduler takes them."""
    return [
        {
            "weight": weight,
            "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
        }
        for node, weight in weights.items()
    ]


@pytest.mark.parametrize(
    ("template", "path", "at"),
    [
        pytest.param({"kind": "Pod", "spec": POD_SPEC}, "", (), id="pod"),
        pytest.param(
            {"kind": "Job", "spec": {"template": pod_template()}},
            "spec.template",
            ("spec", "template"),
            id="job",
        ),
        pytest.param(
            {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {"template": pod_template()}}}},
            "spec.pytorchReplicaSpecs['Worker'].template",
            ("spec", "pytorchReplicaSpecs", "Worker", "template"),
            id="replica-spec",
        ),
        pytest.param(
            {"kind": "RayCluster", "spec": {"workerGroupSpecs": [{"template": pod_template()}]}},
            "spec.workerGroupSpecs[0].template",
            ("spec", "workerGroupSpecs", 0, "template"),
            id="worker-group",
        ),
    ],
)
def test_pods_prefer_the_nodes_where_they_have_places(
    template: Json, path: str, at: tuple[str | int, ...]
) -> None:
    owner = make_owner(hints=(NodeHint(0, path, ("n1", "n2")), NodeHint(1, path, ("n3",))))
    built: Any = build(make_wrapped({"apiVersion": "v1", "metadata": {"name": "x"}, **template}), owner)
    for key in at:
        built = built[key]
    assert built["spec"]["affinity"] == {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred(n1=100, n2=10)}
    }


def test_preferences_of_the_user_stay_beside_ours() -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {"x": 1}, "nodeAffinity": {key: [own], "y": 2}}
    template = {**make_template(name="x"), "spec": {**POD_SPEC, "affinity": affinity}}
    built = build(make_wrapped(template), make_owner(hints=(NodeHint(0, "", ("n1",)),)))
    assert built["spec"]["affinity"] == {
        "podAffinity": {"x": 1},
        "nodeAffinity": {key: [own, *preferred(n1=100)], "y": 2},
    }


@pytest.mark.parametrize(
    "affinity",
    [
        "all",
        {"nodeAffinity": "all"},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": "x"}},
    ],
)
def test_malformed_affinity_stays_for_the_api_server_to_refuse(affinity: object) -> None:
    template = {**make_template(name="x"), "spec": {**POD_SPEC, "affinity": affinity}}
    built = build(make_wrapped(template), make_owner(hints=(NodeHint(0, "", ("n1",)),)))
    assert built["spec"]["affinity"] == affinity


def test_pods_on_many_nodes_prefer_none() -> None:
    nodes = tuple(f"n{at}" for at in range(MOST_HINTED_NODES + 1))
    built = build(make_wrapped(make_template(name="x")), make_owner(hints=(NodeHint(0, "", nodes),)))
    assert "affinity" not in built["spec"]


def test_nodes_filled_by_the_gang_are_preferred_to_the_node_with_spare_room() -> None:
    nodes = ("full-1", "full-2", "full-3", "spare")
    built = build(make_wrapped(make_template(name="x")), make_owner(hints=(NodeHint(0, "", nodes),)))
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    weights = [each["weight"] for each in built["spec"]["affinity"]["nodeAffinity"][key]]
    assert weights == [100, 80, 60, 10]
