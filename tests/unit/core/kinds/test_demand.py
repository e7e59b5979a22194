from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject, parse_spec
from dispatcher.core.kinds.demand import Charge, DemandError, charge_of
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.clusters.nodes import Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import LARGEST_AMOUNT, NOTHING, Resources
from tests.builders import gang_of

CPU = Resources({"cpu": 1000})


def pod_template(cpu: object = 1, **spec: object) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": None, "spec": {"containers": [container], **spec}}


def obj(api_version: str, kind: str, **spec: object) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def deployment(**spec: object) -> dict[str, Any]:
    return obj("apps/v1", "Deployment", **{"template": pod_template(), **spec})


def job(**spec: object) -> dict[str, Any]:
    return obj("batch/v1", "Job", **{"template": pod_template(), **spec})


def appwrapper(
    *templates: Mapping[str, Any],
    declared: tuple[DeclaredPodSet, ...] | None = None,
    min_available: int | None = None,
) -> AppWrapperSpec:
    wrapped = tuple(WrappedObject(index, template, declared) for index, template in enumerate(templates))
    return AppWrapperSpec(wrapped, min_available=min_available)


def pods(
    replicas: int, limits: Mapping[str, int | str] | None = None, **requests: int | str
) -> DeclaredPodSet:
    return DeclaredPodSet(replicas, requests, limits or {})


def refusal(spec: AppWrapperSpec) -> str:
    with pytest.raises(DemandError) as raised:
        gang_of(spec)
    return str(raised.value)


