"""Declarations of kinds: the rows they stand for, what the core makes of objects of such kinds, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject, parse_spec
from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.kinds.breakdown import breakdown_of
from dispatcher.core.kinds.built_in import KnownKind
from dispatcher.core.kinds.completion import CompletionRule, completion_rule
from dispatcher.core.kinds.declaration import (
    MOST_KINDS,
    KindDeclaration,
    PodSetDeclaration,
    read_declarations,
)
from dispatcher.core.kinds.demand import DemandError, charge_of
from dispatcher.core.kinds.fields import TemplateError
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.pods.podsets import Pods, pods_of
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle.policy import policy_of
from dispatcher.core.lifecycle.removal import takes_capacity
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of, make_ref

Json = dict[str, Any]

DRIVER = {"template": "spec.driver.template", "count": 1}
GROUPS = {"template": "spec.groups.*.template", "count": "spec.groups.*.replicas", "default": 2}


def declaration(*pod_sets: object, **fields: object) -> Json:
    return {"group": "example.com", "kind": "Simulation", "podSets": list(pod_sets), **fields}


def kinds(*declared: object) -> Kinds:
    return Kinds(read_declarations(Entry({"kinds": list(declared)}, "")))


def row(*pod_sets: object, **fields: object) -> KnownKind:
    return kinds(declaration(*pod_sets, **fields)).row("example.com", "Simulation")


def template(cpu: int = 1) -> Json:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}


def pods(known: KnownKind, **spec: object) -> Pods:
    assert known.pods is not None
    return pods_of(known.pods, {"spec": spec})


def made(*sets: tuple[int, int]) -> list[tuple[int, Resources]]:
    return [(count, Resources({"cpu": 1000 * cpu})) for count, cpu in sets]


def counted(found: Pods) -> list[tuple[int, Resources]]:
    assert found.members == sum(each.count for each in found.sets)
    return [(each.count, each.requests) for each in found.sets]


def test_document_becomes_values() -> None:
    document = {
        "x-owner": "platform",
        "kinds": [
            declaration(
                DRIVER,
                {**GROUPS, "optional": True},
                suspend="spec.suspend",
                phase="status.phase",
                succeeded=["Done"],
                failed=["Broken"],
            ),
            {"group": "example.com", "kind": "Dataset", "podSets": []},
        ],
    }
    assert read_declarations(Entry(document, "")) == (
        KindDeclaration(
            "example.com",
            "Simulation",
            (
                PodSetDeclaration("spec.driver.template", 1),
                PodSetDeclaration("spec.groups.*.template", "spec.groups.*.replicas", 2, optional=True),
            ),
            suspend="spec.suspend",
            phase="status.phase",
            succeeded=("Done",),
            failed=("Broken",),
        ),
        KindDeclaration("example.com", "Dataset"),
    )


def test_pods_are_found_at_the_declared_paths() -> None:
    groups = [{"template": template(2), "replicas": 3}, {"template": template(4)}]
    found = pods(row(DRIVER, GROUPS), driver={"template": template()}, groups=groups)
    assert counted(found) == made((1, 1), (3, 2), (2, 4))
    assert [each.path for each in found.sets] == [
        "spec.driver.template",
        "spec.groups[0].template",
        "spec.groups[1].template",
    ]


def test_star_goes_through_objects_and_may_be_repeated() -> None:
    known = row({"template": "spec.racks.*.roles.*.template", "count": "spec.racks.*.roles.*.count"})
    racks = [{"roles": {"a": {"template": template(), "count": 2}, "b": {"template": template(3)}}}]
    assert counted(pods(known, racks=racks)) == made((2, 1), (1, 3))


def test_elements_may_be_templates_themselves() -> None:
    known = row({"template": "spec.pods.*", "count": 2})
    assert counted(pods(known, pods=[template(), template(2)])) == made((2, 1), (2, 2))


def test_count_without_star_is_that_of_the_whole_object() -> None:
    known = row({"template": "spec.template", "count": "spec.scale.replicas", "default": 2})
    assert counted(pods(known, template=template(), scale={"replicas": 5})) == made((5, 1))
    assert counted(pods(known, template=template())) == made((2, 1))


WRONG = (
    "is not there, and the declaration of the kind says that it has the number of pods: correct the "
    "declaration, or "
)


@pytest.mark.parametrize(
    ("pod_set", "written", "problem"),
    [
        (
            {"template": "spec.template", "count": "spec.replicaz"},
            {"template": template(), "replicas": 3},
            f'spec.replicaz: {WRONG}give its count a default; did you mean "replicas"?',
        ),
        (
            {"template": "spec.groups.*.template", "count": "spec.groups.*.size"},
            {"groups": [{"template": template()}, {"template": template(2)}]},
            f"spec.groups[0].size: {WRONG}give its count a default",
        ),
    ],
    ids=["misspelled", "in-no-element"],
)
def test_count_that_no_element_has_is_refused_without_a_default(
    pod_set: Json, written: Json, problem: str
) -> None:
    with pytest.raises(TemplateError) as refused:
        pods(row(pod_set), **written)
    assert str(refused.value) == problem
    assert counted(pods(row({**pod_set, "default": 2}), **written))[0][0] == 2


def test_group_that_is_missing_is_an_error_unless_it_is_optional() -> None:
    with pytest.raises(TemplateError, match=r"spec.groups: must name at least one sort of pods"):
        pods(row(GROUPS))
    assert pods(row({**GROUPS, "optional": True})) == Pods()
    with pytest.raises(TemplateError, match=r"spec.driver.template.spec.containers: must list"):
        pods(row(DRIVER))


def test_suspended_object_makes_no_pods() -> None:
    known = row(DRIVER, suspend="spec.suspend")
    assert pods(known, driver={"template": template()}, suspend=True) == Pods()
    assert counted(pods(known, driver={"template": template()})) == made((1, 1))


def test_kind_may_make_no_pods() -> None:
    assert pods(row()) == Pods()
    assert not row().may_make_pods


def status(*true: str) -> Json:
    return {"status": {"conditions": [{"type": each, "status": "True", "message": "why"} for each in true]}}


@pytest.mark.parametrize(
    ("conditions", "end", "message"),
    [
        ([], End.OPEN, ""),
        (["Running"], End.OPEN, ""),
        (["Finished"], End.SUCCEEDED, ""),
        (["Done"], End.SUCCEEDED, ""),
        (["Broken"], End.FAILED, "why"),
        (["Done", "Broken"], End.FAILED, "why"),
        (["Failed"], End.FAILED, "why"),
    ],
)
def test_object_ends_by_the_declared_conditions(conditions: list[str], end: End, message: str) -> None:
    known = kinds(declaration(DRIVER, succeeded=["Finished", "Done"], failed=["Broken"]))
    state = known.state_of("example.com", "Simulation", status(*conditions))
    assert state == ObjectState(end, frozenset(conditions), message)


@pytest.mark.parametrize(
    ("written", "end", "message"),
    [
        ({}, End.OPEN, ""),
        ({"state": {"phase": "Running"}}, End.OPEN, ""),
        ({"state": {"phase": "Done"}}, End.SUCCEEDED, ""),
        ({"state": {"phase": "Error"}}, End.FAILED, "Error"),
        ({"state": {"phase": "Error", "reason": "OOM", "message": "too big"}}, End.FAILED, "OOM: too big"),
        ({"state": "Done"}, End.OPEN, ""),
        ({"state": {"phase": ["Done"]}}, End.OPEN, ""),
        ({"phase": "Done"}, End.OPEN, ""),
        (status("Done")["status"], End.OPEN, ""),
        (status("Failed")["status"], End.FAILED, "why"),
    ],
)
def test_object_ends_by_the_declared_phase(written: Json, end: End, message: str) -> None:
    known = kinds(
        declaration(DRIVER, phase="status.state.phase", succeeded=["Done"], failed=["Broken", "Error"])
    )
    state = known.state_of("example.com", "Simulation", {"status": written})
    assert (state.end, state.message) == (end, message)


def test_kind_without_success_does_not_end_by_itself() -> None:
    known = kinds(declaration(DRIVER, failed=["Broken"]))
    assert not known.row("example.com", "Simulation").ends
    assert known.state_of("example.com", "Simulation", status("Broken")).end is End.FAILED
    assert (row(DRIVER).status, row(DRIVER).ends) == (None, False)


def test_registry_has_the_declared_kinds_beside_the_built_in_ones() -> None:
    known = kinds(declaration(DRIVER))
    assert set(known.derivable) == {*BUILT_IN.derivable, ("example.com", "Simulation")}
    assert known.row("batch", "Job") == BUILT_IN.row("batch", "Job")
    assert known.row("example.org", "Simulation").pods is None
    assert known == kinds(declaration(DRIVER)) != BUILT_IN


# --- what the core makes of an object of a declared kind ---------------------------------------------------

TRAINING: Json = {
    "apiVersion": "example.com/v3",
    "kind": "Training",
    "metadata": {"name": "train"},
    "spec": {"replicas": 4, "template": template(2)},
}
KINDS = kinds(
    {
        "group": "example.com",
        "kind": "Training",
        "podSets": [{"template": "spec.template", "count": "spec.replicas"}],
        "suspend": "spec.suspend",
        "succeeded": ["Trained"],
    },
    {"group": "example.com", "kind": "Dataset", "podSets": []},
)


def spec(*wrapped: Json, **fields: object) -> AppWrapperSpec:
    items = [{"generictemplate": each, **fields} for each in wrapped]
    return parse_spec({"resources": {"GenericItems": items}}, namespace="default")


def test_gang_is_charged_for_the_templates_of_a_declared_kind() -> None:
    gang = gang_of(spec(TRAINING), kinds=KINDS)
    assert (gang.demand, gang.pods) == (Resources({"cpu": 8000}), 4)
    assert gang.pod_sets == (PodSet(4, Resources({"cpu": 2000}), item=0, path="spec.template"),)
    with pytest.raises(DemandError, match="cannot be derived from its template"):
        gang_of(spec(TRAINING))


def test_declared_demand_of_a_declared_kind_is_compared_with_its_templates() -> None:
    asked = spec(TRAINING, custompodresources=[{"replicas": 1, "requests": {"cpu": 3}}])
    charge = charge_of(asked, kinds=KINDS)
    assert charge.gang.demand == Resources({"cpu": 8000})
    assert charge.differences == (
        "spec.resources.GenericItems[0].custompodresources: "
        "cpu: 3 declared, 8 by the template; the larger is charged",
    )


def test_kind_that_is_declared_without_pods_is_charged_nothing_and_holds_nothing() -> None:
    dataset = {"apiVersion": "example.com/v1", "kind": "Dataset", "metadata": {"name": "data"}}
    assert gang_of(spec(dataset), kinds=KINDS).demand == Resources()
    assert completion_rule(WrappedObject(0, dataset), kinds=KINDS) == CompletionRule()
    assert not takes_capacity(make_ref(kind="Dataset", api_version="example.com/v1"), None, KINDS)


@pytest.mark.parametrize("end", list(End))
def test_declared_kind_takes_capacity_until_it_has_ended(end: End) -> None:
    ref = make_ref(kind="Training", api_version="example.com/v3", done=True)
    assert takes_capacity(ref, ObjectState(end), KINDS) is (end is End.OPEN)
    assert not takes_capacity(ref, ObjectState(end))  # of an unknown kind its author decides when it is done


def test_policy_waits_for_pods_and_the_end_of_a_declared_kind() -> None:
    policy = policy_of(spec(TRAINING), FaultTolerance(), kinds=KINDS)
    assert policy.items == (CompletionRule(ends=True, holds=True, pods=4, asks=4, in_order=True),)
    assert policy.expects_pods
    without = policy_of(spec(TRAINING), FaultTolerance())
    assert without.items == (CompletionRule(holds=True),)
    assert not without.expects_pods


@pytest.mark.parametrize(
    ("group", "kind", "is_podless"),
    [
        pytest.param("", "ConfigMap", True, id="built-in"),
        pytest.param("rbac.authorization.k8s.io", "ClusterRole", True, id="that-no-appwrapper-wraps"),
        pytest.param("example.com", "Dataset", True, id="declared-without-pods"),
        pytest.param("example.com", "Training", False, id="declared-with-pods"),
        pytest.param("batch", "Job", False, id="with-pods"),
        pytest.param("apps", "DaemonSet", False, id="whose-pods-cannot-be-derived"),
        pytest.param("example.com", "ConfigMap", False, id="unknown"),
        pytest.param(
            "gateway.networking.k8s.io", "Gateway", False, id="for-which-some-controllers-make-pods"
        ),
    ],
)
def test_kind_makes_no_pods_only_if_that_is_known(group: str, kind: str, is_podless: bool) -> None:
    assert KINDS.makes_no_pods(group, kind) is is_podless


def test_declaration_of_pods_counts_for_a_kind_that_else_makes_none() -> None:
    declared = kinds(declaration(DRIVER, group="scheduling.run.ai", kind="Queue"))
    assert not declared.makes_no_pods("scheduling.run.ai", "Queue")


def test_misspelled_count_is_told_at_the_first_object_and_a_declared_demand_counts_without_it() -> None:
    misspelled = kinds(
        {
            "group": "example.com",
            "kind": "Training",
            "podSets": [{"template": "spec.template", "count": "spec.replica"}],
        }
    )
    with pytest.raises(DemandError, match=r"spec.replica: is not there.*did you mean \"replicas\"\?"):
        gang_of(spec(TRAINING), kinds=misspelled)
    declared = spec(TRAINING, custompodresources=[{"replicas": 4, "requests": {"cpu": 2}}])
    assert gang_of(declared, kinds=misspelled).demand == Resources({"cpu": 8000})


def test_breakdown_shows_a_single_object_of_a_declared_kind() -> None:
    found = breakdown_of(TRAINING, KINDS)
    assert (found.pods, found.demand, found.warnings) == (4, Resources({"cpu": 8000}), ())
    suspended = breakdown_of({**TRAINING, "spec": {**TRAINING["spec"], "suspend": True}}, KINDS)
    assert (suspended.pods, suspended.warnings) == (
        0,
        ("it is suspended: it makes no pods until it is resumed",),
    )


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (None, "document: must be an object, not null"),
        ([], "document: must be an object, not a list"),
        ({"kind": []}, "kind: is unknown here; known are kinds"),
        ({}, "kinds: must be a list of kinds, or [] for none"),
        ({"kinds": {}}, "kinds: must be a list, not an object"),
        ({"kinds": ["x"]}, 'kinds[0]: must be an object, not "x"'),
        ({"kinds": [{}]}, "kinds[0].group: is required"),
        (
            {"kinds": [declaration(group="example.com/v1")]},
            'kinds[0].group: must be an API group without version, such as example.com, not "example.com/v1"',
        ),
        ({"kinds": [declaration(kind="a b")]}, 'kinds[0].kind: must be a kind such as Simulation, not "a b"'),
        (
            {"kinds": [declaration(podsets=[])]},
            "kinds[0].podsets: is unknown here; known are group, kind, podSets, suspend, managedBy, phase, "
            "succeeded, failed",
        ),
        (
            {"kinds": [declaration(podSets=None)]},
            "kinds[0].podSets: must list the pod templates of the kind, or be [] if it makes no pods",
        ),
        (
            {"kinds": [declaration(group="batch", kind="Job")]},
            "kinds[0]: Job of batch is built in, and cannot be declared",
        ),
        (
            {"kinds": [declaration(group="trainer.kubeflow.org", kind="TrainJob")]},
            "kinds[0]: TrainJob of trainer.kubeflow.org is built in, and cannot be declared",
        ),
        (
            {"kinds": [declaration(), declaration()]},
            "kinds[1]: Simulation of example.com is declared twice",
        ),
        (
            {"kinds": [declaration(kind=f"Kind{number}") for number in range(MOST_KINDS + 1)]},
            f"kinds: has {MOST_KINDS + 1} entries; at most {MOST_KINDS} are allowed",
        ),
        ({"kinds": [declaration({"count": 1})]}, "kinds[0].podSets[0].template: is required"),
        (
            {"kinds": [declaration({"template": "spec.groups[0]", "count": 1})]},
            "kinds[0].podSets[0].template: must be a path such as spec.groups.*.template, "
            'not "spec.groups[0]"',
        ),
        (
            {"kinds": [declaration({"template": "*.template", "count": 1})]},
            'kinds[0].podSets[0].template: must be a path such as spec.groups.*.template, not "*.template"',
        ),
        (
            {"kinds": [declaration(DRIVER, DRIVER)]},
            'kinds[0].podSets[1].template: "spec.driver.template" is declared twice',
        ),
        (
            {"kinds": [declaration({"template": "spec.template"})]},
            "kinds[0].podSets[0].count: must be a number of pods, or the path of one",
        ),
        (
            {"kinds": [declaration({"template": "spec.template", "count": 0})]},
            "kinds[0].podSets[0].count: must be a whole number from 1 to 2147483647, not 0",
        ),
        (
            {"kinds": [declaration({**DRIVER, "default": 1})]},
            "kinds[0].podSets[0].default: is only for a count that is a path",
        ),
        (
            {"kinds": [declaration({**GROUPS, "count": "spec.replicas"})]},
            'kinds[0].podSets[0].count: must begin like the template, with "spec.groups.*"',
        ),
        (
            {"kinds": [declaration({**DRIVER, "count": "spec.groups.*.replicas"})]},
            "kinds[0].podSets[0].count: must begin like the template, without *",
        ),
        (
            {"kinds": [declaration({**DRIVER, "optional": True})]},
            "kinds[0].podSets[0].optional: is only for a template below *, of which there may be none",
        ),
        (
            {"kinds": [declaration({**DRIVER, "replicas": 1})]},
            "kinds[0].podSets[0].replicas: is unknown here; known are template, count, default, optional",
        ),
        (
            {"kinds": [declaration(suspend="spec.*.suspend")]},
            "kinds[0].suspend: must be the path of one field, without *",
        ),
        (
            {"kinds": [declaration(phase="phase", succeeded=["Done"])]},
            'kinds[0].phase: must be a path in the status, such as status.phase, not "phase"',
        ),
        (
            {"kinds": [declaration(phase="status.phase")]},
            "kinds[0].phase: needs the values that end an object, in succeeded or failed",
        ),
        ({"kinds": [declaration(succeeded="Done")]}, 'kinds[0].succeeded: must be a list, not "Done"'),
        ({"kinds": [declaration(failed=[""])]}, "kinds[0].failed[0]: must have 1 to 316 characters"),
        (
            {"kinds": [declaration(succeeded=["Ended"], failed=["Ended"])]},
            'kinds[0].failed: "Ended" is also in succeeded',
        ),
    ],
)
def test_malformed_declaration_is_refused_with_its_place(declared: object, problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_declarations(Entry(declared, ""))
    assert str(raised.value) == problem


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("status.phase"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["group", "kind", "podSets", "suspend", "managedBy", "phase", "succeeded", "failed"])


@given(
    st.dictionaries(KEYS, JSON),
    st.dictionaries(st.sampled_from([*DRIVER, "default", "optional"]), JSON),
    JSON,
)
def test_any_declaration_is_a_row_that_reads_anything_or_a_refusal_in_one_line(
    fields: Json, pod_set: Json, written: object
) -> None:
    for declared in (declaration(DRIVER, **fields), declaration({**GROUPS, **pod_set})):
        assert outcome(declared, written) in {"a row", "a refusal"}


def outcome(declared: Json, written: object) -> str:
    try:
        known = kinds(declared)
    except SpecError as error:
        return "a refusal" if str(error).isprintable() else str(error)
    (each,) = known.declared
    assert known.state_of(each.group, each.kind, {"status": written}).message.isprintable()
    wrapped = {
        "apiVersion": f"{each.group}/v1",
        "kind": each.kind,
        "metadata": {"name": "x"},
        "spec": written,
    }
    try:
        gang_of(AppWrapperSpec((WrappedObject(0, wrapped),)), kinds=known)
    except DemandError as error:
        return "a row" if str(error).isprintable() else str(error)
    return "a row"
