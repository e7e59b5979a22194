from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.appwrapper import (
    AppWrapperSpec,
    DeclaredPodSet,
    DispatchDuration,
    Requeuing,
    Scheduling,
    TemplatePodSet,
    WaitGrowth,
    WrappedObject,
    parse_spec,
)
from dispatcher.api.schema import unknown_fields

EXAMPLES = Path(__file__).parents[3] / "examples"
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


def parse(raw_spec: Mapping[str, Any]) -> AppWrapperSpec:
    return parse_spec(raw_spec, namespace="default")


def spec_of(*items: object, **fields: object) -> dict[str, Any]:
    return {"resources": {"GenericItems": list(items)}, **fields}


def item(template: object = None, **fields: object) -> dict[str, Any]:
    return {"generictemplate": POD if template is None else template, **fields}


def pod(**metadata: object) -> dict[str, Any]:
    return {**POD, "metadata": metadata}


def test_blog_example_is_two_pods_of_a_gpu_each_around_one_raycluster() -> None:
    document = yaml.safe_load((EXAMPLES / "aw-raycluster-glue.yaml").read_text())
    template = document["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    per_pod: dict[str, int | str] = {"cpu": 3, "memory": "16G", "nvidia.com/gpu": 1}

    spec = parse(document["spec"])

    assert spec == AppWrapperSpec(
        priority=9,
        wrapped=(WrappedObject(0, template, declared=(DeclaredPodSet(2, per_pod, per_pod),)),),
    )
    ray = spec.wrapped[0]
    assert (ray.api_version, ray.group, ray.kind, ray.name) == (
        "ray.io/v1",
        "ray.io",
        "RayCluster",
        "raycluster-glue",
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("aw-*.yaml")), ids=lambda path: path.stem)
def test_example_is_an_appwrapper_we_understand(path: Path) -> None:
    document = yaml.safe_load(path.read_text())

    spec = parse_spec(document["spec"], namespace="default")

    assert len(spec.wrapped) == 1


def test_second_ray_example_differs_from_the_first_by_name_only() -> None:
    first = (EXAMPLES / "aw-raycluster-glue.yaml").read_text().replace("raycluster-glue", "raycluster-glue-1")
    second = (EXAMPLES / "aw-raycluster-glue-1.yaml").read_text()

    assert yaml.safe_load(first) == yaml.safe_load(second)


def test_absent_declaration_is_not_an_empty_one() -> None:
    spec = parse(spec_of(item(), item(pod(name="b"), custompodresources=[])))

    assert [one.declared for one in spec.wrapped] == [None, ()]


def test_quantities_are_kept_as_written() -> None:
    declared = [{"replicas": 0, "requests": {"cpu": "500m", "memory": 10**9, "example.com/x": "1e3"}}]

    spec = parse(spec_of(item(custompodresources=declared)))

    assert spec.wrapped[0].declared == (
        DeclaredPodSet(0, {"cpu": "500m", "memory": 10**9, "example.com/x": "1e3"}, {}),
    )


def test_both_spellings_give_the_same_objects() -> None:
    in_v1beta1 = parse(spec_of(item()))
    in_v1beta2 = parse({"components": [{"template": POD}], "suspend": True, "managedBy": "someone"})

    assert in_v1beta1.wrapped == in_v1beta2.wrapped
    assert in_v1beta2 == AppWrapperSpec(
        wrapped=(WrappedObject(0, POD),), suspend=True, managed_by="someone", spelling="v1beta2"
    )


def test_pod_sets_of_v1beta2_are_kept_with_their_infos() -> None:
    pod_sets = [{"path": "template.spec.a", "replicas": 3, "annotations": {"a": "b"}}, {"path": "template"}]

    spec = parse({"components": [{"template": POD, "podSets": pod_sets, "podSetInfos": [{"x": 1}]}]})

    expected = (TemplatePodSet("template.spec.a", 3, {"x": 1}), TemplatePodSet("template", 1, {}))
    assert spec.wrapped == (WrappedObject(0, POD, declared=None, pod_sets=expected),)