@pytest.mark.parametrize(
    ("template", "count"),
    [
        pytest.param({**obj("v1", "Pod"), **pod_template()}, 1, id="pod"),
        pytest.param(job(), 1, id="job"),
        pytest.param(job(parallelism=3), 3, id="parallel-job"),
        pytest.param(job(parallelism=3, completions=2), 2, id="job-with-fewer-completions-than-parallelism"),
        pytest.param(job(parallelism=3, completions=9), 3, id="job-with-more-completions-than-parallelism"),
        pytest.param(job(completions=9), 1, id="job-that-runs-one-after-the-other"),
        pytest.param(job(parallelism=0), 0, id="paused-job"),
        pytest.param(job(suspend=True, parallelism=3), 0, id="suspended-job"),
        pytest.param(job(suspend=False, parallelism=3), 3, id="job-that-is-not-suspended"),
        pytest.param(deployment(), 1, id="deployment"),
        pytest.param(deployment(replicas=2), 2, id="deployment-with-replicas"),
        pytest.param(deployment(replicas=None), 1, id="null-replicas-are-absent"),
        pytest.param(deployment(replicas=0), 0, id="deployment-scaled-to-nothing"),
        pytest.param(obj("apps/v1", "ReplicaSet", replicas=4, template=pod_template()), 4, id="replica-set"),
        pytest.param(obj("apps/v1", "StatefulSet", template=pod_template()), 1, id="stateful-set"),
        pytest.param(
            obj("apps/v1beta2", "Deployment", replicas=2, template=pod_template()), 2, id="any-version"
        ),
    ],
)
def test_undeclared_demand_is_derived_from_the_template(template: Mapping[str, Any], count: int) -> None:
    shapes = (PodSet(count, CPU),) if count else ()
    assert gang_of(appwrapper(template)) == Gang(CPU * count, count, shapes)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("v1", "Service"),
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("v1", "ServiceAccount"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Endpoints"),
        ("v1", "LimitRange"),
        ("v1", "ResourceQuota"),
        ("apps/v1", "ControllerRevision"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("coordination.k8s.io/v1", "Lease"),
        ("discovery.k8s.io/v1", "EndpointSlice"),
        ("networking.k8s.io/v1", "Ingress"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("route.openshift.io/v1", "Route"),
        ("policy/v1", "PodDisruptionBudget"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
        ("scheduling.sigs.k8s.io/v1alpha1", "PodGroup"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup"),
        ("batch.volcano.sh/v1alpha1", "PodGroup"),
        ("scheduling.k8s.io/v1alpha1", "PodGroup"),
    ],
)
def test_kind_without_pods_asks_for_nothing(api_version: str, kind: str) -> None:
    assert gang_of(appwrapper({"apiVersion": api_version, "kind": kind, "data": {"a": "b"}})) == Gang()


def test_every_kind_that_is_derived_refuses_an_object_without_a_template() -> None:
    for (group, kind), rules in BUILT_IN.derivable.items():
        if rules.rules:
            message = refusal(appwrapper({"apiVersion": f"{group}/v1" if group else "v1", "kind": kind}))
            assert message.startswith("spec.resources.GenericItems[0].generictemplate.spec.")
            assert (": must list the containers of the pod" in message) or (": must name at least" in message)
            assert "custompodresources: [{replicas: 2" in message


def test_gang_is_the_sum_of_all_wrapped_objects() -> None:
    spec = appwrapper(deployment(replicas=2), obj("v1", "Service"), job(parallelism=3))
    assert gang_of(spec) == Gang(CPU * 5, 5, (PodSet(2, CPU), PodSet(3, CPU)))


def test_nothing_wrapped_asks_for_nothing() -> None:
    assert gang_of(appwrapper()) == Gang()


def test_min_available_says_how_many_pods_must_run_but_not_how_much_is_asked_for() -> None:
    gang = gang_of(appwrapper(deployment(replicas=4), min_available=3))
    assert gang == Gang(CPU * 4, 3, (PodSet(4, CPU),))
    assert gang.charged == CPU * 4 + {"pods": 4}


@pytest.mark.parametrize(
    ("declared", "charged"),
    [
        pytest.param((pods(2, cpu=7),), {"cpu": 14000}, id="declared-is-larger"),
        pytest.param((pods(1, cpu=1),), {"cpu": 4000}, id="derived-is-larger"),
        pytest.param((pods(4, cpu=1),), {"cpu": 4000}, id="both-are-equal"),
        pytest.param((pods(1, cpu=1, gpu=3),), {"cpu": 4000, "gpu": 3}, id="each-resource-by-itself"),
        pytest.param((pods(3, cpu=1), pods(2, cpu=1)), {"cpu": 5000}, id="all-that-is-declared-of-an-item"),
        pytest.param((), {"cpu": 4000}, id="nothing-declared"),
    ],
)
def test_larger_of_declared_and_derived_is_charged_and_the_pods_come_from_the_template(
    declared: tuple[DeclaredPodSet, ...], charged: dict[str, int]
) -> None:
    spec = appwrapper(deployment(replicas=4), declared=declared)
    assert gang_of(spec) == Gang(Resources(charged), 4, (PodSet(4, CPU),))


def test_larger_is_found_item_by_item() -> None:
    over, under = (pods(2, cpu=7),), (pods(1, cpu=1),)
    items = (WrappedObject(0, deployment(replicas=4), over), WrappedObject(1, deployment(replicas=4), under))
    assert gang_of(AppWrapperSpec(items)).demand == Resources({"cpu": 14000 + 4000})


def test_trusted_declaration_alone_is_charged_as_mcad_did() -> None:
    for declared, charged in (((pods(1, cpu=1),), 1000), ((pods(2, cpu=7),), 14000)):
        spec = appwrapper(deployment(replicas=4), declared=declared)
        assert gang_of(spec, ChargeRule.TRUSTED) == Gang(Resources({"cpu": charged}), 4, (PodSet(4, CPU),))
    assert gang_of(appwrapper(deployment(replicas=4), declared=()), ChargeRule.TRUSTED) == Gang()
    service = appwrapper(obj("v1", "Service"), declared=(pods(2, cpu=1),))
    assert charge_of(service, ChargeRule.TRUSTED) == Charge(Gang(CPU * 2))


AT = "spec.resources.GenericItems[0].custompodresources"


@pytest.mark.parametrize(
    ("template", "declared", "rule", "warning"),
    [
        pytest.param(
            deployment(replicas=4),
            (pods(2, cpu=7, memory="2Gi"),),
            ChargeRule.LARGER,
            f"{AT}: cpu: 14 declared, 4 by the template, memory: 4Gi declared, 0 by the template; "
            "the larger is charged",
            id="more",
        ),
        pytest.param(
            deployment(replicas=4),
            (),
            ChargeRule.LARGER,
            f"{AT}: cpu: 0 declared, 4 by the template; the larger is charged",
            id="nothing",
        ),
        pytest.param(
            deployment(replicas=4),
            (pods(1, cpu="1500m"),),
            ChargeRule.TRUSTED,
            f"{AT}: cpu: 1500m declared, 4 by the template; what is declared is charged",
            id="trusted",
        ),
        pytest.param(deployment(replicas=4), (pods(4, cpu=1),), ChargeRule.LARGER, "", id="the-same"),
        pytest.param(
            obj("v1", "ConfigMap"),
            (pods(1000, gpu=1),),
            ChargeRule.LARGER,
            f"{AT}: gpu: 1000 declared, 0 by the template; "
            "a ConfigMap makes no pods, so nothing is charged for it",
            id="no-pods",
        ),
        pytest.param(
            obj("v1", "ConfigMap"), (pods(1, cpu=0),), ChargeRule.LARGER, "", id="no-pods-and-no-demand"
        ),
        pytest.param(job(suspend=True), (pods(1, cpu=1),), ChargeRule.LARGER, "", id="suspended"),
        pytest.param(
            obj("example.com/v1", "Simulation"), (pods(2, cpu=1),), ChargeRule.LARGER, "", id="unknown"
        ),
    ],
)
def test_declared_demand_that_differs_from_the_template_gives_a_warning(
    template: Mapping[str, Any], declared: tuple[DeclaredPodSet, ...], rule: ChargeRule, warning: str
) -> None:
    charge = charge_of(appwrapper(template, declared=declared), rule)
    assert charge.warnings == ((warning,) if warning else ())


def test_warning_names_a_few_resources_of_many() -> None:
    many = {f"example.com/r{number}": 1 for number in range(30)}
    [warning] = charge_of(appwrapper(job(), declared=(DeclaredPodSet(1, many, {}),))).warnings
    assert warning.count(" declared, ") == 8
    assert ", and 23 more; the larger is charged" in warning


def test_declared_count_and_shapes_stand_in_for_a_kind_we_cannot_read() -> None:
    spec = appwrapper(obj("example.com/v1", "Simulation"), declared=(pods(2, cpu=1), pods(0, cpu=9)))
    assert gang_of(spec) == Gang(CPU * 2, 2, (PodSet(2, CPU),))


def test_declared_count_and_shapes_stand_in_for_a_template_we_cannot_read() -> None:
    spec = appwrapper(deployment(replicas="many"), declared=(pods(2, cpu=1),))
    assert gang_of(spec) == Gang(CPU * 2, 2, (PodSet(2, CPU),))


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "Service"])
def test_declaration_on_a_kind_without_pods_is_not_charged(kind: str) -> None:
    assert gang_of(appwrapper(obj("v1", kind), declared=(pods(1000, gpu=1),))) == Gang()


def test_declaration_on_a_kind_without_pods_is_checked_all_the_same() -> None:
    assert "'-1' is negative" in refusal(appwrapper(obj("v1", "Secret"), declared=(pods(1, cpu="-1"),)))
    too_much = pods(2, memory=str(2**62))
    assert "more memory in total" in refusal(appwrapper(obj("v1", "Secret"), declared=(too_much,)))


def test_declaration_stands_for_what_makes_no_pods_for_now() -> None:
    for template in (job(suspend=True), deployment(replicas=0), job(parallelism=0)):
        assert gang_of(appwrapper(template, declared=(pods(2, cpu=1),))) == Gang(CPU * 2)


def test_declaring_an_empty_list_asks_for_nothing_where_nothing_can_be_derived() -> None:
    assert gang_of(appwrapper(obj("example.com/v1", "Dashboard"), declared=())) == Gang()


def test_declaring_an_empty_list_does_not_stand_in_for_a_template_we_cannot_read() -> None:
    message = refusal(appwrapper(deployment(replicas="many"), declared=()))
    assert message.startswith("spec.resources.GenericItems[0].generictemplate.spec.replicas: must be a whole")
    assert gang_of(appwrapper(deployment(replicas="many"), declared=()), ChargeRule.TRUSTED) == Gang()


def test_declared_limit_stands_for_a_request_that_is_absent_or_zero() -> None:
    declared = pods(2, {"cpu": 4, "memory": 9, "gpu": 1}, cpu=0, memory="1Ki")
    gang = gang_of(appwrapper(obj("example.com/v1", "Simulation"), declared=(declared,)))
    assert gang.demand == Resources({"cpu": 8000, "memory": 2048, "gpu": 2})


def test_generic_item_replicas_are_ignored() -> None:
    item = {"replicas": 9, "generictemplate": deployment(replicas=2)}
    spec = parse_spec({"resources": {"GenericItems": [item]}}, namespace="default")
    assert gang_of(spec) == Gang(CPU * 2, 2, (PodSet(2, CPU),))


def test_tolerations_of_the_template_belong_to_the_shape() -> None:
    tolerations = [
        {"key": "gpu", "operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoExecute"},
        {},
    ]
    gang = gang_of(appwrapper(deployment(template=pod_template(tolerations=tolerations))))
    assert gang.pod_sets == (
        PodSet(
            1,
            CPU,
            (Toleration("gpu", "Exists"), Toleration("a", "Equal", "b", "NoExecute"), Toleration()),
        ),
    )


def test_undeclared_demand_of_a_kind_we_do_not_know_is_refused_with_what_to_write() -> None:
    assert refusal(appwrapper(obj("v1", "Service"), obj("example.com/v1", "Simulation"))) == (
        "spec.resources.GenericItems[1]: the requests of the pods of a Simulation (example.com) cannot be derived"
        " from its template. Declare it beside the template, such as `custompodresources: [{replicas: 2,"
        " requests: {cpu: 1, memory: 2Gi}}]` (`[]` if it makes no pods)."
    )


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "DaemonSet"),
        ("batch/v1", "CronJob"),
        ("v1", "Deployment"),
        ("example.com/v1", "Service"),
        ("networking.k8s.io/v1", "Pod"),
    ],
)
def test_kind_is_known_only_with_its_group(api_version: str, kind: str) -> None:
    assert "cannot be derived from its template" in refusal(appwrapper(obj(api_version, kind)))


