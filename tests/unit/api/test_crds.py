"""The CRDs of AppWrappers and the reader take the same: a drift would show as a user's field lost."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, WaitGrowth, parse_spec
from dispatcher.api.conditions import ComponentsCondition, ComponentsPhase
from dispatcher.api.schema import FIELDS
from tests.crd_fields import asked_of, beyond, fields, required, steps_to, takes, text, within
from tests.crds import load_crds
from tests.outside_objects import replaced

CRDS = {crd["spec"]["group"]: crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "AppWrapper"}
VERSIONS = {
    f"{group}/{version['name']}": version
    for group, crd in CRDS.items()
    for version in crd["spec"]["versions"]
}
SCHEMA = VERSIONS["workload.codeflare.dev/v1beta1"]["schema"]["openAPIV3Schema"]["properties"]
QUANTITY = SCHEMA["spec"]["properties"]["resources"]["properties"]["GenericItems"]["items"]["properties"][
    "custompodresources"
]["items"]["properties"]["requests"]["additionalProperties"]

Schema = dict[str, Any]

WRITTEN = fields(SCHEMA["spec"])
STATUS = fields(SCHEMA["status"], "status")
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
SHARED: Schema = {
    "priority": 1,
    "priorityslope": 0.5,
    "suspend": True,
    "managedBy": "x",
    "service": {"a": "b"},
    "selector": {"a": "b"},
    "schedulingSpec": {
        "minAvailable": 1,
        "nodeSelector": {"a": "b"},
        "forceDeletionTimeInSeconds": 1,
        "requeuing": {
            "timeInSeconds": 1,
            "initialTimeInSeconds": 1,
            "maxTimeInSeconds": 1,
            "growthType": "linear",
            "numRequeuings": 1,
            "maxNumRequeuings": 1,
            "pauseTimeInSeconds": 1,
            "forcefulDeletionAfterSeconds": 1,
        },
        "dispatchDuration": {"expected": 1, "limit": 2, "overrun": True},
    },
}
ITEM = {
    "generictemplate": POD,
    "custompodresources": [{"replicas": 2, "requests": {"cpu": 1}, "limits": {"cpu": 2}}],
    "completionstatus": "Complete",
    "replicas": 1,
    "minavailable": 1,
    "allocated": 1,
    "priority": 1,
    "priorityslope": 0.5,
}
COMPONENT = {
    "template": POD,
    "podSets": [{"path": "template", "replicas": 2, "annotations": {"a": "b"}}],
    "podSetInfos": [{"a": "b"}],
    "annotations": {"a": "b"},
}
OF_ITEMS: Schema = {**SHARED, "resources": {"Items": [], "GenericItems": [ITEM]}}
OF_COMPONENTS: Schema = {**SHARED, "components": [COMPONENT]}
"""Every field of each spelling, with another value than its default."""


def read(spec: Schema) -> AppWrapperSpec:
    return parse_spec(spec, namespace="default")


def document_with(path: str) -> Schema:
    return OF_COMPONENTS if path.startswith("spec.components") else OF_ITEMS


BELOW = sorted(path for path in WRITTEN if not path.startswith("spec.resources.Items[]") and path != "spec")
NAMED = [path for path in BELOW if not path.endswith(("[]", "*"))]
OF_A_TEMPLATE = ("spec.resources.GenericItems[].generictemplate", "spec.components[].template")
# The API server takes an empty item, as it did for MCAD; it is the controller that says what is missing.
REQUIRED_BY_READER_ONLY = {"spec.resources.GenericItems[].generictemplate"}


def test_there_are_two_groups_and_one_of_them_has_two_versions() -> None:
    assert sorted(VERSIONS) == [
        "mcad.ibm.com/v1beta1",
        "workload.codeflare.dev/v1beta1",
        "workload.codeflare.dev/v1beta2",
    ]


@pytest.mark.parametrize("key", ["schema", "additionalPrinterColumns", "subresources"])
def test_every_version_has_the_same(key: str) -> None:
    first, *others = [version[key] for version in VERSIONS.values()]

    assert all(other == first for other in others)


def test_every_version_is_served_and_v1beta1_is_stored() -> None:
    flags = {name: (version["served"], version["storage"]) for name, version in VERSIONS.items()}

    assert flags == {
        "mcad.ibm.com/v1beta1": (True, True),
        "workload.codeflare.dev/v1beta1": (True, True),
        "workload.codeflare.dev/v1beta2": (True, False),
    }


def test_older_group_takes_no_name_that_kubectl_would_resolve_to_it_first() -> None:
    names = CRDS["mcad.ibm.com"]["spec"]["names"]

    assert (names["plural"], names["singular"]) == ("mcadappwrappers", "mcadappwrapper")
    assert not {"shortNames", "categories"} & names.keys()


def test_reader_asks_for_every_field_of_the_schema_and_for_no_other() -> None:
    asked = asked_of(read, OF_ITEMS, WRITTEN) | asked_of(read, OF_COMPONENTS, WRITTEN)
    assert {each for each in asked if not each.startswith(tuple(f"{at}." for at in OF_A_TEMPLATE))} == set(
        NAMED
    )


def test_fields_that_count_as_known_are_those_of_the_schema() -> None:
    def paths(known: Mapping[str, Any], at: str) -> set[str]:
        inner = (paths(below, f"{at}.{name}") for name, below in known.items())
        return {f"{at}.{name}" for name in known}.union(*inner)

    assert paths(FIELDS, "spec") == {path.replace("[]", "") for path in NAMED}


@pytest.mark.parametrize("path", BELOW)
def test_reader_takes_what_the_schema_just_takes(path: str) -> None:
    assert [each for each in within(WRITTEN[path]) if not takes(read, document_with(path), path, each)] == []


@pytest.mark.parametrize("path", BELOW)
def test_reader_refuses_what_the_schema_just_refuses(path: str) -> None:
    """The length of a text is left to the API server: the whole spec is bounded (`api.sizes`)."""
    field = WRITTEN[path]
    values = [each for each in beyond(field) if each != text(field.get("maxLength", 0) + 1)]
    assert [each for each in values if takes(read, document_with(path), path, each)] == []


def test_schema_and_reader_agree_on_what_is_required() -> None:
    either = {"spec.resources", "spec.components"}
    refused = {path for path in set(NAMED) - either if not takes(read, document_with(path), path, None)}
    assert refused - REQUIRED_BY_READER_ONLY == required(SCHEMA["spec"])


def test_defaults_of_the_schema_are_those_of_the_reader() -> None:
    defaults = {path: field["default"] for path, field in WRITTEN.items() if "default" in field}

    assert defaults
    for path, default in defaults.items():
        document, steps = document_with(path), steps_to(path, document_with(path))
        assert read(replaced(document, steps, None)) == read(replaced(document, steps, default)), path


def test_schema_names_every_way_to_grow() -> None:
    described = WRITTEN["spec.schedulingSpec.requeuing.growthType"]["description"]

    assert set(WaitGrowth) <= set(re.findall(r"\w+", described))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        pytest.param(SCHEMA["status"]["properties"]["phase"], ComponentsPhase, id="phases"),
        pytest.param(
            SCHEMA["status"]["properties"]["conditions"]["items"]["properties"]["type"],
            ComponentsCondition,
            id="conditions",
        ),
    ],
)
def test_schema_names_all_that_v1beta2_knows(field: Schema, words: type[StrEnum]) -> None:
    assert set(words) <= set(re.findall(r"\w+", field["description"]))


def test_every_list_and_map_is_bounded() -> None:
    unbounded = [
        path
        for path, field in (WRITTEN | STATUS).items()
        if (field.get("type") == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ]

    assert not unbounded


def test_every_field_is_described() -> None:
    """Otherwise `kubectl explain` has nothing to say of it."""
    fields = WRITTEN | STATUS

    assert [
        path
        for path, field in fields.items()
        if not path.endswith(("[]", "*")) and not field.get("description")
    ] == []


@pytest.mark.parametrize("field", ["resources", "components", "managedBy"])
def test_field_is_immutable_and_says_so(field: str) -> None:
    rules = [
        rule for rule in SCHEMA["spec"]["x-kubernetes-validations"] if rule.get("fieldPath") == f".{field}"
    ]

    assert rules == [
        {
            "rule": f"has(self.{field}) == has(oldSelf.{field}) "
            f"&& (!has(self.{field}) || self.{field} == oldSelf.{field})",
            "fieldPath": f".{field}",
            "reason": "FieldValueForbidden",
            "message": "attempt to change immutable field: delete the AppWrapper and submit it anew",
        }
    ]
    assert "annot be changed." in WRITTEN[f"spec.{field}"]["description"]


@pytest.mark.parametrize("total", ["totalcpu", "totalmemory", "totalgpu"])
def test_totals_hold_more_than_two_gibibytes(total: str) -> None:
    assert SCHEMA["status"]["properties"][total]["format"] == "int64"


@pytest.mark.parametrize(
    "quantity",
    [
        "0",
        "1",
        "+1",
        "0.5",
        ".5",
        "5.",
        "500m",
        "16G",
        "16Gi",
        "1E",
        "1Ei",
        "1e3",
        "1E3",
        "1e-3",
        "100u",
        "7n",
    ],
)
def test_pattern_takes_quantity(quantity: str) -> None:
    assert re.search(QUANTITY["pattern"], quantity)


@pytest.mark.parametrize(
    "quantity",
    ["", "-1", "-0.5Gi", "1 Gi", "1K", "1KI", "1mm", "one", "1e", "1e1000000", "0x10", ".", "1\n", "1Gi "],
)
def test_pattern_refuses(quantity: str) -> None:
    assert not re.search(QUANTITY["pattern"].replace("$", r"\Z"), quantity)
