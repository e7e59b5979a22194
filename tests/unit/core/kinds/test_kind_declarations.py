"""Kinds by declaration: the rows they become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.kinds.fields import TemplateError
from dispatcher.core.kinds.kind_declarations import DeclarationError, kinds_of
from dispatcher.core.kinds.object_status import End, read
from dispatcher.core.kinds.podsets import Pods, pods_of
from dispatcher.core.kinds.registry import KnownKind
from dispatcher.core.model.gang import PodSet
from dispatcher.core.model.resources import Resources

DRIVER = {"template": "spec.driver.template", "count": 1}
GROUPS = {"template": "spec.groups.*.template", "count": "spec.groups.*.replicas", "default": 2}


def declaration(*pod_sets: object, **fields: object) -> dict[str, Any]:
    return {"group": "example.com", "kind": "Simulation", "podSets": list(pod_sets), **fields}


def row(*pod_sets: object, **fields: object) -> KnownKind:
    (found,) = kinds_of({"kinds": [declaration(*pod_sets, **fields)]})
    return found


def template(cpu: int = 1) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}


def pods(known: KnownKind, **spec: object) -> Pods:
    assert known.pods is not None
    return pods_of(known.pods, {"spec": spec})


def made(*sets: tuple[int, int]) -> Pods:
    pod_sets = tuple(PodSet(count, Resources({"cpu": 1000 * cpu})) for count, cpu in sets)
    return Pods(pod_sets, sum(count for count, _ in sets))


def test_pods_are_found_at_the_declared_paths() -> None:
    known = row(DRIVER, GROUPS)
    groups = [{"template": template(2), "replicas": 3}, {"template": template(4)}]
    found = pods(known, driver={"template": template()}, groups=groups)
    assert found == made((1, 1), (3, 2), (2, 4))
    assert [each.path for each in found.sets] == [
        "spec.driver.template",
        "spec.groups[0].template",
        "spec.groups[1].template",
    ]


def test_star_goes_through_objects_and_may_be_repeated() -> None:
    known = row({"template": "spec.racks.*.roles.*.template", "count": "spec.racks.*.roles.*.count"})
    racks = [{"roles": {"a": {"template": template(), "count": 2}, "b": {"template": template()}}}]
    assert pods(known, racks=racks) == made((2, 1), (1, 1))


def test_elements_may_be_templates_themselves() -> None:
    assert pods(row({"template": "spec.pods.*", "count": 2}), pods=[template(), template(2)]) == made(
        (2, 1), (2, 2)
    )


def test_group_that_is_missing_is_an_error_unless_it_is_optional() -> None:
    with pytest.raises(TemplateError, match=r"spec.groups: must name at least one sort of pods"):
        pods(row(GROUPS))
    assert pods(row({**GROUPS, "optional": True})) == Pods()
    with pytest.raises(TemplateError, match=r"spec.driver.template.spec.containers: must list"):
        pods(row(DRIVER))


def test_suspended_object_makes_no_pods() -> None:
    known = row(DRIVER, suspend="spec.suspend")
    assert pods(known, driver={"template": template()}, suspend=True) == Pods()
    assert pods(known, driver={"template": template()}) == made((1, 1))


def test_kind_may_make_no_pods() -> None:
    assert pods(row()) == Pods()


def status(*true: str) -> dict[str, Any]:
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
    known = row(DRIVER, succeeded=["Finished", "Done"], failed=["Broken"])
    state = read(known.status, status(*conditions))
    assert (state.end, state.message, known.ends) == (end, message, True)


def test_kind_without_success_does_not_end_by_itself() -> None:
    known = row(DRIVER, failed=["Broken"])
    assert (known.ends, read(known.status, status("Broken")).end) == (False, End.FAILED)
    assert (row(DRIVER).status, row(DRIVER).ends) == (None, False)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ([], "the declaration must be an object"),
        ({"kind": []}, 'the declaration has no field "kind"; there are kinds'),
        ({"kinds": {}}, "kinds: must be a list"),
        ({"kinds": ["x"]}, "kinds[0]: must be an object"),
        ({"kinds": [{}]}, "kinds[0].group: must be an API group such as example.com, not null"),
        (
            {"kinds": [declaration(group="")]},
            'kinds[0].group: must be an API group such as example.com, not ""',
        ),
        ({"kinds": [declaration(kind="a b")]}, 'kinds[0].kind: must be a kind such as Simulation, not "a b"'),
        (
            {"kinds": [declaration(podsets=[])]},
            'kinds[0]: has no field "podsets"; there are failed, group, kind',
        ),
        ({"kinds": [declaration(podSets=None)]}, "kinds[0].podSets: must list the pod templates of the kind"),
        (
            {"kinds": [declaration(group="batch", kind="Job")]},
            "kinds[0]: Job of batch is built in and cannot be declared",
        ),
        (
            {"kinds": [declaration(), declaration()]},
            "kinds[1]: Simulation of example.com is declared twice",
        ),
        ({"kinds": [declaration({"count": 1})]}, "kinds[0].podSets[0].template: must be a path such as"),
        (
            {"kinds": [declaration({"template": "spec.groups[0]", "count": 1})]},
            'kinds[0].podSets[0].template: must be a path such as spec.groups.*.template, not "spec.groups[0]"',
        ),
        (
            {"kinds": [declaration({"template": "*.template", "count": 1})]},
            "kinds[0].podSets[0].template: must be a path",
        ),
        (
            {"kinds": [declaration({"template": "spec.template"})]},
            "kinds[0].podSets[0].count: must be a number of pods, or the path of one",
        ),
        (
            {"kinds": [declaration({"template": "spec.template", "count": -1})]},
            "kinds[0].podSets[0].count: must be between 0 and 2147483647",
        ),
        (
            {"kinds": [declaration({**DRIVER, "default": 1})]},
            "kinds[0].podSets[0].default: is only for a count that is a path",
        ),
        (
            {"kinds": [declaration({**GROUPS, "count": "spec.replicas"})]},
            'kinds[0].podSets[0].count: must begin like the template with "spec.groups.*"',
        ),
        (
            {"kinds": [declaration({**DRIVER, "count": "spec.groups.*.replicas"})]},
            'kinds[0].podSets[0].count: must begin like the template with "no *"',
        ),
        (
            {"kinds": [declaration({**DRIVER, "optional": True})]},
            "kinds[0].podSets[0].optional: needs a template below *",
        ),
        (
            {"kinds": [declaration({**DRIVER, "replicas": 1})]},
            'kinds[0].podSets[0]: has no field "replicas"; there are count, default, optional, template',
        ),
        (
            {"kinds": [declaration(suspend="spec.*.suspend")]},
            "kinds[0].suspend: must be the path of one field",
        ),
        ({"kinds": [declaration(succeeded="Done")]}, "kinds[0].succeeded: must be a list"),
        ({"kinds": [declaration(failed=[""])]}, "kinds[0].failed[0]: must be the type of a condition"),
    ],
)
def test_malformed_declaration_is_refused_by_field(declared: object, problem: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        kinds_of(declared)
    assert str(raised.value).startswith(problem)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["group", "kind", "podSets", "suspend", "succeeded", "failed"])


@given(st.dictionaries(KEYS, JSON), st.dictionaries(st.sampled_from([*DRIVER, "default", "optional"]), JSON))
def test_any_declaration_is_a_row_or_a_refusal(fields: dict[str, Any], pod_set: dict[str, Any]) -> None:
    for declared in (declaration(DRIVER, **fields), declaration({**GROUPS, **pod_set})):
        assert outcome(declared) in {"a row", "a refusal"}


def outcome(declared: dict[str, Any]) -> str:
    try:
        kinds_of({"kinds": [declared]})
    except DeclarationError as error:
        return "a refusal" if str(error).isprintable() else str(error)
    return "a row"