@pytest.mark.parametrize(
    ("raw", "spelling"),
    [
        pytest.param({"resources": {}}, "v1beta1", id="empty-resources"),
        pytest.param({"resources": {"GenericItems": []}}, "v1beta1", id="no-items"),
        pytest.param({"resources": {"GenericItems": None, "Items": None}}, "v1beta1", id="null-items"),
        pytest.param({"resources": {"Items": []}}, "v1beta1", id="empty-list-of-old"),
        pytest.param({"components": []}, "v1beta2", id="no-components"),
        pytest.param({"resources": {}, "components": []}, "v1beta1", id="both-empty"),
    ],
)
def test_appwrapper_may_wrap_nothing(raw: dict[str, Any], spelling: str) -> None:
    spec = parse(raw)

    assert (spec.wrapped, spec.spelling) == ((), spelling)


def test_empty_list_beside_a_full_one_is_no_second_spelling() -> None:
    assert parse({"resources": {}, "components": [{"template": POD}]}).spelling == "v1beta2"
    assert parse(spec_of(item(), components=[])).spelling == "v1beta1"


def test_path_of_a_wrapped_object_is_where_it_was_written() -> None:
    in_v1beta1 = parse(spec_of(item(), item(pod(name="b"))))
    in_v1beta2 = parse({"components": [{"template": POD}]})

    assert in_v1beta1.path_of(in_v1beta1.wrapped[1]) == "spec.resources.GenericItems[1]"
    assert in_v1beta2.path_of(in_v1beta2.wrapped[0]) == "spec.components[0]"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param("", (), id="none"),
        pytest.param("Complete", ("Complete",), id="one"),
        pytest.param("Complete, Failed ,,", ("Complete", "Failed"), id="spaces-and-commas"),
    ],
)
def test_completion_is_a_list_of_condition_types(written: str, expected: tuple[str, ...]) -> None:
    assert parse(spec_of(item(completionstatus=written))).wrapped[0].completion == expected


def test_scheduling_left_out_has_mcads_defaults() -> None:
    spec = parse({"resources": {}, "schedulingSpec": {}})

    assert spec.min_available is None
    assert spec.scheduling == Scheduling(
        requeuing=Requeuing(
            wait=timedelta(seconds=300),
            growth=WaitGrowth.EXPONENTIAL,
            max_wait=None,
            max_requeuings=None,
            pause=timedelta(0),
            force_deletion_after=timedelta(seconds=600),
        ),
        dispatch_duration=DispatchDuration(expected=None, limit=None),
    )


def test_scheduling_is_kept() -> None:
    requeuing = {
        "timeInSeconds": 60,
        "growthType": "linear",
        "maxTimeInSeconds": 240,
        "maxNumRequeuings": 3,
        "pauseTimeInSeconds": 5,
        "forcefulDeletionAfterSeconds": 30,
    }
    raw = {"minAvailable": 3, "requeuing": requeuing, "dispatchDuration": {"expected": 5, "limit": 10}}

    spec = parse({"resources": {}, "schedulingSpec": raw})

    assert spec.min_available == 3
    assert spec.scheduling == Scheduling(
        Requeuing(
            wait=timedelta(seconds=60),
            growth=WaitGrowth.LINEAR,
            max_wait=timedelta(seconds=240),
            max_requeuings=3,
            pause=timedelta(seconds=5),
            force_deletion_after=timedelta(seconds=30),
            explicit=True,
        ),
        DispatchDuration(timedelta(seconds=5), timedelta(seconds=10)),
    )


def test_min_available_of_zero_is_no_check() -> None:
    assert parse({"resources": {}, "schedulingSpec": {"minAvailable": 0}}).min_available is None