@pytest.mark.parametrize(
    ("api_version", "kind", "why"),
    [
        ("apps/v1", "DaemonSet", "it makes one on every node there is"),
        ("batch/v1", "CronJob", "it makes them again and again, at its own times"),
        ("ray.io/v1", "RayCronJob", "it makes them again and again, at its own times"),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", "its driver makes them as it goes"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", "they are described by its runtime, which is another"),
    ],
)
def test_kind_that_is_known_not_to_tell_its_pods_says_why(api_version: str, kind: str, why: str) -> None:
    message = refusal(appwrapper(obj(api_version, kind)))
    assert f" cannot be derived from its template: {why}" in message


def test_template_we_cannot_read_can_be_corrected_or_declared() -> None:
    assert refusal(appwrapper(deployment(replicas=-1))) == (
        "spec.resources.GenericItems[0].generictemplate.spec.replicas: must be between 0 and 2147483647."
        " Correct the template, or declare what its pods ask for beside it, such as"
        " `custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]`."
    )


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (deployment(replicas="2"), "spec.replicas: must be a whole number"),
        (deployment(replicas=2.0), "spec.replicas: must be a whole number"),
        (deployment(replicas=True), "spec.replicas: must be a whole number"),
        (deployment(replicas=-1), "spec.replicas: must be between 0 and 2147483647"),
        (deployment(replicas=2**62), "spec.replicas: must be between 0 and 2147483647"),
        (job(suspend="yes"), "spec.suspend: must be true or false"),
        (deployment(template="x"), "spec.template: must be an object"),
        (deployment(template={"spec": {"containers": []}}), "spec.template.spec.containers: must list the"),
        (
            deployment(template=pod_template("1 core")),
            "spec.template.spec.containers[0].resources.requests.cpu: '1 core' is not a quantity",
        ),
        (
            deployment(template=pod_template(tolerations=[{"key": 1}])),
            "spec.template.spec.tolerations[0].key: must be a string",
        ),
        (
            deployment(template=pod_template(tolerations={"a\0": 1})),
            "spec.template.spec.tolerations['a\\x00']: must be an object",
        ),
        ({**obj("v1", "Pod"), "spec": []}, "spec: must be an object"),
    ],
)
def test_template_we_cannot_read_is_refused_by_field(template: Mapping[str, Any], problem: str) -> None:
    message = refusal(appwrapper(template))
    assert message.startswith(f"spec.resources.GenericItems[0].generictemplate.{problem}")
    assert message.isprintable()


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (pods(1, cpu="-1"), "[0].requests: cpu: '-1' is negative"),
        (pods(1, {"memory": "1 GB"}), "[0].limits: memory: '1 GB' is not a quantity"),
        (DeclaredPodSet(1, {"gpu\0": 1}, {}), "[0].requests: 'gpu\\x00' is not a resource name"),
    ],
)
def test_declaration_we_cannot_read_is_refused_by_field(declared: DeclaredPodSet, problem: str) -> None:
    message = refusal(appwrapper(deployment(), declared=(declared,)))
    assert message.startswith(f"spec.resources.GenericItems[0].custompodresources{problem}")


