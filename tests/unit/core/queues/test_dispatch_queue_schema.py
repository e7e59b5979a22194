"""The CRD of DispatchQueues and the reader of declarations agree: fields, enums, bounds and what is required."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.api.clusters.provisioning import read_provisioning
from dispatcher.api.conditions import CONDITION_TYPE, LONGEST_APPROVAL, MOST_APPROVALS, OUR_TYPES
from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.queues.declaration import (
    FIELDS,
    PREEMPTION_FIELDS,
    PROVISIONING_FIELDS,
    QUOTA_FIELDS,
    RETRY_FIELDS,
    WHILE_BORROWING_FIELDS,
    parse_dispatch_queue,
)
from dispatcher.core.queues.queue import (
    MOST_RESOURCES,
    Elastic,
    Order,
    Queue,
    QueueingStrategy,
    Reclaim,
    Sharing,
    StopPolicy,
    WithinQueue,
)
from tests.crds import load_crds

Schema = dict[str, Any]
Json = dict[str, Any]

CRD = next(crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "DispatchQueue")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def fields(schema: Schema, path: str) -> dict[str, Schema]:
    """List the fields by path; `*` stands for the keys of a map."""
    found = {path: schema}
    inner = dict(schema.get("properties", {}))
    if schema.get("additionalProperties"):
        inner["*"] = schema["additionalProperties"]
    for name, field in inner.items():
        found |= fields(field, f"{path}.{name}")
    return found


SPEC = fields(SCHEMA["properties"]["spec"], "spec")
STATUS = fields(SCHEMA["properties"]["status"], "status")
PROVISIONING = "spec.provisioning"
"""Has tests of its own: it is one value, and a part of it alone is refused."""
LEAVES = {
    path: field
    for path, field in SPEC.items()
    if field.get("type") != "object" and not path.startswith(PROVISIONING)
}


def spec_with(path: str, value: object) -> Json:
    """The smallest spec that is otherwise right and has this value at this path."""
    spec: Json = {}
    if path.startswith("spec.preemption.whileBorrowing"):
        spec = {"preemption": {"reclaim": "Any", "whileBorrowing": {}}}
    elif path.startswith("spec.resources.*"):
        spec = {"resources": {"memory": {"nominalQuota": 1}}}
    *parents, last = path.replace("*", "memory").split(".")[1:]
    inner = spec
    for step in parents:
        inner = inner.setdefault(step, {})
    inner[last] = value
    return spec


def parsed(spec: object) -> Queue:
    return parse_dispatch_queue({"metadata": {"name": "q"}, "spec": spec})


def is_taken(path: str, value: object) -> bool:
    """True if the reader takes this value at this path; it may only be refused there."""
    try:
        parsed(spec_with(path, value))
    except SpecError as error:
        place = error.path
    else:
        return True
    assert re.sub(r"\[\d+\]$", "", place) == path.replace("*", "memory")
    return False


def text(length: int) -> str:
    """A text that is a name and a selector alike."""
    return ("a," * length)[: max(length - 1, 0)] + "a" if length else ""


def within(field: Schema) -> Iterator[object]:
    """Values that the schema just takes."""
    if field.get("type") == "array":
        of_one = [
            [text] for text in ("a", "A.b-c_D", "example.com/budget", "a" * field["items"]["maxLength"])
        ]
        yield from ([], *of_one, [f"a{number}" for number in range(field["maxItems"])])
    yield from field.get("enum", [])
    yield from (field[bound] for bound in ("minimum", "maximum") if bound in field)
    if "enum" not in field and field.get("type") == "string":
        yield from (text(field[bound]) for bound in ("minLength", "maxLength") if bound in field)


def beyond(field: Schema) -> Iterator[object]:
    """Values that the schema just refuses."""
    if field.get("type") == "array":
        yield from ([word] for word in ("", "a b", "-a", "a/", "/a", "A/b", "a/b/c", 7, None, *OUR_TYPES))
        yield ["a" * (field["items"]["maxLength"] + 1)]
        yield [f"a{number}" for number in range(field["maxItems"] + 1)]
        yield ["a", "a"]
        yield from ({}, True, "a", 1)
        return
    if "enum" in field:
        yield from ("", "Sometimes", field["enum"][-1].lower(), f"{field['enum'][0]} ")
    if "minimum" in field:
        yield field["minimum"] - 1
    if "maximum" in field:
        yield field["maximum"] + 1
    if "minLength" in field:
        yield text(field["minLength"] - 1)
    if field.get("type") == "string" and "maxLength" in field:
        yield text(field["maxLength"] + 1)
    yield from ([], {}, True)
    yield "1" if field.get("type") == "integer" else 1 if field.get("type") == "string" else "much"


def test_reader_knows_every_field_of_the_schema_and_no_other() -> None:
    known = [f"spec.{name}" for name in FIELDS]
    known += [f"spec.resources.*.{name}" for name in QUOTA_FIELDS]
    known += [f"spec.preemption.{name}" for name in PREEMPTION_FIELDS]
    known += [f"spec.preemption.whileBorrowing.{name}" for name in WHILE_BORROWING_FIELDS]

    known += [f"spec.provisioning.{name}" for name in PROVISIONING_FIELDS]
    known += [f"spec.provisioning.retry.{name}" for name in RETRY_FIELDS]

    assert {"spec", "spec.resources.*", "spec.provisioning.parameters.*", *known} == set(SPEC)


def test_enums_of_the_schema_are_those_of_the_values() -> None:
    assert {path: field["enum"] for path, field in SPEC.items() if "enum" in field} == {
        "spec.sharing": list(Sharing),
        "spec.queueingStrategy": list(QueueingStrategy),
        "spec.order": list(Order),
        "spec.preemption.withinQueue": list(WithinQueue),
        "spec.preemption.reclaim": list(Reclaim),
        "spec.stopPolicy": list(StopPolicy),
        "spec.elastic": list(Elastic),
    }


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_is_bounded_and_changes_the_queue(path: str) -> None:
    values = list(within(LEAVES[path]))
    base = parsed(spec_with(path, None if not path.endswith("nominalQuota") else 1))

    assert any(parsed(spec_with(path, value)) != base for value in values)


@pytest.mark.parametrize("path", LEAVES)
def test_reader_takes_what_the_schema_just_takes(path: str) -> None:
    assert [value for value in within(LEAVES[path]) if not is_taken(path, value)] == []


@pytest.mark.parametrize("path", LEAVES)
def test_reader_refuses_what_the_schema_just_refuses(path: str) -> None:
    assert [value for value in beyond(LEAVES[path]) if is_taken(path, value)] == []


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ([], PROVISIONING),
        ({}, f"{PROVISIONING}.className"),
        ({"className": "A"}, f"{PROVISIONING}.className"),
        ({"className": "a", "retry": {"limit": 101}}, f"{PROVISIONING}.retry.limit"),
    ],
)
def test_provisioning_is_read_as_that_of_member_clusters(written: object, path: str) -> None:
    """All its bounds are tested there."""
    right = {"className": "a", "parameters": {"x-a": "b"}, "retry": {"limit": 100}}
    assert parsed({"provisioning": right}).provisioning == read_provisioning(Entry(right))
    with pytest.raises(SpecError) as caught:
        parsed({"provisioning": written})
    assert caught.value.path == path


def test_schema_of_provisioning_is_that_of_member_clusters() -> None:
    members = next(crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "MemberCluster")
    (version,) = members["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert bounds_of(SPEC[PROVISIONING]) == bounds_of(spec["provisioning"])


def bounds_of(schema: object) -> object:
    """The schema without its texts and defaults: a queue inherits, so it has none."""
    if isinstance(schema, dict):
        return {key: bounds_of(each) for key, each in schema.items() if key not in ("description", "default")}
    return schema


def test_schema_of_approvals_is_that_of_the_annotation() -> None:
    field = SPEC["spec.approvals"]
    (rule,) = field["items"]["x-kubernetes-validations"]

    assert set(re.findall("'(.*?)'", rule["rule"])) == OUR_TYPES
    assert field["items"]["pattern"] == f"^{CONDITION_TYPE}$"
    assert (field["maxItems"], field["items"]["maxLength"]) == (MOST_APPROVALS, LONGEST_APPROVAL)


QUANTITIES = (
    *("0", "2", "+2", "-2", "0.5", ".5", "5.", ".", "", " 1", "1 ", "1\n", "500m", "100n", "7u", "3k", "3K"),
    *(
        "1M",
        "1G",
        "1T",
        "1P",
        "1E",
        "1Ki",
        "1Mi",
        "1Gi",
        "1Ti",
        "1Pi",
        "1Ei",
        "1ki",
        "1i",
        "1e3",
        "1E3",
        "1e-3",
    ),
    *(
        "1e+3",
        "1e",
        "1e3G",
        "0e99",
        "0e100",
        "1e3.5",
        "1.2.3",
        "1,5",
        "0x10",
        "1_000",
        "٣",
        "--1",
        "NaN",
        "007",
    ),
    *("0" * 64, "0" * 65),
)


@pytest.mark.parametrize("path", [f"spec.resources.*.{name}" for name in QUOTA_FIELDS])
def test_schema_and_reader_agree_on_quantities(path: str) -> None:
    assert [each for each in QUANTITIES if is_taken(path, each)] == [
        each for each in QUANTITIES if matches(SPEC[path], each)
    ]


WEIGHTS = (
    *(
        "0",
        "1",
        "1.5",
        "007",
        "0.000000000001",
        "0.0000000000001",
        "9" * 12,
        "9" * 13,
        f"{'9' * 12}.{'9' * 12}",
    ),
    *("-1", "+1", ".5", "5.", "1e3", "1m", "", " 1", "1\n", "1/2", "1,5", "٣", "NaN", "1.2.3"),
)


def test_schema_and_reader_agree_on_weights() -> None:
    assert [each for each in WEIGHTS if is_taken("spec.weight", each)] == [
        each for each in WEIGHTS if matches(SPEC["spec.weight"], each)
    ]


def matches(field: Schema, written: str) -> bool:
    """True if the schema takes this text; Go's `$` is the end of the text alone."""
    pattern = field["pattern"].removeprefix("^").removesuffix("$")
    return len(written) <= field["maxLength"] and re.fullmatch(pattern, written, re.ASCII) is not None


