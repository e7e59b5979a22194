from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.spec_errors import LONGEST_MESSAGE, SpecError, one_line
from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS, SpecSize, refusal
from dispatcher.core.kinds.manifest import build
from dispatcher.core.lifecycle import first_changes
from dispatcher.store import rows
from tests.builders import at, gang_of, make_owner, make_submission, make_template, make_wrapped
from tests.mutations import mutants, mutated

POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
TEMPLATE = "spec.resources.GenericItems[0].generictemplate"
POD_SET = "spec.resources.GenericItems[0].custompodresources[0]"
NAME_RULE = "Use lower case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends"


def message_for(raw_spec: object) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(cast("Mapping[str, Any]", raw_spec), namespace="default")
    return str(caught.value)


def spec_of(*items: object) -> dict[str, Any]:
    return {"resources": {"GenericItems": list(items)}}


def with_template(**changes: object) -> dict[str, Any]:
    return spec_of({"generictemplate": {**POD, **changes}})


def with_pod_set(**fields: object) -> dict[str, Any]:
    return spec_of(
        {"generictemplate": POD, "custompodresources": [{"replicas": 1, "requests": {}, **fields}]}
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(None, "spec: must be an object, not null", id="null"),
        pytest.param([1], "spec: must be an object, not a list", id="list"),
        pytest.param(
            {}, "spec: names nothing to create. Give resources.GenericItems or components.", id="empty"
        ),
        pytest.param(
            {**spec_of({"generictemplate": POD}), "components": [{"template": POD}]},
            "spec: has both resources.GenericItems and components. Keep one of the two.",
            id="both-spellings",
        ),
        pytest.param(
            {"resources": {"Items": [{"template": POD}]}},
            "spec.resources.Items: is no longer used. Move its entries to spec.resources.GenericItems.",
            id="items-of-old",
        ),
        pytest.param(
            {"resources": {}, "priority": 2**31},
            "spec.priority: must be a whole number from -2147483648 to 2147483647, not 2147483648",
            id="priority-too-high",
        ),
        pytest.param(
            {"resources": {}, "priorityslope": "steep"},
            'spec.priorityslope: must be a number, not "steep"',
            id="slope-in-words",
        ),
        pytest.param(
            {"resources": {}, "suspend": "yes"},
            'spec.suspend: must be true or false, not "yes"',
            id="suspend-in-words",
        ),
        pytest.param(
            {"resources": {}, "schedulingSpec": {"requeuing": {"timeInSeconds": -3}}},
            "spec.schedulingSpec.requeuing.timeInSeconds: must be a whole number from "
            "0 to 2147483647, not -3",
            id="negative-time",
        ),
        pytest.param(
            {"components": [{"template": POD, "podSets": [{"replicas": 1}]}]},
            "spec.components[0].podSets[0].path: is required",
            id="pod-set-without-path",
        ),
    ],
)
def test_error_in_the_spec_itself_has_a_message(raw: object, message: str) -> None:
    assert message_for(raw) == message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(
            spec_of({}),
            f"{TEMPLATE}: is required. "
            "Put the whole object to create there: apiVersion, kind, metadata and spec.",
            id="no-template",
        ),
        pytest.param(
            spec_of({"generictemplate": POD}, None),
            "spec.resources.GenericItems[1]: must be an object, not null",
            id="null-item",
        ),
        pytest.param(
            with_template(apiVersion=None),
            f"{TEMPLATE}.apiVersion: is not an API version: null. "
            "Write what kubectl api-resources shows, such as batch/v1.",
            id="no-api-version",
        ),
        pytest.param(
            with_template(apiVersion="../v1"),
            'spec.resources.GenericItems[0].generictemplate.apiVersion: is not an API version: "../v1". '
            "Write what kubectl api-resources shows, such as batch/v1.",
            id="api-version-that-climbs",
        ),
        pytest.param(
            with_template(kind=""),
            'spec.resources.GenericItems[0].generictemplate.kind: is not a kind: "". '
            "Write what kubectl api-resources shows, such as Job.",
            id="no-kind",
        ),
        pytest.param(
            with_template(metadata=None),
            f"{TEMPLATE}.metadata: the Pod has neither name nor generateName. Give it a name of its own.",
            id="null-metadata",
        ),
        pytest.param(
            with_template(metadata={"labels": {}}),
            f"{TEMPLATE}.metadata: the Pod has neither name nor generateName. Give it a name of its own.",
            id="no-name",
        ),
        pytest.param(
            with_template(metadata={"name": "My_Pod"}),
            f'{TEMPLATE}.metadata.name: "My_Pod" is not a valid object name. {NAME_RULE}.',
            id="bad-name",
        ),
        pytest.param(
            with_template(metadata={"name": "a" * 254}),
            f'{TEMPLATE}.metadata.name: "{"a" * 76}... is not a valid object name. {NAME_RULE}.',
            id="long-name",
        ),
        pytest.param(
            with_template(metadata={"generateName": "-x"}),
            f'{TEMPLATE}.metadata.generateName: "-x" is not a valid object name. {NAME_RULE}.',
            id="bad-prefix",
        ),
        pytest.param(
            with_template(metadata={"name": "a", "labels": {"tier": 1}}),
            f"{TEMPLATE}.metadata.labels.tier: must be a string, not 1. Put it in quotes.",
            id="label-not-a-string",
        ),
        pytest.param(
            with_template(metadata={"name": "a", "namespace": "other"}),
            f"{TEMPLATE}.metadata.namespace: "
            '[SyncQueueJob] resource namespace "other" is different from AppWrapper namespace "default". '
            "Leave it out: wrapped objects are created beside their AppWrapper.",
            id="other-namespace",
        ),
        pytest.param(
            {"components": [{"template": {**POD, "metadata": {"name": "a", "namespace": "other"}}}]},
            "spec.components[0].template.metadata.namespace: "
            '[SyncQueueJob] resource namespace "other" is different from AppWrapper namespace "default". '
            "Leave it out: wrapped objects are created beside their AppWrapper.",
            id="other-namespace-in-v1beta2",
        ),
        pytest.param(
            spec_of({"generictemplate": POD}, {"generictemplate": POD}),
            'spec.resources.GenericItems[1]: the Pod "a" is also spec.resources.GenericItems[0]. '
            "Name each object once.",
            id="one-object-twice",
        ),
    ],
)
def test_error_in_a_wrapped_object_has_a_message(raw: object, message: str) -> None:
    assert message_for(raw) == message


