"""What the pods of a template require of nodes and of each other, and which fields of it are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.core.kinds.fields import TemplateError
from dispatcher.core.kinds.pods.affinity import MOST_CONDITIONS, MOST_TERMS, MOST_VALUES, PodConstraints
from dispatcher.core.kinds.pods.podsets import pod_set_at, pods_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.clusters.nodes import (
    HOSTNAME,
    LabelOperator,
    LabelRequirement,
    NodeRequirements,
    NodeTerm,
)
from dispatcher.core.model.gangs.gang import PodSet

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"


def template(labels: object = None, **spec: object) -> dict[str, Any]:
    metadata = None if labels is None else {"labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}


def job(pod_template: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": namespace}, "spec": {"template": pod_template}}


def pod_set(pod_template: Mapping[str, Any], namespace: str | None = None) -> PodSet:
    (found,) = pods_of(BUILT_IN.derivable["batch", "Job"], job(pod_template, namespace)).sets
    return found


def constraints(pod_template: Mapping[str, Any], namespace: str | None = None) -> PodConstraints:
    found = pod_set(pod_template, namespace)
    return PodConstraints(found.nodes, found.apart, found.together)


def on_nodes(*terms: object) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expressions(*conditions: tuple[object, object, object]) -> dict[str, Any]:
    return {"matchExpressions": [_written(condition) for condition in conditions]}


def names(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [_written(("metadata.name", operator, list(values)))]}


def _written(condition: tuple[object, object, object]) -> dict[str, object]:
    key, operator, values = condition
    return {"key": key, "operator": operator, **({} if values is None else {"values": values})}


def anti(**term: object) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: [term]}}


OWN = {"app": "train", "role": "worker"}


def test_template_without_constraints_may_be_anywhere() -> None:
    assert constraints(template()) == PodConstraints()
    empty: dict[str, Any] = {
        "nodeAffinity": None,
        "podAffinity": {REQUIRED: None},
        "podAntiAffinity": {REQUIRED: []},
    }
    assert constraints(template(nodeSelector={}, affinity=empty)) == PodConstraints()


def test_node_selector_and_required_node_affinity_are_read() -> None:
    affinity = on_nodes(
        expressions(
            ("gpu", "In", ["h100", "a100", "h100"]),
            ("spot", "DoesNotExist", None),
            ("cores", "Gt", ["+063"]),
        ),
        names("NotIn", "n7"),
    )
    found = constraints(template(nodeSelector={"zone": "west", "disk": "ssd"}, affinity=affinity))
    assert found.nodes == NodeRequirements(
        selector=(("disk", "ssd"), ("zone", "west")),
        terms=(
            NodeTerm(names=(LabelRequirement("metadata.name", LabelOperator.NOT_IN, ("n7",)),)),
            NodeTerm(
                labels=(
                    LabelRequirement("cores", LabelOperator.GT, ("63",)),
                    LabelRequirement("gpu", LabelOperator.IN, ("a100", "h100")),
                    LabelRequirement("spot", LabelOperator.DOES_NOT_EXIST),
                )
            ),
        ),
    )


def test_preferred_terms_are_not_read() -> None:
    affinity = {kind: {PREFERRED: 7} for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")}
    assert constraints(template(affinity=affinity)) == PodConstraints()


def test_term_without_conditions_is_kept_because_it_matches_no_node() -> None:
    assert constraints(template(affinity=on_nodes({}))).nodes == NodeRequirements(terms=(NodeTerm(),))


def test_order_and_repetition_make_no_other_gang() -> None:
    first, second = ("a", "In", ["1", "2"]), ("b", "NotIn", ["3", "4"])
    one = on_nodes(expressions(first, second), expressions(first), names("In", "n1"))
    other = on_nodes(
        names("In", "n1"),
        expressions(first),
        expressions(("b", "NotIn", ["4", "3", "3"]), first, first),
        expressions(first),
    )
    selects_all: dict[str, Any] = {"labelSelector": {}}
    spread = [{"topologyKey": "a", **selects_all}, {"topologyKey": "b", **selects_all}]
    both = (
        template(nodeSelector={"x": "1", "y": "2"}, affinity={**one, "podAffinity": {REQUIRED: spread}}),
        template(
            nodeSelector={"y": "2", "x": "1"},
            affinity={**other, "podAffinity": {REQUIRED: [*reversed(spread), spread[0]]}},
        ),
    )
    assert pod_set(both[0]) == pod_set(both[1])
    assert hash(pod_set(both[0])) == hash(pod_set(both[1]))


@pytest.mark.parametrize(
    ("term", "selects"),
    [
        pytest.param({"labelSelector": {"matchLabels": {"app": "train"}}}, True, id="own-label"),
        pytest.param({"labelSelector": {"matchLabels": {"app": "serve"}}}, False, id="other-value"),
        pytest.param({"labelSelector": {"matchLabels": {"team": "a"}}}, False, id="label-they-lack"),
        pytest.param(
            {"labelSelector": {"matchLabels": {"app": "train", "team": "a"}}}, False, id="one-of-two"
        ),
        pytest.param({"labelSelector": {}}, True, id="empty-selector-selects-all"),
        pytest.param({"labelSelector": None}, False, id="no-selector-selects-none"),
        pytest.param({}, False, id="absent-selector-selects-none"),
        pytest.param(
            {"labelSelector": expressions(("role", "In", ["head", "worker"]))}, True, id="expression"
        ),
        pytest.param({"labelSelector": expressions(("role", "NotIn", ["worker"]))}, False, id="not-in"),
        pytest.param({"labelSelector": expressions(("team", "DoesNotExist", []))}, True, id="lacks"),
        pytest.param({"labelSelector": {}, "namespaces": ["mine"]}, True, id="own-namespace"),
        pytest.param({"labelSelector": {}, "namespaces": ["other"]}, False, id="other-namespace"),
        pytest.param({"labelSelector": {}, "namespaces": []}, True, id="no-namespaces-is-own"),
        pytest.param({"labelSelector": {}, "namespaceSelector": {}}, True, id="every-namespace"),
        pytest.param(
            {"labelSelector": {}, "namespaces": ["other"], "namespaceSelector": {}},
            True,
            id="every-namespace-and-another",
        ),
        pytest.param(
            {"labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}},
            False,
            id="namespaces-by-labels-we-cannot-see",
        ),
        pytest.param({"labelSelector": {}, "matchLabelKeys": ["role"]}, True, id="same-value-of-a-label"),
        pytest.param(
            {"labelSelector": {}, "matchLabelKeys": ["pod-template-hash"]}, True, id="same-template"
        ),
        pytest.param(
            {"labelSelector": {}, "matchLabelKeys": ["apps.kubernetes.io/pod-index"]},
            False,
            id="label-that-may-differ-from-pod-to-pod",
        ),
        pytest.param({"labelSelector": {}, "mismatchLabelKeys": ["app"]}, False, id="pods-of-other-values"),
    ],
)
def test_pods_are_apart_or_together_where_a_term_selects_themselves(
    term: Mapping[str, Any], selects: bool
) -> None:
    keys = (HOSTNAME,) if selects else ()
    written = {"topologyKey": HOSTNAME, **term}
    apart = template(OWN, affinity=anti(**written))
    together = template(OWN, affinity={"podAffinity": {REQUIRED: [written]}})
    assert constraints(apart, "mine") == PodConstraints(apart=keys)
    assert constraints(together, "mine") == PodConstraints(together=keys)


def test_named_namespaces_are_others_if_the_object_does_not_say_its_own() -> None:
    affinity = anti(topologyKey=HOSTNAME, labelSelector={}, namespaces=["mine"])
    assert constraints(template(OWN, affinity=affinity)) == PodConstraints()


def test_topologies_are_sorted_and_named_once() -> None:
    terms = [{"topologyKey": key, "labelSelector": {}} for key in (ZONE, HOSTNAME, ZONE)]
    assert constraints(template(affinity={"podAntiAffinity": {REQUIRED: terms}})).apart == (HOSTNAME, ZONE)


def spread_by(key: str, value: str) -> dict[str, Any]:
    selector = {"matchLabels": {key: value}}
    return template(affinity=anti(topologyKey=HOSTNAME, labelSelector=selector))


def ray_cluster(head: Mapping[str, Any], worker: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "headGroupSpec": {"template": head},
        "workerGroupSpecs": [{"groupName": "gpus", "replicas": 2, "template": worker}],
    }


@pytest.mark.parametrize(
    ("kind", "spec", "apart"),
    [
        pytest.param(("batch", "Job"), {"template": spread_by("job-name", "x")}, [True], id="job"),
        pytest.param(("batch", "Job"), {"template": spread_by("job-name", "y")}, [False], id="another-job"),
        pytest.param(
            ("batch", "Job"),
            {"template": spread_by("batch.kubernetes.io/job-name", "x")},
            [True],
            id="job-label",
        ),
        pytest.param(
            ("ray.io", "RayCluster"),
            ray_cluster(spread_by("ray.io/group", "gpus"), spread_by("ray.io/group", "gpus")),
            [False, True],
            id="ray-group",
        ),
        pytest.param(
            ("ray.io", "RayCluster"),
            ray_cluster(spread_by("ray.io/node-type", "head"), spread_by("ray.io/cluster", "x")),
            [True, True],
            id="ray-cluster",
        ),
        pytest.param(
            ("ray.io", "RayJob"),
            {
                "submissionMode": "HTTPMode",
                "rayClusterSpec": ray_cluster(
                    spread_by("ray.io/cluster", "x"), spread_by("ray.io/node-type", "worker")
                ),
            },
            [False, True],
            id="ray-job-whose-cluster-has-another-name",
        ),
        pytest.param(
            ("kubeflow.org", "PyTorchJob"),
            {
                "pytorchReplicaSpecs": {
                    "Master": {"template": spread_by("training.kubeflow.org/job-name", "x")},
                    "Worker": {"template": spread_by("training.kubeflow.org/replica-type", "worker")},
                }
            },
            [True, True],
            id="kubeflow",
        ),
        pytest.param(
            ("kubeflow.org", "MPIJob"),
            {
                "mpiReplicaSpecs": {
                    "Launcher": {"template": spread_by("training.kubeflow.org/job-role", "worker")},
                    "Worker": {"template": spread_by("training.kubeflow.org/job-role", "worker")},
                }
            },
            [False, True],
            id="mpi-operator",
        ),
        pytest.param(
            ("jobset.x-k8s.io", "JobSet"),
            {
                "replicatedJobs": [
                    {
                        "name": "a",
                        "template": {
                            "spec": {"template": spread_by("jobset.sigs.k8s.io/replicatedjob-name", "a")}
                        },
                    },
                    {
                        "name": "b",
                        "template": {"spec": {"template": spread_by("jobset.sigs.k8s.io/jobset-name", "y")}},
                    },
                ]
            },
            [True, False],
            id="job-set",
        ),
    ],
)
def test_labels_that_operators_add_select_the_pods(
    kind: tuple[str, str], spec: Mapping[str, Any], apart: list[bool]
) -> None:
    wrapped = {"kind": kind[1], "metadata": {"name": "x"}, "spec": spec}
    assert [bool(one.apart) for one in pods_of(BUILT_IN.derivable[kind], wrapped).sets] == apart


@pytest.mark.parametrize(
    ("version", "label"),
    [
        pytest.param("v1", "training.kubeflow.org/replica-type", id="training-operator"),
        pytest.param("v2beta1", "training.kubeflow.org/job-role", id="mpi-operator"),
    ],
)
def test_labels_of_an_mpijob_are_those_of_the_operator_of_its_version(version: str, label: str) -> None:
    replicas = {"Worker": {"template": spread_by(label, "worker")}}
    wrapped = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": {"name": "x"},
        "spec": {"mpiReplicaSpecs": replicas},
    }
    (found,) = pods_of(BUILT_IN.derivable["kubeflow.org", "MPIJob"], wrapped).sets
    assert found.apart


def test_label_of_an_operator_goes_before_the_authors() -> None:
    worker = spread_by("ray.io/group", "mine")
    worker["metadata"] = {"labels": {"ray.io/group": "mine"}}
    wrapped = {"kind": "RayCluster", "metadata": {"name": "x"}, "spec": ray_cluster(template(), worker)}
    assert [one.apart for one in pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], wrapped).sets] == [
        (),
        (),
    ]


def test_path_leads_to_the_template_of_each_pod_set() -> None:
    groups = [{"template": template(), "replicas": 2}, {"template": template(), "replicas": 1}]
    cluster = {"spec": {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups}}
    assert [one.path for one in pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], cluster).sets] == [
        "spec.headGroupSpec.template",
        "spec.workerGroupSpecs[0].template",
        "spec.workerGroupSpecs[1].template",
    ]
    specs = {
        "spec": {"tfReplicaSpecs": {"PS": {"template": template()}, "odd key": {"template": template()}}}
    }
    assert [one.path for one in pods_of(BUILT_IN.derivable["kubeflow.org", "TFJob"], specs).sets] == [
        "spec.tfReplicaSpecs.PS.template",
        "spec.tfReplicaSpecs['odd key'].template",
    ]
    assert [one.path for one in pods_of(BUILT_IN.derivable["", "Pod"], template()).sets] == [""]


def test_template_at_a_path_has_its_constraints() -> None:
    constrained = template(
        nodeSelector={"gpu": "a100"}, affinity=anti(topologyKey=HOSTNAME, labelSelector={})
    )
    found = pod_set_at(
        {"spec": {"groups": [{"template": constrained}]}}, "template.spec.groups[0].template", 3
    )
    assert (found.count, found.nodes, found.apart, found.path) == (
        3,
        NodeRequirements((("gpu", "a100"),)),
        (HOSTNAME,),
        "spec.groups[0].template",
    )


NODE_TERMS = f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
POD_TERMS = f"affinity.podAntiAffinity.{REQUIRED}"


@pytest.mark.parametrize(
    ("spec", "path", "problem"),
    [
        pytest.param({"nodeSelector": []}, "nodeSelector", "must be an object", id="selector-list"),
        pytest.param({"nodeSelector": {"gpu": 7}}, "nodeSelector.gpu", "must be a string", id="number"),
        pytest.param(
            {"nodeSelector": {"g p\0u": "x"}}, "nodeSelector", "must be a label's key", id="impossible-key"
        ),
        pytest.param({"nodeSelector": {"gpu": "\0"}}, "nodeSelector.gpu", "must have no control", id="nul"),
        pytest.param(
            {"nodeSelector": {"gpu": "x" * 254}}, "nodeSelector.gpu", "must be at most 253", id="long-value"
        ),
        pytest.param(
            {"nodeSelector": {f"k{index}": "" for index in range(MOST_TERMS + 1)}},
            "nodeSelector",
            f"has {MOST_TERMS + 1} keys, and at most {MOST_TERMS}",
            id="too-many-keys",
        ),
        pytest.param({"affinity": "near"}, "affinity", "must be an object", id="affinity-text"),
        pytest.param({"affinity": on_nodes()}, NODE_TERMS, "must have at least one term", id="no-terms"),
        pytest.param(
            {"affinity": {"nodeAffinity": {REQUIRED: {}}}},
            NODE_TERMS,
            "must have at least one term",
            id="absent-terms",
        ),
        pytest.param(
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": {"a": {}}}}}},
            NODE_TERMS,
            "must be a list",
            id="terms-object",
        ),
        pytest.param({"affinity": on_nodes("a")}, f"{NODE_TERMS}[0]", "must be an object", id="term-text"),
        pytest.param(
            {"affinity": on_nodes(*[{}] * (MOST_TERMS + 1))},
            NODE_TERMS,
            f"has {MOST_TERMS + 1} entries, and at most {MOST_TERMS}",
            id="too-many-terms",
        ),
        pytest.param(
            {"affinity": on_nodes({}, expressions(("gpu", "Near", ["a"])))},
            f"{NODE_TERMS}[1].matchExpressions[0].operator",
            'is none of DoesNotExist, Exists, Gt, In, Lt, NotIn: "Near"',
            id="unknown-operator",
        ),
        pytest.param(
            {"affinity": on_nodes(expressions(("gpu", None, ["a"])))},
            f"{NODE_TERMS}[0].matchExpressions[0].operator",
            "is none of",
            id="no-operator",
        ),
        pytest.param(
            {"affinity": on_nodes(expressions((None, "Exists", None)))},
            f"{NODE_TERMS}[0].matchExpressions[0].key",
            "must be a label's key",
            id="no-key",
        ),
        pytest.param(
            {"affinity": on_nodes(expressions(("gpu", "Exists", ["a"])))},
            f"{NODE_TERMS}[0].matchExpressions[0].values",
            "must be absent for Exists",
            id="exists-with-values",
        ),
        pytest.param(
            {
                "affinity": on_nodes(
                    expressions(*[(f"k{index}", "Exists", None) for index in range(200)]),
                    expressions(*[(f"k{index}", "DoesNotExist", None) for index in range(200)]),
                )
            },
            NODE_TERMS,
            f"has 400 conditions, and at most {MOST_CONDITIONS}",
            id="too-many-conditions",
        ),
        pytest.param(
            {
                "affinity": on_nodes(
                    expressions(
                        *[(f"k{index}", "In", [str(each) for each in range(400)]) for index in range(3)]
                    )
                )
            },
            NODE_TERMS,
            f"has 1200 values, and at most {MOST_VALUES}",
            id="too-many-values",
        ),
        pytest.param(
            {"affinity": on_nodes({"matchFields": [_written(("spec.unschedulable", "In", ["a"]))]})},
            f"{NODE_TERMS}[0].matchFields[0].key",
            "must be metadata.name",
            id="other-field",
        ),
        pytest.param(
            {"affinity": on_nodes(names("Exists"))},
            f"{NODE_TERMS}[0].matchFields[0].operator",
            "is none of In, NotIn",
            id="operator-of-a-field",
        ),
        pytest.param(
            {"affinity": on_nodes(names("In", "a", "b"))},
            f"{NODE_TERMS}[0].matchFields[0].values",
            "must have exactly one name",
            id="two-names",
        ),
        pytest.param(
            {"affinity": {"podAntiAffinity": {REQUIRED: {}}}}, POD_TERMS, "must be a list", id="pods"
        ),
        pytest.param(
            {"affinity": anti(labelSelector={})},
            f"{POD_TERMS}[0].topologyKey",
            "must be a label's key",
            id="no-topology",
        ),
        pytest.param(
            {"affinity": anti(topologyKey="a", labelSelector=expressions(("app", "Gt", ["1"])))},
            f"{POD_TERMS}[0].labelSelector.matchExpressions[0].operator",
            "is none of DoesNotExist, Exists, In, NotIn",
            id="comparison-of-pods",
        ),
        pytest.param(
            {"affinity": anti(topologyKey="a", labelSelector={"matchLabels": ["app"]})},
            f"{POD_TERMS}[0].labelSelector.matchLabels",
            "must be an object",
            id="labels-list",
        ),
        pytest.param(
            {
                "affinity": anti(
                    topologyKey="a", labelSelector={"matchLabels": {f"k{index}": "" for index in range(257)}}
                )
            },
            f"{POD_TERMS}[0].labelSelector",
            f"has 257 conditions, and at most {MOST_CONDITIONS}",
            id="too-many-labels",
        ),
    ],
)
def test_malformed_constraint_is_refused_by_field(spec: Mapping[str, Any], path: str, problem: str) -> None:
    with pytest.raises(TemplateError) as raised:
        pod_set(template(**spec))
    assert raised.value.path == f"spec.template.spec.{path}"
    assert raised.value.problem.startswith(problem)


@pytest.mark.parametrize("operator", ["In", "NotIn"])
@pytest.mark.parametrize("values", [None, []], ids=["absent", "empty"])
def test_in_needs_values(operator: str, values: object) -> None:
    with pytest.raises(TemplateError, match=rf"values: must have a value for {operator}"):
        pod_set(template(affinity=on_nodes(expressions(("gpu", operator, values)))))


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
@pytest.mark.parametrize(
    "values", [[], ["1", "2"], ["a"], ["1.5"], ["1_0"], [" 1"], ["٣"], [""], [str(2**63)]], ids=repr
)
def test_comparison_needs_one_whole_number(operator: str, values: list[str]) -> None:
    with pytest.raises(TemplateError, match=rf"values: must be one whole number in quotes for {operator}"):
        pod_set(template(affinity=on_nodes(expressions(("cores", operator, values)))))


def test_labels_of_a_template_matter_only_to_terms_about_pods() -> None:
    assert constraints(template("none", nodeSelector={"a": "b"})).nodes == NodeRequirements((("a", "b"),))
    with pytest.raises(TemplateError, match=r"spec.template.metadata.labels: must be an object"):
        pod_set(template("none", affinity=anti(topologyKey="a", labelSelector={})))
