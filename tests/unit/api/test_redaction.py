"""What API servers say of an object, without what is in it; messages are of apiservers, with another secret each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.redaction import HIDDEN, LONGEST_FREE_TEXT, without_values
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.validation import check_no_secret_values

SECRET = "hunter2"

SHAPES = [
    pytest.param(
        'Secret "s" is invalid: type: Invalid value: "hunter2": may not change once set',
        'Secret "s" is invalid: type: Invalid value (not shown): may not change once set',
        id="string",
    ),
    pytest.param(
        'Pod "p" is invalid: spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and '
        "65535, inclusive",
        'Pod "p" is invalid: spec.containers[0].ports[0].containerPort: Invalid value (not shown): must be between 1 '
        "and 65535, inclusive",
        id="number",
    ),
    pytest.param(
        r'Job "j" is invalid: metadata.labels: Invalid value: "a \"hunter2\": b": a valid label must be an empty '
        r"string or consist of alphanumeric characters",
        'Job "j" is invalid: metadata.labels: Invalid value (not shown): a valid label must be an empty string or '
        "consist of alphanumeric characters",
        id="escaped-quotes",
    ),
    pytest.param(
        'ConfigMap "c" is invalid: [data[a b]: Invalid value: "hunter2": a valid config key must consist of '
        "alphanumeric characters, metadata.name: Required value: name or generateName is required, "
        'spec.x: Unsupported value: "hunter2": supported values: "A", "B"]',
        'ConfigMap "c" is invalid: [data[a b]: Invalid value (not shown): a valid config key must consist of '
        "alphanumeric characters, metadata.name: Required value: name or generateName is required, "
        'spec.x: Unsupported value (not shown): supported values: "A", "B"]',
        id="several",
    ),
    pytest.param(
        'Pod "p" is invalid: spec.containers[0].env[1]: Duplicate value: core.EnvVar{Name:"A", Value:"hunter2: }", '
        "ValueFrom:(*core.EnvVarSource)(nil)}",
        'Pod "p" is invalid: spec.containers[0].env[1]: Duplicate value (not shown)',
        id="go-struct",
    ),
    pytest.param(
        'Widget "w" is invalid: spec.pairs[1]: Duplicate value: map[string]interface {}{"key":"hunter2"}',
        'Widget "w" is invalid: spec.pairs[1]: Duplicate value (not shown)',
        id="go-map",
    ),
    pytest.param(
        'Pod "p" is invalid: spec.x: Invalid value: []string{"hunter2", "b"}: at most one, spec.y: Required value',
        'Pod "p" is invalid: spec.x: Invalid value (not shown): at most one, spec.y: Required value',
        id="go-slice",
    ),
    pytest.param(
        'RayCluster "r" is invalid: spec.timeout: Invalid value: "hunter2": time: invalid duration "hunter2"',
        'RayCluster "r" is invalid: spec.timeout: Invalid value (not shown): time: invalid duration (not shown)',
        id="rule-repeats-it",
    ),
    pytest.param(
        'Widget "w" is invalid: spec.a: Invalid value: "string": spec.a in body must be of type integer: "string"',
        'Widget "w" is invalid: spec.a: Invalid value (not shown): spec.a in body must be of type integer: "string"',
        id="type",
    ),
    pytest.param(
        'Widget "w" is invalid: spec: Invalid value: "object": replicas must not exceed maxReplicas',
        'Widget "w" is invalid: spec: Invalid value (not shown): replicas must not exceed maxReplicas',
        id="cel",
    ),
    pytest.param(
        'Pod "p" is invalid: spec.volumes[0].name: Not found: "hunter2"',
        'Pod "p" is invalid: spec.volumes[0].name: Not found (not shown)',
        id="not-found",
    ),
    pytest.param(
        'Secret "s" is invalid: data: Invalid value: {something: hunter2',
        'Secret "s" is invalid: data: Invalid value (not shown)',
        id="value-without-end",
    ),
    pytest.param(
        'Job in version "v1" cannot be handled as a Job: parsing time "hunter2" as "2006": cannot parse "hunter2"',
        'Job in version "v1" cannot be handled as a Job: (not shown)',
        id="undecodable",
    ),
    pytest.param(
        'Secret in version "v1" cannot be handled as a Secret: v1.Secret.Data: base64, error found in #10 byte of '
        '...|"hunter2"|..., bigger context ...|{"data":{"p":"hunter2"}}|...',
        'Secret in version "v1" cannot be handled as a Secret: (not shown)',
        id="with-its-context",
    ),
]
KEPT = [
    'AppWrapper "t" is invalid: spec: Invalid value: Nested AppWrappers are forbidden: list what the inner one wraps',
    'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1',
    'pods "p" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    'Pod "p" is invalid: spec.containers[0].image: Required value',
    'Secret "s" is invalid: data: Too long: may not be more than 1048576 bytes',
    'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 4',
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.foo"',
    'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field '
    "PodSpec.spec.priority of type int32",
    'admission webhook "vpod.example.com" denied the request: gpu type a100 is reserved',
    'namespaces "gone" not found',
]


@pytest.mark.parametrize(("message", "told"), SHAPES)
def test_value_goes_and_path_and_rule_stay(message: str, told: str) -> None:
    assert without_values(message) == told
    assert SECRET not in told


@pytest.mark.parametrize("message", KEPT)
def test_message_without_a_value_stays_as_it_is(message: str) -> None:
    assert without_values(message) == message


def test_words_of_a_webhook_are_cut_short() -> None:
    said = 'admission webhook "w" denied the request: '
    assert len(without_values(said + "x" * 5000)) == len(said) + LONGEST_FREE_TEXT


@given(st.text(min_size=4, max_size=40))
def test_no_quoted_value_gets_through_whatever_it_is(secret: str) -> None:
    literal = '"' + secret.replace("\\", "\\\\").replace('"', '\\"') + '"'
    told = without_values(f"is invalid: [a.b: Invalid value: {literal}: no, c: Duplicate value: {literal}]")
    assert told == f"is invalid: [a.b: Invalid value {HIDDEN}: no, c: Duplicate value {HIDDEN}]"


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    without_values(text)
    without_values(f"x: Invalid value: {text}")


# --- A Secret's values do not belong in an AppWrapper; a Secret without any may be wrapped -----------------


Json = dict[str, Any]

WRAPPED_SECRET: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
HAS_DATA = {**WRAPPED_SECRET, "data": {"password": "aHVudGVyMg=="}}
HAS_TEXT = {**WRAPPED_SECRET, "stringData": {"password": "hunter2"}}


def wrapping(*templates: Json) -> AppWrapperSpec:
    return AppWrapperSpec(wrapped=tuple(WrappedObject(index, each) for index, each in enumerate(templates)))


def listed(kind: str, *items: object) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "l"}, "items": list(items)}


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(HAS_DATA, id="data"),
        pytest.param(HAS_TEXT, id="string-data"),
        pytest.param({**WRAPPED_SECRET, "data": "no map"}, id="data-that-is-no-map"),
        pytest.param(listed("List", WRAPPED_SECRET, HAS_DATA), id="in-a-list"),
        pytest.param(listed("List", listed("List", HAS_TEXT)), id="in-a-list-in-a-list"),
        pytest.param(listed("SecretList", {"metadata": {}, "data": {"a": "b"}}), id="in-a-list-of-secrets"),
    ],
)
def test_secret_with_values_is_refused_without_a_word_of_them(template: Json) -> None:
    with pytest.raises(SpecError) as caught:
        check_no_secret_values(wrapping(WRAPPED_SECRET, template))
    said = str(caught.value)
    assert said.startswith("spec.resources.GenericItems[1]: wraps a Secret with values")
    assert "hunter2" not in said
    assert "aHVudGVyMg" not in said
    assert "password" not in said


@pytest.mark.parametrize(
    "template",
    [
        WRAPPED_SECRET,
        {**WRAPPED_SECRET, "data": {}, "stringData": None},
        {**HAS_DATA, "kind": "ConfigMap"},
        {**HAS_DATA, "apiVersion": "example.com/v1"},
        listed("List", WRAPPED_SECRET, "no object"),
        listed("SecretList"),
        {"apiVersion": "v1", "kind": "SecretList"},
        {"apiVersion": "v1", "kind": "List", "items": {"kind": "Secret"}},
    ],
)
def test_everything_else_may_be_wrapped(template: Json) -> None:
    check_no_secret_values(wrapping(template))