def test_quantities_are_those_that_appwrappers_take() -> None:
    member = next(crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "MemberCluster")
    schema = member["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    quantity = schema["properties"]["reserve"]["additionalProperties"]

    for name in QUOTA_FIELDS:
        field = dict(SPEC[f"spec.resources.*.{name}"])
        del field["description"]
        assert field == quantity


def test_schema_and_reader_agree_on_the_number_of_resources() -> None:
    many = {f"r{number}": {"nominalQuota": 1} for number in range(MOST_RESOURCES)}

    assert SPEC["spec.resources"]["maxProperties"] == MOST_RESOURCES
    assert len(parsed({"resources": many}).resources) == MOST_RESOURCES
    with pytest.raises(SpecError, match=r"^spec\.resources: has 65 resources"):
        parsed({"resources": {**many, "one-more": {"nominalQuota": 1}}})


def test_schema_and_reader_agree_on_what_is_required() -> None:
    required = [(path, field["required"]) for path, field in SPEC.items() if "required" in field]

    assert required == [("spec.resources.*", ["nominalQuota"]), (PROVISIONING, ["className"])]
    assert not is_taken("spec.resources.*.nominalQuota", None)
    assert [path for path in LEAVES if not is_taken(path, None)] == ["spec.resources.*.nominalQuota"]


def test_schema_fills_in_nothing_that_could_be_inherited() -> None:
    assert {path: field["default"] for path, field in SPEC.items() if "default" in field} == {"spec": {}}


def test_rules_of_the_schema_say_what_the_reader_says() -> None:
    rules = [*SCHEMA["x-kubernetes-validations"], *SPEC["spec.preemption"]["x-kubernetes-validations"]]
    broken: list[Json] = [{"parent": "q"}, {"preemption": {"whileBorrowing": {}}}]
    said = []
    for spec in broken:
        with pytest.raises(SpecError) as caught:
            parsed(spec)
        said.append(caught.value.problem)

    assert [rule["message"].startswith(each) for rule, each in zip(rules, said, strict=True)] == [True, True]


def test_every_list_and_map_is_bounded() -> None:
    assert [
        path
        for path, field in (SPEC | STATUS).items()
        if (field.get("type") == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ] == []


def test_every_text_is_bounded() -> None:
    texts = {
        path: field
        for path, field in (SPEC | STATUS).items()
        if field.get("type") == "string" or field.get("x-kubernetes-int-or-string")
    }

    assert [path for path, field in texts.items() if not {"maxLength", "enum", "format"} & field.keys()] == []


def test_every_field_is_described() -> None:
    """Otherwise `kubectl explain` has nothing to say of it."""
    assert [
        path
        for path, field in (SPEC | STATUS).items()
        if not field.get("description") and not (path.startswith("status.") and path.endswith(".*"))
    ] == []


def test_columns_show_fields_that_exist() -> None:
    paths = [each["jsonPath"] for each in VERSION["additionalPrinterColumns"]]
    known = [path.replace(r".nvidia\.com/gpu", ".*").removeprefix(".") for path in paths]

    assert [path for path in known if path not in SPEC | STATUS] == ["metadata.creationTimestamp"]