@pytest.mark.parametrize(
    "group", ["workload.codeflare.dev/v1beta1", "workload.codeflare.dev/v1beta2", "mcad.ibm.com/v1beta1"]
)
def test_appwrapper_in_an_appwrapper_is_refused(group: str) -> None:
    assert message_for(with_template(apiVersion=group, kind="AppWrapper")) == (
        f"{TEMPLATE}: Nested AppWrappers are forbidden. List what the inner one wraps in the outer one."
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"replicas": -1},
            "replicas: must be a whole number from 0 to 2147483647, not -1",
            id="negative",
        ),
        pytest.param(
            {"replicas": 2**31},
            "replicas: must be a whole number from 0 to 2147483647, not 2147483648",
            id="beyond-int32",
        ),
        pytest.param(
            {"replicas": 1.5}, "replicas: must be a whole number from 0 to 2147483647, not 1.5", id="half"
        ),
        pytest.param(
            {"replicas": True}, "replicas: must be a whole number from 0 to 2147483647, not true", id="true"
        ),
        pytest.param(
            {"replicas": "2"},
            'replicas: must be a whole number from 0 to 2147483647, not "2"',
            id="in-quotes",
        ),
        pytest.param(
            {"requests": None},
            "requests: is required. Say what one pod asks for, such as {cpu: 1, memory: 2Gi}.",
            id="no-requests",
        ),
        pytest.param(
            {"requests": {"cpu": 0.5}},
            'requests.cpu: 0.5 must be in quotes. Write "0.5".',
            id="unquoted-half",
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpu": [1]}},
            'limits["nvidia.com/gpu"]: must be a quantity such as 2, "500m" or "16Gi", not a list',
            id="list-for-a-quantity",
        ),
        pytest.param(
            {"requests": {"c\0pu": 1}},
            'requests["c\\u0000pu"]: is not a resource name such as cpu, memory or nvidia.com/gpu. '
            "Correct the name.",
            id="nul-in-a-resource-name",
        ),
    ],
)
def test_error_in_declared_pods_has_a_message(fields: dict[str, Any], message: str) -> None:
    assert message_for(with_pod_set(**fields)) == f"{POD_SET}.{message}"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def almost(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with these fields, any of them missing or anything at all; or anything at all."""
    return (
        st.fixed_dictionaries({}, optional={name: one | anything for name, one in fields.items()}) | anything
    )


metadata = almost(
    name=st.just("a") | st.text(),
    generateName=st.just("a-"),
    namespace=st.just("default"),
    labels=almost(a=st.just("b")),
)
template = almost(
    apiVersion=st.sampled_from(["v1", "batch/v1"]), kind=st.just("Pod"), metadata=metadata, spec=anything
)
pod_set = almost(
    replicas=st.integers(),
    requests=almost(cpu=st.integers() | st.text()) | st.dictionaries(st.text(), st.integers()),
    limits=almost(cpu=st.just("1")),
)
generic_item = almost(
    generictemplate=template, custompodresources=st.lists(pod_set, max_size=2), completionstatus=st.text()
)
component = almost(
    template=template, podSets=st.lists(almost(path=st.text(), replicas=st.integers()), max_size=2)
)
scheduling = almost(
    minAvailable=st.integers(),
    requeuing=almost(timeInSeconds=st.integers(), growthType=st.text(), maxTimeInSeconds=st.integers()),
    dispatchDuration=almost(limit=st.integers()),
)
spec = almost(
    resources=almost(GenericItems=st.lists(generic_item, max_size=3), Items=st.just([])),
    components=st.lists(component, max_size=2),
    schedulingSpec=scheduling,
    priority=st.integers(),
    priorityslope=st.floats() | st.integers(),
)


@given(raw=spec)
def test_any_json_parses_or_is_explained_on_one_printable_line(raw: object) -> None:
    try:
        parsed = parse_spec(cast("Mapping[str, Any]", raw), namespace="default")
    except SpecError as error:
        message = str(error)
        assert message.isprintable()
        assert message.isascii()
        assert message.startswith("spec")
    else:
        assert isinstance(parsed, AppWrapperSpec)
        for wrapped in parsed.wrapped:
            assert wrapped.name or wrapped.generate_name
            assert wrapped.template["metadata"].get("namespace") in (None, "default")


# --- How large a spec may be, and what its author is told of one that is larger ----------------------------


@pytest.mark.parametrize(
    ("size", "is_acceptable"),
    [
        pytest.param(SpecSize(0, 0), True, id="empty"),
        pytest.param(SpecSize(LARGEST_SPEC, MOST_CONTAINERS), True, id="both-at-their-bounds"),
        pytest.param(SpecSize(LARGEST_SPEC + 1, 1), False, id="a-byte-too-long"),
        pytest.param(SpecSize(1, MOST_CONTAINERS + 1), False, id="an-object-too-many"),
    ],
)
def test_spec_is_acceptable_up_to_both_bounds(size: SpecSize, is_acceptable: bool) -> None:
    assert size.is_acceptable is is_acceptable


def test_size_is_counted_without_reading() -> None:
    assert SpecSize.of(b'{"a":[[],"{"]}') == SpecSize(14, 4)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            SpecSize(300_000, 9),
            "spec: has 300000 bytes of JSON; at most 262144 are taken. "
            "Keep files and data in ConfigMaps of their own, or on a volume, and mount them.",
        ),
        (
            SpecSize(250_000, 20_000),
            "spec: consists of 20000 lists and objects; at most 16384 are taken. "
            "Keep data in ConfigMaps of their own, or on a volume, and mount them.",
        ),
    ],
)
def test_refusal_of_a_large_spec_gives_the_size_the_bound_and_the_remedy(
    size: SpecSize, message: str
) -> None:
    assert str(refusal(size)) == message


# -----------------------------------------------------------------------------------------------------------
# Whatever is wrong with an AppWrapper, it is told in one line; and what is not told can be kept and created.


Json = dict[str, Any]


@settings(max_examples=300, derandomize=True, deadline=None)
@given(mutated())
def test_mutated_appwrapper_is_explained_or_can_be_kept_and_created(document: Json) -> None:
    try:
        spec = parse_spec(document.get("spec") or {}, namespace="default")
        gang = gang_of(spec)
    except SpecError as error:
        said = str(error)
        assert said == one_line(said)  # either outcome is fine
        return
    change = first_changes.submit(make_submission(), gang, at(1))
    assert b"\\u0000" not in rows.to_json([rows.new_row(change.after)]).encode()
    for wrapped in spec.wrapped:
        assert orjson.loads(orjson.dumps(build(wrapped, make_owner())))["metadata"]["name"]


def test_mutants_are_the_same_every_time_and_bear_names_of_their_own() -> None:
    first, second = mutants(40), mutants(40)
    assert first == second
    assert [each["metadata"]["name"] for each in first] == [f"mutant-{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("spec: is wrong", "spec: is wrong", id="as-it-is"),
        pytest.param("a\0b\nc\td\x1be", "a\\x00b\\nc\\td\\x1be", id="control-characters"),
        pytest.param("é…\u200b", "é…\\u200b", id="invisible"),
    ],
)
def test_message_becomes_one_printable_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


def test_long_message_keeps_both_ends() -> None:
    shortened = one_line(f"labels: {'v' * 10**6}: must be no more than 63 bytes")

    assert len(shortened) == LONGEST_MESSAGE
    assert shortened.startswith("labels: vvv")
    assert shortened.endswith("vvv: must be no more than 63 bytes")


@pytest.mark.parametrize("metadata", [{"labels": "x"}, {"labels": ["x"]}, "x", ["x"]])
def test_malformed_pod_template_is_left_for_the_api_server_to_refuse(metadata: object) -> None:
    template = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    wrapped = make_wrapped({**make_template("Job", "batch/v1"), "spec": {"template": template}})

    assert build(wrapped, make_owner())["spec"] == {"template": template}


def test_generated_name_is_no_longer_than_one_the_api_server_would_make() -> None:
    built = build(make_wrapped(make_template(generateName="g" * 200)), make_owner())

    assert len(built["metadata"]["name"]) == 63