def test_largest_total_is_accepted_and_one_more_is_not() -> None:
    half = LARGEST_AMOUNT // 2
    declared = (pods(2, memory=half), pods(1, memory=1))
    assert gang_of(appwrapper(deployment(), declared=declared)).demand["memory"] == LARGEST_AMOUNT
    message = refusal(appwrapper(deployment(), declared=(*declared, pods(1, memory=1))))
    assert message.startswith("spec: asks for more memory in total than can be counted (at most 92233720")


def test_absurd_counts_are_refused_without_being_counted_out() -> None:
    message = refusal(appwrapper(deployment(), declared=(pods(2**62, cpu=1),)))
    assert message.startswith("spec: asks for more cpu in total than can be counted")
    message = refusal(appwrapper(obj("example.com/v1", "X"), declared=(pods(2**62), pods(2**62))))
    assert message.startswith("spec: asks for more pods in total than can be counted")


def test_declared_resource_named_pods_is_a_resource_like_any_other() -> None:
    gang = gang_of(appwrapper(obj("example.com/v1", "X"), declared=(pods(2, pods=3),)))
    assert gang == Gang(Resources({"pods": 6}), 2, (PodSet(2, Resources({"pods": 3})),))


def test_pods_that_request_nothing_still_have_to_run() -> None:
    template = {"spec": {"containers": [{"name": "main"}]}}
    assert gang_of(appwrapper(deployment(replicas=2, template=template))) == Gang(
        NOTHING, 2, (PodSet(2, NOTHING),)
    )