@pytest.mark.parametrize(
    ("scheduling", "expected"),
    [
        pytest.param({}, 600, id="absent"),
        pytest.param({"requeuing": {"forcefulDeletionAfterSeconds": 30}}, 30, id="mcads"),
        pytest.param({"forceDeletionTimeInSeconds": 20}, 20, id="its-successors"),
        pytest.param(
            {"forceDeletionTimeInSeconds": 20, "requeuing": {"forcefulDeletionAfterSeconds": 30}},
            20,
            id="both",
        ),
        pytest.param({"forceDeletionTimeInSeconds": 0}, None, id="never"),
    ],
)
def test_forced_deletion_has_two_spellings(scheduling: dict[str, Any], expected: int | None) -> None:
    spec = parse({"resources": {}, "schedulingSpec": scheduling})

    after = spec.scheduling.requeuing.force_deletion_after
    assert after == (None if expected is None else timedelta(seconds=expected))


def test_unknown_growth_is_no_growth() -> None:
    raw = {"requeuing": {"growthType": "expnential"}}

    assert parse({"resources": {}, "schedulingSpec": raw}).scheduling.requeuing.growth is WaitGrowth.NONE


def test_fields_that_never_had_a_meaning_are_accepted() -> None:
    useless = {"replicas": 7, "minavailable": 1, "allocated": 1, "priority": 1, "priorityslope": 0.5}
    raw = spec_of(item(**useless), service={"spec": {"ports": []}}, selector={"matchLabels": {"a": "b"}})

    assert parse(raw) == parse(spec_of(item()))


def test_null_and_unknown_fields_count_as_absent() -> None:
    raw = spec_of(
        item(completionstatus=None, custompodresources=None, unheard_of=1),
        priority=None,
        schedulingSpec=None,
        components=None,
        more=[1],
    )

    assert parse(raw) == parse(spec_of(item()))


@pytest.mark.parametrize(
    ("metadata", "name", "generate_name"),
    [
        pytest.param({"name": "a", "labels": None, "annotations": None}, "a", None, id="null-labels"),
        pytest.param({"name": "a", "namespace": "default"}, "a", None, id="own-namespace"),
        pytest.param({"name": "a", "namespace": ""}, "a", None, id="empty-namespace"),
        pytest.param({"generateName": "gang-"}, None, "gang-", id="generated"),
        pytest.param({"name": "a", "generateName": "gang-"}, "a", "gang-", id="both"),
        pytest.param({"name": "a.b-2.c"}, "a.b-2.c", None, id="dots"),
    ],
)
def test_metadata_in_its_odder_forms(
    metadata: dict[str, Any], name: str | None, generate_name: str | None
) -> None:
    wrapped = parse(spec_of(item(pod(**metadata)))).wrapped[0]

    assert (wrapped.name, wrapped.generate_name) == (name, generate_name)


def test_role_may_have_a_name_that_other_kinds_may_not() -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "team:Reader"},
    }

    assert parse(spec_of(item(role))).wrapped[0].name == "team:Reader"


def test_one_name_serves_objects_of_several_kinds_and_groups() -> None:
    others = [("v1", "Service"), ("batch/v1", "Job"), ("batch.volcano.sh/v1alpha1", "Job")]
    items = [item({"apiVersion": v, "kind": k, "metadata": {"name": "a"}}) for v, k in others]

    assert len(parse(spec_of(item(), *items)).wrapped) == 4


def test_generated_names_do_not_clash() -> None:
    assert len(parse(spec_of(item(pod(generateName="a-")), item(pod(generateName="a-")))).wrapped) == 2


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (spec_of(item()), []),
        (
            {"resources": {"genericItems": []}},
            ['unknown field "spec.resources.genericItems"; did you mean GenericItems?'],
        ),
        (
            {"components": [{"template": {"any": 1}, "podsets": []}], "prio": 1},
            [
                'unknown field "spec.components[0].podsets"; did you mean podSets?',
                'unknown field "spec.prio"',
            ],
        ),
        (None, []),
    ],
)  # fmt: skip
def test_unknown_fields_of_a_spec_are_listed(spec: object, told: list[str]) -> None:
    assert unknown_fields(spec) == told
