"""What the CRDs of AppWrappers take and what the models read is the same: a drift would show as a user's field lost."""

import re
from enum import StrEnum
from typing import Any

import pytest

from dispatcher.api.appwrapper import Growth
from dispatcher.api.conditions import ComponentsCondition, ComponentsPhase
from dispatcher.api.schema import WrittenSpec
from tests.crds import load_crds

CRDS = {crd["spec"]["group"]: crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "AppWrapper"}
VERSIONS = {
    f"{group}/{version['name']}": version
    for group, crd in CRDS.items()
    for version in crd["spec"]["versions"]
}
SCHEMA = VERSIONS["workload.codeflare.dev/v1beta1"]["schema"]["openAPIV3Schema"]["properties"]
MODEL = WrittenSpec.model_json_schema()
QUANTITY = SCHEMA["spec"]["properties"]["resources"]["properties"]["GenericItems"]["items"]["properties"][
    "custompodresources"
]["items"]["properties"]["requests"]["additionalProperties"]

Schema = dict[str, Any]


def schema_fields(schema: Schema, path: str = "spec") -> dict[str, Schema]:
    """List the fields that the CRD spells out, by path; those it leaves free have none below them."""
    found = {path: schema}
    for name, field in schema.get("properties", {}).items():
        if not schema.get("x-kubernetes-embedded-resource"):
            found |= schema_fields(field, f"{path}.{name}")
    if schema.get("type") == "array":
        found |= schema_fields(schema["items"], f"{path}[]")
    return found


def model_fields(schema: Schema, path: str = "spec") -> dict[str, Schema]:
    """List the fields of the models in the same way."""
    schema = resolved(schema)
    found = {path: schema}
    for name, field in schema.get("properties", {}).items():
        found |= model_fields(field, f"{path}.{name}")
    if schema.get("type") == "array":
        found |= model_fields(schema["items"], f"{path}[]")
    return found


def resolved(schema: Schema) -> Schema:
    """Follow a reference, and take null out of an alternative: to both sides null means absent."""
    if "$ref" in schema:
        definition: Schema = MODEL["$defs"][schema["$ref"].rpartition("/")[2]]
        return definition
    for alternative in schema.get("anyOf", []):
        if alternative.get("type") != "null":
            return schema | resolved(alternative)
    return schema


WRITTEN = schema_fields(SCHEMA["spec"])
READ = model_fields(MODEL)
# The API server takes an empty item, as it did for MCAD; it is the controller that says what is missing.
REQUIRED_BY_MODEL_ONLY = {"spec.resources.GenericItems[].generictemplate"}


def required(fields: dict[str, Schema]) -> set[str]:
    return {f"{path}.{name}" for path, field in fields.items() for name in field.get("required", [])}


def bounds(field: Schema) -> tuple[object, object]:
    """Return the least and the greatest value; a format bounds as well, as the API server enforces it."""
    low, high = {"int32": (-(2**31), 2**31 - 1)}.get(field.get("format", ""), (None, None))
    return field.get("minimum", low), field.get("maximum", high)


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


def test_models_read_every_field_of_the_schema_and_no_other() -> None:
    assert set(READ) == set(WRITTEN)


def test_schema_and_models_agree_on_types() -> None:
    assert {path: field["type"] for path, field in READ.items()} == {
        path: field["type"] for path, field in WRITTEN.items()
    }


def test_schema_and_models_agree_on_bounds() -> None:
    assert {path: bounds(field) for path, field in READ.items()} == {
        path: bounds(field) for path, field in WRITTEN.items()
    }


def test_schema_and_models_agree_on_what_is_required() -> None:
    assert required(READ) - REQUIRED_BY_MODEL_ONLY == required(WRITTEN)


def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    defaults = {path: field["default"] for path, field in WRITTEN.items() if "default" in field}

    assert defaults
    assert defaults == {path: READ[path]["default"] for path in defaults}


def test_schema_names_every_way_to_grow() -> None:
    described = WRITTEN["spec.schedulingSpec.requeuing.growthType"]["description"]

    assert set(Growth) <= set(re.findall(r"\w+", described))


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
        for path, field in (WRITTEN | schema_fields(SCHEMA["status"], "status")).items()
        if (field.get("type") == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ]

    assert not unbounded


def test_every_field_is_described() -> None:
    """Otherwise `kubectl explain` has nothing to say of it."""
    fields = WRITTEN | schema_fields(SCHEMA["status"], "status")

    assert [
        path for path, field in fields.items() if not path.endswith("[]") and not field.get("description")
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
